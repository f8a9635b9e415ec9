//! An end host as a node: a stack of the engine, with the application streams of its connections.

use core::net::{IpAddr, SocketAddr};
use std::collections::BTreeMap;

use braid_engine::strategy::Strategy;
use braid_engine::{
    ApiError, Config, ConnId, ConnectOptions, Event, FallbackCause, ListenerId, PathConfig, RxMeta,
    Stack, StrategyFactory, Transmit,
};
use braid_wire::{Instant, Rng, checksum, tcp};

use crate::log::state::HostLog;
use crate::node::{Node, Packet, Turn};
use crate::oracle::Oracle;
use crate::traffic::{Arrivals, Stream};
use crate::world::{NodeId, World};

/// The settings of a host.
pub struct HostConfig {
    /// Settings of the host's engine. `checksum_offload` is always on: if the world uses checksums, the host
    /// itself completes them, as a network card would.
    pub engine: Config,
    /// Local paths. Packets of path `n` leave by interface `n`, unless `routes` has their destination.
    pub paths: Vec<PathConfig>,
    /// Pairs of a destination and the interface to it.
    pub routes: Vec<(IpAddr, u32)>,
    /// Makes the strategies of accepted connections.
    pub strategy: StrategyFactory,
}

impl HostConfig {
    /// Makes the settings of a host with these paths, and the defaults of engine and strategy.
    pub fn new(paths: Vec<PathConfig>) -> Self {
        HostConfig {
            engine: Config::default(),
            paths,
            routes: Vec::new(),
            strategy: Box::new(default_strategy),
        }
    }
}

/// Makes the strategy of a connection for which a test chooses none.
pub fn default_strategy() -> Box<dyn Strategy> {
    braid_strategy::default_strategy()
}

/// Returns the factory of the strategy `name`. The name comes from a checked configuration, so it exists.
pub(crate) fn strategy_of(name: &str) -> StrategyFactory {
    braid_strategy::factory(name).expect("a strategy that exists")
}

/// Returns the default options of a connection to `remote`.
pub fn options(remote: SocketAddr) -> ConnectOptions {
    ConnectOptions::new(remote, default_strategy())
}

/// Shorthands that call functions of a world's hosts by their node ids.
impl World {
    /// Returns a host.
    ///
    /// # Panics
    /// Panics if the node is no host.
    pub fn host(&self, id: NodeId) -> &Host {
        self.node(id)
    }

    /// Calls [`Host::serve`].
    ///
    /// # Errors
    /// Fails as [`Stack::listen`] does.
    ///
    /// # Panics
    /// Panics if the node is no host.
    pub fn serve(
        &mut self,
        host: NodeId,
        addr: SocketAddr,
        stream: Stream,
    ) -> Result<(), ApiError> {
        self.with_node(host, |host: &mut Host, _| host.serve(addr, stream))
    }

    /// Calls [`Host::open`].
    ///
    /// # Errors
    /// Fails as [`Stack::connect`] does.
    ///
    /// # Panics
    /// Panics if the node is no host.
    pub fn open(
        &mut self,
        host: NodeId,
        options: ConnectOptions,
        stream: Stream,
    ) -> Result<ConnId, ApiError> {
        self.with_node(host, |host: &mut Host, now| host.open(now, options, stream))
    }
}

/// An end host.
pub struct Host {
    stack: Stack,
    routes: Vec<(IpAddr, u32)>,
    streams: BTreeMap<ConnId, Stream>,
    /// Connections whose fallback to TCP the engine reported before it reported their acceptance.
    fell_back: BTreeMap<ConnId, FallbackCause>,
    /// The stream of each listener. Each accepted connection gets a clone.
    services: Vec<(ListenerId, Stream)>,
    /// The streams of closed connections, in the order of closing.
    finished: Vec<Stream>,
    arrivals: Vec<Arrivals>,
    oracle: Oracle,
    log: Option<HostLog>,
    fast_open: bool,
}

impl core::fmt::Debug for Host {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Host")
            .field("stack", &self.stack)
            .field("streams", &self.streams)
            .field("finished", &self.finished)
            .finish_non_exhaustive()
    }
}

