//! A box's links as the kernel knows them, and the place of each link.
//!
//! A place is a number from which the link's path, addresses, routing tables and marks follow. A link keeps its
//! place as long as it is in the configuration, even if other links are added or removed.

use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;

use braid_engine::PathId;
use braid_proxy::LinkAddresses;
use braid_proxy::app::TunnelChange;
use braid_proxy::config::{BoxConfig, Datagrams, LinkConfig};
use braid_wire::Instant;

use super::faults;
use super::guard::Guard;
use super::uplinks::{UplinkPaths, Uplinks};
use crate::net::Result;
use crate::net::link::LinkState;
use crate::net::links::Links;
use crate::tun::{PacketTun, Tun};

/// Maximum number of places. Each range of addresses that a configuration may set is large enough for this
/// number. A configuration has at most 16 links, so 8 places are left for removed links in their grace period.
const MAX_PLACES: usize = 24;
// A path has the number of its place, and a `PathId` has 8 bits.
const _: () = assert!(MAX_PLACES <= 256);

/// The links, rules and settings of a box in the kernel.
#[derive(Debug)]
pub(super) struct Network {
    // Fields are dropped in their order: the shortcut in `links` is released before the device of the guard
    // removes the rules.
    pub links: Links,
    /// The addresses that each link may have, by place.
    pub addresses: Vec<LinkAddresses>,
    /// The MTU that the engine assumes for each link, in bytes, by place.
    pub mtus: Vec<u16>,
    /// The port at which intercepted connections arrive.
    pub intercept_port: u16,
    /// Local ports that only the engine uses towards the servers; `None` without the shortcut.
    pub ports: Option<RangeInclusive<u16>>,
    pub places: Places,
    /// The states of the links at the last [`Self::route`].
    pub routed_states: Vec<LinkState>,
    /// MTU (bytes) and addresses of the tunnel, while the core says that it carries packets.
    pub tunnel: Option<(u16, Vec<(IpAddr, u8)>)>,
    /// The reason why packets do not go into the tunnel although the core would carry them.
    pub tunnel_fault: Option<String>,
    pub guard: Guard,
}

impl Network {
    /// Returns the network of uplinks that are set up, the device of the engine and the packet device of the tunnel.
    pub fn new(paths: UplinkPaths, places: Places) -> (Tun, Option<PacketTun>, Network) {
        let (packet_device, tunnel_fault) = match paths.packet_device {
            Some(Ok(packet_device)) => (Some(packet_device), None),
            Some(Err(error)) => (None, Some(error.to_string())),
            None => (None, None),
        };
        let network = Network {
            mtus: paths.addresses.iter().map(|a| a.mtu).collect(),
            addresses: paths.addresses,
            intercept_port: 0,
            links: paths.links,
            ports: paths.ports,
            guard: paths.guard,
            places,
            routed_states: Vec::new(),
            tunnel: None,
            tunnel_fault,
        };
        (paths.tun, packet_device, network)
    }

    /// Loads the rules and changes the settings for `config`, and for removed links in their grace period.
    ///
    /// # Errors
    /// Fails if the rules cannot be loaded.
    pub fn apply_rules(&mut self, config: &BoxConfig) -> Result<()> {
        let v6 = self.guard.device().has_v6();
        let uplinks = self.places.uplinks(config);
        let treatments = (config.quic, config.mptcp_hosts);
        let rules = uplinks.rules(
            v6,
            self.intercept_port,
            self.ports.clone(),
            config.bypassed(),
            treatments,
        );
        let settings = uplinks.settings(v6);
        self.guard.change(&settings, rules)
    }

    /// Changes the routing to the links and servers of `config`, and sets the MTU of each new link.
    ///
    /// # Errors
    /// Fails if the kernel refuses a routing rule, or if the state of the links cannot be read.
    pub fn route(&mut self, config: &BoxConfig) -> Result<()> {
        let v6 = self.guard.device().has_v6();
        let uplinks = self.places.uplinks(config);
        let specs = uplinks.link_specs(v6);
        let states = self.links.reconfigure(specs, &config.lan)?;
        let links = self.places.all.iter().zip(&states).zip(0..);
        self.mtus.resize(states.len(), 0);
        for (((place, state), n), mtu) in links.zip(&mut self.mtus) {
            // The engine learns the MTU of a link when the link is added, so the MTU of an existing link stays.
            // 0 means that the place has a new link.
            if let Some(link) = &place.link
                && *mtu == 0
            {
                *mtu = uplinks.addresses_of(n, link, state, v6).mtu;
            }
        }
        let servers = servers(config);
        self.links.change_shortcut(&servers, self.mtus.clone());
        self.routed_states = states;
        Ok(())
    }

