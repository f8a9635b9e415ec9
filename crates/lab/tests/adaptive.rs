//! A small version of `braid-lab run grid`: the adaptive strategy is at least as good as the others,
//! and its copies stay within their bounds.

use braid_lab::backend::Backend;
use braid_lab::fct::{self, Case, DefaultPath, Records, RunResult};
use braid_lab::stats;

const RUNS: u64 = 40;

/// Returns a case whose connections open on each path in turn.
fn case(paths: &str, size: &str, strategy: &str) -> Case {
    Case {
        strategy: strategy.to_owned(),
        default_path: DefaultPath::Mix,
        ..Case::new(paths.parse().unwrap(), size.parse().unwrap())
    }
}

fn run(case: &Case) -> Vec<RunResult> {
    let results = fct::run(case, Backend::Sim, RUNS, 2, &|| ()).unwrap();
    assert!(results.iter().all(|r| r.completed), "{case:?}");
    results
}

fn mean_ms(results: &[RunResult]) -> f64 {
    let ms: Vec<f64> = results.iter().map(|r| r.fct.as_secs_f64() * 1e3).collect();
    stats::mean(&ms).unwrap()
}

/// Equal and unequal paths, with and without loss, without records. 40 runs suffice to compare in these
/// cases; the margin is wider where packets are lost.
#[test]
fn no_other_is_faster_from_a_cold_start() {
    for (paths, size, margin) in [
        ("5mbit,40ms,0%;5mbit,40ms,0%", "64k", 1.02),
        ("5mbit,40ms,0%;5mbit,100ms,0%", "32k", 1.02),
        ("5mbit,20ms,0%;5mbit,200ms,0%", "256k", 1.02),
        ("20mbit,40ms,0%;5mbit,100ms,0%", "512k", 1.02),
        ("5mbit,40ms,1%;5mbit,100ms,2%", "64k", 1.05),
    ] {
        let ours = mean_ms(&run(&case(paths, size, "adaptive")));
        for other in ["minrtt", "roundrobin", "redundant", "ecf", "fsa"] {
            let theirs = mean_ms(&run(&case(paths, size, other)));
            let shown = format!("{paths} {size}: {ours} ms, {other} {theirs}");
            assert!(ours <= margin * theirs, "{shown}");
        }
    }
}

/// The first subflow opens on the path that earlier connections found to be the better one.
#[test]
fn records_decide_where_a_connection_opens() {
    let warm = |strategy: &str| Case {
        records: Records::Warm,
        ..case("5mbit,40ms,0%;5mbit,100ms,0%", "64k", strategy)
    };
    let [ours, fsa, minrtt] =
        ["adaptive", "fsa", "minrtt"].map(|strategy| mean_ms(&run(&warm(strategy))));
    assert!(
        ours <= 0.9 * minrtt && ours <= 1.02 * fsa,
        "{ours} {fsa} {minrtt}"
    );
    // Without records every other connection opens on the poor path.
    let cold = Case {
        records: Records::Cold,
        ..warm("adaptive")
    };
    assert!(mean_ms(&run(&cold)) > 1.1 * ours);
}

/// A lost SYN costs a quarter of a second instead of a whole one (RFC 6298).
#[test]
fn a_second_syn_makes_up_for_a_lost_one() {
    const HEAVY: &str = "5mbit,40ms,10%;5mbit,40ms,10%";
    let [ours, minrtt] = ["adaptive", "minrtt"].map(|s| mean_ms(&run(&case(HEAVY, "4k", s))));
    assert!(ours < 0.8 * minrtt, "{ours} {minrtt}");
}

#[test]
fn copies_are_bounded_and_mosquitoes_alone() {
    let sums = |paths: &str, size: &str| {
        let case = case(paths, size, "adaptive");
        let results = run(&case);
        let copied: u64 = results.iter().flat_map(|r| &r.copy_bytes_by_path).sum();
        let joins: u64 = results.iter().map(|r| r.join_syns).sum();
        (copied as f64 / (case.size.bytes() * RUNS) as f64, joins)
    };
    let (clean, lossy) = (
        "20mbit,40ms,0%;5mbit,100ms,0%",
        "5mbit,40ms,2%;5mbit,100ms,5%",
    );
    assert_eq!(sums(clean, "1M").0, 0.0);
    for size in ["256k", "1M"] {
        let (copied, _) = sums(lossy, size);
        assert!(copied > 0.0 && copied <= 0.1, "{size}: {copied}");
    }
    assert_eq!(sums(clean, "8k"), (0.0, 0));
}
