//! Examinations: complete handshakes with a server over one link, up to the sign-in, as on a user's connection. A
//! probe is only a TCP handshake. Captive portals answer such a handshake too, and so do servers that refuse this
//! box.

use core::time::Duration;

use braid_engine::{CloseReason, ConnId, ConnectOptions, Event, FallbackCause, PathId, Stack};
use braid_secure::Families;
use braid_strategy::Pinned;
use braid_wire::Instant;

use super::checkout::Checkout;
use super::health::ServerHealth;
use super::links::Links;
use super::trouble::{Finding, Trouble};
use super::{Context, Upstream};
use crate::protocol::socks::{ClientHandshake, ClientStep};
use crate::relay::{StepError, read_step};

/// The time limit of an examination, as a multiple of a probe's time limit. An examination takes two round trips
/// (TCP and TLS 1.3 handshakes), a probe takes one.
const DEADLINE_IN_PROBES: u32 = 2;

/// An examination under way.
#[derive(Debug)]
pub(super) struct Examination {
    checkout: Checkout,
    handshake: ClientHandshake,
    deadline: Instant,
    /// Round-trip time of the TCP handshake; `None` until the SYN was answered.
    answered: Option<Duration>,
    /// The cause of the fallback to regular TCP; `None` while the connection uses Multipath TCP.
    fallback: Option<FallbackCause>,
}

impl Examination {
    /// Processes an event of the connection. Returns the finding once there is one.
    fn on_event(&mut self, now: Instant, event: &Event, stack: &mut Stack) -> Option<Finding> {
        match *event {
            Event::SubflowEstablished { path, rtt, .. } if path == self.checkout.path => {
                self.answered = Some(rtt);
                None
            }
            // The examined link gave no answer, so the engine used another path.
            Event::SubflowEstablished { .. } => Some(Finding::NoAnswer),
            Event::FellBack { cause, .. } => {
                self.fallback = Some(cause);
                None
            }
            Event::Readable { .. } | Event::Writable { .. } | Event::Connected { .. } => {
                self.read(now, stack)
            }
            Event::Closed { reason, .. } => Some(match reason {
                // This machine is the cause, not the server or the link.
                CloseReason::NoResources => Finding::Nothing,
                _ => self.silence(),
            }),
            _ => None,
        }
    }

    /// Reads the server's answers. Returns the finding once there is one.
    fn read(&mut self, now: Instant, stack: &mut Stack) -> Option<Finding> {
        let plain = self.fallback.is_some();
        let input = |bytes: &[u8]| self.handshake.input(bytes);
        let step = read_step(
            now,
            &mut self.checkout.channel,
            stack,
            ClientStep::More,
            input,
        );
        match step {
            Ok(ClientStep::More) if self.handshake.is_signed_in() => Some(Finding::SignedIn {
                rtt: self.answered.unwrap_or_default(),
                plain: self.fallback.and_then(Trouble::of_fallback),
            }),
            Ok(ClientStep::More) if self.checkout.channel.read_finished(stack) => {
                Some(self.silence())
            }
            Ok(ClientStep::More) => None,
            // A reply without a request: no Braid server does this.
            Ok(ClientStep::Connected) => Some(Finding::Trouble(Trouble::NotAServer)),
            Ok(ClientStep::Failed(error)) => Some(found(Trouble::of_answer(error, plain))),
            Err(StepError::Broken(why)) => Some(found(Trouble::of_broken(why, plain))),
            Err(StepError::Gone) => Some(self.silence()),
        }
    }

    /// Returns the finding of an examination that got no expected answer before its connection or its time ended.
    fn silence(&self) -> Finding {
        match self.answered {
            Some(_) => Finding::Trouble(Trouble::of_silence(self.fallback.is_some())),
            None => Finding::NoAnswer,
        }
    }
}

/// The examinations under way, at most one for each server and link.
#[derive(Debug, Default)]
pub(super) struct Examinations {
    all: Vec<Examination>,
}

impl Examinations {
    /// Returns the index of the examination on connection `conn`.
    fn position(&self, conn: ConnId) -> Option<usize> {
        let mut all = self.all.iter();
        all.position(|e| e.checkout.channel.conn == conn)
    }

    /// Returns the index of an examination past its deadline.
    fn overdue(&self, now: Instant) -> Option<usize> {
        self.all.iter().position(|e| e.deadline <= now)
    }

    /// Returns whether an examination of a server over a path is under way.
    fn is_under_way(&self, path: PathId, server: usize) -> bool {
        let is_same = |e: &Examination| (e.checkout.path, e.checkout.server) == (path, server);
        self.all.iter().any(is_same)
    }

    /// Ends the examinations over `path`, or all examinations if `path` is `None`. Their results would concern the
    /// state of links and servers before a change.
    pub(super) fn stop(&mut self, now: Instant, path: Option<PathId>, stack: &mut Stack) {
        self.all.retain(|examination| {
            let goes_on = path.is_some_and(|path| path != examination.checkout.path);
            if !goes_on {
                examination.checkout.channel.abort(now, stack);
            }
            goes_on
        });
    }

