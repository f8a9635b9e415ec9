//! Checks of `box.toml` against this machine's network.

use std::net::{IpAddr, TcpListener};

use braid_proxy::config::{BoxConfig, Finding, LinkConfig, weigh};
use ipnet::IpNet;

use super::machine::{LinkRoute, Machine};
use crate::net::InstanceNames;
use crate::net::link::{network, overlap};
use crate::net::routes::{Interface, stands_for_default};

const ADDRESS_REMEDY: &str = "see `ip address` and `ip route`";

/// Returns all findings. `running` is true if a box of this configuration runs. The running box then uses the
/// SOCKS ports, so they need not be free.
pub(super) fn findings(config: &BoxConfig, machine: &Machine, running: bool) -> Vec<Finding> {
    let mut found = lan(config, machine);
    found.extend(links(config, machine));
    found.extend(tun(config, machine));
    found.extend(vpn_routes(config, machine));
    found.extend(servers(config, machine));
    found.extend(socks(config, machine, running));
    found
}

fn lan(config: &BoxConfig, machine: &Machine) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut broken = 0;
    for name in &config.lan {
        let at = ("lan", format!("lan {name}"));
        let remedy = format!(
            "plug it in, or write its name as `ip link` shows it ({})",
            interface_names(machine)
        );
        match machine.interface(name) {
            None => {
                let message = "there is no such interface; `lan` names the interfaces towards the users, and no \
                               connection from this one is aggregated until it comes";
                found.push(Finding::warning(at, message, remedy).healing());
                broken += 1;
            }
            Some(interface) if interface.loopback => {
                let message = "this is a loopback interface, which leads to this machine only; `lan` names the \
                               interfaces towards the users, so none of their connections is aggregated";
                found.push(Finding::warning(at, message, remedy));
                broken += 1;
            }
            // This interface does not count as broken, since it may come up without a change of the file.
            Some(interface) if !interface.running => {
                let message = "the interface is down or has no carrier: its users have no Internet until it is \
                               up";
                let remedy = format!("plug in the cable, or run: ip link set {name} up");
                found.push(Finding::warning(at, message, remedy).healing());
            }
            Some(_) => found.push(Finding::ok(at, "the interface is up")),
        }
    }
    weigh(
        config.lan.len(),
        broken,
        &mut found,
        "no usable interface towards the users is left",
    );
    found
}

fn interface_names(machine: &Machine) -> String {
    let named = machine.interfaces.iter().filter(|i| !i.loopback);
    let named: Vec<&str> = named.map(|i| i.name.as_str()).collect();
    match named.is_empty() {
        true => "there is none at present".to_owned(),
        false => format!("at present: {}", named.join(", ")),
    }
}

fn links(config: &BoxConfig, machine: &Machine) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut broken = 0;
    for (at, link) in config.links.iter().enumerate() {
        let obstacle = obstacle_of(config, link, machine);
        broken += usize::from(obstacle.is_some());
        match obstacle {
            Some(finding) => found.push(finding),
            None => {
                found.push(working_link(link, machine));
                found.extend(lost_family(link, machine));
                found.extend(too_large_mtu(link, machine));
                found.extend(shared_exit(&config.links[..at], link, machine));
            }
        }
    }
    weigh(
        config.links.len(),
        broken,
        &mut found,
        "no usable link is left, so users have no Internet through the box",
    );
    found
}

/// Reports a link over which packets can be sent.
fn working_link(link: &LinkConfig, machine: &Machine) -> Finding {
    let routes = [false, true].map(|v6| machine.route(link, v6));
    let gateways = routes.iter().filter_map(|route| match route {
        LinkRoute::Out(Some(gateway)) => Some(gateway.to_string()),
        LinkRoute::Out(None) => Some("none, as on a point-to-point link".to_owned()),
        _ => None,
    });
    let gateways: Vec<String> = gateways.collect();
    let message = match gateways.is_empty() {
        true => format!("{} is up; its network contains a server", link.interface),
        false => format!(
            "{} is up; gateway {}",
            link.interface,
            gateways.join(" and ")
        ),
    };
    Finding::ok(("link", format!("link {}", link.name)), message)
}

