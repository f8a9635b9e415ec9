//! `box.toml`.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use core::time::Duration;
use std::path::{Path, PathBuf};

use braid_engine::Ecn;
use braid_engine::cc::{self, Algorithm};
use braid_secure::channel::Versions;
use braid_secure::keys::{PrivateKey, PublicKey};
use braid_units::ConfigError;
use ipnet::IpNet;
use serde::{Deserialize, Deserializer};
use toml::Spanned;

use crate::relay::Patience;

use super::common::{
    DEFAULT_CONGESTION, DEFAULT_DRAIN, DEFAULT_PORT, MAX_PATHS, RawTun, Source, TunConfig,
    check_strategy, read,
};
use super::error::SERVER_KEY_HINT;
use super::measuring::{self, Measuring, Select};
use super::rule::{RawRule, Rule, check_rules};
use super::types::{self, Address, Interface, Key, Listen, OneOrMany, Prefix, Protection};

/// Most servers of a box.
const MAX_SERVERS: usize = 8;
/// In place of a server's name: the box chooses.
pub const AUTO: &str = "auto";
/// Most addresses of its SOCKS5 proxy.
const MAX_LISTENERS: usize = 16;

/// Whatever the configuration says: this host, the link, multicast.
const NEVER_TAKEN_IN: [&str; 6] = [
    "0.0.0.0/8",
    "127.0.0.0/8",
    "169.254.0.0/16",
    "224.0.0.0/4",
    "fe80::/10",
    "ff00::/8",
];

/// Settings of the aggregation box.
#[derive(Debug, Clone)]
pub struct BoxConfig {
    /// Name of this box in logs.
    pub name: String,
    /// Says who this box is.
    pub key: PrivateKey,
    /// The file that it is in; `None` where it came from elsewhere.
    pub key_file: Option<PathBuf>,
    /// Interfaces whose TCP connections are taken in; at least one.
    pub lan: Vec<String>,
    /// Access links in order of preference; at least one.
    pub links: Vec<LinkConfig>,
    /// Servers in order of preference; at least one.
    pub servers: Vec<ServerEntry>,
    /// Which of them new connections go to.
    pub select: Select,
    /// Name of the strategy.
    pub strategy: String,
    /// Congestion control of subflows.
    pub congestion: Algorithm,
    /// DSS checksums are required of every connection ([`braid_engine::Config::checksum`]).
    pub checksum: bool,
    /// Congestion marks instead of losses ([`braid_engine::Config::ecn`]).
    pub ecn: Ecn,
    /// Destinations that are forwarded as they are.
    pub bypass: Vec<IpNet>,
    /// What is known of connections beforehand; the first that is for a connection counts.
    pub rules: Vec<Rule>,
    /// Addresses of this host at which programs of the LAN find a SOCKS5 proxy.
    pub socks: Vec<SocketAddr>,
    /// What happens to QUIC.
    pub quic: Quic,
    /// What happens to connections that hosts open by Multipath TCP.
    pub mptcp_hosts: MptcpHosts,
    /// What goes to and from servers passes by the kernel's routing and the firewall, where the kernel can
    /// do that.
    pub shortcut: bool,
    /// The control socket; `None` leaves the place to the driver.
    pub control: Option<PathBuf>,
    /// The directory in which what was learnt of paths is kept; `None` where it is not.
    pub state: Option<PathBuf>,
    /// TUN device and its addresses.
    pub tun: TunConfig,
    /// Timeouts.
    pub timeouts: BoxTimeouts,
    /// Limits.
    pub limits: BoxLimits,
    /// How often links are probed.
    pub probing: Probing,
    /// How servers are measured, where there is a choice.
    pub measuring: Measuring,
    /// Connections to the server that wait for users.
    pub warm: Warm,
    /// Versions of the protocol that the box speaks to servers: those of its release, which no file changes.
    pub versions: Versions,
}

/// One access link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkConfig {
    /// Name in logs; by default the interface's.
    pub name: String,
    /// Network interface.
    pub interface: String,
    /// Next hop.
    pub gateway: Gateway,
    /// Use IPv4 where the interface has it.
    pub v4: bool,
    /// Use IPv6 where the interface has it.
    pub v6: bool,
    /// Subflows are opened with the backup bit (RFC 8684 section 3.2): used while no other works.
    pub backup: bool,
    /// No subflow is opened here while another link is up.
    pub metered: bool,
    /// Largest IP packet in bytes, 1280 to 65535; by default the interface's.
    pub mtu: Option<u16>,
}

