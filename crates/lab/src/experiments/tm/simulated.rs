//! The networks of the T-MPTCP experiments in the simulator.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use braid_engine::cc::CUBIC;
use braid_links::{QueueLimit, Rate, Settings};
use braid_proxy::control::{Answer, Request};
use braid_sim::aggregation::{
    Aggregation, AggregationConfig, Load, content_addr, link_addr, server_addr, user_addr,
};
use braid_sim::tap::PacketEvent;
use braid_sim::transfer::PathSettings;
use braid_sim::{LinkId, Packet, Tap};
use braid_testbed::Captured;
use braid_wire::{Instant, Rng};

use super::handshakes::{Captures, Ends};
use crate::backend::{Error, run_error};
use crate::experiments::session::Session;

/// A link: its rate in Mb/s, and its round-trip time in ms.
pub type Link = (f64, f64);

/// Bytes of a small download. Such a download makes the box open connections for its pool or measure its
/// servers. The size is a guess.
const SMALL_DOWNLOAD_BYTES: u64 = 20_000;
/// Time in which the box opens and authenticates the connections of its pool, with all subflows. 2 s is a
/// guess; this is a few dozen round trips of the slowest link.
const POOL_WARM_UP: Duration = Duration::from_secs(2);
/// Maximum time of a download. 600 s is a guess; this is more than ten times the longest download.
const DOWNLOAD_TIMEOUT: Duration = Duration::from_secs(600);
/// Interval at which the progress of a download is read, for figures of one value a second.
const POLL_INTERVAL: Duration = Duration::from_millis(250);
/// Interval at which a browsing user opens connections. A guess.
const BROWSE_INTERVAL: Duration = Duration::from_millis(200);
/// Stream of the random pause before a download. The number is far above the streams of a world's
/// components, which count from 0.
const PAUSE_STREAM: u64 = 1 << 44;

/// Adds the parameters of simulated runs to the result.
pub fn parameters(session: &mut Session<'_>) {
    session.parameter(
        "the simulator leaves out",
        "curl, nginx, the kernel's sockets and routing, and the processor's time: user and content \
         host are engines with plain TCP beside the cores of box and server",
    );
    both_ends(session);
}

/// Adds the settings of box and server to the parameters, in the simulator and over links.
pub fn both_ends(session: &mut Session<'_>) {
    session.parameter("congestion control", CUBIC.name());
    session.parameter("strategy", "adaptive");
}

/// Returns a path with a queue of one bandwidth-delay product.
pub fn path((mbit, rtt_ms): Link) -> PathSettings {
    PathSettings::both(Settings {
        rate: Rate::bits_per_second((mbit * 1e6) as u64),
        delay: Duration::from_secs_f64(rtt_ms / 2e3),
        queue: QueueLimit::Bytes((mbit * 1e6 / 8.0 * rtt_ms / 1e3) as u64),
        ..Settings::default()
    })
}

/// Returns a network of a user, a box with these links, a server, and a content host.
pub fn aggregated(links: &[Link]) -> Result<AggregationConfig, Error> {
    let links = links.iter().copied().map(path).collect();
    AggregationConfig::new(links).map_err(run_error)
}

/// Returns a network whose box only forwards, over one link, so that plain TCP goes from end to end. `near`
/// is the link between user and box, if it is not the usual fast one.
pub fn plain(link: Link, near: Option<Link>) -> Result<AggregationConfig, Error> {
    let mut config = aggregated(&[link])?;
    let content = content_addr(0).to_string() + "/32";
    config.boxed.bypass = vec![content.parse().map_err(run_error)?];
    if let Some(near) = near {
        config.users = vec![path(near)];
    }
    Ok(config)
}

/// Starts a network and waits until the box has idle connections to the server in its pool.
pub fn start(seed: u64, config: &AggregationConfig) -> Result<Aggregation, Error> {
    let mut net = start_cold(seed, config)?;
    download(&mut net, SMALL_DOWNLOAD_BYTES, |_, _, _| ())?;
    // The pause is up to 10 % longer, at random, so that runs without loss differ.
    let jitter = Rng::for_component(seed, PAUSE_STREAM).unit();
    net.run_for(POOL_WARM_UP.mul_f64(1.0 + 0.1 * jitter));
    Ok(net)
}

/// Starts a network, and returns it before the user opens a connection.
pub fn start_cold(seed: u64, config: &AggregationConfig) -> Result<Aggregation, Error> {
    let mut config = config.clone();
    config.boxed.congestion = CUBIC;
    for server in &mut config.servers {
        server.config.congestion = CUBIC;
    }
    let mut net = Aggregation::new(seed, &config).map_err(run_error)?;
    let why_not = "the box does not intercept, because it reaches no server";
    let intercepts = net.run_until_intercepting();
    intercepts.then_some(net).ok_or_else(|| run_error(why_not))
}

