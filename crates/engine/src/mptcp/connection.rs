//! A connection: one byte stream each way over one or more subflows.

use core::ops::Range;
use std::collections::VecDeque;
use std::io::{IoSlice, IoSliceMut};

use braid_wire::mptcp::{CapableFlags, ResetReason};
use braid_wire::{Dsn64, Instant, Rng};
use foldhash::SharedSeed;
use foldhash::fast::SeedableRandomState;
use hashbrown::HashMap;

use super::busy::Busy;
use super::ending::ResetKind;
use super::flight::Flight;
use super::flow::{Flow, Marks};
use super::joins::Joins;
use super::keys::Keys;
use super::opening::SynData;
use super::signal::Signals;
use super::subflow::{Opens, Phase, Subflow};
use super::window::WindowSize;
use crate::buffer::{BLOCK_SIZE, Data, InsertError, Pool, RangeSet, RecvBuffer, SendBuffer};
use crate::cc::Algorithm;
use crate::event::{CloseReason, SubflowCloseReason};
use crate::path::{Blackholes, Claims, FastOpens, Path, PathManager, Records};
use crate::stats::{ConnStats, PathStats, StackStats};
use crate::strategy::{Strategy, StrategyEvent};
use crate::tcp::FourTuple;
use crate::tcp::numbers::Secret;
use crate::{ApiError, Class, Config, ConnId, Event, ListenerId, SubflowId, Urgency};

/// Window offered before anything is known; also the least a connection gets under pressure.
const MIN_WINDOW: usize = 64 << 10;
/// Unsent bytes buffered beyond the congestion windows, so that the sender never runs dry while
/// the application catches up.
const SEND_HEADROOM: u64 = 256 << 10;
/// Congestion windows count up to this: acknowledgements seldom free more at a time, and what waits
/// for longer has left the processor's caches when it is sent.
const MOST_AHEAD: u64 = 1 << 20;
/// Memory of a send buffer that may be empty: two blocks filled in part for each urgency. What goes
/// beyond, because urgent bytes were taken from among others, counts as if it were filled.
const PARTIAL_BLOCKS: usize = 2 * Urgency::COUNT * BLOCK_SIZE;

/// Bytes that may always be kept for subflows to repeat: a single segment takes a block or two.
const MIN_REPEATS: usize = 8 * crate::buffer::BLOCK_SIZE;

/// Who a packet belongs to.
#[derive(Debug)]
pub(crate) struct Demux {
    pub tuples: HashMap<FourTuple, (ConnId, SubflowId), SeedableRandomState>,
    /// Tokens of established MPTCP connections (RFC 8684 section 3.2).
    pub tokens: HashMap<u32, ConnId, SeedableRandomState>,
}

impl Demux {
    /// Seeded, so that nobody outside can choose 4-tuples that collide.
    pub fn new(rng: &mut Rng) -> Self {
        let hasher = SeedableRandomState::with_seed(rng.u64(), SharedSeed::global_fixed());
        Demux {
            tuples: HashMap::with_hasher(hasher.clone()),
            tokens: HashMap::with_hasher(hasher),
        }
    }
}

/// What a connection borrows from its stack for the time of a call.
pub(crate) struct Ctx<'a> {
    pub now: Instant,
    pub config: &'a Config,
    pub paths: &'a [Path],
    pub records: &'a mut Records,
    pub claims: &'a mut Claims,
    /// Paths on which only SYNs without MP_CAPABLE are answered.
    pub blackholes: &'a mut Blackholes,
    /// Paths on which SYN/ACKs come without MP_CAPABLE.
    pub stripped: &'a mut Blackholes,
    pub fast_opens: &'a mut FastOpens,
    pub pool: &'a mut Pool,
    pub secret: &'a Secret,
    pub rng: &'a mut Rng,
    pub events: &'a mut VecDeque<Event>,
    pub reports: &'a mut VecDeque<ConnStats>,
    pub stats: &'a mut StackStats,
    pub demux: &'a mut Demux,
    /// Connections that wait for memory to write into.
    pub starved: &'a mut VecDeque<ConnId>,
    pub scratch: &'a mut [u8; 128],
}

