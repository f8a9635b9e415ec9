use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use crate::backend::Backend;

#[test]
fn ids_are_unique_and_fit_for_directories() {
    let ids: BTreeSet<_> = ALL.iter().map(|d| d.id).collect();
    assert_eq!(ids.len(), ALL.len());
    let fit = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    assert!(ids.iter().all(|id| id.chars().all(fit)), "{ids:?}");
}

/// The data of every entry is well-formed, and an experiment uses it.
#[test]
fn every_entry_of_the_file_is_an_experiment() {
    let ids: BTreeSet<_> = ALL.iter().map(|d| d.id).collect();
    for (id, entry) in entry::ENTRIES.iter() {
        assert!(ids.contains(id), "{id}");
        for plan in &entry.sweeps {
            plan.sweeps(Backend::Sim).unwrap();
        }
    }
}

#[test]
fn an_unknown_id_is_answered_with_near_ones() {
    assert_eq!(find("fsa-2a").unwrap().id, "fsa-2a");
    let message = |id| find(id).unwrap_err().to_string();
    let near = message("fsa2a");
    assert!(
        near.starts_with("there is no experiment `fsa2a`; did you mean fsa-2a"),
        "{near}"
    );
    assert_eq!(
        message("xyz"),
        "there is no experiment `xyz`; `braid-lab list` shows all"
    );
}

/// Runs an experiment in the simulator.
fn measure(
    definition: &Definition,
    runs: u64,
    seed: u64,
    threads: usize,
) -> (ExperimentResult, u64) {
    let made = AtomicU64::new(0);
    let request = Request {
        backend: Backend::Sim,
        runs,
        seed,
        threads,
        progress: &|| {
            made.fetch_add(1, Ordering::Relaxed);
        },
    };
    let result = definition.run(request).unwrap();
    (result, made.into_inner())
}

/// Runs an experiment in the simulator, and checks its outcome, and that it reports as many finished runs as
/// its definition announces.
fn run(id: &str, runs: u64, seed: u64, threads: usize) -> ExperimentResult {
    let definition = find(id).unwrap();
    let (result, made) = measure(definition, runs, seed, threads);
    assert_eq!(made, definition.cases(Backend::Sim) as u64 * runs, "{id}");
    assert_consistent(&result);
    result
}

/// Runs an experiment with two threads and with one, and checks that the results are equal.
fn twice(id: &str, runs: u64) -> ExperimentResult {
    let first = run(id, runs, 1, 2);
    let again = run(id, runs, 1, 1);
    assert_eq!(again.outcome, first.outcome);
    assert_eq!(again.records, first.records);
    assert_eq!(again.figures, first.figures);
    assert_eq!(again.captures, first.captures);
    first
}

/// Checks the rules for every outcome: rows of tables are complete, and claims and names of records are
/// unique.
fn assert_consistent(result: &ExperimentResult) {
    let outcome = &result.outcome;
    assert_eq!(outcome.figures.len(), result.figures.len());
    for Table { columns, rows, .. } in &outcome.tables {
        assert!(rows.iter().all(|row| row.len() == columns.len()));
    }
    let claims: BTreeSet<_> = outcome.verdicts.iter().map(|v| &v.claim).collect();
    assert_eq!(
        claims.len(),
        outcome.verdicts.len(),
        "no claim hides another"
    );
    let names = result.records.iter().map(|(name, _)| name);
    let names: BTreeSet<_> = names.collect();
    assert_eq!(names.len(), result.records.len(), "no file hides another");
    let json = outcome.json();
    for claim in claims {
        assert!(json["measured"][claim]["holds"].is_boolean(), "{claim}");
    }
}

/// The seed alone decides the result.
#[test]
fn fsa_2a_runs_in_the_simulator() {
    let result = twice("fsa-2a", 2);
    assert_eq!(
        result.records.len(),
        find("fsa-2a").unwrap().cases(Backend::Sim)
    );
    // A flow of three packets behaves the same in every run; the other claims are about means.
    let certain = result
        .outcome
        .verdicts
        .iter()
        .filter(|v| v.claim.contains("bytes on the second subflow"));
    let certain: Vec<bool> = certain.map(Verdict::holds).collect();
    assert_eq!(certain, [true], "{:#?}", result.outcome.verdicts);
    assert_ne!(run("fsa-2a", 2, 2, 2).records, result.records);
}

