//! Streams of one connection, and connections of one stack, by urgency.

use braid_engine::cc::BBR;
use braid_engine::{Class, CloseReason, Config, Event, FallbackCause, Protocol, Urgency};
use braid_wire::tcp::Flags;

use crate::harness::{Script, config, mapped};
use crate::segment::{Rel, ack, dack, data, syn, syn_ack};

/// Urgent data written last goes first, ahead of all unsent data; its place in the stream is given when it
/// is sent.
#[test]
fn urgent_data_overtakes_what_was_not_sent() {
    let mut s = Script::accepted(config());
    s.queue(1, 5, "bulk");
    s.queue(2, 0, "now");
    s.queue(1, 5, "more");
    let stats = s.stack.conn_stats(s.id()).expect("an open connection");
    assert_eq!((stats.snd_nxt, stats.snd_end), (0, 11));
    assert_eq!(stats.unsent, [3, 0, 0, 0, 0, 8, 0, 0]);
    s.write("");
    let (_, segment) = s.take().expect("a segment");
    assert!(segment.flags.contains(Flags::PSH));
    let all = data(1, 1, "nowbulkmore").dss(dack(0).map(0, 1, 11));
    assert!(all.matches(&segment), "{segment:?}");
    let stats = s.stack.conn_stats(s.id()).expect("an open connection");
    assert_eq!(
        (stats.snd_nxt, stats.snd_end, stats.unsent),
        (11, 11, [0; 8])
    );
}

/// Data of the next urgencies fills the packet that urgent data leaves short, but no further packet: the strategy
/// decides where the rest goes.
#[test]
fn less_urgent_data_fills_the_last_packet() {
    let mut s = Script::accepted(Config {
        max_transmit: 65_535,
        ..config()
    });
    s.queue(1, 6, [6; 4000]);
    s.queue(2, 3, [3; 100]);
    s.queue(3, 0, [0; 1500]);
    s.write("");
    let (_, filled) = s.take().expect("a super-segment");
    let (_, rest) = s.take().expect("another one");
    assert_eq!(
        filled.gso.map(|mss| 2 * usize::from(mss)),
        Some(filled.payload.len())
    );
    let sent = [filled.payload, rest.payload].concat();
    assert!(sent == [&[0; 1500][..], &[3; 100], &[6; 4000]].concat());
    assert!(s.take().is_none());
}

/// A filled packet does not exceed the peer's window, and urgent data does not wait for a full packet.
#[test]
fn what_fills_a_packet_fits_into_the_window() {
    let mut s = Script::server(config());
    s.peer(1);
    send!(s, 0, syn().raw(&[30, 4, 1, 1]));
    recv!(s => 0, s.capable(syn_ack()));
    send!(s, 10, s.third_ack().win(1));
    recv!(s, 10, ack(1, 1).dss(dack(0)));
    s.queue(1, 6, [6; 4000]);
    s.queue(2, 0, [0; 100]);
    s.write("");
    let all = [[0; 100].as_slice(), &[6; 28]].concat();
    recv!(s, 10, data(1, 1, all).dss(dack(0).map(0, 1, 128)));
}

/// Writes without a class have the urgency of the connection.
#[test]
fn a_connection_has_an_urgency_of_its_own() {
    let mut s = Script::accepted(config());
    s.queue(1, 5, "bulk");
    let id = s.id();
    assert_eq!(
        s.stack.set_urgency(s.now, id, Urgency::LEAST_URGENT),
        Ok(())
    );
    s.write("later");
    recv!(s, 10, data(1, 1, "bulklater").dss(dack(0).map(0, 1, 9)));
}

/// Data whose deadline passes while it waits for a window is not sent, and the stream ends without it.
#[test]
fn a_late_write_is_left_out() {
    let mut s = Script::accepted(config());
    let (id, at) = (s.id(), braid_wire::Instant::from_millis);
    let frame = |s: &mut Script, deadline, bytes: &[u8]| {
        let class = Class {
            deadline: Some(at(deadline)),
            ..Class::default()
        };
        s.queue_class(class, bytes);
    };
    frame(&mut s, 5, b"late");
    frame(&mut s, 15, b"timely");
    s.shutdown();
    recv!(s, 10, data(1, 1, "timely").dss(dack(0).map(0, 1, 7).fin()));
    assert_eq!(s.stack.conn_stats(id).map(|c| c.dropped), Some(4));
}

