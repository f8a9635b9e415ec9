//! Keepalive: the times at which a subflow is probed for a sign of life (RFC 9293 section 3.8.4), and the
//! consequences of silence.

use core::time::Duration;

use braid_wire::Instant;
use braid_wire::mptcp::ResetReason;

use super::ctx::Ctx;
use super::ending::ResetKind;
use super::signal::Signal;
use super::subflow::{Opens, Phase, Subflow};
use super::subflows::Subflows;
use super::transport::{Liveness, Transport};
use crate::event::SubflowCloseReason;
use crate::path::Target;

/// The silence after which a subflow is probed once while its connection moves data, and a last time after
/// that. An end that only receives has no other way to learn that a link is dark, or that a NAT has
/// forgotten the subflow.
const KEEPALIVE_BUSY: Duration = Duration::from_secs(10);
/// The silence after which a subflow of an idle connection is probed by the end that opened it. NATs that
/// forget an idle TCP connection after 60 s are common; the remaining 8 s leave time for a second probe.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(52);
/// The silence after which the other subflows of an idle connection rest: nothing is sent over them until
/// the peer was heard there again, since a NAT may have forgotten them. One probed subflow keeps a
/// connection alive; probing each would cost battery and volume on every link.
const MIN_SILENCE_TO_REST: Duration = Duration::from_secs(50);
/// The range by which [`KEEPALIVE_IDLE`] differs between subflows, so that thousands of connections that
/// fell silent together do not probe together from then on.
const KEEPALIVE_SPREAD: Duration = Duration::from_secs(5);
/// The same silence at the end that accepted the subflow. The opener probes first, since NATs stand on its
/// side; if it does not, it is gone.
const KEEPALIVE_ACCEPTED: Duration = Duration::from_secs(120);
/// The multiple of time at which subflows of idle connections are probed, thousands of connections at once:
/// a wake-up for each would cost several times what the probes do.
const KEEPALIVE_STEP: Duration = Duration::from_secs(1);
/// The time from an unanswered probe to the next one. It doubles each time.
const MIN_KEEPALIVE_REPEAT: Duration = Duration::from_secs(5);
const MAX_KEEPALIVE_REPEAT: Duration = Duration::from_secs(60);

/// The number of timeouts and unanswered probes in a row after which a subflow counts as unresponsive. At a round
/// trip of 50 ms that takes two seconds, and two lost packets in a row do not suffice.
const MIN_UNANSWERED_TO_REPLACE: u32 = 3;

/// The interval between probes of idle connections when a path is revalidated; none is probed later than
/// [`MAX_REVALIDATION_DELAY`]. Thousands of probes at a time would fill the queue of a slow link.
const REVALIDATION_SPACING: Duration = Duration::from_millis(1);
const MAX_REVALIDATION_DELAY: Duration = Duration::from_secs(10);

impl Subflow {
    /// Returns whether the subflow has potentially failed, or a NAT may have forgotten it.
    pub(super) fn is_stale(&self) -> bool {
        self.signs.stale || self.signs.resting
    }

    /// Returns whether the peer has been silent here for so long that it may never answer.
    pub(super) fn is_unresponsive(&self) -> bool {
        self.signs.silent >= MIN_UNANSWERED_TO_REPLACE
    }

    /// Returns whether either end wants the subflow to be a backup.
    pub(super) fn is_backup(&self) -> bool {
        self.priority.own || self.priority.peer
    }

    /// Returns path and remote address, which a replacement for this subflow has in common with it.
    fn target(&self) -> Target {
        (self.path, self.tuple.remote)
    }

    /// Returns the silence after which the subflow is probed, on a connection that last moved payload at
    /// `last_payload`.
    fn keepalive(&self, last_payload: Instant) -> Duration {
        if self.signs.received_at.saturating_since(last_payload) < KEEPALIVE_BUSY {
            return KEEPALIVE_BUSY;
        }
        if !self.active {
            return KEEPALIVE_ACCEPTED;
        }
        // The initial sequence number is as good as random, and stays the same.
        KEEPALIVE_IDLE - KEEPALIVE_SPREAD * (self.snd.iss.0 & 0xff) / 0x100
    }

