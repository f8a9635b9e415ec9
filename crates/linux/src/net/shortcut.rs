//! The shortcut for packets between TUN device and links: its claim by one instance, and its current rules.

use std::collections::BTreeSet;
use std::io;
use std::mem;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixListener};

use super::link::{LinkSpec, LinkState, is_beside, network};
use super::routes::Address;
use super::sysctl::Sysctl;
use super::{Result, SystemError};
use crate::nft::{Contents, Hop, Inspector, ShortcutLink, ShortcutRules};

/// Ports of the engine's ends: below Linux's default range of ports for its own connections (32768 to 60999).
const SHORTCUT_PORTS: RangeInclusive<u16> = 10_000..=32_767;
const LOCAL_PORT_RANGE: &str = "net/ipv4/ip_local_port_range";
/// Name of an abstract socket, which only one instance in a network namespace can hold.
const CLAIM_SOCKET: &[u8] = b"braid-shortcut";

/// The shortcut of one instance.
#[derive(Debug)]
pub struct Shortcut {
    /// Held as long as the rules are in use.
    _claim: UnixListener,
    tun: String,
    servers: Vec<SocketAddr>,
    /// The MTU that the engine assumes for each link, in bytes.
    mtus: Vec<u16>,
    /// For each link, true if its packets may take the shortcut.
    open: Vec<bool>,
    rules: Option<ShortcutRules>,
    /// The rules are in force.
    applied: bool,
    inspector: Inspector,
    /// The tables' contents right after they were loaded. Any other contents mean damage.
    loaded: [Option<Contents>; 2],
}

impl Shortcut {
    /// Claims the shortcut between `tun` and links with these MTUs (bytes), for packets to and from
    /// `servers`.
    ///
    /// # Errors
    /// Fails if another instance holds the shortcut, or if the kernel may give its ports to other sockets.
    pub fn claim(tun: &str, servers: &[SocketAddr], mtus: Vec<u16>) -> Result<Shortcut> {
        if let Some(range) = shared_ports() {
            let doing = format!(
                "reserve ports {} to {} for the shortcut",
                SHORTCUT_PORTS.start(),
                SHORTCUT_PORTS.end()
            );
            return Err(SystemError::other(
                doing,
                format!("{LOCAL_PORT_RANGE} is {range:?}"),
            ));
        }
        let inspector = Inspector::open().map_err(SystemError::doing("read the nftables rules"))?;
        Ok(Shortcut {
            _claim: claim().map_err(SystemError::doing(
                "claim the shortcut, which one instance at a time may use",
            ))?,
            tun: tun.to_owned(),
            servers: servers.to_vec(),
            mtus,
            open: Vec::new(),
            rules: None,
            applied: false,
            inspector,
            loaded: [None, None],
        })
    }

    /// Returns whether rules that were in force are gone or changed. Then the next [update](Self::update)
    /// loads them again.
    pub fn is_damaged(&mut self) -> bool {
        let sound = self.look().is_ok_and(|there| there == self.loaded);
        let damaged = self.applied && !sound;
        self.applied &= sound;
        damaged
    }

    /// Reads the tables of the rules from the kernel.
    fn look(&mut self) -> io::Result<[Option<Contents>; 2]> {
        let [first, second] = ShortcutRules::TABLES;
        let mut look = |(family, name)| self.inspector.look(family, name);
        Ok([look(first)?, look(second)?])
    }

    /// Returns the ports that the engine has to take.
    pub fn ports() -> RangeInclusive<u16> {
        SHORTCUT_PORTS
    }

    /// Changes servers and links; the next [update](Self::update) changes the rules.
    pub fn change(&mut self, servers: &[SocketAddr], mtus: Vec<u16>) {
        self.servers = servers.to_vec();
        self.mtus = mtus;
    }

