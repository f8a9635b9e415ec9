//! What is not in order on the machine of a box while it runs.

use braid_proxy::config::BoxConfig;
use braid_proxy::verdict::{Health, Reason};

use crate::net::link::{network, overlap};
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
    let lan: Vec<u32> = config.lan.iter().filter_map(of).map(|i| i.index).collect();
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
                 and of the box go astray"
            ),
            remedy: "give `[tun]` in box.toml a range that no network here has, and restart the box".to_owned(),
        })
    });
    gone.chain(overlaps).collect()
}
