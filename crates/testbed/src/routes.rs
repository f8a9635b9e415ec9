//! Addresses and routes of a host.

use std::collections::VecDeque;
use std::net::{Ipv4Addr, Ipv6Addr};

use crate::layout::{Address, HostLayout, InterfaceLayout};
use crate::spec::{Segment, Spec};

/// Metric of the default route over the first segment shared with a gateway. Lower metrics are left for routes
/// that tests add.
const FIRST_METRIC: usize = 100;

/// First routing table and rule priority of source routing. A box's own rules have lower numbers, so they take
/// precedence.
const FIRST_TABLE: usize = 20_000;

/// Maximum number of subflows and of accepted addresses of the kernel's MPTCP: the largest value that the kernel
/// allows.
const MPTCP_LIMIT: u32 = 8;

/// Maximum number of packets that wait in a device until the emulator reads them. 4096 is a guess: every burst
/// must fit, because no link model includes drops in the device.
const DEVICE_QUEUE: u32 = 4096;

/// Scripts for `ip -4 -batch` (the first of a pair) and `ip -6 -batch` that give a host its addresses and routes.
pub(crate) struct Scripts {
    /// Lines that may run several times. A later run restores addresses and routes that were removed.
    pub repeatable: [String; 2],
    /// Lines that run only once, after those of `repeatable`. A second run would fail or add duplicates.
    pub once: [String; 2],
    /// The congestion control of all routes.
    congestion: String,
}

/// Returns the scripts that give a host its addresses and routes.
pub(crate) fn script(spec: &Spec, host: &HostLayout) -> Scripts {
    let mut scripts = Scripts {
        repeatable: ["link set lo up\n".to_owned(), String::new()],
        once: Default::default(),
        congestion: spec.congestion.clone(),
    };
    for interface in &host.interfaces {
        if let Some(link) = spec.links.iter().find(|l| *l.name == *interface.name) {
            // Multicast is off, so that the kernel sends no packets by itself. Such packets would change which
            // packets a seed drops.
            let settings = format!("mtu {} txqueuelen {DEVICE_QUEUE} multicast off", link.mtu);
            scripts.repeatable[0] += &format!("link set {} {settings}\n", link.name);
        }
        scripts.add_addresses(interface);
    }
    if host.spec.gateway.is_empty() {
        scripts.add_shortest_routes(spec, host);
    } else {
        scripts.add_default_routes(host);
    }
    if host.spec.source_routing || host.spec.mptcp {
        scripts.add_source_routing(host);
    }
    if host.spec.mptcp {
        scripts.add_mptcp(host);
    }
    scripts
}

impl Scripts {
    /// Adds a route of the address family `family`: 0 for IPv4, 1 for IPv6.
    fn add_route(&mut self, family: usize, route: &str) {
        let congestion = &self.congestion;
        self.repeatable[family] += &format!("route replace {route} congctl {congestion}\n");
    }

    fn add_addresses(&mut self, interface: &InterfaceLayout) {
        let name = &interface.name;
        self.repeatable[0] += &format!("link set {name} up\n");
        // `noprefixroute`: the kernel's own route to the network would lack the congestion control.
        let flags = ["noprefixroute", "nodad noprefixroute"];
        for (family, at) in interface.addresses().iter().enumerate() {
            let (address, flags) = (at.with_prefix(), flags[family]);
            self.repeatable[family] += &format!("addr replace {address} dev {name} {flags}\n");
            let route = format!("{} dev {name} src {}", at.subnet, at.address);
            self.add_route(family, &route);
        }
    }

    fn add_default_routes(&mut self, host: &HostLayout) {
        let towards = host.interfaces.iter().filter(|i| i.gateway4.is_some());
        for (metric, interface) in (FIRST_METRIC..).zip(towards) {
            let name = &interface.name;
            for (family, at) in interface.addresses().iter().enumerate() {
                let Some(via) = at.gateway else { continue };
                let from = at.address;
                let route = format!("default via {via} dev {name} metric {metric} src {from}");
                self.add_route(family, &route);
            }
        }
    }

