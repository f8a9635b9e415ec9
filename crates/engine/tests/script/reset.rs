//! RST and SYN where they do not belong (RFC 9293 section 3.10.7, RFC 5961).

use braid_engine::{CloseReason, Event, Protocol};

use crate::harness::{Script, config};
use crate::join;
use crate::segment::{Seg, ack, dack, data, fin, hex, rst, rst_ack, syn, syn_ack};

/// RFC 9293 section 3.10.7.3: an ACK of something never sent, as from a forgotten connection of the same
/// ports, is reset, and the next SYN gets through.
// Conforms: 9293-3.10.7.3-1
#[test]
fn an_unacceptable_ack_in_syn_sent_is_reset() {
    let mut s = Script::client(config(), 1, Protocol::Mptcp);
    recv!(s, 0, syn().ws(None).raw(&hex("1e 04 01 01")));
    send!(s, 10, ack(77, 5000));
    recv!(s, 10, rst(5000));
    send!(s, 20, rst(1));
    send!(
        s,
        30,
        Seg {
            ack: Some(9),
            ..rst(1)
        }
    );
    quiet!(s, 999);
    assert!(s.events.is_empty(), "{:?}", s.events);
    recv!(s, 1000, syn().ws(None).raw(&hex("1e 04 01 01")));
}

/// RFC 9293 section 3.10.7.4: such an ACK is reset in SYN-RECEIVED as well.
// Conforms: 9293-3.10.7.4-3
#[test]
fn an_unacceptable_ack_in_syn_received_is_reset() {
    let mut s = Script::server(config());
    s.peer(1);
    send!(s, 0, syn().raw(&hex("1e 04 01 01")));
    recv!(s => 0, s.capable(syn_ack()));
    send!(s, 10, ack(1, 5000));
    recv!(s, 10, rst(5000));
    send!(s, 20, s.third_ack());
    recv!(s, 20, ack(1, 1).dss(dack(0)));
}

// Conforms: 9293-3.10.7.3-2
#[test]
fn a_refused_syn() {
    let mut s = Script::client(config(), 1, Protocol::Mptcp);
    recv!(s, 0, syn().ws(None).raw(&hex("1e 04 01 01")));
    send!(s, 10, rst_ack(0, 1));
    assert!(s.saw(|e| matches!(
        e,
        Event::Closed {
            reason: CloseReason::Refused,
            ..
        }
    )));
    assert_eq!(s.stack.connections(), 0);
    quiet!(s, 2000);
}

/// Without a listener segments are reset (RFC 9293 section 3.10.7.1).
// Conforms: 9293-3.10.7.1-1, 9293-3.10.7.1-2
#[test]
fn segments_of_no_connection_are_reset() {
    let mut s = Script::server(config());
    let stack = core::net::SocketAddr::from(([10, 0, 9, 1], 99));
    s.flow(stack, ([10, 0, 1, 2], 5000).into());
    send!(s, 0, syn());
    recv!(s, 0, rst_ack(0, 1));
    send!(s, 1, data(7, 9, "what?"));
    recv!(s, 1, rst(9));
    send!(s, 2, rst(7));
    quiet!(s, 100);
}

// --- established

fn closed(s: &Script) -> Option<CloseReason> {
    s.events.iter().find_map(|e| match e {
        Event::Closed { reason, .. } => Some(*reason),
        _ => None,
    })
}

fn plain() -> Script {
    Script::tcp(config(), syn(), ack(1, 1).win(512))
}

/// RFC 5961 section 3.2: only an exact hit resets; a RST inside the window is challenged, and one outside
/// is ignored.
// Conforms: 5961-3.2-2, 5961-3.2-3
#[test]
fn rst_in_and_out_of_the_window() {
    let mut s = plain();
    send!(s, 20, rst(2));
    recv!(s, 20, ack(1, 1));
    send!(s, 30, rst(0));
    send!(s, 31, rst(1 << 24));
    quiet!(s, 100);
    assert_eq!(closed(&s), None);
    send!(s, 110, rst(1));
    assert_eq!(closed(&s), Some(CloseReason::Reset));
    assert_eq!(s.stack.connections(), 0);
}

/// All subflows share one window: a RST behind a hole is challenged if it lies in the window told on its
/// own subflow, though another one has used that up.
// Conforms: 5961-3.2-3
#[test]
fn a_rst_in_a_window_that_another_subflow_used_up() {
    let mut s = Script::accepted(config());
    join::complete(&mut s, 20);
    // 512 kB.
    let window = 1024 * 512;
    for n in 0..512 {
        let map = dack(0).map(1024 * n, 1024 * n as u32 + 1, 1024);
        let seg = data(1024 * n + 1, 1, [7; 1024]).on(1).dss(map);
        send!(s, 30, seg);
        s.skip(30);
    }
    assert_eq!(s.stack.readable(s.id()) as u64, window);
    send!(s, 100, rst(window + 1));
    quiet!(s, 1000);
    send!(s, 1000, rst(window));
    recv!(s, 1000, ack(1, 1).win(0).dss(dack(window)));
}

