//! The short way of packets between TUN device and links: whether an instance may have it, and what it is
//! at present.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixListener};

use ipnet::IpNet;

use super::link::{LinkSpec, LinkState};
use super::routes::Address;
use super::sysctl::Sysctl;
use super::{Result, SystemError};
use crate::nft::{Hop, ShortcutRules, Way};

/// Ports of the engine's ends: below those that the kernel takes for connections of its own.
const PORTS: RangeInclusive<u16> = 10_000..=32_767;
const LOCAL_PORTS: &str = "net/ipv4/ip_local_port_range";
/// An abstract socket, of which there can be one in a network namespace.
const CLAIM: &[u8] = b"braid-shortcut";

/// The short way of one instance.
#[derive(Debug)]
pub struct Shortcut {
    /// Held as long as the rules are in use.
    _claim: UnixListener,
    tun: String,
    servers: Vec<SocketAddr>,
    /// What the engine takes each link's MTU for, in bytes.
    mtus: Vec<u16>,
    in_force: Option<ShortcutRules>,
}

impl Shortcut {
    /// Claims the short way between `tun` and links with these MTUs (bytes), for packets to and from
    /// `servers`.
    ///
    /// # Errors
    /// Where another instance has it, or its ports may be those of others.
    pub fn claim(tun: &str, servers: &[SocketAddr], mtus: Vec<u16>) -> Result<Shortcut> {
        if let Some(range) = Sysctl::current(LOCAL_PORTS)
            && !leaves_alone(&range.value, &PORTS)
        {
            let doing = format!("have ports {} to {} alone", PORTS.start(), PORTS.end());
            return Err(SystemError::other(
                doing,
                format!("{LOCAL_PORTS} is {:?}", range.value),
            ));
        }
        Ok(Shortcut {
            _claim: claim().map_err(SystemError::doing("be the only one that has it"))?,
            tun: tun.to_owned(),
            servers: servers.to_vec(),
            mtus,
            in_force: None,
        })
    }

    /// The ports that the engine has to take.
    pub fn ports() -> RangeInclusive<u16> {
        PORTS
    }

    /// Brings the rules in line with the links; `own` are this host's addresses.
    ///
    /// # Errors
    /// Where the system refuses; what was in force stays so.
    pub fn update(
        &mut self,
        specs: &[LinkSpec],
        states: &[LinkState],
        own: &[Address],
    ) -> Result<()> {
        // What this host speaks to itself stays within it.
        let is_far = |s: &&SocketAddr| {
            !s.ip().is_loopback() && own.iter().all(|address| address.addr != s.ip())
        };
        let links = specs.iter().zip(states).zip(&self.mtus);
        let ways = links.flat_map(|((spec, state), mtu)| {
            let sources = spec.sources.iter();
            sources.filter_map(|inner| {
                wanted(&spec.interface, state, *mtu, *inner, self.in_force.as_ref())
            })
        });
        let rules = ShortcutRules {
            tun: self.tun.clone(),
            ports: PORTS,
            servers: self.servers.iter().filter(is_far).copied().collect(),
            ways: ways.collect(),
        };
        if self.in_force.as_ref() != Some(&rules) {
            rules.apply()?;
            self.in_force = Some(rules);
        }
        Ok(())
    }
}

/// The way of what comes from `inner`; `None` while there is none. A link that is down for a moment
/// keeps its way.
fn wanted(
    interface: &str,
    state: &LinkState,
    mtu: u16,
    inner: IpAddr,
    in_force: Option<&ShortcutRules>,
) -> Option<Way> {
    let mut ways = in_force.iter().flat_map(|rules| &rules.ways);
    let before = ways.find(|way| way.inner == inner);
    let v6 = inner.is_ipv6();
    let exit = state.exit(v6);
    let of_family = |a: &&Address| a.addr.is_ipv6() == v6;
    let gateway = exit.and_then(|exit| exit.gateway);
    let in_use = before.map(|way| way.public);
    let public = source(state.addresses.iter().filter(of_family), gateway, in_use);
    let (Some(public), true) = (public, state.running) else {
        return before.filter(|_| state.mtu > 0).cloned();
    };
    let mut hops = Vec::new();
    // Where packets are too large, the kernel has to say so.
    if state.mtu >= u32::from(mtu) {
        hops.extend(state.addresses.iter().filter(of_family).filter_map(on_link));
        hops.extend(exit.map(|exit| Hop {
            network: None,
            gateway: exit.gateway,
        }));
    }
    Some(Way {
        interface: interface.to_owned(),
        index: public.interface,
        inner,
        public: public.addr,
        hops,
    })
}

/// Removes the rules of an instance that was killed: of one that runs, they are its own.
///
/// # Errors
/// Where `nft` is missing or refuses.
pub fn remove_unclaimed() -> Result<()> {
    match claim() {
        Ok(_claim) => ShortcutRules::remove(),
        Err(_) => Ok(()),
    }
}

fn claim() -> io::Result<UnixListener> {
    UnixListener::bind_addr(&UnixAddr::from_abstract_name(CLAIM)?)
}

