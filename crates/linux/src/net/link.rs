//! Access links: their settings and their state.

use std::net::IpAddr;

use ipnet::IpNet;

use super::routes::{Address, DefaultRoute, Interface};

/// Next hop of a link in one address family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NextHop {
    /// The gateway of the default route that the main table has for the interface.
    Auto,
    /// This gateway.
    Gateway(IpAddr),
    /// The family is not used.
    None,
}

/// The settings of a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkSpec {
    /// Network interface.
    pub interface: String,
    /// IPv4 next hop.
    pub v4: NextHop,
    /// IPv6 next hop.
    pub v6: NextHop,
    /// Packets from these addresses leave by this link.
    pub sources: Vec<IpAddr>,
    /// Addresses that the link has to reach, such as the servers'; empty if they are not known.
    pub targets: Vec<IpAddr>,
    /// True if packets from `sources` leave by this link or not at all. If false, the main table routes them
    /// while the link has no route.
    pub exclusive: bool,
}

impl LinkSpec {
    /// Returns the next hop in a family.
    pub(super) fn next_hop(&self, v6: bool) -> NextHop {
        if v6 { self.v6 } else { self.v4 }
    }
}

/// Interface and gateway of a link in one address family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exit {
    /// Index of the interface.
    pub interface: u32,
    /// The gateway; `None` on a point-to-point link.
    pub gateway: Option<IpAddr>,
}

/// The state of a link.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LinkState {
    /// True if the interface exists, is up and has a carrier.
    pub running: bool,
    /// MTU of the interface in bytes; 0 if the interface is missing.
    pub mtu: u32,
    /// Addresses of the interface in the families that the link uses, except link-local addresses.
    pub addresses: Vec<Address>,
    /// Interface and gateway of the default route of IPv4, if there is one.
    pub v4: Option<Exit>,
    /// Interface and gateway of the default route of IPv6, if there is one.
    pub v6: Option<Exit>,
}

impl LinkState {
    /// Returns whether packets can be sent over the link to at least one of `targets`. If `targets` is empty,
    /// an address on a running link suffices.
    pub fn can_send_to(&self, targets: &[IpAddr]) -> bool {
        self.running && (self.can_send_by(false, targets) || self.can_send_by(true, targets))
    }

    /// Returns whether the link has an address of the family and a route to at least one of `targets`. If
    /// `targets` is empty, an address of the family suffices.
    pub fn can_send_by(&self, v6: bool, targets: &[IpAddr]) -> bool {
        let has_exit = self.exit(v6).is_some() || targets.is_empty();
        let mut of_family = targets.iter().filter(|target| target.is_ipv6() == v6);
        self.has_family(v6) && (has_exit || of_family.any(|target| self.is_on_link(*target)))
    }

    /// Returns whether `addr` is in a network of the interface.
    pub fn is_on_link(&self, addr: IpAddr) -> bool {
        // IPv6 gateways usually have link-local addresses. The link-local network is on every link, but
        // `self.addresses` does not show this: `Netlink::addresses` leaves link-local addresses out.
        let link_local = matches!(addr, IpAddr::V6(a) if a.is_unicast_link_local());
        link_local || self.addresses.iter().any(|a| is_in_network_of(a, addr))
    }

    /// Returns whether the interface has an address of the family.
    pub fn has_family(&self, v6: bool) -> bool {
        self.addresses.iter().any(|a| a.addr.is_ipv6() == v6)
    }

    /// Returns interface and gateway of the default route of a family.
    pub fn exit(&self, v6: bool) -> Option<Exit> {
        if v6 { self.v6 } else { self.v4 }
    }
}

