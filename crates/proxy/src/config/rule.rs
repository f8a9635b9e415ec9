//! The table `[[rule]]` of `box.toml`: hints about connections and packets of the tunnel by their destination.

use core::fmt;
use core::net::IpAddr;
use core::ops::RangeInclusive;

use braid_engine::Urgency;
use braid_tunnel::Mode;
use braid_units::ConfigError;
use ipnet::IpNet;
use serde::{Deserialize, Deserializer};
use toml::Spanned;

use crate::protocol::socks::{Destination, is_host_name};

use super::common::{Source, check_strategy};
use super::types::{self, OneOrMany, Prefix, Size, wrong};

/// Maximum number of rules of a box. A guess: each new connection is compared with all of them.
const MAX_RULES: usize = 256;
/// Maximum number of ports, addresses or domains of a rule. A guess, for the same reason.
const MAX_CONDITIONS: usize = 256;

/// Hints about certain connections, and packets of the tunnel. A connection matches the rule if it matches each list
/// that is not empty. It matches a list if it matches one of the values. The same holds for packets, which have no
/// name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// Ports of the destination; empty for all.
    pub ports: Vec<RangeInclusive<u16>>,
    /// Addresses of the destination; empty for all.
    pub addresses: Vec<IpNet>,
    /// Names of the destination, each with all names below it, in lower case; empty for all.
    pub domains: Vec<String>,
    /// The connections' urgency.
    pub urgency: Option<Urgency>,
    /// The name of the connections' strategy.
    pub strategy: Option<String>,
    /// The usual number of bytes that a connection carries.
    pub size: Option<u64>,
    /// The rule by which packets of the tunnel are given to links.
    pub mode: Option<Mode>,
}

impl Rule {
    /// Returns whether the rule applies to connections to `destination`. `host` is the destination's name in lower
    /// case, if it is known.
    pub fn is_for(&self, destination: &Destination, host: Option<&str>) -> bool {
        let (address, port) = match destination {
            Destination::Address(addr) => (Some(addr.ip()), addr.port()),
            Destination::Name(_, port) => (None, *port),
        };
        let has_port = || self.ports.iter().any(|ports| ports.contains(&port));
        let has_address = |a: IpAddr| self.addresses.iter().any(|net| net.contains(&a));
        (self.ports.is_empty() || has_port())
            && (self.addresses.is_empty() || address.is_some_and(has_address))
            && (self.domains.is_empty() || host.is_some_and(|h| self.is_for_name(h)))
    }

    /// Returns whether `host` is one of the domains, or a name below one.
    pub(super) fn is_for_name(&self, host: &str) -> bool {
        self.domains.iter().any(|domain| is_below(host, domain))
    }
}

/// Returns whether `host` is `domain` or a name below it.
fn is_below(host: &str, domain: &str) -> bool {
    let labels_above = host.strip_suffix(domain);
    // The dot keeps `notexample.com` from matching `example.com`.
    labels_above.is_some_and(|labels| labels.is_empty() || labels.ends_with('.'))
}

/// A rule as written in the file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawRule {
    #[serde(default)]
    port: Option<Spanned<OneOrMany<Ports>>>,
    #[serde(default)]
    address: Option<Spanned<OneOrMany<Prefix>>>,
    #[serde(default)]
    domain: Option<Spanned<OneOrMany<Domain>>>,
    urgency: Option<UrgencyLevel>,
    strategy: Option<Spanned<String>>,
    #[serde(default, deserialize_with = "size")]
    size: Option<u64>,
    #[serde(default, deserialize_with = "mode")]
    mode: Option<Mode>,
}

impl RawRule {
    /// Returns true if the rule has nothing but conditions.
    fn is_empty(&self) -> bool {
        self.urgency.is_none()
            && self.strategy.is_none()
            && self.size.is_none()
            && self.mode.is_none()
    }
}

pub(super) fn check_rules(
    src: &Source<'_>,
    raw: Option<Spanned<OneOrMany<RawRule>>>,
) -> Result<Vec<Rule>, ConfigError> {
    let Some(raw) = raw else {
        return Ok(Vec::new());
    };
    src.at_most(MAX_RULES, "rules", &raw)?;
    let all = raw.span();
    let rules = raw.into_inner().0.into_iter();
    rules
        .map(|raw| check_rule(src, Spanned::new(all.clone(), raw)))
        .collect()
}

