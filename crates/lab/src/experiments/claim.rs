//! Claims as data.

use braid_strategy::parts::flow::Limits;
use serde::Deserialize;

use super::sweep::{self, Runs, Swept, divide_by_lowest};
use super::verdict::{Bound, Estimate, Verdict};
use crate::backend::Error;
use crate::case::Size;
use crate::stats;

/// A claim. On a sweep, the judged value is `(of - less) / the lowest of over`, for each size. The fields
/// from `measure` on are not used if the code of the experiment computes the values of the claim.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    /// See [`Verdict::claim`].
    claim: String,
    bound: Bound,
    #[serde(default)]
    unit: String,
    #[serde(default)]
    reported: String,
    /// The reason why the claim may not hold.
    #[serde(default)]
    unless: String,
    /// The confidence with which an order must be shown; 0.95 by default.
    confidence: Option<f64>,
    #[serde(default)]
    measure: Measure,
    /// The variant whose measure is judged.
    #[serde(default)]
    of: String,
    /// The variant whose measure is subtracted, if any.
    less: Option<String>,
    /// The variants whose lowest measure is the divisor; empty if nothing is divided.
    #[serde(default)]
    over: Vec<String>,
    /// The smallest judged size; by default the smallest of the sweep.
    from: Option<String>,
    /// The largest judged size; by default the largest of the sweep.
    to: Option<String>,
    #[serde(default)]
    sizes: Sizes,
    /// The variants that are judged in place of `of`, each by a measure of its own, at the first size only.
    #[serde(default)]
    of_smallest: Vec<(String, Measure)>,
}

/// The values that are judged, computed from a value for each size.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Sizes {
    /// The value of each size is judged.
    #[default]
    Each,
    /// The means of all terms over the sizes are judged.
    Mean,
    /// The value of the last size divided by that of the first is judged.
    LastOverFirst,
}

/// A measure of the runs of a case.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Measure {
    /// Mean completion time, ms.
    #[default]
    Mean,
    /// Standard deviation of the completion time, ms.
    Sd,
    /// Standard deviation of the time from the first to the last byte of the response, ms.
    DataSd,
    /// Mean number of retransmission timeouts of a flow.
    Rtos,
    /// Share of flows that had a retransmission timeout.
    TimedOut,
    /// The same share, %.
    TimedOutPercent,
    /// Share of copies (0 to 1) among the packets on the second path.
    Copies,
    /// The same share less the degree of redundancy alpha that FSA computes from the flow size, % points.
    CopiesLessAlpha,
    /// Mean number of SYNs with MP_JOIN of a flow.
    Joins,
    /// Bytes sent on a path in all runs.
    Bytes(usize),
}

/// Maximum number of groups of the jackknife, which estimates the interval of a judged value by leaving out each
/// group of runs once. A guess: more groups narrow the interval of few runs little, and cost time.
const MAX_JACKKNIFE_GROUPS: usize = 20;

impl Measure {
    /// Returns the name of the measure and its unit, as the label of an axis.
    pub fn name(self) -> &'static str {
        match self {
            Measure::Mean => "flow completion time (ms)",
            Measure::Sd => "standard deviation of the completion time (ms)",
            Measure::DataSd => "standard deviation from the first byte (ms)",
            Measure::Rtos => "timeouts per flow",
            Measure::TimedOut => "share of flows with a timeout",
            Measure::TimedOutPercent => "flows with a timeout (%)",
            Measure::Copies => "share of copies on the second path",
            Measure::CopiesLessAlpha => "share of copies less alpha (points)",
            Measure::Joins => "SYNs with MP_JOIN per flow",
            Measure::Bytes(_) => "bytes",
        }
    }

    /// Returns the measure as a part of file names.
    pub fn id(self) -> &'static str {
        match self {
            Measure::Mean => "fct",
            Measure::Sd => "sd",
            Measure::DataSd => "data-sd",
            _ => "share",
        }
    }

    /// Returns the measure of `runs` of a flow of this size.
    pub fn of(self, size: &Size, runs: &Runs) -> f64 {
        let flows = runs.len() as f64;
        match self {
            Measure::Mean => runs.mean(),
            Measure::Sd => runs.sd(),
            Measure::DataSd => stats::standard_deviation(&runs.fct_data()).unwrap_or(f64::NAN),
            Measure::Rtos => runs.sum(|run| run.rtos) / flows,
            Measure::TimedOut => runs.sum(|run| u64::from(run.rtos > 0)) / flows,
            Measure::TimedOutPercent => Measure::TimedOut.of(size, runs) * 100.0,
            Measure::Copies => runs.copies(1),
            Measure::CopiesLessAlpha => {
                (runs.copies(1) - Limits::default().redundancy(size.bytes())) * 100.0
            }
            Measure::Joins => runs.sum(|run| run.join_syns) / flows,
            Measure::Bytes(path) => {
                runs.sum(|run| run.bytes_by_path.get(path).copied().unwrap_or(0))
            }
        }
    }

    /// Returns the measure as the cell of a table.
    pub fn text(self, size: &Size, runs: &Runs) -> String {
        let value = self.of(size, runs);
        match self {
            Measure::Rtos => {
                let share = Measure::TimedOutPercent.of(size, runs);
                format!("{value:.4} ({share:.2} %)")
            }
            Measure::Copies => format!("{value:.3}"),
            Measure::Joins => format!("{value:.2}"),
            _ => format!("{value:.1}"),
        }
    }
}