impl Host {
    /// Makes a host; `rng` is the random stream of its engine.
    pub fn new(config: HostConfig, rng: Rng) -> Self {
        let engine = Config {
            checksum_offload: true,
            ..config.engine
        };
        let oracle = Oracle::new(engine.clone());
        let fast_open = engine.fast_open;
        let mut stack = Stack::new(engine, rng, config.strategy);
        for path in config.paths {
            stack.add_path(path).expect("a host has few paths");
        }
        Host {
            stack,
            routes: config.routes,
            streams: BTreeMap::new(),
            fell_back: BTreeMap::new(),
            services: Vec::new(),
            finished: Vec::new(),
            arrivals: Vec::new(),
            oracle,
            log: None,
            fast_open,
        }
    }

    /// Attaches a log to the host.
    pub(crate) fn set_log(&mut self, log: HostLog) {
        self.log = Some(log);
    }

    /// Returns the engine.
    pub fn stack(&self) -> &Stack {
        &self.stack
    }

    /// Returns the engine, for calls of a link monitor or an application.
    pub fn stack_mut(&mut self) -> &mut Stack {
        &mut self.stack
    }

    /// Returns the streams of closed connections, in the order of closing.
    pub fn finished(&self) -> &[Stream] {
        &self.finished
    }

    /// Returns the streams of connections that are not closed.
    pub fn open_streams(&self) -> impl Iterator<Item = (ConnId, &Stream)> {
        self.streams.iter().map(|(id, s)| (*id, s))
    }

    /// Returns the stream with this label, of an open or a closed connection.
    pub fn labelled(&self, label: u32) -> Option<&Stream> {
        let mut all = self.streams.values().chain(&self.finished);
        all.find(|stream| stream.label == label)
    }

    /// Pauses or resumes reading from the connections of the streams with this label.
    pub fn pause(&mut self, now: Instant, label: u32, paused: bool) {
        for (conn, stream) in &mut self.streams {
            if stream.label == label {
                stream.paused = paused;
                stream.pump(now, *conn, &mut self.stack, &mut self.oracle);
            }
        }
    }

    /// Aborts the connections of the streams with this label.
    pub fn abort_labelled(&mut self, now: Instant, label: u32) {
        for (conn, stream) in &self.streams {
            if stream.label == label {
                self.stack.abort(now, *conn);
            }
        }
    }

    /// Accepts connections to `addr`; each carries a copy of `stream`.
    ///
    /// # Errors
    /// Fails as [`Stack::listen`] does.
    pub fn serve(&mut self, addr: SocketAddr, stream: Stream) -> Result<(), ApiError> {
        let listener = self.stack.listen(addr)?;
        self.services.push((listener, stream));
        Ok(())
    }

    /// Opens a connection that carries `stream`.
    ///
    /// # Errors
    /// Fails as [`Stack::connect`] does.
    pub fn open(
        &mut self,
        now: Instant,
        options: ConnectOptions,
        mut stream: Stream,
    ) -> Result<ConnId, ApiError> {
        let conn = self.stack.connect(now, options)?;
        stream.open(now);
        if self.fast_open {
            // Data written now leaves with the SYN.
            stream.pump(now, conn, &mut self.stack, &mut self.oracle);
        }
        self.streams.insert(conn, stream);
        Ok(conn)
    }

    /// Makes the host open the connections of `arrivals` by itself at their times.
    pub fn add_arrivals(&mut self, arrivals: Arrivals) {
        self.arrivals.push(arrivals);
    }

    /// Returns the number of connections of the arrivals that could not be opened.
    pub fn refused_arrivals(&self) -> u64 {
        self.arrivals.iter().map(|a| a.refused).sum()
    }

    fn open_arrivals(&mut self, now: Instant) {
        for n in 0..self.arrivals.len() {
            while let Some((options, stream)) = self.arrivals[n].poll(now) {
                if self.open(now, options, stream).is_err() {
                    self.arrivals[n].refused += 1;
                }
            }
        }
    }

    /// Lets the stream of `conn`, which has waited for this call, start to write.
    pub fn release(&mut self, now: Instant, conn: ConnId) {
        if let Some(stream) = self.streams.get_mut(&conn) {
            stream.awaiting_release = false;
            // The result is ignored: the call fails only for an unknown connection, and the host keeps no stream
            // of such a connection.
            let _ = self.stack.set_flow_size(now, conn, stream.flow_size);
            stream.pump(now, conn, &mut self.stack, &mut self.oracle);
        }
    }

