//! The settings of a server, and their deserialization from `server.toml`.

use core::net::{IpAddr, SocketAddr};
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use braid_engine::Ecn;
use braid_engine::cc::Algorithm;
use braid_secure::channel::Versions;
use braid_secure::keys::{PrivateKey, PublicKey};
use braid_units::ConfigError;
use ipnet::IpNet;
use serde::Deserialize;
use toml::Spanned;

use super::policy::DestinationRules;
use crate::relay::RelayTimeouts;

use super::box_config::{Congestion, check_name};
use super::common::{
    DEFAULT_DRAIN, DEFAULT_PORT, IDLE_CONNECTION_AGE, MAX_PATHS, MIN_BUFFER, RELAY_TIMEOUTS,
    RawTun, SERVER_CONNECT_TIMEOUT, Source, TunConfig, check_strategy, given_or, read,
    relay_timeouts,
};
use super::error::USER_KEY_HINT;
use super::expert::{self, Limits, RetiredOfServer, Timeouts};
use super::moved::{self, Parsed};
use super::tunnel::{self, Datagrams, TunnelPools};
use super::types::{self, Address, Key, OneOrMany, Prefix, Target, Time};

/// Ports that are refused by default. Mail servers exchange mail by port 25, over which a user's infected host
/// would send spam from the server's address. Mail clients use ports 465 and 587 instead.
const REFUSED_PORTS: [u16; 1] = [25];
/// Default for the permitted clock difference of plaintext clients. A guess: a time service keeps a clock within a
/// second, and an uncorrected clock drifts by about a minute in a month.
const DEFAULT_TIME_WINDOW: Duration = Duration::from_secs(120);
/// Maximum number of users of a server. A guess.
const MAX_USERS: usize = 65_536;
/// Maximum number of targets for measurements. At one target in 5 s, each has its turn within 40 s.
const MAX_TARGETS: usize = 8;

/// Settings of the aggregation server.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// Name of this server in logs.
    pub name: String,
    /// The server's private key.
    pub key: PrivateKey,
    /// The file of the key; `None` if the key does not come from a file.
    pub key_file: Option<PathBuf>,
    /// Addresses of this machine's interfaces at which to listen; at least one.
    pub listen: Vec<IpAddr>,
    /// TCP port.
    pub port: u16,
    /// True if the server announces its other listening addresses to boxes (ADD_ADDR, RFC 8684 section 3.4.1),
    /// which join further subflows there too.
    pub announce: bool,
    /// True if boxes must join at announced addresses only, and not at the address of the initial subflow
    /// ([`braid_engine::Config::deny_join_initial`]).
    pub deny_join_initial: bool,
    /// True if the server also serves plaintext connections: of boxes, and of SOCKS5 clients (RFC 1928) whose
    /// password is a signature by a user's key.
    pub unprotected: bool,
    /// The users; at least one.
    pub users: Vec<UserConfig>,
    /// Destinations that are allowed although they are local to this server.
    pub allow: Vec<IpNet>,
    /// Destinations that are refused, even if `allow` contains them.
    pub deny: Vec<IpNet>,
    /// TCP ports that are refused at every destination.
    pub refuse_ports: Vec<u16>,
    /// Addresses to which the server connects to measure its egress metrics, when a box sends a probe.
    pub targets: Vec<SocketAddr>,
    /// Name of the strategy.
    pub strategy: String,
    /// Congestion control of subflows.
    pub congestion: Algorithm,
    /// True if every connection requires DSS checksums ([`braid_engine::Config::checksum`]).
    pub checksum: bool,
    /// The use of ECN, by which routers mark packets instead of dropping them ([`braid_engine::Config::ecn`]).
    pub ecn: Ecn,
    /// Maximum difference between the clocks of server and plaintext clients, ahead or behind. A password is valid
    /// only while its time differs from the server's clock by at most this value.
    pub time_window: Duration,
    /// The control socket. `None` leaves the choice of its path to the driver.
    pub control: Option<PathBuf>,
    /// The TUN device and its addresses.
    pub tun: TunConfig,
    /// The addresses of boxes in the tunnel; `None` if the server offers no tunnel.
    pub tunnel: Option<TunnelPools>,
    /// Timeouts.
    pub timeouts: ServerTimeouts,
    /// Limits.
    pub limits: ServerLimits,
    /// Protocol versions that the server speaks to boxes: those of its release. Without a tunnel, the feature is left
    /// out.
    pub versions: Versions,
    /// Warnings about settings that the file still has in the form of the last version.
    pub deprecated: Vec<ConfigError>,
}

