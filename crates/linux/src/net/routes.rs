//! Interfaces, addresses, routes and rules, and the requests that read and change them. Each type has only
//! the attributes that Braid uses.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE};
use netlink_packet_route::address::{AddressAttribute, AddressHeaderFlags, AddressMessage};
use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkMessage};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use netlink_packet_route::rule::{RuleAction, RuleAttribute, RuleMessage};
use netlink_packet_route::tc::{TcAttribute, TcMessage};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use super::netlink::Netlink;

/// The protocol number that marks routes and rules as Braid's (`rtm_protocol`, `FRA_PROTOCOL`). The value is
/// free to choose: linux/rtnetlink.h lists the numbers of routing daemons, and this is none of them.
pub const PROTOCOL: RouteProtocol = RouteProtocol::Other(0xb4);
/// The main routing table, `RT_TABLE_MAIN`.
pub const MAIN_TABLE: u32 = 254;
/// Metric of a table's unreachable route. This route ends the look-up, so that the kernel does not try the next
/// rule. Any value above the metrics of the table's other routes makes it the last choice.
pub const UNREACHABLE_METRIC: u32 = 9_999;

/// A network interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    /// Index.
    pub index: u32,
    /// Name.
    pub name: String,
    /// True if the interface is administratively up and has a carrier.
    pub running: bool,
    /// True for the loopback interface, which leads to this host only.
    pub loopback: bool,
    /// MTU in bytes.
    pub mtu: u32,
    /// Counters of packets.
    pub packets: Packets,
}

/// Numbers of packets since the interface was created.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Packets {
    /// Packets sent.
    pub tx: u64,
    /// Packets received.
    pub rx: u64,
}

/// An address of an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Address {
    /// Index of the interface.
    pub interface: u32,
    /// Address.
    pub addr: IpAddr,
    /// Prefix length.
    pub prefix_len: u8,
    /// True if the kernel does not choose the address for new connections: it is deprecated, or duplicate
    /// address detection has not confirmed it.
    pub deprecated: bool,
    /// True for a temporary IPv6 address (RFC 8981), and for an IPv4 address that is not the interface's first
    /// of its network.
    pub secondary: bool,
}

impl Address {
    fn message(&self) -> AddressMessage {
        let mut message = AddressMessage::default();
        message.header.family = family(self.addr);
        message.header.prefix_len = self.prefix_len;
        message.header.index = self.interface;
        message.attributes = vec![
            AddressAttribute::Local(self.addr),
            AddressAttribute::Address(self.addr),
        ];
        message
    }
}

/// The target of a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// Out of an interface, to a gateway or directly to the destination.
    Via {
        /// Index of the interface.
        interface: u32,
        /// The gateway; `None` if the destination is on the link.
        gateway: Option<IpAddr>,
    },
    /// To this host, whatever the destination.
    Local {
        /// Index of the loopback interface.
        interface: u32,
    },
    /// Nowhere: the kernel answers the sender with an ICMP error.
    Unreachable,
}

/// A route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Route {
    /// Table.
    pub table: u32,
    /// Destination network.
    pub destination: IpAddr,
    /// Prefix length of the destination.
    pub prefix_len: u8,
    /// Target.
    pub target: Target,
    /// Metric; the kernel prefers the lowest. If a route is added with 0, the kernel chooses the metric.
    pub metric: u32,
}

impl Route {
    /// Returns a default route.
    pub fn default_of(v6: bool, table: u32, target: Target, metric: u32) -> Route {
        Route {
            table,
            destination: unspecified(v6),
            prefix_len: 0,
            target,
            metric,
        }
    }

    /// Parses a route; returns `None` if this type cannot express it.
    fn of(message: &RouteMessage) -> Option<Route> {
        let v6 = message.header.address_family == AddressFamily::Inet6;
        let mut route = Route::default_of(v6, table_of(message), Target::Unreachable, 0);
        route.prefix_len = message.header.destination_prefix_length;
        let (mut interface, mut gateway) = (None, None);
        for attribute in &message.attributes {
            match attribute {
                RouteAttribute::Destination(destination) => route.destination = ip_of(destination)?,
                RouteAttribute::Priority(metric) => route.metric = *metric,
                RouteAttribute::Oif(index) => interface = Some(*index),
                RouteAttribute::Gateway(address) => gateway = Some(ip_of(address)?),
                _ => {}
            }
        }
        route.target = match message.header.kind {
            RouteType::Unicast => Target::Via {
                interface: interface?,
                gateway,
            },
            RouteType::Local => Target::Local {
                interface: interface?,
            },
            RouteType::Unreachable => Target::Unreachable,
            _ => return None,
        };
        Some(route)
    }

