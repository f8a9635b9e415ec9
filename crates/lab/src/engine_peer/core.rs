//! The transfers of the engine peer, which run as a [`Core`] on the driver's event loop.

use std::collections::{BTreeMap, BTreeSet};
use std::io::IoSliceMut;
use std::net::SocketAddr;
use std::time::Duration;

use braid_engine::{
    ApiError, CloseReason, ConnId, ConnectOptions, Event, PathId, Stack, SubflowId,
};
use braid_proxy::app::{Core, Ctx};
use braid_testbed::Pattern;
use braid_wire::Instant;
use sha2::{Digest, Sha256};

use crate::cli::{Demotion, PeerArgs};
use crate::kernel_peer::{Direction, Report, hex};

/// Maximum number of bytes of one write, as in the kernel peer. The engine takes fewer bytes if its buffer
/// is full.
const CHUNK_LEN: usize = 256 * 1024;

/// Time that the engine runs on after the end of the last connection, to answer retransmissions of the peer.
/// A guess: Linux retransmits after 200 ms at the earliest.
const LINGER_TIME: Duration = Duration::from_millis(500);

/// Transfers on connections of the engine, with the arguments and reports of [`crate::kernel_peer`].
pub struct Transfers {
    args: PeerArgs,
    role: &'static str,
    /// Number of connections to serve in all.
    total: usize,
    open: BTreeMap<ConnId, Transfer>,
    /// Changes of the second path that have not been made yet.
    demotion: Demotion,
    /// The time at which the peer ends, once it is known.
    end: Option<Instant>,
    /// The address to connect to whenever a connection has ended, if connections are made in turn.
    pub again: Option<SocketAddr>,
    /// Name of the strategy of opened connections. It must be the name of a known strategy.
    pub strategy: String,
    /// Reports of ended connections, oldest first.
    pub done: Vec<Report>,
}

impl Transfers {
    /// Creates transfers that serve `total` connections: accepted ones (`listen`), or those opened by
    /// [`Self::connect`].
    pub fn new(role: &'static str, total: u32, args: PeerArgs) -> Self {
        Transfers {
            args,
            role,
            total: total as usize,
            // Without connections no event would end the peer.
            end: (total == 0).then_some(Instant::ZERO),
            open: BTreeMap::new(),
            demotion: Demotion::default(),
            again: None,
            strategy: braid_strategy::DEFAULT.to_owned(),
            done: Vec::new(),
        }
    }

    /// Makes the second path a backup, and a regular path again, at the byte counts of `demotion`.
    #[must_use]
    pub fn demoting(mut self, demotion: Demotion) -> Self {
        self.demotion = demotion;
        self
    }

    /// Opens a connection.
    ///
    /// # Errors
    /// The engine has no usable path, or no room for a connection.
    pub fn connect(
        &mut self,
        now: Instant,
        remote: SocketAddr,
        stack: &mut Stack,
    ) -> Result<(), ApiError> {
        let strategy = braid_strategy::by_name(&self.strategy).expect("a known strategy");
        let conn = stack.connect(now, ConnectOptions::new(remote, strategy))?;
        self.begin(now, conn, Some(remote), stack);
        Ok(())
    }

    /// Makes the peer end at `at`.
    pub fn end(&mut self, at: Instant) {
        self.end = Some(at);
    }

    /// Returns whether the peer has ended by `now`.
    pub fn has_ended(&self, now: Instant) -> bool {
        self.end.is_some_and(|end| end <= now)
    }

    /// Returns whether every connection has ended.
    pub fn is_complete(&self) -> bool {
        self.done.len() == self.total
    }

    /// Registers a connection and sends its first bytes.
    fn begin(&mut self, now: Instant, conn: ConnId, peer: Option<SocketAddr>, stack: &mut Stack) {
        let mut transfer = Transfer::new(now, peer, &self.args);
        transfer.send(now, conn, &self.args, stack);
        self.open.insert(conn, transfer);
    }

