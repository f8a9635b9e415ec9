//! A connection: one byte stream each way over one or more subflows.

use std::io::{IoSlice, IoSliceMut};

use braid_wire::Instant;
use braid_wire::mptcp::ResetReason;

use super::ctx::Ctx;
use super::ending::ResetKind;
use super::flow::{Flow, FlowStart};
use super::mode::Mode;
use super::profile::TransmissionProfile;
use super::shared::Shared;
use super::sides::SEND_HEADROOM;
use super::subflow::{Phase, Subflow};
use super::transport::{Life, Transport, retransmittable};
use crate::cc::Algorithm;
use crate::event::{CloseReason, SubflowCloseReason};
use crate::path::PathManager;
use crate::strategy::{Strategy, StrategyEvent};
use crate::{ApiError, Class, Config, ConnId, Event, Urgency};

/// The number of acknowledged bytes that a connection may keep for retransmissions, however small its send
/// buffer is. Memory is kept in whole blocks, and even one segment may take two blocks. The value of eight
/// blocks is a guess.
const MIN_RETAINED_BYTES: usize = 8 * crate::buffer::BLOCK_SIZE;

/// A connection: the protocol machine, the strategy that schedules its data, the path manager, and the current
/// flow.
#[derive(Debug)]
pub(crate) struct Connection {
    pub transport: Transport,
    pub strategy: Box<dyn Strategy>,
    pub flow: Flow,
    pub profile: TransmissionProfile,
    pub paths: PathManager,
    /// The time of this connection's valid entry in the stack's timer heap; other entries are outdated.
    pub scheduled: Option<Instant>,
}

impl Connection {
    pub fn new(
        id: ConnId,
        paths: PathManager,
        mode: Mode,
        strategy: Box<dyn Strategy>,
        now: Instant,
    ) -> Self {
        Connection {
            transport: Transport::new(id, mode, now),
            strategy,
            flow: Flow::default(),
            profile: TransmissionProfile::default(),
            paths,
            scheduled: None,
        }
    }

    /// Sets the urgency; the least urgent connections run a congestion control that yields to others.
    pub fn set_urgency(&mut self, config: &Config, urgency: Urgency) {
        if let Some(congestion) = self.profile.set_urgency(config, urgency) {
            self.transport.subflows.run_congestion(congestion);
        }
    }

    /// Runs `congestion` on all present and future subflows, regardless of the urgency.
    pub fn set_congestion(&mut self, congestion: Algorithm) {
        self.profile.congestion = Some(congestion);
        self.transport.subflows.run_congestion(congestion);
    }

    /// Begins another flow. It consists of all data written after this call.
    pub fn begin_flow(&mut self, ctx: &Ctx<'_>, strategy: Box<dyn Strategy>) {
        self.flow = Flow::begin(FlowStart {
            sent: self.transport.snd.buf.end(),
            copied: self.transport.snd.scoreboard.copied(),
            received: self.transport.rcv.buf.next(),
        });
        self.set_strategy(ctx, strategy);
    }

    /// Ends the flow: no more of its data will be written.
    pub fn end_flow(&mut self, ctx: &mut Ctx<'_>) {
        self.flow.end(self.transport.snd.buf.end());
        self.signal_delivered(ctx);
    }

    /// Reports that the ended flow has been delivered, if that is so and was not reported before.
    pub fn signal_delivered(&mut self, ctx: &mut Ctx<'_>) {
        if self
            .flow
            .take_delivered(self.transport.snd.una(), self.transport.snd.buf.end())
        {
            self.transport.subflows.remember(ctx);
            ctx.shared.events.push_back(Event::FlowDelivered {
                conn: self.transport.id,
            });
        }
    }

    /// Replaces the strategy, and tells the new one which subflows are established.
    pub fn set_strategy(&mut self, ctx: &Ctx<'_>, strategy: Box<dyn Strategy>) {
        self.strategy = strategy;
        for subflow in self
            .transport
            .subflows
            .iter()
            .filter(|s| s.is_established())
        {
            self.strategy.on_event(&StrategyEvent::SubflowUp {
                subflow: subflow.id,
                record: subflow.record(&ctx.shared.records),
            });
        }
    }