    /// Reconciles the rules with the links, and returns the links whose packets may leave with another
    /// address than before. `own` holds the addresses of this host. Packets that come in by interfaces
    /// `shaped` may be shaped, which would take them past the rules.
    ///
    /// # Errors
    /// Fails if the system refuses. Until the next update packets are then routed, if the rules can at least
    /// be removed.
    pub fn update(
        &mut self,
        specs: &[LinkSpec],
        states: &[LinkState],
        own: &[Address],
        shaped: &[u32],
    ) -> Result<Vec<usize>> {
        // Packets between this host's own addresses never leave it.
        let is_far = |s: &&SocketAddr| {
            !s.ip().is_loopback() && own.iter().all(|address| address.addr != s.ip())
        };
        let servers: Vec<SocketAddr> = self.servers.iter().filter(is_far).copied().collect();
        let open = open_links(specs, states, shaped);
        let mut links = Vec::new();
        for (index, spec) in specs.iter().enumerate().filter(|(index, _)| open[*index]) {
            let link = (spec.interface.as_str(), &states[index], self.mtus[index]);
            for inner in &spec.sources {
                let before = link_of(*inner, self.rules.as_ref());
                links.extend(wanted(link, *inner, &servers, before));
            }
        }
        let rules = ShortcutRules {
            tun: self.tun.clone(),
            ports: SHORTCUT_PORTS,
            servers,
            links,
        };
        if self.applied && self.rules.as_ref() == Some(&rules) {
            return Ok(Vec::new());
        }
        self.applied = false;
        if let Err(error) = rules.apply() {
            // By outdated rules packets might leave with another host's address.
            let removed = ShortcutRules::remove();
            return Err(removed.err().unwrap_or(error));
        }
        self.applied = true;
        self.loaded = self
            .look()
            .map_err(SystemError::doing("read the nftables rules"))?;
        let before = self.rules.replace(rules);
        let was_open = mem::replace(&mut self.open, open);
        let moved = |index: &usize| {
            let turned = was_open
                .get(*index)
                .is_some_and(|was| *was != self.open[*index]);
            let mut sources = specs[*index].sources.iter();
            turned || sources.any(|inner| readdressed(*inner, before.as_ref(), self.rules.as_ref()))
        };
        Ok((0..specs.len()).filter(moved).collect())
    }
}

/// Returns for each link whether its packets may take the shortcut.
fn open_links(specs: &[LinkSpec], states: &[LinkState], shaped: &[u32]) -> Vec<bool> {
    let is_open = |(spec, state): (&LinkSpec, &LinkState)| {
        // Incoming packets of two links on one interface could not be told apart.
        let same = |other: &&LinkSpec| other.interface == spec.interface;
        let in_shaped = |a: &Address| shaped.contains(&a.interface);
        specs.iter().filter(same).count() == 1 && !state.addresses.iter().any(in_shaped)
    };
    specs.iter().zip(states).map(is_open).collect()
}

/// Returns whether packets from `inner` leave with another address than before.
fn readdressed(inner: IpAddr, before: Option<&ShortcutRules>, now: Option<&ShortcutRules>) -> bool {
    let links = link_of(inner, before).zip(link_of(inner, now));
    links.is_some_and(|(before, now)| before.public != now.public)
}

/// Returns the rule of packets from `inner`.
fn link_of(inner: IpAddr, rules: Option<&ShortcutRules>) -> Option<&ShortcutLink> {
    rules?.links.iter().find(|link| link.inner == inner)
}

