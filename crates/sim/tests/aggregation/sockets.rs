//! The engine's TCP in place of kernel sockets: two machines on one wire.

use core::net::{Ipv4Addr, SocketAddr};
use core::time::Duration;
use std::io::{IoSlice, IoSliceMut};

use braid_engine::{PathConfig, RxMeta};
use braid_proxy::app::{
    Arrival, ConnectFailure, DownstreamError, DownstreamEvent, DownstreamId, DownstreamSockets,
};
use braid_sim::gateway::{DownstreamConfig, DownstreamTcp};
use braid_wire::{Instant, Rng, Seq32, ip, tcp};

use crate::support::{millis, secs};

const FAR: &str = "10.0.0.2:80";

/// Two machines; the second accepts every connection.
struct Pair {
    now: Instant,
    near: DownstreamTcp,
    far: DownstreamTcp,
    /// No packet arrives.
    cut: bool,
    /// The address of the near end of the last connection, as the far side saw it.
    peer: Option<SocketAddr>,
}

fn local(host: u8, config: &DownstreamConfig) -> DownstreamTcp {
    let path = PathConfig::v4(Ipv4Addr::new(10, 0, 0, host));
    DownstreamTcp::new(config.clone(), path, Rng::for_component(1, u64::from(host)))
}

fn small() -> DownstreamConfig {
    let mut config = DownstreamConfig::default();
    config.engine.send_buffer = 256 << 10;
    config.engine.recv_buffer = 128 << 10;
    config.streams = 3;
    config.names.insert(
        "far.example".to_owned(),
        vec![[10, 0, 0, 2].into(), [10, 0, 0, 3].into()],
    );
    config
}

impl Pair {
    fn new() -> Pair {
        let mut far = local(2, &small());
        far.listen_any(&[FAR.parse().unwrap()]).unwrap();
        Pair {
            now: Instant::from_millis(1_000),
            near: local(1, &small()),
            far,
            cut: false,
            peer: None,
        }
    }

    /// Runs for `time` in steps of a millisecond, which is the delay of the wire.
    fn run(&mut self, time: Duration) {
        for _ in 0..time.as_millis() {
            self.now += millis(1);
            let mut packets = Vec::new();
            for (n, side) in [&mut self.near, &mut self.far].into_iter().enumerate() {
                side.set_now(self.now);
                side.handle_timeout();
                while let Some(transmit) = side.poll_transmit() {
                    let bytes = [&[transmit.header], &transmit.payload[..]]
                        .concat()
                        .concat();
                    packets.push((n, bytes, transmit.gso_size));
                }
            }
            for (from, bytes, gso_size) in packets {
                let to = if from == 0 {
                    &mut self.far
                } else {
                    &mut self.near
                };
                let meta = RxMeta {
                    checksum_ok: true,
                    gso_size,
                };
                if !self.cut {
                    to.receive(&bytes, meta);
                }
            }
        }
    }

    /// Opens a connection from the near to the far side.
    fn connected(&mut self) -> (DownstreamId, DownstreamId) {
        let near = self.near.connect(FAR.parse().unwrap()).unwrap();
        self.run(millis(5));
        assert_eq!(
            self.near.next_event(),
            Some(DownstreamEvent::Connected { id: near })
        );
        let Some(DownstreamEvent::Accepted {
            id,
            peer,
            destination,
            arrival: Arrival::Addressed,
            dscp: 0,
        }) = self.far.next_event()
        else {
            panic!("it was not accepted");
        };
        self.peer = Some(peer);
        assert_eq!(destination, FAR.parse().unwrap());
        (near, id)
    }
}

fn events(side: &mut DownstreamTcp) -> Vec<DownstreamEvent> {
    core::iter::from_fn(|| side.next_event()).collect()
}

fn read(side: &mut DownstreamTcp, id: DownstreamId) -> Result<usize, DownstreamError> {
    let (mut a, mut b) = ([0; 1_000], [0; 3_000]);
    side.read(id, &mut [IoSliceMut::new(&mut a), IoSliceMut::new(&mut b)])
}

fn write(side: &mut DownstreamTcp, id: DownstreamId, len: usize) -> Result<usize, DownstreamError> {
    let bytes = vec![7; len];
    let (a, b) = bytes.split_at(len / 3);
    side.write(id, &[IoSlice::new(a), IoSlice::new(b)])
}

