//! The same downloads by the kernel's MPTCP and by the engine.

use super::entry;
use super::series::by_size;
use super::session::Session;
use super::sweep::{LINUX, Swept, divide_by_lowest};
use crate::backend::Error;
use crate::plot::{Axis, Figure, Point};
use crate::stats;

/// Measures the engine and the kernel's MPTCP.
pub fn measure(session: &mut Session<'_>) -> Result<(), Error> {
    let mut parts = Vec::new();
    for (label, swept) in entry::measure(session)? {
        for (path, opened) in ["40 ms", "100 ms"].into_iter().enumerate() {
            let name = format!("{label}, opened on {opened}");
            let part = swept.opened_on(path, 2);
            session.table(part.table(&format!("Flow completion time, CUBIC, {name}")));
            parts.push((name, part));
        }
    }
    let [minrtt, adaptive] = ["minrtt", "adaptive"].map(|strategy| {
        session.figure(&format!("shares-{strategy}"), figure(strategy, &parts));
        let shares: Vec<(String, f64)> = parts.iter().flat_map(|p| shares(p, strategy)).collect();
        let ratios: Vec<f64> = shares.iter().map(|(_, share)| *share).collect();
        let mean = stats::geometric_mean(&ratios).unwrap_or(f64::NAN);
        (shares, vec![(String::new(), mean)])
    });
    let values = [minrtt.0, minrtt.1, adaptive.0, adaptive.1];
    session.verdicts(entry::judge("kernel", values));
    Ok(())
}

/// Returns the strategy's mean time divided by the kernel's, for each size of a part.
fn shares((name, part): &(String, Swept), strategy: &str) -> Vec<(String, f64)> {
    let mean = |variant| part.values(variant, (0, u64::MAX), |_, runs| runs.mean());
    let mut shares = mean(strategy);
    divide_by_lowest(&mut shares, &[mean(LINUX.name)]);
    for (label, _) in &mut shares {
        *label += &format!(", {name}");
    }
    shares
}

fn figure(strategy: &str, parts: &[(String, Swept)]) -> Figure {
    let point = |(_, share): (String, f64)| Point::new(0.0, share);
    let series = parts.iter().map(|part| {
        let points = shares(part, strategy).into_iter().map(point);
        part.1.line(&part.0, points)
    });
    by_size(
        &format!("Completion time of the engine ({strategy}) as a share of Linux MPTCP's"),
        "2 × 5 Mb/s, 40 and 100 ms, CUBIC, initial window 10; loss is on the 100 ms path; \
         below 1 the engine is faster",
        Axis::linear("share of Linux MPTCP's time"),
        series.collect(),
    )
}
