//! The simulated worlds of one run: a client and a server with a path between them, or with a tunnel over all paths.
//!
//! ```text
//! client ── box ══ path 0 ══ tunnel's server ── server
//!               ══ path 1 ══
//! ```

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use braid_sim::packet_watch::{PacketReport, PacketWatch};
use braid_sim::transfer::PathSettings;
use braid_sim::tunnel_node::TunnelEnds;
use braid_sim::udp::{UdpFlow, UdpSink, UdpSource};
use braid_sim::{LinkId, NodeId, World, world};
use braid_tunnel::{Config, Mode};
use braid_wire::{Instant, Rng};

use super::inner::Inner;
use super::quic::QuicHost;
use super::{TunnelCase, TunnelRun};
use crate::backend::{Error, run_error};
use crate::case::run_seed;

/// The inner addresses of client and server. Port 4433 is not registered; examples of QUIC use it.
const CLIENT_ADDR: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::new(10, 1, 0, 2)), 40_000);
const SERVER_ADDR: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::new(10, 2, 0, 2)), 4433);
/// The time between the start of the world and the start of the flow. In it a tunnel proves its paths, as it has long
/// before a user's flow. 2 s are a guess: several round trips of every profile.
const LEAD: Duration = Duration::from_secs(2);
/// Maximum further time until the flow starts. The time is random, so that runs without loss differ. 10 ms is a guess.
const START_JITTER: Duration = Duration::from_millis(10);
/// Stream of the run's own random numbers. The number is far above the streams of a world's components,
/// which count from 0.
const RUN_STREAM: u64 = 1 << 43;

/// A world with an inner flow.
struct Run<'a> {
    case: &'a TunnelCase,
    world: World,
    client: NodeId,
    start: Instant,
    /// Links to the client, by the path of the case; `None` for paths that the world lacks.
    down: Vec<Option<LinkId>>,
    watch: Arc<Mutex<PacketWatch>>,
}

/// Makes run `index` of `case` over path `path` alone.
///
/// # Errors
/// The connection ended early.
pub fn alone(case: &TunnelCase, path: usize, index: u64) -> Result<TunnelRun, Error> {
    let mut world = World::new(run_seed(case.seed, index));
    let (client, server, start) = add_hosts(&mut world, case);
    let settings = case.paths.specs()[path].settings(case.queue);
    let (_, down) = world.connect(client, server, settings.clone(), settings);
    let mut links = vec![None; case.paths.specs().len()];
    links[path] = Some(down);
    Run::new(case, world, (client, start), links, [down; 2]).carry_out()
}

/// Makes run `index` of `case` through a tunnel in `mode` over all paths.
///
/// # Errors
/// The connection ended early, or the tunnel violated a rule.
pub fn through_tunnel(case: &TunnelCase, mode: Mode, index: u64) -> Result<TunnelRun, Error> {
    let mut world = World::new(run_seed(case.seed, index));
    world.keep_violations();
    let (client, server, start) = add_hosts(&mut world, case);
    let config = Config {
        mode,
        ..Config::default()
    };
    let paths = case.paths.specs().iter();
    let paths = paths.map(|path| PathSettings::both(path.settings(case.queue)));
    let tunnel = TunnelEnds::add(&mut world, &config, case.inner.urgency(), paths.collect());
    let down = tunnel.paths.iter().map(|(_, down)| Some(*down)).collect();
    let perfect = braid_links::Settings::default;
    let (_, last) = world.connect(client, tunnel.near, perfect(), perfect());
    let (first, _) = world.connect(server, tunnel.far, perfect(), perfect());
    Run::new(case, world, (client, start), down, [first, last]).carry_out()
}

/// Adds client and server of the inner flow. Returns them, and the start of the flow.
fn add_hosts(world: &mut World, case: &TunnelCase) -> (NodeId, NodeId, Instant) {
    let mut rng = Rng::for_component(world.seed(), RUN_STREAM);
    let jitter = Duration::from_nanos(rng.below(START_JITTER.as_nanos() as u64));
    let start = world::START + LEAD + jitter;
    match case.inner {
        Inner::Quic(congestion) => {
            let addrs = (CLIENT_ADDR, SERVER_ADDR);
            let (size, start) = (case.size.bytes(), start);
            let client = world.add(|rng| QuicHost::client(addrs, (size, start), congestion, rng));
            let server = world.add(|rng| QuicHost::server(SERVER_ADDR, congestion, rng));
            (client, server, start)
        }
        Inner::Udp { rate, size, .. } => {
            let client = world.add(|_| UdpSink::new());
            let flow = UdpFlow {
                start,
                end: Some(start + duration(case.size.bytes(), rate as f64)),
                ..UdpFlow::constant(SERVER_ADDR, CLIENT_ADDR, rate, size)
            };
            let server = world.add(|rng| UdpSource::new(flow, rng));
            (client, server, start)
        }
    }
}