    /// Makes the changes of the second path whose byte count has been reached.
    fn change_priority(&mut self, now: Instant, conn: ConnId, stack: &mut Stack) {
        let received = self.open.get(&conn).map_or(0, |t| t.received.bytes);
        for (at, backup) in [
            (&mut self.demotion.demote, true),
            (&mut self.demotion.promote, false),
        ] {
            if at.take_if(|at| *at <= received).is_some() {
                stack.set_path_backup(now, PathId(1), backup);
            }
        }
    }

    /// Calls `act` with the transfer of a connection, if the connection is open.
    fn with_transfer(&mut self, conn: ConnId, act: impl FnOnce(&mut Transfer, &PeerArgs)) {
        if let Some(transfer) = self.open.get_mut(&conn) {
            act(transfer, &self.args);
        }
    }
}

impl Core for Transfers {
    fn on_engine_event(&mut self, ctx: &mut Ctx<'_>, event: Event) {
        let (now, stack) = (ctx.now, &mut *ctx.stack);
        match event {
            Event::Accepted { conn, remote, .. } => self.begin(now, conn, Some(remote), stack),
            Event::Connected { conn } | Event::Writable { conn } => {
                self.with_transfer(conn, |transfer, args| transfer.send(now, conn, args, stack));
            }
            Event::Readable { conn } => {
                self.with_transfer(conn, |transfer, args| {
                    transfer.receive(now, conn, args, stack)
                });
                self.change_priority(now, conn, stack);
            }
            Event::FellBack { conn, .. } => {
                self.with_transfer(conn, |transfer, _| transfer.fallback = true)
            }
            Event::SubflowEstablished { conn, subflow, .. } => {
                self.with_transfer(conn, |transfer, _| {
                    transfer.subflows.insert(subflow);
                    transfer.max_subflows = transfer.max_subflows.max(transfer.subflows.len());
                })
            }
            Event::SubflowClosed { conn, subflow, .. } => {
                self.with_transfer(conn, |transfer, _| {
                    transfer.subflows.remove(&subflow);
                })
            }
            Event::Closed { conn, reason } => {
                if let Some(transfer) = self.open.remove(&conn) {
                    if reason != CloseReason::Finished {
                        let stats = stack.conn_stats(conn);
                        tracing::warn!(?reason, ?stats, "the connection failed");
                    }
                    let report = transfer.report(reason, self.role, &self.args);
                    self.done.push(report);
                }
                let next_remote = self.again.filter(|_| !self.is_complete());
                let failed = next_remote.is_some_and(|to| self.connect(now, to, stack).is_err());
                if self.is_complete() || failed {
                    self.end = Some(now + LINGER_TIME);
                }
            }
            _ => {}
        }
    }

    fn next_timeout(&self) -> Option<Instant> {
        self.end
    }
}

/// One connection.
struct Transfer {
    start: Instant,
    peer: Option<SocketAddr>,
    pattern: Pattern,
    expected: Option<Pattern>,
    sent: Half,
    received: Half,
    error: Option<String>,
    fallback: bool,
    subflows: BTreeSet<SubflowId>,
    max_subflows: usize,
}

/// Bytes in one direction.
struct Half {
    hash: Option<Sha256>,
    bytes: u64,
    end: Option<Instant>,
}

impl Half {
    fn count(&mut self, bytes: &[u8]) {
        self.bytes += bytes.len() as u64;
        if let Some(hash) = &mut self.hash {
            hash.update(bytes);
        }
    }

    fn direction(self, start: Instant) -> Direction {
        Direction {
            bytes: self.bytes,
            seconds: self
                .end
                .map_or(0.0, |end| end.saturating_since(start).as_secs_f64()),
            sha256: self.hash.map(|hash| hex(&hash.finalize())),
        }
    }
}

impl Transfer {
    fn new(now: Instant, peer: Option<SocketAddr>, args: &PeerArgs) -> Self {
        let half = || Half {
            hash: (!args.fast).then(Sha256::new),
            bytes: 0,
            end: None,
        };
        Transfer {
            start: now,
            peer,
            pattern: Pattern::new(args.seed),
            expected: args.verify.map(Pattern::new),
            sent: half(),
            received: half(),
            error: None,
            fallback: false,
            // The event of the first subflow may come before the event that creates this transfer.
            subflows: BTreeSet::from([SubflowId(0)]),
            max_subflows: 1,
        }
    }

