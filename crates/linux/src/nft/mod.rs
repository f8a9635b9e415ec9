//! Packet filter rules: one nftables table per instance, replaced as a whole.
//!
//! The table also records the kernel settings that were in force before ([`Ruleset::record`]), in a chain
//! that no hook runs. So the record lives in the network namespace that it describes, and outlives a killed
//! process.

mod check;
mod shortcut;
mod watch;

use std::collections::BTreeSet;
use std::fmt::{self, Write as _};
use std::io::{self, Write as _};
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::process::{Command, Stdio};

use braid_proxy::config::{MptcpHosts, Quic};
use braid_secure::Families;
use braid_wire::ip;
use ipnet::IpNet;

use crate::net::sysctl::Sysctl;
use crate::net::{InstanceNames, Result, SystemError};

pub use check::{check_installed, dry_run, instances, keep_from_sockets};
pub use shortcut::{Hop, ShortcutLink, ShortcutRules};
pub use watch::{Contents, Culprit, Family, Inspector, Monitor};

const RECORD_CHAIN: &str = "record";
/// Subtype of an MP_JOIN (RFC 8684 section 3.2).
const MP_JOIN: u8 = 1;

/// The rules of a box.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BoxRules {
    /// Interfaces of the local network; without any, nothing is intercepted.
    pub lan: Vec<String>,
    /// Interfaces of the access links by their index; empty at an unused index.
    pub links: Vec<String>,
    /// The TUN device.
    pub tun: String,
    /// Port of the listeners on 127.0.0.1 and `::1` that take intercepted connections.
    pub intercept_port: u16,
    /// True if IPv6 is intercepted too.
    pub intercept_v6: bool,
    /// The address families in which servers reach destinations. Connections of the other family are refused,
    /// so that programs use the one that works.
    pub families: Families,
    /// Destinations that are only forwarded.
    pub bypass: Vec<IpNet>,
    /// Networks that this host's routing table reaches, which are forwarded too.
    pub reached: Vec<IpNet>,
    /// The addresses at which the engine's peers listen.
    pub servers: Vec<SocketAddr>,
    /// Ports that only the engine uses towards the servers ([`ShortcutRules::ports`]); `None` if it shares
    /// them with other sockets.
    pub ports: Option<RangeInclusive<u16>>,
    /// Addresses of this host that only the local network may connect to.
    pub private: Vec<SocketAddr>,
    /// The treatment of QUIC.
    pub quic: Quic,
    /// The treatment of hosts that speak MPTCP.
    pub mptcp_hosts: MptcpHosts,
}

/// An address at which a server is reached, and its counterpart behind the TUN device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mapping {
    /// Address and port that peers connect to.
    pub public: SocketAddr,
    /// Address behind the TUN device, of the same family.
    pub inner: IpAddr,
}

/// The rules of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerRules {
    /// The TUN device.
    pub tun: String,
    /// The server's addresses.
    pub mappings: Vec<Mapping>,
}

/// The contents of an instance's table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rules {
    /// The rules of a box.
    Box(BoxRules),
    /// The rules of a server.
    Server(ServerRules),
}

/// An instance's table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ruleset {
    /// Rules.
    pub rules: Rules,
    /// Settings to restore at the end.
    pub record: Vec<Sysctl>,
}

impl Ruleset {
    /// The family of the table, which [`InstanceNames::nft_table`] names.
    pub const FAMILY: Family = Family::Inet;

    /// Puts the table in force, in place of an earlier one of this instance, in one step.
    ///
    /// # Errors
    /// Fails if `nft` is missing or refuses; nothing changed then.
    pub fn apply(&self, instance_names: &InstanceNames) -> Result<()> {
        run_script(&self.script(instance_names)?)
    }

    /// Returns the nftables script.
    fn script(&self, instance_names: &InstanceNames) -> Result<String> {
        // The first line makes the table if it is missing, since deleting a missing table fails.
        let table = instance_names.nft_table();
        let mut out =
            format!("table inet {table}\ndelete table inet {table}\ntable inet {table} {{\n");
        self.emit(instance_names, &mut out).map_err(unquotable)?;
        out.push_str("}\n");
        Ok(out)
    }

