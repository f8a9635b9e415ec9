//! Addresses and routes of a host.

use std::collections::VecDeque;

use crate::layout::{HostLayout, InterfaceLayout, Segment, SegmentKind};
use crate::spec::{HostSpec, Spec};

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

/// Scripts for `ip -4 -batch` and `ip -6 -batch` that give a host its addresses and routes.
#[derive(Default)]
pub(crate) struct Scripts {
    /// Lines for IPv4 that may run several times. A later run restores addresses and routes that were removed.
    pub v4: String,
    /// Such lines for IPv6.
    pub v6: String,
    /// Lines for IPv4 that run only once, after those of `v4`. A second run would fail or add duplicates.
    pub once4: String,
    /// Such lines for IPv6.
    pub once6: String,
}

impl Scripts {
    /// Adds the settings of an emulated link's device. Multicast is off, so that the kernel sends no packets by
    /// itself. Such packets would change which packets a seed drops.
    pub fn device(&mut self, name: &str, mtu: u16) {
        self.v4 += &format!("link set {name} mtu {mtu} txqueuelen {DEVICE_QUEUE} multicast off\n");
    }
}

/// Returns the scripts for `ip -4 -batch` and `ip -6 -batch` that give a host its addresses and routes.
pub(crate) fn script(
    spec: &Spec,
    segments: &[Segment],
    host: &HostLayout,
    host_spec: &HostSpec,
) -> Scripts {
    let mut scripts = Scripts {
        v4: "link set lo up\n".to_owned(),
        ..Scripts::default()
    };
    let congestion = format!("congctl {}", spec.congestion);
    for interface in &host.interfaces {
        if let Some(link) = spec.links.iter().find(|l| *l.name == *interface.name) {
            scripts.device(&interface.name, link.mtu);
        }
        add_addresses(&mut scripts, interface, &congestion);
    }
    if !host.gateways.is_empty() {
        add_default_routes(&mut scripts, host, &congestion);
    } else {
        add_shortest_routes(&mut scripts, spec, segments, host, &congestion);
    }
    if host_spec.source_routing || host_spec.mptcp {
        add_source_routing(&mut scripts, host, &congestion);
    }
    if host_spec.mptcp {
        add_mptcp(&mut scripts, host);
    }
    scripts
}

fn add_addresses(scripts: &mut Scripts, interface: &InterfaceLayout, congestion: &str) {
    let InterfaceLayout {
        name,
        address4,
        address6,
        subnet4,
        subnet6,
        ..
    } = interface;
    scripts.v4 += &format!(
        "link set {name} up\n\
         addr replace {address4}/{} dev {name} noprefixroute\n\
         route replace {subnet4} dev {name} src {address4} {congestion}\n",
        subnet4.prefix_len()
    );
    scripts.v6 += &format!(
        "addr replace {address6}/{} dev {name} nodad noprefixroute\n\
         route replace {subnet6} dev {name} src {address6} {congestion}\n",
        subnet6.prefix_len()
    );
}

fn add_default_routes(scripts: &mut Scripts, host: &HostLayout, congestion: &str) {
    let towards = host
        .interfaces
        .iter()
        .filter_map(|i| Some((i, i.gateway4?, i.gateway6?)));
    for (index, (interface, gateway4, gateway6)) in towards.enumerate() {
        let (metric, name) = (FIRST_METRIC + index, &interface.name);
        scripts.v4 += &format!(
            "route replace default via {gateway4} dev {name} metric {metric} src {} {congestion}\n",
            interface.address4
        );
        scripts.v6 += &format!(
            "route replace default via {gateway6} dev {name} metric {metric} src {} {congestion}\n",
            interface.address6
        );
    }
}