/// Checks a rule. The position of `raw` is the position of the list of all rules, for errors about a rule without
/// a value to point to.
fn check_rule(src: &Source<'_>, raw: Spanned<RawRule>) -> Result<Rule, ConfigError> {
    let all = raw.span();
    let raw = raw.into_inner();
    if raw.is_empty() {
        let conditions = [
            raw.port.as_ref().map(Spanned::span),
            raw.address.as_ref().map(Spanned::span),
            raw.domain.as_ref().map(Spanned::span),
        ];
        let at = conditions.into_iter().flatten().next().unwrap_or(all);
        let at = Spanned::new(at, ());
        let hint = "urgency = 7, strategy = \"…\", size = \"64kB\" or mode = \"fastest\"";
        return Err(src.error(&at, "the rule sets no hint for its connections", hint));
    }
    let strategy = match raw.strategy {
        None => None,
        given => Some(check_strategy(src, given)?),
    };
    let ports = conditions(src, raw.port, "no port is given", "port = 443")?;
    let addresses = conditions(
        src,
        raw.address,
        "no address is given",
        "address = \"192.0.2.0/24\"",
    )?;
    let domains = conditions(
        src,
        raw.domain,
        "no domain is given",
        "domain = \"example.com\"",
    )?;
    Ok(Rule {
        ports: ports.into_iter().map(|ports| ports.0).collect(),
        addresses: addresses.into_iter().map(|prefix| prefix.0).collect(),
        domains: domains.into_iter().map(|domain| domain.0).collect(),
        urgency: raw.urgency.map(|level| level.0),
        strategy,
        size: raw.size,
        mode: raw.mode,
    })
}

/// Returns the values of a condition: none if it is missing, otherwise at least one. An empty list is refused,
/// because it would match every connection.
fn conditions<T>(
    src: &Source<'_>,
    given: Option<Spanned<OneOrMany<T>>>,
    none: &str,
    hint: &str,
) -> Result<Vec<T>, ConfigError> {
    let Some(given) = given else {
        return Ok(Vec::new());
    };
    match given.get_ref().0.len() {
        0 => Err(src.error(&given, none, hint)),
        1..=MAX_CONDITIONS => Ok(given.into_inner().0),
        n => {
            let message = format!("{n} values are given, {MAX_CONDITIONS} are the most");
            Err(src.error(&given, message, "fewer, or a second rule"))
        }
    }
}

/// A port, or a range of ports such as `"6881-6889"`.
struct Ports(RangeInclusive<u16>);

impl<'de> Deserialize<'de> for Ports {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        const EXPECTED: &str = "a port from 1 to 65535, or a range such as \"6881-6889\"";
        struct V;
        impl serde::de::Visitor<'_> for V {
            type Value = RangeInclusive<u16>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(EXPECTED)
            }
            fn visit_i64<E: serde::de::Error>(self, n: i64) -> Result<Self::Value, E> {
                match u16::try_from(n) {
                    Ok(port) if port > 0 => Ok(port..=port),
                    _ => Err(wrong(format_args!("{n} is no port"), EXPECTED)),
                }
            }
            fn visit_str<E: serde::de::Error>(self, s: &str) -> Result<Self::Value, E> {
                let (first, last) = s.split_once('-').unwrap_or((s, s));
                match (first.trim().parse(), last.trim().parse()) {
                    (Ok(first), Ok(last)) if 0 < first && first <= last => Ok(first..=last),
                    _ => Err(wrong(format_args!("{s:?} is no port"), EXPECTED)),
                }
            }
        }
        d.deserialize_any(V).map(Ports)
    }
}

/// A domain name in lower case.
struct Domain(String);

impl<'de> Deserialize<'de> for Domain {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        types::text(d, |s| {
            let name = s.trim_end_matches('.');
            let is_valid =
                is_host_name(name) && !name.starts_with('.') && name.parse::<IpAddr>().is_err();
            match is_valid {
                true => Ok(Domain(name.to_ascii_lowercase())),
                false => {
                    let hint = "a name such as \"example.com\", which stands for all names below \
                                it too";
                    Err((format!("{s:?} is no domain"), hint.to_owned()))
                }
            }
        })
    }
}

/// An urgency from 0 to 7.
struct UrgencyLevel(Urgency);

impl<'de> Deserialize<'de> for UrgencyLevel {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct V;
        impl serde::de::Visitor<'_> for V {
            type Value = Urgency;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("0 (most urgent) to 7 (background)")
            }
            fn visit_i64<E: serde::de::Error>(self, n: i64) -> Result<Urgency, E> {
                let urgency = u8::try_from(n).ok().and_then(Urgency::new);
                let expected = "0 (most urgent) to 7 (background)";
                urgency.ok_or_else(|| wrong(format_args!("{n} is no urgency"), expected))
            }
        }
        d.deserialize_i64(V).map(UrgencyLevel)
    }
}

fn mode<'de, D: Deserializer<'de>>(d: D) -> Result<Option<Mode>, D::Error> {
    let words = Mode::ALL.map(|mode| (mode.name(), mode));
    types::word(d, "mode of packets in the tunnel", &words).map(Some)
}

fn size<'de, D: Deserializer<'de>>(d: D) -> Result<Option<u64>, D::Error> {
    Size::deserialize(d).map(|Size(bytes)| Some(bytes as u64))
}
