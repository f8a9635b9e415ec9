//! Reload: links and servers that come and go while a box runs.

use braid_engine::{PathId, Stack, StrategyFactory};
use braid_secure::channel::Client;
use braid_wire::Instant;

use super::Upstream;
use super::health::ServerHealth;
use super::links::Links;
use super::meter::Meter;
use super::servers::Servers;
use crate::config::{BoxConfig, LinkConfig, Protection, ServerEntry};
use crate::select::choice::Choice;

/// The new index of each old server, where it still exists.
struct Moved(Vec<Option<usize>>);

impl Moved {
    fn new(old: &[ServerEntry], new: &[ServerEntry]) -> Self {
        let place = |old: &ServerEntry| new.iter().position(|new| old.goes_on_as(new));
        Moved(old.iter().map(place).collect())
    }

    /// Returns the new index of an old server.
    fn now(&self, old: usize) -> Option<usize> {
        self.0.get(old).copied().flatten()
    }

    /// Returns the old index of a server.
    fn before(&self, new: usize) -> Option<usize> {
        self.0.iter().position(|place| *place == Some(new))
    }
}

impl Upstream {
    /// Applies `config`. Returns the new index of each old server, where it still exists, and the paths of removed
    /// links. New links are not added.
    pub(crate) fn reload(
        &mut self,
        now: Instant,
        config: &BoxConfig,
        stack: &mut Stack,
    ) -> (Vec<Option<usize>>, Vec<PathId>) {
        // Examinations and measurements name servers by index, which changes.
        self.examinations.stop(now, None, stack);
        self.meter.stop(now, None, stack);
        let moved = Moved::new(&self.servers.entries, &config.servers);
        // With another key this box is another user, for whom no ticket or idle connection is valid.
        let same_key = self.servers.key.public() == config.key.public();
        let none = vec![None; moved.0.len()];
        let kept = if same_key { &moved.0 } else { &none };
        self.pools.reload(now, &config.warm, kept, stack);
        self.links
            .reload_servers(now, &config.servers, &moved, stack);
        self.meter.reload(config, &moved);
        self.servers.reload(now, config, (&moved, same_key));
        let left = self.links.reload(now, &config.links, stack);
        self.probe_pace.settings = config.probing.clone();
        self.update(now, stack);
        (moved.0, left)
    }

    /// Sets the factory of new connections' strategies.
    pub(crate) fn set_strategies(&mut self, strategy: StrategyFactory) {
        self.strategy = strategy;
    }
}

impl Servers {
    fn reload(&mut self, now: Instant, config: &BoxConfig, (moved, same_key): (&Moved, bool)) {
        let places = 0..config.servers.len();
        let mut clients = Vec::new();
        for (new, server) in config.servers.iter().enumerate() {
            let kept = moved.before(new).filter(|_| same_key);
            let kept = kept.and_then(|old| self.clients[old].take());
            clients.push(match server.protection {
                Protection::None => None,
                Protection::Tls => Some(kept.unwrap_or_else(|| {
                    let client = Client::new(&config.key, server.key, config.versions);
                    client.set_clock(now, &self.clock);
                    client
                })),
            });
        }
        self.clients = clients;
        let logged = places
            .clone()
            .map(|new| moved.before(new).map(|old| self.logged[old]));
        self.logged = logged.map(Option::unwrap_or_default).collect();
        self.reached.reload(places.map(|new| moved.before(new)));
        let wanted = self
            .choice
            .operator_choice
            .and_then(|server| moved.now(server));
        let chosen = self.choice.chosen;
        let chosen = chosen.map(|server| moved.now(server).unwrap_or(0));
        (self.choice.operator_choice, self.choice.chosen) = (wanted, chosen);
        self.choice.gain = config.measuring.gain;
        if self.choice.select != config.select {
            self.choice = Choice {
                operator_choice: wanted,
                chosen,
                ..Choice::new(config.select, config.measuring.gain)
            };
        }
        self.key = config.key.clone();
        self.entries.clone_from(&config.servers);
    }
}

impl Meter {
    fn reload(&mut self, config: &BoxConfig, moved: &Moved) {
        let places = 0..config.servers.len();
        let egress = places.map(|new| moved.before(new).and_then(|old| self.egress[old]));
        self.egress = egress.collect();
        self.settings = config.measuring.clone();
    }
}

impl Links {
    fn reload_servers(
        &mut self,
        now: Instant,
        servers: &[ServerEntry],
        moved: &Moved,
        stack: &mut Stack,
    ) {
        for link in &mut self.all {
            for (health, moved) in link.health.iter().zip(&moved.0) {
                if moved.is_none() {
                    health.probes().for_each(|probe| stack.abort(now, probe));
                }
            }
            let health = servers
                .iter()
                .enumerate()
                .map(|(new, server)| match moved.before(new) {
                    Some(old) => link.health[old].reloaded(now),
                    None => ServerHealth::unknown(now, link.open, link.fits(server)),
                });
            link.health = health.collect();
        }
    }

    /// Applies the configuration of links, and returns the paths of removed ones.
    fn reload(&mut self, now: Instant, new: &[LinkConfig], stack: &mut Stack) -> Vec<PathId> {
        let old = core::mem::replace(&mut self.configs, new.to_vec());
        let mut left = Vec::new();
        for index in (0..self.all.len()).rev() {
            let link = &mut self.all[index];
            let before = old.iter().find(|c| c.name == link.name);
            let goes_on = |new: &&LinkConfig| before.is_some_and(|old| old.goes_on_as(new));
            let Some(config) = new.iter().find(goes_on) else {
                let link = self.all.remove(index);
                let probes = link.health.iter().flat_map(ServerHealth::probes);
                probes.for_each(|probe| stack.abort(now, probe));
                // Otherwise the peer would go on sending there.
                stack.leave_path(now, link.path);
                left.push(link.path);
                continue;
            };
            link.metered = config.metered;
            // A switch set by hand stays, unless the file's value has changed.
            if before.is_some_and(|before| before.backup != config.backup) {
                link.backup = config.backup;
                stack.set_path_backup(now, link.path, config.backup);
            }
        }
        self.put_in_order();
        left
    }
}
