//! The address families that each server reports to reach, and the families offered to users.

use core::net::IpAddr;
use core::time::Duration;

use braid_secure::Families;
use braid_wire::Instant;

use super::Upstream;
use super::health::Reach;
use super::links::Link;
use super::log;

/// The first pause before a server that reaches a single family is asked again, since connections of the other
/// family are refused meanwhile. Doubled up to [`MAX_QUERY_PAUSE`]. A question costs about 5 kB and a TLS
/// handshake.
const MIN_QUERY_PAUSE: Duration = Duration::from_secs(15);
/// Longest pause, for which users may wait for a family that is reached again.
const MAX_QUERY_PAUSE: Duration = Duration::from_secs(60);
/// Shortest time of a refusal, because each change reloads the packet filter rules. Bounds the effect of servers
/// whose reports flap.
const MIN_REFUSAL: Duration = Duration::from_secs(5);

/// The families of all servers.
#[derive(Debug)]
pub(super) struct ReachedFamilies {
    reports: Vec<FamilyReport>,
    /// The families offered to users' connections, which some server in use reaches.
    pub(super) offered: Families,
    /// The time at which a family was last withdrawn.
    refused_at: Option<Instant>,
    /// The time at which a family that has to wait may be offered again.
    offer_at: Option<Instant>,
    /// The families that the driver was last told of.
    notified: Families,
}

/// The latest report of a server.
#[derive(Debug, Clone, Copy, Default)]
struct FamilyReport {
    families: Families,
    /// Questions since the report changed.
    questions: u32,
    /// The time of the next question.
    next_question: Option<Instant>,
}

impl FamilyReport {
    fn plan(&mut self, now: Instant) {
        let pause = MIN_QUERY_PAUSE * (1 << self.questions.min(2));
        let limited = self.families != Families::BOTH;
        self.next_question = limited.then(|| now + pause.min(MAX_QUERY_PAUSE));
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

    /// Returns the families of `server`.
    pub(super) fn of(&self, server: usize) -> Families {
        let report = self.reports.get(server);
        report.map_or(Families::BOTH, |report| report.families)
    }

    /// Records that the server reported, or showed, that it reaches `families`.
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

    /// Applies new indices of servers, each given by its old index.
    pub(super) fn reload(&mut self, before: impl Iterator<Item = Option<usize>>) {
        let report = |old: Option<usize>| old.and_then(|old| self.reports.get(old).copied());
        self.reports = before.map(|old| report(old).unwrap_or_default()).collect();
    }

    /// Returns the time at which a server is to be asked, or a family offered.
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        let asks = self.reports.iter().map(|report| report.next_question);
        asks.chain([self.offer_at]).flatten().min()
    }

    /// Offers `families`; a further family has to wait for [`MIN_REFUSAL`].
    fn offer(&mut self, now: Instant, families: Families) {
        if families == self.offered {
            self.offer_at = None;
            return;
        }
        if families.or(self.offered) != families {
            self.refused_at = Some(now);
        }
        let earliest = self.refused_at.map(|at| at + MIN_REFUSAL);
        // A withdrawal takes effect at once; only an addition waits.
        self.offer_at = earliest.filter(|at| now < *at && self.refused_at != Some(now));
        if self.offer_at.is_none() {
            self.offered = families;
        }
    }
}

impl Upstream {
    /// Records the families that a server reports, if any; the newest report counts.
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

    /// Returns whether a server that answers reaches the family of `ip`.
    pub(crate) fn is_family_reached(&self, ip: IpAddr) -> bool {
        let mut servers = 0..self.servers.entries.len();
        servers.any(|s| self.links.is_server_usable(s) && self.servers.reached.of(s).has(ip))
    }

    /// Offers the families of the servers that answer, including those whose answer is merely late. Where none
    /// answers, nothing changes, because users are forwarded anyway.
    pub(super) fn offer_families(&mut self, now: Instant) {
        let answers = |s: &usize| {
            self.links
                .open_health(*s)
                .any(|health| health.reach != Reach::Down)
        };
        let servers = (0..self.servers.entries.len()).filter(answers);
        let families = servers
            .map(|s| self.servers.reached.of(s))
            .reduce(Families::or);
        if let Some(families) = families {
            self.servers.reached.offer(now, families);
        }
    }

    /// Returns the families for the driver, where they have changed.
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

    /// Plans examinations of servers that are to be asked again, each over its best link.
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