    /// Returns the time at which the next examination is due, or an examination under way becomes overdue.
    pub(super) fn next_timeout(&self, links: &Links) -> Option<Instant> {
        let due = links.open().flat_map(|link| {
            let health = link.health.iter().enumerate();
            health
                .filter_map(|(server, health)| Some((link.path, server, health.next_examination?)))
        });
        let due = due.filter(|(path, server, _)| !self.is_under_way(*path, *server));
        let ends = self.all.iter().map(|e| e.deadline);
        due.map(|(.., at)| at).chain(ends).min()
    }
}

/// Returns the finding of a failed handshake; no result if its cause shows no problem of server or link.
fn found(trouble: Option<Trouble>) -> Finding {
    trouble.map_or(Finding::Nothing, Finding::Trouble)
}

impl Upstream {
    /// Ends overdue examinations, and begins those that are due.
    pub(super) fn examine(&mut self, cx: &mut Context<'_>) {
        while let Some(at) = self.examinations.overdue(cx.now) {
            let finding = self.examinations.all[at].silence();
            self.on_finding(cx, at, finding);
        }
        for link in 0..self.links.all.len() {
            for server in 0..self.servers.entries.len() {
                let (path, open) = (self.links.all[link].path, self.links.all[link].open);
                let under_way = self.examinations.is_under_way(path, server);
                let health = &mut self.links.all[link].health[server];
                let due = health.next_examination.is_some_and(|at| at <= cx.now);
                if !due || under_way || !open {
                    continue;
                }
                health.next_examination = None;
                health.last_examination = Some(cx.now);
                cx.counters.examinations += 1;
                if let Some(examination) = self.begin_examination(cx.now, (server, path), cx.stack)
                {
                    self.examinations.all.push(examination);
                } else {
                    self.links.all[link].health[server].on_finding(cx.now, Finding::Nothing);
                }
            }
        }
    }

    /// Opens the connection of an examination, with its first SYN on this path.
    fn begin_examination(
        &mut self,
        now: Instant,
        (server, path): (usize, PathId),
        stack: &mut Stack,
    ) -> Option<Examination> {
        let strategy = Box::new(Pinned::default());
        let entry = &self.servers.entries[server];
        let options = self.links.options((entry, path), strategy).ok()?;
        let options = ConnectOptions {
            pin_path: true,
            ..options
        };
        let checkout = self
            .servers
            .sign_in_over(now, (server, path), options, stack)
            .ok()?;
        Some(Examination {
            handshake: ClientHandshake::new(checkout.channel.is_protected()),
            checkout,
            deadline: now + self.probe_pace.settings.timeout * DEADLINE_IN_PROBES,
            answered: None,
            fallback: None,
        })
    }

    /// Handles an event of an examination's connection; returns whether the event was of such a connection.
    pub(super) fn on_examination_event(&mut self, cx: &mut Context<'_>, event: &Event) -> bool {
        let Some(at) = self.examinations.position(event.conn()) else {
            return false;
        };
        let examination = &mut self.examinations.all[at];
        let finding = examination.on_event(cx.now, event, cx.stack);
        if let Some(finding) = finding {
            self.on_finding(cx, at, finding);
        }
        true
    }

    /// Ends the examination with index `at`, and applies its finding to servers and links.
    fn on_finding(&mut self, cx: &mut Context<'_>, at: usize, finding: Finding) {
        let Checkout {
            mut channel,
            server,
            path,
            ..
        } = self.examinations.all.remove(at).checkout;
        channel.abort(cx.now, cx.stack);
        let signed_in = matches!(finding, Finding::SignedIn { .. });
        // A plaintext server cannot report the address families that it reaches. After a refusal, assume both
        // again: the next user's connection will show whether that is right.
        let assumed = (signed_in && !channel.is_protected()).then_some(Families::BOTH);
        self.on_families_reported(cx.now, server, channel.take_families().or(assumed));
        cx.counters.examinations_failed += u64::from(!signed_in);
        if let Some(health) = self.links.health(server, path) {
            health.on_finding(cx.now, finding);
            if health.is_blocking_suspected {
                // The engine remembers that SYNs with MP_CAPABLE are dropped, and would send no such SYN in the
                // second examination. That examination needs one, to confirm the first result.
                cx.stack.forget_middleboxes(path);
            }
        }
        match finding {
            // A server is likely to behave alike over all links. So its problem over one link is a reason to
            // examine links without a problem, and a success is a reason to examine links over which it refuses
            // this box.
            Finding::Trouble(trouble) if trouble.is_of_server() => {
                self.links
                    .plan_examinations(cx.now, server, |health| health.trouble.is_none());
            }
            Finding::SignedIn { .. } => {
                self.links
                    .plan_examinations(cx.now, server, ServerHealth::is_refused_by_server);
            }
            _ => {}
        }
        self.schedule(cx.now, server, path);
        self.update(cx.now, cx.stack);
    }
}
