//! Undoes loss marks and window reductions that turn out to be needless. Echoed timestamps show that a timeout was
//! spurious (Eifel, RFC 3522); without timestamps, the data that is acknowledged first shows this (F-RTO, RFC
//! 5682). D-SACK can show that any recovery was needless, fast recovery included (RFC 3708).

use core::ops::Range;

use braid_wire::{Instant, Seq32};

use super::{Echo, Recovery, Sender};
use crate::tcp::scoreboard::Delivered;

/// The number of new segments that F-RTO sends to see which acknowledgements follow (RFC 5682 section 2.1, step
/// 2).
const FRTO_NEW_SEGMENTS: u64 = 2;

/// The kind of evidence that may show a timeout to be spurious.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Proof {
    /// The timestamp of the first retransmission. If the peer echoes an older timestamp, the original arrived.
    Echo(u32),
    /// F-RTO, step 1: only the first segment is retransmitted until new data is acknowledged in order.
    First,
    /// F-RTO, step 2: the first segment was acknowledged, but not all old data. New data is sent up to this
    /// offset, and no old data is retransmitted. So a peer that acknowledges more old data has received the
    /// originals.
    New(u64),
    /// Only D-SACK can still show that the timeout was spurious.
    Late,
}

impl Proof {
    /// Returns the evidence to wait for after a timeout; `ts` is the timestamp of segments sent now, if any.
    /// `is_first_recovery` is set if no other recovery was under way: F-RTO applies only in that case.
    // Conforms: 5682-2.1-1
    pub fn of_timeout(ts: Option<u32>, is_first_recovery: bool) -> Proof {
        match ts {
            Some(ts) => Proof::Echo(ts),
            None if is_first_recovery => Proof::First,
            None => Proof::Late,
        }
    }

    /// Returns whether the timestamp in `echo` is that of a retransmission and not of the original.
    pub fn is_of_retransmission(self, echo: Option<Echo>) -> bool {
        match (self, echo) {
            (Proof::Echo(ts), Some(echo)) => !Seq32(echo.value).before(Seq32(ts)),
            _ => false,
        }
    }
}

impl Sender {
    /// Checks whether an acknowledgement of `delivered` shows that the present timeout was spurious, and undoes
    /// the timeout in that case. `advanced` is set if the cumulative acknowledgement advanced. Returns whether
    /// the timeout was spurious.
    // Conforms: 5682-2.1-2, 5682-2.1-3, 5682-3.1-1
    pub(super) fn check_spurious_timeout(
        &mut self,
        now: Instant,
        sacks: &[Range<u64>],
        delivered: &Delivered,
        advanced: bool,
        echo: Option<Echo>,
    ) -> bool {
        let Recovery::Timeout { end, proof } = self.recovery else {
            return false;
        };
        let first = self.board.iter().next();
        let proof = match proof {
            Proof::Echo(_) => {
                let spurious = advanced && echo.is_some() && !proof.is_of_retransmission(echo);
                if spurious {
                    self.undo(now);
                }
                return spurious;
            }
            Proof::First if !advanced => return false,
            // Part of the retransmitted segment is still unacknowledged, so F-RTO does not apply.
            Proof::First if first.is_some_and(|first| first.retransmitted) => Proof::Late,
            Proof::First => Proof::New(self.nxt + FRTO_NEW_SEGMENTS * u64::from(self.mss)),
            Proof::New(_) => {
                // If a SACK block covers data sent after the timeout, old data is missing.
                let is_new_data_sacked = sacks.iter().any(|block| block.end > end);
                // Only data that was never retransmitted gives a round trip: an original arrived.
                if delivered.rtt_from.is_some() && !is_new_data_sacked {
                    self.undo(now);
                    return true;
                }
                Proof::Late
            }
            Proof::Late => return false,
        };
        self.recovery = Recovery::Timeout { end, proof };
        false
    }

