//! Measurements in the simulator against figures worked out by hand.

use std::time::Duration;

use braid_lab::backend::{Backend, Error};
use braid_lab::fct::{self, Case, DefaultPath, Direction, Row, RunResult, run_seed};

/// Two paths of 5 Mb/s without loss, 40 and 100 ms.
const CLEAN: &str = "5mbit,40ms,0%;5mbit,100ms,0%";
/// The same paths, with loss on the second.
const LOSSY: &str = "5mbit,40ms,0%;5mbit,100ms,2%";

fn case(paths: &str, size: &str) -> Case {
    Case::new(paths.parse().unwrap(), size.parse().unwrap())
}

fn run(case: &Case, runs: u64) -> Vec<RunResult> {
    fct::run(case, Backend::Sim, runs, 2, &|| ()).unwrap()
}

fn mean_ms(results: &[RunResult]) -> f64 {
    let row = Row::new(&case(CLEAN, "1"), Backend::Sim, results);
    assert_eq!(row.completed, row.runs);
    row.fct_ms.mean.unwrap()
}

/// 4 kB in three packets take a round trip for the handshake, one for request and answer, and at 5 Mb/s
/// 1.6 µs for each byte of SYN, SYN/ACK, request and answer with their headers. Nothing leaves by the
/// second path, whose handshake takes 200 ms.
#[test]
fn a_small_flow_takes_two_round_trips_and_its_serialisation() {
    for (path, rtt) in [(0, 40.0), (1, 100.0)] {
        let case = Case {
            default_path: DefaultPath::Path(path),
            ..case(CLEAN, "4k")
        };
        let results = run(&case, 10);
        let headers = (60 + 72) + (60 + 72) + 3 * 72;
        let serialised = f64::from(100 + 4096 + headers) * 8.0 / 5e6 * 1e3;
        let expected = 2.0 * rtt + serialised;
        let mean = mean_ms(&results);
        assert!((mean - expected).abs() < 0.5, "{mean} ms, not {expected}");
        for result in &results {
            assert_eq!(result.bytes_by_path[path], 4096);
            assert_eq!(result.bytes_by_path.iter().sum::<u64>(), 4096);
            assert_eq!(result.retransmissions, 0);
            // The answer has 4168 to 4312 bytes without its first packet.
            let data = result.fct_data.as_secs_f64() * 1e3;
            assert!((4.0..5.0).contains(&data), "{data}");
        }
    }
}

/// On warm subflows only the request's round trip is left.
#[test]
fn warm_subflows_save_the_handshake() {
    let warm = Case {
        warm_subflows: true,
        ..case(CLEAN, "4k")
    };
    let saved = mean_ms(&run(&case(CLEAN, "4k"), 5)) - mean_ms(&run(&warm, 5));
    assert!((39.0..42.0).contains(&saved), "{saved} ms");
    let results = run(&warm, 5);
    assert!(results.iter().all(|r| r.join_syns == 1), "{results:?}");
}

/// A strategy is asked as long as any byte is unacknowledged. With all subflows established and equal,
/// each carries the whole of a flow that one of them could have taken at once.
#[test]
fn redundant_sends_everything_on_every_path() {
    const ALIKE: &str = "5mbit,40ms,0%;5mbit,40ms,0%;5mbit,40ms,0%";
    let on = |strategy: &str| Case {
        strategy: strategy.to_owned(),
        warm_subflows: true,
        ..case(ALIKE, "4000")
    };
    for result in run(&on("redundant"), 10) {
        assert_eq!(result.bytes_by_path, [4000; 3]);
    }
    // Round robin puts a segment on each path.
    for result in run(&on("roundrobin"), 10) {
        assert_eq!(result.bytes_by_path.iter().sum::<u64>(), 4000);
        assert!(result.bytes_by_path.iter().all(|b| *b < 1440), "{result:?}");
    }
}

#[test]
fn an_upload_ends_at_the_server() {
    let case = Case {
        direction: Direction::Up,
        ..case(CLEAN, "4k")
    };
    let results = run(&case, 5);
    // One round trip for the handshake, half of one for the data (one flight), and 7 ms of
    // serialisation.
    let mean = mean_ms(&results);
    assert!((66.0..69.0).contains(&mean), "{mean}");
    assert!(
        results.iter().all(|r| r.bytes_by_path == [4096, 0]),
        "{results:?}"
    );
}

/// The byte that opens the connection arrives before the transfer starts, and does not count.
#[test]
fn an_upload_on_warm_subflows_is_timed_from_its_start() {
    let case = Case {
        direction: Direction::Up,
        warm_subflows: true,
        ..case(CLEAN, "64k")
    };
    for result in run(&case, 5) {
        assert!(result.completed);
        assert!(result.fct_data <= result.fct, "{result:?}");
    }
}

/// A large flow cannot be faster than both links together, and is not much slower.
#[test]
fn a_large_flow_uses_both_paths() {
    let results = run(&case(CLEAN, "4M"), 3);
    let both = (4 << 20) as f64 * 8.0 / 10e6 * 1e3;
    let mean = mean_ms(&results);
    assert!((both..1.25 * both).contains(&mean), "{mean} of {both}");
    for result in &results {
        let [first, second] = result.bytes_by_path[..] else {
            panic!("two paths");
        };
        assert!(first + second >= 4 << 20);
        assert!(second * 3 > first, "{first} / {second}");
    }
}