impl Ctx<'_> {
    /// Keys whose token is not in use here (RFC 8684 section 3.1).
    // Conforms: 8684-3.1-9, 8684-3.1-10
    pub fn fresh_keys(&mut self) -> Keys {
        loop {
            let keys = Keys::generate(self.rng);
            if !self.demux.tokens.contains_key(&keys.token) {
                return keys;
            }
        }
    }
}

/// Which protocol the connection speaks, with what each state knows.
#[derive(Debug)]
pub(crate) enum Mode {
    /// SYN with MP_CAPABLE sent; `checksum` says that it requires checksums.
    Opening { local: Keys, checksum: bool },
    /// SYN/ACK with MP_CAPABLE sent; one of the two SYNs requires checksums if `checksum` says so.
    Accepting { local: Keys, checksum: bool },
    /// MPTCP.
    Mptcp(Mptcp),
    /// Regular TCP: by choice, or fallen back.
    Tcp,
}

/// An MPTCP connection whose keys are known.
#[derive(Debug)]
pub(crate) struct Mptcp {
    pub local: Keys,
    pub remote: Keys,
    /// Ours.
    pub flags: CapableFlags,
    /// The opener has seen a DATA_ACK, or the listener the third ACK: fully established.
    pub confirmed: bool,
    /// Mappings carry checksums both ways (RFC 8684 section 3.3.1).
    pub checksum: bool,
    /// The peer sends 8-byte DSNs and so is owed 8-byte DATA_ACKs (RFC 8684 section 3.3.1).
    pub wide_ack: bool,
    /// This side is fast enough to owe 8-byte DSNs.
    pub wide_dsn: bool,
    /// The peer may have sent on a further subflow.
    pub joined: bool,
    /// What stands before the numbered part of either stream.
    pub syn_data: SynData,
}

/// Where the closing of the sending direction stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SendFin {
    Open,
    /// To be sent after the data.
    Queued,
    Sent,
    Acked,
}

/// The sending direction, in stream offsets (the first byte is 0).
#[derive(Debug)]
pub(crate) struct SendSide {
    pub buf: SendBuffer,
    /// Next offset never sent: what is written gets its offset when it is first sent.
    pub nxt: u64,
    /// First offset past the peer's window.
    pub wnd_end: u64,
    pub fin: SendFin,
    /// Every copy of the last byte carries DATA_FIN. One of the copies alone must not: where it
    /// comes last the peer throws it away, and Linux then waits for ever for what it says it knows.
    pub fin_rides: bool,
    /// Who carries what was sent and not acknowledged; empty in regular TCP.
    pub flight: Flight,
    /// Bytes that were late before they were sent.
    pub dropped: u64,
    /// A write of this urgency found no room; the most urgent one, if several did.
    pub blocked: Option<Urgency>,
}

impl SendSide {
    /// First offset not acknowledged at the data level.
    pub fn una(&self) -> u64 {
        self.buf.start()
    }

    pub fn unsent(&self) -> u64 {
        self.buf.end() - self.nxt
    }

    pub fn unsent_by_urgency(&self) -> [u64; Urgency::COUNT] {
        self.buf.unmapped()
    }

    /// Bytes that go before what is written with `urgency`.
    fn unsent_before(&self, urgency: Urgency) -> u64 {
        self.buf.unmapped()[..=urgency.index()].iter().sum()
    }

    /// Gives up to `max` unsent bytes, the most urgent ones, their place in the stream: they are to
    /// be sent now. They are of one urgency, so they can be less than `max`.
    pub fn map_next(&mut self, max: u64) -> Range<u64> {
        let range = self.buf.map_next(max);
        self.nxt = range.end;
        range
    }

    pub fn outstanding(&self) -> u64 {
        self.nxt - self.una()
    }

    pub fn peer_window(&self) -> u64 {
        self.wnd_end.saturating_sub(self.nxt)
    }

