//! The choice of servers, and changes to it.

use braid_engine::Stack;
use braid_wire::Instant;

use super::Upstream;
use super::health::Reach;
use super::servers::Servers;
use crate::config::AUTO;
use crate::select::selection::{Candidate, Measured, Quality};

impl Servers {
    /// Selects the server with the name `name` by hand; [`AUTO`] ends the selection.
    ///
    /// # Errors
    /// No server has this name.
    fn select_by_hand(&mut self, name: &str) -> Result<(), String> {
        let wanted = self.entries.iter().position(|s| s.name == name);
        if wanted.is_none() && name != AUTO {
            let names: Vec<&str> = self.entries.iter().map(|s| s.name.as_str()).collect();
            let names = names.join(", ");
            return Err(format!(
                "there is no server {name:?}; the servers are {names}, or {AUTO}"
            ));
        }
        self.choice.operator_choice = wanted;
        Ok(())
    }
}

impl Upstream {
    /// Returns the measurements of a server. Those of a link without answers are outdated and left out.
    pub(super) fn measured(&self, server: usize) -> Measured {
        let paths = self.links.all.iter().map(|link| {
            let health = &link.health[server];
            match link.open && health.reach != Reach::Down {
                true => health.quality(),
                false => Quality::default(),
            }
        });
        Measured {
            paths: paths.collect(),
            egress: self.meter.egress[server].map_or(Quality::default(), |(_, egress)| egress),
        }
    }

    /// Chooses the servers for new connections.
    pub(super) fn choose(&mut self, now: Instant) {
        let servers = 0..self.servers.entries.len();
        let measured: Vec<Measured> = servers.clone().map(|s| self.measured(s)).collect();
        let usable = self.usable_servers();
        let mut answering = servers.filter(|s| usable[*s]);
        let all_tried = answering.all(|s| self.links.is_tried(s));
        let candidates = measured.iter().zip(&usable);
        let candidates: Vec<Candidate<'_>> = candidates
            .map(|(measured, usable)| Candidate {
                measured,
                usable: *usable,
            })
            .collect();
        let may_measure = self.meter.may_measure;
        let choice = &mut self.servers.choice;
        if choice.choose(now, &candidates, may_measure, all_tried) {
            let [throughput, latency] = choice.chosen.map(|s| &self.servers.entries[s].name);
            tracing::info!(%throughput, %latency, "chose the servers for throughput and for latency");
            self.pools.changed = true;
        }
    }

    /// Returns for each server whether it is usable: over some open link no handshake has failed or is late.
    pub(super) fn usable_servers(&self) -> Vec<bool> {
        let servers = 0..self.servers.entries.len();
        servers.map(|s| self.links.is_server_usable(s)).collect()
    }

    /// Makes new connections use the server with the name `name` while it answers; [`AUTO`] ends the selection.
    ///
    /// # Errors
    /// No server has this name.
    pub(crate) fn switch_server(
        &mut self,
        now: Instant,
        name: &str,
        stack: &mut Stack,
    ) -> Result<(), String> {
        self.servers.select_by_hand(name)?;
        self.update(now, stack);
        Ok(())
    }
}
