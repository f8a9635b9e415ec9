//! Finds faults of the machine that a running box cannot remove itself.

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

#[cfg(test)]
mod tests {
    use super::*;

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
