//! The same downloads by Linux and by the engine.

use super::definition::Definition;
use super::session::Session;
use super::sweep::{self, Runs, Sweep, Swept, Way};
use super::verdict::{Bound, Verdict};
use crate::arm::{Arm, Error};
use crate::cell::Cell;
use crate::plot::{Axis, Body, Figure, Mark, Point, Series};
use crate::stats;

/// The engine beside the kernel's Multipath TCP.
pub const KERNEL: Definition = Definition {
    id: "kernel",
    title: "The same downloads by Linux MPTCP and by the engine",
    source: "beyond the papers",
    setup: "Download of 4 k to 4 M over paths of 5 Mb/s, round-trip times 40 and 100 ms, no loss \
            and 2 % on the second; CUBIC, initial window of 10 segments. Connections open on the \
            40 ms path; nothing is known of the paths. Over emulated links between network \
            namespaces, by sockets of the kernel and by the engine on its TUN devices.",
    reported: "",
    must_hold: "In no cell does the engine take more than 5 % longer than the kernel, with \
                adaptive not more than 3 %; it is faster in the geometric mean, with adaptive at \
                most 0.90 of the kernel's time.",
    arms: &[Arm::Links],
    cells: |_| LOSSES.len() * SIZES.len() * WAYS.len(),
    runs: (0, 10),
    measure,
};

const LOSSES: [&str; 2] = ["0%", "2%"];
const SIZES: &[&str] = &["4k", "16k", "64k", "256k", "1M", "4M"];
const LINUX: &str = "Linux MPTCP";
const WAYS: [Way; 3] = [
    Way {
        name: LINUX,
        arm: Some(Arm::Kernel),
        apply: |_, _| (),
    },
    Way::strategy("minrtt"),
    Way::strategy("adaptive"),
];
/// The largest share of the kernel's time that a strategy may take in a cell, and what its
/// geometric mean must be.
const BARS: [(&str, f64, Bound); 2] = [
    ("minrtt", 1.05, Bound::Below(1.0)),
    ("adaptive", 1.03, Bound::AtMost(0.9)),
];

fn measure(session: &mut Session<'_>) -> Result<(), Error> {
    let mut by_loss = Vec::new();
    for loss in LOSSES {
        let sweep = Sweep {
            name: format!("loss{}", loss.trim_end_matches('%')),
            sizes: SIZES,
            cell: sweep::cell(&format!("5mbit,40ms,0%;5mbit,100ms,{loss}"))?,
            ways: WAYS.to_vec(),
        };
        let Cell {
            cc,
            queue,
            initial_window,
            ..
        } = &sweep.cell;
        let note = format!(
            "{loss} loss on the second path, {cc}, initial window {initial_window}, queue \
             {queue}, {} runs",
            session.runs()
        );
        let swept = sweep.run(session)?;
        session.table(swept.table(&format!("Flow completion time, {note}")));
        session.figure(
            &format!("fct-{}", sweep.name),
            swept.figure("Flow completion time, by Linux MPTCP and by the engine", &note),
        );
        by_loss.push((loss, swept));
    }
    for (strategy, most, together) in BARS {
        let shares: Vec<(String, f64)> = by_loss.iter().flat_map(|s| shares(s, strategy)).collect();
        let ratios: Vec<f64> = shares.iter().map(|(_, share)| *share).collect();
        let mean = stats::geometric_mean(&ratios).unwrap_or(f64::NAN);
        let claim = format!("{strategy}: share of the kernel's time in each cell");
        session.verdict(Verdict::new(claim, Bound::AtMost(most), "", shares));
        let claim = format!("{strategy}: geometric mean of these shares");
        session.verdict(Verdict::new(claim, together, "", [("", mean)]));
    }
    session.figure("shares", figure(&by_loss));
    Ok(())
}

/// The strategy's mean time as a share of the kernel's, by cell.
fn shares((loss, swept): &(&str, Swept), strategy: &str) -> Vec<(String, f64)> {
    let mut shares = swept.shares(strategy, &[LINUX], (0, u64::MAX), Runs::mean);
    for (label, _) in &mut shares {
        *label += &format!(", {loss}");
    }
    shares
}

fn figure(by_loss: &[(&str, Swept)]) -> Figure {
    let mut series = Vec::new();
    for (strategy, ..) in BARS {
        for (loss, swept) in by_loss {
            let shares = swept.shares(strategy, &[LINUX], (0, u64::MAX), Runs::mean);
            let points = shares.iter().zip(&swept.sizes);
            series.push(Series {
                name: format!("{strategy}, {loss}"),
                points: points
                    .map(|((_, share), size)| Point::new(size.bytes() as f64, *share))
                    .collect(),
                mark: Mark::Line,
            });
        }
    }
    Figure {
        title: "Completion time of the engine as a share of that of Linux MPTCP".to_owned(),
        note: "by strategy and loss on the second path; below 1 the engine is faster".to_owned(),
        x: Axis::sizes("flow size (bytes)"),
        y: Axis::linear("share of Linux MPTCP's time"),
        body: Body::Plane(series),
    }
}
