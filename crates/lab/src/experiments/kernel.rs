//! The same downloads by the kernel's MPTCP and by the engine.

use super::definition::Definition;
use super::series::by_size;
use super::session::Session;
use super::sweep::{self, ALL, LINUX, Runs, Sweep, Swept, Variant};
use super::verdict::{Bound, Verdict};
use crate::backend::{Backend, Error};
use crate::case::{Case, DefaultPath};
use crate::plot::{Axis, Figure, Point, Series};
use crate::stats;

/// The engine compared with the kernel's MPTCP.
pub const KERNEL: Definition = Definition {
    id: "kernel",
    title: "The same downloads by Linux MPTCP and by the engine",
    source: "beyond the papers",
    setup: "Download of 4 k to 4 M over paths of 5 Mb/s, round-trip times 40 and 100 ms, no loss \
            and 2 % on the second; CUBIC, initial window of 10 segments. Connections open on each \
            path in turn; nothing is known of the paths. Over emulated links between network \
            namespaces, by sockets of the kernel and by the engine on its TUN devices.",
    reported: "",
    must_hold: "In no cell does the engine take more than 5 % longer than the kernel, with \
                adaptive not more than 3 %; it is faster in the geometric mean, with adaptive at \
                most 0.90 of the kernel's time.",
    backends: &[Backend::Links],
    cases: |_| LOSSES.len() * SIZES.len() * VARIANTS.len(),
    runs: (0, 10),
    measure,
};

const LOSSES: [&str; 2] = ["0%", "2%"];
const SIZES: &[&str] = &["4k", "16k", "64k", "256k", "1M", "4M"];
const VARIANTS: [Variant; 3] = [
    LINUX,
    Variant::strategy("minrtt"),
    Variant::strategy("adaptive"),
];
/// For each strategy: its maximum time in a case as a share of the kernel's time, and the bound on the
/// geometric mean of these shares. The claims of the definition set the values.
const BOUNDS: [(&str, f64, Bound); 2] = [
    ("minrtt", 1.05, Bound::Below(1.0)),
    ("adaptive", 1.03, Bound::AtMost(0.9)),
];

fn measure(session: &mut Session<'_>) -> Result<(), Error> {
    let mut parts = Vec::new();
    for loss in LOSSES {
        let case = sweep::case(&format!("5mbit,40ms,0%;5mbit,100ms,{loss}"))?;
        let sweep = Sweep {
            name: format!("loss{}", loss.trim_end_matches('%')),
            sizes: SIZES,
            case: Case {
                default_path: DefaultPath::Mix,
                ..case
            },
            variants: VARIANTS.to_vec(),
        };
        let swept = sweep.run(session)?;
        for (path, opened) in ["40 ms", "100 ms"].into_iter().enumerate() {
            let name = format!("{loss} loss, opened on {opened}");
            parts.push((name, swept.opened_on(path, 2)));
        }
    }
    for (strategy, max_share, mean_bound) in BOUNDS {
        let shares: Vec<(String, f64)> = parts.iter().flat_map(|p| shares(p, strategy)).collect();
        let ratios: Vec<f64> = shares.iter().map(|(_, share)| *share).collect();
        let mean = stats::geometric_mean(&ratios).unwrap_or(f64::NAN);
        let claim = format!("{strategy}: share of the kernel's time in each cell");
        session.verdict(Verdict::new(claim, Bound::AtMost(max_share), "", shares));
        let claim = format!("{strategy}: geometric mean of these shares");
        session.verdict(Verdict::new(claim, mean_bound, "", [("", mean)]));
        session.figure(&format!("shares-{strategy}"), figure(strategy, &parts));
    }
    for (name, part) in &parts {
        session.table(part.table(&format!("Flow completion time, CUBIC, {name}")));
    }
    Ok(())
}

/// Returns the strategy's mean time divided by the kernel's, for each size of a part.
fn shares((name, part): &(String, Swept), strategy: &str) -> Vec<(String, f64)> {
    let mut shares = part.shares(strategy, &[LINUX.name], ALL, Runs::mean);
    for (label, _) in &mut shares {
        *label += &format!(", {name}");
    }
    shares
}

fn figure(strategy: &str, parts: &[(String, Swept)]) -> Figure {
    let series = parts.iter().map(|(name, part)| {
        let shares = part.shares(strategy, &[LINUX.name], ALL, Runs::mean);
        let points = shares.iter().zip(&part.sizes);
        let points = points.map(|((_, share), size)| Point::new(size.bytes() as f64, *share));
        Series::line(name, points)
    });
    by_size(
        &format!("Completion time of the engine ({strategy}) as a share of Linux MPTCP's"),
        "2 × 5 Mb/s, 40 and 100 ms, CUBIC, initial window 10; loss is on the 100 ms path; \
         below 1 the engine is faster",
        Axis::linear("share of Linux MPTCP's time"),
        series.collect(),
    )
}
