//! Congestion marks in place of losses (RFC 3168).

use core::time::Duration;

use braid_engine::cc::{Algorithm, BALIA, BBR, CUBIC, LIA, NEWRENO, OLIA};
use braid_engine::stats::Traffic;
use braid_engine::{Config, Ecn, Protocol};
use braid_links::{CoDel, Counters, QueueLimit, Settings};
use braid_sim::Transfer;
use braid_sim::transfer::{Direction, PathSettings, TransferConfig};

use crate::support::link;

const MBIT: u64 = 20;
const SPAN: Duration = Duration::from_secs(20);

/// Runs a greedy download over links whose queues mark.
fn download(congestion: Algorithm, ecn: Ecn, protocol: Protocol, paths: usize) -> Transfer {
    let settings = Settings {
        queue: QueueLimit::Packets(1000),
        codel: Some(CoDel {
            marks: true,
            ..CoDel::default()
        }),
        ..link(MBIT, 10, 0.0)
    };
    let paths = vec![PathSettings::both(settings); paths];
    let config = TransferConfig {
        engine: Config {
            congestion,
            ecn,
            ..Config::default()
        },
        protocol,
        ..TransferConfig::new(&paths, 1 << 40, Direction::Down)
    };
    let mut transfer = Transfer::start(1, &config).unwrap();
    transfer.world.run(SPAN, |_| false);
    transfer
}

/// Returns the bytes that the reader got, as a share of the payload that full packets carry over the
/// links.
fn share(transfer: &Transfer) -> f64 {
    let client = transfer.world.host(transfer.client);
    let received: u64 = client.open_streams().map(|(_, s)| s.received).sum();
    let payload = transfer.links.len() as f64 * MBIT as f64 * 1e6 * 1428.0 / 1500.0;
    received as f64 * 8.0 / (payload * SPAN.as_secs_f64())
}

/// Returns the counters of the links to the reader, and the sender's traffic.
fn seen(transfer: &Transfer) -> (Vec<Counters>, Traffic) {
    let world = &transfer.world;
    let links = transfer.links.iter().map(|(_, down)| world.counters(*down));
    let server = world.host(transfer.server);
    let mut traffic = Traffic::default();
    for (conn, _) in server.open_streams() {
        for subflow in server.stack().subflows(conn) {
            traffic.add(&subflow.traffic);
        }
    }
    (links.collect(), traffic)
}

/// Queues that mark lose nothing, the window follows the marks, and the links are still full. A coupled
/// window takes longer to grow back to the link's capacity: CoDel's queue is a quarter of that.
#[test]
fn marks_take_the_place_of_losses() {
    for (congestion, protocol, paths, least) in [
        (CUBIC, Protocol::Tcp, 1, 0.9),
        (CUBIC, Protocol::Mptcp, 2, 0.9),
        (NEWRENO, Protocol::Mptcp, 1, 0.9),
        (LIA, Protocol::Mptcp, 2, 0.85),
        (OLIA, Protocol::Mptcp, 2, 0.85),
        (BALIA, Protocol::Mptcp, 2, 0.85),
    ] {
        let transfer = download(congestion, Ecn::Ask, protocol, paths);
        let (links, sent) = seen(&transfer);
        let what = format!("{congestion:?} {protocol:?} {paths}: {sent:?}");
        for link in links {
            let dropped = link.dropped_queue.packets + link.dropped_codel.packets;
            assert_eq!(dropped, 0, "{what}");
            assert!(link.marked.packets > 0, "{what}");
        }
        assert_eq!(
            (sent.bytes_lost, sent.bytes_retransmitted),
            (0, 0),
            "{what}"
        );
        assert!(sent.mark_reductions > 0, "{what}");
        let share = share(&transfer);
        assert!(share >= least, "{share:.3} {what}");
    }
}

/// Packets are dropped if ECN was not negotiated, or the controller does not react to marks.
#[test]
fn without_ecn_such_queues_drop() {
    for (congestion, ecn) in [(CUBIC, Ecn::Answer), (BBR, Ecn::Ask)] {
        let transfer = download(congestion, ecn, Protocol::Mptcp, 1);
        let (links, sent) = seen(&transfer);
        assert_eq!(links[0].marked.packets, 0, "{congestion:?}");
        assert!(links[0].dropped_codel.packets > 0, "{congestion:?}");
        assert_eq!(sent.mark_reductions, 0, "{congestion:?}");
    }
}
