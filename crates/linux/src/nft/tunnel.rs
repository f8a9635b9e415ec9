//! Rules for the packets of the tunnel.

use std::collections::BTreeSet;
use std::fmt::{self, Write as _};
use std::ops::RangeInclusive;

use ipnet::{Ipv4Net, Ipv6Net};

use super::{Mapping, Names, Quoted, ip_keyword, on_a_link};
use crate::net::InstanceNames;

/// Maximum number of flows of an address in a tunnel of a server. The kernel's table holds 65,536 or 262,144 flows of
/// all boxes on usual machines, and a site of 100 busy hosts has some thousands. The number is a guess.
const MAX_FLOWS: u32 = 8_192;
/// Maximum number of addresses whose flows are counted: those of a pool of 16 host bits. Further addresses are dropped.
const MAX_LIMITED_ADDRESSES: u32 = 1 << 16;
/// The first port that is not well-known (RFC 6335 section 6).
const FIRST_FREE_PORT: u32 = 1_024;

/// The rules of a box whose tunnel carries packets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BoxTunnel {
    /// The packet device.
    pub device: String,
    /// True if the tunnel carries IPv4.
    pub v4: bool,
    /// True if the tunnel carries IPv6.
    pub v6: bool,
}

/// The rules of a server that offers a tunnel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerTunnel {
    /// The packet device.
    pub device: String,
    /// The range of the boxes' IPv4 addresses.
    pub v4: Ipv4Net,
    /// The range of the boxes' IPv6 addresses.
    pub v6: Ipv6Net,
}

impl BoxTunnel {
    /// Name of the chain to which the interception hands packets that are not TCP.
    pub(super) const CHAIN: &str = "tunnel";

    /// Emits the chains of the tunnel.
    ///
    /// The first one gives the tunnel's mark to packets for other hosts, except for the destinations that are only
    /// forwarded. Routing sends packets with the mark into the device. A destination that no route of this host reaches
    /// (`unreachable`) is another host too: with links of one family only, the tunnel carries the other. If the device is
    /// gone, because this process was killed, routing ignores the mark, and the packets are forwarded over a link. A flow
    /// that changes between tunnel and link loses one packet, because the kernel forgets its translated address.
    ///
    /// Packets of a family without an address in the tunnel are refused, as connections of a family are that no server
    /// reaches: forwarded, they would leave unprotected while the tunnel is up. A packet to which rules of another
    /// program gave a mark keeps it, and is routed as that program wants.
    ///
    /// Nothing comes from the tunnel but answers: neither to hosts of the local network nor to this host itself.
    pub(super) fn emit(
        &self,
        lan: &[String],
        instance_names: &InstanceNames,
        out: &mut String,
    ) -> fmt::Result {
        let (device, mark) = (Quoted(&self.device), instance_names.tunnel_mark());
        writeln!(
            out,
            "chain {chain} {{
             meta mark != 0 return
             fib daddr type {{ local, broadcast, anycast, multicast, blackhole, prohibit }} return
             ip daddr @bypass4 goto bypassed
             ip6 daddr @bypass6 goto bypassed",
            chain = Self::CHAIN,
        )?;
        for (family, is_carried) in [("ipv4", self.v4), ("ipv6", self.v6)] {
            let verdict = if is_carried {
                format!("meta mark set {mark}")
            } else {
                "reject with icmpx no-route".to_owned()
            };
            writeln!(out, "meta nfproto {family} {verdict}")?;
        }
        writeln!(
            out,
            "}}
             chain bypassed {{
             {on_a_link} meta mark set ct mark
             }}
             chain tunnel-forward {{ type filter hook forward priority filter; policy accept;
             iifname {device} ct state {{ new, invalid }} drop
             }}
             chain tunnel-input {{ type filter hook input priority filter; policy accept;
             iifname {device} ct state {{ new, invalid }} drop
             }}
             chain tunnel-postrouting {{ type nat hook postrouting priority srcnat; policy accept;
             oifname {device} iifname {lan} masquerade
             }}",
            on_a_link = on_a_link(instance_names),
            lan = Names(lan),
        )
    }
}

impl ServerTunnel {
    /// Emits the chains of the tunnel.
    ///
    /// Packets of boxes are forwarded with the address of the interface by which they leave. Boxes do not reach each
    /// other, nor this server itself, and nothing but answers goes to them. The core has checked already that the source
    /// of each packet is the address of its box; the rule is for packets of other programs on the device.
    ///
    /// An address has a limited number of flows, so that one box does not fill the kernel's table of flows, which all
    /// boxes share. Flows get ports other than the engine's, whose packets connection tracking does not know: a box that
    /// sent from this port would send in the name of this server.
    pub(super) fn emit(&self, mappings: &[Mapping], out: &mut String) -> fmt::Result {
        let (device, ports) = (Quoted(&self.device), free_ports(mappings));
        writeln!(
            out,
            "set flows4 {{ type ipv4_addr; size {MAX_LIMITED_ADDRESSES}; flags dynamic; }}
             set flows6 {{ type ipv6_addr; size {MAX_LIMITED_ADDRESSES}; flags dynamic; }}
             chain tunnel-forward {{ type filter hook forward priority filter; policy accept;
             iifname {device} oifname {device} drop
             iifname {device} ip saddr != {v4} drop
             iifname {device} ip6 saddr != {v6} drop
             iifname {device} ct state new add @flows4 {{ ip saddr ct count over {MAX_FLOWS} }} drop
             iifname {device} ct state new add @flows6 {{ ip6 saddr ct count over {MAX_FLOWS} }} drop
             oifname {device} ct state {{ new, invalid }} drop
             }}
             chain tunnel-input {{ type filter hook input priority filter; policy accept;
             iifname {device} drop
             }}
             chain tunnel-postrouting {{ type nat hook postrouting priority srcnat; policy accept;
             iifname {device} meta l4proto {{ tcp, udp }} masquerade to :{first}-{last}
             iifname {device} masquerade
             }}",
            v4 = self.v4,
            v6 = self.v6,
            first = ports.start(),
            last = ports.end(),
        )?;
        writeln!(
            out,
            "chain output {{ type filter hook output priority raw; policy accept;"
        )?;
        for Mapping { public, .. } in mappings {
            let (ip, addr) = (ip_keyword(public.ip()), public.ip());
            writeln!(out, "{ip} saddr {addr} udp sport {} notrack", public.port())?;
        }
        writeln!(out, "}}")
    }
}