/// Whether `range`, two numbers, has none of `ports`.
fn leaves_alone(range: &str, ports: &RangeInclusive<u16>) -> bool {
    let mut ends = range.split_whitespace().map(str::parse::<u16>);
    match (ends.next(), ends.next()) {
        (Some(Ok(first)), Some(Ok(last))) => first > *ports.end() || last < *ports.start(),
        _ => false,
    }
}

/// The address that packets leave with. One that others are preferred to may no longer lead anywhere, and
/// a temporary one ends some day; of equals, the one in use stays, then the one that the gateway has as a
/// neighbour is best.
fn source<'a>(
    addresses: impl Iterator<Item = &'a Address>,
    gateway: Option<IpAddr>,
    in_use: Option<IpAddr>,
) -> Option<&'a Address> {
    addresses.min_by_key(|a| {
        let beside_gateway = gateway.is_some_and(|g| {
            IpNet::new(a.addr, a.prefix_len).is_ok_and(|network| network.contains(&g))
        });
        let other = in_use != Some(a.addr);
        (a.deprecated, a.secondary, other, !beside_gateway)
    })
}

/// What is reached without a gateway.
fn on_link(address: &Address) -> Option<Hop> {
    let network = IpNet::new(address.addr, address.prefix_len).ok()?;
    Some(Hop {
        network: Some(network.trunc()),
        gateway: None,
    })
}

#[cfg(test)]
mod tests {
    use super::super::link::Exit;
    use super::*;

    const WAN: u32 = 7;
    const INNER: &str = "10.215.77.2";

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn address(addr: &str, prefix_len: u8) -> Address {
        Address {
            interface: WAN,
            addr: ip(addr),
            prefix_len,
            deprecated: false,
            secondary: false,
        }
    }

    fn state(addresses: &[Address]) -> LinkState {
        LinkState {
            running: true,
            mtu: 1_500,
            addresses: addresses.to_vec(),
            v4: Some(Exit {
                interface: WAN,
                gateway: Some(ip("192.0.2.1")),
            }),
            v6: None,
        }
    }

    /// The way of a link that is in force with `before`, once it is in `state`.
    fn way(before: Option<&Way>, state: &LinkState) -> Option<Way> {
        let rules = |way: &Way| ShortcutRules {
            tun: "braid0".to_owned(),
            ports: PORTS,
            servers: Vec::new(),
            ways: vec![way.clone()],
        };
        let in_force = before.map(rules);
        wanted("wan", state, 1_500, ip(INNER), in_force.as_ref())
    }

    #[test]
    fn neighbours_are_next_hops_and_all_others_behind_the_gateway() {
        let way = way(None, &state(&[address("192.0.2.7", 24)])).unwrap();
        assert_eq!((way.inner, way.public), (ip(INNER), ip("192.0.2.7")));
        let hops = way.hops.iter().map(|hop| (hop.network, hop.gateway));
        let network: IpNet = "192.0.2.0/24".parse().unwrap();
        assert_eq!(
            hops.collect::<Vec<_>>(),
            [(Some(network), None), (None, Some(ip("192.0.2.1")))]
        );
    }

    /// The kernel tells the engine of a smaller MTU only where it routes.
    #[test]
    fn a_link_with_a_smaller_mtu_is_routed() {
        let mut small = state(&[address("192.0.2.7", 24)]);
        small.mtu = 1_400;
        assert!(way(None, &small).unwrap().hops.is_empty());
    }

    #[test]
    fn a_link_that_is_down_keeps_its_way_as_long_as_it_is_there() {
        let before = way(None, &state(&[address("192.0.2.7", 24)]));
        let mut down = state(&[]);
        (down.running, down.v4) = (false, None);
        assert_eq!(way(before.as_ref(), &down), before);
        assert_eq!(way(None, &down), None);
        assert_eq!(way(before.as_ref(), &LinkState::default()), None);
    }

    /// Connections keep their address as long as it is as good as others.
    #[test]
    fn the_address_in_use_stays_until_another_is_preferred() {
        let (old, new) = (address("192.0.2.7", 24), address("192.0.2.77", 24));
        let gone = Address {
            deprecated: true,
            ..old
        };
        let second = Address {
            secondary: true,
            ..old
        };
        let before = way(None, &state(&[old])).unwrap();
        for (found, public) in [
            (vec![new, old], old),
            (vec![gone, new], new),
            (vec![second, new], new),
            (vec![new], new),
            (vec![gone], old),
        ] {
            let now = way(Some(&before), &state(&found)).unwrap();
            assert_eq!(now.public, public.addr, "of {found:?}");
        }
        let far = address("198.51.100.7", 24);
        let now = way(None, &state(&[far, old])).unwrap();
        assert_eq!(now.public, old.addr, "beside the gateway");
    }

    #[test]
    fn ports_that_the_kernel_may_take_are_shared() {
        for (range, alone) in [
            ("32768\t60999", true),
            ("1024 9999", true),
            ("1024\t65535", false),
            ("32767 60999", false),
            ("", false),
        ] {
            assert_eq!(leaves_alone(range, &PORTS), alone, "{range:?}");
        }
    }
}
