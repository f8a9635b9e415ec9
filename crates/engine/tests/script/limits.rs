//! The bounds of [`braid_engine::Config`].

use core::net::SocketAddr;

use braid_engine::{
    ApiError, CloseReason, Config, ConnId, ConnectOptions, Event, PathConfig, Protocol,
};

use crate::harness::{PORT, Script, config};
use crate::segment::{Seg, ack, dack, data, hex, rst, syn, syn_ack};
use crate::strategy::strategy;

fn capable_syn(flow: usize) -> Seg {
    syn().on(flow).raw(&hex("1e 04 01 01"))
}

/// Past the bound a SYN is answered without keeping state.
#[test]
fn half_open_connections() {
    let mut s = Script::server(Config {
        max_half_open: 2,
        ..config()
    });
    for n in 0..3 {
        s.peer(n);
        send!(s, 0, capable_syn(n.into()));
        recv!(s => 0, s.capable(syn_ack().on(n.into())));
        assert_eq!(s.stack.connections(), usize::from(n + 1).min(2));
    }
    let stats = s.stack.stats();
    assert_eq!((stats.syns_dropped, stats.syn_cookies), (0, 1));
    // A handshake that completes, or ends, makes room.
    send!(s, 10, rst(1).on(0));
    s.peer(3);
    send!(s, 20, capable_syn(3));
    recv!(s => 20, s.capable(syn_ack().on(3)));
    assert_eq!(s.stack.connections(), 2);
}

#[test]
fn connections() {
    let mut s = Script::server(Config {
        max_connections: 1,
        ..config()
    });
    s.peer(1);
    send!(s, 0, capable_syn(0));
    recv!(s => 0, s.capable(syn_ack()));
    send!(s, 10, s.third_ack());
    recv!(s, 10, ack(1, 1).dss(dack(0)));
    s.peer(2);
    send!(s, 20, capable_syn(1));
    quiet!(s, 30);
    let options = ConnectOptions {
        protocol: Protocol::Tcp,
        ..ConnectOptions::new(SocketAddr::from(([10, 0, 1, 2], PORT)), strategy())
    };
    let refused = s.stack.connect(s.now, options);
    assert_eq!(refused, Err(ApiError::LimitReached));
}

/// A flood of segments of no connection is answered within a bound.
#[test]
fn answers_to_out_of_the_blue_segments() {
    let mut s = Script::server(config());
    for n in 0..200u16 {
        let peer = SocketAddr::from(([10, 0, 1, 2], 6000 + n));
        let flow = s.flow(([10, 0, 9, 1], 99).into(), peer);
        let packet = s.packet(&syn().on(flow));
        s.stack.receive(s.now, &packet, Default::default());
    }
    let mut answers = 0;
    while s.stack.poll_transmit(s.now).is_some() {
        answers += 1;
    }
    assert_eq!(answers, 64);
    assert_eq!(s.stack.stats().out_of_the_blue, 200);
}

/// Segments for other hosts are not answered in their name.
#[test]
fn out_of_the_blue_segments_for_other_addresses() {
    let mut s = Script::server(config());
    let peer = SocketAddr::from(([10, 0, 1, 2], 6000));
    let flow = s.flow(([10, 0, 9, 7], 99).into(), peer);
    send!(s, 0, syn().on(flow));
    send!(s, 0, ack(1, 1).on(flow));
    quiet!(s, 1000);
    assert_eq!(s.stack.stats().out_of_the_blue, 2);
}

/// A link with an MTU below the minimum is treated as if it had the minimum.
#[test]
fn a_tiny_mtu() {
    for mtu in [0, 40, 575] {
        let path = PathConfig {
            mtu,
            ..PathConfig::v4([10, 0, 0, 2].into())
        };
        let mut s = Script::new(config(), &[path]);
        s.connect((([10, 0, 9, 1]), PORT).into(), Protocol::Tcp);
        let (_, seg) = s.take().unwrap();
        assert_eq!(seg.mss, Some(536));
    }
}

pub const BLOCK: usize = 32 << 10;

/// Regular TCP connections of many peers to a stack with little memory.
pub fn share_memory(n: usize, memory: usize) -> (Script, Vec<ConnId>) {
    let mut s = Script::server(Config { memory, ..config() });
    let mut conns = Vec::new();
    for flow in 0..n {
        s.peer(flow as u8);
        send!(s, 0, syn().on(flow));
        s.advance(s.now);
        s.take();
        send!(s, 0, ack(1, 1).on(flow).win(512));
        s.advance(s.now);
        s.take();
        conns.push(s.id());
    }
    (s, conns)
}

/// Sends as much as the window allows on `flow`, from `sent` on; returns the offset reached.
fn push(s: &mut Script, flow: usize, at: i32, sent: u64, bytes: usize) -> u64 {
    let mut acked = sent;
    for chunk in 0..bytes.div_ceil(1024) {
        let seq = sent + (chunk * 1024) as u64 + 1;
        send!(s, at, data(seq, 1, [7; 1024]).on(flow));
        while let Some((_, seg)) = s.take() {
            if seg.flow == flow {
                acked = acked.max(seg.ack.unwrap() - 1);
            }
        }
    }
    s.advance(braid_wire::Instant::from_millis(at as u64 + 45));
    while let Some((_, seg)) = s.take() {
        if seg.flow == flow {
            acked = acked.max(seg.ack.unwrap() - 1);
        }
    }
    acked
}

