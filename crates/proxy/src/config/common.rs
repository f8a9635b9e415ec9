//! Settings and checks that both files share.

use core::fmt::Debug;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::ops::RangeInclusive;
use core::str::FromStr;
use core::time::Duration;
use std::path::{Path, PathBuf};

use braid_engine::cc::{self, Algorithm};
use braid_secure::keys::PrivateKey;
use braid_units::ConfigError;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use serde::de::DeserializeOwned;
use toml::Spanned;

use crate::relay::RelayTimeouts;

use super::error::from_toml;
use super::types::{Interface, OneOrMany, Prefix, Time};

/// Default port of the server: SOCKS (RFC 1928).
pub const DEFAULT_PORT: u16 = 1080;

/// Default congestion control of boxes and servers. Among Braid's algorithms, BBR performs best over links with
/// loss or long queues, and it leaves competing flows their share.
pub const DEFAULT_CONGESTION: Algorithm = cc::BBR;

/// Default time for transfers to finish when a box or a server stops. A guess: most transfers are shorter, and an
/// operator who restarts the program has to wait.
pub(super) const DEFAULT_DRAIN: Duration = Duration::from_secs(1);

/// Maximum time for a server to look up a name and to connect. Linux sends SYNs after 0, 1, 3, 7 and 15 s, so the
/// last SYN has 15 s for its answer. Boxes of other releases rely on this time, so it must not grow.
pub(super) const SERVER_CONNECT_TIMEOUT: Duration = Duration::from_secs(30);

/// Default timeouts of a relay on which nothing moves.
pub(super) const RELAY_TIMEOUTS: RelayTimeouts = RelayTimeouts {
    // NATs must keep an idle connection for 2 h 4 min (RFC 5382 REQ-5), so users' programs see the end hardly
    // earlier than on other networks.
    idle: Duration::from_secs(2 * 3600),
    // A program may compute its answer for minutes, but a peer that has vanished never ends its direction. The
    // value is a guess.
    half_closed: Duration::from_secs(15 * 60),
};

/// Age at which a box replaces an idle connection. Servers keep it for twice that time. The protocol fixes both
/// values, because the other end may have another release.
pub(super) const IDLE_CONNECTION_AGE: Duration = Duration::from_secs(60);

/// Minimum size of a connection's buffer in each direction, bytes, unless the file sets the size. This size
/// suffices for 1 Gbit/s at a round trip of 67 ms. `memory` may limit a connection to less.
pub(super) const MIN_BUFFER: usize = 8 << 20;

/// Maximum number of paths: links of a box, or listening addresses of a server. The smallest range of
/// [`TunConfig`] has room for them. The value is a guess.
pub(super) const MAX_PATHS: usize = 16;

/// Maximum length of a Unix socket's path: `sun_path` has 108 bytes, of which the last is zero.
const MAX_SOCKET_PATH: usize = 107;

/// The TUN device and the addresses of paths on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TunConfig {
    /// Name of the device.
    pub name: String,
    /// IPv4 range, /16 to /27. A /27 has room for 16 paths. The first address is the host's own on the device.
    pub v4: Ipv4Net,
    /// IPv6 range, /48 to /120.
    pub v6: Ipv6Net,
}

impl TunConfig {
    /// Returns the host's own addresses on the device, the first of each range, with their prefix lengths.
    pub fn own_addresses(&self) -> [(IpAddr, u8); 2] {
        let v4 = Ipv4Addr::from_bits(self.v4.network().to_bits() + 1);
        let v6 = Ipv6Addr::from_bits(self.v6.network().to_bits() + 1);
        [
            (v4.into(), self.v4.prefix_len()),
            (v6.into(), self.v6.prefix_len()),
        ]
    }

    /// Returns both ranges.
    pub fn ranges(&self) -> [IpNet; 2] {
        [self.v4.into(), self.v6.into()]
    }

    /// Returns the IPv4 address of path `n`, counted from 0.
    pub fn path_v4(&self, n: u8) -> Ipv4Addr {
        Ipv4Addr::from_bits(self.v4.network().to_bits() + 2 + u32::from(n))
    }

    /// Returns the IPv6 address of path `n`, counted from 0.
    pub fn path_v6(&self, n: u8) -> Ipv6Addr {
        Ipv6Addr::from_bits(self.v6.network().to_bits() + 2 + u128::from(n))
    }
}

/// The file that is being read. Errors name its position.
pub(super) struct Source<'a> {
    pub(super) file: &'a str,
    pub(super) text: &'a str,
}

