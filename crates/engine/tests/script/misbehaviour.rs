//! Peers that break the protocol: the connection or the subflow ends, and nothing hangs.

use braid_engine::{CloseReason, Event, SubflowCloseReason};
use braid_wire::tcp::Flags;

use crate::harness::{Script, config, mapped};
use crate::segment::{Seg, ack, dack, data, hex, rst_ack};

fn closed(s: &Script) -> Option<CloseReason> {
    s.events.iter().find_map(|e| match e {
        Event::Closed { reason, .. } => Some(*reason),
        _ => None,
    })
}

/// Data beyond the end of the stream, or an end that moves, is a protocol error: the connection ends
/// instead of waiting for data that can never be delivered.
#[test]
fn a_mapping_past_data_fin() {
    let end = || ack(1, 1).dss(dack(0).map(4, 0, 1).fin());
    let past: [Seg; 3] = [
        mapped(0, 0, "12345"),
        ack(1, 1).dss(dack(0).map(5, 0, 1).fin()),
        ack(1, 1).dss(dack(0).map(3, 0, 1).fin()),
    ];
    for wrong in past {
        let mut s = Script::accepted(config());
        send!(s, 20, end());
        recv!(s, 20, ack(1, 1).dss(dack(0)));
        send!(s, 30, wrong);
        assert_eq!(closed(&s), Some(CloseReason::PeerMisbehaved));
        let (_, reset) = s.take().expect("no reset");
        assert!(reset.flags.contains(Flags::RST));
    }
}

/// The same error with the data first: the end lies before data that is here already.
#[test]
fn data_fin_before_data_that_came() {
    let mut s = Script::accepted(config());
    send!(s, 20, data(1, 1, "5678").dss(dack(0).map(4, 1, 4)));
    recv!(s, 20, ack(1, 5).dss(dack(0)));
    send!(s, 30, ack(5, 1).dss(dack(0).map(6, 0, 1).fin()));
    assert_eq!(closed(&s), Some(CloseReason::PeerMisbehaved));
}

/// The end lies in the middle of a mapping whose data has not all come.
#[test]
fn data_fin_before_data_that_was_told() {
    let mut s = Script::accepted(config());
    send!(s, 20, data(1, 1, "1234").dss(dack(0).map(0, 1, 8)));
    recv!(s, 20, ack(1, 5).dss(dack(4)));
    send!(s, 30, ack(5, 1).dss(dack(0).map(6, 0, 1).fin()));
    recv!(s, 30, ack(1, 5).dss(dack(4)));
    send!(s, 31, data(5, 1, "5678").dss(dack(0)));
    assert_eq!(closed(&s), Some(CloseReason::PeerMisbehaved));
}

/// The end lies before data that was read.
#[test]
fn data_fin_before_data_that_was_read() {
    let mut s = Script::accepted(config());
    send!(s, 20, mapped(0, 0, "1234"));
    assert_eq!(s.read(), b"1234");
    s.skip(25);
    send!(s, 30, ack(5, 1).dss(dack(0).map(2, 0, 1).fin()));
    assert_eq!(closed(&s), Some(CloseReason::PeerMisbehaved));
}

/// A mapping never changes once it is declared (section 3.3.1).
// Conforms: 8684-3.3.1-2
#[test]
fn a_contradictory_mapping_resets_the_subflow() {
    for wrong in [(5, 1, 20), (7, 11, 10), (12, 6, 30), (0, 2, 8)] {
        let mut s = Script::accepted(config());
        send!(s, 20, data(1, 1, "ab").dss(dack(0).map(0, 1, 20)));
        recv!(s, 20, ack(1, 3).dss(dack(2)));
        let (at, sub, len) = wrong;
        send!(s, 21, data(3, 1, "cd").dss(dack(0).map(at, sub, len)));
        recv!(s, 21, rst_ack(1, 3).raw(&hex("1e 04 80 01")));
        assert!(
            s.saw(|e| matches!(
                e,
                Event::SubflowClosed {
                    reason: SubflowCloseReason::PeerMisbehaved,
                    ..
                }
            )),
            "{wrong:?}"
        );
    }
}
