//! Joins as soon as the peer's key is known, before the third ACK is known to have arrived.

use core::time::Duration;

use braid_engine::strategy::Strategy;
use braid_engine::{ConnectOptions, Event, FallbackCause, PathConfig, PathId, PathRecord};
use braid_wire::Instant;

use crate::harness::{PORT, Script, config};
use crate::join::{join_syn_ack, third_ack};
use crate::segment::{ack, dack, data, rst_ack, syn, syn_ack};
use crate::strategy::eager;

/// A connection from two paths whose third ACK leaves at 10 ms; `record` is the second path's.
pub fn opened(record: Option<PathRecord>) -> Script {
    opened_by(eager(), record)
}

/// Returns the same connection with another strategy.
pub fn opened_by(strategy: Box<dyn Strategy>, record: Option<PathRecord>) -> Script {
    let path = |n| PathConfig::v4([10, 0, n, 2].into());
    let mut s = Script::new(config(), &[path(0), path(1)]);
    let remote = core::net::SocketAddr::from(([10, 0, 9, 1], PORT));
    if let Some(record) = record {
        s.stack.load_record(remote.ip(), PathId(1), record);
    }
    s.open(ConnectOptions::new(remote, strategy));
    recv!(s, 0, syn().ws(None).raw(&[30, 4, 1, 1]));
    send!(s, 10, s.peer_capable(syn_ack()).win(65_535));
    recv!(s => 10, s.stack_keys(ack(1, 1)));
    s
}

/// Returns the time at which the join's SYN left, and its nonce.
pub fn join(s: &mut Script) -> (f64, u32) {
    let (at, got) = s.take().expect("no join");
    let (_, nonce) = Script::join_syn(&got.mptcp[0]);
    (at.as_nanos() as f64 / 1e6, nonce)
}

#[test]
fn a_join_follows_the_third_ack() {
    let mut s = opened(None);
    s.advance(Instant::from_millis(12));
    let (at, nonce) = join(&mut s);
    assert_eq!(at, 10.0 + 10.0 / 8.0);
    // The join is not completed before a fallback is ruled out.
    send!(s, 16, join_syn_ack(&s, nonce, false));
    quiet!(s, 19);
    send!(s, 20, ack(1, 1).win(512).dss(dack(0)));
    recv!(s => 20, third_ack(s, nonce));
    send!(s, 22, ack(1, 1).on(1).win(512).dss(dack(0)));
    s.write("fast");
    recv!(s, 22, data(1, 1, "fast").on(1).dss(dack(0).map(0, 1, 4)));
}

/// A join that overtook the third ACK is tried again when the peer is known to have that, and does not
/// count against the path.
#[test]
fn a_join_that_came_too_soon_is_repeated() {
    let mut s = opened(None);
    s.advance(Instant::from_millis(12));
    join(&mut s);
    send!(s, 12, rst_ack(0, 1).on(1));
    quiet!(s, 19);
    send!(s, 20, ack(1, 1).win(512).dss(dack(0)));
    assert_eq!(join(&mut s).0, 20.0);
}

/// If the second path is known to be faster, the join waits so that it arrives second.
#[test]
fn a_join_does_not_overtake_the_third_ack() {
    let record = PathRecord {
        srtt: Duration::from_millis(4),
        base_rtt: Duration::from_millis(2),
        ..PathRecord::default()
    };
    let mut s = opened(Some(record));
    s.advance(Instant::from_millis(19));
    assert_eq!(join(&mut s).0, 10.0 + (12.5 - 2.0) / 2.0);
}

/// Eight seconds were once normal on the path; now it answers within 10 ms, and an answer later than the
/// timeout for that counts as lost.
#[test]
fn a_third_ack_waits_no_longer_than_a_timeout() {
    let record = PathRecord {
        srtt: Duration::from_secs(4),
        rttvar: Duration::from_secs(1),
        base_rtt: Duration::from_millis(10),
        bytes_sent: 1_000_000,
        ..PathRecord::default()
    };
    let mut s = opened(Some(record));
    s.advance(Instant::from_millis(20));
    let (at, nonce) = join(&mut s);
    assert_eq!(at, 11.25);
    send!(s, 20, ack(1, 1).win(512).dss(dack(0)));
    send!(s, 21.25, join_syn_ack(&s, nonce, false));
    recv!(s => 21.25, third_ack(s, nonce));
    recv!(s => 231.25, third_ack(s, nonce));
}

/// The peer turns out not to support MPTCP.
#[test]
fn a_join_under_way_keeps_no_connection_from_falling_back() {
    let mut s = opened(None);
    s.advance(Instant::from_millis(12));
    let (_, nonce) = join(&mut s);
    send!(s, 12, join_syn_ack(&s, nonce, false));
    s.write("hello");
    recv!(s => 12, s.stack_keys_data(data(1, 1, "hello"), 5));
    send!(s, 20, ack(1, 6));
    let plain = |e: &Event| matches!(e, Event::FellBack { cause, .. } if *cause == FallbackCause::DataPlain);
    assert!(s.saw(plain));
    assert_eq!(s.stack.subflows(s.id()).len(), 1);
    send!(s, 22, join_syn_ack(&s, nonce, false));
    let (_, reset) = s.take().expect("an answer");
    assert!(reset.flags.contains(braid_wire::tcp::Flags::RST));
    s.write("more");
    let (_, more) = s.take().expect("data");
    assert_eq!((more.flow, more.payload.as_slice()), (0, &b"more"[..]));
}
