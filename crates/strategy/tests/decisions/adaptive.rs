//! Decisions of `adaptive`.

use std::time::Duration;

use braid_engine::Urgency;
use braid_engine::strategy::{
    Decision, FirstSubflow, FlowSize, OpenView, Opening, Payload, SendView, Strategy, SubflowView,
    Writer,
};
use braid_engine::{PathId, PathRecord, Protocol, SubflowId};
use braid_strategy::{Adaptive, Waiting, by_name};
use braid_wire::Rng;

use crate::published::{opening, path, urgent};
use crate::views::*;

pub fn adaptive(view: &SendView<'_>) -> Decision {
    decide("adaptive", view)
}

/// Returns a subflow in congestion avoidance that delivers 1 MB/s, with a window of 20 segments of 1000 bytes and
/// nothing in flight.
pub fn steady(id: u32, rtt_ms: u64) -> SubflowView {
    SubflowView {
        cwnd: 20_000,
        ssthresh: 10_000,
        in_flight: 0,
        peak_rate: 1_000_000,
        oldest_sent: None,
        ..subflow(id, rtt_ms)
    }
}

/// Returns `s` with a window full of data that was sent evenly over the last round trip.
pub fn used_up(s: SubflowView) -> SubflowView {
    SubflowView {
        oldest_sent: Some(NOW - s.srtt),
        ..full(s)
    }
}

/// Returns the subflow on which a decision sends new data.
pub fn on(decision: Decision) -> Option<u32> {
    match decision {
        Decision::Send {
            subflow,
            data: Payload::New,
            ..
        } => Some(subflow.0),
        _ => None,
    }
}

