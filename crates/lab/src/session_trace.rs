//! A long session, observed from start to end: its bytes over time, and the sending and arrival of every
//! packet.

mod background;
mod environment;
mod kernel;
mod links;

use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use braid_engine::{Config, PathConfig, PathId, Stack};
use braid_links::{Schedule, Settings};
use braid_sim::background::Background;
use braid_sim::log::{Kind, Reader, Record, Segment};
use braid_sim::traffic::{Received, Role, Stream};
use braid_sim::transfer::{Direction, PathSettings, TransferConfig, external_addr};
use braid_sim::{Host, LinkId, Router, Transfer, world};
use braid_wire::{Instant, Rng};

use crate::backend::{Backend, Error};

/// Interval at which both ends are sampled. A guess: short against the seconds over which experiments
/// average.
pub const SAMPLE_INTERVAL: Duration = Duration::from_millis(100);
/// Stream of the session's own random numbers. The number is far above the streams of a world's components,
/// which count from 0.
const SESSION_STREAM: u64 = 1 << 42;
/// Maximum time between the start of the world and the opening of the session. The time is random, so that
/// runs without loss differ. 10 ms is a guess.
const START_JITTER: Duration = Duration::from_millis(10);

/// A session in which the server sends to the client, and the world around it.
#[derive(Debug)]
pub struct SessionScenario<'a> {
    /// Name of the strategy of both ends.
    pub strategy: &'a str,
    /// Settings of all engines.
    pub engine: Config,
    /// The paths at the start; the session opens on the first.
    pub paths: Vec<PathSettings>,
    /// Changes of both directions of the first path. If the client moves in the simulator, the changes
    /// apply only to the client's own link, so that other hosts on the path keep it.
    pub first: Schedule,
    /// Background traffic on each path.
    pub background: Option<Background>,
    /// The server's role; the client reads what it sends.
    pub sends: Role,
    /// Time for which the world is observed.
    pub span: Duration,
    /// Number of the sample after which the client's second address on the first path replaces the first
    /// address; `None` if the client does not move.
    pub moves: Option<usize>,
}

/// The observations of a session; times are seconds from the start of the world.
#[derive(Debug, Default)]
pub struct SessionTrace {
    /// The server's packets with payload of the session, in order of sending.
    pub packets: Vec<Packet>,
    /// Messages that arrived, if the server sends messages.
    pub messages: Vec<Received>,
    /// Bytes that the client has read, at each sample.
    pub read: Vec<u64>,
    /// Bytes that were acknowledged to the server, at each sample.
    pub acked: Vec<u64>,
    /// The client's paths with an established subflow, at each sample: bit n stands for path n.
    pub subflows: Vec<u32>,
    /// Bytes that the server's application has written.
    pub written: u64,
    /// True if the client has read everything up to the end of the stream.
    pub ended: bool,
}

/// A packet of the session.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Packet {
    /// The path on which it was sent.
    pub path: usize,
    /// True if no byte of the packet was sent earlier.
    pub new: bool,
    /// Its place in the stream, bytes.
    pub dsn: u64,
    /// Payload bytes.
    pub len: u64,
    /// Time of sending.
    pub sent: f64,
    /// Time of arrival, if it arrived.
    pub arrived: Option<f64>,
    /// Number of bytes in the packet that the client did not have yet.
    pub fresh: u64,
}