/// Sent data keeps its place and is retransmitted there, whatever was written since.
#[test]
fn a_retransmission_is_not_overtaken() {
    let mut s = Script::accepted(config());
    s.queue(1, 5, "bulk");
    s.write("");
    recv!(s, 10, data(1, 1, "bulk").dss(dack(0).map(0, 1, 4)));
    s.queue(2, 0, "now");
    s.write("");
    recv!(s, 10, data(5, 1, "now").dss(dack(0).map(4, 5, 3)));
    send!(s, 20, ack(1, 1).sack(&[(5, 8)]).dss(dack(0)));
    s.queue(2, 0, "later");
    s.advance(braid_wire::Instant::from_millis(60));
    let (_, repeated) = s.take().expect("a retransmission");
    assert!(
        data(1, 1, "bulk")
            .dss(dack(0).map(0, 1, 4))
            .matches(&repeated),
        "{repeated:?}"
    );
}

/// The stream ends after all waiting data, however little urgent it is.
#[test]
fn data_fin_goes_with_the_last_of_all_classes() {
    let mut s = Script::accepted(config());
    s.queue(1, 7, "background");
    s.queue(2, 3, "page");
    s.queue(3, 0, "voice");
    s.shutdown();
    let all = data(1, 1, "voicepagebackground");
    recv!(s, 10, all.dss(dack(0).map(0, 1, 20).fin()));
    send!(s, 20, ack(1, 20).dss(dack(20)));
    quiet!(s, 1000);
    assert_eq!(s.stack.buffered(), 0);
}

/// With the window shut, waiting data of several classes is freed with the connection.
#[test]
fn unsent_data_of_all_classes_is_freed() {
    let mut s = Script::accepted(config());
    send!(s, 20, ack(1, 1).win(0).dss(dack(0)));
    for level in 0..8 {
        s.queue(1, 7 - level, [level; 1000]);
    }
    s.shutdown();
    assert!(s.stack.buffered() > 0);
    s.abort();
    let report = s.report.clone().expect("a report of the end");
    assert_eq!(
        report.unsent.iter().sum::<u64>(),
        report.snd_end - report.snd_nxt
    );
    assert!(s.saw(|e| matches!(
        e,
        Event::Closed {
            reason: CloseReason::Aborted,
            ..
        }
    )));
    assert_eq!(s.stack.buffered(), 0);
}

/// Regular TCP has one sequence: bytes get their place in it when they are sent.
#[test]
fn regular_tcp_sends_by_urgency_too() {
    let mut s = Script::tcp(config(), syn(), ack(1, 1).win(512));
    s.queue(1, 4, "bulk");
    s.queue(2, 1, "now");
    s.shutdown();
    recv!(s, 10, data(1, 1, "nowbulk"));
    recv!(s, 10, crate::segment::fin(8, 1));
}

/// The first mapping repeats the keys and stays alone; data written meanwhile is sorted.
#[test]
fn a_fallback_keeps_what_waits_in_order() {
    let mut s = Script::client(config(), 1, Protocol::Mptcp);
    recv!(s, 0, syn().ws(None).raw(&[30, 4, 1, 1]));
    send!(s, 10, s.peer_capable(syn_ack()).win(65_535));
    recv!(s => 10, s.stack_keys(ack(1, 1)));
    s.queue(1, 4, "hello");
    s.write("");
    recv!(s => 10, s.stack_keys_data(data(1, 1, "hello"), 5));
    s.queue(1, 4, "bulk");
    s.queue(2, 1, "now");
    s.write("");
    quiet!(s, 15);
    let infinite = |data| Rel::default().map(data, data as u32 + 1, 0);
    send!(s, 20, ack(1, 6));
    assert!(s.saw(|e| matches!(
        e,
        Event::FellBack {
            cause: FallbackCause::DataPlain,
            ..
        }
    )));
    recv!(s, 20, data(6, 1, "nowbulk").dss(infinite(5)));
}

/// A few bytes of each urgency occupy a block each, without reducing the room to write.
#[test]
fn blocks_in_part_filled_do_not_count_as_room() {
    let mut s = Script::accepted(Config {
        send_buffer: 64 << 10,
        ..config()
    });
    send!(s, 20, ack(1, 1).win(0).dss(dack(0)));
    for level in 0..8 {
        s.queue(level.into(), level, "few");
    }
    assert_eq!(s.stack.buffered(), 8 * braid_engine::buffer::BLOCK_SIZE);
    assert_eq!(s.stack.send_space(s.id()), (64 << 10) - 24);
}

/// Two connections to the stack's address, in the order in which they were opened.
fn two(config: Config) -> (Script, [braid_engine::ConnId; 2]) {
    let mut s = Script::server(config);
    let conns = [0, 1].map(|flow| {
        s.peer(flow as u8);
        send!(s, 0, syn().on(flow));
        s.skip(0);
        send!(s, 0, ack(1, 1).on(flow).win(512));
        s.skip(0);
        s.id()
    });
    (s, conns)
}

