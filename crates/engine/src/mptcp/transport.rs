//! The protocol machine of a connection: keys, both directions of the stream, and the subflows.

use core::ops::Range;

use braid_wire::Instant;

use super::busy::Busy;
use super::ctx::Ctx;
use super::data_fin::DataClosing;
use super::fallback_notice::FallbackNotice;
use super::joins::Joins;
use super::mode::{Mode, Mptcp};
use super::share::Share;
use super::sides::{RecvSide, SendSide};
use super::signal::Signals;
use super::subflow::{Opens, Phase, Subflow};
use super::subflows::Subflows;
use crate::buffer::{BLOCK_SIZE, Pool, RangeSet, RecvBuffer};
use crate::cc::Algorithm;
use crate::event::CloseReason;
use crate::{ConnId, Event, ListenerId, SubflowId, Urgency};

/// The life of a connection as the application sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Life {
    /// The handshake is under way.
    Opening {
        since: Instant,
    },
    Open,
    /// The end was reported to the application. The subflows may still exchange acknowledgements, FINs and
    /// RSTs.
    Ended {
        at: Instant,
        reason: CloseReason,
    },
}

/// The state of waiting for signs of life.
#[derive(Debug, Clone, Default)]
pub(crate) struct Liveness {
    pub last_received: Instant,
    /// The time at which payload was last sent, received or acknowledged.
    pub last_payload: Instant,
    /// The durations with data to deliver and with a closed window.
    pub busy: Busy,
    /// The time since which the peer owes an answer.
    pub waiting_since: Option<Instant>,
    /// The time at which the peer reset the last subflow of a connection that the peer had opened.
    pub abandoned_at: Option<Instant>,
    /// The time of the next stall probe; `stall_tries` counts the probes without an effect.
    pub stall_at: Option<Instant>,
    pub stall_tries: u32,
    /// The time since which the DATA_ACK has stood still, and the offset at which it stands. `Some` only while
    /// data or a DATA_FIN is unacknowledged, or the window is closed.
    pub behind: Option<(Instant, u64)>,
    /// The time since which the peer has sent FIN on every established subflow although its stream has not ended.
    pub left: Option<Instant>,
    /// The range that was last sent again because the peer had dropped it at the data level.
    pub resent: Option<Range<u64>>,
    /// The time at which the strategy wants to be asked again.
    pub ask_at: Option<Instant>,
    /// Set if the strategy was told that new data waits for the peer's window.
    pub blocked_reported: bool,
}

/// The part of a connection that runs the protocol with the peer. The policy, which is strategy and path
/// manager, is in [`Connection`](super::connection::Connection).
#[derive(Debug)]
pub(crate) struct Transport {
    pub id: ConnId,
    /// The listener that accepted the connection.
    pub listener: Option<ListenerId>,
    pub mode: Mode,
    pub life: Life,
    pub subflows: Subflows,
    pub snd: SendSide,
    pub rcv: RecvSide,
    /// The progress of closing both directions.
    pub closing: DataClosing,
    pub fallback_notice: FallbackNotice,
    pub live: Liveness,
    pub joins: Joins,
    /// The pending signals to the peer beside the data.
    pub signals: Signals,
    pub share: Share,
}

impl Transport {
    pub fn new(id: ConnId, mode: Mode, now: Instant) -> Self {
        Transport {
            id,
            listener: None,
            mode,
            life: Life::Opening { since: now },
            subflows: Subflows::default(),
            snd: SendSide::new(),
            rcv: RecvSide::new(),
            closing: DataClosing::default(),
            fallback_notice: FallbackNotice::default(),
            live: Liveness::default(),
            joins: Joins::default(),
            signals: Signals::default(),
            share: Share::default(),
        }
    }

    pub fn is_open(&self) -> bool {
        self.life == Life::Open
    }

    /// Returns whether the handshake of an accepted connection is under way.
    pub fn is_half_open(&self) -> bool {
        let is_half_open =
            |s: &Subflow| s.opens == Opens::Connection && s.phase == Phase::SynReceived;
        !self.is_ended() && self.subflows.iter().any(is_half_open)
    }

    pub fn is_ended(&self) -> bool {
        matches!(self.life, Life::Ended { .. })
    }

    /// Returns the urgency of the next data to send. `None` means that there is no data, or that a segment is
    /// due that does not depend on new data (such as an acknowledgement, a probe or a handshake segment).
    pub fn next_urgency(&self, now: Instant) -> Option<Urgency> {
        let urgency = self.snd.buf.most_urgent()?;
        let signals = self.signals_at().is_some_and(|at| at <= now);
        let owes = signals || self.subflows.iter().any(|s| s.owes(now));
        (!owes).then_some(urgency)
    }

    /// Registers a subflow and its 4-tuple.
    pub fn add_subflow(&mut self, ctx: &mut Ctx<'_>, subflow: Subflow) {
        ctx.shared
            .demux
            .tuples
            .insert(subflow.tuple, (self.id, subflow.id));
        self.subflows.push(subflow);
    }

    /// Returns whether both directions are closed and all data has arrived and is acknowledged. At most the
    /// exchange of DATA_FINs and FINs remains then.
    pub fn is_ending(&self) -> bool {
        let all_sent = self.snd.unsent() == 0 && self.snd.outstanding() == 0;
        !self.closing.is_open() && all_sent && self.closing.is_peer_closed()
    }

    // --- both directions

    /// Charges the connection's group for the memory that the connection holds now.
    pub fn charge(&mut self, pool: &mut Pool) {
        if self.share.group.is_some() {
            let held = self.blocks();
            self.share.charge(pool, held);
        }
    }