    fn emit(&self, instance_names: &InstanceNames, out: &mut String) -> fmt::Result {
        writeln!(out, "chain {RECORD_CHAIN} {{")?;
        for setting in &self.record {
            writeln!(out, "{}", Recorded(setting))?;
        }
        writeln!(out, "}}")?;
        match &self.rules {
            Rules::Box(rules) => rules.emit(instance_names, out),
            Rules::Server(rules) => rules.emit(out),
        }
    }
}

/// Writes `record` into the instance's table and changes nothing else there: the rules of an instance that
/// was killed stay in force until [`Ruleset::apply`] replaces them. `tracks` makes the kernel load connection
/// tracking, without which its settings do not exist.
///
/// # Errors
/// Fails if `nft` is missing or refuses.
pub fn keep_record(instance_names: &InstanceNames, record: &[Sysctl], tracks: bool) -> Result<()> {
    let table = instance_names.nft_table();
    let mut script = format!("add table inet {table}\n");
    let mut emit = || {
        let head =
            |chain| format!("add chain inet {table} {chain}\nflush chain inet {table} {chain}");
        writeln!(script, "{}", head(RECORD_CHAIN))?;
        for setting in record {
            writeln!(
                script,
                "add rule inet {table} {RECORD_CHAIN} {}",
                Recorded(setting)
            )?;
        }
        if tracks {
            writeln!(script, "{}", head("tracking"))?;
            writeln!(
                script,
                "add rule inet {table} tracking ct state invalid counter"
            )?;
        }
        Ok(())
    };
    emit().map_err(unquotable)?;
    run_script(&script)
}

fn unquotable(_: fmt::Error) -> SystemError {
    SystemError::other("write the nftables rules", "a name cannot be quoted")
}

impl BoxRules {
    fn emit(&self, instance_names: &InstanceNames, out: &mut String) -> fmt::Result {
        if !self.lan.is_empty() {
            self.emit_sets(out)?;
            self.emit_intercept(instance_names, out)?;
            self.emit_forward(instance_names, out)?;
        }
        self.emit_input(out)?;
        self.emit_masquerade(out)
    }

    /// Returns the interfaces of the links.
    fn interfaces(&self) -> Vec<String> {
        let links = self.links.iter().filter(|link| !link.is_empty());
        links.cloned().collect()
    }

    /// Emits the masquerading. Other connections to a server get ports beyond the engine's.
    fn emit_masquerade(&self, out: &mut String) -> fmt::Result {
        let interfaces = self.interfaces();
        let links = Names(&interfaces);
        writeln!(
            out,
            "chain postrouting {{ type nat hook postrouting priority srcnat; policy accept;"
        )?;
        if let (Some(ports), false) = (&self.ports, self.lan.is_empty()) {
            for server in &self.servers {
                writeln!(
                    out,
                    "oifname {links} iifname {} {} daddr {} tcp dport {} masquerade to :{}-{}",
                    Names(&self.lan),
                    ip_keyword(server.ip()),
                    server.ip(),
                    server.port(),
                    ports.end().saturating_add(1),
                    u16::MAX,
                )?;
            }
        }
        let inside = [&self.lan[..], std::slice::from_ref(&self.tun)].concat();
        writeln!(
            out,
            "oifname {links} iifname {} masquerade\n}}",
            Names(&inside)
        )
    }

    fn emit_sets(&self, out: &mut String) -> fmt::Result {
        let forwarded = self.bypass.iter().chain(&self.reached);
        let (v4, v6): (Vec<IpNet>, _) = forwarded.partition(|net| matches!(net, IpNet::V4(_)));
        for (name, kind, networks) in [("bypass4", "ipv4_addr", v4), ("bypass6", "ipv6_addr", v6)] {
            writeln!(
                out,
                "set {name} {{ type {kind}; flags interval; auto-merge;"
            )?;
            if !networks.is_empty() {
                writeln!(out, "elements = {{ {} }}", List(&networks))?;
            }
            writeln!(out, "}}")?;
        }
        Ok(())
    }

