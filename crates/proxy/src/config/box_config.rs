//! The settings of a box, and their deserialization from `box.toml`.

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

use crate::relay::RelayTimeouts;

use super::common::{
    DEFAULT_CONGESTION, DEFAULT_DRAIN, DEFAULT_PORT, IDLE_CONNECTION_AGE, MAX_PATHS, MIN_BUFFER,
    RELAY_TIMEOUTS, RawTun, SERVER_CONNECT_TIMEOUT, Source, TunConfig, check_strategy, given_or,
    read, relay_timeouts,
};
use super::error::SERVER_KEY_HINT;
use super::expert::{self, Limits, RetiredOfBox, Timeouts};
use super::measuring::{self, Measuring, Select};
use super::moved::{self, Parsed};
use super::rule::{RawRule, Rule, check_rules};
use super::tunnel::{self, Datagrams};
use super::types::{self, Address, Interface, Key, Listen, OneOrMany, Prefix, Protection};

/// Maximum number of servers of a box. A guess: each server is probed over each link.
const MAX_SERVERS: usize = 8;
/// The word that commands accept instead of a server's name, and that leaves the choice to the box.
pub const AUTO: &str = "auto";
/// Maximum number of listening addresses of the SOCKS5 proxy. A guess.
const MAX_LISTENERS: usize = 16;

/// Ranges that are never intercepted, whatever the configuration says: addresses of this host, link-local
/// addresses and multicast. At such an address a server would reach a host of its own, and not the user's.
const NEVER_INTERCEPTED: [&str; 6] = [
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
    /// The box's private key.
    pub key: PrivateKey,
    /// The file of the key; `None` if the key does not come from a file.
    pub key_file: Option<PathBuf>,
    /// Interfaces whose TCP connections are intercepted; at least one.
    pub lan: Vec<String>,
    /// Access links in order of preference; at least one.
    pub links: Vec<LinkConfig>,
    /// Servers in order of preference; at least one.
    pub servers: Vec<ServerEntry>,
    /// The rule that chooses the server for new connections.
    pub select: Select,
    /// Name of the strategy.
    pub strategy: String,
    /// Congestion control of subflows.
    pub congestion: Algorithm,
    /// True if every connection requires DSS checksums ([`braid_engine::Config::checksum`]).
    pub checksum: bool,
    /// The use of ECN, by which routers mark packets instead of dropping them ([`braid_engine::Config::ecn`]).
    pub ecn: Ecn,
    /// Destinations whose connections are forwarded without aggregation.
    pub bypass: Vec<IpNet>,
    /// Hints about connections by their destination. The first rule that matches a connection applies.
    pub rules: Vec<Rule>,
    /// Addresses of this host at which it serves SOCKS5 to programs of the LAN.
    pub socks: Vec<SocketAddr>,
    /// The treatment of QUIC.
    pub quic: Quic,
    /// The treatment of packets that belong to no intercepted connection.
    pub datagrams: Datagrams,
    /// The treatment of hosts' connections that use Multipath TCP already.
    pub mptcp_hosts: MptcpHosts,
    /// True if packets to and from servers bypass the kernel's routing and firewall, provided that the kernel
    /// supports it.
    pub shortcut: bool,
    /// The control socket. `None` leaves the choice of its path to the driver.
    pub control: Option<PathBuf>,
    /// The directory for records of paths. `None` keeps no records.
    pub state: Option<PathBuf>,
    /// The TUN device and its addresses.
    pub tun: TunConfig,
    /// Timeouts.
    pub timeouts: BoxTimeouts,
    /// Limits.
    pub limits: BoxLimits,
    /// Intervals of probes.
    pub probing: Probing,
    /// Measurements of servers. A box measures only if it has several servers.
    pub measuring: Measuring,
    /// Idle connections to the servers.
    pub warm: Warm,
    /// Protocol versions that the box speaks to servers: those of its release. Without a tunnel, the
    /// feature is left out.
    pub versions: Versions,
    /// Warnings about settings that the file still has in the form of the last version.
    pub deprecated: Vec<ConfigError>,
}

