//! Namespaces, interfaces and addresses of the hosts, computed from the testbed file.

use std::net::{Ipv4Addr, Ipv6Addr};

use braid_units::ConfigError;
use ipnet::{Ipv4Net, Ipv6Net};

use crate::error::Error;
use crate::spec::{Name, Role, Spec, Start};

/// The hosts of a testbed with all their addresses.
#[derive(Debug, Clone)]
pub struct Layout {
    /// Name of the testbed.
    pub name: String,
    /// Hosts, in the order of the file.
    pub hosts: Vec<HostLayout>,
}

/// One host.
#[derive(Debug, Clone)]
pub struct HostLayout {
    /// Name in the file.
    pub name: String,
    /// Role in the file.
    pub role: Role,
    /// The way in which the host's process starts: with the testbed or later.
    pub start: Start,
    /// Name of the host's network namespace, `<testbed>.<host>`. `ip netns` knows it by this name.
    pub namespace: String,
    /// Interfaces: LANs first, then links, in the order of the file.
    pub interfaces: Vec<InterfaceLayout>,
    /// Names of the host's gateways.
    pub gateways: Vec<String>,
}

/// One interface of a host.
#[derive(Debug, Clone)]
pub struct InterfaceLayout {
    /// Name of the interface, the same as that of its segment.
    pub name: String,
    /// The kind of its segment.
    pub kind: SegmentKind,
    /// IPv4 address.
    pub address4: Ipv4Addr,
    /// IPv6 address.
    pub address6: Ipv6Addr,
    /// IPv4 network.
    pub subnet4: Ipv4Net,
    /// IPv6 network.
    pub subnet6: Ipv6Net,
    /// The next hop: the IPv4 address of the host's first gateway on this segment, if there is one.
    pub gateway4: Option<Ipv4Addr>,
    /// IPv6 address of the same gateway.
    pub gateway6: Option<Ipv6Addr>,
    /// The other hosts on the segment, with their addresses.
    pub neighbours: Vec<(String, Ipv4Addr, Ipv6Addr)>,
}

/// Kinds of segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SegmentKind {
    /// A plain LAN, without emulation.
    Lan,
    /// An emulated link.
    Link,
}

/// A LAN or link, with the hosts on it in the order of their addresses.
#[derive(Debug, Clone)]
pub(crate) struct Segment {
    pub name: String,
    pub kind: SegmentKind,
    pub subnet4: Ipv4Net,
    pub subnet6: Ipv6Net,
    /// True if hosts outside the segment get no route to it.
    pub private: bool,
    pub hosts: Vec<String>,
}

impl Layout {
    /// Computes the addresses of all interfaces.
    ///
    /// # Errors
    ///
    /// Fails if networks overlap or are too small for their hosts.
    pub fn resolve(spec: &Spec) -> Result<Layout, ConfigError> {
        let segments = segments(spec)?;
        let hosts = spec
            .hosts
            .iter()
            .map(|host| HostLayout {
                name: host.name.to_string(),
                role: host.role,
                start: host.start,
                namespace: namespace(&spec.name, &host.name),
                interfaces: segments
                    .iter()
                    .filter_map(|s| s.interface(&host.name, &host.gateway))
                    .collect(),
                gateways: host.gateway.iter().map(ToString::to_string).collect(),
            })
            .collect();
        Ok(Layout {
            name: spec.name.to_string(),
            hosts,
        })
    }

    /// Returns the host named `name`.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchHost`].
    pub fn host(&self, name: &str) -> Result<&HostLayout, Error> {
        self.hosts.iter().find(|h| h.name == name).ok_or_else(|| {
            let known = self.hosts.iter().map(|h| h.name.clone()).collect();
            Error::NoSuchHost(name.to_owned(), known)
        })
    }

    /// Returns the first host of a role.
    pub fn first(&self, role: Role) -> Option<&HostLayout> {
        self.hosts.iter().find(|h| h.role == role)
    }
}

impl HostLayout {
    /// Returns the interfaces on emulated links, in the order of the file.
    pub fn links(&self) -> impl Iterator<Item = &InterfaceLayout> {
        self.interfaces
            .iter()
            .filter(|i| i.kind == SegmentKind::Link)
    }

    /// Returns the interfaces on LANs, in the order of the file.
    pub fn lans(&self) -> impl Iterator<Item = &InterfaceLayout> {
        self.interfaces
            .iter()
            .filter(|i| i.kind == SegmentKind::Lan)
    }
}

/// Returns the name of the namespace of `host`. Names of testbeds and hosts have no dots, so the result is unique.
pub(crate) fn namespace(testbed: &str, host: &str) -> String {
    format!("{testbed}.{host}")
}

