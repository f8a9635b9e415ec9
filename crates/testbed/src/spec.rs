//! The testbed file: its keys, and the checks of their values.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::ops::{Deref, Range};
use std::path::{Path, PathBuf};
use std::time::Duration;

use braid_links::LinkModel;
use braid_units::ConfigError;
use braid_units::value::{self, ValueError};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use serde::Deserialize;
use serde::de::{Deserializer, Error as _, IntoDeserializer};
use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue};

use crate::change::ScheduledChange;
use crate::error::Error;

/// A testbed file, read and checked.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    /// Name of the testbed: prefix of its namespaces and name of its state directory.
    pub name: Name,
    /// Congestion control on all routes of all hosts (`congctl`). With it, kernel TCP does not depend on the
    /// machine's default.
    #[serde(default = "default_congestion")]
    pub congestion: String,
    /// Seed of the links' random streams.
    #[serde(default)]
    pub seed: u64,
    /// Hosts.
    #[serde(default, rename = "host")]
    pub hosts: Vec<HostSpec>,
    /// Segments without emulation.
    #[serde(default, rename = "lan")]
    pub lans: Vec<LanSpec>,
    /// Emulated links.
    #[serde(default, rename = "link")]
    pub links: Vec<LinkSpec>,
    /// Path of the file. Relative paths in the file start in the file's directory.
    #[serde(skip)]
    pub file: PathBuf,
}

/// A host: one network namespace, and perhaps one process in it.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostSpec {
    /// Name of the host.
    pub name: Name,
    /// The role.
    pub role: Role,
    /// The way in which the host's process starts: with the testbed or later.
    #[serde(default)]
    pub start: Start,
    /// Configuration file of a box or server; made from the layout if absent.
    pub config: Option<PathBuf>,
    /// Directory that a content host serves; `www` in the state directory if absent.
    pub directory: Option<PathBuf>,
    /// Gateways, one neighbour or a list of neighbours. They get all packets to segments that this host is not on.
    /// If this host shares several segments with its gateways, the default routes have metrics 100, 101, … in the
    /// order of the segments. A host without a gateway has a route to every segment, the one over the fewest
    /// hosts.
    #[serde(default)]
    pub gateway: Vec<Name>,
    /// True to configure the kernel's MPTCP, for comparisons: endpoints on the links, limits, and the routing
    /// tables of `source_routing`.
    #[serde(default)]
    pub mptcp: bool,
    /// True to give each link a routing table, which the source address selects. A socket that is bound to the
    /// address of a link then uses this link. `mptcp` includes this setting.
    #[serde(default)]
    pub source_routing: bool,
}

/// The role of a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Runs ordinary programs; forwards nothing.
    User,
    /// Runs `braid box`; forwards.
    Box,
    /// Forwards only.
    Router,
    /// Runs `braid server`; forwards.
    Server,
    /// Runs nginx on port 80.
    Content,
}

impl Role {
    /// Returns the role as written in the file.
    pub fn name(self) -> &'static str {
        match self {
            Role::User => "user",
            Role::Box => "box",
            Role::Router => "router",
            Role::Server => "server",
            Role::Content => "content",
        }
    }

    /// Returns whether a host of this role forwards packets.
    pub fn forwards(self) -> bool {
        matches!(self, Role::Box | Role::Router | Role::Server)
    }
}

/// The way in which the process of a host starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Start {
    /// With the testbed.
    #[default]
    Auto,
    /// By `Testbed::start` only.
    Manual,
}

/// A segment without emulation: a veth pair between two hosts, a bridge between more.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LanSpec {
    /// Name of the segment and of the hosts' interfaces on it.
    pub name: Name,
    /// Hosts on the segment, in the order of their addresses.
    pub hosts: Vec<Name>,
    /// IPv4 network, such as `192.168.1.0/24`; 198.18.N.0/24 if absent (RFC 2544).
    #[serde(default, deserialize_with = "subnet4")]
    pub subnet4: Option<Ipv4Net>,
    /// IPv6 network, such as `fd00:1::/64`; 2001:db8:N::/64 if absent (RFC 3849).
    #[serde(default, deserialize_with = "subnet6")]
    pub subnet6: Option<Ipv6Net>,
    /// True if hosts outside the segment get no route to it, as if it were behind NAT.
    #[serde(default)]
    pub private: bool,
}

