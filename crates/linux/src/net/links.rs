//! The access links as the kernel has them, and the routing that ties source addresses to links.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::os::fd::BorrowedFd;

use ipnet::IpNet;
use netlink_packet_route::RouteNetlinkMessage;

use super::link::{
    Exit, LinkSpec, LinkState, NextHop, network, observe, readdressed, remember_gateways,
};
use super::netlink::Netlink;
use super::routes::{
    Address, Interface, MAIN_TABLE, PROTOCOL, Packets, Route, Routes, Rule, Target,
    UNREACHABLE_METRIC, is_own_rule, on_receipt, table_of,
};
use super::shortcut::Shortcut;
use super::{InstanceNames, Result, SystemError};

/// Multicast groups of notifications (`RTNLGRP_*`, linux/rtnetlink.h), one bit each: links and traffic
/// control, then IPv4's addresses, routes, rules and settings of interfaces.
const NETLINK_GROUPS: u32 = 1 | 1 << 3 | 1 << 4 | 1 << 6 | 1 << 7 | 1 << 23 | NETLINK_GROUPS_V6;
// The same for IPv6: addresses, routes, rules, settings.
const NETLINK_GROUPS_V6: u32 = 1 << 8 | 1 << 10 | 1 << 18 | 1 << 24;
/// Metric of the routes in the links' tables, below [`UNREACHABLE_METRIC`], so that they are preferred.
const ROUTE_METRIC: u32 = 100;

/// The links of an instance and their routing tables.
#[derive(Debug)]
pub struct Links {
    instance_names: InstanceNames,
    netlink: Netlink,
    monitor: Netlink,
    specs: Vec<LinkSpec>,
    states: Vec<LinkState>,
    interfaces: Vec<Interface>,
    addresses: Vec<Address>,
    /// Networks that the main table reaches, without default routes.
    reached: Vec<IpNet>,
    /// The last gateway of each link by family: taking an interface down deletes its routes, and not every
    /// program that brings the interface up again puts them back.
    gateways: Vec<[Option<IpAddr>; 2]>,
    /// The addresses of each link by family when the link was last up and had any.
    known: Vec<[Vec<IpAddr>; 2]>,
    /// The rules are [installed](Self::install).
    installed: bool,
    /// Interfaces whose incoming connections are intercepted or forwarded over the links.
    lan: Vec<String>,
    forward: Option<usize>,
    /// For each link, true if forwarded connections stay on it; empty if nothing is forwarded.
    keeps: Vec<bool>,
    /// The routes that were added and are still wanted. If one of them is missing, another program removed
    /// it.
    made: Vec<Route>,
    shortcut: Option<Shortcut>,
    needs_retry: bool,
    repairs: Repairs,
}

/// Counts of things that were missing although nothing about the links had changed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Repairs {
    /// Routing rules that were added again.
    pub rules: usize,
    /// Routes that were added again.
    pub routes: usize,
    /// The rules of the shortcut were loaded again.
    pub shortcut: bool,
    /// Something is still missing.
    pub pending: bool,
}

impl Links {
    /// Watches `specs` (at most 255), without touching any routing yet.
    ///
    /// # Errors
    /// Fails if the system refuses.
    pub fn new(instance_names: &InstanceNames, specs: Vec<LinkSpec>) -> Result<Links> {
        let doing = || SystemError::doing("watch network interfaces");
        let mut links = Links {
            instance_names: instance_names.clone(),
            netlink: Netlink::open().map_err(doing())?,
            monitor: Netlink::subscribe(NETLINK_GROUPS).map_err(doing())?,
            states: vec![LinkState::default(); specs.len()],
            interfaces: Vec::new(),
            addresses: Vec::new(),
            reached: Vec::new(),
            gateways: vec![[None; 2]; specs.len()],
            known: vec![[Vec::new(), Vec::new()]; specs.len()],
            keeps: Vec::new(),
            specs,
            installed: false,
            lan: Vec::new(),
            forward: None,
            made: Vec::new(),
            shortcut: None,
            needs_retry: false,
            repairs: Repairs::default(),
        };
        (links.states, _) = links.observe().map_err(doing())?;
        for (known, state) in links.known.iter_mut().zip(&links.states) {
            readdressed(known, state);
        }
        Ok(links)
    }

