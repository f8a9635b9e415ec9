//! Packet filter rules: one nftables table per instance, replaced as a whole.
//!
//! The table also records the earlier values of the kernel settings that the instance changed
//! ([`Ruleset::record`]). They are comments in a chain without a hook, which no packet passes. So the record is
//! in the same network namespace as the settings, and stays there if the process is killed.

mod check;
mod shortcut;
mod tunnel;
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
pub use tunnel::{BoxTunnel, ServerTunnel};
pub use watch::{Contents, Culprit, Family, Inspector, Monitor};

/// Name of the chain whose comments hold the recorded settings.
const RECORD_CHAIN: &str = "record";
/// Subtype of an MP_JOIN (RFC 8684 section 3.2).
const MP_JOIN: u8 = 1;

/// The rules of a box.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BoxRules {
    /// Interfaces of the local network. If there are none, nothing is intercepted.
    pub lan: Vec<String>,
    /// Interfaces of the access links by their index; empty at an unused index.
    pub links: Vec<String>,
    /// The TUN device.
    pub tun: String,
    /// Port of the listeners on 127.0.0.1 and `::1` that take intercepted connections.
    pub intercept_port: u16,
    /// True if IPv6 is intercepted too.
    pub intercept_v6: bool,
    /// The address families in which servers reach destinations. Connections of another family are refused, so
    /// that programs use the family that works.
    pub families: Families,
    /// Destinations whose connections are forwarded and not intercepted.
    pub bypass: Vec<IpNet>,
    /// Networks that this host's routing table has routes to. Their connections are forwarded too.
    pub reached: Vec<IpNet>,
    /// The addresses at which the engine's peers listen.
    pub servers: Vec<SocketAddr>,
    /// Local ports that only the engine uses towards the servers ([`ShortcutRules::ports`]); `None` if there is
    /// no shortcut: other sockets may then use the same ports.
    pub ports: Option<RangeInclusive<u16>>,
    /// Addresses of this host that only the local network may connect to.
    pub private: Vec<SocketAddr>,
    /// The treatment of QUIC.
    pub quic: Quic,
    /// The treatment of hosts that speak MPTCP.
    pub mptcp_hosts: MptcpHosts,
    /// The tunnel; `None` while it is down, so that everything that is not intercepted is forwarded.
    pub tunnel: Option<BoxTunnel>,
}

/// An address at which peers reach a server, and the engine's address that replaces it behind the TUN device.
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
    /// The tunnel; `None` if the server offers none.
    pub tunnel: Option<ServerTunnel>,
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
    /// The settings that are restored at the end, with their earlier values.
    pub record: Vec<Sysctl>,
}

impl Ruleset {
    /// The family of the table, which [`InstanceNames::nft_table`] names.
    pub const FAMILY: Family = Family::Inet;

    /// Loads the table. It replaces an earlier table of this instance in one transaction.
    ///
    /// # Errors
    /// Fails if `nft` is missing or refuses the rules. The earlier table is then still in the kernel.
    pub fn apply(&self, instance_names: &InstanceNames) -> Result<()> {
        run_script(&self.script(instance_names)?)
    }