    /// Returns the next due action and its time; `is_kept_alive_elsewhere` is set if another subflow keeps the
    /// idle connection alive. Data in flight needs no probe: its retransmissions do the same.
    fn next_probe(
        &self,
        last_payload: Instant,
        is_kept_alive_elsewhere: bool,
    ) -> Option<(Instant, Action)> {
        if !self.is_established() || !self.snd.board.is_empty() {
            return None;
        }
        let keepalive = self.keepalive(last_payload);
        let due = match keepalive {
            KEEPALIVE_BUSY => self.signs.received_at + keepalive,
            _ if is_kept_alive_elsewhere => {
                let rest_at =
                    (self.signs.received_at + MIN_SILENCE_TO_REST).next_multiple_of(KEEPALIVE_STEP);
                return (!self.signs.resting).then_some((rest_at, Action::Rest));
            }
            _ => (self.signs.received_at + keepalive).next_multiple_of(KEEPALIVE_STEP),
        };
        let at = match self.signs.probes {
            0 => due,
            probes => {
                let pause = MIN_KEEPALIVE_REPEAT * (1 << (probes - 1).min(5));
                due.max(self.signs.probed_at + pause.min(MAX_KEEPALIVE_REPEAT))
            }
        };
        Some((at, Action::Probe))
    }
}

/// The action due on a silent subflow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    /// A probe for a sign of life.
    Probe,
    /// A [rest](MIN_SILENCE_TO_REST).
    Rest,
}

impl Liveness {
    /// Returns the time from the last payload to the last sign of life.
    fn quiet(&self) -> Duration {
        self.last_received.saturating_since(self.last_payload)
    }

    /// Returns the only subflow that is probed while the connection is idle, as long as it answers: the
    /// subflow, not a backup if possible, on which the peer was heard last, so that both ends choose the
    /// same. `None` while the connection moves data: then each subflow is probed.
    fn keepalive_subflow(&self, subflows: &Subflows) -> Option<usize> {
        if self.quiet() < KEEPALIVE_BUSY {
            return None;
        }
        let answers = |s: &Subflow| s.can_carry() && !s.signs.stale && s.signs.probes < 2;
        let subflows = subflows.iter().enumerate();
        let fit = subflows.filter(|(_, s)| answers(s));
        fit.max_by_key(|(_, s)| (!s.is_backup(), s.signs.received_at))
            .map(|(i, _)| i)
    }

    /// Returns the time at which a connection probes a path that is revalidated: now if it was in use when
    /// it was last heard, or is `in_use` because it has data to deliver, and otherwise later, spread by the
    /// connection's `slot`.
    fn revalidates_at(&self, now: Instant, slot: u32, in_use: bool) -> Instant {
        match in_use || self.quiet() < KEEPALIVE_BUSY {
            true => now,
            // Slots are small numbers, each used by one connection, so they space the probes evenly.
            false => now + (REVALIDATION_SPACING * slot).min(MAX_REVALIDATION_DELAY),
        }
    }
}

impl Transport {
    /// Returns the time at which a subflow is to be probed or to rest.
    pub(super) fn keepalive_at(&self) -> Option<Instant> {
        if !self.expects_peer() {
            return None;
        }
        let keepalive_subflow = self.live.keepalive_subflow(&self.subflows);
        let subflows = 0..self.subflows.len();
        let due = subflows.filter_map(|i| self.next_probe(i, keepalive_subflow));
        due.map(|(at, _)| at).min()
    }

    /// Returns the next due action on subflow `i` and its time; only `keepalive_subflow` is probed if there is
    /// one.
    fn next_probe(&self, i: usize, keepalive_subflow: Option<usize>) -> Option<(Instant, Action)> {
        let is_kept_alive_elsewhere =
            keepalive_subflow.is_some_and(|keepalive_subflow| keepalive_subflow != i);
        self.subflows[i].next_probe(self.live.last_payload, is_kept_alive_elsewhere)
    }

    /// Returns whether the peer still takes part in the connection. A peer that does not has forgotten the
    /// connection and would answer a probe by RST, while there may be data left to read.
    fn expects_peer(&self) -> bool {
        self.is_open() && !self.closing.is_over()
    }

    /// Returns the time since which the peer has been silent although it owes an answer or a subflow.
    pub fn silent_since(&self) -> Option<Instant> {
        let owes = self.live.waiting_since.filter(|_| self.is_open());
        owes.map(|since| since.max(self.live.last_received))
    }

    /// Probes subflows that were silent for long, or puts them to rest.
    pub(super) fn probe_silent(&mut self, ctx: &Ctx<'_>) {
        if !self.expects_peer() {
            return;
        }
        let keepalive_subflow = self.live.keepalive_subflow(&self.subflows);
        for i in 0..self.subflows.len() {
            match self.next_probe(i, keepalive_subflow) {
                Some((at, Action::Probe)) if at <= ctx.now => self.probe_subflow(ctx.now, i),
                Some((at, Action::Rest)) if at <= ctx.now => self.subflows[i].signs.resting = true,
                _ => {}
            }
        }
    }

