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
use crate::relay::Patience;

use super::box_config::{Congestion, check_name};
use super::common::{
    DEFAULT_DRAIN, DEFAULT_PORT, MAX_PATHS, RawTun, Source, TunConfig, check_strategy, read,
};
use super::error::USER_KEY_HINT;
use super::types::{self, Address, Key, OneOrMany, Prefix, Target};

/// Ports that are refused where the configuration names none: SMTP between mail servers, by which a
/// user's infected host would send spam from the server's address. Users hand in mail at 465 and 587.
const REFUSED_PORTS: [u16; 1] = [25];
/// Most users of a server.
const MAX_USERS: usize = 65_536;
/// Most targets to measure by.
const MAX_TARGETS: usize = 8;

/// Settings of the aggregation server.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// Name of this server in logs.
    pub name: String,
    /// Says who this server is.
    pub key: PrivateKey,
    /// The file it was read from, if it was.
    pub key_file: Option<PathBuf>,
    /// Addresses connections come in at, as this machine's interfaces carry them; at least one.
    pub listen: Vec<IpAddr>,
    /// TCP port.
    pub port: u16,
    /// Boxes are told of the addresses they did not come to (ADD_ADDR, RFC 8684 section 3.4.1), and
    /// join there too.
    pub announce: bool,
    /// Boxes join only what they are told of, never the address they came to
    /// ([`braid_engine::Config::deny_join_initial`]).
    pub deny_join_initial: bool,
    /// Boxes that do not protect their connections are served too, and so is whoever speaks SOCKS5
    /// (RFC 1928) with a password made by a key.
    pub unprotected: bool,
    /// Who may use it; at least one.
    pub users: Vec<UserConfig>,
    /// Destinations that are reachable though they are local to this server.
    pub allow: Vec<IpNet>,
    /// Destinations that are refused; stronger than `allow`.
    pub deny: Vec<IpNet>,
    /// TCP ports to which users get no connection, at any destination.
    pub refuse_ports: Vec<u16>,
    /// What the way to destinations is measured by, when a box asks.
    pub targets: Vec<SocketAddr>,
    /// Name of the strategy.
    pub strategy: String,
    /// Congestion control of subflows.
    pub congestion: Algorithm,
    /// DSS checksums are required of every connection ([`braid_engine::Config::checksum`]).
    pub checksum: bool,
    /// Congestion marks instead of losses ([`braid_engine::Config::ecn`]).
    pub ecn: Ecn,
    /// How far the clock of who speaks in clear may be off, either way. Passwords are valid no longer.
    pub time_window: Duration,
    /// The control socket; `None` leaves the place to the driver.
    pub control: Option<PathBuf>,
    /// TUN device and its addresses.
    pub tun: TunConfig,
    /// Timeouts.
    pub timeouts: ServerTimeouts,
    /// Limits.
    pub limits: ServerLimits,
    /// Versions of the protocol that the server speaks to boxes: those of its release, which no file changes.
    pub versions: Versions,
}

/// Who may use a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UserConfig {
    /// Name in logs and counts; each has one of its own.
    pub name: String,
    /// The public key, likewise.
    pub key: PublicKey,
}

/// Timeouts of the server.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ServerTimeouts {
    /// From a connection to its complete SOCKS request.
    #[serde(deserialize_with = "types::duration")]
    pub handshake: Duration,
    /// From the moment a box that signs in beforehand has proved who it is to its request.
    #[serde(deserialize_with = "types::duration")]
    pub waiting: Duration,
    /// Name look-up and connection to the destination together.
    #[serde(deserialize_with = "types::duration")]
    pub connect: Duration,
    /// A connection whose box is silent though it owes an answer is ended after this
    /// ([`braid_engine::Config::user_timeout`]).
    #[serde(deserialize_with = "types::user_timeout")]
    pub user_timeout: Duration,
    /// A connection on which nothing moves is ended after this.
    #[serde(deserialize_with = "types::duration")]
    pub idle: Duration,
    /// The same where one direction is closed already.
    #[serde(deserialize_with = "types::duration")]
    pub half_closed: Duration,
    /// How long transfers that are under way may take to end when the server is stopped.
    #[serde(deserialize_with = "types::duration")]
    pub drain: Duration,
}

impl ServerTimeouts {
    pub(crate) fn patience(&self) -> Patience {
        Patience {
            idle: self.idle,
            half_closed: self.half_closed,
        }
    }
}

impl Default for ServerTimeouts {
    fn default() -> Self {
        ServerTimeouts {
            handshake: Duration::from_secs(10),
            waiting: Duration::from_secs(120),
            connect: Duration::from_secs(30),
            user_timeout: types::USER_TIMEOUT,
            idle: Duration::from_secs(2 * 3600),
            half_closed: Duration::from_secs(15 * 60),
            drain: DEFAULT_DRAIN,
        }
    }
}

/// Bounds of the server.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ServerLimits {
    /// Most connections at a time.
    #[serde(deserialize_with = "types::count")]
    pub connections: usize,
    /// Most connections at a time of one user.
    #[serde(deserialize_with = "types::count")]
    pub per_user: usize,
    /// Most connections at a time whose SOCKS request is not complete. One source has at most as many
    /// as are left.
    #[serde(deserialize_with = "types::count")]
    pub handshakes: usize,
    /// Most of those of one source a second that fail, on average.
    #[serde(deserialize_with = "types::count")]
    pub failures: usize,
    /// Most connections at a time of one user that wait for their request. More of them have the
    /// time of a handshake.
    #[serde(deserialize_with = "types::count")]
    pub waiting: usize,
    /// Most names at a time that are looked up for one user. More of them wait, within
    /// [`ServerTimeouts::connect`].
    #[serde(deserialize_with = "types::count")]
    pub lookups: usize,
    /// Most trains of packets a second by which the box of one user measures, on average.
    #[serde(deserialize_with = "types::count")]
    pub trains: usize,
    /// Most passwords, of those in clear, remembered against replay.
    #[serde(deserialize_with = "types::count")]
    pub replay: usize,
    /// Most bytes one connection buffers in each direction.
    #[serde(deserialize_with = "types::bytes")]
    pub buffer: usize,
    /// Most bytes all connections buffer together.
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
    /// Reads `path`, and the file of its key (relative to its directory).
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        ServerConfig::from_toml(&path.display().to_string(), &read(path)?)
    }

    /// Reads `text`, which came from `file`; that of its key is relative to its directory.
    pub fn from_toml(file: &str, text: &str) -> Result<Self, ConfigError> {
        let src = Source { file, text };
        let raw: Raw = src.parse()?;
        let key = src.private_key(raw.key_file.as_ref(), "server.key")?;
        ServerConfig::check(&src, raw, key)
    }

    /// Reads `text`, which came from `file`, with `key` in place of what is in its `key_file`, which
    /// it need not have: for whoever has no files.
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

    /// Rules on destinations.
    pub fn destination_rules(&self) -> DestinationRules {
        DestinationRules {
            allow: self.allow.clone(),
            deny: self.deny.clone(),
            refuse_ports: self.refuse_ports.clone(),
        }
    }

    /// Endpoints connections come in at.
    pub fn endpoints(&self) -> impl Iterator<Item = SocketAddr> + '_ {
        self.listen.iter().map(|a| SocketAddr::new(*a, self.port))
    }

    /// Settings of the engine that follow from these; device properties are left at their
    /// defaults.
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
            // Those still in the handshake and those that are closing take slots too.
            max_connections: self.limits.connections.saturating_mul(2) + self.limits.handshakes,
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
