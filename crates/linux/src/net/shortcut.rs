//! The shortcut: packet filter rules that pass packets between the TUN device and the links without routing.
//! One instance at a time claims it.

use std::collections::BTreeSet;
use std::io;
use std::mem;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixListener};

use super::link::{LinkSpec, LinkState, is_in_network_of, network};
use super::routes::Address;
use super::sysctl::Sysctl;
use super::{Result, SystemError};
use crate::nft::{Contents, Hop, Inspector, ShortcutLink, ShortcutRules};

/// Local ports of the engine's subflows on the shortcut. They end below Linux's default range of ports for the
/// host's own connections (32768 to 60999), so that the port distinguishes the engine's packets from the host's.
/// Ports below 10,000 are left to services. The bound 10,000 is a choice.
const SHORTCUT_PORTS: RangeInclusive<u16> = 10_000..=32_767;
const LOCAL_PORT_RANGE: &str = "net/ipv4/ip_local_port_range";
/// Name of an abstract Unix socket. Only one process in a network namespace can bind it, and the kernel
/// releases it when the process ends.
const CLAIM_SOCKET: &[u8] = b"braid-shortcut";

/// The shortcut of one instance.
#[derive(Debug)]
pub struct Shortcut {
    /// The bound claim socket. It stays open as long as the rules are in use.
    _claim: UnixListener,
    tun: String,
    servers: Vec<SocketAddr>,
    /// The MTU that the engine assumes for each link, in bytes.
    mtus: Vec<u16>,
    /// For each link, true if its packets may take the shortcut.
    is_open: Vec<bool>,
    rules: Option<ShortcutRules>,
    /// True while the kernel has `rules`.
    applied: bool,
    inspector: Inspector,
    /// The contents of the tables right after they were loaded. Other contents mean that another program
    /// changed the tables.
    loaded: [Option<Contents>; 2],
}

impl Shortcut {
    /// Claims the shortcut for packets between `tun` and the links, to and from `servers`. `mtus` holds the
    /// MTU (bytes) of each link. Installs no rules yet.
    ///
    /// # Errors
    /// Fails if another instance holds the shortcut, or if the kernel may give its ports to other sockets.
    pub fn claim(tun: &str, servers: &[SocketAddr], mtus: Vec<u16>) -> Result<Shortcut> {
        if let Some(range) = shared_ports() {
            let action = format!(
                "reserve ports {} to {} for the shortcut",
                SHORTCUT_PORTS.start(),
                SHORTCUT_PORTS.end()
            );
            return Err(SystemError::other(
                action,
                format!("{LOCAL_PORT_RANGE} is {range:?}"),
            ));
        }
        let inspector =
            Inspector::open().map_err(SystemError::cannot("read the nftables rules"))?;
        Ok(Shortcut {
            _claim: claim().map_err(SystemError::cannot(
                "claim the shortcut, which one instance at a time may use",
            ))?,
            tun: tun.to_owned(),
            servers: servers.to_vec(),
            mtus,
            is_open: Vec::new(),
            rules: None,
            applied: false,
            inspector,
            loaded: [None, None],
        })
    }

    /// Returns whether another program removed or changed the rules since they were loaded, or whether they
    /// cannot be read. In both cases the next [update](Self::update) loads them again. Returns false for rules of
    /// an earlier TUN device, whose index differs from `tun_index`: the kernel may have removed the rules with that
    /// device.
    pub fn is_damaged(&mut self, tun_index: u32) -> bool {
        let is_intact = self.read_tables().is_ok_and(|tables| tables == self.loaded);
        let rules = self.rules.as_ref();
        let is_of_device = rules.is_some_and(|rules| rules.tun_index == tun_index);
        let damaged = self.applied && !is_intact && is_of_device;
        self.applied &= is_intact;
        damaged
    }

    /// Reads the tables of the rules from the kernel.
    fn read_tables(&mut self) -> io::Result<[Option<Contents>; 2]> {
        let [first, second] = ShortcutRules::TABLES;
        let mut read_table = |(family, name)| self.inspector.look(family, name);
        Ok([read_table(first)?, read_table(second)?])
    }