    fn on_event(&mut self, now: Instant, event: Event) {
        self.oracle.on_event(now, &event);
        if let Some(log) = &self.log {
            log.on_event(now, &event);
        }
        match event {
            Event::Accepted { conn, listener, .. } => {
                let service = self.services.iter().find(|(l, _)| *l == listener);
                let Some((_, stream)) = service else { return };
                let mut stream = stream.clone();
                stream.open(now);
                stream.fell_back = self.fell_back.remove(&conn);
                // The results are ignored: these calls fail only for an unknown connection, and this connection
                // was accepted just now.
                let _ = self.stack.set_flow_size(now, conn, stream.flow_size);
                let _ = self.stack.set_urgency(now, conn, stream.urgency);
                stream.pump(now, conn, &mut self.stack, &mut self.oracle);
                self.streams.insert(conn, stream);
            }
            Event::Connected { conn } | Event::Readable { conn } | Event::Writable { conn } => {
                if let Some(stream) = self.streams.get_mut(&conn) {
                    stream.pump(now, conn, &mut self.stack, &mut self.oracle);
                }
            }
            Event::FellBack { conn, cause } => match self.streams.get_mut(&conn) {
                Some(stream) => stream.fell_back = Some(cause),
                None => {
                    self.fell_back.insert(conn, cause);
                }
            },
            Event::Closed { conn, reason } => {
                self.fell_back.remove(&conn);
                if let Some(mut stream) = self.streams.remove(&conn) {
                    stream.closed = Some((now, reason));
                    stream.report = self.stack.conn_stats(conn);
                    self.finished.push(stream);
                }
            }
            _ => {}
        }
    }
}

impl Node for Host {
    fn receive(&mut self, turn: &mut Turn<'_>, _iface: u32, packet: Packet) {
        let meta = RxMeta {
            checksum_ok: !turn.checksums,
            gso_size: 0,
        };
        if let Some(log) = &self.log {
            log.before_receive(&self.stack, &packet);
        }
        self.stack.receive(turn.now, &packet.bytes, meta);
        self.oracle
            .on_received(turn.now, &packet.bytes, &self.stack);
        if let Some(log) = &self.log {
            log.after_receive(turn.now, &self.stack, &packet);
        }
        turn.recycle(packet);
    }

    // Runs timers, events and streams, and sends packets.
    fn wake(&mut self, turn: &mut Turn<'_>) {
        let now = turn.now;
        if self.stack.next_timeout().is_some_and(|at| at <= now) {
            self.stack.handle_timeout(now);
        }
        self.open_arrivals(now);
        for (conn, stream) in &mut self.streams {
            if stream.next_timeout().is_some_and(|at| at <= now) {
                stream.pump(now, *conn, &mut self.stack, &mut self.oracle);
            }
        }
        // Sending can cause events, and handling an event can cause packets. The first round sends even without an
        // event, because timers and streams may have caused packets.
        let mut may_have_packets = true;
        loop {
            while let Some(event) = self.stack.poll_event() {
                may_have_packets = true;
                self.on_event(now, event);
            }
            if !core::mem::take(&mut may_have_packets) {
                break;
            }
            let routes = &self.routes;
            let iface = |transmit: &Transmit<'_>| {
                let dst = destination(transmit.header);
                let route = routes.iter().find(|(addr, _)| *addr == dst);
                route.map_or(u32::from(transmit.path.0), |(_, iface)| *iface)
            };
            let log = self.log.as_ref();
            let on_sent = |transmit: &Transmit<'_>, first| {
                if let Some(log) = log {
                    log.on_sent(now, transmit, first);
                }
            };
            if !send_all(&mut self.stack, &mut self.oracle, turn, (iface, on_sent)) {
                break;
            }
        }
        self.oracle.end_turn(now, &self.stack);
        turn.report(self.oracle.take());
    }

    fn next_timeout(&self) -> Option<Instant> {
        let streams = self.streams.values().map(Stream::next_timeout);
        let arrivals = self.arrivals.iter().map(Arrivals::next_timeout);
        let stack = self.stack.next_timeout();
        Instant::earliest([stack].into_iter().chain(streams).chain(arrivals))
    }
}

