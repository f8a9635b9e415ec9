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

const SOURCE: &str = "source";
const SINK: &str = "sink";
/// Port of UDP, the discard service (RFC 863). The TCP generators have ports from [`FIRST_PORT`] on.
const DISCARD: u16 = 9;
const FIRST_PORT: u16 = 50_000;
const CC: &str = "cubic";
/// Bytes of one write of a generator with a rate, and the most bytes that it may catch up after a time
/// without room.
const CHUNK: usize = 1_000;
const DEPTH: f64 = 4_000.0;
/// Header bytes of IPv4 and UDP.
const HEADERS: usize = 28;
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
    /// The hosts of generators and sinks, which also name their links, and the routers to which the
    /// links lead.
    pub const LINKS: [(&'static str, &'static str); 2] = [(SOURCE, SERVER), (SINK, CLIENT)];

    /// Returns the settings of these links, the same as the accesses of the simulated generators: 100
    /// Mbit/s and 25 ms.
    pub fn link_settings() -> [[ScheduledSettings; 2]; 2] {
        let access = || Settings {
            rate: Rate::bits_per_second(100_000_000),
            delay: Duration::from_millis(25),
            ..Settings::default()
        };
        [(); 2].map(|()| [(); 2].map(|()| access().into()))
    }

    /// Sets up addresses and routes over each path for the hosts of generators and sinks.
    pub fn join(
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
                scope.spawn(move || quietly(drain(&listener, &ended)));
                let ended = over.clone();
                let write = move || write(from(0), to(port), role, &ended);
                scope.spawn(move || quietly(netns::run_inside(near, write)));
            }
            // The port is bound, so that no ICMP error answers; unread packets are dropped.
            let bind = |host, address: SocketAddr| {
                netns::run_inside(host, || UdpSocket::bind(address)).map_err(run_error)
            };
            let (out, unread) = (bind(near, from(DISCARD))?, bind(far, to(DISCARD))?);
            let rng = Rng::for_component(seed, SIZES_STREAM + path as u64);
            let (background, ended) = (self.background, over.clone());
            scope.spawn(move || {
                quietly(datagrams(&out, to(DISCARD), (background, rng), &ended));
                drop(unread);
            });
        }
        Ok(guard)
    }
}

/// Logs the end of a generator. A failure is expected, since its connection may be lost with the path.
fn quietly(result: io::Result<()>) {
    if let Err(error) = result {
        tracing::debug!(%error, "a generator ended");
    }
}

/// Writes at the rate of `role`, or as fast as possible.
fn write(from: SocketAddr, to: SocketAddr, role: &Role, over: &AtomicBool) -> io::Result<()> {
    let mut stream = kernel_tcp::connect(to, Some(from), Transport::Tcp, CC)?;
    kernel_tcp::reset_on_drop(&stream)?;
    kernel_tcp::set_stall(&stream, END_CHECK_INTERVAL)?;
    let rate = match role {
        Role::Capped { rate, .. } => Some(*rate as f64 / 8.0),
        _ => None,
    };
    let (mut level, mut filled) = (0.0f64, Instant::now());
    while !over.load(Ordering::Relaxed) {
        if let Some(rate) = rate {
            let now = Instant::now();
            // A token bucket: unused time lets the generator catch up, but by DEPTH bytes at most.
            level = (level + rate * (now - filled).as_secs_f64()).min(DEPTH);
            filled = now;
            if level < CHUNK as f64 {
                thread::sleep(Duration::from_secs_f64((CHUNK as f64 - level) / rate));
                continue;
            }
        }
        match stream.write(&[0; CHUNK]) {
            Ok(written) => level -= written as f64,
            Err(e) if is_transient(&e) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Accepts a connection and reads it to the end.
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

/// Sends datagrams of varying sizes at the rate of the background.
fn datagrams(
    socket: &UdpSocket,
    to: SocketAddr,
    (background, mut rng): (&Background, Rng),
    over: &AtomicBool,
) -> io::Result<()> {
    let (least, most) = background.udp_sizes.clone().into_inner();
    let mut due = Instant::now();
    while !over.load(Ordering::Relaxed) {
        thread::sleep(due.saturating_duration_since(Instant::now()));
        let size = usize::from(least) + rng.below(u64::from(most - least) + 1) as usize;
        // A full device queue drops the datagram, as a link may.
        let _ = socket.send_to(&vec![0; size.saturating_sub(HEADERS)], to);
        due += Duration::from_secs_f64(size as f64 * 8.0 / background.udp_rate as f64);
    }
    Ok(())
}