/// Kinds of segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SegmentKind {
    /// A plain LAN, without emulation.
    Lan,
    /// An emulated link.
    Link,
}

/// A LAN or link of the file.
pub(crate) struct Segment<'a> {
    pub name: &'a Name,
    pub kind: SegmentKind,
    /// Hosts on the segment, in the order of their addresses.
    pub hosts: Vec<&'a str>,
    pub subnet4: Ipv4Net,
    pub subnet6: Ipv6Net,
    /// True if hosts outside the segment get no route to it.
    pub private: bool,
}

/// An emulated link between two hosts. The settings of the link apply to both directions. Settings in `forward`
/// (`from` to `to`) and in `reverse` take precedence in their direction.
#[derive(Debug, Clone, Deserialize)]
pub struct LinkSpec {
    /// Name of the link and of the interfaces at its ends.
    pub name: Name,
    /// The host at one end, which gets the first address of the networks.
    pub from: Name,
    /// The host at the other end.
    pub to: Name,
    /// IPv4 network; defaults as for a LAN.
    #[serde(default, deserialize_with = "subnet4")]
    pub subnet4: Option<Ipv4Net>,
    /// IPv6 network; defaults as for a LAN.
    #[serde(default, deserialize_with = "subnet6")]
    pub subnet6: Option<Ipv6Net>,
    /// Settings of both directions. In the file, the keys of these settings are in the table of the link, beside
    /// the link's other keys.
    #[serde(skip)]
    pub model: LinkModel,
    /// MTU of the interfaces, bytes.
    #[serde(default = "default_mtu")]
    pub mtu: u16,
    /// Settings for the direction from `from` to `to`. They take precedence over `model`.
    #[serde(default)]
    pub forward: LinkModel,
    /// Settings for the direction from `to` to `from`. They take precedence over `model`.
    #[serde(default)]
    pub reverse: LinkModel,
    /// Changes over time, in order, as written.
    #[serde(default)]
    schedule: Vec<Spanned<String>>,
    /// The changes that `schedule` describes.
    #[serde(skip)]
    pub changes: Vec<ScheduledChange>,
    /// Seed of the link's random streams; the testbed's seed if absent.
    pub seed: Option<u64>,
}

impl LinkSpec {
    /// The keys in a link's table that are not settings of the link's directions.
    const KEYS: &[&str] = &[
        "name", "from", "to", "subnet4", "subnet6", "mtu", "forward", "reverse", "schedule", "seed",
    ];

    /// Returns the settings at the start, forward and reverse.
    pub(crate) fn models(&self) -> [LinkModel; 2] {
        [&self.forward, &self.reverse].map(|own| own.or(&self.model))
    }
}

fn subnet4<'de, D: Deserializer<'de>>(d: D) -> Result<Option<Ipv4Net>, D::Error> {
    let expected = "one of /8 to /30 such as \"192.168.1.0/24\"";
    subnet(d, "IPv4 network for hosts", expected, |net| match net {
        // A /30 has just two addresses for hosts.
        IpNet::V4(net) if (8..=30).contains(&net.prefix_len()) => Some(net),
        _ => None,
    })
}

fn subnet6<'de, D: Deserializer<'de>>(d: D) -> Result<Option<Ipv6Net>, D::Error> {
    let expected = "one of /16 to /120 such as \"fd00:1::/64\"";
    subnet(d, "IPv6 network for hosts", expected, |net| match net {
        IpNet::V6(net) if (16..=120).contains(&net.prefix_len()) => Some(net),
        _ => None,
    })
}

