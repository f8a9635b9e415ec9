//! What the box does not take in.

use core::net::SocketAddr;

use braid_engine::{ConnId, ConnectOptions, Protocol};
use braid_sim::Host;
use braid_sim::aggregation::{Aggregation, content_addr};
use braid_sim::gateway::default_policy;
use braid_sim::traffic::{Role, Stream};

use crate::support::{box_counters, secs, start, two_links};

/// A user connects to the content host past what the network's own transfers do.
fn direct(net: &mut Aggregation, protocol: Protocol) -> ConnId {
    let addr = SocketAddr::from((content_addr(0), 80));
    let answer = Role::Answer {
        request: 100,
        size: 200_000,
    };
    let content = net.contents[0];
    net.world
        .with_node(content, |host: &mut Host, _| {
            host.serve(addr, Stream::new(answer))
        })
        .unwrap();
    let options = ConnectOptions {
        protocol,
        ..ConnectOptions::new(addr, default_policy())
    };
    let asks = Stream::new(Role::Fetch { request: 100 });
    net.world
        .with_node(net.users[0], |host: &mut Host, now| {
            host.open(now, options, asks)
        })
        .unwrap()
}

#[test]
fn a_user_who_speaks_mptcp_is_left_alone() {
    let mut net = start(&two_links());
    let conn = direct(&mut net, Protocol::Mptcp);
    net.run_for(core::time::Duration::from_millis(100));
    let host: &Host = net.world.node(net.users[0]);
    assert_eq!(host.stack().is_mptcp(conn), Some(true), "end to end");
    net.run_for(secs(5));
    let host: &Host = net.world.node(net.users[0]);
    assert_eq!(host.finished()[0].received, 200_000);
    assert_eq!(box_counters(&net).accepted, 0);
}

#[test]
fn so_are_destinations_in_the_bypass_list() {
    let mut config = two_links();
    config.boxed.bypass = vec!["198.51.100.0/24".parse().unwrap()];
    let mut net = start(&config);
    direct(&mut net, Protocol::Tcp);
    net.run_for(secs(5));
    let host: &Host = net.world.node(net.users[0]);
    assert_eq!(host.finished()[0].received, 200_000);
    assert_eq!(box_counters(&net).accepted, 0);
}

#[test]
fn plain_tcp_to_anywhere_else_is_joined() {
    let mut net = start(&two_links());
    direct(&mut net, Protocol::Tcp);
    net.run_for(secs(5));
    let host: &Host = net.world.node(net.users[0]);
    assert_eq!(host.finished()[0].received, 200_000);
    assert_eq!(box_counters(&net).finished, 1);
}
