//! A second SYN beside one that is late: the first one answered opens the connection.

use core::time::Duration;

use braid_engine::strategy::{Decision, OpenView, PathView, SendView, Strategy};
use braid_engine::{CloseReason, ConnectOptions, Event, PathConfig};
use braid_wire::Rng;

use crate::harness::{PORT, Script, config};
use crate::segment::{Seg, ack, data, rst, rst_ack, syn, syn_ack};

/// Waits 100 ms for the answer to a SYN.
#[derive(Debug)]
struct Impatient;

impl Strategy for Impatient {
    fn name(&self) -> &'static str {
        "impatient"
    }

    fn attempt_delay(&self, _: &OpenView<'_>, _: &PathView) -> Option<Duration> {
        Some(Duration::from_millis(100))
    }

    fn next(&mut self, view: &SendView<'_>, _: &mut Rng) -> Decision {
        match view.subflows.iter().find(|s| s.ready) {
            Some(s) if view.may_send_new => Decision::new_on(s.id),
            _ => Decision::WAIT,
        }
    }
}

fn capable() -> Seg {
    syn().ws(None).raw(&[30, 4, 1, 1])
}

/// A connection over `paths` paths whose first SYN left at 0 and was not answered by 99 ms.
fn late(paths: u8) -> Script {
    let path = |n| PathConfig::v4([10, 0, n, 2].into());
    let paths: Vec<PathConfig> = (0..paths).map(path).collect();
    let mut s = Script::new(config(), &paths);
    let remote = core::net::SocketAddr::from(([10, 0, 9, 1], PORT));
    s.open(ConnectOptions::new(remote, Box::new(Impatient)));
    recv!(s, 0, capable());
    quiet!(s, 99);
    s
}

#[test]
fn the_second_may_win() {
    let mut s = late(2);
    recv!(s, 100, capable().on(1));
    send!(s, 110, s.peer_capable(syn_ack()).on(1).win(65_535));
    recv!(s => 110, s.stack_keys(ack(1, 1)).on(1));
    // The path of the first SYN is joined like any other.
    s.advance(braid_wire::Instant::from_millis(115));
    let (_, join) = s.take().expect("a join");
    Script::join_syn(&join.mptcp[0]);
    // Its SYN is answered after all, which has no effect any more.
    send!(s, 120, s.peer_capable(syn_ack()));
    recv!(s, 120, rst(1));
    s.write("data");
    recv!(s => 120, s.stack_keys_data(data(1, 1, "data"), 4).on(1));
}

#[test]
fn the_first_may_win() {
    let mut s = late(2);
    recv!(s, 100, capable().on(1));
    send!(s, 105, s.peer_capable(syn_ack()).win(65_535));
    recv!(s => 105, s.stack_keys(ack(1, 1)));
    send!(s, 110, s.peer_capable(syn_ack()).on(1));
    recv!(s, 110, rst(1).on(1));
}

/// Each SYN is repeated by its own timer, and a refusal of one leaves the other.
#[test]
fn both_run_on() {
    let mut s = late(2);
    recv!(s, 100, capable().on(1));
    recv!(s, 1_000, capable());
    recv!(s, 1_100, capable().on(1));
    send!(s, 1_110, rst_ack(0, 1).on(1));
    // The remaining one continues as if it had been alone: its third SYN goes without MP_CAPABLE.
    recv!(s, 3_000, syn().ws(None).on(2));
    send!(s, 3_010, rst_ack(0, 1).on(2));
    let refused = |e: &Event| {
        let reason = CloseReason::Refused;
        matches!(e, Event::Closed { reason: r, .. } if *r == reason)
    };
    assert!(s.saw(refused));
}

#[test]
fn a_second_needs_another_path() {
    let mut s = late(1);
    quiet!(s, 999);
    recv!(s, 1_000, capable());
}