/// Returns the reason why packets cannot be sent over a link now; `None` if they can. Each reason may end
/// without a change of the file.
fn obstacle_of(config: &BoxConfig, link: &LinkConfig, machine: &Machine) -> Option<Finding> {
    let at = || ("link", format!("link {}", link.name));
    let warn =
        |message: String, remedy: String| Some(Finding::warning(at(), message, remedy).healing());
    let name = &link.interface;
    let Some(interface) = machine.interface(name) else {
        return warn(
            format!("there is no interface {name}: the link carries nothing until it comes"),
            format!(
                "plug it in, or write its name as `ip link` shows it ({})",
                interface_names(machine)
            ),
        );
    };
    if interface.loopback {
        let message = format!(
            "{name} is a loopback interface, which leads to this machine only: the link carries nothing"
        );
        return warn(message, "write the interface of an access link".to_owned());
    }
    if !interface.running {
        return warn(
            format!("{name} is down or has no carrier: the link carries nothing until it is up"),
            format!("plug it in, or run: ip link set {name} up"),
        );
    }
    let routes = [false, true].map(|v6| machine.route(link, v6));
    if routes
        .iter()
        .any(|route| matches!(route, LinkRoute::Out(_)))
        || has_server_on_link(config, interface, machine)
    {
        return None;
    }
    let gateway_off_link_found = routes.iter().find_map(|route| match route {
        LinkRoute::GatewayOffLink(gateway) => Some(gateway),
        _ => None,
    });
    if let Some(gateway) = gateway_off_link_found {
        return warn(
            gateway_off_link(interface, *gateway, machine),
            gateway_remedy(name),
        );
    }
    if routes.contains(&LinkRoute::NoGateway) {
        return warn(
            format!(
                "the routing table has no default route through {name}, and no `gateway` is configured: the \
                 link carries nothing"
            ),
            format!(
                "have DHCP or the network manager add one for {name}, or write gateway = \"…\""
            ),
        );
    }
    warn(
        format!("{name} has no address: the link carries nothing until it has one"),
        format!("have DHCP or the network manager give it one ({ADDRESS_REMEDY})"),
    )
}

/// Returns whether a server is in a network of the link. The link then needs no gateway.
fn has_server_on_link(config: &BoxConfig, interface: &Interface, machine: &Machine) -> bool {
    let addresses = |s: &braid_proxy::config::ServerEntry| {
        let v4 = s.v4.map(IpAddr::V4);
        v4.into_iter().chain(s.v6.map(IpAddr::V6))
    };
    let mut all = config.servers.iter().flat_map(addresses);
    all.any(|server| {
        machine
            .addresses_of(interface.index)
            .any(|a| network(a).contains(&server))
    })
}

/// Returns the message about a configured gateway that is in no network of its link.
fn gateway_off_link(interface: &Interface, gateway: IpAddr, machine: &Machine) -> String {
    let own_address: Vec<String> = machine
        .addresses_of(interface.index)
        .filter(|a| a.addr.is_ipv6() == gateway.is_ipv6())
        .map(|a| format!("{}/{}", a.addr, a.prefix_len))
        .collect();
    format!(
        "`gateway` {gateway} is in no network of {} ({}): the link carries nothing through it",
        interface.name,
        own_address.join(", ")
    )
}

fn gateway_remedy(name: &str) -> String {
    format!("write the gateway of this link, or \"auto\" (see: ip route show default dev {name})")
}

/// Reports a link that works in one address family and has a wrong gateway in the other.
fn lost_family(link: &LinkConfig, machine: &Machine) -> Option<Finding> {
    let interface = machine.interface(&link.interface)?;
    let gateway_off_link_found =
        [false, true]
            .into_iter()
            .find_map(|v6| match machine.route(link, v6) {
                LinkRoute::GatewayOffLink(gateway) => Some(gateway),
                _ => None,
            })?;
    let at = ("link", format!("link {}", link.name));
    let message = gateway_off_link(interface, gateway_off_link_found, machine);
    Some(Finding::warning(at, message, gateway_remedy(&link.interface)).healing())
}

