//! Access links: what becomes of them, and the routing that ties addresses to them.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::os::fd::BorrowedFd;

use netlink_packet_route::RouteNetlinkMessage;

use super::link::{
    Exit, LinkSpec, LinkState, NextHop, network, observe, readdressed, remember_gateways,
};
use super::netlink::Netlink;
use super::routes::{
    Address, PROTOCOL, Packets, Route, Rule, Target, UNREACHABLE_METRIC, on_receipt,
};
use super::shortcut::Shortcut;
use super::{Identity, Result, SystemError};

/// `RTMGRP_*`: links, traffic control, addresses and routes of both families.
const GROUPS: u32 = 0x1 | 0x8 | 0x10 | 0x40 | 0x100 | 0x400;
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
    addresses: Vec<Address>,
    /// The last gateway of each link by family: taking an interface down deletes its routes, and
    /// not everything that brings it up again puts them back.
    gateways: Vec<[Option<IpAddr>; 2]>,
    /// The addresses of each link by family when it was last up and had any.
    known: Vec<[Vec<IpAddr>; 2]>,
    /// What was added, in order.
    rules: Vec<Rule>,
    forward: Option<usize>,
    /// Whether each link keeps the connections forwarded over it; empty where none are.
    keeps: Vec<bool>,
    shortcut: Option<Shortcut>,
    unsettled: bool,
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
            addresses: Vec::new(),
            gateways: vec![[None; 2]; specs.len()],
            known: vec![[Vec::new(), Vec::new()]; specs.len()],
            keeps: Vec::new(),
            specs,
            rules: Vec::new(),
            forward: None,
            shortcut: None,
            unsettled: false,
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
        self.add_rules(self.path_rules())?;
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
        self.add_rules(self.forwarding_rules(interfaces))?;
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
        self.route_intercepted()?;
        self.add_rules(self.interception_rules())
    }

    fn route_intercepted(&mut self) -> Result<()> {
        let doing = || SystemError::doing("route intercepted packets to this host");
        let loopback = self.netlink.interface("lo").map_err(doing())?;
        let interface = loopback.map_or(1, |lo| lo.index);
        for v6 in self.families() {
            let table = self.identity.intercept_table();
            let route = Route::default_of(v6, table, Target::Local { interface }, 0);
            self.netlink.replace_route(&route).map_err(doing())?;
        }
        Ok(())
    }

    fn add_rules(&mut self, rules: Vec<Rule>) -> Result<()> {
        for rule in &rules {
            let added = self.netlink.add_rule(rule);
            added.map_err(SystemError::doing("add routing rules"))?;
        }
        self.rules.extend(rules);
        Ok(())
    }

    fn path_rules(&self) -> Vec<Rule> {
        let rules = self.specs.iter().enumerate().flat_map(|(index, spec)| {
            spec.sources.iter().map(move |source| Rule {
                v6: source.is_ipv6(),
                priority: self.identity.rule_priority(),
                table: table(&self.identity, index),
                from: Some(*source),
                ..Rule::default()
            })
        });
        rules.collect()
    }

    /// Of rules with the same priority the first one added is asked first.
    fn forwarding_rules(&self, interfaces: &[String]) -> Vec<Rule> {
        let mut rules = Vec::new();
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
                let kept = self.indices().map(|index| Rule {
                    table: self.identity.flow_table(index),
                    mark: Some(self.identity.flow_mark(index)),
                    ..forward.clone()
                });
                rules.push(local);
                rules.extend(kept);
                rules.push(forward);
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

    fn interception_rules(&self) -> Vec<Rule> {
        let rule = |v6| Rule {
            v6,
            priority: self.identity.rule_priority(),
            table: self.identity.intercept_table(),
            mark: Some(self.identity.mark()),
            ..Rule::default()
        };
        self.families().into_iter().map(rule).collect()
    }

    /// Goes on with other links and other networks whose packets are forwarded, and returns the state of
    /// the links. A place whose interface is another has a new link. No packet meets a moment without
    /// rules: the new ones are added before the old ones go. Then [`Self::refresh`] is due.
    ///
    /// # Errors
    /// Where the system refuses; the rules are as before then.
    pub fn reconfigure(
        &mut self,
        specs: Vec<LinkSpec>,
        interfaces: &[String],
    ) -> Result<Vec<LinkState>> {
        let places = specs.len().max(self.specs.len());
        self.states.resize(places, LinkState::default());
        self.gateways.resize(places, [None; 2]);
        self.known.resize(places, [Vec::new(), Vec::new()]);
        self.keeps.resize(places, true);
        let before = std::mem::replace(&mut self.specs, specs);
        let wanted = [
            self.path_rules(),
            self.forwarding_rules(interfaces),
            self.interception_rules(),
        ];
        let routed = self.route_intercepted();
        if let Err(error) = routed.and_then(|()| self.replace_rules(wanted.concat())) {
            self.specs = before;
            return Err(error);
        }
        for index in 0..places {
            let interface = |specs: &[LinkSpec]| specs.get(index).map(|s| s.interface.clone());
            if interface(&before) != interface(&self.specs) {
                self.vacate(index);
            }
        }
        let doing = SystemError::doing("read the state of the links");
        self.observe().map_err(doing)
    }

    fn replace_rules(&mut self, wanted: Vec<Rule>) -> Result<()> {
        let added = self.append_rules(&wanted);
        let (kept, gone) = match &added {
            Ok(()) => (wanted, std::mem::take(&mut self.rules)),
            Err((_, n)) => {
                // What there was goes behind what was added, since the first of several alike is deleted.
                let before = std::mem::take(&mut self.rules);
                if let Err((error, _)) = self.append_rules(&before) {
                    tracing::warn!(%error, "cannot put routing rules back");
                }
                let gone = [&before[..], &wanted[..*n]].concat();
                (before, gone)
            }
        };
        self.rules = kept;
        for rule in gone {
            try_to("rules", self.netlink.delete_rule(&rule));
        }
        added.map_err(|(error, _)| SystemError::doing("add routing rules")(error))
    }

    /// On an error says how many were added.
    fn append_rules(&mut self, rules: &[Rule]) -> std::result::Result<(), (io::Error, usize)> {
        for (n, rule) in rules.iter().enumerate() {
            self.netlink.append_rule(rule).map_err(|e| (e, n))?;
        }
        Ok(())
    }

    /// Nothing is left of the link that was at a place.
    fn vacate(&mut self, index: usize) {
        self.states[index] = LinkState::default();
        self.gateways[index] = [None; 2];
        self.known[index] = [Vec::new(), Vec::new()];
        self.keeps[index] = true;
        self.forward = self.forward.filter(|forward| *forward != index);
        let place = u8::try_from(index).unwrap_or(u8::MAX);
        let own = [
            self.identity.path_table(place),
            self.identity.flow_table(place),
        ];
        try_to(
            "routes",
            self.netlink.delete_routes(|table| own.contains(&table)),
        );
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
    /// their index, and whether packets may leave it with another address than before.
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
        if let Some(mut shortcut) = self.shortcut.take() {
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
            self.shortcut = Some(shortcut);
        }
        Ok(changed)
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

    /// The addresses of all interfaces, link-local ones left out, as of the last look.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
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
        self.addresses = self.netlink.addresses()?;
        let defaults = self.netlink.default_routes()?;
        let mut states = Vec::with_capacity(self.specs.len());
        for (spec, gateways) in self.specs.iter().zip(&mut self.gateways) {
            let mut state = observe(spec, &interfaces, &self.addresses, &defaults);
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
/// making, and traffic control is, where it looks at what comes in.
fn matters(message: &RouteNetlinkMessage) -> bool {
    match message {
        RouteNetlinkMessage::NewRoute(route) | RouteNetlinkMessage::DelRoute(route) => {
            route.header.destination_prefix_length == 0 && route.header.protocol != PROTOCOL
        }
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
