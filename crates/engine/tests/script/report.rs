//! The stack's reports: packets, counters, snapshots, the final report.

use braid_engine::stats::{LossRecovery, Traffic};
use braid_engine::strategy::FlowSize;
use braid_engine::{ApiError, ConnectOptions, Event, PathId, Protocol, SegmentKind, SubflowId};
use braid_wire::Instant;

use crate::harness::{PORT, Script, config, token_idsn};
use crate::join::joined;
use crate::segment::{ack, dack, data, rst_ack};
use crate::strategy::strategy;

/// Returns subflow, kind and range of every packet sent so far.
fn told(s: &Script) -> Vec<(u32, SegmentKind, core::ops::Range<u64>)> {
    let told = s.infos.iter().flatten();
    told.map(|i| (i.subflow.0, i.kind, i.data.clone()))
        .collect()
}

#[test]
fn every_packet_says_what_it_is() {
    use SegmentKind::{Control, Copy, JoinSyn, New, Retransmission};
    let mut s = joined();
    s.write("fast");
    recv!(s, 24, data(1, 1, "fast").on(1).dss(dack(0).map(0, 1, 4)));
    // The probe, the timeout, and the same data elsewhere.
    recv!(s, 88, data(1, 1, "fast").on(1).dss(dack(0).map(0, 1, 4)));
    recv!(s, 290, data(1, 1, "fast").on(1).dss(dack(0).map(0, 1, 4)));
    recv!(s, 290, data(1, 1, "fast").dss(dack(0).map(0, 1, 4)));
    let expected = [
        (0, Control, 0..0),
        (0, Control, 0..0),
        (1, JoinSyn, 0..0),
        (1, Control, 0..0),
        (1, New, 0..4),
        (1, Retransmission, 0..4),
        (1, Retransmission, 0..4),
        (0, Copy, 0..4),
    ];
    assert_eq!(told(&s), expected);
    let (_, idsn) = token_idsn(s.key.unwrap());
    for info in s.infos.iter().flatten() {
        assert_eq!(info.conn, s.id());
        let first = (!info.data.is_empty()).then(|| idsn.add(1));
        assert_eq!(info.dsn, first, "{info:?}");
    }
}

#[test]
fn the_answer_to_an_out_of_the_blue_segment_has_no_info() {
    let mut s = Script::server(config());
    s.peer(1);
    send!(s, 0, ack(1, 1));
    s.advance(s.now);
    assert!(s.take().is_some());
    assert_eq!(s.infos, [None]);
}

/// The second subflow carries new data, which is copied to the first after a timeout: it is counted by
/// path, even after the end of the subflow and of the connection.
#[test]
fn what_was_sent_is_counted_to_the_end() {
    let mut s = joined();
    s.write("fast");
    s.skip(290);
    let first = Traffic {
        bytes_sent: 4,
        bytes_copied: 4,
        packets_sent: 1,
        ..Traffic::default()
    };
    let second = Traffic {
        bytes_sent: 4,
        bytes_retransmitted: 8,
        bytes_lost: 4,
        packets_sent: 1,
        packets_retransmitted: 2,
        packets_while_unsent: 1,
        rtos: 1,
        join_syns: 1,
        ..Traffic::default()
    };
    let subflows = s.stack.subflows(s.id());
    assert_eq!(subflows[0].traffic, first);
    assert_eq!(subflows[1].traffic, second);
    assert_eq!(s.stack.subflow(s.id(), SubflowId(1)), Some(subflows[1]));
    assert_eq!(s.stack.subflow(s.id(), SubflowId(2)), None);
    // srtt 2 ms and the floor, doubled once.
    assert_eq!(subflows[1].rto.as_millis(), 404);
    assert_eq!(subflows[1].rttvar.as_millis(), 1);
    assert!(subflows[1].ssthresh < u64::MAX && subflows[1].recovery == LossRecovery::Timeout);

    send!(s, 300, rst_ack(1, 1).on(1));
    s.abort();
    let report = s.report.clone().expect("a report of the end");
    assert_eq!(report.busy.as_millis(), 276, "from 24 ms on");
    let traffic: Vec<_> = report
        .paths
        .iter()
        .map(|p| (p.path, p.moved.traffic))
        .collect();
    let second = Traffic {
        join_syns: 2,
        ..second
    };
    assert_eq!(traffic, [(PathId(0), first), (PathId(1), second)]);
    assert_eq!(report.paths[1].subflows, 2, "the join was tried again");
    assert_eq!((report.snd_una, report.snd_nxt, report.snd_end), (0, 4, 4));
    assert_eq!(report.join_syns(), 2);
    assert_eq!(s.stack.stats().join_syns, 2);
    // The next event removes the report; a lingering connection reports only itself.
    assert_eq!(s.stack.poll_event(), None);
    let now = s.stack.conn_stats(s.id());
    assert_ne!(now, Some(report));
}

