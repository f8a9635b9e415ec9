//! Types of the values in the configuration files, with their deserialization.

use core::fmt;
use core::marker::PhantomData;
use core::net::{IpAddr, SocketAddr};
use core::time::Duration;

use braid_engine::Ecn;
use braid_secure::keys::PublicKey;
use braid_units::value;
use ipnet::IpNet;
use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::error::HINT;

/// Returns an error with a remedy for a `Deserialize` implementation. An error of serde has one string only, so
/// [`HINT`] separates the two parts.
pub(super) fn wrong<E: serde::de::Error>(what: impl fmt::Display, hint: impl fmt::Display) -> E {
    E::custom(format_args!("{what}{HINT}{hint}"))
}

/// Deserializes a string and converts it by `make`. An error must arise inside the visitor, because `toml` knows
/// the position of a list's element only there.
pub(super) fn text<'de, D, T, F>(d: D, make: F) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    F: FnOnce(&str) -> Result<T, (String, String)>,
{
    struct V<F>(F);
    impl<T, F: FnOnce(&str) -> Result<T, (String, String)>> Visitor<'_> for V<F> {
        type Value = T;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a string")
        }
        fn visit_str<E: serde::de::Error>(self, s: &str) -> Result<T, E> {
            (self.0)(s).map_err(|(what, hint)| wrong(what, hint))
        }
    }
    d.deserialize_str(V(make))
}

/// A range of addresses. An address without a prefix length is a range of one address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Prefix(pub IpNet);

impl<'de> Deserialize<'de> for Prefix {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        text(d, |s| match value::prefix(s) {
            Ok(net) => Ok(Prefix(net)),
            Err(e) => Err((e.what, e.expected)),
        })
    }
}

impl OneOrMany<Prefix> {
    pub fn nets(self) -> Vec<IpNet> {
        self.0.into_iter().map(|prefix| prefix.0).collect()
    }
}

/// Maximum time in any setting: a year. A guess: a longer time is most likely a mistake.
const MAX_TIME: Duration = Duration::from_secs(365 * 86_400);

/// A time such as `"250ms"`, `"10s"`, `"5min"`, `"2h"`, or a number of seconds. Zero is refused, because it has no
/// meaning in any setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Time(pub Duration);

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct V;
        impl Visitor<'_> for V {
            type Value = Time;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a time such as \"250ms\", \"10s\", \"5min\" or \"2h\"")
            }
            fn visit_str<E: serde::de::Error>(self, s: &str) -> Result<Time, E> {
                match value::duration(s, MAX_TIME) {
                    Ok(d) if !d.is_zero() => Ok(Time(d)),
                    _ => Err(wrong(
                        format_args!("{s:?} is no time above zero and up to a year"),
                        "a time such as \"250ms\", \"10s\", \"5min\" or \"2h\"",
                    )),
                }
            }
            fn visit_i64<E: serde::de::Error>(self, n: i64) -> Result<Time, E> {
                self.visit_str(&format!("{n}s"))
            }
        }
        d.deserialize_any(V)
    }
}

impl From<Time> for Duration {
    fn from(time: Time) -> Duration {
        time.0
    }
}

/// Default user timeout (RFC 5482): about as long as Linux retransmits on a regular TCP connection
/// (`tcp_retries2`).
pub(super) const USER_TIMEOUT: Duration = Duration::from_secs(15 * 60);
/// Limits of the user timeout; both are guesses. A shorter timeout would end connections at each brief outage of
/// all links. A longer timeout would hold memory for peers that have vanished.
const MIN_USER_TIMEOUT: Duration = Duration::from_secs(30);
const MAX_USER_TIMEOUT: Duration = Duration::from_secs(86_400);

/// A user timeout (RFC 5482).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct UserTimeout(pub Duration);

impl<'de> Deserialize<'de> for UserTimeout {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let Time(timeout) = Time::deserialize(d)?;
        if (MIN_USER_TIMEOUT..=MAX_USER_TIMEOUT).contains(&timeout) {
            return Ok(UserTimeout(timeout));
        }
        Err(wrong(
            "the user timeout is not between 30 s and a day",
            "a time such as \"15min\", for which all links may be down",
        ))
    }
}