/// No claim depends on chance: each holds in every single run.
#[test]
fn a_tiny_flow_opens_no_second_subflow_with_fsa() {
    let result = twice("fsa-6a", 2);
    assert!(result.outcome.holds(), "{:#?}", result.outcome.verdicts);
}

#[test]
fn every_fsa_experiment_measures_what_it_claims() {
    for id in ["fsa-2b", "fsa-3", "fsa-5", "fsa-6b"] {
        let result = run(id, 2, 1, 2);
        let missing = |v: &&Verdict| v.values().iter().any(|v| v.value.is_none());
        let missing: Vec<_> = result.outcome.verdicts.iter().filter(missing).collect();
        assert!(missing.is_empty(), "{id}: {missing:#?}");
    }
}

/// An outage of ten seconds shows as a pause of the arrivals, and their rate recovers after it.
#[test]
fn a_dark_path_is_seen_in_what_arrives() {
    let result = run("failover", 1, 1, 2);
    let values = result.outcome.verdicts.iter().flat_map(Verdict::values);
    let pauses = result.outcome.verdicts.iter();
    let pauses = pauses.filter(|v| v.claim.ends_with("longest pause"));
    for pause in pauses.flat_map(Verdict::values) {
        let pause = pause.value;
        // A failure cannot be noticed before an acknowledgement is overdue.
        assert!(pause.is_some_and(|timeouts| timeouts > 0.2), "{pause:?}");
    }
    assert!(values.into_iter().all(|v| v.value.is_some()));
}

/// Returns a grid of two cases, both without loss, so that a few runs show which strategy is faster.
fn small_grid() -> grid::Grid {
    let text = "sizes = ['8k', '1M']\npaths = ['5mbit,40ms,H;5mbit,100ms,L']\nlosses = [0.0]\n\
                cc = ['cubic']\nstarts = ['warm']";
    toml::from_str(text).unwrap()
}

#[test]
fn a_small_grid_is_judged() {
    let definition = Definition {
        measure: |session| grid::measure_grid(session, &small_grid()),
        ..*find("grid").unwrap()
    };
    let (result, _) = measure(&definition, 2, 1, 2);
    let outcome = &result.outcome;
    assert!(outcome.holds(), "{:#?}", outcome.verdicts);
    // Arrival, mean, p95, copies, and the geometric means.
    assert_eq!(outcome.verdicts.len(), 5);
    let cases = result.records[0].1.as_array().unwrap();
    assert_eq!(cases.len(), small_grid().len());
    for case in cases {
        assert!(case["mean_ms"].as_f64() >= case["oracle_ms"].as_f64());
        assert_eq!(case["copies"].as_f64(), Some(0.0), "{case}");
    }
    assert_eq!(outcome.figures, ["warm-cubic-by-size"]);
}

/// The number of threads does not change the result of a session experiment.
#[test]
fn po_7_runs_in_the_simulator() {
    let first = twice("po-7", 1);
    let jitter = first.outcome.verdicts.first().map(|v| v.parts.len());
    assert_eq!(
        jitter,
        Some(4),
        "a part for each base scheduler and statistic"
    );
}

mod ffmpeg {
    use super::*;

    /// Frames that arrive in time are decoded, and the seed alone decides which do.
    #[test]
    #[ignore = "ffmpeg"]
    fn po_8_compares_pictures() {
        let first = twice("po-8", 1);
        let psnr = |name: &str| {
            let of = |(known, _): &&(String, serde_json::Value)| known == name;
            let record = &first.records.iter().find(of).unwrap().1;
            record["runs"][0]["psnr_db"].as_f64().unwrap()
        };
        // At a loss of 5 % standard MPTCP delivers little of the video in time, whatever the seed.
        let [at_2_percent, at_5_percent] =
            ["standard-MPTCP-loss2", "standard-MPTCP-loss5"].map(psnr);
        assert!(
            at_2_percent > at_5_percent + 3.0 && at_5_percent > 5.0,
            "{at_2_percent} dB, {at_5_percent} dB"
        );
    }
}

/// The address changes in the middle of a download, and no byte is lost.
#[test]
fn maps_5_runs_in_the_simulator() {
    let result = run("maps-5", 1, 1, 2);
    assert!(result.outcome.holds(), "{:#?}", result.outcome.verdicts);
}
