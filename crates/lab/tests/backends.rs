//! The backends in wall-clock time, against the simulator.
//!
//! Tests outside the module `soak` keep every run, however late the links were, and bound times only
//! from below, because a busy machine makes them longer. Tests in the module `soak` draw no conclusion
//! on a machine that is too busy to emulate links, and say so.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use braid_lab::backend::{Backend, Error};
use braid_lab::fct::{self, Case, DefaultPath, Direction, Row, RunResult};
use braid_testbed::netns;

fn case(paths: &str, size: &str) -> Case {
    Case::new(paths.parse().unwrap(), size.parse().unwrap())
}

fn is_possible(backend: Backend) -> bool {
    if !backend.is_virtual()
        && let Err(reason) = netns::ensure_capable()
    {
        reason.announce("runs over emulated links");
        return false;
    }
    true
}

/// Makes runs that are kept however late the links were; `None` if this machine has no namespaces.
fn made(case: &Case, backend: Backend, runs: u64) -> Option<Row> {
    if !is_possible(backend) {
        return None;
    }
    backend.check(case).unwrap();
    let mut session = backend.open(case).unwrap();
    session.keep_late_runs();
    let results: Vec<_> = (0..runs)
        .map(|index| session.run(case, index).unwrap())
        .collect();
    Some(Row::new(case, backend, &results))
}

/// Two paths of the same rate, without loss.
const CLEAN: &str = "5mbit,40ms,0%;5mbit,100ms,0%";
/// Two paths of the same rate, with loss.
const LOSSY: &str = "5mbit,40ms,1%;5mbit,100ms,1%";

/// A trace of packet times in a file, which is removed when the value is dropped.
struct Trace(PathBuf);

impl Trace {
    /// Creates a trace with no packet for 200 ms, then one each 4 ms for 100 ms: 1 Mbit/s in the mean.
    fn with_gaps() -> Trace {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("gaps-{}-{count}.trace", std::process::id());
        let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        let times: Vec<String> = (0..=25).map(|n| (200 + 4 * n).to_string()).collect();
        std::fs::write(&file, times.join("\n")).unwrap();
        Trace(file)
    }