/// An access link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkConfig {
    /// Name in logs; defaults to the interface's name.
    pub name: String,
    /// Network interface.
    pub interface: String,
    /// Next hop.
    pub gateway: Gateway,
    /// True if the box may use IPv4 on the link.
    pub v4: bool,
    /// True if the box may use IPv6 on the link.
    pub v6: bool,
    /// True if subflows are opened with the backup bit (RFC 8684 section 3.2), and carry data only while no other
    /// subflow works.
    pub backup: bool,
    /// True if the link is metered: no subflow is opened on it while another link is up.
    pub metered: bool,
    /// Largest IP packet in bytes, 1280 to 65535; defaults to the interface's MTU.
    pub mtu: Option<u16>,
}

impl LinkConfig {
    /// Returns a link over a network interface, with the defaults of the file.
    pub fn new(interface: impl Into<String>) -> Self {
        let interface = interface.into();
        LinkConfig {
            name: interface.clone(),
            interface,
            gateway: Gateway::Auto,
            v4: true,
            v6: true,
            backup: false,
            metered: false,
            mtu: None,
        }
    }
}

/// The next hop of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gateway {
    /// The next hop in the routing table (DHCP, router advertisements); a point-to-point interface needs none.
    Auto,
    /// Fixed addresses; a family without one has no next hop.
    Fixed {
        /// IPv4 next hop.
        v4: Option<Ipv4Addr>,
        /// IPv6 next hop.
        v6: Option<Ipv6Addr>,
    },
}

/// An aggregation server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerEntry {
    /// Name in logs and commands; defaults to `server1` and so on.
    pub name: String,
    /// IPv4 address. At least one of `v4` and `v6` is present.
    pub v4: Option<Ipv4Addr>,
    /// IPv6 address.
    pub v6: Option<Ipv6Addr>,
    /// TCP port.
    pub port: u16,
    /// The server's public key.
    pub key: PublicKey,
    /// The protection of the connections to the server.
    pub protection: Protection,
}

impl ServerEntry {
    /// Returns the IPv4 endpoint.
    pub fn endpoint_v4(&self) -> Option<SocketAddr> {
        self.v4.map(|a| SocketAddr::from((a, self.port)))
    }

    /// Returns the IPv6 endpoint.
    pub fn endpoint_v6(&self) -> Option<SocketAddr> {
        self.v6.map(|a| SocketAddr::from((a, self.port)))
    }
}

/// The treatment of QUIC (UDP port 443 of the LAN).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Quic {
    /// Forwarded over the best link, like other UDP.
    #[default]
    Forward,
    /// Answered by ICMP "port unreachable", so that browsers fall back to TCP, which is aggregated.
    Reject,
}

/// The treatment of LAN connections that use Multipath TCP already (their SYN carries MP_CAPABLE).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MptcpHosts {
    /// Forwarded unchanged.
    #[default]
    Forward,
    /// Intercepted like other connections. This helps a host with a single interface.
    Proxy,
}

/// Timeouts of the box.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BoxTimeouts {
    /// Maximum time from the acceptance of a user's connection to the complete answer of the server. It includes
    /// the server's connection to the destination.
    pub connect: Duration,
    /// Maximum time of the first attempt to reach a server over one link; later attempts may take longer.
    pub attempt: Duration,
    /// Time without an acknowledgement that the server owes, after which a connection is reset
    /// ([`braid_engine::Config::user_timeout`]). So a connection survives a shorter outage of all links.
    pub user_timeout: Duration,
    /// Maximum times without movement; then the connection is ended.
    pub relay: RelayTimeouts,
    /// Maximum time for transfers to finish when the box is stopped.
    pub drain: Duration,
}

impl BoxTimeouts {
    fn new(given: &Timeouts, expert: &expert::OfBox, retired: &RetiredOfBox) -> Self {
        let defaults = BoxTimeouts::default();
        BoxTimeouts {
            connect: given_or(retired.connect, defaults.connect),
            attempt: given_or(retired.attempt, defaults.attempt),
            user_timeout: given_or(given.user_timeout, defaults.user_timeout),
            relay: relay_timeouts(expert.idle_timeout, retired.half_closed),
            drain: given_or(given.drain, defaults.drain),
        }
    }
}

