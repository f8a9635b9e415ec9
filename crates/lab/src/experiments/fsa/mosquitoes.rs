//! The experiment on mosquitoes: flows so small that a second subflow is useless.

mod captured;
mod scale;

use self::captured::CapturedPackets;
use self::scale::Load;
use super::{ALL, BACKENDS, MICE, Plan, UNLIKE, value_table};
use crate::backend::{Backend, Error, sim};
use crate::case::Case;
use crate::experiments::definition::Definition;
use crate::experiments::outcome::Table;
use crate::experiments::session::Session;
use crate::experiments::sweep::{Runs, Variant};
use crate::experiments::verdict::{Bound, Verdict};

/// Tiny flows, and the subflows that they open.
pub const FSA_6A: Definition = Definition {
    id: "fsa-6a",
    title: "Tiny files: does a second subflow open that carries nothing?",
    source: "FSA-MPTCP, figure 6(a)",
    setup: "2 paths of 5 Mb/s, 40 ms without loss and 100 ms with 2 %; download of 2 k and 4 k; \
            connections open on each path in turn; the first run of each cell is captured at the \
            client (in the simulator); 500 clients fetch 4 k from one server within 10 s (in virtual \
            time on both arms, the processor's time with links only)",
    reported: "Traditional MPTCP opens a second subflow that carries nothing (SYN, SYN/ACK, half \
               open); FSA sends none.",
    must_hold: "No SYN with MP_JOIN with fsa, at least one with minrtt. At scale the server has \
                fewer subflows, packets and less state with fsa than with minrtt.",
    backends: BACKENDS,
    cases: |backend| TINY.cases(backend),
    runs: (100, 4),
    measure,
};

/// The plan of fsa-6a.
const TINY: Plan = Plan {
    sizes: [&["2k", "4k"]; 2],
    variants: &[
        Variant::strategy("fsa"),
        Variant::strategy("minrtt"),
        Variant::strategy("adaptive"),
    ],
    ..MICE
};

fn measure(session: &mut Session<'_>) -> Result<(), Error> {
    let title = "Flow completion time of tiny files";
    let all = TINY.run(session, title, |swept| {
        let per_flow = |variant| swept.values(variant, ALL, joins);
        vec![
            Verdict::new(
                "SYNs with MP_JOIN per flow, fsa",
                Bound::AtMost(0.0),
                "",
                per_flow("fsa"),
            )
            .reported("none"),
            Verdict::new(
                "SYNs with MP_JOIN per flow, minrtt",
                Bound::AtLeast(1.0),
                "",
                per_flow("minrtt"),
            )
            .reported("one"),
        ]
    })?;
    for (label, swept) in &all {
        let title = format!("SYNs with MP_JOIN per flow, {label}");
        session.table(value_table(&title, swept, |runs| {
            format!("{:.2}", joins(runs))
        }));
    }
    let (label, swept) = &all[0];
    let figure = swept.bars(
        "SYNs that open a second subflow",
        &format!("{UNLIKE}; {label}"),
        ("SYNs with MP_JOIN per flow", joins),
    );
    session.figure("joins", figure);
    session.put_first("joins");
    if session.backend().is_virtual() {
        captures(session)?;
    }
    at_scale(session)
}

/// Returns the mean number of SYNs with MP_JOIN of a flow.
fn joins(runs: &Runs) -> f64 {
    runs.sum(|run| run.join_syns) / runs.0.len() as f64
}

/// Captures the first run of each case, and counts the packets in the captures.
fn captures(session: &mut Session<'_>) -> Result<(), Error> {
    let mut counts = Vec::new();
    for (label, sweep) in TINY.sweeps(Backend::Sim)? {
        for (name, case) in sweep.cases(session.seed(), session.backend())? {
            let bytes = sim::capture(&case, 0)?;
            let seen = CapturedPackets::read(&bytes)?;
            session.capture(&name, bytes);
            // Tables of all packets for one window and one size are enough; the files have the rest.
            if case.initial_window == 10 && case.size.bytes() > 2048 {
                session.table(seen.table(&format!("Capture at the client, {name}")));
            }
            counts.push((label.clone(), case, seen));
        }
    }
    let joins = |strategy: &str| {
        let of_strategy = counts
            .iter()
            .filter(|(_, case, _)| case.strategy == strategy);
        let each = of_strategy
            .map(|(label, case, seen)| (format!("{}, {label}", case.size), seen.joins()));
        each.collect::<Vec<_>>()
    };
    for (strategy, bound) in [("fsa", Bound::AtMost(0.0)), ("minrtt", Bound::AtLeast(1.0))] {
        let claim = format!("SYNs with MP_JOIN in a capture, {strategy}");
        session.verdict(Verdict::new(claim, bound, "", joins(strategy)));
    }
    session.table(packets_table(&counts));
    Ok(())
}

/// Returns a table of the numbers of packets in each direction.
fn packets_table(counts: &[(String, Case, CapturedPackets)]) -> Table {
    let row = |(label, case, seen): &(String, Case, CapturedPackets)| {
        let (sent, received) = seen.packets();
        vec![
            case.strategy.clone(),
            case.size.to_string(),
            label.clone(),
            sent.to_string(),
            received.to_string(),
        ]
    };
    let columns = ["strategy", "size", "", "to the server", "from the server"];
    Table::new(
        "Packets per flow both ways, captured at the client in the first run",
        &columns,
        counts.iter().map(row).collect(),
    )
}

/// Measures many clients at one server.
fn at_scale(session: &mut Session<'_>) -> Result<(), Error> {
    let mut loads = Vec::new();
    for strategy in ["fsa", "minrtt", "adaptive"] {
        loads.push((strategy, Load::measure(session.seed(), strategy)?));
    }
    type Value = fn(&Load) -> f64;
    let mut figures: Vec<(&str, Value)> = vec![
        ("subflows per flow", |load| load.subflows),
        ("packets per flow in and out", |load| load.packets),
        ("most subflows at a time", |load| load.most_subflows),
        ("seconds that subflows were kept, per flow", |load| {
            load.subflow_seconds
        }),
    ];
    // Results on the simulator must be reproducible, and processor time is not.
    if !session.backend().is_virtual() {
        figures.push(("processor time per flow, µs", |load| load.cpu_us));
    }
    for (what, value) in &figures {
        let value_of = |name| {
            loads
                .iter()
                .find(|(n, _)| *n == name)
                .map_or(f64::NAN, |(_, l)| value(l))
        };
        session.verdict(Verdict::new(
            format!("500 clients, {what} at the server: fsa over minrtt"),
            Bound::Below(1.0),
            "",
            [("", value_of("fsa") / value_of("minrtt"))],
        ));
    }
    let row = |(name, load): &(&str, Load)| {
        let values = figures
            .iter()
            .map(|(_, value)| format!("{:.2}", value(load)));
        std::iter::once((*name).to_owned()).chain(values).collect()
    };
    session.table(Table {
        title: "500 clients fetch 4 k each within 10 s: what the server has of it".to_owned(),
        columns: std::iter::once("strategy")
            .chain(figures.iter().map(|(what, _)| *what))
            .map(str::to_owned)
            .collect(),
        rows: loads.iter().map(row).collect(),
    });
    Ok(())
}
