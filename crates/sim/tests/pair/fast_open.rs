//! TCP Fast Open (RFC 7413) end to end.

use core::time::Duration;

use braid_engine::{CloseReason, Config, Protocol};
use braid_links::middlebox::{
    Chain, Direction as PacketDirection, Edit, Middlebox, OptionEdit, Output, Packet, Scope, Target,
};
use braid_sim::traffic::{Role, Stream};
use braid_sim::transfer::{Direction, PathSettings, TransferConfig};
use braid_sim::{Host, Transfer, World};
use braid_wire::tcp::{self, Flags, kind};
use braid_wire::{Instant, ip};

use crate::support::{path, secs};

const FINISHED: CloseReason = CloseReason::Finished;

/// Returns settings with which both ends use fast open, or neither does.
fn config(paths: &[PathSettings], fast_open: bool) -> TransferConfig<'_> {
    TransferConfig {
        engine: Config {
            fast_open,
            ..Config::default()
        },
        ..TransferConfig::new(paths, 500, Direction::Up)
    }
}

/// Opens connections one after the other, each with an upload of these bytes, and returns how long each
/// took to arrive. Every byte of each arrives once.
fn uploads(transfer: &mut Transfer, config: &TransferConfig<'_>, sizes: &[u64]) -> Vec<Duration> {
    let mut took = Vec::new();
    for (n, size) in sizes.iter().enumerate() {
        let stream = Stream::new(Role::Upload { size: *size });
        match n {
            0 => {
                let sink = Stream::new(Role::Sink);
                transfer.open_with(config.options(), stream, sink).unwrap();
            }
            _ => {
                let client = transfer.client;
                transfer
                    .world
                    .open(client, config.options(), stream)
                    .unwrap();
            }
        }
        let in_order = |host: &Host| {
            let finished = host.finished().iter();
            let in_order = finished.filter(|s| s.closed.is_some_and(|(_, why)| why == FINISHED));
            in_order.cloned().collect::<Vec<Stream>>()
        };
        let ends = transfer.ends();
        let done = |world: &World| ends.iter().all(|e| in_order(world.host(*e)).len() > n);
        assert!(transfer.world.run(secs(120), done), "{transfer:?}");
        // Streams are in the order of their ends.
        let [asks, sink] = ends.map(|end| in_order(transfer.world.host(end)).remove(n));
        assert_eq!(sink.received, *size, "{transfer:?}");
        let arrived = sink.last_byte_at.unwrap();
        took.push(arrived.saturating_since(asks.opened_at));
    }
    took
}

fn opened_fast(transfer: &Transfer) -> [u64; 2] {
    let [client, server] = transfer.ends().map(|end| transfer.world.host(end).stack());
    [client.stats().fast_opened, server.stats().fast_accepted]
}

/// From the second connection on, an upload that fits into a SYN arrives a round trip earlier, by MPTCP
/// and by TCP.
// Conforms: 7413-4.2.2-1
#[test]
fn a_small_upload_takes_a_round_trip_less() {
    let paths = [path(20, 20, 0.0), path(20, 30, 0.0)];
    for protocol in [Protocol::Mptcp, Protocol::Tcp] {
        let [fast, slow] = [true, false].map(|fast| {
            let config = TransferConfig {
                protocol,
                ..config(&paths, fast)
            };
            let mut transfer = Transfer::build(1, &config);
            let took = uploads(&mut transfer, &config, &[500, 500, 500]);
            let count = if fast { 2 } else { 0 };
            assert_eq!(opened_fast(&transfer), [count; 2]);
            took
        });
        assert_eq!(fast[0].as_millis(), slow[0].as_millis());
        for n in [1, 2] {
            let spared = slow[n] - fast[n];
            let off = spared.abs_diff(Duration::from_millis(40));
            assert!(off < Duration::from_millis(1), "{spared:?}");
        }
    }
}

/// SYNs and their answers with cookies are lost; no byte is lost or delivered twice.
#[test]
fn nothing_is_lost_with_a_syn() {
    let paths = [path(20, 15, 0.15), path(10, 35, 0.15)];
    let mut fast = 0;
    for (seed, checksum) in (0..30).flat_map(|seed| [(seed, false), (seed, true)]) {
        let mut config = config(&paths, true);
        config.engine.checksum = checksum;
        let mut transfer = Transfer::build(seed, &config);
        uploads(&mut transfer, &config, &[1, 500, 3000, 100_000, 1428]);
        fast += opened_fast(&transfer)[0];
    }
    assert!(fast > 50, "{fast}");
}

/// A box that removes the payload of SYNs, because it does not expect any there.
#[derive(Debug)]
struct Empty;

impl Middlebox for Empty {
    fn process(
        &mut self,
        _: Instant,
        direction: PacketDirection,
        mut packet: Packet,
        out: &mut Output,
    ) {
        let (ip, segment) = ip::Repr::parse(&packet.bytes).unwrap();
        let (tcp, payload) = tcp::Repr::parse(segment).unwrap();
        if tcp.flags.contains(Flags::SYN) && !payload.is_empty() {
            let len = ip.header_len() + tcp.header_len();
            let bare = ip::Repr {
                payload_len: tcp.header_len(),
                ..ip
            };
            packet.bytes.truncate(len);
            let (head, rest) = packet.bytes.split_at_mut(bare.header_len());
            bare.emit(head);
            tcp.emit(rest);
            tcp::fill_checksum(bare.src, bare.dst, rest, &[]);
        }
        out.push_back((direction, packet));
    }
}

/// A box that drops SYNs with payload.
#[derive(Debug)]
struct Drop;

impl Middlebox for Drop {
    fn process(
        &mut self,
        _: Instant,
        direction: PacketDirection,
        packet: Packet,
        out: &mut Output,
    ) {
        let (_, segment) = ip::Repr::parse(&packet.bytes).unwrap();
        let (tcp, payload) = tcp::Repr::parse(segment).unwrap();
        if !tcp.flags.contains(Flags::SYN) || payload.is_empty() {
            out.push_back((direction, packet));
        }
    }
}

/// Boxes that do not expect payload in SYNs, or remove options.
// Conforms: 7413-4.1.3.1-1, 7413-4.2.2-8
#[test]
fn through_middleboxes() {
    const STRIPPED: Target = Target::Kind(kind::FAST_OPEN);
    let chains: [fn() -> Chain; 6] = [
        || Chain::new().and(Empty),
        || Chain::new().and(Drop),
        || Chain::new().and(OptionEdit::new(STRIPPED, Scope::Syn, Edit::Remove)),
        || Chain::new().and(OptionEdit::new(STRIPPED, Scope::Syn, Edit::Zero)),
        || Chain::new().and(OptionEdit::new(Target::MPTCP, Scope::Syn, Edit::Remove)),
        || Chain::new().and(OptionEdit::new(Target::MPTCP, Scope::Later, Edit::Remove)),
    ];
    let paths = [path(20, 15, 0.0)];
    for (n, chain) in chains.into_iter().enumerate() {
        let config = config(&paths, true);
        let mut transfer = Transfer::through(1, &config, [chain()]);
        uploads(&mut transfer, &config, &[500, 3000, 500]);
        let fast = opened_fast(&transfer);
        let fits = if n < 4 { [0, 0] } else { [2, 2] };
        assert_eq!(fast, fits, "chain {n}");
    }
}
