//! Evidence about links and servers, from users' connections and the driver, which probes and examinations follow
//! up.

use core::time::Duration;

use braid_engine::{FallbackCause, PathId, Stack, SubflowCloseReason};
use braid_wire::Instant;

use super::Upstream;
use super::health::Cell;
use super::lease::Past;
use super::links::Links;
use super::trouble::{Finding, Trouble};

impl Links {
    /// Follows up a failure of a user's connection to `server` over a link.
    fn on_doubt(&mut self, now: Instant, server: usize, path: PathId) {
        let Some(cell) = self.cell(server, path) else {
            return;
        };
        if cell.is_fatal() {
            // Only an examination can tell whether the problem persists.
            cell.want_examination(now);
        } else if cell.failures == 0 {
            // Ranks the link lower for further users until a probe has an answer.
            cell.failures = 1;
            cell.next = Some(now);
            // A cause of the failure may still let probes pass.
            cell.want_examination(now);
        }
    }

    /// Plans examinations after a link changed its network or address, which may have solved problems there.
    fn renew(&mut self, now: Instant, path: PathId) {
        for link in self.all.iter_mut().filter(|l| l.path == path && l.open) {
            for cell in &mut link.cells {
                *cell = cell.reloaded(now);
            }
        }
    }

    /// Plans examinations of a server over all links that `doubts` selects, because a server usually treats all
    /// links alike.
    pub(super) fn want_examinations(
        &mut self,
        now: Instant,
        server: usize,
        doubts: fn(&Cell) -> bool,
    ) {
        for link in self.all.iter_mut().filter(|l| l.open) {
            let cell = &mut link.cells[server];
            if doubts(cell) {
                cell.want_examination(now);
            }
        }
    }
}

impl Upstream {
    /// Notes that a user's bytes moved: links are probed more often for a while.
    pub(crate) fn note_traffic(&mut self, now: Instant) {
        let was_busy = self.watch.is_busy(now);
        self.watch.note_traffic(now);
        self.meter.reconsider(now, &self.servers, &self.watch);
        if was_busy {
            return;
        }
        let latest = now + self.watch.settings.busy;
        for need in self.servers.needs() {
            let server = self.servers.current(need);
            for link in &mut self.links.all {
                if let Some(next) = &mut link.cells[server].next {
                    *next = latest.min(*next);
                }
            }
        }
    }

    /// Records a new subflow of a user's connection, which proves as much as a probe.
    pub(crate) fn on_subflow(
        &mut self,
        now: Instant,
        server: usize,
        path: PathId,
        rtt: Duration,
        stack: &mut Stack,
    ) {
        let next = now + self.interval(now, server, path);
        if let Some(cell) = self.links.cell(server, path) {
            let returned = cell.is_returning();
            cell.succeeded(now, rtt);
            cell.next = Some(next).filter(|_| !cell.is_fatal());
            if returned {
                stack.revalidate_path(now, path);
            }
            self.update(now, stack);
        }
    }

    /// Follows up the end of a subflow, unless it was orderly.
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
            self.on_doubt(now, server, path);
        }
    }

    /// Follows up a failure of a user's connection to `server` over a link.
    pub(crate) fn on_doubt(&mut self, now: Instant, server: usize, path: PathId) {
        self.links.on_doubt(now, server, path);
    }

    /// Follows up a failure of a user's connection over an unknown link, on all links.
    pub(crate) fn on_doubt_everywhere(&mut self, now: Instant, server: usize) {
        for i in 0..self.links.all.len() {
            self.links.on_doubt(now, server, self.links.all[i].path);
        }
    }

    /// Follows up that nothing comes back over a link.
    pub(crate) fn doubt_link(&mut self, now: Instant, path: PathId) {
        for need in self.servers.needs() {
            self.links.on_doubt(now, self.servers.current(need), path);
        }
    }

    /// Follows up that a link changed its network or address.
    pub(crate) fn renew_link(&mut self, now: Instant, path: PathId) {
        self.links.renew(now, path);
        self.doubt_link(now, path);
    }

    /// Records a problem of a user's connection: others avoid that link until an examination finds none.
    pub(crate) fn on_trouble(
        &mut self,
        now: Instant,
        (server, path): (usize, PathId),
        trouble: Trouble,
        stack: &mut Stack,
    ) {
        if let Some(cell) = self.links.cell(server, path)
            && cell.trouble != Some(trouble)
        {
            cell.on_finding(now, Finding::Trouble(trouble));
            // A single user's connection is not proof enough.
            cell.want_examination(now);
            if trouble.is_of_server() {
                self.links
                    .want_examinations(now, server, |cell| cell.trouble.is_none());
            }
            self.update(now, stack);
        }
    }

    /// Records that a user's connection opened over `path` has become regular TCP.
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
        let Some(cell) = self.links.cell(server, path) else {
            return;
        };
        if trouble == Trouble::Blocked {
            // A link that was down for a moment looks the same.
            cell.want_examination(now);
        } else if cell.trouble.is_none() {
            self.on_trouble(now, (server, path), trouble, stack);
        }
    }

    /// Follows up that an idle connection to `server` failed its user. The other idle ones may be broken too and
    /// are closed, and the links with its subflows are probed.
    pub(crate) fn on_warm_failed(
        &mut self,
        now: Instant,
        (server, past): (usize, &Past),
        stack: &mut Stack,
    ) {
        self.pools.give_up(now, server, stack);
        self.pools.back_off(now);
        for path in past.joined() {
            self.links.on_doubt(now, server, *path);
        }
    }

    /// Handles the resumption of a suspended machine: validates links and subflows, and closes idle connections.
    pub(crate) fn on_resumed(&mut self, now: Instant, stack: &mut Stack) {
        for server in 0..self.servers.entries.len() {
            self.pools.give_up(now, server, stack);
            self.on_doubt_everywhere(now, server);
        }
        for link in self.links.open() {
            stack.revalidate_path(now, link.path);
        }
    }
}
