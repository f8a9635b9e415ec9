//! The events and records that a strategy sees.

use core::net::IpAddr;
use core::time::Duration;
use std::sync::{Arc, Mutex};

use braid_engine::strategy::{
    Decision, OpenView, Opening, PathView, SendView, Strategy, StrategyEvent, first_in_order,
};
use braid_engine::{ConnectOptions, PathConfig, PathId, Protocol, SubflowId};
use braid_wire::Rng;

use crate::harness::{PORT, Script, config};
use crate::segment::{ack, data, syn, syn_ack};

const MSS: usize = 1460;
const SUBFLOW: SubflowId = SubflowId(0);

/// Sends new data wherever possible, and records its events.
#[derive(Debug, Clone, Default)]
struct Listener {
    told: Arc<Mutex<Vec<StrategyEvent>>>,
    /// The paths that it saw when it was asked where to open.
    paths: Arc<Mutex<Vec<PathView>>>,
}

impl Listener {
    /// Returns the events since the last call.
    fn heard(&self) -> Vec<StrategyEvent> {
        core::mem::take(&mut self.told.lock().unwrap())
    }

    /// Returns the only path that it saw when it was asked where to open.
    fn path(&self) -> PathView {
        let paths = self.paths.lock().unwrap();
        assert_eq!(paths.len(), 1);
        paths[0]
    }
}

impl Strategy for Listener {
    fn name(&self) -> &'static str {
        "listener"
    }

    fn open(&mut self, view: &OpenView<'_>) -> Option<Opening> {
        *self.paths.lock().unwrap() = view.paths.to_vec();
        first_in_order(view)
    }

    fn next(&mut self, view: &SendView<'_>, _: &mut Rng) -> Decision {
        match view.subflows.iter().find(|s| s.ready) {
            Some(s) if view.may_send_new => Decision::new_on(s.id),
            _ => Decision::WAIT,
        }
    }

    fn on_event(&mut self, event: &StrategyEvent) {
        self.told.lock().unwrap().push(*event);
    }
}

/// Regular TCP to a peer with a window of `window` bytes, open at 10 ms with a round trip of 10 ms.
fn opened(window: u16) -> (Script, Listener) {
    let path = PathConfig::v4([10, 0, 0, 2].into());
    let listener = Listener::default();
    let mut s = Script::new(config(), &[path]);
    s.open(ConnectOptions {
        protocol: Protocol::Tcp,
        ..ConnectOptions::new(([10, 0, 9, 1], PORT).into(), Box::new(listener.clone()))
    });
    recv!(s, 0, syn().ws(None));
    send!(s, 10, syn_ack().win(window));
    recv!(s, 10, ack(1, 1));
    let up = StrategyEvent::SubflowUp {
        subflow: SUBFLOW,
        record: None,
    };
    assert_eq!(listener.heard(), [up]);
    (s, listener)
}

/// A loss that only time reveals is reported like one that an acknowledgement reveals.
#[test]
fn what_is_lost_is_told_whatever_told_of_it() {
    let (mut s, listener) = opened(65_535);
    s.write([0; 4 * MSS]);
    for n in 0..4 {
        recv!(s, 10, data((n * MSS) as u64 + 1, 1, [0; MSS]));
    }
    let at = |n: usize| (n * MSS) as u64 + 1;
    send!(s, 20, ack(1, at(0)).win(512).sack(&[(at(1), at(2))]));
    let acknowledged = |bytes: usize| StrategyEvent::Acknowledged {
        subflow: SUBFLOW,
        bytes: bytes as u64,
    };
    assert_eq!(listener.heard(), [acknowledged(MSS)]);
    // A quarter of the round trip later.
    s.skip(23);
    let lost = StrategyEvent::Lost {
        subflow: SUBFLOW,
        bytes: MSS as u64,
    };
    assert_eq!(listener.heard(), [lost]);
}

/// A remainder of the peer's window below a segment is no window: a strategy with other data is not kept
/// from sending it (RFC 9293 section 3.8.6.2.1).
// Conforms: 9293-3.8.6.2.1-1
#[test]
fn a_sliver_of_window_is_none() {
    let (mut s, listener) = opened(2_000);
    s.write([0; 3 * MSS]);
    recv!(s, 10, data(1, 1, [0; MSS]));
    assert_eq!(listener.heard(), [StrategyEvent::WindowBlocked]);
    quiet!(s, 15);
    assert_eq!(listener.heard(), []);
}

/// A strategy set later is told of the existing subflows.
#[test]
fn another_strategy_takes_over() {
    let (mut s, first) = opened(65_000);
    let second = Listener::default();
    let id = s.id();
    let changed = s.stack.set_strategy(s.now, id, Box::new(second.clone()));
    assert_eq!(changed, Ok(()));
    let up = StrategyEvent::SubflowUp {
        subflow: SUBFLOW,
        record: s.stack.records().next().map(|(.., record)| record),
    };
    assert_eq!(second.heard(), [up]);
    s.write("data");
    recv!(s, 10, data(1, 1, "data"));
    send!(s, 20, ack(1, 5));
    assert_eq!(first.heard(), []);
    let acknowledged = StrategyEvent::Acknowledged {
        subflow: SUBFLOW,
        bytes: 4,
    };
    assert_eq!(second.heard(), [acknowledged]);
}

/// The record of a connection's path serves the next connection: its strategy, and the timer of its SYN.
#[test]
fn a_path_is_remembered() {
    let (mut s, _) = opened(65_535);
    s.write("data");
    recv!(s, 10, data(1, 1, "data"));
    send!(s, 50, ack(1, 5));
    s.abort();
    s.skip(5_000);
    let peer = ([10, 0, 9, 1], PORT).into();
    let (known, path, record) = s.stack.records().next().expect("a record");
    assert_eq!((known, path), (IpAddr::from([10, 0, 9, 1]), PathId(0)));
    assert_eq!(
        record.srtt,
        Duration::from_millis(10 + (40 - 10) / 8) + Duration::from_micros(750)
    );
    assert_eq!(record.base_rtt, Duration::from_millis(10));
    assert_eq!((record.bytes_sent, record.bytes_lost), (4, 0));
    let listener = Listener::default();
    s.open(ConnectOptions::new(peer, Box::new(listener.clone())));
    assert_eq!(listener.path().record, Some(record));
    recv!(s, 5_000, syn().on(1).ws(None).raw(&[30, 4, 1, 1]));
    recv!(s, 5_213.75, syn().on(1).ws(None).raw(&[30, 4, 1, 1]));
}

/// A strategy sees how many connections open on a path at the same time.
#[test]
fn connections_that_open_together_are_counted() {
    let (mut s, _) = opened(65_535);
    let listener = Listener::default();
    let openings = |s: &mut Script| {
        let peer = ([10, 0, 9, 1], PORT).into();
        let options = ConnectOptions::new(peer, Box::new(listener.clone()));
        let id = s.stack.connect(s.now, options).expect("a path");
        (id, listener.path().openings)
    };
    assert_eq!(openings(&mut s).1, 0, "the first one is open");
    let (second, first) = openings(&mut s);
    assert_eq!((first, openings(&mut s).1), (1, 2));
    // One that gives up opens no more.
    s.stack.abort(s.now, second);
    assert_eq!(openings(&mut s).1, 2);
}