#[test]
fn names_are_looked_up_in_their_time() {
    let mut pair = Pair::new();
    pair.near.set_now(pair.now);
    let known = pair.near.resolve("far.example", 80).unwrap();
    let unknown = pair.near.resolve("nowhere.example", 80).unwrap();
    pair.run(millis(19));
    assert_eq!(pair.near.next_event(), None);
    pair.run(millis(1));
    let resolved = |id, addresses| DownstreamEvent::Resolved { id, addresses };
    let found = vec![FAR.parse().unwrap(), "10.0.0.3:80".parse().unwrap()];
    let expected = [resolved(known, found), resolved(unknown, Vec::new())];
    assert_eq!(events(&mut pair.near), expected);
    let pending = (0..2_000).filter_map(|_| pair.near.resolve("far.example", 80));
    assert_eq!(pending.count(), 1_024, "bounded");
}

#[test]
fn attempts_fail_as_those_of_the_kernel_do() {
    let mut pair = Pair::new();
    let v6 = "[2001:db8::1]:80".parse().unwrap();
    let failure = pair.near.connect(v6).unwrap_err();
    assert_eq!(failure, ConnectFailure::NetworkUnreachable);
    // No program listens at the near side.
    let id = pair.far.connect("10.0.0.1:80".parse().unwrap()).unwrap();
    assert_eq!(
        write(&mut pair.far, id, 10),
        Err(DownstreamError::WouldBlock)
    );
    pair.run(millis(5));
    let refused = DownstreamEvent::ConnectFailed {
        id,
        failure: ConnectFailure::Refused,
    };
    assert_eq!(events(&mut pair.far), [refused]);
    pair.cut = true;
    let id = pair.near.connect(FAR.parse().unwrap()).unwrap();
    pair.run(secs(14));
    assert_eq!(pair.near.next_event(), None);
    pair.run(secs(2));
    let late = DownstreamEvent::ConnectFailed {
        id,
        failure: ConnectFailure::TimedOut,
    };
    assert_eq!(events(&mut pair.near), [late]);
    assert!(pair.near.is_empty() && pair.far.is_empty());
}

#[test]
fn streams_are_bounded() {
    let mut pair = Pair::new();
    for _ in 0..3 {
        pair.connected();
    }
    let more = pair.near.connect(FAR.parse().unwrap());
    assert_eq!(more, Err(ConnectFailure::NoResources));
    let mut other = local(3, &small());
    core::mem::swap(&mut pair.near, &mut other);
    let id = pair.near.connect(FAR.parse().unwrap()).unwrap();
    pair.run(millis(5));
    // The stack completes the handshake before the machine looks, as a kernel does.
    assert_eq!(pair.far.next_event(), None);
    pair.run(millis(5));
    let expected = [
        DownstreamEvent::Connected { id },
        DownstreamEvent::Broken { id },
    ];
    assert_eq!(events(&mut pair.near), expected);
    assert_eq!(pair.far.counters().accept_refused, 1);
    assert_eq!(read(&mut pair.near, id), Err(DownstreamError::Broken));
}

#[test]
fn a_full_stream_blocks_until_it_is_read() {
    let mut pair = Pair::new();
    let (near, far) = pair.connected();
    let mut written = 0;
    for _ in 0..100 {
        written += write(&mut pair.near, near, 50_000).unwrap_or(0);
        pair.run(millis(10));
    }
    assert_eq!(
        write(&mut pair.near, near, 1),
        Err(DownstreamError::WouldBlock)
    );
    assert!((384 << 10..448 << 10).contains(&written), "{written}");
    assert_eq!(events(&mut pair.near), []);
    assert_eq!(
        events(&mut pair.far),
        [DownstreamEvent::Readable { id: far }]
    );
    let mut got = 0;
    for _ in 0..500 {
        while let Ok(n) = read(&mut pair.far, far) {
            got += n;
        }
        pair.run(millis(1));
    }
    assert_eq!(got, written);
    assert_eq!(read(&mut pair.far, far), Err(DownstreamError::WouldBlock));
    assert_eq!(
        events(&mut pair.near),
        [DownstreamEvent::Writable { id: near }]
    );
    assert!(write(&mut pair.near, near, 1).is_ok());
}