#[test]
fn repeated_join_syns_count() {
    let mut s = Script::opened(config(), 2);
    s.skip(4000);
    assert_eq!(s.stack.stats().join_syns, 3, "at 20, 1020 and 3020 ms");
    let stats = s.stack.conn_stats(s.id()).expect("an open connection");
    assert_eq!(stats.join_syns(), 3);
    assert_eq!(stats.paths[1].subflows, 1);
}

#[test]
fn both_levels_are_shown() {
    let mut s = Script::accepted(config());
    send!(s, 20, data(1, 1, "ab").win(512).dss(dack(0).map(0, 1, 2)));
    // A hole in the subflow, and one in the stream only.
    s.skip(20);
    send!(s, 30, data(5, 1, "ef").win(512).dss(dack(0).map(4, 5, 2)));
    let stats = s.stack.conn_stats(s.id()).expect("an open connection");
    assert_eq!(
        (stats.rcv_nxt, stats.rcv_read, stats.out_of_order),
        (2, 0, 2)
    );
    let subflow = s.stack.subflows(s.id())[0];
    assert_eq!((subflow.bytes_received, subflow.out_of_order), (2, 2));
    assert_eq!(
        (subflow.path_mtu, subflow.backoff, subflow.sacked),
        (1500, 0, 0)
    );
    assert_eq!((subflow.peer_window, stats.memory), (65_536, 32 << 10));
    assert_eq!(stats.last_received, Instant::from_millis(30));
    assert_eq!(s.read(), b"ab");
    let stats = s.stack.conn_stats(s.id()).expect("an open connection");
    assert_eq!(stats.rcv_read, 2);
    assert_eq!(stats.peer_window, 65_536);
    assert!(stats.recv_window >= 64 << 10);
    let (ours, theirs) = stats.idsn.expect("MPTCP");
    assert_eq!(ours, token_idsn(s.key.unwrap()).1);
    assert_eq!(theirs, token_idsn(crate::harness::PEER_KEY).1);
}

/// Data that a subflow brought in vain is counted there, and by its path when it is gone.
#[test]
fn duplicates_count_where_they_come() {
    let mut s = joined();
    send!(s, 30, data(1, 1, "abcd").dss(dack(0).map(0, 1, 4)));
    s.skip(30);
    send!(s, 31, data(1, 1, "cdef").on(1).dss(dack(0).map(2, 1, 4)));
    s.skip(31);
    // The subflow's own retransmission does not count for the stream.
    send!(s, 32, data(1, 1, "cdef").on(1).dss(dack(0).map(2, 1, 4)));
    s.skip(32);
    let subflows = s.stack.subflows(s.id());
    let came: Vec<_> = subflows
        .iter()
        .map(|s| (s.bytes_received, s.duplicate))
        .collect();
    assert_eq!(came, [(4, 0), (4, 2)]);
    send!(s, 40, rst_ack(5, 1).on(1));
    let stats = s.stack.conn_stats(s.id()).expect("an open connection");
    let came: Vec<_> = stats.paths.iter().map(|p| p.moved.duplicate).collect();
    assert_eq!((came, stats.duplicate), (vec![0, 2], 2));
    assert_eq!(s.read(), b"abcdef");
}

