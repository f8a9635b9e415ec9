//! The experiments of FSA-MPTCP, a scheduler that sends mice (short flows) redundantly and elephants
//! (long flows) without copies. `experiments.toml` has their sweeps; this code adds the rest.

mod mosquitoes;

use braid_strategy::parts::flow::Limits;

pub use self::mosquitoes::fsa_6a;
use super::entry;
use super::series::{by_size, estimate};
use super::session::Session;
use super::sweep::{Runs, Swept};
use crate::backend::Error;
use crate::plot::{Axis, Figure, Format, Mark, Point, Series};
use crate::stats;

/// A good path and a poor one: the paths of fsa-5 and fsa-6a.
const UNLIKE: &str = "5mbit,40ms,0%;5mbit,100ms,2%";

/// Measures the effect of the path on which the initial subflow opens.
pub fn fsa_2a(session: &mut Session<'_>) -> Result<(), Error> {
    let all = entry::measure(session)?;
    session.figure("gap", gap_figure(&all));
    Ok(())
}

fn gap_figure(all: &[(String, Swept)]) -> Figure {
    let point = |(slow, fast): (&Runs, &Runs)| {
        // Runs of the same number have the same seed. The mean of the differences of such pairs has a
        // narrower interval than the difference of the two means.
        let gaps = stats::differences(&slow.fct(), &fast.fct()).unwrap_or_default();
        let (mean, half) = estimate(&gaps);
        Point::with_error(0.0, mean, half)
    };
    let series = all.iter().map(|(label, swept)| {
        let fast = swept.of("start on 40 ms");
        let pairs = swept.of("start on 100 ms").iter().zip(fast);
        swept.line(label, pairs.map(point))
    });
    by_size(
        "What a start on the 40 ms path saves against one on the 100 ms path",
        "2 × 5 Mb/s, minRTT; bars are 95 % intervals of the mean of pairs",
        Axis::linear("difference of flow completion times (ms)"),
        series.collect(),
    )
}

/// Measures the share of copies against the degree of redundancy alpha that FSA computes from the flow
/// size.
pub fn fsa_5(session: &mut Session<'_>) -> Result<(), Error> {
    let formula = |size: u64| Limits::default().redundancy(size);
    let difference = |size: &str, bytes, reported| (size.to_owned(), formula(bytes) - reported);
    let differences = vec![
        difference("64k", 64 << 10, 0.94),
        difference("512k", 512 << 10, 0.5),
    ];
    session.verdicts(entry::judge("fsa-5", [differences]));
    // 301 points from 2^14 to 2^20 bytes, the smallest and the largest size of the plan.
    let curve = (0..=300).map(|n| (14.0 + 6.0 * f64::from(n) / 300.0).exp2());
    let curve = curve.map(|size| Point::new(size, formula(size as u64)));
    let mut series = vec![Series {
        mark: Mark::Dots,
        ..Series::line("formula", curve)
    }];
    for (label, swept) in entry::measure(session)? {
        let share = |runs: &Runs| Point::new(0.0, runs.copies(1));
        let shares = swept.of("fsa").iter().map(share);
        series.push(swept.line(&format!("measured, {label}"), shares));
    }
    let note = format!("{UNLIKE}; fsa, packets sent while unsent data remained");
    let y = Axis {
        format: Format::Percent,
        ..Axis::linear("share of copies")
    };
    let figure = by_size("Share of copies on the poor path", &note, y, series);
    session.figure("alpha", figure);
    session.put_first("alpha");
    Ok(())
}