    /// Emits the chain that intercepts connections.
    ///
    /// Other segments than SYNs are offered to the listeners only if they belong to no forwarded connection:
    /// `tproxy` looks for a listener if there is no socket, and the kernel answers them by RST. They come from a
    /// host that has not heard the end of an intercepted connection, because a RST was lost or the host slept.
    /// They carry the user's bytes, so they do not leave the box unprotected. Connection tracking forgets such a
    /// connection 10 s after its RST and takes its next segment for a new connection. If nothing listens, the
    /// rule ends before it sets the mark and the packet is forwarded. The retransmission of a
    /// forwarded SYN is forwarded too: connection tracking has an entry by then, so later packets would be
    /// translated by it. Connections that began over a link carry its mark, for the routing rule that keeps
    /// them there. An MP_JOIN belongs to a connection that was not intercepted, whatever happens to new ones.
    ///
    /// An intercepted connection has a mark of its own, by which the chain `forward` refuses its segments while
    /// nothing listens. Sockets get the ICMP errors of users' hosts, which quote users' bytes.
    ///
    /// Connections of a family that no server reaches are refused by the same look-up of a listener, so that
    /// they too are forwarded if nothing listens. They are refused by RST: the kernel limits ICMP errors to
    /// one host (`icmp.ratelimit`), and after one TCP may go on until its next SYN.
    fn emit_intercept(&self, instance_names: &InstanceNames, out: &mut String) -> fmt::Result {
        let (mark, intercepted) = (instance_names.mark(), instance_names.intercepted_mark());
        writeln!(
            out,
            "chain prerouting {{ type filter hook prerouting priority mangle; policy accept;
             iifname != {lan} return
             ct mark & {not_flow} == {mark} ct mark != {{ {mark}, {intercepted} }} meta mark set ct mark return
             ct mark {intercepted} meta l4proto {{ {icmp}, {icmpv6} }} meta mark set {mark} accept
             meta l4proto != tcp return
             tcp flags & (syn | ack | rst | fin) != syn socket transparent 1 \
                 meta mark set {mark} ct mark set {intercepted} accept
             tcp flags & (syn | ack | rst | fin) != syn ct mark != {intercepted} ct state != new return
             ct mark {mark} return
             {forwarded_mptcp} return
             fib daddr type != unicast return
             ip daddr @bypass4 return
             ip6 daddr @bypass6 return",
            lan = Names(&self.lan),
            not_flow = !InstanceNames::FLOW_BITS,
            // By number: a confined process cannot look names up in /etc/protocols.
            icmp = ip::PROTO_ICMP,
            icmpv6 = ip::PROTO_ICMPV6,
            forwarded_mptcp = match self.mptcp_hosts {
                MptcpHosts::Forward => "tcp option mptcp exists".to_owned(),
                MptcpHosts::Proxy => format!("tcp option mptcp subtype {MP_JOIN}"),
            },
        )?;
        let (port, Families { v4, v6 }) = (self.intercept_port, self.families);
        let listeners = [
            (v4, "ipv4", format!("tproxy ip to 127.0.0.1:{port}")),
            (v6, "ipv6", format!("tproxy ip6 to [::1]:{port}")),
        ];
        let families = 1 + usize::from(self.intercept_v6);
        for (taken, family, listener) in &listeners[..families] {
            let what = match taken {
                true => format!("meta mark set {mark} ct mark set {intercepted} accept"),
                false => "reject with tcp reset".to_owned(),
            };
            writeln!(
                out,
                "meta nfproto {family} meta l4proto tcp {listener} {what}"
            )?;
        }
        writeln!(out, "}}")
    }

    /// Emits the chain for forwarded packets.
    ///
    /// A segment of an intercepted connection comes here if it has no socket and nothing listens. It carries the
    /// user's bytes, so it does not leave the box unprotected; a RST says the end again. A SYN of such a
    /// connection is refused too: address translation is decided by the first packet, so a link would carry the
    /// SYN with the host's own address.
    fn emit_forward(&self, instance_names: &InstanceNames, out: &mut String) -> fmt::Result {
        writeln!(
            out,
            "chain forward {{ type filter hook forward priority mangle; policy accept;
             iifname {lan} ct mark {intercepted} meta l4proto tcp reject with tcp reset
             iifname {lan} meta l4proto tcp ct mark set {mark}
             iifname {lan} oifname {links} tcp flags syn tcp option maxseg size set rt mtu
             iifname {links} oifname {lan} tcp flags syn tcp option maxseg size set rt mtu",
            lan = Names(&self.lan),
            links = Names(&self.interfaces()),
            mark = instance_names.mark(),
            intercepted = instance_names.intercepted_mark(),
        )?;
        let places = self.links.iter().zip(0..);
        for (link, index) in places.filter(|(link, _)| !link.is_empty()) {
            let (link, mark) = (Quoted(link), instance_names.flow_mark(index));
            writeln!(
                out,
                "iifname {lan} oifname {link} ct mark set {mark}
                 iifname {link} oifname {lan} ct mark set {mark}",
                lan = Names(&self.lan),
            )?;
        }
        if self.quic == Quic::Reject {
            // Browsers then use TCP, which is aggregated. Bypassed destinations keep QUIC, since their TCP is
            // only forwarded.
            writeln!(
                out,
                "ip daddr @bypass4 accept
                 ip6 daddr @bypass6 accept
                 iifname {} udp dport 443 reject with icmpx port-unreachable",
                Names(&self.lan)
            )?;
        }
        writeln!(out, "}}")
    }

