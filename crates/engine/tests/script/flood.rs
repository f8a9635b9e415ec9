//! SYN floods: answers without state (RFC 4987 section 3.6) that carry MP_CAPABLE (RFC 8684
//! section 3.1).

use core::net::{Ipv4Addr, SocketAddr};

use braid_engine::{Config, Event, FallbackCause, RxMeta};
use braid_wire::tcp::{self, Flags};
use braid_wire::{Instant, Rng, ip};

use crate::harness::{PORT, Script, config};
use crate::segment::{Seg, ack, dack, data, hex, rst, syn, syn_ack};

/// A server that keeps no state of handshakes.
fn stateless() -> Script {
    Script::server(Config {
        max_half_open: 0,
        ..config()
    })
}

fn capable_syn() -> Seg {
    syn().raw(&hex("1e 04 01 01"))
}

/// A SYN from an address drawn at random, with or without MP_CAPABLE.
fn forged(rng: &mut Rng) -> Vec<u8> {
    let mut repr = tcp::Repr::new(1 + rng.below(65_535) as u16, PORT, Flags::SYN);
    repr.seq = braid_wire::Seq32(rng.u32());
    repr.options.mss = Some(1460);
    if rng.chance(0.5) {
        let flags = braid_wire::mptcp::CapableFlags::DEFAULT_OFFER;
        let capable = braid_wire::mptcp::Capable::Syn { version: 1, flags };
        let option = braid_wire::mptcp::MptcpOption::Capable(capable);
        repr.options.mptcp.push(option);
    }
    let (src, dst) = (Ipv4Addr::from(rng.u32() | 0x8000_0000), [10, 0, 9, 1]);
    let header = ip::Repr {
        src: src.into(),
        dst: dst.into(),
        protocol: ip::PROTO_TCP,
        payload_len: repr.header_len(),
        hop_limit: 64,
        traffic_class: 0,
    };
    let mut packet = vec![0; 20 + repr.header_len()];
    header.emit(&mut packet);
    repr.emit(&mut packet[20..]);
    packet
}

/// 50,000 SYNs in a second.
struct Flood {
    rng: Rng,
    sent: u64,
    answered: u64,
}

impl Flood {
    /// Runs all SYNs until `until`, in batches like a driver's.
    fn run(&mut self, s: &mut Script, until: Instant) {
        let meta = RxMeta {
            checksum_ok: true,
            ..RxMeta::default()
        };
        while Instant::from_nanos(100_000_000 + self.sent * 20_000) < until {
            let now = Instant::from_nanos(100_000_000 + self.sent * 20_000).max(s.now);
            for _ in 0..50 {
                let packet = forged(&mut self.rng);
                s.stack.receive(now, &packet, meta);
                self.sent += 1;
            }
            while let Some(packet) = s.stack.poll_transmit(now) {
                assert!(packet.payload.is_empty());
                self.answered += 1;
            }
            s.now = now;
        }
    }
}

/// The existing connection goes on, 25 clients that arrive meanwhile are served, every SYN is answered, and
/// the state stays small.
#[test]
fn fifty_thousand_syns_a_second() {
    let mut delayed_ack = config().delayed_ack;
    delayed_ack.every = 1;
    let mut s = Script::accepted(Config {
        delayed_ack,
        ..config()
    });
    let (first, key) = (s.id(), s.key);
    let mut flood = Flood {
        rng: Rng::for_component(7, 7),
        sent: 0,
        answered: 0,
    };
    for n in 0..25u32 {
        let at = |ms: u32| Instant::from_millis(u64::from(120 + n * 35 + ms));
        flood.run(&mut s, at(0));
        let from = SocketAddr::from(([10, 0, 7, 2], 6000 + n as u16));
        let flow = s.flow(([10, 0, 9, 1], PORT).into(), from);
        send!(s, at(0), capable_syn().on(flow));
        recv!(s => at(0), s.capable(syn_ack().on(flow)));
        flood.run(&mut s, at(10));
        send!(s, at(10), s.third_ack().on(flow));
        recv!(s, at(10), ack(1, 1).on(flow).dss(dack(0)));
        assert_ne!(s.id(), first);
        assert_eq!(s.stack.is_mptcp(s.id()), Some(true));
        let sent = data(1, 1, "hello").on(flow).dss(dack(0).map(0, 1, 5));
        send!(s, at(10), sent);
        recv!(s, at(10), ack(1, 6).on(flow).dss(dack(5)));
        assert_eq!(s.read(), b"hello");

        let (conn, other) = (s.conn.replace(first), s.key);
        s.key = key;
        let sent = u64::from(n);
        send!(
            s,
            at(11),
            data(1 + sent, 1, "x").dss(dack(0).map(sent, 1 + n, 1))
        );
        recv!(s, at(11), ack(1, 2 + sent).dss(dack(1 + sent)));
        assert_eq!(s.read(), b"x");
        (s.conn, s.key) = (conn, other);
        assert!(
            s.stack.connections() <= 256 + 26,
            "{}",
            s.stack.connections()
        );
        assert_eq!(s.stack.buffered(), 0);
    }
    flood.run(&mut s, Instant::from_millis(1_095));
    assert!(flood.sent > 49_000, "{}", flood.sent);
    assert_eq!(flood.answered, flood.sent);
    assert_eq!(s.stack.stats().syns_dropped, 0);
}

