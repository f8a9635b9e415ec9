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

/// The duplicate-acknowledgement threshold, in transmissions (RFC 8985 section 6.2, step 4).
const DUP_THRESH_SEGMENTS: usize = 3;

/// The number of recoveries without a needless retransmission after which the reordering window is reset
/// (RFC 8985 section 6.2, step 4).
const REO_WND_PERSIST: u32 = 16;

/// The most quarters of the least round trip added to the reordering window, which never exceeds the
/// smoothed round trip in any case.
const MAX_REO_WND_MULT: u32 = 255;

/// The longest time before a tail loss probe. Acknowledgements keep coming while a queue drains, however
/// long it is, so after a second of silence the rest of the flight is probed even if the round trip through
/// that queue was longer.
const MAX_PROBE_TIMEOUT: Duration = Duration::from_secs(1);

impl Sender {
    // Conforms: 6298-5-1
    pub(super) fn arm_rto(&mut self, now: Instant) {
        self.timers.rto_at = (!self.board.is_empty()).then(|| now + self.rto());
        self.timers.cut_short = None;
    }

    /// Arms the tail loss probe (RFC 8985 section 7.2).
    // Conforms: 8985-4-1, 8985-7.2-1
    pub(super) fn arm_probe(&mut self, now: Instant) {
        let eligible = self.is_whole()
            && self.board.sacked() == 0
            && self.dup_acks.is_none()
            && !self.timers.probe_out
            && !self.board.is_empty()
            && self.rtt.srtt() > Duration::ZERO;
        self.timers.probe_at = eligible.then(|| {
            let longest = MAX_PROBE_TIMEOUT.max(self.rtt.min() * 2);
            let mut pto = (self.rtt.srtt() * 2).min(longest);
            if self.in_flight() <= u64::from(self.mss) {
                pto += self.limits.peer_ack_delay;
            }
            let at = now + pto;
            self.timers.rto_at.map_or(at, |rto| at.min(rto))
        });
    }

    /// Caps the backed-off timer at `max` from now, so that a path that may be dead is probed often while
    /// other paths carry the data.
    pub fn cap_rto(&mut self, now: Instant, max: Duration) {
        if let Some(at) = self.timers.rto_at {
            self.timers.rto_at = Some(at.min(now + max));
        }
    }

    /// Sends the data that timed out once more before its backed-off timer expires, because the path may be
    /// back; but not before an answer to the last try can be here.
    pub fn retry_early(&mut self, now: Instant) {
        let Some(at) = self.timers.rto_at.filter(|_| self.timers.backoff > 0) else {
            return;
        };
        let early = now.max(self.timers.expired_at + self.rtt.rto());
        if early < at {
            self.timers.rto_at = Some(early);
            self.timers.cut_short = Some(at);
        }
    }

