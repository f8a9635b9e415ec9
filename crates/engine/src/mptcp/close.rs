//! Closing of a connection: DATA_FIN at the data level, FIN on the subflows (RFC 8684 section 3.3.3).

use core::time::Duration;

use super::connection::Connection;
use super::ctx::Ctx;
use super::fast_close::FAST_CLOSE_REPEAT_TIME;
use super::mode::Mode;
use super::subflow::{Phase, Subflow};
use super::transport::{Life, Transport};
use crate::ApiError;
use crate::event::{CloseReason, SubflowCloseReason};
use crate::tcp::closing::FinState;

/// The least time for which a finished connection still answers its peer's retransmissions.
const MIN_LINGER: Duration = Duration::from_secs(1);
/// The most time for which a finished connection waits for the peer's last FIN before it is forgotten.
const MAX_LINGER: Duration = Duration::from_secs(10);

impl Connection {
    /// Closes the sending direction for the user.
    pub fn shutdown(&mut self, ctx: &mut Ctx<'_>) -> Result<(), ApiError> {
        if !self.transport.closing.is_open() || self.transport.is_ended() {
            return Err(ApiError::SendClosed);
        }
        self.transport.closing.close();
        self.transport.stop_writing(ctx);
        self.reconcile(ctx);
        Ok(())
    }

    /// Handles the FIN of subflow `i` once everything before it is here. With regular TCP the end of the
    /// subflow is the end of the stream.
    // Conforms: 8684-3.3.3-8
    pub(super) fn on_subflow_fin(&mut self, ctx: &mut Ctx<'_>, i: usize) {
        let subflow = &mut self.transport.subflows[i];
        if subflow.rcv.take_fin() {
            subflow.closing.on_peer_fin();
        }
        let over = subflow.rcv.finished()
            && matches!(self.transport.mode, Mode::Tcp)
            && !self.transport.is_ended();
        if over && self.transport.rcv.fin.is_none() {
            // Count received bytes, not those handed on: payload from before a fallback may still wait for
            // memory.
            let end = self.transport.subflows[i].rcv.bytes_received();
            self.check_stream_end(ctx, i, end, true);
        }
    }

    /// Notes that the peer's stream reaches byte `end`, as learned on subflow `i`, and ends there if
    /// `last`. Returns whether this agrees with the known end and with the received data. If not, the
    /// stream could never be complete, and the connection is aborted.
    pub(super) fn check_stream_end(
        &mut self,
        ctx: &mut Ctx<'_>,
        i: usize,
        end: u64,
        last: bool,
    ) -> bool {
        let fin = self.transport.rcv.fin.or(last.then_some(end));
        let moved =
            |fin| end > fin || (last && (end < fin || self.transport.rcv.highest_received() > fin));
        if fin.is_some_and(moved) {
            self.fail(ctx, CloseReason::PeerMisbehaved);
            return false;
        }
        if last {
            self.transport.rcv.fin = fin;
            self.transport.subflows[i].rcv.ack_now();
            if self.transport.rcv.complete() {
                self.transport.closing.on_peer_fin();
                self.transport.signal_readable(ctx);
            }
        }
        true
    }

    /// Brings the connection up to date after a change: closing, dead subflows, further subflows. Returns
    /// whether there may be something to send now.
    pub fn reconcile(&mut self, ctx: &mut Ctx<'_>) -> bool {
        let mut changed = self.finish_if_done(ctx);
        changed |= self.transport.answer_fins();
        changed |= self.transport.bound_retained(ctx);
        changed |= self.transport.close_subflows();
        changed |= self.remove_closed_subflows(ctx);
        changed |= self.join_paths(ctx);
        changed
    }

    /// Ends the connection for its user once both directions are closed and acknowledged and everything is
    /// read. Returns whether it ended now.
    pub fn finish_if_done(&mut self, ctx: &mut Ctx<'_>) -> bool {
        let done = self.transport.closing.is_over()
            && !self.transport.is_ended()
            && self.transport.rcv.buf.readable() == 0;
        if done {
            self.end(ctx, CloseReason::Finished);
        }
        done
    }

