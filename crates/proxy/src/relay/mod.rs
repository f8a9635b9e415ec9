//! The relay between a connection of the stack and a downstream socket.
//!
//! The relay has no buffer of its own. Data moves from the socket into the engine's send buffer, and from the
//! engine's receive buffer into the socket, directly or through a batch of the [`Channel`]'s records. If one side
//! takes no data, the relay therefore stops reading from the other side (end-to-end back-pressure).
//!
//! The module has the parts that the sessions of box and server share: the table of sessions, and the examination
//! of first bytes. It depends neither on the protocol by which a session begins, nor on the origin of its
//! connection.

pub mod sniff;
pub(crate) mod table;

use core::time::Duration;
use std::io::{IoSlice, IoSliceMut};

use braid_engine::{ApiError, CloseReason, Stack};
use braid_secure::channel::{Channel, ChannelError};
use braid_wire::Instant;

use crate::app::{Ctx, DownstreamError, DownstreamId};

/// Maximum number of bytes that a relay moves in one direction before other sessions get their turn. A guess
/// between fairness to other sessions and few turns for bulk data.
const TURN_BYTES: usize = 256 << 10;

/// Minimum number of bytes for which a read from the connection counts against [`TURN_BYTES`]. So a turn has at
/// most 256 such reads, and many tiny records cannot prolong the turn. The value is a guess.
const MIN_COUNTED_BYTES: usize = 1 << 10;

/// The timeouts of a relay on which nothing moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RelayTimeouts {
    /// The timeout while both directions are open.
    pub idle: Duration,
    /// The timeout while one direction is open.
    pub half_closed: Duration,
}

/// A pair of streams between which bytes move.
#[derive(Debug)]
pub(crate) struct Relay {
    pub(crate) downstream: DownstreamId,
    timeouts: RelayTimeouts,
    /// The time of the last movement.
    moved_at: Instant,
    /// From the downstream socket to the connection.
    to_conn: Direction,
    /// From the connection to the downstream socket.
    to_downstream: Direction,
    /// The engine's `snd_una` when the relay last checked it: an increase counts as movement.
    acked: u64,
    /// A copy of the first bytes that went to the connection: a box sends these bytes again if another connection
    /// replaces this one, and a server examines them.
    first_bytes: Option<FirstBytes>,
    /// True while the socket's bytes may not be sent to the connection, because something else must come first.
    held: bool,
}

/// The state of one direction, from a source to a sink.
///
/// A direction stops as soon as its source or its sink blocks, so that it waits for one event at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direction {
    /// Bytes can move, as far as is known: neither side has blocked since its last readiness event.
    Open,
    /// The source is empty.
    SourceEmpty,
    /// The sink is full.
    SinkFull,
    /// The source has ended, and the relay has ended the sink too.
    Ended,
}

impl Direction {
    /// Notes that the source has more.
    fn source_is_ready(&mut self) {
        if *self == Direction::SourceEmpty {
            *self = Direction::Open;
        }
    }

    /// Notes that the sink has room.
    fn sink_is_ready(&mut self) {
        if *self == Direction::SinkFull {
            *self = Direction::Open;
        }
    }

    fn has_ended(self) -> bool {
        self == Direction::Ended
    }
}

/// A copy of the first bytes that went to a connection.
#[derive(Debug)]
struct FirstBytes {
    bytes: Vec<u8>,
    limit: usize,
}

impl FirstBytes {
    /// Appends the first `len` bytes of `bufs`, as far as there is room.
    fn append(&mut self, bufs: &[IoSliceMut<'_>], len: usize) {
        let mut left = len.min(self.room());
        for buf in bufs {
            let n = left.min(buf.len());
            self.bytes.extend_from_slice(&buf[..n]);
            left -= n;
        }
    }

    fn room(&self) -> usize {
        self.limit - self.bytes.len()
    }
}

/// The reason why a relay ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// Both directions ended in order, and all of their bytes were delivered.
    Finished,
    /// The downstream socket failed.
    Downstream,
    /// The connection ended before both directions had.
    Conn,
    /// The channel failed: the received bytes are not authentic.
    Broken(ChannelError),
    /// Nothing moved within the timeout.
    Idle,
}

