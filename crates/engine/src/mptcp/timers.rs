//! The timers of a connection. Each component has its own due times; the time of the next timeout is the
//! earliest of them.

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

/// The number of tries after which a handshake ends. A try is a SYN/ACK of a half-open subflow, a SYN or third ACK
/// of a join, or a third ACK of an opener, which the peer need not answer. Linux repeats a SYN/ACK five times by
/// default too (`tcp_synack_retries`).
const MAX_HANDSHAKE_TRIES: u32 = 5;
/// The maximum interval between probes of a path that timed out while other paths carry the data, unless the
/// timeout without backoff is longer. The value is a guess: five small packets a second cost little, and a path
/// is used again soon after its outage.
const MAX_DEAD_PATH_PROBE_INTERVAL: Duration = Duration::from_millis(200);
/// The maximum interval between probes while all of several paths have timed out, so that data arrives within a
/// second after a path comes back. Lossy paths may time out together although they still carry packets. So in
/// the first seconds the interval is shorter: a quarter ([`FIRST_PROBE_FRACTION`]) of the time since the first
/// timeout.
const MAX_ALL_DARK_PROBE_INTERVAL: Duration = Duration::from_millis(800);
const FIRST_PROBE_FRACTION: u32 = 4;
/// The divisor that gives the interval between probes in a long outage: a 32nd of the time since the first
/// timeout. So an outage of minutes costs few packets, and the delay after its end is at most about 3 % of the
/// outage.
const LONG_RUN_PROBE_FRACTION: u32 = 32;
/// The time to wait for a peer that opened the connection and reset its last subflow. Either the peer opens
/// another subflow soon, or it has lost the connection, as after a restart. The value is a guess.
const REJOIN_TIMEOUT: Duration = Duration::from_secs(30);
/// The time to wait for a DATA_ACK, in addition to a round trip, before the first stall probe is sent. A
/// DATA_ACK has stalled if it stays behind although the subflows have acknowledged all their data. The value is
/// a guess; a peer needs less time to process the data.
const STALL_DELAY: Duration = Duration::from_millis(5);
/// The maximum interval between stall probes; the interval doubles with each probe. The value is a guess. It is
/// also the interval at which a peer that withholds its window is asked again.
const MAX_STALL_DELAY: Duration = Duration::from_secs(5);
/// The number of stall probes after which data is sent again, because the DATA_ACK is not expected to move by
/// itself. The value is a guess; with doubling delays, four probes last at least 15 times the first delay.
const PROBES_BEFORE_RESEND: u32 = 4;
/// The number of bytes that are sent again the first time (RFC 8684 section 3.3.6: data is kept until it is
/// acknowledged at the data level). If the peer accepts all of them, the number doubles the next time. If the
/// peer accepts fewer, the number halves, down to [`MIN_RESEND_BYTES`]. The value is a guess, as large as the
/// minimum window.
const MAX_RESEND_BYTES: u64 = 64 << 10;
/// The minimum number of bytes sent again: about one segment.
const MIN_RESEND_BYTES: u64 = 1_400;