/// The connection with the most urgent data sends first.
#[test]
fn connections_are_served_by_urgency() {
    let (mut s, conns) = two(config());
    s.conn = Some(conns[0]);
    s.queue(1, 3, [1; 3000]);
    s.conn = Some(conns[1]);
    s.queue(1, 2, [2; 3000]);
    s.write("");
    let sent: Vec<usize> = std::iter::from_fn(|| s.take())
        .map(|(_, seg)| seg.flow)
        .collect();
    assert_eq!(sent, [1, 1, 1, 0, 0, 0]);
}

/// An acknowledgement does not wait for data of another connection.
#[test]
fn an_acknowledgement_goes_before_data() {
    let (mut s, conns) = two(config());
    s.conn = Some(conns[0]);
    s.queue(1, 0, [1; 3000]);
    // Out of order, so that it is acknowledged at once.
    send!(s, 0, data(100, 1, "late").on(1));
    let sent: Vec<usize> = std::iter::from_fn(|| s.take())
        .map(|(_, seg)| seg.flow)
        .collect();
    assert_eq!(sent, [1, 0, 0, 0]);
}

/// Received data is acknowledged with waiting data, if there is any.
#[test]
fn data_in_both_directions() {
    let mut s = Script::accepted(config());
    s.queue(1, 6, "bulk");
    send!(s, 20, mapped(0, 0, "ask"));
    recv!(s, 20, data(1, 4, "bulk").dss(dack(3).map(0, 1, 4)));
    quiet!(s, 25);
}

/// Data that may be overtaken does not block urgent data; a writer is told of the room of its own class.
#[test]
fn urgent_data_finds_room_beside_bulk() {
    let mut s = Script::accepted(Config {
        send_buffer: 1 << 20,
        ..config()
    });
    send!(s, 20, ack(1, 1).win(0).dss(dack(0)));
    let (id, space) = (s.id(), s.stack.send_space(s.id()));
    let fill = |s: &mut Script, stream, level| {
        // More than one call takes.
        for _ in 0..2 {
            s.queue(stream, level, vec![level; space / 2]);
        }
    };
    fill(&mut s, 1, 6);
    assert_eq!(s.stack.send_space(id), space, "of the default class");
    fill(&mut s, 2, 3);
    assert_eq!(s.stack.send_space(id), 0);
    fill(&mut s, 3, 0);
    assert_eq!(s.stack.write(s.now, id, b"more"), Ok(0));
    let writable = |s: &Script| s.saw(|e| matches!(e, Event::Writable { .. }));
    // The urgent bytes go first, and make no room for others.
    send!(s, 30, ack(1, 1).win(9).dss(dack(0)));
    let before = s.stack.conn_stats(id).expect("an open connection");
    assert!(before.snd_nxt > 0 && !writable(&s));
    let unsent = before.unsent;
    assert_eq!(
        unsent,
        [
            space as u64 - before.snd_nxt,
            0,
            0,
            space as u64,
            0,
            0,
            space as u64,
            0
        ]
    );
}

/// A connection may have its own congestion control, whatever its urgency.
#[test]
fn a_connection_has_a_congestion_control_of_its_own() {
    let mut s = Script::accepted(config());
    let id = s.id();
    send!(s, 10, ack(1, 1).win(512).dss(dack(0)));
    s.write([1; 60_000]);
    let grown = |s: &mut Script, at| {
        let mut end = 1;
        s.advance(at);
        while let Some((_, seg)) = s.take() {
            end = seg.seq + seg.payload.len() as u64;
        }
        send!(s, at, ack(1, end).win(512).dss(dack(end - 1)));
        s.stack.subflows(id)[0].cwnd
    };
    let at = braid_wire::Instant::from_millis;
    let initial = s.stack.subflows(id)[0].cwnd;
    let told = |s: &Script| s.stack.conn_stats(id).map(|c| c.congestion);
    assert!(grown(&mut s, at(30)) > initial);
    assert_eq!(told(&s), Some("cubic"));
    assert_eq!(s.stack.set_congestion(s.now, id, BBR), Ok(()));
    assert_eq!(told(&s), Some("bbr"));
    assert_eq!(s.stack.subflows(id)[0].cwnd, initial);
    let cwnd = grown(&mut s, at(60));
    assert!(cwnd > initial);
    // Another controller would begin anew.
    assert_eq!(
        s.stack.set_urgency(s.now, id, Urgency::LEAST_URGENT),
        Ok(())
    );
    assert_eq!(s.stack.subflows(id)[0].cwnd, cwnd);
}
