//! `server.toml`.

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
    DEFAULT_DRAIN, DEFAULT_PORT, MAX_PATHS, RawTun, Source, TunConfig, check_strategy, read,
};
use super::error::USER_KEY_HINT;
use super::types::{self, Address, Key, OneOrMany, Prefix, Target};

/// Ports that are refused by default: SMTP between mail servers (25), by which a user's infected host would send
/// spam from the server's address. Mail clients submit at 465 and 587.
const REFUSED_PORTS: [u16; 1] = [25];
/// Most users of a server.
const MAX_USERS: usize = 65_536;
/// Most targets for measurements.
const MAX_TARGETS: usize = 8;

/// Settings of the aggregation server.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// Name of this server in logs.
    pub name: String,
    /// The server's private key.
    pub key: PrivateKey,
    /// The file of the key, where it came from one.
    pub key_file: Option<PathBuf>,
    /// Addresses of this machine's interfaces at which to listen; at least one.
    pub listen: Vec<IpAddr>,
    /// TCP port.
    pub port: u16,
    /// Announces the other listening addresses to boxes (ADD_ADDR, RFC 8684 section 3.4.1), which then join there
    /// too.
    pub announce: bool,
    /// Boxes must not join at the address of the initial subflow, only at announced ones
    /// ([`braid_engine::Config::deny_join_initial`]).
    pub deny_join_initial: bool,
    /// Also serves boxes with plaintext connections, and SOCKS5 clients (RFC 1928) with a password made by a key.
    pub unprotected: bool,
    /// The users; at least one.
    pub users: Vec<UserConfig>,
    /// Destinations that are allowed although they are local to this server.
    pub allow: Vec<IpNet>,
    /// Destinations that are refused; take precedence over `allow`.
    pub deny: Vec<IpNet>,
    /// TCP ports that are refused at every destination.
    pub refuse_ports: Vec<u16>,
    /// Addresses to which the server measures its egress metrics, when a box asks.
    pub targets: Vec<SocketAddr>,
    /// Name of the strategy.
    pub strategy: String,
    /// Congestion control of subflows.
    pub congestion: Algorithm,
    /// Requires DSS checksums on every connection ([`braid_engine::Config::checksum`]).
    pub checksum: bool,
    /// Use of ECN, congestion marks instead of losses ([`braid_engine::Config::ecn`]).
    pub ecn: Ecn,
    /// Largest clock difference of plaintext clients, either way. Passwords are valid no longer than that.
    pub time_window: Duration,
    /// The control socket; `None` leaves the path to the driver.
    pub control: Option<PathBuf>,
    /// The TUN device and its addresses.
    pub tun: TunConfig,
    /// Timeouts.
    pub timeouts: ServerTimeouts,
    /// Limits.
    pub limits: ServerLimits,
    /// Protocol versions that the server speaks to boxes: always those of its release.
    pub versions: Versions,
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
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ServerTimeouts {
    /// Time from a connection to its complete SOCKS request.
    #[serde(deserialize_with = "types::duration")]
    pub handshake: Duration,
    /// Time from a box's sign-in to its request, where it signs in beforehand.
    #[serde(deserialize_with = "types::duration")]
    pub waiting: Duration,
    /// Time for name look-up and connection to the destination together.
    #[serde(deserialize_with = "types::duration")]
    pub connect: Duration,
    /// Time after which a connection is reset whose box owes an acknowledgement
    /// ([`braid_engine::Config::user_timeout`]).
    #[serde(deserialize_with = "types::user_timeout")]
    pub user_timeout: Duration,
    /// Time without movement after which a connection is ended.
    #[serde(deserialize_with = "types::duration")]
    pub idle: Duration,
    /// The same while one direction is closed.
    #[serde(deserialize_with = "types::duration")]
    pub half_closed: Duration,
    /// Longest time for transfers to finish when the server is stopped.
    #[serde(deserialize_with = "types::duration")]
    pub drain: Duration,
}

impl ServerTimeouts {
    pub(crate) fn relay_timeouts(&self) -> RelayTimeouts {
        RelayTimeouts {
            idle: self.idle,
            half_closed: self.half_closed,
        }
    }
}

impl Default for ServerTimeouts {
    fn default() -> Self {
        ServerTimeouts {
            handshake: Duration::from_secs(10),
            // Longer than the default of a box's `warm.age` (60 s), so that boxes replace idle connections
            // first.
            waiting: Duration::from_secs(120),
            connect: Duration::from_secs(30),
            user_timeout: types::USER_TIMEOUT,
            idle: Duration::from_secs(2 * 3600),
            half_closed: Duration::from_secs(15 * 60),
            drain: DEFAULT_DRAIN,
        }
    }
}

/// Limits of the server.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ServerLimits {
    /// Most concurrent connections.
    #[serde(deserialize_with = "types::count")]
    pub connections: usize,
    /// Most concurrent connections of one user.
    #[serde(deserialize_with = "types::count")]
    pub per_user: usize,
    /// Most concurrent connections whose SOCKS request is incomplete. One source may have at most as many as are
    /// left.
    #[serde(deserialize_with = "types::count")]
    pub handshakes: usize,
    /// Most failed ones of these per second from one source, on average.
    #[serde(deserialize_with = "types::count")]
    pub failures: usize,
    /// Most concurrent idle connections of one user that wait for a request. Further ones have only the time of a
    /// handshake.
    #[serde(deserialize_with = "types::count")]
    pub waiting: usize,
    /// Most concurrent name look-ups of one user. Further ones wait, within [`ServerTimeouts::connect`].
    #[serde(deserialize_with = "types::count")]
    pub lookups: usize,
    /// Most packet trains per second for one user, on average.
    #[serde(deserialize_with = "types::count")]
    pub trains: usize,
    /// Most plaintext passwords that are remembered against replay.
    #[serde(deserialize_with = "types::count")]
    pub replay: usize,
    /// Most bytes that one connection buffers in each direction.
    #[serde(deserialize_with = "types::bytes")]
    pub buffer: usize,
    /// Most bytes that all connections together buffer.
    #[serde(deserialize_with = "types::bytes")]
    pub memory: usize,
}

