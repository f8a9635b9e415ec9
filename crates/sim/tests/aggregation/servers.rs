//! The choice among several servers (PLS).

use core::time::Duration;

use braid_proxy::config::Select;
use braid_sim::aggregation::{Action, Aggregation, Load, TransferId};

use crate::support::{millis, secs, start, two_links};

/// A user's connection every 200 ms for `time`.
fn browse(net: &mut Aggregation, time: Duration) -> Vec<TransferId> {
    let mut ids = Vec::new();
    for _ in 0..time.as_millis() / 200 {
        ids.push(net.open(0, 0, Load::Down(20_000)).unwrap());
        net.run_for(millis(200));
    }
    ids
}

/// Connections of users that a server has led to their destination.
fn connected(net: &Aggregation, server: usize) -> u64 {
    let core = net.server_node(server).core();
    core.map_or(0, |core| core.counters().connected)
}

fn longest(net: &Aggregation, ids: &[TransferId]) -> Duration {
    let took = ids
        .iter()
        .map(|id| net.duration(*id).expect("it is through"));
    took.max().unwrap()
}

#[test]
fn a_server_that_dies_is_left_within_three_seconds_and_used_again() {
    let mut config = two_links();
    config.set_servers(2).unwrap();
    config.boxed.select = Select::Order;
    let mut net = start(&config);
    browse(&mut net, secs(4));
    assert_eq!(connected(&net, 1), 0);
    net.after(secs(0), Action::KillServer(0));
    let meanwhile = browse(&mut net, secs(3));
    let before = connected(&net, 1);
    let after = browse(&mut net, secs(5));
    net.run_for(secs(1));
    assert!(connected(&net, 1) >= before + after.len() as u64);
    assert!(
        longest(&net, &after) < millis(200),
        "{:?}",
        longest(&net, &after)
    );
    // Nobody was sent away, and nobody waited for long.
    assert!(
        longest(&net, &meanwhile) < secs(3),
        "{:?}",
        longest(&net, &meanwhile)
    );
    net.after(secs(0), Action::StartServer(0));
    browse(&mut net, secs(5));
    let before = connected(&net, 0);
    let back = browse(&mut net, secs(5));
    net.run_for(secs(1));
    assert_eq!(connected(&net, 0), before + back.len() as u64);
    assert!(
        longest(&net, &back) < millis(200),
        "{:?}",
        longest(&net, &back)
    );
}

/// Nobody asked for anything while it died: the first to ask waits, and the others go elsewhere.
#[test]
fn a_server_that_died_in_quiet_times_is_left_within_three_seconds_of_the_next_connection() {
    let mut config = two_links();
    config.set_servers(2).unwrap();
    config.boxed.select = Select::Order;
    let mut net = start(&config);
    browse(&mut net, secs(2));
    net.run_for(secs(90));
    net.after(secs(0), Action::KillServer(0));
    net.run_for(millis(100));
    let meanwhile = browse(&mut net, secs(3));
    let before = connected(&net, 1);
    let after = browse(&mut net, secs(2));
    net.run_for(secs(1));
    assert!(connected(&net, 1) >= before + after.len() as u64);
    assert!(
        longest(&net, &meanwhile) < secs(3),
        "{:?}",
        longest(&net, &meanwhile)
    );
}
