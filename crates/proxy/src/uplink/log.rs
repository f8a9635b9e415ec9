//! Log lines about links and servers, one for each change that users notice.

use core::time::Duration;

use braid_wire::Instant;

use super::Upstream;
use crate::admin::verdict::{Condition, NEWS_TARGET};

/// The minimum time between two lines about the same link or server, so that a flapping state does not flood the
/// log. The value is a guess.
const MIN_LOG_INTERVAL: Duration = Duration::from_secs(5);

/// The state of a link or server that was last logged.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct LoggedState {
    state: Condition,
    at: Option<Instant>,
}

impl LoggedState {
    /// Returns whether `state` should be logged now; if so, records it as logged.
    fn should_log(&mut self, now: Instant, state: Condition) -> bool {
        let due = self.at.is_none_or(|at| now >= at + MIN_LOG_INTERVAL);
        // `Untried` is not logged, because it ends as soon as something answers or fails.
        let should = state != self.state && due && state != Condition::Untried;
        if should {
            *self = LoggedState {
                state,
                at: Some(now),
            };
        }
        should
    }

    /// Returns the time at which `state` can be logged; `None` if it should not be.
    fn next(&self, state: Condition) -> Option<Instant> {
        let due = self.at.map_or(Instant::ZERO, |at| at + MIN_LOG_INTERVAL);
        (state != self.state && state != Condition::Untried).then_some(due)
    }
}

impl Upstream {
    /// Logs changed states of links and servers.
    pub(super) fn log_changes(&mut self, now: Instant) {
        if self.links.are_cut_off() {
            // Interception logs its own changes. It has none if no server could be used since the start.
            self.notices.note_cut_off();
        }
        for link in 0..self.links.all.len() {
            let link = &mut self.links.all[link];
            let state = link.condition();
            if link.logged.should_log(now, state) {
                let name = &link.name;
                match state.link_problem(name) {
                    Some(wrong) => {
                        tracing::warn!(target: NEWS_TARGET, link = name, state = %state, "{wrong}")
                    }
                    None => tracing::info!(
                        target: NEWS_TARGET, link = name, state = %state,
                        "the state of link {name} is now: {state}"
                    ),
                }
            }
        }
        for server in 0..self.servers.entries.len() {
            let state = self.links.server_condition(server);
            if self.servers.logged[server].should_log(now, state) {
                let name = &self.servers.entries[server].name;
                match state.server_problem(name) {
                    Some(wrong) => {
                        tracing::warn!(target: NEWS_TARGET, server = name, state = %state, "{wrong}")
                    }
                    None => tracing::info!(
                        target: NEWS_TARGET, server = name, state = %state,
                        "the state of server {name} is now: {state}"
                    ),
                }
            }
        }
    }

    /// Returns the time at which the next line that waits for [`MIN_LOG_INTERVAL`] can be logged.
    pub(super) fn log_timeout(&self) -> Option<Instant> {
        let links = self.links.all.iter();
        let links = links.filter_map(|l| l.logged.next(l.condition()));
        let servers = self.servers.logged.iter().enumerate();
        let servers = servers.filter_map(|(s, logged)| logged.next(self.links.server_condition(s)));
        links.chain(servers).min()
    }
}

/// Logs that new connections are intercepted, or the reason why they are not.
pub(super) fn log_interception(intercepts: bool, switched_on: bool) {
    match (intercepts, switched_on) {
        (true, _) => tracing::info!(target: NEWS_TARGET, "new connections are aggregated"),
        (false, true) => tracing::warn!(
            target: NEWS_TARGET,
            "no server can be used: new connections are forwarded over one link, unprotected, until a server answers"
        ),
        (false, false) => tracing::warn!(
            target: NEWS_TARGET,
            "aggregation is switched off: new connections are forwarded over one link, unprotected"
        ),
    }
}

/// Logs whether any of the `servers` reaches destinations of an address family.
pub(super) fn log_family(v6: bool, reached: bool, servers: &str) {
    let (family, other) = if v6 {
        ("IPv6", "IPv4")
    } else {
        ("IPv4", "IPv6")
    };
    match reached {
        true => tracing::info!(
            target: NEWS_TARGET, servers,
            "{family} destinations are reached again: new connections there are aggregated"
        ),
        false => tracing::warn!(
            target: NEWS_TARGET, servers,
            "no server reaches {family} destinations: new connections there are refused, so that programs use \
             {other}; give a server {family} if users need it"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flapping_state_is_logged_seldom() {
        let mut logged = LoggedState::default();
        let s = |s: u64| Instant::from_millis(s * 1_000);
        assert!(
            !logged.should_log(s(0), Condition::Untried),
            "nothing is known"
        );
        assert!(logged.should_log(s(1), Condition::Working));
        assert!(!logged.should_log(s(2), Condition::NoAnswers));
        assert_eq!(logged.next(Condition::NoAnswers), Some(s(6)));
        assert_eq!(logged.next(Condition::Working), None);
        assert!(logged.should_log(s(6), Condition::NoAnswers));
        assert!(
            !logged.should_log(s(20), Condition::NoAnswers),
            "the state has not changed"
        );
    }
}