/// Downloads `bytes` bytes. Returns the time in seconds. `observe` receives the bytes so far every
/// [`POLL_INTERVAL`].
pub fn download(
    net: &mut Aggregation,
    bytes: u64,
    mut observe: impl FnMut(&Aggregation, Duration, u64),
) -> Result<f64, Error> {
    let id = net.open(0, 0, Load::Down(bytes)).map_err(run_error)?;
    let begun = net.world.now();
    loop {
        let passed = net.world.now().saturating_since(begun);
        observe(net, passed, net.at_user(id).received);
        if net.run(POLL_INTERVAL, |net| net.duration(id).is_some()) {
            let received = net.at_user(id).received;
            let took = net.duration(id).filter(|_| received == bytes);
            let incomplete = || run_error(format_args!("{received} of {bytes} bytes arrived"));
            return took.map(|took| took.as_secs_f64()).ok_or_else(incomplete);
        }
        if passed > DOWNLOAD_TIMEOUT || net.at_user(id).closed.is_some() {
            let why = "a download stalled, or its connection was aborted";
            return Err(run_error(why));
        }
    }
}

/// Sends new connections to the server of this name; `auto` leaves the choice to the box.
pub fn use_server(net: &mut Aggregation, name: &str) -> Result<(), Error> {
    let name = name.to_owned();
    match net.ask(Request::Server { name }) {
        Some(Answer::Done) => Ok(()),
        answer => Err(run_error(format_args!(
            "the box cannot change its server; it answers {answer:?}"
        ))),
    }
}

/// Lets a user open a connection for a small download every [`BROWSE_INTERVAL`], for `time`.
pub fn browse(net: &mut Aggregation, time: Duration) -> Result<(), Error> {
    for _ in 0..time.as_millis() / BROWSE_INTERVAL.as_millis() {
        net.open(0, 0, Load::Down(SMALL_DOWNLOAD_BYTES))
            .map_err(run_error)?;
        net.run_for(BROWSE_INTERVAL);
    }
    Ok(())
}

/// A capture at a node: the packets that the node sends or receives.
#[derive(Debug)]
struct NodeCapture {
    /// The links on which the node sends.
    outgoing: Vec<LinkId>,
    packets: Vec<Captured>,
}

impl Tap for NodeCapture {
    fn on_packet(&mut self, at: Instant, link: LinkId, event: PacketEvent, packet: &Packet) {
        // A packet counts when the node itself sends or receives the packet, not when the other end of the
        // link does.
        let at_node = match event {
            PacketEvent::Sent => self.outgoing.contains(&link),
            PacketEvent::Delivered { .. } => !self.outgoing.contains(&link),
            PacketEvent::Duplicated | PacketEvent::Dropped { .. } => false,
        };
        if at_node {
            self.packets.push(Captured {
                at: SystemTime::UNIX_EPOCH + at.saturating_since(Instant::ZERO),
                bytes: packet.bytes.clone(),
            });
        }
    }
}

/// Captures the packets of box and server during two downloads of `bytes` bytes: the first after the start
/// of the network, and a later one.
pub fn establish(seed: u64, links: &[Link], bytes: u64) -> Result<[Captures; 2], Error> {
    let mut net = start_cold(seed, &aggregated(links)?)?;
    // The captures become files, in which other tools check checksums.
    net.world.use_checksums();
    let nodes = [("box", net.boxed), ("server", net.servers[0])];
    let taps = nodes.map(|(_, node)| {
        let interfaces = net.world.interfaces(node);
        let tap = Arc::new(Mutex::new(NodeCapture {
            outgoing: interfaces.iter().map(|(out, _)| *out).collect(),
            packets: Vec::new(),
        }));
        for link in interfaces.iter().flat_map(|(out, back)| [out, back]) {
            net.world.tap(*link, Box::new(tap.clone()));
        }
        tap
    });
    let mut captured = || {
        download(&mut net, bytes, |_, _, _| ())?;
        net.run_for(POOL_WARM_UP);
        let taken = [0, 1].map(|n| {
            let mut tap = taps[n].lock().unwrap_or_else(PoisonError::into_inner);
            (nodes[n].0, std::mem::take(&mut tap.packets))
        });
        Ok::<_, Error>(taken)
    };
    Ok([captured()?, captured()?])
}

/// Returns the addresses of the hosts.
pub fn ends(links: usize) -> Ends {
    let one = |addr| vec![IpAddr::V4(addr)];
    Ends {
        user: one(user_addr(0)),
        boxed: (0..links).map(|n| link_addr(n).into()).collect(),
        server: one(server_addr(0)),
        content: one(content_addr(0)),
    }
}
