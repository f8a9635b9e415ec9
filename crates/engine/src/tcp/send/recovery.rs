//! Loss detection: RACK-TLP (RFC 8985) and the retransmission timer (RFC 6298).

use core::time::Duration;

use braid_wire::Instant;

use super::sizes::Sizes;
use super::undo::Proof;
use super::{Expired, MAX_BACKOFF, Recovery, Reduction, Sender, TailProbe};
use crate::cc::Loss;
use crate::tcp::dup_acks;
use crate::tcp::prr::Prr;
use crate::tcp::rate::RateEstimator;
use crate::tcp::scoreboard::{Delivered, Sent};

/// The duplicate-acknowledgement threshold (RFC 8985 section 6.2, step 4). As long as no reordering was seen, this
/// number of transmissions delivered out of order shows a loss.
const DUP_THRESH_SEGMENTS: usize = 3;

/// The number of recoveries without a needless retransmission after which the reordering window is reset
/// (RFC 8985 section 6.2, step 4).
const REO_WND_PERSIST: u32 = 16;

/// The maximum number of quarters of the lowest round trip that are added to the reordering window. Linux stores
/// the number in 8 bits. The smoothed round trip bounds the window in any case.
const MAX_REO_WND_MULT: u32 = 255;

/// The maximum delay of a loss mark. One timer serves all records that are due within this time, since each expiry
/// has to search the whole flight. 1 ms, the resolution of many timers, is a guess.
const REORDER_TIMER_SPAN: Duration = Duration::from_millis(1);

/// The maximum time before a tail loss probe. Even while a long queue drains, acknowledgements keep arriving. So a
/// second without acknowledgements shows that the tail of the flight is lost, even if round trips through the
/// queue take longer than a second.
const MAX_PROBE_TIMEOUT: Duration = Duration::from_secs(1);

impl Sender {
    /// Arms the retransmission timer if anything is in flight, otherwise stops it.
    // Conforms: 6298-5-1
    pub(super) fn arm_rto(&mut self, now: Instant) {
        self.timers.rto_at = (!self.board.is_empty()).then(|| now + self.rto());
        self.timers.regular_rto_at = None;
    }

    /// Arms the tail loss probe (RFC 8985 section 7.2).
    // Conforms: 8985-4-1, 8985-7.2-1
    pub(super) fn arm_probe(&mut self, now: Instant) {
        let eligible = self.has_no_loss()
            && self.board.sacked() == 0
            && self.dup_acks.is_none()
            && !self.timers.probe_out
            && !self.board.is_empty()
            && self.rtt.srtt() > Duration::ZERO;
        self.timers.probe_at = eligible.then(|| {
            // A probe within two round trips would be needless, however long the round trip is.
            let max_pto = MAX_PROBE_TIMEOUT.max(self.rtt.min() * 2);
            let mut pto = (self.rtt.srtt() * 2).min(max_pto);
            // The peer may delay the acknowledgement of a single segment.
            if self.in_flight() <= u64::from(self.mss) {
                pto += self.limits.peer_ack_delay;
            }
            let at = now + pto;
            self.timers.rto_at.map_or(at, |rto| at.min(rto))
        });
    }

    /// Limits the time until the backed-off retransmission timer expires to `max`, so that a path that may be dead
    /// is probed often while other paths carry the data.
    pub fn cap_rto(&mut self, now: Instant, max: Duration) {
        if let Some(at) = self.timers.rto_at {
            self.timers.rto_at = Some(at.min(now + max));
        }
    }

    /// Shortens the backed-off retransmission timer for one early retransmission, because the path may work again.
    /// The acknowledgement of the last retransmission still has the time of one timeout to arrive.
    pub fn retry_early(&mut self, now: Instant) {
        let Some(at) = self.timers.rto_at.filter(|_| self.timers.backoff > 0) else {
            return;
        };
        let early = now.max(self.timers.expired_at + self.rtt.rto());
        if early < at {
            self.timers.rto_at = Some(early);
            self.timers.regular_rto_at = Some(at);
        }
    }

