//! Bytes between a connection of the stack and a local stream.
//!
//! Nothing is kept here: data goes from the socket straight into the engine's send buffer and from
//! its receive buffer straight into the socket, or by way of a batch of the [`Channel`]'s records, so that
//! what one side does not take stops the other (back-pressure end to end).
//!
//! The room has what box and server do alike with a session: the table of sessions, the reading of first bytes, and
//! frames of several streams. The protocol by which a session begins is never here, nor where its connection
//! comes from.

pub mod sniff;
pub mod streams;
pub(crate) mod table;

use core::time::Duration;
use std::io::{IoSlice, IoSliceMut};

use braid_engine::{ApiError, CloseReason, Stack};
use braid_secure::channel::{Broken, Channel};
use braid_wire::Instant;

use crate::app::{Ctx, LocalError, LocalId};

/// Most bytes a relay moves in one direction before others have their turn.
const TURN_BYTES: usize = 256 << 10;

/// What moves at a time counts for at least so many.
const LEAST_BYTES: usize = 1 << 10;

/// How long a relay on which nothing moves is kept.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Patience {
    /// While both directions are open.
    pub(crate) idle: Duration,
    /// While one is.
    pub(crate) half_closed: Duration,
}

/// One pair of streams.
#[derive(Debug)]
pub(crate) struct Relay {
    pub(crate) local: LocalId,
    patience: Patience,
    /// When something moved last.
    moved_at: Instant,
    /// From the local stream to the connection.
    to_conn: Direction,
    /// From the connection to the local stream.
    to_local: Direction,
    /// What the other end is known to have of what went to it, bytes.
    acked: u64,
    /// A copy of the first bytes that went to the connection, where one is wanted.
    kept: Option<Kept>,
    /// Nothing goes to the connection for now.
    held: bool,
}

/// The state of one direction: bytes go from a source to a sink.
///
/// A direction stops at the first of the two that has no more, so that it waits for one event at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direction {
    /// Neither was found empty or full since it was last said to be ready.
    Open,
    /// The source was found empty.
    SourceEmpty,
    /// The sink was found full.
    SinkFull,
    /// The end of the source was passed on to the sink.
    Ended,
}

impl Direction {
    /// The source says that it has more.
    fn source_is_ready(&mut self) {
        if *self == Direction::SourceEmpty {
            *self = Direction::Open;
        }
    }

    /// The sink says that it has room.
    fn sink_is_ready(&mut self) {
        if *self == Direction::SinkFull {
            *self = Direction::Open;
        }
    }

    fn has_ended(self) -> bool {
        self == Direction::Ended
    }
}

/// The first bytes that went to a connection.
#[derive(Debug)]
struct Kept {
    bytes: Vec<u8>,
    most: usize,
}

impl Kept {
    /// Takes as many of `len` bytes that stand in `bufs` as there is room for.
    fn take(&mut self, bufs: &[IoSliceMut<'_>], len: usize) {
        let mut left = len.min(self.room());
        for buf in bufs {
            let n = left.min(buf.len());
            self.bytes.extend_from_slice(&buf[..n]);
            left -= n;
        }
    }

    fn room(&self) -> usize {
        self.most - self.bytes.len()
    }
}

/// How a relay ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// Both directions were closed in order, and the other end has all that was for it.
    Finished,
    /// The local stream is broken.
    Local,
    /// The connection is over, and not in order.
    Conn,
    /// What came over the connection was not what the other end sent.
    Broken(Broken),
    /// Nothing moved for too long.
    Idle,
}

/// What a turn did, and what follows from it.
#[derive(Debug)]
pub(crate) struct Turn {
    pub(crate) moved: Moved,
    /// There is more to do than a turn may.
    pub(crate) again: bool,
    /// A direction closed: [`Relay::due`] is another one now.
    pub(crate) closing: bool,
    /// The local stream is closed, both ways; the connection may go on.
    pub(crate) parted: bool,
    pub(crate) end: Option<End>,
}

