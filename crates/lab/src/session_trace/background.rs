//! Background traffic over emulated links, by the kernel's sockets: generators in a namespace behind
//! the server, sinks in one behind the client.

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

/// Host of the generators, and the name of its link.
const SOURCE: &str = "source";
/// Host of the sinks, and the name of its link.
const SINK: &str = "sink";
/// Port of the UDP sink: the discard service (RFC 863).
const DISCARD_PORT: u16 = 9;
/// Port of the first TCP sink. Each further TCP sink has the next port.
const FIRST_TCP_PORT: u16 = 50_000;
/// Congestion control of the generators: the default of Linux.
const CONGESTION: &str = "cubic";
/// Bytes of one write of a TCP generator. A guess: less than a segment, so that a rate is kept smoothly.
const CHUNK_LEN: usize = 1_000;
/// Maximum number of bytes that a generator with a rate sends at once, to catch up after a blocked write:
/// four writes, a guess.
const BUCKET_DEPTH: f64 = 4_000.0;
/// Header bytes of IPv4 (20) and UDP (8).
const HEADER_LEN: usize = 28;
/// Stream of the sizes of UDP packets, apart from the streams of a world's components.
const SIZES_STREAM: u64 = 1 << 43;

/// The generators and their sinks.
pub(super) struct BackgroundTraffic<'a> {
    background: &'a Background,
    paths: usize,
    /// Namespaces of the generators and of the sinks.
    hosts: [String; 2],
}

/// A handle that ends the traffic when it is dropped.
pub(super) struct TrafficGuard(Arc<AtomicBool>);

impl Drop for TrafficGuard {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn source(path: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 2, path as u8, 2)
}

fn sink(path: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 1, path as u8, 2)
}

impl<'a> BackgroundTraffic<'a> {
    /// Each host of generators or sinks, and the host that routes for it. The link between the two has the
    /// name of the first.
    pub const LINKS: [(&'static str, &'static str); 2] = [(SOURCE, SERVER), (SINK, CLIENT)];

    /// Returns the settings of [`Self::LINKS`], those of the simulated generators' access links: 100 Mbit/s
    /// and 25 ms.
    pub fn link_settings() -> [[ScheduledSettings; 2]; 2] {
        let access = || Settings {
            rate: Rate::bits_per_second(100_000_000),
            delay: Duration::from_millis(25),
            ..Settings::default()
        };
        [(); 2].map(|()| [(); 2].map(|()| access().into()))
    }

    /// Gives the hosts of generators and sinks an address for each path, and routes over that path.
    pub fn configure(
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

    /// Starts the traffic, which flows until the returned handle is dropped.
    pub fn start<'scope>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
        seed: u64,
    ) -> Result<TrafficGuard, Error> {
        let stop = Arc::new(AtomicBool::new(false));
        let guard = TrafficGuard(stop.clone());
        let [source_ns, sink_ns] = &self.hosts;
        for path in 0..self.paths {
            let to = move |port| SocketAddr::new(IpAddr::V4(sink(path)), port);
            let from = move |port| SocketAddr::new(IpAddr::V4(source(path)), port);
            for (port, role) in (FIRST_TCP_PORT..).zip(&self.background.tcp) {
                let listen = || kernel_tcp::listen(to(port), Transport::Tcp, CONGESTION);
                let listener = netns::run_inside(sink_ns, listen).map_err(run_error)?;
                let stop_here = stop.clone();
                scope.spawn(move || log_end(drain(&listener, &stop_here)));
                let stop_here = stop.clone();
                let generate = move || generate(from(0), to(port), role, &stop_here);
                scope.spawn(move || log_end(netns::run_inside(source_ns, generate)));
            }
            // Nothing reads the sink. It is bound only so that the host does not answer with ICMP errors.
            let bind = |host, address: SocketAddr| {
                netns::run_inside(host, || UdpSocket::bind(address)).map_err(run_error)
            };
            let (out, unread) = (
                bind(source_ns, from(DISCARD_PORT))?,
                bind(sink_ns, to(DISCARD_PORT))?,
            );
            let rng = Rng::for_component(seed, SIZES_STREAM + path as u64);
            let (background, stop_here) = (self.background, stop.clone());
            scope.spawn(move || {
                log_end(send_datagrams(
                    &out,
                    to(DISCARD_PORT),
                    (background, rng),
                    &stop_here,
                ));
                drop(unread);
            });
        }
        Ok(guard)
    }
}

/// Logs an error that ended a generator or a sink. Errors are expected: an outage of the path may break the
/// connection.
fn log_end(result: io::Result<()>) {
    if let Err(error) = result {
        tracing::debug!(%error, "a generator ended");
    }
}

/// Writes at the rate of `role`, or as fast as possible if it has none, until `stop`.
fn generate(from: SocketAddr, to: SocketAddr, role: &Role, stop: &AtomicBool) -> io::Result<()> {
    let mut stream = kernel_tcp::connect(to, Some(from), Transport::Tcp, CONGESTION)?;
    kernel_tcp::reset_on_drop(&stream)?;
    // A blocked write returns after this interval, so that the loop looks at `stop`.
    kernel_tcp::set_stall(&stream, END_CHECK_INTERVAL)?;
    let rate = match role {
        Role::Capped { rate, .. } => Some(*rate as f64 / 8.0),
        _ => None,
    };
    let (mut level, mut filled) = (0.0f64, Instant::now());
    while !stop.load(Ordering::Relaxed) {
        if let Some(rate) = rate {
            let now = Instant::now();
            // A token bucket: after a blocked write the generator catches up, by BUCKET_DEPTH bytes at most.
            level = (level + rate * (now - filled).as_secs_f64()).min(BUCKET_DEPTH);
            filled = now;
            if level < CHUNK_LEN as f64 {
                thread::sleep(Duration::from_secs_f64((CHUNK_LEN as f64 - level) / rate));
                continue;
            }
        }
        match stream.write(&[0; CHUNK_LEN]) {
            Ok(written) => level -= written as f64,
            Err(e) if is_transient(&e) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Accepts a connection, and reads it to its end or until `stop`.
fn drain(listener: &TcpListener, stop: &AtomicBool) -> io::Result<()> {
    let mut buffer = vec![0; 1 << 16];
    let mut stream = None;
    while !stop.load(Ordering::Relaxed) {
        let Some(open) = &mut stream else {
            stream = kernel_tcp::accept_within(listener, CONGESTION, END_CHECK_INTERVAL)?;
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

/// Sends datagrams of random sizes at the background's UDP rate, until `stop`.
fn send_datagrams(
    socket: &UdpSocket,
    to: SocketAddr,
    (background, mut rng): (&Background, Rng),
    stop: &AtomicBool,
) -> io::Result<()> {
    let (min, max) = background.udp_sizes.clone().into_inner();
    let mut due = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        thread::sleep(due.saturating_duration_since(Instant::now()));
        let size = usize::from(min) + rng.below(u64::from(max - min) + 1) as usize;
        // A full device queue drops the datagram, as a link may.
        let _ = socket.send_to(&vec![0; size.saturating_sub(HEADER_LEN)], to);
        due += Duration::from_secs_f64(size as f64 * 8.0 / background.udp_rate as f64);
    }
    Ok(())
}
