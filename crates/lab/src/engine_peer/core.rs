//! The transfers of the engine peer, a test endpoint that uses the engine in place of a kernel's TCP. They are a
//! [`Core`], so the event loop of `braid-linux` runs them, as it runs a box.
//!
//! Here "this process" is the engine peer, and "the remote host" is the other end of its connections.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::net::SocketAddr;
use std::time::Duration;

use braid_engine::{
    ApiError, CloseReason, ConnId, ConnectOptions, Event, PathId, Stack, SubflowId,
};
use braid_proxy::app::{Core, Ctx};
use braid_testbed::Pattern;
use braid_wire::Instant;

use crate::cli::{EngineArgs, PeerArgs};
use crate::kernel_peer::{self, Report};

/// Time that the engine runs on after the end of the last connection, to answer retransmissions of the remote host.
/// A guess. The RTO of Linux is at least RTT + 200 ms. If our last ACK is lost, the repeated FIN arrives that long
/// after the first, so within 500 ms if the RTT is below 300 ms.
const LINGER_TIME: Duration = Duration::from_millis(500);

/// Transfers on connections of the engine, with the arguments and reports of [`crate::kernel_peer`].
pub struct Transfers {
    /// The arguments. `demote` and `promote` are taken out once they were carried out.
    args: EngineArgs,
    role: &'static str,
    open: BTreeMap<ConnId, Transfer>,
    /// The time at which this process ends, once it is known.
    pub end: Option<Instant>,
    /// The address to connect to again whenever a connection has ended. `None` if all connections are made at once or
    /// are accepted.
    pub again: Option<SocketAddr>,
    /// Name of the strategy of opened connections. It must be the name of a known strategy.
    pub strategy: String,
    /// Reports of ended connections, oldest first.
    pub done: Vec<Report>,
}

impl Transfers {
    /// Creates the transfers of a process in the `role` that the reports name: `listen` or `connect`.
    pub fn new(role: &'static str, args: EngineArgs) -> Self {
        Transfers {
            // Without connections no event would end this process.
            end: (args.connections == 0).then_some(Instant::ZERO),
            args,
            role,
            open: BTreeMap::new(),
            again: None,
            strategy: braid_strategy::DEFAULT.to_owned(),
            done: Vec::new(),
        }
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
        self.begin(now, conn, stack);
        Ok(())
    }

    /// Returns whether as many connections have ended as this process makes or serves. More may end, because the
    /// listener goes on accepting until this process ends.
    pub fn is_complete(&self) -> bool {
        self.done.len() >= self.args.connections as usize
    }

    /// Registers a connection and sends its first bytes.
    fn begin(&mut self, now: Instant, conn: ConnId, stack: &mut Stack) {
        let mut transfer = Transfer::new(now, self.role, &self.args.peer);
        transfer.send(now, conn, &self.args.peer, stack);
        self.open.insert(conn, transfer);
    }

    /// Demotes or promotes the second path, each once, if `received` bytes of a connection are enough for it.
    fn change_priority(&mut self, now: Instant, received: u64, stack: &mut Stack) {
        for (at, backup) in [
            (&mut self.args.demote, true),
            (&mut self.args.promote, false),
        ] {
            // The path belongs to all connections of the stack, so the first one that received enough decides.
            if at.take_if(|at| *at <= received).is_some() {
                stack.set_path_backup(now, PathId(1), backup);
            }
        }
    }

    /// Reports on a connection that has ended, and opens the next one if connections are made in turn.
    fn close(&mut self, now: Instant, conn: ConnId, reason: CloseReason, stack: &mut Stack) {
        if let Some(transfer) = self.open.remove(&conn) {
            if reason != CloseReason::Finished {
                let stats = stack.conn_stats(conn);
                tracing::warn!(?reason, ?stats, "the connection failed");
            }
            self.done.push(transfer.finish(reason, &self.args.peer));
        }
        let next_remote = self.again.filter(|_| !self.is_complete());
        let next = next_remote.map_or(Ok(()), |to| self.connect(now, to, stack));
        let failed = next.is_err();
        if let Err(error) = next {
            tracing::warn!(%error, "cannot make the next connection: the remaining transfers are not made");
        }
        if self.is_complete() || failed {
            self.end = Some(now + LINGER_TIME);
        }
    }
}

impl Core for Transfers {
    fn on_engine_event(&mut self, ctx: &mut Ctx<'_>, event: Event) {
        let (now, conn, stack) = (ctx.now, event.conn(), &mut *ctx.stack);
        match event {
            Event::Accepted { .. } => return self.begin(now, conn, stack),
            Event::Closed { reason, .. } => return self.close(now, conn, reason, stack),
            _ => {}
        }
        let Some(transfer) = self.open.get_mut(&conn) else {
            return;
        };
        match event {
            Event::Connected { .. } | Event::Writable { .. } => {
                transfer.send(now, conn, &self.args.peer, stack);
            }
            Event::Readable { .. } => {
                transfer.receive(now, conn, &self.args.peer, stack);
                let received = transfer.report.received.bytes;
                self.change_priority(now, received, stack);
            }
            Event::FellBack { .. } => transfer.report.fallback = true,
            Event::SubflowEstablished { subflow, .. } => transfer.add_subflow(subflow),
            Event::SubflowClosed { subflow, .. } => {
                transfer.subflows.remove(&subflow);
            }
            _ => {}
        }
    }

