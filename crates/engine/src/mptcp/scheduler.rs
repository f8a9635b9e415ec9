//! The choice of the next data to send and of its subflow: asks the strategy, and carries out its decision.

use arrayvec::ArrayVec;
use braid_wire::Instant;

use super::connection::Connection;
use super::ctx::Ctx;
use super::mode::Mode;
use super::output::{MAX_VIEWS, Outgoing, max_mapping_len, max_payload_total};
use super::subflow::Subflow;
use super::subflows::Subflows;
use super::transport::Transport;
use crate::non_exhaustive::NonExhaustive;
use crate::strategy::{Copies, Decision, InFlight, Payload, SendView, StrategyEvent, SubflowView};
use crate::{SegmentKind, SubflowId};

impl Connection {
    /// Sends data, new or copied, on the subflow that the strategy chooses.
    pub(super) fn poll_data(&mut self, ctx: &mut Ctx<'_>) -> Option<Outgoing> {
        self.transport.live.ask_at.take_if(|at| *at <= ctx.now);
        self.drop_late(ctx);
        let copying = self.transport.may_copy();
        if (self.transport.snd.unsent() == 0 && !copying)
            || !self.transport.subflows.is_any_ready(ctx)
        {
            return None;
        }
        let may_send_new = self.may_send_new();
        if !may_send_new && !copying {
            return None;
        }
        for subflow in self.transport.subflows.iter_mut() {
            subflow.before_send(ctx.now, &ctx.shared.records);
        }
        let mut subflows = ArrayVec::new();
        self.transport.show_subflows(ctx, copying, &mut subflows);
        let oldest = copying
            .then(|| self.transport.snd.scoreboard.oldest())
            .flatten();
        let is_done = self.flow.is_written() || !self.transport.closing.is_open();
        let view = SendView {
            now: ctx.now,
            subflows: &subflows,
            sent: self.flow.sent(self.transport.snd.nxt),
            copied: self.flow.copied(self.transport.snd.scoreboard.copied()),
            unsent: self.transport.snd.unsent(),
            unsent_by_urgency: self.transport.snd.unsent_by_urgency(),
            peer_window: self.transport.snd.peer_window(),
            outstanding: self.transport.snd.outstanding(),
            may_send_new,
            writer: self.transport.snd.writer(is_done),
            flow_size: self.flow.size,
            oldest,
            _non_exhaustive: NonExhaustive::MARK,
        };
        self.transport.live.ask_at = None;
        match self.strategy.next(&view, &mut ctx.shared.rng) {
            Decision::Wait { until } => {
                self.transport.live.ask_at = until.filter(|at| *at > ctx.now);
                None
            }
            Decision::Send {
                subflow,
                data,
                max_bytes,
            } => {
                let i = self.transport.subflows.chosen(ctx, subflow)?;
                // With a limit of 0 bytes, an empty packet could be sent.
                let max_len = u64::from(max_bytes.max(1));
                let may_send = may_send_new || data != Payload::New;
                debug_assert!(may_send, "a strategy sent new data when it must not");
                if !may_send {
                    return None;
                }
                let mut packet = send(&mut self.transport, ctx, i, data, max_len);
                if let Some(packet) = &mut packet {
                    packet.expected_arrival = self.strategy.expected_arrival();
                }
                packet
            }
        }
    }

    /// Drops data whose deadline passed before it was sent.
    fn drop_late(&mut self, ctx: &mut Ctx<'_>) {
        let buf = &mut self.transport.snd.buf;
        let dropped = buf.drop_late(ctx.now, &mut ctx.shared.pool);
        if dropped > 0 {
            self.transport.snd.dropped += dropped;
            self.transport.signal_writable(ctx);
            self.signal_delivered(ctx);
        }
    }

    /// Returns whether new data may be sent, and tells the strategy once if the peer's window forbids it. The
    /// packets of the opener's first mapping carry the keys (RFC 8684 section 3.1). No other mapping may follow
    /// before a DATA_ACK shows that the peer has the keys: a Linux listener falls back if a segment with a plain
    /// DSS overtakes the packets with the keys.
    // Conforms: 8684-3.1-15
    fn may_send_new(&mut self) -> bool {
        if self.transport.snd.unsent() == 0 {
            return false;
        }
        let blocked = self.transport.is_window_used_up();
        if blocked && !self.transport.live.blocked_reported {
            self.strategy.on_event(&StrategyEvent::WindowBlocked);
        }
        self.transport.live.blocked_reported = blocked;
        let in_syn = self.transport.mode.mptcp().map_or(0, |m| m.syn_data.sent);
        // The first mapping starts behind the payload of the SYN.
        let awaits_first_ack =
            self.transport.mode.keys_may_lack() && self.transport.snd.nxt > in_syn;
        !blocked && !awaits_first_ack
    }
}

