//! Values of the configuration files.

use core::fmt;
use core::marker::PhantomData;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::str::FromStr;
use core::time::Duration;

use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::error::HINT;

/// An error with what to write instead, for a `Deserialize` implementation.
pub(super) fn wrong<E: serde::de::Error>(what: impl fmt::Display, hint: impl fmt::Display) -> E {
    E::custom(format_args!("{what}{HINT}{hint}"))
}

/// Reads a string and makes a value of it. The mistake is raised inside of the visitor, because
/// only there `toml` knows the position of a list's element.
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

/// A range of addresses: `10.0.0.0/8`, `2001:db8::/32`; a bare address is a range of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Cidr {
    network: IpAddr,
    prefix: u8,
}

impl Cidr {
    /// The range of `prefix` leading bits of `network`; host bits are cleared. `None` where the
    /// prefix is longer than the address.
    pub fn new(network: IpAddr, prefix: u8) -> Option<Self> {
        let network = match network {
            IpAddr::V4(a) if prefix <= 32 => {
                IpAddr::V4(Ipv4Addr::from_bits(a.to_bits() & mask_v4(prefix)))
            }
            IpAddr::V6(a) if prefix <= 128 => {
                IpAddr::V6(Ipv6Addr::from_bits(a.to_bits() & mask_v6(prefix)))
            }
            _ => return None,
        };
        Some(Cidr { network, prefix })
    }

    /// The range of one address.
    pub fn host(addr: IpAddr) -> Self {
        Cidr {
            network: addr,
            prefix: if addr.is_ipv4() { 32 } else { 128 },
        }
    }

    /// The lowest address of the range.
    pub fn network(&self) -> IpAddr {
        self.network
    }

    /// Leading bits that addresses of the range share.
    pub fn prefix(&self) -> u8 {
        self.prefix
    }

    /// Whether `addr` is in the range; never across families.
    pub fn contains(&self, addr: IpAddr) -> bool {
        match (self.network, addr) {
            (IpAddr::V4(n), IpAddr::V4(a)) => a.to_bits() & mask_v4(self.prefix) == n.to_bits(),
            (IpAddr::V6(n), IpAddr::V6(a)) => a.to_bits() & mask_v6(self.prefix) == n.to_bits(),
            _ => false,
        }
    }
}

fn mask_v4(prefix: u8) -> u32 {
    u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0)
}

fn mask_v6(prefix: u8) -> u128 {
    u128::MAX.checked_shl(128 - u32::from(prefix)).unwrap_or(0)
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.network, self.prefix)
    }
}

impl FromStr for Cidr {
    type Err = &'static str;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        let (addr, prefix) = match s.split_once('/') {
            Some((addr, prefix)) => (addr, Some(prefix)),
            None => (s, None),
        };
        let addr: IpAddr = addr.parse().map_err(|_| "not an address range")?;
        let full = if addr.is_ipv4() { 32 } else { 128 };
        let prefix = match prefix {
            Some(p) => p.parse().map_err(|_| "the prefix length is no number")?,
            None => full,
        };
        let cidr = Cidr::new(addr, prefix).ok_or("the prefix is longer than the address")?;
        if cidr.network != addr {
            return Err("bits after the prefix are set");
        }
        Ok(cidr)
    }
}

impl<'de> Deserialize<'de> for Cidr {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        text(d, |s| {
            s.parse::<Cidr>().map_err(|e| {
                let network = s
                    .split_once('/')
                    .and_then(|(a, p)| Cidr::new(a.parse().ok()?, p.parse().ok()?));
                let hint = match network {
                    Some(c) => format!("\"{c}\""),
                    None => "a range such as \"10.0.0.0/8\" or \"2001:db8::/32\"".to_owned(),
                };
                (format!("{s:?}: {e}"), hint)
            })
        })
    }
}

/// A time such as `"250ms"`, `"10s"`, `"5min"`, `"2h"`; a bare number is seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Span(pub Duration);

impl FromStr for Span {
    type Err = ();

    fn from_str(s: &str) -> Result<Self, ()> {
        let s = s.trim();
        let digits = s.len() - s.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let (number, unit) = s.split_at(digits);
        let number: u64 = number.parse().map_err(|_| ())?;
        let ms = match unit.trim_start() {
            "ms" => 1,
            "" | "s" => 1_000,
            "min" | "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            _ => return Err(()),
        };
        Ok(Span(Duration::from_millis(
            number.checked_mul(ms).ok_or(())?,
        )))
    }
}

/// Longest time of any setting.
const LONGEST: Duration = Duration::from_secs(365 * 86_400);

/// Reads a [`Span`] into a `Duration` field; zero is refused, for no setting here means it.
pub(super) fn duration<'de, D: Deserializer<'de>>(d: D) -> Result<Duration, D::Error> {
    struct V;
    impl Visitor<'_> for V {
        type Value = Duration;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a time such as \"250ms\", \"10s\", \"5min\" or \"2h\"")
        }
        fn visit_str<E: serde::de::Error>(self, s: &str) -> Result<Duration, E> {
            match s.parse::<Span>() {
                Ok(Span(d)) if !d.is_zero() && d <= LONGEST => Ok(d),
                _ => Err(wrong(
                    format_args!("{s:?} is no time above zero and up to a year"),
                    "a time such as \"250ms\", \"10s\", \"5min\" or \"2h\"",
                )),
            }
        }
        fn visit_i64<E: serde::de::Error>(self, n: i64) -> Result<Duration, E> {
            match u64::try_from(n) {
                Ok(n) if n > 0 && n <= LONGEST.as_secs() => Ok(Duration::from_secs(n)),
                _ => self.visit_str(&n.to_string()),
            }
        }
    }
    d.deserialize_any(V)
}

