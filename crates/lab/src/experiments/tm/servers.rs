//! The testbed with the servers of T-MPTCP's table 1.

use braid_testbed::fixture::USER_BEHIND_BOX;

use super::simulated::Link;
use crate::backend::gateways::Gateways;
use crate::backend::{Error, run_error};

/// An aggregation server with its paths.
#[derive(Debug, Clone, Copy)]
pub struct Server {
    /// The paths from the box, over each of its links.
    pub paths: [Link; 2],
    /// The path from the server to the content server.
    pub beyond: Link,
    /// Throughput through the server that the paper reports, Mb/s; 0 if it reports none.
    pub reported: f64,
}

impl Server {
    const fn new(one: Link, two: Link, beyond: Link, reported: f64) -> Server {
        Server {
            paths: [one, two],
            beyond,
            reported,
        }
    }

    /// Returns the full rate of downloads through the server, Mb/s.
    pub fn rate(&self) -> f64 {
        let [(one, _), (two, _)] = self.paths;
        (one + two).min(self.beyond.0)
    }
}

/// The servers of table 1, with its delays as round-trip times, and a sixth server. The sixth server has
/// fast paths from the box and a slow path to content. A box avoids this server only if it measures the
/// path to content.
pub const SERVERS: [Server; 6] = [
    Server::new((21.89, 53.37), (13.45, 91.745), (92.8, 42.64), 24.38),
    Server::new((22.63, 44.60), (15.38, 64.34), (98.4, 36.05), 28.45),
    Server::new((27.57, 53.97), (19.75, 67.66), (56.31, 27.50), 36.89),
    Server::new((1.38, 43.67), (13.91, 57.45), (36.31, 38.19), 13.03),
    Server::new((5.1, 113.15), (12.9, 179.58), (63.28, 36.9), 17.02),
    Server::new((35.0, 60.0), (25.0, 70.0), (10.0, 40.0), 0.0),
];

/// The hosts and LANs beside the servers and their links.
const HOSTS: &str = include_str!("servers.toml");

/// Returns the description of the testbed. The box's own links are not limited: the bottlenecks are the
/// links from the routers behind them to each server.
pub fn description(name: &str) -> String {
    let mut text = format!("name = \"{name}\"\n{USER_BEHIND_BOX}\n{HOSTS}");
    for (n, server) in (1..).zip(&SERVERS) {
        let host = self::name(n);
        text += &format!("[[host]]\nname = \"{host}\"\nrole = \"server\"\nstart = \"manual\"\n");
        let [one, two] = server.paths;
        for (link, from, to, (mbit, ms)) in [
            (format!("link1-s{n}"), "isp1", &*host, one),
            (format!("link2-s{n}"), "isp2", &*host, two),
            (format!("web-s{n}"), &*host, "core", server.beyond),
        ] {
            // Half the round-trip time in µs, for each direction.
            let (rate, delay) = ((mbit * 1e6) as u64, (ms * 500.0) as u64);
            text += &format!(
                "[[link]]\nname = \"{link}\"\nfrom = \"{from}\"\nto = \"{to}\"\n\
                 rate = \"{rate}bit\"\ndelay = \"{delay}us\"\n"
            );
        }
    }
    text
}

/// Returns the name of server `n`, from 1.
pub fn name(n: usize) -> String {
    format!("s{n}")
}

/// Returns the links to server `n`, from 1.
pub fn links(n: usize) -> [String; 2] {
    [1, 2].map(|link| format!("link{link}-s{n}"))
}

/// Routes the user's plain TCP over `link` (1 or 2) and through the host of server `n` (from 1), in both
/// directions.
pub fn route_through(net: &Gateways, n: usize, link: usize) -> Result<(), Error> {
    let testbed = &net.fixture.testbed;
    let interface = |segment: &str, host: &str| {
        let host = testbed.layout().host(host).map_err(run_error)?;
        let found = host.interfaces.iter().find(|i| i.name == segment);
        found.ok_or_else(|| run_error(format_args!("{} is not on {segment}", host.name)))
    };
    let (isp, link) = (format!("isp{link}"), format!("link{link}"));
    for (router, lan, end, by) in [
        (&*isp, "web", "content", format!("{link}-s{n}")),
        ("core", &*link, "box", format!("web-s{n}")),
    ] {
        let to = interface(lan, end)?.subnet4;
        let via = interface(&by, &name(n))?.address4;
        let route = format!("route replace {to} via {via} dev {by} congctl cubic\n");
        testbed.ip(router, &route).map_err(run_error)?;
    }
    net.fixture.forward_over(&link).map_err(run_error)
}

#[cfg(test)]
mod tests {
    use braid_testbed::{Layout, Role, fixture};

    use super::*;

    #[test]
    fn every_server_has_two_paths_and_one_to_content() {
        let spec = fixture::spec(&description("tm")).unwrap();
        assert_eq!(spec.links.len(), 3 * SERVERS.len());
        let layout = Layout::resolve(&spec).unwrap();
        let servers = layout.hosts.iter().filter(|h| h.role == Role::Server);
        for (n, host) in (1..).zip(servers) {
            let names: Vec<_> = host.interfaces.iter().map(|i| i.name.clone()).collect();
            let [one, two] = links(n);
            assert_eq!(names, [one, two, format!("web-s{n}")]);
        }
        // One gateway for each link of the box.
        let boxed = layout.host("box").unwrap();
        let gateways = boxed.lans().filter(|i| i.gateway4.is_some()).count();
        assert_eq!(gateways, 2);
    }
}