/// Stalled readers keep their data and use the memory up to its reserve; a reader that reads still gets all
/// of its data.
#[test]
fn stalled_readers_do_not_stop_the_others() {
    let memory = 64 * BLOCK;
    let (mut s, conns) = share_memory(22, memory);
    for flow in 0..20 {
        push(&mut s, flow, 100 * (flow as i32 + 1), 0, 128 << 10);
        assert!(s.stack.buffered() <= memory);
    }
    for (flow, conn) in conns.iter().enumerate().skip(20) {
        s.conn = Some(*conn);
        let mut sent = 0;
        for round in 0..20 {
            let at = 5000 + 3000 * (flow as i32 - 20) + round * 100;
            sent = push(&mut s, flow, at, sent, 16 << 10);
            s.read();
            while s.take().is_some() {}
        }
        assert!(sent >= 100 << 10, "flow {flow} got {sent} bytes through");
    }
}

/// With many holes the bookkeeping is bounded, and the stream is whole in the end.
#[test]
fn many_holes() {
    let mut s = Script::tcp(config(), syn(), ack(1, 1).win(512));
    let holes = 5000;
    for n in 0..holes {
        send!(s, 20, data(2 * n + 2, 1, [1]));
        while s.take().is_some() {}
    }
    assert!(s.stack.buffered() <= 2 * BLOCK);
    let all = vec![2; 2 * holes as usize];
    for (n, chunk) in all.chunks(1000).enumerate() {
        send!(s, 30, data(1000 * n as u64 + 1, 1, chunk));
        while s.take().is_some() {}
    }
    let read = s.read();
    assert_eq!(read.len(), 2 * holes as usize);
    assert_eq!((read[0], read[1], read[2]), (2, 1, 2));
}

/// A writer that finds no memory is told when there is some.
#[test]
fn a_writer_without_memory_is_woken() {
    let (mut s, conns) = share_memory(5, 8 * BLOCK);
    let (last, greedy) = conns.split_last().unwrap();
    for conn in greedy {
        s.stack.write(s.now, *conn, &[0; 8 * BLOCK]).unwrap();
    }
    let written = s.stack.buffered();
    assert!(written > 0 && written < 8 * BLOCK, "{written}");
    assert_eq!(s.stack.write(s.now, *last, b"x"), Ok(0));
    s.advance(s.now);
    s.conn = Some(conns[0]);
    s.abort();
    while s.take().is_some() {}
    assert!(s.saw(|e| matches!(e, Event::Writable { conn } if conn == last)));
    assert_eq!(s.stack.write(s.now, *last, b"x"), Ok(1));
}

/// Peers that read nothing free no memory of the data written to them. Later connections still have a share
/// to write with, again and again, and in the end all memory is freed.
#[test]
fn peers_that_read_nothing_leave_the_others_their_share() {
    let (mut s, conns) = share_memory(31, 256 * BLOCK);
    let (last, greedy) = conns.split_last().unwrap();
    for conn in greedy {
        while s.stack.write(s.now, *conn, &[0; 100_000]).unwrap() > 0 {}
    }
    let stuck = s.stack.buffered();
    let flow = greedy.len();
    let mut end = 1;
    for round in 0..10 {
        let n = s.stack.write(s.now, *last, &[1; 200_000]).unwrap();
        assert_eq!(n, 4 * BLOCK, "round {round}");
        let written = end + n as u64;
        while end < written {
            s.advance(s.now + core::time::Duration::from_millis(1));
            let sent = core::iter::from_fn(|| s.take()).filter(|(_, seg)| seg.flow == flow);
            let ends = sent.map(|(_, seg)| seg.seq + seg.payload.len() as u64);
            end = ends.max().unwrap_or(end).max(end);
            send!(s, s.now, ack(1, end).on(flow).win(512));
        }
        assert_eq!(s.stack.buffered(), stuck);
    }
    for conn in &conns {
        s.stack.abort(s.now, *conn);
    }
    assert_eq!(s.stack.buffered(), 0);
}

/// Peers that read nothing are as many as could hold all memory by their shares. If they belong to one
/// group, the others still get their shares, and waiters within the group are woken when it holds less.
#[test]
fn a_group_leaves_the_others_their_part() {
    let (mut s, conns) = share_memory(66, 256 * BLOCK);
    let (others, greedy) = conns.split_at(2);
    for conn in greedy {
        s.stack.set_group(s.now, *conn, 7).unwrap();
        s.stack.write(s.now, *conn, &[0; 4 * BLOCK]).unwrap();
    }
    // 7/8 beside the reserve, three quarters of that, and the excess of one call.
    let stuck = s.stack.buffered() / BLOCK;
    assert!((168..=172).contains(&stuck), "{stuck} blocks");
    for conn in others {
        s.stack.set_group(s.now, *conn, 8).unwrap();
        assert_eq!(s.stack.write(s.now, *conn, &[1; 4 * BLOCK]), Ok(4 * BLOCK));
    }
    let waiting = greedy[greedy.len() - 1];
    assert_eq!(s.stack.write(s.now, waiting, b"x"), Ok(0));
    s.advance(s.now);
    assert!(!s.saw(|e| matches!(e, Event::Writable { .. })));
    for conn in &greedy[..8] {
        s.conn = Some(*conn);
        s.abort();
    }
    while s.take().is_some() {}
    assert!(s.saw(|e| matches!(e, Event::Writable { conn } if *conn == waiting)));
    assert_eq!(s.stack.write(s.now, waiting, b"x"), Ok(1));
    for conn in &conns {
        s.stack.abort(s.now, *conn);
    }
    assert_eq!(s.stack.buffered(), 0);
}

