//! Keepalive (RFC 9293 section 3.8.4): the times at which silent subflows are probed for a sign of life, and the
//! consequences if the peer stays silent.

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

/// The silence after which each subflow is probed while the connection moves data, and once more after the data
/// has stopped. An end that only receives has no other way to learn that a link is dark, or that a NAT has
/// forgotten the subflow. The value is a guess.
const KEEPALIVE_BUSY: Duration = Duration::from_secs(10);
/// The silence after which a subflow of an idle connection is probed by the end that opened it. NATs that
/// forget an idle TCP connection after 60 s are common; the remaining 8 s leave time for a second probe.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(52);
/// The silence after which the other subflows of an idle connection rest: nothing is sent over them until the
/// peer is heard there again, because a NAT that forgets after 60 s may soon have forgotten them. One probed
/// subflow keeps a connection alive; probes on each would cost battery and volume on every link.
const MIN_SILENCE_TO_REST: Duration = Duration::from_secs(50);
/// The maximum time by which a subflow is probed earlier than [`KEEPALIVE_IDLE`]. The time differs between
/// subflows, so that thousands of connections that fell silent together are not all probed together.
const KEEPALIVE_SPREAD: Duration = Duration::from_secs(5);
/// The silence after which a subflow of an idle connection is probed by the end that accepted it. Usually the
/// opener probes first, because NATs stand on its side. An opener that has not probed after twice
/// [`KEEPALIVE_IDLE`] is probably gone.
const KEEPALIVE_ACCEPTED: Duration = Duration::from_secs(120);
/// The times of probes on idle connections are rounded up to multiples of this step, so that one wake-up of the
/// process serves many connections. With a wake-up for each connection, the wake-ups of 5,000 connections cost
/// ten times as much as the probes.
const KEEPALIVE_STEP: Duration = Duration::from_secs(1);
/// The time from the first unanswered probe to the next probe. The time doubles with each further probe, up to
/// [`MAX_KEEPALIVE_REPEAT`]. Both values are guesses; this one fits into the 8 s that [`KEEPALIVE_IDLE`] leaves.
const MIN_KEEPALIVE_REPEAT: Duration = Duration::from_secs(5);
const MAX_KEEPALIVE_REPEAT: Duration = Duration::from_secs(60);

/// The number of timeouts and unanswered probes in a row after which a subflow counts as unresponsive. With a
/// round trip of 50 ms, three take two seconds. Two lost packets in a row must not suffice.
const MIN_UNANSWERED_TO_REPLACE: u32 = 3;

/// The interval between the probes of different idle connections when a path is revalidated. Thousands of probes
/// at once would fill the queue of a slow link. The value is a guess; one probe a millisecond takes about 0.5
/// Mbit/s.
const REVALIDATION_SPACING: Duration = Duration::from_millis(1);
/// The maximum delay of a probe on an idle connection when a path is revalidated. The value is a guess. It
/// bounds the time that a user waits for a connection that has to be opened anew.
const MAX_REVALIDATION_DELAY: Duration = Duration::from_secs(10);

impl Subflow {
    /// Returns whether the subflow has potentially failed, or rests because a NAT may have forgotten it.
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

    /// Returns path and remote address. A subflow that replaces this one has the same target.
    fn target(&self) -> Target {
        (self.path, self.tuple.remote)
    }

    /// Returns the silence after which the subflow is probed; the connection last moved payload at
    /// `last_payload`.
    fn keepalive(&self, last_payload: Instant) -> Duration {
        if self.signs.received_at < last_payload + KEEPALIVE_BUSY {
            return KEEPALIVE_BUSY;
        }
        if !self.active {
            return KEEPALIVE_ACCEPTED;
        }
        // The initial sequence number serves as a random number that stays the same for this subflow.
        KEEPALIVE_IDLE - KEEPALIVE_SPREAD * (self.snd.iss.0 & 0xff) / 0x100
    }