/// The second path plays a trace of 12 Mb/s: 1500 bytes each millisecond.
#[test]
fn a_trace_carries_what_it_recorded() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&file, "1\n2\n3\n4\n5\n").unwrap();
    let paths = format!("5mbit,40ms,0%;trace:{},40ms,0%", file.path().display());
    let case = case(&paths, "4M");
    let results = run(&case, 3);
    let both = (4 << 20) as f64 * 8.0 / 17e6 * 1e3;
    let mean = mean_ms(&results);
    assert!((both..1.25 * both).contains(&mean), "{mean} of {both}");
    for result in &results {
        let share = result.bytes_by_path[1] as f64 / (4 << 20) as f64;
        assert!((0.6..0.8).contains(&share), "{share} of 12 / 17");
    }
}

#[test]
fn three_paths_carry_more_than_two() {
    let three = case("5mbit,40ms,0%;5mbit,40ms,0%;5mbit,40ms,0%", "4M");
    let results = run(&three, 2);
    let all = (4 << 20) as f64 * 8.0 / 15e6 * 1e3;
    let mean = mean_ms(&results);
    assert!((all..1.3 * all).contains(&mean), "{mean} of {all}");
    assert!(
        results
            .iter()
            .all(|r| r.bytes_by_path.len() == 3 && r.join_syns == 2)
    );
}

/// Runs open on each path in turn: the first as with path 0, the second as with path 1.
#[test]
fn mixed_runs_open_on_each_path_in_turn() {
    let with = |default_path| {
        let case = Case {
            default_path,
            ..case(LOSSY, "64k")
        };
        run(&case, 4)
    };
    let (good, poor) = (with(DefaultPath::Path(0)), with(DefaultPath::Path(1)));
    let mix = with(DefaultPath::Mix);
    assert_eq!(
        mix,
        [&good[0], &poor[1], &good[2], &poor[3]].map(Clone::clone)
    );
    assert!(mix[1].fct > mix[0].fct + Duration::from_millis(60));
}

/// Four flows at once share the paths, so that each takes longer than a flow alone. The time of the run is their
/// mean.
#[test]
fn several_flows_start_at_once() {
    for direction in [Direction::Down, Direction::Up] {
        for warm_subflows in [false, true] {
            let with = |flows| {
                let case = Case {
                    flows,
                    direction,
                    warm_subflows,
                    ..case(CLEAN, "64k")
                };
                run(&case, 2)
            };
            let (alone, four) = (with(1), with(4));
            for (alone, four) in alone.iter().zip(&four) {
                assert_eq!(alone.flow_fcts, [alone.fct]);
                assert_eq!(four.flow_fcts.len(), 4);
                assert_eq!(four.flow_fcts.iter().sum::<Duration>() / 4, four.fct);
                assert!(four.fct > alone.fct, "{four:?}");
                assert!(
                    four.bytes_by_path.iter().sum::<u64>() >= 4 << 16,
                    "{four:?}"
                );
            }
        }
    }
}

/// The best path alone is a case too.
#[test]
fn a_single_path_carries_the_flow() {
    let results = run(&case("5mbit,40ms,0%", "64k"), 2);
    assert!(
        results
            .iter()
            .all(|r| r.bytes_by_path == [64 << 10] && r.join_syns == 0)
    );
}

/// Results depend on the seed, not on the number of threads.
#[test]
fn threads_change_nothing() {
    let case = case(LOSSY, "64k");
    let with = |threads| fct::run(&case, Backend::Sim, 12, threads, &|| ()).unwrap();
    assert_eq!(with(1), with(5));
    let other = Case {
        seed: 2,
        ..case.clone()
    };
    assert_ne!(with(1), run(&other, 12));
}

/// The initial window bounds the first flight: 32 kB need at least one more round trip with 3 segments.
#[test]
fn a_small_initial_window_takes_longer() {
    let small = Case {
        initial_window: 3,
        ..case(CLEAN, "32k")
    };
    let more = mean_ms(&run(&small, 3)) - mean_ms(&run(&case(CLEAN, "32k"), 3));
    assert!(more > 30.0, "{more} ms");
}

#[test]
fn runs_differ_also_without_loss() {
    let results = run(&case(CLEAN, "64k"), 10);
    let mut times: Vec<Duration> = results.iter().map(|r| r.fct).collect();
    times.sort_unstable();
    times.dedup();
    assert_eq!(times.len(), 10);
}

#[test]
fn seeds_of_runs_depend_on_seed_and_index() {
    assert_eq!(run_seed(1, 0), run_seed(1, 0));
    assert_ne!(run_seed(1, 0), run_seed(1, 1));
    assert_ne!(run_seed(1, 0), run_seed(2, 0));
}

#[test]
fn what_there_is_not_is_refused() {
    let refused = |case: Case| match fct::run(&case, Backend::Sim, 1, 1, &|| ()) {
        Err(Error::Usage(text)) => text,
        other => panic!("{other:?}"),
    };
    let text = refused(Case {
        strategy: "fastest".to_owned(),
        ..case(CLEAN, "4k")
    });
    assert!(
        text.contains("\"fastest\"") && text.contains("minrtt"),
        "{text}"
    );
    let text = refused(Case {
        cc: "vegas".to_owned(),
        ..case(CLEAN, "4k")
    });
    assert!(
        text.contains("\"vegas\"") && text.contains("cubic"),
        "{text}"
    );
    let text = refused(Case {
        default_path: DefaultPath::Path(2),
        ..case(CLEAN, "4k")
    });
    assert!(text.contains("no path 2"), "{text}");
}
