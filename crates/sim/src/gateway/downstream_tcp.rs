//! The downstream sockets of a proxy core in the simulator: the engine's TCP takes the place of kernel sockets.

use core::net::{IpAddr, SocketAddr};
use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};
use std::io::{IoSlice, IoSliceMut, Read};

use braid_engine::{
    ApiError, CloseReason, Config, ConnId, Event, PathConfig, PathId, RxMeta, Stack, Transmit,
};
use braid_proxy::app::{
    Arrival, ConnectFailure, DownstreamError, DownstreamEvent, DownstreamId, DownstreamSockets,
};
use braid_wire::{Instant, Rng};

use crate::host::{default_strategy, tcp_options};
use crate::node::Turn;
use crate::oracle::Violation;
use crate::watched::WatchedStack;

/// The maximum number of name look-ups at a time. 1,024 is a guess: a test that reaches it has a leak.
const MAX_LOOKUPS: usize = 1_024;
/// The time that a closed stream waits for the peer's FIN before it is reset: the default of Linux for
/// `net.ipv4.tcp_fin_timeout`.
const FIN_TIMEOUT: Duration = Duration::from_secs(60);

/// The settings of a [`DownstreamTcp`].
#[derive(Debug, Clone)]
pub struct DownstreamConfig {
    /// Settings of TCP, such as sizes of buffers and timeouts.
    pub engine: Config,
    /// The maximum number of streams at a time, including connection attempts.
    pub streams: usize,
    /// The addresses of each name that resolves, in order of preference. Other names do not resolve.
    pub names: BTreeMap<String, Vec<IpAddr>>,
    /// The time that each name look-up takes.
    pub lookup: Duration,
}

impl Default for DownstreamConfig {
    /// Returns settings like those of Linux sockets: the buffers have the default maxima of `tcp_wmem` (4 MiB) and
    /// `tcp_rmem` (6 MiB). A connection to a silent peer fails after 240 s, as it does by the keepalive of Braid's
    /// sockets.
    fn default() -> Self {
        DownstreamConfig {
            engine: Config {
                send_buffer: 4 << 20,
                recv_buffer: 6 << 20,
                user_timeout: Duration::from_secs(240),
                ..Config::default()
            },
            streams: 65_536,
            names: BTreeMap::new(),
            lookup: Duration::from_millis(20),
        }
    }
}

/// Counters since the start of the sockets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DownstreamCounters {
    /// Connections accepted.
    pub accepted: u64,
    /// Connections reset as soon as they were accepted, because the maximum number of streams was reached.
    pub accept_refused: u64,
}

/// Byte streams over the engine's TCP without MPTCP. Their buffers are bounded like those of kernel sockets, so
/// that a proxy core that stops reading makes the sender stop.
///
/// # Order of calls
///
/// 1. Call [`set_now`](Self::set_now) first at each new time, then [`receive`](Self::receive) for the packets
///    that arrived, and [`handle_timeout`](Self::handle_timeout) if [`next_timeout`](Self::next_timeout) is due.
/// 2. Hand the events of [`next_event`](Self::next_event) to the core until it returns `None`.
/// 3. Send the packets of [`poll_transmit`](Self::poll_transmit) until it returns `None`.
#[derive(Debug)]
pub struct DownstreamTcp {
    engine: WatchedStack,
    path: PathId,
    /// The box's own addresses, at which users connect to its SOCKS5 server.
    own_listeners: Vec<SocketAddr>,
    now: Instant,
    streams: BTreeMap<DownstreamId, Stream>,
    ids: BTreeMap<ConnId, DownstreamId>,
    next_id: u64,
    events: VecDeque<DownstreamEvent>,
    config: DownstreamConfig,
    /// Pending look-ups: the time of the result, the id, and the result. They are in order of time, because all
    /// look-ups take equally long.
    lookups: VecDeque<(Instant, DownstreamId, Vec<SocketAddr>)>,
    /// Connections that the core has closed before the peer, each with the end of its [`FIN_TIMEOUT`], in order of
    /// time.
    orphans: VecDeque<(Instant, ConnId)>,
    counters: DownstreamCounters,
}

#[derive(Debug)]
struct Stream {
    conn: ConnId,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Connecting,
    Open,
    /// Closed without a loss: all received data was read, and the peer acknowledged all written data.
    Finished,
    /// Reset or timed out.
    Broken,
}