/// A user of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UserConfig {
    /// Unique name, for logs and counters.
    pub name: String,
    /// Unique public key.
    pub key: PublicKey,
}

/// Timeouts of the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerTimeouts {
    /// Maximum time from the acceptance of a connection to its complete SOCKS request.
    pub handshake: Duration,
    /// Maximum time that a signed-in box may keep a connection idle before its request.
    pub waiting: Duration,
    /// Maximum time for the name look-up and the connection to the destination together.
    pub connect: Duration,
    /// Time without an acknowledgement that the box owes, after which a connection is reset
    /// ([`braid_engine::Config::user_timeout`]).
    pub user_timeout: Duration,
    /// Maximum times without movement; then the connection is ended.
    pub relay: RelayTimeouts,
    /// Maximum time for transfers to finish when the server is stopped.
    pub drain: Duration,
}

impl ServerTimeouts {
    fn new(given: &Timeouts, expert: &expert::OfServer, retired: &RetiredOfServer) -> Self {
        let defaults = ServerTimeouts::default();
        ServerTimeouts {
            handshake: given_or(retired.handshake, defaults.handshake),
            waiting: given_or(retired.waiting_time, defaults.waiting),
            connect: given_or(retired.connect, defaults.connect),
            user_timeout: given_or(given.user_timeout, defaults.user_timeout),
            relay: relay_timeouts(expert.idle_timeout, retired.half_closed),
            drain: given_or(given.drain, defaults.drain),
        }
    }
}

impl Default for ServerTimeouts {
    fn default() -> Self {
        ServerTimeouts {
            // A guess: several round trips over slow links with losses. In a longer time, strangers could hold
            // more of the limited number of handshakes.
            handshake: Duration::from_secs(10),
            // Boxes replace idle connections after half of this time, so that no request meets a closed
            // connection.
            waiting: IDLE_CONNECTION_AGE * 2,
            connect: SERVER_CONNECT_TIMEOUT,
            user_timeout: types::USER_TIMEOUT,
            relay: RELAY_TIMEOUTS,
            drain: DEFAULT_DRAIN,
        }
    }
}

/// Limits of the server. A limit that is `None` is derived from `memory` or from another limit.
#[derive(Debug, Clone)]
pub struct ServerLimits {
    /// Maximum number of concurrent connections.
    pub connections: Option<usize>,
    /// Maximum number of concurrent connections of one user.
    pub per_user: Option<usize>,
    /// Maximum number of concurrent connections whose SOCKS request is incomplete. One source may have at most as
    /// many of them as the limit leaves free.
    pub handshakes: Option<usize>,
    /// Maximum number of failed handshakes per second from one source, on average.
    pub failures: usize,
    /// Maximum number of concurrent idle connections of one user that wait for a request. Further connections must
    /// complete their request within [`ServerTimeouts::handshake`].
    pub waiting: usize,
    /// Maximum number of concurrent name look-ups of one user. Further look-ups wait, at most for
    /// [`ServerTimeouts::connect`].
    pub lookups: usize,
    /// Maximum number of packet trains per second for one user, on average.
    pub trains: usize,
    /// Maximum number of plaintext passwords that are remembered against replay.
    pub replay: usize,
    /// Maximum number of bytes that one connection buffers in each direction.
    pub buffer: Option<usize>,
    /// Maximum number of bytes that all connections together buffer.
    pub memory: usize,
}

