//! Access links: what becomes of them, and the routing that ties addresses to them.

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
use super::{Identity, Result, SystemError};

/// `RTNLGRP_*`, one bit each: links, traffic control; of both families addresses, routes, rules and kernel
/// settings of interfaces.
const GROUPS: u32 = 1 | 1 << 3 | 1 << 4 | 1 << 6 | 1 << 7 | 1 << 23 | GROUPS_V6;
const GROUPS_V6: u32 = 1 << 8 | 1 << 10 | 1 << 18 | 1 << 24;
/// Metric of the routes in the links' tables.
const METRIC: u32 = 100;

/// The links of an instance and their routing tables.
#[derive(Debug)]
pub struct Links {
    identity: Identity,
    netlink: Netlink,
    monitor: Netlink,
    specs: Vec<LinkSpec>,
    states: Vec<LinkState>,
    interfaces: Vec<Interface>,
    addresses: Vec<Address>,
    /// Networks that the main table reaches, default routes apart.
    reached: Vec<IpNet>,
    /// The last gateway of each link by family: taking an interface down deletes its routes, and
    /// not everything that brings it up again puts them back.
    gateways: Vec<[Option<IpAddr>; 2]>,
    /// The addresses of each link by family when it was last up and had any.
    known: Vec<[Vec<IpAddr>; 2]>,
    /// The rules are [installed](Self::install).
    installed: bool,
    /// Interfaces of which what comes in is forwarded over the links, or taken in.
    lan: Vec<String>,
    forward: Option<usize>,
    /// Whether each link keeps the connections forwarded over it; empty where none are.
    keeps: Vec<bool>,
    /// The routes that were made and are still wanted: one that is missing was removed by somebody else.
    made: Vec<Route>,
    shortcut: Option<Shortcut>,
    unsettled: bool,
    repairs: Repairs,
}

