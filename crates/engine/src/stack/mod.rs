//! The stack: all connections of one host.

mod change;
mod cookies;
mod fast_open;
mod foreign;
mod ingress;
mod listeners;
mod packet;
mod paths;
mod ready;
mod report;
mod silence;
mod table;

use core::net::{IpAddr, SocketAddr};
use core::time::Duration;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::io::{IoSlice, IoSliceMut};

use arrayvec::ArrayVec;
use braid_wire::{Instant, Rng, tcp};

use self::cookies::Cookies;
use self::fast_open::EndedEarly;
pub use self::foreign::{ForeignTraffic, PathLoad};
use self::ingress::StatelessReply;
use self::listeners::{Listener, Listeners};
pub(crate) use self::packet::Outside;
pub use self::packet::{RxMeta, SegmentKind, Transmit, TransmitInfo, TxChecksum};
use self::ready::Ready;
use self::table::Table;
use crate::cc::Algorithm;
use crate::mptcp::{Body, Connection, Ctx, Mode, Outgoing, Shared};
use crate::path::{PathManager, PathRecord};
use crate::stats::{ConnStats, Moved, StackStats, SubflowStats};
use crate::strategy::{FlowSize, Strategy};
use crate::tcp::FourTuple;
use crate::{
    ApiError, Class, Config, ConnId, ConnectOptions, Event, FallbackCause, JoinAuth, ListenerId,
    PathId, SubflowId, Urgency,
};

/// The minimum time from now to a new timer. Without this minimum, a driver whose clock has not advanced would
/// serve a timer set for now again and again. The value is a guess. It is below the precision of a driver's
/// sleep.
const TIMER_GRANULARITY: Duration = Duration::from_micros(10);

/// The maximum time by which a connection's timer may expire too early. Each acknowledgement moves the due time
/// of a busy connection later. If the timer followed the due time, the heap would fill with outdated entries.
/// Instead the timer stays, expires too early, and is then set again. The value is a guess; it allows one early
/// expiry a second.
const MAX_TIMER_LEAD: Duration = Duration::from_secs(1);

/// The number of entries that the timer heap may have beyond four for each connection. If it has more, the
/// outdated entries are removed. The removal looks at all entries, so it must be rare. The value is a guess.
const MAX_SPARE_TIMERS: usize = 64;

/// A factory that makes a strategy for each accepted connection, and for each further flow of a connection
/// ([`Stack::begin_flow`]).
pub type StrategyFactory = Box<dyn FnMut() -> Box<dyn Strategy> + Send>;

/// All connections of one host: demultiplexing by 4-tuple and token, listeners, timers.
///
/// # How to drive it
///
/// 1. Commands ([`connect`](Self::connect), [`write_with`](Self::write_with), …) and
///    [`receive`](Self::receive) change state and never block.
/// 2. After any of these calls, call [`poll_event`](Self::poll_event) until it returns `None`. Also call
///    [`poll_transmit`](Self::poll_transmit) until it returns `None`, and hand each packet to the device.
/// 3. Sleep until [`next_timeout`](Self::next_timeout). Then call [`handle_timeout`](Self::handle_timeout), and
///    go to step 2.
///
/// `now` must not go backwards. A received packet belongs to the path that owns its destination address.
pub struct Stack {
    shared: Shared,
    table: Table,
    strategy: StrategyFactory,
    listeners: Listeners,
    /// The timers of connections. If the time of an entry differs from the connection's `scheduled` time, the
    /// entry is outdated and is skipped.
    timers: BinaryHeap<Reverse<(Instant, ConnId)>>,
    /// The connections that may have something to send.
    ready: Ready,
    /// The answers to segments that belong to no connection. They are sent before all other packets.
    stateless_replies: VecDeque<StatelessReply>,
    /// Set once the stack is closing: no connection is opened any more.
    closing: bool,
    /// The SYN cookies; `None` unless SYNs were answered without state lately.
    cookies: Option<Cookies>,
    ended_early: EndedEarly,
    /// The earliest time of the next search for a silent connection.
    search_at: Instant,
    /// The payload that closed connections moved, by path.
    gone: Vec<Moved>,
    /// The payload moved under a path id before the id was given to another link, by path.
    renewed: Vec<Moved>,
    /// The connection whose end was polled last, with its final statistics.
    last_closed: Option<(ConnId, ConnStats)>,
}

impl core::fmt::Debug for Stack {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Stack")
            .field("connections", &self.table.len())
            .field("stats", &self.shared.stats)
            .finish_non_exhaustive()
    }
}