    fn probe_subflow(&mut self, now: Instant, i: usize) {
        let subflow = &mut self.subflows[i];
        let keepalive = subflow.keepalive(self.live.last_payload);
        subflow.signs.probes = subflow.signs.probes.saturating_add(1);
        subflow.signs.probed_at = now;
        if now.saturating_since(self.live.last_received) >= keepalive {
            // No other subflow was heard either: the peer itself may be gone.
            self.live.waiting_since.get_or_insert(now);
        }
        self.queue_probe(now, i);
    }

    /// Probes subflow `i` from `due` on: repeatedly if the connection is fully established, otherwise by one
    /// keepalive.
    fn queue_probe(&mut self, due: Instant, i: usize) {
        let fully_established = self.mode.mptcp().is_some_and(|m| m.fully_established);
        let subflow = &mut self.subflows[i];
        if fully_established && subflow.can_carry() {
            self.signals.add(due, Signal::Validate(subflow.id));
        } else {
            subflow.owed.keepalive = true;
        }
    }

    /// Notes that the peer was heard on subflow `i`.
    pub(super) fn note_received(&mut self, now: Instant, i: usize) {
        let subflow = &mut self.subflows[i];
        (
            subflow.signs.received_at,
            subflow.signs.probes,
            subflow.signs.resting,
        ) = (now, 0, false);
        self.live.last_received = now;
        self.signals.on_received(subflow.id);
    }

    /// Probes established subflow `i`, whose path may have changed. Data in flight is retransmitted at once
    /// instead, whatever the timer says.
    pub(super) fn revalidate(&mut self, ctx: &Ctx<'_>, i: usize) {
        let in_use = self.snd.unsent() > 0 || self.snd.outstanding() > 0;
        let due = self.live.revalidates_at(ctx.now, self.id.slot, in_use);
        let not_established = self.mode.mptcp().is_some_and(|m| !m.fully_established);
        let subflow = &mut self.subflows[i];
        if !subflow.snd.board.is_empty() {
            let rto = subflow.snd.rtt.rto();
            subflow.snd.cap_rto(ctx.now, rto);
            subflow.snd.retry_early(ctx.now);
            return;
        }
        if not_established && subflow.active {
            // The third ACK may not have arrived, without which the peer does not understand a probe.
            (subflow.handshake.at, subflow.handshake.tries) = (Some(ctx.now), 0);
        }
        let pending = Signal::Validate(subflow.id);
        if due > ctx.now && self.signals.has(&pending) {
            return;
        }
        self.queue_probe(due, i);
    }
}

impl Subflow {
    /// Notes that a probe was not answered in time. After two, the strategy avoids the subflow.
    pub(super) fn on_unanswered(&mut self) {
        self.signs.silent = self.signs.silent.saturating_add(1);
        self.signs.stale |= self.signs.silent >= 2;
    }

    /// Repeats the SYN or third ACK of a join that was sent more than once in vain.
    pub(super) fn repeat_join(&mut self, now: Instant) {
        let again = match self.phase {
            Phase::SynSent => self.handshake.unanswered >= 2,
            _ => self.handshake.tries >= 2,
        };
        if again && self.handshake.at.is_some() {
            self.handshake.at = Some(now);
            // Count it as sent once or twice: it is a repeat, and more repeats may follow.
            self.handshake.unanswered = self.handshake.unanswered.min(1);
            self.handshake.tries = 2;
        }
    }
}

impl Subflows {
    /// Notes a sign of life on subflow `i`, and closes joins that were to replace it while it was unresponsive.
    pub(super) fn wake(&mut self, now: Instant, i: usize) {
        let was_unresponsive = self[i].is_unresponsive();
        self[i].wake(now);
        if was_unresponsive {
            let target = self[i].target();
            let waits =
                |s: &&mut Subflow| s.phase == Phase::SynSent && s.opens != Opens::Connection;
            for join in self.iter_mut().filter(waits) {
                if join.target() == target {
                    join.close(SubflowCloseReason::Finished);
                }
            }
        }
    }

    /// Returns whether the peer answers on no subflow, so that a NAT may have forgotten each of them.
    pub(super) fn is_unresponsive(&self) -> bool {
        let mut there = self.iter().filter(|s| s.can_carry()).peekable();
        there.peek().is_some() && there.all(Subflow::is_unresponsive)
    }

    /// Resets the unresponsive subflows that the new subflow `i` replaces.
    pub(super) fn replace_unresponsive(&mut self, i: usize) {
        let (id, target) = (self[i].id, self[i].target());
        let replaced =
            |s: &&mut Subflow| s.id != id && s.active && s.is_established() && s.is_unresponsive();
        for subflow in self.iter_mut().filter(replaced) {
            if subflow.target() == target {
                subflow.begin_reset(
                    ResetKind::Subflow(ResetReason::UnacceptablePerformance),
                    SubflowCloseReason::TimedOut,
                );
            }
        }
    }
}