/// The outcome of a turn.
#[derive(Debug)]
pub(crate) struct Turn {
    pub(crate) moved: Moved,
    /// True if the turn's budget ran out, so that the relay needs another turn.
    pub(crate) again: bool,
    /// True if a direction ended in this turn. Such an end changes [`Relay::due`].
    pub(crate) closing: bool,
    /// True if the relay closed the downstream socket in this turn. The connection may continue.
    pub(crate) downstream_closed: bool,
    pub(crate) end: Option<End>,
}

/// The reason why the movement in one direction stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Halt {
    /// The source or the sink blocks, or the direction has ended. An event reports when bytes can move again.
    Blocked,
    /// The turn's budget ran out.
    Again,
    /// The downstream socket failed.
    DownstreamBroken,
    /// The connection is gone; its `Closed` event follows with the reason.
    ConnGone,
    /// The channel failed: the received bytes are not authentic.
    ConnBroken(ChannelError),
}

/// Bytes moved in a turn.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Moved {
    pub(crate) to_conn: u64,
    pub(crate) to_downstream: u64,
}

impl Moved {
    pub(crate) fn any(self) -> bool {
        self.to_conn + self.to_downstream > 0
    }

    pub(crate) fn add(&mut self, other: Moved) {
        self.to_conn += other.to_conn;
        self.to_downstream += other.to_downstream;
    }

    /// Returns the larger of both directions, bytes.
    pub(crate) fn larger(self) -> u64 {
        self.to_conn.max(self.to_downstream)
    }
}

/// The error of a single read or write.
enum PumpError {
    /// The engine does not know the connection any more.
    Api,
    Broken(ChannelError),
    Downstream(DownstreamError),
}

impl From<ApiError> for PumpError {
    fn from(_: ApiError) -> Self {
        PumpError::Api
    }
}

impl From<ChannelError> for PumpError {
    fn from(broken: ChannelError) -> Self {
        PumpError::Broken(broken)
    }
}

impl Relay {
    /// Creates a relay that tries both directions at first, as the state of the streams is unknown.
    pub(crate) fn new(now: Instant, downstream: DownstreamId, timeouts: RelayTimeouts) -> Self {
        Relay {
            downstream,
            timeouts,
            moved_at: now,
            to_conn: Direction::Open,
            to_downstream: Direction::Open,
            acked: 0,
            first_bytes: None,
            held: false,
        }
    }

    /// Holds back the bytes towards the connection if `held` is true, because something else must be sent before
    /// them. Releases them otherwise.
    pub(crate) fn hold(&mut self, held: bool) {
        self.held = held;
    }

    /// Returns whether the bytes towards the connection are held back.
    pub(crate) fn is_held(&self) -> bool {
        self.held
    }

    /// Keeps a copy of the first `limit` bytes that go to the connection.
    pub(crate) fn keep_first_bytes(&mut self, limit: usize) {
        let bytes = Vec::new();
        self.first_bytes = Some(FirstBytes { bytes, limit });
    }

    /// Returns the copy of the first bytes, and true if it has reached its limit.
    pub(crate) fn first_bytes(&self) -> Option<(&[u8], bool)> {
        let first_bytes = self.first_bytes.as_ref()?;
        Some((&first_bytes.bytes, first_bytes.room() == 0))
    }

    /// Drops the copy of the first bytes, and copies no more.
    pub(crate) fn drop_first_bytes(&mut self) {
        self.first_bytes = None;
    }

    /// Sends the copy of the first bytes over `channel`, and keeps the copy. The connection of `channel` replaces
    /// an earlier connection. Returns false if the connection does not take all bytes.
    pub(crate) fn resend_first_bytes(&mut self, ctx: &mut Ctx<'_>, channel: &mut Channel) -> bool {
        let Some(first_bytes) = &self.first_bytes else {
            return true;
        };
        // The earlier connection may have been full, but the new connection has room.
        self.to_conn.sink_is_ready();
        let written = channel.write_all(ctx.now, ctx.stack, &first_bytes.bytes);
        // The user may have ended the direction already, and the new connection does not know that.
        let end_sent = !self.to_conn.has_ended() || channel.shutdown(ctx.now, ctx.stack).is_ok();
        written.is_ok() && end_sent
    }

