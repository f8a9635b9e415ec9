//! How the pool of warm connections is kept.

use braid_engine::{Event, Stack};
use braid_wire::Instant;

use super::Upstream;
use super::pool::Warm;
use crate::relay::read_step;
use crate::report::BoxCounters;
use crate::socks::ClientStep;

impl Upstream {
    /// A server took a box for one of its users, and asked its destination: warm connections to it
    /// are worth having.
    pub(crate) fn on_served(
        &mut self,
        now: Instant,
        server: usize,
        stack: &mut Stack,
        counters: &mut BoxCounters,
    ) {
        self.pool.on_served(server);
        self.warm_up(now, stack, counters);
    }

    /// A warm connection failed its user: so may the others, which are given up.
    pub(crate) fn on_warm_failed(&mut self, now: Instant, stack: &mut Stack) {
        for warm in self.pool.drain() {
            stack.abort(now, warm.lease.conn);
        }
        self.pool.back_off(now);
    }

    /// The server that warm connections are to lead to, if there are to be any.
    fn warm_server(&self) -> Option<usize> {
        let metered = || self.links.iter().any(|l| l.open && l.metered);
        let wanted = self.intake_wanted() && (self.pool.settings().metered || !metered());
        wanted.then(|| self.current_server())
    }

    /// Closes warm connections that are of no use any more.
    pub(super) fn cool_down(&mut self, now: Instant, stack: &mut Stack) {
        let server = self.warm_server();
        while let Some(warm) = self.pool.pop_useless(now, server) {
            stack.abort(now, warm.lease.conn);
        }
    }

    /// Opens warm connections that are wanted and closes those that are not.
    pub(super) fn warm_up(&mut self, now: Instant, stack: &mut Stack, counters: &mut BoxCounters) {
        self.cool_down(now, stack);
        let server = self.warm_server();
        while self.pool.lacks(now, server) {
            let best = self.candidates(&[]);
            let best = best.into_iter().min_by_key(|(rank, ..)| *rank);
            let at = best.map(|(_, server, path)| (server, path));
            match at.map(|at| self.open(now, at, None, stack)) {
                Some(Ok(lease)) => {
                    counters.warm_opened += 1;
                    self.pool.push(Warm::new(now, lease));
                }
                _ => self.pool.back_off(now),
            }
        }
    }

    /// Whether an event is of a warm connection; if so it is dealt with here.
    pub(super) fn on_warm_event(
        &mut self,
        now: Instant,
        event: &Event,
        stack: &mut Stack,
        counters: &mut BoxCounters,
    ) -> bool {
        let conn = event.conn();
        let Some(warm) = self.pool.get_mut(conn) else {
            return false;
        };
        let server = warm.lease.server;
        match *event {
            Event::SubflowEstablished { path, rtt, .. } => {
                warm.on_subflow(path, true);
                self.on_subflow(now, server, path, rtt, stack);
            }
            Event::SubflowClosed { path, reason, .. } => {
                warm.on_subflow(path, false);
                self.on_subflow_closed(now, server, path, reason);
            }
            Event::Readable { .. } => {
                let step = read_step(now, conn, stack, ClientStep::More, |buf| warm.input(buf));
                if step == Ok(ClientStep::More) && !stack.read_finished(conn) {
                    return true;
                }
                if let Ok(ClientStep::Failed(_)) = step {
                    // Whether it takes this box a user's connection finds out, and reports.
                    self.pool.on_refused();
                }
                self.pool.on_lost(now, conn);
                counters.warm_lost += 1;
                stack.abort(now, conn);
            }
            Event::Closed { .. } => {
                self.pool.on_lost(now, conn);
                counters.warm_lost += 1;
            }
            _ => {}
        }
        true
    }
}