/// What was missing though nothing about the links had changed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Repairs {
    /// Routing rules that were added again.
    pub rules: usize,
    /// Routes that were added again.
    pub routes: usize,
    /// The rules of the shortcut were loaded again.
    pub shortcut: bool,
    /// Some of it is missing still.
    pub put_off: bool,
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
            unsettled: false,
            repairs: Repairs::default(),
        };
        (links.states, _) = links.observe().map_err(doing())?;
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

    /// The families by which link `index` leads out, IPv4 and IPv6. Neither where that is not known, as while
    /// it is down.
    pub fn families_of(&self, index: usize) -> (bool, bool) {
        let (state, targets) = (&self.states[index], &self.specs[index].targets);
        (
            state.leads_by(false, targets),
            state.leads_by(true, targets),
        )
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

    /// Steers the sources of each link into a table of its own, in place of what an earlier instance of this
    /// name left behind. What comes in by the interfaces `lan` follows [`Self::forward_over`], except to
    /// networks that the main table knows a way to, and except what carries the mark of a link that
    /// [keeps](Self::keep_flows) its connections; everything else follows it too where the main table has no
    /// default route. Packets with the instance's mark are delivered to this host, whatever their
    /// destination.
    ///
    /// # Errors
    /// Where the system refuses.
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
            // Without it, connections that are taken in would be sent nowhere.
            self.netlink.replace_route(&route).map_err(doing())?;
        }
        self.reconcile_rules(true).map_err(doing())?;
        Ok(())
    }

    /// Goes on with other links, and other interfaces `lan` of which what comes in is forwarded, and returns
    /// the state of the links. A place whose interface is another has a new link. Then [`Self::refresh`] is
    /// due.
    ///
    /// # Errors
    /// Where the system refuses; the rules are as before then.
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
                tracing::warn!(%error, "cannot put routing rules back");
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

    /// Nothing is left of the link that was at a place.
    fn vacate(&mut self, index: usize) {
        self.states[index] = LinkState::default();
        self.gateways[index] = [None; 2];
        self.known[index] = [Vec::new(), Vec::new()];
        if let Some(keeps) = self.keeps.get_mut(index) {
            *keeps = true;
        }
        self.forward = self.forward.filter(|forward| *forward != index);
    }

    /// Changes for whom the shortcut is, if there is one, and what MTU (bytes) each link is taken for.
    pub fn change_shortcut(&mut self, servers: &[SocketAddr], mtus: Vec<u16>) {
        if let Some(shortcut) = &mut self.shortcut {
            shortcut.change(servers, mtus);
        }
    }

    /// Lets packets of the links' sources to and from `servers` go between `tun` and the links without
    /// being routed, those of a link out of it as long as its MTU (bytes) is not below that in `mtus`. The
    /// sources have to use the ports that are returned.
    ///
    /// # Errors
    /// Where that is not possible here; the packets are routed then.
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
        let doing = SystemError::doing("read which interfaces shape what comes in");
        let shaped = self.netlink.shaped_on_receipt().map_err(doing)?;
        shortcut.update(&self.specs, &self.states, &self.addresses, &shaped)
    }

    /// Reads the links' state anew, brings the routing in line, and returns the links that changed: by
    /// their index, and whether packets may leave it with another address than before. What somebody else
    /// removed is put back if `restores` says so; [`repairs`](Self::repairs) tells.
    ///
    /// # Errors
    /// Where the state cannot be read.
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
        // Also where nothing changed: an interface that was down for a moment lost its routes.
        self.reconcile_routes(&routes, restores);
        if let Err(error) = self.reconcile_rules(restores) {
            tracing::warn!(%error, "cannot add routing rules; trying again");
            self.repairs.put_off = true;
        }
        self.refresh_shortcut(restores, &mut changed);
        Ok(changed)
    }

    fn refresh_shortcut(&mut self, restores: bool, changed: &mut Vec<(usize, bool)>) {
        let Some(mut shortcut) = self.shortcut.take() else {
            return;
        };
        // The kernel itself removes rules of an interface that goes.
        let damaged = shortcut.is_damaged() && changed.is_empty();
        if damaged && !restores {
            self.repairs.put_off = true;
        } else {
            self.repairs.shortcut = damaged;
            let updated = self.update_shortcut(&mut shortcut);
            self.unsettled = updated.is_err();
            match updated {
                Ok(moved) => {
                    for index in moved {
                        changed.retain(|(other, _)| *other != index);
                        changed.push((index, true));
                    }
                }
                Err(error) => tracing::warn!(%error, "cannot change the shortcut; trying again"),
            }
        }
        self.shortcut = Some(shortcut);
    }

    /// What the last [refresh](Self::refresh) found missing.
    pub fn repairs(&self) -> Repairs {
        self.repairs
    }

    /// Whether something could not be brought in line with the links, so that another
    /// [`refresh`](Self::refresh) is due in a while, also without news.
    pub fn is_unsettled(&self) -> bool {
        self.unsettled
    }

    /// Says whether the connections that are forwarded over link `index` stay on it, also when new
    /// ones take another. Where they do not, they go the way of new ones, which those that are
    /// bound to the address of the link do not survive.
    pub fn keep_flows(&mut self, index: usize, keep: bool) {
        if let Some(keeps) = self.keeps.get_mut(index) {
            *keeps = keep;
            self.program();
        }
    }

    /// Packets that went out of and came in by each link; `None` where there is no interface.
    ///
    /// # Errors
    /// Where they cannot be read.
    pub fn packets(&mut self) -> Result<Vec<Option<Packets>>> {
        let netlink = &mut self.netlink;
        let packets = self.specs.iter().map(|spec| {
            let found = netlink.interface(&spec.interface);
            let found = found.map_err(SystemError::doing("read the counters of the links"));
            Ok(found?.map(|interface| interface.packets))
        });
        packets.collect()
    }

    /// Sends everything that is only forwarded over link `index`.
    pub fn forward_over(&mut self, index: usize) {
        if self.forward != Some(index) && index < self.specs.len() {
            self.forward = Some(index);
            self.program();
        }
    }

    /// The link that everything is forwarded over.
    pub fn forwarding(&self) -> Option<usize> {
        self.forward
    }

    /// The addresses of all interfaces, link-local ones left out, as of the last look.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// All interfaces, as of the last look.
    pub fn interfaces(&self) -> &[Interface] {
        &self.interfaces
    }

    /// The networks that the main table reaches, as of the last look: default routes, and what leads to the
    /// instance's own device, are left out.
    pub fn reached(&self) -> &[IpNet] {
        &self.reached
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

    fn observe(&mut self) -> io::Result<(Vec<LinkState>, Routes)> {
        self.interfaces = self.netlink.interfaces()?;
        self.addresses = self.netlink.addresses()?;
        let routes = self.netlink.routes()?;
        let interfaces = &self.interfaces;
        let index_of = |name: &str| interfaces.iter().find(|i| i.name == name).map(|i| i.index);
        let links = self.specs.iter().map(|spec| &*spec.interface);
        let links: Vec<u32> = links.filter_map(index_of).collect();
        self.reached = routes.networks(index_of(self.identity.tun()), &links);
        let defaults = routes.defaults();
        let mut states = Vec::with_capacity(self.specs.len());
        for (spec, gateways) in self.specs.iter().zip(&mut self.gateways) {
            let mut state = observe(spec, interfaces, &self.addresses, &defaults);
            remember_gateways(spec, &mut state, gateways, interfaces);
            states.push(state);
        }
        Ok((states, routes))
    }

    /// Brings the routes in line with what is wanted now.
    fn program(&mut self) {
        match self.netlink.routes() {
            Ok(routes) => self.reconcile_routes(&routes, true),
            Err(error) => tracing::warn!(%error, "cannot read the routes"),
        }
    }

    /// Adds what is missing of the routes and removes what is not wanted, of which `there` shows what there
    /// is. What fails (an interface may vanish any time) is logged; the event that made it fail brings
    /// another try.
    fn reconcile_routes(&mut self, there: &Routes, restores: bool) {
        let there = there.own(|table| self.identity.owns_table(table));
        let wanted = self.wanted_routes();
        let mut made = Vec::with_capacity(wanted.len());
        for route in &wanted {
            if there.contains(route) {
                made.push(*route);
                continue;
            }
            if self.made.contains(route) {
                if !restores {
                    self.repairs.put_off = true;
                    // It is still missing next time.
                    made.push(*route);
                    continue;
                }
                self.repairs.routes += 1;
            }
            match self.netlink.replace_route(route) {
                Ok(()) => made.push(*route),
                Err(error) => tracing::debug!(?route, %error, "cannot add a route yet"),
            }
        }
        self.made = made;
        let kept = |route: &Route| {
            // What is forwarded stays on the way of an earlier instance until another one is chosen.
            let undecided = route.table == self.identity.forward_table() && self.forward.is_none();
            undecided && !self.lan.is_empty() || wanted.iter().any(|other| other.replaces(route))
        };
        for route in there.iter().filter(|route| !kept(route)) {
            if let Err(error) = self.netlink.delete_route(route) {
                tracing::debug!(?route, %error, "cannot remove a route");
            }
        }
    }

    /// Adds what is missing of the routing rules and removes what is not wanted. Of rules with the same
    /// priority the first one added is asked first, so whatever stands behind one that is missing is
    /// added again and then removed: no packet meets a moment without rules.
    fn reconcile_rules(&mut self, restores: bool) -> io::Result<()> {
        if !self.installed {
            return Ok(());
        }
        let there = self.netlink.rules(|p| self.identity.owns_priority(p))?;
        let wanted = self.wanted_rules();
        for v6 in [false, true] {
            for priority in self.identity.priorities() {
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
                    self.repairs.put_off = true;
                    continue;
                }
                for rule in &wanted[same..] {
                    self.netlink.append_rule(rule)?;
                }
                // Of rules that are alike the first is deleted.
                for rule in &there[same..] {
                    self.netlink.delete_rule(rule)?;
                }
                self.repairs.rules += missing;
            }
        }
        Ok(())
    }

    /// The rules, those of one priority in the order in which they are asked.
    fn wanted_rules(&self) -> Vec<Rule> {
        let mut rules = Vec::new();
        for (index, spec) in self.specs.iter().enumerate() {
            rules.extend(spec.sources.iter().map(|source| Rule {
                v6: source.is_ipv6(),
                priority: self.identity.rule_priority(),
                table: table(&self.identity, index),
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
                priority: self.identity.rule_priority(),
                table: self.identity.intercept_table(),
                mark: Some(self.identity.mark()),
                ..Rule::default()
            });
            for iif in &self.lan {
                self.forwarding_rules(v6, iif, &mut rules);
            }
            rules.push(Rule {
                v6,
                priority: self.identity.fallback_rule_priority(),
                table: self.identity.forward_table(),
                ..Rule::default()
            });
        }
        rules
    }

    fn forwarding_rules(&self, v6: bool, iif: &str, rules: &mut Vec<Rule>) {
        let forward = Rule {
            v6,
            priority: self.identity.forward_rule_priority(),
            table: self.identity.forward_table(),
            iif: Some(iif.to_owned()),
            ..Rule::default()
        };
        rules.push(Rule {
            table: MAIN_TABLE,
            suppress_prefix_len: Some(0),
            ..forward.clone()
        });
        rules.extend((0..self.specs.len()).map(|index| Rule {
            table: self.identity.flow_table(number(index)),
            mark: Some(self.identity.flow_mark(number(index))),
            ..forward.clone()
        }));
        rules.push(forward);
    }

    /// The routes, those first by which others reach their gateways.
    fn wanted_routes(&self) -> Vec<Route> {
        let mut routes = Vec::new();
        if !self.installed {
            return routes;
        }
        for (index, (spec, state)) in self.specs.iter().zip(&self.states).enumerate() {
            let table = table(&self.identity, index);
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
                    // Several addresses may be of one network.
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
                    default_of(v6, self.identity.flow_table(number(index)), state)
                },
            ));
            let forward = self.forward.map(|index| &self.states[index]);
            let table = self.identity.forward_table();
            routes.extend(forward.and_then(|state| default_of(v6, table, state)));
        }
        routes.extend(self.intercepting());
        routes
    }

    /// The routes by which intercepted packets are delivered to this host.
    fn intercepting(&self) -> Vec<Route> {
        if self.lan.is_empty() {
            return Vec::new();
        }
        let loopback = self.interfaces.iter().find(|i| i.name == "lo");
        let interface = loopback.map_or(1, |lo| lo.index);
        let table = self.identity.intercept_table();
        let route = |v6| Route::default_of(v6, table, Target::Local { interface }, METRIC);
        self.families().into_iter().map(route).collect()
    }
}

