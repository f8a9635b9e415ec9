//! Flows that follow each other over one connection.

use std::sync::{Arc, Mutex};

use braid_engine::strategy::{Decision, FlowSize, SendView, Strategy, Writer};
use braid_engine::{ApiError, Event, Urgency};
use braid_wire::Rng;

use crate::harness::{Script, config};
use crate::segment::{ack, dack, data};

/// Sends all data, and records its view of the flow: bytes sent, the size, and whether all was written.
#[derive(Debug, Default, Clone)]
struct Spy(Arc<Mutex<Vec<(u64, FlowSize, Writer)>>>);

impl Strategy for Spy {
    fn name(&self) -> &'static str {
        "spy"
    }

    fn next(&mut self, view: &SendView<'_>, _: &mut Rng) -> Decision {
        let saw = (view.sent, view.flow_size, view.writer);
        self.0.lock().unwrap().push(saw);
        match view.subflows.iter().find(|s| s.ready && view.may_send_new) {
            Some(s) => Decision::new_on(s.id),
            None => Decision::WAIT,
        }
    }
}

fn delivered(s: &Script) -> usize {
    s.count(|e| matches!(e, Event::FlowDelivered { .. }))
}

#[test]
fn nothing_of_a_flow_holds_for_the_next() {
    let mut s = Script::accepted(config());
    let id = s.id();
    let (now, size) = (s.now, FlowSize::Declared(9));
    s.stack.set_flow_size(now, id, size).unwrap();
    s.stack.set_urgency(now, id, Urgency::LEAST_URGENT).unwrap();
    s.write("old");
    recv!(s, 10, data(1, 1, "old").dss(dack(0).map(0, 1, 3)));
    let before = s.stack.conn_stats(id).unwrap();
    assert_eq!(
        (before.flow_size, before.urgency),
        (size, Urgency::LEAST_URGENT)
    );
    assert_eq!(s.stack.begin_flow(s.now, id), Ok(()));
    let after = s.stack.conn_stats(id).unwrap();
    let usual = (FlowSize::Unknown, "fastest", (0, 0));
    assert_eq!((after.flow_size, after.strategy, after.flow_moved), usual);
    assert_eq!(
        after.urgency,
        Urgency::LEAST_URGENT,
        "that is said by itself"
    );
    let spy = Spy::default();
    let strategy = Box::new(spy.clone());
    s.stack.set_strategy(s.now, id, strategy).unwrap();
    s.write("new");
    recv!(s, 10, data(4, 1, "new").dss(dack(0).map(3, 4, 3)));
    s.write("er");
    recv!(s, 10, data(7, 1, "er").dss(dack(0).map(6, 7, 2)));
    let saw = spy.0.lock().unwrap().clone();
    let open = |sent| (sent, FlowSize::Unknown, Writer::Open);
    assert_eq!(saw, [open(0), open(3)]);
    assert_eq!(s.stack.begin_flow(s.now, id), Ok(()));
    assert_eq!(s.stack.conn_stats(id).unwrap().strategy, "fastest");
}

#[test]
fn the_end_of_a_flow_is_known_to_its_strategy_and_told_once_it_has_arrived() {
    let mut s = Script::accepted(config());
    let id = s.id();
    let spy = Spy::default();
    let strategy = Box::new(spy.clone());
    s.stack.set_strategy(s.now, id, strategy).unwrap();
    s.queue(0, 3, "last");
    assert_eq!(s.stack.end_flow(s.now, id), Ok(()));
    s.write("");
    recv!(s, 10, data(1, 1, "last").dss(dack(0).map(0, 1, 4)));
    let saw = spy.0.lock().unwrap().clone();
    assert_eq!(saw, [(0, FlowSize::Unknown, Writer::Done)]);
    assert_eq!(delivered(&s), 0);
    // Acknowledges one part on the subflow and another at the data level.
    send!(s, 20, ack(1, 5).dss(dack(2)));
    assert_eq!(delivered(&s), 0);
    send!(s, 30, ack(1, 5).dss(dack(4)));
    assert_eq!(delivered(&s), 1);
    send!(s, 40, ack(1, 5).dss(dack(4)));
    assert_eq!(delivered(&s), 1, "once");
    // The connection goes on, and an empty flow is delivered at once.
    s.stack.begin_flow(s.now, id).unwrap();
    s.stack.end_flow(s.now, id).unwrap();
    s.write("");
    assert_eq!(delivered(&s), 2);
    s.abort();
    s.skip(20_000);
    let gone = Err(ApiError::UnknownConnection);
    assert_eq!(s.stack.begin_flow(s.now, id), gone);
    assert_eq!(s.stack.end_flow(s.now, id), gone);
}

/// Beginning another flow does not wait for the delivery of the one before.
#[test]
fn a_flow_that_is_followed_before_it_has_arrived_is_not_told_of() {
    let mut s = Script::accepted(config());
    let id = s.id();
    s.queue(0, 3, "last");
    s.stack.end_flow(s.now, id).unwrap();
    s.stack.begin_flow(s.now, id).unwrap();
    s.write("");
    recv!(s, 10, data(1, 1, "last").dss(dack(0).map(0, 1, 4)));
    send!(s, 30, ack(1, 5).dss(dack(4)));
    assert_eq!(delivered(&s), 0);
}