/// Returns `view` with `unsent` bytes left to send.
pub fn with_unsent(view: SendView<'_>, unsent: u64) -> SendView<'_> {
    SendView {
        unsent,
        unsent_by_urgency: [0, 0, 0, unsent, 0, 0, 0, 0],
        ..view
    }
}

#[test]
fn new_data_goes_where_it_arrives_first() {
    let subflows = [steady(0, 60), steady(1, 20)];
    assert_eq!(on(adaptive(&view(&subflows))), Some(1));
    // A burst of 30 kB needs 30 ms at the bottleneck. The other path's one-way delay is only 20 ms longer (30
    // against 10).
    let burst = SubflowView {
        in_flight: 10_000,
        cwnd: 40_000,
        oldest_sent: Some(NOW),
        drained_at: NOW + Duration::from_millis(30),
        ..steady(1, 20)
    };
    let deep = SubflowView {
        in_flight: 30_000,
        ..burst
    };
    assert_eq!(on(adaptive(&view(&[steady(0, 60), deep]))), Some(0));
    // The queue cannot hold more than is in flight.
    assert_eq!(on(adaptive(&view(&[steady(0, 60), burst]))), Some(1));
}

/// The fast subflow is full. A segment on the slow one arrives after 41 ms (40 ms one-way, 1 ms at 1 MB/s). Until
/// then the fast one can send for 31 ms (10 ms one-way), which is 31 kB. Its queue is empty, because its path
/// holds the 20 kB in flight.
#[test]
fn it_waits_for_a_faster_subflow_that_suffices() {
    let subflows = [used_up(steady(0, 20)), steady(1, 80)];
    let rest = |unsent| adaptive(&with_unsent(view(&subflows), unsent));
    assert_eq!(rest(25_000), Decision::WAIT);
    assert_eq!(on(rest(40_000)), Some(1));
}

/// A recorded rate of 100 bytes/s keeps the path from being used, so it is tried with one packet.
#[test]
fn a_record_alone_does_not_shut_a_path() {
    let recorded = SubflowView {
        peak_rate: 100,
        ..single(steady(1, 20), sent_range(0, 5_000, 10))
    };
    let beside = |recorded| adaptive(&view(&[used_up(steady(0, 60)), recorded]));
    let trial = Decision::Send {
        subflow: SubflowId(1),
        data: Payload::Copy {
            data: sent_range(0, 5_000, 10),
            penalise: false,
        },
        max_bytes: 1_000,
    };
    assert_eq!(beside(recorded), trial);
    let under_way = SubflowView {
        in_flight: 1_000,
        queued: 1_000,
        oldest_sent: Some(NOW),
        ..recorded
    };
    // The next question is due when the acknowledgement of the data is overdue.
    let until = Some(NOW + Duration::from_millis(56));
    assert_eq!(beside(under_way), Decision::Wait { until });
}

/// If the application waits for room, the remaining bytes are those of the announced size or, without one, as many
/// as were sent. From 31 kB on a wait does not pay.
#[test]
fn it_does_not_wait_while_much_data_will_follow() {
    let subflows = [used_up(steady(0, 20)), steady(1, 80)];
    let rest = |writer, sent, flow_size| {
        on(adaptive(&SendView {
            writer,
            sent,
            flow_size,
            ..with_unsent(view(&subflows), 25_000)
        }))
    };
    let unknown = FlowSize::Unknown;
    assert_eq!(rest(Writer::Waiting, 40_000, unknown), Some(1));
    assert_eq!(rest(Writer::Waiting, 25_000, unknown), None);
    let declared = FlowSize::Declared(100_000);
    assert_eq!(rest(Writer::Waiting, 60_000, declared), Some(1));
    assert_eq!(rest(Writer::Waiting, 75_000, declared), None);
    // The application does not wait, so the size may be that of the peer's data.
    assert_eq!(rest(Writer::Open, 40_000, declared), None);
    // The flow has exceeded its announced size, so as much as was sent is assumed to follow.
    assert_eq!(rest(Writer::Waiting, 150_000, declared), Some(1));
}

/// Returns a subflow with 41 kB in flight: 1 kB more than the path (20 kB) and the allowed queue (20 packets)
/// hold.
fn deep() -> SubflowView {
    SubflowView {
        cwnd: 100_000,
        in_flight: 41_000,
        oldest_sent: Some(NOW - Duration::from_millis(20)),
        latest_rtt: Duration::from_millis(41),
        ..steady(0, 20)
    }
}

/// Returns the subflow of [`deep`] in slow start, after 100 packets without loss.
fn growing() -> SubflowView {
    SubflowView {
        ssthresh: u64::MAX,
        sent: 100_000,
        ..deep()
    }
}

/// Late in a flow a deep queue gets no more data. Before that, in congestion avoidance, congestion control
/// decides.
#[test]
fn late_in_a_flow_no_queue_is_overfilled() {
    let subflows = [deep(), used_up(steady(1, 200))];
    assert_eq!(
        adaptive(&with_unsent(view(&subflows), 20_000)),
        Decision::WAIT
    );
    assert_eq!(
        on(adaptive(&with_unsent(view(&subflows), 200_000))),
        Some(0)
    );
    // The announced size shows that the flow is not near its end.
    let more = SendView {
        flow_size: FlowSize::Declared(300_000),
        ..with_unsent(view(&subflows), 20_000)
    };
    assert_eq!(on(adaptive(&more)), Some(0));
}

/// Slow start is held back once the queue is deep, if few losses by chance are expected. After 100 packets without
/// loss the prior (0.1 of 20 packets) gives one loss in 1200. This path carries 1 / 1.1 of the 200 packets left,
/// so 0.15 losses are expected.
#[test]
fn slow_start_is_held_before_it_overshoots() {
    let growing = growing();
    let with = |growing| [growing, used_up(steady(1, 200))];
    let decision = |subflows: &[SubflowView]| adaptive(&with_unsent(view(subflows), 200_000));
    assert_eq!(decision(&with(growing)), Decision::WAIT);
    let lossy = SubflowView {
        non_congestive_loss: 1_000,
        ..growing
    };
    assert_eq!(on(decision(&with(lossy))), Some(0));
    // This subflow has 21 kB in the queue. A delay of 43 ms at 1 MB/s means 43 kB, more than twice as much.
    let shared = SubflowView {
        latest_rtt: growing.base_rtt + Duration::from_millis(43),
        ..growing
    };
    assert_eq!(on(decision(&with(shared))), Some(0));
    // 980 packets are left, so 0.74 losses are expected on this path.
    let long = with(growing);
    let long = SendView {
        flow_size: FlowSize::Declared(1_000_000),
        ..with_unsent(view(&long), 200_000)
    };
    assert_eq!(on(adaptive(&long)), Some(0));
}

/// A path with a deep queue gets neither new data, which goes on another path, nor copies.
#[test]
fn a_deep_queue_gets_nothing() {
    let growing = growing();
    let subflows = [growing, steady(1, 80)];
    assert_eq!(
        on(adaptive(&with_unsent(view(&subflows), 200_000))),
        Some(1)
    );
    let data = sent_range(1, 0, 5);
    let holder = SubflowView {
        in_flight: 5_000,
        oldest_sent: Some(NOW - Duration::from_millis(5)),
        ..steady(1, 100)
    };
    let copies = |on| adaptive(&at_the_end(&[single(on, data), holder]));
    assert_eq!(copies(growing), Decision::WAIT);
    let shallow = SubflowView {
        in_flight: 40_000,
        ..growing
    };
    assert_eq!(copies(shallow), copy(0, data));
}

/// All data has been sent. A copy on the fast path arrives long before a loss on the slow path would be repaired.
/// A copy on the slow path does not.
#[test]
fn the_tail_is_copied_if_that_helps() {
    let sent = |id, rtt| SubflowView {
        in_flight: 5_000,
        oldest_sent: Some(NOW - Duration::from_millis(5)),
        ..steady(id, rtt)
    };
    let data = sent_range(1, 0, 5);
    let fast = [single(steady(0, 20), data), sent(1, 100)];
    assert_eq!(adaptive(&at_the_end(&fast)), copy(0, data));
    // The acknowledgement of data that was sent 5 ms ago on a path of 20 ms is overdue in 17 ms.
    let slow = [single(steady(0, 300), data), sent(1, 20)];
    let until = Some(NOW + Duration::from_millis(17));
    assert_eq!(adaptive(&at_the_end(&slow)), Decision::Wait { until });
    // New data makes better use of the room.
    assert_eq!(on(adaptive(&view(&fast))), Some(0));
}

/// A path with a long queue takes no new data. The data in its queue, which needs 350 ms at 100 kB/s, is copied like
/// any other.
#[test]
fn data_in_a_long_queue_is_copied_at_the_end() {
    let data = sent_range(1, 0, 100);
    let overfull = SubflowView {
        in_flight: 40_000,
        srtt: Duration::from_millis(400),
        latest_rtt: Duration::from_millis(400),
        delivery_rate: 100_000,
        peak_rate: 100_000,
        drained_at: NOW + Duration::from_millis(350),
        ..steady(1, 50)
    };
    let subflows = [single(steady(0, 20), data), overfull];
    assert_eq!(on(adaptive(&with_unsent(view(&subflows), 9_000))), Some(0));
    assert_eq!(adaptive(&at_the_end(&subflows)), copy(0, data));
}

/// A wait is only for subflows without room. Otherwise, of three equal subflows with room, each would wait for the
/// other two, and the last bytes would be late by a round trip.
#[test]
fn ready_subflows_do_not_wait_for_each_other() {
    let three = [steady(0, 20), steady(1, 20), steady(2, 20)];
    let last = SendView {
        outstanding: 5_000,
        ..with_unsent(view(&three), 1_000)
    };
    assert_eq!(on(adaptive(&last)), Some(0));
}

/// While the application may write more, a copy waits for an eighth of the round trip of the data's subflow: 10 of
/// 80 ms.
#[test]
fn an_open_flow_is_not_copied_at_once() {
    let holder = SubflowView {
        in_flight: 5_000,
        ..steady(1, 80)
    };
    let copies = |writer, ms| {
        let data = sent_range(1, 0, ms);
        let subflows = [single(steady(0, 20), data), holder];
        let end = SendView {
            writer,
            ..at_the_end(&subflows)
        };
        adaptive(&end) == copy(0, data)
    };
    assert!(copies(Writer::Done, 0) && copies(Writer::Open, 10));
    assert!(!copies(Writer::Open, 9));
}

/// Flows from 256 kB on may copy 9 % of their bytes: of 500,000 bytes 45,000, the last copy of 1,000 included.
/// Before all data was sent once, they may copy a quarter of this. Flows from 1 MB on may copy none, unless paths
/// have non-congestive losses.
#[test]
fn copies_stay_within_their_budget() {
    let data = sent_range(1, 0, 5);
    let holder = SubflowView {
        in_flight: 5_000,
        ..steady(1, 100)
    };
    let clean = [single(steady(0, 20), data), holder];
    let copies = |subflows: &[SubflowView], size: u64, copied: u64| {
        let end = SendView {
            flow_size: FlowSize::Declared(size),
            sent: size,
            copied,
            ..at_the_end(subflows)
        };
        adaptive(&end) == copy(0, data)
    };
    assert!(copies(&clean, 100_000, 90_000));
    assert!(copies(&clean, 500_000, 44_000));
    assert!(!copies(&clean, 500_000, 44_001));
    let before_the_end = |copied| {
        // The fast path has room for copies, but the peer's window has none for the last bytes.
        let waiting = SendView {
            flow_size: FlowSize::Declared(500_000),
            sent: 490_000,
            copied,
            may_send_new: false,
            ..with_unsent(view(&clean), 10_000)
        };
        adaptive(&waiting) == copy(0, data)
    };
    assert!(before_the_end(10_250));
    assert!(!before_the_end(10_251));
    assert!(!copies(&clean, 1 << 20, 0));
    let mut lossy = clean;
    lossy[1].non_congestive_loss = 1_000;
    assert!(copies(&lossy, 1 << 20, 0));
}

/// Background data (urgency 7) leaves a path that carries more urgent data, except for two packets. Other data
/// yields only if the path has a queue of more than 7 ms.
#[test]
fn less_urgent_data_yields() {
    let busy = SubflowView {
        most_urgent: Some(Urgency::default()),
        in_flight: 4_000,
        ..steady(0, 20)
    };
    let subflows = [busy, steady(1, 80)];
    let on_path = |subflows: &[SubflowView], level| {
        on(adaptive(&urgent(
            with_unsent(view(subflows), 0),
            level,
            50_000,
        )))
    };
    assert_eq!(on_path(&subflows, 7), Some(1));
    assert_eq!(on_path(&subflows, 3), Some(0));
    assert_eq!(on_path(&subflows, 5), Some(0));
    let queued = SubflowView {
        latest_rtt: busy.base_rtt + Duration::from_millis(11),
        delivery_rate: 100_000,
        ..busy
    };
    assert_eq!(on_path(&[queued, steady(1, 80)], 5), Some(1));
    assert_eq!(on_path(&[queued, steady(1, 80)], 3), Some(0));
    // The bottleneck passes 25,000 bytes in a round trip and 5 ms: what is in flight beyond will be a queue.
    for (in_flight, path) in [(24_999, 0), (25_000, 1)] {
        let full = SubflowView {
            in_flight,
            cwnd: 100_000,
            ssthresh: 50_000,
            peak_rate: 1_000_000,
            ..busy
        };
        assert_eq!(on_path(&[full, steady(1, 80)], 5), Some(path));
        let in_slow_start = SubflowView {
            ssthresh: u64::MAX,
            ..full
        };
        assert_eq!(on_path(&[in_slow_start, steady(1, 80)], 5), Some(0));
        assert_eq!(on_path(&[full, steady(1, 80)], 3), Some(0));
    }
}

/// Background data fills the path of highest round-trip time first. It leaves the best path to other data for 3 s
/// after the last such data, and keeps the queue short there.
#[test]
fn background_data_fills_the_other_paths_first() {
    let [best, middle, slow] = [steady(0, 20), steady(1, 60), steady(2, 80)];
    for name in ["adaptive", "po", "po:base=roundrobin"] {
        let on_path = |subflows: &[SubflowView]| {
            on(decide(
                name,
                &urgent(with_unsent(view(subflows), 0), 7, 50_000),
            ))
        };
        assert_eq!(on_path(&[best, middle, slow]), Some(2), "{name}");
        assert_eq!(on_path(&[best, middle, used_up(slow)]), Some(1), "{name}");
        let others_full = [best, used_up(middle), used_up(slow)];
        assert_eq!(on_path(&others_full), Some(0), "{name}");
        // 2,500 bytes are in flight, 100,000 bytes/s times 20 ms are 2,000, and the queue has 11 ms.
        let queued = SubflowView {
            latest_rtt: best.base_rtt + Duration::from_millis(11),
            delivery_rate: 100_000,
            in_flight: 2_500,
            ..best
        };
        assert_eq!(on_path(&[queued, used_up(slow)]), None, "{name}");
        assert_eq!(on_path(&[queued, slow]), Some(2), "{name}");
        let short = SubflowView {
            latest_rtt: best.base_rtt + Duration::from_millis(7),
            ..queued
        };
        assert_eq!(on_path(&[short, used_up(slow)]), Some(0), "{name}");
        // Other data used the best path 3 s ago or later: two packets of 1,000 bytes may be in flight there.
        let reserved = |ago, in_flight| SubflowView {
            foreground_at: Some(NOW - Duration::from_millis(ago)),
            in_flight,
            ..best
        };
        assert_eq!(on_path(&[reserved(2_999, 2_000), used_up(slow)]), None);
        assert_eq!(on_path(&[reserved(2_999, 1_000), used_up(slow)]), Some(0));
        assert_eq!(on_path(&[reserved(3_000, 2_000), used_up(slow)]), Some(0));
        assert_eq!(on_path(&[reserved(2_999, 2_000)]), Some(0), "{name}");
        // Without another usable path, congestion control alone decides.
        assert_eq!(on_path(&[queued]), Some(0), "{name}");
        assert_eq!(on_path(&[queued, stale(slow)]), Some(0), "{name}");
        // A backup path is no other path while there is a regular one.
        assert_eq!(on_path(&[queued, backup(slow)]), Some(0), "{name}");
    }
}

/// Important data takes the fastest path with room, regardless of the less urgent data after it.
#[test]
fn important_data_goes_on_the_best_path() {
    let both = [steady(0, 20), steady(1, 80)];
    let important = |subflows| urgent(with_unsent(view(subflows), 500_000), 1, 25_000);
    assert_eq!(on(adaptive(&important(&both))), Some(0));
    let full = [used_up(steady(0, 20)), steady(1, 80)];
    assert_eq!(on(adaptive(&important(&full))), Some(1));
    // The pacer holds the fast subflow back, which has window room for 25 kB: all of the important data. With room
    // for 20 kB, the other 5 kB go on the slow subflow.
    let held = SubflowView {
        in_flight: 1_000,
        cwnd: 26_000,
        ..paced(steady(0, 20))
    };
    let all_held = [held, steady(1, 80)];
    assert_eq!(on(adaptive(&important(&all_held))), None);
    let less = SubflowView {
        cwnd: 21_000,
        ..held
    };
    let some_held = [less, steady(1, 80)];
    assert_eq!(adaptive(&important(&some_held)), send(1, 5_000));
}

/// Returns the decision on `then`, made after data of urgency `level` was sent from byte 20,000 on.
fn after_important(then: &SendView<'_>, level: usize) -> Decision {
    let (mut adaptive, mut rng) = (Adaptive::default(), Rng::from_seed([0; 32]));
    let both = [steady(0, 20), steady(1, 30)];
    let first = urgent(with_unsent(view(&both), 0), level, 1_000);
    assert_eq!(on(adaptive.next(&first, &mut rng)), Some(0));
    adaptive.next(then, &mut rng)
}

/// A long flow of important messages keeps its room for the next message while the application may write one.
#[test]
fn long_important_flows_are_not_copied_before_they_end() {
    let lossy = |s| SubflowView {
        non_congestive_loss: 20_000,
        sent: 100_000,
        ..s
    };
    let data = sent_range(0, 5_000, 30);
    let subflows = [
        used_up(lossy(steady(0, 60))),
        single(lossy(steady(1, 60)), data),
    ];
    let copies = |sent, writer, level| {
        let then = SendView {
            sent,
            // From the important data on.
            outstanding: sent - 20_000,
            writer,
            may_send_new: false,
            ..with_unsent(view(&subflows), 0)
        };
        on_copy(after_important(&then, level)) == Some(1)
    };
    assert!(!copies(256 << 10, Writer::Open, 2));
    assert!(copies((256 << 10) - 1, Writer::Open, 2));
    assert!(copies(256 << 10, Writer::Done, 2));
    assert!(copies(256 << 10, Writer::Open, 3));
    // Once the important data has arrived, the rest of the flow is like any other.
    let then = SendView {
        sent: 256 << 10,
        outstanding: (256 << 10) - 20_001,
        writer: Writer::Open,
        may_send_new: false,
        ..with_unsent(view(&subflows), 0)
    };
    assert_eq!(on_copy(after_important(&then, 2)), Some(1));
}

/// Only the connection that carries important data copies overdue data for it. Other connections over the same
/// path do not.
#[test]
fn other_connections_do_not_copy_for_important_data() {
    let data = sent_range(1, 5_000, 100);
    let best = SubflowView {
        most_urgent: Some(Urgency::MOST_URGENT),
        ..single(steady(0, 20), data)
    };
    let slow = SubflowView {
        in_flight: 10_000,
        ..steady(1, 60)
    };
    let subflows = [best, slow];
    let then = urgent(with_unsent(view(&subflows), 0), 5, 50_000);
    assert_eq!(on_copy(after_important(&then, 2)), Some(0));
    assert_eq!(on_copy(after_important(&then, 5)), None);
}

/// Returns the subflow on which a decision sends a copy.
fn on_copy(decision: Decision) -> Option<u32> {
    match decision {
        Decision::Send {
            subflow,
            data: Payload::Copy { .. },
            ..
        } => Some(subflow.0),
        _ => None,
    }
}

/// Returns the path on which `adaptive` opens.
pub fn opens(view: &OpenView<'_>) -> Option<u8> {
    let opening = Adaptive::default().open(view);
    opening.map(|Opening { path, protocol }| {
        assert_eq!(protocol, Protocol::Mptcp);
        path.0
    })
}

#[test]
fn it_opens_where_data_is_expected_first() {
    let size = FlowSize::Declared(64 << 10);
    let paths = [path(0, Some(100)), path(1, None), path(2, Some(40))];
    assert_eq!(opens(&opening(&paths, size)), Some(2));
    let again = OpenView {
        unanswered: Some(PathId(2)),
        ..opening(&paths, size)
    };
    assert_eq!(opens(&again), Some(0));
    // One lost packet in ten costs more than 10 ms of round-trip time: 2 * 40 + 4 * 0.1 * 240 = 176 ms against
    // 2 * 50 + 4 * 0.005 * 250 = 105 ms.
    let mut lossy = paths;
    lossy[0] = path(0, Some(50));
    lossy[2].record = lossy[2].record.map(|record| PathRecord {
        bytes_sent: 1_000_000,
        bytes_lost: 100_000,
        ..record
    });
    assert_eq!(opens(&opening(&lossy, size)), Some(0));
    let unknown = [path(0, None), path(1, None)];
    assert_eq!(opens(&opening(&unknown, size)), Some(1));
    // A host that only receives measures the rate of arrival. At 80 kB/s, an initial window of 14,280 bytes takes
    // 179 ms, which costs more than a round trip of 100 instead of 40 ms and the 30 ms at a rate that is not known.
    let mut slow = paths;
    slow[2].record = slow[2].record.map(|record| PathRecord {
        arrival_rate: 80_000,
        ..record
    });
    assert_eq!(opens(&opening(&slow, size)), Some(0));
}

/// Connections that open together share the rate of a path. At 1 MB/s, an initial window takes 14 ms, so the third
/// one opens on a path with 20 ms more.
#[test]
fn connections_that_open_together_spread() {
    let mut paths = [path(0, Some(40)), path(1, Some(50))];
    for path in &mut paths {
        path.record = path.record.map(|record| PathRecord {
            delivery_rate: 1_000_000,
            ..record
        });
    }
    let mut opened = Vec::new();
    for _ in 0..6 {
        let next = opens(&opening(&paths, FlowSize::Unknown)).expect("a path");
        paths[usize::from(next)].openings += 1;
        opened.push(next);
    }
    assert_eq!(opened, [0, 0, 1, 0, 1, 0]);
}

#[test]
fn a_second_syn_follows_one_that_is_late() {
    let attempt_delay = |paths: &[_], n: usize| {
        let view = opening(paths, FlowSize::Unknown);
        let [one, other] = ["adaptive", "maps"].map(|name| {
            let strategy = by_name(name).unwrap();
            strategy.attempt_delay(&view, &paths[n])
        });
        assert_eq!(one, other);
        one
    };
    // Two round trips and 20 ms, or 250 ms if the round trip is unknown or longer.
    let ms = |ms| Some(Duration::from_millis(ms));
    let paths = [path(0, Some(40)), path(1, None), path(2, Some(600))];
    assert_eq!(attempt_delay(&paths, 0), ms(100));
    assert_eq!(attempt_delay(&paths, 1), ms(250));
    assert_eq!(attempt_delay(&paths, 2), ms(250));
    // There is no other path for a second SYN.
    assert_eq!(attempt_delay(&paths[..1], 0), None);
}

/// A flow of one initial window needs no second subflow, unless it takes too long.
#[test]
fn a_mosquito_joins_only_when_it_is_late() {
    let paths = [path(0, Some(40)), path(1, Some(100))];
    let join = |view: &OpenView<'_>| Adaptive::default().join(view, &paths[1]);
    let tiny = opening(&paths, FlowSize::Declared(14_280));
    assert_eq!(join(&tiny), None);
    let since = NOW - Duration::from_millis(10);
    let open = OpenView {
        first: Some(FirstSubflow {
            since,
            rtt: Duration::from_millis(40),
        }),
        ..tiny
    };
    // One and a half round trips and 20 ms.
    assert_eq!(join(&open), Some(since + Duration::from_millis(80)));
    // A connection in the idle pool joins after 20 ms.
    let waiting = Waiting::default().join(&open, &paths[1]);
    assert_eq!(waiting, Some(since + Duration::from_millis(20)));
    // A flow of unknown size that has exceeded the initial window (14,280 bytes), and one with a larger size.
    let grown = OpenView {
        seen: 14_281,
        flow_size: FlowSize::Unknown,
        ..open
    };
    assert_eq!(join(&grown), Some(NOW));
    assert_eq!(join(&opening(&paths, FlowSize::Read(14_281))), Some(NOW));
}

/// Lost data is copied before new data is sent, and a subflow without a sample of the round-trip time ranks last.
#[test]
fn lost_data_and_unsampled_subflows() {
    let last_sender = SubflowId(1);
    let data = sent_range(last_sender.0, 0, 2_000);
    let subflows = [lost(steady(0, 20), data), steady(2, 40)];
    assert_eq!(adaptive(&view(&subflows)), copy(0, data));
    let unsampled = SubflowView {
        rto: Duration::from_secs(1),
        ..steady(0, 0)
    };
    assert_eq!(on(adaptive(&view(&[unsampled, steady(1, 80)]))), Some(1));
}

/// The fast path is in slow start with 20 kB in flight, and may send 100 kB in the 50 ms after which the sender hears
/// that the peer's window has moved past data on the slow path: 30 ms on that path, 10 ms to repair a loss there, and
/// 10 ms back. The window has to hold these bytes and a segment, except for the 20 kB outstanding.
#[test]
fn data_on_a_slow_path_does_not_use_up_the_window() {
    let fast = SubflowView {
        ssthresh: u64::MAX,
        peak_rate: 0,
        ..used_up(steady(0, 20))
    };
    let both = [fast, steady(1, 60)];
    let with_window = |peer_window| {
        on(adaptive(&SendView {
            peer_window,
            ..view(&both)
        }))
    };
    assert_eq!(with_window(70_000), None);
    assert_eq!(with_window(100_000), Some(1));
    // All that remains fits into the window.
    let end = SendView {
        peer_window: 70_000,
        ..with_unsent(view(&both), 68_000)
    };
    assert_eq!(on(adaptive(&end)), Some(1));
}
