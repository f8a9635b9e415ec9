//! What users see of destinations and servers that say no.

use braid_engine::CloseReason;
use braid_sim::aggregation::{AggregationConfig, Load};

use crate::support::{
    ask, box_counters, ending, link, millis, secs, server_counters, start, two_links,
};

/// The box completes the user's handshake before the destination is known.
#[test]
fn a_refused_destination_is_a_reset_right_after_the_connection() {
    let mut net = start(&two_links());
    let id = ask(&mut net, "198.51.100.1:9");
    net.run_for(secs(5));
    let (after, reason) = ending(&net, id).unwrap();
    assert_eq!(reason, CloseReason::Reset);
    // The box's handshake with the server and one round trip more, over the link of 30 ms.
    assert!((millis(55)..millis(80)).contains(&after), "{after:?}");
    assert_eq!(net.at_user(id).sent, 100, "it was connected");
    assert_eq!(box_counters(&net).destination_refused, 1);
    assert_eq!(server_counters(&net).refused, 1);
}

#[test]
fn so_is_one_that_no_network_leads_to() {
    let mut net = start(&two_links());
    let id = ask(&mut net, "198.18.0.1:80");
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
    let patience = config.servers[0].config.timeouts.connect;
    assert!((patience..patience + secs(1)).contains(&after), "{after:?}");
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
    // The others the box itself leaves alone.
    assert_eq!(box_counters(&net).accepted, 1);
}

fn refused_by_the_server(config: &AggregationConfig) -> (CloseReason, u64) {
    let mut net = start(config);
    let id = net.open(0, 0, Load::Down(1_000)).unwrap();
    net.run_for(secs(10));
    let (_, reason) = ending(&net, id).unwrap();
    assert_eq!(net.at_user(id).received, 0);
    assert!(net.at_content(id).is_none(), "nothing reached the content");
    let counters = server_counters(&net);
    assert_eq!(box_counters(&net).auth_refused, 1);
    (reason, counters.auth_wrong + counters.auth_time)
}

#[test]
fn a_wrong_secret_opens_nothing() {
    let mut config = two_links();
    let other = AggregationConfig::new(vec![link(1, 1)]).unwrap();
    assert_eq!(
        other.boxed.servers[0].secret,
        config.boxed.servers[0].secret
    );
    let secret = "aabbccddeeff00112233445566778899aabbccddeeff00112233445566778899";
    config.servers[0].config.users[0].secret = braid_proxy::config::Secret::new(secret).unwrap();
    assert_eq!(refused_by_the_server(&config), (CloseReason::Reset, 1));
}

#[test]
fn nor_does_a_clock_that_is_off() {
    let mut config = two_links();
    config.servers[0].clock_ahead = config.servers[0].config.time_window + secs(5);
    assert_eq!(refused_by_the_server(&config), (CloseReason::Reset, 1));
    // Within the window it matters only until the server has run for as long: before, it cannot
    // tell whether a password was used already.
    config.servers[0].clock_ahead = secs(30);
    let mut net = start(&config);
    net.run_for(secs(31));
    let id = net.open(0, 0, Load::Down(1_000)).unwrap();
    assert!(net.finish(secs(10)));
    assert_eq!(net.at_user(id).received, 1_000);
}
