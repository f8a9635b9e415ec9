//! The address families (IPv4, IPv6) in which each server reaches destinations, by its reports, and the families
//! offered to users.

use core::net::IpAddr;
use core::time::Duration;

use braid_secure::Families;
use braid_wire::Instant;

use super::Upstream;
use super::health::Reach;
use super::links::Link;
use super::log;

/// The pause before a server that reaches a single family is first asked again; connections of the other family
/// may be refused meanwhile. The pause doubles with each question up to [`MAX_QUERY_PAUSE`]. A question is an
/// examination, which costs about 5 kB and a TLS handshake. Both pauses are guesses.
const MIN_QUERY_PAUSE: Duration = Duration::from_secs(15);
/// The maximum pause, and so the maximum time that users wait for a family that is reached again.
const MAX_QUERY_PAUSE: Duration = Duration::from_secs(60);
/// The minimum time for which a family is refused. Each change reloads the packet filter rules, so the minimum
/// limits the work that servers with flapping reports cause. The value is a guess.
const MIN_REFUSAL: Duration = Duration::from_secs(5);

/// The families that all servers reach, and those offered to users.
#[derive(Debug)]
pub(super) struct ReachedFamilies {
    /// The latest report of each server.
    reports: Vec<FamilyReport>,
    /// The families in which users' connections are aggregated, because some server that answers reaches them.
    pub(super) offered: Families,
    /// The time at which a family was last withdrawn.
    refused_at: Option<Instant>,
    /// The time at which a family that is reached again may be offered, after [`MIN_REFUSAL`].
    offer_at: Option<Instant>,
    /// The families of the last notice to the driver.
    notified: Families,
}

/// The latest report of a server.
#[derive(Debug, Clone, Copy, Default)]
struct FamilyReport {
    families: Families,
    /// The number of questions to the server since its report changed.
    questions: u32,
    /// The time of the next question; `None` if the server reaches both families.
    next_question: Option<Instant>,
}

impl FamilyReport {
    /// Plans the next question to a server that does not reach both families.
    fn plan(&mut self, now: Instant) {
        // 2 doublings reach the maximum; the bound keeps the shift from overflowing.
        let pause = MIN_QUERY_PAUSE * (1 << self.questions.min(2));
        let lacks_family = self.families != Families::BOTH;
        self.next_question = lacks_family.then(|| now + pause.min(MAX_QUERY_PAUSE));
    }
}

impl ReachedFamilies {
    pub(super) fn new(servers: usize) -> Self {
        ReachedFamilies {
            reports: vec![FamilyReport::default(); servers],
            offered: Families::BOTH,
            refused_at: None,
            offer_at: None,
            notified: Families::BOTH,
        }
    }

    /// Returns the families that `server` reaches; both families if it has not reported.
    pub(super) fn of(&self, server: usize) -> Families {
        let report = self.reports.get(server);
        report.map_or(Families::BOTH, |report| report.families)
    }

    /// Records that a server reaches `families`, by its report or by a refusal.
    fn on_report(&mut self, now: Instant, server: usize, families: Families) {
        if let Some(report) = self.reports.get_mut(server) {
            if report.families != families {
                *report = FamilyReport {
                    families,
                    ..FamilyReport::default()
                };
            }
            report.plan(now);
        }
    }

    /// Reorders the reports after a reload: `before` yields the old index of each server, `None` for a new one.
    pub(super) fn reload(&mut self, before: impl Iterator<Item = Option<usize>>) {
        let report = |old: Option<usize>| old.and_then(|old| self.reports.get(old).copied());
        self.reports = before.map(|old| report(old).unwrap_or_default()).collect();
    }

    /// Returns the time of the next question to a server, or of the next offer of a family.
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        let questions = self.reports.iter().map(|report| report.next_question);
        questions.chain([self.offer_at]).flatten().min()
    }

    /// Sets the offered families to `families`. An added family waits until [`MIN_REFUSAL`] after the last
    /// withdrawal. A withdrawal takes effect at once, because connections of that family would fail; a family that
    /// the same report adds does not wait either.
    fn offer(&mut self, now: Instant, families: Families) {
        if families == self.offered {
            self.offer_at = None;
            return;
        }
        let withdraws = families.or(self.offered) != families;
        if withdraws {
            self.refused_at = Some(now);
        }
        let earliest = self.refused_at.map(|at| at + MIN_REFUSAL);
        self.offer_at = earliest.filter(|at| now < *at && !withdraws);
        if self.offer_at.is_none() {
            self.offered = families;
        }
    }
}

