//! The servers' egress metrics, as the servers report them: over all destinations, and of the prefixes to which
//! this box's users go.

use core::time::Duration;
use std::collections::BTreeMap;

use braid_wire::Instant;

use crate::protocol::prefix::Prefix;
use crate::protocol::probe::MAX_ASKED_PREFIXES;
use crate::select::selection::{Need, Quality};

/// Maximum number of prefixes that are remembered; beyond it, the prefix that was used least recently is
/// forgotten. A guess: most traffic of a household goes to a few dozen networks.
const MAX_PREFIXES: usize = 64;
/// Time for which the box asks for the metrics of a prefix after the prefix was last used. Servers use their
/// measurements of a prefix for the same time.
const ASKING_TIME: Duration = Duration::from_secs(600);
/// Time for which the metrics of a prefix are valid, and for which a prefix is remembered after its last use. A guess,
/// longer than [`ASKING_TIME`]: a server that was left for a better one is not tried again every few minutes.
const METRICS_LIFETIME: Duration = Duration::from_secs(3_600);

/// Metrics, and the time of the report.
pub(super) type Report = (Instant, Quality);

/// The egress metrics of all servers.
#[derive(Debug)]
pub(super) struct Egress {
    /// The latest report of each server over all destinations.
    pub(super) over_all: Vec<Option<Report>>,
    prefixes: BTreeMap<Prefix, PrefixState>,
}

/// The state of a prefix.
#[derive(Debug)]
struct PrefixState {
    used_at: Instant,
    servers: Vec<ServerState>,
    /// For each need the server that the prefix's metrics chose; `None` if it is the usual server.
    chosen: [Option<usize>; 2],
}

/// The knowledge about a prefix at one server.
#[derive(Debug, Clone, Copy, Default)]
struct ServerState {
    /// True once a connection to the prefix went to the server. Other servers are not asked: they have measured
    /// nothing for this user, and must not learn where the users go.
    used: bool,
    /// The time of the last question.
    asked_at: Option<Instant>,
    /// The latest answer with metrics.
    report: Option<Report>,
}

impl Egress {
    pub(super) fn new(servers: usize) -> Self {
        Egress {
            over_all: vec![None; servers],
            prefixes: BTreeMap::new(),
        }
    }

    /// Notes that a user goes to an address with `prefix` by `server`.
    pub(super) fn on_used(&mut self, now: Instant, prefix: Prefix, server: usize) {
        if let Some(state) = self.prefixes.get_mut(&prefix) {
            state.used_at = now;
            state.servers[server].used = true;
            return;
        }
        if self.prefixes.len() >= MAX_PREFIXES {
            let oldest = self.prefixes.iter().min_by_key(|(_, state)| state.used_at);
            let oldest = oldest.map(|(prefix, _)| *prefix);
            oldest.map(|prefix| self.prefixes.remove(&prefix));
        }
        let mut state = PrefixState {
            used_at: now,
            servers: vec![ServerState::default(); self.over_all.len()],
            chosen: [None; 2],
        };
        state.servers[server].used = true;
        self.prefixes.insert(prefix, state);
    }

    /// Returns the prefixes to ask a server for, and notes that they are asked: of those used recently, and by this
    /// server at some time, the ones that were not asked for longest.
    pub(super) fn ask(&mut self, now: Instant, server: usize) -> Vec<Prefix> {
        self.prefixes
            .retain(|_, p| now.saturating_since(p.used_at) < METRICS_LIFETIME);
        let recent = self.prefixes.iter_mut();
        let recent = recent.filter(|(_, p)| {
            now.saturating_since(p.used_at) < ASKING_TIME && p.servers[server].used
        });
        let mut recent: Vec<_> = recent.collect();
        // `None` is less than any time, so prefixes that the server was never asked for come first, and among these
        // the prefix that was used last.
        recent.sort_by_key(|(_, p)| (p.servers[server].asked_at, core::cmp::Reverse(p.used_at)));
        let asked = recent.into_iter().take(MAX_ASKED_PREFIXES);
        let asked = asked.map(|(prefix, state)| {
            state.servers[server].asked_at = Some(now);
            *prefix
        });
        asked.collect()
    }

    /// Records a server's report.
    pub(super) fn on_report(
        &mut self,
        now: Instant,
        server: usize,
        over_all: Quality,
        prefixes: &[(Prefix, Quality)],
    ) {
        let over_all = Quality {
            // A report may lack the delay while the server's targets do not answer; the last known delay is then
            // the best estimate.
            delay_ms: over_all.delay_ms.or(self.over_all(server).delay_ms),
            ..over_all
        };
        self.over_all[server] = Some((now, over_all));
        for (prefix, quality) in prefixes {
            // A server must not add prefixes to the table.
            if let Some(state) = self.prefixes.get_mut(prefix) {
                state.servers[server].report = Some((now, *quality));
            }
        }
    }

    /// Returns a server's metrics over all destinations.
    pub(super) fn over_all(&self, server: usize) -> Quality {
        self.over_all[server].map_or(Quality::default(), |(_, quality)| quality)
    }

    /// Returns the metrics of each server to destinations with `prefix`: those of the prefix if they are known,
    /// otherwise those over all destinations. Returns `None` if no server's metrics of the prefix are known.
    pub(super) fn to_prefix(&self, now: Instant, prefix: Prefix) -> Option<Vec<Quality>> {
        let state = self.prefixes.get(&prefix)?;
        let recent = |report: Option<Report>| {
            let report = report.filter(|(at, _)| now.saturating_since(*at) < METRICS_LIFETIME);
            report.map(|(_, quality)| quality)
        };
        let known: Vec<_> = state.servers.iter().map(|s| recent(s.report)).collect();
        known.iter().any(Option::is_some).then(|| {
            let known = known.into_iter().enumerate();
            let metrics = known.map(|(server, known)| {
                let over_all = self.over_all(server);
                known.map_or(over_all, |known| known.or(over_all))
            });
            metrics.collect()
        })
    }