    /// Returns whether adding this route replaces `other`: the kernel keeps one route for each table,
    /// destination and metric.
    pub fn replaces(&self, other: &Route) -> bool {
        let key = |r: &Route| (r.table, r.destination, r.prefix_len, r.metric);
        key(self) == key(other)
    }

    fn message(&self) -> RouteMessage {
        let mut message = RouteMessage::default();
        message.header = RouteHeader {
            address_family: family(self.destination),
            destination_prefix_length: self.prefix_len,
            protocol: PROTOCOL,
            scope: RouteScope::Universe,
            kind: RouteType::Unicast,
            ..RouteHeader::default()
        };
        let attributes = &mut message.attributes;
        attributes.push(RouteAttribute::Table(self.table));
        if self.prefix_len > 0 {
            attributes.push(RouteAttribute::Destination(self.destination.into()));
        }
        if self.metric > 0 {
            attributes.push(RouteAttribute::Priority(self.metric));
        }
        match self.target {
            Target::Via { interface, gateway } => {
                attributes.push(RouteAttribute::Oif(interface));
                match gateway {
                    Some(gateway) => attributes.push(RouteAttribute::Gateway(gateway.into())),
                    None => message.header.scope = RouteScope::Link,
                }
            }
            Target::Local { interface } => {
                attributes.push(RouteAttribute::Oif(interface));
                message.header.kind = RouteType::Local;
                message.header.scope = RouteScope::Host;
            }
            Target::Unreachable => message.header.kind = RouteType::Unreachable,
        }
        message
    }
}

/// A routing rule. The kernel looks up `table` for a packet if the packet matches each of the fields `from`,
/// `iif` and `mark` that is set.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Rule {
    /// True for IPv6.
    pub v6: bool,
    /// Priority; the kernel tries the rule with the lowest number first.
    pub priority: u32,
    /// Table to look up.
    pub table: u32,
    /// Source address.
    pub from: Option<IpAddr>,
    /// Name of the interface that the packet came in by.
    pub iif: Option<String>,
    /// Packet mark.
    pub mark: Option<u32>,
    /// Maximum prefix length of the routes that the rule ignores. With 0 the rule ignores only default routes.
    pub suppress_prefix_len: Option<u32>,
}

impl Rule {
    /// Parses a rule; returns `None` if this type cannot express it.
    fn of(message: &RuleMessage) -> Option<Rule> {
        let mut rule = Rule {
            v6: message.header.family == AddressFamily::Inet6,
            ..Rule::default()
        };
        for attribute in &message.attributes {
            match attribute {
                RuleAttribute::Priority(priority) => rule.priority = *priority,
                RuleAttribute::Table(table) => rule.table = *table,
                RuleAttribute::Source(from) => rule.from = Some(*from),
                RuleAttribute::Iifname(name) => rule.iif = Some(name.clone()),
                RuleAttribute::FwMark(mark) => rule.mark = Some(*mark),
                // The kernel sends this value for rules that suppress nothing.
                RuleAttribute::SuppressPrefixLen(u32::MAX) => {}
                RuleAttribute::SuppressPrefixLen(len) => rule.suppress_prefix_len = Some(*len),
                _ => {}
            }
        }
        // This type has no other actions and no destination.
        let is_expressible =
            message.header.action == RuleAction::ToTable && message.header.dst_len == 0;
        is_expressible.then_some(rule)
    }

    fn message(&self) -> RuleMessage {
        let mut message = RuleMessage::default();
        message.header.family = family(unspecified(self.v6));
        message.header.action = RuleAction::ToTable;
        let attributes = &mut message.attributes;
        attributes.push(RuleAttribute::Priority(self.priority));
        attributes.push(RuleAttribute::Table(self.table));
        attributes.push(RuleAttribute::Protocol(PROTOCOL));
        if let Some(from) = self.from {
            message.header.src_len = full_prefix(from);
            attributes.push(RuleAttribute::Source(from));
        }
        if let Some(iif) = &self.iif {
            attributes.push(RuleAttribute::Iifname(iif.clone()));
        }
        if let Some(mark) = self.mark {
            attributes.push(RuleAttribute::FwMark(mark));
        }
        if let Some(len) = self.suppress_prefix_len {
            attributes.push(RuleAttribute::SuppressPrefixLen(len));
        }
        message
    }
}

