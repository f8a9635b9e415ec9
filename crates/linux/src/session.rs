//! Sessions: several streams over one connection between two programs, each stream with its own urgency.
//!
//! A session uses the engine on a TUN device, over all links between two hosts. It has no thread. The program calls
//! [`Session::wait`] in a loop, and between these calls it reads and writes without blocking.
//! `crates/linux/examples/video.rs` is a whole program.
//!
//! Dropping the session removes its device, routes and packet filter rules. A signal ends a process without dropping
//! anything. So a program that signals may end receives them through [`Signals`](crate::run::Signals), and waits with
//! [`Session::wait_or_stop`].
//!
//! The session sends bytes as they are: it protects and authenticates nothing. A program that needs this encrypts
//! what it writes.

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use braid_engine::streams::{Read, StreamError, Streams};
use braid_engine::{ApiError, CloseReason, ConnId, ConnectOptions, Event, Stack, Urgency};
use braid_proxy::app::{Core, Ctx};
use braid_wire::Instant;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::driver::{Driver, Host};
use crate::net::{Result, SystemError};
use crate::run::{AppConfig, AppHost, Role, start_app};
use crate::tun::{PacketIo, Tun};

/// Time that a closed session runs on, to answer retransmissions of the peer. A guess: Linux retransmits after 200
/// ms at the earliest.
const LINGER_TIME: Duration = Duration::from_millis(500);

/// The outcome of a call about a stream.
pub type StreamResult<T> = std::result::Result<T, StreamError>;

/// One end of a session with a peer.
#[derive(Debug)]
pub struct Session<P, H> {
    driver: Driver<P, Peer, H>,
}

/// A session over the links of this machine. Dropping it removes the device and the rules. After the end of a process
/// that was killed, the next session with the same device name removes them.
pub type LinkSession = Session<Tun, AppHost>;

/// The connection of a session.
#[derive(Debug, Default)]
pub struct Peer {
    open: Option<(ConnId, Streams)>,
    is_connected: bool,
    closed: Option<CloseReason>,
    error: Option<StreamError>,
    /// True if streams may have become readable or writable, or the connection opened or closed.
    has_news: bool,
}

impl Peer {
    /// Opens a connection. A peer made by [`Self::default`] takes the first connection that the stack accepts.
    ///
    /// # Errors
    /// Fails if no path is usable, or if a limit of the engine is reached.
    pub fn connect(
        now: Instant,
        stack: &mut Stack,
        options: ConnectOptions,
    ) -> std::result::Result<Self, ApiError> {
        let mut peer = Peer::default();
        peer.begin(stack.connect(now, options)?);
        Ok(peer)
    }

    /// Returns the connection, once there is one.
    pub fn conn(&self) -> Option<ConnId> {
        self.open.as_ref().map(|(conn, _)| *conn)
    }

    fn begin(&mut self, conn: ConnId) {
        self.open = Some((conn, Streams::new(conn)));
    }

    /// Reads what has arrived. Aborts the connection if the peer violates the format of streams, because nothing
    /// after the violation can be understood.
    fn receive(&mut self, now: Instant, stack: &mut Stack) {
        let Some((conn, streams)) = self.open.as_mut().filter(|_| self.error.is_none()) else {
            return;
        };
        match streams.receive((now, &mut *stack)) {
            Ok(has_received) => self.has_news |= has_received,
            // The connection has ended, and with it what could be read.
            Err(StreamError::Connection(_)) => {}
            Err(error) => {
                self.error = Some(error);
                stack.abort(now, *conn);
            }
        }
    }
}

impl Core for Peer {
    fn on_engine_event(&mut self, ctx: &mut Ctx<'_>, event: Event) {
        let conn = event.conn();
        match event {
            Event::Accepted { .. } if self.open.is_none() => self.begin(conn),
            // A session has one peer.
            Event::Accepted { .. } => return ctx.stack.abort(ctx.now, conn),
            _ => {}
        }
        if self.conn() != Some(conn) {
            return;
        }
        match event {
            Event::Accepted { .. } | Event::Connected { .. } => self.is_connected = true,
            Event::Readable { .. } => return self.receive(ctx.now, ctx.stack),
            Event::Closed { reason, .. } => self.closed = Some(reason),
            Event::Writable { .. } => {}
            _ => return,
        }
        self.has_news = true;
    }
}

