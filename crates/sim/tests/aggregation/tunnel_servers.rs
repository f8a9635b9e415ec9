//! The tunnel of a box with two servers.

use core::net::IpAddr;
use core::time::Duration;

use braid_proxy::control::{Answer, Request};
use braid_proxy::status::Status;
use braid_proxy::tunnel_status::TunnelStatus;
use braid_proxy::{BoxConfig, ServerConfig};
use braid_sim::aggregation::{content_addr, link_addr, server_addr};
use braid_sim::gateway::{BoxNode, DownstreamConfig, ServerNode, ServerNodeConfig};
use braid_sim::router::Router;
use braid_sim::{NodeId, World};
use ipnet::IpNet;

use crate::support::secs;
use crate::tunnel::{Caller, Drops, Echo, Filter, GAP, box_settings, gigabit, key, links};

/// A box with a caller in its LAN, two links, two servers and an echo server behind both.
struct Net {
    world: World,
    boxed: NodeId,
    caller: NodeId,
    echo: NodeId,
    /// The filters of each server, one a link.
    filters: Vec<[NodeId; 2]>,
}

/// The ability of a server to carry a tunnel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Offer {
    Carries,
    /// Its driver cannot, which it says when it is asked.
    Refuses,
    /// Its configuration has none, which the handshake shows.
    HasNone,
}

fn box_config() -> BoxConfig {
    let servers = (0..2).map(|n| {
        let (addr, key) = (server_addr(n), key(100 + n as u8).public());
        format!("[[server]]\naddress = \"{addr}\"\nkey = \"{key}\"\n")
    });
    let text = format!(
        "lan = \"lan0\"\nselect = \"order\"\n[[link]]\ninterface = \"link0\"\n[[link]]\ninterface = \"link1\"\n{}",
        servers.collect::<String>()
    );
    BoxConfig::with_key("box.toml", &text, key(1)).unwrap()
}

fn server_config(n: usize, offer: Offer) -> ServerNodeConfig {
    let datagrams = match offer {
        Offer::HasNone => "forward",
        _ => "tunnel",
    };
    let text = format!(
        "listen = \"{}\"\nallow = \"198.51.100.0/24\"\ndatagrams = \"{datagrams}\"\n[[user]]\nname = \"user\"\n\
         key = \"{}\"\n",
        server_addr(n),
        key(1).public()
    );
    let to = |addr, iface| (IpAddr::V4(addr), iface);
    ServerNodeConfig {
        config: ServerConfig::with_key("server.toml", &text, key(100 + n as u8)).unwrap(),
        routes: vec![
            to(link_addr(0), 0),
            to(link_addr(1), 1),
            to(content_addr(0), 2),
        ],
        downstream: DownstreamConfig::default(),
        clock_ahead: Duration::ZERO,
        tunnel: offer == Offer::Carries,
    }
}

impl Net {
    fn new(offers: [Offer; 2]) -> Net {
        let mut world = World::new(1);
        let settings = box_settings(box_config(), 1);
        let boxed = world.add(|rng| BoxNode::new(settings, rng));
        let host = |addr| IpNet::from(IpAddr::V4(addr));
        let servers = |mut router: Router| {
            for n in 0..2 {
                router = router.route(host(server_addr(n)), 1 + n as u32);
            }
            router
        };
        let forks = [0, 1]
            .map(|link| world.add(|_| servers(Router::new().route(host(link_addr(link)), 0))));
        let beyond = world.add(|_| servers(Router::new().route(host(content_addr(0)), 0)));
        let wire = gigabit();
        for (fork, path) in forks.iter().zip(links()) {
            world.connect(boxed, *fork, path.up, path.down);
        }
        let caller = world.add(|_| Caller::new());
        world.connect(boxed, caller, wire.up.clone(), wire.down.clone());
        let echo = world.add(|_| Echo::default());
        world.connect(beyond, echo, wire.up.clone(), wire.down.clone());
        let mut filters = Vec::new();
        for (n, offer) in offers.into_iter().enumerate() {
            let server = world.add(|rng| ServerNode::new(server_config(n, offer), rng));
            let of_links = forks.map(|fork| {
                let filter = world.add(|_| Filter::default());
                world.connect(fork, filter, wire.up.clone(), wire.down.clone());
                world.connect(filter, server, wire.up.clone(), wire.down.clone());
                filter
            });
            filters.push(of_links);
            world.connect(beyond, server, wire.up.clone(), wire.down.clone());
            world.with_node(server, ServerNode::start).unwrap();
        }
        world.with_node(boxed, BoxNode::start).unwrap();
        Net {
            world,
            boxed,
            caller,
            echo,
            filters,
        }
    }