impl Connection {
    /// Returns the time at which [`Self::handle_timeout`] is due.
    pub fn next_timeout(&self, ctx: &Ctx<'_>) -> Option<Instant> {
        let subflows = |has_data| {
            let timers = self.transport.subflows.iter();
            Instant::earliest(timers.map(|s| s.next_timeout(has_data, ctx.now)))
        };
        let forget_at = self.transport.forget_at();
        // An ended connection has only the timers of its subflows, until it is forgotten.
        if forget_at.is_some() {
            return Instant::earliest([forget_at, subflows(false)]);
        }
        let has_data = (self.transport.snd.unsent() > 0 && self.transport.snd.peer_window() > 0)
            || self.transport.may_copy();
        let opening = match self.transport.life {
            Life::Opening { since } => Some(since + ctx.shared.config.connect_timeout),
            _ => None,
        };
        let has_subflows = !self.transport.subflows.is_empty();
        let give_up_at = self
            .transport
            .live
            .give_up_at(&ctx.shared.config, has_subflows)
            .filter(|_| self.transport.is_open());
        Instant::earliest([
            subflows(has_data),
            opening,
            give_up_at,
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
        // Verified payload may wait for memory, which other connections may have freed.
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

    /// Ends the connection if its handshake, or the wait for its peer, took too long.
    fn give_up_if_dead(&mut self, ctx: &mut Ctx<'_>) {
        let has_subflows = !self.transport.subflows.is_empty();
        let is_over = |since: Instant, limit| ctx.now.saturating_since(since) >= limit;
        match self.transport.life {
            Life::Opening { since } if is_over(since, ctx.shared.config.connect_timeout) => {
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

    /// Handles the timer of a SYN, SYN/ACK or third ACK that was not answered. Here the handshake is given up
    /// or moved to another path; `poll_handshake` repeats the segment.
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
            // This is the opener's third ACK. Once data is in flight, the data carries the keys as well and is
            // retransmitted, so the third ACK need not be repeated.
            let repeats =
                subflow.handshake.tries < MAX_HANDSHAKE_TRIES && subflow.snd.board.is_empty();
            subflow.handshake.at.take_if(|_| !repeats);
            return;
        }
        let opens_connection = subflow.opens == Opens::Connection;
        if opens_connection && subflow.active {
            // If two SYNs are under way on different paths, each is repeated on its own path.
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

    /// Handles the retransmission and loss timers of subflow `i`.
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
        let lost_before = subflow.snd.traffic.bytes_lost;
        let expired = subflow.snd.on_timeout(ctx.now, ts);
        subflow.judge_sizes(ctx.now);
        match expired {
            Some(Expired::Rto) => {
                subflow.signs.stale = true;
                subflow.signs.silent = subflow.signs.silent.saturating_add(1);
                // A lone path that is not known to be lossy backs off as usual, because its silence may mean
                // congestion.
                if !alone || subflow.is_lossy() {
                    // The interval is at least the timeout without backoff, because the path may only be slow.
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
                let is_hopeless = multipath && subflow.is_hopeless(ctx.now);
                if (others && subflow.is_stuck(ctx.now)) || is_hopeless {
                    subflow.begin_reset(
                        ResetKind::Subflow(ResetReason::UnacceptablePerformance),
                        SubflowCloseReason::TimedOut,
                    );
                }
                self.on_subflow_failed(i);
            }
            Some(Expired::Probe) => subflow.owed.probe = true,
            Some(Expired::Lost) => self.report_loss(i, lost_before),
            // An early retransmission does not count as a timeout.
            Some(Expired::Early) | None => {}
        }
    }
}

impl Transport {
    /// Updates two times: since when the DATA_ACK has stood still (`behind`), and since when the peer has sent FIN
    /// on every established subflow although its stream has not ended (`left`).
    // Conforms: 8684-3.3.3-9
    fn watch_progress(&mut self, now: Instant) {
        let mut established = self.subflows.iter().filter(|s| s.is_established());
        let left_by_peer = self.mode.mptcp().is_some()
            && self.rcv.fin.is_none()
            && established.clone().next().is_some()
            && established.all(|s| s.rcv.finished());
        self.live.left = left_by_peer.then(|| self.live.left.unwrap_or(now));
        let awaits_fin_ack = self.closing.is_out();
        // A closed window counts too, because only a DATA_ACK can open it, and none may ever come.
        let awaits_window = self.mode.mptcp().is_some() && self.snd.is_window_closed();
        if self.snd.outstanding() == 0 && !awaits_fin_ack && !awaits_window {
            self.live.behind = None;
            return;
        }
        let una = self.snd.una();
        if self.live.behind.is_none_or(|(_, seen)| seen != una) {
            self.live.behind = Some((now, una));
        }
    }

    /// Returns whether nothing but a DATA_ACK of the peer can move the connection. The working subflows have no
    /// data in flight, so no retransmission will ask the peer for a DATA_ACK. Yet sent data waits for a
    /// DATA_ACK, unsent data waits for window, or DATA_FIN waits for the first DATA_ACK.
    fn is_stalled(&self) -> bool {
        let not_established = self.mode.mptcp().is_some_and(|m| !m.fully_established);
        let waiting = self.snd.outstanding() > 0
            || self.snd.is_window_closed()
            || (self.closing.is_due() && not_established);
        if !waiting || !self.is_open() {
            return false;
        }
        let working = self.subflows.iter().filter(|s| !s.signs.stale);
        // Lost data will be sent again on another subflow. That data asks the peer for a DATA_ACK as well,
        // unless the peer's window forbids sending it.
        let will_resend = self.snd.scoreboard.lost() > 0
            && working
                .clone()
                .any(|s| s.can_carry() && s.snd.peer_room() > 0);
        !will_resend
            && working.clone().next().is_some()
            && working.clone().all(|s| s.snd.board.is_empty())
    }

    /// Arms or disarms the stall probe. The stack calls it after every change.
    // Conforms: 9293-3.8.6.1-3
    pub fn watch_stall(&mut self, now: Instant) {
        self.watch_progress(now);
        if !self.is_stalled() {
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
        // The bound of the exponent only prevents an overflow.
        let delay = (STALL_DELAY + rtt) * (1 << self.live.stall_tries.min(10));
        self.live.stall_at = Some(now + delay.min(MAX_STALL_DELAY));
    }

    /// Updates two durations: the time with data to deliver, and the time with data that waits for the peer's
    /// window.
    pub fn watch_busy(&mut self, now: Instant) {
        let delivering = !self.is_ended() && self.snd.una() < self.snd.buf.end();
        let waiting =
            self.is_open() && delivering && self.snd.unsent() > 0 && self.is_window_used_up();
        self.live.busy.note(now, delivering, waiting);
    }

    /// Sends a probe if the connection has stalled: the zero-window probe of RFC 9293 section 3.8.6.1, at the
    /// data level. Linux 6.18 was also seen to go silent with all data acknowledged on the subflow and the
    /// DATA_ACK far behind, until an old segment arrives.
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
    /// Returns the time since which the connection waits for a sign of life, for a DATA_ACK of sent data (RFC
    /// 5482 section 3.1), or for a subflow on which the peer can continue. A sign of life alone is not enough:
    /// if a middlebox strips the options, a peer may acknowledge for ever at the subflow level alone.
    fn waiting_since(&self) -> Option<Instant> {
        let behind = self.behind.map(|(since, _)| since);
        Instant::earliest([self.waiting_since, behind, self.left])
    }

    /// Returns the time at which the connection ends unless the peer does what the connection waits for.
    fn give_up_at(&self, config: &Config, has_subflows: bool) -> Option<Instant> {
        let waiting = self.waiting_since();
        let abandoned = self.abandoned_at.filter(|_| !has_subflows);
        Instant::earliest([
            waiting.map(|since| since + config.user_timeout),
            abandoned.map(|at| at + REJOIN_TIMEOUT),
        ])
    }

    /// Makes data that was acknowledged on a subflow due again, if no probe moved the DATA_ACK: the peer must
    /// have dropped the data at the data level. Linux does so with data that comes faster than its receive
    /// buffer grows. A peer that dropped data once may do so again, so the next resending waits for fewer
    /// probes.
    // Conforms: 8684-3.3.6-2
    fn resend_discarded(&mut self, snd: &mut SendSide) {
        let dropped_before = self.resent.is_some();
        let probes = if dropped_before {
            2
        } else {
            PROBES_BEFORE_RESEND
        };
        if self.stall_tries < probes || snd.outstanding() == 0 {
            return;
        }
        let una = snd.una();
        let len = match &self.resent {
            None => MAX_RESEND_BYTES,
            // The peer accepted all data that was last sent again, but nothing behind that data.
            Some(last) if una == last.end => (2 * (last.end - last.start)).max(MIN_RESEND_BYTES),
            // The DATA_ACK has moved beyond the data that was last sent again, so this is another loss.
            Some(last) if una > last.end => MAX_RESEND_BYTES,
            // The peer did not accept all data that was last sent again. Its buffer may be too small for so much
            // data.
            Some(last) => ((last.end - last.start) / 2).max(MIN_RESEND_BYTES),
        };
        let range = una..snd.nxt.min(una + len);
        snd.scoreboard.on_discarded(range.clone());
        self.resent = Some(range);
    }
}