/// Computes the state of a link from the kernel's interfaces, addresses and default routes.
pub(super) fn observe(
    spec: &LinkSpec,
    interfaces: &[Interface],
    addresses: &[Address],
    defaults: &[DefaultRoute],
) -> LinkState {
    let Some(interface) = interfaces.iter().find(|i| i.name == spec.interface) else {
        return LinkState::default();
    };
    let exit = |v6: bool| {
        let gateway = match spec.next_hop(v6) {
            NextHop::None => return None,
            NextHop::Gateway(gateway) => Some(gateway),
            NextHop::Auto => {
                let matches = |d: &&DefaultRoute| d.interface == interface.index && d.v6 == v6;
                defaults.iter().find(matches)?.gateway
            }
        };
        interface.running.then_some(Exit {
            interface: interface.index,
            gateway,
        })
    };
    let own = addresses.iter().filter(|a| {
        a.interface == interface.index && spec.next_hop(a.addr.is_ipv6()) != NextHop::None
    });
    LinkState {
        running: interface.running,
        mtu: interface.mtu,
        addresses: own.copied().collect(),
        v4: exit(false),
        v6: exit(true),
    }
}

/// Remembers the gateway of a link in `gateways`. An interface that was down for a moment has lost its routes.
/// So if the main table no longer has a default route for the link, writes the remembered gateway into `state`,
/// provided that the gateway is in a network of the link.
pub(super) fn remember_gateways(
    spec: &LinkSpec,
    state: &mut LinkState,
    gateways: &mut [Option<IpAddr>; 2],
    interfaces: &[Interface],
) {
    let interface = interfaces.iter().find(|i| i.name == spec.interface);
    for v6 in [false, true] {
        let known = &mut gateways[usize::from(v6)];
        match (state.exit(v6), *known, interface) {
            (Some(exit), _, _) => *known = exit.gateway,
            (None, Some(gateway), Some(interface))
                if state.running
                    && spec.next_hop(v6) == NextHop::Auto
                    && state.has_family(v6)
                    && state.is_on_link(gateway) =>
            {
                let exit = Some(Exit {
                    interface: interface.index,
                    gateway: Some(gateway),
                });
                *(if v6 { &mut state.v6 } else { &mut state.v4 }) = exit;
            }
            _ => {}
        }
    }
}

/// Updates the `known` addresses of a link (IPv4, IPv6). Returns whether a known address is gone while the link
/// has another address of the same family. While the link has no address of the family, the loss is not reported
/// yet: nothing can be sent over the link to learn whether the server still knows its subflows. An address may
/// be lost before or after its successor is added, since DHCP clients do either.
///
/// Temporary addresses (RFC 8981) are ignored if the interface has a permanent address: the kernel removes them
/// long after new connections stopped using them (section 3.4). Without a permanent address, the kernel
/// masquerades packets with a temporary one, so the loss of the temporary address counts.
pub(super) fn lost_address(known: &mut [Vec<IpAddr>; 2], state: &LinkState) -> bool {
    let mut lost = false;
    for v6 in [false, true] {
        if !state.has_family(v6) {
            continue;
        }
        let known = &mut known[usize::from(v6)];
        let is_present = |addr: &IpAddr| state.addresses.iter().any(|a| a.addr == *addr);
        let count_before = known.len();
        known.retain(is_present);
        lost |= known.len() < count_before;
        // A known address stays known when it becomes deprecated: connections use it until it is removed.
        let preferred = |a: &&Address| a.addr.is_ipv6() == v6 && !a.deprecated;
        let is_permanent = |a: &Address| !a.secondary;
        let has_permanent = state.addresses.iter().filter(preferred).any(is_permanent);
        // The kernel never chooses a secondary address of an IPv4 network by itself.
        let counts = |a: &&Address| is_permanent(a) || v6 && !has_permanent;
        for address in state.addresses.iter().filter(preferred).filter(counts) {
            if !known.contains(&address.addr) {
                known.push(address.addr);
            }
        }
    }
    lost
}

/// Returns the network of an address.
pub(crate) fn network(address: &Address) -> IpNet {
    let found = IpNet::new(address.addr, address.prefix_len);
    // `IpNet::new` fails only for a prefix longer than the address, which the kernel never reports.
    found.map_or(address.addr.into(), |network| network.trunc())
}

