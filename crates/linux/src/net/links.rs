//! The state of the access links in the kernel, and the routing rules that send packets from each source
//! address out of its link.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::os::fd::BorrowedFd;

use ipnet::IpNet;
use netlink_packet_route::RouteNetlinkMessage;

use super::link::{
    Exit, LinkSpec, LinkState, NextHop, lost_address, network, observe, remember_gateways,
};
use super::netlink::Netlink;
use super::routes::{
    Address, Interface, MAIN_TABLE, PROTOCOL, Packets, Route, Routes, Rule, Target,
    UNREACHABLE_METRIC, ingress_shaper_interface, is_own_rule, table_of,
};
use super::shortcut::Shortcut;
use super::{InstanceNames, Result, SystemError};

/// Multicast groups of notifications (`RTNLGRP_*`, linux/rtnetlink.h). `bind` takes group n as bit n - 1. The
/// groups that do not depend on the family are links (1) and traffic control (4). The groups of IPv4 are
/// addresses (5), routes (7), rules (8) and settings of interfaces (24).
const NETLINK_GROUPS: u32 = 1 | 1 << 3 | 1 << 4 | 1 << 6 | 1 << 7 | 1 << 23 | NETLINK_GROUPS_V6;
// The groups of IPv6: addresses (9), routes (11), rules (19) and settings of interfaces (25).
const NETLINK_GROUPS_V6: u32 = 1 << 8 | 1 << 10 | 1 << 18 | 1 << 24;
/// Metric of the routes in the links' tables. Any value below [`UNREACHABLE_METRIC`] makes the kernel prefer
/// these routes to the unreachable route of the same table.
const ROUTE_METRIC: u32 = 100;

/// The links of an instance and their routing tables.
#[derive(Debug)]
pub struct Links {
    instance_names: InstanceNames,
    /// The socket for requests.
    netlink: Netlink,
    /// The socket for notifications.
    monitor: Netlink,
    specs: Vec<LinkSpec>,
    /// The state of each link when it was last read from the kernel.
    states: Vec<LinkState>,
    /// All interfaces when they were last read.
    interfaces: Vec<Interface>,
    /// The addresses of all interfaces when they were last read.
    addresses: Vec<Address>,
    /// Destination networks of the main table's routes, except its default routes.
    reached: Vec<IpNet>,
    /// The last known gateways of each link, as a pair of the IPv4 and the IPv6 gateway. They are remembered
    /// because the kernel deletes the routes of an interface that is taken down. A program that brings the
    /// interface up again may not add these routes again.
    gateways: Vec<[Option<IpAddr>; 2]>,
    /// The addresses that each link last had while it was up, as a pair of the IPv4 and the IPv6 addresses.
    known_addresses: Vec<[Vec<IpAddr>; 2]>,
    /// True if the links also carry datagrams of the tunnel.
    carries_tunnel: bool,
    /// The packets that go into the tunnel; `None` while it is down.
    tunnel: Option<TunnelRoute>,
    /// True once [`Self::install`] was called. While it is false, this type changes no routes and rules.
    installed: bool,
    /// Interfaces whose incoming connections are intercepted or forwarded over the links.
    lan: Vec<String>,
    /// The link that new forwarded connections take; `None` until one is chosen.
    forward_link: Option<usize>,
    /// For each link, true if connections that are forwarded over it stay on it when new connections take
    /// another link. Empty if nothing is forwarded.
    keeps_flows: Vec<bool>,
    /// The routes that this instance added and still wants. If one of them is missing in the kernel, another
    /// program removed it.
    installed_routes: Vec<Route>,
    shortcut: Option<Shortcut>,
    /// True if the last update of the shortcut failed.
    needs_retry: bool,
    /// The repairs of the last refresh.
    repairs: Repairs,
}

/// The address families of the packets that go into the tunnel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct TunnelRoute {
    v4: bool,
    v6: bool,
}

/// The rules and routes of this instance that a refresh found missing, because another program removed them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Repairs {
    /// Number of routing rules that were added again.
    pub rules: usize,
    /// Number of routes that were added again.
    pub routes: usize,
    /// True if the rules of the shortcut were loaded again.
    pub shortcut: bool,
    /// True if something is still missing.
    pub pending: bool,
}

