//! How the choice of servers is made and changed.

use core::time::Duration;

use braid_engine::Stack;
use braid_wire::Instant;

use super::Upstream;
use super::health::Reach;
use crate::config::{AUTO, Select};
use crate::select::selection::{self, Candidate, Measured, Need, Quality};

/// How long the first measurements may take: until then the configuration's order counts.
const SETTLING: Duration = Duration::from_secs(15);

impl Upstream {
    /// It answers, and lately did so over some link.
    pub(super) fn is_usable(&self, server: usize) -> bool {
        let mut cells = self.open_cells(server).peekable();
        cells.peek().is_some() && cells.any(|cell| !cell.is_doubtful())
    }

    /// What is known of a server. A link that leads nowhere has nothing free.
    pub(super) fn measured(&self, server: usize) -> Measured {
        let paths = self.links.all.iter().map(|link| {
            let cell = &link.cells[server];
            match link.open && cell.reach != Reach::Down {
                true => cell.quality(),
                false => Quality::default(),
            }
        });
        Measured {
            paths: paths.collect(),
            beyond: self.meter.beyond[server].map_or(Quality::default(), |(_, told)| told),
        }
    }

    /// Chooses anew.
    pub(super) fn choose(&mut self, now: Instant) {
        let before = self.servers.choice.chosen;
        let servers = 0..self.servers.entries.len();
        let measured: Vec<Measured> = servers.clone().map(|s| self.measured(s)).collect();
        let usable: Vec<bool> = servers.map(|s| self.is_usable(s)).collect();
        let begun = self.servers.choice.settles_at.is_some();
        self.servers.choice.settled |= begun && self.all_tried();
        self.servers.choice.settled |= self.servers.choice.settles_at.is_some_and(|at| at <= now);
        let Some(first) = usable.iter().position(|usable| *usable) else {
            return;
        };
        if self.meter.may {
            self.servers.choice.settles_at.get_or_insert(now + SETTLING);
        }
        let candidates = measured.iter().zip(&usable);
        let candidates: Vec<Candidate<'_>> = candidates
            .map(|(measured, usable)| Candidate {
                measured,
                usable: *usable,
            })
            .collect();
        for need in Need::ALL {
            let chosen = match self.servers.choice.wanted.filter(|wanted| usable[*wanted]) {
                Some(wanted) => Some(wanted),
                None if self.servers.choice.select == Select::Order
                    || !self.servers.choice.settled =>
                {
                    Some(first)
                }
                None => {
                    let current = self
                        .servers
                        .choice
                        .measured
                        .then(|| self.servers.choice.server(need));
                    selection::choose(need, &candidates, current, self.servers.choice.gain)
                }
            };
            self.servers.choice.chosen[need as usize] = chosen.unwrap_or(first);
        }
        self.servers.choice.measured = self.servers.choice.settled;
        if self.servers.choice.chosen != before {
            let [throughput, latency] = self
                .servers
                .choice
                .chosen
                .map(|s| &self.servers.entries[s].name);
            tracing::info!(%throughput, %latency, "servers chosen");
            self.pools.changed = true;
        }
    }

    /// Uses the server called `name` while it answers, or by [`AUTO`] the one that is chosen.
    ///
    /// # Errors
    /// There is none of this name.
    pub(crate) fn switch_server(
        &mut self,
        now: Instant,
        name: &str,
        stack: &mut Stack,
    ) -> Result<(), String> {
        let wanted = self.servers.entries.iter().position(|s| s.name == name);
        if wanted.is_none() && name != AUTO {
            let known: Vec<&str> = self
                .servers
                .entries
                .iter()
                .map(|s| s.name.as_str())
                .collect();
            let known = known.join(", ");
            return Err(format!(
                "there is no server {name:?}; the servers are {known}, or {AUTO}"
            ));
        }
        self.servers.choice.wanted = wanted;
        self.update(now, stack);
        Ok(())
    }
}
