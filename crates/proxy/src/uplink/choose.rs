//! The choice of servers, and changes to it.

use core::net::IpAddr;

use braid_engine::Stack;
use braid_wire::Instant;

use super::Upstream;
use super::health::Reach;
use super::servers::Servers;
use crate::config::AUTO;
use crate::protocol::prefix::Prefix;
use crate::select::selection::{self, Candidate, Measured, Need, Quality};

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
    /// Returns the measurements of a server. Measurements over a link without answers are outdated, so they are left
    /// out.
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
            egress: self.meter.egress.over_all(server),
        }
    }

    /// Chooses the servers for new connections.
    pub(super) fn choose(&mut self, now: Instant) {
        let servers = 0..self.servers.entries.len();
        let measured: Vec<Measured> = servers.clone().map(|s| self.measured(s)).collect();
        let usable = self.usable_servers();
        let mut answering = servers.filter(|s| usable[*s]);
        let all_tried = answering.all(|s| self.links.is_tried(s));
        let candidates = candidates(&measured, &usable);
        let may_measure = self.meter.may_measure;
        let choice = &mut self.servers.choice;
        if choice.choose(now, &candidates, may_measure, all_tried) {
            let [throughput, latency] = choice.chosen.map(|s| &self.servers.entries[s].name);
            tracing::info!(%throughput, %latency, "chose the servers for throughput and for latency");
            self.pools.changed = true;
        }
        // Drop the choices by prefix that no longer apply. The next connection to such a prefix chooses anew.
        let choice = &self.servers.choice;
        let is_by_measurements = choice.is_by_measurements();
        self.meter.egress.retain_choices(|need, server| {
            is_by_measurements && usable[server] && server != choice.server(need)
        });
    }

    /// Returns the server for a user's connection with this need to the destination `to`.
    ///
    /// If the metrics of the destination's prefix are known, they replace those over all destinations. Unless they
    /// make another server better by the configured gain, the connection goes to the server that is chosen for all
    /// destinations.
    pub(super) fn server_for(&mut self, now: Instant, need: Need, to: Option<IpAddr>) -> usize {
        let usual = self.servers.current(need);
        let Some(prefix) = to.map(Prefix::from).filter(|_| self.servers.has_choice()) else {
            return usual;
        };
        let server = self.server_for_prefix(now, need, prefix, usual);
        self.meter.egress.on_used(now, prefix, server);
        server
    }

    fn server_for_prefix(
        &mut self,
        now: Instant,
        need: Need,
        prefix: Prefix,
        usual: usize,
    ) -> usize {
        let egress = &mut self.meter.egress;
        let Some(metrics) = egress
            .to_prefix(now, prefix)
            .filter(|_| self.servers.choice.is_by_measurements())
        else {
            egress.set_chosen(need, prefix, None);
            return usual;
        };
        let before = egress.chosen(need, prefix);
        let measured = metrics.into_iter().enumerate().map(|(s, egress)| Measured {
            egress,
            ..self.measured(s)
        });
        let measured: Vec<Measured> = measured.collect();
        let usable = self.usable_servers();
        let candidates = candidates(&measured, &usable);
        // The usual server has idle connections. So connections return to it once the other server has no advantage,
        // for example because the destination turns out to be as far from the other server.
        let is_better = |other: &usize| {
            let pair = [candidates[usual], candidates[*other]];
            selection::choose(need, &pair, Some(0), 0.0) == Some(1)
        };
        let current = before.filter(is_better).unwrap_or(usual);
        let gain = self.servers.choice.gain;
        let chosen = selection::choose(need, &candidates, Some(current), gain).unwrap_or(usual);
        let other = Some(chosen).filter(|chosen| *chosen != usual);
        self.meter.egress.set_chosen(need, prefix, other);
        chosen
    }

    /// Returns whether new connections of some need, or to some destinations, go to `server`.
    pub(super) fn is_current(&self, server: usize) -> bool {
        let mut needs = self.servers.needs();
        needs.any(|need| self.servers.current(need) == server)
            || self.meter.egress.choices().any(|(.., s)| s == server)
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

/// Returns the servers as input of the choice.
fn candidates<'a>(measured: &'a [Measured], usable: &[bool]) -> Vec<Candidate<'a>> {
    let all = measured.iter().zip(usable);
    let all = all.map(|(measured, usable)| Candidate {
        measured,
        usable: *usable,
    });
    all.collect()
}