impl DownstreamTcp {
    /// Makes sockets with the addresses of `path`; `rng` is the random stream of their stack.
    pub fn new(config: DownstreamConfig, path: PathConfig, rng: Rng) -> Self {
        // The engine requires a strategy, but plain TCP has one subflow only, so the strategy has no choice to
        // make.
        let strategy = Box::new(default_strategy);
        let mut engine = WatchedStack::new(config.engine.clone(), rng, strategy);
        DownstreamTcp {
            path: engine.stack.add_path(path).expect("the first path"),
            own_listeners: Vec::new(),
            engine,
            now: Instant::ZERO,
            streams: BTreeMap::new(),
            ids: BTreeMap::new(),
            next_id: 0,
            events: VecDeque::new(),
            config,
            lookups: VecDeque::new(),
            orphans: VecDeque::new(),
            counters: DownstreamCounters::default(),
        }
    }

    /// Accepts connections to any destination, because intercepted connections may have any. The accepted socket
    /// answers with the destination's address. Connections to `own_listeners` count as addressed to the box
    /// itself.
    ///
    /// # Errors
    /// Fails as [`Stack::listen_any`] does.
    pub fn listen_any(&mut self, own_listeners: &[SocketAddr]) -> Result<(), ApiError> {
        self.own_listeners = own_listeners.to_vec();
        self.engine.stack.listen_any(self.path).map(drop)
    }

    /// Returns the stack that runs TCP.
    pub fn stack(&self) -> &Stack {
        &self.engine.stack
    }

    /// Returns the number of streams open or being opened.
    pub fn len(&self) -> usize {
        self.streams.len()
    }

    /// Returns whether there is no stream.
    pub fn is_empty(&self) -> bool {
        self.streams.is_empty()
    }

    /// Returns the counters.
    pub fn counters(&self) -> DownstreamCounters {
        self.counters
    }

    /// Sets the time of the following calls. The core's calls carry no time, just as calls of kernel sockets do
    /// not.
    pub fn set_now(&mut self, now: Instant) {
        self.now = now;
    }

    /// Processes a received IP packet.
    pub fn receive(&mut self, packet: &[u8], meta: RxMeta) {
        self.engine.receive(self.now, packet, meta);
    }