    /// Returns the local ports that the engine has to use.
    pub fn ports() -> RangeInclusive<u16> {
        SHORTCUT_PORTS
    }

    /// Changes the servers and the MTUs of the links. The next [update](Self::update) changes the rules.
    pub fn change(&mut self, servers: &[SocketAddr], mtus: Vec<u16>) {
        self.servers = servers.to_vec();
        self.mtus = mtus;
    }

    /// Adapts the rules to the links, and returns the links whose packets may have another source address than
    /// before. `own_addresses` holds the addresses of this host, and `tun_index` the index of the TUN device. Links
    /// on the interfaces `shaped` get no shortcut, because incoming packets that are shaped bypass the rules.
    ///
    /// # Errors
    /// Fails if the kernel refuses the rules. The rules are then removed, if possible, and the kernel routes
    /// all packets until the next update. Fails also if the loaded rules cannot be read back; they then stay in use.
    pub fn update(
        &mut self,
        specs: &[LinkSpec],
        states: &[LinkState],
        (own_addresses, shaped, tun_index): (&[Address], &[u32], u32),
    ) -> Result<Vec<usize>> {
        // Packets to this host's own addresses never leave it, so such servers need no shortcut.
        let is_far = |s: &&SocketAddr| {
            !s.ip().is_loopback() && own_addresses.iter().all(|address| address.addr != s.ip())
        };
        let servers: Vec<SocketAddr> = self.servers.iter().filter(is_far).copied().collect();
        let is_open = open_links(specs, states, shaped);
        let mut links = Vec::new();
        for (index, spec) in specs
            .iter()
            .enumerate()
            .filter(|(index, _)| is_open[*index])
        {
            let link = (spec.interface.as_str(), &states[index], self.mtus[index]);
            for inner in &spec.sources {
                let before = link_of(*inner, self.rules.as_ref());
                links.extend(wanted_rule(link, *inner, &servers, before));
            }
        }
        let rules = ShortcutRules {
            tun: self.tun.clone(),
            tun_index,
            ports: SHORTCUT_PORTS,
            servers,
            links,
        };
        if self.applied && self.rules.as_ref() == Some(&rules) {
            return Ok(Vec::new());
        }
        self.applied = false;
        if let Err(error) = rules.apply() {
            // With outdated rules, packets might leave with a source address that now belongs to another host.
            let removed = ShortcutRules::remove();
            return Err(removed.err().unwrap_or(error));
        }
        self.applied = true;
        self.loaded = self
            .read_tables()
            .map_err(SystemError::cannot("read the nftables rules"))?;
        let before = self.rules.replace(rules);
        let was_open = mem::replace(&mut self.is_open, is_open);
        let may_change_source = |index: &usize| {
            // Shortcut and routing translate source addresses by different rules.
            let was_switched = was_open
                .get(*index)
                .is_some_and(|was| *was != self.is_open[*index]);
            let mut sources = specs[*index].sources.iter();
            was_switched
                || sources
                    .any(|inner| has_other_source(*inner, before.as_ref(), self.rules.as_ref()))
        };
        Ok((0..specs.len()).filter(may_change_source).collect())
    }
}

/// Returns for each link whether its packets may take the shortcut.
fn open_links(specs: &[LinkSpec], states: &[LinkState], shaped: &[u32]) -> Vec<bool> {
    let is_open = |(spec, state): (&LinkSpec, &LinkState)| {
        // The rules identify the link of an incoming packet by the interface, so two links must not share an
        // interface.
        let same_interface = |other: &&LinkSpec| other.interface == spec.interface;
        let is_shaped = |a: &Address| shaped.contains(&a.interface);
        specs.iter().filter(same_interface).count() == 1 && !state.addresses.iter().any(is_shaped)
    };
    specs.iter().zip(states).map(is_open).collect()
}

/// Returns whether packets from `inner` leave with another source address under the rules `now`.
fn has_other_source(
    inner: IpAddr,
    before: Option<&ShortcutRules>,
    now: Option<&ShortcutRules>,
) -> bool {
    let links = link_of(inner, before).zip(link_of(inner, now));
    links.is_some_and(|(before, now)| before.public != now.public)
}

