//! The tables and texts of a report. The tables have no titles: headings and texts of the page introduce them.

use crate::backend::Backend;
use crate::experiments::{Outcome, Table, Verdict};

use super::store::Stored;

/// The row for experiments that no paper describes. Their sources differ in wording, so the report counts
/// them together.
const BEYOND: &str = "beyond the papers";
/// The row with the sums.
const ALL_SOURCES: &str = "all";

/// Groups the results by experiment. [`super::store::load`] sorts them, so results of an experiment are
/// next to each other.
pub(super) fn by_experiment(stored: &[Stored]) -> impl Iterator<Item = &[Stored]> {
    stored.chunk_by(|a, b| a.outcome.id == b.outcome.id)
}

/// Returns the number of claims, and the number of claims that hold. A claim counts once for each backend
/// that measured it.
fn count<'a>(results: impl IntoIterator<Item = &'a Stored>) -> (usize, usize) {
    let verdicts = results.into_iter().flat_map(|one| &one.outcome.verdicts);
    verdicts.fold((0, 0), |(claims, holding), verdict| {
        (claims + 1, holding + usize::from(verdict.holds))
    })
}

/// Returns a table of the number of experiments, claims, and claims that hold, by source. The last row
/// has the sums.
pub(super) fn by_source(stored: &[Stored]) -> Table {
    let mut sources: Vec<&str> = Vec::new();
    for source in by_experiment(stored).map(publication) {
        if !sources.contains(&source) {
            sources.push(source);
        }
    }
    sources.push(ALL_SOURCES);
    let row = |name: &str| {
        let of_source = by_experiment(stored);
        let of_source = of_source.filter(|one| name == ALL_SOURCES || publication(one) == name);
        let of_source: Vec<&[Stored]> = of_source.collect();
        let (claims, holding) = count(of_source.iter().copied().flatten());
        let numbers = [of_source.len(), claims, holding].map(|number| number.to_string());
        [vec![name.to_owned()], numbers.to_vec()].concat()
    };
    Table::new(
        "",
        &["source", "experiments", "claims", "claims that hold"],
        sources.into_iter().map(row).collect(),
    )
}

/// Returns the publication of an experiment's source. A source such as `FSA-MPTCP, figure 2(a)` has it in front of
/// the figure or table.
fn publication(results: &[Stored]) -> &str {
    let source = &results[0].outcome.source;
    if source.starts_with("beyond") {
        return BEYOND;
    }
    source.split(',').next().unwrap_or(source)
}

/// Returns a table of the experiments with claims that do not hold, and the reasons where known.
pub(super) fn failing(stored: &[Stored]) -> Table {
    let row = |results: &[Stored]| {
        let (claims, holding) = count(results);
        let why: Vec<String> = reasons(results).into_iter().map(|(_, why)| why).collect();
        let why = if why.is_empty() {
            "not known yet".to_owned()
        } else {
            why.join("; ")
        };
        let failing = format!("{} of {claims}", claims - holding);
        (holding < claims).then(|| vec![results[0].outcome.id.clone(), failing, why])
    };
    Table::new(
        "",
        &["id", "claims that do not hold", "reason"],
        by_experiment(stored).filter_map(row).collect(),
    )
}

/// Returns a table with a row for each experiment and a column for each backend that has results.
pub(super) fn summary(stored: &[Stored]) -> Table {
    let mut backends = Backend::ALL.map(Backend::name).to_vec();
    backends.retain(|backend| stored.iter().any(|one| one.outcome.backend == *backend));
    let row = |results: &[Stored]| {
        let first = &results[0].outcome;
        let mut row = vec![first.id.clone(), first.title.clone(), first.source.clone()];
        row.extend(backends.iter().map(|backend| {
            let on_backend = results.iter().find(|one| one.outcome.backend == *backend);
            on_backend.map(verdict_count).unwrap_or_default()
        }));
        row
    };
    Table::new(
        "",
        &[&["id", "what is compared", "source"], &backends[..]].concat(),
        by_experiment(stored).map(row).collect(),
    )
}

/// Returns the verdict on an experiment in a few words.
fn verdict_count(result: &Stored) -> String {
    match count([result]) {
        (claims, holding) if holding == claims => format!("holds ({claims} of {claims} claims)"),
        (claims, holding) => format!("{holding} of {claims} claims hold"),
    }
}

/// Returns a table with a row for each claim: its bound, the reported value, the measured values of every
/// backend, and the verdict. Backends share a row if claim and bound are equal.
pub(super) fn claims<'a>(results: &'a [Stored]) -> Table {
    let mut rows: Vec<Vec<String>> = Vec::new();
    for verdict in results.iter().flat_map(|one| &one.outcome.verdicts) {
        let expected = verdict.expected();
        if rows.iter().any(|row| row[0] == expected) {
            continue;
        }
        let same_claim = |one: &'a Stored| {
            let mut verdicts = one.outcome.verdicts.iter();
            verdicts.find(|verdict| verdict.expected() == expected)
        };
        let mut row = vec![expected.clone(), verdict.reported.clone()];
        row.extend(results.iter().map(|one| {
            let verdict = same_claim(one);
            verdict.map(Verdict::measured).unwrap_or_default()
        }));
        let words = results.iter();
        let words = words.filter_map(|one| Some((&*one.outcome.backend, same_claim(one)?.word())));
        let mut words: Vec<(&str, &str)> = words.collect();
        // Backends that agree need no names: one word stands for all.
        words.dedup_by_key(|(_, word)| *word);
        row.push(match &words[..] {
            [(_, word)] => (*word).to_owned(),
            _ => words
                .iter()
                .map(|(backend, word)| format!("{backend} {word}"))
                .collect::<Vec<_>>()
                .join("; "),
        });
        rows.push(row);
    }
    let backends = results.iter().map(|one| &one.outcome.backend);
    let measured: Vec<String> = backends.map(|name| format!("measured ({name})")).collect();
    let mut columns = vec!["must hold", "reported"];
    columns.extend(measured.iter().map(String::as_str));
    columns.push("holds?");
    Table::new("", &columns, rows)
}

/// Returns the reasons why claims do not hold. Each entry has the claims that a reason explains, joined
/// by semicolons, and the reason.
pub(super) fn reasons(results: &[Stored]) -> Vec<(String, String)> {
    let mut reasons: Vec<(String, String)> = Vec::new();
    for Stored { outcome, .. } in results {
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

/// Returns the parameters of a result, without parameters that `previous` has with the same value.
pub(super) fn parameters(outcome: &Outcome, previous: Option<&Outcome>) -> String {
    let known = |parameter| previous.is_some_and(|one| one.parameters.contains(parameter));
    let new = outcome.parameters.iter().filter(|p| !known(*p));
    let each = new.map(|(name, value)| format!("{name}: {value}"));
    each.collect::<Vec<_>>().join("; ")
}