impl Default for BoxTimeouts {
    fn default() -> Self {
        BoxTimeouts {
            // The server's own connection attempt takes the first part. The 15 s are a guess at the time of the
            // request and its answer over slow links.
            connect: SERVER_CONNECT_TIMEOUT + Duration::from_secs(15),
            // Covers one lost SYN, which is repeated after 1 s (RFC 6298), then a round trip over a satellite (600
            // ms), and the wake-up of a radio.
            attempt: Duration::from_secs(2),
            user_timeout: types::USER_TIMEOUT,
            relay: RELAY_TIMEOUTS,
            drain: DEFAULT_DRAIN,
        }
    }
}

/// Limits of the box. A limit that is `None` is derived from `memory` or from another limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BoxLimits {
    /// Maximum number of concurrent connections.
    pub connections: Option<usize>,
    /// Maximum number of concurrent connections of one LAN host.
    pub per_host: Option<usize>,
    /// Maximum number of concurrent connections whose destination has not answered yet.
    pub handshakes: Option<usize>,
    /// Maximum number of bytes that one connection buffers in each direction.
    pub buffer: Option<usize>,
    /// Maximum number of bytes that all connections together buffer.
    pub memory: usize,
}

impl BoxLimits {
    fn new(given: &Limits, expert: &expert::OfBox, retired: &RetiredOfBox) -> Self {
        BoxLimits {
            connections: expert.max_connections.map(usize::from),
            per_host: expert.max_connections_per_host.map(usize::from),
            handshakes: retired.handshakes.map(usize::from),
            buffer: expert.connection_buffer.map(|size| size.0),
            memory: given
                .memory
                .map_or(BoxLimits::default().memory, |size| size.0),
        }
    }

    /// Returns the maximum number of concurrent connections.
    pub fn connections(&self) -> usize {
        // A guess: one connection for each 16 KiB of memory, as most connections are idle and buffer nothing.
        let derived = (self.memory / (16 << 10)).clamp(16_384, types::MAX_COUNT as usize);
        self.connections.unwrap_or(derived)
    }

    /// Returns the maximum number of concurrent connections of one LAN host.
    pub fn per_host(&self) -> usize {
        // A quarter (a guess): a host that opens connections without end leaves three quarters to others.
        self.per_host.unwrap_or((self.connections() / 4).max(4_096))
    }

    /// Returns the maximum number of concurrent connections whose destination has not answered yet.
    pub fn handshakes(&self) -> usize {
        // A quarter (a guess): destinations that do not answer leave three quarters of the connections to others.
        self.handshakes
            .unwrap_or((self.connections() / 4).max(4_096))
    }

    /// Returns the maximum number of bytes that one connection buffers in each direction.
    pub fn buffer(&self) -> usize {
        // Few users share a box's memory, so one connection may take a larger part than at a server. The engine
        // never gives one direction of a connection more than 1/24 of all memory.
        self.buffer.unwrap_or((self.memory / 32).max(MIN_BUFFER))
    }
}

impl Default for BoxLimits {
    fn default() -> Self {
        BoxLimits {
            connections: None,
            per_host: None,
            handshakes: None,
            buffer: None,
            // A guess. Most limits above follow from it.
            memory: 256 << 20,
        }
    }
}

/// Intervals of the probes of a link. A probe is a TCP handshake with the server. The probe's connection is closed
/// at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Probing {
    /// The interval after recent traffic.
    pub busy: Duration,
    /// The interval without recent traffic.
    pub idle: Duration,
    /// The interval after a failed probe. Up to this time passes before users notice that a server has returned.
    pub failing: Duration,
    /// Time after which an unanswered probe has failed.
    pub timeout: Duration,
}

impl Probing {
    fn new(expert: &expert::OfBox, retired: &RetiredOfBox) -> Self {
        let defaults = Probing::default();
        Probing {
            busy: given_or(retired.probing_busy, defaults.busy),
            idle: given_or(expert.idle_probe_interval, defaults.idle),
            failing: given_or(retired.probing_failing, defaults.failing),
            timeout: given_or(retired.probing_timeout, defaults.timeout),
        }
    }
}