    /// What holds after every call: acknowledged, sent and written stand in this order.
    fn invariants(&self) {
        let (una, nxt, end) = (self.una(), self.nxt, self.buf.end());
        debug_assert!(una <= nxt && nxt <= end, "{una}, {nxt}, {end}");
        debug_assert_eq!(nxt, self.buf.nxt());
        self.flight.invariants(una..nxt);
        debug_assert!(self.fin != SendFin::Acked || una == end);
    }
}

/// The receiving direction.
#[derive(Debug)]
pub(crate) struct RecvSide {
    pub buf: RecvBuffer,
    /// Offset of the peer's DATA_FIN, once known.
    pub fin: Option<u64>,
    /// How much the reader is trusted with.
    pub window: WindowSize,
    /// Right edge of the largest window announced.
    pub edge: u64,
    /// `Readable` was reported and nothing read since.
    pub signalled: bool,
    /// Bytes that came although they were here.
    pub duplicate: u64,
}

/// What [`RecvSide::insert`] did with bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Inserted {
    /// How many at their end lie beyond the window.
    pub refused: usize,
    /// How many were here.
    pub duplicate: u64,
}

impl RecvSide {
    /// Stores `data`, whose first byte is byte `at` of the stream.
    // Conforms: 8684-3.3.1-11
    pub fn insert(
        &mut self,
        at: u64,
        data: Data<'_>,
        pool: &mut Pool,
    ) -> Result<Inserted, InsertError> {
        let len = data.len();
        let done = self.buf.insert(at, data, pool)?;
        let duplicate = (len - done.refused) as u64 - done.new_bytes;
        self.duplicate += duplicate;
        Ok(Inserted {
            refused: done.refused,
            duplicate,
        })
    }

    /// Whether everything the peer will ever send is here.
    pub fn complete(&self) -> bool {
        self.fin == Some(self.buf.rcv_nxt())
    }

    /// One past the last byte that is here, behind holes or not.
    pub fn here(&self) -> u64 {
        let behind = self.buf.out_of_order().max_end();
        behind.unwrap_or(0).max(self.buf.rcv_nxt())
    }

    /// What holds after every call: nothing lies behind the end of the stream, and what was promised
    /// is there.
    fn invariants(&self) {
        debug_assert!(self.fin.is_none_or(|fin| self.here() <= fin));
        debug_assert!(self.edge <= self.buf.max_offset());
        debug_assert!(self.buf.next() <= self.buf.rcv_nxt());
    }
}

/// Life of a connection as its user sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Life {
    /// Handshake under way.
    Opening {
        since: Instant,
    },
    Open,
    /// `Closed` was reported; only acknowledgements are still exchanged.
    Ended {
        at: Instant,
        reason: CloseReason,
    },
}

/// The peer is told that the rest of our stream follows in order, by the infinite mapping: the path
/// may drop options in one direction only.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Farewell {
    /// Number of the stream's first byte.
    pub first: Dsn64,
    pub wide: bool,
    pub checksum: bool,
    /// Told until the peer acknowledges more of the subflow than this, so something that told it.
    pub until: u64,
    /// What MP_FAIL says, and how often it still does unless it is answered (section 3.7).
    pub fail: Option<(Dsn64, u32)>,
}

/// Waiting for a sign of life.
#[derive(Debug, Clone, Default)]
pub(crate) struct Liveness {
    pub last_heard: Instant,
    /// Last time payload moved.
    pub last_payload: Instant,
    /// How long it had something to deliver.
    pub busy: Busy,
    /// Since when an answer is owed.
    pub waiting_since: Option<Instant>,
    /// When the peer reset the last subflow of a connection that it has opened.
    pub abandoned_at: Option<Instant>,
    /// Stall probe: when it is due, and how often it went unanswered.
    pub stall_at: Option<Instant>,
    pub stall_tries: u32,
    /// Since when the peer's DATA_ACK is behind what was sent, and where it stands.
    pub behind: Option<(Instant, u64)>,
    /// Since when the peer has no subflow left to send the rest of its stream on.
    pub left: Option<Instant>,
    /// What was sent once more last because the peer had dropped it above its subflows.
    pub resent: Option<Range<u64>>,
    /// When the strategy wants to be asked again.
    pub ask_at: Option<Instant>,
    /// The strategy knows that new data waits for the peer's window.
    pub told_blocked: bool,
    /// When the DATA_FIN is repeated.
    pub fin_at: Option<Instant>,
    pub fin_tries: u32,
}

