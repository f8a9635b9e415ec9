//! The status of servers and links, and the operator's switches for links and the box.

use braid_engine::{PathId, Stack};
use braid_wire::Instant;

use super::health::{Reach, ServerHealth};
use super::links::{Link, Links};
use super::{Trouble, Upstream};
use crate::admin::status::{
    DestinationStatus, IdlePoolStatus, PathState, PathStatus, ProxyStatus, SelectStatus,
    ServerStatus, milliseconds, score,
};
use crate::admin::verdict::Condition;
use crate::config::{Protection, ServerEntry};
use crate::select::selection::Need;

impl Upstream {
    /// Switches the interception of new connections on or off.
    pub(crate) fn switch_proxy(&mut self, on: bool) {
        self.notices.switch(on);
    }

    /// Switches the link called `name` on or off.
    ///
    /// # Errors
    /// No link has this name.
    pub(crate) fn switch_link(
        &mut self,
        now: Instant,
        name: &str,
        on: bool,
        stack: &mut Stack,
    ) -> Result<(), String> {
        self.links.by_name(name)?.off = !on;
        self.update(now, stack);
        Ok(())
    }

    /// Sets whether the link called `name` is a backup, for existing and new connections.
    ///
    /// # Errors
    /// No link has this name.
    pub(crate) fn set_backup(
        &mut self,
        now: Instant,
        name: &str,
        backup: bool,
        stack: &mut Stack,
    ) -> Result<(), String> {
        let link = self.links.by_name(name)?;
        link.backup = backup;
        stack.set_path_backup(now, link.path, backup);
        self.links.version += 1;
        self.update(now, stack);
        Ok(())
    }

    /// Returns whether the link is switched off, or was removed from the configuration.
    pub(crate) fn is_off(&self, path: PathId) -> bool {
        self.links.is_off(path)
    }

    /// Returns the name of a path's link, while it is in the configuration.
    pub(crate) fn link_name(&self, path: PathId) -> Option<&str> {
        self.links.find(path).map(|link| link.name.as_str())
    }

    pub(crate) fn proxy_status(&self) -> ProxyStatus {
        self.notices.status()
    }

    pub(crate) fn server_status(&self) -> Vec<ServerStatus> {
        let servers = self.servers.entries.iter().enumerate();
        let status = servers.map(|(i, server)| self.status_of(i, server));
        status.collect()
    }

    /// Returns the status of the server with index `i`.
    fn status_of(&self, i: usize, server: &ServerEntry) -> ServerStatus {
        let condition = self.links.server_condition(i);
        // The agreed version no longer holds if a server of another version has replaced the server.
        let agreed = (condition != Condition::OtherVersion).then(|| self.servers.agreed_with(i));
        ServerStatus {
            name: server.name.clone(),
            measured: self.measured(i),
            condition,
            over_links: self.links.all.iter().map(|l| l.condition_over(i)).collect(),
            by_bandwidth: self.servers.current(Need::Throughput) == i,
            by_delay: self.servers.current(Need::Latency) == i,
            destinations: self.destinations_of(i),
            addresses: [server.endpoint_v4(), server.endpoint_v6()]
                .into_iter()
                .flatten()
                .collect(),
            reached: !self.links.is_server_down(i),
            families: self.servers.families_of(i),
            protocol: agreed.flatten(),
            current: self.is_current(i),
            protected: server.protection != Protection::None,
        }
    }

    /// Returns the destinations whose own metrics choose the server with index `i`.
    fn destinations_of(&self, i: usize) -> Vec<DestinationStatus> {
        let choices = self.meter.egress.choices().filter(|(.., s)| *s == i);
        let status = choices.map(|(prefix, need, _)| DestinationStatus {
            prefix: prefix.to_string(),
            by_delay: need == Need::Latency,
        });
        status.collect()
    }

    pub(crate) fn select_status(&self) -> SelectStatus {
        SelectStatus {
            by: self.servers.choice.select.name().to_owned(),
            wanted: self.servers.wanted().map(str::to_owned),
            measuring: self.links.is_measuring(),
        }
    }

