//! Refusals of destinations and servers, as users see them.

use braid_engine::CloseReason;
use braid_proxy::config::Protection;
use braid_secure::keys::PrivateKey;
use braid_sim::aggregation::{Aggregation, AggregationConfig, Load};

use crate::support::{ask, box_counters, ending, millis, secs, server_counters, start, two_links};

/// The box completes the user's handshake before the destination is known.
#[test]
fn a_refused_destination_is_a_reset_right_after_the_connection() {
    let mut net = start(&two_links());
    let id = ask(&mut net, "198.51.100.1:9");
    net.run_for(secs(5));
    let (after, reason) = ending(&net, id).unwrap();
    assert_eq!(reason, CloseReason::Reset);
    // The handshake of Multipath TCP over the link of 30 ms, and a first flight by the ticket that a
    // probe of the path brought.
    assert!((millis(55)..millis(80)).contains(&after), "{after:?}");
    assert_eq!(net.at_user(id).sent, 100, "it was connected");
    assert_eq!(box_counters(&net).destination_refused, 1);
    assert_eq!(server_counters(&net).refused, 1);
}

#[test]
fn so_is_one_that_no_network_leads_to() {
    let mut net = start(&two_links());
    let id = ask(&mut net, "198.20.0.1:80");
    net.run_for(secs(5));
    let (after, reason) = ending(&net, id).unwrap();
    assert_eq!(reason, CloseReason::Reset);
    assert!(after < millis(100), "{after:?}");
    assert_eq!(box_counters(&net).destination_unreachable, 1);
}

#[test]
fn a_silent_destination_is_given_up() {
    let mut config = two_links();
    config.servers[0].to_content.up.up = false;
    let mut net = start(&config);
    let id = ask(&mut net, "198.51.100.1:80");
    net.run_for(secs(60));
    let (after, reason) = ending(&net, id).unwrap();
    assert_eq!(reason, CloseReason::Reset);
    let timeout = config.servers[0].config.timeouts.connect;
    assert!((timeout..timeout + secs(1)).contains(&after), "{after:?}");
    assert_eq!(server_counters(&net).connect_timeout, 1);
}

#[test]
fn a_private_destination_is_not_the_servers_to_reach() {
    let mut net = start(&two_links());
    let ids = ["10.9.9.9:80", "127.0.0.2:80", "203.0.113.1:22"].map(|to| ask(&mut net, to));
    net.run_for(secs(5));
    let (_, reason) = ending(&net, ids[0]).unwrap();
    assert_eq!(reason, CloseReason::Reset);
    assert_eq!(box_counters(&net).destination_forbidden, 1);
    assert_eq!(server_counters(&net).forbidden, 1);
    // The box itself does not aggregate the others.
    assert_eq!(box_counters(&net).accepted, 1);
}

/// Returns whether the server refused a password.
fn is_refused_by_the_server(config: &AggregationConfig) -> bool {
    let counters = server_counters(&opens_nothing(config));
    counters.auth_wrong + counters.auth_time > 0
}

/// Asserts that no user gets data by the server and that users are forwarded: the box finds out before a
/// user arrives.
fn opens_nothing(config: &AggregationConfig) -> Aggregation {
    let mut net = start(config);
    assert!(!net.box_node().core().unwrap().wants_interception());
    let id = net.open(0, 0, Load::Down(1_000)).unwrap();
    net.run_for(secs(10));
    assert_eq!(net.at_user(id).received, 1_000, "it was forwarded");
    assert_eq!(server_counters(&net).connected, 0);
    assert_eq!(box_counters(&net).accepted, 0);
    net
}

/// Turns protection off at both ends.
fn with_plaintext(mut config: AggregationConfig) -> AggregationConfig {
    for server in &mut config.boxed.servers {
        server.protection = Protection::None;
    }
    for server in &mut config.servers {
        server.config.unprotected = true;
    }
    config
}

#[test]
fn a_wrong_key_opens_nothing() {
    let other = PrivateKey::from_seed([7; 32]);
    for start in [two_links(), with_plaintext(two_links())] {
        let mut config = start.clone();
        config.servers[0].config.users[0].key = other.public();
        assert!(is_refused_by_the_server(&config));
        let mut config = start;
        config.boxed.key = other.clone();
        assert!(is_refused_by_the_server(&config));
    }
}

/// A server that requires protection does not serve without it.
#[test]
fn nor_does_a_box_in_clear() {
    let mut config = with_plaintext(two_links());
    config.servers[0].config.unprotected = false;
    assert!(server_counters(&opens_nothing(&config)).plaintext_refused > 0);
}

/// A server with another key than the configured one does not serve a box either.
#[test]
fn nor_does_a_wrong_server() {
    let mut config = two_links();
    config.servers[0].config.key = PrivateKey::from_seed([7; 32]);
    assert_eq!(server_counters(&opens_nothing(&config)).damaged, 0);
    let config = with_plaintext(config);
    assert!(is_refused_by_the_server(&config));
}

#[test]
fn nor_does_a_clock_that_is_off_in_clear() {
    let mut config = with_plaintext(two_links());
    config.servers[0].clock_ahead = config.servers[0].config.time_window + secs(5);
    assert!(is_refused_by_the_server(&config));
    // Within the window the clock matters only until the server has run for as long: before that it
    // cannot tell whether a password was used already.
    config.servers[0].clock_ahead = secs(30);
    let mut net = start(&config);
    net.run_for(secs(31));
    let id = net.open(0, 0, Load::Down(1_000)).unwrap();
    assert!(net.finish(secs(10)));
    assert_eq!(net.at_user(id).received, 1_000);
}

#[test]
fn protection_does_not_depend_on_clocks() {
    let mut config = two_links();
    config.servers[0].clock_ahead = secs(36_000);
    let mut net = start(&config);
    for _ in 0..3 {
        net.open(0, 0, Load::Down(1_000)).unwrap();
        net.run_for(secs(5));
    }
    assert!(net.finish(secs(10)));
    assert_eq!(server_counters(&net).unknown_tickets, 0);
}