impl SessionScenario<'_> {
    /// Runs the session with the engine at both ends, in virtual time or over emulated links.
    ///
    /// # Errors
    /// The errors of [`simulate`](Self::simulate) and [`run_over_links`](Self::run_over_links).
    pub fn run_on(&self, backend: Backend, seed: u64) -> Result<SessionTrace, Error> {
        match backend.is_virtual() {
            true => self.simulate(seed),
            false => self.run_over_links(seed),
        }
    }

    /// Returns the path of the client's second address on the first link. This path is added after all
    /// others.
    pub fn second_path(&self) -> PathId {
        PathId(self.paths.len() as u8)
    }

    /// Returns the number of samples in the span.
    fn samples(&self) -> usize {
        self.span.div_duration_f64(SAMPLE_INTERVAL).round() as usize
    }

    /// Returns the settings of the connection, which carries the session's own streams.
    fn config(&self) -> TransferConfig<'_> {
        TransferConfig {
            strategy: self.strategy,
            engine: self.engine.clone(),
            initial_path: Some(PathId(0)),
            ..TransferConfig::new(&self.paths, 0, Direction::Down)
        }
    }

    /// Returns the streams of client and server.
    fn streams(&self) -> [Stream; 2] {
        let reads = match self.sends {
            Role::Send(_) => Role::Collect,
            _ => Role::Sink,
        };
        [reads, self.sends.clone()].map(Stream::new)
    }

    /// Runs the session in the simulated world of `seed`.
    ///
    /// # Errors
    /// There is no such strategy; the session does not open; an oracle found a violation.
    pub fn simulate(&self, seed: u64) -> Result<SessionTrace, Error> {
        braid_strategy::by_name(self.strategy).map_err(|e| Error::Usage(e.to_string()))?;
        let config = self.config();
        let refused = |e| Error::Run(format!("a connection does not open: {e}"));
        let mut transfer = match &self.background {
            Some(background) => Transfer::shared(seed, &config, background).map_err(refused)?,
            None => Transfer::build(seed, &config),
        };
        transfer.world.keep_violations();
        let (up, down) = match self.moves {
            // Only the client moves out of reach of the path. Hosts that share the path keep it.
            Some(_) => transfer.world.interfaces(transfer.client)[0],
            None => transfer.links[0],
        };
        for link in [up, down] {
            transfer.world.schedule(link, self.first.clone());
        }
        let interfaces = transfer.world.interfaces(transfer.server);
        let packets = PacketReader {
            outgoing: interfaces.into_iter().map(|(out, _)| out).collect(),
            seen: Arc::default(),
        };
        let log = transfer.read(Box::new(packets.clone()));
        let mut rng = Rng::for_component(seed, SESSION_STREAM);
        let start = Duration::from_nanos(rng.below(START_JITTER.as_nanos() as u64));
        if self.moves.is_some() {
            add_second_address(&mut transfer);
        }
        transfer.world.advance(start);
        let [reads, sends] = self.streams();
        transfer
            .open_with(config.options(), reads, sends)
            .map_err(refused)?;
        let mut trace = SessionTrace::default();
        for sample in 1..=self.samples() {
            let due = world::START + SAMPLE_INTERVAL * sample as u32;
            let now = transfer.world.now();
            transfer.world.advance(due.saturating_since(now));
            trace.sample(&transfer);
            if self.moves == Some(sample) {
                let to = self.second_path();
                transfer
                    .world
                    .with_node(transfer.client, |host: &mut Host, now| {
                        move_client(host.stack_mut(), now, to);
                    });
            }
        }
        if let Some((_, violation)) = transfer.world.violations().first() {
            let strategy = self.strategy;
            let text =
                format!("{strategy} with world seed {seed} violated the protocol, {violation}");
            return Err(Error::Run(text));
        }
        let ends = transfer.ends().map(|end| transfer.world.host(end));
        trace.end(ends.map(|host| host.labelled(0)));
        log.finish().map_err(|e| Error::Run(e.to_string()))?;
        trace.packets = std::mem::take(&mut *packets.all());
        trace.packets.sort_by(|a, b| a.sent.total_cmp(&b.sent));
        Ok(trace)
    }
}

/// Adds the path of the client's second address. The path is down until the client moves.
fn add_second_path(stack: &mut Stack, now: Instant) {
    let path = stack.add_path(PathConfig::v4(external_addr(0)));
    let path = path.expect("a client has few paths");
    stack.set_path_up(now, path, false);
}

/// Moves the client from its first address to its second, on the path `to`.
fn move_client(stack: &mut Stack, now: Instant, to: PathId) {
    stack.set_path_up(now, PathId(0), false);
    stack.set_path_up(now, to, true);
}

/// Adds the client's second address to the first path's router, with a link to it.
fn add_second_address(transfer: &mut Transfer) {
    let (client, router) = (transfer.client, transfer.boxes[0]);
    let world = &mut transfer.world;
    let iface = world.interfaces(router).len() as u32;
    world.with_node(router, |router: &mut Router, _| {
        let old = std::mem::take(router);
        *router = old.route(IpAddr::V4(external_addr(0)), iface);
    });
    world.connect(client, router, Settings::default(), Settings::default());
    world.with_node(client, |host: &mut Host, now| {
        add_second_path(host.stack_mut(), now)
    });
}