/// Sends up to `max_len` bytes of `data` on subflow `i`.
fn send(
    transport: &mut Transport,
    ctx: &mut Ctx<'_>,
    i: usize,
    data: Payload,
    max_len: u64,
) -> Option<Outgoing> {
    let (room, max_len) = if transport.mode.keys_may_lack() {
        (transport.subflows.first_flight(ctx, i), u64::MAX)
    } else {
        (transport.subflows.chunk(ctx, i), max_len)
    };
    match data {
        Payload::New => transport.send_new(ctx, i, room, max_len),
        Payload::Copy { data, penalise } => {
            transport.send_copy(ctx, i, max_len.min(room), (data, penalise))
        }
    }
}

impl Transport {
    /// Sends up to `max_len` bytes of the same urgency that were never sent before. If these are all bytes of that
    /// urgency, less urgent bytes fill the last packet, as far as `room` allows.
    // Conforms: 9293-3.8.6.2.1-1
    fn send_new(
        &mut self,
        ctx: &mut Ctx<'_>,
        i: usize,
        room: u64,
        max_len: u64,
    ) -> Option<Outgoing> {
        let subflow = &self.subflows[i];
        let mss = u64::from(subflow.snd.mss());
        let probe_len = subflow.mtu_probe_payload(ctx.now);
        let run = self.snd.buf.next_run();
        let room = room.min(self.snd.peer_window());
        let mut len = run.min(room).min(max_len);
        if len == run {
            // A short packet would cost as much as a full one. No further packet is filled, because the strategy
            // chose the subflow for the more urgent bytes, and may choose another one for the rest.
            len = len.next_multiple_of(mss).min(self.snd.unsent()).min(room);
        } else if len > mss && probe_len != Some(len) {
            // Unless the data ends here, only full segments are sent. A probe of the path MTU keeps its length.
            len -= len % mss;
        }
        // The sender avoids the silly window syndrome (RFC 9293 section 3.8.6.2.1).
        let is_silly = len < mss && len < run && self.snd.outstanding() > 0;
        if is_silly {
            return None;
        }
        if let Some(urgency) = self.snd.buf.most_urgent() {
            let link = self.subflows[i].link();
            ctx.shared.claims.note(ctx.now, link, urgency);
        }
        let range = self.snd.map_next(len);
        // The amount of unsent data is bounded, so each send makes room for a waiting writer.
        self.signal_writable(ctx);
        Some(self.send_data(ctx, i, range, SegmentKind::New))
    }
}

impl Transport {
    /// Returns whether the peer's window holds new data back. A window with room for less than a segment is
    /// not used while data is outstanding (RFC 9293 section 3.8.6.2.1).
    // Conforms: 9293-3.8.6.2.1-1
    pub(super) fn is_window_used_up(&self) -> bool {
        let window = self.snd.peer_window();
        let mut usable = self.subflows.iter().filter(|s| s.can_carry()).peekable();
        // Usually a segment fits, so that the rest is seldom computed.
        let fits = |s: &Subflow| u64::from(s.snd.mss()) <= window;
        let is_silly = usable.peek().is_some()
            && !usable.any(fits)
            && window < self.snd.buf.next_run()
            && self.snd.outstanding() > 0;
        window == 0 || is_silly
    }

    /// Returns whether there may be data to copy. A lone subflow has sent all data itself, so it can copy only
    /// data that a closed subflow lost.
    pub(super) fn may_copy(&self) -> bool {
        let scoreboard = &self.snd.scoreboard;
        (self.subflows.len() > 1 || scoreboard.lost() > 0)
            && scoreboard.has_outstanding()
            && self.mode.mptcp().is_some_and(|m| m.fully_established)
    }