/// A super-segment counts as the packets that the device makes of it.
#[test]
fn packets_are_counted_as_on_the_wire() {
    let mut s = Script::accepted(braid_engine::Config {
        max_transmit: 65_521,
        ..config()
    });
    s.write(vec![7; 5000]);
    s.skip(15);
    let stats = s.stack.subflows(s.id())[0];
    let packets = 5000_u64.div_ceil(stats.mss.into());
    assert!(s.infos.len() < 2 + packets as usize, "no super-segment");
    assert_eq!(stats.traffic.packets_sent, packets);
    assert_eq!(stats.traffic.packets_while_unsent, packets);
    assert_eq!(stats.traffic.bytes_sent, 5000);
}

#[test]
fn paths_remember_what_connections_moved_that_are_gone() {
    let mut s = Script::accepted(config());
    send!(s, 20, data(1, 1, "ab").win(512).dss(dack(0).map(0, 1, 2)));
    s.write(vec![7; 5000]);
    s.skip(30);
    let [there] = s.stack.path_totals()[..] else {
        panic!("one path");
    };
    assert_eq!(
        (there.moved.traffic.bytes_sent, there.moved.bytes_received),
        (5000, 2)
    );
    assert_eq!(
        (there.subflows, there.traffic_now),
        (1, there.moved.traffic)
    );
    assert_eq!(s.stack.conn_bytes().collect::<Vec<_>>(), [(s.id(), 2)]);
    s.abort();
    s.skip(20_000);
    assert_eq!(s.stack.connections(), 0);
    let [gone] = s.stack.path_totals()[..] else {
        panic!("one path");
    };
    assert_eq!(
        (gone.moved.traffic.bytes_sent, gone.moved.bytes_received),
        (5000, 2)
    );
    assert_eq!((gone.subflows, gone.traffic_now.bytes_sent), (0, 0));
}

#[test]
fn the_flow_size_is_told_at_either_end() {
    let mut s = Script::accepted(config());
    let id = s.id();
    let size = |s: &Script, id| s.stack.conn_stats(id).map(|c| c.flow_size);
    assert_eq!(size(&s, id), Some(FlowSize::Unknown));
    assert_eq!(
        s.stack
            .set_flow_size(s.now, id, FlowSize::Declared(512 << 10)),
        Ok(())
    );
    assert_eq!(size(&s, id), Some(FlowSize::Declared(512 << 10)));
    let options = ConnectOptions {
        protocol: Protocol::Tcp,
        flow_size: FlowSize::Declared(4096),
        ..ConnectOptions::new(([10, 0, 1, 2], PORT).into(), strategy())
    };
    let opened = s.stack.connect(s.now, options).unwrap();
    assert_eq!(size(&s, opened), Some(FlowSize::Declared(4096)));
    s.abort();
    s.skip(20_000);
    assert!(s.saw(|e| matches!(e, Event::Closed { .. })));
    let gone = s.stack.set_flow_size(s.now, id, FlowSize::Declared(1));
    assert_eq!(gone, Err(ApiError::UnknownConnection));
}

#[test]
fn a_size_that_is_trusted_less_does_not_replace_a_better_one() {
    use FlowSize::{Declared, Predicted, Read, Unknown};
    for (before, said, after) in [
        (Unknown, Predicted(1), Predicted(1)),
        (Predicted(1), Predicted(2), Predicted(2)),
        (Predicted(1), Read(2), Read(2)),
        (Read(2), Predicted(1), Read(2)),
        (Read(2), Declared(3), Declared(3)),
        (Declared(3), Read(2), Declared(3)),
        (Declared(3), Declared(4), Declared(4)),
        (Declared(3), Unknown, Declared(3)),
    ] {
        assert_eq!(before.or_better(said), after, "{before:?}, {said:?}");
    }
}