/// How moving bytes one way came to a halt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Halt {
    /// An event will say when it goes on.
    Blocked,
    /// There is more to do than a turn may.
    Again,
    /// The local stream is broken.
    LocalBroken,
    /// The connection is no more; its `Closed` follows and says why.
    ConnGone,
    /// What came was not what the other end sent.
    ConnBroken(Broken),
}

/// Bytes moved in a turn.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Moved {
    pub(crate) to_conn: u64,
    pub(crate) to_local: u64,
}

impl Moved {
    pub(crate) fn any(self) -> bool {
        self.to_conn + self.to_local > 0
    }

    pub(crate) fn add(&mut self, other: Moved) {
        self.to_conn += other.to_conn;
        self.to_local += other.to_local;
    }

    /// In the direction with more.
    pub(crate) fn most(self) -> u64 {
        self.to_conn.max(self.to_local)
    }
}

enum PumpError {
    Api,
    Broken(Broken),
    Local(LocalError),
}

impl From<ApiError> for PumpError {
    fn from(_: ApiError) -> Self {
        PumpError::Api
    }
}

impl From<Broken> for PumpError {
    fn from(broken: Broken) -> Self {
        PumpError::Broken(broken)
    }
}

impl Relay {
    /// A relay between two streams of which nothing is known: all is tried.
    pub(crate) fn new(now: Instant, local: LocalId, patience: Patience) -> Self {
        Relay {
            local,
            patience,
            moved_at: now,
            to_conn: Direction::Open,
            to_local: Direction::Open,
            acked: 0,
            kept: None,
            held: false,
        }
    }

    /// Says whether what would go to the connection has to wait: something else comes before it.
    pub(crate) fn hold(&mut self, held: bool) {
        self.held = held;
    }

    /// Whether it has to.
    pub(crate) fn is_held(&self) -> bool {
        self.held
    }

    /// Keeps a copy of the first `most` bytes that go to the connection.
    pub(crate) fn keep(&mut self, most: usize) {
        let bytes = Vec::new();
        self.kept = Some(Kept { bytes, most });
    }

    /// The copy, and whether it is as long as it may be.
    pub(crate) fn kept(&self) -> Option<(&[u8], bool)> {
        let kept = self.kept.as_ref()?;
        Some((&kept.bytes, kept.room() == 0))
    }

    /// Does without the copy.
    pub(crate) fn forget_kept(&mut self) {
        self.kept = None;
    }

    /// Sends what was kept over `channel` in place of the connection before, and keeps it; false where the
    /// connection does not take it.
    pub(crate) fn repeat(&mut self, ctx: &mut Ctx<'_>, channel: &mut Channel) -> bool {
        let Some(kept) = &self.kept else {
            return true;
        };
        self.to_conn.sink_is_ready();
        let written = channel.write_all(ctx.now, ctx.stack, &kept.bytes);
        let ended = !self.to_conn.has_ended() || channel.shutdown(ctx.now, ctx.stack).is_ok();
        written.is_ok() && ended
    }

    /// Returns whether the end of the user's bytes was passed on.
    pub(crate) fn has_ended_up(&self) -> bool {
        self.to_conn.has_ended()
    }

    pub(crate) fn set_local_readable(&mut self) {
        self.to_conn.source_is_ready();
    }

    pub(crate) fn set_local_writable(&mut self) {
        self.to_local.sink_is_ready();
    }

    pub(crate) fn set_conn_readable(&mut self) {
        self.to_local.source_is_ready();
    }

    pub(crate) fn set_conn_writable(&mut self) {
        self.to_conn.sink_is_ready();
    }

    /// One of the directions is closed.
    fn half_closed(&self) -> bool {
        self.to_conn.has_ended() || self.to_local.has_ended()
    }

    /// Both are, as far as the local side goes. What the other end has not yet is still on its way, and
    /// until it has that the relay counts.
    fn parted(&self) -> bool {
        self.to_conn.has_ended() && self.to_local.has_ended()
    }

    /// Patience starts anew.
    pub(crate) fn touch(&mut self, now: Instant) {
        self.moved_at = now;
    }