/// Returns the name of the namespace with the bridge of `lan`.
pub(crate) fn switch_namespace(testbed: &str, lan: &str) -> String {
    format!("{testbed}.{lan}.switch")
}

/// Returns whether a namespace was made for the testbed named `testbed`.
pub(crate) fn belongs_to(namespace: &str, testbed: &str) -> bool {
    namespace
        .strip_prefix(testbed)
        .is_some_and(|rest| rest.starts_with('.'))
}

impl Segment {
    fn address4(&self, host: &str) -> Option<Ipv4Addr> {
        self.subnet4.hosts().nth(self.position(host)?)
    }

    fn address6(&self, host: &str) -> Option<Ipv6Addr> {
        // Skips the first address, the subnet-router anycast address (RFC 4291, section 2.6.1).
        self.subnet6.hosts().nth(self.position(host)? + 1)
    }

    fn position(&self, host: &str) -> Option<usize> {
        self.hosts.iter().position(|h| h == host)
    }

    fn interface(&self, host: &str, gateways: &[Name]) -> Option<InterfaceLayout> {
        let here = |gateway: &&Name| self.hosts.iter().any(|h| **h == ***gateway);
        let gateway = gateways.iter().find(here);
        Some(InterfaceLayout {
            name: self.name.clone(),
            kind: self.kind,
            address4: self.address4(host)?,
            address6: self.address6(host)?,
            subnet4: self.subnet4,
            subnet6: self.subnet6,
            gateway4: gateway.and_then(|g| self.address4(g)),
            gateway6: gateway.and_then(|g| self.address6(g)),
            neighbours: self
                .hosts
                .iter()
                .filter(|h| *h != host)
                .filter_map(|h| Some((h.clone(), self.address4(h)?, self.address6(h)?)))
                .collect(),
        })
    }
}

/// Returns all segments with their networks, LANs first.
pub(crate) fn segments(spec: &Spec) -> Result<Vec<Segment>, ConfigError> {
    let lans = spec.lans.iter().map(|lan| {
        let hosts = lan.hosts.iter().map(ToString::to_string).collect();
        (
            &lan.name,
            SegmentKind::Lan,
            lan.subnet4,
            lan.subnet6,
            lan.private,
            hosts,
        )
    });
    let links = spec.links.iter().map(|link| {
        let hosts = vec![link.from.to_string(), link.to.to_string()];
        (
            &link.name,
            SegmentKind::Link,
            link.subnet4,
            link.subnet6,
            false,
            hosts,
        )
    });
    let mut segments: Vec<Segment> = Vec::new();
    for (index, (name, kind, subnet4, subnet6, private, hosts)) in lans.chain(links).enumerate() {
        let segment = Segment {
            name: name.to_string(),
            kind,
            subnet4: subnet4.unwrap_or_else(|| default4(index)),
            subnet6: subnet6.unwrap_or_else(|| default6(index)),
            private,
            hosts,
        };
        check_segment(spec, &segment, &segments)?;
        segments.push(segment);
    }
    Ok(segments)
}

fn check_segment(spec: &Spec, segment: &Segment, earlier: &[Segment]) -> Result<(), ConfigError> {
    let error =
        |message| ConfigError::at(&spec.file.display().to_string(), "", None, message, None);
    // The last host has the highest address.
    let last = segment.hosts.last().map_or("", String::as_str);
    if segment.address4(last).is_none() || segment.address6(last).is_none() {
        return Err(error(format!(
            "the network of `{}` is too small for its hosts",
            segment.name
        )));
    }
    let overlapping = earlier.iter().find(|other| {
        let (v4, v6) = (&segment.subnet4, &segment.subnet6);
        other.subnet4.contains(v4)
            || v4.contains(&other.subnet4)
            || other.subnet6.contains(v6)
            || v6.contains(&other.subnet6)
    });
    match overlapping {
        Some(other) => Err(error(format!(
            "the networks of `{}` and `{}` overlap; give one of them another `subnet4` or `subnet6`",
            other.name, segment.name
        ))),
        None => Ok(()),
    }
}

/// Returns 198.18.N.0/24 for the segment of this index; N is the index plus 1. The range is for benchmarks (RFC
/// 2544), so no proxy treats it as private.
fn default4(index: usize) -> Ipv4Net {
    let n = (index as u32 + 1) << 8;
    let first = Ipv4Addr::from_bits(Ipv4Addr::new(198, 18, 0, 0).to_bits() + n);
    Ipv4Net::new_assert(first, 24)
}

/// Returns 2001:db8:N::/64 for the segment of this index; N is the index plus 1. The range is for documentation
/// (RFC 3849).
fn default6(index: usize) -> Ipv6Net {
    let n = index as u16 + 1;
    Ipv6Net::new_assert(Ipv6Addr::new(0x2001, 0xdb8, n, 0, 0, 0, 0, 0), 64)
}
