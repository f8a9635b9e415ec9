//! A long session, observed from start to end: its bytes over time, and the sending and arrival of every
//! packet.

use std::time::Duration;

use braid_engine::{Config, ConnId, PathConfig, PathId, Stack};
use braid_links::Schedule;
use braid_sim::background::Background;
use braid_sim::traffic::{Received, Role, Stream};
use braid_sim::transfer::{PathSettings, external_addr};
use braid_sim::world;
use braid_wire::Instant;

/// Interval at which both ends are sampled. A guess: short against the seconds over which experiments
/// average.
pub const SAMPLE_INTERVAL: Duration = Duration::from_millis(100);

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
    /// Bytes that the client has read, once it has read up to the end of the stream.
    pub complete: Option<u64>,
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
    /// Returns the path of the client's second address on the first link. This path is added after all
    /// others.
    pub fn second_path(&self) -> PathId {
        PathId(self.paths.len() as u8)
    }

    /// Returns the number of samples in the span.
    pub fn samples(&self) -> usize {
        self.span.div_duration_f64(SAMPLE_INTERVAL).round() as usize
    }

    /// Adds the path of the client's second address. The path is down until the client moves.
    pub fn add_second_path(&self, stack: &mut Stack, now: Instant) {
        let path = stack.add_path(PathConfig::v4(external_addr(0)));
        let path = path.expect("a client has few paths");
        stack.set_path_up(now, path, false);
    }

    /// Moves the client from its first address to its second, if it moves after this sample.
    pub fn move_client(&self, stack: &mut Stack, now: Instant, sample: usize) {
        if self.moves == Some(sample) {
            stack.set_path_up(now, PathId(0), false);
            stack.set_path_up(now, self.second_path(), true);
        }
    }
}

impl SessionTrace {
    /// Returns the trace of a session of the engine from the samples and streams of client and server.
    pub fn new(
        packets: Vec<Packet>,
        [client, server]: [Samples; 2],
        [reads, sends]: [&Stream; 2],
    ) -> Self {
        SessionTrace {
            packets,
            messages: reads.messages().to_vec(),
            read: client.read,
            acked: server.acked,
            subflows: client.subflows,
            written: sends.sent,
            complete: reads.complete_at.map(|_| reads.received),
        }
    }

    /// Returns whether the client has read everything up to the end of the stream.
    pub fn has_ended(&self) -> bool {
        self.complete == Some(self.written)
    }
}

/// The state of an end at each sample.
#[derive(Debug, Default)]
pub struct Samples {
    read: Vec<u64>,
    acked: Vec<u64>,
    subflows: Vec<u32>,
}

impl Samples {
    /// Adds a sample of an end that has read `read` bytes. `conn` is its connection, or `None` if it has
    /// none.
    pub fn take(&mut self, read: u64, conn: Option<ConnId>, stack: &Stack) {
        // A connection that has ended has no statistics any more, so its last value is repeated.
        let last_acked = self.acked.last().copied().unwrap_or(0);
        let acked = conn.and_then(|conn| stack.conn_stats(conn));
        let subflows = conn.map_or_else(Vec::new, |conn| stack.subflows(conn));
        let established = subflows.iter().filter(|s| s.established);
        self.read.push(read);
        self.acked.push(acked.map_or(last_acked, |s| s.snd_una));
        self.subflows
            .push(established.fold(0, |bits, s| bits | 1 << s.path.0));
    }

    /// Returns the number of samples.
    pub fn len(&self) -> usize {
        self.read.len()
    }
}

/// Returns the seconds from the start of a world.
pub fn seconds(at: Instant) -> f64 {
    at.saturating_since(world::START).as_secs_f64()
}

#[cfg(test)]
mod tests {
    use braid_sim::mobility;
    use braid_testbed::netns;

    use super::*;
    use crate::backend::{Backend, Error};

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
        let scenario = scenario("minrtt");
        let simulate = |seed| format!("{:?}", scenario.run_on(Backend::Sim, seed).unwrap());
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
        assert!(seen.packets.iter().all(is_late_enough));
        assert_eq!(seen.subflows[39], 0b11);
    }

    fn is_late_enough(packet: &Packet) -> bool {
        let link = [mobility::wifi(), mobility::cellular()][packet.path].clone();
        let earliest = packet.sent + link.delay.as_secs_f64();
        packet.arrived.is_none_or(|at| at >= earliest)
    }

    fn fresh(seen: &SessionTrace) -> u64 {
        seen.packets.iter().map(|p| p.fresh).sum()
    }

    #[test]
    fn what_is_seen_fits_together() {
        let seen = scenario("roundrobin").run_on(Backend::Sim, 1).unwrap();
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
        let ours = first_complete(Backend::Links, |seen| {
            let used = |path| seen.packets.iter().any(|p| p.path == path);
            seen.subflows.contains(&0b11) && used(0) && used(1) && seen.read[39] > 0
        });
        assert_consistent(&ours);
        let kernel = first_complete(Backend::Kernel, |seen| seen.read[39] > 0);
        assert_eq!(kernel.read.len(), 40);
    }

    /// Runs sessions until one is complete, and returns it. A session takes 4 s of wall-clock time. On a
    /// machine that is stopped for most of that time, subflows and bytes may be missing.
    fn first_complete(
        backend: Backend,
        is_complete: impl Fn(&SessionTrace) -> bool,
    ) -> SessionTrace {
        const MAX_SESSIONS: u64 = 10;
        let scenario = scenario("roundrobin");
        let mut seen = Vec::new();
        for seed in 1..=MAX_SESSIONS {
            let mut session = backend.open_for_session(&scenario).unwrap();
            session.keep_late_runs();
            let trace = session.trace(&scenario, seed).unwrap();
            if is_complete(&trace) {
                return trace;
            }
            seen.push((trace.subflows, trace.read));
        }
        panic!("no session of {MAX_SESSIONS} is complete; subflows and bytes read: {seen:?}");
    }

    mod soak {
        use super::*;

        /// Runs the session; `None` if this machine lacks network namespaces or is too busy.
        fn over_links(backend: Backend) -> Option<SessionTrace> {
            if !can_run_over_links() {
                return None;
            }
            match scenario("roundrobin").run_on(backend, 1) {
                Ok(trace) => Some(trace),
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
            let [ours, kernel] = [Backend::Links, Backend::Kernel].map(over_links);
            let (Some(ours), Some(kernel)) = (ours, kernel) else {
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
        let refused = scenario("none").run_on(Backend::Sim, 1).unwrap_err();
        assert!(matches!(refused, Error::Usage(_)), "{refused:?}");
    }
}