    /// Returns the next due action and its time; `is_kept_alive_elsewhere` is set if another subflow keeps the
    /// idle connection alive. A subflow with data in flight needs no probe, because its retransmissions serve
    /// as probes.
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
                // The bound of the exponent only prevents an overflow.
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
    /// Returns whether the connection was busy when the peer was last heard: it had moved payload shortly before.
    fn was_busy(&self) -> bool {
        self.last_received < self.last_payload + KEEPALIVE_BUSY
    }

    /// Returns the only subflow that is probed while the connection is idle: the one on which the peer was
    /// heard last, so that both ends choose the same; backups come last. A subflow that left two probes
    /// unanswered is not chosen. Returns `None` while the connection moves data, because then each subflow
    /// is probed.
    fn keepalive_subflow(&self, subflows: &Subflows) -> Option<usize> {
        if self.was_busy() {
            return None;
        }
        let answers = |s: &Subflow| s.can_carry() && !s.signs.stale && s.signs.probes < 2;
        let subflows = subflows.iter().enumerate();
        let answering = subflows.filter(|(_, s)| answers(s));
        answering
            .max_by_key(|(_, s)| (!s.is_backup(), s.signs.received_at))
            .map(|(i, _)| i)
    }

    /// Returns the time at which a connection probes a path that is revalidated. A connection that has data to
    /// deliver (`has_data`), or moved data shortly before the peer was last heard, probes now. Idle
    /// connections probe later, spread by their `slot`.
    fn revalidates_at(&self, now: Instant, slot: u32, has_data: bool) -> Instant {
        match has_data || self.was_busy() {
            true => now,
            // Slots are small consecutive numbers, one for each connection, so the probes are evenly spaced.
            false => now + (REVALIDATION_SPACING * slot).min(MAX_REVALIDATION_DELAY),
        }
    }
}

impl Transport {
    /// Returns the time of the next probe, or of the next rest, on any subflow.
    pub(super) fn keepalive_at(&self) -> Option<Instant> {
        if !self.expects_peer() {
            return None;
        }
        let keepalive_subflow = self.live.keepalive_subflow(&self.subflows);
        let subflows = 0..self.subflows.len();
        let due = subflows.filter_map(|i| self.next_probe(i, keepalive_subflow));
        due.map(|(at, _)| at).min()
    }

    /// Returns the next due action on subflow `i` and its time. If there is a `keepalive_subflow`, no other
    /// subflow is probed.
    fn next_probe(&self, i: usize, keepalive_subflow: Option<usize>) -> Option<(Instant, Action)> {
        let is_kept_alive_elsewhere =
            keepalive_subflow.is_some_and(|keepalive_subflow| keepalive_subflow != i);
        self.subflows[i].next_probe(self.live.last_payload, is_kept_alive_elsewhere)
    }

    /// Returns whether the peer still takes part in the connection. After both directions are closed, the peer
    /// may have forgotten the connection. It would answer a probe by RST, which would end the connection here
    /// although there may be data left to read.
    fn expects_peer(&self) -> bool {
        self.is_open() && !self.closing.is_over()
    }

    /// Returns the time since which the peer has been silent although it owes an answer or a subflow.
    pub fn silent_since(&self) -> Option<Instant> {
        let waiting_since = self.live.waiting_since.filter(|_| self.is_open());
        waiting_since.map(|since| since.max(self.live.last_received))
    }

    /// Probes the subflows whose probe is due, and puts those to rest whose rest is due.
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

    /// Probes subflow `i` now, and counts the probe.
    fn probe_subflow(&mut self, now: Instant, i: usize) {
        let subflow = &mut self.subflows[i];
        let keepalive = subflow.keepalive(self.live.last_payload);
        subflow.signs.probes = subflow.signs.probes.saturating_add(1);
        subflow.signs.probed_at = now;
        if now.saturating_since(self.live.last_received) >= keepalive {
            // The peer was silent on all subflows, so it may be gone: the user timeout starts.
            self.live.waiting_since.get_or_insert(now);
        }
        self.queue_probe(now, i);
    }

