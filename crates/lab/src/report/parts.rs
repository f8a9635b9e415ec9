//! The texts and tables that both pages share.

use crate::backend::Backend;
use crate::experiments::{Outcome, Table, Verdict};

use super::store::Stored;

/// Groups the results by experiment, each with its results on all backends.
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
            let here = results.iter().find(|one| one.outcome.backend == *backend);
            here.map_or_else(String::new, |one| in_short(&one.outcome))
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

fn in_short(outcome: &Outcome) -> String {
    let count = outcome.verdicts.len();
    let holding = outcome.verdicts.iter().filter(|v| v.holds).count();
    match holding == count {
        true => format!("holds ({count} of {count} claims)"),
        false => format!("{holding} of {count} claims hold"),
    }
}

/// Returns a table of the reported and measured values of each claim, on every backend.
pub(super) fn claims(backends: &[Stored]) -> Table {
    let mut rows: Vec<Vec<String>> = Vec::new();
    let judged = |one: &Stored, expected: &str| -> Option<Verdict> {
        let mut verdicts = one.outcome.verdicts.iter();
        verdicts.find(|v| v.expected() == expected).cloned()
    };
    for verdict in backends.iter().flat_map(|one| &one.outcome.verdicts) {
        let expected = verdict.expected();
        if rows.iter().any(|row| row[0] == expected) {
            continue;
        }
        let of_backends: Vec<Option<Verdict>> =
            backends.iter().map(|a| judged(a, &expected)).collect();
        let mut row = vec![expected, verdict.reported.clone()];
        let measured = |v: &Option<Verdict>| v.as_ref().map(Verdict::measured);
        row.extend(of_backends.iter().map(|v| measured(v).unwrap_or_default()));
        let words = backends.iter().zip(&of_backends);
        let words = words.filter_map(|(one, v)| Some((&one.outcome.backend, v.as_ref()?.word())));
        let mut words: Vec<(&String, &str)> = words.collect();
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

/// Returns the reasons why claims do not hold, each with the claims that it explains.
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

/// Returns the command that makes this result again.
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

/// Returns the parameters of a result, without those that `before` has too.
pub(super) fn parameters(outcome: &Outcome, before: Option<&Outcome>) -> String {
    let known = |parameter| before.is_some_and(|one| one.parameters.contains(parameter));
    let new = outcome.parameters.iter().filter(|p| !known(*p));
    let each = new.map(|(name, value)| format!("{name}: {value}"));
    each.collect::<Vec<_>>().join("; ")
}
