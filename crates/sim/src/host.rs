//! An end host as a node: a stack of the engine, with the application streams of its connections.

use core::net::{IpAddr, SocketAddr};
use std::collections::BTreeMap;

use braid_engine::strategy::Strategy;
use braid_engine::{
    ApiError, Config, ConnId, ConnectOptions, Event, FallbackCause, ListenerId, PathConfig,
    Protocol, Stack, StrategyFactory, Transmit,
};
use braid_wire::{Instant, Rng};

use crate::log::state::HostLog;
use crate::node::{Node, Packet, Turn};
use crate::streams::Streams;
use crate::traffic::Stream;
use crate::watched::{WatchedStack, destination, meta};
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

/// Returns the default options of a plain TCP connection to `remote`.
pub(crate) fn tcp_options(remote: SocketAddr) -> ConnectOptions {
    ConnectOptions {
        protocol: Protocol::Tcp,
        ..options(remote)
    }
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
    engine: WatchedStack,
    routes: Vec<(IpAddr, u32)>,
    streams: Streams,
    /// Connections whose fallback to TCP the engine reported before it reported their acceptance.
    fell_back: BTreeMap<ConnId, FallbackCause>,
    /// The stream of each listener. Each accepted connection gets a clone.
    services: Vec<(ListenerId, Stream)>,
    /// The streams of closed connections, in the order of closing.
    finished: Vec<Stream>,
    pub(crate) log: Option<HostLog>,
    fast_open: bool,
}

impl Host {
    /// Makes a host; `rng` is the random stream of its engine.
    pub fn new(config: HostConfig, rng: Rng) -> Self {
        let fast_open = config.engine.fast_open;
        let mut engine = WatchedStack::new(config.engine, rng, config.strategy);
        for path in config.paths {
            engine.stack.add_path(path).expect("a host has few paths");
        }
        Host {
            engine,
            routes: config.routes,
            streams: Streams::default(),
            fell_back: BTreeMap::new(),
            services: Vec::new(),
            finished: Vec::new(),
            log: None,
            fast_open,
        }
    }

    /// Returns the engine.
    pub fn stack(&self) -> &Stack {
        &self.engine.stack
    }

    /// Returns the engine, for calls of a link monitor or an application.
    pub fn stack_mut(&mut self) -> &mut Stack {
        &mut self.engine.stack
    }

    /// Returns the streams of closed connections, in the order of closing.
    pub fn finished(&self) -> &[Stream] {
        &self.finished
    }

    /// Returns the streams of connections that are not closed.
    pub fn open_streams(&self) -> impl Iterator<Item = (ConnId, &Stream)> {
        self.streams.iter()
    }

    /// Returns the stream with this label, of an open or a closed connection.
    pub fn labelled(&self, label: u32) -> Option<&Stream> {
        let open = self.streams.iter().map(|(_, stream)| stream);
        let mut all = open.chain(&self.finished);
        all.find(|stream| stream.label == label)
    }

    /// Pauses or resumes reading from the connections of the streams with this label.
    pub fn pause(&mut self, now: Instant, label: u32, paused: bool) {
        for (conn, stream) in self.streams.iter_mut() {
            if stream.label == label {
                stream.paused = paused;
                self.engine.pump(now, conn, stream);
            }
        }
    }

    /// Aborts the connections of the streams with this label.
    pub fn abort_labelled(&mut self, now: Instant, label: u32) {
        for (conn, stream) in self.streams.iter() {
            if stream.label == label {
                self.engine.stack.abort(now, conn);
            }
        }
    }

    /// Accepts connections to `addr`; each carries a copy of `stream`.
    ///
    /// # Errors
    /// Fails as [`Stack::listen`] does.
    pub fn serve(&mut self, addr: SocketAddr, stream: Stream) -> Result<(), ApiError> {
        let listener = self.engine.stack.listen(addr)?;
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
        let conn = self.engine.stack.connect(now, options)?;
        stream.open(now);
        if self.fast_open {
            // Data written now leaves with the SYN.
            self.engine.pump(now, conn, &mut stream);
        }
        self.streams.insert(conn, stream);
        Ok(conn)
    }

