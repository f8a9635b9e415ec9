//! Reload of the configuration of links and servers while a box runs.

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

/// The mapping from the old indices of servers to the new ones. An entry is `None` if the server was removed.
struct Moved(Vec<Option<usize>>);

impl Moved {
    fn new(old: &[ServerEntry], new: &[ServerEntry]) -> Self {
        let new_index = |old: &ServerEntry| new.iter().position(|new| old.goes_on_as(new));
        Moved(old.iter().map(new_index).collect())
    }

    /// Returns the new index of the server with the index `old`; `None` if it was removed.
    fn new_index(&self, old: usize) -> Option<usize> {
        self.0.get(old).copied().flatten()
    }

    /// Returns the old index of the server with the index `new`; `None` if it was added.
    fn old_index(&self, new: usize) -> Option<usize> {
        self.0.iter().position(|index| *index == Some(new))
    }
}

impl Upstream {
    /// Applies `config`, except that it adds no links. Returns the new index of each old server, `None` for a
    /// removed one, and the paths of removed links.
    pub(crate) fn reload(
        &mut self,
        now: Instant,
        config: &BoxConfig,
        stack: &mut Stack,
    ) -> (Vec<Option<usize>>, Vec<PathId>) {
        // Examinations and measurements name servers by their index, and the index changes.
        self.examinations.stop(now, None, stack);
        self.meter.stop(now, None, stack);
        self.keying.stop(now, stack);
        let moved = Moved::new(&self.servers.entries, &config.servers);
        // With another key this box is another user. Tickets and idle connections belong to the former user.
        let same_key = self.servers.key.public() == config.key.public();
        let all_removed = vec![None; moved.0.len()];
        let pool_indices = if same_key { &moved.0 } else { &all_removed };
        self.pools.reload(now, &config.warm, pool_indices, stack);
        self.links
            .reload_servers(now, &config.servers, &moved, stack);
        self.meter.reload(config, &moved);
        self.servers.reload(now, config, (&moved, same_key));
        let removed_paths = self.links.reload(now, &config.links, stack);
        self.probe_pace.settings = config.probing.clone();
        self.update(now, stack);
        (moved.0, removed_paths)
    }

    /// Sets the factory of the strategies of new connections.
    pub(crate) fn set_strategies(&mut self, strategy: StrategyFactory) {
        self.strategy = strategy;
    }
}

impl Servers {
    /// Applies the new list of servers, and moves the state of servers to their new indices. The TLS clients are
    /// kept if this box has the `same_key` as before.
    fn reload(&mut self, now: Instant, config: &BoxConfig, (moved, same_key): (&Moved, bool)) {
        let indices = 0..config.servers.len();
        let mut clients = Vec::new();
        for (new, server) in config.servers.iter().enumerate() {
            // A server's old client has its tickets and the agreed version.
            let old = moved.old_index(new).filter(|_| same_key);
            let old_client = old.and_then(|old| self.clients[old].take());
            clients.push(match server.protection {
                Protection::None => None,
                Protection::Tls => Some(old_client.unwrap_or_else(|| {
                    let client = Client::new(&config.key, server.key, config.versions);
                    client.set_clock(now, &self.clock);
                    client
                })),
            });
        }
        self.clients = clients;
        let logged = indices
            .clone()
            .map(|new| moved.old_index(new).map(|old| self.logged[old]));
        self.logged = logged.map(Option::unwrap_or_default).collect();
        self.reached.reload(indices.map(|new| moved.old_index(new)));
        let wanted = self
            .choice
            .operator_choice
            .and_then(|server| moved.new_index(server));
        let chosen = self.choice.chosen;
        // In place of a removed server, the first server is chosen until the next choice.
        let chosen = chosen.map(|server| moved.new_index(server).unwrap_or(0));
        (self.choice.operator_choice, self.choice.chosen) = (wanted, chosen);
        self.choice.gain = config.measuring.gain;
        // With another rule the choice starts anew.
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
    /// Applies the settings, and moves the egress metrics to the servers' new indices.
    fn reload(&mut self, config: &BoxConfig, moved: &Moved) {
        let indices = 0..config.servers.len();
        let old_indices: Vec<_> = indices.map(|new| moved.old_index(new)).collect();
        self.egress.reload(&old_indices);
        self.settings = config.measuring.clone();
    }
}

impl Links {
    /// Applies the new list of servers: keeps the state of servers that stay, and ends the probes of removed
    /// servers.
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
            let health =
                servers
                    .iter()
                    .enumerate()
                    .map(|(new, server)| match moved.old_index(new) {
                        Some(old) => link.health[old].reloaded(now),
                        None => ServerHealth::unknown(now, link.open, link.fits(server)),
                    });
            link.health = health.collect();
        }
    }

    /// Applies the configuration of links, and returns the paths of removed links.
    fn reload(&mut self, now: Instant, new: &[LinkConfig], stack: &mut Stack) -> Vec<PathId> {
        let old = core::mem::replace(&mut self.configs, new.to_vec());
        let mut removed_paths = Vec::new();
        for index in (0..self.all.len()).rev() {
            let link = &mut self.all[index];
            let before = old.iter().find(|c| c.name == link.name);
            let goes_on = |new: &&LinkConfig| before.is_some_and(|old| old.goes_on_as(new));
            let Some(config) = new.iter().find(goes_on) else {
                let link = self.all.remove(index);
                let probes = link.health.iter().flat_map(ServerHealth::probes);
                probes.for_each(|probe| stack.abort(now, probe));
                // The link may still work, so peers would otherwise go on sending over it.
                stack.leave_path(now, link.path);
                removed_paths.push(link.path);
                continue;
            };
            link.metered = config.metered;
            // A value that the operator has set at run time stays, unless the value in the file has changed.
            if before.is_some_and(|before| before.backup != config.backup) {
                link.backup = config.backup;
                stack.set_path_backup(now, link.path, config.backup);
            }
        }
        self.put_in_order();
        self.version += 1;
        removed_paths
    }
}