/// Next hop of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gateway {
    /// What the routing table (DHCP, router advertisements) says; a point-to-point interface
    /// needs none.
    Auto,
    /// These; a family without one has no next hop.
    Fixed {
        /// IPv4 next hop.
        v4: Option<Ipv4Addr>,
        /// IPv6 next hop.
        v6: Option<Ipv6Addr>,
    },
}

/// One aggregation server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerEntry {
    /// Name in logs and orders; by default `server1` and so on.
    pub name: String,
    /// IPv4 address; at least one of the two is there.
    pub v4: Option<Ipv4Addr>,
    /// IPv6 address.
    pub v6: Option<Ipv6Addr>,
    /// TCP port.
    pub port: u16,
    /// Its public key.
    pub key: PublicKey,
    /// What protects the connections to it.
    pub protection: Protection,
}

impl ServerEntry {
    /// The IPv4 endpoint.
    pub fn endpoint_v4(&self) -> Option<SocketAddr> {
        self.v4.map(|a| SocketAddr::from((a, self.port)))
    }

    /// The IPv6 endpoint.
    pub fn endpoint_v6(&self) -> Option<SocketAddr> {
        self.v6.map(|a| SocketAddr::from((a, self.port)))
    }
}

/// What happens to QUIC (UDP port 443 of the LAN).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Quic {
    /// Forwarded over the best link, as other UDP.
    #[default]
    Forward,
    /// Answered by ICMP "port unreachable", so that browsers fall back to TCP, which is joined.
    Reject,
}

/// What happens to connections of the LAN that are Multipath TCP already (their SYN carries MP_CAPABLE).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MptcpHosts {
    /// Forwarded as they are.
    #[default]
    Forward,
    /// Taken in as others are: a host with one interface gains by it.
    Proxy,
}

/// Timeouts of the box.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BoxTimeouts {
    /// From a user's connection to the end of the server's answer; what the far side takes to
    /// connect is part of it.
    #[serde(deserialize_with = "types::duration")]
    pub connect: Duration,
    /// First try to reach a server over one link; later tries take longer.
    #[serde(deserialize_with = "types::duration")]
    pub attempt: Duration,
    /// A connection whose server is silent though it owes an answer is ended after this
    /// ([`braid_engine::Config::user_timeout`]): as long as all links may be dark.
    #[serde(deserialize_with = "types::user_timeout")]
    pub user_timeout: Duration,
    /// A connection on which nothing moves is ended after this.
    #[serde(deserialize_with = "types::duration")]
    pub idle: Duration,
    /// The same where one direction is closed already.
    #[serde(deserialize_with = "types::duration")]
    pub half_closed: Duration,
    /// How long transfers that are under way may take to end when the box is stopped.
    #[serde(deserialize_with = "types::duration")]
    pub drain: Duration,
}

impl BoxTimeouts {
    pub(crate) fn patience(&self) -> Patience {
        Patience {
            idle: self.idle,
            half_closed: self.half_closed,
        }
    }
}

impl Default for BoxTimeouts {
    fn default() -> Self {
        BoxTimeouts {
            connect: Duration::from_secs(45),
            attempt: Duration::from_secs(2),
            user_timeout: types::USER_TIMEOUT,
            idle: Duration::from_secs(2 * 3600),
            half_closed: Duration::from_secs(15 * 60),
            drain: DEFAULT_DRAIN,
        }
    }
}

/// Bounds of the box.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BoxLimits {
    /// Most connections at a time.
    #[serde(deserialize_with = "types::count")]
    pub connections: usize,
    /// Most connections at a time of one host of the LAN.
    #[serde(deserialize_with = "types::count")]
    pub per_host: usize,
    /// Most connections at a time whose far side has not answered yet.
    #[serde(deserialize_with = "types::count")]
    pub handshakes: usize,
    /// Most bytes one connection buffers in each direction.
    #[serde(deserialize_with = "types::bytes")]
    pub buffer: usize,
    /// Most bytes all connections buffer together.
    #[serde(deserialize_with = "types::bytes")]
    pub memory: usize,
}

impl Default for BoxLimits {
    fn default() -> Self {
        BoxLimits {
            connections: 16_384,
            per_host: 4_096,
            handshakes: 4_096,
            buffer: 8 << 20,
            memory: 256 << 20,
        }
    }
}

