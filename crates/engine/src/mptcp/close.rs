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

/// The minimum time for which a finished connection still answers its peer's retransmissions. The value is a
/// guess, about as long as the initial retransmission timeout (RFC 6298 section 2.1).
const MIN_LINGER: Duration = Duration::from_secs(1);
/// The maximum time for which a finished connection waits for the peer's last FIN before it is forgotten. A FIN
/// that comes later is answered by RST. The value is a guess. It is far below the TIME-WAIT of RFC 9293 (four
/// minutes), because the stream is complete and every connection takes a place.
const MAX_LINGER: Duration = Duration::from_secs(10);

impl Connection {
    /// Closes the sending direction, because the application writes no more.
    pub fn shutdown(&mut self, ctx: &mut Ctx<'_>) -> Result<(), ApiError> {
        if !self.transport.closing.is_open() || self.transport.is_ended() {
            return Err(ApiError::SendClosed);
        }
        self.transport.closing.close();
        self.transport.stop_writing(ctx);
        self.reconcile(ctx);
        Ok(())
    }

    /// Handles the FIN of subflow `i`, if the FIN and everything before it are here. With regular TCP the end
    /// of the subflow is also the end of the stream.
    // Conforms: 8684-3.3.3-8
    pub(super) fn on_subflow_fin(&mut self, ctx: &mut Ctx<'_>, i: usize) {
        let subflow = &mut self.transport.subflows[i];
        if subflow.rcv.take_fin() {
            subflow.closing.on_peer_fin();
        }
        let ends_stream = subflow.rcv.finished()
            && matches!(self.transport.mode, Mode::Tcp)
            && !self.transport.is_ended();
        if ends_stream && self.transport.rcv.fin.is_none() {
            // The end is counted in bytes received on the subflow, not in bytes of the stream: payload
            // received before a fallback may still wait for memory.
            let end = self.transport.subflows[i].rcv.bytes_received();
            self.check_stream_end(ctx, i, end, true);
        }
    }

    /// Notes that data of the peer's stream extends up to offset `end`, as received on subflow `i`, and that the
    /// stream ends there if `is_last` is set. Returns whether this agrees with the known end and with the
    /// received data. If not, the connection is aborted, because the stream could never be complete.
    pub(super) fn check_stream_end(
        &mut self,
        ctx: &mut Ctx<'_>,
        i: usize,
        end: u64,
        is_last: bool,
    ) -> bool {
        let fin = self.transport.rcv.fin.or(is_last.then_some(end));
        let contradicts = |fin| {
            end > fin || (is_last && (end < fin || self.transport.rcv.highest_received() > fin))
        };
        if fin.is_some_and(contradicts) {
            self.fail(ctx, CloseReason::PeerMisbehaved);
            return false;
        }
        if is_last {
            self.transport.rcv.fin = fin;
            self.transport.subflows[i].rcv.ack_now();
            if self.transport.rcv.complete() {
                self.transport.closing.on_peer_fin();
                self.transport.signal_readable(ctx);
            }
        }
        true
    }

    /// Brings the connection up to date after a change: ends the connection or subflows that are done, removes
    /// closed subflows, and opens further ones. Returns whether there may be something to send now.
    pub fn reconcile(&mut self, ctx: &mut Ctx<'_>) -> bool {
        // This function runs several times a packet, and usually nothing is about to end. One look at the subflows
        // is cheaper than one by each step.
        let has_endings = self.transport.has_endings();
        let mut changed = false;
        if has_endings {
            changed |= self.finish_if_done(ctx);
            changed |= self.transport.answer_fins();
        }
        let has_reset = self.transport.bound_retained(ctx);
        changed |= has_reset;
        if has_endings || has_reset {
            changed |= self.transport.close_subflows();
            changed |= self.remove_closed_subflows(ctx);
        }
        changed |= self.join_paths(ctx);
        changed
    }

    /// Ends the connection for the application, if both directions are closed and acknowledged and all data
    /// is read. Returns whether the connection ended now.
    pub fn finish_if_done(&mut self, ctx: &mut Ctx<'_>) -> bool {
        let done = self.transport.closing.is_over()
            && !self.transport.is_ended()
            && self.transport.rcv.buf.readable() == 0;
        if done {
            self.end(ctx, CloseReason::Finished);
        }
        done
    }

    /// Removes closed subflows, and marks the data that only they carried as lost, so that other subflows send
    /// it. Returns whether a subflow was removed.
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
            subflow.drop_load(&mut ctx.shared.loads);
            self.transport.subflows.count_gone(&subflow);
            self.on_subflow_gone(ctx, &mut subflow);
            if self.transport.is_ended() {
                continue;
            }
            if self.transport.subflows.is_empty() && !self.transport.closing.is_over() {
                // Only the end that opened the connection opens further subflows. So a listener whose peer reset
                // the last subflow can only wait for the peer, at most for `REJOIN_TIMEOUT`.
                self.transport.live.waiting_since.get_or_insert(ctx.now);
                let by_peer = subflow.ending.reason == SubflowCloseReason::Reset;
                let is_abandoned = by_peer && self.transport.listener.is_some();
                self.transport.live.abandoned_at = is_abandoned.then_some(ctx.now);
            }
        }
        self.transport.subflows.len() < before
    }
}