impl Links {
    /// Starts to watch the links that `specs` describe, without a change to the kernel's routing. There may be
    /// at most 253 links: the numbers of their routing tables and marks hold the link's index in 8 bits, and three
    /// values are other tables.
    ///
    /// # Errors
    /// Fails if the kernel refuses a netlink socket, or if its interfaces and routes cannot be read.
    pub fn new(instance_names: &InstanceNames, specs: Vec<LinkSpec>) -> Result<Links> {
        let cannot = || SystemError::cannot("watch network interfaces");
        let mut links = Links {
            instance_names: instance_names.clone(),
            netlink: Netlink::open().map_err(cannot())?,
            monitor: Netlink::subscribe(NETLINK_GROUPS).map_err(cannot())?,
            states: vec![LinkState::default(); specs.len()],
            interfaces: Vec::new(),
            addresses: Vec::new(),
            reached: Vec::new(),
            gateways: vec![[None; 2]; specs.len()],
            known_addresses: vec![[Vec::new(), Vec::new()]; specs.len()],
            keeps_flows: Vec::new(),
            specs,
            carries_tunnel: false,
            tunnel: None,
            installed: false,
            lan: Vec::new(),
            forward_link: None,
            installed_routes: Vec::new(),
            shortcut: None,
            needs_retry: false,
            repairs: Repairs::default(),
        };
        (links.states, _) = links.observe().map_err(cannot())?;
        // This only fills the known addresses: no address can be lost yet.
        for (known_addresses, state) in links.known_addresses.iter_mut().zip(&links.states) {
            lost_address(known_addresses, state);
        }
        Ok(links)
    }