impl Claim {
    /// Judges `values`, each with a label.
    pub fn verdict<L: ToString, E: Into<Estimate>>(&self, values: Vec<(L, E)>) -> Verdict {
        let verdict = Verdict::new(&self.claim, self.bound, &self.unit, values);
        verdict.reported(&self.reported).unless(&self.unless)
    }

    /// Judges the claim on a sweep.
    pub fn judge(&self, swept: &Swept) -> Result<Verdict, Error> {
        let values = self.values(swept)?;
        // The estimate assumes groups of equal size. Sizes here differ by a run at most, and are equal where the
        // usual numbers of runs allow it: 30 runs make 15 groups of 2.
        let size = swept.runs().div_ceil(MAX_JACKKNIFE_GROUPS).max(1);
        let groups = swept.runs() / size;
        let without = (0..groups).map(|group| self.values(&swept.without(group, groups)));
        let without = without.collect::<Result<Vec<_>, _>>()?;
        let confidence = self.confidence.unwrap_or(0.95);
        let values = values.into_iter().enumerate().map(|(n, (label, value))| {
            let parts: Vec<f64> = without.iter().map(|values| values[n].1).collect();
            (label, Estimate(value, stats::jackknife(&parts, confidence)))
        });
        Ok(self.verdict(values.collect()))
    }

    fn values(&self, swept: &Swept) -> Result<Vec<(String, f64)>, Error> {
        if !self.of_smallest.is_empty() {
            let of = |(variant, measure): &(String, Measure)| {
                let first = swept.sizes.first().zip(swept.of(variant).first());
                let value = first.map_or(f64::NAN, |(size, runs)| measure.of(size, runs));
                (variant.clone(), value)
            };
            return Ok(self.of_smallest.iter().map(of).collect());
        }
        let bytes = |text: &Option<String>, default| match text {
            Some(text) => Ok::<_, Error>(sweep::size(text)?.bytes()),
            None => Ok(default),
        };
        let range = (bytes(&self.from, 0)?, bytes(&self.to, u64::MAX)?);
        let term = |variant: &String| {
            let values = swept.values(variant, range, |size, runs| self.measure.of(size, runs));
            match self.sizes {
                Sizes::Mean => vec![(String::new(), mean(&values))],
                Sizes::Each | Sizes::LastOverFirst => values,
            }
        };
        let mut values = term(&self.of);
        if let Some(less) = &self.less {
            let less = term(less);
            for (n, (_, value)) in values.iter_mut().enumerate() {
                // The value of a variant that does not exist is NaN, which makes the claim fail.
                *value -= less.get(n).map_or(f64::NAN, |(_, less)| *less);
            }
        }
        if !self.over.is_empty() {
            let others: Vec<_> = self.over.iter().map(term).collect();
            divide_by_lowest(&mut values, &others);
        }
        Ok(match (self.sizes, &values[..]) {
            (Sizes::LastOverFirst, [(_, first), .., (_, last)]) => {
                vec![(String::new(), last / first)]
            }
            _ => values,
        })
    }
}

fn mean(values: &[(String, f64)]) -> f64 {
    let values: Vec<f64> = values.iter().map(|(_, value)| *value).collect();
    stats::mean(&values).unwrap_or(f64::NAN)
}
