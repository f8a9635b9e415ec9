//! Links that are dark for seconds or minutes, and NATs that forget: connections recover afterwards.

use core::time::Duration;

use braid_links::middlebox::{Chain, Nat, NatConfig};
use braid_sim::aggregation::{
    Action, Aggregation, AggregationConfig, Load, TransferId, content_addr, link_addr,
};
use braid_sim::traffic::{Exchange, Role, Stream};

use crate::support::{dark, link, millis, secs, start};

/// Returns links of 4 and of 2 Mbit/s, of which minutes take little time to simulate.
fn slow_links() -> AggregationConfig {
    AggregationConfig::new(vec![link(4, 30), link(2, 70)]).unwrap()
}

/// The way in which a link goes away.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Away {
    /// Nothing reports it, as when a radio link drops out.
    Silently,
    /// The interface loses its carrier.
    Unplugged,
}

fn set(net: &mut Aggregation, config: &AggregationConfig, link: usize, away: Away, up: bool) {
    let settings = match up {
        true => Box::new(config.access[link].clone()),
        false => dark(config.access[link].clone()),
    };
    let action = match away {
        Away::Silently => Action::Access { link, settings },
        Away::Unplugged => Action::Carrier { link, up },
    };
    net.after(secs(0), action);
    net.run_for(secs(0));
}

/// Returns the bytes that a link carried away from the box, and to it.
fn carried(net: &Aggregation, link: usize) -> [u64; 2] {
    let (up, down) = net.access[link];
    [up, down].map(|line| net.world.counters(line).delivered.bytes)
}

/// The faster link carries data again two seconds after it is back, for any length and kind of outage and
/// both directions.
#[test]
fn a_link_that_is_back_is_used_within_two_seconds() {
    for away in [Away::Silently, Away::Unplugged] {
        for (direction, load) in [Load::Up(60_000_000), Load::Down(60_000_000)]
            .into_iter()
            .enumerate()
        {
            for seconds in [5, 20, 40, 120] {
                let config = slow_links();
                let mut net = start(&config);
                let id = net.open(0, 0, load).unwrap();
                net.run_for(secs(5));
                set(&mut net, &config, 0, away, false);
                net.run_for(secs(seconds));
                set(&mut net, &config, 0, away, true);
                let before = carried(&net, 0)[direction];
                net.run_for(secs(2));
                // A fifth of the link's capacity in that time; probes and handshakes are far less.
                let bytes = carried(&net, 0)[direction] - before;
                let what = (away, load, seconds, bytes);
                assert!(bytes > 200_000, "{what:?}");
                assert!(net.at_user(id).closed.is_none(), "{what:?}");
            }
        }
    }
}

/// Opens a connection on which a user sends `count` requests, each `think` after the answer before.
fn talk(net: &mut Aggregation, think: Duration, count: usize) -> TransferId {
    let exchange = Exchange {
        think,
        request: 200,
        answer: 2_000,
    };
    let addr = (content_addr(0), 900).into();
    let node = net.contents[0];
    // One address serves several of them.
    let _ = net.world.serve(node, addr, Stream::new(Role::Serve));
    let role = Role::Ask(vec![exchange; count].into());
    net.open_to(0, addr, role).unwrap()
}

fn answers(net: &Aggregation, id: TransferId) -> usize {
    net.at_user(id).messages().len()
}

/// Every link is dark for minutes, as in a tunnel. Traffic goes on when the first one is back: downloads,
/// uploads, a talk, and a connection that was idle meanwhile.
#[test]
fn an_outage_of_all_links_is_outlived() {
    for (away, seconds) in [
        (Away::Silently, 35),
        (Away::Silently, 180),
        (Away::Unplugged, 180),
    ] {
        let config = slow_links();
        let mut net = start(&config);
        let down = net.open(0, 0, Load::Down(20_000_000)).unwrap();
        let up = net.open(0, 0, Load::Up(20_000_000)).unwrap();
        let talking = talk(&mut net, millis(200), 10_000);
        let idle = talk(&mut net, secs(seconds + 10), 10);
        net.run_for(secs(5));
        for link in [0, 1] {
            set(&mut net, &config, link, away, false);
        }
        net.run_for(secs(seconds));
        let moved = |net: &Aggregation| {
            let at_content = net.at_content(up).unwrap().received;
            let at_user = net.at_user(down).received;
            [at_user, at_content, answers(net, talking) as u64]
        };
        let before = moved(&net);
        set(&mut net, &config, 0, away, true);
        net.run_for(secs(3));
        let after = moved(&net);
        let what = (away, seconds, before, after);
        for (n, least) in [50_000, 50_000, 3].into_iter().enumerate() {
            assert!(after[n] >= before[n] + least, "{n}: {what:?}");
        }
        set(&mut net, &config, 1, away, true);
        net.run_for(secs(8));
        assert!(answers(&net, idle) >= 1, "{what:?}");
        for id in [down, up, talking, idle] {
            assert!(net.at_user(id).closed.is_none(), "{what:?}");
        }
    }
}