/// Returns whether two networks have an address in common.
pub(crate) fn overlap(a: &IpNet, b: &IpNet) -> bool {
    // Two networks are either disjoint or one contains the other.
    a.contains(b) || b.contains(a)
}

/// Returns whether `addr` is in the network of `address`.
pub(super) fn is_in_network_of(address: &Address, addr: IpAddr) -> bool {
    network(address).contains(&addr)
}

#[cfg(test)]
mod tests {
    use super::super::routes::Packets;
    use super::*;

    fn spec(v4: NextHop, v6: NextHop) -> LinkSpec {
        LinkSpec {
            interface: "wan".to_owned(),
            v4,
            v6,
            sources: Vec::new(),
            targets: vec!["198.51.100.1".parse().unwrap()],
            exclusive: true,
        }
    }

    const WAN: u32 = 7;

    fn wan(running: bool) -> [Interface; 1] {
        [Interface {
            index: WAN,
            name: "wan".to_owned(),
            packets: Packets::default(),
            running,
            loopback: false,
            mtu: 1_500,
        }]
    }

    fn address(addr: &str, prefix_len: u8) -> Address {
        Address {
            interface: WAN,
            addr: addr.parse().unwrap(),
            prefix_len,
            deprecated: false,
            secondary: false,
        }
    }

    #[test]
    fn the_gateway_is_the_main_tables_unless_given() {
        let defaults = [DefaultRoute {
            interface: WAN,
            gateway: Some("192.0.2.1".parse().unwrap()),
            v6: false,
            metric: 0,
        }];
        let addresses = [address("192.0.2.7", 24)];
        let auto = observe(
            &spec(NextHop::Auto, NextHop::Auto),
            &wan(true),
            &addresses,
            &defaults,
        );
        assert_eq!(auto.v4.unwrap().gateway, defaults[0].gateway);
        assert_eq!(auto.v6, None);
        let given = NextHop::Gateway("192.0.2.9".parse().unwrap());
        let fixed = observe(
            &spec(given, NextHop::None),
            &wan(true),
            &addresses,
            &defaults,
        );
        assert_eq!(
            fixed.v4.unwrap().gateway,
            Some("192.0.2.9".parse().unwrap())
        );
    }

    #[test]
    fn up_needs_a_carrier_an_address_and_a_route() {
        let gateway = NextHop::Gateway("192.0.2.1".parse().unwrap());
        let spec = spec(gateway, NextHop::None);
        let v4 = [address("192.0.2.7", 24)];
        let v6 = [address("2001:db8::7", 64)];
        let up = |spec: &LinkSpec, wan: &[Interface], addresses: &[Address]| {
            observe(spec, wan, addresses, &[]).can_send_to(&spec.targets)
        };
        assert!(up(&spec, &wan(true), &v4));
        assert!(!up(&spec, &wan(false), &v4));
        assert!(!up(&spec, &wan(true), &v6));
        assert!(!up(&spec, &[], &v4));
        let no_route = LinkSpec {
            v4: NextHop::Auto,
            ..spec.clone()
        };
        assert!(!up(&no_route, &wan(true), &v4));
        let on_link = LinkSpec {
            targets: vec!["192.0.2.200".parse().unwrap()],
            ..no_route
        };
        assert!(up(&on_link, &wan(true), &v4));
    }

    #[test]
    fn a_gateway_is_remembered_while_its_network_is_there() {
        let spec = spec(NextHop::Auto, NextHop::None);
        let gateway = "192.0.2.1".parse().unwrap();
        let mut known = [Some(gateway), None];
        for (addr, found) in [("192.0.2.7", Some(gateway)), ("203.0.113.7", None)] {
            let mut state = observe(&spec, &wan(true), &[address(addr, 24)], &[]);
            remember_gateways(&spec, &mut state, &mut known, &wan(true));
            assert_eq!(state.v4.and_then(|exit| exit.gateway), found);
        }
    }