impl From<UserTimeout> for Duration {
    fn from(timeout: UserTimeout) -> Duration {
        timeout.0
    }
}

/// Maximum of a count in any setting: the kernel's default limit of a process's descriptors (`fs.nr_open`),
/// because most counts are numbers of connections, and a connection can need a descriptor.
pub(super) const MAX_COUNT: u32 = 1 << 20;

/// A count of at least `MIN`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Count<const MIN: u32 = 1>(pub usize);

impl<'de, const MIN: u32> Deserialize<'de> for Count<MIN> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct V<const MIN: u32>;
        impl<const MIN: u32> Visitor<'_> for V<MIN> {
            type Value = Count<MIN>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a whole number from {MIN} to {MAX_COUNT}")
            }
            fn visit_i64<E: serde::de::Error>(self, n: i64) -> Result<Count<MIN>, E> {
                match u32::try_from(n) {
                    Ok(n) if (MIN..=MAX_COUNT).contains(&n) => Ok(Count(n as usize)),
                    _ => Err(wrong(
                        format_args!("{n} is out of range"),
                        format_args!("a whole number from {MIN} to {MAX_COUNT}"),
                    )),
                }
            }
        }
        d.deserialize_i64(V::<MIN>)
    }
}

impl<const MIN: u32> From<Count<MIN>> for usize {
    fn from(count: Count<MIN>) -> usize {
        count.0
    }
}

/// A size such as `"64MB"`, `"512KiB"`, or a number of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Size(pub usize);

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct V;
        impl Visitor<'_> for V {
            type Value = Size;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a size such as \"512kB\", \"64MB\" or \"8MiB\"")
            }
            fn visit_str<E: serde::de::Error>(self, s: &str) -> Result<Size, E> {
                let size = value::size(s).ok().and_then(|n| usize::try_from(n).ok());
                size.filter(|n| *n > 0).map(Size).ok_or_else(|| {
                    wrong(
                        format_args!("{s:?} is no size above zero"),
                        "a size such as \"512kB\" (512,000 bytes), \"64MB\" or \"8MiB\"",
                    )
                })
            }
            fn visit_i64<E: serde::de::Error>(self, n: i64) -> Result<Size, E> {
                self.visit_str(&n.to_string())
            }
        }
        d.deserialize_any(V)
    }
}

/// One value or a list of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct OneOrMany<T>(pub Vec<T>);

impl<T> Default for OneOrMany<T> {
    fn default() -> Self {
        OneOrMany(Vec::new())
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for OneOrMany<T> {
    // Serde's untagged enum would be shorter, but its errors have no position inside the value.
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct V<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for V<T> {
            type Value = Vec<T>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("one value or a list of values")
            }
            fn visit_str<E: serde::de::Error>(self, s: &str) -> Result<Vec<T>, E> {
                T::deserialize(serde::de::value::StrDeserializer::new(s)).map(|v| vec![v])
            }
            fn visit_i64<E: serde::de::Error>(self, n: i64) -> Result<Vec<T>, E> {
                T::deserialize(serde::de::value::I64Deserializer::new(n)).map(|v| vec![v])
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Vec<T>, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map)).map(|v| vec![v])
            }
            fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<Vec<T>, A::Error> {
                Vec::deserialize(SeqAccessDeserializer::new(seq))
            }
        }
        d.deserialize_any(V(PhantomData)).map(OneOrMany)
    }
}

/// An IP address. An IPv4-mapped IPv6 address becomes an IPv4 address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Address(pub IpAddr);

impl<'de> Deserialize<'de> for Address {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        text(d, |s| {
            // No packet on the wire bears an IPv4-mapped address, so the text can only mean the IPv4 address.
            let address = s.parse().map(|ip: IpAddr| Address(ip.to_canonical()));
            address.map_err(|_| {
                let hint = "an address such as \"203.0.113.7\" or \"2001:db8::7\"";
                (format!("{s:?} is no IP address"), hint.to_owned())
            })
        })
    }
}

/// An address of this host and a port at which to listen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Listen(pub SocketAddr);