/// A default route of the main table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DefaultRoute {
    /// Index of the interface.
    pub interface: u32,
    /// The gateway; `None` on a point-to-point link.
    pub gateway: Option<IpAddr>,
    /// True for IPv6.
    pub v6: bool,
    /// Metric.
    pub metric: u32,
}

impl Netlink {
    /// Returns all interfaces.
    ///
    /// # Errors
    /// Fails if the kernel refuses the request, or does not answer it.
    pub fn interfaces(&mut self) -> io::Result<Vec<Interface>> {
        let found = self.dump(RouteNetlinkMessage::GetLink(LinkMessage::default()))?;
        Ok(found.iter().filter_map(interface).collect())
    }

    /// Returns the interface called `name`, if there is one.
    ///
    /// # Errors
    /// Fails if the kernel refuses the request, or does not answer it.
    pub fn interface(&mut self, name: &str) -> io::Result<Option<Interface>> {
        let mut message = LinkMessage::default();
        message
            .attributes
            .push(LinkAttribute::IfName(name.to_owned()));
        match self.get(RouteNetlinkMessage::GetLink(message)) {
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(None),
            // The kernel also finds interfaces by alternative names, which configurations do not use.
            found => Ok(found?
                .as_ref()
                .and_then(interface)
                .filter(|i| i.name == name)),
        }
    }

    /// Sets the MTU (bytes) of an interface and the length of its transmit queue (packets), and brings it up.
    ///
    /// # Errors
    /// Fails if the kernel refuses the request, or does not answer it.
    pub fn bring_up(&mut self, index: u32, mtu: u32, txqueuelen: u32) -> io::Result<()> {
        let mut message = LinkMessage::default();
        message.header.index = index;
        message.header.flags = LinkFlags::Up;
        message.header.change_mask = LinkFlags::Up;
        message.attributes.push(LinkAttribute::Mtu(mtu));
        message
            .attributes
            .push(LinkAttribute::TxQueueLen(txqueuelen));
        self.request(RouteNetlinkMessage::SetLink(message), 0)
    }

    /// Returns the addresses of all interfaces, except loopback and link-local addresses.
    ///
    /// # Errors
    /// Fails if the kernel refuses the request, or does not answer it.
    pub fn addresses(&mut self) -> io::Result<Vec<Address>> {
        let found = self.dump(RouteNetlinkMessage::GetAddress(AddressMessage::default()))?;
        Ok(found.iter().filter_map(address).collect())
    }

    /// Returns the indices of interfaces that have a queueing discipline for incoming packets, for example to
    /// shape them.
    ///
    /// # Errors
    /// Fails if the kernel refuses the request, or does not answer it.
    pub fn shaped_on_receipt(&mut self) -> io::Result<Vec<u32>> {
        let all = RouteNetlinkMessage::GetQueueDiscipline(TcMessage::default());
        let found = match self.dump(all) {
            // A kernel that is built without traffic control shapes nothing.
            Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => Vec::new(),
            found => found?,
        };
        let shaped = found.iter().filter_map(|message| match message {
            RouteNetlinkMessage::NewQueueDiscipline(message) => ingress_shaper_interface(message),
            _ => None,
        });
        Ok(shaped.collect())
    }

    /// Returns all routes.
    ///
    /// # Errors
    /// Fails if the kernel refuses the request, or does not answer it.
    pub fn routes(&mut self) -> io::Result<Routes> {
        let mut routes = Vec::new();
        for v6 in [false, true] {
            let mut get = RouteMessage::default();
            get.header.address_family = family(unspecified(v6));
            let found = self.dump(RouteNetlinkMessage::GetRoute(get))?;
            routes.extend(found.into_iter().filter_map(|message| match message {
                RouteNetlinkMessage::NewRoute(route) => Some(route),
                _ => None,
            }));
        }
        Ok(Routes(routes))
    }

    /// Adds a route, or replaces the route with the same table, destination and metric.
    ///
    /// # Errors
    /// Fails if the kernel refuses the request, or does not answer it.
    pub fn replace_route(&mut self, route: &Route) -> io::Result<()> {
        self.request(
            RouteNetlinkMessage::NewRoute(route.message()),
            NLM_F_CREATE | NLM_F_REPLACE,
        )
    }