    /// Detects a loss that a tail loss probe repaired (RFC 8985 section 7.4.2): data sent after the probe
    /// is acknowledged, and the peer did not report the probe as a duplicate. The loss counts like any other.
    // Conforms: 8985-7.4.2-1
    pub(super) fn check_probe_repair(&mut self, now: Instant) {
        let una = self.una;
        let is_passed = |probe: &mut TailProbe| probe.end_seq.is_some_and(|end| una > end);
        let Some(probe) = self.rack.probe.take_if(is_passed) else {
            return;
        };
        // In all other states the window is reduced already.
        if self.recovery != Recovery::Open {
            return;
        }
        let bytes = probe.end - probe.start;
        self.traffic.bytes_lost += bytes;
        let (sent_at, packet) = probe.original;
        self.rate.note_lost(sent_at, &packet);
        let tx = self.rate.on_lost(bytes);
        self.begin_episode();
        self.losses.count_non_congestive(bytes);
        self.cc.on_lost(&Loss {
            now,
            bytes,
            in_flight: self.in_flight(),
            first: true,
            tx,
        });
    }

    /// Processes a duplicate acknowledgement, which reports no new data. After a tail loss probe, the duplicate
    /// shows that the original of the probe had arrived as well. Without SACK, each duplicate shows that a later
    /// segment arrived, and three duplicates show that the first segment is lost (RFC 5681 section 3.2). Returns
    /// whether anything was marked as lost.
    pub fn on_dup_ack(&mut self, now: Instant) -> bool {
        let una = self.una;
        self.rack.probe.take_if(|probe| probe.end_seq == Some(una));
        self.on_no_progress();
        self.note_full(now);
        let (flight, mss) = (self.in_flight_after_hole(), u64::from(self.mss));
        let Some(dup) = &mut self.dup_acks else {
            return false;
        };
        let arrived = dup.on_dup_ack(flight, mss);
        let is_loss = dup.is_loss(una);
        let lost = is_loss && self.has_no_loss() && self.lose_first(now);
        if lost && let Some(dup) = &mut self.dup_acks {
            // The loss of a path MTU probe begins no recovery. Other data after the probe may be missing too, so
            // that further duplicates must count.
            dup.on_recovery(match self.recovery {
                Recovery::Open | Recovery::Marked { .. } => una,
                _ => self.nxt,
            });
        }
        let (in_flight, target) = (self.in_flight(), self.cc.cwnd());
        if let Recovery::Fast { prr, .. } | Recovery::Marked { prr } = &mut self.recovery {
            prr.on_ack(arrived, in_flight, target, self.mss, false);
        }
        self.update_pacing();
        lost
    }

    /// Processes a duplicate acknowledgement whose options left no room for SACK blocks. Three consecutive
    /// duplicates show a loss, as they do from a peer without SACK (RFC 5681 section 3.2). When the retransmission
    /// is acknowledged, RACK finds further losses by their send times (RFC 8985 section 6.2).
    pub fn on_dup_ack_without_sack(&mut self, now: Instant) {
        if self.dup_acks.is_some() {
            self.on_dup_ack(now);
            return;
        }
        self.dup_acks_without_sack += 1;
        if self.dup_acks_without_sack == dup_acks::DUP_ACK_THRESHOLD && self.has_no_loss() {
            self.lose_first(now);
            self.update_pacing();
        }
    }

    /// Returns the number of bytes in flight after the first missing segment. Duplicates can only report the
    /// arrival of these bytes.
    fn in_flight_after_hole(&self) -> u64 {
        let first = self.board.iter().next().filter(|first| !first.lost);
        let missing = first.map_or(0, |first| first.len().min(self.mss.into()));
        self.board.in_flight().saturating_sub(missing)
    }

    /// Returns the number of `delivered` bytes, acknowledged in order, that duplicate acknowledgements have not
    /// counted as arrived before.
    pub(super) fn newly_delivered(&mut self, delivered: u64) -> u64 {
        let flight = self.in_flight_after_hole();
        let Some(dup) = &mut self.dup_acks else {
            return delivered;
        };
        let counted = dup.on_advance(delivered, u64::from(self.mss), flight);
        if matches!(self.recovery, Recovery::Open | Recovery::Marked { .. }) {
            dup.on_open();
        }
        delivered - counted
    }

    /// Marks the next segment as lost if a partial acknowledgement arrived in a fast recovery without SACK (RFC
    /// 6582 section 3.2). Returns whether a segment was marked.
    // Conforms: 6582-3.2-2
    pub(super) fn on_partial_ack(&mut self, now: Instant) -> bool {
        if !matches!(self.recovery, Recovery::Fast { .. }) {
            return false;
        }
        if let Some(dup) = &mut self.dup_acks {
            dup.on_partial_ack();
        }
        self.lose_first(now)
    }