    /// Emits the chain that protects this host's own TCP.
    ///
    /// Address translation forgets a link's connections when the link goes down. Later segments of the server
    /// must not reach this host's own TCP, which would reset the subflow. A server may have announced further
    /// addresses with the same port: segments from there are dropped if they belong to no connection of this
    /// host. Private addresses are guarded here too, since a packet for an address of the local network may
    /// come in by a link.
    fn emit_input(&self, out: &mut String) -> fmt::Result {
        writeln!(
            out,
            "chain input {{ type filter hook input priority filter; policy accept;"
        )?;
        for server in &self.servers {
            writeln!(
                out,
                "iifname {} {} saddr {} tcp sport {} drop",
                Names(&self.interfaces()),
                ip_keyword(server.ip()),
                server.ip(),
                server.port()
            )?;
        }
        let ports: BTreeSet<u16> = self.servers.iter().map(SocketAddr::port).collect();
        for port in ports {
            writeln!(
                out,
                "iifname {} tcp sport {port} tcp flags & ack == ack ct state {{ new, invalid }} drop",
                Names(&self.interfaces()),
            )?;
        }
        for addr in &self.private {
            let inside = [&self.lan[..], &["lo".to_owned()]].concat();
            write!(out, "iifname != {} ", Names(&inside))?;
            match addr.ip() {
                ip if !ip.is_unspecified() => write!(out, "{} daddr {ip} ", ip_keyword(ip))?,
                IpAddr::V4(_) => write!(out, "meta nfproto ipv4 ")?,
                IpAddr::V6(_) => write!(out, "meta nfproto ipv6 ")?,
            }
            writeln!(out, "tcp dport {} drop", addr.port())?;
        }
        writeln!(out, "}}")
    }
}

impl ServerRules {
    /// Emits the translation between public addresses and the TUN device, without connection tracking: a
    /// flood of SYNs must not fill its table before the engine's own defence sees them. The source is
    /// rewritten after routing, since the kernel refuses an incoming packet from one of its own addresses.
    fn emit(&self, out: &mut String) -> fmt::Result {
        let tun = Quoted(&self.tun);
        writeln!(
            out,
            "chain prerouting {{ type filter hook prerouting priority raw; policy accept;
             iifname {tun} notrack"
        )?;
        for Mapping { public, inner } in &self.mappings {
            let ip = ip_keyword(public.ip());
            writeln!(
                out,
                "{ip} daddr {} tcp dport {} notrack {ip} daddr set {inner}",
                public.ip(),
                public.port()
            )?;
            writeln!(
                out,
                "{ip} daddr {} {} notrack {ip} daddr set {inner}",
                public.ip(),
                quoting(public.ip(), &public.port().to_string())
            )?;
        }
        writeln!(
            out,
            "}}\nchain postrouting {{ type filter hook postrouting priority raw; policy accept;
             iifname != {tun} return"
        )?;
        for Mapping { public, inner } in &self.mappings {
            let ip = ip_keyword(public.ip());
            writeln!(
                out,
                "{ip} saddr {inner} tcp sport {} {ip} saddr set {}",
                public.port(),
                public.ip()
            )?;
        }
        writeln!(out, "}}")
    }
}

/// Returns the settings that an earlier instance of this name recorded; none if there was no such instance.
///
/// # Errors
/// Fails if `nft` is missing.
pub fn recorded(instance_names: &InstanceNames) -> Result<Vec<Sysctl>> {
    let listing = match run_nft(
        &[
            "-j",
            "list",
            "chain",
            "inet",
            &instance_names.nft_table(),
            RECORD_CHAIN,
        ],
        "",
    ) {
        Ok(listing) => listing,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(error),
        // There is no such table.
        Err(_) => return Ok(Vec::new()),
    };
    Ok(parse_record(&listing))
}