impl Default for Probing {
    fn default() -> Self {
        Probing {
            // Users notice an interruption of a second. A handshake per second costs about 1 kbit/s in each
            // direction.
            busy: Duration::from_secs(1),
            // No user waits. The status is at most half a minute old, and mobile radios can sleep between probes.
            idle: Duration::from_secs(30),
            // The same as `busy`, because users may be waiting for the server's return.
            failing: Duration::from_secs(1),
            // Covers one lost SYN, which is retransmitted after 1 s (RFC 6298), and a round trip of 2 s.
            timeout: Duration::from_secs(3),
        }
    }
}

/// Settings of idle connections to a server. The box opens them, joins further subflows and signs in before a user
/// needs a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Warm {
    /// Maximum number of connections that are opened in advance; 0 opens and keeps none. The box opens as many as
    /// users lately needed at once. It keeps up to four times this maximum, because connections that users have
    /// returned stay open too.
    pub max: usize,
    /// Maximum time without a user's request; then all idle connections are closed.
    pub idle: Duration,
    /// Age at which an idle connection is replaced, before the server closes it.
    pub age: Duration,
    /// True if idle connections are kept even while a metered link is in use, although they cost traffic on that
    /// link.
    pub metered: bool,
}

impl Warm {
    fn new(expert: &expert::OfBox, retired: &RetiredOfBox) -> Self {
        let defaults = Warm::default();
        Warm {
            max: given_or(expert.idle_pool_size, defaults.max),
            idle: given_or(retired.warm_idle, defaults.idle),
            age: given_or(retired.warm_age, defaults.age),
            metered: expert.idle_pool_metered,
        }
    }
}

impl Default for Warm {
    fn default() -> Self {
        Warm {
            // A browser opens six connections to a host at once, and a page needs a few hosts.
            max: 8,
            // Covers pauses in which a user reads a page. After a longer pause the connections would cost packets
            // without a use.
            idle: Duration::from_secs(300),
            age: IDLE_CONNECTION_AGE,
            metered: false,
        }
    }
}

