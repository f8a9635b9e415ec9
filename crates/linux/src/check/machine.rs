//! The current state of this machine's network: interfaces, addresses and routes.

use std::io;
use std::net::IpAddr;

use braid_proxy::config::{Gateway, LinkConfig};
use ipnet::IpNet;
use netlink_packet_route::route::{RouteAttribute, RouteMessage, RouteType};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use crate::net::link::network;
use crate::net::links::has_ipv6;
use crate::net::netlink::Netlink;
use crate::net::routes::{Address, DefaultRoute, Interface, MAIN_TABLE, Routes, ip_of, table_of};

/// The state of the network at one moment.
#[derive(Debug, Default)]
pub(super) struct Machine {
    pub interfaces: Vec<Interface>,
    /// The addresses of all interfaces, except loopback and link-local addresses.
    pub addresses: Vec<Address>,
    /// Default routes of the main table, the preferred one first.
    pub defaults: Vec<DefaultRoute>,
    /// The networks to which the main table has a route without a gateway, each with the index of the interface.
    pub neighbour_networks: Vec<(u32, IpNet)>,
    pub all_routes: Routes,
    /// True if this network namespace has IPv6.
    pub v6: bool,
}

impl Machine {
    /// Reads the state of the network from the kernel.
    ///
    /// # Errors
    /// Fails if netlink does.
    pub fn read() -> io::Result<Machine> {
        let mut netlink = Netlink::open()?;
        let all_routes = netlink.routes()?;
        Ok(Machine {
            interfaces: netlink.interfaces()?,
            addresses: netlink.addresses()?,
            defaults: all_routes.defaults(),
            all_routes,
            neighbour_networks: neighbour_networks(&mut netlink)?,
            v6: has_ipv6(),
        })
    }

    pub fn interface(&self, name: &str) -> Option<&Interface> {
        self.interfaces.iter().find(|i| i.name == name)
    }

    pub fn name_of(&self, index: u32) -> &str {
        let found = self.interfaces.iter().find(|i| i.index == index);
        found.map_or("an interface", |i| i.name.as_str())
    }

    /// Returns the addresses of an interface.
    pub fn addresses_of(&self, index: u32) -> impl Iterator<Item = &Address> {
        self.addresses.iter().filter(move |a| a.interface == index)
    }

    /// Returns the addresses of this machine as a list for people; empty if there are none.
    pub fn own_addresses(&self) -> String {
        let addresses = self.addresses.iter().map(|a| a.addr.to_string());
        addresses.collect::<Vec<_>>().join(", ")
    }

    /// Returns the interface that has this address.
    pub fn interface_with(&self, addr: IpAddr) -> Option<&Interface> {
        let found = self.addresses.iter().find(|a| a.addr == addr)?;
        self.interfaces.iter().find(|i| i.index == found.interface)
    }

    /// Returns whether `gateway` is in a network that the interface reaches without a gateway.
    pub fn has_neighbour(&self, index: u32, gateway: IpAddr) -> bool {
        // IPv6 gateways usually have link-local addresses, whose network is on every link.
        let link_local = matches!(gateway, IpAddr::V6(a) if a.is_unicast_link_local());
        link_local
            || self
                .addresses_of(index)
                .any(|a| network(a).contains(&gateway))
            || self
                .neighbour_networks
                .iter()
                .any(|(via, net)| *via == index && net.contains(&gateway))
    }

    /// Returns the route of an address family's packets over a link.
    pub fn route(&self, link: &LinkConfig, v6: bool) -> LinkRoute {
        let is_used = if v6 { link.v6 && self.v6 } else { link.v4 };
        let Some(interface) = self.interface(&link.interface).filter(|_| is_used) else {
            return LinkRoute::NotUsed;
        };
        let fixed = match link.gateway {
            Gateway::Auto => None,
            Gateway::Fixed { v4, v6: other } => {
                let gateway = if v6 {
                    other.map(IpAddr::V6)
                } else {
                    v4.map(IpAddr::V4)
                };
                match gateway {
                    Some(gateway) => Some(gateway),
                    None => return LinkRoute::NotUsed,
                }
            }
        };
        if !self
            .addresses_of(interface.index)
            .any(|a| a.addr.is_ipv6() == v6)
        {
            return LinkRoute::NoAddress;
        }
        if let Some(gateway) = fixed {
            return match self.has_neighbour(interface.index, gateway) {
                true => LinkRoute::Out(Some(gateway)),
                false => LinkRoute::GatewayOffLink(gateway),
            };
        }
        let mut defaults = self.defaults.iter();
        let found = defaults.find(|d| d.interface == interface.index && d.v6 == v6);
        found.map_or(LinkRoute::NoGateway, |d| LinkRoute::Out(d.gateway))
    }
}

/// The route of a family's packets over a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LinkRoute {
    /// The family is unused: the configuration excludes it, the interface is missing, or the kernel has no
    /// IPv6.
    NotUsed,
    /// The interface has no address of the family.
    NoAddress,
    /// The routing table has no default route by the interface.
    NoGateway,
    /// The configured gateway is in no network of the link.
    GatewayOffLink(IpAddr),
    /// Packets can be sent, by this gateway or, on a point-to-point link, without one.
    Out(Option<IpAddr>),
}

fn neighbour_networks(netlink: &mut Netlink) -> io::Result<Vec<(u32, IpNet)>> {
    let mut found = Vec::new();
    for family in [AddressFamily::Inet, AddressFamily::Inet6] {
        let mut get = RouteMessage::default();
        get.header.address_family = family;
        for message in netlink.dump(RouteNetlinkMessage::GetRoute(get))? {
            if let RouteNetlinkMessage::NewRoute(route) = message {
                found.extend(neighbour_network(&route));
            }
        }
    }
    Ok(found)
}

/// Returns the network of a route of the main table that has no gateway: the network is on the link itself.
fn neighbour_network(route: &RouteMessage) -> Option<(u32, IpNet)> {
    let length = route.header.destination_prefix_length;
    if table_of(route) != MAIN_TABLE || route.header.kind != RouteType::Unicast || length == 0 {
        return None;
    }
    let (mut to, mut interface) = (None, None);
    for attribute in &route.attributes {
        match attribute {
            RouteAttribute::Destination(address) => to = ip_of(address),
            RouteAttribute::Oif(index) => interface = Some(*index),
            RouteAttribute::Gateway(_) => return None,
            _ => {}
        }
    }
    let net = IpNet::new(to?, length).ok()?;
    Some((interface?, net.trunc()))
}
