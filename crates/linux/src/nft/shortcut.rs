//! Rules that pass packets between the TUN device and a link without routing, connection tracking and the rules
//! of other programs. They apply to the packets between the engine of a box and its servers.
//!
//! Address translation is stateless. An ingress hook gets packets before the rest of the kernel sees them. It
//! passes packets from the TUN device to their next hop, and packets from a link to the TUN device. A second
//! table translates the packets that the hook leaves to routing: fragments, frames with a VLAN tag, and packets
//! of a link without a known next hop.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::iter;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;

use ipnet::IpNet;

use super::watch::Family;
use super::{List, Quoted, ip_keyword, match_quoted_source, remove_tables, run_nft, run_script};
use crate::net::{Result, SystemError};

/// Name of the two tables, which have the families `netdev` and `inet`. All instances share the name, because
/// only one instance in a network namespace can have the shortcut: the rules tell its packets only by their
/// ports.
const TABLE: &str = "braid-shortcut";

/// The rules of the shortcut.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShortcutRules {
    /// The TUN device.
    pub tun: String,
    /// Index of the TUN device. Rules keep the index of a device, so a new device needs new rules.
    pub tun_index: u32,
    /// Local ports of the engine. No other socket uses them towards these servers.
    pub ports: RangeInclusive<u16>,
    /// The addresses at which the engine's peers listen. None is an address of this host.
    pub servers: Vec<SocketAddr>,
    /// The links; a link with both address families is two entries.
    pub links: Vec<ShortcutLink>,
}

/// A link in one address family.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShortcutLink {
    /// Name of the interface, which must exist.
    pub interface: String,
    /// Index of the interface. A new interface of the same name has another index, which makes the rules
    /// differ.
    pub index: u32,
    /// The address behind the TUN device.
    pub inner: IpAddr,
    /// The address of the interface that replaces `inner` in packets on the link.
    pub public: IpAddr,
    /// Next hops. A packet takes the first one whose network contains the destination. If there is none, the
    /// packet is routed.
    pub hops: Vec<Hop>,
}

/// A next hop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hop {
    /// The network that the hop reaches; `None` for all destinations.
    pub network: Option<IpNet>,
    /// The gateway; `None` if the destination is the next hop itself.
    pub gateway: Option<IpAddr>,
}

impl ShortcutRules {
    /// The tables that hold the rules.
    pub const TABLES: [(Family, &str); 2] = [(Family::Netdev, TABLE), (Family::Inet, TABLE)];

    /// Loads the rules. They replace earlier ones in one transaction.
    ///
    /// # Errors
    /// Fails if `nft` is missing or refuses the rules, for example because the kernel lacks a feature. The
    /// earlier rules are then still in the kernel.
    pub fn apply(&self) -> Result<()> {
        let script = self.script().map_err(|_| {
            SystemError::other("write the nftables rules", "a name cannot be quoted")
        })?;
        run_script(&script)
    }

    /// Returns whether the kernel has rules of any instance.
    ///
    /// # Errors
    /// Fails if `nft` is missing or may not list tables.
    pub fn exist() -> Result<bool> {
        let tables = run_nft(&["list", "tables"], "")?;
        let mut names = tables.split_whitespace();
        Ok(names.any(|name| name == TABLE))
    }

    /// Removes the rules of any instance.
    ///
    /// # Errors
    /// Fails if `nft` is missing or may not remove tables.
    pub fn remove() -> Result<()> {
        remove_tables(&[("netdev", TABLE), ("inet", TABLE)])
    }

    fn script(&self) -> std::result::Result<String, fmt::Error> {
        let mut out = String::new();
        for family in ["netdev", "inet"] {
            writeln!(out, "table {family} {TABLE}\ndelete table {family} {TABLE}")?;
        }
        writeln!(out, "table netdev {TABLE} {{")?;
        self.emit_sets(&mut out)?;
        self.emit_out(&mut out)?;
        self.emit_in(&mut out)?;
        writeln!(out, "}}\ntable inet {TABLE} {{")?;
        self.emit_sets(&mut out)?;
        self.emit_prerouting(&mut out)?;
        self.emit_postrouting(&mut out)?;
        writeln!(out, "}}")?;
        Ok(out)
    }

    fn emit_sets(&self, out: &mut String) -> fmt::Result {
        for (v6, kind) in [(false, "ipv4_addr"), (true, "ipv6_addr")] {
            let of_family = self.servers.iter().filter(|s| s.is_ipv6() == v6);
            let elements: Vec<String> = of_family
                .map(|s| format!("{} . {}", s.ip(), s.port()))
                .collect();
            let name = server_set(v6);
            writeln!(out, "set {name} {{ type {kind} . inet_service;")?;
            if !elements.is_empty() {
                writeln!(out, "elements = {{ {} }}", List(&elements))?;
            }
            writeln!(out, "}}")?;
        }
        Ok(())
    }