/// Removes the instance's table, if there is one.
///
/// # Errors
/// Fails if `nft` is missing or refuses.
pub fn remove(instance_names: &InstanceNames) -> Result<()> {
    remove_tables(&[("inet", &instance_names.nft_table())])
}

/// Removes tables, each given by its family and name, if they exist.
fn remove_tables(tables: &[(&str, &str)]) -> Result<()> {
    let remove = |(family, name)| format!("table {family} {name}\ndelete table {family} {name}\n");
    run_script(&tables.iter().copied().map(remove).collect::<String>())
}

fn parse_record(listing: &str) -> Vec<Sysctl> {
    let Ok(listing) = serde_json::from_str::<serde_json::Value>(listing) else {
        return Vec::new();
    };
    let objects = listing["nftables"]
        .as_array()
        .map_or(&[][..], Vec::as_slice);
    let comments = objects.iter().filter_map(|o| o["rule"]["comment"].as_str());
    comments
        .filter_map(|comment| comment.rsplit_once('='))
        .map(|(key, value)| Sysctl::new(key, value))
        .collect()
}

fn run_script(script: &str) -> Result<()> {
    run_nft(&["-f", "-"], script).map(drop)
}

fn run_nft(args: &[&str], script: &str) -> Result<String> {
    let cannot = || SystemError::cannot(format!("run nft {}", args.join(" ")));
    let mut child = Command::new("nft")
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(cannot())?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(script.as_bytes()).map_err(cannot())?;
    }
    let output = child.wait_with_output().map_err(cannot())?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    let first = stderr.lines().next().unwrap_or("nft gave no reason");
    Err(SystemError::other(
        format!("run nft {}", args.join(" ")),
        first,
    ))
}

/// Returns a match for ICMP errors about TCP segments from `source` and one of `ports`. It looks at the
/// packet that they quote: source address and protocol of its IP header, which has no options, then the port.
fn quoting(source: IpAddr, ports: &str) -> String {
    match source {
        IpAddr::V4(source) => format!(
            "icmp type {{ destination-unreachable, time-exceeded }} \
             @th,136,8 6 @th,160,32 {} @th,224,16 {ports}",
            source.to_bits()
        ),
        IpAddr::V6(source) => format!(
            "icmpv6 type {{ destination-unreachable, packet-too-big, time-exceeded }} \
             @th,112,8 6 @th,128,128 {:#x} @th,384,16 {ports}",
            source.to_bits()
        ),
    }
}

fn ip_keyword(addr: IpAddr) -> &'static str {
    if addr.is_ipv4() { "ip" } else { "ip6" }
}

/// A string in quotes. nft has no escapes, so a string that holds a quote ends the formatting with an error.
struct Quoted<'a>(&'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.contains(['"', '\n', '\\', '*']) {
            return Err(fmt::Error);
        }
        write!(f, "\"{}\"", self.0)
    }
}

/// The rule that records a setting.
struct Recorded<'a>(&'a Sysctl);

impl fmt::Display for Recorded<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Sysctl { key, value } = self.0;
        write!(f, "counter comment {}", Quoted(&format!("{key}={value}")))
    }
}

struct Names<'a>(&'a [String]);

impl fmt::Display for Names<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let quoted: Vec<_> = self.0.iter().map(|name| Quoted(name)).collect();
        write!(f, "{{ {} }}", List(&quoted))
    }
}

struct List<'a, T>(&'a [T]);

impl<T: fmt::Display> fmt::Display for List<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, item) in self.0.iter().enumerate() {
            let comma = if i > 0 { ", " } else { "" };
            write!(f, "{comma}{item}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_cannot_be_quoted_is_refused() {
        let ruleset = Ruleset {
            rules: Rules::Server(ServerRules {
                tun: "x\" accept".to_owned(),
                mappings: Vec::new(),
            }),
            record: Vec::new(),
        };
        let instance_names = InstanceNames::of_tun("t");
        assert!(ruleset.script(&instance_names).is_err());
    }

    fn box_script(servers: Vec<SocketAddr>, mptcp_hosts: MptcpHosts) -> String {
        script_for(Families::BOTH, servers, mptcp_hosts)
    }

