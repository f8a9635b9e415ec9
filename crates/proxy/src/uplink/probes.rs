//! Probes: a first SYN to a server over one link, to see whether anything answers, and when.

use core::time::Duration;

use braid_engine::{ApiError, CloseReason, ConnId, ConnectOptions, Event, PathId, Protocol, Stack};
use braid_strategy::Pinned;
use braid_wire::Instant;

use super::health::Reach;
use super::{Context, Upstream};

impl Upstream {
    /// Starts probes that are due and gives up those that are overdue.
    pub(super) fn probe_due(&mut self, cx: &mut Context<'_>) {
        for link in 0..self.links.all.len() {
            for server in 0..self.servers.entries.len() {
                let (open, path) = (self.links.all[link].open, self.links.all[link].path);
                let interval = self.interval(cx.now, server, path);
                let cell = &mut self.links.all[link].cells[server];
                if !open || cell.due().is_none_or(|at| at > cx.now) {
                    continue;
                }
                if cell.note_late(cx.now) {
                    if let Some(conn) = cell.ask_beside(cx.now, interval) {
                        cx.stack.abort(cx.now, conn);
                        cx.counters.probes_failed += 1;
                    }
                    continue;
                }
                if let Some(conn) = cell.give_up(cx.now) {
                    cx.stack.abort(cx.now, conn);
                    cx.counters.probes_failed += 1;
                    self.schedule(cx.now, server, path);
                    continue;
                }
                cx.counters.probes += 1;
                let conn = self.probe_over(cx.now, server, path, cx.stack);
                let timeout = self.probing.timeout;
                let failing = &self.links.all[link].cells[server];
                let mut others = self.links.all.iter().filter(|l| l.open);
                let witnessed = others.any(|l| l.cells[server].witnesses(failing));
                let cell = &mut self.links.all[link].cells[server];
                match conn {
                    Ok(conn) => cell.probe_started(cx.now, conn, timeout, witnessed),
                    Err(_) => {
                        cx.counters.probes_failed += 1;
                        cell.failed(cx.now);
                        // Not at once, for nothing was asked.
                        let later = cx.now + self.probing.failing;
                        self.links.all[link].cells[server].next = Some(later);
                    }
                }
            }
        }
    }

    /// Says whether an event is of a probe; if so it is dealt with here.
    pub(super) fn on_probe_event(&mut self, cx: &mut Context<'_>, event: &Event) -> bool {
        let established = match *event {
            Event::SubflowEstablished { path, rtt, .. } => Ok((path, rtt)),
            Event::Closed { reason, .. } => Err(reason),
            Event::FellBack { conn, .. } => {
                let Some((link, server)) = self.links.probe(conn) else {
                    return false;
                };
                self.links.all[link].cells[server].want_examination(cx.now);
                return true;
            }
            _ => return false,
        };
        let conn = event.conn();
        let Some((link, server)) = self.links.probe(conn) else {
            return false;
        };
        if self.ending {
            return true;
        }
        let path = self.links.all[link].path;
        let cell = &mut self.links.all[link].cells[server];
        let failed = match established {
            Ok((used, rtt)) if used == path => {
                // What one tells, another need not be asked.
                cell.probes()
                    .for_each(|probe| cx.stack.abort(cx.now, probe));
                let returned = cell.is_returning();
                cell.probe_succeeded(cx.now, rtt);
                if returned {
                    // Subflows there would wait for their timers, and those that only receive for ever.
                    cx.stack.doubt_path(cx.now, path);
                }
                None
            }
            // The engine had no answer here and went elsewhere.
            Ok(_) => {
                cx.stack.abort(cx.now, conn);
                Some(CloseReason::TimedOut)
            }
            Err(reason) => Some(reason),
        };
        if let Some(reason) = failed {
            cell.probe_failed(cx.now, conn, reason);
            cx.counters.probes_failed += 1;
        }
        self.schedule(cx.now, server, path);
        self.update(cx.now, cx.stack);
        true
    }

    fn probe_over(
        &mut self,
        now: Instant,
        server: usize,
        path: PathId,
        stack: &mut Stack,
    ) -> Result<ConnId, ApiError> {
        let strategy = Box::new(Pinned::default());
        let options = self.options(server, path, strategy)?;
        // Where Multipath TCP has passed, an answer without it is news: something else answers, or takes the
        // option out. Where it has not, and where something failed, the question is whether anything answers.
        let sound = self
            .links
            .cell(server, path)
            .is_some_and(|c| c.sound_at.is_some() && c.failures == 0);
        let protocol = match sound {
            true => Protocol::Mptcp,
            false => Protocol::Tcp,
        };
        stack.connect(
            now,
            ConnectOptions {
                protocol,
                insist: true,
                ..options
            },
        )
    }

    /// Sets the time of the next probe, where there is none yet.
    pub(super) fn schedule(&mut self, now: Instant, server: usize, path: PathId) {
        let interval = self.interval(now, server, path);
        if let Some(cell) = self.links.cell(server, path)
            && !cell.is_planned()
            && !cell.is_fatal()
        {
            // A first failure may be a lost packet: ask again at once.
            let again = cell.failures == 1 && cell.reach != Reach::Down;
            cell.next = Some(if again { now } else { now + interval });
        }
    }

    pub(super) fn interval(&self, now: Instant, server: usize, path: PathId) -> Duration {
        let link = self.links.all.iter().find(|l| l.path == path);
        let Some((link, cell)) = link.and_then(|l| Some((l, l.cells.get(server)?))) else {
            return self.probing.idle;
        };
        if cell.reach == Reach::Down {
            // What a metered link carries costs.
            let shift = if link.metered {
                cell.failures.min(5)
            } else {
                0
            };
            let slow = self.probing.failing * (1 << shift);
            return slow.min(self.probing.idle.max(self.probing.failing));
        }
        if self.servers.is_current(server) && self.busy(now) {
            self.probing.busy
        } else {
            self.probing.idle
        }
    }
}