/// Most of anything that is counted: what a descriptor limit may be by default (`fs.nr_open`).
const MOST: u32 = 1 << 20;

/// Reads how many of something there may be, at least one.
pub(super) fn count<'de, D: Deserializer<'de>>(d: D) -> Result<usize, D::Error> {
    struct V;
    impl Visitor<'_> for V {
        type Value = usize;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "a whole number from 1 to {MOST}")
        }
        fn visit_i64<E: serde::de::Error>(self, n: i64) -> Result<usize, E> {
            match u32::try_from(n) {
                Ok(n) if (1..=MOST).contains(&n) => Ok(n as usize),
                _ => Err(wrong(
                    format_args!("{n} is out of range"),
                    format_args!("a whole number from 1 to {MOST}"),
                )),
            }
        }
    }
    d.deserialize_i64(V)
}

/// Reads a size such as `"64MB"`, `"512kB"`, or a number of bytes.
pub(super) fn bytes<'de, D: Deserializer<'de>>(d: D) -> Result<usize, D::Error> {
    struct V;
    impl Visitor<'_> for V {
        type Value = usize;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a size such as \"512kB\" or \"64MB\"")
        }
        fn visit_str<E: serde::de::Error>(self, s: &str) -> Result<usize, E> {
            let t = s.trim();
            let digits = t.len() - t.trim_start_matches(|c: char| c.is_ascii_digit()).len();
            let (number, unit) = t.split_at(digits);
            let factor = match unit.trim_start() {
                "" | "B" => Some(1),
                "kB" | "KB" | "k" => Some(1 << 10),
                "MB" | "M" => Some(1 << 20),
                "GB" | "G" => Some(1 << 30),
                _ => None,
            };
            let number = number.parse::<usize>().ok();
            match number.zip(factor).and_then(|(n, f)| n.checked_mul(f)) {
                Some(n) if n > 0 => Ok(n),
                _ => Err(wrong(
                    format_args!("{s:?} is no size above zero"),
                    "a size such as \"512kB\" or \"64MB\"",
                )),
            }
        }
        fn visit_i64<E: serde::de::Error>(self, n: i64) -> Result<usize, E> {
            self.visit_str(&n.to_string())
        }
    }
    d.deserialize_any(V)
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
    // Not an untagged enum: that would lose the position of a mistake inside.
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

/// An address in text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Address(pub IpAddr);

impl<'de> Deserialize<'de> for Address {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        text(d, |s| {
            s.parse().map(Address).map_err(|_| {
                let hint = "an address such as \"203.0.113.7\" or \"2001:db8::7\"";
                (format!("{s:?} is no IP address"), hint.to_owned())
            })
        })
    }
}

/// The name of a network interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Interface(pub String);

impl<'de> Deserialize<'de> for Interface {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        // The kernel's own rule (IFNAMSIZ, no slash, no space); quotes and braces would otherwise
        // end up in a rule set.
        text(d, |s| {
            let ok = (1..=15).contains(&s.len())
                && s.chars()
                    .all(|c| c.is_ascii_alphanumeric() || "-_.@:+".contains(c))
                && s != "."
                && s != "..";
            if ok {
                return Ok(Interface(s.to_owned()));
            }
            let hint = "a name as `ip link` shows it, such as \"eth0\"";
            Err((format!("{s:?} is no name of an interface"), hint.to_owned()))
        })
    }
}

/// A shared secret. `Debug` never shows it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Vec<u8>);

/// What to do about a secret that is too weak.
pub(crate) const SECRET_HINT: &str = "a random one, made by: openssl rand -base64 32";

impl Secret {
    /// Takes the text of a secret; blanks around it are dropped. Refused where it is shorter than
    /// 20 characters or, by the spread of its characters, worth less than 100 bits.
    pub fn new(text: &str) -> Result<Self, String> {
        let text = text.trim();
        if text.len() < 20 {
            return Err(format!(
                "the secret has {} characters, at least 20 are needed",
                text.len()
            ));
        }
        let bits = entropy(text.as_bytes());
        if bits < 100 {
            return Err(format!(
                "the secret is too easy to guess (about {bits} bits, at least 100 are needed)"
            ));
        }
        Ok(Secret(text.as_bytes().to_vec()))
    }

    /// The key.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        text(d, |s| {
            Secret::new(s).map_err(|e| (e, SECRET_HINT.to_owned()))
        })
    }
}

/// An upper bound of the bits in `secret`: Shannon's measure over its bytes, of one period where
/// it repeats itself.
fn entropy(secret: &[u8]) -> u32 {
    let period = (1..=secret.len() / 2)
        .find(|&p| secret.iter().zip(&secret[p..]).all(|(a, b)| a == b))
        .unwrap_or(secret.len());
    let secret = &secret[..period];
    let n = secret.len() as f64;
    let mut counts = [0u32; 256];
    for b in secret {
        counts[usize::from(*b)] += 1;
    }
    let bits: f64 = counts
        .iter()
        .filter(|c| **c > 0)
        .map(|c| f64::from(*c) * (n / f64::from(*c)).log2())
        .sum();
    bits as u32
}

/// Reads one of a fixed list of words.
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

/// What [`is_name`] takes.
pub(super) const NAME_HINT: &str = "1 to 64 letters, digits, '-', '_' or '.'";

/// Whether `s` may appear as a name in logs and in the SOCKS user field.
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
