//! Log lines about links and servers: one for each change that users feel.

use core::time::Duration;

use braid_wire::Instant;

use super::Upstream;
use crate::admin::verdict::{Condition, NEWS, Reason};

/// Shortest time between two lines about the same link or server, so that a state that flaps does not flood the
/// log.
const INTERVAL: Duration = Duration::from_secs(5);

/// The state of a link or server that the log reported last.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Said {
    state: Condition,
    at: Option<Instant>,
}

impl Said {
    /// Returns whether `state` is to be logged now, and notes it.
    fn is_news(&mut self, now: Instant, state: Condition) -> bool {
        let due = self.at.is_none_or(|at| now >= at + INTERVAL);
        let news = state != self.state && due && state != Condition::Untried;
        if news {
            *self = Said {
                state,
                at: Some(now),
            };
        }
        news
    }

    /// Returns the time at which `state` can be logged, if it differs.
    fn next(&self, state: Condition) -> Option<Instant> {
        let due = self.at.map_or(Instant::ZERO, |at| at + INTERVAL);
        (state != self.state && state != Condition::Untried).then_some(due)
    }
}

impl Upstream {
    /// Logs changed states of links and servers.
    pub(super) fn log_news(&mut self, now: Instant) {
        if self.links.are_cut_off() {
            self.notices.note_cut_off();
        }
        for link in 0..self.links.all.len() {
            let link = &mut self.links.all[link];
            let state = link.condition();
            if link.said.is_news(now, state) {
                let name = &link.name;
                match state.of_link(name) {
                    Some(wrong) => warn("link", name, state, &wrong),
                    None => {
                        tracing::info!(target: NEWS, link = name, state = %state, "the state of a link has changed")
                    }
                }
            }
        }
        for server in 0..self.servers.entries.len() {
            let state = self.links.server_condition(server);
            if self.servers.said[server].is_news(now, state) {
                let name = &self.servers.entries[server].name;
                match state.of_server(name) {
                    Some(wrong) => warn("server", name, state, &wrong),
                    None => {
                        tracing::info!(target: NEWS, server = name, state = %state, "the state of a server has changed")
                    }
                }
            }
        }
    }

    /// Returns the time of the next line that has to wait for [`INTERVAL`].
    pub(super) fn news_timeout(&self) -> Option<Instant> {
        let links = self.links.all.iter();
        let links = links.filter_map(|l| l.said.next(l.condition()));
        let servers = self.servers.said.iter().enumerate();
        let servers = servers.filter_map(|(s, said)| said.next(self.links.server_condition(s)));
        links.chain(servers).min()
    }
}

/// Logs whether new connections are intercepted, and otherwise why not.
pub(super) fn log_intake(open: bool, switched_on: bool) {
    match (open, switched_on) {
        (true, _) => tracing::info!(target: NEWS, "new connections are aggregated"),
        (false, true) => tracing::warn!(
            target: NEWS,
            "no server can be used: new connections are forwarded over one link, unprotected, until one answers"
        ),
        (false, false) => tracing::warn!(
            target: NEWS,
            "aggregation is switched off: new connections are forwarded over one link, unprotected"
        ),
    }
}

/// Logs whether the destinations of a family are reached through any of the `servers`.
pub(super) fn log_family(v6: bool, reached: bool, servers: &str) {
    let (family, other) = if v6 {
        ("IPv6", "IPv4")
    } else {
        ("IPv4", "IPv6")
    };
    match reached {
        true => tracing::info!(
            target: NEWS, servers,
            "{family} destinations are reached again: new connections there are aggregated"
        ),
        false => tracing::warn!(
            target: NEWS, servers,
            "no server reaches {family} destinations: new connections there are refused, so that programs use \
             {other}; give a server {family}, or leave it so"
        ),
    }
}

fn warn(kind: &str, name: &str, state: Condition, wrong: &Reason) {
    tracing::warn!(target: NEWS, kind, name, state = %state, "{wrong}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_that_changes_to_and_fro_is_said_seldom() {
        let mut said = Said::default();
        let s = |s: u64| Instant::from_millis(s * 1_000);
        assert!(!said.is_news(s(0), Condition::Untried), "nothing is known");
        assert!(said.is_news(s(1), Condition::Working));
        assert!(!said.is_news(s(2), Condition::NoAnswers));
        assert_eq!(said.next(Condition::NoAnswers), Some(s(6)));
        assert_eq!(said.next(Condition::Working), None);
        assert!(said.is_news(s(6), Condition::NoAnswers));
        assert!(!said.is_news(s(20), Condition::NoAnswers), "it is so still");
    }
}