/// How often a link is probed (one TCP handshake with the server, closed at once).
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Probing {
    /// While there was traffic lately.
    #[serde(deserialize_with = "types::duration")]
    pub busy: Duration,
    /// While there was none.
    #[serde(deserialize_with = "types::duration")]
    pub idle: Duration,
    /// While the last probe failed: users wait for a server that is back.
    #[serde(deserialize_with = "types::duration")]
    pub failing: Duration,
    /// A probe without an answer has failed after this.
    #[serde(deserialize_with = "types::duration")]
    pub timeout: Duration,
}

impl Default for Probing {
    fn default() -> Self {
        Probing {
            busy: Duration::from_secs(1),
            idle: Duration::from_secs(30),
            failing: Duration::from_secs(1),
            timeout: Duration::from_secs(3),
        }
    }
}

/// Connections to the server that are opened, joined and signed in before a user wants one.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Warm {
    /// Most that are opened to wait; 0 is none, and then none is kept. There are as many as users lately
    /// asked for at once, and up to four times as many where users gave theirs back.
    #[serde(deserialize_with = "types::count_from::<0, _>")]
    pub max: usize,
    /// They are closed when no user asked for a connection for this long.
    #[serde(deserialize_with = "types::duration")]
    pub idle: Duration,
    /// One that waited this long is replaced, before the server gives it up.
    #[serde(deserialize_with = "types::duration")]
    pub age: Duration,
    /// Also while a metered link is in use, whose bytes they cost.
    pub metered: bool,
}

impl Default for Warm {
    fn default() -> Self {
        Warm {
            max: 8,
            idle: Duration::from_secs(300),
            age: Duration::from_secs(60),
            metered: false,
        }
    }
}

impl BoxConfig {
    /// Reads `path`, and the file of its key (relative to its directory).
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        BoxConfig::from_toml(&path.display().to_string(), &read(path)?)
    }

    /// Reads `text`, which came from `file`; that of its key is relative to its directory.
    pub fn from_toml(file: &str, text: &str) -> Result<Self, ConfigError> {
        let src = Source { file, text };
        let raw: Raw = src.parse()?;
        let key = src.private_key(raw.key_file.as_ref(), "box.key")?;
        BoxConfig::check(&src, raw, key)
    }

    /// Reads `text`, which came from `file`, with `key` in place of what is in its `key_file`, which
    /// it need not have: for whoever has no files.
    pub fn with_key(file: &str, text: &str, key: PrivateKey) -> Result<Self, ConfigError> {
        let src = Source { file, text };
        BoxConfig::check(&src, src.parse()?, key)
    }

    fn check(src: &Source<'_>, raw: Raw, key: PrivateKey) -> Result<Self, ConfigError> {
        let lan: Vec<String> = raw.lan.get_ref().0.iter().map(|i| i.0.clone()).collect();
        if lan.is_empty() {
            return Err(src.error(&raw.lan, "no interface is named", "lan = \"eth0\""));
        }
        let name = raw.name.unwrap_or_else(|| "box".to_owned());
        let links = check_links(src, raw.link, &lan)?;
        let servers = check_servers(src, raw.server)?;
        for server in &servers {
            let reached =
                |l: &LinkConfig| l.v4 && server.v4.is_some() || l.v6 && server.v6.is_some();
            if !links.iter().any(reached) {
                return Err(src.whole(
                    "no link has the address family of the server",
                    "v4 = true or v6 = true at a link, or an address of the other family",
                ));
            }
        }
        let links_and_lan = links.iter().map(|l| &l.interface).chain(&lan);
        let taken: Vec<&str> = links_and_lan.map(String::as_str).collect();
        let ranges = ("10.215.77.0/24", "fdb7:a1d0:77::/64");
        let tun = RawTun::check(raw.tun, src, ranges, &taken)?;
        Ok(BoxConfig {
            name,
            key,
            key_file: raw.key_file.map(|at| src.beside(at.get_ref())),
            lan,
            links,
            servers,
            select: raw.select,
            strategy: check_strategy(src, raw.strategy)?,
            congestion: raw.congestion.unwrap_or_default().0,
            checksum: raw.checksum,
            ecn: raw.ecn,
            bypass: raw.bypass.nets(),
            rules: check_rules(src, raw.rule)?,
            socks: check_socks(src, raw.socks)?,
            quic: raw.quic,
            mptcp_hosts: raw.mptcp_hosts,
            shortcut: raw.shortcut.unwrap_or(true),
            control: src.control_socket(raw.control)?,
            state: raw.state.map(|path| src.beside(&path)),
            tun,
            timeouts: raw.timeouts,
            limits: raw.limits,
            probing: raw.probing,
            measuring: measuring::check(src, raw.measuring)?,
            warm: raw.warm,
            versions: Versions::OURS,
        })
    }

    /// Destinations that are never taken in: those configured, the servers themselves, and what
    /// means this host, its networks or nobody in particular.
    pub fn bypassed(&self) -> Vec<IpNet> {
        let fixed = NEVER_TAKEN_IN.map(|range| range.parse().expect("a range"));
        let servers = self.servers.iter().flat_map(|server| {
            let v4 = server.v4.map(IpAddr::V4);
            v4.into_iter().chain(server.v6.map(IpAddr::V6))
        });
        let configured = self.bypass.iter().copied();
        configured
            .chain(fixed)
            .chain(servers.map(IpNet::from))
            .collect()
    }

    /// Settings of the engine that follow from these; device properties are left at their
    /// defaults.
    pub fn engine(&self) -> braid_engine::Config {
        braid_engine::Config {
            congestion: self.congestion,
            checksum: self.checksum,
            ecn: self.ecn,
            send_buffer: self.limits.buffer,
            recv_buffer: self.limits.buffer,
            memory: self.limits.memory,
            user_timeout: self.timeouts.user_timeout,
            // Probes and connections that are closing take slots too.
            max_connections: self.limits.connections.saturating_mul(2) + 64,
            ..braid_engine::Config::default()
        }
    }
}