/// Returns the largest range of ports above the well-known ones without the ports of `mappings`.
fn free_ports(mappings: &[Mapping]) -> RangeInclusive<u16> {
    let taken: BTreeSet<u16> = mappings.iter().map(|m| m.public.port()).collect();
    let mut largest = 0..=0;
    let mut first = FIRST_FREE_PORT;
    for port in taken.into_iter().map(u32::from).chain([1 << 16]) {
        if port > first && port - first > u32::from(largest.end() - largest.start()) {
            largest = first as u16..=(port - 1) as u16;
        }
        first = first.max(port + 1);
    }
    largest
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;
    use crate::nft::ServerRules;

    fn box_script(v4: bool, v6: bool) -> String {
        let tunnel = BoxTunnel {
            device: "braid0t".to_owned(),
            v4,
            v6,
        };
        let mut out = String::new();
        let lan = ["lan0".to_owned()];
        tunnel
            .emit(&lan, &InstanceNames::of_tun("t"), &mut out)
            .unwrap();
        out
    }

    /// Packets of a family without an address in the tunnel are refused.
    #[test]
    fn only_families_that_the_tunnel_carries_are_marked() {
        let mark = InstanceNames::of_tun("t").tunnel_mark();
        for carried in [(true, true), (true, false), (false, true)] {
            let script = box_script(carried.0, carried.1);
            for (family, is_carried) in [("ipv4", carried.0), ("ipv6", carried.1)] {
                let marks = format!("meta nfproto {family} meta mark set {mark}\n");
                let refuses = format!("meta nfproto {family} reject with icmpx no-route\n");
                assert_eq!(script.contains(&marks), is_carried, "{script}");
                assert_eq!(script.contains(&refuses), !is_carried, "{script}");
            }
        }
    }

    /// Another program's rules may use marks for their own routing.
    #[test]
    fn a_packet_with_a_mark_keeps_it() {
        let script = box_script(true, true);
        let chain = script.split("chain tunnel {\n").nth(1).unwrap();
        assert_eq!(
            chain.lines().next().unwrap().trim(),
            "meta mark != 0 return"
        );
    }

    fn mapping(port: u16) -> Mapping {
        Mapping {
            public: SocketAddr::from(([192, 0, 2, 1], port)),
            inner: [10, 215, 0, 2].into(),
        }
    }

    #[test]
    fn flows_of_boxes_get_other_ports_than_the_engines() {
        let range = |ports: &[u16]| {
            let mappings: Vec<_> = ports.iter().map(|port| mapping(*port)).collect();
            free_ports(&mappings)
        };
        assert_eq!(range(&[]), 1_024..=65_535);
        assert_eq!(range(&[443]), 1_024..=65_535);
        assert_eq!(range(&[1_024]), 1_025..=65_535);
        assert_eq!(range(&[1_080]), 1_081..=65_535);
        assert_eq!(range(&[60_000]), 1_024..=59_999);
        assert_eq!(range(&[65_535]), 1_024..=65_534);
        assert_eq!(range(&[1_080, 60_000]), 1_081..=59_999);
    }

    /// Datagrams from anywhere would otherwise fill the kernel's table of flows.
    #[test]
    fn datagrams_of_the_tunnel_are_not_tracked() {
        let mut rules = ServerRules {
            tun: "braid0".to_owned(),
            mappings: vec![mapping(1_080)],
            tunnel: Some(ServerTunnel {
                device: "braid0t".to_owned(),
                v4: "10.215.128.0/17".parse().unwrap(),
                v6: "fdb7:a1d0:80::/64".parse().unwrap(),
            }),
        };
        let untracked = |rules: &ServerRules| {
            let mut script = String::new();
            rules.emit(&mut script).unwrap();
            let of_udp = script.lines().map(str::trim);
            let of_udp = of_udp.filter(|rule| rule.contains("udp") && rule.contains("notrack"));
            of_udp.map(str::to_owned).collect::<Vec<_>>()
        };
        let expected = [
            "ip daddr 192.0.2.1 udp dport 1080 notrack",
            "ip saddr 192.0.2.1 udp sport 1080 notrack",
        ];
        assert_eq!(untracked(&rules), expected);
        rules.tunnel = None;
        assert!(untracked(&rules).is_empty());
    }

    #[test]
    fn bypassed_destinations_come_before_the_mark() {
        let script = box_script(true, true);
        let at = |text: &str| script.find(text).unwrap();
        assert!(at("@bypass4 goto bypassed") < at("meta mark set"));
        assert!(at("@bypass6 goto bypassed") < at("meta mark set"));
    }
}