/// The offer of the SYN is restored: window scale, SACK, segment size, timestamps.
#[test]
fn what_a_syn_offers_comes_back() {
    let mut s = stateless();
    s.peer(1);
    send!(s, 0, capable_syn().ts(0, 0));
    recv!(s => 0, s.capable(syn_ack().ws(Some(7)).ts(0, 0)));
    assert_eq!(s.stack.connections(), 0);
    send!(s, 30, s.third_ack().ts(30, 0));
    recv!(s, 30, ack(1, 1).ts(30, 30).dss(dack(0)));
    let subflow = s.stack.subflows(s.id())[0];
    // The timestamp gives the round trip.
    assert_eq!(subflow.srtt.as_millis(), 30);
    // 1460 bytes less timestamps and the mapping.
    assert_eq!(subflow.mss, 1460 - 12 - 20);
    // SACK and a window of 512 << 7 bytes.
    send!(
        s,
        40,
        data(2, 1, "b")
            .win(512)
            .ts(40, 30)
            .dss(dack(0).map(0, 1, 2))
    );
    recv!(s, 40, ack(1, 1).ts(40, 30).dss(dack(0)).sack(&[(2, 3)]));
    assert_eq!(s.stack.conn_stats(s.id()).unwrap().peer_window, 512 << 7);
}

/// A SYN without options, and one with a segment size between the encodable ones.
#[test]
fn regular_tcp_without_state() {
    let mut s = stateless();
    s.peer(1);
    send!(s, 0, syn().ws(None).no_sack().mss(1300));
    recv!(s, 0, syn_ack().ws(None).no_sack().raw(&[]));
    send!(s, 10, data(1, 1, "hello").win(5000));
    recv!(s, 10, ack(1, 6));
    let plain = |e: &Event| matches!(e, Event::FellBack { cause, .. } if *cause == FallbackCause::PeerSynPlain);
    assert!(s.saw(plain));
    assert_eq!(s.read(), b"hello");
    assert_eq!(s.stack.subflows(s.id())[0].mss, 1220);
}

/// The third ACK is lost: the first data brings the keys too. Earlier segments are dropped, not refused.
#[test]
fn a_lost_third_ack_without_state() {
    let mut s = stateless();
    s.peer(1);
    send!(s, 0, capable_syn());
    recv!(s => 0, s.capable(syn_ack()));
    send!(s, 10, data(6, 1, "later").dss(dack(0).map(5, 6, 5)));
    quiet!(s, 20);
    send!(s, 20, s.peer_keys(data(1, 1, "first").win(512), Some(5)));
    recv!(s, 20, ack(1, 6).dss(dack(5)));
    assert_eq!(s.read(), b"first");
}

/// Neither a guess nor an old cookie opens a connection.
#[test]
fn numbers_that_were_never_sent() {
    let mut s = stateless();
    s.peer(1);
    send!(s, 0, capable_syn());
    recv!(s => 0, s.capable(syn_ack()));
    send!(
        s,
        10,
        Seg {
            ack: Some(2),
            ..s.third_ack()
        }
    );
    send!(
        s,
        10,
        Seg {
            seq: 2,
            ..s.third_ack()
        }
    );
    quiet!(s, 128_000);
    send!(s, 128_000, s.third_ack());
    s.advance(s.now);
    let (_, answer) = s.take().expect("no answer after the flood");
    assert!(answer.flags.contains(Flags::RST));
    assert_eq!(s.stack.connections(), 0);
}

/// A cookie opens one connection: a repeat after that is forgotten is refused, as without cookies.
#[test]
fn a_third_ack_that_comes_again() {
    for (mptcp, opens) in [(true, capable_syn()), (false, syn())] {
        let mut s = stateless();
        s.peer(1);
        send!(s, 0, opens);
        s.skip(0);
        let first = match mptcp {
            true => s.peer_keys(data(1, 1, "hello").win(512), Some(5)),
            false => data(1, 1, "hello").win(512),
        };
        send!(s, 10, first.clone());
        s.skip(60);
        assert_eq!(s.read(), b"hello");
        s.abort();
        s.skip(60);
        send!(s, 70, rst(6));
        s.skip(100);
        assert_eq!(s.stack.connections(), 0);
        // In this period of the cookies, and in the next.
        for at in [200, 63_000, 64_500] {
            send!(s, at, first.clone());
            recv!(s, at, rst(1));
            assert_eq!(s.stack.connections(), 0);
        }
    }
}

/// Only a complete handshake creates a connection.
#[test]
fn half_a_handshake_leaves_nothing() {
    let mut s = stateless();
    s.peer(1);
    send!(s, 0, capable_syn());
    recv!(s => 0, s.capable(syn_ack()));
    let flags = |flags| Seg { flags, ..ack(1, 1) };
    send!(s, 10, data(1, 1, "early").dss(dack(0).map(0, 1, 5)));
    send!(s, 10, flags(Flags::SYN | Flags::ACK));
    send!(s, 10, flags(Flags::PSH));
    quiet!(s, 20);
    assert_eq!(s.stack.connections(), 0);
    send!(s, 20, s.third_ack());
    recv!(s, 20, ack(1, 1).dss(dack(0)));
}