impl ServerLimits {
    fn new(given: &Limits, expert: &expert::OfServer, retired: &RetiredOfServer) -> Self {
        let defaults = ServerLimits::default();
        ServerLimits {
            connections: expert.max_connections.map(usize::from),
            per_user: expert.max_connections_per_user.map(usize::from),
            handshakes: retired.handshakes.map(usize::from),
            failures: given_or(retired.failures, defaults.failures),
            waiting: given_or(retired.waiting, defaults.waiting),
            lookups: given_or(retired.lookups, defaults.lookups),
            trains: given_or(retired.trains, defaults.trains),
            replay: given_or(retired.replay, defaults.replay),
            buffer: expert.connection_buffer.map(|size| size.0),
            memory: given.memory.map_or(defaults.memory, |size| size.0),
        }
    }

    /// Returns the maximum number of concurrent connections.
    pub fn connections(&self) -> usize {
        // A guess: one connection for each 32 KiB of memory, as most connections are idle and buffer nothing.
        let derived = (self.memory / (32 << 10)).clamp(32_768, types::MAX_COUNT as usize);
        self.connections.unwrap_or(derived)
    }

    /// Returns the maximum number of concurrent connections of one user.
    pub fn per_user(&self) -> usize {
        // Half (a guess), so that no user takes all connections.
        self.per_user
            .unwrap_or((self.connections() / 2).max(16_384))
    }

    /// Returns the maximum number of concurrent connections whose SOCKS request is incomplete.
    pub fn handshakes(&self) -> usize {
        // An eighth (a guess), so that strangers, whose handshakes never complete, leave most connections to
        // users.
        self.handshakes
            .unwrap_or((self.connections() / 8).max(4_096))
    }

    /// Returns the maximum number of bytes that one connection buffers in each direction.
    pub fn buffer(&self) -> usize {
        // A server has many users at once, so one connection may take a smaller part than at a box.
        self.buffer.unwrap_or((self.memory / 128).max(MIN_BUFFER))
    }
}

impl Default for ServerLimits {
    fn default() -> Self {
        ServerLimits {
            connections: None,
            per_user: None,
            handshakes: None,
            // A guess: many boxes behind one address that use an outdated key stay below this rate. A search for
            // keys exceeds it.
            failures: 100,
            // Twice the number that a box keeps. By default a box opens 8 connections in advance, and keeps up to
            // four times as many.
            waiting: 64,
            // A guess: enough for the names of a page. If the DNS servers of a user's names are slow, the limit
            // leaves threads of the resolver to other users.
            lookups: 8,
            // A box measures over one link at a time, with two trains, and may repeat both at once.
            trains: 4,
            // Enough for 1,000 connections per second (a guess) for 240 s. A password is valid for 240 s: from
            // `time_window` before its time to `time_window` after its time.
            replay: 262_144,
            buffer: None,
            // A guess. Most limits above follow from it.
            memory: 1 << 30,
        }
    }
}