    /// Returns the next packet to send.
    pub fn poll_transmit(&mut self) -> Option<Transmit<'_>> {
        self.engine.poll_transmit(self.now)
    }

    /// Sends all packets in a turn, each by the interface that `iface` returns. Returns whether there was a
    /// packet.
    pub(super) fn send_all(
        &mut self,
        turn: &mut Turn<'_>,
        iface: impl Fn(&Transmit<'_>) -> u32,
    ) -> bool {
        self.set_now(turn.now);
        self.engine.send_all(turn, iface, |_, _| ())
    }

    /// Returns the violations that the oracle has seen. Call this when all packets are sent.
    pub fn take_violations(&mut self) -> Vec<Violation> {
        self.engine.end_turn(self.now)
    }

    /// Returns the next event for the core. Events of streams that the core has closed meanwhile are dropped,
    /// except those that end an id.
    pub fn next_event(&mut self) -> Option<DownstreamEvent> {
        self.take_events();
        while let Some(event) = self.events.pop_front() {
            if event.ends_id() || self.streams.contains_key(&event.id()) {
                return Some(event);
            }
        }
        None
    }

    /// Returns when [`Self::handle_timeout`] is due, if ever.
    pub fn next_timeout(&self) -> Option<Instant> {
        let lookup = self.lookups.front().map(|(at, ..)| *at);
        let orphan = self.orphans.front().map(|(at, _)| *at);
        Instant::earliest([self.engine.stack.next_timeout(), lookup, orphan])
    }

    /// Runs the timers that are due.
    pub fn handle_timeout(&mut self) {
        self.engine.handle_timeout(self.now);
        let done = self.lookups.partition_point(|(at, ..)| *at <= self.now);
        for (_, id, addresses) in self.lookups.drain(..done) {
            self.events
                .push_back(DownstreamEvent::Resolved { id, addresses });
        }
        let expired = self.orphans.partition_point(|(at, _)| *at <= self.now);
        for (_, conn) in self.orphans.drain(..expired) {
            self.engine.stack.abort(self.now, conn);
        }
    }

    /// Turns the engine's events into events of the downstream sockets.
    fn take_events(&mut self) {
        while let Some(event) = self.engine.poll_event(self.now) {
            match event {
                Event::Accepted { conn, remote, .. } => self.on_accepted(conn, remote),
                Event::Connected { conn } => {
                    if let Some(&id) = self.ids.get(&conn)
                        && let Some(stream) = self.streams.get_mut(&id)
                    {
                        stream.state = State::Open;
                        self.events.push_back(DownstreamEvent::Connected { id });
                    }
                }
                Event::Readable { conn } => match self.ids.get(&conn) {
                    Some(&id) => self.events.push_back(DownstreamEvent::Readable { id }),
                    // The core has closed the stream, so nobody will read this data: reset, as Linux does.
                    None if self.engine.stack.readable(conn) > 0 => {
                        self.engine.stack.abort(self.now, conn)
                    }
                    None => {}
                },
                Event::Writable { conn } => {
                    if let Some(&id) = self.ids.get(&conn) {
                        self.events.push_back(DownstreamEvent::Writable { id });
                    }
                }
                Event::Closed { conn, reason } => self.on_closed(conn, reason),
                _ => {}
            }
        }
    }

    fn on_accepted(&mut self, conn: ConnId, peer: SocketAddr) {
        let subflows = self.engine.stack.subflows(conn);
        let Some(destination) = subflows.first().map(|s| s.local) else {
            return;
        };
        if self.streams.len() >= self.config.streams {
            self.counters.accept_refused += 1;
            return self.engine.stack.abort(self.now, conn);
        }
        self.counters.accepted += 1;
        let id = self.insert(conn, State::Open);
        self.events.push_back(DownstreamEvent::Accepted {
            id,
            peer,
            destination,
            arrival: match self.own_listeners.contains(&destination) {
                true => Arrival::Addressed,
                false => Arrival::Intercepted,
            },
            // Hosts of the simulator set no DSCP.
            dscp: 0,
        });
    }

    fn on_closed(&mut self, conn: ConnId, reason: CloseReason) {
        let Some(id) = self.ids.remove(&conn) else {
            return;
        };
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        let event = if stream.state == State::Connecting {
            self.streams.remove(&id);
            let failure = failure(reason);
            DownstreamEvent::ConnectFailed { id, failure }
        } else if reason == CloseReason::Finished {
            stream.state = State::Finished;
            // The core learns of the end by reading: 0 bytes.
            DownstreamEvent::Readable { id }
        } else {
            stream.state = State::Broken;
            DownstreamEvent::Broken { id }
        };
        self.events.push_back(event);
    }

    fn next_free_id(&mut self) -> DownstreamId {
        self.next_id += 1;
        DownstreamId(self.next_id)
    }

    fn insert(&mut self, conn: ConnId, state: State) -> DownstreamId {
        let id = self.next_free_id();
        self.streams.insert(id, Stream { conn, state });
        self.ids.insert(conn, id);
        id
    }

    /// Returns the connection and the state of a stream that is connected and not broken.
    fn connected(&mut self, id: DownstreamId) -> Result<(ConnId, State), DownstreamError> {
        // The state here may lag behind the stack, which discards a connection that has ended. If the connection
        // still counted as open here, a read would fail instead of returning the end of the stream.
        self.take_events();
        let stream = self.streams.get(&id).ok_or(DownstreamError::Broken)?;
        match stream.state {
            State::Connecting => Err(DownstreamError::WouldBlock),
            State::Broken => Err(DownstreamError::Broken),
            state => Ok((stream.conn, state)),
        }
    }

    fn remove(&mut self, id: DownstreamId) -> Option<Stream> {
        let stream = self.streams.remove(&id)?;
        self.ids.remove(&stream.conn);
        Some(stream)
    }
}

impl DownstreamSockets for DownstreamTcp {
    fn connect(&mut self, destination: SocketAddr) -> Result<DownstreamId, ConnectFailure> {
        if self.streams.len() >= self.config.streams {
            return Err(ConnectFailure::NoResources);
        }
        let options = tcp_options(destination);
        let conn = self.engine.stack.connect(self.now, options);
        let conn = conn.map_err(|e| match e {
            ApiError::NoUsablePath => ConnectFailure::NetworkUnreachable,
            _ => ConnectFailure::NoResources,
        })?;
        Ok(self.insert(conn, State::Connecting))
    }

    fn resolve(&mut self, name: &str, port: u16) -> Option<DownstreamId> {
        if self.lookups.len() >= MAX_LOOKUPS {
            return None;
        }
        let addresses = self.config.names.get(name).into_iter().flatten();
        let addresses = addresses.map(|addr| SocketAddr::new(*addr, port)).collect();
        let id = self.next_free_id();
        let at = self.now + self.config.lookup;
        self.lookups.push_back((at, id, addresses));
        Some(id)
    }