    /// Returns the descriptor that becomes readable when the kernel notifies of a change. The caller then calls
    /// [`Self::has_news`].
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.monitor.fd()
    }

    /// Returns whether link `index` has an interface with a carrier, an address, and a route to its targets.
    pub fn is_up(&self, index: usize) -> bool {
        self.states[index].can_send_to(&self.specs[index].targets)
    }

    /// Returns whether link `index` can send IPv4 packets, and whether it can send IPv6 packets. Both are false
    /// while the link has no addresses or routes, for example because it is down.
    pub fn families_of(&self, index: usize) -> (bool, bool) {
        let (state, targets) = (&self.states[index], &self.specs[index].targets);
        (
            state.can_send_by(false, targets),
            state.can_send_by(true, targets),
        )
    }

    /// Returns the state of each link, by its index.
    pub fn states(&self) -> &[LinkState] {
        &self.states
    }

    /// Reads the pending notifications and returns whether one is relevant, so that the caller has to call
    /// [`Self::refresh`]. One change of the network causes many notifications, so callers wait a few
    /// milliseconds between this call and the refresh.
    pub fn has_news(&mut self) -> bool {
        let mut is_relevant = false;
        let was_overrun = self
            .monitor
            .drain(|message| is_relevant |= matters(&message));
        // Lost or unreadable notifications may have been relevant.
        is_relevant || was_overrun.unwrap_or(true)
    }

    /// Makes [`Self::install`] add the routing rules of the tunnel.
    pub fn carry_tunnel(&mut self) {
        self.carries_tunnel = true;
    }

    /// Installs the routing rules and routes, and removes the rules of an earlier instance of this name.
    ///
    /// - Packets from a source address of a link are routed by the link's own table.
    /// - If the links [carry the tunnel](Self::carry_tunnel), packets with the mark of a link's sockets are routed by
    ///   the link's own table, and packets with the tunnel's mark go [into the tunnel](Self::set_tunnel).
    /// - Packets with the instance's mark, which are intercepted, are delivered to this host, whatever their
    ///   destination.
    /// - Packets that come in by the interfaces `lan` take the first of these routes that exists: a route of the
    ///   main table except its default routes; the route over the link whose mark the packet has, if the link
    ///   [keeps its connections](Self::keep_flows); the route over the link of [`Self::forward_over`].
    /// - All other packets take the link of [`Self::forward_over`] too if the main table has no route.
    ///
    /// # Errors
    /// Fails if the kernel refuses a rule, or a route for intercepted packets.
    pub fn install(&mut self, lan: &[String]) -> Result<()> {
        let cannot = || SystemError::cannot("add routing rules");
        self.lan = lan.to_vec();
        if !lan.is_empty() {
            self.keeps_flows = vec![true; self.specs.len()];
        }
        self.installed = true;
        let routes = self.netlink.routes().map_err(cannot())?;
        self.reconcile_routes(&routes, true);
        for route in self.intercepting() {
            // `reconcile_routes` only logs failures. Without this route intercepted packets would not arrive
            // at any socket, so here a failure ends the start.
            self.netlink.replace_route(&route).map_err(cannot())?;
        }
        self.reconcile_rules(true).map_err(cannot())?;
        Ok(())
    }

    /// Replaces the settings of the links and the interfaces `lan`, and returns the new states of the links. If
    /// the interface at an index differs, the index now belongs to another link, and the state of its earlier
    /// link is forgotten. The caller has to call [`Self::refresh`] afterwards.
    ///
    /// # Errors
    /// Fails if the kernel refuses a rule, and restores the rules from before the call. Fails also if the
    /// kernel's interfaces and routes cannot be read.
    pub fn reconfigure(&mut self, specs: Vec<LinkSpec>, lan: &[String]) -> Result<Vec<LinkState>> {
        // A removed link keeps its place until the next reload. `forget_link` empties the place below, so the
        // link gets no routes.
        let places = specs.len().max(self.specs.len());
        self.states.resize(places, LinkState::default());
        self.gateways.resize(places, [None; 2]);
        self.known_addresses
            .resize(places, [Vec::new(), Vec::new()]);
        if !lan.is_empty() {
            self.keeps_flows.resize(places, true);
        }
        let before = std::mem::replace(&mut self.specs, specs);
        let lan_before = std::mem::replace(&mut self.lan, lan.to_vec());
        if let Err(error) = self.reconcile_rules(true) {
            (self.specs, self.lan) = (before, lan_before);
            if let Err(error) = self.reconcile_rules(true) {
                tracing::warn!(%error, "cannot restore the routing rules from before the reload");
            }
            return Err(SystemError::cannot("add routing rules")(error));
        }
        for index in 0..places {
            let interface = |specs: &[LinkSpec]| specs.get(index).map(|s| s.interface.clone());
            if interface(&before) != interface(&self.specs) {
                self.forget_link(index);
            }
        }
        let cannot = SystemError::cannot("read the state of the links");
        let (states, _) = self.observe().map_err(cannot)?;
        Ok(states)
    }

    /// Resets everything that was remembered about the link at an index.
    fn forget_link(&mut self, index: usize) {
        self.states[index] = LinkState::default();
        self.gateways[index] = [None; 2];
        self.known_addresses[index] = [Vec::new(), Vec::new()];
        if let Some(keeps_flows) = self.keeps_flows.get_mut(index) {
            *keeps_flows = true;
        }
        self.forward_link = self
            .forward_link
            .filter(|forward_link| *forward_link != index);
    }

    /// Changes the servers whose packets take the shortcut, if it is installed, and the MTU (bytes) that the
    /// engine assumes for each link.
    pub fn change_shortcut(&mut self, servers: &[SocketAddr], mtus: Vec<u16>) {
        if let Some(shortcut) = &mut self.shortcut {
            shortcut.change(servers, mtus);
        }
    }

    /// Installs the shortcut: packet filter rules that pass packets between the device `tun` and the links
    /// without routing, if they are between a link's source address and one of `servers`. The packets of a
    /// link whose MTU falls below its value in `mtus` (bytes) are routed. Returns the local ports that
    /// packets must have to take the shortcut.
    ///
    /// # Errors
    /// Fails if another instance has the shortcut, if its ports are not reserved for it, or if the kernel
    /// refuses the rules. The kernel then routes all packets.
    pub fn install_shortcut(
        &mut self,
        tun: &str,
        servers: &[SocketAddr],
        mtus: Vec<u16>,
    ) -> Result<RangeInclusive<u16>> {
        let mut shortcut = Shortcut::claim(tun, servers, mtus)?;
        self.update_shortcut(&mut shortcut)?;
        self.shortcut = Some(shortcut);
        Ok(Shortcut::ports())
    }

    /// Returns the index of the TUN device; `None` while it does not exist.
    fn tun_index(&self) -> Option<u32> {
        let tun = self.instance_names.tun();
        let mut interfaces = self.interfaces.iter();
        interfaces.find(|i| i.name == tun).map(|tun| tun.index)
    }

    /// Adapts the rules of the shortcut to the links, and returns the links whose packets may have another
    /// source address than before.
    fn update_shortcut(&mut self, shortcut: &mut Shortcut) -> Result<Vec<usize>> {
        let cannot = SystemError::cannot("read which interfaces shape received packets");
        let shaped = self.netlink.shaped_on_receipt().map_err(cannot)?;
        let tun_index = self.tun_index().unwrap_or_default();
        let host = (&*self.addresses, &*shaped, tun_index);
        shortcut.update(&self.specs, &self.states, host)
    }

    /// Reads the state of the links from the kernel and adapts routes, rules and shortcut to it. Returns the
    /// index of each link that changed, and whether its packets may have another source address than before. If
    /// `restores` is true, adds the rules and routes that another program removed, and counts them in
    /// [`repairs`](Self::repairs). Otherwise only sets [`Repairs::pending`] if something is missing.
    ///
    /// # Errors
    /// Fails if the kernel's interfaces, addresses or routes cannot be read.
    pub fn refresh(&mut self, restores: bool) -> Result<Vec<(usize, bool)>> {
        let cannot = || SystemError::cannot("read the state of the links");
        self.repairs = Repairs::default();
        let (states, routes) = self.observe().map_err(cannot())?;
        let mut changed = Vec::new();
        for (index, state) in states.into_iter().enumerate() {
            if self.states[index] != state {
                self.states[index] = state;
                // A lost address is reported only once. While the link is down nothing can be sent to learn
                // whether the servers still know its subflows, so the comparison waits until the link is up.
                let lost_address = self.is_up(index)
                    && lost_address(&mut self.known_addresses[index], &self.states[index]);
                changed.push((index, lost_address));
            }
        }
        // The routes are compared even if no link changed. An interface may have been down between two
        // refreshes: the kernel then deleted its routes, but its state looks the same as before.
        self.reconcile_routes(&routes, restores);
        if let Err(error) = self.reconcile_rules(restores) {
            tracing::warn!(%error, "cannot add routing rules; the next attempt follows");
            self.repairs.pending = true;
        }
        self.refresh_shortcut(restores, &mut changed);
        Ok(changed)
    }

    /// Adapts the shortcut to the links, and adds to `changed` the links whose packets may have another source
    /// address. Loads rules that another program removed only if `restores` is true.
    fn refresh_shortcut(&mut self, restores: bool, changed: &mut Vec<(usize, bool)>) {
        // Without the TUN device there can be no rules; the refresh after its return loads them.
        let Some(tun_index) = self.tun_index() else {
            return;
        };
        let Some(mut shortcut) = self.shortcut.take() else {
            return;
        };
        // The kernel itself removes the rules of an interface that vanishes. So missing rules count as
        // another program's damage only if no link changed.
        let damaged = shortcut.is_damaged(tun_index) && changed.is_empty();
        if damaged && !restores {
            self.repairs.pending = true;
        } else {
            self.repairs.shortcut = damaged;
            let updated = self.update_shortcut(&mut shortcut);
            self.needs_retry = updated.is_err();
            match updated {
                Ok(switched) => {
                    // Shortcut and routing translate source addresses by different rules. So if the packets of a
                    // link switch from one to the other, they may have another source address, even if the link
                    // lost no address.
                    for index in switched {
                        changed.retain(|(other, _)| *other != index);
                        changed.push((index, true));
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot update the rules of the shortcut; the next attempt \
                                                      follows")
                }
            }
        }
        self.shortcut = Some(shortcut);
    }

    /// Returns the repairs of the last [refresh](Self::refresh).
    pub fn repairs(&self) -> Repairs {
        self.repairs
    }

    /// Returns whether the last update of the shortcut failed, so that the caller has to call
    /// [`refresh`](Self::refresh) again in a while, even without notifications.
    pub fn needs_retry(&self) -> bool {
        self.needs_retry
    }

    /// Sets whether connections that are forwarded over link `index` stay on it when new connections take
    /// another link. Otherwise existing connections move to the other link too. A TCP connection does not
    /// survive this move, since its source address changes.
    pub fn keep_flows(&mut self, index: usize, keep: bool) {
        if let Some(keeps_flows) = self.keeps_flows.get_mut(index) {
            *keeps_flows = keep;
            self.update_routes();
        }
    }

    /// Returns the packets sent and received by each link; `None` for a link without interface.
    ///
    /// # Errors
    /// Fails if the counters cannot be read.
    pub fn packets(&mut self) -> Result<Vec<Option<Packets>>> {
        let netlink = &mut self.netlink;
        let packets = self.specs.iter().map(|spec| {
            let found = netlink.interface(&spec.interface);
            let found = found.map_err(SystemError::cannot("read the counters of the links"));
            Ok(found?.map(|interface| interface.packets))
        });
        packets.collect()
    }

    /// Makes new forwarded connections take link `index`.
    pub fn forward_over(&mut self, index: usize) {
        if self.forward_link != Some(index) && index < self.specs.len() {
            self.forward_link = Some(index);
            self.update_routes();
        }
    }

    /// Routes packets with the [tunnel's mark](InstanceNames::tunnel_mark) of these families (IPv4, IPv6) into the packet
    /// device of the tunnel. Packets of the other families are routed as if they had no mark, and so are all such packets
    /// if another program removes the device. `readdressed` is true after addresses of the device changed: the kernel may
    /// have removed routes together with an address.
    pub fn set_tunnel(&mut self, (v4, v6): (bool, bool), readdressed: bool) {
        let tunnel = (v4 || v6).then_some(TunnelRoute { v4, v6 });
        if self.tunnel != tunnel || readdressed {
            self.tunnel = tunnel;
            self.update_routes();
        }
    }

    /// Returns the link that new forwarded connections take.
    pub fn forwarding(&self) -> Option<usize> {
        self.forward_link
    }

    /// Returns the addresses of all interfaces at the last refresh, without link-local addresses.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// Returns all interfaces at the last refresh.
    pub fn interfaces(&self) -> &[Interface] {
        &self.interfaces
    }

    /// Returns the destination networks of the main table's routes at the last refresh, except default routes
    /// and routes to the instance's own devices.
    pub fn reached(&self) -> &[IpNet] {
        &self.reached
    }

    /// Returns the address families that a link uses: false for IPv4, true for IPv6.
    fn families(&self) -> Vec<bool> {
        let used = |v6: &bool| self.specs.iter().any(|s| s.next_hop(*v6) != NextHop::None);
        // A kernel without IPv6 refuses IPv6 rules.
        [false, true]
            .into_iter()
            .filter(used)
            .filter(|v6| !v6 || has_ipv6())
            .collect()
    }

    /// Reads interfaces, addresses and routes from the kernel. Returns the state of each link, and all routes.
    fn observe(&mut self) -> io::Result<(Vec<LinkState>, Routes)> {
        self.interfaces = self.netlink.interfaces()?;
        self.addresses = self.netlink.addresses()?;
        let routes = self.netlink.routes()?;
        let interfaces = &self.interfaces;
        let index_of = |name: &str| interfaces.iter().find(|i| i.name == name).map(|i| i.index);
        let links = self.specs.iter().map(|spec| &*spec.interface);
        let links: Vec<u32> = links.filter_map(index_of).collect();
        let own = self.instance_names.devices();
        let own: Vec<u32> = own.iter().filter_map(|name| index_of(name)).collect();
        self.reached = routes.networks(&own, &links);
        let defaults = routes.defaults();
        let mut states = Vec::with_capacity(self.specs.len());
        for (spec, gateways) in self.specs.iter().zip(&mut self.gateways) {
            let mut state = observe(spec, interfaces, &self.addresses, &defaults);
            remember_gateways(spec, &mut state, gateways, interfaces);
            states.push(state);
        }
        Ok((states, routes))
    }

    /// Reads the kernel's routes and adapts them to the links.
    fn update_routes(&mut self) {
        match self.netlink.routes() {
            Ok(routes) => self.reconcile_routes(&routes, true),
            Err(error) => {
                tracing::warn!(%error, "cannot read the routes; links keep the routes that they have")
            }
        }
    }

    /// Adds missing routes and removes unwanted ones. `existing` holds the kernel's routes. If `restores` is
    /// false, routes that another program removed are not added again. Failures are only logged, since an
    /// interface may vanish any time. The kernel notifies of the change that caused the failure, and the
    /// refresh after this notification tries again.
    fn reconcile_routes(&mut self, existing: &Routes, restores: bool) {
        let existing = existing.own(|table| self.instance_names.owns_table(table));
        let wanted = self.wanted_routes();
        let mut installed_routes = Vec::with_capacity(wanted.len());
        for route in &wanted {
            if existing.contains(route) {
                installed_routes.push(*route);
                continue;
            }
            if self.installed_routes.contains(route) {
                if !restores {
                    self.repairs.pending = true;
                    // The route stays in the list, so that the next call with `restores` still finds that
                    // another program removed it.
                    installed_routes.push(*route);
                    continue;
                }
                self.repairs.routes += 1;
            }
            match self.netlink.replace_route(route) {
                Ok(()) => installed_routes.push(*route),
                Err(error) => {
                    tracing::debug!(?route, %error, "cannot add a route; the next attempt follows \
                                                               when the interface changes")
                }
            }
        }
        self.installed_routes = installed_routes;
        let is_kept = |route: &Route| {
            // Forwarded connections stay on the route of an earlier instance until a link is chosen.
            let keeps_earlier =
                route.table == self.instance_names.forward_table() && self.forward_link.is_none();
            keeps_earlier && !self.lan.is_empty()
                || wanted.iter().any(|other| other.replaces(route))
        };
        for route in existing.iter().filter(|route| !is_kept(route)) {
            if let Err(error) = self.netlink.delete_route(route) {
                tracing::debug!(?route, %error, "cannot remove a route");
            }
        }
    }

    /// Adds missing rules and removes unwanted ones, of each family and priority. The kernel tries rules of one
    /// priority in the order in which they were added, so a rule cannot be added between others. Therefore all
    /// wanted rules from the first difference on are added at the end. After that, the old rules from the first
    /// difference on are removed. In this order, no packet is routed while rules are missing.
    fn reconcile_rules(&mut self, restores: bool) -> io::Result<()> {
        if !self.installed {
            return Ok(());
        }
        let existing = self
            .netlink
            .rules(|p| self.instance_names.owns_priority(p))?;
        let wanted = self.wanted_rules();
        for v6 in [false, true] {
            for priority in self.instance_names.priorities() {
                let in_group = |rule: &&Rule| (rule.v6, rule.priority) == (v6, priority);
                let existing: Vec<&Rule> = existing.iter().filter(in_group).collect();
                let wanted: Vec<&Rule> = wanted.iter().filter(in_group).collect();
                let equal = existing.iter().zip(&wanted).take_while(|(a, b)| a == b);
                let equal_count = equal.count();
                let missing = wanted
                    .iter()
                    .filter(|rule| !existing.contains(rule))
                    .count();
                if equal_count == wanted.len() && equal_count == existing.len() {
                    continue;
                }
                if !restores {
                    self.repairs.pending = true;
                    continue;
                }
                for rule in &wanted[equal_count..] {
                    self.netlink.append_rule(rule)?;
                }
                // Of two equal rules the kernel deletes the first, which is the old one.
                for rule in &existing[equal_count..] {
                    self.netlink.delete_rule(rule)?;
                }
                self.repairs.rules += missing;
            }
        }
        Ok(())
    }

    /// Returns the wanted rules. Rules of one priority are in the order in which the kernel shall try them.
    fn wanted_rules(&self) -> Vec<Rule> {
        let mut rules = Vec::new();
        for (index, spec) in self.specs.iter().enumerate() {
            rules.extend(spec.sources.iter().map(|source| Rule {
                v6: source.is_ipv6(),
                priority: self.instance_names.rule_priority(),
                table: table(&self.instance_names, index),
                from: Some(*source),
                ..Rule::default()
            }));
            if self.carries_tunnel {
                rules.extend(self.socket_rules(index, spec));
            }
        }
        if self.lan.is_empty() {
            return rules;
        }
        for v6 in self.families() {
            if self.carries_tunnel {
                // If the device of the tunnel is missing, its table is empty, and the rules below route the packet.
                rules.push(Rule {
                    v6,
                    priority: self.instance_names.rule_priority(),
                    table: self.instance_names.tunnel_table(),
                    mark: Some(self.instance_names.tunnel_mark()),
                    ..Rule::default()
                });
            }
            // This rule shares the priority of the links' rules. Its place among them does not matter: packets
            // from a link's source come from the engine and never have the mark.
            rules.push(Rule {
                v6,
                priority: self.instance_names.rule_priority(),
                table: self.instance_names.intercept_table(),
                mark: Some(self.instance_names.mark()),
                ..Rule::default()
            });
            for iif in &self.lan {
                self.forwarding_rules(v6, iif, &mut rules);
            }
            rules.push(Rule {
                v6,
                priority: self.instance_names.fallback_rule_priority(),
                table: self.instance_names.forward_table(),
                ..Rule::default()
            });
        }
        rules
    }

    /// Returns the rules for the packets that the tunnel sends over a link, one for each family of its sources.
    fn socket_rules(&self, index: usize, spec: &LinkSpec) -> impl Iterator<Item = Rule> {
        let families = [false, true].into_iter();
        let used = families.filter(|v6| spec.sources.iter().any(|source| source.is_ipv6() == *v6));
        let rule = Rule {
            priority: self.instance_names.rule_priority(),
            table: table(&self.instance_names, index),
            mark: Some(self.instance_names.socket_mark(number(index))),
            ..Rule::default()
        };
        used.map(move |v6| Rule { v6, ..rule.clone() })
    }

    fn forwarding_rules(&self, v6: bool, iif: &str, rules: &mut Vec<Rule>) {
        let rule = Rule {
            v6,
            priority: self.instance_names.forward_rule_priority(),
            table: self.instance_names.forward_table(),
            iif: Some(iif.to_owned()),
            ..Rule::default()
        };
        // The main table's routes with a prefix longer than 0 come first, so that local networks stay
        // reachable. Its default routes are suppressed: Braid chooses the link.
        rules.push(Rule {
            table: MAIN_TABLE,
            suppress_prefix_len: Some(0),
            ..rule.clone()
        });
        rules.extend((0..self.specs.len()).map(|index| Rule {
            table: self.instance_names.flow_table(number(index)),
            mark: Some(self.instance_names.flow_mark(number(index))),
            ..rule.clone()
        }));
        rules.push(rule);
    }

    /// Returns the wanted routes. A route to a network comes before the default route whose gateway is in the
    /// network, since the kernel refuses a gateway that it has no route to.
    fn wanted_routes(&self) -> Vec<Route> {
        let mut routes = Vec::new();
        if !self.installed {
            return routes;
        }
        for (index, (spec, state)) in self.specs.iter().zip(&self.states).enumerate() {
            let table = table(&self.instance_names, index);
            for v6 in [false, true] {
                if !spec.sources.iter().any(|s| s.is_ipv6() == v6) {
                    continue;
                }
                if spec.exclusive {
                    // This route ends the look-up, so that the main table does not send the packets out of
                    // another link.
                    let target = Target::Unreachable;
                    routes.push(Route::default_of(v6, table, target, UNREACHABLE_METRIC));
                }
                let on_link = state.addresses.iter().filter(|a| a.addr.is_ipv6() == v6);
                for address in on_link.filter(|_| state.running) {
                    let route = connected(address, table);
                    // The route of another address in the same network is equal.
                    if !routes.contains(&route) {
                        routes.push(route);
                    }
                }
                routes.extend(default_of(v6, table, state));
            }
        }
        for v6 in self.families() {
            let links = self.keeps_flows.iter().zip(&self.states).enumerate();
            routes.extend(
                links
                    .filter(|(_, (keeps_flows, _))| **keeps_flows)
                    .filter_map(|(index, (_, state))| {
                        default_of(v6, self.instance_names.flow_table(number(index)), state)
                    }),
            );
            let forward_link = self.forward_link.map(|index| &self.states[index]);
            let table = self.instance_names.forward_table();
            routes.extend(forward_link.and_then(|state| default_of(v6, table, state)));
        }
        routes.extend(self.intercepting());
        routes.extend(self.tunnel_routes());
        routes
    }

    /// Returns the routes into the packet device of the tunnel.
    fn tunnel_routes(&self) -> Vec<Route> {
        let name = self.instance_names.tunnel_device();
        let device = self.interfaces.iter().find(|i| i.name == name);
        let (Some(tunnel), Some(device)) = (self.tunnel, device) else {
            return Vec::new();
        };
        let families = [(false, tunnel.v4), (true, tunnel.v6)].into_iter();
        let table = self.instance_names.tunnel_table();
        let target = Target::Via {
            interface: device.index,
            gateway: None,
        };
        let used = families.filter(|(_, is_used)| *is_used);
        used.map(|(v6, _)| Route::default_of(v6, table, target, ROUTE_METRIC))
            .collect()
    }

    /// Returns the routes that deliver intercepted packets to this host.
    fn intercepting(&self) -> Vec<Route> {
        if self.lan.is_empty() {
            return Vec::new();
        }
        let loopback = self.interfaces.iter().find(|i| i.name == "lo");
        // Index 1 is the loopback device in every network namespace.
        let interface = loopback.map_or(1, |lo| lo.index);
        let table = self.instance_names.intercept_table();
        let route = |v6| Route::default_of(v6, table, Target::Local { interface }, ROUTE_METRIC);
        self.families().into_iter().map(route).collect()
    }
}