fn too_large_mtu(link: &LinkConfig, machine: &Machine) -> Option<Finding> {
    let interface = machine.interface(&link.interface)?;
    let mtu = link.mtu.filter(|mtu| u32::from(*mtu) > interface.mtu)?;
    let message = format!(
        "`mtu` is {mtu}, but {} takes packets of at most {} bytes: larger ones are fragmented or lost",
        interface.name, interface.mtu
    );
    let at = ("link.mtu", format!("link {}", link.name));
    Some(Finding::warning(
        at,
        message,
        "remove `mtu`, or write the MTU of the interface",
    ))
}

/// Warns if an earlier link has the same interface and the same gateway now.
fn shared_exit(before: &[LinkConfig], link: &LinkConfig, machine: &Machine) -> Option<Finding> {
    let same_interface = before.iter().filter(|o| o.interface == link.interface);
    let shared = |other: &LinkConfig| {
        // If both gateways are configured, the check of the file compares them.
        if other.gateway != braid_proxy::config::Gateway::Auto
            && link.gateway != braid_proxy::config::Gateway::Auto
        {
            return None;
        }
        [false, true].into_iter().find_map(|v6| {
            match (machine.route(other, v6), machine.route(link, v6)) {
                (LinkRoute::Out(a), LinkRoute::Out(b)) if a == b => Some(a),
                _ => None,
            }
        })
    };
    let (other, gateway) = same_interface
        .filter_map(|o| Some((o, shared(o)?)))
        .next()?;
    let gateway = gateway.map_or("no gateway".to_owned(), |g| format!("gateway {g}"));
    let message = format!(
        "it uses {} and {gateway}, as link {} does: both together carry no more than one",
        link.interface, other.name
    );
    let at = ("link.same", format!("link {}", link.name));
    Some(Finding::warning(
        at,
        message,
        "give each link a gateway of its own, or remove one of the two",
    ))
}

fn tun(config: &BoxConfig, machine: &Machine) -> Vec<Finding> {
    let mut found = Vec::new();
    for range in config.tun.ranges() {
        found.extend(overlaps(
            OF_TUN,
            (&config.tun.name, range),
            machine,
            |name| {
                if config.lan.iter().any(|lan| lan == name) {
                    Some("the users' network: users and the box do not reach each other")
                } else if config.links.iter().any(|link| link.interface == name) {
                    Some("the network of a link: the link's gateway is not reached")
                } else {
                    None
                }
            },
        ));
    }
    found
}

/// The subject and the remedy of findings on a range of `[tun]`.
pub(super) const OF_TUN: (&str, &str) = (
    "tun",
    "give [tun] a range that no other network has, such as v4 = \"10.99.99.0/24\" or v6 = \"fd99:99:99::/64\"",
);

/// Finds networks of this machine that share addresses with a range of the file. The findings have `subject` and
/// `remedy`. `tun` is the name of the TUN device. For an interface that box or server needs, `harm_to_needed` returns the harm, and a
/// range that contains the interface's network or address is a failure. Any other overlap is a warning.
pub(super) fn overlaps(
    (subject, remedy): (&str, &str),
    (tun, range): (&str, IpNet),
    machine: &Machine,
    harm_to_needed: impl Fn(&str) -> Option<&'static str>,
) -> Vec<Finding> {
    let mut found = Vec::new();
    let own = [tun, &InstanceNames::of_tun(tun).tunnel_device()];
    for address in &machine.addresses {
        let name = machine.name_of(address.interface);
        let net = network(address);
        if own.contains(&name) || !overlap(&net, &range) {
            continue;
        }
        let at = ("tun.overlap", format!("{subject} {range}"));
        let covers_interface = range.contains(&net) || range.contains(&address.addr);
        found.push(match harm_to_needed(name) {
            Some(harm) if covers_interface => {
                let message = format!("the range overlaps {net} of {name}, {harm}");
                Finding::failure(at, message, remedy)
            }
            _ => {
                let message = format!(
                    "the range overlaps {net} of {name}: hosts whose addresses are in both are not reached \
                     while Braid runs"
                );
                Finding::warning(at, message, remedy)
            }
        });
    }
    found
}