impl Upstream {
    /// Records the families in a server's report, if there is a report. It replaces the server's earlier report.
    pub(crate) fn on_families_reported(
        &mut self,
        now: Instant,
        server: usize,
        reported: Option<Families>,
    ) {
        if let Some(families) = reported {
            self.servers.reached.on_report(now, server, families);
            self.offer_families(now);
        }
    }

    /// Records that the server refused a connection because it reaches no destination in the family of `ip`.
    pub(crate) fn on_family_refused(&mut self, now: Instant, server: usize, ip: IpAddr) {
        let mut families = self.servers.reached.of(server);
        families.set(ip.to_canonical().is_ipv6(), false);
        self.servers.reached.on_report(now, server, families);
        self.offer_families(now);
    }

    /// Returns whether some usable server reaches the family of `ip`.
    pub(crate) fn is_family_reached(&self, ip: IpAddr) -> bool {
        let mut servers = 0..self.servers.entries.len();
        servers.any(|s| self.links.is_server_usable(s) && self.servers.reached.of(s).has(ip))
    }

    /// Offers the families that some answering server reaches. A server whose answer is merely late is included,
    /// so that the offer does not flap. If no server answers, nothing changes, because users' connections are not
    /// intercepted then.
    pub(super) fn offer_families(&mut self, now: Instant) {
        let is_answering = |s: &usize| {
            self.links
                .open_health(*s)
                .any(|health| health.reach != Reach::Down)
        };
        let servers = (0..self.servers.entries.len()).filter(is_answering);
        let families = servers
            .map(|s| self.servers.reached.of(s))
            .reduce(Families::or);
        if let Some(families) = families {
            self.servers.reached.offer(now, families);
        }
    }

    /// Returns the offered families if they differ from those of the last notice, and logs the change.
    pub(super) fn poll_families(&mut self) -> Option<Families> {
        let families = self.servers.reached.offered;
        let before = core::mem::replace(&mut self.servers.reached.notified, families);
        if before == families {
            return None;
        }
        let names: Vec<&str> = self
            .servers
            .entries
            .iter()
            .map(|s| s.name.as_str())
            .collect();
        for v6 in [false, true] {
            let had = |families: Families| if v6 { families.v6 } else { families.v4 };
            if had(before) != had(families) && !self.notices.is_ending() {
                log::log_family(v6, had(families), &names.join(", "));
            }
        }
        Some(families)
    }

    /// Plans examinations of the servers whose next question is due, each over its best link. A protected server
    /// reports its families in the handshake.
    pub(super) fn ask_families(&mut self, now: Instant) {
        for server in 0..self.servers.entries.len() {
            let report = &mut self.servers.reached.reports[server];
            if report.next_question.is_none_or(|at| at > now) {
                continue;
            }
            report.questions += 1;
            report.plan(now);
            let links = self.links.all.iter_mut();
            let links = links.filter(|l| l.open && l.health[server].fits);
            let rank = |link: &&mut Link| {
                let health = &link.health[server];
                (
                    health.reach,
                    health.is_unsound(),
                    link.backup,
                    health.rank_rtt(),
                )
            };
            if let Some(link) = links.min_by_key(rank) {
                link.health[server].plan_examination(now);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server may report twice within one turn of the loop, so both reports have the same time.
    #[test]
    fn a_withdrawn_family_waits_also_if_it_is_reached_again_at_once() {
        let mut reached = ReachedFamilies::new(1);
        let mut only_v4 = Families::BOTH;
        only_v4.set(true, false);
        let now = Instant::from_millis(1_000);
        reached.offer(now, only_v4);
        reached.offer(now, Families::BOTH);
        assert_eq!(reached.offered, only_v4);
        assert_eq!(reached.next_timeout(), Some(now + MIN_REFUSAL));
        reached.offer(now + MIN_REFUSAL, Families::BOTH);
        assert_eq!(reached.offered, Families::BOTH);
    }
}
