//! Timers of a connection. Each component knows its own; the next expiry is derived from all.

use core::time::Duration;

use braid_wire::Instant;
use braid_wire::mptcp::ResetReason;

use super::connection::Connection;
use super::ctx::Ctx;
use super::ending::ResetKind;
use super::sides::SendSide;
use super::subflow::Opens;
use super::transport::{Life, Liveness, Transport};
use crate::Config;
use crate::event::{CloseReason, SubflowCloseReason};
use crate::tcp::receive::AckDue;
use crate::tcp::send::Expired;

/// The number of SYN/ACKs sent before a half-open subflow is dropped, of SYNs before a join is given up,
/// and of an opener's third ACKs, which a peer need not answer.
const MAX_HANDSHAKE_TRIES: u32 = 5;
/// The longest interval between probes of a path that timed out while other paths carry the data, unless
/// the timeout without backoff is longer.
const MAX_DEAD_PATH_PROBE_INTERVAL: Duration = Duration::from_millis(200);
/// The longest such interval while all of several paths have timed out, so that data arrives within a
/// second when one comes back. Lossy paths time out together without being dark, so within the first
/// seconds each is probed more often, at a quarter of the time that it has been stuck.
const MAX_ALL_DARK_PROBE_INTERVAL: Duration = Duration::from_millis(800);
const FIRST_PROBE_FRACTION: u32 = 4;
/// The fraction of the stuck time that is the interval in the long run, a 32nd: it bounds both the packets
/// that an outage of minutes costs and the delay after its end.
const LONG_RUN_PROBE_FRACTION: u32 = 32;
/// The time to wait for a peer that opened the connection and reset its last subflow: it opens another one
/// soon, or has lost the connection, as after a restart.
const REJOIN_TIMEOUT: Duration = Duration::from_secs(30);
/// The delay after the subflow-level acknowledgement is complete at which a stalled DATA_ACK is probed.
const STALL_DELAY: Duration = Duration::from_millis(5);
const MAX_STALL_DELAY: Duration = Duration::from_secs(5);
/// The number of stall probes after which a DATA_ACK is not expected to move by itself.
const PROBES_BEFORE_RESEND: u32 = 4;
/// The most bytes sent again then (RFC 8684 section 3.3.6: data is kept until it is acknowledged at the
/// data level). The amount doubles if all of it was accepted, and halves if it was in vain too, down to
/// [`MIN_RESEND_BYTES`].
const MAX_RESEND_BYTES: u64 = 64 << 10;
/// The least bytes sent again: about a segment.
const MIN_RESEND_BYTES: u64 = 1_400;

impl Connection {
    /// Returns the time at which [`Self::handle_timeout`] is due.
    pub fn next_timeout(&self, ctx: &Ctx<'_>) -> Option<Instant> {
        let subflows = |pending| {
            let timers = self.transport.subflows.iter();
            Instant::earliest(timers.map(|s| s.next_timeout(pending, ctx.now)))
        };
        let forget_at = self.transport.forget_at();
        if forget_at.is_some() {
            return Instant::earliest([forget_at, subflows(false)]);
        }
        let pending = (self.transport.snd.unsent() > 0 && self.transport.snd.peer_window() > 0)
            || self.transport.may_copy();
        let opening = match self.transport.life {
            Life::Opening { since } => Some(since + ctx.shared.config.connect_timeout),
            _ => None,
        };
        let has_subflows = !self.transport.subflows.is_empty();
        let lost = self
            .transport
            .live
            .give_up_at(&ctx.shared.config, has_subflows)
            .filter(|_| self.transport.is_open());
        Instant::earliest([
            subflows(pending),
            opening,
            lost,
            self.paths.next_at(),
            self.transport.signals_at(),
            self.transport.keepalive_at(),
            self.transport.live.stall_at,
            self.transport.live.ask_at,
            self.transport.closing.at,
        ])
    }