    fn call(&mut self) {
        let start = |caller: &mut Caller, now| caller.next_at = Some(now);
        self.world.with_node(self.caller, start);
    }

    fn answered(&self) -> usize {
        let caller: &Caller = self.world.node(self.caller);
        caller.answered.len()
    }

    /// Returns the servers that the call has left at.
    fn exits(&self) -> Vec<IpAddr> {
        let echo: &Echo = self.world.node(self.echo);
        echo.sources.keys().map(|from| from.ip()).collect()
    }

    fn drop(&mut self, server: usize, drops: Drops) {
        for filter in self.filters[server] {
            let set = |filter: &mut Filter, _| filter.drops = drops;
            self.world.with_node(filter, set);
        }
    }

    fn status(&mut self) -> TunnelStatus {
        self.whole_status().tunnel.unwrap()
    }

    fn is_degraded_by(&mut self, code: &str) -> bool {
        let reasons = self.whole_status().verdict.reasons;
        reasons.iter().any(|reason| reason.code == code)
    }

    fn whole_status(&mut self) -> Status {
        let ask = |node: &mut BoxNode, now| node.ask(now, Request::Status);
        match self.world.with_node(self.boxed, ask) {
            Some(Answer::Status(status)) => *status,
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_server_that_refuses_or_offers_none_is_passed_over() {
    for first in [Offer::Refuses, Offer::HasNone] {
        let mut net = Net::new([first, Offer::Carries]);
        net.world.advance(secs(3));
        net.call();
        net.world.advance(secs(3));
        let status = net.status();
        assert_eq!(status.state, "up", "{first:?}: {status:?}");
        assert_eq!(net.exits(), [IpAddr::V4(server_addr(1))]);
        assert!(net.answered() > 100);
    }
}

#[test]
fn only_if_every_server_refuses_the_box_says_so() {
    for second in [Offer::Refuses, Offer::HasNone] {
        let mut net = Net::new([Offer::Refuses, second]);
        net.world.advance(secs(5));
        let status = net.status();
        assert_eq!(status.sessions_total, 0);
        let reason = "the server offers no tunnel";
        assert_eq!(status.reason.as_deref(), Some(reason), "{second:?}");
    }
}

/// Another server would give every flow another address.
#[test]
fn a_working_session_stays_at_its_server_until_its_keys_are_too_old() {
    let mut net = Net::new([Offer::Carries; 2]);
    net.world.advance(secs(2));
    net.call();
    net.world.advance(secs(2));
    let before = net.status();
    assert_eq!((before.state.as_str(), before.opened), ("up", 1));
    // No connection reaches the server any more, but datagrams do. Fresh keys are due after 240 s.
    net.drop(0, Drops::Tcp);
    net.world.advance(secs(500));
    let status = net.status();
    assert_eq!((status.state.as_str(), status.opened), ("up", 1));
    assert!(status.attempts_failed > 2, "{status:?}");
    assert!(status.key_age_secs > Some(490), "{status:?}");
    assert!(net.is_degraded_by("tunnel-keys"));
    assert_eq!(net.exits(), [IpAddr::V4(server_addr(0))]);
    let answered = net.answered();
    net.world.advance(GAP * 50);
    assert!(net.answered() >= answered + 48);
    // Keys open no more than 10 min of traffic.
    net.world.advance(secs(110));
    let status = net.status();
    assert_eq!((status.state.as_str(), status.opened), ("up", 2));
    assert!(status.key_age_secs < Some(100), "{status:?}");
    assert!(!net.is_degraded_by("tunnel-keys"));
    assert!(net.exits().contains(&IpAddr::V4(server_addr(1))));
}

#[test]
fn a_session_whose_server_is_gone_moves() {
    let mut net = Net::new([Offer::Carries; 2]);
    net.world.advance(secs(2));
    net.call();
    net.world.advance(secs(2));
    net.drop(0, Drops::Udp);
    // The server still answers by TCP, so the session stays there and waits for its datagrams.
    net.world.advance(secs(20));
    assert_eq!(net.status().opened, 1);
    net.drop(0, Drops::All);
    net.world.advance(secs(90));
    let status = net.status();
    assert_eq!((status.state.as_str(), status.opened), ("up", 2));
    assert!(net.exits().contains(&IpAddr::V4(server_addr(1))));
}
