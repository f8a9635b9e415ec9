//! Background traffic over emulated links, by the kernel's sockets. The generators have a namespace behind
//! the server, and the sinks a namespace behind the client.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, Scope};
use std::time::{Duration, Instant};

use braid_links::{Rate, Settings};
use braid_sim::background::Background;
use braid_sim::traffic::Role;
use braid_testbed::emulator::ScheduledSettings;
use braid_testbed::kernel_tcp::{self, Transport};
use braid_testbed::netns;
use braid_wire::Rng;

use super::is_transient;
use crate::backend::Error;
use crate::backend::fixture::{self, CLIENT, END_CHECK_INTERVAL, Fixture, SERVER, run_error};

const SOURCE: &str = "source";
const SINK: &str = "sink";
/// Port of the UDP generator and its sink: the discard service (RFC 863).
const DISCARD: u16 = 9;
/// Port of the sink of the first TCP generator. The others have the next ports.
const FIRST_PORT: u16 = 50_000;
const CC: &str = "cubic";
/// Bytes of one write of a generator.
const CHUNK: usize = 1_000;
/// Depth of the token bucket of a generator with a rate, bytes. It limits the burst that the generator may
/// send after a time in which the socket took no data.
const DEPTH: f64 = 4_000.0;
/// Header bytes of IPv4 and UDP.
const HEADERS: usize = 28;
/// First stream of the sizes of UDP packets. The number is far above the streams of a world's components,
/// which count from 0.
const SIZES_STREAM: u64 = 1 << 43;

/// The generators and their sinks.
pub(super) struct BackgroundTraffic<'a> {
    background: &'a Background,
    paths: usize,
    /// Namespaces of the generators and of the sinks.
    hosts: [String; 2],
}

/// A guard that ends the traffic when it is dropped.
pub(super) struct TrafficGuard(Arc<AtomicBool>);

impl Drop for TrafficGuard {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Returns the address of the generators on a path.
fn source(path: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 2, path as u8, 2)
}

/// Returns the address of the sinks on a path.
fn sink(path: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 1, path as u8, 2)
}

impl<'a> BackgroundTraffic<'a> {
    /// The hosts of generators and sinks, each with the router that its link leads to. The links have the
    /// names of these hosts.
    pub const LINKS: [(&'static str, &'static str); 2] = [(SOURCE, SERVER), (SINK, CLIENT)];

    /// Returns the settings of [`Self::LINKS`]: 100 Mbit/s and 25 ms, as for the simulated generators.
    pub fn link_settings() -> [[ScheduledSettings; 2]; 2] {
        let access = || Settings {
            rate: Rate::bits_per_second(100_000_000),
            delay: Duration::from_millis(25),
            ..Settings::default()
        };
        [(); 2].map(|()| [(); 2].map(|()| access().into()))
    }

    /// Gives the hosts of generators and sinks an address and a route for each path.
    pub fn set_up(
        background: &'a Background,
        fixture: &Fixture,
        paths: usize,
    ) -> Result<Self, Error> {
        let mut scripts = [SOURCE, SINK].map(|link| format!("route add default dev {link}\n"));
        let (mut server, mut client) = (String::new(), String::new());
        for n in 0..paths {
            let (source, sink, link) = (source(n), sink(n), fixture::link_name(n));
            scripts[0] += &format!("addr add {source}/32 dev {SOURCE}\n");
            scripts[1] += &format!("addr add {sink}/32 dev {SINK}\n");
            server +=
                &format!("route add {source}/32 dev {SOURCE}\nroute add {sink}/32 dev {link}\n");
            client +=
                &format!("route add {sink}/32 dev {SINK}\nroute add {source}/32 dev {link}\n");
        }
        let hosts = [SOURCE, SINK, SERVER, CLIENT];
        for (host, script) in hosts
            .into_iter()
            .zip(scripts.iter().chain([&server, &client]))
        {
            fixture.testbed.ip(host, script).map_err(run_error)?;
        }
        Ok(BackgroundTraffic {
            background,
            paths,
            hosts: [fixture.namespace(SOURCE)?, fixture.namespace(SINK)?],
        })
    }