    fn read(
        &mut self,
        id: DownstreamId,
        bufs: &mut [IoSliceMut<'_>],
    ) -> Result<usize, DownstreamError> {
        let (conn, state) = self.connected(id)?;
        if state == State::Finished {
            return Ok(0);
        }
        let capacity = bufs.iter().map(|b| b.len()).sum();
        let mut data = Vec::new();
        while data.len() < capacity {
            let read = self.engine.stack.read_with(self.now, conn, |slices| {
                Ok::<_, ApiError>(gather(slices, capacity, &mut data))
            });
            // The stack may discard a closed connection when its last byte is read, so an error does not mean that
            // this read failed.
            if read.unwrap_or(0) == 0 {
                break;
            }
        }
        if !data.is_empty() || self.engine.stack.read_finished(conn) {
            // Copying from memory does not fail.
            return Ok((&data[..]).read_vectored(bufs).unwrap_or(0));
        }
        match self.connected(id)? {
            (_, State::Finished) => Ok(0),
            _ => Err(DownstreamError::WouldBlock),
        }
    }

    fn peek(&mut self, id: DownstreamId, buf: &mut [u8]) -> Result<usize, DownstreamError> {
        let (conn, state) = self.connected(id)?;
        let mut data = Vec::new();
        // The closure reports 0 bytes as read, so the stack keeps the bytes for the next read.
        let peeked = self.engine.stack.read_with(self.now, conn, |slices| {
            gather(slices, buf.len(), &mut data);
            Ok::<_, ApiError>(0)
        });
        let copied = data.len();
        buf[..copied].copy_from_slice(&data);
        match (peeked, state) {
            _ if copied > 0 => Ok(copied),
            (_, State::Finished) => Ok(0),
            (Ok(_), _) if self.engine.stack.read_finished(conn) => Ok(0),
            (Ok(_), _) => Err(DownstreamError::WouldBlock),
            (Err(_), _) => Err(DownstreamError::Broken),
        }
    }

    fn write(&mut self, id: DownstreamId, bufs: &[IoSlice<'_>]) -> Result<usize, DownstreamError> {
        let (conn, _) = self.connected(id)?;
        let data = bufs.iter().map(|b| &b[..]).collect::<Vec<_>>().concat();
        let mut done = 0;
        // One call may offer only a part of the free room, for example the room up to the end of a buffer.
        while done < data.len() {
            match self.engine.stack.write(self.now, conn, &data[done..]) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(_) => return Err(DownstreamError::Broken),
            }
        }
        if done > 0 {
            return Ok(done);
        }
        Err(DownstreamError::WouldBlock)
    }

    fn shutdown(&mut self, id: DownstreamId) {
        if let Some(stream) = self.streams.get(&id) {
            // An error is ignored: `shutdown` fails only for a closed connection, and an event reports that.
            let _ = self.engine.stack.shutdown(self.now, stream.conn);
        }
    }

    fn close(&mut self, id: DownstreamId) {
        let Some(Stream { conn, state }) = self.remove(id) else {
            return;
        };
        // Closing with unread data sends a RST, as on Linux: a FIN would tell the peer that the data was read
        // (RFC 2525 section 2.17).
        if state == State::Connecting || self.engine.stack.readable(conn) > 0 {
            return self.engine.stack.abort(self.now, conn);
        }
        let peer_closed = self.engine.stack.read_finished(conn);
        let _ = self.engine.stack.shutdown(self.now, conn);
        if state == State::Open && !peer_closed {
            self.orphans.push_back((self.now + FIN_TIMEOUT, conn));
        }
    }

    fn reset(&mut self, id: DownstreamId) {
        if let Some(stream) = self.remove(id) {
            self.engine.stack.abort(self.now, stream.conn);
        }
    }
}

/// Appends the bytes of `slices` to `data`, up to `max` bytes in all. Returns the number of appended bytes.
fn gather(slices: &[IoSlice<'_>], max: usize, data: &mut Vec<u8>) -> usize {
    let before = data.len();
    for slice in slices {
        let room = max - data.len();
        data.extend_from_slice(&slice[..slice.len().min(room)]);
    }
    data.len() - before
}

/// Returns the failure that the kernel would report for a connection attempt that ended for this reason.
fn failure(reason: CloseReason) -> ConnectFailure {
    match reason {
        CloseReason::Refused | CloseReason::Reset => ConnectFailure::Refused,
        CloseReason::TimedOut => ConnectFailure::TimedOut,
        CloseReason::NoResources => ConnectFailure::NoResources,
        _ => ConnectFailure::HostUnreachable,
    }
}