/// Returns the routing table for packets from the sources of link `index`.
fn table(instance_names: &InstanceNames, index: usize) -> u32 {
    instance_names.path_table(number(index))
}

/// Returns the index of a link as [`InstanceNames`] encodes it. No index exceeds the maximum, since
/// [`Links::new`] takes at most 253 links.
fn number(link: usize) -> u8 {
    u8::try_from(link).unwrap_or(u8::MAX)
}

/// Returns whether a notification is a reason to read the state again. A reason is a change of an interface, an
/// address, a route of the main table, another program's default route, or a queueing discipline for incoming
/// packets. Another reason is the removal of a route or rule of Braid's own.
///
/// New routes and rules of Braid are no reason, since Braid itself added them. The rules of other programs have
/// no influence on the state that is read here.
fn matters(message: &RouteNetlinkMessage) -> bool {
    match message {
        RouteNetlinkMessage::NewRoute(route) => {
            let is_default = route.header.destination_prefix_length == 0;
            route.header.protocol != PROTOCOL && (is_default || table_of(route) == MAIN_TABLE)
        }
        RouteNetlinkMessage::DelRoute(route) => {
            let is_default = route.header.destination_prefix_length == 0;
            let is_own = route.header.protocol == PROTOCOL;
            is_own || is_default || table_of(route) == MAIN_TABLE
        }
        RouteNetlinkMessage::DelRule(rule) => is_own_rule(rule),
        RouteNetlinkMessage::NewQueueDiscipline(message)
        | RouteNetlinkMessage::DelQueueDiscipline(message) => {
            ingress_shaper_interface(message).is_some()
        }
        RouteNetlinkMessage::NewLink(_)
        | RouteNetlinkMessage::DelLink(_)
        | RouteNetlinkMessage::NewAddress(_)
        | RouteNetlinkMessage::DelAddress(_) => true,
        // Programs that adapt a shaper to the link's rate change its classes and filters all the time.
        _ => false,
    }
}

/// Returns whether this network namespace has IPv6.
pub fn has_ipv6() -> bool {
    std::path::Path::new("/proc/sys/net/ipv6").exists()
}

/// Returns the route to the network of `address`.
fn connected(address: &Address, table: u32) -> Route {
    Route {
        table,
        destination: network(address).addr(),
        prefix_len: address.prefix_len,
        target: Target::Via {
            interface: address.interface,
            gateway: None,
        },
        metric: ROUTE_METRIC,
    }
}

/// Returns the default route out of a link for `table`; `None` if the link cannot send packets of the family.
fn default_of(v6: bool, table: u32, state: &LinkState) -> Option<Route> {
    let usable = state.exit(v6).filter(|_| state.has_family(v6));
    let Exit { interface, gateway } = usable?;
    let target = Target::Via { interface, gateway };
    Some(Route::default_of(v6, table, target, ROUTE_METRIC))
}