/// Data that was received and never read is lost with the connection, and so is the end behind it.
#[test]
fn a_stream_cut_off_before_it_was_read_is_not_finished() {
    let mut s = plain();
    send!(s, 20, data(1, 1, "unread"));
    recv!(s, 20, ack(1, 7));
    send!(s, 30, fin(7, 1));
    recv!(s, 30, ack(1, 8));
    assert!(!s.stack.read_finished(s.id()));
    let id = s.id();
    s.stack.abort(s.now, id);
    assert!(!s.stack.read_finished(id));
}

/// RFC 5961 section 4.2: a SYN is answered by a challenge, whatever its number.
// Conforms: 5961-4.2-1
#[test]
fn syn_in_established() {
    let mut s = plain();
    for (at, seq) in [(20, 0), (520, 1), (1020, 70_000)] {
        send!(s, at, Seg { seq, ..syn() });
        recv!(s, at, ack(1, 1));
    }
    send!(s, 1520, syn_ack());
    recv!(s, 1520, ack(1, 1));
    assert_eq!(closed(&s), None);
    // The peer did forget: its answer to the challenge is exact.
    send!(s, 1530, rst(1));
    assert_eq!(closed(&s), Some(CloseReason::Reset));
}

/// RFC 5961 section 7: two hosts that disagree on numbers do not answer each other's answers for ever.
// Conforms: 5961-7-1
#[test]
fn challenges_are_rare() {
    let mut s = plain();
    send!(s, 20, data(1, 1, "x"));
    recv!(s, 20, ack(1, 2));
    let wrong: [Seg; 4] = [ack(1, 1), ack(2, 9999), rst(3), syn()];
    for wrong in wrong {
        let at = braid_wire::Instant::from_millis(s.now.as_millis() + 1000);
        send!(s, at, wrong.clone());
        recv!(s, at, ack(1, 2));
        for _ in 0..10 {
            send!(s, at, wrong.clone());
        }
        quiet!(s, at);
    }
}

/// RFC 5961 section 5.2: an acknowledgement of unsent or long past data is a guess of an attacker; its data
/// is not accepted.
// Conforms: 5961-5.2-1
#[test]
fn data_with_an_unacceptable_ack() {
    let mut s = plain();
    send!(s, 20, data(1, 9999, "guess"));
    recv!(s, 20, ack(1, 1));
    s.write([0; 100]);
    recv!(s, 20, data(1, 1, [0; 100]));
    send!(s, 30, ack(1, 101).win(512));
    let past = 1u64.wrapping_sub(1 << 30);
    send!(s, 540, data(1, past, "guess"));
    recv!(s, 540, ack(101, 1));
    assert_eq!(s.read(), b"");
    // An old one within the offered window is late, not forged.
    send!(s, 550, data(1, 1, "late"));
    recv!(s, 550, ack(101, 5));
    assert_eq!(s.read(), b"late");
}

/// RFC 9293 section 3.10.7.4: a segment below the window is answered, each time if it carries something,
/// and changes nothing. This excludes an acknowledgement that was overtaken by data, as long as that data
/// is not acknowledged.
// Conforms: 9293-3.10.7.4-1
#[test]
fn a_segment_below_the_window() {
    let mut s = plain();
    s.write([0; 100]);
    recv!(s, 10, data(1, 1, [0; 100]));
    send!(s, 20, data(1, 1, "abcd"));
    recv!(s, 20, ack(101, 5));
    send!(s, 21, data(1, 101, "abc").win(512));
    recv!(s, 21, ack(101, 5).sack(&[(1, 4)]));
    send!(s, 22, data(1, 101, "abc").win(512));
    recv!(s, 22, ack(101, 5).sack(&[(1, 4)]));
    send!(s, 23, fin(2, 101).win(512));
    recv!(s, 23, ack(101, 5));
    send!(s, 24, ack(4, 101).win(512));
    recv!(s, 24, ack(101, 5));
    // Expect the retransmission, not the acknowledgement of the segments above.
    let (at, again) = loop {
        let next = s.stack.next_timeout().unwrap();
        s.advance(next);
        if let Some(sent) = s.take() {
            break sent;
        }
    };
    assert_eq!((again.seq, again.payload.len()), (1, 100));
    send!(s, at, ack(5, 101).win(512));
    quiet!(s, 5000);
}

/// A segment without ACK is ignored (RFC 9293 section 3.10.7.4).
// Conforms: 9293-3.10.7.4-2
#[test]
fn a_segment_without_ack() {
    let mut s = plain();
    let flags = braid_wire::tcp::Flags::EMPTY;
    send!(
        s,
        20,
        Seg {
            flags,
            ..data(1, 1, "x")
        }
    );
    quiet!(s, 100);
    assert_eq!(s.read(), b"");
}