/// The file as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    #[serde(default, deserialize_with = "types::optional_name")]
    name: Option<String>,
    key_file: Option<Spanned<PathBuf>>,
    lan: Spanned<OneOrMany<Interface>>,
    #[serde(default)]
    link: Option<Spanned<OneOrMany<RawLink>>>,
    #[serde(default)]
    server: Option<Spanned<OneOrMany<RawServer>>>,
    #[serde(default, deserialize_with = "measuring::select")]
    select: Select,
    strategy: Option<Spanned<String>>,
    congestion: Option<Congestion>,
    #[serde(default)]
    checksum: bool,
    #[serde(default, deserialize_with = "types::ecn")]
    ecn: Ecn,
    #[serde(default)]
    bypass: OneOrMany<Prefix>,
    #[serde(default)]
    rule: Option<Spanned<OneOrMany<RawRule>>>,
    #[serde(default)]
    socks: Option<Spanned<OneOrMany<Listen>>>,
    #[serde(default, deserialize_with = "quic")]
    quic: Quic,
    #[serde(default, deserialize_with = "mptcp_hosts")]
    mptcp_hosts: MptcpHosts,
    shortcut: Option<bool>,
    control: Option<Spanned<PathBuf>>,
    state: Option<PathBuf>,
    tun: Option<RawTun>,
    #[serde(default)]
    timeouts: BoxTimeouts,
    #[serde(default)]
    limits: BoxLimits,
    #[serde(default)]
    probing: Probing,
    measuring: Option<Spanned<measuring::RawMeasuring>>,
    #[serde(default)]
    warm: Warm,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawLink {
    name: Option<Spanned<String>>,
    interface: Spanned<Interface>,
    gateway: Option<Spanned<OneOrMany<GatewayWord>>>,
    v4: Option<Spanned<bool>>,
    v6: Option<Spanned<bool>>,
    #[serde(default)]
    backup: bool,
    #[serde(default)]
    metered: bool,
    mtu: Option<Spanned<u16>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawServer {
    name: Option<Spanned<String>>,
    address: Spanned<OneOrMany<Address>>,
    port: Option<Spanned<u16>>,
    key: Option<Key>,
    #[serde(default, deserialize_with = "types::protection")]
    protection: Protection,
}

/// Name of a congestion control.
pub(super) struct Congestion(pub Algorithm);

impl Default for Congestion {
    fn default() -> Self {
        Congestion(DEFAULT_CONGESTION)
    }
}

impl<'de> Deserialize<'de> for Congestion {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let words: Vec<_> = cc::TABLE.iter().map(|row| (row.name(), *row)).collect();
        types::word(d, "congestion control", &words).map(Congestion)
    }
}

fn quic<'de, D: Deserializer<'de>>(d: D) -> Result<Quic, D::Error> {
    let words = [("forward", Quic::Forward), ("reject", Quic::Reject)];
    types::word(d, "way to treat QUIC", &words)
}