    /// Lets the stream of `conn`, which has waited for this call, start to write: a connection that was opened in
    /// advance gets its flow.
    pub fn release(&mut self, now: Instant, conn: ConnId) {
        if let Some(stream) = self.streams.get_mut(conn) {
            stream.awaiting_release = false;
            // The results are ignored: the calls fail only for an unknown connection, and the host keeps no stream
            // of such a connection.
            let _ = self.engine.stack.begin_flow(now, conn);
            let _ = self.engine.stack.set_flow_size(now, conn, stream.flow_size);
            self.engine.pump(now, conn, stream);
        }
    }

    fn on_event(&mut self, now: Instant, event: Event) {
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
                let _ = self.engine.stack.set_flow_size(now, conn, stream.flow_size);
                let _ = self.engine.stack.set_urgency(now, conn, stream.urgency);
                self.engine.pump(now, conn, &mut stream);
                self.streams.insert(conn, stream);
            }
            Event::Connected { conn } | Event::Readable { conn } | Event::Writable { conn } => {
                if let Some(stream) = self.streams.get_mut(conn) {
                    self.engine.pump(now, conn, stream);
                }
            }
            Event::FellBack { conn, cause } => match self.streams.get_mut(conn) {
                Some(stream) => stream.fell_back = Some(cause),
                None => {
                    self.fell_back.insert(conn, cause);
                }
            },
            Event::Closed { conn, reason } => {
                self.fell_back.remove(&conn);
                if let Some(mut stream) = self.streams.remove(conn) {
                    stream.closed = Some((now, reason));
                    stream.report = self.engine.stack.conn_stats(conn);
                    self.finished.push(stream);
                }
            }
            _ => {}
        }
    }
}

impl Node for Host {
    fn receive(&mut self, turn: &mut Turn<'_>, _iface: u32, packet: Packet) {
        if let Some(log) = &self.log {
            log.before_receive(self.stack(), &packet);
        }
        self.engine.receive(turn.now, &packet.bytes, meta(turn));
        if let Some(log) = &self.log {
            log.after_receive(turn.now, self.stack(), &packet);
        }
        turn.recycle(packet);
    }

    // Runs timers, events and streams, and sends packets.
    fn wake(&mut self, turn: &mut Turn<'_>) {
        let now = turn.now;
        self.engine.handle_timeout(now);
        for (conn, stream) in self.streams.iter_mut() {
            if stream.next_timeout().is_some_and(|at| at <= now) {
                self.engine.pump(now, conn, stream);
            }
        }
        // Sending can cause events, and handling an event can cause packets. The first round sends even without an
        // event, because timers and streams may have caused packets.
        let mut may_have_packets = true;
        loop {
            while let Some(event) = self.engine.poll_event(now) {
                may_have_packets = true;
                self.on_event(now, event);
            }
            if !core::mem::take(&mut may_have_packets) {
                break;
            }
            let routes = &self.routes;
            let iface = |transmit: &Transmit<'_>| {
                let dst = destination(transmit);
                let route = routes.iter().find(|(addr, _)| *addr == dst);
                route.map_or(u32::from(transmit.path.0), |(_, iface)| *iface)
            };
            let log = self.log.as_ref();
            let on_sent = |transmit: &Transmit<'_>, first| {
                if let Some(log) = log {
                    log.on_sent(now, transmit, first);
                }
            };
            if !self.engine.send_all(turn, iface, on_sent) {
                break;
            }
        }
        turn.report(self.engine.end_turn(now));
    }

    fn next_timeout(&self) -> Option<Instant> {
        let streams = self.streams.iter().map(|(_, s)| s.next_timeout());
        let stack = self.stack().next_timeout();
        Instant::earliest([stack, Instant::earliest(streams)])
    }
}