impl LinkSession {
    /// Sets up the paths and opens a session: to the first server of [`Role::Connect`], or with the first peer that
    /// connects to an address of [`Role::Listen`]. It returns before the connection is open
    /// ([`is_connected`](Self::is_connected)), but peers can connect from now on.
    ///
    /// # Errors
    /// Fails if the kernel refuses something that the paths need, if there is no server or no strategy of this name,
    /// or if no link can reach the server.
    pub fn open(config: &AppConfig) -> Result<Self> {
        let driver = start_app(config, |now, stack| match &config.role {
            Role::Connect { servers, .. } => {
                let peer = connect(now, stack, &config.strategy, servers.first());
                peer.map_err(|reason| SystemError::other("open the session", reason))
            }
            Role::Listen { .. } => Ok(Peer::default()),
        })?;
        Ok(Session { driver })
    }
}

/// Connects to a server by a strategy. The error is the reason of the failure.
fn connect(
    now: Instant,
    stack: &mut Stack,
    strategy: &str,
    server: Option<&SocketAddr>,
) -> std::result::Result<Peer, String> {
    let server = *server.ok_or("no server is given")?;
    let strategy = braid_strategy::by_name(strategy).map_err(|e| e.to_string())?;
    let options = ConnectOptions::new(server, strategy);
    Peer::connect(now, stack, options).map_err(|e| format!("{server}: {e}"))
}

impl<P: PacketIo, H: Host<Peer>> Session<P, H> {
    /// Returns a session on a driver of the caller.
    pub fn on(driver: Driver<P, Peer, H>) -> Self {
        Session { driver }
    }

    /// Returns the driver, for example to read statistics of the connection.
    pub fn driver(&self) -> &Driver<P, Peer, H> {
        &self.driver
    }

    /// Returns the current time, on the clock of the times that [`write`](Self::write) and [`wait`](Self::wait) take.
    pub fn now(&self) -> Instant {
        self.driver.clock().now()
    }

    /// Returns whether the connection to the peer was established.
    pub fn is_connected(&self) -> bool {
        self.driver.core.is_connected
    }

    /// Returns the reason for the end of the connection, once it has ended.
    pub fn closed(&self) -> Option<CloseReason> {
        self.driver.core.closed
    }

    /// Sends and receives until `until` at the latest, or until something changes: streams can be read, a write that
    /// found no room can be repeated, or the connection opens or ends. Nothing is sent or received outside of this
    /// call, so call it at least every few milliseconds.
    ///
    /// # Errors
    /// Fails if the kernel refuses to wait, which is a bug of this program.
    pub fn wait(&mut self, until: Option<Instant>) -> Result<()> {
        self.run(until, |driver, until| {
            driver.run_until(until, |driver| driver.core.has_news)
        })
    }

    /// Waits as [`wait`](Self::wait) does, and ends also when `stop` is readable, for example a
    /// [`Signals`](crate::run::Signals). Returns whether `stop` is readable. The session is still open then: close it
    /// if the peer should get what was written, and drop it, which removes the device and the rules.
    ///
    /// # Errors
    /// Fails if the kernel refuses to wait, which is a bug of this program.
    pub fn wait_or_stop(&mut self, stop: BorrowedFd<'_>, until: Option<Instant>) -> Result<bool> {
        self.run(until, |driver, until| {
            driver.run_for(stop, until, |driver| driver.core.has_news)
        })?;
        let mut stop = [PollFd::new(&stop, PollFlags::IN)];
        let ready = poll(&mut stop, Some(&Timespec::default()));
        let ready = ready.map_err(|e| SystemError::cannot("wait for events")(e))?;
        Ok(ready > 0)
    }

    /// Calls `run` with the driver and the latest time at which `run` has to return.
    fn run(
        &mut self,
        until: Option<Instant>,
        run: impl FnOnce(&mut Driver<P, Peer, H>, Option<Instant>) -> Result<()>,
    ) -> Result<()> {
        // A `read` since the last wait may have received data for other streams. The caller has to look at them
        // first, so this wait does not block.
        let until = if self.driver.core.has_news {
            Some(self.now())
        } else {
            until
        };
        self.driver.core.has_news = false;
        run(&mut self.driver, until)?;
        self.driver.core.has_news = false;
        Ok(())
    }

