//! Probes: a probe sends a SYN to a server over one link, to find out whether the server answers, and after which
//! round-trip time.

use core::time::Duration;

use braid_engine::{ApiError, CloseReason, ConnId, ConnectOptions, Event, PathId, Protocol, Stack};
use braid_strategy::Pinned;
use braid_wire::Instant;

use super::health::Reach;
use super::links::Links;
use super::{Context, Upstream};
use crate::config::ServerEntry;

impl Links {
    /// Opens the connection of a probe.
    fn open_probe(
        &self,
        now: Instant,
        (server, entry): (usize, &ServerEntry),
        path: PathId,
        stack: &mut Stack,
    ) -> Result<ConnId, ApiError> {
        let options = self.options((entry, path), Box::new(Pinned::default()))?;
        // If Multipath TCP has worked, use it: an answer without its options reveals a captive portal or a
        // middlebox that strips options. Otherwise, or after a failure, the probe only asks if anything answers.
        let link = self.find(path).filter(|l| l.open);
        let health = link.and_then(|l| l.health.get(server));
        let sound = health.is_some_and(|health| health.sound_at.is_some() && health.failures == 0);
        let protocol = match sound {
            true => Protocol::Mptcp,
            false => Protocol::Tcp,
        };
        let options = ConnectOptions {
            protocol,
            pin_path: true,
            ..options
        };
        stack.connect(now, options)
    }
}

impl Upstream {
    /// Starts probes that are due and gives up overdue ones.
    pub(super) fn probe_due(&mut self, cx: &mut Context<'_>) {
        for link in 0..self.links.all.len() {
            for server in 0..self.servers.entries.len() {
                let (open, path) = (self.links.all[link].open, self.links.all[link].path);
                let interval = self.interval(cx.now, server, path);
                let health = &mut self.links.all[link].health[server];
                if !open || health.due().is_none_or(|at| at > cx.now) {
                    continue;
                }
                // A late probe is not given up yet, but from now on the server counts as unusable over this link.
                if health.note_late(cx.now) {
                    if let Some(conn) = health.replace_late_probe(cx.now, interval) {
                        cx.stack.abort(cx.now, conn);
                        cx.counters.probes_failed += 1;
                    }
                    continue;
                }
                if let Some(conn) = health.give_up(cx.now) {
                    cx.stack.abort(cx.now, conn);
                    cx.counters.probes_failed += 1;
                    self.schedule(cx.now, server, path);
                    continue;
                }
                cx.counters.probes += 1;
                let entry = &self.servers.entries[server];
                let conn = self
                    .links
                    .open_probe(cx.now, (server, entry), path, cx.stack);
                let timeout = self.probe_pace.settings.timeout;
                let witnessed = self.links.is_witnessed(link, server);
                let health = &mut self.links.all[link].health[server];
                match conn {
                    Ok(conn) => health.probe_started(cx.now, conn, timeout, witnessed),
                    Err(_) => {
                        cx.counters.probes_failed += 1;
                        health.failed(cx.now);
                        // The connection could not be opened, and the cause will persist for a moment. So the next
                        // probe comes later.
                        let later = cx.now + self.probe_pace.settings.failing;
                        self.links.all[link].health[server].next_probe = Some(later);
                    }
                }
            }
        }
    }

    /// Handles an event of a probe's connection; returns whether the event was of such a connection.
    pub(super) fn on_probe_event(&mut self, cx: &mut Context<'_>, event: &Event) -> bool {
        let answer = match *event {
            Event::SubflowEstablished { path, rtt, .. } => Ok((path, rtt)),
            Event::Closed { reason, .. } => Err(reason),
            Event::FellBack { conn, .. } => {
                let Some((link, server)) = self.links.probe(conn) else {
                    return false;
                };
                // Multipath TCP has worked over this link, so something on the path has changed.
                self.links.all[link].health[server].plan_examination(cx.now);
                return true;
            }
            _ => return false,
        };
        let conn = event.conn();
        let Some((link, server)) = self.links.probe(conn) else {
            return false;
        };
        if self.notices.is_ending() {
            return true;
        }
        let path = self.links.all[link].path;
        let health = &mut self.links.all[link].health[server];
        let failure = match answer {
            Ok((used, rtt)) if used == path => {
                // One answer is enough for all probes of this server over this link.
                health
                    .probes()
                    .for_each(|probe| cx.stack.abort(cx.now, probe));
                let returned = health.is_returning();
                health.probe_succeeded(cx.now, rtt);
                if returned {
                    // Otherwise subflows over this path would wait for their retransmission timers. Subflows that
                    // only receive have no such timer, and would wait forever.
                    cx.stack.revalidate_path(cx.now, path);
                }
                None
            }
            // The link gave no answer, so the engine used another path.
            Ok(_) => {
                cx.stack.abort(cx.now, conn);
                Some(CloseReason::TimedOut)
            }
            Err(reason) => Some(reason),
        };
        if let Some(reason) = failure {
            health.probe_failed(cx.now, conn, reason);
            cx.counters.probes_failed += 1;
        }
        self.schedule(cx.now, server, path);
        self.update(cx.now, cx.stack);
        true
    }

    /// Plans the next probe, unless one is planned or under way, or only an examination can help.
    pub(super) fn schedule(&mut self, now: Instant, server: usize, path: PathId) {
        let interval = self.interval(now, server, path);
        if let Some(health) = self.links.health(server, path)
            && !health.is_planned()
            && !health.is_fatal()
        {
            // A single failure may be a lost packet, so probe again at once.
            let again = health.failures == 1 && health.reach != Reach::Down;
            health.next_probe = Some(if again { now } else { now + interval });
        }
    }

    /// Returns the time between two probes of a server over the link of `path`.
    pub(super) fn interval(&self, now: Instant, server: usize, path: PathId) -> Duration {
        let current = self.is_current(server);
        let link = self.links.find(path);
        match link.and_then(|l| Some((l, l.health.get(server)?))) {
            Some(at) => self.probe_pace.interval(now, at, current),
            None => self.probe_pace.settings.idle,
        }
    }
}
