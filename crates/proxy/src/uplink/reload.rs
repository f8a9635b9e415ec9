//! Links and servers that come and go while a box runs.

use braid_engine::{PathId, Stack, StrategyFactory};
use braid_secure::channel::Client;
use braid_wire::Instant;

use super::Upstream;
use super::health::{Cell, Reach};
use crate::config::{BoxConfig, LinkConfig, Protection, ServerEntry};
use crate::select::choice::Choice;

impl Upstream {
    /// Goes on with `config`. Returns where each server of before is now, if it is there, and the paths of
    /// links that are no more. New links are not added.
    pub(crate) fn reload(
        &mut self,
        now: Instant,
        config: &BoxConfig,
        stack: &mut Stack,
    ) -> (Vec<Option<usize>>, Vec<PathId>) {
        self.stop_measuring(now, stack);
        let moved = self.reload_servers(now, config, stack);
        let left = self.reload_links(now, &config.links, stack);
        self.probing = config.probing.clone();
        self.meter.settings = config.measuring.clone();
        self.servers.choice.gain = config.measuring.gain;
        if self.servers.choice.select != config.select {
            let (wanted, chosen) = (self.servers.choice.wanted, self.servers.choice.chosen);
            self.servers.choice = Choice {
                wanted,
                chosen,
                ..Choice::new(config.select, config.measuring.gain)
            };
        }
        self.pools.changed = true;
        self.update(now, stack);
        (moved, left)
    }

    /// New connections have their strategies from `strategy` from now on.
    pub(crate) fn set_strategies(&mut self, strategy: StrategyFactory) {
        self.strategy = strategy;
    }

    /// Measurements and examinations name servers by their places.
    fn stop_measuring(&mut self, now: Instant, stack: &mut Stack) {
        self.stop_examining(now, None, stack);
        if let Some(ongoing) = self.meter.ongoing.take() {
            ongoing.channel.abort(now, stack);
        }
        if let Some(parting) = self.meter.parting.take() {
            parting.channel.abort(now, stack);
        }
    }

    fn reload_servers(
        &mut self,
        now: Instant,
        config: &BoxConfig,
        stack: &mut Stack,
    ) -> Vec<Option<usize>> {
        let place = |old: &ServerEntry| config.servers.iter().position(|new| old.goes_on_as(new));
        let moved: Vec<Option<usize>> = self.servers.entries.iter().map(place).collect();
        let before = |new: usize| moved.iter().position(|place| *place == Some(new));
        // With another key this box is somebody else, to whom no ticket was given.
        let same_key = self.servers.key.public() == config.key.public();
        let mut clients = Vec::new();
        for (new, server) in config.servers.iter().enumerate() {
            let kept = before(new).filter(|_| same_key);
            let kept = kept.and_then(|old| self.servers.clients[old].take());
            clients.push(match server.protection {
                Protection::None => None,
                Protection::Tls => Some(kept.unwrap_or_else(|| {
                    let client = Client::new(&config.key, server.key, config.versions);
                    client.set_clock(now, &self.servers.clock);
                    client
                })),
            });
        }
        self.servers.clients = clients;
        for pool in &mut self.pools.all {
            let none = vec![None; moved.len()];
            let kept = if same_key { &moved } else { &none };
            for warm in pool.reload(config.warm.clone(), kept) {
                stack.abort(now, warm.lease.channel.conn);
            }
        }
        for link in &mut self.links.all {
            for (cell, moved) in link.cells.iter().zip(&moved) {
                if moved.is_none() {
                    cell.probes().for_each(|probe| stack.abort(now, probe));
                }
            }
            let cells = config.servers.iter().enumerate().map(|(new, server)| {
                let fits = link.reaches(server);
                before(new).map_or_else(
                    || unknown(now, fits && link.open, fits),
                    |old| link.cells[old].reloaded(now),
                )
            });
            link.cells = cells.collect();
        }
        let beyond =
            (0..config.servers.len()).map(|new| before(new).and_then(|old| self.meter.beyond[old]));
        self.meter.beyond = beyond.collect();
        let said =
            (0..config.servers.len()).map(|new| before(new).map(|old| self.servers.said[old]));
        self.servers.said = said.map(Option::unwrap_or_default).collect();
        self.servers
            .reached
            .reload((0..config.servers.len()).map(before));
        let go = |server: usize| moved.get(server).copied().flatten();
        self.servers.choice.wanted = self.servers.choice.wanted.and_then(go);
        self.servers.choice.chosen = self
            .servers
            .choice
            .chosen
            .map(|server| go(server).unwrap_or(0));
        self.servers.key = config.key.clone();
        self.servers.entries.clone_from(&config.servers);
        moved
    }

    fn reload_links(&mut self, now: Instant, new: &[LinkConfig], stack: &mut Stack) -> Vec<PathId> {
        let old = core::mem::replace(&mut self.links.configs, new.to_vec());
        let mut left = Vec::new();
        for index in (0..self.links.all.len()).rev() {
            let link = &mut self.links.all[index];
            let before = old.iter().find(|c| c.name == link.name);
            let goes_on = |new: &&LinkConfig| before.is_some_and(|old| old.goes_on_as(new));
            let Some(config) = new.iter().find(goes_on) else {
                let link = self.links.all.remove(index);
                let probes = link.cells.iter().flat_map(Cell::probes);
                probes.for_each(|probe| stack.abort(now, probe));
                // The far end would go on sending there.
                stack.leave_path(now, link.path);
                left.push(link.path);
                continue;
            };
            link.metered = config.metered;
            // What was switched by hand stays so, unless the file says something else than before.
            if before.is_some_and(|before| before.backup != config.backup) {
                link.backup = config.backup;
                stack.set_path_backup(now, link.path, config.backup);
            }
        }
        self.links.put_in_order();
        left
    }
}

/// What is known of a server that is new on a link that `fits` it.
fn unknown(now: Instant, ask: bool, fits: bool) -> Cell {
    Cell {
        next: ask.then_some(now),
        // A server of the other family is never reached here.
        reach: if fits { Reach::Unknown } else { Reach::Down },
        ..Cell::default()
    }
}
