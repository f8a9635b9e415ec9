//! What is not in order on the machine of a box while it runs.

use std::net::IpAddr;

use braid_proxy::config::BoxConfig;
use braid_proxy::verdict::{Health, Reason};
use ipnet::IpNet;

use crate::net::routes::{Address, Interface};

/// Returns what keeps users on the LAN from the box, by the interfaces and addresses there are.
pub(super) fn of_lan(
    config: &BoxConfig,
    interfaces: &[Interface],
    addresses: &[Address],
) -> Vec<Reason> {
    let of = |name: &String| interfaces.iter().find(|i| i.name == *name);
    let missing = config.lan.iter().filter(|name| of(name).is_none());
    let missing: Vec<&String> = missing.collect();
    let health = match missing.len() == config.lan.len() {
        true => Health::Down,
        false => Health::Degraded,
    };
    let gone = missing.iter().map(|name| Reason {
        code: "lan-missing".to_owned(),
        subject: Some((*name).clone()),
        health,
        message: format!("there is no interface {name}, so no user comes in there"),
        remedy: "correct `lan` in box.toml, or plug the interface in; `ip link` lists interfaces"
            .to_owned(),
    });
    let own = [IpNet::V4(config.tun.v4), IpNet::V6(config.tun.v6)];
    let lan: Vec<u32> = config.lan.iter().filter_map(of).map(|i| i.index).collect();
    let of_lan = addresses.iter().filter(|a| lan.contains(&a.interface));
    let overlaps = of_lan.filter_map(|address| {
        let network = network(address.addr, address.prefix_len)?;
        let own = own.iter().find(|own| overlap(own, &network))?;
        Some(Reason {
            code: "tun-overlap".to_owned(),
            subject: Some(network.to_string()),
            health: Health::Down,
            message: format!(
                "the addresses of the TUN device, {own}, overlap the LAN's network {network}: packets of users \
                 and of the box go astray"
            ),
            remedy: "give `[tun]` in box.toml a range that no network here has, and restart the box".to_owned(),
        })
    });
    gone.chain(overlaps).collect()
}

fn network(addr: IpAddr, prefix_len: u8) -> Option<IpNet> {
    IpNet::new(addr, prefix_len).ok().map(|net| net.trunc())
}

fn overlap(a: &IpNet, b: &IpNet) -> bool {
    a.contains(b) || b.contains(a)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_overlap_where_one_contains_the_other() {
        let net = |text: &str| text.parse::<IpNet>().unwrap();
        let own = net("10.215.77.0/24");
        assert!(overlap(&own, &net("10.215.77.0/24")));
        assert!(overlap(&own, &net("10.0.0.0/8")));
        assert!(overlap(&own, &net("10.215.77.128/25")));
        assert!(!overlap(&own, &net("10.215.78.0/24")));
        assert!(!overlap(&own, &net("fd00::/8")));
        let of_address = network("10.215.77.9".parse().unwrap(), 24);
        assert_eq!(of_address, Some(own));
    }
}
