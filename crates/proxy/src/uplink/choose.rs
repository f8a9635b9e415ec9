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
    /// The server for `need`.
    pub(super) fn current_server(&self, need: Need) -> usize {
        self.choice.server(need)
    }

    /// New connections go there.
    pub(super) fn is_current(&self, server: usize) -> bool {
        self.needs().any(|need| self.current_server(need) == server)
    }

    /// What connections may want, most often first.
    pub(super) fn needs(&self) -> impl Iterator<Item = Need> + use<> {
        let usual = self.choice.usual();
        let other = (self.choice.select == Select::Auto).then_some(Need::Latency);
        core::iter::once(usual).chain(other)
    }

    /// It answers, and lately did so over some link.
    pub(super) fn is_usable(&self, server: usize) -> bool {
        let mut cells = self.open_cells(server).peekable();
        cells.peek().is_some() && cells.any(|cell| !cell.is_doubtful())
    }

    /// What is known of a server. A link that leads nowhere has nothing free.
    pub(super) fn measured(&self, server: usize) -> Measured {
        let paths = self.links.iter().map(|link| {
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
        let before = self.choice.chosen;
        let servers = 0..self.servers.len();
        let measured: Vec<Measured> = servers.clone().map(|s| self.measured(s)).collect();
        let usable: Vec<bool> = servers.map(|s| self.is_usable(s)).collect();
        let begun = self.choice.settles_at.is_some();
        self.choice.settled |= begun && self.all_tried();
        self.choice.settled |= self.choice.settles_at.is_some_and(|at| at <= now);
        let Some(first) = usable.iter().position(|usable| *usable) else {
            return;
        };
        if self.meter.may {
            self.choice.settles_at.get_or_insert(now + SETTLING);
        }
        let candidates = measured.iter().zip(&usable);
        let candidates: Vec<Candidate<'_>> = candidates
            .map(|(measured, usable)| Candidate {
                measured,
                usable: *usable,
            })
            .collect();
        for need in Need::ALL {
            let chosen = match self.choice.wanted.filter(|wanted| usable[*wanted]) {
                Some(wanted) => Some(wanted),
                None if self.choice.select == Select::Order || !self.choice.settled => Some(first),
                None => {
                    let current = self.choice.measured.then(|| self.choice.server(need));
                    selection::choose(need, &candidates, current, self.choice.gain)
                }
            };
            self.choice.chosen[need as usize] = chosen.unwrap_or(first);
        }
        self.choice.measured = self.choice.settled;
        if self.choice.chosen != before {
            let [throughput, latency] = self.choice.chosen.map(|s| &self.servers[s].name);
            tracing::info!(%throughput, %latency, "servers chosen");
            self.changed = true;
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
        let wanted = self.servers.iter().position(|s| s.name == name);
        if wanted.is_none() && name != AUTO {
            let known: Vec<&str> = self.servers.iter().map(|s| s.name.as_str()).collect();
            let known = known.join(", ");
            return Err(format!(
                "there is no server {name:?}; the servers are {known}, or {AUTO}"
            ));
        }
        self.choice.wanted = wanted;
        self.update(now, stack);
        Ok(())
    }

    /// The name of the server that was asked for.
    pub(super) fn wanted_server(&self) -> Option<&str> {
        let wanted = self.choice.wanted?;
        Some(&self.servers[wanted].name)
    }
}