/// Returns the rule of packets from `inner`, which was `before`; `None` while there is none. A link that is
/// down for a moment keeps its rule. A link without address is routed, so that the kernel reports an error.
fn wanted(
    (interface, state, mtu): (&str, &LinkState, u16),
    inner: IpAddr,
    servers: &[SocketAddr],
    before: Option<&ShortcutLink>,
) -> Option<ShortcutLink> {
    let v6 = inner.is_ipv6();
    let exit = state.exit(v6);
    let of_family = |a: &&Address| a.addr.is_ipv6() == v6;
    let gateway = exit.and_then(|exit| exit.gateway);
    let in_use = before.map(|link| link.public);
    let addresses = state.addresses.iter().filter(of_family);
    let public = source(addresses, servers, gateway, in_use);
    let (Some(public), true) = (public, state.running) else {
        let mut before = before.filter(|_| state.mtu > 0)?.clone();
        if state.running {
            before.hops.clear();
        }
        return Some(before);
    };
    let mut hops = Vec::new();
    // Packets larger than the MTU are routed, so that the kernel sends the ICMP error.
    if state.mtu >= u32::from(mtu) {
        let networks = state.addresses.iter().filter(of_family).map(network);
        hops.extend(
            BTreeSet::from_iter(networks)
                .into_iter()
                .map(|network| Hop {
                    network: Some(network),
                    gateway: None,
                }),
        );
        hops.extend(exit.map(|exit| Hop {
            network: None,
            gateway: exit.gateway,
        }));
    }
    Some(ShortcutLink {
        interface: interface.to_owned(),
        index: public.interface,
        inner,
        public: public.addr,
        hops,
    })
}

/// Returns the kernel's range of ports for its own connections if it overlaps the engine's ports; then there can
/// be no shortcut.
pub fn shared_ports() -> Option<String> {
    let range = Sysctl::current(LOCAL_PORT_RANGE)?.value;
    (!leaves_alone(&range, &SHORTCUT_PORTS)).then_some(range)
}

/// Removes the rules of an instance that was killed. Rules of an instance that runs stay.
///
/// # Errors
/// Fails if `nft` is missing or refuses.
pub fn remove_unclaimed() -> Result<()> {
    if !ShortcutRules::exist()? {
        return Ok(());
    }
    match claim() {
        Ok(_claim) => ShortcutRules::remove(),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => Ok(()),
        Err(error) => Err(SystemError::doing(
            "find out whether an instance uses the shortcut's rules",
        )(error)),
    }
}

fn claim() -> io::Result<UnixListener> {
    UnixListener::bind_addr(&UnixAddr::from_abstract_name(CLAIM_SOCKET)?)
}

/// Returns whether `range`, two numbers as text, overlaps none of `ports`.
fn leaves_alone(range: &str, ports: &RangeInclusive<u16>) -> bool {
    let mut ends = range.split_whitespace().map(str::parse::<u16>);
    match (ends.next(), ends.next()) {
        (Some(Ok(first)), Some(Ok(last))) => first > *ports.end() || last < *ports.start(),
        _ => false,
    }
}

/// Chooses the address that packets leave with. Unique local addresses of IPv6 serve servers with such
/// addresses only: from them no answer comes back from the Internet. This counts before RFC 6724 section 5,
/// rule 3 (avoid deprecated addresses). Then a deprecated address may lead nowhere any more, and a temporary
/// one ends some day. The best is one in the gateway's network. Of equals, the address in use stays.
fn source<'a>(
    addresses: impl Iterator<Item = &'a Address>,
    servers: &[SocketAddr],
    gateway: Option<IpAddr>,
    in_use: Option<IpAddr>,
) -> Option<&'a Address> {
    let is_local = |addr: IpAddr| matches!(addr, IpAddr::V6(a) if a.is_unique_local());
    let within_sites = servers
        .iter()
        .filter(|s| s.is_ipv6())
        .all(|s| is_local(s.ip()));
    addresses.min_by_key(|a| {
        let fits = is_local(a.addr) == within_sites;
        let by_gateway = gateway.is_some_and(|g| is_beside(a, g));
        let other = in_use != Some(a.addr);
        (!fits, a.deprecated, a.secondary, !by_gateway, other)
    })
}

#[cfg(test)]
mod tests {
    use ipnet::IpNet;

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