    /// When the relay has been idle for too long, unless something moves.
    pub(crate) fn due(&self) -> Instant {
        let patience = match self.half_closed() {
            true => self.patience.half_closed,
            false => self.patience.idle,
        };
        self.moved_at + patience
    }

    /// Whether the relay has been idle for too long. Where the local side has no more to say, what
    /// arrives at the other end counts as movement, as long as there is more to arrive.
    pub(crate) fn is_overdue(&mut self, ctx: &Ctx<'_>, channel: &Channel) -> bool {
        if self.to_conn.has_ended()
            && let Some(stats) = ctx.stack.conn_stats(channel.conn)
            && (self.acked + 1..stats.snd_end).contains(&stats.snd_una)
        {
            (self.acked, self.moved_at) = (stats.snd_una, ctx.now);
        }
        self.due() <= ctx.now
    }

    /// How the end of the connection ends it.
    pub(crate) fn on_closed(&self, channel: &Channel, reason: CloseReason) -> End {
        match reason {
            CloseReason::Finished if channel.is_whole() => End::Finished,
            _ => End::Conn,
        }
    }

    /// Moves what can be moved, both ways.
    pub(crate) fn turn(&mut self, ctx: &mut Ctx<'_>, channel: &mut Channel) -> Turn {
        let (was_half_closed, was_parted) = (self.half_closed(), self.parted());
        let mut moved = Moved::default();
        let mut halts = [self.drive(ctx, channel), Halt::Blocked];
        if halts[0] == Halt::Blocked {
            halts[0] = self.pump_to_conn((ctx, &mut *channel), TURN_BYTES, &mut moved.to_conn);
        }
        if matches!(halts[0], Halt::Blocked | Halt::Again) {
            halts[1] = self.pump_to_local((ctx, &mut *channel), &mut moved.to_local);
        }
        let parted = self.parted() && !was_parted;
        if parted {
            ctx.local.close(self.local);
        }
        let closing = self.half_closed() && !was_half_closed;
        let over = self.parted() && channel.has_parted();
        let turn = self.turned(ctx.now, moved, closing || parted, halts);
        Turn {
            parted,
            end: turn.end.or(over.then_some(End::Finished)),
            ..turn
        }
    }

    /// Moves only what the local side sent: the other direction is not the user's yet. What closes
    /// meanwhile sets no timer. Where a copy is kept, no more than goes into it.
    pub(crate) fn turn_up(&mut self, ctx: &mut Ctx<'_>, channel: &mut Channel) -> Turn {
        let mut moved = Moved::default();
        let room = self.kept.as_ref().map(Kept::room);
        let mut halt = self.drive(ctx, channel);
        if halt == Halt::Blocked && room != Some(0) {
            halt = self.pump_to_conn(
                (ctx, &mut *channel),
                room.unwrap_or(TURN_BYTES),
                &mut moved.to_conn,
            );
        }
        self.turned(ctx.now, moved, false, [halt, Halt::Blocked])
    }

    fn turned(&mut self, now: Instant, moved: Moved, closing: bool, halts: [Halt; 2]) -> Turn {
        if moved.any() || closing {
            self.moved_at = now;
        }
        let mut turn = Turn {
            moved,
            again: false,
            closing,
            parted: false,
            end: None,
        };
        for halt in halts {
            match halt {
                Halt::LocalBroken => turn.end = Some(End::Local),
                Halt::ConnBroken(broken) => turn.end = turn.end.or(Some(End::Broken(broken))),
                Halt::Again => turn.again = true,
                Halt::Blocked | Halt::ConnGone => {}
            }
        }
        turn.again &= turn.end.is_none() && !halts.contains(&Halt::ConnGone);
        turn
    }

    /// Ends both streams as `end` says, but a local one that is closed already.
    pub(crate) fn end(&self, ctx: &mut Ctx<'_>, channel: &Channel, end: End) {
        if end != End::Finished {
            channel.abort(ctx.now, ctx.stack);
        }
        match end {
            _ if self.parted() => {}
            End::Finished => ctx.local.close(self.local),
            _ => ctx.local.reset(self.local),
        }
    }