    /// Adds an address to an interface. An existing address is no error.
    ///
    /// # Errors
    /// Fails if the kernel refuses the request, or does not answer it.
    pub fn add_address(&mut self, address: &Address) -> io::Result<()> {
        self.request(
            RouteNetlinkMessage::NewAddress(address.message()),
            NLM_F_CREATE | NLM_F_REPLACE,
        )
    }

    /// Removes an address from an interface, if it has the address.
    ///
    /// # Errors
    /// Fails if the kernel refuses the request, or does not answer it.
    pub fn delete_address(&mut self, address: &Address) -> io::Result<()> {
        let deleted = self.request(RouteNetlinkMessage::DelAddress(address.message()), 0);
        match deleted {
            Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => Ok(()),
            result => ignore_missing(result),
        }
    }

    /// Removes a route, if it exists.
    ///
    /// # Errors
    /// Fails if the kernel refuses the request, or does not answer it.
    pub fn delete_route(&mut self, route: &Route) -> io::Result<()> {
        ignore_missing(self.request(RouteNetlinkMessage::DelRoute(route.message()), 0))
    }

    /// Removes Braid's routes from every table for which `of_table` returns true.
    ///
    /// # Errors
    /// Fails if the kernel refuses the request, or does not answer it.
    pub fn delete_routes(&mut self, of_table: impl Fn(u32) -> bool) -> io::Result<()> {
        for message in self.routes()?.0 {
            if message.header.protocol == PROTOCOL && of_table(table_of(&message)) {
                ignore_missing(self.request(RouteNetlinkMessage::DelRoute(message), 0))?;
            }
        }
        Ok(())
    }

    /// Adds a rule. Fails with `EEXIST` if there is an equal rule.
    ///
    /// # Errors
    /// Fails if the kernel refuses the request, or does not answer it.
    pub fn add_rule(&mut self, rule: &Rule) -> io::Result<()> {
        self.request(
            RouteNetlinkMessage::NewRule(rule.message()),
            NLM_F_CREATE | NLM_F_EXCL,
        )
    }

    /// Adds a rule behind all rules of its priority, even if there is an equal rule.
    ///
    /// # Errors
    /// Fails if the kernel refuses the request, or does not answer it.
    pub fn append_rule(&mut self, rule: &Rule) -> io::Result<()> {
        self.request(RouteNetlinkMessage::NewRule(rule.message()), NLM_F_CREATE)
    }

    /// Removes a rule, if it exists. Of several equal rules the kernel removes the first.
    ///
    /// # Errors
    /// Fails if the kernel refuses the request, or does not answer it.
    pub fn delete_rule(&mut self, rule: &Rule) -> io::Result<()> {
        ignore_missing(self.request(RouteNetlinkMessage::DelRule(rule.message()), 0))
    }

    /// Returns Braid's rules of every priority for which `of_priority` returns true. Rules of one priority are
    /// in the order in which the kernel tries them.
    ///
    /// # Errors
    /// Fails if the kernel refuses the request, or does not answer it.
    pub fn rules(&mut self, of_priority: impl Fn(u32) -> bool) -> io::Result<Vec<Rule>> {
        let mut rules = Vec::new();
        for message in self.rule_messages()? {
            rules.extend(Rule::of(&message).filter(|rule| of_priority(rule.priority)));
        }
        Ok(rules)
    }

    /// Removes Braid's rules of every priority for which `of_priority` returns true.
    ///
    /// # Errors
    /// Fails if the kernel refuses the request, or does not answer it.
    pub fn delete_rules(&mut self, of_priority: impl Fn(u32) -> bool) -> io::Result<()> {
        for message in self.rule_messages()? {
            let priority = message.attributes.iter().find_map(|a| match a {
                RuleAttribute::Priority(priority) => Some(*priority),
                _ => None,
            });
            if priority.is_some_and(&of_priority) {
                ignore_missing(self.request(RouteNetlinkMessage::DelRule(message), 0))?;
            }
        }
        Ok(())
    }

    /// Returns Braid's rules.
    fn rule_messages(&mut self) -> io::Result<Vec<RuleMessage>> {
        let mut rules = Vec::new();
        for v6 in [false, true] {
            let mut get = RuleMessage::default();
            get.header.family = family(unspecified(v6));
            let found = self.dump(RouteNetlinkMessage::GetRule(get))?;
            rules.extend(found.into_iter().filter_map(|message| match message {
                RouteNetlinkMessage::NewRule(rule) if is_own_rule(&rule) => Some(rule),
                _ => None,
            }));
        }
        Ok(rules)
    }
}