    /// Serves expired timers.
    pub fn handle_timeout(&mut self, ctx: &mut Ctx<'_>) {
        for i in 0..self.transport.subflows.len() {
            self.on_handshake_timer(ctx, i);
            self.on_send_timer(ctx, i);
            let subflow = &mut self.transport.subflows[i];
            if matches!(subflow.rcv.due, AckDue::At(at) if at <= ctx.now) {
                subflow.rcv.ack_now();
            }
        }
        // Other connections may have returned memory.
        self.deliver_verified(ctx);
        self.give_up_if_dead(ctx);
        if self.transport.is_open() {
            self.transport.probe_silent(ctx);
            self.transport.on_stall_timer(ctx);
            if self.transport.closing.at.is_some_and(|at| at <= ctx.now) {
                self.transport.closing.repeat();
            }
        }
        self.reconcile(ctx);
    }

    fn give_up_if_dead(&mut self, ctx: &mut Ctx<'_>) {
        let has_subflows = !self.transport.subflows.is_empty();
        let late = |since: Instant, limit| ctx.now.saturating_since(since) >= limit;
        match self.transport.life {
            Life::Opening { since } if late(since, ctx.shared.config.connect_timeout) => {
                self.fail(ctx, CloseReason::TimedOut);
            }
            Life::Open
                if self
                    .transport
                    .live
                    .give_up_at(&ctx.shared.config, has_subflows)
                    .is_some_and(|at| at <= ctx.now) =>
            {
                self.fail(ctx, CloseReason::TimedOut);
            }
            _ => {}
        }
    }

    /// Handles a SYN, SYN/ACK or third ACK that was not answered. The output repeats it by itself.
    fn on_handshake_timer(&mut self, ctx: &mut Ctx<'_>, i: usize) {
        let subflow = &mut self.transport.subflows[i];
        if subflow
            .handshake
            .second_syn_at
            .take_if(|at| *at <= ctx.now)
            .is_some()
        {
            self.open_second(ctx, i);
        }
        let subflow = &mut self.transport.subflows[i];
        let unanswered =
            subflow.handshake.tries > 0 && subflow.handshake.at.is_some_and(|at| at <= ctx.now);
        if !unanswered {
            return;
        }
        if subflow.is_established() {
            // The opener's third ACK. Data carries the keys as well, and is retransmitted by itself.
            let repeats =
                subflow.handshake.tries < MAX_HANDSHAKE_TRIES && subflow.snd.board.is_empty();
            subflow.handshake.at.take_if(|_| !repeats);
            return;
        }
        let opens_connection = subflow.opens == Opens::Connection;
        if opens_connection && subflow.active {
            // If two SYNs are under way side by side, each is repeated by itself.
            if self.transport.subflows.opening().count() == 1 {
                self.try_next_path(ctx, i);
            }
        } else if subflow.handshake.tries >= MAX_HANDSHAKE_TRIES {
            subflow.close(SubflowCloseReason::TimedOut);
            if opens_connection {
                self.fail(ctx, CloseReason::TimedOut);
            }
        }
    }