    /// Lets the channel go on by itself, which may make room.
    fn drive(&mut self, ctx: &mut Ctx<'_>, channel: &mut Channel) -> Halt {
        if !channel.is_protected() {
            return Halt::Blocked;
        }
        self.to_conn.sink_is_ready();
        match channel.drive(ctx.now, ctx.stack) {
            Ok(()) => Halt::Blocked,
            Err(PumpError::Broken(broken)) => Halt::ConnBroken(broken),
            Err(_) => Halt::ConnGone,
        }
    }

    /// Moves what the local side sent into the connection.
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
            let mut asked = false;
            let kept = &mut self.kept;
            let fill = |bufs: &mut [IoSliceMut<'_>]| {
                asked = true;
                let n = ctx.local.read(self.local, bufs).map_err(PumpError::Local)?;
                if let Some(kept) = kept {
                    kept.take(bufs, n);
                }
                Ok(n)
            };
            match channel.write_with(ctx.now, ctx.stack, budget, fill) {
                Ok(0) if !asked => self.to_conn = Direction::SinkFull,
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
                Err(PumpError::Local(LocalError::WouldBlock)) => {
                    self.to_conn = Direction::SourceEmpty;
                }
                Err(PumpError::Local(LocalError::Broken)) => return Halt::LocalBroken,
                Err(PumpError::Broken(broken)) => return Halt::ConnBroken(broken),
                Err(PumpError::Api) => return Halt::ConnGone,
            }
        }
        Halt::Blocked
    }

    /// Moves what the connection delivered to the local side.
    fn pump_to_local(
        &mut self,
        (ctx, channel): (&mut Ctx<'_>, &mut Channel),
        moved: &mut u64,
    ) -> Halt {
        let mut budget = TURN_BYTES;
        while self.to_local == Direction::Open {
            if budget == 0 {
                return Halt::Again;
            }
            let mut asked = false;
            let drain = |bufs: &[IoSlice<'_>]| {
                asked = true;
                ctx.local.write(self.local, bufs).map_err(PumpError::Local)
            };
            match channel.read_with(ctx.now, ctx.stack, drain) {
                Ok(0) if !asked => {
                    self.to_local = Direction::SourceEmpty;
                    if channel.read_finished(ctx.stack) {
                        self.to_local = Direction::Ended;
                        ctx.local.shutdown(self.local);
                    }
                }
                // A stream that takes nothing and says so by a zero is as good as full.
                Ok(0) => self.to_local = Direction::SinkFull,
                Ok(n) => {
                    // Who says little at a time has no more of them.
                    budget = budget.saturating_sub(n.max(LEAST_BYTES));
                    *moved += n as u64;
                }
                Err(PumpError::Local(LocalError::WouldBlock)) => {
                    self.to_local = Direction::SinkFull;
                }
                Err(PumpError::Local(LocalError::Broken)) => return Halt::LocalBroken,
                Err(PumpError::Broken(broken)) => return Halt::ConnBroken(broken),
                Err(PumpError::Api) => return Halt::ConnGone,
            }
        }
        Halt::Blocked
    }
}

/// Feeds a handshake that comes before a relay with what the connection delivered, up to the next
/// step that is not `more`, and leaves alone what follows it.
pub(crate) fn read_step<S: PartialEq + Clone>(
    now: Instant,
    channel: &mut Channel,
    stack: &mut Stack,
    more: S,
    mut input: impl FnMut(&[u8]) -> (usize, S),
) -> Result<S, StepError> {
    let mut step = more.clone();
    loop {
        let mut asked = false;
        channel.read_with(now, stack, |bufs| {
            asked = true;
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
        // Of what is protected, what was left before is shown alone.
        if !asked || step != more || !channel.is_protected() {
            return Ok(step);
        }
    }
}

/// Why a handshake cannot go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StepError {
    /// The connection is no more: its `Closed` follows.
    Gone,
    /// It is not protected as it should be.
    Broken(Broken),
}

impl From<ApiError> for StepError {
    fn from(_: ApiError) -> Self {
        StepError::Gone
    }
}

impl From<Broken> for StepError {
    fn from(broken: Broken) -> Self {
        StepError::Broken(broken)
    }
}