    fn case(&self) -> Case {
        let file = self.0.display();
        case(&format!("trace:{file},20ms,0%;500kbit,60ms,0%"), "64k")
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Returns both directions of `case`, each with and without subflows that are established first.
fn directions(case: &Case) -> Vec<Case> {
    let of = |(direction, warm_subflows)| Case {
        direction,
        warm_subflows,
        default_path: DefaultPath::Path(1),
        ..case.clone()
    };
    let (down, up) = (Direction::Down, Direction::Up);
    [(down, false), (down, true), (up, false), (up, true)]
        .map(of)
        .into()
}

/// Returns cases in which every option differs from the default.
fn cases_of_every_option() -> Vec<Case> {
    let paths = "20mbit,10ms,0%;10mbit,20ms,0%;10mbit,30ms,0%";
    directions(&Case {
        initial_window: 3,
        declare_size: false,
        ..case(paths, "100k")
    })
}

fn kernel_cases() -> Vec<Case> {
    directions(&case("20mbit,10ms,0%;10mbit,30ms,0%", "1M"))
}

/// Returns cases with a good first path, a poor one, and a small initial window.
fn first_path_cases() -> [Case; 3] {
    [(0, 10), (1, 10), (0, 3)].map(|(path, initial_window)| Case {
        default_path: DefaultPath::Path(path),
        initial_window,
        ..case("20mbit,20ms,0%;20mbit,200ms,0%", "40k")
    })
}

fn fct(row: &Row) -> f64 {
    row.fct_ms.mean.unwrap()
}

#[test]
#[ignore = "network"]
fn whatever_completes_in_the_simulator_completes_over_links() {
    let trace = Trace::with_gaps();
    let mut cases = vec![case(CLEAN, "64k"), case(CLEAN, "1M"), trace.case()];
    cases.extend(cases_of_every_option());
    for case in cases {
        let sim = made(&case, Backend::Sim, 1).unwrap();
        let Some(links) = made(&case, Backend::Links, 1) else {
            return;
        };
        assert_eq!((sim.completed, links.completed), (1, 1), "{links:?}");
    }
    let sim = fct::run(&case(LOSSY, "64k"), Backend::Sim, 12, 1, &|| ()).unwrap();
    assert!(sim.iter().any(|run| run.retransmissions > 0), "no losses");
    if let Some(links) = made(&case(LOSSY, "64k"), Backend::Links, 3) {
        assert_eq!(links.completed, 3, "{links:?}");
    }
}

#[test]
#[ignore = "network"]
fn the_kernel_makes_the_same_transfer() {
    for case in kernel_cases() {
        let Some(row) = made(&case, Backend::Kernel, 2) else {
            return;
        };
        assert_eq!((row.strategy.as_str(), row.completed), ("kernel", 2));
        // 1 MiB at 30 Mbit/s takes 280 ms.
        assert!(fct(&row) >= 280.0, "{row:?}");
        assert!(row.bytes_by_path.iter().sum::<u64>() >= 2 << 20, "{row:?}");
        // At most one join for each run; 0 where the kernel does not count them.
        assert!(row.join_syns <= 2, "{row:?}");
        // On a busy machine a subflow that is not established first may come after all bytes are sent.
        if case.warm_subflows {
            assert_uses_all_paths(&row);
        }
    }
}

/// Checks that each of two runs sends bytes on both paths.
fn assert_uses_all_paths(row: &Row) {
    assert!(row.bytes_by_path.iter().all(|bytes| *bytes > 0), "{row:?}");
    // One join for each run; 0 where the kernel does not count them.
    assert!(row.join_syns == 2 || row.join_syns == 0, "{row:?}");
}

#[test]
#[ignore = "network"]
fn the_kernel_takes_its_first_path_and_initial_window_from_the_case() {
    let [_, poor, narrow] = first_path_cases().map(|case| made(&case, Backend::Kernel, 1));
    let (Some(poor), Some(narrow)) = (poor, narrow) else {
        return;
    };
    assert_eq!((poor.completed, narrow.completed), (1, 1));
    // The connection takes one round trip of 200 ms to open, half of one for the request, and the
    // response 20 ms over the other path. Over the good path alone all takes 75 ms.
    assert!(fct(&poor) >= 300.0, "{poor:?}");
    // Four windows of 3, 6, 12 … packets leave 20 ms apart, and the first arrives after 40 ms. Of 10,
    // 20 … packets two windows are enough.
    assert!(fct(&narrow) >= 100.0, "{narrow:?}");
}

#[test]
#[ignore = "network"]
fn an_unknown_congestion_control_of_the_kernel_is_named() {
    let case = Case {
        cc: "fancy".to_owned(),
        ..case("20mbit,20ms,0%;20mbit,20ms,0%", "4k")
    };
    let error = Backend::Kernel.check(&case).unwrap_err();
    let known = error.to_string();
    assert!(matches!(error, Error::Usage(_)), "{known}");
    assert!(
        known.contains("`fancy`") && known.contains("cubic"),
        "{known}"
    );
}

/// Tests that judge times of the wall clock.
mod soak {
    use std::sync::{Mutex, MutexGuard, PoisonError};

    use super::*;

    /// Held during a measurement, since two at a time would disturb each other.
    static MACHINE: Mutex<()> = Mutex::new(());

    fn machine() -> MutexGuard<'static, ()> {
        MACHINE.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes runs during which the links are on time; `None` if this machine is not able to.
    fn measured(case: &Case, backend: Backend, runs: u64) -> Option<Row> {
        Some(Row::new(case, backend, &results(case, backend, runs)?))
    }

    fn results(case: &Case, backend: Backend, runs: u64) -> Option<Vec<RunResult>> {
        if !is_possible(backend) {
            return None;
        }
        match fct::run(case, backend, runs, 1, &|| ()) {
            Ok(results) => Some(results),
            Err(Error::Busy(why)) => {
                netns::Reason(why).announce("a comparison of backends");
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// Checks that the means of both backends are within 5 % plus 3 ms of each other.
    fn assert_agreement(case: &Case, runs: u64) {
        let _machine = machine();
        let Some(links) = measured(case, Backend::Links, runs) else {
            return;
        };
        let sim = measured(case, Backend::Sim, runs).unwrap();
        assert_eq!((sim.completed, links.completed), (runs, runs));
        let (sim, links) = (fct(&sim), fct(&links));
        let size = &case.size;
        assert!(
            (sim - links).abs() <= 0.05 * sim + 3.0,
            "{size}: sim {sim} ms, links {links} ms"
        );
        eprintln!("{size}: sim {sim} ms, links {links} ms");
    }

    #[test]
    #[ignore = "soak"]
    fn links_agree_with_the_simulator() {
        assert_agreement(&case(CLEAN, "64k"), 5);
        assert_agreement(&case(CLEAN, "1M"), 4);
    }

    /// Losses fall on packets of the same number with both backends, so most runs are nearly equal.
    /// Some may differ, since a packet that leaves a little later may change what follows.
    #[test]
    #[ignore = "soak"]
    fn links_agree_with_the_simulator_where_packets_are_lost() {
        let _machine = machine();
        let case = case(LOSSY, "64k");
        let Some(links) = results(&case, Backend::Links, 12) else {
            return;
        };
        let sim = results(&case, Backend::Sim, 12).unwrap();
        let pairs: Vec<(f64, f64)> = sim
            .iter()
            .zip(&links)
            .map(|(sim, links)| (sim.fct.as_secs_f64(), links.fct.as_secs_f64()))
            .collect();
        let alike = |(sim, links): &&(f64, f64)| (sim - links).abs() <= 0.05 * sim + 0.003;
        assert!(pairs.iter().filter(alike).count() >= 9, "{pairs:?}");
    }

    #[test]
    #[ignore = "soak"]
    fn links_follow_a_trace_as_the_simulator_does() {
        assert_agreement(&Trace::with_gaps().case(), 3);
    }

    #[test]
    #[ignore = "soak"]
    fn every_option_holds_over_links() {
        for case in cases_of_every_option() {
            assert_agreement(&case, 2);
        }
    }

    #[test]
    #[ignore = "soak"]
    fn the_kernel_takes_as_long_as_its_links_allow() {
        let _machine = machine();
        for case in kernel_cases() {
            let Some(row) = measured(&case, Backend::Kernel, 2) else {
                return;
            };
            // 1 MiB at 30 Mbit/s takes 280 ms.
            assert!((280.0..700.0).contains(&fct(&row)), "{row:?}");
            assert_uses_all_paths(&row);
        }
    }

    #[test]
    #[ignore = "soak"]
    fn the_kernels_first_path_and_initial_window_cost_what_they_should() {
        let _machine = machine();
        let rows = first_path_cases().map(|case| measured(&case, Backend::Kernel, 1));
        let [Some(good), Some(poor), Some(narrow)] = rows else {
            return;
        };
        assert!(fct(&poor) > fct(&good) + 150.0, "{good:?} {poor:?}");
        // Where three windows of 10, 20 … packets suffice, windows of 3, 6, 12 … need one more.
        assert!(fct(&narrow) > fct(&good) + 15.0, "{good:?} {narrow:?}");
    }
}
