//! What the upstream shows of itself, and its switches.

use braid_engine::{PathId, Stack};
use braid_wire::Instant;

use super::health::Reach;
use super::pool::Pool;
use super::{Link, Upstream};
use crate::config::Protection;
use crate::selection::Need;
use crate::status::{
    PathState, PathStatus, ProxyStatus, SelectStatus, ServerStatus, WarmStatus, milliseconds, score,
};

impl Upstream {
    /// Whether new connections are to be taken in where a server is reached.
    pub(crate) fn switch_proxy(&mut self, on: bool) {
        self.proxy_on = on;
    }

    /// Switches the link called `name`.
    ///
    /// # Errors
    /// There is none of this name.
    pub(crate) fn switch_link(
        &mut self,
        now: Instant,
        name: &str,
        on: bool,
        stack: &mut Stack,
    ) -> Result<(), String> {
        self.link_called(name)?.off = !on;
        self.update(now, stack);
        Ok(())
    }

    /// Says whether the link called `name` is a backup, for connections that are there and new ones.
    ///
    /// # Errors
    /// There is none of this name.
    pub(crate) fn set_backup(
        &mut self,
        now: Instant,
        name: &str,
        backup: bool,
        stack: &mut Stack,
    ) -> Result<(), String> {
        let link = self.link_called(name)?;
        link.backup = backup;
        stack.set_path_backup(now, link.path, backup);
        self.update(now, stack);
        Ok(())
    }

    fn link_called(&mut self, name: &str) -> Result<&mut Link, String> {
        let Some(link) = self.links.iter().position(|l| l.name == name) else {
            let known: Vec<&str> = self.links.iter().map(|l| l.name.as_str()).collect();
            let known = known.join(", ");
            return Err(format!("there is no link {name:?}; the links are {known}"));
        };
        Ok(&mut self.links[link])
    }

    /// The link is switched off, or was taken out of the configuration.
    pub(crate) fn is_off(&self, path: PathId) -> bool {
        !self.links.iter().any(|l| l.path == path && !l.off)
    }

    /// The name of the link that a path stands for, while it is in the configuration.
    pub(crate) fn link_name(&self, path: PathId) -> Option<&str> {
        let link = self.links.iter().find(|l| l.path == path)?;
        Some(&link.name)
    }

    pub(crate) fn proxy_status(&self) -> ProxyStatus {
        ProxyStatus {
            on: self.proxy_on,
            taking_in: self.intake_wanted(),
        }
    }

    pub(crate) fn server_status(&self) -> Vec<ServerStatus> {
        let servers = self.servers.iter().enumerate();
        let status = servers.map(|(i, server)| ServerStatus {
            name: server.name.clone(),
            measured: self.measured(i),
            by_bandwidth: self.current_server(Need::Throughput) == i,
            by_delay: self.current_server(Need::Latency) == i,
            addresses: [server.endpoint_v4(), server.endpoint_v6()]
                .into_iter()
                .flatten()
                .collect(),
            reached: !self.server_down(i),
            current: self.is_current(i),
            protected: server.protection != Protection::None,
        });
        status.collect()
    }

    pub(crate) fn select_status(&self) -> SelectStatus {
        SelectStatus {
            by: self.choice.select.name().to_owned(),
            wanted: self.wanted_server().map(str::to_owned),
            measuring: self.is_measuring(),
        }
    }

    /// The links.
    pub(crate) fn link_status(&self, stack: &Stack) -> Vec<PathStatus> {
        let totals = stack.path_totals();
        let links = self.links.iter();
        let links = links.filter_map(|l| Some((l, totals.get(usize::from(l.path.0))?)));
        let status = links.map(|(link, totals)| {
            let of_link = stack.records().filter(|(_, path, _)| *path == link.path);
            let newest = of_link.map(|(.., record)| record).max_by_key(|r| r.at);
            let handshakes = link.cells.iter().filter_map(|c| c.rtt).min();
            let mut status = PathStatus::new(link.name.clone(), totals);
            status.fill_in(newest.as_ref());
            status.rtt_ms = status.rtt_ms.or(handshakes.and_then(milliseconds));
            status.backup = link.backup;
            status.default = self.best == Some(link.path);
            status.state = match link.reach() {
                _ if link.off => PathState::Off,
                _ if !link.up => PathState::Down,
                _ if !link.open => PathState::Spared,
                Reach::Down => PathState::Dark,
                Reach::Up | Reach::Unknown => PathState::Up,
            };
            status
        });
        let mut all: Vec<PathStatus> = status.collect();
        score(&mut all);
        all
    }

    pub(crate) fn warm_status(&self) -> WarmStatus {
        let pools = self.pools.iter().map(Pool::status);
        let all = pools.reduce(|sum, pool| WarmStatus {
            ready: sum.ready + pool.ready,
            opening: sum.opening + pool.opening,
            most: pool.most,
        });
        all.unwrap_or_default()
    }
}