    /// Returns the number of memory blocks that the connection holds.
    pub fn blocks(&self) -> usize {
        let held = self.subflows.iter().filter_map(|s| s.rcv.held.as_ref());
        let received = held.map(RecvBuffer::memory).sum::<usize>() + self.rcv.buf.memory();
        self.snd.buf.blocks() + received / BLOCK_SIZE
    }

    /// Returns whether the connection holds any memory of the pool.
    pub fn holds_memory(&self) -> bool {
        self.snd.buf.blocks() > 0 || self.rcv.buf.memory() > 0
    }

    /// Announces the window after a read if it can grow by at least a quarter of the receive limit. RFC 9293
    /// section 3.8.6.2.2 asks for a fraction of at most a half, or one segment. The value of a quarter is a
    /// guess: a larger fraction saves acknowledgements, and a smaller one keeps the window from running out.
    // Conforms: 9293-3.8.6.2.2-1
    pub(super) fn update_window(&mut self, ctx: &mut Ctx<'_>) {
        // A peer that has sent everything needs no window. It may even have forgotten the connection, and
        // would answer by RST.
        if self.rcv.complete() {
            return;
        }
        self.rcv.size_window(ctx.shared);
        let grown = self.rcv.buf.max_offset().saturating_sub(self.rcv.edge);
        let limit = self.rcv.buf.max_offset() - self.rcv.buf.next();
        if grown < limit / 4 {
            return;
        }
        for subflow in self
            .subflows
            .iter_mut()
            .filter(|s| s.is_established() && !s.signs.stale)
        {
            subflow.rcv.ack_now();
        }
    }

    /// Notes that payload was placed in the stream. The stream may be complete now.
    pub(super) fn note_placed(&mut self) {
        if self.rcv.complete() {
            self.closing.on_peer_fin();
        }
    }

    /// Reports that data is readable, unless that was reported since the last read.
    pub fn signal_readable(&mut self, ctx: &mut Ctx<'_>) {
        if !self.rcv.signalled && !self.is_ended() {
            self.rcv.signalled = true;
            let event = Event::Readable { conn: self.id };
            ctx.shared.events.push_back(event);
        }
    }

    /// Stops waiting for memory, because the application writes no more. `Stack::after` also removes the
    /// connection from the queue for its group's quota.
    pub fn stop_writing(&mut self, ctx: &mut Ctx<'_>) {
        self.snd.blocked = None;
        ctx.shared.leave_pool_queue(self.id, &mut self.share);
    }
}

impl Mode {
    pub fn mptcp(&self) -> Option<&Mptcp> {
        match self {
            Mode::Mptcp(m) => Some(m),
            _ => None,
        }
    }

    pub fn mptcp_mut(&mut self) -> Option<&mut Mptcp> {
        match self {
            Mode::Mptcp(m) => Some(m),
            _ => None,
        }
    }
}

impl Subflows {
    pub fn index_of(&self, id: SubflowId) -> Option<usize> {
        self.iter().position(|s| s.id == id)
    }

    /// Sets the congestion control of all subflows.
    pub(super) fn run_congestion(&mut self, congestion: Algorithm) {
        for subflow in self.iter_mut() {
            subflow.snd.set_congestion(congestion);
        }
    }

    /// Records the measurements of working subflows for other connections.
    pub(super) fn remember(&mut self, ctx: &mut Ctx<'_>) {
        let working = |s: &&mut Subflow| s.is_established() && !s.signs.stale;
        for subflow in self.iter_mut().filter(working) {
            subflow.remember(ctx.now, &mut ctx.shared.records);
        }
    }
}

impl Transport {
    /// Asserts the invariants of the connection and its subflows.
    pub fn invariants(&self) {
        self.snd.invariants();
        self.rcv.invariants();
        debug_assert!(!self.closing.is_acked() || self.snd.una() == self.snd.buf.end());
        debug_assert_eq!(self.closing.is_peer_closed(), self.rcv.complete());
        debug_assert!(self.subflows.is_sorted_by(|a, b| a.id < b.id));
        for subflow in self.subflows.iter().filter(|s| s.is_established()) {
            subflow.snd.invariants();
            subflow.rcv.invariants();
            if self.is_ended() {
                continue;
            }
            // The send buffer has all data that a subflow may retransmit. Only the first and the last record
            // are checked, because a full check takes too long.
            let mut board = subflow.snd.board.iter().filter(|sent| !sent.fin);
            for sent in [board.next(), board.next_back()].into_iter().flatten() {
                let data = sent.data();
                debug_assert!(data.end <= self.snd.nxt, "{sent:?}");
                let buffered: usize = self.snd.buf.slices(data).iter().map(|s| s.len()).sum();
                debug_assert_eq!(buffered as u64, sent.len(), "{sent:?}");
            }
        }
        if self.is_ended() {
            debug_assert!(self.snd.buf.is_empty() && self.rcv.buf.readable() == 0);
            debug_assert!(!self.share.waiting_for_pool);
        }
    }
}

/// Returns the data below `una` that subflows may have to retransmit although the peer has it. A subflow cannot
/// skip sequence numbers, and its mapping binds them to the original bytes (RFC 8684 section 3.3.6).
// Conforms: 8684-3.3.2-1
pub(super) fn retransmittable(subflows: &[Subflow], una: u64) -> RangeSet {
    let mut ranges = RangeSet::new();
    for subflow in subflows.iter().filter(|s| s.is_established()) {
        for data in subflow.snd.board.data_below(una) {
            ranges.insert(data);
        }
    }
    ranges
}
