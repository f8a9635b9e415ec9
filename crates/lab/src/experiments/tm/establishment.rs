//! The order of the steps in which a connection is established, from packet captures.

use std::time::SystemTime;

use braid_sim::pcapng::{Direction, Writer};
use braid_testbed::{Capture, Captured, InterfaceLayout, SegmentKind};
use braid_wire::{Instant, ip};
use serde::Serialize;
use serde_json::json;

use super::handshakes::{Captures, Ends, Flow, flows};
use super::simulated;
use super::speed::{self, SIMULATED_LINKS};
use crate::backend::gateways::Gateways;
use crate::backend::{Error, run_error};
use crate::experiments::entry;
use crate::experiments::outcome::Table;
use crate::experiments::series::by_run;
use crate::experiments::session::Session;
use crate::experiments::verdict::Verdict;
use crate::stats;

const FILE_BYTES: u64 = 1_000_000;
/// Minimum bytes that a flow must carry to count as a flow of the file. The authentication of a pooled
/// connection carries fewer.
const MIN_CARRIED_BYTES: usize = 10_000;
/// The steps in the order that the paper shows.
const STEPS: [&str; 4] = [
    "user to box, as content server: SYN",
    "box to server: SYN with MP_CAPABLE",
    "server to content server: SYN",
    "box to server: SYN with MP_JOIN",
];

/// The observation of one establishment.
#[derive(Debug, Serialize)]
struct Establishment {
    /// Start and end of each step, ms after the user's SYN; `None` if the step did not happen.
    #[serde(rename = "steps_ms")]
    steps: [Option<[f64; 2]>; 4],
    /// Number of subflows that carried the file.
    subflows: usize,
}

/// Measures the four handshakes of an establishment, and their order.
pub fn measure(session: &mut Session<'_>) -> Result<(), Error> {
    session.parameter("size", "1 MB");
    let (runs, ends) = match session.backend().is_virtual() {
        true => {
            simulated::parameters(session);
            let establish = |_, seed| simulated::establish(seed, &SIMULATED_LINKS, FILE_BYTES);
            let runs = session.each(session.runs(), establish)?;
            (runs, simulated::ends(SIMULATED_LINKS.len()))
        }
        false => {
            simulated::both_ends(session);
            captured(session)?
        }
    };
    for (name, packets) in ["cold", "warm"]
        .iter()
        .zip(runs.first().into_iter().flatten())
    {
        for (host, packets) in packets {
            session.capture(&format!("{name}-{host}"), pcapng(host, packets, &ends)?);
        }
    }
    let [cold, warm] = [0, 1].map(|n| {
        let seen = runs.iter().map(|run| observe(&run[n], &ends));
        seen.collect::<Vec<_>>()
    });
    session.record("steps".to_owned(), json!({ "cold": cold, "warm": warm }));
    session.table(table(&cold, &warm));
    session.verdicts(verdicts(&cold, &warm));
    Ok(())
}

/// Captures runs over emulated links. Each run has two connections: the first after a start of the box, and
/// a later one.
fn captured(session: &Session<'_>) -> Result<(Vec<[Captures; 2]>, Ends), Error> {
    let mut net = speed::gateways(FILE_BYTES)?;
    net.start_server("server")?;
    let mut runs = Vec::new();
    for _ in 0..session.runs() {
        net.start_box()?;
        let cold = capture(&net)?;
        net.wait_for_pool()?;
        runs.push([cold, capture(&net)?]);
        net.stop_box()?;
        session.finished();
    }
    let ends = addresses(&net)?;
    Ok((runs, ends))
}

/// Captures the packets of box and server while the user downloads the file.
fn capture(net: &Gateways) -> Result<Captures, Error> {
    let start = |host| Capture::start(&net.fixture.testbed, host).map_err(run_error);
    let [boxed, server] = [start("box")?, start("server")?];
    net.download_once("user", FILE_BYTES, |_, _, _| ())?;
    let finish = |capture: Capture| capture.finish().map_err(run_error);
    Ok([("box", finish(boxed)?), ("server", finish(server)?)])
}

/// Returns the addresses of the hosts.
fn addresses(net: &Gateways) -> Result<Ends, Error> {
    let addresses_of = |host: &str, links_only: bool| {
        let host = net.fixture.testbed.layout().host(host).map_err(run_error)?;
        let is_wanted = |i: &&InterfaceLayout| !links_only || i.kind == SegmentKind::Link;
        let interfaces = host.interfaces.iter().filter(is_wanted);
        let addresses = interfaces.flat_map(|i| [i.address4.into(), i.address6.into()]);
        Ok::<_, Error>(addresses.collect())
    };
    Ok(Ends {
        user: addresses_of("user", false)?,
        boxed: addresses_of("box", true)?,
        server: addresses_of("server", false)?,
        content: addresses_of("content", false)?,
    })
}