    /// Queues a probe of subflow `i` for `due`. If the connection is fully established, the probe is repeated
    /// and its failure ends the subflow. Otherwise it is a single keepalive, sent at once, because no other
    /// subflow could replace this one.
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

    /// Probes established subflow `i`, whose path may have changed. If the subflow has data in flight, it
    /// retransmits that data early instead, without waiting for its timer.
    pub(super) fn revalidate(&mut self, ctx: &Ctx<'_>, i: usize) {
        let has_data = self.snd.unsent() > 0 || self.snd.outstanding() > 0;
        let due = self.live.revalidates_at(ctx.now, self.id.slot, has_data);
        let not_established = self.mode.mptcp().is_some_and(|m| !m.fully_established);
        let subflow = &mut self.subflows[i];
        if !subflow.snd.board.is_empty() {
            let rto = subflow.snd.rtt.rto();
            subflow.snd.cap_rto(ctx.now, rto);
            subflow.snd.retry_early(ctx.now);
            return;
        }
        if not_established && subflow.active {
            // The peer may lack the third ACK, and would not understand a probe without it.
            (subflow.handshake.at, subflow.handshake.tries) = (Some(ctx.now), 0);
        }
        // A later probe must not replace the one that is pending.
        let pending = Signal::Validate(subflow.id);
        if due > ctx.now && self.signals.has(&pending) {
            return;
        }
        self.queue_probe(due, i);
    }
}

impl Subflow {
    /// Notes that a probe was not answered in time. After two such probes the subflow is stale, so strategies
    /// avoid it; a single probe may have been lost.
    pub(super) fn on_unanswered(&mut self) {
        self.signs.silent = self.signs.silent.saturating_add(1);
        self.signs.stale |= self.signs.silent >= 2;
    }

    /// Repeats the SYN or third ACK of a join now, if it was sent at least twice without an answer. The timer of
    /// a segment that was sent once is not backed off yet.
    pub(super) fn repeat_join(&mut self, now: Instant) {
        let is_backed_off = match self.phase {
            Phase::SynSent => self.handshake.unanswered >= 2,
            _ => self.handshake.tries >= 2,
        };
        if is_backed_off && self.handshake.at.is_some() {
            self.handshake.at = Some(now);
            // The backoff starts again. `tries` stays above 1, because only a timestamp can give the round
            // trip of a repeated segment.
            self.handshake.unanswered = self.handshake.unanswered.min(1);
            self.handshake.tries = 2;
        }
    }
}

impl Subflows {
    /// Notes a sign of life on subflow `i`. If the subflow was unresponsive until now, the unanswered joins
    /// that were to replace it are closed.
    pub(super) fn wake(&mut self, now: Instant, i: usize) {
        let was_unresponsive = self[i].is_unresponsive();
        self[i].wake(now);
        if was_unresponsive {
            let target = self[i].target();
            let is_unanswered_join =
                |s: &&mut Subflow| s.phase == Phase::SynSent && s.opens != Opens::Connection;
            for join in self.iter_mut().filter(is_unanswered_join) {
                if join.target() == target {
                    join.close(SubflowCloseReason::Finished);
                }
            }
        }
    }

    /// Returns whether there are established subflows and the peer answers on none of them. A NAT may then
    /// have forgotten all of them.
    pub(super) fn is_unresponsive(&self) -> bool {
        let mut usable = self.iter().filter(|s| s.can_carry()).peekable();
        usable.peek().is_some() && usable.all(Subflow::is_unresponsive)
    }

    /// Resets the unresponsive subflows that the new subflow `i` replaces.
    pub(super) fn replace_unresponsive(&mut self, i: usize) {
        let (id, target) = (self[i].id, self[i].target());
        let is_replaceable =
            |s: &&mut Subflow| s.id != id && s.active && s.is_established() && s.is_unresponsive();
        for subflow in self.iter_mut().filter(is_replaceable) {
            if subflow.target() == target {
                subflow.begin_reset(
                    ResetKind::Subflow(ResetReason::UnacceptablePerformance),
                    SubflowCloseReason::TimedOut,
                );
            }
        }
    }
}