    fn emit_out(&self, out: &mut String) -> fmt::Result {
        let tun = Quoted(&self.tun);
        writeln!(
            out,
            "chain out {{ type filter hook ingress device {tun} priority filter; policy accept;"
        )?;
        for link in &self.links {
            let (ip, interface, public) = (link.ip(), Quoted(&link.interface), link.public);
            for hop in &link.hops {
                write!(out, "{}", link.outbound_rules())?;
                if let Some(network) = hop.network {
                    write!(out, " {ip} daddr {network}")?;
                }
                write!(out, " {ip} saddr set {public} fwd {ip} to ")?;
                match hop.gateway {
                    Some(gateway) => write!(out, "{gateway}")?,
                    None => write!(out, "{ip} daddr")?,
                }
                writeln!(out, " device {interface}")?;
            }
            if !link.hops.is_empty() {
                // A packet comes here only if its interface has just vanished, so that `fwd` failed after the
                // source was set. The packet must not be routed out of another interface with this source
                // address.
                writeln!(out, "{ip} saddr {public} drop")?;
            }
        }
        if self.links.iter().all(|link| link.hops.is_empty()) {
            // No packet has length 0. So this rule matches nothing, but a kernel that lacks `fwd` refuses the
            // rules now, and not only when a link comes up.
            writeln!(out, "meta length 0 fwd to {tun}")?;
        }
        writeln!(out, "}}")
    }

    fn emit_in(&self, out: &mut String) -> fmt::Result {
        let mut by_interface: BTreeMap<&str, Vec<&ShortcutLink>> = BTreeMap::new();
        for link in &self.links {
            by_interface.entry(&link.interface).or_default().push(link);
        }
        for (n, (interface, links)) in by_interface.into_iter().enumerate() {
            writeln!(
                out,
                "chain in{n} {{ type filter hook ingress device {} priority filter; policy accept;",
                Quoted(interface)
            )?;
            // Frames with a VLAN tag (EtherType, at bit 96 of the frame) are routed: `fwd` would put the tag of
            // a priority-tagged frame into the packet on the TUN device.
            writeln!(out, "@ll,96,16 {{ 0x8100, 0x88a8 }} accept")?;
            for link in links {
                let (ip, inner) = (link.ip(), link.inner);
                // Fragments have no ports to match. They are routed, and the kernel then reassembles them. The
                // mask covers the flag "more fragments" and the offset.
                let unfragmented = match inner {
                    IpAddr::V4(_) => "ip frag-off & 0x3fff == 0",
                    IpAddr::V6(_) => "exthdr frag missing",
                };
                for matched in self.inbound_rules(link) {
                    writeln!(
                        out,
                        "{matched} {unfragmented} {ip} daddr set {inner} fwd {ip} to {inner} device {}",
                        Quoted(&self.tun)
                    )?;
                }
            }
            writeln!(out, "}}")?;
        }
        Ok(())
    }

    fn emit_prerouting(&self, out: &mut String) -> fmt::Result {
        writeln!(
            out,
            "chain prerouting {{ type filter hook prerouting priority raw; policy accept;"
        )?;
        for link in &self.links {
            let (ip, inner, interface) = (link.ip(), link.inner, Quoted(&link.interface));
            writeln!(
                out,
                "iifname {} {} notrack",
                Quoted(&self.tun),
                link.outbound_rules()
            )?;
            for matched in self.inbound_rules(link) {
                writeln!(
                    out,
                    "iifname {interface} {matched} notrack {ip} daddr set {inner}"
                )?;
            }
        }
        writeln!(out, "}}")
    }

    fn emit_postrouting(&self, out: &mut String) -> fmt::Result {
        writeln!(
            out,
            "chain postrouting {{ type filter hook postrouting priority raw; policy accept;"
        )?;
        for link in &self.links {
            writeln!(
                out,
                "oifname {} {} {} saddr set {}",
                Quoted(&link.interface),
                link.outbound_rules(),
                link.ip(),
                link.public
            )?;
        }
        writeln!(out, "}}")
    }