    /// Returns the mark of the packets that the tunnel sends over the link of a path.
    pub fn socket_mark(&self, path: PathId) -> u32 {
        let instance_names = self.guard.device().instance_names();
        instance_names.socket_mark(path.0)
    }

    /// Sends what is not intercepted into the tunnel while it carries packets, and otherwise over a link.
    pub fn follow_tunnel(&mut self, change: TunnelChange) {
        match change {
            TunnelChange::Up { v4, v6, mtu } => {
                tracing::info!(
                    ?v4,
                    ?v6,
                    mtu,
                    "the tunnel carries everything that is not aggregated"
                );
                let v4 = v4.map(|addr| (IpAddr::from(addr), 32));
                let v6 = v6.map(|addr| (IpAddr::from(addr), 128));
                self.tunnel = Some((mtu, v4.into_iter().chain(v6).collect()));
                self.open_tunnel();
            }
            TunnelChange::Down { reason } => {
                tracing::warn!(
                    %reason,
                    "the tunnel carries nothing: what is not aggregated is forwarded over one link, unprotected"
                );
                self.tunnel = None;
                self.tunnel_fault = None;
                if let Err(error) = self.guard.close_tunnel(&mut self.links) {
                    tracing::warn!(%error, "cannot remove the rules of the tunnel; routing ignores them");
                }
            }
        }
    }

    /// Opens the tunnel for the local network, if it carries packets and is not open yet.
    pub fn open_tunnel(&mut self) {
        let Some((mtu, addresses)) = &self.tunnel else {
            return;
        };
        let instance_names = self.guard.device().instance_names();
        let device = instance_names.tunnel_device();
        let mut interfaces = self.links.interfaces().iter();
        let device = interfaces.find(|i| i.name == device).map(|i| i.index);
        let networks = faults::networks(device, self.links.addresses(), self.links.reached());
        let fault = match faults::overlap_of_tunnel(addresses, &networks) {
            Some(fault) => {
                // An address of the tunnel would cut off the host of the network that has the same address.
                let withdrawn = self.guard.withdraw_tunnel(&mut self.links, *mtu);
                Some(withdrawn.err().map_or(fault, |error| error.to_string()))
            }
            None => {
                let opened = self.guard.open_tunnel(&mut self.links, *mtu, addresses);
                opened.err().map(|error| error.to_string())
            }
        };
        if let Some(fault) = fault.as_ref().filter(|_| fault != self.tunnel_fault) {
            tracing::error!(
                %fault,
                "cannot send packets into the tunnel: what is not aggregated is forwarded over one link, unprotected; \
                 the next attempt follows"
            );
        }
        self.tunnel_fault = fault;
    }

    /// Returns the state of the link at a place at the last [`Self::route`].
    pub fn state_when_routed(&self, at: usize) -> LinkState {
        self.routed_states.get(at).cloned().unwrap_or_default()
    }
}

/// The places of all links.
#[derive(Debug, Clone)]
pub(super) struct Places {
    all: Vec<Place>,
    /// The links by place, as [`Uplinks`] needs them.
    links: Vec<Option<LinkConfig>>,
}

/// A place with its link.
#[derive(Debug, Clone, Default)]
struct Place {
    /// The link; `None` if the place is free.
    link: Option<LinkConfig>,
    /// The time at which the place becomes free, if its link was removed from the configuration. The link keeps
    /// its routes during this grace period, so that the last segments of its subflows are sent.
    leaves_at: Option<Instant>,
}

impl Places {
    pub fn new(links: &[LinkConfig]) -> Self {
        let place = |link: &LinkConfig| Place {
            link: Some(link.clone()),
            leaves_at: None,
        };
        let mut places = Places {
            all: links.iter().map(place).collect(),
            links: Vec::new(),
        };
        places.update_links();
        places
    }

    /// Copies the links of all places to `links`.
    fn update_links(&mut self) {
        self.links = self.all.iter().map(|place| place.link.clone()).collect();
    }

    /// Returns the uplinks of `config`. Their links are the links in these places.
    pub fn uplinks<'a>(&'a self, config: &'a BoxConfig) -> Uplinks<'a> {
        Uplinks {
            tun: &config.tun,
            links: &self.links,
            lan: &config.lan,
            servers: servers(config),
            private: &config.socks,
            shortcut: config.shortcut,
            tunnel: config.datagrams == Datagrams::Tunnel,
        }
    }

