//! Diagnosis of failures: decides whether a link or the servers are at fault.

use braid_wire::Instant;

use super::health::Reach;
use super::links::Links;
use super::notices::Notice;

impl Links {
    /// Returns a notice about a link that has stopped leading to a server, or leads to a server again, if the
    /// driver was not told yet.
    pub(super) fn poll_reached(&mut self) -> Option<Notice> {
        let mut links = 0..self.all.len();
        links.find_map(|link| {
            let reached = !self.is_abandoned(link);
            let link = &mut self.all[link];
            let changed = reached != std::mem::replace(&mut link.notified_reached, reached);
            changed.then_some(Notice::Reached(link.path, reached))
        })
    }

    /// Returns whether a link is switched off, or leads to no server through its own fault. A failure counts as
    /// the server's fault until answers over other links disprove this. If no other link fits any of the link's
    /// servers, nothing can be disproved, and the failure alone suffices as long as another link works.
    fn is_abandoned(&self, link: usize) -> bool {
        let link = &self.all[link];
        if link.off || link.traffic_reach() != Reach::Down {
            return link.off;
        }
        let others = || self.open().filter(|l| l.path != link.path);
        // An abandoned link stays abandoned until it has an answer, or no other link works.
        let others_work = others().any(|l| l.traffic_reach() != Reach::Down);
        if !link.notified_reached {
            return others_work;
        }
        let servers = || (0..link.health.len()).filter(|s| link.health[*s].fits);
        let witnesses = |s: usize| others().filter(move |l| l.health[s].fits);
        let is_link_at_fault =
            |s: usize| witnesses(s).any(|l| l.health[s].disproves(&link.health[s]));
        let has_witness = servers().any(|s| witnesses(s).next().is_some());
        servers().any(is_link_at_fault) || others_work && !has_witness
    }

    /// Plans probes over other links at once, if their results decide whether a failing link is
    /// [abandoned](Self::is_abandoned).
    pub(super) fn probe_other_links(&mut self, now: Instant) {
        for link in 0..self.all.len() {
            let suspect = &self.all[link];
            if suspect.off || !suspect.notified_reached || suspect.traffic_reach() != Reach::Down {
                continue;
            }
            for server in 0..suspect.health.len() {
                let failing = self.all[link].health[server];
                for other in self.all.iter_mut().filter(|l| l.open) {
                    let health = &mut other.health[server];
                    if health.may_disprove(&failing) {
                        health.next_probe = Some(now);
                    }
                }
            }
        }
    }

    /// Returns whether the server has answered over another open link after it became unreachable over this one.
    pub(super) fn is_witnessed(&self, link: usize, server: usize) -> bool {
        let failing = &self.all[link].health[server];
        let mut others = self.open();
        others.any(|l| l.health[server].witnesses(failing))
    }
}