fn subnet<'de, D: Deserializer<'de>, N>(
    d: D,
    kind: &str,
    expected: &str,
    accept: impl Fn(IpNet) -> Option<N>,
) -> Result<Option<N>, D::Error> {
    let text = String::deserialize(d)?;
    let net = accept(value::prefix(&text).map_err(D::Error::custom)?);
    let wrong = || D::Error::custom(ValueError::is_no(&text, kind, expected));
    net.ok_or_else(wrong).map(Some)
}

/// Returns 198.18.N.0/24 for the N-th segment. The range is for benchmarks (RFC 2544), so it overlaps no
/// addresses of the Internet. A server refuses it as a destination unless its configuration allows it.
fn default_subnet4(n: u16) -> Ipv4Net {
    let first = Ipv4Addr::from_bits(Ipv4Addr::new(198, 18, 0, 0).to_bits() + (u32::from(n) << 8));
    Ipv4Net::new_assert(first, 24)
}

/// Returns 2001:db8:N::/64 for the N-th segment. The range is for documentation (RFC 3849).
fn default_subnet6(n: u16) -> Ipv6Net {
    Ipv6Net::new_assert(Ipv6Addr::new(0x2001, 0xdb8, n, 0, 0, 0, 0, 0), 64)
}

fn default_congestion() -> String {
    "cubic".to_owned()
}

fn default_mtu() -> u16 {
    1500
}

/// A name in the file, with its position for error messages.
#[derive(Debug, Clone, Deserialize)]
#[serde(transparent)]
pub struct Name(Spanned<String>);

impl Name {
    /// Returns the name's position in the file, in bytes.
    pub(crate) fn span(&self) -> Range<usize> {
        self.0.span()
    }
}

impl Deref for Name {
    type Target = str;
    fn deref(&self) -> &str {
        self.0.get_ref()
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self)
    }
}

impl Spec {
    /// Reads and checks the file at `path`.
    ///
    /// # Errors
    ///
    /// [`Error::Spec`] if the file cannot be read or has a mistake. For a mistake, the error has the position of
    /// the first one.
    pub fn read(path: &Path) -> Result<Spec, Error> {
        let text = std::fs::read_to_string(path).map_err(|e| ConfigError::unreadable(path, &e))?;
        Ok(Spec::parse(&text, path)?)
    }

    /// Reads and checks `text`, the contents of the file `origin`.
    ///
    /// # Errors
    ///
    /// The position of the first mistake and what to write instead.
    pub fn parse(text: &str, origin: &Path) -> Result<Spec, ConfigError> {
        let source = Source { text, origin };
        let mistake = |e| source.toml_error(&e);
        let mut table = DeTable::parse(text).map_err(mistake)?;
        let models = take_models(&source, table.get_mut())?;
        list_gateways(table.get_mut());
        let mut spec = Spec::deserialize(table.into_deserializer()).map_err(mistake)?;
        spec.file = origin.to_owned();
        spec.check(&source)?;
        let directory = spec.directory().to_owned();
        for (link, model) in spec.links.iter_mut().zip(models) {
            link.model = model;
            load_link(&source, link, &directory)?;
        }
        Ok(spec)
    }

    /// Returns the directory in which relative paths in the file start.
    pub(crate) fn directory(&self) -> &Path {
        self.file.parent().unwrap_or(Path::new(""))
    }

