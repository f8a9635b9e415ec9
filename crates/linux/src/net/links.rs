//! Access links: what state they are in, and the routing that ties addresses to them.

use std::io;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;

use netlink_packet_route::RouteNetlinkMessage;

use super::netlink::Netlink;
use super::routes::{
    Address, DefaultRoute, Interface, PROTOCOL, Packets, Route, Rule, Target, UNREACHABLE_METRIC,
};
use super::{Identity, Result, SystemError};

/// `RTMGRP_*`: links, addresses and routes of both families.
const GROUPS: u32 = 0x1 | 0x10 | 0x40 | 0x100 | 0x400;
/// Metric of the routes in the links' tables.
const METRIC: u32 = 100;

/// Next hop of a link in one address family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NextHop {
    /// What the main routing table says of the interface.
    Auto,
    /// This gateway.
    Gateway(IpAddr),
    /// The family is not used.
    None,
}

/// A link, as it is to be used.
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
    /// Who is to be reached over the link; empty where that is not known.
    pub targets: Vec<IpAddr>,
    /// Packets from `sources` leave by this link or not at all. Otherwise the main table has its
    /// say where the link leads nowhere.
    pub exclusive: bool,
}

impl LinkSpec {
    fn next_hop(&self, v6: bool) -> NextHop {
        if v6 { self.v6 } else { self.v4 }
    }
}

/// How a link leads out in one address family.
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
    /// The interface is there, up and has carrier.
    pub running: bool,
    /// MTU of the interface in bytes; 0 where there is none.
    pub mtu: u32,
    /// Addresses of the interface, link-local ones left out.
    pub addresses: Vec<Address>,
    /// IPv4 way out.
    pub v4: Option<Exit>,
    /// IPv6 way out.
    pub v6: Option<Exit>,
}

impl LinkState {
    /// Whether packets can be sent over the link to one of `targets`, or to anyone.
    pub fn leads_to(&self, targets: &[IpAddr]) -> bool {
        let usable = |v6: bool| {
            let open = self.exit(v6).is_some() || targets.is_empty();
            self.has_family(v6) && (open || targets.iter().any(|t| self.is_on_link(*t)))
        };
        self.running && (usable(false) || usable(true))
    }

    /// Whether `addr` is in a network that the interface is in.
    pub fn is_on_link(&self, addr: IpAddr) -> bool {
        let same = |a: &Address| {
            a.addr.is_ipv4() == addr.is_ipv4()
                && network(a.addr, a.prefix_len) == network(addr, a.prefix_len)
        };
        // Link-local gateways are the rule in IPv6.
        let link_local = matches!(addr, IpAddr::V6(a) if a.is_unicast_link_local());
        link_local || self.addresses.iter().any(same)
    }

    /// Whether the interface has an address of the family.
    pub fn has_family(&self, v6: bool) -> bool {
        self.addresses.iter().any(|a| a.addr.is_ipv6() == v6)
    }

    /// The way out in a family.
    pub fn exit(&self, v6: bool) -> Option<Exit> {
        if v6 { self.v6 } else { self.v4 }
    }
}

/// The links of an instance and their routing tables.
#[derive(Debug)]
pub struct Links {
    identity: Identity,
    netlink: Netlink,
    monitor: Netlink,
    specs: Vec<LinkSpec>,
    states: Vec<LinkState>,
    /// The last gateway of each link by family: taking an interface down deletes its routes, and
    /// not everything that brings it up again puts them back.
    gateways: Vec<[Option<IpAddr>; 2]>,
    /// The addresses of each link by family when it was last up and had any.
    known: Vec<[Vec<IpAddr>; 2]>,
    forward: Option<usize>,
    /// Whether each link keeps the connections forwarded over it; empty where none are.
    keeps: Vec<bool>,
}

impl Links {
    /// Watches `specs` (at most 255), without touching any routing yet.
    ///
    /// # Errors
    /// Where the system refuses.
    pub fn new(identity: &Identity, specs: Vec<LinkSpec>) -> Result<Links> {
        let doing = || SystemError::doing("watch network interfaces");
        let mut links = Links {
            identity: identity.clone(),
            netlink: Netlink::open().map_err(doing())?,
            monitor: Netlink::subscribe(GROUPS).map_err(doing())?,
            states: vec![LinkState::default(); specs.len()],
            gateways: vec![[None; 2]; specs.len()],
            known: vec![[Vec::new(), Vec::new()]; specs.len()],
            keeps: Vec::new(),
            specs,
            forward: None,
        };
        links.states = links.observe().map_err(doing())?;
        for (known, state) in links.known.iter_mut().zip(&links.states) {
            readdressed(known, state);
        }
        Ok(links)
    }

