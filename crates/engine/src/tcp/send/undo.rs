//! Undoing of needless reactions: of loss marks and of window reductions. A timeout is shown to be spurious
//! by echoed timestamps (Eifel, RFC 3522) or, without timestamps, by the data acknowledged first (F-RTO,
//! RFC 5682); any recovery also by D-SACK (RFC 3708).

use core::ops::Range;

use braid_wire::{Instant, Seq32};

use super::{Echo, Recovery, Sender};
use crate::tcp::scoreboard::Delivered;

/// The new segments sent to see which acknowledgements follow (RFC 5682 section 2.1, step 2).
const FRTO_NEW_SEGMENTS: u64 = 2;

/// The kind of evidence that may show a timeout to be spurious.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Proof {
    /// An echo older than this timestamp, the one of the first retransmission, shows that the original
    /// arrived.
    Echo(u32),
    /// Only the first segment is retransmitted, until new data is acknowledged in order.
    First,
    /// The first segment was acknowledged, but not everything. New data is sent up to this offset, and
    /// nothing is retransmitted: a peer that acknowledges more of the old data received it before the
    /// timeout, or late.
    New(u64),
    /// Only D-SACK counts.
    Late,
}

impl Proof {
    /// Returns the evidence to wait for after a timeout; `ts` is the timestamp of segments sent now, if
    /// any. `first` is set if no other recovery was under way.
    // Conforms: 5682-2.1-1
    pub fn of_timeout(ts: Option<u32>, first: bool) -> Proof {
        match ts {
            Some(ts) => Proof::Echo(ts),
            None if first => Proof::First,
            None => Proof::Late,
        }
    }

    /// Returns whether `echo` can only belong to a retransmission.
    pub fn is_of_retransmission(self, echo: Option<Echo>) -> bool {
        match (self, echo) {
            (Proof::Echo(ts), Some(echo)) => !Seq32(echo.value).before(Seq32(ts)),
            _ => false,
        }
    }
}

impl Sender {
    /// Judges the timeout under recovery by an acknowledgement of `delivered`, in order if it `advanced`.
    /// Returns whether the timeout was spurious.
    // Conforms: 5682-2.1-2, 5682-2.1-3, 5682-3.1-1
    pub(super) fn judge_timeout(
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
            // Part of the retransmitted data is still unacknowledged.
            Proof::First if first.is_some_and(|first| first.retransmitted) => Proof::Late,
            Proof::First => Proof::New(self.nxt + FRTO_NEW_SEGMENTS * u64::from(self.mss)),
            Proof::New(_) => {
                // SACK blocks behind the data sent before the timeout show a hole.
                let beyond = sacks.iter().any(|block| block.end > end);
                if delivered.rtt_from.is_some() && !beyond {
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

    /// Returns whether retransmissions pause for now, so that acknowledgements show whether the timeout was
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

    /// Returns the bytes of new data that recovery permits: none while lost data waits.
    pub fn new_room(&self) -> u64 {
        match self.recovery {
            Recovery::Timeout {
                proof: Proof::New(until),
                ..
            } => until.saturating_sub(self.nxt),
            _ if self.board.lost() > 0 => 0,
            _ => u64::MAX,
        }
    }

    /// Resumes retransmissions if there was no new data to send, or no room for it. Returns whether this
    /// was the case.
    // Conforms: 5682-2.1-4
    pub fn resume_without_new_data(&mut self, now: Instant) -> bool {
        let Recovery::Timeout { end, proof } = self.recovery else {
            return false;
        };
        let waits = matches!(proof, Proof::New(_)) && self.nxt == end;
        let over = waits && self.pacer.blocked_until(now).is_none();
        if over {
            self.stop_waiting_for_proof();
        }
        over
    }

    /// Handles an acknowledgement without news: data is missing behind the retransmission (RFC 5682 section
    /// 2.1). With SACK it may also be a late acknowledgement.
    pub(super) fn on_no_progress(&mut self) {
        let Recovery::Timeout { proof, .. } = self.recovery else {
            return;
        };
        if proof != Proof::First || self.dup_acks.is_some() {
            self.stop_waiting_for_proof();
        }
    }

    /// Gives up on evidence from the first acknowledgements: lost data is retransmitted. An echoed
    /// timestamp still counts.
    pub(super) fn stop_waiting_for_proof(&mut self) {
        if let Recovery::Timeout { proof, .. } = &mut self.recovery
            && !matches!(proof, Proof::Echo(_))
        {
            *proof = Proof::Late;
        }
    }

    /// Handles a report that the peer got `range` twice (RFC 2883): the path reorders, unless that was the
    /// tail loss probe and its original (RFC 8985 section 7.4.2). Once every retransmission of this
    /// recovery proved needless, the reduction is undone (RFC 3708).
    // Conforms: 8985-7.4.2-2
    pub fn on_duplicate(&mut self, now: Instant, range: Range<u64>) {
        if self
            .rack
            .probed
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

    /// Undoes the recovery under way, which no loss caused. An earlier reduction, for a mark or another
    /// loss, stays.
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
        // A reduction that the peer does not know of need not be reported any more.
        self.reductions.before.cwr_pending &= self.reductions.last.cwr_pending;
        self.reductions.last = self.reductions.before;
        self.cc.on_spurious(now);
    }
}
