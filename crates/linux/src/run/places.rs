//! The kernel set-up of a box's links, and the place of each link in it.
//!
//! A link has a place: a number that identifies its path, addresses, routing tables and marks. The link keeps
//! its place as long as it is in the configuration, whatever other links come and go.

use std::net::SocketAddr;
use std::ops::RangeInclusive;

use braid_engine::PathId;
use braid_proxy::LinkAddresses;
use braid_proxy::config::{BoxConfig, LinkConfig};
use braid_wire::Instant;

use super::guard::Guard;
use super::uplinks::Uplinks;
use crate::net::Result;
use crate::net::link::LinkState;
use crate::net::links::Links;

/// Most places. Every range of addresses that a configuration may name has room for as many, and it is half
/// as many again as links.
const MAX_PLACES: usize = 24;

/// The kernel set-up of the links.
#[derive(Debug)]
pub(super) struct Network {
    // Dropped before the guard, whose device removes what is no longer in use.
    pub links: Links,
    /// The addresses that each link may have, by place.
    pub addresses: Vec<LinkAddresses>,
    /// The MTU that the engine assumes for each link, in bytes, by place.
    pub mtus: Vec<u16>,
    /// The port at which intercepted connections arrive.
    pub intercept_port: u16,
    /// Ports that only the engine uses towards the servers.
    pub ports: Option<RangeInclusive<u16>>,
    pub places: Places,
    /// The states of the links when they were routed last.
    pub seen: Vec<LinkState>,
    pub guard: Guard,
}

impl Network {
    /// Puts the rules of `config` in force, with those of links that are in their grace period.
    ///
    /// # Errors
    /// Fails if the system refuses.
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

    /// Routes as `config` says, and fixes the MTU of each new link.
    ///
    /// # Errors
    /// Fails if the system refuses.
    pub fn route(&mut self, config: &BoxConfig) -> Result<()> {
        let v6 = self.guard.device().has_v6();
        let uplinks = self.places.uplinks(config);
        let specs = uplinks.link_specs(v6);
        let states = self.links.reconfigure(specs, &config.lan)?;
        let links = self.places.all.iter().zip(&states).zip(0..);
        self.mtus.resize(states.len(), 0);
        for (((place, state), n), mtu) in links.zip(&mut self.mtus) {
            if let Some(link) = &place.link
                && *mtu == 0
            {
                *mtu = uplinks.addresses_of(n, link, state, v6).mtu;
            }
        }
        let servers = servers(config);
        self.links.change_shortcut(&servers, self.mtus.clone());
        self.seen = states;
        Ok(())
    }

    /// Returns the state of the link at a place as it was when it was [routed](Self::route).
    pub fn observed(&self, at: usize) -> LinkState {
        self.seen.get(at).cloned().unwrap_or_default()
    }
}

/// The places of all links.
#[derive(Debug, Clone)]
pub(super) struct Places {
    all: Vec<Place>,
    /// The links by place, as [`Uplinks`] needs them.
    links: Vec<Option<LinkConfig>>,
}

/// A place, and the link at it.
#[derive(Debug, Clone, Default)]
struct Place {
    link: Option<LinkConfig>,
    /// Time at which the place becomes free. The link has left the configuration, but keeps its routes until
    /// then, so that the last segments of its subflows are sent.
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
        places.list();
        places
    }

    fn list(&mut self) {
        self.links = self.all.iter().map(|place| place.link.clone()).collect();
    }

    /// Returns the uplinks of `config` in these places.
    pub fn uplinks<'a>(&'a self, config: &'a BoxConfig) -> Uplinks<'a> {
        Uplinks {
            tun: &config.tun,
            links: &self.links,
            lan: &config.lan,
            servers: servers(config),
            private: &config.socks,
            shortcut: config.shortcut,
        }
    }

    /// Takes the links of a new configuration. Links that go on keep their places, removed links leave theirs
    /// at `leave_at`, and new links get free places. Returns place and number in the configuration of each
    /// new link; `None` if the places run out.
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
        self.list();
        Some(added)
    }

    /// Frees the places whose grace period is over, and returns them.
    pub fn clear(&mut self, now: Instant) -> Vec<usize> {
        let mut cleared = Vec::new();
        for (at, place) in self.all.iter_mut().enumerate() {
            if place.leaves_at.is_some_and(|at| at <= now) {
                *place = Place::default();
                cleared.push(at);
            }
        }
        self.list();
        cleared
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

    /// Returns the path of a place, by which the engine knows it.
    pub fn path(at: usize) -> PathId {
        PathId(u8::try_from(at).unwrap_or(u8::MAX))
    }
}

fn servers(config: &BoxConfig) -> Vec<SocketAddr> {
    let endpoints = config.servers.iter();
    endpoints
        .flat_map(|s| [s.endpoint_v4(), s.endpoint_v6()])
        .flatten()
        .collect()
}

#[cfg(test)]
mod tests {
    use braid_proxy::config::Gateway;

    use super::*;

    fn link(name: &str) -> LinkConfig {
        LinkConfig {
            name: name.to_owned(),
            interface: name.to_owned(),
            gateway: Gateway::Auto,
            v4: true,
            v6: true,
            backup: false,
            metered: false,
            mtu: None,
        }
    }

    fn names(places: &Places) -> Vec<&str> {
        let names = places.links.iter();
        names.map(|l| l.as_ref().map_or("", |l| &l.name)).collect()
    }

    #[test]
    fn links_keep_their_places_and_new_ones_get_free_ones() {
        let [a, b, c, d] = ["a", "b", "c", "d"].map(link);
        let soon = Instant::from_millis(3_000);
        let mut places = Places::new(&[a.clone(), b.clone()]);
        // `a` leaves; its place is not free until its grace period is over.
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
        // Another setting leaves it the same link; another interface does not.
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
    fn places_run_out() {
        let mut places = Places::new(&[]);
        let soon = Instant::from_millis(1);
        let many = |n: usize| -> Vec<LinkConfig> {
            (0..16).map(|i| link(&format!("wan{n}.{i}"))).collect()
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