    // Conforms: 8684-3.3.6-3
    fn on_send_timer(&mut self, ctx: &mut Ctx<'_>, i: usize) {
        if !self.transport.subflows[i].is_established() {
            return;
        }
        let siblings = self.transport.subflows.iter().enumerate();
        let mut siblings = siblings.filter(|(n, s)| *n != i && s.can_carry());
        let alone = siblings.clone().next().is_none();
        let others = siblings.any(|(_, s)| !s.signs.stale);
        let multipath = self.transport.mode.mptcp().is_some();
        let subflow = &mut self.transport.subflows[i];
        let ts = subflow.timestamps(ctx.now).map(|ts| ts.value);
        let lost = subflow.snd.traffic.bytes_lost;
        let expired = subflow.snd.on_timeout(ctx.now, ts);
        subflow.judge_sizes(ctx.now);
        match expired {
            Some(Expired::Rto) => {
                subflow.signs.stale = true;
                subflow.signs.silent = subflow.signs.silent.saturating_add(1);
                // A lone path is probed early only if it is known to be lossy: otherwise silence means
                // congestion.
                if !alone || subflow.is_lossy() {
                    // Not before an answer can be here: the path may only be slow.
                    let rto = subflow.snd.rtt.rto();
                    let stuck = subflow.snd.stuck_for(ctx.now);
                    let probe = match others {
                        true => MAX_DEAD_PATH_PROBE_INTERVAL,
                        false => (stuck / FIRST_PROBE_FRACTION)
                            .clamp(MAX_DEAD_PATH_PROBE_INTERVAL, MAX_ALL_DARK_PROBE_INTERVAL)
                            .max(stuck / LONG_RUN_PROBE_FRACTION),
                    };
                    subflow.snd.cap_rto(ctx.now, probe.max(rto));
                }
                // Regular TCP has no other subflow, so the user timeout decides when to give up.
                let hopeless = multipath && subflow.is_hopeless(ctx.now);
                let over = (others && subflow.is_stuck(ctx.now)) || hopeless;
                if over {
                    subflow.begin_reset(
                        ResetKind::Subflow(ResetReason::UnacceptablePerformance),
                        SubflowCloseReason::TimedOut,
                    );
                }
                self.on_subflow_failed(i);
            }
            Some(Expired::Probe) => subflow.owed.probe = true,
            Some(Expired::Lost) => self.report_loss(i, lost),
            Some(Expired::Early) | None => {}
        }
    }
}

impl Transport {
    /// Notes since when the DATA_ACK has lagged behind the sent data, and since when the peer has left its
    /// last subflow in the middle of its stream.
    // Conforms: 8684-3.3.3-9
    fn watch_progress(&mut self, now: Instant) {
        let mut established = self.subflows.iter().filter(|s| s.is_established());
        let left = self.mode.mptcp().is_some()
            && self.rcv.fin.is_none()
            && established.clone().next().is_some()
            && established.all(|s| s.rcv.finished());
        self.live.left = left.then(|| self.live.left.unwrap_or(now));
        let fin_out = self.closing.is_out();
        // Only a DATA_ACK opens the window again, and the peer may keep it shut for ever.
        let shut_out = self.mode.mptcp().is_some() && self.snd.is_window_closed();
        if self.snd.outstanding() == 0 && !fin_out && !shut_out {
            self.live.behind = None;
            return;
        }
        let una = self.snd.una();
        if self.live.behind.is_none_or(|(_, seen)| seen != una) {
            self.live.behind = Some((now, una));
        }
    }

    /// Returns whether the connection can only go on if the peer speaks: everything in flight on working
    /// subflows is acknowledged there, yet data waits for a DATA_ACK or for window, or DATA_FIN for the
    /// first DATA_ACK.
    fn stalled(&self) -> bool {
        let not_established = self.mode.mptcp().is_some_and(|m| !m.fully_established);
        let waiting = self.snd.outstanding() > 0
            || self.snd.is_window_closed()
            || (self.closing.is_due() && not_established);
        if !waiting || !self.is_open() {
            return false;
        }
        let working = self.subflows.iter().filter(|s| !s.signs.stale);
        // Data to be sent again moves nothing if the peer's window keeps it here.
        let resends = self.snd.scoreboard.lost() > 0
            && working
                .clone()
                .any(|s| s.can_carry() && s.snd.peer_room() > 0);
        !resends
            && working.clone().next().is_some()
            && working.clone().all(|s| s.snd.board.is_empty())
    }