    /// What to wait on for changes.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.monitor.fd()
    }

    /// Whether link `index` can be used.
    pub fn is_up(&self, index: usize) -> bool {
        self.states[index].leads_to(&self.specs[index].targets)
    }

    /// The links, in the order given.
    pub fn states(&self) -> &[LinkState] {
        &self.states
    }

    /// Whether the monitor has news, which are taken off it; then [`Self::refresh`] is due. One
    /// event of the network comes as many messages, so wait a few milliseconds in between.
    pub fn has_news(&mut self) -> bool {
        let mut heard = false;
        let lost = self.monitor.drain(|message| heard |= matters(&message));
        // Where notifications cannot be read, the state is to be read instead.
        heard || lost.unwrap_or(true)
    }

    /// Steers the sources of each link into a table of its own.
    ///
    /// # Errors
    /// Where the system refuses.
    pub fn install(&mut self) -> Result<()> {
        let doing = || SystemError::doing("add routing rules");
        for (index, spec) in self.specs.iter().enumerate() {
            for source in &spec.sources {
                let rule = Rule {
                    v6: source.is_ipv6(),
                    priority: self.identity.rule_priority(),
                    table: table(&self.identity, index),
                    from: Some(*source),
                    ..Rule::default()
                };
                self.netlink.add_rule(&rule).map_err(doing())?;
            }
        }
        for index in 0..self.specs.len() {
            self.program(index);
        }
        Ok(())
    }

    /// Lets everything that comes in by `interfaces` follow [`Self::forward_over`], except to
    /// networks that the main table knows a way to, and except what carries the mark of a link
    /// that [keeps](Self::keep_flows) its connections; and everything else too where the main
    /// table has no default route.
    ///
    /// # Errors
    /// Where the system refuses.
    pub fn install_forwarding(&mut self, interfaces: &[String]) -> Result<()> {
        let doing = || SystemError::doing("add routing rules");
        for v6 in self.families() {
            for iif in interfaces {
                let local = Rule {
                    v6,
                    priority: self.identity.forward_rule_priority(),
                    table: super::routes::MAIN_TABLE,
                    iif: Some(iif.clone()),
                    suppress_prefix_len: Some(0),
                    ..Rule::default()
                };
                let forward = Rule {
                    table: self.identity.forward_table(),
                    suppress_prefix_len: None,
                    ..local.clone()
                };
                // Of rules with the same priority the first one added is asked first.
                self.netlink.add_rule(&local).map_err(doing())?;
                for index in self.indices() {
                    let kept = Rule {
                        table: self.identity.flow_table(index),
                        mark: Some(self.identity.flow_mark(index)),
                        ..forward.clone()
                    };
                    self.netlink.add_rule(&kept).map_err(doing())?;
                }
                self.netlink.add_rule(&forward).map_err(doing())?;
            }
            let fallback = Rule {
                v6,
                priority: self.identity.fallback_rule_priority(),
                table: self.identity.forward_table(),
                ..Rule::default()
            };
            self.netlink.add_rule(&fallback).map_err(doing())?;
        }
        self.keeps = vec![true; self.specs.len()];
        for index in 0..self.specs.len() {
            self.program_flows(index);
        }
        Ok(())
    }

    /// Delivers packets with the instance's mark to this host, whatever their destination.
    ///
    /// # Errors
    /// Where the system refuses.
    pub fn install_interception(&mut self) -> Result<()> {
        let doing = || SystemError::doing("route intercepted packets to this host");
        let loopback = self.netlink.interface("lo").map_err(doing())?;
        let interface = loopback.map_or(1, |lo| lo.index);
        for v6 in self.families() {
            let table = self.identity.intercept_table();
            let route = Route::default_of(v6, table, Target::Local { interface }, 0);
            let rule = Rule {
                v6,
                priority: self.identity.rule_priority(),
                table,
                mark: Some(self.identity.mark()),
                ..Rule::default()
            };
            self.netlink.replace_route(&route).map_err(doing())?;
            self.netlink.add_rule(&rule).map_err(doing())?;
        }
        Ok(())
    }

    /// Reads the links' state anew, brings the routing in line, and returns the links that changed: by
    /// their index, and whether one is up that lost an address, so that packets may leave it with
    /// another one than before.
    ///
    /// # Errors
    /// Where the state cannot be read.
    pub fn refresh(&mut self) -> Result<Vec<(usize, bool)>> {
        let doing = SystemError::doing("read the state of the links");
        let states = self.observe().map_err(doing)?;
        let mut changed = Vec::new();
        for (index, state) in states.into_iter().enumerate() {
            if self.states[index] != state {
                self.states[index] = state;
                let readdressed =
                    self.is_up(index) && readdressed(&mut self.known[index], &self.states[index]);
                changed.push((index, readdressed));
            }
            // Also where nothing changed: an interface that was down for a moment lost its routes.
            self.program(index);
        }
        if let Some(link) = self.forward {
            self.program_forwarding(link);
        }
        for index in 0..self.keeps.len() {
            self.program_flows(index);
        }
        Ok(changed)
    }

    /// Says whether the connections that are forwarded over link `index` stay on it, also when new
    /// ones take another. Where they do not, they go the way of new ones, which those that are
    /// bound to the address of the link do not survive.
    pub fn keep_flows(&mut self, index: usize, keep: bool) {
        if let Some(keeps) = self.keeps.get_mut(index) {
            *keeps = keep;
            self.program_flows(index);
        }
    }

    /// Packets that went out of and came in by each link; `None` where there is no interface.
    ///
    /// # Errors
    /// Where they cannot be read.
    pub fn packets(&mut self) -> Result<Vec<Option<Packets>>> {
        let doing = SystemError::doing("read the counters of the links");
        let interfaces = self.netlink.interfaces().map_err(doing)?;
        let of = |spec: &LinkSpec| interfaces.iter().find(|i| i.name == spec.interface);
        let packets = self.specs.iter().map(|spec| of(spec).map(|i| i.packets));
        Ok(packets.collect())
    }

    fn indices(&self) -> std::ops::Range<u8> {
        0..u8::try_from(self.specs.len()).unwrap_or(u8::MAX)
    }

    /// Sends everything that is only forwarded over link `index`.
    pub fn forward_over(&mut self, index: usize) {
        if self.forward != Some(index) && index < self.specs.len() {
            self.forward = Some(index);
            self.program_forwarding(index);
        }
    }

    /// The link that everything is forwarded over.
    pub fn forwarding(&self) -> Option<usize> {
        self.forward
    }

    /// The access to netlink, for what is done once at the start.
    pub fn netlink(&mut self) -> &mut Netlink {
        &mut self.netlink
    }

    /// Address families in use, as `v6`.
    fn families(&self) -> Vec<bool> {
        let used = |v6: &bool| self.specs.iter().any(|s| s.next_hop(*v6) != NextHop::None);
        // Without IPv6 in the kernel, its rules cannot be made.
        [false, true]
            .into_iter()
            .filter(used)
            .filter(|v6| !v6 || has_ipv6())
            .collect()
    }

    fn observe(&mut self) -> io::Result<Vec<LinkState>> {
        let interfaces = self.netlink.interfaces()?;
        let addresses = self.netlink.addresses()?;
        let defaults = self.netlink.default_routes()?;
        let mut states = Vec::with_capacity(self.specs.len());
        for (spec, gateways) in self.specs.iter().zip(&mut self.gateways) {
            let mut state = observe(spec, &interfaces, &addresses, &defaults);
            remember_gateways(spec, &mut state, gateways, &interfaces);
            states.push(state);
        }
        Ok(states)
    }

    /// Brings the link's table in line with its state. What fails (an interface may vanish any
    /// time) is logged; the event that made it fail brings another try.
    fn program(&mut self, index: usize) {
        let table = table(&self.identity, index);
        let spec = &self.specs[index];
        let state = &self.states[index];
        for v6 in [false, true] {
            if !spec.sources.iter().any(|s| s.is_ipv6() == v6) {
                continue;
            }
            if spec.exclusive {
                let stop = Route::default_of(v6, table, Target::Unreachable, UNREACHABLE_METRIC);
                try_to(&spec.interface, self.netlink.replace_route(&stop));
            }
            let on_link = state.addresses.iter().filter(|a| a.addr.is_ipv6() == v6);
            for address in on_link.filter(|_| state.running) {
                let route = connected(address, table);
                try_to(&spec.interface, self.netlink.replace_route(&route));
            }
            set_default(&mut self.netlink, &spec.interface, v6, table, state);
        }
    }

    fn program_flows(&mut self, index: usize) {
        let nowhere = LinkState::default();
        let flow_table = self
            .identity
            .flow_table(u8::try_from(index).unwrap_or(u8::MAX));
        for v6 in self.families() {
            let name = &self.specs[index].interface;
            let state = match self.keeps[index] {
                true => &self.states[index],
                false => &nowhere,
            };
            set_default(&mut self.netlink, name, v6, flow_table, state);
        }
    }

    fn program_forwarding(&mut self, index: usize) {
        let table = self.identity.forward_table();
        for v6 in self.families() {
            let name = &self.specs[index].interface;
            set_default(&mut self.netlink, name, v6, table, &self.states[index]);
        }
    }
}