    /// Returns the descriptor that is readable when something changed.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.monitor.fd()
    }

    /// Returns whether link `index` can be used.
    pub fn is_up(&self, index: usize) -> bool {
        self.states[index].leads_to(&self.specs[index].targets)
    }

    /// Returns the families by which link `index` leads out, IPv4 and IPv6. Both are false while that is
    /// unknown, for example while the link is down.
    pub fn families_of(&self, index: usize) -> (bool, bool) {
        let (state, targets) = (&self.states[index], &self.specs[index].targets);
        (
            state.leads_by(false, targets),
            state.leads_by(true, targets),
        )
    }

    /// Returns the links' states, in the order of their settings.
    pub fn states(&self) -> &[LinkState] {
        &self.states
    }

    /// Takes notifications off the monitor and returns whether any matters; then [`Self::refresh`] is due.
    /// One event of the network comes as many messages, so callers wait a few milliseconds in between.
    pub fn has_news(&mut self) -> bool {
        let mut heard = false;
        let lost = self.monitor.drain(|message| heard |= matters(&message));
        // If notifications cannot be read, only the state itself tells what changed.
        heard || lost.unwrap_or(true)
    }

    /// Steers the sources of each link into a table of its own, in place of the rules of an earlier instance
    /// of this name. Packets that come in by the interfaces `lan` follow [`Self::forward_over`], except to
    /// networks that the main table has a route to, and except packets with the mark of a link that
    /// [keeps](Self::keep_flows) its connections. All other packets follow it too if the main table has no
    /// default route. Packets with the instance's mark are delivered to this host, whatever their
    /// destination.
    ///
    /// # Errors
    /// Fails if the system refuses.
    pub fn install(&mut self, lan: &[String]) -> Result<()> {
        let doing = || SystemError::doing("add routing rules");
        self.lan = lan.to_vec();
        if !lan.is_empty() {
            self.keeps = vec![true; self.specs.len()];
        }
        self.installed = true;
        let routes = self.netlink.routes().map_err(doing())?;
        self.reconcile_routes(&routes, true);
        for route in self.intercepting() {
            // Without this route, intercepted connections would be sent nowhere, so a failure ends the start.
            self.netlink.replace_route(&route).map_err(doing())?;
        }
        self.reconcile_rules(true).map_err(doing())?;
        Ok(())
    }

    /// Changes the links and the interfaces `lan`, and returns the states of the links. An index whose
    /// interface changed has a new link. After this call [`Self::refresh`] is due.
    ///
    /// # Errors
    /// Fails if the system refuses; the rules are as before then.
    pub fn reconfigure(&mut self, specs: Vec<LinkSpec>, lan: &[String]) -> Result<Vec<LinkState>> {
        let places = specs.len().max(self.specs.len());
        self.states.resize(places, LinkState::default());
        self.gateways.resize(places, [None; 2]);
        self.known.resize(places, [Vec::new(), Vec::new()]);
        if !lan.is_empty() {
            self.keeps.resize(places, true);
        }
        let before = std::mem::replace(&mut self.specs, specs);
        let lan_before = std::mem::replace(&mut self.lan, lan.to_vec());
        if let Err(error) = self.reconcile_rules(true) {
            (self.specs, self.lan) = (before, lan_before);
            if let Err(error) = self.reconcile_rules(true) {
                tracing::warn!(%error, "cannot restore the routing rules from before the reload");
            }
            return Err(SystemError::doing("add routing rules")(error));
        }
        for index in 0..places {
            let interface = |specs: &[LinkSpec]| specs.get(index).map(|s| s.interface.clone());
            if interface(&before) != interface(&self.specs) {
                self.vacate(index);
            }
        }
        let doing = SystemError::doing("read the state of the links");
        let (states, _) = self.observe().map_err(doing)?;
        Ok(states)
    }

    /// Forgets the link that was at an index.
    fn vacate(&mut self, index: usize) {
        self.states[index] = LinkState::default();
        self.gateways[index] = [None; 2];
        self.known[index] = [Vec::new(), Vec::new()];
        if let Some(keeps) = self.keeps.get_mut(index) {
            *keeps = true;
        }
        self.forward = self.forward.filter(|forward| *forward != index);
    }

    /// Changes the servers that the shortcut is for, if there is one, and the MTU (bytes) that the engine
    /// assumes for each link.
    pub fn change_shortcut(&mut self, servers: &[SocketAddr], mtus: Vec<u16>) {
        if let Some(shortcut) = &mut self.shortcut {
            shortcut.change(servers, mtus);
        }
    }

    /// Lets packets of the links' sources to and from `servers` go between `tun` and the links without being
    /// routed. A link whose MTU falls below its value in `mtus` (bytes) is routed again. The sources have to
    /// use the ports that are returned.
    ///
    /// # Errors
    /// Fails if there can be no shortcut here; the packets are routed then.
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

    fn update_shortcut(&mut self, shortcut: &mut Shortcut) -> Result<Vec<usize>> {
        let doing = SystemError::doing("read which interfaces shape received packets");
        let shaped = self.netlink.shaped_on_receipt().map_err(doing)?;
        shortcut.update(&self.specs, &self.states, &self.addresses, &shaped)
    }

    /// Reads the links' state anew, reconciles the routing, and returns the links that changed: their index,
    /// and whether packets may leave with another address than before. If `restores`, whatever another
    /// program removed is put back, and [`repairs`](Self::repairs) counts it.
    ///
    /// # Errors
    /// Fails if the state cannot be read.
    pub fn refresh(&mut self, restores: bool) -> Result<Vec<(usize, bool)>> {
        let doing = || SystemError::doing("read the state of the links");
        self.repairs = Repairs::default();
        let (states, routes) = self.observe().map_err(doing())?;
        let mut changed = Vec::new();
        for (index, state) in states.into_iter().enumerate() {
            if self.states[index] != state {
                self.states[index] = state;
                let readdressed =
                    self.is_up(index) && readdressed(&mut self.known[index], &self.states[index]);
                changed.push((index, readdressed));
            }
        }
        // Needed even if no link changed: an interface that was down for a moment lost its routes.
        self.reconcile_routes(&routes, restores);
        if let Err(error) = self.reconcile_rules(restores) {
            tracing::warn!(%error, "cannot add routing rules; the next attempt follows");
            self.repairs.pending = true;
        }
        self.refresh_shortcut(restores, &mut changed);
        Ok(changed)
    }

    fn refresh_shortcut(&mut self, restores: bool, changed: &mut Vec<(usize, bool)>) {
        let Some(mut shortcut) = self.shortcut.take() else {
            return;
        };
        // When an interface vanishes, the kernel itself removes its rules: that is no damage by another
        // program.
        let damaged = shortcut.is_damaged() && changed.is_empty();
        if damaged && !restores {
            self.repairs.pending = true;
        } else {
            self.repairs.shortcut = damaged;
            let updated = self.update_shortcut(&mut shortcut);
            self.needs_retry = updated.is_err();
            match updated {
                Ok(moved) => {
                    for index in moved {
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

    /// Returns what the last [refresh](Self::refresh) found missing.
    pub fn repairs(&self) -> Repairs {
        self.repairs
    }

    /// Returns whether something could not be reconciled with the links, so that another
    /// [`refresh`](Self::refresh) is due in a while even without news.
    pub fn needs_retry(&self) -> bool {
        self.needs_retry
    }

    /// Sets whether the connections that are forwarded over link `index` stay on it when new ones take
    /// another link. If they do not stay, they move with the new ones, and those that are bound to the link's
    /// address break.
    pub fn keep_flows(&mut self, index: usize, keep: bool) {
        if let Some(keeps) = self.keeps.get_mut(index) {
            *keeps = keep;
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
            let found = found.map_err(SystemError::doing("read the counters of the links"));
            Ok(found?.map(|interface| interface.packets))
        });
        packets.collect()
    }

    /// Forwards over link `index` from now on.
    pub fn forward_over(&mut self, index: usize) {
        if self.forward != Some(index) && index < self.specs.len() {
            self.forward = Some(index);
            self.update_routes();
        }
    }

    /// Returns the link that is forwarded over.
    pub fn forwarding(&self) -> Option<usize> {
        self.forward
    }

    /// Returns the addresses of all interfaces, without link-local ones, as of the last look.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// Returns all interfaces, as of the last look.
    pub fn interfaces(&self) -> &[Interface] {
        &self.interfaces
    }

    /// Returns the networks that the main table reaches, as of the last look, without default routes and
    /// routes to the instance's own device.
    pub fn reached(&self) -> &[IpNet] {
        &self.reached
    }

    /// Returns the address families in use, each as `v6`.
    fn families(&self) -> Vec<bool> {
        let used = |v6: &bool| self.specs.iter().any(|s| s.next_hop(*v6) != NextHop::None);
        // A kernel without IPv6 refuses IPv6 rules.
        [false, true]
            .into_iter()
            .filter(used)
            .filter(|v6| !v6 || has_ipv6())
            .collect()
    }

    fn observe(&mut self) -> io::Result<(Vec<LinkState>, Routes)> {
        self.interfaces = self.netlink.interfaces()?;
        self.addresses = self.netlink.addresses()?;
        let routes = self.netlink.routes()?;
        let interfaces = &self.interfaces;
        let index_of = |name: &str| interfaces.iter().find(|i| i.name == name).map(|i| i.index);
        let links = self.specs.iter().map(|spec| &*spec.interface);
        let links: Vec<u32> = links.filter_map(index_of).collect();
        self.reached = routes.networks(index_of(self.instance_names.tun()), &links);
        let defaults = routes.defaults();
        let mut states = Vec::with_capacity(self.specs.len());
        for (spec, gateways) in self.specs.iter().zip(&mut self.gateways) {
            let mut state = observe(spec, interfaces, &self.addresses, &defaults);
            remember_gateways(spec, &mut state, gateways, interfaces);
            states.push(state);
        }
        Ok((states, routes))
    }

    /// Reconciles the routes with what is wanted now.
    fn update_routes(&mut self) {
        match self.netlink.routes() {
            Ok(routes) => self.reconcile_routes(&routes, true),
            Err(error) => {
                tracing::warn!(%error, "cannot read the routes; links keep the routes that they have")
            }
        }
    }

    /// Adds missing routes and removes unwanted ones; `there` holds the routes that exist. Failures are
    /// logged only, since an interface may vanish any time; the event that caused the failure brings another
    /// try.
    fn reconcile_routes(&mut self, there: &Routes, restores: bool) {
        let there = there.own(|table| self.instance_names.owns_table(table));
        let wanted = self.wanted_routes();
        let mut made = Vec::with_capacity(wanted.len());
        for route in &wanted {
            if there.contains(route) {
                made.push(*route);
                continue;
            }
            if self.made.contains(route) {
                if !restores {
                    self.repairs.pending = true;
                    // Keeps the route among those that another program removed.
                    made.push(*route);
                    continue;
                }
                self.repairs.routes += 1;
            }
            match self.netlink.replace_route(route) {
                Ok(()) => made.push(*route),
                Err(error) => {
                    tracing::debug!(?route, %error, "cannot add a route; the next attempt follows \
                                                               when the interface changes")
                }
            }
        }
        self.made = made;
        let kept = |route: &Route| {
            // Forwarded connections stay on the route of an earlier instance until a link is chosen.
            let undecided =
                route.table == self.instance_names.forward_table() && self.forward.is_none();
            undecided && !self.lan.is_empty() || wanted.iter().any(|other| other.replaces(route))
        };
        for route in there.iter().filter(|route| !kept(route)) {
            if let Err(error) = self.netlink.delete_route(route) {
                tracing::debug!(?route, %error, "cannot remove a route");
            }
        }
    }

    /// Adds missing rules and removes unwanted ones. Among rules of one priority the kernel asks the oldest
    /// first. So all rules behind a missing one are added again before the old ones are removed: no packet
    /// meets a moment without rules.
    fn reconcile_rules(&mut self, restores: bool) -> io::Result<()> {
        if !self.installed {
            return Ok(());
        }
        let there = self
            .netlink
            .rules(|p| self.instance_names.owns_priority(p))?;
        let wanted = self.wanted_rules();
        for v6 in [false, true] {
            for priority in self.instance_names.priorities() {
                let here = |rule: &&Rule| (rule.v6, rule.priority) == (v6, priority);
                let there: Vec<&Rule> = there.iter().filter(here).collect();
                let wanted: Vec<&Rule> = wanted.iter().filter(here).collect();
                let same = there.iter().zip(&wanted).take_while(|(a, b)| a == b);
                let same = same.count();
                let missing = wanted.iter().filter(|rule| !there.contains(rule)).count();
                if same == wanted.len() && same == there.len() {
                    continue;
                }
                if !restores {
                    self.repairs.pending = true;
                    continue;
                }
                for rule in &wanted[same..] {
                    self.netlink.append_rule(rule)?;
                }
                // The kernel deletes the first of equal rules, which is the old one.
                for rule in &there[same..] {
                    self.netlink.delete_rule(rule)?;
                }
                self.repairs.rules += missing;
            }
        }
        Ok(())
    }

    /// Returns the wanted rules, those of one priority in the order in which the kernel asks them.
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
        }
        if self.lan.is_empty() {
            return rules;
        }
        for v6 in self.families() {
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

    fn forwarding_rules(&self, v6: bool, iif: &str, rules: &mut Vec<Rule>) {
        let forward = Rule {
            v6,
            priority: self.instance_names.forward_rule_priority(),
            table: self.instance_names.forward_table(),
            iif: Some(iif.to_owned()),
            ..Rule::default()
        };
        // Specific routes of the main table come first; its default routes are suppressed.
        rules.push(Rule {
            table: MAIN_TABLE,
            suppress_prefix_len: Some(0),
            ..forward.clone()
        });
        rules.extend((0..self.specs.len()).map(|index| Rule {
            table: self.instance_names.flow_table(number(index)),
            mark: Some(self.instance_names.flow_mark(number(index))),
            ..forward.clone()
        }));
        rules.push(forward);
    }

    /// Returns the wanted routes. Routes to networks come before the default routes whose gateways they
    /// reach.
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
                    let nowhere = Target::Unreachable;
                    routes.push(Route::default_of(v6, table, nowhere, UNREACHABLE_METRIC));
                }
                let on_link = state.addresses.iter().filter(|a| a.addr.is_ipv6() == v6);
                for address in on_link.filter(|_| state.running) {
                    let route = connected(address, table);
                    // Several addresses may be in one network.
                    if !routes.contains(&route) {
                        routes.push(route);
                    }
                }
                routes.extend(default_of(v6, table, state));
            }
        }
        for v6 in self.families() {
            let kept = self.keeps.iter().zip(&self.states).enumerate();
            routes.extend(kept.filter(|(_, (keeps, _))| **keeps).filter_map(
                |(index, (_, state))| {
                    default_of(v6, self.instance_names.flow_table(number(index)), state)
                },
            ));
            let forward = self.forward.map(|index| &self.states[index]);
            let table = self.instance_names.forward_table();
            routes.extend(forward.and_then(|state| default_of(v6, table, state)));
        }
        routes.extend(self.intercepting());
        routes
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

fn table(instance_names: &InstanceNames, index: usize) -> u32 {
    instance_names.path_table(number(index))
}

fn number(link: usize) -> u8 {
    u8::try_from(link).unwrap_or(u8::MAX)
}

/// Returns whether a notification matters: routes of the main table and others' default routes; removals of
/// our own routes and rules; and queueing disciplines for incoming packets.
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
        | RouteNetlinkMessage::DelQueueDiscipline(message) => on_receipt(message).is_some(),
        RouteNetlinkMessage::NewLink(_)
        | RouteNetlinkMessage::DelLink(_)
        | RouteNetlinkMessage::NewAddress(_)
        | RouteNetlinkMessage::DelAddress(_) => true,
        // Classes and filters of traffic control change all the time if something adapts to a rate.
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

/// Returns the default route of a table by the state of its link, if the link leads out.
fn default_of(v6: bool, table: u32, state: &LinkState) -> Option<Route> {
    let usable = state.exit(v6).filter(|_| state.has_family(v6));
    let Exit { interface, gateway } = usable?;
    let target = Target::Via { interface, gateway };
    Some(Route::default_of(v6, table, target, ROUTE_METRIC))
}