/// Builds the network behind a NAT that forgets connections after an idle time, and drops packets of
/// unknown ones.
fn behind_nat(access: Vec<braid_sim::transfer::PathSettings>, forgets: Duration) -> Aggregation {
    let config = AggregationConfig::new(access).unwrap();
    let nat = NatConfig {
        established: forgets,
        adopts: false,
        ..NatConfig::new(link_addr(0))
    };
    let chain = Chain::new().and(Nat::new(nat));
    let mut net = Aggregation::with_middlebox(1, &config, Some((0, chain))).unwrap();
    assert!(net.run_until_intercepting(), "no server was found");
    net.run_for(millis(500));
    net
}

/// Returns how long a user waited for each answer.
fn waits(net: &Aggregation, id: TransferId) -> Vec<Duration> {
    let messages = net.at_user(id).messages();
    messages.iter().map(|answer| answer.delay()).collect()
}

/// A NAT that forgets after a minute keeps an open connection, whatever its idle time: each answer comes
/// as fast as the first.
#[test]
fn an_idle_connection_survives_a_nat_that_forgets() {
    for access in [vec![link(20, 30)], vec![link(20, 30), link(10, 70)]] {
        let mut net = behind_nat(access, secs(60));
        let think = secs(600);
        let id = talk(&mut net, think, 3);
        net.run_for(secs(1_830));
        let waits = waits(&net, id);
        assert_eq!(waits.len(), 3, "{waits:?}");
        assert!(waits.iter().all(|wait| *wait < millis(150)), "{waits:?}");
    }
}

/// If the NAT forgets sooner than the connection probes, a fresh subflow is there within seconds.
#[test]
fn a_connection_that_a_nat_has_forgotten_goes_on_within_seconds() {
    let mut net = behind_nat(vec![link(20, 30)], secs(8));
    let think = secs(40);
    let id = talk(&mut net, think, 5);
    net.run_for(secs(230));
    let waits = waits(&net, id);
    assert_eq!(waits.len(), 5, "{waits:?}");
    assert!(waits.iter().all(|wait| *wait < secs(4)), "{waits:?}");
}

/// After minutes without requests, a user's first byte comes no later than over a connection opened for
/// it, whether connections wait in the pool or not.
#[test]
fn no_user_is_given_a_connection_that_a_nat_has_forgotten() {
    let first_byte = |pause: u64, warm: usize| {
        let mut config = AggregationConfig::new(vec![link(20, 30)]).unwrap();
        config.boxed.warm.max = warm;
        let nat = NatConfig {
            established: secs(60),
            adopts: false,
            ..NatConfig::new(link_addr(0))
        };
        let chain = Chain::new().and(Nat::new(nat));
        let mut net = Aggregation::with_middlebox(1, &config, Some((0, chain))).unwrap();
        assert!(net.run_until_intercepting());
        net.run_for(millis(500));
        net.open(0, 0, Load::Down(2_000)).unwrap();
        net.run_for(secs(pause));
        let id = net.open(0, 0, Load::Down(2_000)).unwrap();
        net.run_for(secs(5));
        let user = net.at_user(id);
        user.first_byte_at.unwrap().saturating_since(user.opened_at)
    };
    let cold = first_byte(5, 0);
    for pause in [50, 58, 61, 70, 119, 125, 290, 600] {
        let took = first_byte(pause, 8);
        assert!(took <= cold, "after {pause} s: {took:?}, cold {cold:?}");
    }
}