    /// Sends as many bytes as the engine has room for. After the last byte, closes the direction, unless
    /// this side only receives.
    fn send(&mut self, now: Instant, conn: ConnId, args: &PeerArgs, stack: &mut Stack) {
        while self.sent.bytes < args.send {
            let left = usize::try_from(args.send - self.sent.bytes)
                .unwrap_or(CHUNK_LEN)
                .min(CHUNK_LEN);
            let (pattern, sent) = (&mut self.pattern, &mut self.sent);
            let written = stack.write_with::<ApiError>(now, conn, left, |room| {
                Ok(if args.fast {
                    let taken = room
                        .iter()
                        .map(|slice| slice.len())
                        .sum::<usize>()
                        .min(left);
                    sent.bytes += taken as u64;
                    taken
                } else {
                    write_pattern(pattern, sent, room, left)
                })
            });
            match written {
                Ok(0) => return,
                Ok(_) => {}
                Err(error) => return self.fail(format!("sending: {error}")),
            }
        }
        if !args.only_receives() {
            self.end_sending(now, conn, stack);
        }
    }

    fn end_sending(&mut self, now: Instant, conn: ConnId, stack: &mut Stack) {
        if self.sent.end.is_none() {
            self.sent.end = Some(now);
            if let Err(error) = stack.shutdown(now, conn) {
                self.fail(format!("ending the sending direction: {error}"));
            }
        }
    }

    /// Reads and checks the bytes that have arrived.
    fn receive(&mut self, now: Instant, conn: ConnId, args: &PeerArgs, stack: &mut Stack) {
        loop {
            let (expected, received, error) =
                (&mut self.expected, &mut self.received, &mut self.error);
            let read = stack.read_with::<ApiError>(now, conn, |slices| {
                for slice in slices {
                    let at = expected
                        .as_mut()
                        .and_then(|pattern| pattern.check(slice).err());
                    if let (Some(at), None) = (at, &error) {
                        *error = Some(format!("byte {at} differs from what was expected"));
                    }
                    received.count(slice);
                }
                Ok(slices.iter().map(|slice| slice.len()).sum())
            });
            match read {
                Ok(0) => break,
                Ok(_) => {}
                Err(error) => return self.fail(format!("receiving: {error}")),
            }
        }
        if args.aborts_at(self.received.bytes) {
            return stack.abort(now, conn);
        }
        if stack.read_finished(conn) && self.received.end.is_none() {
            self.received.end = Some(now);
            if self.sent.bytes >= args.send {
                self.end_sending(now, conn, stack);
            }
        }
    }

    /// Stores the error if it is the first.
    fn fail(&mut self, error: String) {
        self.error.get_or_insert(error);
    }

    fn report(mut self, reason: CloseReason, role: &'static str, args: &PeerArgs) -> Report {
        if reason != CloseReason::Finished {
            // An earlier error may explain the end, so the report has both.
            let failed = self.error.take().map(|error| format!("; {error}"));
            let failed = failed.unwrap_or_default();
            self.fail(format!("the connection ended: {reason:?}{failed}"));
        }
        if let Some(expected) = args
            .expect
            .filter(|expected| *expected != self.received.bytes)
        {
            self.fail(format!(
                "received {} of {expected} bytes",
                self.received.bytes
            ));
        }
        Report {
            role,
            ok: self.error.is_none(),
            error: self.error,
            peer: self.peer,
            congestion: args.congestion.clone(),
            fallback: self.fallback,
            subflows: u8::try_from(self.max_subflows).unwrap_or(u8::MAX),
            sent: self.sent.direction(self.start),
            received: self.received.direction(self.start),
        }
    }
}

/// Fills at most `left` bytes of `room` with the pattern. Returns the number of bytes written.
fn write_pattern(
    pattern: &mut Pattern,
    sent: &mut Half,
    room: &mut [IoSliceMut<'_>],
    left: usize,
) -> usize {
    let mut taken = 0;
    for slice in room {
        let n = slice.len().min(left - taken);
        pattern.fill(&mut slice[..n]);
        sent.count(&slice[..n]);
        taken += n;
    }
    taken
}