fn table(identity: &Identity, index: usize) -> u32 {
    identity.path_table(u8::try_from(index).unwrap_or(u8::MAX))
}

/// Whether a notification may be about a link: routes are, if they are default routes of others'
/// making.
fn matters(message: &RouteNetlinkMessage) -> bool {
    match message {
        RouteNetlinkMessage::NewRoute(route) | RouteNetlinkMessage::DelRoute(route) => {
            route.header.destination_prefix_length == 0 && route.header.protocol != PROTOCOL
        }
        _ => true,
    }
}

/// Whether this network namespace has IPv6.
pub fn has_ipv6() -> bool {
    std::path::Path::new("/proc/sys/net/ipv6").exists()
}

fn observe(
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

/// Puts back the gateway that a link had before, where it can still be its gateway.
fn remember_gateways(
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

/// Whether the link lost an address of a family that it still or again has an address of: where it
/// has none, nothing can be asked yet. DHCP may take the old one first, or add the new one first.
/// Addresses that come and go by design do not count beside one that lasts, with which they would go in
/// another network too: a temporary one ends long after nothing new begins from it (RFC 8981 section 3.4).
/// Where there is no other, everything is masqueraded by it.
fn readdressed(known: &mut [Vec<IpAddr>; 2], state: &LinkState) -> bool {
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
        // A further one of an IPv4 network is nobody's source by itself.
        let counts = |a: &&Address| lasts(a) || v6 && !one_lasts;
        for address in state.addresses.iter().filter(new).filter(counts) {
            if !known.contains(&address.addr) {
                known.push(address.addr);
            }
        }
    }
    lost
}

/// The route to the network that `address` is in.
fn connected(address: &Address, table: u32) -> Route {
    Route {
        table,
        destination: network(address.addr, address.prefix_len),
        prefix_len: address.prefix_len,
        target: Target::Via {
            interface: address.interface,
            gateway: None,
        },
        metric: METRIC,
    }
}

fn network(addr: IpAddr, prefix_len: u8) -> IpAddr {
    let prefix_len = u32::from(prefix_len);
    match addr {
        IpAddr::V4(a) => {
            let mask = u32::MAX.checked_shl(32 - prefix_len.min(32)).unwrap_or(0);
            std::net::Ipv4Addr::from_bits(a.to_bits() & mask).into()
        }
        IpAddr::V6(a) => {
            let mask = u128::MAX
                .checked_shl(128 - prefix_len.min(128))
                .unwrap_or(0);
            std::net::Ipv6Addr::from_bits(a.to_bits() & mask).into()
        }
    }
}

fn set_default(netlink: &mut Netlink, interface: &str, v6: bool, table: u32, state: &LinkState) {
    let usable = state.exit(v6).filter(|_| state.has_family(v6));
    let Some(Exit {
        interface: index,
        gateway,
    }) = usable
    else {
        try_to(interface, netlink.delete_defaults(v6, table, METRIC));
        return;
    };
    let target = Target::Via {
        interface: index,
        gateway,
    };
    let route = Route::default_of(v6, table, target, METRIC);
    try_to(interface, netlink.replace_route(&route));
}

fn try_to(interface: &str, result: io::Result<()>) {
    if let Err(error) = result {
        tracing::debug!(interface, %error, "cannot change a route yet");
    }
}

#[cfg(test)]
mod tests {
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

    /// Says whether an address is lost, look by look.
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

    /// An address that is gone counts, whichever comes first, the new one or the end of the old one; a
    /// privacy address that is replaced does not, nor one that is added or comes back.
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

    /// Where no other address is preferred, everything goes out by the temporary one.
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
        let net = |addr: &str, len| network(addr.parse().unwrap(), len).to_string();
        assert_eq!(net("192.0.2.77", 24), "192.0.2.0");
        assert_eq!(net("192.0.2.77", 32), "192.0.2.77");
        assert_eq!(net("192.0.2.77", 0), "0.0.0.0");
        assert_eq!(net("2001:db8::77", 64), "2001:db8::");
    }
}