/// Returns the time of `bytes` at `rate` bit/s.
fn duration(bytes: u64, rate: f64) -> Duration {
    // Without the bound, `from_secs_f64` would panic on a rate near 0.
    Duration::from_secs_f64((bytes as f64 * 8.0 / rate).min(1e6))
}

impl<'a> Run<'a> {
    /// Watches the packets that leave the server on `first` and reach the client over `last`.
    fn new(
        case: &'a TunnelCase,
        mut world: World,
        (client, start): (NodeId, Instant),
        down: Vec<Option<LinkId>>,
        [first, last]: [LinkId; 2],
    ) -> Self {
        let watch = Arc::new(Mutex::new(PacketWatch::new(first, last)));
        world.tap(first, Box::new(Arc::clone(&watch)));
        if last != first {
            world.tap(last, Box::new(Arc::clone(&watch)));
        }
        Run {
            case,
            world,
            client,
            start,
            down,
            watch,
        }
    }

    /// Runs the flow to its end, and the world until no packet is under way.
    fn carry_out(mut self) -> Result<TunnelRun, Error> {
        let specs = self.case.paths.specs();
        // Far longer than the round trips of all paths and the queues of most; a tunnel has given up by then.
        let rest = specs
            .iter()
            .map(|path| path.rtt + path.jitter.max)
            .sum::<Duration>()
            + LEAD;
        let (completed, goodput) = match self.case.inner {
            Inner::Quic(_) => self.download()?,
            Inner::Udp { rate, .. } => self.udp_flow(rate, rest),
        };
        let links = self.down.iter();
        let offered = links.map(|link| link.map(|link| self.world.counters(link).offered));
        let offered: Vec<_> = offered.collect();
        self.world.advance(rest);
        let watch = self.watch.lock().unwrap_or_else(PoisonError::into_inner);
        let report = watch.report();
        self.check(report)?;
        let micros = |delay: &Duration| u32::try_from(delay.as_micros()).unwrap_or(u32::MAX);
        Ok(TunnelRun {
            completed,
            goodput,
            delays_us: report.delays.iter().map(micros).collect(),
            packets: report.sent,
            lost: report.lost(),
            reordered: report.reordered,
            bytes_by_path: offered.iter().map(|t| t.map_or(0, |t| t.bytes)).collect(),
            datagrams: offered.iter().map(|t| t.map_or(0, |t| t.packets)).sum(),
            inner_bytes: report.bytes_sent,
        })
    }

    /// Runs until the client has everything. Returns whether it has, and the goodput in Mbit/s.
    fn download(&mut self) -> Result<(bool, f64), Error> {
        let client = self.client;
        let done = |world: &World| {
            let host: &QuicHost = world.node(client);
            host.finished_at().is_some() || host.failure().is_some()
        };
        self.world.run(limit(self.case), done);
        let host: &QuicHost = self.world.node(client);
        if let Some(failure) = host.failure() {
            return Err(Error::Run(format!("the inner connection ended: {failure}")));
        }
        let end = host.finished_at().unwrap_or(self.world.now());
        let seconds = end.saturating_since(self.start).as_secs_f64();
        let goodput = host.received() as f64 * 8.0 / seconds / 1e6;
        Ok((host.finished_at().is_some(), goodput))
    }

    /// Runs until the flow has ended. Returns the goodput in Mbit/s, of what arrives within `rest` too.
    fn udp_flow(&mut self, rate: u64, rest: Duration) -> (bool, f64) {
        let time = duration(self.case.size.bytes(), rate as f64);
        let until = self.start + time;
        self.world
            .advance(until.saturating_since(self.world.now()) + rest);
        let report: &UdpSink = self.world.node(self.client);
        let received = report.report(SERVER_ADDR).received;
        (true, received.bytes as f64 * 8.0 / time.as_secs_f64() / 1e6)
    }

    /// Returns the first violation as an error.
    fn check(&self, report: &PacketReport) -> Result<(), Error> {
        let nodes = self
            .world
            .violations()
            .iter()
            .map(|(_, violation)| violation);
        match nodes.chain(&report.violations).next() {
            None => Ok(()),
            Some(violation) => {
                let (inner, seed) = (self.case.inner, self.world.seed());
                Err(run_error(format!(
                    "the tunnel broke a rule with {inner} in world {seed}, {violation}"
                )))
            }
        }
    }
}

/// Returns the time after which a download counts as not completed: two minutes for handshakes and timeouts, plus
/// two hundred times the transmission time over the fastest path. Both are guesses. CUBIC has a tenth of that time
/// over a path that loses 2 % of packets.
fn limit(case: &TunnelCase) -> Duration {
    let rates = case
        .paths
        .specs()
        .iter()
        .filter_map(|path| path.rate.mean());
    let fastest = rates.fold(f64::NEG_INFINITY, f64::max);
    let time = if fastest > 0.0 {
        duration(case.size.bytes(), fastest)
    } else {
        Duration::ZERO
    };
    Duration::from_secs(120) + time * 200
}
