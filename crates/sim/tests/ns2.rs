//! The first round trips with the settings of NS-2, packet by packet.

use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use core::time::Duration;
use std::sync::{Arc, Mutex};

use braid_engine::cc::NEWRENO;
use braid_engine::{Config, ConnectOptions, DelayedAck, PathConfig, Protocol};
use braid_links::{QueueLimit, Rate, Settings};
use braid_sim::tap::{PacketEvent, Tap};
use braid_sim::traffic::{Bulk, HEADER, Role, Session, Stream};
use braid_sim::{Host, HostConfig, LinkId, NodeId, Packet, World};
use braid_wire::Instant;

const SENDER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const SINK: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
/// The one-way delay, in each direction.
const DELAY: Duration = Duration::from_millis(50);
/// Maximum size of a packet, bytes (`packetSize_`). Here it includes the IP and TCP headers; NS-2 adds 40 bytes for
/// these headers.
const PACKET_BYTES: u16 = 1000;
/// A length above every packet without data.
const NO_DATA: usize = 60;

/// The times at which packets were sent or arrived, and their lengths.
#[derive(Debug, Default)]
struct Trace {
    sent: Vec<(Instant, usize)>,
    arrived: Vec<(Instant, usize)>,
}

impl Tap for Trace {
    fn on_packet(&mut self, at: Instant, _: LinkId, what: PacketEvent, packet: &Packet) {
        let note = (at, packet.bytes.len());
        match what {
            PacketEvent::Sent => self.sent.push(note),
            PacketEvent::Delivered { .. } => self.arrived.push(note),
            PacketEvent::Duplicated | PacketEvent::Dropped { .. } => panic!("{what:?}"),
        }
    }
}

impl Trace {
    /// Returns the times at which data packets were sent.
    fn data(&self) -> Vec<Instant> {
        let data = self.sent.iter().filter(|(_, len)| *len > NO_DATA);
        data.map(|(at, _)| *at).collect()
    }
}

/// Returns the defaults of NS-2 for `Agent/TCP/Newreno` and `Agent/TCPSink/DelAck`, which many papers use.
///
/// These are a maximum window of 20 packets (`window_`), an initial window of 2 packets (`windowInit_`),
/// acknowledgements delayed by 100 ms (`interval_`) or until the second packet, a minimum retransmission timeout of
/// 0.2 s (`minrto_`), and queues of 50 packets (`queue-limit`).
///
/// The engine differs from NS-2 in other respects: it has SACK, RACK and PRR, paces packets beyond the initial
/// window, counts bytes instead of acknowledgements in slow start (RFC 3465), and adds the minimum timeout to the
/// round-trip time instead of taking the larger of the two.
fn ns2() -> Config {
    Config {
        initial_window: 2,
        max_cwnd: Some(20),
        delayed_ack: DelayedAck {
            timeout: Duration::from_millis(100),
            every: 2,
            quick: 0,
        },
        min_rto: Duration::from_millis(200),
        // The maximum window without window scaling. It holds three windows of 20 packets. The SYN announces all of
        // it, so the receiver never sends an acknowledgement only to announce a larger window.
        recv_buffer: 65_535,
        congestion: NEWRENO,
        ..Config::default()
    }
}

fn host(world: &mut World, addr: Ipv4Addr) -> NodeId {
    let path = PathConfig {
        mtu: PACKET_BYTES,
        ..PathConfig::v4(addr)
    };
    let config = HostConfig {
        engine: ns2(),
        ..HostConfig::new(vec![path])
    };
    world.add(|rng| Host::new(config, rng))
}

/// Returns the packets that a sender with `role` and a reader with `other` send within `span` over a fast
/// link.
fn trace(role: Role, other: Role, span: Duration) -> [Trace; 2] {
    let mut world = World::new(1);
    let (sender, sink) = (host(&mut world, SENDER), host(&mut world, SINK));
    let link = Settings {
        rate: Rate::bits_per_second(1_000_000_000),
        delay: DELAY,
        queue: QueueLimit::Packets(50),
        ..Settings::default()
    };
    let links = world.connect(sender, sink, link.clone(), link);
    let traces = [links.0, links.1].map(|link| {
        let trace = Arc::new(Mutex::new(Trace::default()));
        world.tap(link, Box::new(trace.clone()));
        trace
    });
    let remote = SocketAddr::new(IpAddr::V4(SINK), 80);
    world.serve(sink, remote, Stream::new(other)).unwrap();
    let options = ConnectOptions {
        protocol: Protocol::Tcp,
        ..braid_sim::host::options(remote)
    };
    world.open(sender, options, Stream::new(role)).unwrap();
    world.run(span, |_| false);
    traces.map(|trace| std::mem::take(&mut *trace.lock().unwrap()))
}

#[test]
fn the_window_opens_from_2_to_20_packets() {
    let span = Duration::from_secs(2);
    let [there, back] = trace(Role::Greedy { span }, Role::Sink, span);
    let data = there.data();
    assert!(there.sent.iter().all(|(_, len)| *len <= 1000));
    let full = there.sent.iter().filter(|(_, len)| *len == 1000).count();
    assert!(full >= data.len() - 1, "{full} of {}", data.len());

    // The number of acknowledged packets doubles every round trip, up to the bound.
    let rounds: Vec<usize> = (0..8)
        .map(|n| {
            let start = data[0] + 2 * DELAY * n;
            let round = start..start + 2 * DELAY;
            data.iter().filter(|at| round.contains(at)).count()
        })
        .collect();
    assert_eq!(rounds, [2, 4, 8, 16, 20, 20, 20, 20]);
    assert_eq!(data[0], data[1], "the initial window leaves at once");

    // The sink acknowledges every second packet on arrival.
    let acks: Vec<Instant> = back.sent[1..].iter().map(|(at, _)| *at).collect();
    let arrivals = there.arrived.iter().filter(|(_, len)| *len > NO_DATA);
    let second: Vec<Instant> = arrivals.skip(1).step_by(2).map(|(at, _)| *at).collect();
    assert!(acks.len() > 70, "{}", acks.len());
    assert_eq!(acks[..70], second[..70]);
}

#[test]
fn a_lone_packet_is_acknowledged_after_100_ms() {
    // One message of 500 bytes a second.
    let messages = Bulk {
        stream: 0,
        priority: 0,
        message: 500 - HEADER as u32,
        rate: Some(8 * (500 - HEADER)),
        span: Duration::from_secs(10),
    };
    let session = Session {
        frames: Arc::new([]),
        bulk: vec![messages],
    };
    let [there, back] = trace(
        Role::Send(session),
        Role::Collect,
        Duration::from_millis(5_500),
    );
    let arrived = there.arrived.iter().filter(|(_, len)| *len > NO_DATA);
    let delayed = arrived.map(|(at, _)| *at + Duration::from_millis(100));
    let acks: Vec<Instant> = back.sent[1..].iter().map(|(at, _)| *at).collect();
    assert_eq!(acks.len(), 6);
    assert_eq!(acks, delayed.collect::<Vec<_>>());
}
