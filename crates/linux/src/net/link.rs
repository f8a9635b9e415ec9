//! Access links: their settings and their state.

use std::net::IpAddr;

use ipnet::IpNet;

use super::routes::{Address, DefaultRoute, Interface};

/// Next hop of a link in one address family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NextHop {
    /// The gateway of the interface's default route in the main table.
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
    /// Addresses that the link is to reach; empty if they are not known.
    pub targets: Vec<IpAddr>,
    /// Packets from `sources` leave by this link or not at all. Otherwise the main table routes them while
    /// the link leads nowhere.
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
    /// The interface exists, is up and has a carrier.
    pub running: bool,
    /// MTU of the interface in bytes; 0 if the interface is missing.
    pub mtu: u32,
    /// Addresses of the interface but link-local ones.
    pub addresses: Vec<Address>,
    /// Interface and gateway of IPv4.
    pub v4: Option<Exit>,
    /// Interface and gateway of IPv6.
    pub v6: Option<Exit>,
}

impl LinkState {
    /// Returns whether packets can be sent over the link to one of `targets`; with no targets, to any
    /// address.
    pub fn leads_to(&self, targets: &[IpAddr]) -> bool {
        self.running && (self.leads_by(false, targets) || self.leads_by(true, targets))
    }

    /// Returns whether the link has an address of the family and a route to one of `targets`; with no
    /// targets, any address of the family suffices.
    pub fn leads_by(&self, v6: bool, targets: &[IpAddr]) -> bool {
        let open = self.exit(v6).is_some() || targets.is_empty();
        let mut of_family = targets.iter().filter(|target| target.is_ipv6() == v6);
        self.has_family(v6) && (open || of_family.any(|target| self.is_on_link(*target)))
    }

    /// Returns whether `addr` is in a network of the interface.
    pub fn is_on_link(&self, addr: IpAddr) -> bool {
        // Gateways of IPv6 usually have link-local addresses, which are on every link.
        let link_local = matches!(addr, IpAddr::V6(a) if a.is_unicast_link_local());
        link_local || self.addresses.iter().any(|a| is_beside(a, addr))
    }

    /// Returns whether the interface has an address of the family.
    pub fn has_family(&self, v6: bool) -> bool {
        self.addresses.iter().any(|a| a.addr.is_ipv6() == v6)
    }

    /// Returns interface and gateway of a family.
    pub fn exit(&self, v6: bool) -> Option<Exit> {
        if v6 { self.v6 } else { self.v4 }
    }
}

/// Computes the state of a link from what the kernel knows.
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
                let known = |d: &&DefaultRoute| d.interface == interface.index && d.v6 == v6;
                defaults.iter().find(known)?.gateway
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

/// Puts back the gateway that a link had before, if the gateway is still in a network of the link.
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

/// Returns whether the link lost an address of a family while it still has, or again has, an address of that
/// family. Without any address the loss is not reported yet, since the server cannot be asked over the link.
/// DHCP may remove the old address first, or add the new one first.
///
/// Temporary addresses (RFC 8981) do not count beside a lasting one: the kernel removes them long after new
/// connections stopped using them (section 3.4). If there is no lasting address, the kernel masquerades by
/// the temporary one, which then counts.
pub(super) fn readdressed(known: &mut [Vec<IpAddr>; 2], state: &LinkState) -> bool {
    let mut lost = false;
    for v6 in [false, true] {
        if !state.has_family(v6) {
            continue;
        }
        let known = &mut known[usize::from(v6)];
        let here = |addr: &IpAddr| state.addresses.iter().any(|a| a.addr == *addr);
        let before = known.len();
        known.retain(here);
        lost |= known.len() < before;
        let new = |a: &&Address| a.addr.is_ipv6() == v6 && !a.deprecated;
        let lasts = |a: &Address| !a.secondary;
        let one_lasts = state.addresses.iter().filter(new).any(lasts);
        // The kernel never chooses a secondary address of an IPv4 network by itself.
        let counts = |a: &&Address| lasts(a) || v6 && !one_lasts;
        for address in state.addresses.iter().filter(new).filter(counts) {
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
    // The kernel reports no prefix longer than the address.
    found.map_or(address.addr.into(), |network| network.trunc())
}

/// Returns whether two networks have an address in common.
pub(crate) fn overlap(a: &IpNet, b: &IpNet) -> bool {
    a.contains(b) || b.contains(a)
}

/// Returns whether `addr` is in the network of `address`.
pub(super) fn is_beside(address: &Address, addr: IpAddr) -> bool {
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
    fn up_takes_carrier_an_address_and_a_way() {
        let gateway = NextHop::Gateway("192.0.2.1".parse().unwrap());
        let spec = spec(gateway, NextHop::None);
        let v4 = [address("192.0.2.7", 24)];
        let v6 = [address("2001:db8::7", 64)];
        let up = |spec: &LinkSpec, wan: &[Interface], addresses: &[Address]| {
            observe(spec, wan, addresses, &[]).leads_to(&spec.targets)
        };
        assert!(up(&spec, &wan(true), &v4));
        assert!(!up(&spec, &wan(false), &v4));
        assert!(!up(&spec, &wan(true), &v6));
        assert!(!up(&spec, &[], &v4));
        let no_way = LinkSpec {
            v4: NextHop::Auto,
            ..spec.clone()
        };
        assert!(!up(&no_way, &wan(true), &v4));
        let on_link = LinkSpec {
            targets: vec!["192.0.2.200".parse().unwrap()],
            ..no_way
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

    /// Returns a function that tells look by look whether an address is lost.
    fn telling() -> impl FnMut(&[Address]) -> bool {
        let mut known = [Vec::new(), Vec::new()];
        move |addresses| {
            let state = LinkState {
                addresses: addresses.to_vec(),
                ..LinkState::default()
            };
            readdressed(&mut known, &state)
        }
    }

    /// A removed address counts, whether the new one comes before or after. A privacy address that is
    /// replaced, added or comes back does not.
    #[test]
    fn a_lost_address_is_told_once_there_is_another() {
        let (old, new) = (address("192.0.2.7", 24), address("192.0.2.77", 24));
        let lasting = address("2001:db8::7", 64);
        let mut lost = telling();
        assert!(!lost(&[old, lasting, privacy(1)]));
        assert!(!lost(&[old, lasting, privacy(1), privacy(2)]));
        assert!(!lost(&[old, lasting, privacy(2)]));
        assert!(!lost(&[lasting, privacy(2)]), "there is none to ask from");
        assert!(!lost(&[old, lasting]), "it is back");
        assert!(!lost(&[lasting]));
        assert!(lost(&[new, lasting]));
        assert!(!lost(&[new, lasting]), "told twice");
        assert!(!lost(&[old, new, lasting]));
        assert!(lost(&[old, lasting]));
        let deprecated = Address {
            deprecated: true,
            ..old
        };
        assert!(!lost(&[deprecated, new, lasting]));
        assert!(lost(&[new, lasting]), "it was in use to its end");
    }

    /// If no other address is preferred, everything leaves by the temporary one.
    #[test]
    fn a_temporary_address_counts_where_there_is_no_other() {
        let deprecated = |a: Address| Address {
            deprecated: true,
            ..a
        };
        let lasting = address("2001:db8::7", 64);
        for beside in [None, Some(deprecated(lasting)), Some(lasting)] {
            let mut lost = telling();
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
        let mut lost = telling();
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