impl SessionTrace {
    /// Adds a sample of both ends.
    fn sample(&mut self, transfer: &Transfer) {
        let [client, server] = transfer.ends().map(|end| transfer.world.host(end));
        let read = client.labelled(0).map_or(0, |stream| stream.received);
        let stats = |(conn, _)| server.stack().conn_stats(conn);
        let acked = server.open_streams().find_map(stats).map(|s| s.snd_una);
        // A connection that has ended has no statistics any more, so its last value is repeated.
        let last_acked = self.acked.last().copied().unwrap_or(0);
        let subflows = client
            .open_streams()
            .flat_map(|(conn, _)| client.stack().subflows(conn));
        let established = subflows.filter(|s| s.established);
        self.read.push(read);
        self.acked.push(acked.unwrap_or(last_acked));
        self.subflows
            .push(established.fold(0, |bits, s| bits | 1 << s.path.0));
    }

    /// Adds the state of client and server at the end, if the connection opened.
    fn end(&mut self, ends: [Option<&Stream>; 2]) {
        if let [Some(reads), Some(sends)] = ends {
            self.messages = reads.messages().to_vec();
            self.written = sends.sent;
            self.ended = reads.complete_at.is_some() && reads.received == sends.sent;
        }
    }
}

/// A reader of the world's log that collects the server's packets.
#[derive(Debug, Clone)]
struct PacketReader {
    /// The link on which the server sends, for each path.
    outgoing: Vec<LinkId>,
    seen: Arc<Mutex<Vec<Packet>>>,
}

impl PacketReader {
    fn all(&self) -> std::sync::MutexGuard<'_, Vec<Packet>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Reader for PacketReader {
    fn take(&mut self, record: &Record<'_>) -> io::Result<()> {
        if let Record::Segment(segment) = record
            && segment.host == "server"
            && let Some(path) = self.path_of(segment)
        {
            self.all().push(Packet {
                path,
                new: segment.kind == Kind::New,
                dsn: segment.dsn,
                len: segment.len,
                sent: seconds(Instant::from_nanos(segment.sent_ns)),
                arrived: segment.arrived_ns.map(Instant::from_nanos).map(seconds),
                fresh: segment.fresh,
            });
        }
        Ok(())
    }
}

impl PacketReader {
    fn path_of(&self, segment: &Segment<'_>) -> Option<usize> {
        let link = segment.link?;
        self.outgoing.iter().position(|outgoing| outgoing.0 == link)
    }
}

/// Returns whether a read or write may be repeated: it made no progress within its timeout, or a signal
/// (such as SIGCONT) interrupted it.
fn is_transient(error: &io::Error) -> bool {
    use io::ErrorKind::{Interrupted, WouldBlock};
    matches!(error.kind(), WouldBlock | Interrupted)
}

/// Returns the seconds from the start of a world.
pub fn seconds(at: Instant) -> f64 {
    at.saturating_since(world::START).as_secs_f64()
}

#[cfg(test)]
mod tests {
    use braid_sim::mobility;
    use braid_testbed::netns;

    use super::environment::Environment;
    use super::*;