#[derive(Debug)]
pub(crate) struct Connection {
    pub id: ConnId,
    pub listener: Option<ListenerId>,
    pub mode: Mode,
    pub life: Life,
    pub strategy: Box<dyn Strategy>,
    pub flow: Flow,
    /// Of writes that name none.
    pub urgency: Urgency,
    /// Congestion control, where it is not what the urgency says.
    congestion: Option<Algorithm>,
    pub subflows: Vec<Subflow>,
    /// What subflows that are gone moved, by path.
    pub gone: Vec<PathStats>,
    pub next_subflow: u32,
    pub snd: SendSide,
    pub rcv: RecvSide,
    /// What the peer is told after a fallback.
    pub farewell: Option<Farewell>,
    pub live: Liveness,
    pub paths: PathManager,
    pub joins: Joins,
    /// What the peer is to be told beside the data.
    pub signals: Signals,
    /// Earliest entry of this connection in the stack's timer heap.
    pub scheduled: Option<Instant>,
    /// In the stack's queue of connections that wait for memory.
    pub starved: bool,
    /// What it belongs to, and how many blocks were charged to that.
    pub group: Option<u32>,
    pub charged: usize,
    /// Its place among those who wait for their group to have less.
    pub crowded: Option<u64>,
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
            id,
            listener: None,
            mode,
            life: Life::Opening { since: now },
            strategy,
            flow: Flow::default(),
            urgency: Urgency::default(),
            congestion: None,
            subflows: Vec::new(),
            gone: Vec::new(),
            next_subflow: 0,
            snd: SendSide {
                buf: SendBuffer::new(0),
                nxt: 0,
                wnd_end: 0,
                fin: SendFin::Open,
                fin_rides: false,
                flight: Flight::default(),
                dropped: 0,
                blocked: None,
            },
            rcv: RecvSide {
                buf: RecvBuffer::new(0, MIN_WINDOW as u64),
                window: WindowSize::default(),
                fin: None,
                edge: 0,
                signalled: false,
                duplicate: 0,
            },
            farewell: None,
            live: Liveness::default(),
            paths,
            joins: Joins::default(),
            signals: Signals::default(),
            scheduled: None,
            starved: false,
            group: None,
            charged: 0,
            crowded: None,
        }
    }

    pub fn index_of(&self, id: SubflowId) -> Option<usize> {
        self.subflows.iter().position(|s| s.id == id)
    }

    pub fn mptcp(&self) -> Option<&Mptcp> {
        match &self.mode {
            Mode::Mptcp(m) => Some(m),
            _ => None,
        }
    }

    pub fn mptcp_mut(&mut self) -> Option<&mut Mptcp> {
        match &mut self.mode {
            Mode::Mptcp(m) => Some(m),
            _ => None,
        }
    }

    pub fn is_open(&self) -> bool {
        self.life == Life::Open
    }

    /// Whether the handshake of an accepted connection is under way.
    pub fn is_half_open(&self) -> bool {
        let opens = |s: &Subflow| s.opens == Opens::Connection && s.phase == Phase::SynReceived;
        !self.is_ended() && self.subflows.iter().any(opens)
    }

    pub fn is_ended(&self) -> bool {
        matches!(self.life, Life::Ended { .. })
    }

    /// The class of writes that name none.
    pub fn class(&self) -> Class {
        Class {
            urgency: self.urgency,
            ..Class::default()
        }
    }

    /// Stands back behind other connections, or no longer does, as `urgency` says.
    pub fn set_urgency(&mut self, config: &Config, urgency: Urgency) {
        let before = self.congestion(config).name();
        self.urgency = urgency;
        let congestion = self.congestion(config);
        if congestion.name() != before {
            self.run_congestion(congestion);
        }
    }

    /// Runs `congestion` from now on, on whatever subflows, whatever the urgency.
    pub fn set_congestion(&mut self, congestion: Algorithm) {
        self.congestion = Some(congestion);
        self.run_congestion(congestion);
    }

    /// Congestion control of its subflows.
    pub fn congestion(&self, config: &Config) -> Algorithm {
        let usual = config.congestion_of(self.urgency);
        self.congestion.unwrap_or(usual)
    }

    fn run_congestion(&mut self, congestion: Algorithm) {
        for subflow in &mut self.subflows {
            subflow.snd.set_congestion(congestion);
        }
    }

    /// What is written from now on is another flow.
    pub fn begin_flow(&mut self, ctx: &Ctx<'_>, strategy: Box<dyn Strategy>) {
        self.flow = Flow::begin(Marks {
            sent: self.snd.buf.end(),
            copied: self.snd.flight.copied(),
            received: self.rcv.buf.next(),
        });
        self.set_strategy(ctx, strategy);
    }

    /// Nothing more is written of the flow.
    pub fn end_flow(&mut self, ctx: &mut Ctx<'_>) {
        self.flow.end(self.snd.buf.end());
        self.signal_delivered(ctx);
    }

    /// Reports that a flow that has ended has arrived, once.
    pub fn signal_delivered(&mut self, ctx: &mut Ctx<'_>) {
        if self.flow.arrives(self.snd.una(), self.snd.buf.end()) {
            self.remember(ctx);
            ctx.events.push_back(Event::FlowDelivered { conn: self.id });
        }
    }

    /// What it found of the paths is there for others.
    fn remember(&mut self, ctx: &mut Ctx<'_>) {
        let working = |s: &&mut Subflow| s.is_established() && !s.signs.stale;
        for subflow in self.subflows.iter_mut().filter(working) {
            subflow.remember(ctx.now, ctx.records);
        }
    }

    /// Transmits by another strategy from now on.
    pub fn set_strategy(&mut self, ctx: &Ctx<'_>, strategy: Box<dyn Strategy>) {
        self.strategy = strategy;
        for subflow in self.subflows.iter().filter(|s| s.is_established()) {
            self.strategy.on_event(&StrategyEvent::SubflowUp {
                subflow: subflow.id,
                record: subflow.record(ctx.records),
            });
        }
    }

    /// How urgent what it has to send is: `None` where it may be something small that waits for no
    /// data (an acknowledgement, a probe, a handshake, an end), or data that is sent again.
    pub fn next_urgency(&self, now: Instant) -> Option<Urgency> {
        let urgency = self.snd.buf.most_urgent();
        let told = self.signals_at().is_some_and(|at| at <= now);
        let owes = told || self.subflows.iter().any(|s| s.owes(now));
        urgency.filter(|_| !owes)
    }

    /// Registers a subflow and its 4-tuple.
    pub fn add_subflow(&mut self, ctx: &mut Ctx<'_>, subflow: Subflow) {
        ctx.demux
            .tuples
            .insert(subflow.tuple, (self.id, subflow.id));
        self.subflows.push(subflow);
    }

    // --- the application's side

    /// Bytes of `urgency` that the application may write now.
    pub fn send_space(&self, config: &Config, urgency: Urgency) -> usize {
        if self.snd.fin != SendFin::Open || self.is_ended() {
            return 0;
        }
        // What waits to be sent is bounded by what the windows take; what is in flight by memory
        // only, so that one path's hole does not stop the others. What lets the new bytes pass does
        // not keep them out.
        let cwnd: u64 = self.subflows.iter().map(|s| s.snd.cwnd()).sum();
        let ahead = cwnd.min(MOST_AHEAD) + SEND_HEADROOM;
        let ahead = ahead.saturating_sub(self.snd.unsent_before(urgency));
        let held = self.snd.buf.memory().saturating_sub(PARTIAL_BLOCKS);
        let room = config
            .send_buffer
            .saturating_sub(self.snd.buf.len().max(held));
        room.min(usize::try_from(ahead).unwrap_or(usize::MAX))
    }

    pub fn write_with<E: From<ApiError>>(
        &mut self,
        ctx: &mut Ctx<'_>,
        class: Class,
        max: usize,
        fill: impl FnOnce(&mut [IoSliceMut<'_>]) -> Result<usize, E>,
    ) -> Result<usize, E> {
        if self.snd.fin != SendFin::Open || self.is_ended() {
            return Err(ApiError::SendClosed.into());
        }
        let max = max.min(self.send_space(ctx.config, class.urgency));
        let max = match ctx.pool.is_over(self.group) {
            true => 0,
            false => max,
        };
        let mut slices = self.snd.buf.write_slices(ctx.pool, class, max);
        if slices.is_empty() {
            let blocked = self.snd.blocked.unwrap_or(Urgency::LEAST);
            self.snd.blocked = Some(blocked.min(class.urgency));
            return Ok(0);
        }
        let filled = fill(&mut slices);
        drop(slices);
        let n = *filled.as_ref().unwrap_or(&0);
        self.snd.buf.commit(n, ctx.pool);
        filled
    }

    pub fn read_with<E: From<ApiError>>(
        &mut self,
        ctx: &mut Ctx<'_>,
        drain: impl FnOnce(&[IoSlice<'_>]) -> Result<usize, E>,
    ) -> Result<usize, E> {
        self.rcv.signalled = false;
        if self.rcv.buf.readable() == 0 {
            return Ok(0);
        }
        let slices: arrayvec::ArrayVec<IoSlice<'_>, { crate::buffer::READ_SLICES }> = self
            .rcv
            .buf
            .slices()
            .into_iter()
            .map(IoSlice::new)
            .collect();
        let n = drain(&slices)?;
        drop(slices);
        let n = n.min(self.rcv.buf.readable());
        self.rcv.buf.consume(n, ctx.pool);
        let max = ctx.config.recv_buffer as u64;
        self.rcv.window.on_read(ctx.now, n as u64, max);
        self.pass_checked(ctx);
        self.update_window(ctx);
        self.finish_if_done(ctx);
        Ok(n)
    }

    /// Both directions are closed and acknowledged; at most reading is left to do.
    pub fn is_through(&self) -> bool {
        self.snd.fin == SendFin::Acked && self.rcv.complete()
    }

    /// All data of both directions has arrived, and only their ends may have to be agreed on.
    pub fn is_ending(&self) -> bool {
        let all_sent = self.snd.unsent() == 0 && self.snd.outstanding() == 0;
        self.snd.fin != SendFin::Open && all_sent && self.rcv.complete()
    }

    pub fn read_finished(&self) -> bool {
        self.rcv.complete() && self.rcv.buf.readable() == 0
    }

    // --- what both directions share

    /// Sets how much may be received: what the reader takes, at most what is fair while others need
    /// memory too, so that many stalled readers share what there is and none holds it all.
    // Conforms: 8684-3.3.4-1, 9293-3.8.6-1
    pub fn size_window(&mut self, ctx: &Ctx<'_>) {
        let fair = ctx.pool.fair() * BLOCK_SIZE;
        let most = fair.min(ctx.config.recv_buffer) as u64;
        let least = MIN_WINDOW.min(ctx.config.recv_buffer) as u64;
        let limit = self.rcv.window.get().min(most).max(least);
        // The right edge of a window never moves back (RFC 9293 section 3.8.6).
        let promised = self.rcv.edge.saturating_sub(self.rcv.buf.next());
        self.rcv.buf.set_limit(limit.max(promised));
    }

    /// Whether memory is used up to the reserve, or the group's part of it, and this connection holds its
    /// share already: what is left is for readers that take what comes.
    pub fn holds_too_much(&self, ctx: &Ctx<'_>) -> bool {
        // What waits behind a hole does not count: the reserve is there to fill the hole.
        let held = self.rcv.buf.readable();
        let scarce = ctx.pool.unreserved() == 0 || ctx.pool.is_over(self.group);
        scarce && held >= BLOCK_SIZE || ctx.pool.is_out(self.group)
    }

    /// Returns whether it has any memory of the pool.
    pub fn holds_memory(&self) -> bool {
        self.snd.buf.blocks() > 0 || self.rcv.buf.memory() > 0
    }

    /// Has its group answer for what it holds now.
    pub fn charge(&mut self, pool: &mut Pool) {
        let Some(group) = self.group else {
            return;
        };
        let waiting = self.subflows.iter().filter_map(|s| s.rcv.held.as_ref());
        let received = waiting.map(RecvBuffer::memory).sum::<usize>() + self.rcv.buf.memory();
        let held = self.snd.buf.blocks() + received / BLOCK_SIZE;
        pool.charge(group, self.charged, held);
        self.charged = held;
    }

    /// Belongs to `group` from now on.
    pub fn join_group(&mut self, pool: &mut Pool, group: u32) {
        if let Some(old) = self.group.replace(group) {
            pool.charge(old, self.charged, 0);
        }
        self.charged = 0;
        self.charge(pool);
    }

    /// After a read: tells the peer if the window grew by a good part (RFC 9293 section 3.8.6.2.2).
    // Conforms: 9293-3.8.6.2.2-1
    fn update_window(&mut self, ctx: &mut Ctx<'_>) {
        // A peer that has sent everything has no use for it, and may have forgotten the connection:
        // then it would answer by RST.
        if self.rcv.complete() {
            return;
        }
        self.size_window(ctx);
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

    /// Reports readable data once.
    pub fn signal_readable(&mut self, ctx: &mut Ctx<'_>) {
        if !self.rcv.signalled && !self.is_ended() {
            self.rcv.signalled = true;
            ctx.events.push_back(Event::Readable { conn: self.id });
        }
    }

    /// Whether a write finds no memory.
    pub fn lacks_memory(&self, pool: &Pool) -> bool {
        pool.allowance(self.snd.buf.blocks()) == 0 || pool.is_over(self.group)
    }

    /// Reports room for writing once a write has found none and a fair part is free again.
    pub fn signal_writable(&mut self, ctx: &mut Ctx<'_>) {
        let fair = (SEND_HEADROOM as usize).min(ctx.config.send_buffer) / 4;
        if let Some(urgency) = self.snd.blocked
            && self.send_space(ctx.config, urgency) >= fair
        {
            if self.lacks_memory(ctx.pool) {
                return;
            }
            self.snd.blocked = None;
            ctx.events.push_back(Event::Writable { conn: self.id });
        }
    }

    /// Nothing more is written: no memory is waited for.
    pub fn stop_writing(&mut self, ctx: &mut Ctx<'_>) {
        self.snd.blocked = None;
        if core::mem::take(&mut self.starved) {
            ctx.starved.retain(|waiting| *waiting != self.id);
        }
    }

    /// Gives back what was kept for subflows to repeat and is not needed any more. Nobody's memory is
    /// held for long: past a bound the subflow that needs most is reset, and opened again as after
    /// any failure (RFC 8684 section 3.6); where nothing is left and others wait for it, one that timed
    /// out at once: to have used up its own share takes nothing from them.
    /// Returns whether one is reset.
    // Conforms: 8684-3.3.2-2
    pub fn bound_repeats(&mut self, ctx: &mut Ctx<'_>) -> bool {
        if self.snd.buf.kept() == 0 {
            return false;
        }
        let others_wait = ctx.starved.len() > usize::from(self.starved);
        let pressed = others_wait && ctx.pool.unreserved() == 0;
        let most = ctx.config.send_buffer.max(MIN_REPEATS);
        let waits = |s: &Subflow| s.is_established() && !s.snd.board.is_empty();
        if !pressed && self.snd.buf.kept() < most && self.subflows.iter().any(waits) {
            return false;
        }
        let una = self.snd.una();
        self.snd.buf.forget(&repeats(&self.subflows, una), ctx.pool);
        self.signal_writable(ctx);
        let too_much = self.snd.buf.kept() >= most;
        let needs = |s: &Subflow| repeats(core::slice::from_ref(s), una).bytes();
        let worst = self
            .subflows
            .iter_mut()
            .filter(|s| (too_much || (pressed && s.signs.stale)) && needs(s) > 0)
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

    /// Ends the connection for its user; subflows are reset where the peer still knows them.
    // Conforms: 8684-3.5-4
    pub fn fail(&mut self, ctx: &mut Ctx<'_>, reason: CloseReason) {
        if self.is_ended() {
            return;
        }
        self.end(ctx, reason);
        for subflow in &mut self.subflows {
            match subflow.phase {
                Phase::SynSent | Phase::Closed => subflow.close(SubflowCloseReason::Finished),
                _ => {
                    // A peer that closed the connection itself has nothing to be told, and one that
                    // does not know the subflow yet could not tell that it is meant.
                    subflow.ending.insists =
                        subflow.is_established() && reason != CloseReason::Reset;
                    subflow.begin_reset(ResetKind::FastClose, SubflowCloseReason::Finished);
                }
            }
        }
    }

    /// Reports the end and frees what only the user needed.
    pub fn end(&mut self, ctx: &mut Ctx<'_>, reason: CloseReason) {
        let unknown = matches!(self.life, Life::Opening { .. }) && self.listener.is_some();
        if !unknown {
            self.watch_busy(ctx.now);
            ctx.reports.push_back(self.stats(ctx.config));
            ctx.events.push_back(Event::Closed {
                conn: self.id,
                reason,
            });
        }
        // Its subflows may linger on, but the next connection may come at once.
        self.remember(ctx);
        self.life = Life::Ended {
            at: ctx.now,
            reason,
        };
        self.stop_writing(ctx);
        self.snd.buf.clear(ctx.pool);
        self.snd.nxt = self.snd.buf.end();
        self.snd.flight.clear();
        if self.rcv.buf.readable() > 0 {
            // A stream cut off before its end was read must not look finished.
            self.rcv.fin = None;
        }
        self.rcv.buf.clear(ctx.pool);
        for subflow in &mut self.subflows {
            subflow.rcv.drop_held(ctx.pool);
        }
        if let Mode::Mptcp(m) = &self.mode {
            ctx.demux.tokens.remove(&m.local.token);
        }
    }
}

impl Connection {
    /// What holds after every call, of it and of its subflows.
    pub fn invariants(&self) {
        self.snd.invariants();
        self.rcv.invariants();
        debug_assert!(self.subflows.is_sorted_by(|a, b| a.id < b.id));
        for subflow in self.subflows.iter().filter(|s| s.is_established()) {
            subflow.snd.invariants();
            subflow.rcv.invariants();
            if self.is_ended() {
                continue;
            }
            // Whatever a subflow may have to repeat is there. To look at all of it takes too long.
            let mut board = subflow.snd.board.iter().filter(|sent| !sent.fin);
            for sent in [board.next(), board.next_back()].into_iter().flatten() {
                let data = sent.data();
                debug_assert!(data.end <= self.snd.nxt, "{sent:?}");
                let there: usize = self.snd.buf.slices(data).iter().map(|s| s.len()).sum();
                debug_assert_eq!(there as u64, sent.len(), "{sent:?}");
            }
        }
        if self.is_ended() {
            debug_assert!(self.snd.buf.is_empty() && self.rcv.buf.readable() == 0);
            debug_assert!(!self.starved);
        }
    }
}

/// What subflows may have to repeat of the data below `una`, which the peer has: their sequence
/// numbers cannot be skipped, and a mapping names the original bytes (RFC 8684 section 3.3.6).
// Conforms: 8684-3.3.2-1
pub(super) fn repeats(subflows: &[Subflow], una: u64) -> RangeSet {
    let mut needed = RangeSet::new();
    for subflow in subflows.iter().filter(|s| s.is_established()) {
        for data in subflow.snd.board.data_below(una) {
            needed.insert(data);
        }
    }
    needed
}