    /// Marks the first segment in flight as lost. Returns whether there was such a segment.
    fn lose_first(&mut self, now: Instant) -> bool {
        let flight = self.in_flight();
        let len = self.sizes.packet_at(self.una, u64::from(self.mss));
        let Some(first) = self.board.mark_first_lost(len) else {
            return false;
        };
        note_lost_record(&mut self.sizes, &mut self.rate, &first);
        self.on_lost(now, first.len(), (flight, 0))
    }

    /// Ends the recovery if its end was acknowledged.
    pub(super) fn leave_recovery(&mut self) {
        let is_over = match self.recovery {
            Recovery::Open => return,
            Recovery::Fast { end, .. } | Recovery::Timeout { end, .. } => self.una >= end,
            Recovery::Marked { .. } => self.una > self.reductions.last.at || self.board.is_empty(),
        };
        if is_over && !self.has_no_loss() {
            // Each recovery counts down to the reset of the reordering window (RFC 8985 section 6.2, step 4).
            let rack = &mut self.rack;
            rack.reo_wnd_persist = rack.reo_wnd_persist.saturating_sub(1);
            if rack.reo_wnd_persist == 0 {
                rack.reo_wnd_mult = 0;
            }
        }
        if is_over {
            self.recovery = Recovery::Open;
        }
    }

    /// Advances RACK (RFC 8985 section 6.2, steps 2 and 3). `spurious` is set if this acknowledgement showed
    /// that a timeout was spurious.
    // Conforms: 8985-6.2-2
    pub(super) fn advance_rack(&mut self, now: Instant, delivered: &Delivered, spurious: bool) {
        let Some(newest) = delivered.newest else {
            return;
        };
        self.rack.reordering_seen |= delivered.reordered;
        let mut sent_at = newest.sent_at;
        // An acknowledgement less than a round trip after a retransmission is for the original transmission. The
        // same is true of an acknowledgement that shows a timeout to be spurious. If the peer reported a duplicate
        // (D-SACK), both copies arrived and the acknowledgement may be for either of them.
        let is_too_fast = now.saturating_since(sent_at) < self.rtt.base();
        if newest.retransmitted && (is_too_fast || spurious) && self.rack.dsack_end != newest.end {
            // For a tail loss probe the send time of the original is known, and RACK can use it. The
            // acknowledgement may be for the probe after all, if the path became shorter. No harm is done: data
            // sent before the original is lost in that case too.
            let probe = self.rack.probe.filter(|probe| probe.end == newest.end);
            let Some(probe) = probe else {
                return;
            };
            sent_at = probe.original.0;
        }
        if (sent_at, newest.end) > (self.rack.sent_at, self.rack.end) {
            self.rack.sent_at = sent_at;
            self.rack.end = newest.end;
            self.rack.rtt = now.saturating_since(sent_at);
        }
    }

    /// Returns the reordering window (RFC 8985 section 6.2, step 4): a segment counts as lost if later segments
    /// have arrived and it does not follow within this time.
    // Conforms: 8985-3.3.2-1, 8985-3.3.2-3, 8985-6.2-4
    pub(super) fn reordering_window(&self) -> Duration {
        // A record may be a super-segment of many segments. A super-segment counts once, because its segments
        // travel together: a single super-segment that overtakes another record is no sign of loss.
        let is_threshold_reached = || {
            self.board
                .iter()
                .filter(|r| r.sacked)
                .nth(DUP_THRESH_SEGMENTS - 1)
                .is_some()
        };
        if !self.rack.reordering_seen && (!self.has_no_loss() || is_threshold_reached()) {
            return Duration::ZERO;
        }
        let quarter = self.rtt.base() / 4;
        (quarter * (1 + self.rack.reo_wnd_mult)).min(self.rtt.srtt())
    }

    /// Widens the reordering window after a needless retransmission, at most once in a round trip (RFC 8985
    /// section 6.2, step 4). [`REO_WND_PERSIST`] recoveries without a needless retransmission reset the window.
    // Conforms: 8985-3.3.2-2
    pub(super) fn widen_reordering_window(&mut self) {
        let rack = &mut self.rack;
        rack.reordering_seen = true;
        if self.una >= rack.dsack_round {
            rack.dsack_round = self.nxt;
            rack.reo_wnd_mult = (rack.reo_wnd_mult + 1).min(MAX_REO_WND_MULT);
            rack.reo_wnd_persist = REO_WND_PERSIST;
        }
    }