    /// Opens a stream for writing and returns its number. The engine sends the bytes of the most urgent stream
    /// first, and the strategy may send them on the best path.
    ///
    /// # Errors
    /// [`StreamError::TooManyStreams`]; [`StreamError::Connection`] before a peer has connected.
    pub fn open_stream(&mut self, urgency: Urgency) -> StreamResult<u32> {
        self.parts()?.0.open(urgency)
    }

    /// Writes as many bytes of `data` to a stream as the send buffer has room for, and returns their number. Bytes
    /// that are not sent by `deadline` are dropped.
    ///
    /// # Errors
    /// [`StreamError::NotOpen`], [`StreamError::Connection`].
    pub fn write(
        &mut self,
        stream: u32,
        data: &[u8],
        deadline: Option<Instant>,
    ) -> StreamResult<usize> {
        let (streams, at) = self.parts()?;
        streams.write(at, stream, data, deadline)
    }

    /// Ends a stream. Returns false if there is no room now; call `finish` again later.
    ///
    /// # Errors
    /// [`StreamError::NotOpen`], [`StreamError::Connection`].
    pub fn finish(&mut self, stream: u32) -> StreamResult<bool> {
        let (streams, at) = self.parts()?;
        streams.finish(at, stream)
    }

    /// Returns the numbers of the peer's streams that are not yet read to their end.
    pub fn incoming(&self) -> Vec<u32> {
        let open = self.driver.core.open.as_ref();
        open.map_or_else(Vec::new, |(_, streams)| streams.incoming().collect())
    }

    /// Returns whether the peer writes no more and all its streams were read to their ends.
    pub fn has_ended(&self) -> bool {
        let open = self.driver.core.open.as_ref();
        open.is_some_and(|(_, streams)| streams.has_ended())
    }

    /// Reads from a stream of the peer into `buf`. Read until [`Read::Nothing`]: once the unread bytes of all streams
    /// reach a limit ([`MAX_UNREAD_BYTES`](braid_engine::streams::MAX_UNREAD_BYTES)), no stream receives more.
    ///
    /// # Errors
    /// [`StreamError::NotOpen`], [`StreamError::Cut`], [`StreamError::BadFrame`].
    pub fn read(&mut self, stream: u32, buf: &mut [u8]) -> StreamResult<Read> {
        if let Some(error) = self.driver.core.error {
            return Err(error);
        }
        let read = self.parts()?.0.read(stream, buf)?;
        if matches!(read, Read::Bytes(_) | Read::Missed(_)) {
            return Ok(read);
        }
        // Reads have made room: for further bytes, or for another stream in place of one that has ended.
        let now = self.now();
        let Driver { core, stack, .. } = &mut self.driver;
        core.receive(now, stack);
        if read == Read::End {
            return Ok(read);
        }
        match self.parts()?.0.read(stream, buf)? {
            Read::Nothing if self.closed().is_some() => Err(StreamError::Cut),
            read => Ok(read),
        }
    }

    /// Ends the session once everything that was written has arrived. Waits until the peer has ended its side too,
    /// but at most until `end`. Returns the reason for the end of the connection; `None` if it has not ended. The
    /// session reads nothing more.
    ///
    /// # Errors
    /// Fails if the kernel refuses to wait, which is a bug of this program.
    pub fn close(&mut self, end: Instant) -> Result<Option<CloseReason>> {
        let now = self.now();
        if let Some(conn) = self.driver.core.conn() {
            // The call fails only if the connection has ended already.
            let _ = self.driver.stack.shutdown(now, conn);
            let is_closed = |driver: &mut Driver<P, Peer, H>| driver.core.closed.is_some();
            self.driver.run_until(Some(end), is_closed)?;
            self.driver
                .run_until(Some(end.min(self.now() + LINGER_TIME)), |_| false)?;
        }
        Ok(self.driver.core.closed)
    }

    fn parts(&mut self) -> StreamResult<(&mut Streams, (Instant, &mut Stack))> {
        let now = self.driver.clock().now();
        let Driver { core, stack, .. } = &mut self.driver;
        match &mut core.open {
            Some((_, streams)) => Ok((streams, (now, stack))),
            None => Err(StreamError::Connection(ApiError::UnknownConnection)),
        }
    }
}

#[cfg(test)]
mod tests;