fn add_shortest_routes(
    scripts: &mut Scripts,
    spec: &Spec,
    segments: &[Segment],
    host: &HostLayout,
    congestion: &str,
) {
    for (segment, first_segment, next_hop) in shortest_ways(spec, segments, &host.name) {
        if segment.private {
            continue;
        }
        let Some(interface) = host
            .interfaces
            .iter()
            .find(|i| i.name == first_segment.name)
        else {
            continue;
        };
        let neighbour = interface
            .neighbours
            .iter()
            .find(|(name, ..)| name == next_hop);
        let Some((_, via4, via6)) = neighbour else {
            continue;
        };
        scripts.v4 += &format!(
            "route replace {} via {via4} dev {} {congestion}\n",
            segment.subnet4, interface.name
        );
        scripts.v6 += &format!(
            "route replace {} via {via6} dev {} {congestion}\n",
            segment.subnet6, interface.name
        );
    }
}

/// Returns each segment that `host` is not on, with the first segment and the first neighbour on the shortest way
/// there. Ways lead only through hosts that forward packets. Of two equally short ways, the one whose segment or
/// host comes first in the file is taken.
fn shortest_ways<'a>(
    spec: &Spec,
    segments: &'a [Segment],
    host: &str,
) -> Vec<(&'a Segment, &'a Segment, &'a str)> {
    let forwards = |name: &str| {
        spec.hosts
            .iter()
            .any(|h| *h.name == *name && h.role.forwards())
    };
    let own: Vec<&Segment> = segments
        .iter()
        .filter(|s| s.hosts.iter().any(|h| h == host))
        .collect();
    let mut seen: Vec<&str> = vec![host];
    let mut reached: Vec<&str> = own.iter().map(|s| s.name.as_str()).collect();
    let mut next_hops = Vec::new();
    let mut open: VecDeque<(&Segment, &str, &str)> = VecDeque::new();
    for segment in &own {
        for neighbour in segment.hosts.iter().filter(|h| *h != host) {
            open.push_back((segment, neighbour, neighbour));
        }
    }
    while let Some((first, next_hop, at)) = open.pop_front() {
        if seen.contains(&at) || !forwards(at) {
            continue;
        }
        seen.push(at);
        for segment in segments.iter().filter(|s| s.hosts.iter().any(|h| h == at)) {
            if !reached.contains(&segment.name.as_str()) {
                reached.push(&segment.name);
                next_hops.push((segment, first, next_hop));
            }
            for neighbour in &segment.hosts {
                open.push_back((first, next_hop, neighbour));
            }
        }
    }
    next_hops
}

fn add_source_routing(scripts: &mut Scripts, host: &HostLayout, congestion: &str) {
    for (index, interface) in host.links().enumerate() {
        let Some((_, peer4, peer6)) = interface.neighbours.first() else {
            continue;
        };
        let (table, name) = (FIRST_TABLE + index, &interface.name);
        let via4 = interface.gateway4.unwrap_or(*peer4);
        let via6 = interface.gateway6.unwrap_or(*peer6);
        let families = [
            (
                &mut scripts.v4,
                &mut scripts.once4,
                via4.to_string(),
                interface.address4.to_string(),
                32,
            ),
            (
                &mut scripts.v6,
                &mut scripts.once6,
                via6.to_string(),
                interface.address6.to_string(),
                128,
            ),
        ];
        for (script, once, via, address, prefix) in families {
            // When a link goes down, its default route vanishes. The unreachable route then keeps packets with the
            // link's address from leaving over another link.
            *script += &format!(
                "route replace default via {via} dev {name} src {address} table {table} \
                 {congestion}\n\
                 route replace unreachable default metric 9999 table {table}\n"
            );
            *once += &format!("rule add from {address}/{prefix} lookup {table} pref {table}\n");
        }
    }
}

fn add_mptcp(scripts: &mut Scripts, host: &HostLayout) {
    scripts.once4 +=
        &format!("mptcp limits set subflows {MPTCP_LIMIT} add_addr_accepted {MPTCP_LIMIT}\n");
    for interface in host
        .interfaces
        .iter()
        .filter(|i| i.kind == SegmentKind::Link)
    {
        let InterfaceLayout {
            name,
            address4,
            address6,
            ..
        } = interface;
        scripts.once4 += &format!("mptcp endpoint add {address4} dev {name} subflow\n");
        scripts.once4 += &format!("mptcp endpoint add {address6} dev {name} subflow\n");
    }
}