    /// Fills `views` with the views of the usable subflows for the strategy. The views are written in place,
    /// because they are too large to return by value cheaply.
    fn show_subflows(
        &mut self,
        ctx: &Ctx<'_>,
        copying: bool,
        views: &mut ArrayVec<SubflowView, MAX_VIEWS>,
    ) {
        let usable = self.subflows.iter_mut().filter(|s| s.can_carry());
        for subflow in usable.take(MAX_VIEWS) {
            let ready = subflow.room(ctx.now) > 0;
            let copies = match copying && ready {
                true => self
                    .snd
                    .scoreboard
                    .copies(&mut subflow.place.cursors, subflow.place.slot),
                false => Copies::default(),
            };
            let claim = ctx.shared.claims.of(ctx.now, subflow.link());
            let others = subflow.load_of_others(&ctx.shared.loads);
            views.push(subflow.view(ready, copies, claim, others));
        }
    }

    /// Sends up to `max_len` bytes of data that was sent on another subflow. `penalise` is set if the strategy
    /// wants the window of the other subflow reduced.
    fn send_copy(
        &mut self,
        ctx: &mut Ctx<'_>,
        i: usize,
        max_len: u64,
        (data, penalise): (InFlight, bool),
    ) -> Option<Outgoing> {
        let start = data.start.max(self.snd.una());
        let end = data.end.min(self.snd.nxt).min(start + max_len);
        let was_shown = start < end && self.may_copy();
        debug_assert!(was_shown, "a strategy copied data that was not shown to it");
        if !was_shown {
            return None;
        }
        if penalise {
            self.subflows.penalise(ctx.now, data.last_sender);
        }
        let range = self.snd.buf.reach(start..end);
        Some(self.send_data(ctx, i, range, SegmentKind::Copy))
    }
}

impl Mode {
    /// Returns whether the peer may still lack our key. That is so for an opener until its first DATA_ACK.
    pub(super) fn keys_may_lack(&self) -> bool {
        self.mptcp().is_some_and(|m| !m.fully_established)
    }
}

impl Subflows {
    /// Returns whether any view would show its subflow as ready. Views are costly, so this is checked first.
    pub(super) fn is_any_ready(&self, ctx: &Ctx<'_>) -> bool {
        let usable = self.iter().filter(|s| s.can_carry());
        usable.take(MAX_VIEWS).any(|s| s.room(ctx.now) > 0)
    }

    /// Returns the index of the subflow that a strategy chose, or `None` if the subflow is not ready. A send
    /// on a subflow without room would emit empty packets for ever.
    pub(super) fn chosen(&self, ctx: &Ctx<'_>, id: SubflowId) -> Option<usize> {
        let ready = |i: &usize| {
            let subflow = &self[*i];
            subflow.can_carry() && subflow.room(ctx.now) > 0
        };
        let i = self.index_of(id).filter(ready);
        debug_assert!(i.is_some(), "a strategy chose a subflow that is not ready");
        i
    }

    /// Reduces the window of the subflow that sent copied data last, at most once a round trip.
    pub(super) fn penalise(&mut self, now: Instant, last_sender: SubflowId) {
        if let Some(i) = self.index_of(last_sender) {
            let subflow = &mut self[i];
            if subflow.penalised_until <= now {
                subflow.penalised_until = now + subflow.snd.rtt.srtt();
                subflow.snd.cc.penalise();
            }
        }
    }

    /// Returns the maximum number of bytes of the opener's first mapping. No data can follow this mapping before
    /// its DATA_ACK, so it takes the whole initial window, whatever the strategy's limit. No other subflow
    /// exists yet that could take a part of it.
    pub(super) fn first_flight(&self, ctx: &Ctx<'_>, i: usize) -> u64 {
        let subflow = &self[i];
        let max_len = max_mapping_len(subflow).min(subflow.snd.initial_flight());
        subflow.room(ctx.now).min(max_len)
    }

    /// Returns the maximum number of bytes of one send on subflow `i` now: windows, pacing burst and device
    /// bound it.
    pub(super) fn chunk(&self, ctx: &Ctx<'_>, i: usize) -> u64 {
        let subflow = &self[i];
        let max_len = match subflow.mtu_probe_payload(ctx.now) {
            Some(probe_len) => probe_len,
            // Only one segment must carry CWR, but a device may copy CWR to every segment of a super-segment.
            None if subflow.owes_cwr() => u64::from(subflow.snd.mss()),
            None => max_payload_total(subflow, ctx),
        };
        subflow.room(ctx.now).min(subflow.snd.burst()).min(max_len)
    }
}