    /// Takes the links of a new configuration. A link that is also in the earlier configuration keeps its place,
    /// and a new link gets a free place. The place of a removed link becomes free at `leave_at`. Returns, for
    /// each new link, its place and its index in `links`. Returns `None` if there are not enough free places.
    pub fn change(
        &mut self,
        links: &[LinkConfig],
        leave_at: Instant,
    ) -> Option<Vec<(usize, usize)>> {
        let mut missing: Vec<usize> = (0..links.len()).collect();
        for place in self.all.iter_mut().filter(|p| p.leaves_at.is_none()) {
            let Some(link) = &mut place.link else {
                continue;
            };
            match links.iter().position(|new| link.goes_on_as(new)) {
                Some(new) => {
                    link.clone_from(&links[new]);
                    missing.retain(|number| *number != new);
                }
                None => place.leaves_at = Some(leave_at),
            }
        }
        let mut added = Vec::new();
        for number in missing {
            let free = self.all.iter().position(|place| place.link.is_none());
            let at = free.unwrap_or(self.all.len());
            if at >= MAX_PLACES {
                return None;
            }
            self.all
                .resize(self.all.len().max(at + 1), Place::default());
            self.all[at].link = Some(links[number].clone());
            added.push((at, number));
        }
        self.update_links();
        Some(added)
    }

    /// Frees the places whose grace period is over, and returns them.
    pub fn clear(&mut self, now: Instant) -> Vec<usize> {
        let mut freed = Vec::new();
        for (at, place) in self.all.iter_mut().enumerate() {
            if place.leaves_at.is_some_and(|at| at <= now) {
                *place = Place::default();
                freed.push(at);
            }
        }
        self.update_links();
        freed
    }

    /// Returns the time at which the next place becomes free.
    pub fn next_timeout(&self) -> Option<Instant> {
        self.all.iter().filter_map(|place| place.leaves_at).min()
    }

    /// Returns the link at a place, if it is still in the configuration.
    pub fn link(&self, at: usize) -> Option<&LinkConfig> {
        let place = self.all.get(at).filter(|p| p.leaves_at.is_none())?;
        place.link.as_ref()
    }

    /// Returns the engine's path of the link at a place.
    pub fn path(at: usize) -> PathId {
        PathId(u8::try_from(at).unwrap_or(u8::MAX))
    }
}

/// Returns the addresses of all servers.
fn servers(config: &BoxConfig) -> Vec<SocketAddr> {
    let endpoints = config.servers.iter();
    endpoints
        .flat_map(|s| [s.endpoint_v4(), s.endpoint_v6()])
        .flatten()
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(places: &Places) -> Vec<&str> {
        let names = places.links.iter();
        names.map(|l| l.as_ref().map_or("", |l| &l.name)).collect()
    }

    #[test]
    fn links_keep_their_places_and_new_ones_get_free_ones() {
        let [a, b, c, d] = ["a", "b", "c", "d"].map(LinkConfig::new);
        let soon = Instant::from_millis(3_000);
        let mut places = Places::new(&[a.clone(), b.clone()]);
        // `a` is removed; its place is not free until the grace period of `a` is over.
        let added = places.change(&[c.clone(), b.clone()], soon);
        assert_eq!(added, Some(vec![(2, 0)]));
        assert_eq!(names(&places), ["a", "b", "c"]);
        assert!(places.link(0).is_none() && places.link(1).is_some());
        assert_eq!(places.next_timeout(), Some(soon));
        assert!(places.clear(Instant::from_millis(2_999)).is_empty());
        assert_eq!(places.clear(soon), [0]);
        assert_eq!(names(&places), ["", "b", "c"]);
        let added = places.change(&[b.clone(), d, c.clone()], soon);
        assert_eq!(added, Some(vec![(0, 1)]));
        assert_eq!(names(&places), ["d", "b", "c"]);
        // `b` with another setting is the same link, but with another interface it is a new link.
        let mut moved = b.clone();
        moved.backup = true;
        assert_eq!(
            places.change(&[moved.clone(), c.clone()], soon),
            Some(vec![])
        );
        assert_eq!(places.link(1), Some(&moved));
        moved.interface = "e".to_owned();
        assert_eq!(places.change(&[moved, c], soon), Some(vec![(3, 0)]));
    }

    #[test]
    fn a_change_fails_without_enough_free_places() {
        // With 16 links, 8 of the 24 places are free: too few for 16 new links, and enough for 8. Once the grace
        // period is over, the 16 places of the removed links are free for 16 other links.
        let mut places = Places::new(&[]);
        let soon = Instant::from_millis(1);
        let many = |n: usize| -> Vec<LinkConfig> {
            (0..16)
                .map(|i| LinkConfig::new(format!("wan{n}.{i}")))
                .collect()
        };
        assert_eq!(
            places.change(&many(0), soon).map(|added| added.len()),
            Some(16)
        );
        assert_eq!(places.clone().change(&many(1), soon), None);
        let mut few = places.clone();
        few.change(&many(1)[..8], soon).unwrap();
        few.clear(soon);
        assert_eq!(
            few.change(&many(2), soon).map(|added| added.len()),
            Some(16)
        );
    }
}