    /// Returns whether the downstream socket has ended and the relay has passed that end on to the connection.
    pub(crate) fn has_sent_end(&self) -> bool {
        self.to_conn.has_ended()
    }

    pub(crate) fn set_downstream_readable(&mut self) {
        self.to_conn.source_is_ready();
    }

    pub(crate) fn set_downstream_writable(&mut self) {
        self.to_downstream.sink_is_ready();
    }

    pub(crate) fn set_conn_readable(&mut self) {
        self.to_downstream.source_is_ready();
    }

    pub(crate) fn set_conn_writable(&mut self) {
        self.to_conn.sink_is_ready();
    }

    /// Returns whether at least one direction has ended.
    fn half_closed(&self) -> bool {
        self.to_conn.has_ended() || self.to_downstream.has_ended()
    }

    /// Returns whether both directions have ended, so that the downstream socket is closed. Bytes may still be in
    /// flight to the peer, so the relay ends only when the peer has acknowledged them.
    fn downstream_closed(&self) -> bool {
        self.to_conn.has_ended() && self.to_downstream.has_ended()
    }

    /// Restarts the timeout.
    pub(crate) fn restart_timeout(&mut self, now: Instant) {
        self.moved_at = now;
    }

    /// Returns the time at which the relay expires unless something moves.
    pub(crate) fn due(&self) -> Instant {
        let timeout = match self.half_closed() {
            true => self.timeouts.half_closed,
            false => self.timeouts.idle,
        };
        self.moved_at + timeout
    }

    /// Returns whether the relay has expired. Once the downstream socket has ended, no bytes move towards the
    /// connection any more, but the connection's send buffer may still hold many bytes. Therefore acknowledgements
    /// by the peer count as movement as long as data is outstanding.
    pub(crate) fn is_overdue(&mut self, ctx: &Ctx<'_>, channel: &Channel) -> bool {
        if self.to_conn.has_ended()
            && let Some(stats) = ctx.stack.conn_stats(channel.conn)
            // More is acknowledged than at the last check, and some bytes are still outstanding.
            && (self.acked + 1..stats.snd_end).contains(&stats.snd_una)
        {
            (self.acked, self.moved_at) = (stats.snd_una, ctx.now);
        }
        self.due() <= ctx.now
    }

    /// Returns how the relay ends when its connection closes for `reason`.
    pub(crate) fn on_closed(&self, channel: &Channel, reason: CloseReason) -> End {
        match reason {
            CloseReason::Finished if channel.is_complete() => End::Finished,
            _ => End::Conn,
        }
    }

    /// Moves as many bytes as possible in both directions, within the budget of a turn.
    pub(crate) fn turn(&mut self, ctx: &mut Ctx<'_>, channel: &mut Channel) -> Turn {
        let (was_half_closed, was_downstream_closed) =
            (self.half_closed(), self.downstream_closed());
        let mut moved = Moved::default();
        let mut halts = [self.drive(ctx, channel), Halt::Blocked];
        if halts[0] == Halt::Blocked {
            halts[0] = self.pump_to_conn((ctx, &mut *channel), TURN_BYTES, &mut moved.to_conn);
        }
        // After an error the relay ends, so no more bytes need to move the other way.
        if matches!(halts[0], Halt::Blocked | Halt::Again) {
            halts[1] = self.pump_to_downstream((ctx, &mut *channel), &mut moved.to_downstream);
        }
        let downstream_closed = self.downstream_closed() && !was_downstream_closed;
        if downstream_closed {
            ctx.downstream.close(self.downstream);
        }
        let closing = self.half_closed() && !was_half_closed;
        let finished = self.downstream_closed() && channel.has_flow_ended();
        let turn = self.finish_turn(ctx.now, moved, closing || downstream_closed, halts);
        Turn {
            downstream_closed,
            end: turn.end.or(finished.then_some(End::Finished)),
            ..turn
        }
    }