    /// Arms or disarms the stall probe. The stack calls it after every change.
    // Conforms: 9293-3.8.6.1-3
    pub fn watch_stall(&mut self, now: Instant) {
        self.watch_progress(now);
        if !self.stalled() {
            self.live.stall_at = None;
            return;
        }
        if self.live.stall_at.is_some() {
            return;
        }
        let rtt = self
            .subflows
            .iter()
            .filter(|s| s.can_carry())
            .map(|s| s.snd.rtt.srtt())
            .min();
        let Some(rtt) = rtt else {
            return;
        };
        let delay = (STALL_DELAY + rtt) * (1 << self.live.stall_tries.min(10));
        self.live.stall_at = Some(now + delay.min(MAX_STALL_DELAY));
    }

    /// Updates the times with data to deliver and with data blocked by the peer's window.
    pub fn watch_busy(&mut self, now: Instant) {
        let delivering = !self.is_ended() && self.snd.una() < self.snd.buf.end();
        let waiting =
            self.is_open() && delivering && self.snd.unsent() > 0 && self.is_window_used_up();
        self.live.busy.note(now, delivering, waiting);
    }

    /// Sends a zero-window or DATA_ACK probe (RFC 9293 section 3.8.6.1 at the data level). Linux can go
    /// silent with the subflow fully acknowledged and DATA_ACK behind; an old segment revives it.
    // Conforms: 9293-3.8.6.1-1
    fn on_stall_timer(&mut self, ctx: &mut Ctx<'_>) {
        if self.live.stall_at.is_none_or(|at| at > ctx.now) {
            return;
        }
        self.live.stall_at = None;
        self.live.stall_tries += 1;
        self.live.waiting_since.get_or_insert(ctx.now);
        if let Some(i) = self.subflows.subflow_for_signal(self.live.stall_tries - 1) {
            self.subflows[i].owed.keepalive = true;
        }
        if self.mode.mptcp().is_some() {
            self.live.resend_discarded(&mut self.snd);
        }
    }
}

impl Liveness {
    /// Returns the time since which the connection waits for something that it needs: a sign of life, a
    /// DATA_ACK of sent data (RFC 5482 section 3.1), or a subflow on which the peer can go on. A sign of
    /// life alone is not enough: a peer may acknowledge for ever on a subflow whose options a middlebox
    /// strips.
    fn waiting_since(&self) -> Option<Instant> {
        let behind = self.behind.map(|(since, _)| since);
        Instant::earliest([self.waiting_since, behind, self.left])
    }

    /// Returns the time at which the peer is given up unless it is heard.
    fn give_up_at(&self, config: &Config, has_subflows: bool) -> Option<Instant> {
        let waiting = self.waiting_since();
        let abandoned = self.abandoned_at.filter(|_| !has_subflows);
        Instant::earliest([
            waiting.map(|since| since + config.user_timeout),
            abandoned.map(|at| at + REJOIN_TIMEOUT),
        ])
    }

    /// Sends data again that was acknowledged by a subflow but dropped above it, as no probe moved the
    /// DATA_ACK. Linux drops data that comes faster than its buffer grows. A peer that did so once will do
    /// it again, so fewer probes precede the next time.
    // Conforms: 8684-3.3.6-2
    fn resend_discarded(&mut self, snd: &mut SendSide) {
        let known = self.resent.is_some();
        let probes = if known { 2 } else { PROBES_BEFORE_RESEND };
        if self.stall_tries < probes || snd.outstanding() == 0 {
            return;
        }
        let una = snd.una();
        let len = match &self.resent {
            None => MAX_RESEND_BYTES,
            // The peer accepted all of the last resend, and had nothing behind it.
            Some(last) if una == last.end => (2 * (last.end - last.start)).max(MIN_RESEND_BYTES),
            Some(last) if una > last.end => MAX_RESEND_BYTES,
            Some(last) => ((last.end - last.start) / 2).max(MIN_RESEND_BYTES),
        };
        let range = una..snd.nxt.min(una + len);
        snd.scoreboard.on_discarded(range.clone());
        self.resent = Some(range);
    }
}
