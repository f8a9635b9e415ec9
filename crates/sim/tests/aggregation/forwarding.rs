//! Traffic that the box forwards.

use core::net::{IpAddr, SocketAddr};

use braid_engine::{ConnId, ConnectOptions, PathConfig, Protocol};
use braid_links::Settings;
use braid_proxy::LinkAddresses;
use braid_proxy::config::MptcpHosts;
use braid_sim::aggregation::{Aggregation, content_addr, link_addr, user_addr};
use braid_sim::gateway::{BoxNode, BoxNodeConfig, DownstreamConfig};
use braid_sim::host::options;
use braid_sim::traffic::{Role, Stream};
use braid_sim::{Host, Node, NodeId, Packet, Turn, World};
use braid_wire::ip;

use crate::support::{box_counters, secs, start, two_links};

/// Opens a connection of a user to the content host, independent of the network's own transfers.
fn direct(net: &mut Aggregation, protocol: Protocol) -> ConnId {
    let addr = SocketAddr::from((content_addr(0), 80));
    let answer = Role::Answer {
        request: 100,
        size: 200_000,
    };
    let content = net.contents[0];
    net.world.serve(content, addr, Stream::new(answer)).unwrap();
    let connect = ConnectOptions {
        protocol,
        ..options(addr)
    };
    let asks = Stream::new(Role::Fetch { request: 100 });
    net.world.open(net.users[0], connect, asks).unwrap()
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
fn a_user_who_speaks_mptcp_is_joined_where_the_box_is_told_so() {
    let mut config = two_links();
    config.boxed.mptcp_hosts = MptcpHosts::Proxy;
    let mut net = start(&config);
    direct(&mut net, Protocol::Mptcp);
    net.run_for(secs(5));
    let host: &Host = net.world.node(net.users[0]);
    assert_eq!(host.finished()[0].received, 200_000);
    assert_eq!(box_counters(&net).finished, 1);
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

/// A node that sends the packets given to it, and keeps the packets that arrive.
#[derive(Debug, Default)]
struct Post {
    out: Vec<Vec<u8>>,
    came: Vec<Vec<u8>>,
}

impl Node for Post {
    fn receive(&mut self, _: &mut Turn<'_>, _: u32, packet: Packet) {
        self.came.push(packet.bytes);
    }

    fn wake(&mut self, turn: &mut Turn<'_>) {
        for bytes in self.out.drain(..) {
            turn.send(0, Packet::new(bytes));
        }
    }
}

fn udp(src: IpAddr, dst: IpAddr, hop_limit: u8) -> Vec<u8> {
    let header = ip::Repr {
        src,
        dst,
        protocol: ip::PROTO_UDP,
        payload_len: 20,
        hop_limit,
        traffic_class: 0,
    };
    let mut bytes = vec![0; 40];
    header.emit(&mut bytes);
    bytes
}

/// Builds two hosts of a LAN, a box, and the far ends of its two links, without a server.
fn lan() -> (World, NodeId, [NodeId; 2], [NodeId; 2]) {
    let config = two_links();
    let links = [0, 1].map(|n| LinkAddresses {
        v4: Some(link_addr(n)),
        v6: None,
        mtu: 1500,
    });
    let settings = BoxNodeConfig {
        config: config.boxed,
        links: links.to_vec(),
        lan: vec![user_addr(0).into(), user_addr(1).into()],
        gateway: PathConfig::v4([192, 168, 1, 1].into()),
        downstream: DownstreamConfig::default(),
        tunnel: false,
    };
    let mut world = World::new(1);
    let boxed = world.add(|rng| BoxNode::new(settings, rng));
    let ends = [0, 1, 2, 3].map(|_| world.add(|_| Post::default()));
    for end in ends {
        world.connect(boxed, end, Settings::default(), Settings::default());
    }
    world.with_node(boxed, BoxNode::start).unwrap();
    let [wan0, wan1, host0, host1] = ends;
    (world, boxed, [wan0, wan1], [host0, host1])
}

#[test]
fn udp_takes_the_best_link_that_is_there() {
    let (mut world, boxed, wan, hosts) = lan();
    let [user, neighbour] = [user_addr(0).into(), user_addr(1).into()];
    let far = content_addr(0).into();
    let send = |world: &mut World, from: NodeId, packet: Vec<u8>| {
        world.with_node(from, |node: &mut Post, _| node.out.push(packet));
        world.advance(secs(1));
        // The box's own probes do not count.
        [wan[0], wan[1], hosts[0], hosts[1]].map(|n| {
            let node: &Post = world.node(n);
            let is_udp = |p: &&Vec<u8>| p[9] == ip::PROTO_UDP;
            node.came.iter().filter(is_udp).count()
        })
    };
    let out = udp(user, far, 64);
    assert_eq!(send(&mut world, hosts[0], out.clone()), [1, 0, 0, 0]);
    world.with_node(boxed, |node: &mut BoxNode, now| {
        node.set_carrier(now, 0, false)
    });
    assert_eq!(send(&mut world, hosts[0], out.clone()), [1, 1, 0, 0]);
    world.with_node(boxed, |node: &mut BoxNode, now| {
        node.set_carrier(now, 1, false)
    });
    assert_eq!(send(&mut world, hosts[0], out), [1, 1, 0, 0], "nowhere");
    // To a host of the LAN, between its hosts, and to an unknown address.
    assert_eq!(send(&mut world, wan[1], udp(far, user, 64)), [1, 1, 1, 0]);
    assert_eq!(
        send(&mut world, hosts[0], udp(user, neighbour, 64)),
        [1, 1, 1, 1]
    );
    assert_eq!(send(&mut world, wan[1], udp(far, far, 64)), [1, 1, 1, 1]);
    // The packet's last hop was the box.
    assert_eq!(send(&mut world, wan[1], udp(far, user, 1)), [1, 1, 1, 1]);
    let arrived = &world.node::<Post>(hosts[0]).came[0];
    assert_eq!(ip::Repr::parse(arrived).unwrap().0.hop_limit, 63);
}