    /// Returns all segments: LANs first, then links.
    pub(crate) fn segments(&self) -> Vec<Segment<'_>> {
        let lans = self.lans.iter().map(|lan| {
            let hosts: Vec<&str> = lan.hosts.iter().map(|host| &**host).collect();
            let networks = (lan.subnet4, lan.subnet6);
            (&lan.name, SegmentKind::Lan, hosts, networks, lan.private)
        });
        let links = self.links.iter().map(|link| {
            let hosts = vec![&*link.from, &*link.to];
            let networks = (link.subnet4, link.subnet6);
            (&link.name, SegmentKind::Link, hosts, networks, false)
        });
        let segments = (1..).zip(lans.chain(links));
        let segments = segments.map(|(n, (name, kind, hosts, networks, private))| Segment {
            name,
            kind,
            hosts,
            subnet4: networks.0.unwrap_or_else(|| default_subnet4(n)),
            subnet6: networks.1.unwrap_or_else(|| default_subnet6(n)),
            private,
        });
        segments.collect()
    }

    fn check(&self, source: &Source<'_>) -> Result<(), ConfigError> {
        // 32 is a guess that keeps names of namespaces and paths of sockets short.
        let is_short = |name: &Name| check_name(source, name, 32);
        is_short(&self.name)?;
        let hosts = self.hosts.iter().map(|host| &host.name);
        let hosts = check_names(source, hosts, "host", is_short)?;
        // The kernel's limit for interface names (IFNAMSIZ - 1).
        let is_interface = |name: &Name| check_name(source, name, 15);
        let segments = self.segments();
        let names = segments.iter().map(|segment| segment.name);
        check_names(source, names, "lan or link", is_interface)?;
        let is_known = |name: &Name| {
            if hosts.contains(&&**name) {
                return Ok(());
            }
            let hosts = hosts.join(", ");
            let message = format!("there is no host `{name}`; the hosts are: {hosts}");
            Err(source.error(name.span(), message))
        };
        for lan in &self.lans {
            if lan.hosts.len() < 2 {
                let message = format!("lan `{}` needs at least two hosts", lan.name);
                return Err(source.error(lan.name.span(), message));
            }
            check_names(source, &lan.hosts, "host of this lan", is_known)?;
        }
        for link in &self.links {
            is_known(&link.from)?;
            is_known(&link.to)?;
            if *link.from == *link.to {
                let name = &link.name;
                let message = format!(
                    "link `{name}` has the same host at both ends; name two different hosts"
                );
                return Err(source.error(link.to.span(), message));
            }
        }
        for host in &self.hosts {
            let segments = segments.iter().filter(|s| s.hosts.contains(&&*host.name));
            let near: Vec<&str> = segments.flat_map(|s| s.hosts.iter().copied()).collect();
            for gateway in &host.gateway {
                is_known(gateway)?;
                if !near.contains(&&**gateway) || **gateway == *host.name {
                    let name = &host.name;
                    let message = format!(
                        "`{gateway}` is no neighbour of `{name}`; name a host that shares a lan or \
                         link with it"
                    );
                    return Err(source.error(gateway.span(), message));
                }
            }
        }
        Ok(())
    }
}

/// The text being checked, for error messages.
struct Source<'a> {
    text: &'a str,
    origin: &'a Path,
}

impl Source<'_> {
    fn toml_error(&self, error: &toml::de::Error) -> ConfigError {
        self.error(error.span().unwrap_or(0..0), error.message().to_owned())
    }

    fn error(&self, span: Range<usize>, message: String) -> ConfigError {
        let file = self.origin.display().to_string();
        ConfigError::at(&file, self.text, Some(span), message, None)
    }
}

/// Returns the tables under the key `array`, with their positions.
fn tables<'t, 'i>(
    file: &'t mut DeTable<'i>,
    array: &str,
) -> impl Iterator<Item = (Range<usize>, &'t mut DeTable<'i>)> {
    let values: &mut [_] = match file.get_mut(array).map(Spanned::get_mut) {
        Some(DeValue::Array(values)) => values,
        _ => &mut [],
    };
    values.iter_mut().filter_map(|value| {
        let span = value.span();
        match value.get_mut() {
            DeValue::Table(table) => Some((span, table)),
            _ => None,
        }
    })
}

