//! The opening of a report: the number of claims that hold, by source, and the reasons why other claims
//! do not hold.

use super::parts::{by_experiment, columns, reasons};
use super::store::Stored;
use crate::experiments::Table;

/// The row for experiments that no paper describes. Their sources differ in wording, so the report counts
/// them together.
const BEYOND: &str = "beyond the papers";

/// The number of experiments, of their claims, and of claims that hold. A claim counts once for each
/// backend that measured it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Count {
    experiments: usize,
    claims: usize,
    holding: usize,
}

impl Count {
    /// Counts the results of one experiment on all backends.
    fn of(results: &[Stored]) -> Count {
        let verdicts = || results.iter().flat_map(|one| &one.outcome.verdicts);
        Count {
            experiments: 1,
            claims: verdicts().count(),
            holding: verdicts().filter(|verdict| verdict.holds).count(),
        }
    }

    fn add(&mut self, other: Count) {
        self.experiments += other.experiments;
        self.claims += other.claims;
        self.holding += other.holding;
    }

    /// Returns the row of [`by_source`] for `source`.
    fn row(self, source: &str) -> Vec<String> {
        let numbers = [self.experiments, self.claims, self.holding];
        let numbers = numbers.map(|number| number.to_string());
        [vec![source.to_owned()], numbers.to_vec()].concat()
    }
}

/// Returns a table of the number of experiments, claims, and claims that hold, by source. The last row
/// has the sums.
pub(super) fn by_source(stored: &[Stored]) -> Table {
    let mut counts: Vec<(&str, Count)> = Vec::new();
    let mut all = Count::default();
    for results in by_experiment(stored) {
        let (source, count) = (publication(&results[0].outcome.source), Count::of(results));
        all.add(count);
        match counts.iter_mut().find(|(known, _)| *known == source) {
            Some((_, sum)) => sum.add(count),
            None => counts.push((source, count)),
        }
    }
    counts.push(("all", all));
    let rows = counts.iter().map(|(source, count)| count.row(source));
    Table {
        title: "Claims by source".to_owned(),
        columns: columns(&["source", "experiments", "claims", "claims that hold"]),
        rows: rows.collect(),
    }
}

/// Returns a table of the experiments with claims that do not hold, and the reasons where known.
pub(super) fn failing(stored: &[Stored]) -> Table {
    let row = |results: &[Stored]| {
        let count = Count::of(results);
        if count.holding == count.claims {
            return None;
        }
        let why: Vec<String> = reasons(results).into_iter().map(|(_, why)| why).collect();
        let why = if why.is_empty() {
            "not known yet".to_owned()
        } else {
            why.join("; ")
        };
        let failing = count.claims - count.holding;
        let failing = format!("{failing} of {}", count.claims);
        Some(vec![results[0].outcome.id.clone(), failing, why])
    };
    Table {
        title: "Claims that do not hold".to_owned(),
        columns: columns(&["id", "claims that do not hold", "reason"]),
        rows: by_experiment(stored).filter_map(row).collect(),
    }
}

/// Returns the publication of a source such as `FSA-MPTCP, figure 2(a)`, without the figure or table.
fn publication(source: &str) -> &str {
    if source.starts_with("beyond") {
        return BEYOND;
    }
    source.split(',').next().unwrap_or(source)
}

#[cfg(test)]
mod tests {
    use super::publication;

    #[test]
    fn figures_of_one_paper_have_one_source() {
        assert_eq!(publication("FSA-MPTCP, figure 2(a)"), "FSA-MPTCP");
        assert_eq!(publication("T-MPTCP, table 1 and figure 4"), "T-MPTCP");
        assert_eq!(publication("beyond the paper"), "beyond the papers");
    }
}
