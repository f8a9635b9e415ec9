use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use crate::arm::Arm;

#[test]
fn ids_are_unique_and_fit_for_directories() {
    let ids: BTreeSet<_> = ALL.iter().map(|d| d.id).collect();
    assert_eq!(ids.len(), ALL.len());
    let fit = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    assert!(ids.iter().all(|id| id.chars().all(fit)), "{ids:?}");
}

#[test]
fn an_unknown_id_is_answered_with_near_ones() {
    assert_eq!(find("fsa-2a").unwrap().id, "fsa-2a");
    let said = |id| find(id).unwrap_err().to_string();
    let near = said("fsa2a");
    assert!(
        near.starts_with("there is no experiment `fsa2a`; did you mean fsa-2a"),
        "{near}"
    );
    assert_eq!(
        said("xyz"),
        "there is no experiment `xyz`; `braid lab list` shows all"
    );
}

/// The seed alone decides what is found.
#[test]
fn fsa_2a_runs_in_the_simulator() {
    let definition = find("fsa-2a").unwrap();
    let runs = AtomicU64::new(0);
    let count = || {
        runs.fetch_add(1, Ordering::Relaxed);
    };
    let run = |seed, threads| {
        let request = Request {
            arm: Arm::Sim,
            runs: 2,
            seed,
            threads,
            progress: &count,
        };
        definition.run(request).unwrap()
    };
    let findings = run(1, 2);
    let cells = (definition.cells)(Arm::Sim);
    assert_eq!(runs.load(Ordering::Relaxed), cells as u64 * 2);
    assert_eq!(findings.records.len(), cells);
    let outcome = &findings.outcome;
    assert_eq!(outcome.figures.len(), findings.figures.len());
    for table in &outcome.tables {
        assert!(
            table
                .rows
                .iter()
                .all(|row| row.len() == table.columns.len())
        );
    }
    // What a flow of three packets does is sure; the other claims are about means.
    let sure = outcome
        .verdicts
        .iter()
        .filter(|v| v.claim.ends_with("on the second subflow"));
    let sure: Vec<bool> = sure.map(|v| v.holds).collect();
    assert_eq!(sure, [true, true], "{:#?}", outcome.verdicts);
    let again = run(1, 1);
    assert_eq!(again.outcome, findings.outcome);
    assert_eq!(again.records, findings.records);
    assert_ne!(run(2, 2).records, findings.records);
}

/// Two cells, both lossless, so that a few runs tell who is faster.
#[test]
fn a_small_grid_is_judged() {
    const SMALL: grid::Grid = grid::Grid {
        sizes: &["8k", "1M"],
        paths: &["5mbit,40ms,H;5mbit,100ms,L"],
        losses: &[0.0],
        cc: &["cubic"],
        starts: &[grid::Start::Warm],
    };
    let definition = find("grid").unwrap();
    let request = Request {
        arm: Arm::Sim,
        runs: 2,
        seed: 1,
        threads: 2,
        progress: &|| (),
    };
    let findings = definition
        .run_as(request, |session| grid::measure(session, &SMALL))
        .unwrap();
    let outcome = &findings.outcome;
    assert!(outcome.holds(), "{:#?}", outcome.verdicts);
    // Arrival, mean, p95, copies, and the one geometric mean that is asked of warm starts.
    assert_eq!(outcome.verdicts.len(), 5);
    let cells = findings.records[0].1.as_array().unwrap();
    assert_eq!(cells.len(), SMALL.len());
    for cell in cells {
        assert!(cell["mean_ms"].as_f64() >= cell["oracle_ms"].as_f64());
        assert_eq!(cell["copies"].as_f64(), Some(0.0), "{cell}");
    }
    assert_eq!(outcome.figures, ["warm-by-size"]);
}