impl BoxConfig {
    /// Reads the file `path`, and its key file (relative to its directory).
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        BoxConfig::from_toml(&path.display().to_string(), &read(path)?)
    }

    /// Reads `text` of `file`, and its key file (relative to the directory of `file`).
    pub fn from_toml(file: &str, text: &str) -> Result<Self, ConfigError> {
        let src = Source { file, text };
        let parsed = src.parse_with_old::<Raw, _>(moved::OF_BOX)?;
        let key = src.private_key(parsed.current.key_file.as_ref(), "box.key")?;
        BoxConfig::check(&src, parsed, key)
    }

    /// Reads `text` of `file`. Uses `key` instead of the key in `key_file`; that file may be missing. This is for
    /// callers that have no files.
    pub fn with_key(file: &str, text: &str, key: PrivateKey) -> Result<Self, ConfigError> {
        let src = Source { file, text };
        BoxConfig::check(&src, src.parse_with_old(moved::OF_BOX)?, key)
    }

    fn check(
        src: &Source<'_>,
        parsed: Parsed<Raw, RetiredOfBox>,
        key: PrivateKey,
    ) -> Result<Self, ConfigError> {
        let Parsed {
            current: raw,
            retired,
            deprecated,
        } = parsed;
        let expert = raw.expert;
        let lan: Vec<String> = raw.lan.get_ref().0.iter().map(|i| i.0.clone()).collect();
        if lan.is_empty() {
            return Err(src.error(&raw.lan, "no interface is named", "lan = \"eth0\""));
        }
        let name = raw.name.unwrap_or_else(|| "box".to_owned());
        let links = check_links(src, raw.link, &lan)?;
        let servers = check_servers(src, raw.server)?;
        // A server without a link of its family could never be reached.
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
        // Arbitrary private ranges (RFC 1918, RFC 4193). A server has other ranges, so that a box and a server can
        // run on one machine.
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
            checksum: expert.checksum,
            ecn: expert.ecn,
            bypass: raw.bypass.nets(),
            rules: check_rules(src, raw.rule)?,
            socks: check_socks(src, raw.socks)?,
            quic: raw.quic,
            datagrams: raw.datagrams,
            mptcp_hosts: raw.mptcp_hosts,
            shortcut: raw.shortcut.unwrap_or(true),
            control: src.control_socket(raw.control)?,
            state: raw.state.map(|path| src.beside(&path)),
            tun,
            timeouts: BoxTimeouts::new(&raw.timeouts, &expert, &retired),
            limits: BoxLimits::new(&raw.limits, &expert, &retired),
            probing: Probing::new(&expert, &retired),
            warm: Warm::new(&expert, &retired),
            measuring: measuring::check(
                src,
                (retired.measuring_least, expert.max_measurement_interval),
                expert.server_change_gain,
                expert.measurement_quiet_hours,
            )?,
            versions: raw.datagrams.versions(),
            deprecated,
        })
    }

    /// Returns the destinations that are never intercepted: those of `bypass`, the servers, this host, link-local
    /// addresses and multicast.
    pub fn bypassed(&self) -> Vec<IpNet> {
        let fixed = NEVER_INTERCEPTED.map(|range| range.parse().expect("a range"));
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

    /// Returns the settings of the engine. The driver sets those that depend on the device.
    pub fn engine(&self) -> braid_engine::Config {
        braid_engine::Config {
            congestion: self.congestion,
            checksum: self.checksum,
            ecn: self.ecn,
            send_buffer: self.limits.buffer(),
            recv_buffer: self.limits.buffer(),
            memory: self.limits.memory,
            user_timeout: self.timeouts.user_timeout,
            // Twice the limit of connections, because closing connections take slots too, plus 64 slots for
            // probes.
            max_connections: self.limits.connections().saturating_mul(2) + 64,
            ..braid_engine::Config::default()
        }
    }
}

/// The file as it is written, before its checks.
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
    bypass: OneOrMany<Prefix>,
    #[serde(default)]
    rule: Option<Spanned<OneOrMany<RawRule>>>,
    #[serde(default)]
    socks: Option<Spanned<OneOrMany<Listen>>>,
    #[serde(default, deserialize_with = "quic")]
    quic: Quic,
    #[serde(default, deserialize_with = "tunnel::datagrams")]
    datagrams: Datagrams,
    #[serde(default, deserialize_with = "mptcp_hosts")]
    mptcp_hosts: MptcpHosts,
    shortcut: Option<bool>,
    control: Option<Spanned<PathBuf>>,
    state: Option<PathBuf>,
    tun: Option<RawTun>,
    #[serde(default)]
    timeouts: Timeouts,
    #[serde(default)]
    limits: Limits,
    #[serde(default)]
    expert: expert::OfBox,
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

/// The name of a congestion control.
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

/// The word `"auto"` or an address.
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

/// Checks all links. Each link must have a name of its own, and no two links may have both interface and gateway
/// in common.
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
        // An error about a missing name points to the interface, which is the default name.
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
    // IPv6 requires an MTU of at least 1280 bytes (RFC 8200 section 5).
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
        let is_duplicate = match word {
            GatewayWord::Auto if words.get_ref().0.len() == 1 => return Ok(Gateway::Auto),
            GatewayWord::Auto => {
                return Err(src.error(&words, "\"auto\" stands beside an address", hint));
            }
            GatewayWord::Address(IpAddr::V4(a)) => v4.replace(*a).is_some(),
            GatewayWord::Address(IpAddr::V6(a)) => v6.replace(*a).is_some(),
        };
        if is_duplicate {
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

/// Checks the server at position `number`, counted from 1.
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
        let is_duplicate = match *addr {
            IpAddr::V4(a) => v4.replace(a).is_some(),
            IpAddr::V6(a) => v6.replace(a).is_some(),
        };
        if is_duplicate {
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
    let is_duplicate = all.iter().enumerate().find(|(i, l)| all[..*i].contains(l));
    if let Some((_, Listen(addr))) = is_duplicate {
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