/// The same holds for readers and their received data, in order or behind a hole.
#[test]
fn a_group_that_reads_nothing_leaves_the_others_their_part() {
    for first in [0, 1] {
        let (mut s, conns) = share_memory(40, 64 * BLOCK);
        for (flow, conn) in conns.iter().enumerate().take(38) {
            s.stack.set_group(s.now, *conn, 7).unwrap();
            let at = 100 * (flow as i32 + 1);
            s.skip(at);
            push(&mut s, flow, at, first, 60 << 10);
        }
        let stuck = s.stack.buffered() / BLOCK;
        assert!((42..=50).contains(&stuck), "{stuck} blocks");
        for (n, conn) in conns.iter().enumerate().skip(38) {
            s.conn = Some(*conn);
            s.stack.set_group(s.now, *conn, 8).unwrap();
            let at = 8_000 + 100 * n as i32;
            s.skip(at);
            let acked = push(&mut s, n, at, 0, 60 << 10);
            assert_eq!(acked, 60 << 10, "flow {n}");
        }
        while s.take().is_some() {}
    }
}

/// Memory is full of data behind holes: data that fills a hole is accepted nevertheless.
#[test]
fn holes_are_filled_from_the_reserve() {
    let (mut s, conns) = share_memory(8, 8 * BLOCK);
    for flow in 0..conns.len() {
        for n in 1..40 {
            send!(s, 20, data(1000 * n + 1, 1, [7; 1000]).on(flow));
            while s.take().is_some() {}
        }
    }
    assert_eq!(s.stack.buffered(), 7 * BLOCK);
    send!(s, 30, data(1, 1, [7; 1000]).on(0));
    assert!(s.stack.readable(conns[0]) > BLOCK);
}

/// Unsent data is bounded by the windows, which count up to 1 MiB.
#[test]
fn what_waits_is_bounded_however_large_the_windows() {
    let room = |segments| {
        let s = Script::accepted(Config {
            initial_window: segments,
            ..config()
        });
        (s.stack.send_space(s.id()), s.stack.subflows(s.id())[0].cwnd)
    };
    let (space, cwnd) = room(10);
    assert_eq!(space as u64, cwnd + (256 << 10));
    let (space, cwnd) = room(4000);
    assert!(cwnd > 2 << 20);
    assert_eq!(space, (1 << 20) + (256 << 10));
}

/// If a window is larger than the bound on unsent data, there is room again once some of it has been sent,
/// not only once it is acknowledged.
#[test]
fn a_large_window_is_filled_before_its_first_acknowledgement() {
    let mut s = Script::accepted(Config {
        initial_window: 4000,
        ..config()
    });
    send!(s, 20, ack(1, 1).win(65_535).dss(dack(0)));
    let fill = |s: &mut Script| -> usize {
        let (now, id, bytes) = (s.now, s.id(), [0; 64 << 10]);
        let write = || s.stack.write(now, id, &bytes).unwrap();
        let written = std::iter::repeat_with(write).take_while(|n| *n > 0).sum();
        // The data that can leave does.
        s.read();
        written
    };
    let writable = |e: &Event| matches!(e, Event::Writable { .. });
    let (mut written, mut told) = (fill(&mut s), 0);
    for at in 21..40 {
        s.skip(at);
        if s.count(writable) > told {
            told = s.count(writable);
            written += fill(&mut s);
        }
    }
    assert!(written > 3 << 20, "{written} bytes in a window");
}

/// Unknown ids are errors, not panics.
#[test]
fn ids_of_connections_that_are_gone() {
    let mut s = Script::tcp(config(), syn(), ack(1, 1).win(512));
    let id = s.id();
    send!(s, 20, rst(1));
    assert!(s.saw(|e| matches!(
        e,
        Event::Closed {
            reason: CloseReason::Reset,
            ..
        }
    )));
    let gone = Err(ApiError::UnknownConnection);
    assert_eq!(s.stack.write(s.now, id, b"x"), gone);
    assert_eq!(
        s.stack.shutdown(s.now, id),
        Err(ApiError::UnknownConnection)
    );
    s.stack.abort(s.now, id);
    assert_eq!((s.stack.readable(id), s.stack.send_space(id)), (0, 0));
    assert!(s.stack.subflows(id).is_empty() && !s.stack.read_finished(id));
}