    /// Returns the status of the links.
    pub(crate) fn link_status(&self, stack: &Stack) -> Vec<PathStatus> {
        let totals = stack.path_totals();
        let links = self.links.all.iter();
        let links = links.filter_map(|l| Some((l, totals.get(usize::from(l.path.0))?)));
        let status = links.map(|(link, totals)| {
            let condition = link.condition();
            let of_link = stack.records().filter(|(_, path, _)| *path == link.path);
            let newest = of_link.map(|(.., record)| record).max_by_key(|r| r.at);
            let handshakes = link.health.iter().filter_map(|health| health.rtt).min();
            let mut status = PathStatus::new(link.name.clone(), totals);
            status.fill_in(newest.as_ref());
            status.rtt_ms = status.rtt_ms.or(handshakes.and_then(milliseconds));
            status.condition = Some(condition);
            status.backup = link.backup;
            status.default = self.links.best == Some(link.path);
            status.state = match link.traffic_reach() {
                _ if link.off => PathState::Off,
                _ if !link.up => PathState::Down,
                _ if !link.open => PathState::MeteredStandby,
                Reach::Down => PathState::NoAnswers,
                Reach::Up | Reach::Unknown => PathState::Up,
            };
            status
        });
        let mut all: Vec<PathStatus> = status.collect();
        score(&mut all);
        all
    }

    pub(crate) fn idle_pool_status(&self) -> IdlePoolStatus {
        self.pools.status()
    }
}

impl Link {
    /// Returns the state of the link: the best state of any server over it. A server that refuses this box shows
    /// that the link works.
    pub(super) fn condition(&self) -> Condition {
        match () {
            () if self.off => return Condition::Off,
            () if !self.up => return Condition::Down,
            () if !self.open => return Condition::MeteredStandby,
            () => {}
        }
        let fitting = self.health.iter().filter(|health| health.fits);
        let states = fitting.map(|health| match condition(health) {
            Condition::KeyRefused
            | Condition::WrongKey
            | Condition::OtherVersion
            | Condition::NotAServer => Condition::Working,
            other => other,
        });
        best(states).unwrap_or(Condition::NoAnswers)
    }

    /// Returns the state of a server over the link; the link's own state if the server cannot be tried there.
    fn condition_over(&self, server: usize) -> Condition {
        let health = &self.health[server];
        match self.open && health.fits {
            true => condition(health),
            false => self.condition(),
        }
    }
}

impl Links {
    /// Returns the state of a server: its best state over any open link.
    pub(super) fn server_condition(&self, server: usize) -> Condition {
        best(self.open_health(server).map(condition)).unwrap_or(Condition::NoAnswers)
    }
}

/// Returns the state of a server over one link.
fn condition(health: &ServerHealth) -> Condition {
    match (health.trouble, health.reach) {
        (Some(Trouble::Stripped | Trouble::Blocked), Reach::Down) => Condition::NoAnswers,
        (Some(Trouble::Stripped), _) => Condition::MptcpStripped,
        (Some(Trouble::Blocked), _) => Condition::MptcpBlocked,
        (Some(Trouble::Portal), _) => Condition::CaptivePortal,
        (Some(Trouble::Unanswered), _) => Condition::HandshakeUnanswered,
        (Some(Trouble::KeyRefused), _) => Condition::KeyRefused,
        (Some(Trouble::WrongKey), _) => Condition::WrongKey,
        (Some(Trouble::OtherVersion), _) => Condition::OtherVersion,
        (Some(Trouble::NotAServer), _) => Condition::NotAServer,
        // A probe without an examination shows only that something answers.
        (None, Reach::Up) if health.sound_at.is_some() => Condition::Working,
        (None, Reach::Up | Reach::Unknown) => Condition::Untried,
        (None, Reach::Down) => Condition::NoAnswers,
    }
}

/// Returns the best of several states. States in which users are served rank first. The untried state follows,
/// then the states that name the server as the cause, then the states that name the link, and last the unspecific
/// states.
fn best(states: impl Iterator<Item = Condition>) -> Option<Condition> {
    states.min_by_key(|state| match state {
        Condition::Working => 0,
        Condition::MptcpStripped => 1,
        Condition::MptcpBlocked => 2,
        Condition::Untried => 3,
        Condition::KeyRefused => 4,
        Condition::WrongKey => 5,
        Condition::OtherVersion => 6,
        Condition::NotAServer => 7,
        Condition::CaptivePortal => 8,
        Condition::HandshakeUnanswered => 9,
        _ => 10,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_that_strips_and_goes_dark_has_no_answers() {
        let mut health = ServerHealth {
            trouble: Some(Trouble::Stripped),
            reach: Reach::Up,
            ..ServerHealth::default()
        };
        assert_eq!(condition(&health), Condition::MptcpStripped);
        health.failed(Instant::ZERO);
        assert_eq!(
            condition(&health),
            Condition::MptcpStripped,
            "a single failure may be a lost packet"
        );
        health.failed(Instant::ZERO);
        assert_eq!(condition(&health), Condition::NoAnswers);
    }
}