impl Default for ServerLimits {
    fn default() -> Self {
        ServerLimits {
            connections: 32_768,
            per_user: 16_384,
            handshakes: 4_096,
            failures: 100,
            waiting: 64,
            lookups: 8,
            trains: 4,
            replay: 262_144,
            buffer: 8 << 20,
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
        let raw: Raw = src.parse()?;
        let key = src.private_key(raw.key_file.as_ref(), "server.key")?;
        ServerConfig::check(&src, raw, key)
    }

    /// Reads `text` of `file`, with `key` instead of a `key_file`, which may be missing. For callers without
    /// files.
    pub fn with_key(file: &str, text: &str, key: PrivateKey) -> Result<Self, ConfigError> {
        let src = Source { file, text };
        ServerConfig::check(&src, src.parse()?, key)
    }

    fn check(src: &Source<'_>, raw: Raw, key: PrivateKey) -> Result<Self, ConfigError> {
        if raw.listen.get_ref().0.is_empty() {
            return Err(src.error(&raw.listen, "no address is named", "\"203.0.113.7\""));
        }
        src.at_most(MAX_PATHS, "addresses", &raw.listen)?;
        let listen = &raw.listen.get_ref().0;
        for (i, Address(addr)) in listen.iter().enumerate() {
            if listen[..i].iter().any(|other| other.0 == *addr) {
                let message = format!("{addr} is given twice");
                return Err(src.error(&raw.listen, message, "each address once"));
            }
            if addr.is_unspecified() || addr.is_multicast() {
                let message = format!("{addr} is no address of an interface");
                let hint = "the addresses connections come in at";
                return Err(src.error(&raw.listen, message, hint));
            }
        }
        if let Some(port) = raw.port.as_ref().filter(|p| *p.get_ref() == 0) {
            return Err(src.error(port, "port 0 cannot be listened on", "1 to 65535"));
        }
        let denies = raw.deny_join_initial.as_ref().filter(|at| *at.get_ref());
        if let Some(at) = denies.filter(|_| !raw.announce || listen.len() < 2) {
            let message = "boxes would be told of no address to join at";
            let hint = "announce = true, with two addresses or more in `listen`";
            return Err(src.error(at, message, hint));
        }
        let window = raw
            .time_window
            .as_ref()
            .map_or(120, |w| w.get_ref().0.as_secs());
        if let (Some(at), false) = (&raw.time_window, (1..=3600).contains(&window)) {
            let message = "the time window is not between 1 s and 1 h";
            return Err(src.error(at, message, "\"2min\""));
        }
        Ok(ServerConfig {
            key_file: raw.key_file.map(|at| src.beside(at.get_ref())),
            name: raw.name.unwrap_or_else(|| "server".to_owned()),
            key,
            listen: raw.listen.into_inner().0.into_iter().map(|a| a.0).collect(),
            port: raw.port.map_or(DEFAULT_PORT, Spanned::into_inner),
            announce: raw.announce,
            deny_join_initial: raw.deny_join_initial.is_some_and(Spanned::into_inner),
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
            checksum: raw.checksum,
            ecn: raw.ecn,
            time_window: Duration::from_secs(window),
            control: src.control_socket(raw.control)?,
            tun: RawTun::check(raw.tun, src, ("10.215.78.0/24", "fdb7:a1d0:78::/64"), &[])?,
            timeouts: raw.timeouts,
            limits: raw.limits,
            versions: Versions::OURS,
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

    /// Returns the settings of the engine; properties of the device have their defaults.
    pub fn engine(&self) -> braid_engine::Config {
        braid_engine::Config {
            congestion: self.congestion,
            checksum: self.checksum,
            ecn: self.ecn,
            deny_join_initial: self.deny_join_initial,
            send_buffer: self.limits.buffer,
            recv_buffer: self.limits.buffer,
            memory: self.limits.memory,
            user_timeout: self.timeouts.user_timeout,
            // Connections in the handshake and closing ones take slots too.
            max_connections: self.limits.connections.saturating_mul(2) + self.limits.handshakes,
            ..braid_engine::Config::default()
        }
    }
}

/// The file as written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    #[serde(default, deserialize_with = "types::optional_name")]
    name: Option<String>,
    key_file: Option<Spanned<PathBuf>>,
    listen: Spanned<OneOrMany<Address>>,
    port: Option<Spanned<u16>>,
    #[serde(default)]
    announce: bool,
    deny_join_initial: Option<Spanned<bool>>,
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
    #[serde(default)]
    checksum: bool,
    #[serde(default, deserialize_with = "types::ecn")]
    ecn: Ecn,
    time_window: Option<Spanned<Window>>,
    control: Option<Spanned<PathBuf>>,
    tun: Option<RawTun>,
    #[serde(default)]
    timeouts: ServerTimeouts,
    #[serde(default)]
    limits: ServerLimits,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawUser {
    name: Spanned<String>,
    key: Option<Spanned<Key>>,
}

#[derive(Deserialize)]
struct Window(#[serde(deserialize_with = "types::duration")] Duration);

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