    fn script_for(families: Families, servers: Vec<SocketAddr>, mptcp_hosts: MptcpHosts) -> String {
        let ruleset = Ruleset {
            rules: Rules::Box(BoxRules {
                lan: vec!["lan0".to_owned()],
                links: vec!["wan0".to_owned()],
                tun: "braid0".to_owned(),
                intercept_port: 1081,
                intercept_v6: true,
                families,
                bypass: vec!["192.0.2.0/24".parse().unwrap()],
                reached: vec!["10.0.0.0/8".parse().unwrap()],
                servers,
                ports: Some(10_000..=32_767),
                private: Vec::new(),
                quic: Quic::Forward,
                mptcp_hosts,
            }),
            record: Vec::new(),
        };
        ruleset.script(&InstanceNames::of_tun("t")).unwrap()
    }

    /// Segments from an address that a server announced are not reset by the box's own TCP; the box's own
    /// connections to other hosts at that port are left alone.
    #[test]
    fn announced_addresses_of_servers_are_covered_by_their_port() {
        let at = |n| SocketAddr::from(([192, 0, 2, n], 4433));
        let script = box_script(vec![at(1), at(2)], MptcpHosts::Forward);
        let input = script.split("chain input").nth(1).unwrap();
        let rules = input.lines().map(str::trim);
        let covers: Vec<&str> = rules.filter(|rule| rule.contains("ct state")).collect();
        let want = "iifname { \"wan0\" } tcp sport 4433 tcp flags & ack == ack \
                    ct state { new, invalid } drop";
        assert_eq!(covers, [want]);
    }

    #[test]
    fn what_the_routing_table_reaches_is_forwarded() {
        let script = box_script(Vec::new(), MptcpHosts::Proxy);
        let set = script.split("set bypass4").nth(1).unwrap();
        let elements = set.lines().nth(1).unwrap();
        assert_eq!(elements, "elements = { 192.0.2.0/24, 10.0.0.0/8 }");
    }

    /// The connection is forwarded too: the server would not know the token of the join.
    #[test]
    fn what_joins_a_connection_of_a_host_is_forwarded_before_any_listener_is_asked() {
        for (mptcp_hosts, forwarded) in [
            (MptcpHosts::Proxy, "tcp option mptcp subtype 1 return"),
            (MptcpHosts::Forward, "tcp option mptcp exists return"),
        ] {
            let script = box_script(Vec::new(), mptcp_hosts);
            let rules: Vec<&str> = script.lines().map(str::trim).collect();
            let returns = rules.iter().position(|rule| *rule == forwarded);
            let taken = rules.iter().position(|rule| rule.contains("tproxy"));
            assert!(returns.is_some() && returns < taken, "{script}");
            let of_mptcp = rules.iter().filter(|rule| rule.contains("mptcp"));
            assert_eq!(of_mptcp.count(), 1);
        }
    }

    /// Bypassed destinations have returned before. If nothing listens, `tproxy` ends the rule.
    #[test]
    fn connections_of_a_family_that_is_not_reached_are_refused() {
        let families = Families {
            v4: true,
            v6: false,
        };
        let script = script_for(families, Vec::new(), MptcpHosts::Proxy);
        let rules = script.split("chain prerouting").nth(1).unwrap();
        let rules = rules.lines().map(str::trim);
        let last: Vec<&str> = rules.take_while(|rule| *rule != "}").collect();
        let last = &last[last.len() - 3..];
        assert_eq!(last[0], "ip6 daddr @bypass6 return");
        assert!(last[1].starts_with("meta nfproto ipv4 meta l4proto tcp tproxy ip to"));
        let refused =
            "meta nfproto ipv6 meta l4proto tcp tproxy ip6 to [::1]:1081 reject with tcp reset";
        assert_eq!(last[2], refused);
        let script = box_script(Vec::new(), MptcpHosts::Proxy);
        let intercept = script.split("chain forward").next().unwrap();
        assert!(!intercept.contains("reject"), "{script}");
    }

    #[test]
    fn the_record_is_read_back() {
        let listing = r#"{"nftables": [{"metainfo": {}}, {"chain": {"name": "record"}},
            {"rule": {"comment": "net/ipv4/conf/a=b/forwarding=0", "expr": []}},
            {"rule": {"comment": "net/ipv6/conf/all/forwarding=1", "expr": []}}]}"#;
        let record = parse_record(listing);
        assert_eq!(record[0], Sysctl::new("net/ipv4/conf/a=b/forwarding", 0));
        assert_eq!(record[1], Sysctl::new("net/ipv6/conf/all/forwarding", 1));
        assert_eq!(parse_record("not json"), []);
    }
}
