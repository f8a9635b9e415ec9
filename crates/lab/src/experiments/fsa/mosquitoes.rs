//! The experiment on mosquitoes: flows so small that a second subflow is useless.

mod captured;
mod scale;

use self::captured::CapturedPackets;
use self::scale::CPU_TIME;
use super::UNLIKE;
use crate::backend::{Error, sim};
use crate::case::Case;
use crate::experiments::entry;
use crate::experiments::outcome::{Table, row};
use crate::experiments::session::Session;
use crate::experiments::verdict::{Bound, Verdict};

/// Measures tiny flows, and the subflows that they open.
pub fn fsa_6a(session: &mut Session<'_>) -> Result<(), Error> {
    entry::measure(session)?;
    // Only the simulator captures packets.
    if session.backend().is_virtual() {
        captures(session)?;
    }
    at_scale(session)
}

/// Returns the cases of all sweeps, each with the label of its sweep and the name of its record.
fn cases(session: &Session<'_>) -> Result<Vec<(String, String, Case)>, Error> {
    let mut cases = Vec::new();
    for plan in entry::sweeps(session) {
        for (place, sweep) in plan.sweeps(session.backend())? {
            for variant in &sweep.variants {
                let of_variant = sweep.cases(variant, session.seed())?.into_iter();
                cases.extend(of_variant.map(|(name, case)| (place.label(), name, case)));
            }
        }
    }
    Ok(cases)
}

/// Captures the first run of each case, and counts the packets in the captures.
fn captures(session: &mut Session<'_>) -> Result<(), Error> {
    let mut counts = Vec::new();
    for (label, name, case) in cases(session)? {
        let bytes = sim::capture(&case, 0)?;
        let seen = CapturedPackets::read(&bytes)?;
        session.capture(&name, bytes);
        // A table lists each packet of a capture. Tables for one setting and the larger size are enough; the files
        // have the other captures.
        if case.initial_window == 10 && case.cc == "cubic" && case.size.bytes() > 2048 {
            session.table(seen.table(&format!("Capture at the client, {name}")));
        }
        counts.push((label, case, seen));
    }
    // `minrtt` shows that a second subflow opens where the strategy does not prevent it.
    for (strategy, bound) in [("fsa", Bound::AtMost(0.0)), ("minrtt", Bound::AtLeast(1.0))] {
        let claim = format!("SYNs with MP_JOIN in a capture, {strategy}");
        let of_strategy = counts
            .iter()
            .filter(|(_, case, _)| case.strategy == strategy);
        let joins = of_strategy
            .map(|(label, case, seen)| (format!("{}, {label}", case.size), seen.joins()));
        session.verdict(Verdict::new(claim, bound, "", joins));
    }
    session.table(packets_table(&counts));
    Ok(())
}

/// Returns a table of the numbers of packets in each direction.
fn packets_table(counts: &[(String, Case, CapturedPackets)]) -> Table {
    let cells = |(label, case, seen): &(String, Case, CapturedPackets)| {
        let (sent, received) = seen.packets();
        row(&[&case.strategy, &case.size, label, &sent, &received])
    };
    entry::table("fsa-6a", "packets", counts.iter().map(cells).collect())
}

/// Measures many clients at one server.
fn at_scale(session: &mut Session<'_>) -> Result<(), Error> {
    let mut loads = Vec::new();
    for strategy in ["fsa", "minrtt", "adaptive"] {
        let mut load = scale::measure(session.seed(), strategy)?;
        // Results on the simulator must be reproducible, and processor time is not reproducible.
        load.retain(|(what, _)| *what != CPU_TIME || !session.backend().is_virtual());
        loads.push((strategy, load));
    }
    // `must_hold` in experiments.toml compares these two. `adaptive` is in the table only.
    let (fsa, minrtt) = (&loads[0].1, &loads[1].1);
    for ((what, fsa), (_, minrtt)) in fsa.iter().zip(minrtt) {
        session.verdict(Verdict::new(
            format!("500 clients, {what} at the server: fsa over minrtt"),
            Bound::Below(1.0),
            "",
            [("", fsa / minrtt)],
        ));
    }
    let cells = |(name, load): &(&str, Vec<(&str, f64)>)| {
        let values = load.iter().map(|(_, value)| format!("{value:.2}"));
        std::iter::once((*name).to_owned()).chain(values).collect()
    };
    let heads = std::iter::once("strategy").chain(fsa.iter().map(|(what, _)| *what));
    session.table(Table::new(
        "500 clients fetch 4 k each within 10 s: work and state at the server",
        &heads.collect::<Vec<_>>(),
        loads.iter().map(cells).collect(),
    ));
    Ok(())
}