    /// Returns the nftables script.
    fn script(&self, instance_names: &InstanceNames) -> Result<String> {
        // The first line creates the table if it is missing, since the second line, which deletes the table,
        // fails without it.
        let table = instance_names.nft_table();
        let mut out =
            format!("table inet {table}\ndelete table inet {table}\ntable inet {table} {{\n");
        self.emit(instance_names, &mut out).map_err(quoting_error)?;
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

/// Writes `record` into the instance's table and changes nothing else there: the rules of an instance that was
/// killed stay until [`Ruleset::apply`] replaces them. If `tracks` is true, adds a rule that makes the kernel
/// load connection tracking, since the settings of connection tracking do not exist until it is loaded.
///
/// # Errors
/// Fails if `nft` is missing or refuses the rules.
pub fn keep_record(instance_names: &InstanceNames, record: &[Sysctl], tracks: bool) -> Result<()> {
    let table = instance_names.nft_table();
    let mut script = format!("add table inet {table}\n");
    let mut emit = || {
        let empty_chain =
            |chain| format!("add chain inet {table} {chain}\nflush chain inet {table} {chain}");
        writeln!(script, "{}", empty_chain(RECORD_CHAIN))?;
        for setting in record {
            writeln!(
                script,
                "add rule inet {table} {RECORD_CHAIN} {}",
                Recorded(setting)
            )?;
        }
        if tracks {
            // No packet passes this chain; `ct` in a rule is enough to load connection tracking.
            writeln!(script, "{}", empty_chain("tracking"))?;
            writeln!(
                script,
                "add rule inet {table} tracking ct state invalid counter"
            )?;
        }
        Ok(())
    };
    emit().map_err(quoting_error)?;
    run_script(&script)
}

/// Returns the error of a script whose formatting failed. Only [`Quoted`] fails.
fn quoting_error(_: fmt::Error) -> SystemError {
    SystemError::other("write the nftables rules", "a name cannot be quoted")
}

impl BoxRules {
    fn emit(&self, instance_names: &InstanceNames, out: &mut String) -> fmt::Result {
        if !self.lan.is_empty() {
            self.emit_sets(out)?;
            self.emit_intercept(instance_names, out)?;
            self.emit_forward(instance_names, out)?;
            if let Some(tunnel) = &self.tunnel {
                tunnel.emit(&self.lan, instance_names, out)?;
            }
        }
        self.emit_input(out)?;
        self.emit_masquerade(out)
    }

    /// Returns the interfaces of the links.
    fn interfaces(&self) -> Vec<String> {
        let links = self.links.iter().filter(|link| !link.is_empty());
        links.cloned().collect()
    }

    /// Emits the chain that masquerades packets of the local network and of the TUN device. Connections of the
    /// local network to a server get ports above the engine's, so that a port tells whose packet it is.
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

    /// Emits the sets of the destinations that are forwarded and not intercepted.
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

    /// Emits the chain that intercepts connections. Its priority puts it after connection tracking, whose marks the
    /// rules read. Routing comes later and follows the packet marks that the rules set.
    ///
    /// Its rules, in their order:
    ///
    /// 1. Packets that come in by an interface outside the local network pass.
    /// 2. Packets of a connection that began over a link get the link's mark, for the routing rule that keeps the
    ///    connection on this link ([`Self::kept_on_links`]).
    /// 3. ICMP errors about an intercepted connection are delivered to its socket. They quote the user's bytes,
    ///    so they do not leave the box.
    /// 4. Other packets than TCP segments go into the tunnel ([`BoxTunnel`]), or pass while there is none.
    /// 5. A segment that is no SYN and has a socket is delivered to this socket.
    /// 6. A segment that is no SYN and belongs to a forwarded connection passes. Any other segment that is no SYN
    ///    goes on to the listeners, and the kernel answers it by RST, since a listener accepts only SYNs. These
    ///    segments come from a host that does not know that an intercepted connection has ended, because a RST was
    ///    lost or the host slept. They carry the user's bytes, so they must not leave the box unprotected.
    ///    Connection tracking forgets the connection 10 s after its RST and gives a later segment the state `new`.
    ///    So segments in this state go to the listeners too.
    /// 7. The retransmission of a forwarded SYN passes. Connection tracking has an entry for the connection and
    ///    would translate its later packets.
    /// 8. Connections of hosts that speak MPTCP pass if the configuration forwards such hosts. An MP_JOIN passes
    ///    in any case: it belongs to a connection that was not intercepted.
    /// 9. Packets to this host's own, broadcast and multicast addresses, and to bypassed networks pass.
    /// 10. The other SYNs go to the listener of their family (`tproxy`). If nothing listens, the rule ends before
    ///     it sets a mark, and the packet is forwarded.
    ///
    /// An intercepted connection has a connection mark of its own, by which the chain `forward` refuses its
    /// segments while nothing listens.
    ///
    /// A connection of a family in which no server reaches destinations is refused. This happens only after the
    /// same look-up of a listener, so if nothing listens, such a connection is forwarded like any other. It is
    /// refused by RST and not by an ICMP error: the kernel limits the rate of ICMP errors to one host
    /// (`icmp.ratelimit`), and a host that gets an ICMP error may still wait until it sends its next SYN.
    fn emit_intercept(&self, instance_names: &InstanceNames, out: &mut String) -> fmt::Result {
        let (mark, intercepted) = (instance_names.mark(), instance_names.intercepted_mark());
        writeln!(
            out,
            "chain prerouting {{ type filter hook prerouting priority mangle; policy accept;
             iifname != {lan} return
             {kept}
             ct mark {intercepted} meta l4proto {{ {icmp}, {icmpv6} }} meta mark set {mark} accept
             meta l4proto != tcp {others}
             tcp flags & (syn | ack | rst | fin) != syn socket transparent 1 \
                 meta mark set {mark} ct mark set {intercepted} accept
             tcp flags & (syn | ack | rst | fin) != syn ct mark != {intercepted} ct state != new return
             ct mark {mark} return
             {forwarded_mptcp} return
             fib daddr type != unicast return
             ip daddr @bypass4 return
             ip6 daddr @bypass6 return",
            lan = Names(&self.lan),
            kept = self.kept_on_links(instance_names),
            others = match self.tunnel {
                Some(_) => format!("goto {}", BoxTunnel::CHAIN),
                None => "return".to_owned(),
            },
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
        for (is_reached, family, listener) in &listeners[..families] {
            let verdict = match is_reached {
                true => format!("meta mark set {mark} ct mark set {intercepted} accept"),
                false => "reject with tcp reset".to_owned(),
            };
            writeln!(
                out,
                "meta nfproto {family} meta l4proto tcp {listener} {verdict}"
            )?;
        }
        writeln!(out, "}}")
    }

    /// Returns the rules that keep connections on the link that they began on.
    ///
    /// While there is a tunnel, they hold for TCP, for ICMP errors, and for answers to what came in by a link. Other
    /// flows began while the tunnel was down. They return to the tunnel, or they would stay unprotected as long as they
    /// send.
    fn kept_on_links(&self, instance_names: &InstanceNames) -> String {
        let keep = format!("{} meta mark set ct mark return", on_a_link(instance_names));
        match self.tunnel {
            Some(_) => ["meta l4proto tcp", "ct state related", "ct direction reply"]
                .map(|kept| format!("{kept} {keep}"))
                .join("\n"),
            None => keep,
        }
    }

    /// Emits the chain for forwarded packets.
    ///
    /// A segment of an intercepted connection comes here if it has no socket and nothing listens. It carries the
    /// user's bytes, so it must not leave the box unprotected. It is refused by RST, which tells the sender
    /// again that the connection has ended. A SYN of such a connection is refused too: the kernel decides about
    /// address translation at the first packet of a connection, and the first packet of this connection was not
    /// translated. So the SYN would leave by a link with the private address of the host.
    ///
    /// A connection over a link gets the link's mark as connection mark; a TCP connection elsewhere, for example
    /// between two local networks, gets the instance's mark. A packet must not set first one of them and then the
    /// other: another processor may forward a packet of the same connection at the same time. That processor would
    /// find the mark without a link, and route its packet over the link of new connections. Masquerade then drops
    /// the connection's entry, and both ends reset the connection.
    ///
    /// The maximum segment size is adapted to the MTU of the route, because path MTU discovery often fails behind
    /// NATs and filters.
    fn emit_forward(&self, instance_names: &InstanceNames, out: &mut String) -> fmt::Result {
        writeln!(
            out,
            "chain forward {{ type filter hook forward priority mangle; policy accept;
             iifname {lan} ct mark {intercepted} meta l4proto tcp reject with tcp reset
             iifname {lan} oifname != {links} meta l4proto tcp ct mark set {mark}
             iifname {lan} oifname {links} tcp flags syn tcp option maxseg size set rt mtu
             iifname {links} oifname {lan} tcp flags syn tcp option maxseg size set rt mtu",
            lan = Names(&self.lan),
            links = Names(&self.interfaces()),
            mark = instance_names.mark(),
            intercepted = instance_names.intercepted_mark(),
        )?;
        let links = self.links.iter().zip(0..);
        for (link, index) in links.filter(|(link, _)| !link.is_empty()) {
            let (link, mark) = (Quoted(link), instance_names.flow_mark(index));
            writeln!(
                out,
                "iifname {lan} oifname {link} ct mark set {mark}
                 iifname {link} oifname {lan} ct mark set {mark}",
                lan = Names(&self.lan),
            )?;
        }
        if self.quic == Quic::Reject {
            // Browsers use TCP, which is aggregated, if they cannot use QUIC. Bypassed destinations keep QUIC,
            // since their TCP connections would not be aggregated either.
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
    /// When a link goes down, address translation forgets the connections over this link. If the server sends
    /// segments later, they must not reach this host's own TCP, which would reset the subflow. So all segments
    /// from the servers' addresses are dropped here. A server may have announced further addresses with the same
    /// port. So segments from this port at any address are dropped unless they belong to a connection of this
    /// host.
    ///
    /// The private addresses accept connections from the local network only. Listening on an address of the local
    /// network alone does not ensure this, since a packet for this address may come in by a link.
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
    /// Emits the translation between public addresses and the TUN device. It does not use connection tracking,
    /// because a flood of SYNs would fill the table of connections before the engine's own defence sees it. For the
    /// same reason, datagrams of the tunnel are not tracked in either direction. The source address is rewritten after
    /// routing, since the kernel drops an incoming packet whose source is one of its own addresses.
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
                match_quoted_source(public.ip(), &public.port().to_string())
            )?;
            if self.tunnel.is_some() {
                let (addr, port) = (public.ip(), public.port());
                writeln!(out, "{ip} daddr {addr} udp dport {port} notrack")?;
            }
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
        writeln!(out, "}}")?;
        match &self.tunnel {
            Some(tunnel) => tunnel.emit(&self.mappings, out),
            None => Ok(()),
        }
    }
}

/// Returns the match for packets of a connection that began over a link. The mark of this connection has the number
/// of the link.
fn on_a_link(instance_names: &InstanceNames) -> String {
    format!(
        "ct mark & {} == {mark} ct mark != {{ {mark}, {} }}",
        !InstanceNames::FLOW_BITS,
        instance_names.intercepted_mark(),
        mark = instance_names.mark(),
    )
}

/// Returns the settings that an earlier instance of this name recorded; none if its table does not exist.
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
/// Fails if `nft` is missing or may not change rules.
pub fn remove(instance_names: &InstanceNames) -> Result<()> {
    remove_tables(&[("inet", &instance_names.nft_table())])
}

/// Removes the tables with these families and names, if they exist.
fn remove_tables(tables: &[(&str, &str)]) -> Result<()> {
    // The first line creates a missing table, since deleting a missing table fails.
    let remove = |(family, name)| format!("table {family} {name}\ndelete table {family} {name}\n");
    run_script(&tables.iter().copied().map(remove).collect::<String>())
}

/// Returns the settings in the comments of a chain that `nft -j` listed. Ignores other comments, and returns no
/// settings if `listing` is not JSON.
fn parse_record(listing: &str) -> Vec<Sysctl> {
    let Ok(listing) = serde_json::from_str::<serde_json::Value>(listing) else {
        return Vec::new();
    };
    let objects = listing["nftables"]
        .as_array()
        .map_or(&[][..], Vec::as_slice);
    let comments = objects.iter().filter_map(|o| o["rule"]["comment"].as_str());
    // The name of an interface in the key may contain `=`, the value does not.
    comments
        .filter_map(|comment| comment.rsplit_once('='))
        .map(|(key, value)| Sysctl::new(key, value))
        .collect()
}

fn run_script(script: &str) -> Result<()> {
    run_nft(&["-f", "-"], script).map(drop)
}

/// Runs `nft` with `script` as its input, and returns its output. Fails with the first line of its errors.
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

/// Returns an nftables match for ICMP errors about TCP segments from `source` and one of `ports`.
///
/// The offsets in the match are in bits from the start of the ICMP header, which has 64 bits. The quoted packet
/// follows this header. In an IPv4 header (160 bits without options), the protocol is at bit 72 and the source
/// at bit 96. In an IPv6 header (320 bits), the next header is at bit 48 and the source at bit 64. The ports
/// follow the IP header. Protocol 6 is TCP. The engine's own packets have no IP options.
fn match_quoted_source(source: IpAddr, ports: &str) -> String {
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

/// A string in quotes. nft has no escapes, so formatting fails if the string contains a quote or another
/// character that is special between quotes.
struct Quoted<'a>(&'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.contains(['"', '\n', '\\', '*']) {
            return Err(fmt::Error);
        }
        write!(f, "\"{}\"", self.0)
    }
}

/// The rule that records a setting in its comment. A rule needs a statement. It is `counter`, which has no
/// effect on packets.
struct Recorded<'a>(&'a Sysctl);

impl fmt::Display for Recorded<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Sysctl { key, value } = self.0;
        write!(f, "counter comment {}", Quoted(&format!("{key}={value}")))
    }
}