    fn add_shortest_routes(&mut self, spec: &Spec, host: &HostLayout) {
        let segments = spec.segments();
        let ways = shortest_ways(spec, &segments, host);
        for (segment, interface, (_, via4, via6)) in ways.into_iter().filter(|w| !w.0.private) {
            let (subnet4, subnet6, name) = (segment.subnet4, segment.subnet6, &interface.name);
            self.add_route(0, &format!("{subnet4} via {via4} dev {name}"));
            self.add_route(1, &format!("{subnet6} via {via6} dev {name}"));
        }
    }

    fn add_source_routing(&mut self, host: &HostLayout) {
        for (table, interface) in (FIRST_TABLE..).zip(host.links()) {
            let Some((_, peer4, peer6)) = &interface.neighbours.first() else {
                continue;
            };
            let (name, peers) = (&interface.name, [(*peer4).into(), (*peer6).into()]);
            for (family, at) in interface.addresses().iter().enumerate() {
                let (via, address) = (at.gateway.unwrap_or(peers[family]), at.address);
                let route = format!("default via {via} dev {name} src {address} table {table}");
                self.add_route(family, &route);
                // When a link goes down, its default route vanishes. The unreachable route then keeps packets with
                // the link's address from leaving over another link.
                self.repeatable[family] +=
                    &format!("route replace unreachable default metric 9999 table {table}\n");
                self.once[family] +=
                    &format!("rule add from {address} lookup {table} pref {table}\n");
            }
        }
    }

    fn add_mptcp(&mut self, host: &HostLayout) {
        let lines = &mut self.once[0];
        *lines +=
            &format!("mptcp limits set subflows {MPTCP_LIMIT} add_addr_accepted {MPTCP_LIMIT}\n");
        for interface in host.links() {
            for Address { address, .. } in interface.addresses() {
                let name = &interface.name;
                *lines += &format!("mptcp endpoint add {address} dev {name} subflow\n");
            }
        }
    }
}

/// A segment with the interface and the neighbour by which a host reaches it.
type Way<'a> = (
    &'a Segment<'a>,
    &'a InterfaceLayout,
    &'a (String, Ipv4Addr, Ipv6Addr),
);

/// Returns each segment that `host` is not on, with the first interface and the first neighbour on the shortest
/// way there. Ways lead only through hosts that forward packets. Of two equally short ways, the one whose segment
/// or host comes first in the file is taken.
fn shortest_ways<'a>(
    spec: &Spec,
    segments: &'a [Segment<'a>],
    host: &'a HostLayout,
) -> Vec<Way<'a>> {
    let routers = spec.hosts.iter().filter(|h| h.role.forwards());
    let names = routers.map(|router| &*router.name);
    let mut unseen: Vec<&str> = names.filter(|name| *name != host.name).collect();
    let mut reached: Vec<&str> = host.interfaces.iter().map(|i| i.name.as_str()).collect();
    let mut ways = Vec::new();
    let mut open = VecDeque::new();
    for interface in &host.interfaces {
        let neighbours = interface.neighbours.iter();
        open.extend(neighbours.map(|next_hop| (interface, next_hop, next_hop.0.as_str())));
    }
    while let Some((interface, next_hop, at)) = open.pop_front() {
        let Some(index) = unseen.iter().position(|router| *router == at) else {
            continue;
        };
        unseen.swap_remove(index);
        for segment in segments.iter().filter(|s| s.hosts.contains(&at)) {
            if !reached.contains(&&**segment.name) {
                reached.push(segment.name);
                ways.push((segment, interface, next_hop));
            }
            let hosts = segment.hosts.iter();
            open.extend(hosts.map(|host| (interface, next_hop, *host)));
        }
    }
    ways
}