    fn scenario(strategy: &str) -> SessionScenario<'_> {
        let span = Duration::from_secs(4);
        SessionScenario {
            strategy,
            engine: Config::default(),
            paths: [mobility::wifi(), mobility::cellular()]
                .map(PathSettings::both)
                .into(),
            first: mobility::wifi_schedule(),
            background: Some(Background::published(span)),
            sends: Role::Greedy { span },
            span,
            moves: None,
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_session() {
        let simulate = |seed| format!("{:?}", scenario("minrtt").simulate(seed).unwrap());
        assert_eq!(simulate(1), simulate(1));
        assert_ne!(simulate(1), simulate(2));
    }

    /// Checks that every byte read came with an observed packet, and that packets arrive after at least the
    /// delay of their path. The session has 40 samples.
    fn assert_consistent(seen: &SessionTrace) {
        assert_eq!((seen.read.len(), seen.acked.len()), (40, 40));
        let (fresh, read) = (fresh(seen), seen.read[39]);
        assert!(read > 0);
        assert!(fresh >= read, "{fresh} of {read}");
        assert!(seen.written >= fresh);
        for path in 0..2 {
            let on_path = || seen.packets.iter().filter(move |p| p.path == path);
            assert!(on_path().next().is_some());
            let min_delay = [0.010, 0.020][path];
            let is_late_enough = |p: &Packet| p.arrived.is_none_or(|at| at >= p.sent + min_delay);
            // Checks only new packets. An original that arrives after its retransmission was sent is
            // mistaken for the retransmission, whose delay then seems too short.
            assert!(on_path().filter(|p| p.new).all(is_late_enough));
        }
        assert!(seen.subflows.contains(&0b11));
    }

    /// Checks the same as `assert_consistent`, and two facts that hold only if the machine was never late:
    /// 500 kB were read, and hardly more bytes arrived than were read.
    fn assert_served_in_time(seen: &SessionTrace) {
        assert_consistent(seen);
        let (fresh, read) = (fresh(seen), seen.read[39]);
        assert!(read > 500_000);
        assert!((read..read + 500_000).contains(&fresh), "{fresh} of {read}");
        for packet in &seen.packets {
            let min_delay = [0.010, 0.020][packet.path];
            assert!(
                packet
                    .arrived
                    .is_none_or(|at| at >= packet.sent + min_delay)
            );
        }
        assert_eq!(seen.subflows[39], 0b11);
    }

    fn fresh(seen: &SessionTrace) -> u64 {
        seen.packets.iter().map(|p| p.fresh).sum()
    }

    #[test]
    fn what_is_seen_fits_together() {
        let seen = scenario("roundrobin").simulate(1).unwrap();
        assert_served_in_time(&seen);
        assert!(seen.read.iter().zip(&seen.acked).all(|(r, a)| a <= r));
    }

    fn can_run_over_links() -> bool {
        netns::ensure_capable()
            .map_err(|reason| reason.announce("a session over links"))
            .is_ok()
    }

    #[test]
    #[ignore = "network"]
    fn what_is_seen_over_links_fits_together() {
        if !can_run_over_links() {
            return;
        }
        let scenario = scenario("roundrobin");
        let new_environment = || {
            let mut environment = Environment::build(&scenario).unwrap();
            environment.fixture.keep_late_runs();
            environment
        };
        let ours = first_complete(
            |seed| scenario.run_in(&mut new_environment(), seed),
            |seen| {
                let used = |path| seen.packets.iter().any(|p| p.path == path);
                seen.subflows.contains(&0b11) && used(0) && used(1) && seen.read[39] > 0
            },
        );
        assert_consistent(&ours);
        let kernel = first_complete(
            |seed| scenario.run_by_kernel_in(&mut new_environment(), seed),
            |seen| seen.read[39] > 0,
        );
        assert_eq!(kernel.read.len(), 40);
    }

    /// Runs sessions until one is complete, and returns it. A session takes 4 s of wall-clock time. On a
    /// machine that is stopped for most of that time, subflows and bytes may be missing.
    fn first_complete(
        run: impl Fn(u64) -> Result<SessionTrace, Error>,
        is_complete: impl Fn(&SessionTrace) -> bool,
    ) -> SessionTrace {
        const MAX_SESSIONS: u64 = 10;
        let mut seen = Vec::new();
        for seed in 1..=MAX_SESSIONS {
            let trace = run(seed).unwrap();
            if is_complete(&trace) {
                return trace;
            }
            seen.push((trace.subflows, trace.read));
        }
        panic!("no session of {MAX_SESSIONS} is complete; subflows and bytes read: {seen:?}");
    }

    mod soak {
        use super::*;

        /// Runs the session with the engine and with the kernel's sockets; `None` if this machine lacks
        /// network namespaces or is too busy.
        fn over_links(seed: u64) -> Option<[SessionTrace; 2]> {
            if !can_run_over_links() {
                return None;
            }
            let scenario = scenario("roundrobin");
            let ours = scenario.run_over_links(seed);
            match ours.and_then(|seen| Ok([seen, scenario.run_by_kernel(seed)?])) {
                Ok(both) => Some(both),
                Err(Error::Busy(why)) => {
                    netns::Reason(why).announce("a session over links");
                    None
                }
                Err(error) => panic!("{error}"),
            }
        }

        #[test]
        #[ignore = "soak"]
        fn a_session_over_links_is_served_in_time() {
            let Some([ours, kernel]) = over_links(1) else {
                return;
            };
            assert_served_in_time(&ours);
            // On each of the two paths, background traffic takes about 2 of 10 Mbit/s. The factor of 4
            // allows for different schedulers and other losses.
            let (engine, kernel) = (ours.read[39], kernel.read[39]);
            assert!(
                (engine / 4..engine * 4).contains(&kernel),
                "{engine} and {kernel}"
            );
        }
    }

    #[test]
    fn an_unknown_strategy_is_refused() {
        let refused = scenario("none").simulate(1).unwrap_err();
        assert!(matches!(refused, Error::Usage(_)), "{refused:?}");
    }
}