impl ServerConfig {
    /// Reads the file `path`, and its key file (relative to its directory).
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        ServerConfig::from_toml(&path.display().to_string(), &read(path)?)
    }

    /// Reads `text` of `file`, and its key file (relative to the directory of `file`).
    pub fn from_toml(file: &str, text: &str) -> Result<Self, ConfigError> {
        let src = Source { file, text };
        let parsed = src.parse_with_old::<Raw, _>(moved::OF_SERVER)?;
        let key = src.private_key(parsed.current.key_file.as_ref(), "server.key")?;
        ServerConfig::check(&src, parsed, key)
    }

    /// Reads `text` of `file`. Uses `key` instead of the key in `key_file`; that file may be missing. This is for
    /// callers that have no files.
    pub fn with_key(file: &str, text: &str, key: PrivateKey) -> Result<Self, ConfigError> {
        let src = Source { file, text };
        ServerConfig::check(&src, src.parse_with_old(moved::OF_SERVER)?, key)
    }

    fn check(
        src: &Source<'_>,
        parsed: Parsed<Raw, RetiredOfServer>,
        key: PrivateKey,
    ) -> Result<Self, ConfigError> {
        let Parsed {
            current: raw,
            retired,
            deprecated,
        } = parsed;
        let expert = raw.expert;
        check_listen(src, &raw.listen)?;
        if let Some(port) = raw.port.as_ref().filter(|p| *p.get_ref() == 0) {
            return Err(src.error(port, "port 0 cannot be listened on", "1 to 65535"));
        }
        let denies = expert.deny_join_initial.as_ref();
        let announces_any = expert.announce && raw.listen.get_ref().0.len() > 1;
        if let Some(at) = denies.filter(|at| *at.get_ref() && !announces_any) {
            let message = "boxes would be told of no address to join at";
            let hint = "announce = true in [expert], with two addresses or more in `listen`";
            return Err(src.error(at, message, hint));
        }
        let tun = RawTun::check(raw.tun, src, ("10.215.78.0/24", "fdb7:a1d0:78::/64"), &[])?;
        let tunnel = match raw.datagrams {
            Datagrams::Tunnel => Some(tunnel::pools(src, raw.tunnel_pool, &tun)?),
            Datagrams::Forward => None,
        };
        Ok(ServerConfig {
            key_file: raw.key_file.map(|at| src.beside(at.get_ref())),
            name: raw.name.unwrap_or_else(|| "server".to_owned()),
            key,
            listen: raw.listen.into_inner().0.into_iter().map(|a| a.0).collect(),
            port: raw.port.map_or(DEFAULT_PORT, Spanned::into_inner),
            announce: expert.announce,
            deny_join_initial: expert
                .deny_join_initial
                .as_ref()
                .is_some_and(|at| *at.get_ref()),
            unprotected: raw.unprotected,
            users: check_users(src, raw.user)?,
            allow: raw.allow.nets(),
            deny: raw.deny.nets(),
            refuse_ports: raw
                .refuse_ports
                .map_or(REFUSED_PORTS.to_vec(), |ports| ports.0),
            targets: check_targets(src, raw.targets)?,
            strategy: check_strategy(src, raw.strategy)?,
            congestion: raw.congestion.unwrap_or_default().0,
            checksum: expert.checksum,
            ecn: expert.ecn,
            time_window: check_time_window(src, expert.time_window.as_ref())?,
            control: src.control_socket(raw.control)?,
            tun,
            tunnel,
            timeouts: ServerTimeouts::new(&raw.timeouts, &expert, &retired),
            limits: ServerLimits::new(&raw.limits, &expert, &retired),
            versions: raw.datagrams.versions(),
            deprecated,
        })
    }

    /// Returns the rules on destinations.
    pub fn destination_rules(&self) -> DestinationRules {
        DestinationRules {
            allow: self.allow.clone(),
            deny: self.deny.clone(),
            refuse_ports: self.refuse_ports.clone(),
        }
    }

    /// Returns the endpoints at which to listen.
    pub fn endpoints(&self) -> impl Iterator<Item = SocketAddr> + '_ {
        self.listen.iter().map(|a| SocketAddr::new(*a, self.port))
    }

    /// Returns the settings of the engine. The driver sets those that depend on the device.
    pub fn engine(&self) -> braid_engine::Config {
        braid_engine::Config {
            congestion: self.congestion,
            checksum: self.checksum,
            ecn: self.ecn,
            deny_join_initial: self.deny_join_initial,
            send_buffer: self.limits.buffer(),
            recv_buffer: self.limits.buffer(),
            memory: self.limits.memory,
            user_timeout: self.timeouts.user_timeout,
            // Twice the limit of connections, because closing connections take slots too, plus the limit of
            // handshakes.
            max_connections: self.limits.connections().saturating_mul(2) + self.limits.handshakes(),
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
    listen: Spanned<OneOrMany<Address>>,
    port: Option<Spanned<u16>>,
    #[serde(default)]
    unprotected: bool,
    #[serde(default)]
    user: Option<Spanned<OneOrMany<RawUser>>>,
    #[serde(default)]
    allow: OneOrMany<Prefix>,
    #[serde(default)]
    deny: OneOrMany<Prefix>,
    refuse_ports: Option<OneOrMany<u16>>,
    #[serde(default)]
    targets: Option<Spanned<OneOrMany<Target>>>,
    strategy: Option<Spanned<String>>,
    congestion: Option<Congestion>,
    control: Option<Spanned<PathBuf>>,
    tun: Option<RawTun>,
    #[serde(default, deserialize_with = "tunnel::datagrams")]
    datagrams: Datagrams,
    #[serde(default)]
    tunnel_pool: Option<Spanned<OneOrMany<Prefix>>>,
    #[serde(default)]
    timeouts: Timeouts,
    #[serde(default)]
    limits: Limits,
    #[serde(default)]
    expert: expert::OfServer,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawUser {
    name: Spanned<String>,
    key: Option<Spanned<Key>>,
}

fn check_listen(src: &Source<'_>, listen: &Spanned<OneOrMany<Address>>) -> Result<(), ConfigError> {
    let all = &listen.get_ref().0;
    if all.is_empty() {
        return Err(src.error(listen, "no address is named", "\"203.0.113.7\""));
    }
    src.at_most(MAX_PATHS, "addresses", listen)?;
    for (i, Address(addr)) in all.iter().enumerate() {
        if all[..i].iter().any(|other| other.0 == *addr) {
            let message = format!("{addr} is given twice");
            return Err(src.error(listen, message, "each address once"));
        }
        if addr.is_unspecified() || addr.is_multicast() {
            let message = format!("{addr} is no address of an interface");
            let hint = "the addresses connections come in at";
            return Err(src.error(listen, message, hint));
        }
    }
    Ok(())
}

fn check_time_window(
    src: &Source<'_>,
    given: Option<&Spanned<Time>>,
) -> Result<Duration, ConfigError> {
    let Some(at) = given else {
        return Ok(DEFAULT_TIME_WINDOW);
    };
    let window = at.get_ref().0.as_secs();
    // The server remembers each password while it is valid, so a long window fills the replay cache. The bounds
    // are guesses.
    if !(1..=3600).contains(&window) {
        let message = "the time window is not between 1 s and 1 h";
        return Err(src.error(at, message, "\"2min\""));
    }
    Ok(Duration::from_secs(window))
}

fn check_targets(
    src: &Source<'_>,
    raw: Option<Spanned<OneOrMany<Target>>>,
) -> Result<Vec<SocketAddr>, ConfigError> {
    let Some(raw) = raw else {
        return Ok(Vec::new());
    };
    src.at_most(MAX_TARGETS, "targets", &raw)?;
    let targets = raw.into_inner().0.into_iter();
    Ok(targets.map(|target| target.0).collect())
}

fn check_users(
    src: &Source<'_>,
    raw: Option<Spanned<OneOrMany<RawUser>>>,
) -> Result<Vec<UserConfig>, ConfigError> {
    let missing = "[[user]]\n                 name = \"box\"\n                 \
                   key = \"…\"";
    let Some(raw) = raw else {
        return Err(src.whole("no [[user]] is given", missing));
    };
    let n = raw.get_ref().0.len();
    if n == 0 || n > MAX_USERS {
        let message = format!("{n} users are given, 1 to {MAX_USERS} are needed");
        return Err(src.error(&raw, message, missing));
    }
    let mut users: Vec<UserConfig> = Vec::with_capacity(n);
    let mut names = BTreeSet::new();
    let mut by_key = BTreeMap::new();
    for raw in raw.into_inner().0 {
        if !names.insert(raw.name.get_ref().clone()) {
            let message = format!("a second user is called {:?}", raw.name.get_ref());
            return Err(src.error(&raw.name, message, "a name of its own"));
        }
        let Some(at) = raw.key else {
            return Err(src.error(&raw.name, "no key is given", USER_KEY_HINT));
        };
        let Key(key) = *at.get_ref();
        if let Some(other) = by_key.insert(key, raw.name.get_ref().clone()) {
            let message = format!("{other:?} has the same key");
            return Err(src.error(&at, message, "a key of its own, or one user for both"));
        }
        let name = check_name(src, raw.name)?;
        users.push(UserConfig { name, key });
    }
    Ok(users)
}
