//! What turned out needless is undone: loss marks and the reduction of the window. A timeout is shown
//! to be spurious by the timestamps echoed (Eifel, RFC 3522) or, where there are none, by what is
//! acknowledged first (F-RTO, RFC 5682); any recovery also by D-SACK (RFC 3708).

use core::ops::Range;

use braid_wire::{Instant, Seq32};

use super::{Echo, Recovery, Sender};
use crate::tcp::scoreboard::Delivered;

/// New segments that leave to see what is acknowledged then (RFC 5682 section 2.1, step 2).
const NEW_SEGMENTS: u64 = 2;

/// How it shows that a timeout was not needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Proof {
    /// The original arrived where the echo is older than this, the timestamp of the first
    /// retransmission.
    Echo(u32),
    /// Nothing but the first segment is sent again, until something new is acknowledged in order.
    First,
    /// It was that segment, but not all there was. Up to this offset new data is sent, and nothing
    /// again: who acknowledges more of the old has received it before the timeout or late.
    New(u64),
    /// By D-SACK only.
    Late,
}

impl Proof {
    /// After a timeout, with the timestamp of what is sent now if there are any. `first` says that
    /// nothing else was being recovered from.
    // Conforms: 5682-2.1-1
    pub fn of_timeout(ts: Option<u32>, first: bool) -> Proof {
        match ts {
            Some(ts) => Proof::Echo(ts),
            None if first => Proof::First,
            None => Proof::Late,
        }
    }

    /// Whether `echo` can only be that of a retransmission.
    pub fn is_of_retransmission(self, echo: Option<Echo>) -> bool {
        match (self, echo) {
            (Proof::Echo(ts), Some(echo)) => !Seq32(echo.value).before(Seq32(ts)),
            _ => false,
        }
    }
}

impl Sender {
    /// What an acknowledgement shows of the timeout that is recovered from. It told of `delivered`, in
    /// order if it `advanced`. Returns whether it was not needed.
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
            // Not all of what was sent again.
            Proof::First if first.is_some_and(|first| first.retransmitted) => Proof::Late,
            Proof::First => Proof::New(self.nxt + NEW_SEGMENTS * u64::from(self.mss)),
            Proof::New(_) => {
                // Blocks behind what was sent before the timeout stand behind a hole.
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

    /// Whether nothing is sent again for now, so that what is acknowledged shows whether the timeout was
    /// needed.
    pub(super) fn holds_back(&self) -> bool {
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

    /// Bytes of new data that recovery lets out: none before what was lost.
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

    /// There was no new data to send, or no room for it: what was lost is sent again at once. Returns
    /// whether that is so.
    // Conforms: 5682-2.1-4
    pub fn has_nothing_new(&mut self, now: Instant) -> bool {
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

    /// An acknowledgement that tells nothing: something is missing behind what was sent again (RFC 5682
    /// section 2.1). With SACK it may also be a late one.
    pub(super) fn on_nothing_told(&mut self) {
        let Recovery::Timeout { proof, .. } = self.recovery else {
            return;
        };
        if proof != Proof::First || self.dup_acks.is_some() {
            self.stop_waiting_for_proof();
        }
    }

    /// What is acknowledged first will not tell: what was lost is sent again. An echo still tells,
    /// however often that happens.
    pub(super) fn stop_waiting_for_proof(&mut self) {
        if let Recovery::Timeout { proof, .. } = &mut self.recovery
            && !matches!(proof, Proof::Echo(_))
        {
            *proof = Proof::Late;
        }
    }

    /// The peer got `range` twice (RFC 2883): the path reorders, unless that was the tail loss probe
    /// and its original (RFC 8985 section 7.4.2). Once every retransmission of this recovery proved
    /// needless, the reduction is undone (RFC 3708).
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
        self.rack.twice = range.end;
        self.widen_reordering_window();
        self.reductions.unproved = self
            .reductions
            .unproved
            .saturating_sub(range.end - range.start);
        if self.reductions.unproved == 0 && self.board.lost() == 0 {
            self.undo(now);
        }
    }

    /// What is being recovered from was no loss. What the window was reduced for before, a mark or
    /// another loss, was one all the same.
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
        // A reduction that the peer has not been told of need not be told any more.
        self.reductions.before.untold &= self.reductions.last.untold;
        self.reductions.last = self.reductions.before;
        self.cc.on_spurious(now);
    }
}
