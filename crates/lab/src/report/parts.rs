//! The texts and tables that the HTML page and the Markdown page share.

use crate::backend::Backend;
use crate::experiments::{Outcome, Table, Verdict};

use super::store::Stored;

/// Groups the results by experiment. [`super::store::load`] sorts them, so results of an experiment are
/// next to each other.
pub(super) fn by_experiment(stored: &[Stored]) -> impl Iterator<Item = &[Stored]> {
    stored.chunk_by(|a, b| a.outcome.id == b.outcome.id)
}

pub(super) fn columns(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

/// Returns a table with a row for each experiment and a column for each backend that has results.
pub(super) fn summary(stored: &[Stored]) -> Table {
    let has = |backend: &&str| stored.iter().any(|one| one.outcome.backend == *backend);
    let backends: Vec<&str> = Backend::ALL
        .map(Backend::name)
        .into_iter()
        .filter(has)
        .collect();
    let row = |results: &[Stored]| {
        let first = &results[0].outcome;
        let mut row = vec![first.id.clone(), first.title.clone(), first.source.clone()];
        row.extend(backends.iter().map(|backend| {
            let on_backend = results.iter().find(|one| one.outcome.backend == *backend);
            on_backend.map_or_else(String::new, |one| verdict_count(&one.outcome))
        }));
        row
    };
    Table {
        title: "All results".to_owned(),
        columns: [
            columns(&["id", "what is compared", "source"]),
            columns(&backends),
        ]
        .concat(),
        rows: by_experiment(stored).map(row).collect(),
    }
}

/// Returns the verdict on an experiment in a few words.
fn verdict_count(outcome: &Outcome) -> String {
    let count = outcome.verdicts.len();
    let holding = outcome.verdicts.iter().filter(|v| v.holds).count();
    match holding == count {
        true => format!("holds ({count} of {count} claims)"),
        false => format!("{holding} of {count} claims hold"),
    }
}

/// Returns a table with a row for each claim: its bound, the reported value, the measured values of every
/// backend, and the verdict. Backends share a row if claim and bound are equal.
pub(super) fn claims(backends: &[Stored]) -> Table {
    let mut rows: Vec<Vec<String>> = Vec::new();
    let verdict_of = |one: &Stored, expected: &str| -> Option<Verdict> {
        let mut verdicts = one.outcome.verdicts.iter();
        verdicts.find(|v| v.expected() == expected).cloned()
    };
    for verdict in backends.iter().flat_map(|one| &one.outcome.verdicts) {
        let expected = verdict.expected();
        if rows.iter().any(|row| row[0] == expected) {
            continue;
        }
        let of_backends: Vec<Option<Verdict>> =
            backends.iter().map(|a| verdict_of(a, &expected)).collect();
        let mut row = vec![expected, verdict.reported.clone()];
        let measured = |v: &Option<Verdict>| v.as_ref().map(Verdict::measured);
        row.extend(of_backends.iter().map(|v| measured(v).unwrap_or_default()));
        let words = backends.iter().zip(&of_backends);
        let words = words.filter_map(|(one, v)| Some((&one.outcome.backend, v.as_ref()?.word())));
        let mut words: Vec<(&String, &str)> = words.collect();
        // Backends that agree need no names: one word stands for all.
        words.dedup_by(|a, b| a.1 == b.1);
        row.push(match &words[..] {
            [(_, word)] => (*word).to_owned(),
            _ => {
                let each = words
                    .iter()
                    .map(|(backend, word)| format!("{backend} {word}"));
                each.collect::<Vec<_>>().join("; ")
            }
        });
        rows.push(row);
    }
    let measured = backends
        .iter()
        .map(|one| format!("measured ({})", one.outcome.backend));
    let mut head = columns(&["must hold", "reported"]);
    head.extend(measured);
    head.push("holds?".to_owned());
    Table {
        title: "What must hold".to_owned(),
        columns: head,
        rows,
    }
}

/// Returns the reasons why claims do not hold. Each entry has the claims that a reason explains, joined
/// by semicolons, and the reason.
pub(super) fn reasons(backends: &[Stored]) -> Vec<(String, String)> {
    let mut reasons: Vec<(String, String)> = Vec::new();
    for Stored { outcome, .. } in backends {
        for verdict in outcome.verdicts.iter().filter(|v| !v.why.is_empty()) {
            let claim = format!("{} ({})", verdict.claim, outcome.backend);
            match reasons.iter_mut().find(|(_, why)| *why == verdict.why) {
                Some((claims, _)) => *claims += &format!("; {claim}"),
                None => reasons.push((claim, verdict.why.clone())),
            }
        }
    }
    reasons
}

/// Returns the command that reproduces this result.
pub(super) fn command(outcome: &Outcome) -> String {
    let Outcome {
        id,
        backend,
        runs,
        seed,
        ..
    } = outcome;
    format!("braid-lab run {id} --backend {backend} --runs {runs} --seed {seed}")
}

/// Returns the parameters of a result, without parameters that `previous` has with the same value.
pub(super) fn parameters(outcome: &Outcome, previous: Option<&Outcome>) -> String {
    let known = |parameter| previous.is_some_and(|one| one.parameters.contains(parameter));
    let new = outcome.parameters.iter().filter(|p| !known(*p));
    let each = new.map(|(name, value)| format!("{name}: {value}"));
    each.collect::<Vec<_>>().join("; ")
}