    /// Returns the server that the metrics of `prefix` chose for `need` last, if it is not the usual one.
    pub(super) fn chosen(&self, need: Need, prefix: Prefix) -> Option<usize> {
        self.prefixes.get(&prefix)?.chosen[need as usize]
    }

    /// Records the choice that [`chosen`](Self::chosen) returns.
    pub(super) fn set_chosen(&mut self, need: Need, prefix: Prefix, server: Option<usize>) {
        if let Some(state) = self.prefixes.get_mut(&prefix) {
            state.chosen[need as usize] = server;
        }
    }

    /// Forgets the choices for which `is_valid` returns false, given the need and the chosen server.
    pub(super) fn retain_choices(&mut self, is_valid: impl Fn(Need, usize) -> bool) {
        for state in self.prefixes.values_mut() {
            for need in Need::ALL {
                let chosen = &mut state.chosen[need as usize];
                *chosen = chosen.filter(|server| is_valid(need, *server));
            }
        }
    }

    /// Returns each prefix whose connections of some need go to another server than the usual one, with the need
    /// and the server.
    pub(super) fn choices(&self) -> impl Iterator<Item = (Prefix, Need, usize)> {
        self.prefixes.iter().flat_map(|(prefix, state)| {
            let choices = Need::ALL.into_iter().zip(state.chosen);
            choices.filter_map(|(need, server)| Some((*prefix, need, server?)))
        })
    }

    /// Moves the reports to the servers' new indices. `old_index` has the old index of each new server, `None` for
    /// an added one.
    pub(super) fn reload(&mut self, old_index: &[Option<usize>]) {
        let of_old = |old: &Option<usize>| old.and_then(|old| self.over_all[old]);
        self.over_all = old_index.iter().map(of_old).collect();
        for state in self.prefixes.values_mut() {
            let of_old =
                |old: &Option<usize>| old.map_or_else(Default::default, |old| state.servers[old]);
            state.servers = old_index.iter().map(of_old).collect();
            state.chosen = [None; 2];
        }
    }
}

#[cfg(test)]
mod tests {
    use core::net::IpAddr;

    use super::*;

    fn at(s: u64) -> Instant {
        Instant::from_millis(1_000 * s)
    }

    fn prefix(n: u8) -> Prefix {
        IpAddr::from([192, 0, n, 1]).into()
    }

    fn delay(ms: f64) -> Quality {
        Quality {
            bandwidth: None,
            delay_ms: Some(ms),
        }
    }

    /// The numbers of prefixes and of questions are bounded.
    #[test]
    fn a_server_is_asked_for_recent_destinations_in_turn() {
        let mut egress = Egress::new(2);
        (0..6).for_each(|n| egress.on_used(at(n.into()), prefix(n), 0));
        assert_eq!(egress.ask(at(6), 0), [5, 4, 3, 2].map(prefix));
        assert_eq!(egress.ask(at(7), 0), [1, 0, 5, 4].map(prefix));
        // A server does not hear of destinations that were reached by another one.
        assert_eq!(egress.ask(at(8), 1), []);
        egress.on_used(at(8), prefix(4), 1);
        assert_eq!(egress.ask(at(8), 1), [prefix(4)]);
        // Nothing is asked for destinations that nobody used for 10 min.
        egress.on_used(at(500), prefix(2), 0);
        assert_eq!(egress.ask(at(620), 0), [prefix(2)]);
        for n in 0..=255 {
            egress.on_used(at(700 + u64::from(n)), prefix(n), 0);
        }
        assert_eq!(egress.prefixes.len(), MAX_PREFIXES);
        assert_eq!(egress.ask(at(1_000), 0), [255, 254, 253, 252].map(prefix));
    }

    #[test]
    fn metrics_of_a_prefix_precede_those_over_all_for_an_hour() {
        let mut egress = Egress::new(2);
        egress.on_used(at(0), prefix(1), 0);
        let over_all = Quality {
            bandwidth: Some(9e6),
            delay_ms: Some(20.0),
        };
        let told = [(prefix(1), delay(70.0)), (prefix(2), delay(1.0))];
        egress.on_report(at(0), 0, over_all, &told);
        egress.on_report(at(0), 1, delay(30.0), &[]);
        let expected = Quality {
            delay_ms: Some(70.0),
            ..over_all
        };
        let known = |egress: &Egress, s| egress.to_prefix(at(s), prefix(1));
        assert_eq!(known(&egress, 3_599), Some(vec![expected, delay(30.0)]));
        assert_eq!(known(&egress, 3_600), None);
        assert_eq!(
            egress.to_prefix(at(0), prefix(2)),
            None,
            "nobody went there"
        );
        // Reports move with the servers, and choices are made anew.
        egress.set_chosen(Need::Latency, prefix(1), Some(1));
        assert_eq!(
            egress.choices().collect::<Vec<_>>(),
            [(prefix(1), Need::Latency, 1)]
        );
        egress.reload(&[None, Some(0)]);
        assert_eq!(known(&egress, 1), Some(vec![Quality::default(), expected]));
        assert_eq!(egress.choices().count(), 0);
    }
}