    /// Lets `fill` write up to `max` bytes of `class` into the send buffer
    /// ([`Stack::write_with`](crate::Stack::write_with)).
    pub fn write_with<E: From<ApiError>>(
        &mut self,
        ctx: &mut Ctx<'_>,
        class: Class,
        max: usize,
        fill: impl FnOnce(&mut [IoSliceMut<'_>]) -> Result<usize, E>,
    ) -> Result<usize, E> {
        if !self.transport.closing.is_open() || self.transport.is_ended() {
            return Err(ApiError::SendClosed.into());
        }
        let max = max.min(self.transport.send_space(&ctx.shared.config, class.urgency));
        let max = match ctx.shared.pool.is_over_quota(self.transport.share.group) {
            true => 0,
            false => max,
        };
        let buf = &mut self.transport.snd.buf;
        let mut slices = buf.write_slices(&mut ctx.shared.pool, class, max);
        if slices.is_empty() {
            // The most urgent blocked write finds room first, so its urgency decides when there is room again.
            let blocked = self.transport.snd.blocked.unwrap_or(Urgency::LEAST_URGENT);
            self.transport.snd.blocked = Some(blocked.min(class.urgency));
            return Ok(0);
        }
        let filled = fill(&mut slices);
        drop(slices);
        let n = *filled.as_ref().unwrap_or(&0);
        self.transport.snd.buf.commit(n, &mut ctx.shared.pool);
        filled
    }

    /// Lets `drain` read in-order data ([`Stack::read_with`](crate::Stack::read_with)).
    pub fn read_with<E: From<ApiError>>(
        &mut self,
        ctx: &mut Ctx<'_>,
        drain: impl FnOnce(&[IoSlice<'_>]) -> Result<usize, E>,
    ) -> Result<usize, E> {
        self.transport.rcv.signalled = false;
        if self.transport.rcv.buf.readable() == 0 {
            return Ok(0);
        }
        let slices: arrayvec::ArrayVec<IoSlice<'_>, { crate::buffer::READ_SLICES }> = self
            .transport
            .rcv
            .buf
            .slices()
            .into_iter()
            .map(IoSlice::new)
            .collect();
        let n = drain(&slices)?;
        drop(slices);
        let n = n.min(self.transport.rcv.buf.readable());
        self.transport.rcv.buf.consume(n, &mut ctx.shared.pool);
        let max = ctx.shared.config.recv_buffer as u64;
        self.transport.rcv.window.on_read(ctx.now, n as u64, max);
        self.deliver_verified(ctx);
        self.transport.update_window(ctx);
        self.finish_if_done(ctx);
        Ok(n)
    }

    /// Ends the connection at once for the application, and resets the subflows that the peer may know.
    // Conforms: 8684-3.5-4
    pub fn fail(&mut self, ctx: &mut Ctx<'_>, reason: CloseReason) {
        if self.transport.is_ended() {
            return;
        }
        self.end(ctx, reason);
        for subflow in self.transport.subflows.iter_mut() {
            match subflow.phase {
                Phase::SynSent | Phase::Closed => subflow.close(SubflowCloseReason::Finished),
                _ => {
                    // MP_FASTCLOSE is not repeated if the peer itself reset the connection, or if the peer may
                    // not know the subflow yet and could not match the option to a connection.
                    subflow.ending.repeats_abort =
                        subflow.is_established() && reason != CloseReason::Reset;
                    subflow.begin_reset(ResetKind::FastClose, SubflowCloseReason::Finished);
                }
            }
        }
    }

    /// Reports the end to the application, and frees all that only the application needed.
    pub fn end(&mut self, ctx: &mut Ctx<'_>, reason: CloseReason) {
        // An accepted connection is reported to the application only after its handshake.
        let was_never_reported = matches!(self.transport.life, Life::Opening { .. })
            && self.transport.listener.is_some();
        if !was_never_reported {
            self.transport.watch_busy(ctx.now);
            ctx.shared.reports.push_back(self.stats(&ctx.shared.config));
            ctx.shared.events.push_back(Event::Closed {
                conn: self.transport.id,
                reason,
            });
        }
        // The subflows record their measurements when they end, which may be later. The next connection may open
        // at once, so the measurements are recorded now as well.
        self.transport.subflows.remember(ctx);
        self.transport.life = Life::Ended {
            at: ctx.now,
            reason,
        };
        self.transport.stop_writing(ctx);
        self.transport.snd.buf.clear(&mut ctx.shared.pool);
        self.transport.snd.nxt = self.transport.snd.buf.end();
        self.transport.snd.scoreboard.clear();
        if self.transport.rcv.buf.readable() > 0 {
            // A stream that ends before all of it was read must not look finished.
            self.transport.rcv.fin = None;
            self.transport.closing.on_cut_off();
        }
        self.transport.rcv.buf.clear(&mut ctx.shared.pool);
        for subflow in self.transport.subflows.iter_mut() {
            subflow.rcv.drop_held(&mut ctx.shared.pool);
        }
        if let Mode::Mptcp(m) = &self.transport.mode {
            ctx.shared.demux.tokens.remove(&m.local.token);
        }
    }
}

impl Transport {
    // --- the application's side

    /// Returns the number of bytes of `urgency` that the application may write now.
    pub fn send_space(&self, config: &Config, urgency: Urgency) -> usize {
        if !self.closing.is_open() || self.is_ended() {
            return 0;
        }
        let cwnd = self.subflows.iter().map(|s| s.snd.cwnd()).sum();
        self.snd.space(config, cwnd, urgency)
    }

    /// Reports room for writing after a blocked write, once at least a quarter of the headroom is free, so
    /// that the application is not woken for a few bytes. The quarter is a guess.
    pub fn signal_writable(&mut self, ctx: &mut Ctx<'_>) {
        let min_space = (SEND_HEADROOM as usize).min(ctx.shared.config.send_buffer) / 4;
        if let Some(urgency) = self.snd.blocked
            && self.send_space(&ctx.shared.config, urgency) >= min_space
        {
            let blocks = self.snd.buf.blocks();
            if self.share.lacks_memory(&ctx.shared.pool, blocks) {
                return;
            }
            self.snd.blocked = None;
            let event = Event::Writable { conn: self.id };
            ctx.shared.events.push_back(event);
        }
    }

    /// Frees the acknowledged data that was retained for subflow retransmissions and is not needed any more.
    ///
    /// A peer must not pin memory by acknowledging data on one subflow only. So in two cases a subflow is reset,
    /// and opened again as after any failure (RFC 8684 section 3.6). If more than a send buffer is retained, the
    /// subflow that retains the most is reset. If the pool is exhausted and other connections wait for memory,
    /// the stale subflow that retains the most is reset. A connection that waits for the quota of its own group
    /// does not count, because that group holds it back, not the pool.
    ///
    /// Returns whether a subflow is reset.
    // Conforms: 8684-3.3.2-2
    pub fn bound_retained(&mut self, ctx: &mut Ctx<'_>) -> bool {
        if self.snd.buf.retained() == 0 {
            return false;
        }
        let others_wait =
            ctx.shared.waiting_for_pool.len() > usize::from(self.share.waiting_for_pool);
        let is_memory_short = others_wait && ctx.shared.pool.unreserved() == 0;
        let max_retained = ctx.shared.config.send_buffer.max(MIN_RETAINED_BYTES);
        let has_in_flight = |s: &Subflow| s.is_established() && !s.snd.board.is_empty();
        // The search for data that is not needed any more is costly, so it waits until it matters.
        if !is_memory_short
            && self.snd.buf.retained() < max_retained
            && self.subflows.iter().any(has_in_flight)
        {
            return false;
        }
        let una = self.snd.una();
        let needed = retransmittable(&self.subflows, una);
        self.snd.buf.forget(&needed, &mut ctx.shared.pool);
        self.signal_writable(ctx);
        let is_too_much = self.snd.buf.retained() >= max_retained;
        let needs = |s: &Subflow| retransmittable(core::slice::from_ref(s), una).bytes();
        let worst = self
            .subflows
            .iter_mut()
            .filter(|s| (is_too_much || (is_memory_short && s.signs.stale)) && needs(s) > 0)
            .max_by_key(|s| needs(s));
        let Some(subflow) = worst else {
            return false;
        };
        subflow.begin_reset(
            ResetKind::Subflow(ResetReason::TooMuchOutstanding),
            SubflowCloseReason::LackOfResources,
        );
        true
    }
}

impl Shared {
    /// Tells the application of `conn`, which waited for memory, that it can write again. If memory is still
    /// short, queues `conn` again instead.
    pub fn wake(&mut self, now: Instant, conn: &mut Transport) {
        conn.signal_writable(&mut self.ctx(now));
        self.queue_if_memory_lacks(conn);
    }

    /// Queues `conn` for memory, if a write was blocked and there is still no memory for it.
    pub fn queue_if_memory_lacks(&mut self, conn: &mut Transport) {
        let Transport { id, snd, share, .. } = conn;
        if snd.blocked.is_some() && share.lacks_memory(&self.pool, snd.buf.blocks()) {
            self.wait_for_memory(*id, share);
        }
    }
}