/// Maximum prefix length of a route that stands for a default route. VPN programs replace the default route by
/// two routes to `0.0.0.0/1` and `128.0.0.0/1`, and `2000::/3` contains all global IPv6 addresses in use.
const MAX_DEFAULT_PREFIX_LEN: u8 = 3;

/// Returns whether a network is so wide that routes to it replace a default route.
pub fn stands_for_default(network: &IpNet) -> bool {
    network.prefix_len() <= MAX_DEFAULT_PREFIX_LEN
}

/// The routes of all tables at one moment.
#[derive(Debug, Default)]
pub struct Routes(Vec<RouteMessage>);

impl Routes {
    /// Returns the default routes of the main table, the preferred one first.
    pub fn defaults(&self) -> Vec<DefaultRoute> {
        let mut routes = Vec::new();
        for message in self
            .main()
            .filter(|m| m.header.destination_prefix_length == 0)
        {
            let v6 = message.header.address_family == AddressFamily::Inet6;
            add_default_hops(message, v6, &mut routes);
        }
        routes.sort_by_key(|route| (route.v6, route.metric));
        routes
    }

    /// Returns the networks that the main table has routes to, with adjacent networks merged. The result leaves
    /// out default routes, link-local addresses, routes out of the interfaces `except`, and routes out of
    /// `links` that [stand for a default route](stands_for_default).
    pub fn networks(&self, except: &[u32], links: &[u32]) -> Vec<IpNet> {
        let network = |message: &RouteMessage| {
            let len = message.header.destination_prefix_length;
            let (mut destination, mut interface) = (None, None);
            for attribute in &message.attributes {
                match attribute {
                    RouteAttribute::Destination(address) => destination = ip_of(address),
                    RouteAttribute::Oif(index) => interface = Some(*index),
                    _ => {}
                }
            }
            let by_link = interface.is_some_and(|index| links.contains(&index));
            if interface.is_some_and(|index| except.contains(&index))
                || by_link && len <= MAX_DEFAULT_PREFIX_LEN
            {
                return None;
            }
            let network = IpNet::new(destination?, len).ok();
            network.filter(|network| match network.addr() {
                IpAddr::V4(address) => !address.is_link_local(),
                IpAddr::V6(address) => !address.is_unicast_link_local() && !address.is_multicast(),
            })
        };
        IpNet::aggregate(&self.main().filter_map(network).collect())
    }

    /// Returns Braid's routes in every table for which `of_table` returns true.
    pub fn own(&self, of_table: impl Fn(u32) -> bool) -> Vec<Route> {
        let own = self.0.iter().filter(|m| m.header.protocol == PROTOCOL);
        let routes = own.filter_map(Route::of);
        routes.filter(|route| of_table(route.table)).collect()
    }

    fn main(&self) -> impl Iterator<Item = &RouteMessage> {
        self.0.iter().filter(|m| table_of(m) == MAIN_TABLE)
    }
}

/// Returns whether a rule was added by any instance of Braid.
pub(super) fn is_own_rule(message: &RuleMessage) -> bool {
    message
        .attributes
        .contains(&RuleAttribute::Protocol(PROTOCOL))
}

/// Returns the length of an address in bits: 32 or 128.
pub fn full_prefix(addr: IpAddr) -> u8 {
    if addr.is_ipv4() { 32 } else { 128 }
}

fn unspecified(v6: bool) -> IpAddr {
    if v6 {
        Ipv6Addr::UNSPECIFIED.into()
    } else {
        Ipv4Addr::UNSPECIFIED.into()
    }
}

fn family(addr: IpAddr) -> AddressFamily {
    match addr {
        IpAddr::V4(_) => AddressFamily::Inet,
        IpAddr::V6(_) => AddressFamily::Inet6,
    }
}

fn interface(message: &RouteNetlinkMessage) -> Option<Interface> {
    let RouteNetlinkMessage::NewLink(link) = message else {
        return None;
    };
    let mut name = None;
    // An interface without this attribute gets the MTU of Ethernet.
    let mut mtu = 1_500;
    let mut packets = Packets::default();
    for attribute in &link.attributes {
        match attribute {
            LinkAttribute::IfName(n) => name = Some(n.clone()),
            LinkAttribute::Mtu(m) => mtu = *m,
            LinkAttribute::Stats64(stats) => {
                packets = Packets {
                    tx: stats.tx_packets,
                    rx: stats.rx_packets,
                }
            }
            _ => {}
        }
    }
    Some(Interface {
        index: link.header.index,
        name: name?,
        running: link
            .header
            .flags
            .contains(LinkFlags::Up | LinkFlags::Running),
        loopback: link.header.flags.contains(LinkFlags::Loopback),
        mtu,
        packets,
    })
}