    /// Moves bytes only from the downstream socket to the connection, because the peer's bytes still belong to the
    /// handshake. An end of the direction does not restart the timeout, because the caller has a deadline of its
    /// own until the handshake ends. If a copy of the first bytes is kept, no more bytes move than fit into the
    /// copy, so that all moved bytes can be sent again.
    pub(crate) fn turn_to_conn(&mut self, ctx: &mut Ctx<'_>, channel: &mut Channel) -> Turn {
        let mut moved = Moved::default();
        let room = self.first_bytes.as_ref().map(FirstBytes::room);
        let mut halt = self.drive(ctx, channel);
        if halt == Halt::Blocked && room != Some(0) {
            halt = self.pump_to_conn(
                (ctx, &mut *channel),
                room.unwrap_or(TURN_BYTES),
                &mut moved.to_conn,
            );
        }
        self.finish_turn(ctx.now, moved, false, [halt, Halt::Blocked])
    }

    /// Restarts the timeout if bytes moved or a direction ended (`closing`), and combines the reasons for which
    /// the two directions halted.
    fn finish_turn(&mut self, now: Instant, moved: Moved, closing: bool, halts: [Halt; 2]) -> Turn {
        if moved.any() || closing {
            self.moved_at = now;
        }
        let mut turn = Turn {
            moved,
            again: false,
            closing,
            downstream_closed: false,
            end: None,
        };
        for halt in halts {
            match halt {
                Halt::DownstreamBroken => turn.end = Some(End::Downstream),
                Halt::ConnBroken(broken) => turn.end = turn.end.or(Some(End::Broken(broken))),
                Halt::Again => turn.again = true,
                Halt::Blocked | Halt::ConnGone => {}
            }
        }
        turn.again &= turn.end.is_none() && !halts.contains(&Halt::ConnGone);
        turn
    }

    /// Ends the connection and the downstream socket: by an orderly close after [`End::Finished`], otherwise by a
    /// reset, so that neither side mistakes a cut for the end of the data. A downstream socket that is closed
    /// already stays as it is.
    pub(crate) fn end(&self, ctx: &mut Ctx<'_>, channel: &Channel, end: End) {
        if end != End::Finished {
            channel.abort(ctx.now, ctx.stack);
        }
        match end {
            _ if self.downstream_closed() => {}
            End::Finished => ctx.downstream.close(self.downstream),
            _ => ctx.downstream.reset(self.downstream),
        }
    }

    /// Sends and receives records that carry no user's bytes, such as alerts and ends. Returns [`Halt::Blocked`]
    /// if the relay can continue.
    fn drive(&mut self, ctx: &mut Ctx<'_>, channel: &mut Channel) -> Halt {
        if !channel.is_protected() {
            return Halt::Blocked;
        }
        // Records that leave make room in the channel. No event reports this room, so the direction counts as
        // ready again.
        self.to_conn.sink_is_ready();
        match channel.drive(ctx.now, ctx.stack) {
            Ok(()) => Halt::Blocked,
            Err(PumpError::Broken(broken)) => Halt::ConnBroken(broken),
            Err(_) => Halt::ConnGone,
        }
    }

