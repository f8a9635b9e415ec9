//! What users' connections, and the driver, tell of links and servers: it is looked into at once.

use core::time::Duration;

use braid_engine::{FallbackCause, PathId, Stack, SubflowCloseReason};
use braid_wire::Instant;

use super::Upstream;
use super::health::Cell;
use super::lease::Past;
use super::links::Links;
use super::trouble::{Finding, Trouble};

impl Links {
    /// Something of a user's connection to `server` failed over a link.
    fn on_doubt(&mut self, now: Instant, server: usize, path: PathId) {
        let Some(cell) = self.cell(server, path) else {
            return;
        };
        if cell.is_fatal() {
            // Nothing else tells whether it still answers.
            cell.want_examination(now);
        } else if cell.failures == 0 {
            cell.failures = 1;
            cell.next = Some(now);
            // What failed may answer a probe.
            cell.want_examination(now);
        }
    }

    /// A link leads through another network, or with another address: what was wrong there may be over.
    fn renew(&mut self, now: Instant, path: PathId) {
        for link in self.all.iter_mut().filter(|l| l.path == path && l.open) {
            for cell in &mut link.cells {
                *cell = cell.reloaded(now);
            }
        }
    }

    /// Has a server examined over all links of which `doubts` says so: what a server does to one it does to all.
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
    /// A user's bytes moved: links are watched more closely for a while.
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

    /// A subflow of a user's connection came to be: as good as a probe.
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
                stack.doubt_path(now, path);
            }
            self.update(now, stack);
        }
    }

    /// A subflow ended; where that was not in order, the link is looked into.
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

    /// Something of a user's connection to `server` failed over a link.
    pub(crate) fn on_doubt(&mut self, now: Instant, server: usize, path: PathId) {
        self.links.on_doubt(now, server, path);
    }

    /// Something of a user's connection failed, wherever: all links are looked into.
    pub(crate) fn on_doubt_everywhere(&mut self, now: Instant, server: usize) {
        for i in 0..self.links.all.len() {
            self.links.on_doubt(now, server, self.links.all[i].path);
        }
    }

    /// Nothing comes back over a link.
    pub(crate) fn doubt_link(&mut self, now: Instant, path: PathId) {
        for need in self.servers.needs() {
            self.links.on_doubt(now, self.servers.current(need), path);
        }
    }

    /// A link leads through another network, or with another address.
    pub(crate) fn renew_link(&mut self, now: Instant, path: PathId) {
        self.links.renew(now, path);
        self.doubt_link(now, path);
    }

    /// A user's connection was in trouble there: others go elsewhere until an examination finds nothing.
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
            // Not a user's word alone.
            cell.want_examination(now);
            if trouble.is_of_server() {
                self.links
                    .want_examinations(now, server, |cell| cell.trouble.is_none());
            }
            self.update(now, stack);
        }
    }

    /// A user's connection that was opened there has become regular TCP.
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
            // A link that was dark for a moment looks the same.
            cell.want_examination(now);
        } else if cell.trouble.is_none() {
            self.on_trouble(now, (server, path), trouble, stack);
        }
    }

    /// A warm connection to `server` failed its user: so may the others, which are given up. The links that it
    /// was joined on are doubted.
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

    /// This machine stood still: links and subflows are validated, and nobody is given a connection that
    /// was opened before.
    pub(crate) fn on_resumed(&mut self, now: Instant, stack: &mut Stack) {
        for server in 0..self.servers.entries.len() {
            self.pools.give_up(now, server, stack);
            self.on_doubt_everywhere(now, server);
        }
        for link in self.links.open() {
            stack.doubt_path(now, link.path);
        }
    }
}