/// A set of interface names, each in quotes.
struct Names<'a>(&'a [String]);

impl fmt::Display for Names<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let quoted: Vec<_> = self.0.iter().map(|name| Quoted(name)).collect();
        write!(f, "{{ {} }}", List(&quoted))
    }
}

/// Items with commas between them.
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
                tunnel: None,
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
            rules: Rules::Box(box_rules(families, servers, mptcp_hosts)),
            record: Vec::new(),
        };
        ruleset.script(&InstanceNames::of_tun("t")).unwrap()
    }

    fn box_rules(
        families: Families,
        servers: Vec<SocketAddr>,
        mptcp_hosts: MptcpHosts,
    ) -> BoxRules {
        BoxRules {
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
            tunnel: None,
        }
    }

    /// A flow that began while the tunnel was down returns to it. A connection stays on its link.
    #[test]
    fn only_connections_and_answers_stay_on_a_link_while_there_is_a_tunnel() {
        let kept = |tunnel| {
            let mut rules = box_rules(Families::BOTH, Vec::new(), MptcpHosts::Proxy);
            rules.tunnel = tunnel;
            let kept = rules.kept_on_links(&InstanceNames::of_tun("t"));
            kept.lines().map(str::to_owned).collect::<Vec<_>>()
        };
        let one = kept(None);
        assert_eq!(one.len(), 1);
        let all = &one[0];
        assert!(all.starts_with("ct mark & ") && all.ends_with("meta mark set ct mark return"));
        let tunnel = BoxTunnel {
            device: "braid0t".to_owned(),
            v4: true,
            v6: true,
        };
        let of = ["meta l4proto tcp", "ct state related", "ct direction reply"];
        assert_eq!(kept(Some(tunnel)), of.map(|of| format!("{of} {all}")));
    }

    /// Segments from an address that a server announced must not be reset by the box's own TCP. The box's own
    /// connections to the same port of other hosts must still work.
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

    /// If a packet set the mark without a link first, packets of the connection that other processors forward at
    /// this moment would lose their link.
    #[test]
    fn a_packet_that_leaves_over_a_link_sets_only_the_links_mark() {
        let script = box_script(Vec::new(), MptcpHosts::Proxy);
        let forward = script.split("chain forward").nth(1).unwrap();
        let forward = forward.split("chain").next().unwrap();
        let rules = forward.lines().map(str::trim);
        let sets: Vec<&str> = rules.filter(|rule| rule.contains("ct mark set")).collect();
        let instance_names = InstanceNames::of_tun("t");
        let (mark, flow) = (instance_names.mark(), instance_names.flow_mark(0));
        let want = [
            format!(
                "iifname {{ \"lan0\" }} oifname != {{ \"wan0\" }} meta l4proto tcp ct mark set {mark}"
            ),
            format!("iifname {{ \"lan0\" }} oifname \"wan0\" ct mark set {flow}"),
            format!("iifname \"wan0\" oifname {{ \"lan0\" }} ct mark set {flow}"),
        ];
        assert_eq!(sets, want);
    }

    #[test]
    fn what_the_routing_table_reaches_is_forwarded() {
        let script = box_script(Vec::new(), MptcpHosts::Proxy);
        let set = script.split("set bypass4").nth(1).unwrap();
        let elements = set.lines().nth(1).unwrap();
        assert_eq!(elements, "elements = { 192.0.2.0/24, 10.0.0.0/8 }");
    }

    /// The MP_JOIN of a host belongs to a connection that is forwarded: a proxy would not know its token.
    #[test]
    fn an_mp_join_of_a_host_is_forwarded_before_any_listener_is_asked() {
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

    /// The rule that refuses comes after the rules for bypassed destinations, and its `tproxy` ends the rule if
    /// nothing listens. So in both cases connections are forwarded and not refused.
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
