//! Evidence about links and servers from users' connections and from the driver. Probes and examinations follow it
//! up.

use core::time::Duration;

use braid_engine::{FallbackCause, PathId, Stack, SubflowCloseReason};
use braid_wire::Instant;

use super::Upstream;
use super::checkout::ConnHistory;
use super::health::ServerHealth;
use super::links::Links;
use super::trouble::{Finding, Trouble};

impl Links {
    /// Follows up a failure of a user's connection to `server` over a link.
    fn on_failure(&mut self, now: Instant, server: usize, path: PathId) {
        let Some(health) = self.health(server, path) else {
            return;
        };
        if health.is_fatal() {
            // Only an examination can show whether the problem persists.
            health.plan_examination(now);
        } else if health.failures == 0 {
            // Further users get another link until a probe here has an answer. A later failure changes nothing,
            // because a probe is planned already.
            health.failures = 1;
            health.next_probe = Some(now);
            // The cause of the failure may let probes pass, as a captive portal does.
            health.plan_examination(now);
        }
    }

    /// Plans examinations after a link changed its network or address. The change may have solved problems of the
    /// link.
    fn on_readdressed(&mut self, now: Instant, path: PathId) {
        for link in self.all.iter_mut().filter(|l| l.path == path && l.open) {
            for health in &mut link.health {
                *health = health.reloaded(now);
            }
        }
    }

    /// Plans examinations of a server over all open links for which `selects` returns true. A server usually
    /// behaves alike over all links, so a finding over one link is a reason to examine the others.
    pub(super) fn plan_examinations(
        &mut self,
        now: Instant,
        server: usize,
        selects: fn(&ServerHealth) -> bool,
    ) {
        for link in self.all.iter_mut().filter(|l| l.open) {
            let health = &mut link.health[server];
            if selects(health) {
                health.plan_examination(now);
            }
        }
    }
}

impl Upstream {
    /// Records that a user's bytes moved. For a while, links are probed more often and servers may be measured.
    pub(crate) fn note_traffic(&mut self, now: Instant) {
        let was_busy = self.probe_pace.is_busy(now);
        self.probe_pace.note_traffic(now);
        self.meter
            .update_permission(now, &self.servers, &self.probe_pace);
        // The planned probes have the short interval already.
        if was_busy {
            return;
        }
        let latest = now + self.probe_pace.settings.busy;
        for need in self.servers.needs() {
            let server = self.servers.current(need);
            for link in &mut self.links.all {
                if let Some(next) = &mut link.health[server].next_probe {
                    *next = latest.min(*next);
                }
            }
        }
    }

    /// Records a new subflow of a user's connection. The subflow's handshake proves as much as a probe.
    pub(crate) fn on_subflow(
        &mut self,
        now: Instant,
        server: usize,
        path: PathId,
        rtt: Duration,
        stack: &mut Stack,
    ) {
        let next = now + self.interval(now, server, path);
        if let Some(health) = self.links.health(server, path) {
            let returned = health.is_returning();
            health.succeeded(now, rtt);
            // A fatal problem needs examinations, not probes.
            health.next_probe = Some(next).filter(|_| !health.is_fatal());
            if returned {
                stack.revalidate_path(now, path);
            }
            self.update(now, stack);
        }
    }

    /// Follows up the end of a subflow by a timeout or a reset.
    pub(crate) fn on_subflow_closed(
        &mut self,
        now: Instant,
        server: usize,
        path: PathId,
        reason: SubflowCloseReason,
    ) {
        if matches!(
            reason,
            SubflowCloseReason::TimedOut | SubflowCloseReason::Reset
        ) {
            self.on_failure(now, server, path);
        }
    }

    /// Follows up a failure of a user's connection to `server` over a link.
    pub(crate) fn on_failure(&mut self, now: Instant, server: usize, path: PathId) {
        self.links.on_failure(now, server, path);
    }

    /// Follows up a failure of a user's connection on all links, because the link at fault is unknown.
    pub(crate) fn on_failure_on_all_links(&mut self, now: Instant, server: usize) {
        for i in 0..self.links.all.len() {
            self.links.on_failure(now, server, self.links.all[i].path);
        }
    }

    /// Probes the current servers over a link on which packets leave and none come back.
    pub(crate) fn revalidate_link(&mut self, now: Instant, path: PathId) {
        for need in self.servers.needs() {
            self.links.on_failure(now, self.servers.current(need), path);
        }
    }

    /// Examines and probes the servers over a link that has changed its network or address.
    pub(crate) fn on_link_readdressed(&mut self, now: Instant, path: PathId) {
        self.links.on_readdressed(now, path);
        self.revalidate_link(now, path);
    }

    /// Records a problem of a user's connection. Further connections avoid the server over that link until an
    /// examination finds no problem.
    pub(crate) fn on_trouble(
        &mut self,
        now: Instant,
        (server, path): (usize, PathId),
        trouble: Trouble,
        stack: &mut Stack,
    ) {
        if let Some(health) = self.links.health(server, path)
            && health.trouble != Some(trouble)
        {
            health.on_finding(now, Finding::Trouble(trouble));
            // A single user's connection does not prove the problem, so examine soon, not after the usual pause.
            health.plan_examination(now);
            if trouble.is_of_server() {
                self.links
                    .plan_examinations(now, server, |health| health.trouble.is_none());
            }
            self.update(now, stack);
        }
    }

    /// Records that a user's connection opened over `path` has fallen back to regular TCP.
    pub(crate) fn on_fell_back(
        &mut self,
        now: Instant,
        (server, path): (usize, PathId),
        cause: FallbackCause,
        stack: &mut Stack,
    ) {
        let Some(trouble) = Trouble::of_fallback(cause) else {
            return;
        };
        let Some(health) = self.links.health(server, path) else {
            return;
        };
        if trouble == Trouble::Blocked {
            // The event looks the same if the link was down while the SYNs with MP_CAPABLE were sent. So only
            // examine.
            health.plan_examination(now);
        } else if health.trouble.is_none() {
            self.on_trouble(now, (server, path), trouble, stack);
        }
    }

    /// Follows up that a connection from the idle pool did not work for its user. Closes the other idle
    /// connections to `server`, because they may not work either, and probes the links on which the connection had
    /// subflows.
    pub(crate) fn on_idle_conn_failed(
        &mut self,
        now: Instant,
        (server, history): (usize, &ConnHistory),
        stack: &mut Stack,
    ) {
        self.pools.give_up(now, server, stack);
        self.pools.back_off(now);
        for path in history.joined() {
            self.links.on_failure(now, server, *path);
        }
    }

    /// Handles the resumption of a suspended machine: probes all servers, validates all subflows, and closes idle
    /// connections, because NATs and servers have probably forgotten them.
    pub(crate) fn on_resumed(&mut self, now: Instant, stack: &mut Stack) {
        for server in 0..self.servers.entries.len() {
            self.pools.give_up(now, server, stack);
            self.on_failure_on_all_links(now, server);
        }
        for link in self.links.open() {
            stack.revalidate_path(now, link.path);
        }
    }
}