    /// Detects losses (RFC 8985 section 6.2, step 5) after an acknowledgement of `delivered` bytes. Returns
    /// whether anything was marked as lost.
    // Conforms: 8985-4-1, 8985-6.2-3
    pub(super) fn detect_losses(&mut self, now: Instant, delivered: u64) -> bool {
        self.timers.reorder_at = None;
        // If all data arrives in order and no record was sent before a delivered one, no record can be lost. This
        // case is the most frequent one, and the search below is skipped.
        let newest = (self.rack.sent_at, self.rack.end);
        let first = self.board.iter().next();
        let overtaken = first.is_some_and(|first| (first.sent_at, first.end) < newest);
        let is_in_order = self.has_no_loss() && self.board.sacked() == 0 && !overtaken;
        // Without SACK, RACK does not see data that arrives out of order; duplicate acknowledgements show losses.
        if self.board.is_empty() || is_in_order || self.dup_acks.is_some() {
            return false;
        }
        let wait = self.rack.rtt + self.reordering_window();
        let in_flight = self.in_flight();
        let mut waiting: Option<(Instant, Instant)> = None;
        let lost = self.board.mark_lost(newest, |r| {
            let due = r.sent_at + wait;
            if due <= now {
                note_lost_record(&mut self.sizes, &mut self.rate, r);
                return true;
            }
            waiting =
                Some(waiting.map_or((due, due), |(first, last)| (first.min(due), last.max(due))));
            false
        });
        // RFC 8985 waits until all of these records are due. Here the records that are due at almost the same time
        // share a timer, and do not wait for records that are due much later.
        self.timers.reorder_at = waiting.map(|(first, last)| last.min(first + REORDER_TIMER_SPAN));
        self.on_lost(now, lost, (in_flight, delivered))
    }

    /// Handles `lost` bytes that were marked as lost. Before the marking, `in_flight` bytes were in flight. The
    /// present acknowledgement had reported `delivered` bytes. Returns whether `lost` is not zero.
    fn on_lost(&mut self, now: Instant, lost: u64, (in_flight, delivered): (u64, u64)) -> bool {
        if lost == 0 {
            return false;
        }
        if self.sizes.excuse_probe_loss(lost) {
            return true;
        }
        self.traffic.bytes_lost += lost;
        let tx = self.rate.on_lost(lost);
        // The window is reduced only once in a round trip, for a mark or a loss (RFC 3168 section 6.1.2).
        let first = self.recovery == Recovery::Open;
        let new_recovery = match self.recovery {
            Recovery::Open => Some((Prr::new(in_flight + delivered, self.mss), false)),
            Recovery::Marked { prr } => Some((prr, true)),
            _ => None,
        };
        if let Some((prr, marked)) = new_recovery {
            let end = self.nxt;
            self.recovery = Recovery::Fast { end, prr, marked };
            self.reductions.undo_retrans = 0;
        }
        if first {
            self.begin_episode();
        }
        self.losses.count_non_congestive(lost);
        self.cc.on_lost(&Loss {
            now,
            bytes: lost,
            in_flight,
            first,
            tx,
        });
        self.timers.probe_at = None;
        true
    }

    /// Notes that the acknowledgement up to `ack`, which is processed next, reports an ECN mark. An old
    /// acknowledgement, which arrives after a newer one, does not count.
    pub fn on_mark(&mut self, ack: u64) {
        if ack >= self.una && self.cc.responds_to_ecn() {
            self.reductions.marked_at = ack;
        }
    }

    /// Reduces the window for a reported ECN mark, and returns whether it was reduced. An acknowledgement of data
    /// sent before the last reduction does not reduce the window, because the peer did not know of that reduction.
    /// During a recovery the window is not reduced either; if the recovery is undone, a mark reported meanwhile
    /// reduces the window. The acknowledgement reported `delivered` bytes, which were in flight until now.
    // Conforms: 3168-6.1.2-1, 3168-6.1.2-2
    pub(super) fn respond_to_mark(&mut self, now: Instant, delivered: u64) -> bool {
        if self.reductions.marked_at <= self.reductions.last.at || self.recovery != Recovery::Open {
            return false;
        }
        let in_flight = self.in_flight() + delivered;
        self.traffic.mark_reductions += 1;
        self.begin_episode();
        if !self.board.is_empty() {
            let prr = Prr::new(in_flight, self.mss);
            self.recovery = Recovery::Marked { prr };
        }
        self.cc.on_ecn(now, in_flight);
        self.update_pacing();
        true
    }

    /// Begins an episode of losses or marks, for which the window is reduced.
    fn begin_episode(&mut self) {
        self.reductions.before = self.reductions.last;
        self.reductions.last = Reduction {
            at: self.nxt,
            cwr_pending: true,
        };
        if let Some(probe) = &mut self.rack.probe {
            probe.end_seq = None;
        }
        self.losses.begin_episode(self.rtt.is_queue_short());
    }