    /// Detects a loss that a tail loss probe repaired (RFC 8985 section 7.4.2): data sent after the probe
    /// is acknowledged, and the peer did not report the probe as a duplicate. It counts like any other
    /// loss.
    // Conforms: 8985-7.4.2-1
    pub(super) fn judge_probe(&mut self, now: Instant) {
        let una = self.una;
        let passed = |probe: &mut TailProbe| probe.high.is_some_and(|high| una > high);
        let Some(probe) = self.rack.probed.take_if(passed) else {
            return;
        };
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

    /// Processes an acknowledgement without any news. For a tail loss probe it shows that the original had
    /// arrived as well. Without SACK it shows that a later segment arrived, and the third in a row that the
    /// first segment is lost (RFC 5681 section 3.2). Returns whether anything was marked lost.
    pub fn on_dup_ack(&mut self, now: Instant) -> bool {
        let una = self.una;
        self.rack.probed.take_if(|probe| probe.high == Some(una));
        self.on_no_progress();
        self.note_full(now);
        let (flight, mss) = (self.behind_hole(), u64::from(self.mss));
        let Some(dup) = &mut self.dup_acks else {
            return false;
        };
        let arrived = dup.on_dup_ack(flight, mss);
        let is_loss = dup.is_loss(una);
        let lost = is_loss && self.is_whole() && self.lose_first(now);
        if lost && let Some(dup) = &mut self.dup_acks {
            // More may be missing behind a lost probe of the path MTU, so duplicates still count.
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

    /// Processes a duplicate acknowledgement without room for SACK. From a peer that sends SACK, the third
    /// in a row means the same as without (RFC 5681 section 3.2). Further losses show by time when the
    /// retransmission is acknowledged (RFC 8985 section 6.2).
    pub fn on_dup_ack_without_sack(&mut self, now: Instant) {
        if self.dup_acks.is_some() {
            self.on_dup_ack(now);
            return;
        }
        self.dup_acks_without_sack += 1;
        if self.dup_acks_without_sack == dup_acks::DUP_ACK_THRESHOLD && self.is_whole() {
            self.lose_first(now);
            self.update_pacing();
        }
    }

    /// Returns the bytes in flight behind the missing segment, which has not arrived, however many
    /// duplicates come.
    fn behind_hole(&self) -> u64 {
        let first = self.board.iter().next().filter(|first| !first.lost);
        let missing = first.map_or(0, |first| first.len().min(self.mss.into()));
        self.board.in_flight().saturating_sub(missing)
    }

    /// Returns how many of `delivered` bytes acknowledged in order are new; duplicate acknowledgements
    /// reported the rest before.
    pub(super) fn newly_delivered(&mut self, delivered: u64) -> u64 {
        let flight = self.behind_hole();
        let Some(dup) = &mut self.dup_acks else {
            return delivered;
        };
        let counted = dup.on_advance(delivered, u64::from(self.mss), flight);
        if matches!(self.recovery, Recovery::Open | Recovery::Marked { .. }) {
            dup.on_open();
        }
        delivered - counted
    }

    /// Marks the next segment lost, without SACK, when an acknowledgement does not end fast recovery (RFC
    /// 6582 section 3.2). Returns whether it did.
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

    /// Marks the first segment in flight as lost. Returns whether there was one.
    fn lose_first(&mut self, now: Instant) -> bool {
        let flight = self.in_flight();
        let len = self.sizes.packet_at(self.una, u64::from(self.mss));
        let Some(first) = self.board.mark_first_lost(len) else {
            return false;
        };
        learn(&mut self.sizes, &mut self.rate, &first);
        self.on_lost(now, first.len(), (flight, 0))
    }

    pub(super) fn leave_recovery(&mut self) {
        let over = match self.recovery {
            Recovery::Open => return,
            Recovery::Fast { end, .. } | Recovery::Timeout { end, .. } => self.una >= end,
            Recovery::Marked { .. } => self.una > self.reductions.last.at || self.board.is_empty(),
        };
        if over && !self.is_whole() {
            let rack = &mut self.rack;
            rack.reo_wnd_persist = rack.reo_wnd_persist.saturating_sub(1);
            if rack.reo_wnd_persist == 0 {
                rack.reo_wnd_mult = 0;
            }
        }
        if over {
            self.recovery = Recovery::Open;
        }
    }

    /// Advances RACK (RFC 8985 section 6.2, steps 2 and 3). `spurious` is set if this acknowledgement
    /// showed a timeout to be spurious.
    // Conforms: 8985-6.2-2
    pub(super) fn advance_rack(&mut self, now: Instant, delivered: &Delivered, spurious: bool) {
        let Some(newest) = delivered.newest else {
            return;
        };
        self.rack.reordering_seen |= delivered.reordered;
        let mut sent_at = newest.sent_at;
        // An answer to a retransmission that is faster than the path belongs to the original, as does one
        // that undoes a timeout, unless the peer reported both copies.
        let fast = now.saturating_since(sent_at) < self.rtt.base();
        if newest.retransmitted && (fast || spurious) && self.rack.dsack_end != newest.end {
            // The send time of a probe's original is known. The path may have become shorter, so that the
            // answer belongs to the probe after all; data sent before the original is lost in that case
            // too.
            let probe = self.rack.probed.filter(|probe| probe.end == newest.end);
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

    /// Returns the reordering window (RFC 8985 section 6.2, step 4): the time by which a segment may be
    /// overtaken before it counts as lost.
    // Conforms: 8985-3.3.2-1, 8985-3.3.2-3, 8985-6.2-4
    pub(super) fn reordering_window(&self) -> Duration {
        // A super-segment counts once: a single overtaken one is no sign of loss.
        let many = || {
            self.board
                .iter()
                .filter(|r| r.sacked)
                .nth(DUP_THRESH_SEGMENTS - 1)
                .is_some()
        };
        if !self.rack.reordering_seen && (!self.is_whole() || many()) {
            return Duration::ZERO;
        }
        let quarter = self.rtt.base() / 4;
        (quarter * (1 + self.rack.reo_wnd_mult)).min(self.rtt.srtt())
    }

    /// Widens the reordering window after a needless retransmission (RFC 8985 section 6.2, step 4): at most
    /// once a round trip. Some recoveries without a needless retransmission reset it.
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
    /// whether anything was marked lost.
    // Conforms: 8985-4-1, 8985-6.2-3
    pub(super) fn detect_losses(&mut self, now: Instant, delivered: u64) -> bool {
        self.timers.reorder_at = None;
        // With everything in order and nothing sent twice, nothing can have been overtaken.
        let newest = (self.rack.sent_at, self.rack.end);
        let first = self.board.iter().next();
        let overtaken = first.is_some_and(|first| (first.sent_at, first.end) < newest);
        let orderly = self.is_whole() && self.board.sacked() == 0 && !overtaken;
        // Without SACK only data in order is known to have been delivered.
        if self.board.is_empty() || orderly || self.dup_acks.is_some() {
            return false;
        }
        let wait = self.rack.rtt + self.reordering_window();
        let in_flight = self.in_flight();
        let mut next: Option<Instant> = None;
        let lost = self.board.mark_lost(newest, |r| {
            let due = r.sent_at + wait;
            if due <= now {
                learn(&mut self.sizes, &mut self.rate, r);
                return true;
            }
            next = Some(next.map_or(due, |n| n.min(due)));
            false
        });
        self.timers.reorder_at = next;
        self.on_lost(now, lost, (in_flight, delivered))
    }

    /// Handles `lost` bytes that were marked lost; `in_flight` bytes were in flight before that, and
    /// `delivered` bytes had just been delivered. Returns whether there are any.
    fn on_lost(&mut self, now: Instant, lost: u64, (in_flight, delivered): (u64, u64)) -> bool {
        if lost == 0 {
            return false;
        }
        if self.sizes.excuse_probe_loss(lost) {
            return true;
        }
        self.traffic.bytes_lost += lost;
        let tx = self.rate.on_lost(lost);
        // The window is reduced once a round trip, whether for a mark or a loss (RFC 3168 section 6.1.2).
        let first = self.recovery == Recovery::Open;
        let began = match self.recovery {
            Recovery::Open => Some((Prr::new(in_flight + delivered, self.mss), false)),
            Recovery::Marked { prr } => Some((prr, true)),
            _ => None,
        };
        if let Some((prr, marked)) = began {
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

    /// Notes that the acknowledgement up to `ack`, which is processed next, reports an ECN mark. An
    /// overtaken acknowledgement does not count.
    pub fn on_mark(&mut self, ack: u64) {
        if ack >= self.una && self.cc.responds_to_ecn() {
            self.reductions.marked_at = ack;
        }
    }

    /// Reduces the window for reported ECN marks, unless they predate the peer's knowledge of the last
    /// reduction, or a recovery is under way. Marks reported meanwhile are answered if that recovery is
    /// undone. The acknowledgement reported `delivered` bytes, which were in flight until now. Returns
    /// whether the window was reduced.
    // Conforms: 3168-6.1.2-1, 3168-6.1.2-2
    pub(super) fn answer_mark(&mut self, now: Instant, delivered: u64) -> bool {
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
        if let Some(probe) = &mut self.rack.probed {
            probe.high = None;
        }
        self.losses.begin_episode(self.rtt.is_queue_short());
    }

    /// Returns the time at which [`Self::on_timeout`] is due.
    pub fn next_timeout(&self) -> Option<Instant> {
        self.timers.next()
    }

    /// Serves an expired timer. `ts` is the timestamp that a segment sent now would carry, if any.
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
        Some(match self.timers.cut_short.take() {
            Some(at) => {
                self.resend_all(now);
                // Restore the timer: an early try says nothing about the path.
                self.timers.rto_at = Some(at.max(now + self.rtt.rto()));
                Expired::Early
            }
            None => {
                self.expire(now, ts);
                Expired::Rto
            }
        })
    }

    /// Marks everything in flight as lost, and returns the bytes.
    fn resend_all(&mut self, now: Instant) -> u64 {
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
        let lost = self.resend_all(now);
        if self.timers.backoff == 0 {
            self.begin_episode();
            // A single lost segment is enough for a timeout; the others may have arrived.
            self.losses
                .count_non_congestive(lost.min(u64::from(self.mss)));
            self.timers.stuck_since = now;
            self.cc.on_rto(now, in_flight);
            let whole = self.is_whole();
            if whole {
                self.reductions.undo_retrans = 0;
            }
            self.recovery = Recovery::Timeout {
                end: self.nxt,
                proof: Proof::of_timeout(ts, whole),
            };
        } else {
            self.stop_waiting_for_proof();
        }
        self.timers.backoff = (self.timers.backoff + 1).min(MAX_BACKOFF);
        self.timers.probe_at = None;
        self.timers.reorder_at = None;
        self.update_pacing();
        self.arm_rto(now);
    }

    /// Treats the path as dead at once, as after a timeout, because its link went down.
    pub fn declare_dead(&mut self, now: Instant, ts: Option<u32>) {
        if !self.board.is_empty() && !self.in_timeout() {
            self.expire(now, ts);
        }
    }

    /// Retransmits at once instead of waiting for the backed-off timer, because the link came back.
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

/// Updates the knowledge of sizes and, unless the record probed a size, of rates by a lost record.
fn learn(sizes: &mut Sizes, rate: &mut RateEstimator, lost: &Sent) {
    if !sizes.on_lost(lost) {
        rate.note_lost(lost.sent_at, &lost.packet);
    }
}