/// Removes the settings of the links from the tables that they share with other keys. Serde's `flatten` would
/// lose the position of a mistake.
fn take_models(source: &Source<'_>, file: &mut DeTable<'_>) -> Result<Vec<LinkModel>, ConfigError> {
    let take = |(span, keys): (Range<usize>, &mut DeTable<'_>)| {
        let (settings, own): (DeTable<'_>, _) = std::mem::take(keys)
            .into_iter()
            .partition(|(key, _)| LinkModel::KEYS.contains(&&**key.get_ref()));
        *keys = own;
        let is_known = |key: &str| LinkSpec::KEYS.contains(&key);
        if let Some(unknown) = keys.keys().find(|key| !is_known(key.get_ref())) {
            let all = [LinkSpec::KEYS, LinkModel::KEYS].concat().join(", ");
            let message = format!("`{}` is no key of a link; write {all}", unknown.get_ref());
            return Err(source.error(unknown.span(), message));
        }
        let model = LinkModel::deserialize(Spanned::new(span, settings).into_deserializer());
        model.map_err(|e| source.toml_error(&e))
    };
    tables(file, "link").map(take).collect()
}

/// Turns a single gateway into a list. An untagged enum would lose the position of a mistake.
fn list_gateways(file: &mut DeTable<'_>) {
    let gateways = tables(file, "host").filter_map(|(_, keys)| keys.get_mut("gateway"));
    for gateway in gateways.filter(|gateway| gateway.get_ref().is_str()) {
        let list = DeArray::from_iter([gateway.clone()]);
        *gateway.get_mut() = DeValue::Array(list);
    }
}

/// Reads the traces of a link and its schedule.
fn load_link(
    source: &Source<'_>,
    link: &mut LinkSpec,
    directory: &Path,
) -> Result<(), ConfigError> {
    // A model has no position, so errors take the position of the trace's path, which is searched for behind the
    // link's name.
    let after = link.name.span().end;
    for model in [&mut link.model, &mut link.forward, &mut link.reverse] {
        let written = model.trace.as_ref().map(|trace| trace.path.clone());
        model.load(directory).map_err(|message| {
            let path = written.unwrap_or_default();
            let at = source.text[after..].find(&*path.to_string_lossy());
            let at = after + at.unwrap_or_default();
            source.error(at..at, message)
        })?;
    }
    let mut last = Duration::ZERO;
    for entry in &link.schedule {
        let wrong = |message| source.error(entry.span(), message);
        let mut change: ScheduledChange = entry.get_ref().parse().map_err(wrong)?;
        if change.at < last {
            let last = last.as_secs_f64();
            let message = format!(
                "this change is before the one above it, at {last}s; write them in order of time"
            );
            return Err(wrong(message));
        }
        last = change.at;
        change.change.model.load(directory).map_err(wrong)?;
        link.changes.push(change);
    }
    Ok(())
}

fn check_name(source: &Source<'_>, name: &Name, max_len: usize) -> Result<(), ConfigError> {
    let is_valid = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if name.starts_with(|c: char| c.is_ascii_alphabetic())
        && name.chars().all(is_valid)
        && name.len() <= max_len
        && **name != *"lo"
    {
        return Ok(());
    }
    let message = format!(
        "`{name}` cannot be a name here; write 1 to {max_len} letters, digits, `-` or `_`, \
         starting with a letter (and not `lo`)"
    );
    Err(source.error(name.span(), message))
}

/// Checks each of `names` by `check`, and that no two of them are the same. `what` is what they name. Returns the
/// names.
fn check_names<'a>(
    source: &Source<'_>,
    names: impl IntoIterator<Item = &'a Name>,
    what: &str,
    check: impl Fn(&Name) -> Result<(), ConfigError>,
) -> Result<Vec<&'a str>, ConfigError> {
    let mut taken: Vec<&str> = Vec::new();
    for name in names {
        check(name)?;
        if taken.contains(&&**name) {
            let message =
                format!("there is another {what} named `{name}`; choose a different name");
            return Err(source.error(name.span(), message));
        }
        taken.push(name);
    }
    Ok(taken)
}