impl Source<'_> {
    pub(super) fn parse<T: DeserializeOwned>(&self) -> Result<T, ConfigError> {
        toml::from_str(self.text).map_err(|e| from_toml(self.file, self.text, &e, |_| None))
    }

    /// Returns an error at the value `at`.
    pub(super) fn error<T>(
        &self,
        at: &Spanned<T>,
        message: impl Into<String>,
        hint: impl Into<String>,
    ) -> ConfigError {
        let hint = Some(hint.into());
        ConfigError::at(self.file, self.text, Some(at.span()), message, hint)
    }

    /// Returns an error of the whole file.
    pub(super) fn whole(&self, message: impl Into<String>, hint: impl Into<String>) -> ConfigError {
        ConfigError::at(self.file, self.text, None, message, Some(hint.into()))
    }

    /// Returns the `given` range, or `default`. `to_family` returns the range if it has the right family. The
    /// prefix length must be in `lengths`.
    fn range<N: FromStr<Err: Debug>>(
        &self,
        given: Option<Spanned<Prefix>>,
        default: &str,
        lengths: RangeInclusive<u8>,
        to_family: impl Fn(IpNet) -> Option<N>,
    ) -> Result<N, ConfigError> {
        let Some(given) = given else {
            return Ok(default.parse().expect("the default range is valid"));
        };
        let net = given.get_ref().0;
        let message = match to_family(net) {
            Some(range) if lengths.contains(&net.prefix_len()) => return Ok(range),
            Some(_) => {
                let (min, max) = lengths.into_inner();
                format!("the range {net} is not between /{min} and /{max}")
            }
            None => format!("{net} is of the wrong family"),
        };
        Err(self.error(&given, message, format!("a range such as \"{default}\"")))
    }

    /// Refuses a list of more than `max` entries, which the error calls `what`.
    pub(super) fn at_most<T>(
        &self,
        max: usize,
        what: &str,
        given: &Spanned<OneOrMany<T>>,
    ) -> Result<(), ConfigError> {
        match given.get_ref().0.len() {
            n if n > max => {
                let message = format!("{n} {what} are given, {max} are the most");
                Err(self.error(given, message, "fewer"))
            }
            _ => Ok(()),
        }
    }

    /// Resolves `path` relative to this file's directory.
    pub(super) fn beside(&self, path: &Path) -> PathBuf {
        let directory = Path::new(self.file).parent();
        directory.unwrap_or(Path::new("")).join(path)
    }

    /// Checks and resolves the path of a control socket.
    pub(super) fn control_socket(
        &self,
        given: Option<Spanned<PathBuf>>,
    ) -> Result<Option<PathBuf>, ConfigError> {
        let Some(given) = given else {
            return Ok(None);
        };
        let path = self.beside(given.get_ref());
        let length = path.as_os_str().len();
        if path.file_name().is_none() || length > MAX_SOCKET_PATH {
            let message = format!("{:?} is no path of a socket", path.display());
            let hint = format!("a path of at most {MAX_SOCKET_PATH} bytes such as \"box.sock\"");
            return Err(self.error(&given, message, hint));
        }
        Ok(Some(path))
    }

    /// Reads the private key from the `given` file, whose path is relative to this file. `name` is the usual file
    /// name, which the error suggests.
    pub(super) fn private_key(
        &self,
        given: Option<&Spanned<PathBuf>>,
        name: &str,
    ) -> Result<PrivateKey, ConfigError> {
        let Some(given) = given else {
            let hint = format!("key_file = \"{name}\", a file made by: braid key new {name}");
            return Err(self.whole("`key_file` is missing", hint));
        };
        let path = self.beside(given.get_ref());
        PrivateKey::read(&path).map_err(|message| {
            let hint = format!(
                "a file that holds a private key (make one: braid key new {})",
                path.display()
            );
            self.error(given, message, hint)
        })
    }
}

/// Checks the name and the settings of a strategy.
pub(super) fn check_strategy(
    src: &Source<'_>,
    given: Option<Spanned<String>>,
) -> Result<String, ConfigError> {
    let Some(name) = given else {
        return Ok(braid_strategy::DEFAULT.to_owned());
    };
    match braid_strategy::by_name(name.get_ref()) {
        Ok(_) => Ok(name.into_inner()),
        Err(error) => Err(src.error(&name, error.problem, error.expected)),
    }
}

/// Returns the `given` value, or `default`.
pub(super) fn given_or<T: Into<V>, V>(given: Option<T>, default: V) -> V {
    given.map_or(default, T::into)
}

/// Returns the given timeouts of a relay, and the defaults of the others.
pub(super) fn relay_timeouts(idle: Option<Time>, half_closed: Option<Time>) -> RelayTimeouts {
    RelayTimeouts {
        idle: given_or(idle, RELAY_TIMEOUTS.idle),
        half_closed: given_or(half_closed, RELAY_TIMEOUTS.half_closed),
    }
}

pub(super) fn read(path: &Path) -> Result<String, ConfigError> {
    std::fs::read_to_string(path).map_err(|e| ConfigError::unreadable(path, &e))
}

/// The table `[tun]` as written in the file.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawTun {
    name: Option<Spanned<Interface>>,
    v4: Option<Spanned<Prefix>>,
    v6: Option<Spanned<Prefix>>,
}

impl RawTun {
    /// Checks the table. `taken` are the names of interfaces with another use; the device must not have such a
    /// name. `v4` and `v6` are the default ranges.
    pub(super) fn check(
        raw: Option<RawTun>,
        src: &Source<'_>,
        (v4, v6): (&str, &str),
        taken: &[&str],
    ) -> TunResult {
        let raw = raw.unwrap_or(RawTun {
            name: None,
            v4: None,
            v6: None,
        });
        let is_v4 = |net| match net {
            IpNet::V4(net) => Some(net),
            IpNet::V6(_) => None,
        };
        let is_v6 = |net| match net {
            IpNet::V4(_) => None,
            IpNet::V6(net) => Some(net),
        };
        Ok(TunConfig {
            // A /27 is the smallest range with room for the host's own address and `MAX_PATHS` paths.
            v4: src.range(raw.v4, v4, 16..=27, is_v4)?,
            v6: src.range(raw.v6, v6, 48..=120, is_v6)?,
            name: match raw.name {
                None => "braid0".to_owned(),
                Some(name) if taken.contains(&name.get_ref().0.as_str()) => {
                    let message = format!("{:?} is a link or of the LAN", name.get_ref().0);
                    return Err(src.error(&name, message, "a name of its own: name = \"braid0\""));
                }
                Some(name) => name.into_inner().0,
            },
        })
    }
}

type TunResult = Result<TunConfig, ConfigError>;
