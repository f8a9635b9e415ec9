//! Namespaces, interfaces and addresses of the hosts, computed from the testbed file.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use braid_units::ConfigError;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use crate::error::Error;
use crate::spec::{HostSpec, Name, Role, Segment, SegmentKind, Spec};

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
    /// Name of the host's network namespace, `<testbed>.<host>`. `ip netns` knows it by this name.
    pub namespace: String,
    /// Interfaces: LANs first, then links, in the order of the file.
    pub interfaces: Vec<InterfaceLayout>,
    /// The host in the file.
    pub(crate) spec: HostSpec,
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

/// An address of an interface, IPv4 or IPv6.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Address {
    pub address: IpAddr,
    pub subnet: IpNet,
    pub gateway: Option<IpAddr>,
}

impl Address {
    fn new<A: Into<IpAddr>>(address: A, subnet: impl Into<IpNet>, gateway: Option<A>) -> Address {
        Address {
            address: address.into(),
            subnet: subnet.into(),
            gateway: gateway.map(Into::into),
        }
    }

    /// Returns the address with the prefix length of its network.
    pub fn with_prefix(&self) -> String {
        format!("{}/{}", self.address, self.subnet.prefix_len())
    }
}

impl InterfaceLayout {
    /// Returns the IPv4 and the IPv6 address.
    pub(crate) fn addresses(&self) -> [Address; 2] {
        [
            Address::new(self.address4, self.subnet4, self.gateway4),
            Address::new(self.address6, self.subnet6, self.gateway6),
        ]
    }
}

impl Layout {
    /// Computes the addresses of all interfaces.
    ///
    /// # Errors
    ///
    /// Fails if networks overlap or are too small for their hosts.
    pub fn resolve(spec: &Spec) -> Result<Layout, ConfigError> {
        let segments = spec.segments();
        for (index, segment) in segments.iter().enumerate() {
            let checked = segment.check(&segments[..index]);
            let file = spec.file.display().to_string();
            checked.map_err(|message| ConfigError::at(&file, "", None, message, None))?;
        }
        let hosts = spec.hosts.iter().map(|host| {
            let on = |segment: &Segment<'_>| segment.interface(&host.name, &host.gateway);
            HostLayout {
                name: host.name.to_string(),
                role: host.role,
                namespace: namespace(&spec.name, &host.name),
                interfaces: segments.iter().filter_map(on).collect(),
                spec: host.clone(),
            }
        });
        Ok(Layout {
            name: spec.name.to_string(),
            hosts: hosts.collect(),
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
}

impl HostLayout {
    /// Returns the interfaces on emulated links, in the order of the file.
    pub fn links(&self) -> impl Iterator<Item = &InterfaceLayout> {
        self.of_kind(SegmentKind::Link)
    }

    /// Returns the interfaces on LANs, in the order of the file.
    pub fn lans(&self) -> impl Iterator<Item = &InterfaceLayout> {
        self.of_kind(SegmentKind::Lan)
    }

    fn of_kind(&self, kind: SegmentKind) -> impl Iterator<Item = &InterfaceLayout> {
        self.interfaces.iter().filter(move |i| i.kind == kind)
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
    let rest = namespace.strip_prefix(testbed);
    rest.is_some_and(|rest| rest.starts_with('.'))
}

impl Segment<'_> {
    /// Returns the addresses of a host; `None` if the host is not on the segment, or the networks are too
    /// small.
    fn addresses(&self, host: &str) -> Option<(Ipv4Addr, Ipv6Addr)> {
        let position = self.hosts.iter().position(|h| *h == host)?;
        let address4 = self.subnet4.hosts().nth(position)?;
        // Skips the first address, the subnet-router anycast address (RFC 4291, section 2.6.1).
        let address6 = self.subnet6.hosts().nth(position + 1)?;
        Some((address4, address6))
    }

    fn interface(&self, host: &str, gateways: &[Name]) -> Option<InterfaceLayout> {
        let (address4, address6) = self.addresses(host)?;
        let gateway = gateways.iter().find_map(|gateway| self.addresses(gateway));
        let neighbours = self.hosts.iter().filter(|h| **h != host).filter_map(|h| {
            let (address4, address6) = self.addresses(h)?;
            Some(((*h).to_owned(), address4, address6))
        });
        Some(InterfaceLayout {
            name: self.name.to_string(),
            kind: self.kind,
            address4,
            address6,
            subnet4: self.subnet4,
            subnet6: self.subnet6,
            gateway4: gateway.map(|(address4, _)| address4),
            gateway6: gateway.map(|(_, address6)| address6),
            neighbours: neighbours.collect(),
        })
    }

    /// Checks that the networks have room for all hosts, and that they overlap with none of `earlier` segments.
    fn check(&self, earlier: &[Segment<'_>]) -> Result<(), String> {
        let name = self.name;
        // The last host has the highest address.
        let last = self.hosts.last().and_then(|last| self.addresses(last));
        if last.is_none() {
            let message = format!("the network of `{name}` is too small for its hosts");
            return Err(message);
        }
        let (v4, v6) = (&self.subnet4, &self.subnet6);
        let overlapping = earlier.iter().find(|other| {
            other.subnet4.contains(v4)
                || v4.contains(&other.subnet4)
                || other.subnet6.contains(v6)
                || v6.contains(&other.subnet6)
        });
        match overlapping {
            Some(Segment { name: other, .. }) => Err(format!(
                "the networks of `{other}` and `{name}` overlap; give one of them another `subnet4` or `subnet6`"
            )),
            None => Ok(()),
        }
    }
}