/// Warns of routes that take nearly all destinations out of an interface that is not a link.
fn vpn_routes(config: &BoxConfig, machine: &Machine) -> Vec<Finding> {
    let index_of = |name: &String| machine.interface(name).map(|i| i.index);
    let links = config.links.iter().map(|link| &link.interface);
    let links: Vec<u32> = links.filter_map(index_of).collect();
    let own = index_of(&config.tun.name);
    let networks = machine.all_routes.networks(own.as_slice(), &links);
    let wide_networks = networks.into_iter().filter(stands_for_default);
    let finding = |network: IpNet| {
        Finding::warning(
            ("route", format!("route {network}")),
            "a route of this machine sends this network through an interface that is not a link (a VPN?): \
             connections there are forwarded, not aggregated",
            "remove that route (`ip route` shows it), or make its interface a link",
        )
    };
    wide_networks.map(finding).collect()
}

fn servers(config: &BoxConfig, machine: &Machine) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut broken = 0;
    for server in &config.servers {
        let v4 = server.v4.map(IpAddr::V4);
        let addresses = v4.into_iter().chain(server.v6.map(IpAddr::V6));
        let (mut own_address, mut others) = (None, false);
        for address in addresses {
            match machine.interface_with(address) {
                Some(interface) => own_address = Some((address, interface.name.clone())),
                None => others = true,
            }
        }
        let Some((address, name)) = own_address else {
            continue;
        };
        broken += usize::from(!others);
        let message = format!(
            "{address} is an address of this machine's own {name}, not of another machine: the server is never \
             reached there"
        );
        let remedy = "write the address of the server";
        let at = ("server.address", format!("server {}", server.name));
        found.push(Finding::warning(at, message, remedy));
    }
    weigh(
        config.servers.len(),
        broken,
        &mut found,
        "no usable server is left",
    );
    found
}

fn socks(config: &BoxConfig, machine: &Machine, running: bool) -> Vec<Finding> {
    let mut found = Vec::new();
    for addr in &config.socks {
        let ip = addr.ip();
        let at = || ("socks", format!("socks {addr}"));
        let is_own =
            ip.is_unspecified() || ip.is_loopback() || machine.interface_with(ip).is_some();
        if !is_own {
            let message = format!(
                "this machine has no address {ip} ({}): no program reaches the SOCKS proxy until it has",
                machine.own_addresses()
            );
            let remedy = "write the address of the box in its LAN";
            found.push(Finding::warning(at(), message, remedy).healing());
            continue;
        }
        let on_link = config.links.iter().find(|link| {
            let carrier = machine.interface_with(ip);
            carrier.is_some_and(|i| i.name == link.interface)
        });
        if let Some(link) = on_link {
            let message = format!(
                "{ip} is the address of link {}, not of the LAN: programs of the LAN reach the SOCKS proxy only \
                 while the link has this address",
                link.name
            );
            let remedy = "write the address of the box in its LAN";
            found.push(Finding::warning(at(), message, remedy));
        }
        // The test socket is closed at once. Only EADDRINUSE counts: other errors, such as EACCES for low ports,
        // may only mean that the check lacks privileges that the box has.
        if let Err(error) = TcpListener::bind(addr)
            && error.kind() == std::io::ErrorKind::AddrInUse
            && !running
        {
            let message = "another program listens there: the box cannot start";
            let remedy = format!(
                "end that program (see: ss -ltnp 'sport = {}'), or write another port",
                addr.port()
            );
            found.push(Finding::failure(
                ("port", format!("socks {addr}")),
                message,
                remedy,
            ));
        }
    }
    found
}