/// Returns the destination in an IP header. `ip::Packet` would refuse a header without the payload that the
/// header's length announces.
pub(crate) fn destination(header: &[u8]) -> IpAddr {
    if header[0] >> 4 == 4 {
        let mut octets = [0; 4];
        octets.copy_from_slice(&header[16..20]);
        octets.into()
    } else {
        let mut octets = [0; 16];
        octets.copy_from_slice(&header[24..40]);
        octets.into()
    }
}

/// Sends all packets of `stack`, each by the interface that `iface` returns, and hands them to `oracle`. Calls
/// `on_sent` for each super-segment with the number of its first packet. Returns whether any packet was sent.
pub(crate) fn send_all(
    stack: &mut Stack,
    oracle: &mut Oracle,
    turn: &mut Turn<'_>,
    (iface, mut on_sent): (
        impl Fn(&Transmit<'_>) -> u32,
        impl FnMut(&Transmit<'_>, u64),
    ),
) -> bool {
    let mut any = false;
    loop {
        let sent = {
            let Some(transmit) = stack.poll_transmit(turn.now) else {
                return any;
            };
            let first = segment(&transmit, turn, iface(&transmit));
            on_sent(&transmit, first);
            oracle.on_transmit(turn.now, &transmit)
        };
        oracle.check_sent(turn.now, sent, stack);
        any = true;
    }
}

/// Cuts a super-segment into packets as a network card does, and sends them by `iface`. Each packet has the
/// super-segment's header, but its own length and sequence number. Returns the number of the first packet; the
/// others have the following numbers.
pub(crate) fn segment(transmit: &Transmit<'_>, turn: &mut Turn<'_>, iface: u32) -> u64 {
    let total: usize = transmit.payload.iter().map(|p| p.len()).sum();
    let size = match transmit.gso_size {
        0 => total.max(1),
        size => usize::from(size),
    };
    let mut rest = transmit.payload.iter().copied();
    let mut part: &[u8] = rest.next().unwrap_or_default();
    let mut done = 0;
    let mut first = None;
    loop {
        let len = size.min(total - done);
        let mut buffer = turn.buffer();
        buffer.reserve(transmit.header.len() + len);
        buffer.extend_from_slice(transmit.header);
        // A single packet has the right header already.
        if len < total {
            patch_header(&mut buffer, len, done as u32);
        }
        let mut missing = len;
        while missing > 0 {
            let take = missing.min(part.len());
            buffer.extend_from_slice(&part[..take]);
            part = &part[take..];
            missing -= take;
            if part.is_empty() {
                part = rest.next().unwrap_or_default();
            }
        }
        if turn.checksums {
            tcp::complete_checksum(&mut buffer).expect("a packet of the engine");
        }
        let id = turn.send(iface, Packet::new(buffer));
        first.get_or_insert(id);
        done += len;
        if done >= total {
            return first.unwrap_or(id);
        }
    }
}

/// Adapts the headers in `packet`, which holds no payload yet, to a payload of `len` bytes that starts `offset`
/// bytes into the super-segment.
fn patch_header(packet: &mut [u8], len: usize, offset: u32) {
    let v4 = packet[0] >> 4 == 4;
    // IPv4: the total length at byte 2 includes the IP header. IPv6: the payload length at byte 4 does not.
    let (ip_len, length_at, counted_ip_len) = if v4 { (20, 2, 20) } else { (40, 4, 0) };
    let tcp_header = packet.len() - ip_len;
    let length = (counted_ip_len + tcp_header + len) as u16;
    packet[length_at..length_at + 2].copy_from_slice(&length.to_be_bytes());
    let field = ip_len + 4..ip_len + 8;
    let mut seq = [0; 4];
    seq.copy_from_slice(&packet[field.clone()]);
    let seq = u32::from_be_bytes(seq).wrapping_add(offset);
    packet[field].copy_from_slice(&seq.to_be_bytes());
    if v4 {
        packet[10..12].fill(0);
        let sum = checksum::sum(checksum::Sum::default(), &packet[..20]);
        packet[10..12].copy_from_slice(&checksum::finish(sum).to_be_bytes());
    }
}