impl Transport {
    /// Returns whether the connection or a subflow has begun to end in a direction, so that something may have to be
    /// answered, closed or removed.
    fn has_endings(&self) -> bool {
        let ends =
            |s: &Subflow| s.phase == Phase::Closed || s.rcv.finished() || s.closing.is_over();
        self.is_ended()
            || self.closing.is_due()
            || self.closing.is_over()
            || self.subflows.iter().any(ends)
    }

    /// Closes our direction of the subflows on which the peer sent FIN, if another working subflow can carry the
    /// connection. Otherwise our direction of these subflows stays open. It also stays open once the peer has
    /// closed the stream: unsent data, DATA_FIN and data that the peer dropped at the data level are still sent
    /// there (RFC 8684 section 3.3.3). Returns whether a subflow was closed.
    fn answer_fins(&mut self) -> bool {
        let carries_on = |s: &Subflow| s.can_carry() && !s.signs.stale && !s.rcv.finished();
        let is_unanswered = |s: &Subflow| s.rcv.finished() && !s.closing.is_closed_here();
        if matches!(self.mode, Mode::Tcp)
            || self.rcv.fin.is_some()
            || !self.subflows.iter().any(is_unanswered)
            || !self.subflows.iter().any(carries_on)
        {
            return false;
        }
        for subflow in self.subflows.iter_mut().filter(|s| is_unanswered(s)) {
            subflow.closing.close();
            self.snd.scoreboard.on_failed(subflow.place.slot);
        }
        true
    }

    /// Ends subflows that have nothing left to do. Returns whether anything changed.
    // Conforms: 8684-3.3.3-5, 8684-3.3.3-6, 9293-3.10.7.4-5
    fn close_subflows(&mut self) -> bool {
        // With regular TCP, the FIN of the subflow closes the stream. The FIN waits until the handshake is
        // complete: until then another subflow may replace this one, and payload of the SYN may have to be sent
        // again.
        let plain_fin = matches!(self.mode, Mode::Tcp)
            && !matches!(self.life, Life::Opening { .. })
            && self.closing.is_due()
            && self.snd.unsent() == 0;
        let has_ended = matches!(self.life, Life::Ended { .. });
        let is_tcp = matches!(self.mode, Mode::Tcp);
        let closes_all = plain_fin || (!is_tcp && self.closing.is_over());
        let mut changed = plain_fin;
        for subflow in self.subflows.iter_mut() {
            changed |= closes_all && !subflow.closing.is_closed_here();
            if closes_all {
                subflow.closing.close();
            }
            if subflow.phase == Phase::Established
                && subflow.closing.is_over()
                // With regular TCP, a subflow in TIME-WAIT stays, because a peer that missed our last ACK
                // repeats its FIN. With MPTCP both ends agreed on the end at the data level, so a RST in answer
                // to a repeated FIN does no harm.
                && (!is_tcp || (has_ended && subflow.closing == FinState::Closed))
            {
                // If the last ACK is due, it is sent before the subflow closes.
                if subflow.rcv.due != crate::tcp::receive::AckDue::Now {
                    subflow.close(SubflowCloseReason::Finished);
                    changed = true;
                }
            }
            if has_ended && matches!(subflow.phase, Phase::SynSent | Phase::JoinAcked) {
                subflow.close(SubflowCloseReason::Finished);
                changed = true;
            }
        }
        if plain_fin {
            self.closing.on_sent_plainly();
        }
        changed
    }

    /// Returns the time at which an ended connection can be forgotten; `None` if it has not ended.
    pub fn forget_at(&self) -> Option<braid_wire::Instant> {
        let Life::Ended { at, reason } = self.life else {
            return None;
        };
        let is_closed = |s: &Subflow| s.closing.is_over();
        if !self.subflows.is_empty() && self.subflows.iter().all(is_closed) {
            // Four timeouts cover two repeats of the peer's FIN. A peer repeats a FIN that is not acknowledged
            // after one timeout, and again after two more.
            let rto = self.subflows.iter().map(|s| s.snd.rtt.rto()).max();
            return Some(at + (rto.unwrap_or(MIN_LINGER) * 4).clamp(MIN_LINGER, MAX_LINGER));
        }
        if self.subflows.iter().any(|s| s.ending.repeats_abort) {
            // The repeats of MP_FASTCLOSE end by themselves before this time.
            return Some(at + FAST_CLOSE_REPEAT_TIME + MIN_LINGER);
        }
        let awaits_fin = reason == CloseReason::Finished
            && self.subflows.iter().any(|s| s.closing.is_fin_sent());
        // Without subflows no segment of the peer can be answered any more.
        match (self.subflows.is_empty(), awaits_fin) {
            (true, _) => Some(at),
            (false, true) => Some(at + MAX_LINGER),
            (false, false) => Some(at + MIN_LINGER),
        }
    }
}
