//! Finds faults of the machine that a running box cannot remove itself.

use std::net::IpAddr;

use braid_proxy::config::BoxConfig;
use braid_proxy::verdict::{Health, Reason};

use ipnet::IpNet;

use crate::net::link::{network, overlap};
use crate::net::routes::{Address, Interface, stands_for_default};

/// Returns the faults that keep users of the local network from the box, according to `interfaces` and
/// `addresses`.
pub(super) fn of_lan(
    config: &BoxConfig,
    interfaces: &[Interface],
    addresses: &[Address],
) -> Vec<Reason> {
    let find_interface = |name: &String| interfaces.iter().find(|i| i.name == *name);
    let missing = config
        .lan
        .iter()
        .filter(|name| find_interface(name).is_none());
    let missing: Vec<&String> = missing.collect();
    let health = match missing.len() == config.lan.len() {
        true => Health::Down,
        false => Health::Degraded,
    };
    let missing_reasons = missing.iter().map(|name| Reason {
        code: "lan-missing".to_owned(),
        subject: Some((*name).clone()),
        health,
        message: format!(
            "there is no interface {name}: users there have no Internet through this box"
        ),
        remedy: "correct `lan` in box.toml, or plug the interface in; `ip link` lists interfaces"
            .to_owned(),
    });
    let lan: Vec<u32> = config
        .lan
        .iter()
        .filter_map(find_interface)
        .map(|i| i.index)
        .collect();
    let of_lan = addresses.iter().filter(|a| lan.contains(&a.interface));
    let overlaps = of_lan.filter_map(|address| {
        let network = network(address);
        let mut ranges = config.tun.ranges().into_iter();
        let own = ranges.find(|own| overlap(own, &network))?;
        Some(Reason {
            code: "tun-overlap".to_owned(),
            subject: Some(network.to_string()),
            health: Health::Down,
            message: format!(
                "the addresses of the TUN device, {own}, overlap the LAN's network {network}: packets of users \
                 and of the box are misrouted"
            ),
            remedy: "give `[tun]` in box.toml a range that no network here has, and restart the box".to_owned(),
        })
    });
    missing_reasons.chain(overlaps).collect()
}

/// Returns a fault if a route of this machine covers nearly all destinations. With such a route nothing is
/// aggregated, although links and servers work. `reached` holds the networks that the main table has routes to.
pub(super) fn of_routes(reached: &[IpNet]) -> Option<Reason> {
    let wide_network = reached.iter().find(|network| stands_for_default(network))?;
    Some(Reason {
        code: "routed-elsewhere".to_owned(),
        subject: Some(wide_network.to_string()),
        health: Health::Degraded,
        message: format!(
            "a route of this machine sends {wide_network} through an interface that is not a link (a VPN?): \
             connections there are forwarded, not aggregated"
        ),
        remedy: "remove that route (`ip route` shows it), or make its interface a link in box.toml"
            .to_owned(),
    })
}

/// Returns the networks of this machine in which no address of the tunnel may be: the networks of `addresses`, except on
/// the interface `own`, and `reached`, to which the main table has routes.
pub(super) fn networks(own: Option<u32>, addresses: &[Address], reached: &[IpNet]) -> Vec<IpNet> {
    let others = addresses.iter().filter(|a| Some(a.interface) != own);
    let mut networks: Vec<IpNet> = others.map(network).chain(reached.iter().copied()).collect();
    networks.retain(|network| !stands_for_default(network));
    networks
}

/// Returns the fault of addresses that a server assigned to this box in the tunnel, if one is in a network of this
/// machine.
pub(super) fn overlap_of_tunnel(assigned: &[(IpAddr, u8)], networks: &[IpNet]) -> Option<String> {
    assigned.iter().find_map(|(addr, _)| {
        let network = networks.iter().find(|network| network.contains(addr))?;
        Some(format!(
            "the server assigns the address {addr}, but {network} is a network of this box; give the server another \
             `tunnel_pool`"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_of_the_tunnel_in_a_network_of_the_box_is_a_fault() {
        let address = |interface, addr: &str, prefix_len| Address {
            interface,
            addr: addr.parse().unwrap(),
            prefix_len,
            deprecated: false,
            secondary: false,
        };
        let addresses = [
            address(1, "10.215.128.9", 32),
            address(2, "10.215.0.1", 16),
            address(3, "192.0.2.1", 0),
        ];
        let reached: [IpNet; 2] = ["fd00::/8".parse().unwrap(), "::/0".parse().unwrap()];
        let networks = networks(Some(1), &addresses, &reached);
        let is_fault = |addr: &str| {
            let assigned = [(addr.parse().unwrap(), 32)];
            overlap_of_tunnel(&assigned, &networks).is_some()
        };
        assert!(is_fault("10.215.128.9"), "the network of another interface");
        assert!(
            is_fault("fdb7:a1d0:80::2"),
            "a network that a route leads to"
        );
        assert!(!is_fault("10.216.0.9") && !is_fault("2001:db8::1"));
    }

    #[test]
    fn a_route_for_nearly_everything_is_named() {
        let subject = |networks: &[&str]| {
            let networks: Vec<IpNet> = networks.iter().map(|n| n.parse().unwrap()).collect();
            of_routes(&networks).and_then(|reason| reason.subject)
        };
        assert_eq!(subject(&["10.0.0.0/8", "192.0.2.0/24", "fd00::/8"]), None);
        assert_eq!(
            subject(&["10.0.0.0/8", "0.0.0.0/0"]),
            Some("0.0.0.0/0".to_owned())
        );
        assert_eq!(subject(&["2000::/3"]), Some("2000::/3".to_owned()));
    }
}