/// Finds the steps in the captures of box and server.
fn observe([(_, boxed), (_, server)]: &Captures, ends: &Ends) -> Establishment {
    let file_flows = |packets, from, to| {
        let mut all = flows(packets, from, to);
        all.retain(|flow| flow.received >= MIN_CARRIED_BYTES);
        all
    };
    let user = file_flows(boxed, &ends.user, &ends.content);
    let subflows = file_flows(boxed, &ends.boxed, &ends.server);
    let content = file_flows(server, &ends.server, &ends.content);
    let origin = user.first().and_then(|flow| flow.began);
    let first = |flows: &[Flow], wanted: fn(&Flow) -> bool| {
        let flow = flows.iter().find(|flow| wanted(flow))?;
        Some([flow.began? - origin?, flow.done? - origin?])
    };
    Establishment {
        steps: [
            first(&user, |_| true),
            first(&subflows, |flow| flow.capable),
            first(&content, |_| true),
            first(&subflows, |flow| flow.join),
        ],
        subflows: subflows.len(),
    }
}

fn verdicts(cold: &[Establishment], warm: &[Establishment]) -> [Verdict; 7] {
    let each = |all: &[Establishment], value: &dyn Fn(&Establishment) -> f64| {
        by_run(all.iter().map(value)).collect()
    };
    // The time from the end of a step to the end of another.
    let order = |all, from: usize, to: usize| {
        each(all, &|seen| match (seen.steps[from], seen.steps[to]) {
            (Some([_, earlier]), Some([_, later])) => later - earlier,
            _ => f64::NAN,
        })
    };
    let steps_2_and_4 = |seen: &Establishment| {
        let [_, two, _, four] = seen.steps;
        f64::from(two.is_some()) + f64::from(four.is_some())
    };
    let subflows = |seen: &Establishment| seen.subflows as f64;
    entry::judge(
        "tm-3",
        [
            order(cold, 0, 1),
            order(cold, 1, 2),
            order(cold, 2, 3),
            order(warm, 0, 2),
            each(warm, &steps_2_and_4),
            each(cold, &subflows),
            each(warm, &subflows),
        ],
    )
}

fn table(cold: &[Establishment], warm: &[Establishment]) -> Table {
    let row = |(n, step): (usize, &&str)| {
        let mut row = vec![format!("{} {step}", n + 1)];
        for all in [cold, warm] {
            for end in [0, 1] {
                let ms = all.iter().filter_map(|seen| Some(seen.steps[n]?[end]));
                let mean = stats::mean(&ms.collect::<Vec<_>>());
                row.push(mean.map_or("-".to_owned(), |ms| format!("{ms:.1}")));
            }
        }
        row
    };
    entry::table("tm-3", "steps", STEPS.iter().enumerate().map(row).collect())
}

/// Returns the IP packets of a host as a pcapng file.
fn pcapng(host: &str, packets: &[Captured], ends: &Ends) -> Result<Vec<u8>, Error> {
    let mut file = Vec::new();
    let mut writer = Writer::new(&mut file);
    let interface = writer.interface(host);
    let is_box = host == "box";
    let own = if is_box { &ends.boxed } else { &ends.server };
    for packet in packets {
        let Ok((header, _)) = ip::Repr::parse(&packet.bytes) else {
            continue;
        };
        let since = packet.at.duration_since(SystemTime::UNIX_EPOCH);
        let at = Instant::ZERO + since.unwrap_or_default();
        let direction = match own.contains(&header.src) {
            true => Direction::Outbound,
            false => Direction::Inbound,
        };
        writer.packet(interface, at, direction, &packet.bytes);
    }
    writer.finish().map_err(run_error)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns an establishment whose steps end at these times, ms; 0 for a step that did not happen.
    fn seen(ms: [f64; 4], subflows: usize) -> Establishment {
        let step = |ms: f64| (ms > 0.0).then_some([ms - 1.0, ms]);
        Establishment {
            steps: ms.map(step),
            subflows,
        }
    }

    const COLD: [f64; 4] = [1.0, 50.0, 76.0, 140.0];
    const WARM: [f64; 4] = [1.0, 0.0, 27.0, 0.0];

    #[test]
    fn the_order_is_judged_by_when_steps_are_done() {
        let (early, never) = ([1.0, 50.0, 76.0, 60.0], [1.0, 50.0, 76.0, 0.0]);
        let nothing = [0.0; 4];
        let (y, n) = (true, false);
        for (cold, warm, holding) in [
            // As published.
            ((COLD, 2), (WARM, 2), [y, y, y, y, y, y, y]),
            ((early, 2), (WARM, 2), [y, y, n, y, y, y, y]),
            ((never, 1), (WARM, 2), [y, y, n, y, y, n, y]),
            // A warm connection needs no handshake with the server.
            ((COLD, 2), (never, 2), [y, y, y, y, n, y, y]),
            // Without any observation no claim on a step holds.
            ((nothing, 0), (nothing, 0), [n, n, n, n, y, n, n]),
        ] {
            let [cold, warm] = [cold, warm].map(|(ms, subflows)| [seen(ms, subflows)]);
            let judged = verdicts(&cold, &warm);
            let judged: Vec<bool> = judged.iter().map(Verdict::holds).collect();
            assert_eq!(judged, holding, "{cold:?} {warm:?}");
        }
    }
}