fn mptcp_hosts<'de, D: Deserializer<'de>>(d: D) -> Result<MptcpHosts, D::Error> {
    let words = [
        ("forward", MptcpHosts::Forward),
        ("proxy", MptcpHosts::Proxy),
    ];
    types::word(d, "way to treat hosts that speak MPTCP", &words)
}

/// `"auto"` or an address.
enum GatewayWord {
    Auto,
    Address(IpAddr),
}

impl<'de> Deserialize<'de> for GatewayWord {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        types::text(d, |s| match s.parse() {
            Ok(addr) => Ok(GatewayWord::Address(addr)),
            Err(_) if s == "auto" => Ok(GatewayWord::Auto),
            Err(_) => {
                let hint = "\"auto\" or an address such as \"192.168.1.1\"";
                Err((format!("{s:?} is no gateway"), hint.to_owned()))
            }
        })
    }
}

fn check_links(
    src: &Source<'_>,
    raw: Option<Spanned<OneOrMany<RawLink>>>,
    lan: &[String],
) -> Result<Vec<LinkConfig>, ConfigError> {
    let missing = "[[link]]\n                 interface = \"wlan0\"";
    let Some(raw) = raw else {
        return Err(src.whole("no [[link]] is given", missing));
    };
    if raw.get_ref().0.is_empty() {
        return Err(src.error(&raw, "no link is given", missing));
    }
    src.at_most(MAX_PATHS, "links", &raw)?;
    let mut links: Vec<LinkConfig> = Vec::new();
    for raw in raw.into_inner().0 {
        let at = raw.name.as_ref().map(Spanned::span);
        let at = Spanned::new(at.unwrap_or_else(|| raw.interface.span()), ());
        let link = check_link(src, raw, lan)?;
        if let Some(other) = links.iter().find(|o| o.name == link.name) {
            let message = format!("a second link is called {:?}", other.name);
            return Err(src.error(&at, message, "a name of its own: name = \"…\""));
        }
        let same = |o: &&LinkConfig| o.interface == link.interface && o.gateway == link.gateway;
        if let Some(other) = links.iter().find(same) {
            let message = format!("this is the same link as {:?}", other.name);
            return Err(src.error(&at, message, "another interface or another gateway"));
        }
        links.push(link);
    }
    Ok(links)
}

fn check_link(src: &Source<'_>, raw: RawLink, lan: &[String]) -> Result<LinkConfig, ConfigError> {
    let interface = raw.interface.get_ref().0.clone();
    if lan.contains(&interface) {
        let message = format!("{interface:?} is the LAN's interface and cannot be a link too");
        return Err(src.error(&raw.interface, message, "the interface of an access link"));
    }
    let v4 = raw.v4.as_ref().is_none_or(|v| *v.get_ref());
    let v6 = raw.v6.as_ref().is_none_or(|v| *v.get_ref());
    if let (false, false, Some(at)) = (v4, v6, raw.v6.as_ref()) {
        return Err(src.error(at, "the link is left with no address family", "v6 = true"));
    }
    if let Some(mtu) = raw.mtu.as_ref().filter(|m| *m.get_ref() < 1280) {
        let message = format!("an MTU of {} is too small for IPv6", mtu.get_ref());
        return Err(src.error(mtu, message, "1280 or more"));
    }
    let gateway = match raw.gateway {
        None => Gateway::Auto,
        Some(g) => check_gateway(src, g, v4, v6)?,
    };
    let name = match raw.name {
        None => interface.clone(),
        Some(name) => check_name(src, name)?,
    };
    Ok(LinkConfig {
        name,
        interface,
        gateway,
        v4,
        v6,
        backup: raw.backup,
        metered: raw.metered,
        mtu: raw.mtu.map(Spanned::into_inner),
    })
}

fn check_gateway(
    src: &Source<'_>,
    words: Spanned<OneOrMany<GatewayWord>>,
    want_v4: bool,
    want_v6: bool,
) -> Result<Gateway, ConfigError> {
    let hint = "\"auto\", one address, or one of each family";
    let (mut v4, mut v6) = (None, None);
    for word in &words.get_ref().0 {
        let twice = match word {
            GatewayWord::Auto if words.get_ref().0.len() == 1 => return Ok(Gateway::Auto),
            GatewayWord::Auto => {
                return Err(src.error(&words, "\"auto\" stands beside an address", hint));
            }
            GatewayWord::Address(IpAddr::V4(a)) => v4.replace(*a).is_some(),
            GatewayWord::Address(IpAddr::V6(a)) => v6.replace(*a).is_some(),
        };
        if twice {
            return Err(src.error(&words, "two gateways of one family", hint));
        }
    }
    if v4.is_none() && v6.is_none() {
        return Err(src.error(&words, "no gateway is named", hint));
    }
    if v4.is_some() && !want_v4 || v6.is_some() && !want_v6 {
        let message = "the gateway is of a family that is switched off for this link";
        return Err(src.error(
            &words,
            message,
            "a gateway of the other family, or \"auto\"",
        ));
    }
    Ok(Gateway::Fixed { v4, v6 })
}