    /// Returns the time at which [`Self::on_timeout`] is due.
    pub fn next_timeout(&self) -> Option<Instant> {
        self.timers.next()
    }

    /// Handles an expired timer. `ts` is the timestamp that a segment sent now would carry, if any. Returns `None`
    /// if the caller has nothing to send.
    pub fn on_timeout(&mut self, now: Instant, ts: Option<u32>) -> Option<Expired> {
        self.note_full(now);
        if self.timers.reorder_at.is_some_and(|at| at <= now) {
            return self.detect_losses(now, 0).then_some(Expired::Lost);
        }
        if let Some(at) = self.timers.probe_at {
            if at > now {
                return None;
            }
            self.timers.probe_at = None;
            self.timers.probe_out = true;
            self.arm_rto(now);
            return Some(Expired::Probe);
        }
        if self.timers.rto_at.is_none_or(|at| at > now) {
            return None;
        }
        Some(match self.timers.regular_rto_at.take() {
            Some(at) => {
                self.mark_all_lost(now);
                // Restore the regular time, because an early retransmission does not count as a further timeout.
                // This retransmission has the time of one timeout to be acknowledged.
                self.timers.rto_at = Some(at.max(now + self.rtt.rto()));
                Expired::Early
            }
            None => {
                self.expire(now, ts);
                Expired::Rto
            }
        })
    }

    /// Marks everything in flight as lost, so that it is retransmitted. Returns the number of lost bytes.
    fn mark_all_lost(&mut self, now: Instant) -> u64 {
        self.board.forget_false_sacks();
        let lost = self.board.mark_all_lost();
        self.traffic.bytes_lost += lost;
        self.rate.on_lost(lost);
        if let Some(dup) = &mut self.dup_acks {
            dup.on_timeout(self.nxt);
        }
        self.timers.expired_at = now;
        lost
    }

    /// Handles a retransmission timeout (RFC 6298 sections 5.4 to 5.6).
    fn expire(&mut self, now: Instant, ts: Option<u32>) {
        let in_flight = self.in_flight();
        self.traffic.rtos += 1;
        let first = self.board.iter().next();
        self.sizes.on_timeout(first.map_or(0, Sent::len));
        let lost = self.mark_all_lost(now);
        if self.timers.backoff == 0 {
            self.begin_episode();
            // One lost segment is enough to cause a timeout. The other segments, which count as lost too, may have
            // arrived.
            self.losses
                .count_non_congestive(lost.min(u64::from(self.mss)));
            self.timers.stuck_since = now;
            self.cc.on_rto(now, in_flight);
            let is_first_recovery = self.has_no_loss();
            if is_first_recovery {
                self.reductions.undo_retrans = 0;
            }
            self.recovery = Recovery::Timeout {
                end: self.nxt,
                proof: Proof::of_timeout(ts, is_first_recovery),
            };
        } else {
            // After another retransmission of the first segment F-RTO does not apply (RFC 5682 section 2.1).
            self.stop_waiting_for_proof();
        }
        self.timers.backoff = (self.timers.backoff + 1).min(MAX_BACKOFF);
        self.timers.probe_at = None;
        self.timers.reorder_at = None;
        self.update_pacing();
        self.arm_rto(now);
    }

    /// Handles a failed link like a timeout, so that other subflows take over the data at once.
    pub fn declare_dead(&mut self, now: Instant, ts: Option<u32>) {
        if !self.board.is_empty() && !self.in_timeout() {
            self.expire(now, ts);
        }
    }

    /// Marks everything in flight as lost, because the link works again or the path MTU has fallen. The data is
    /// retransmitted at once, not when the backed-off timer expires.
    pub fn revive(&mut self, now: Instant) {
        self.timers.backoff = 0;
        self.stop_waiting_for_proof();
        self.sizes.on_all_lost();
        self.board.mark_all_lost();
        if let Some(dup) = &mut self.dup_acks {
            dup.on_timeout(self.nxt);
        }
        self.arm_rto(now);
    }
}

/// Reports a lost record to `sizes`. Unless the record is a size probe, it is also reported to the rate estimator.
fn note_lost_record(sizes: &mut Sizes, rate: &mut RateEstimator, lost: &Sent) {
    if !sizes.on_lost(lost) {
        rate.note_lost(lost.sent_at, &lost.packet);
    }
}