    /// Returns the matches for packets that come in by a link for the engine: segments from servers, and ICMP
    /// errors about segments to servers.
    fn inbound_rules(&self, link: &ShortcutLink) -> Vec<String> {
        let (ip, public, server_set) = (link.ip(), link.public, server_set(link.is_v6()));
        let ports = format!("{}-{}", self.ports.start(), self.ports.end());
        let quoted = match_quoted_source(public, &ports);
        let segments =
            format!("{ip} saddr . tcp sport @{server_set} {ip} daddr {public} tcp dport {ports}");
        let of_family = self.servers.iter().filter(|s| s.is_ipv6() == link.is_v6());
        let errors = of_family.map(|server| {
            let to = match_quoted_destination(*server);
            format!("{ip} daddr {public} {quoted} {to}")
        });
        iter::once(segments).chain(errors).collect()
    }
}

impl ShortcutLink {
    fn is_v6(&self) -> bool {
        self.inner.is_ipv6()
    }

    fn ip(&self) -> &'static str {
        ip_keyword(self.inner)
    }

    /// Returns a match for segments from the engine's address on the link to servers.
    fn outbound_rules(&self) -> String {
        let (ip, inner, server_set) = (self.ip(), self.inner, server_set(self.is_v6()));
        format!("{ip} saddr {inner} {ip} daddr . tcp dport @{server_set}")
    }
}

/// Returns the name of the set of servers of a family.
fn server_set(v6: bool) -> &'static str {
    if v6 { "servers6" } else { "servers4" }
}

/// Returns an nftables match for ICMP errors about TCP segments to `server`. The offsets count as in
/// [`match_quoted_source`]: the destination address is at bit 128 of the quoted IPv4 header or at bit 192 of the
/// quoted IPv6 header. The destination port is 16 bits after the end of the quoted IP header.
fn match_quoted_destination(server: SocketAddr) -> String {
    let port = server.port();
    match server.ip() {
        IpAddr::V4(to) => format!("@th,192,32 {} @th,240,16 {port}", to.to_bits()),
        IpAddr::V6(to) => format!("@th,256,128 {:#x} @th,400,16 {port}", to.to_bits()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules() -> ShortcutRules {
        ShortcutRules {
            tun: "braid0".to_owned(),
            tun_index: 3,
            ports: 10_000..=32_767,
            servers: vec!["192.0.2.1:4433".parse().unwrap()],
            links: vec![ShortcutLink {
                interface: "wan0".to_owned(),
                index: 3,
                inner: "10.215.77.2".parse().unwrap(),
                public: "198.51.100.7".parse().unwrap(),
                hops: vec![
                    Hop {
                        network: Some("198.51.100.0/24".parse().unwrap()),
                        gateway: None,
                    },
                    Hop {
                        network: None,
                        gateway: Some("198.51.100.1".parse().unwrap()),
                    },
                ],
            }],
        }
    }

    fn lines(rules: &ShortcutRules, with: &str) -> Vec<String> {
        let script = rules.script().unwrap();
        let found = script.lines().filter(|line| line.contains(with));
        found.map(str::to_owned).collect()
    }

    #[test]
    fn a_destination_on_the_link_is_its_own_next_hop() {
        let start = "ip saddr 10.215.77.2 ip daddr . tcp dport @servers4";
        assert_eq!(
            lines(&rules(), " saddr ")[..3],
            [
                format!(
                    "{start} ip daddr 198.51.100.0/24 ip saddr set 198.51.100.7 \
                     fwd ip to ip daddr device \"wan0\""
                ),
                format!("{start} ip saddr set 198.51.100.7 fwd ip to 198.51.100.1 device \"wan0\""),
                "ip saddr 198.51.100.7 drop".to_owned(),
            ]
        );
    }

    /// The packets of a link without next hops are routed, and the second table translates them.
    #[test]
    fn without_a_next_hop_packets_are_translated_only() {
        let mut rules = rules();
        rules.links[0].hops.clear();
        assert!(!rules.script().unwrap().contains("device \"wan0\"\n"));
        assert_eq!(lines(&rules, "oifname \"wan0\"").len(), 1);
        assert!(lines(&rules, "drop").is_empty());
        assert_eq!(lines(&rules, "fwd ip to 10.215.77.2").len(), 2);
        assert_eq!(lines(&rules, "meta length 0 fwd").len(), 1);
    }

    #[test]
    fn an_interface_has_one_chain_for_both_families() {
        let mut rules = rules();
        rules.links.push(ShortcutLink {
            inner: "fdb7:a1d0:77::2".parse().unwrap(),
            public: "2001:db8::7".parse().unwrap(),
            ..rules.links[0].clone()
        });
        assert_eq!(lines(&rules, "hook ingress device \"wan0\"").len(), 1);
    }
}