    fn privacy(n: u16) -> Address {
        Address {
            secondary: true,
            ..address(&format!("2001:db8::abcd:{n}"), 64)
        }
    }

    /// Returns a function that takes the addresses of a link at successive moments, and returns whether one was
    /// lost since the previous call.
    fn loss_detector() -> impl FnMut(&[Address]) -> bool {
        let mut known = [Vec::new(), Vec::new()];
        move |addresses| {
            let state = LinkState {
                addresses: addresses.to_vec(),
                ..LinkState::default()
            };
            lost_address(&mut known, &state)
        }
    }

    /// The removal of an address counts, whether the new address is added before or after it. A change of
    /// temporary addresses does not count beside the permanent `lasting`.
    #[test]
    fn a_lost_address_is_reported_once_there_is_another() {
        let (old, new) = (address("192.0.2.7", 24), address("192.0.2.77", 24));
        let lasting = address("2001:db8::7", 64);
        let mut lost = loss_detector();
        assert!(!lost(&[old, lasting, privacy(1)]));
        assert!(!lost(&[old, lasting, privacy(1), privacy(2)]));
        assert!(!lost(&[old, lasting, privacy(2)]));
        assert!(!lost(&[lasting, privacy(2)]), "no IPv4 address is left");
        assert!(!lost(&[old, lasting]), "the same address is back");
        assert!(!lost(&[lasting]));
        assert!(lost(&[new, lasting]));
        assert!(!lost(&[new, lasting]), "reported twice");
        assert!(!lost(&[old, new, lasting]));
        assert!(lost(&[old, lasting]));
        let deprecated = Address {
            deprecated: true,
            ..old
        };
        assert!(!lost(&[deprecated, new, lasting]));
        assert!(lost(&[new, lasting]), "known although deprecated");
    }

    /// If no permanent address is preferred, the kernel uses the temporary one.
    #[test]
    fn a_temporary_address_counts_where_there_is_no_other() {
        let deprecated = |a: Address| Address {
            deprecated: true,
            ..a
        };
        let lasting = address("2001:db8::7", 64);
        for beside in [None, Some(deprecated(lasting)), Some(lasting)] {
            let mut lost = loss_detector();
            let with = |of: &[Address]| [of, beside.as_slice()].concat();
            assert!(!lost(&with(&[privacy(1)])));
            assert!(!lost(&with(&[deprecated(privacy(1)), privacy(2)])));
            let counts = beside != Some(lasting);
            assert_eq!(lost(&with(&[privacy(2)])), counts, "beside {beside:?}");
        }
        let further = Address {
            secondary: true,
            ..address("192.0.2.8", 24)
        };
        let mut lost = loss_detector();
        assert!(!lost(&[deprecated(address("192.0.2.7", 24)), further]));
        assert!(!lost(&[deprecated(address("192.0.2.7", 24))]));
    }

    #[test]
    fn networks() {
        let net = |addr: &str, len| network(&address(addr, len)).to_string();
        assert_eq!(net("192.0.2.77", 24), "192.0.2.0/24");
        assert_eq!(net("192.0.2.77", 32), "192.0.2.77/32");
        assert_eq!(net("192.0.2.77", 0), "0.0.0.0/0");
        assert_eq!(net("2001:db8::77", 64), "2001:db8::/64");
    }

    #[test]
    fn networks_overlap_where_one_contains_the_other() {
        let net = |text: &str| text.parse::<IpNet>().unwrap();
        let own = net("10.215.77.0/24");
        assert!(overlap(&own, &net("10.215.77.0/24")));
        assert!(overlap(&own, &net("10.0.0.0/8")));
        assert!(overlap(&own, &net("10.215.77.128/25")));
        assert!(!overlap(&own, &net("10.215.78.0/24")));
        assert!(!overlap(&own, &net("fd00::/8")));
        assert_eq!(network(&address("10.215.77.9", 24)), own);
    }
}