fn check_servers(
    src: &Source<'_>,
    raw: Option<Spanned<OneOrMany<RawServer>>>,
) -> Result<Vec<ServerEntry>, ConfigError> {
    let missing = "[server]\n                 address = \"203.0.113.7\"";
    let Some(raw) = raw else {
        return Err(src.whole("no [server] is given", missing));
    };
    let n = raw.get_ref().0.len();
    if n == 0 || n > MAX_SERVERS {
        let message = format!("{n} servers are given, 1 to {MAX_SERVERS} are needed");
        return Err(src.error(&raw, message, missing));
    }
    let mut servers: Vec<ServerEntry> = Vec::new();
    for raw in raw.into_inner().0 {
        let at = raw.name.as_ref().map(Spanned::span);
        let at = Spanned::new(at.unwrap_or_else(|| raw.address.span()), ());
        let server = check_server(src, raw, servers.len() + 1)?;
        if servers.iter().any(|other| other.name == server.name) {
            let message = format!("a second server is called {:?}", server.name);
            return Err(src.error(&at, message, "a name of its own: name = \"…\""));
        }
        servers.push(server);
    }
    Ok(servers)
}

/// The server in place `number`, counted from 1.
fn check_server(
    src: &Source<'_>,
    raw: RawServer,
    number: usize,
) -> Result<ServerEntry, ConfigError> {
    let name = match raw.name {
        None => format!("server{number}"),
        Some(name) if name.get_ref() == AUTO => {
            let message = format!("{AUTO:?} means no server in particular");
            return Err(src.error(&name, message, "another name"));
        }
        Some(name) => check_name(src, name)?,
    };
    let (mut v4, mut v6) = (None, None);
    for Address(addr) in &raw.address.get_ref().0 {
        if addr.is_unspecified() || addr.is_multicast() {
            let message = format!("{addr} is no address of a host");
            return Err(src.error(&raw.address, message, "the server's public address"));
        }
        let twice = match *addr {
            IpAddr::V4(a) => v4.replace(a).is_some(),
            IpAddr::V6(a) => v6.replace(a).is_some(),
        };
        if twice {
            let hint = "one of each family; another server is another [[server]]";
            return Err(src.error(&raw.address, "two addresses of one family", hint));
        }
    }
    if v4.is_none() && v6.is_none() {
        return Err(src.error(&raw.address, "no address is given", "\"203.0.113.7\""));
    }
    if let Some(port) = raw.port.as_ref().filter(|p| *p.get_ref() == 0) {
        return Err(src.error(port, "port 0 cannot be connected to", "the server's port"));
    }
    let Some(Key(key)) = raw.key else {
        return Err(src.error(&raw.address, "no key is given", SERVER_KEY_HINT));
    };
    Ok(ServerEntry {
        name,
        v4,
        v6,
        port: raw.port.map_or(DEFAULT_PORT, Spanned::into_inner),
        key,
        protection: raw.protection,
    })
}

fn check_socks(
    src: &Source<'_>,
    raw: Option<Spanned<OneOrMany<Listen>>>,
) -> Result<Vec<SocketAddr>, ConfigError> {
    let Some(raw) = raw else {
        return Ok(Vec::new());
    };
    src.at_most(MAX_LISTENERS, "addresses", &raw)?;
    let all = &raw.get_ref().0;
    let twice = all.iter().enumerate().find(|(i, l)| all[..*i].contains(l));
    if let Some((_, Listen(addr))) = twice {
        let message = format!("{addr} is given twice");
        return Err(src.error(&raw, message, "each address once"));
    }
    Ok(all.iter().map(|listen| listen.0).collect())
}

pub(super) fn check_name(src: &Source<'_>, name: Spanned<String>) -> Result<String, ConfigError> {
    if types::is_name(name.get_ref()) {
        return Ok(name.into_inner());
    }
    let message = format!("{:?} is no name", name.get_ref());
    Err(src.error(&name, message, types::NAME_HINT))
}