    /// Moves at most `budget` bytes from the downstream socket into the connection.
    fn pump_to_conn(
        &mut self,
        (ctx, channel): (&mut Ctx<'_>, &mut Channel),
        mut budget: usize,
        moved: &mut u64,
    ) -> Halt {
        while !self.held && self.to_conn == Direction::Open {
            if budget == 0 {
                return Halt::Again;
            }
            let mut fill_called = false;
            let first_bytes = &mut self.first_bytes;
            let fill = |bufs: &mut [IoSliceMut<'_>]| {
                fill_called = true;
                let n = ctx
                    .downstream
                    .read(self.downstream, bufs)
                    .map_err(PumpError::Downstream)?;
                if let Some(first_bytes) = first_bytes {
                    first_bytes.append(bufs, n);
                }
                Ok(n)
            };
            match channel.write_with(ctx.now, ctx.stack, budget, fill) {
                // The channel calls `fill` only if it has room.
                Ok(0) if !fill_called => self.to_conn = Direction::SinkFull,
                // A read of no bytes is the end of the socket's data.
                Ok(0) => {
                    self.to_conn = Direction::Ended;
                    let ended = channel.shutdown(ctx.now, ctx.stack);
                    if ended == Err(ApiError::UnknownConnection) {
                        return Halt::ConnGone;
                    }
                }
                Ok(n) => {
                    budget -= n.min(budget);
                    *moved += n as u64;
                }
                Err(PumpError::Downstream(DownstreamError::WouldBlock)) => {
                    self.to_conn = Direction::SourceEmpty;
                }
                Err(PumpError::Downstream(DownstreamError::Broken)) => {
                    return Halt::DownstreamBroken;
                }
                Err(PumpError::Broken(broken)) => return Halt::ConnBroken(broken),
                Err(PumpError::Api) => return Halt::ConnGone,
            }
        }
        Halt::Blocked
    }

    /// Moves bytes from the connection to the downstream socket.
    fn pump_to_downstream(
        &mut self,
        (ctx, channel): (&mut Ctx<'_>, &mut Channel),
        moved: &mut u64,
    ) -> Halt {
        let mut budget = TURN_BYTES;
        while self.to_downstream == Direction::Open {
            if budget == 0 {
                return Halt::Again;
            }
            let mut drain_called = false;
            let drain = |bufs: &[IoSlice<'_>]| {
                drain_called = true;
                ctx.downstream
                    .write(self.downstream, bufs)
                    .map_err(PumpError::Downstream)
            };
            match channel.read_with(ctx.now, ctx.stack, drain) {
                // The channel calls `drain` only if it has bytes.
                Ok(0) if !drain_called => {
                    self.to_downstream = Direction::SourceEmpty;
                    if channel.read_finished(ctx.stack) {
                        self.to_downstream = Direction::Ended;
                        ctx.downstream.shutdown(self.downstream);
                    }
                }
                // A socket that takes no bytes and reports no error counts as full.
                Ok(0) => self.to_downstream = Direction::SinkFull,
                Ok(n) => {
                    // A small read counts for more than its bytes, so that many small reads do not prolong the turn.
                    budget = budget.saturating_sub(n.max(MIN_COUNTED_BYTES));
                    *moved += n as u64;
                }
                Err(PumpError::Downstream(DownstreamError::WouldBlock)) => {
                    self.to_downstream = Direction::SinkFull;
                }
                Err(PumpError::Downstream(DownstreamError::Broken)) => {
                    return Halt::DownstreamBroken;
                }
                Err(PumpError::Broken(broken)) => return Halt::ConnBroken(broken),
                Err(PumpError::Api) => return Halt::ConnGone,
            }
        }
        Halt::Blocked
    }
}

/// Feeds received bytes to the handshake before a relay. The handshake answers `more` if it needs more bytes.
/// Returns the handshake's first other step, and leaves the bytes after that step unread. Returns `more` once all
/// received bytes are read.
pub(crate) fn read_step<S: PartialEq + Clone>(
    now: Instant,
    channel: &mut Channel,
    stack: &mut Stack,
    more: S,
    mut input: impl FnMut(&[u8]) -> (usize, S),
) -> Result<S, StepError> {
    let mut step = more.clone();
    loop {
        let mut drain_called = false;
        channel.read_with(now, stack, |bufs| {
            drain_called = true;
            let mut taken = 0;
            for buf in bufs {
                let (n, next) = input(buf);
                taken += n;
                step = next;
                if step != more {
                    break;
                }
            }
            Ok::<_, StepError>(taken)
        })?;
        // A protected channel first yields only the bytes that an earlier read left. So newer bytes need another
        // read.
        if !drain_called || step != more || !channel.is_protected() {
            return Ok(step);
        }
    }
}

/// The reason why a handshake cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StepError {
    /// The connection is gone: its `Closed` event follows.
    Gone,
    /// The channel failed.
    Broken(ChannelError),
}

impl From<ApiError> for StepError {
    fn from(_: ApiError) -> Self {
        StepError::Gone
    }
}

impl From<ChannelError> for StepError {
    fn from(broken: ChannelError) -> Self {
        StepError::Broken(broken)
    }
}