/// A RST ends its subflow; without another the connection waits for a new one, which the peer that opened
/// it has to bring.
#[test]
fn rst_of_the_only_subflow() {
    let mut s = Script::accepted(config());
    send!(s, 20, rst_ack(1, 1));
    assert_eq!(closed(&s), None);
    assert_eq!(s.stack.subflows(s.id()).len(), 0);
    while s.stack.connections() > 0 {
        let next = s.stack.next_timeout().expect("it waits for ever");
        s.advance(next);
    }
    assert_eq!(closed(&s), Some(CloseReason::TimedOut));
    assert!(s.now.as_millis() < 60_000);
}

/// Before the first DATA_ACK there is nothing to join again: the peer is gone.
#[test]
fn rst_before_the_first_data_ack() {
    let mut s = Script::client(config(), 2, Protocol::Mptcp);
    recv!(s, 0, syn().ws(None).raw(&hex("1e 04 01 01")));
    send!(s, 10, s.peer_capable(syn_ack()).win(65_535));
    recv!(s => 10, s.stack_keys(ack(1, 1)));
    send!(s, 19, rst(1));
    assert_eq!(closed(&s), Some(CloseReason::Reset));
    assert_eq!(s.stack.connections(), 0);
}

// --- what the network says (RFC 1122 section 4.2.3.9, RFC 5927)

#[test]
fn an_unreachable_peer() {
    for (kind, code) in [(3, 0), (3, 1), (3, 3), (3, 13)] {
        let mut s = Script::client(config(), 1, Protocol::Mptcp);
        recv!(s, 0, syn().ws(None).raw(&hex("1e 04 01 01")));
        // A report about another segment is not believed.
        let other = s.icmp(0, (kind, code, 0), 5);
        s.inject(5, &other);
        assert_eq!(closed(&s), None);
        let icmp = s.icmp(0, (kind, code, 0), 0);
        s.inject(10, &icmp);
        s.advance(braid_wire::Instant::from_millis(11));
        assert_eq!(closed(&s), Some(CloseReason::Unreachable), "{code}");
        assert_eq!(s.stack.connections(), 0);
    }
}

/// With another path the next SYN leaves there at once.
#[test]
fn an_unreachable_peer_is_tried_on_the_next_path() {
    let mut s = Script::client(config(), 2, Protocol::Mptcp);
    recv!(s, 0, syn().ws(None).raw(&hex("1e 04 01 01")));
    let icmp = s.icmp(0, (3, 1, 0), 0);
    s.inject(10, &icmp);
    recv!(s, 10, syn().on(1).ws(None).raw(&hex("1e 04 01 01")));
    assert_eq!(closed(&s), None);
}

/// On an established connection it is only a hint (RFC 5927 section 5.2).
// Conforms: 9293-3.9.2.2-1
#[test]
fn unreachable_ends_no_connection() {
    let mut s = plain();
    s.write("x");
    recv!(s, 10, data(1, 1, "x"));
    let icmp = s.icmp(0, (3, 3, 0), 1);
    s.inject(12, &icmp);
    send!(s, 20, ack(1, 2));
    quiet!(s, 1000);
    assert_eq!(closed(&s), None);
}

/// A wrong checksum anywhere is counted, and nothing else.
// Conforms: 9293-3.1-1
#[test]
fn corrupted_packets() {
    let mut s = plain();
    let mut packet = s.packet(&data(1, 1, "hello"));
    *packet.last_mut().unwrap() ^= 1;
    s.inject(20, &packet);
    assert_eq!(s.stack.stats().bad_checksum, 1);
    let mut packet = s.packet(&data(1, 1, "hello"));
    packet[10] ^= 1;
    s.inject(20, &packet);
    packet.truncate(10);
    s.inject(20, &packet);
    s.inject(20, &[]);
    assert_eq!(s.stack.stats().malformed, 3);
    quiet!(s, 100);
    assert_eq!(s.read(), b"");
}

/// RFC 5961 section 3.2: a RST beyond the announced window is dropped, however large the buffer may become.
// Conforms: 5961-3.2-1
#[test]
fn rst_beyond_the_window() {
    let mut s = plain();
    send!(s, 20, data(1, 1, "x"));
    s.advance(braid_wire::Instant::from_millis(20));
    let (_, told) = s.take().expect("an acknowledgement");
    let window = u64::from(told.win.expect("a window")) << 7;
    assert!(window < 4 << 20, "{window}");
    send!(s, 30, rst(2 + window));
    quiet!(s, 600);
    send!(s, 600, rst(2 + window - 1));
    recv!(s, 600, ack(1, 2));
}