fn address(message: &RouteNetlinkMessage) -> Option<Address> {
    let RouteNetlinkMessage::NewAddress(message) = message else {
        return None;
    };
    let mut addr = None;
    for attribute in &message.attributes {
        match attribute {
            // On a point-to-point link `Address` is the peer's address, so `Local` wins. IPv6 addresses have
            // `Address` only.
            AddressAttribute::Local(a) => addr = Some(*a),
            AddressAttribute::Address(a) => addr = addr.or(Some(*a)),
            _ => {}
        }
    }
    let addr = addr?;
    let is_listed = match addr {
        IpAddr::V4(a) => !a.is_loopback() && !a.is_link_local(),
        IpAddr::V6(a) => !a.is_loopback() && !a.is_unicast_link_local(),
    };
    is_listed.then_some(Address {
        interface: message.header.index,
        addr,
        prefix_len: message.header.prefix_len,
        deprecated: message.header.flags.intersects(
            AddressHeaderFlags::Deprecated
                | AddressHeaderFlags::Tentative
                | AddressHeaderFlags::Dadfailed,
        ),
        // The kernel has one bit for both: `IFA_F_SECONDARY` and `IFA_F_TEMPORARY` are equal.
        secondary: message.header.flags.contains(AddressHeaderFlags::Secondary),
    })
}

/// Returns the interface of a queueing discipline if the discipline is for incoming packets.
pub(super) fn ingress_shaper_interface(message: &TcMessage) -> Option<u32> {
    let is_ingress =
        |a: &TcAttribute| matches!(a, TcAttribute::Kind(k) if k == "ingress" || k == "clsact");
    let interface = u32::try_from(message.header.index).ok()?;
    message
        .attributes
        .iter()
        .any(is_ingress)
        .then_some(interface)
}

/// Returns the table of a route.
pub(crate) fn table_of(message: &RouteMessage) -> u32 {
    let attribute = message.attributes.iter().find_map(|a| match a {
        RouteAttribute::Table(table) => Some(*table),
        _ => None,
    });
    // The field of the header has 8 bits, so the kernel sends the attribute for larger numbers.
    attribute.unwrap_or_else(|| message.header.table.into())
}

/// Adds each next hop of a default route to `routes`. A multipath route has several.
fn add_default_hops(message: &RouteMessage, v6: bool, routes: &mut Vec<DefaultRoute>) {
    if message.header.kind != RouteType::Unicast {
        return;
    }
    let mut metric = 0;
    let mut hops = Vec::new();
    let mut single = (None, None);
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Priority(p) => metric = *p,
            RouteAttribute::Oif(index) => single.0 = Some(*index),
            RouteAttribute::Gateway(gateway) => single.1 = ip_of(gateway),
            RouteAttribute::MultiPath(next) => hops.extend(next.iter().map(|hop| {
                let gateway = hop.attributes.iter().find_map(|a| match a {
                    RouteAttribute::Gateway(gateway) => ip_of(gateway),
                    _ => None,
                });
                (hop.interface_index, gateway)
            })),
            _ => {}
        }
    }
    if let (Some(interface), gateway) = single {
        hops.push((interface, gateway));
    }
    routes.extend(hops.into_iter().map(|(interface, gateway)| DefaultRoute {
        interface,
        gateway,
        v6,
        metric,
    }));
}

pub(crate) fn ip_of(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(a) => Some((*a).into()),
        RouteAddress::Inet6(a) => Some((*a).into()),
        _ => None,
    }
}

/// Turns the errors for an object that does not exist into success.
fn ignore_missing(result: io::Result<()>) -> io::Result<()> {
    match result {
        // ESRCH: no such route; ENOENT: no such rule; ENODEV: no such interface, so no route out of it.
        Err(error)
            if matches!(
                error.raw_os_error(),
                Some(libc::ESRCH | libc::ENOENT | libc::ENODEV)
            ) =>
        {
            Ok(())
        }
        result => result,
    }
}