#[test]
fn each_direction_ends_by_itself() {
    let mut pair = Pair::new();
    let (near, far) = pair.connected();
    assert_eq!(write(&mut pair.near, near, 3_000), Ok(3_000));
    pair.near.shutdown(near);
    pair.run(millis(5));
    assert_eq!(read(&mut pair.far, far), Ok(3_000));
    assert_eq!(read(&mut pair.far, far), Ok(0), "the end");
    assert_eq!(write(&mut pair.far, far, 5_000), Ok(5_000));
    pair.far.close(far);
    pair.run(secs(3));
    // The connection is over in order for the TCP underneath, but its data can still be read.
    assert_eq!(read(&mut pair.near, near), Ok(4_000));
    assert_eq!(read(&mut pair.near, near), Ok(1_000));
    assert_eq!(read(&mut pair.near, near), Ok(0));
    pair.near.close(near);
    pair.run(secs(15));
    for side in [&pair.near, &pair.far] {
        assert_eq!((side.len(), side.stack().connections()), (0, 0));
        assert_eq!(side.stack().buffered(), 0);
    }
}

fn syn(from: SocketAddr, to: SocketAddr) -> Vec<u8> {
    let segment = tcp::Repr {
        src_port: from.port(),
        dst_port: to.port(),
        seq: Seq32(1),
        ack: Seq32(0),
        flags: tcp::Flags::SYN,
        window: 1_000,
        options: tcp::Options::default(),
    };
    let header = ip::Repr {
        src: from.ip(),
        dst: to.ip(),
        protocol: ip::PROTO_TCP,
        payload_len: segment.header_len(),
        hop_limit: 64,
        traffic_class: 0,
    };
    let ip_len = header.header_len();
    let mut packet = vec![0; ip_len + segment.header_len()];
    header.emit(&mut packet);
    segment.emit(&mut packet[ip_len..]);
    tcp::fill_checksum(from.ip(), to.ip(), &mut packet[ip_len..], &[]);
    packet
}

/// The TCP underneath forgets a connection with its last byte; the reader still sees a regular end.
#[test]
fn what_ended_while_it_was_read_ended_in_order() {
    let mut pair = Pair::new();
    let (near, far) = pair.connected();
    pair.near.shutdown(near);
    pair.run(millis(5));
    assert_eq!(write(&mut pair.far, far, 5_000), Ok(5_000));
    pair.far.shutdown(far);
    pair.run(secs(20));
    // The far side has forgotten the connection, and answers its segments with a reset.
    let stray = syn(FAR.parse().unwrap(), pair.peer.unwrap());
    pair.near.receive(&stray, RxMeta::default());
    pair.run(millis(5));
    assert_eq!(pair.far.stack().stats().out_of_the_blue, 1);
    assert_eq!(read(&mut pair.near, near), Ok(4_000));
    let (mut a, mut b) = ([0; 2_000], [0; 2_000]);
    let mut room = [IoSliceMut::new(&mut a), IoSliceMut::new(&mut b)];
    assert_eq!(pair.near.read(near, &mut room), Ok(1_000));
    assert_eq!(read(&mut pair.near, near), Ok(0));
}

#[test]
fn a_reset_takes_with_it_what_was_not_read() {
    let mut pair = Pair::new();
    let (near, far) = pair.connected();
    assert_eq!(write(&mut pair.near, near, 3_000), Ok(3_000));
    pair.near.shutdown(near);
    pair.run(millis(5));
    pair.near.reset(near);
    pair.run(millis(5));
    assert_eq!(read(&mut pair.far, far), Err(DownstreamError::Broken));
    assert_eq!(write(&mut pair.far, far, 1), Err(DownstreamError::Broken));
    pair.far.close(far);
    assert!(pair.far.is_empty());
}

#[test]
fn who_closes_without_reading_resets() {
    let mut pair = Pair::new();
    let (near, far) = pair.connected();
    write(&mut pair.near, near, 3_000).unwrap();
    pair.run(millis(5));
    pair.far.close(far);
    pair.run(millis(5));
    let events = events(&mut pair.near);
    assert_eq!(events, [DownstreamEvent::Broken { id: near }]);
}

#[test]
fn a_peer_that_never_closes_is_not_waited_for_for_ever() {
    let mut pair = Pair::new();
    let (near, far) = pair.connected();
    pair.far.close(far);
    pair.run(secs(59));
    assert_eq!(read(&mut pair.near, near), Ok(0));
    assert_eq!(pair.far.stack().connections(), 1);
    pair.run(secs(3));
    assert_eq!(pair.far.stack().connections(), 0);
    assert_eq!(read(&mut pair.near, near), Err(DownstreamError::Broken));
}