impl Stack {
    /// Creates a stack without paths. `strategy` makes the strategies of accepted connections.
    pub fn new(config: Config, rng: Rng, strategy: StrategyFactory) -> Self {
        Stack {
            shared: Shared::new(config, rng),
            table: Table::default(),
            strategy,
            listeners: Listeners::default(),
            timers: BinaryHeap::new(),
            ready: Ready::default(),
            stateless_replies: VecDeque::new(),
            closing: false,
            cookies: None,
            ended_early: EndedEarly::default(),
            search_at: Instant::ZERO,
            gone: Vec::new(),
            renewed: Vec::new(),
            last_closed: None,
        }
    }

    /// Runs `f` on all connections and reconciles each.
    fn with_all(&mut self, now: Instant, f: impl Fn(&mut Connection, &mut Ctx<'_>)) {
        for id in self.table.ids() {
            self.with(now, id, |conn, ctx| {
                f(conn, ctx);
                conn.reconcile(ctx);
            });
        }
    }

    /// Accepts connections to `addr`, a local address of some path.
    pub fn listen(&mut self, addr: SocketAddr) -> Result<ListenerId, ApiError> {
        if !self.shared.paths.iter().any(|p| p.config.owns(addr.ip())) {
            return Err(ApiError::NoUsablePath);
        }
        self.listeners.add(Listener::At(addr))
    }

    /// Accepts connections to every address and port that no other listener has, and answers from the address
    /// that the peer connected to (transparent interception, as with `IP_TRANSPARENT`). If no path owns that
    /// address, the connection belongs to `path`. Once there is such a listener, the stack answers segments of
    /// unknown connections by RST at any destination address, not only at its own. There is at most one such
    /// listener.
    pub fn listen_any(&mut self, path: PathId) -> Result<ListenerId, ApiError> {
        if self.listeners.any_path().is_some() {
            return Err(ApiError::AddressInUse);
        }
        if usize::from(path.0) >= self.shared.paths.len() {
            return Err(ApiError::NoUsablePath);
        }
        self.listeners.add(Listener::Any(path))
    }

    /// Opens a connection. Data may be written at once. The data is sent when the handshake is complete, or
    /// in the SYN if [`Config::fast_open`] is set and the server has granted a cookie before.
    pub fn connect(&mut self, now: Instant, options: ConnectOptions) -> Result<ConnId, ApiError> {
        if self.closing {
            return Err(ApiError::Closing);
        }
        if self.table.len() >= self.shared.config.max_connections {
            // A connection that `reclaim` ends keeps its place for a moment, so the caller has to try again.
            self.reclaim(now, None);
            return Err(ApiError::LimitReached);
        }
        let id = self.table.reserve();
        let paths = PathManager::opened(&options);
        // `open` sets the mode that the strategy chooses.
        let mut conn = Connection::new(id, paths, Mode::Tcp, options.strategy, now);
        conn.flow.size = options.flow_size;
        conn.profile.urgency = options.urgency;
        if let Err(error) = conn.open(&mut self.shared.ctx(now)) {
            self.table.release(id);
            return Err(error);
        }
        self.table.put(conn);
        self.after(now, id);
        Ok(id)
    }

    /// Runs `f` on a connection, and then calls [`after`](Self::after).
    fn with<R>(
        &mut self,
        now: Instant,
        id: ConnId,
        f: impl FnOnce(&mut Connection, &mut Ctx<'_>) -> R,
    ) -> Option<R> {
        let conn = self.table.get_mut(id)?;
        let result = f(conn, &mut self.shared.ctx(now));
        self.after(now, id);
        Some(result)
    }

    /// Asserts the invariants of the shared state and of connection `id`. Debug builds check them after each
    /// change, so tests, simulations and fuzzing do too.
    fn invariants(&self, id: ConnId) {
        let shared = &self.shared;
        debug_assert!(shared.pool.used_bytes() <= shared.pool.limit());
        debug_assert!(self.table.len() <= shared.config.max_connections);
        debug_assert!(self.table.fast_open() <= self.table.half_open());
        debug_assert!(self.table.half_open() <= self.table.len());
        debug_assert!(shared.waiting_for_pool.len() <= self.table.len());
        let Some(conn) = self.table.get(id) else {
            return;
        };
        conn.transport.invariants();
        debug_assert_eq!(
            conn.transport.share.waiting_for_pool,
            shared.waiting_for_pool.contains(&id)
        );
        debug_assert!(conn.transport.share.waiting_for_quota.is_none_or(|place| {
            let waits = conn
                .transport
                .share
                .group
                .map(|group| shared.waiting_for_quota.get(&(group, place)));
            waits == Some(Some(&id))
        }));
        debug_assert!(conn.transport.subflows.len() <= shared.config.max_subflows);
        for subflow in conn.transport.subflows.iter().filter(|s| s.is_alive()) {
            let owner = shared.demux.tuples.get(&subflow.tuple);
            debug_assert_eq!(owner, Some(&(id, subflow.id)));
        }
    }

    /// Updates timers, queues and counts after a change of connection `id`. Forgets the connection if it is due
    /// to be forgotten.
    fn after(&mut self, now: Instant, id: ConnId) {
        if cfg!(debug_assertions) {
            self.invariants(id);
        }
        self.recount_half_open(now, id);
        let Some(conn) = self.table.get_mut(id) else {
            return;
        };
        conn.transport.watch_stall(now);
        conn.transport.watch_busy(now);
        if conn.transport.forget_at().is_some_and(|at| at <= now) {
            self.forget(now, id);
            return;
        }
        // No timer is set here: `poll_transmit` sets it when it finds nothing more to send.
        self.ready.push(id, conn.transport.next_urgency(now));
        conn.transport.charge(&mut self.shared.pool);
        conn.transport.subflows.count_loads(&mut self.shared.loads);
        self.shared.queue_if_memory_lacks(&mut conn.transport);
        // A connection that does not wait to write must not hold up the connections behind it in the queue.
        if conn.transport.snd.blocked.is_none() {
            self.shared.leave_quota_queue(&mut conn.transport.share);
        }
        self.wake_pool_waiters(now);
        self.reclaim_under_pressure(now);
    }

    /// Sets the timer of connection `id`, unless its present timer serves as well (see `MAX_TIMER_LEAD`).
    fn schedule(&mut self, now: Instant, id: ConnId) {
        let Some(conn) = self.table.get_mut(id) else {
            return;
        };
        let Some(at) = conn.next_timeout(&self.shared.ctx(now)) else {
            return;
        };
        // `poll_transmit` has done the work that is due now; a timer in the past would expire for ever.
        let at = at.max(now + TIMER_GRANULARITY);
        let serves = |scheduled| (scheduled..=scheduled + MAX_TIMER_LEAD).contains(&at);
        if !conn.scheduled.is_some_and(serves) {
            conn.scheduled = Some(at);
            self.timers.push(Reverse((at, id)));
        }
        if self.timers.len() > MAX_SPARE_TIMERS + 4 * self.table.len() {
            self.clear_timers();
        }
    }

    /// Removes outdated timers from the top of the heap, so that the driver does not wake up for them.
    fn drop_stale_timers(&mut self) {
        while let Some(Reverse((at, id))) = self.timers.peek() {
            let conn = self.table.get(*id);
            if conn.is_some_and(|c| c.scheduled == Some(*at)) {
                return;
            }
            self.timers.pop();
        }
    }

    /// Removes all outdated entries from the timer heap. Each change of a timer leaves an outdated entry, and a
    /// pacer changes its timer a thousand times a second. Afterwards each connection with a timer has one entry.
    fn clear_timers(&mut self) {
        let mut timers = core::mem::take(&mut self.timers).into_vec();
        timers.retain(|Reverse((at, id))| {
            let conn = self.table.get(*id);
            conn.is_some_and(|c| c.scheduled == Some(*at))
        });
        timers.sort_unstable();
        timers.dedup();
        self.timers = timers.into();
    }

    /// Removes connection `id` and frees all that it holds.
    fn forget(&mut self, now: Instant, id: ConnId) {
        if let Some(mut conn) = self.table.remove(id) {
            conn.transport.subflows.add_moved(&mut self.gone);
            let pool = &mut self.shared.pool;
            for subflow in conn.transport.subflows.iter_mut() {
                self.shared.demux.tuples.remove(&subflow.tuple);
                subflow.rcv.drop_held(pool);
                subflow.drop_load(&mut self.shared.loads);
            }
            conn.transport.snd.buf.clear(pool);
            conn.transport.rcv.buf.clear(pool);
            conn.transport.charge(pool);
            self.shared.leave_quota_queue(&mut conn.transport.share);
        }
        self.wake_pool_waiters(now);
    }

    /// Wakes connections that wait for pool memory, in order, as long as memory is free.
    fn wake_pool_waiters(&mut self, now: Instant) {
        // A connection that still finds no memory joins the queue again. So this loop wakes only as many
        // connections as the queue has at the start.
        for _ in 0..self.shared.waiting_for_pool.len() {
            if self.shared.pool.unreserved() == 0 {
                break;
            }
            if let Some(waiting) = self.shared.waiting_for_pool.pop_front()
                && let Some(conn) = self.table.get_mut(waiting)
            {
                conn.transport.share.waiting_for_pool = false;
                self.shared.wake(now, &mut conn.transport);
            }
        }
        self.wake_quota_waiters(now);
    }

    /// Wakes connections that wait for the quota of their group, in order, as long as the quota has room.
    fn wake_quota_waiters(&mut self, now: Instant) {
        // The queue is sorted by group, so each turn of this loop serves one group.
        let mut from = (0, 0);
        while let Some((&(group, place), &id)) = self.shared.waiting_for_quota.range(from..).next()
        {
            let Some(next) = group.checked_add(1) else {
                return;
            };
            from = (next, 0);
            // A connection takes at least a block, so no more connections than free blocks are woken. If
            // room remains after their writes, `after` wakes the next ones.
            let room = self.shared.pool.room(group);
            let mut waiting = Some((place, id));
            for _ in 0..room {
                let Some((place, id)) = waiting else {
                    break;
                };
                self.shared.waiting_for_quota.remove(&(group, place));
                if let Some(conn) = self.table.get_mut(id) {
                    conn.transport.share.waiting_for_quota = None;
                    self.shared.wake(now, &mut conn.transport);
                }
                let mut rest = self.shared.waiting_for_quota.range((group, 0)..from);
                waiting = rest.next().map(|(&(_, place), &id)| (place, id));
            }
        }
    }

    /// Lets `fill` write up to `max` bytes straight into the send buffer, and queues the number of bytes that
    /// `fill` returns. Without room, `fill` is not called and 0 is returned; [`Event::Writable`] follows once
    /// there is room.
    pub fn write_with<E: From<ApiError>>(
        &mut self,
        now: Instant,
        conn: ConnId,
        max: usize,
        fill: impl FnOnce(&mut [IoSliceMut<'_>]) -> Result<usize, E>,
    ) -> Result<usize, E> {
        self.with(now, conn, |c, ctx| {
            c.write_with(ctx, c.profile.class(), max, fill)
        })
        .unwrap_or_else(|| Err(ApiError::UnknownConnection.into()))
    }

    /// Writes bytes of `class`, otherwise like [`write_with`](Self::write_with). The bytes overtake less urgent
    /// bytes that are not sent yet. Less urgent bytes that wait take no room from the new bytes, unless memory
    /// is used up. The bytes of one call always arrive together: if an earlier write is already sent in part,
    /// its rest is sent first. Bytes of one stream keep their order: the unsent bytes of the stream become as
    /// urgent as the new ones.
    pub fn write_class<E: From<ApiError>>(
        &mut self,
        now: Instant,
        conn: ConnId,
        class: Class,
        max: usize,
        fill: impl FnOnce(&mut [IoSliceMut<'_>]) -> Result<usize, E>,
    ) -> Result<usize, E> {
        self.with(now, conn, |c, ctx| c.write_with(ctx, class, max, fill))
            .unwrap_or_else(|| Err(ApiError::UnknownConnection.into()))
    }

    /// Queues the part of `data` for which there is room, and returns the number of bytes queued.
    pub fn write(&mut self, now: Instant, conn: ConnId, data: &[u8]) -> Result<usize, ApiError> {
        self.write_with(now, conn, data.len(), |slices| {
            let mut done = 0;
            for slice in slices {
                let n = slice.len().min(data.len() - done);
                slice[..n].copy_from_slice(&data[done..done + n]);
                done += n;
            }
            Ok(done)
        })
    }

    /// Lets `drain` take in-order data, and releases the number of bytes that `drain` returns. Without data,
    /// `drain` is not called and 0 is returned.
    pub fn read_with<E: From<ApiError>>(
        &mut self,
        now: Instant,
        conn: ConnId,
        drain: impl FnOnce(&[IoSlice<'_>]) -> Result<usize, E>,
    ) -> Result<usize, E> {
        self.with(now, conn, |c, ctx| c.read_with(ctx, drain))
            .unwrap_or_else(|| Err(ApiError::UnknownConnection.into()))
    }

    /// Returns the number of bytes that [`write_with`](Self::write_with) would accept now; 0 for unknown
    /// connections.
    pub fn send_space(&self, conn: ConnId) -> usize {
        self.table.get(conn).map_or(0, |c| {
            c.transport
                .send_space(&self.shared.config, c.profile.urgency)
        })
    }

    /// Returns the number of bytes that are readable now; 0 for unknown connections.
    pub fn readable(&self, conn: ConnId) -> usize {
        self.table
            .get(conn)
            .map_or(0, |c| c.transport.rcv.buf.readable())
    }

    /// Returns whether the peer closed its stream and all of it was read.
    pub fn read_finished(&self, conn: ConnId) -> bool {
        let conn = self.table.get(conn);
        conn.is_some_and(|c| c.transport.rcv.is_read())
    }

    /// Closes the sending direction behind the data queued so far (DATA_FIN). The connection ends with
    /// [`Event::Closed`] once both directions are closed and acknowledged, and all received data is read.
    pub fn shutdown(&mut self, now: Instant, conn: ConnId) -> Result<(), ApiError> {
        self.with(now, conn, |c, ctx| c.shutdown(ctx))
            .unwrap_or(Err(ApiError::UnknownConnection))
    }

    /// Tells the strategy of this end the size of the flow in bytes. An application calls this if it did not
    /// know the size, or only predicted it, when the connection was opened or accepted. The size counts both
    /// directions. It is a hint: a flow with fewer or more bytes is no error. The call has no effect if the size
    /// known so far is [trusted more](FlowSize::or_better).
    ///
    /// # Errors
    /// [`ApiError::UnknownConnection`].
    pub fn set_flow_size(
        &mut self,
        now: Instant,
        conn: ConnId,
        size: FlowSize,
    ) -> Result<(), ApiError> {
        self.change(now, conn, |c, _| c.flow.size = c.flow.size.or_better(size))
    }

    /// Assigns the connection to a group. All connections of a group together hold at most three times the
    /// memory that is still free, however many connections the group has. At that limit their writes wait, and
    /// data that arrives for them is refused, as if all memory were used up.
    ///
    /// # Errors
    /// [`ApiError::UnknownConnection`].
    pub fn set_group(&mut self, now: Instant, conn: ConnId, group: u32) -> Result<(), ApiError> {
        // The place in the queue belongs to the former group.
        if let Some(c) = self.table.get_mut(conn) {
            self.shared.leave_quota_queue(&mut c.transport.share);
        }
        let joined = self.with(now, conn, |c, ctx| {
            let held = c.transport.blocks();
            c.transport.share.join(&mut ctx.shared.pool, group, held);
            c.transport.signal_writable(ctx);
        });
        joined.ok_or(ApiError::UnknownConnection)
    }

    /// Sets the urgency of bytes that are written without a class after this call. A connection of the least
    /// urgency runs [`Config::background`] in place of [`Config::congestion`].
    ///
    /// # Errors
    /// [`ApiError::UnknownConnection`].
    pub fn set_urgency(
        &mut self,
        now: Instant,
        conn: ConnId,
        urgency: Urgency,
    ) -> Result<(), ApiError> {
        self.change(now, conn, |c, ctx| {
            c.set_urgency(&ctx.shared.config, urgency)
        })
    }

    /// Sets the congestion control of the connection, in place of the one in [`Config`]. The new one starts
    /// from an initial window. Each end chooses the congestion control of the data that it sends.
    ///
    /// # Errors
    /// [`ApiError::UnknownConnection`].
    pub fn set_congestion(
        &mut self,
        now: Instant,
        conn: ConnId,
        congestion: Algorithm,
    ) -> Result<(), ApiError> {
        self.change(now, conn, |c, _| c.set_congestion(congestion))
    }

    /// Replaces the strategy, for example when the application has learned the content of the connection.
    /// The new strategy is told of the existing subflows.
    ///
    /// # Errors
    /// [`ApiError::UnknownConnection`].
    pub fn set_strategy(
        &mut self,
        now: Instant,
        conn: ConnId,
        strategy: Box<dyn Strategy>,
    ) -> Result<(), ApiError> {
        self.change(now, conn, |c, ctx| c.set_strategy(ctx, strategy))
    }

    /// Begins another flow. All data written and read after this call belongs to the new flow. The flow gets a
    /// new strategy from the factory for accepted connections. Its size is unknown, and the strategy does not
    /// see the bytes of earlier flows. Path records, urgency and congestion control stay. The call affects the
    /// strategy of this end only. A connection without such calls is one flow.
    ///
    /// # Errors
    /// [`ApiError::UnknownConnection`].
    pub fn begin_flow(&mut self, now: Instant, conn: ConnId) -> Result<(), ApiError> {
        let strategy = (self.strategy)();
        self.change(now, conn, |c, ctx| c.begin_flow(ctx, strategy))
    }

    /// Ends the flow: the application has written all of its data, but will use the connection further.
    /// [`Event::FlowDelivered`] follows, unless the connection breaks or another flow begins earlier. If the
    /// connection is not used further, [`shutdown`](Self::shutdown) suffices.
    ///
    /// # Errors
    /// [`ApiError::UnknownConnection`]; [`ApiError::SendClosed`] if the connection has ended.
    pub fn end_flow(&mut self, now: Instant, conn: ConnId) -> Result<(), ApiError> {
        self.with(now, conn, |c, ctx| {
            if c.transport.is_ended() {
                return Err(ApiError::SendClosed);
            }
            c.end_flow(ctx);
            c.reconcile(ctx);
            Ok(())
        })
        .unwrap_or(Err(ApiError::UnknownConnection))
    }

    /// Acknowledges received data at once, without the usual delay. An application calls this if the peer waits
    /// for the acknowledgement and no data of this end will soon carry it.
    ///
    /// # Errors
    /// [`ApiError::UnknownConnection`].
    pub fn acknowledge(&mut self, now: Instant, conn: ConnId) -> Result<(), ApiError> {
        let known = self.with(now, conn, |c, ctx| {
            for subflow in c.transport.subflows.iter_mut() {
                subflow.rcv.delay_no_more();
            }
            c.reconcile(ctx);
        });
        known.ok_or(ApiError::UnknownConnection)
    }

    /// Applies `f` to a connection and reconciles it: the strategy may now want other paths.
    fn change(
        &mut self,
        now: Instant,
        conn: ConnId,
        f: impl FnOnce(&mut Connection, &Ctx<'_>),
    ) -> Result<(), ApiError> {
        let changed = self.with(now, conn, |c, ctx| {
            f(c, ctx);
            c.reconcile(ctx);
        });
        changed.ok_or(ApiError::UnknownConnection)
    }

    /// Sets the authentication of a connection's joins and of the addresses that its peer announces;
    /// [`JoinAuth::Keys`] by default. If an application gets its secret only later, it sets
    /// [`JoinAuth::Pending`] first. It does so at [`Event::Accepted`], while no join is answered yet, or right
    /// after [`connect`](Self::connect).
    ///
    /// # Errors
    /// [`ApiError::UnknownConnection`].
    pub fn set_join_auth(
        &mut self,
        now: Instant,
        conn: ConnId,
        auth: JoinAuth,
    ) -> Result<(), ApiError> {
        let changed = self.with(now, conn, |c, ctx| {
            c.set_join_auth(ctx, auth);
            c.reconcile(ctx);
        });
        changed.ok_or(ApiError::UnknownConnection)
    }

    /// Ends the connection at once (MP_FASTCLOSE or RST). [`Event::Closed`] follows.
    pub fn abort(&mut self, now: Instant, conn: ConnId) {
        self.with(now, conn, |c, ctx| {
            c.fail(ctx, crate::CloseReason::Aborted);
            c.reconcile(ctx);
        });
    }

    /// Returns the next packet to send.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<Transmit<'_>> {
        if let Some(reply) = self.stateless_replies.pop_front() {
            return Some(self.transmit_stateless_reply(&reply));
        }
        loop {
            let Some(id) = self.ready.pop() else {
                self.drop_stale_timers();
                return None;
            };
            let Some(conn) = self.table.get_mut(id) else {
                continue;
            };
            let mut ctx = self.shared.ctx(now);
            let mut out = conn.poll_transmit(&mut ctx);
            if out.is_none() && conn.reconcile(&mut ctx) {
                // A join or FIN that `reconcile` started is sent in this round too.
                out = conn.poll_transmit(&mut ctx);
            }
            if let Some(out) = &out {
                conn.transport.subflows.count_loads(&mut self.shared.loads);
                self.ready.push(id, conn.transport.next_urgency(now));
                if cfg!(debug_assertions) {
                    self.invariants(id);
                }
                self.shared.stats.packets_out += 1;
                self.shared.stats.join_syns += u64::from(out.kind == SegmentKind::JoinSyn);
                return self.transmit(id, out);
            }
            if conn.transport.forget_at().is_some_and(|at| at <= now) {
                self.forget(now, id);
            } else {
                conn.transport.watch_stall(now);
                conn.transport.watch_busy(now);
                self.schedule(now, id);
            }
        }
    }

    /// Completes the packet whose headers are in the scratch buffer: adds the payload and the checksum. The result is
    /// always `Some`, which is the type that the caller returns: a `Transmit` is large, and is made in place.
    fn transmit(&mut self, id: ConnId, out: &Outgoing) -> Option<Transmit<'_>> {
        let conn = self.table.get(id).map(|conn| &conn.transport);
        let sent = match &out.body {
            Body::Data(range) => conn.map(|conn| (conn, range.clone())),
            Body::None => None,
        };
        let payload = match &sent {
            Some((conn, range)) => conn.snd.buf.slices(range.clone()),
            None => ArrayVec::new(),
        };
        let payload_len: usize = payload.iter().map(|p| p.len()).sum();
        debug_assert!(
            sent.iter()
                .all(|(_, range)| payload_len as u64 == range.end - range.start),
            "bytes of {:?} are gone",
            out.body
        );
        let len = out.ip_len + out.header_len;
        let header = &mut self.shared.scratch[..len];
        let (src, dst) = (out.tuple.local.ip(), out.tuple.remote.ip());
        let checksum = if self.shared.config.checksum_offload {
            tcp::fill_partial_checksum(src, dst, &mut header[out.ip_len..], payload_len);
            TxChecksum::Partial {
                start: out.ip_len as u16,
                // The place of the checksum in a TCP header.
                offset: 16,
            }
        } else {
            tcp::fill_checksum(src, dst, &mut header[out.ip_len..], &payload);
            TxChecksum::Done
        };
        Some(Transmit {
            path: out.path,
            header: &self.shared.scratch[..len],
            payload,
            gso_size: out.gso_size,
            checksum,
            v6: src.is_ipv6(),
            info: Some(TransmitInfo {
                conn: id,
                subflow: out.subflow,
                kind: out.kind,
                dsn: sent
                    .as_ref()
                    .and_then(|(conn, range)| Some(conn.mode.mptcp()?.dsn(range.start))),
                data: sent.map_or(0..0, |(_, range)| range),
                expected_arrival: out.expected_arrival,
                subflow_seq: out.seq,
            }),
        })
    }

    /// Returns the next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.last_closed = None;
        let event = self.shared.events.pop_front()?;
        match event {
            Event::FellBack { cause, .. } => self.shared.stats.fallbacks[cause as usize] += 1,
            Event::Connected { conn } => {
                let conn = self.table.get(conn).into_iter();
                let subflows = conn.flat_map(|c| c.transport.subflows.iter());
                let in_syn = subflows.map(|s| s.syn_data.sent).sum::<u64>() > 0;
                self.shared.stats.fast_opened += u64::from(in_syn);
            }
            Event::Closed { conn, .. } => {
                let report = self.shared.reports.pop_front();
                self.last_closed = report.map(|report| (conn, report));
            }
            _ => {}
        }
        Some(event)
    }

    /// Returns the time at which [`handle_timeout`](Self::handle_timeout) is due, if any.
    pub fn next_timeout(&self) -> Option<Instant> {
        self.timers.peek().map(|Reverse((at, _))| *at)
    }

    /// Serves every expired timer.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some(Reverse((at, id))) = self.timers.peek().copied() {
            if at > now {
                break;
            }
            self.timers.pop();
            let Some(conn) = self.table.get_mut(id) else {
                continue;
            };
            // The connection's timer was set to another time since, so this entry is outdated.
            if conn.scheduled != Some(at) {
                continue;
            }
            conn.scheduled = None;
            let due = conn.next_timeout(&self.shared.ctx(now));
            match due {
                Some(due) if due <= now => {
                    self.with(now, id, |conn, ctx| conn.handle_timeout(ctx));
                }
                // The pacer allows sending again, which needs no timeout handling; or the due time has moved
                // later (see `MAX_TIMER_LEAD`).
                _ => self.after(now, id),
            }
        }
    }

    /// Returns the counters since the start.
    pub fn stats(&self) -> &StackStats {
        &self.shared.stats
    }

    /// Returns the records of the paths to peers, each with the peer's address and the local path.
    pub fn records(&self) -> impl Iterator<Item = (IpAddr, PathId, PathRecord)> {
        self.shared.records.iter()
    }

    /// Replaces the record of the path to `peer` by `record`, which an earlier stack had saved.
    pub fn load_record(&mut self, peer: IpAddr, path: PathId, record: PathRecord) {
        self.shared.records.put(peer, path, record);
    }

    /// Returns the number of connections, closing ones included.
    pub fn connections(&self) -> usize {
        self.table.len()
    }

    /// Returns the bytes of memory that buffers hold.
    pub fn buffered(&self) -> usize {
        self.shared.pool.used_bytes()
    }

    /// Returns whether the connection runs as MPTCP; `None` if it does not exist or is still opening.
    pub fn is_mptcp(&self, conn: ConnId) -> Option<bool> {
        match self.table.get(conn)?.transport.mode {
            Mode::Mptcp(_) => Some(true),
            Mode::Tcp => Some(false),
            Mode::Opening { .. } | Mode::Accepting { .. } => None,
        }
    }

    /// Returns the statistics of a connection; `None` if the connection is unknown. An ended connection still
    /// has its final statistics between the [`poll_event`](Self::poll_event) that returns its [`Event::Closed`]
    /// and the next call of `poll_event`.
    pub fn conn_stats(&self, conn: ConnId) -> Option<ConnStats> {
        match &self.last_closed {
            Some((closed, report)) if *closed == conn => Some(report.clone()),
            _ => {
                let conn = self.table.get(conn)?;
                Some(conn.stats(&self.shared.config))
            }
        }
    }

    /// Returns the statistics of a subflow, if it exists.
    pub fn subflow(&self, conn: ConnId, subflow: SubflowId) -> Option<SubflowStats> {
        let conn = self.table.get(conn)?;
        let i = conn.transport.subflows.index_of(subflow)?;
        Some(conn.transport.subflows[i].stats())
    }

    /// Returns the subflow that packets from `remote` to `local` belong to, closing ones included.
    pub fn subflow_between(
        &self,
        local: SocketAddr,
        remote: SocketAddr,
    ) -> Option<(ConnId, SubflowId)> {
        let tuples = &self.shared.demux.tuples;
        tuples.get(&FourTuple { local, remote }).copied()
    }

    /// Returns the statistics of a connection's subflows; empty for unknown connections.
    pub fn subflows(&self, conn: ConnId) -> Vec<SubflowStats> {
        let conn = self.table.get(conn);
        conn.map(|c| c.transport.subflows.iter().map(|s| s.stats()).collect())
            .unwrap_or_default()
    }

    /// Marks a connection as regular TCP, by choice or because the peer asked for it.
    fn plain(&mut self, now: Instant, id: ConnId, cause: FallbackCause) {
        self.with(now, id, |c, ctx| c.transport.fall_back(ctx, cause));
    }
}

#[cfg(test)]
mod tests {
    use core::net::Ipv4Addr;

    use super::*;
    use crate::buffer::BLOCK_SIZE;
    use crate::strategy::{Decision, SendView};
    use crate::{CloseReason, PathConfig, Protocol};

    #[derive(Debug)]
    struct Idle;

    impl Strategy for Idle {
        fn name(&self) -> &'static str {
            "idle"
        }
        fn next(&mut self, _: &SendView<'_>, _: &mut Rng) -> Decision {
            Decision::WAIT
        }
    }

    fn stack(config: Config) -> Stack {
        let rng = Rng::for_component(1, 1);
        let mut stack = Stack::new(config, rng, Box::new(|| Box::new(Idle)));
        let path = PathConfig::v4(Ipv4Addr::new(10, 0, 0, 1));
        stack.add_path(path).unwrap();
        stack
    }

    fn connect(stack: &mut Stack) -> ConnId {
        let options = ConnectOptions {
            protocol: Protocol::Tcp,
            ..ConnectOptions::new(([10, 0, 0, 2], 80).into(), Box::new(Idle))
        };
        stack.connect(Instant::ZERO, options).unwrap()
    }

    /// A connection that will write no more leaves the memory queue, so that it does not count as pressure
    /// on others.
    #[test]
    fn a_connection_that_writes_no_more_leaves_the_memory_queue() {
        let now = Instant::ZERO;
        let mut stack = stack(Config {
            memory: 8 * BLOCK_SIZE,
            ..Config::default()
        });
        for _ in 0..8 {
            let greedy = connect(&mut stack);
            while stack.write(now, greedy, &[0; BLOCK_SIZE]).unwrap() > 0 {}
        }
        let waiting = stack.shared.waiting_for_pool.len();
        let [aborted, ended, shut] = core::array::from_fn(|_| {
            let id = connect(&mut stack);
            assert_eq!(stack.write(now, id, b"x"), Ok(0));
            id
        });
        assert_eq!(stack.shared.waiting_for_pool.len(), waiting + 3);
        stack.abort(now, aborted);
        assert_eq!(stack.shared.waiting_for_pool.len(), waiting + 2);
        stack.with(now, ended, |conn, ctx| conn.end(ctx, CloseReason::TimedOut));
        assert!(stack.table.get(ended).is_some());
        assert_eq!(stack.shared.waiting_for_pool.len(), waiting + 1);
        stack.shutdown(now, shut).unwrap();
        assert_eq!(stack.shared.waiting_for_pool.len(), waiting);
    }

    #[test]
    fn outdated_timers_do_not_accumulate() {
        let mut stack = stack(Config::default());
        let id = connect(&mut stack);
        while stack.poll_transmit(Instant::ZERO).is_some() {}
        for ms in 0..900 {
            let now = Instant::from_millis(ms);
            // The connection now looks as if a timer had expired that was due before the SYN's timer.
            stack.table.get_mut(id).unwrap().scheduled = None;
            stack.schedule(now, id);
            assert!(stack.timers.len() <= MAX_SPARE_TIMERS + 4, "at {now}");
        }
        // The SYN is repeated after 1 s (RFC 6298 section 2.1).
        assert_eq!(stack.next_timeout(), Some(Instant::from_millis(1000)));
    }
}
