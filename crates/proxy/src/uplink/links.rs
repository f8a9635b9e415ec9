//! The links of a box, and what is known of servers over them.

use core::time::Duration;

use braid_engine::{ConnId, PathId};
use braid_wire::Instant;

use super::health::{Cell, Reach};
use super::news::Said;
use crate::config::{LinkConfig, ServerEntry};

/// A link, and what is known of each server over it.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) path: PathId,
    pub(super) name: String,
    /// Switched off: as if it were not there.
    pub(super) off: bool,
    pub(super) backup: bool,
    pub(super) metered: bool,
    pub(super) v4: bool,
    pub(super) v6: bool,
    /// Carrier, address and gateway are there.
    pub(super) up: bool,
    /// The stack may use it: up, on, and not held back as metered.
    pub(super) open: bool,
    /// What the driver was told last of [`Notice::Reached`](super::Notice::Reached).
    pub(super) told_reached: bool,
    /// Nothing is measured here before, so that it does not take too much of the link.
    pub(super) rests_until: Instant,
    /// How much of that is for one measurement.
    pub(super) rest: Duration,
    /// One for each server.
    pub(super) cells: Vec<Cell>,
    /// Where connections are regular TCP and the link carries a share of them: what it has carried so
    /// far, as seconds of its rate. The link with the least is next.
    pub(super) carried: f64,
    pub(super) said: Said,
}

impl Link {
    pub(super) fn reaches(&self, server: &ServerEntry) -> bool {
        self.v4 && server.v4.is_some() || self.v6 && server.v6.is_some()
    }

    /// From when on a server may be measured here. Where something says that its way has changed, one
    /// measurement sooner: the link rests longer after it.
    pub(super) fn rests_until(&self, cell: &Cell) -> Instant {
        match cell.gauge.is_alarmed() {
            true => self.rests_until - self.rest,
            false => self.rests_until,
        }
    }

    /// The best that is known about it with any server.
    pub(super) fn reach(&self) -> Reach {
        let reached = self.cells.iter().map(|c| c.reach);
        reached.min().unwrap_or(Reach::Unknown)
    }

    /// The best that is known about what the link carries. A server that refuses this box answers over it: no
    /// user is served there, and what is only forwarded passes.
    pub(super) fn carriage(&self) -> Reach {
        match self.cells.iter().any(Cell::is_refused_by_server) {
            true => Reach::Up,
            false => self.reach(),
        }
    }
}

/// All links, in the order of the configuration.
#[derive(Debug)]
pub(super) struct Links {
    pub(super) configs: Vec<LinkConfig>,
    pub(super) all: Vec<Link>,
    /// The link for everything that is not TCP.
    pub(super) best: Option<PathId>,
}

impl Links {
    pub(super) fn new(configs: Vec<LinkConfig>) -> Self {
        Links {
            configs,
            all: Vec::new(),
            best: None,
        }
    }

    /// Puts links in the order of the configuration, which is that of preference.
    pub(super) fn put_in_order(&mut self) {
        let configs = &self.configs;
        let place = |link: &Link| configs.iter().position(|c| c.name == link.name);
        self.all
            .sort_by_key(|link| place(link).unwrap_or(usize::MAX));
    }

    /// What is known of a server over an open link.
    pub(super) fn cell(&mut self, server: usize, path: PathId) -> Option<&mut Cell> {
        let link = self.all.iter_mut().find(|l| l.path == path && l.open)?;
        link.cells.get_mut(server)
    }

    /// The link and the server that a probe asks.
    pub(super) fn probe(&self, conn: ConnId) -> Option<(usize, usize)> {
        self.all.iter().enumerate().find_map(|(l, link)| {
            let probes = |c: &Cell| c.probes().any(|probe| probe == conn);
            link.cells.iter().position(probes).map(|s| (l, s))
        })
    }

    /// The link called `name`.
    ///
    /// # Errors
    /// There is none of this name.
    pub(super) fn called(&mut self, name: &str) -> Result<&mut Link, String> {
        let Some(link) = self.all.iter().position(|l| l.name == name) else {
            let known: Vec<&str> = self.all.iter().map(|l| l.name.as_str()).collect();
            let known = known.join(", ");
            return Err(format!("there is no link {name:?}; the links are {known}"));
        };
        Ok(&mut self.all[link])
    }

    /// The link is switched off, or was taken out of the configuration.
    pub(super) fn is_off(&self, path: PathId) -> bool {
        !self.all.iter().any(|l| l.path == path && !l.off)
    }

    /// The name of the link that a path stands for, while it is in the configuration.
    pub(super) fn name(&self, path: PathId) -> Option<&str> {
        let link = self.all.iter().find(|l| l.path == path)?;
        Some(&link.name)
    }

    /// Returns whether no server can be used over the links that there are, as far as is known.
    pub(super) fn are_cut_off(&self) -> bool {
        let mut open = self.all.iter().filter(|l| l.open).peekable();
        open.peek().is_some() && open.all(|l| l.reach() == Reach::Down)
    }

    /// The link for what is not TCP.
    pub(super) fn choose_best(&self) -> Option<PathId> {
        let rank = |l: &Link| {
            let reach = l.carriage();
            (reach == Reach::Down, l.metered, l.backup, reach)
        };
        let rtt = |l: &Link| l.cells.iter().map(Cell::rank_rtt).min();
        let challenger = self
            .all
            .iter()
            .filter(|l| l.up && !l.off)
            .min_by_key(|l| (rank(l), rtt(l)))?;
        let holder = self
            .all
            .iter()
            .find(|l| Some(l.path) == self.best && l.up && !l.off);
        // No change for a small gain: it breaks every UDP flow's address.
        let stays = holder.filter(|h| {
            let gain = rtt(challenger).zip(rtt(h));
            let small = gain.is_none_or(|(c, h)| c.saturating_mul(5) / 4 + 5_000_000 >= h);
            rank(h) == rank(challenger) && small || rank(h).0 && rank(challenger).0 && !h.metered
        });
        Some(stays.unwrap_or(challenger).path)
    }

    /// When a probe is due.
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        let open = self.all.iter().filter(|l| l.open);
        open.flat_map(|l| l.cells.iter().filter_map(Cell::due))
            .min()
    }
}