    fn next_timeout(&self) -> Option<Instant> {
        self.end
    }
}

/// The transfers of one connection, in both directions.
struct Transfer {
    /// The time at which the connection was opened or accepted.
    start: Instant,
    report: Report,
    /// The bytes to send; `None` if any will do.
    pattern: Option<Pattern>,
    /// The bytes that must arrive; `None` if received bytes are only counted.
    expected: Option<Pattern>,
    /// True once the sending direction is closed.
    is_shut: bool,
    /// True once all bytes of the receiving direction and its end were read.
    is_read: bool,
    /// The established subflows.
    subflows: BTreeSet<SubflowId>,
}

impl Transfer {
    fn new(now: Instant, role: &'static str, args: &PeerArgs) -> Self {
        let mut transfer = Transfer {
            start: now,
            report: Report::new(role, args),
            pattern: kernel_peer::bytes_to_send(args),
            expected: args.verify.map(Pattern::new),
            is_shut: false,
            is_read: false,
            subflows: BTreeSet::new(),
        };
        // The event of the first subflow may come before the event that creates this transfer.
        transfer.add_subflow(SubflowId(0));
        transfer
    }

    /// Adds an established subflow, and updates the number in the report: the most subflows at the same time.
    fn add_subflow(&mut self, subflow: SubflowId) {
        self.subflows.insert(subflow);
        let count = u8::try_from(self.subflows.len()).unwrap_or(u8::MAX);
        self.report.subflows = self.report.subflows.max(count);
    }

    /// Sends as many bytes as the engine has room for. After the last byte, closes the direction, unless this process
    /// only receives: then [`receive`](Self::receive) closes it, after the remote host has closed its own. The reason:
    /// a Linux remote host accepts no further subflow once one direction is closed.
    fn send(&mut self, now: Instant, conn: ConnId, args: &PeerArgs, stack: &mut Stack) {
        while self.report.sent.bytes < args.send {
            let max = kernel_peer::next_write(self.report.sent.bytes, args);
            let written = stack.write_with::<ApiError>(now, conn, max, |room| {
                let mut left = max;
                for slice in room {
                    let n = slice.len().min(left);
                    if let Some(pattern) = &mut self.pattern {
                        pattern.fill(&mut slice[..n]);
                    }
                    left -= n;
                }
                Ok(max - left)
            });
            match written {
                Ok(0) => return,
                Ok(n) => self.report.sent.bytes += n as u64,
                // The engine refuses bytes only after the connection has ended. `Closed` then ends the transfer.
                Err(e) => return self.report.keep_error(Err(format!("sending: {e}"))),
            }
        }
        if !args.only_receives() {
            self.end_sending(now, conn, stack);
        }
    }

    fn end_sending(&mut self, now: Instant, conn: ConnId, stack: &mut Stack) {
        if !mem::replace(&mut self.is_shut, true) {
            self.report.sent.seconds = self.seconds(now);
            let ended = stack.shutdown(now, conn);
            let ended = ended.map_err(|e| format!("ending the sending direction: {e}"));
            self.report.keep_error(ended);
        }
    }

    /// Reads and checks the bytes that have arrived.
    fn receive(&mut self, now: Instant, conn: ConnId, args: &PeerArgs, stack: &mut Stack) {
        let (report, expected) = (&mut self.report, &mut self.expected);
        loop {
            let read = stack.read_with::<ApiError>(now, conn, |slices| {
                for slice in slices {
                    report.keep_error(kernel_peer::compare(expected, slice));
                }
                Ok(slices.iter().map(|slice| slice.len()).sum())
            });
            match read {
                Ok(0) => break,
                Ok(n) => report.received.bytes += n as u64,
                // The engine no longer knows the connection. `Closed` ends the transfer.
                Err(e) => return report.keep_error(Err(format!("receiving: {e}"))),
            }
        }
        if args.aborts_at(report.received.bytes) {
            return stack.abort(now, conn);
        }
        if stack.read_finished(conn) && !mem::replace(&mut self.is_read, true) {
            self.report.received.seconds = self.seconds(now);
            // If bytes are left to send, `send` closes the direction after them.
            if self.report.sent.bytes >= args.send {
                self.end_sending(now, conn, stack);
            }
        }
    }

    /// Returns the time since `start` in seconds.
    fn seconds(&self, now: Instant) -> f64 {
        now.saturating_since(self.start).as_secs_f64()
    }

    /// Returns the report at the end of the connection.
    fn finish(mut self, reason: CloseReason, args: &PeerArgs) -> Report {
        if reason != CloseReason::Finished {
            // An earlier error may explain the end, so the report has both.
            let earlier = self.report.error.take().map(|error| format!("; {error}"));
            let earlier = earlier.unwrap_or_default();
            let error = format!("the connection ended: {reason:?}{earlier}");
            self.report.keep_error(Err(error));
        }
        self.report.finish(args)
    }
}