    /// Returns whether F-RTO pauses retransmissions, so that acknowledgements show whether the timeout was
    /// spurious.
    pub(super) fn pauses_retransmissions(&self) -> bool {
        match self.recovery {
            Recovery::Timeout {
                proof: Proof::First,
                ..
            } => self.board.iter().next().is_some_and(|first| !first.lost),
            Recovery::Timeout {
                proof: Proof::New(_),
                ..
            } => true,
            _ => false,
        }
    }

    /// Returns the number of bytes of new data that recovery permits: none while lost data waits to be
    /// retransmitted.
    pub fn new_room(&self) -> u64 {
        match self.recovery {
            Recovery::Timeout {
                proof: Proof::New(end),
                ..
            } => end.saturating_sub(self.nxt),
            _ if self.board.lost() > 0 => 0,
            _ => u64::MAX,
        }
    }

    /// Resumes retransmissions if F-RTO waits for new data, but the caller has no new data or the peer's window
    /// has no room for it. Returns whether retransmissions resume.
    // Conforms: 5682-2.1-4
    pub fn resume_without_new_data(&mut self, now: Instant) -> bool {
        let Recovery::Timeout { end, proof } = self.recovery else {
            return false;
        };
        let waits_for_new_data = matches!(proof, Proof::New(_)) && self.nxt == end;
        // Data that only the pacer holds back will still be sent.
        let resumes = waits_for_new_data && self.pacer.blocked_until(now).is_none();
        if resumes {
            self.stop_waiting_for_proof();
        }
        resumes
    }

    /// Handles a duplicate acknowledgement, which shows that data after the retransmission is missing (RFC 5682
    /// section 2.1). With SACK, a duplicate in the first step of F-RTO does not count, because it may be a late
    /// acknowledgement.
    pub(super) fn on_no_progress(&mut self) {
        let Recovery::Timeout { proof, .. } = self.recovery else {
            return;
        };
        if proof != Proof::First || self.dup_acks.is_some() {
            self.stop_waiting_for_proof();
        }
    }

    /// Ends F-RTO: lost data is retransmitted. An echoed timestamp can still show that the timeout was spurious.
    pub(super) fn stop_waiting_for_proof(&mut self) {
        if let Recovery::Timeout { proof, .. } = &mut self.recovery
            && !matches!(proof, Proof::Echo(_))
        {
            *proof = Proof::Late;
        }
    }

    /// Handles a report that the peer received `range` twice (D-SACK, RFC 2883). The path reorders packets, unless
    /// the range is a tail loss probe, whose original arrived too (RFC 8985 section 7.4.2). Once the peer has
    /// reported all retransmissions of this recovery as duplicates, none of them was needed, and the reduction is
    /// undone (RFC 3708).
    // Conforms: 8985-7.4.2-2
    pub fn on_duplicate(&mut self, now: Instant, range: Range<u64>) {
        if self
            .rack
            .probe
            .take_if(|probe| probe.end == range.end)
            .is_some()
        {
            return;
        }
        self.rack.dsack_end = range.end;
        self.widen_reordering_window();
        self.reductions.undo_retrans = self
            .reductions
            .undo_retrans
            .saturating_sub(range.end - range.start);
        if self.reductions.undo_retrans == 0 && self.board.lost() == 0 {
            self.undo(now);
        }
    }

    /// Undoes the present recovery, because no data was lost. An earlier reduction, for a mark or another loss,
    /// remains.
    fn undo(&mut self, now: Instant) {
        match self.recovery {
            Recovery::Open | Recovery::Marked { .. } => return,
            Recovery::Fast {
                prr, marked: true, ..
            } => {
                self.board.unmark_lost();
                self.recovery = Recovery::Marked { prr };
                self.leave_recovery();
                return;
            }
            Recovery::Fast { .. } => {}
            Recovery::Timeout { .. } => self.traffic.spurious_rtos += 1,
        }
        self.board.unmark_lost();
        self.recovery = Recovery::Open;
        // CWR does not report an undone reduction. If CWR was sent for the undone reduction, this CWR reported the
        // reduction before as well.
        self.reductions.before.cwr_pending &= self.reductions.last.cwr_pending;
        self.reductions.last = self.reductions.before;
        self.cc.on_spurious(now);
    }
}