    /// Starts the traffic. It flows until the returned guard is dropped.
    pub fn start<'scope>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
        seed: u64,
    ) -> Result<TrafficGuard, Error> {
        let over = Arc::new(AtomicBool::new(false));
        let guard = TrafficGuard(over.clone());
        let [near, far] = &self.hosts;
        for path in 0..self.paths {
            let to = move |port| SocketAddr::new(IpAddr::V4(sink(path)), port);
            let from = move |port| SocketAddr::new(IpAddr::V4(source(path)), port);
            for (port, role) in (FIRST_PORT..).zip(&self.background.tcp) {
                let listen = || kernel_tcp::listen(to(port), Transport::Tcp, CC);
                let listener = netns::run_inside(far, listen).map_err(run_error)?;
                let ended = over.clone();
                scope.spawn(move || log_end(drain(&listener, &ended)));
                let ended = over.clone();
                let write = move || write(from(0), to(port), role, &ended);
                scope.spawn(move || log_end(netns::run_inside(near, write)));
            }
            // The sink's port is bound, so that its host does not answer with ICMP errors. Nothing reads the
            // socket: the kernel drops packets when its buffer is full.
            let bind = |host, address: SocketAddr| {
                netns::run_inside(host, || UdpSocket::bind(address)).map_err(run_error)
            };
            let (out, unread) = (bind(near, from(DISCARD))?, bind(far, to(DISCARD))?);
            let rng = Rng::for_component(seed, SIZES_STREAM + path as u64);
            let (background, ended) = (self.background, over.clone());
            scope.spawn(move || {
                log_end(send_datagrams(&out, to(DISCARD), (background, rng), &ended));
                drop(unread);
            });
        }
        Ok(guard)
    }
}

/// Logs the failure of a generator or sink. A failure is no error of the session, because an outage of the
/// path may end the connection.
fn log_end(result: io::Result<()>) {
    if let Err(error) = result {
        tracing::debug!(%error, "a generator ended");
    }
}

/// Opens a connection and writes until `over` is true: at the rate of `role`, or as fast as possible.
fn write(from: SocketAddr, to: SocketAddr, role: &Role, over: &AtomicBool) -> io::Result<()> {
    let mut stream = kernel_tcp::connect(to, Some(from), Transport::Tcp, CC)?;
    kernel_tcp::reset_on_drop(&stream)?;
    kernel_tcp::set_stall(&stream, END_CHECK_INTERVAL)?;
    let rate = match role {
        Role::Capped { rate, .. } => Some(*rate as f64 / 8.0),
        _ => None,
    };
    let (mut tokens, mut filled_at) = (0.0f64, Instant::now());
    while !over.load(Ordering::Relaxed) {
        if let Some(rate) = rate {
            let now = Instant::now();
            tokens = (tokens + rate * (now - filled_at).as_secs_f64()).min(DEPTH);
            filled_at = now;
            if tokens < CHUNK as f64 {
                thread::sleep(Duration::from_secs_f64((CHUNK as f64 - tokens) / rate));
                continue;
            }
        }
        match stream.write(&[0; CHUNK]) {
            Ok(written) => tokens -= written as f64,
            Err(e) if is_transient(&e) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Accepts a connection, and reads it until its end or until `over` is true.
fn drain(listener: &TcpListener, over: &AtomicBool) -> io::Result<()> {
    let mut buffer = vec![0; 1 << 16];
    let mut stream = None;
    while !over.load(Ordering::Relaxed) {
        let Some(open) = &mut stream else {
            stream = kernel_tcp::accept_within(listener, CC, END_CHECK_INTERVAL)?;
            if let Some(open) = &stream {
                kernel_tcp::set_stall(open, END_CHECK_INTERVAL)?;
            }
            continue;
        };
        match open.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(_) => {}
            Err(e) if is_transient(&e) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Sends datagrams of random sizes at the rate of the background, until `over` is true.
fn send_datagrams(
    socket: &UdpSocket,
    to: SocketAddr,
    (background, mut rng): (&Background, Rng),
    over: &AtomicBool,
) -> io::Result<()> {
    let (min, max) = background.udp_sizes.clone().into_inner();
    let mut due = Instant::now();
    while !over.load(Ordering::Relaxed) {
        thread::sleep(due.saturating_duration_since(Instant::now()));
        let size = usize::from(min) + rng.below(u64::from(max - min) + 1) as usize;
        // The send fails if the device's queue is full. That is a loss, as on any link.
        let _ = socket.send_to(&vec![0; size.saturating_sub(HEADERS)], to);
        due += Duration::from_secs_f64(size as f64 * 8.0 / background.udp_rate as f64);
    }
    Ok(())
}