impl<'de> Deserialize<'de> for Listen {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        text(d, |s| match s.parse::<SocketAddr>() {
            Ok(addr) if addr.port() > 0 && !addr.ip().is_multicast() => Ok(Listen(addr)),
            _ => {
                let hint = "an address of this host in the LAN with a port, such as \
                            \"192.168.1.1:1080\" or \"[fd00::1]:1080\"";
                Err((format!("{s:?} is nowhere to listen"), hint.to_owned()))
            }
        })
    }
}

/// An address and a port of another host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Target(pub SocketAddr);

impl<'de> Deserialize<'de> for Target {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        text(d, |s| match s.parse::<SocketAddr>() {
            Ok(addr) if addr.port() > 0 && !addr.ip().is_multicast() => Ok(Target(addr)),
            _ => {
                let hint = "an address with a port, such as \"198.51.100.1:443\"";
                Err((format!("{s:?} cannot be connected to"), hint.to_owned()))
            }
        })
    }
}

/// The name of a network interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Interface(pub String);

impl<'de> Deserialize<'de> for Interface {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        // The kernel allows 15 bytes (IFNAMSIZ) without slash and space. This rule also excludes quotes and
        // braces, which would change the meaning of the nftables rule set that the name is written into.
        text(d, |s| {
            let is_valid = (1..=15).contains(&s.len())
                && s.chars()
                    .all(|c| c.is_ascii_alphanumeric() || "-_.@:+".contains(c))
                && s != "."
                && s != "..";
            if is_valid {
                return Ok(Interface(s.to_owned()));
            }
            let hint = "a name as `ip link` shows it, such as \"eth0\"";
            Err((format!("{s:?} is no name of an interface"), hint.to_owned()))
        })
    }
}

/// A public key in text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Key(pub PublicKey);

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        text(d, |s| match s.parse() {
            Ok(key) => Ok(Key(key)),
            Err(e) => {
                let hint = "one as `braid key show FILE` prints it of the other end's key file";
                Err((format!("{s:?} is no public key: {e}"), hint.to_owned()))
            }
        })
    }
}

/// Reads one of the `words`, and returns its value. Errors call the setting `what`.
pub(super) fn word<'de, D: Deserializer<'de>, T: Copy>(
    d: D,
    what: &str,
    words: &[(&str, T)],
) -> Result<T, D::Error> {
    text(d, |s| {
        let found = words.iter().find(|(w, _)| *w == s).map(|(_, t)| *t);
        found.ok_or_else(|| {
            let known: Vec<String> = words.iter().map(|(w, _)| format!("{w:?}")).collect();
            (format!("{s:?} is no {what}"), known.join(" or "))
        })
    })
}

/// Reads the use of ECN.
pub(super) fn ecn<'de, D: Deserializer<'de>>(d: D) -> Result<Ecn, D::Error> {
    let words = [
        ("answer", Ecn::Answer),
        ("ask", Ecn::Ask),
        ("off", Ecn::Off),
    ];
    word(d, "setting of ECN", &words)
}

/// The protection of the connections to a server.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Protection {
    /// TLS 1.3 (RFC 8446); both ends authenticate by their keys.
    #[default]
    Tls,
    /// No protection, for measurements, and for paths that are protected by other means.
    None,
}

/// Reads the protection of the connections to a server.
pub(super) fn protection<'de, D: Deserializer<'de>>(d: D) -> Result<Protection, D::Error> {
    let words = [("tls", Protection::Tls), ("none", Protection::None)];
    word(d, "kind of protection", &words)
}

/// The rule that [`is_name`] checks, in the words of an error.
pub(super) const NAME_HINT: &str = "1 to 64 letters, digits, '-', '_' or '.'";

/// Returns whether `s` is a valid name in logs and commands.
pub(super) fn is_name(s: &str) -> bool {
    (1..=64).contains(&s.len())
        && s.chars()
            .all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
}

/// Reads a name.
pub(super) fn optional_name<'de, D: Deserializer<'de>>(d: D) -> Result<Option<String>, D::Error> {
    text(d, |s| {
        if is_name(s) {
            return Ok(Some(s.to_owned()));
        }
        Err((format!("{s:?} is no name"), NAME_HINT.to_owned()))
    })
}