/// Returns the rule for packets from the address `inner` of the TUN device.
fn link_of(inner: IpAddr, rules: Option<&ShortcutRules>) -> Option<&ShortcutLink> {
    rules?.links.iter().find(|link| link.inner == inner)
}

/// Returns the rule that packets from `inner` shall have; `None` if they shall have no rule. `before` is their
/// current rule. A link that is down keeps its rule as long as its interface exists. If a running link has no
/// address, its rule has no next hops: the packets are routed, so that the kernel reports an error to the engine.
fn wanted_rule(
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
    let public = choose_source(addresses, servers, gateway, in_use);
    let (Some(public), true) = (public, state.running) else {
        // The MTU is 0 if the interface is gone.
        let mut before = before.filter(|_| state.mtu > 0)?.clone();
        if state.running {
            before.hops.clear();
        }
        return Some(before);
    };
    let mut hops = Vec::new();
    // If the link's MTU is below the MTU that the engine assumes, all packets are routed, so that the kernel can
    // send ICMP errors.
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

/// Returns the kernel's range of ports for the host's own connections if this range overlaps the shortcut's
/// ports. If the ranges overlap, the shortcut is not possible, since a port would not distinguish the engine's
/// packets from the host's.
pub fn shared_ports() -> Option<String> {
    let range = Sysctl::current(LOCAL_PORT_RANGE)?.value;
    (!is_disjoint(&range, &SHORTCUT_PORTS)).then_some(range)
}

/// Removes the shortcut's rules if the instance that loaded them no longer runs, for example because it was
/// killed.
///
/// # Errors
/// Fails if `nft` is missing or fails.
pub fn remove_unclaimed() -> Result<()> {
    if !ShortcutRules::exist()? {
        return Ok(());
    }
    match claim() {
        Ok(_claim) => ShortcutRules::remove(),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => Ok(()),
        Err(error) => Err(SystemError::cannot(
            "find out whether an instance uses the shortcut's rules",
        )(error)),
    }
}

/// Binds the claim socket. Fails with `AddrInUse` if another instance has it.
fn claim() -> io::Result<UnixListener> {
    UnixListener::bind_addr(&UnixAddr::from_abstract_name(CLAIM_SOCKET)?)
}

/// Returns whether the port range `range` has no port of `ports`. The range is a text of its two ends; a text of
/// another form counts as an overlap.
fn is_disjoint(range: &str, ports: &RangeInclusive<u16>) -> bool {
    let mut ends = range.split_whitespace().map(str::parse::<u16>);
    match (ends.next(), ends.next()) {
        (Some(Ok(first)), Some(Ok(last))) => first > *ports.end() || last < *ports.start(),
        _ => false,
    }
}

/// Chooses the source address with which packets leave. The criteria in the order of their weight:
///
/// 1. A unique local address (IPv6) if and only if all IPv6 servers have unique local addresses. The Internet
///    does not route answers to such an address, whereas a deprecated address may still work. So this criterion
///    comes before the next one, although RFC 6724 section 5 avoids deprecated addresses (rule 3) before it
///    compares labels (rule 6).
/// 2. An address that is not deprecated, since a deprecated one may no longer be routed to this host.
/// 3. An address that is not secondary. In IPv6 this is a temporary address, which the kernel removes when its
///    lifetime ends. In IPv4 this is an additional address, which the kernel does not choose as a source either.
/// 4. An address in the network of the gateway.
/// 5. The source address in use, so that connections keep it.
fn choose_source<'a>(
    addresses: impl Iterator<Item = &'a Address>,
    servers: &[SocketAddr],
    gateway: Option<IpAddr>,
    in_use: Option<IpAddr>,
) -> Option<&'a Address> {
    let is_local = |addr: IpAddr| matches!(addr, IpAddr::V6(a) if a.is_unique_local());
    let servers_are_local = servers
        .iter()
        .filter(|s| s.is_ipv6())
        .all(|s| is_local(s.ip()));
    addresses.min_by_key(|a| {
        let has_right_scope = is_local(a.addr) == servers_are_local;
        let by_gateway = gateway.is_some_and(|g| is_in_network_of(a, g));
        let is_other = in_use != Some(a.addr);
        // `false` is less than `true`, so each component is true for the worse address.
        (
            !has_right_scope,
            a.deprecated,
            a.secondary,
            !by_gateway,
            is_other,
        )
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

    /// Returns the rule of a link in `state` that has had the rule `before`.
    fn link(before: Option<&ShortcutLink>, state: &LinkState) -> Option<ShortcutLink> {
        wanted_rule(("wan", state, 1_500), ip(INNER), &[], before)
    }

    #[test]
    fn packets_to_neighbours_go_directly_and_all_others_to_the_gateway() {
        let link = link(None, &state(&[address("192.0.2.7", 24)])).unwrap();
        assert_eq!((link.inner, link.public), (ip(INNER), ip("192.0.2.7")));
        let hops = link.hops.iter().map(|hop| (hop.network, hop.gateway));
        let network: IpNet = "192.0.2.0/24".parse().unwrap();
        assert_eq!(
            hops.collect::<Vec<_>>(),
            [(Some(network), None), (None, Some(ip("192.0.2.1")))]
        );
    }

    /// The engine learns of the smaller MTU by an ICMP error, which the kernel sends only for packets that it
    /// routes.
    #[test]
    fn a_link_with_a_smaller_mtu_is_routed() {
        let mut small = state(&[address("192.0.2.7", 24)]);
        small.mtu = 1_400;
        assert!(link(None, &small).unwrap().hops.is_empty());
    }

    #[test]
    fn a_link_that_is_down_keeps_its_rule_while_its_interface_exists() {
        let before = link(None, &state(&[address("192.0.2.7", 24)]));
        let mut down = state(&[]);
        (down.running, down.v4) = (false, None);
        assert_eq!(link(before.as_ref(), &down), before);
        assert_eq!(link(None, &down), None);
        assert_eq!(link(before.as_ref(), &LinkState::default()), None);
    }

    /// The lost address may now belong to another host, so packets must not leave with it. The engine needs the
    /// error that the kernel reports when it routes the packets.
    #[test]
    fn a_link_without_an_address_is_routed() {
        let before = link(None, &state(&[address("192.0.2.7", 24)])).unwrap();
        let lost = link(Some(&before), &state(&[])).unwrap();
        assert_eq!((lost.public, lost.hops), (before.public, Vec::new()));
    }

    /// Connections keep their address unless another one is better.
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

    /// An address in the gateway's network wins even over the address in use.
    #[test]
    fn an_address_in_the_gateways_network_is_preferred() {
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
    fn unique_local_addresses_are_for_servers_with_such_addresses() {
        let (local, global) = (address("fd00:7::7", 64), address("2001:db8::7", 64));
        let (local_server, global_server) = ("[fd00:9::1]:1080", "[2001:db8:9::1]:1080");
        let tentative = Address {
            deprecated: true,
            ..global
        };
        for (servers, addresses, public) in [
            (
                vec![global_server, "198.51.100.1:1080"],
                [local, global],
                global,
            ),
            (vec![global_server], [local, tentative], tentative),
            (vec![local_server], [global, local], local),
            (vec![local_server, global_server], [local, global], global),
        ] {
            let parsed: Vec<SocketAddr> = servers.iter().map(|s| s.parse().unwrap()).collect();
            let found = choose_source(addresses.iter(), &parsed, Some(ip("fe80::1")), None);
            assert_eq!(found, Some(&public), "to {servers:?}");
        }
    }

    #[test]
    fn ports_that_the_kernel_may_take_are_shared() {
        for (range, disjoint) in [
            ("32768\t60999", true),
            ("1024 9999", true),
            ("1024\t65535", false),
            ("32767 60999", false),
            ("", false),
        ] {
            assert_eq!(is_disjoint(range, &SHORTCUT_PORTS), disjoint, "{range:?}");
        }
    }
}