fn table(identity: &Identity, index: usize) -> u32 {
    identity.path_table(number(index))
}

fn number(link: usize) -> u8 {
    u8::try_from(link).unwrap_or(u8::MAX)
}

/// Returns whether a notification matters: routes do, if they are of the main table, or default routes of others'
/// making; routes and rules of ours, if they are removed; and traffic control, where it looks at what comes
/// in.
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
        // Classes and filters of traffic control, which change all the time where something adapts to a rate.
        _ => false,
    }
}

/// Whether this network namespace has IPv6.
pub fn has_ipv6() -> bool {
    std::path::Path::new("/proc/sys/net/ipv6").exists()
}

/// The route to the network that `address` is in.
fn connected(address: &Address, table: u32) -> Route {
    Route {
        table,
        destination: network(address).addr(),
        prefix_len: address.prefix_len,
        target: Target::Via {
            interface: address.interface,
            gateway: None,
        },
        metric: METRIC,
    }
}

/// The default route of a table by the state of its link, where that leads out.
fn default_of(v6: bool, table: u32, state: &LinkState) -> Option<Route> {
    let usable = state.exit(v6).filter(|_| state.has_family(v6));
    let Exit { interface, gateway } = usable?;
    let target = Target::Via { interface, gateway };
    Some(Route::default_of(v6, table, target, METRIC))
}