    /// Returns the rule of a link that had `before`, once the link is in `state`.
    fn link(before: Option<&ShortcutLink>, state: &LinkState) -> Option<ShortcutLink> {
        wanted(("wan", state, 1_500), ip(INNER), &[], before)
    }

    #[test]
    fn neighbours_are_next_hops_and_all_others_behind_the_gateway() {
        let link = link(None, &state(&[address("192.0.2.7", 24)])).unwrap();
        assert_eq!((link.inner, link.public), (ip(INNER), ip("192.0.2.7")));
        let hops = link.hops.iter().map(|hop| (hop.network, hop.gateway));
        let network: IpNet = "192.0.2.0/24".parse().unwrap();
        assert_eq!(
            hops.collect::<Vec<_>>(),
            [(Some(network), None), (None, Some(ip("192.0.2.1")))]
        );
    }

    /// The kernel tells the engine of a smaller MTU only for packets that it routes.
    #[test]
    fn a_link_with_a_smaller_mtu_is_routed() {
        let mut small = state(&[address("192.0.2.7", 24)]);
        small.mtu = 1_400;
        assert!(link(None, &small).unwrap().hops.is_empty());
    }

    #[test]
    fn a_link_that_is_down_keeps_its_way_as_long_as_it_is_there() {
        let before = link(None, &state(&[address("192.0.2.7", 24)]));
        let mut down = state(&[]);
        (down.running, down.v4) = (false, None);
        assert_eq!(link(before.as_ref(), &down), before);
        assert_eq!(link(None, &down), None);
        assert_eq!(link(before.as_ref(), &LinkState::default()), None);
    }

    /// Remaining packets must not leave with another host's address, and the kernel must report an error.
    #[test]
    fn a_link_without_an_address_is_routed() {
        let before = link(None, &state(&[address("192.0.2.7", 24)])).unwrap();
        let lost = link(Some(&before), &state(&[])).unwrap();
        assert_eq!((lost.public, lost.hops), (before.public, Vec::new()));
    }

    /// Connections keep their address as long as no other is better.
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
        let before = link(None, &state(&[old])).unwrap();
        for (found, public) in [
            (vec![new, old], old),
            (vec![gone, new], new),
            (vec![second, new], new),
            (vec![new], new),
            (vec![gone], old),
        ] {
            let now = link(Some(&before), &state(&found)).unwrap();
            assert_eq!(now.public, public.addr, "of {found:?}");
        }
    }

    /// The gateway's neighbour wins even over an address in use.
    #[test]
    fn the_gateways_neighbour_is_preferred() {
        let (far, near) = (address("198.51.100.7", 24), address("192.0.2.7", 24));
        let mut no_exit = state(&[far]);
        no_exit.v4 = None;
        let before = link(None, &no_exit).unwrap();
        assert_eq!(before.public, far.addr);
        for before in [None, Some(&before)] {
            assert_eq!(
                link(before, &state(&[far, near])).unwrap().public,
                near.addr
            );
        }
    }

    #[test]
    fn addresses_of_a_site_are_for_servers_of_it() {
        let (local, global) = (address("fd00:7::7", 64), address("2001:db8::7", 64));
        let (here, far) = ("[fd00:9::1]:1080", "[2001:db8:9::1]:1080");
        let tentative = Address {
            deprecated: true,
            ..global
        };
        for (servers, addresses, public) in [
            (vec![far, "198.51.100.1:1080"], [local, global], global),
            (vec![far], [local, tentative], tentative),
            (vec![here], [global, local], local),
            (vec![here, far], [local, global], global),
        ] {
            let parsed: Vec<SocketAddr> = servers.iter().map(|s| s.parse().unwrap()).collect();
            let found = source(addresses.iter(), &parsed, Some(ip("fe80::1")), None);
            assert_eq!(found, Some(&public), "to {servers:?}");
        }
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
            assert_eq!(leaves_alone(range, &SHORTCUT_PORTS), alone, "{range:?}");
        }
    }
}