    /// Removes closed subflows and queues the data that they carried for others. Returns whether there were
    /// any.
    fn remove_closed_subflows(&mut self, ctx: &mut Ctx<'_>) -> bool {
        let before = self.transport.subflows.len();
        let mut i = 0;
        while i < self.transport.subflows.len() {
            if self.transport.subflows[i].phase != Phase::Closed {
                i += 1;
                continue;
            }
            let mut subflow = self.transport.subflows.remove(i);
            ctx.shared.demux.tuples.remove(&subflow.tuple);
            subflow.rcv.drop_held(&mut ctx.shared.pool);
            self.transport.subflows.count_gone(&subflow);
            self.on_subflow_gone(ctx, &mut subflow);
            if self.transport.is_ended() {
                continue;
            }
            if self.transport.subflows.is_empty() && !self.transport.closing.is_over() {
                self.transport.live.waiting_since.get_or_insert(ctx.now);
                let by_peer = subflow.ending.reason == SubflowCloseReason::Reset;
                let abandoned = by_peer && self.transport.listener.is_some();
                self.transport.live.abandoned_at = abandoned.then_some(ctx.now);
            }
        }
        self.transport.subflows.len() < before
    }
}

impl Transport {
    /// Closes our direction of subflows on which the peer sent FIN while the connection goes on elsewhere.
    /// Once the peer has closed the stream, or if this is the last working subflow, the subflows stay open
    /// in our direction: unsent data, DATA_FIN and data that the peer dropped at the data level still go
    /// out there (RFC 8684 section 3.3.3). Returns whether any were closed.
    fn answer_fins(&mut self) -> bool {
        let carries_on = |s: &Subflow| s.can_carry() && !s.signs.stale && !s.rcv.finished();
        let unanswered = |s: &Subflow| s.rcv.finished() && !s.closing.is_closed_here();
        if matches!(self.mode, Mode::Tcp)
            || self.rcv.fin.is_some()
            || !self.subflows.iter().any(unanswered)
            || !self.subflows.iter().any(carries_on)
        {
            return false;
        }
        for subflow in self.subflows.iter_mut().filter(|s| unanswered(s)) {
            subflow.closing.close();
            self.snd.scoreboard.on_failed(subflow.place.slot);
        }
        true
    }

    /// Ends subflows that have nothing left to do. Returns whether anything changed.
    // Conforms: 8684-3.3.3-5, 8684-3.3.3-6, 9293-3.10.7.4-5
    fn close_subflows(&mut self) -> bool {
        // While the connection opens, another subflow may replace the first, and data that a SYN carried
        // may have to be sent again.
        let plain_fin = matches!(self.mode, Mode::Tcp)
            && !matches!(self.life, Life::Opening { .. })
            && self.closing.is_due()
            && self.snd.unsent() == 0;
        let over = matches!(self.life, Life::Ended { .. });
        let tcp = matches!(self.mode, Mode::Tcp);
        let fin = plain_fin || (!tcp && self.closing.is_over());
        let mut changed = plain_fin;
        for subflow in self.subflows.iter_mut() {
            changed |= fin && !subflow.closing.is_closed_here();
            if fin {
                subflow.closing.close();
            }
            if subflow.phase == Phase::Established
                && subflow.closing.is_over()
                // In TIME-WAIT a peer that missed our last ACK sends its FIN again. With MPTCP the end was
                // agreed on at the data level, and a RST does no harm.
                && (!tcp || (over && subflow.closing == FinState::Closed))
            {
                // The last ACK must leave first where it is due.
                if subflow.rcv.due != crate::tcp::receive::AckDue::Now {
                    subflow.close(SubflowCloseReason::Finished);
                    changed = true;
                }
            }
            if over && matches!(subflow.phase, Phase::SynSent | Phase::JoinAcked) {
                subflow.close(SubflowCloseReason::Finished);
                changed = true;
            }
        }
        if plain_fin {
            self.closing.on_sent_plainly();
        }
        changed
    }

    /// Returns the time at which a finished connection may be forgotten.
    pub fn forget_at(&self) -> Option<braid_wire::Instant> {
        let Life::Ended { at, reason } = self.life else {
            return None;
        };
        let over = |s: &Subflow| s.closing.is_over();
        if !self.subflows.is_empty() && self.subflows.iter().all(over) {
            // Four timeouts leave room for the peer to repeat its FIN twice after lost ACKs.
            let rto = self.subflows.iter().map(|s| s.snd.rtt.rto()).max();
            return Some(at + (rto.unwrap_or(MIN_LINGER) * 4).clamp(MIN_LINGER, MAX_LINGER));
        }
        if self.subflows.iter().any(|s| s.ending.repeats_abort) {
            // The repeats of MP_FASTCLOSE end by themselves before this time.
            return Some(at + FAST_CLOSE_REPEAT_TIME + MIN_LINGER);
        }
        let active_close = reason == CloseReason::Finished
            && self.subflows.iter().any(|s| s.closing.is_fin_sent());
        match (self.subflows.is_empty(), active_close) {
            (true, _) => Some(at),
            (false, true) => Some(at + MAX_LINGER),
            (false, false) => Some(at + MIN_LINGER),
        }
    }
}
