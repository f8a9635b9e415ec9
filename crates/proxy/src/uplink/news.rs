//! What the log says of links and servers: one line for each change that users feel, by name.

use core::time::Duration;

use braid_wire::Instant;

use super::Upstream;
use crate::admin::verdict::{Condition, NEWS, Reason};

/// A state that changes to and fro is said this seldom.
const INTERVAL: Duration = Duration::from_secs(5);

/// What the log says of one link or server.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Said {
    state: Condition,
    at: Option<Instant>,
}

impl Said {
    /// Returns whether `state` is to be said now.
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

    /// When to look again.
    fn next(&self, state: Condition) -> Option<Instant> {
        let due = self.at.map_or(Instant::ZERO, |at| at + INTERVAL);
        (state != self.state && state != Condition::Untried).then_some(due)
    }
}

impl Upstream {
    /// Says what has changed.
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

    /// When a change is to be said that came too soon after the last one.
    pub(super) fn news_timeout(&self) -> Option<Instant> {
        let links = self.links.all.iter();
        let links = links.filter_map(|l| l.said.next(l.condition()));
        let servers = self.servers.said.iter().enumerate();
        let servers = servers.filter_map(|(s, said)| said.next(self.links.server_condition(s)));
        links.chain(servers).min()
    }
}

/// Says what becomes of new connections.
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

/// Says that the destinations of a family can be reached through the `servers`, or through none of them.
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
