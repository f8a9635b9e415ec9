//! The arms in wall-clock time, against the simulator.
//!
//! A machine that is too busy to emulate links is said to be so; nothing is concluded from it.

use std::sync::{Mutex, PoisonError};

use braid_lab::arm::{Arm, Error};
use braid_lab::fct::{self, Cell, DefaultPath, Direction, Row, RunResult};
use braid_testbed::netns;

/// One measurement at a time.
static MACHINE: Mutex<()> = Mutex::new(());

fn cell(paths: &str, size: &str) -> Cell {
    Cell::new(paths.parse().unwrap(), size.parse().unwrap())
}

/// `None` where this machine cannot say.
fn measured(cell: &Cell, arm: Arm, runs: u64) -> Option<Row> {
    Some(Row::new(cell, arm, &results(cell, arm, runs)?))
}

fn results(cell: &Cell, arm: Arm, runs: u64) -> Option<Vec<RunResult>> {
    let _alone = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
    if !arm.is_virtual()
        && let Err(reason) = netns::ensure_capable()
    {
        reason.announce("runs over emulated links");
        return None;
    }
    match fct::run(cell, arm, runs, 1, &|| ()) {
        Ok(results) => Some(results),
        Err(Error::Busy(why)) => {
            netns::Reason(why).announce("a comparison of arms");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// The means of both arms are within 5 % and 3 ms of each other.
fn assert_agreement(cell: &Cell, runs: u64) {
    let Some(links) = measured(cell, Arm::Links, runs) else {
        return;
    };
    let sim = measured(cell, Arm::Sim, runs).unwrap();
    assert_eq!((sim.completed, links.completed), (runs, runs));
    let (sim, links) = (sim.fct_ms.mean.unwrap(), links.fct_ms.mean.unwrap());
    let size = &cell.size;
    assert!(
        (sim - links).abs() <= 0.05 * sim + 3.0,
        "{size}: sim {sim} ms, links {links} ms"
    );
    eprintln!("{size}: sim {sim} ms, links {links} ms");
}

#[test]
#[ignore = "network"]
fn links_agree_with_the_simulator() {
    let paths = "5mbit,40ms,0%;5mbit,100ms,0%";
    assert_agreement(&cell(paths, "64k"), 5);
    assert_agreement(&cell(paths, "1M"), 4);
}

/// Losses fall on the packets of the same number in both arms, so that each run is much the same.
/// Not all need be: a packet sent a little later may meet another fate, and its flow another end.
#[test]
#[ignore = "network"]
fn links_agree_with_the_simulator_where_packets_are_lost() {
    let cell = cell("5mbit,40ms,1%;5mbit,100ms,1%", "64k");
    let Some(links) = results(&cell, Arm::Links, 12) else {
        return;
    };
    let sim = results(&cell, Arm::Sim, 12).unwrap();
    let pairs: Vec<(f64, f64)> = sim
        .iter()
        .zip(&links)
        .map(|(sim, links)| (sim.fct.as_secs_f64(), links.fct.as_secs_f64()))
        .collect();
    let alike = |(sim, links): &&(f64, f64)| (sim - links).abs() <= 0.05 * sim + 0.003;
    assert!(pairs.iter().filter(alike).count() >= 9, "{pairs:?}");
    assert!(sim.iter().any(|run| run.retransmissions > 0), "no losses");
}

#[test]
#[ignore = "network"]
fn links_follow_a_trace_as_the_simulator_does() {
    // Nothing for 200 ms, then a packet each 4 ms for 100 ms: 1 Mbit/s in the mean.
    let file = format!("{}/gaps.trace", env!("CARGO_TARGET_TMPDIR"));
    let times: Vec<String> = (0..=25).map(|n| (200 + 4 * n).to_string()).collect();
    std::fs::write(&file, times.join("\n")).unwrap();
    assert_agreement(
        &cell(&format!("trace:{file},20ms,0%;500kbit,60ms,0%"), "64k"),
        3,
    );
}

#[test]
#[ignore = "network"]
fn every_option_holds_over_links() {
    let paths = "20mbit,10ms,0%;10mbit,20ms,0%;10mbit,30ms,0%";
    for direction in [Direction::Down, Direction::Up] {
        for warm_subflows in [false, true] {
            let cell = Cell {
                direction,
                warm_subflows,
                default_path: DefaultPath::Path(1),
                initial_window: 3,
                declare_size: false,
                ..cell(paths, "100k")
            };
            assert_agreement(&cell, 2);
        }
    }
}

#[test]
#[ignore = "network"]
fn the_kernel_makes_the_same_transfer() {
    let paths = "20mbit,10ms,0%;10mbit,30ms,0%";
    for direction in [Direction::Down, Direction::Up] {
        for warm_subflows in [false, true] {
            let cell = Cell {
                direction,
                warm_subflows,
                default_path: DefaultPath::Path(1),
                ..cell(paths, "1M")
            };
            let Some(row) = measured(&cell, Arm::Kernel, 2) else {
                return;
            };
            assert_eq!((row.strategy.as_str(), row.completed), ("kernel", 2));
            // 1 MiB at 30 Mbit/s takes 280 ms.
            let mean = row.fct_ms.mean.unwrap();
            assert!((280.0..700.0).contains(&mean), "{row:?}");
            assert!(row.bytes_by_path.iter().sum::<u64>() >= 2 << 20, "{row:?}");
            assert!(row.bytes_by_path.iter().all(|bytes| *bytes > 0), "{row:?}");
            assert!(row.join_syns == 2 || row.join_syns == 0, "{row:?}");
        }
    }
}

#[test]
#[ignore = "network"]
fn the_kernel_takes_its_first_path_and_initial_window_from_the_cell() {
    let of = |path, initial_window| {
        let cell = Cell {
            default_path: DefaultPath::Path(path),
            initial_window,
            ..cell("20mbit,20ms,0%;20mbit,200ms,0%", "40k")
        };
        measured(&cell, Arm::Kernel, 1)
    };
    let (Some(good), Some(poor), Some(narrow)) = (of(0, 10), of(1, 10), of(0, 3)) else {
        return;
    };
    let fct = |row: &Row| row.fct_ms.mean.unwrap();
    assert!(fct(&poor) > fct(&good) + 150.0, "{good:?} {poor:?}");
    // Three windows of 10, 20 ... packets do, of 3, 6, 12 ... one more is needed.
    assert!(fct(&narrow) > fct(&good) + 15.0, "{good:?} {narrow:?}");
}

#[test]
#[ignore = "network"]
fn an_unknown_congestion_control_of_the_kernel_is_named() {
    let cell = Cell {
        cc: "fancy".to_owned(),
        ..cell("20mbit,20ms,0%;20mbit,20ms,0%", "4k")
    };
    let error = Arm::Kernel.check(&cell).unwrap_err();
    let known = error.to_string();
    assert!(matches!(error, Error::Usage(_)), "{known}");
    assert!(
        known.contains("`fancy`") && known.contains("cubic"),
        "{known}"
    );
}
