//! Background traffic over emulated links, by the kernel's sockets. The generators have a namespace behind
//! the server, and the sinks a namespace behind the client.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::thread::{self, Scope};
use std::time::{Duration, Instant};

use braid_links::{Rate, Settings};
use braid_sim::background::Background;
use braid_sim::traffic::Role;
use braid_testbed::Testbed;
use braid_testbed::emulator::ScheduledSettings;
use braid_testbed::kernel_tcp::{self, Transport};
use braid_testbed::netns;
use braid_wire::Rng;

use super::error::Error;
use super::setup::{CLIENT, SERVER, Setup, link_name};
use super::threads::{self, EndSignal};

const SOURCE: &str = "source";
const SINK: &str = "sink";
/// Port of the UDP generator and its sink: the discard service (RFC 863).
const DISCARD: u16 = 9;
/// Port of the sink of the first TCP generator. The others have the next ports.
const FIRST_PORT: u16 = 50_000;
/// Congestion control of the generators. All experiments with background traffic use the same one.
const CC: &str = "cubic";
/// Bytes of one write of a generator.
const CHUNK: usize = 1_000;
/// Depth of the token bucket of a generator with a rate, bytes. It limits the burst that the generator may
/// send after a time in which the socket took no data.
const DEPTH: f64 = 4_000.0;
/// Header bytes of IPv4 and UDP. The sizes of [`Background::udp_sizes`] include them, the payload does not.
const HEADERS: usize = 28;
/// First stream of the sizes of UDP packets. The number is far above the streams of a world's components,
/// which count from 0.
const SIZES_STREAM: u64 = 1 << 43;

/// The hosts of generators and sinks, each with the router that its link leads to. The links have the names
/// of these hosts.
pub(super) const LINKS: [(&str, &str); 2] = [(SOURCE, SERVER), (SINK, CLIENT)];

/// Returns the addresses of the generators and of the sinks on a path.
fn addresses(path: usize) -> [Ipv4Addr; 2] {
    [2, 1].map(|network| Ipv4Addr::new(10, network, path as u8, 2))
}

/// Returns the settings of [`LINKS`]: 100 Mbit/s and 25 ms, as for the simulated generators.
pub(super) fn link_settings() -> [[ScheduledSettings; 2]; 2] {
    let access = || Settings {
        rate: Rate::bits_per_second(100_000_000),
        delay: Duration::from_millis(25),
        ..Settings::default()
    };
    [(); 2].map(|()| [(); 2].map(|()| access().into()))
}

/// Gives the hosts of generators and sinks an address and a route for each path.
pub(super) fn set_up(testbed: &Testbed, paths: usize) -> Result<(), Error> {
    let [mut sources, mut sinks] =
        [SOURCE, SINK].map(|link| format!("route add default dev {link}\n"));
    let (mut server, mut client) = (String::new(), String::new());
    for n in 0..paths {
        let ([source, sink], link) = (addresses(n), link_name(n));
        sources += &format!("addr add {source}/32 dev {SOURCE}\n");
        sinks += &format!("addr add {sink}/32 dev {SINK}\n");
        server += &format!("route add {source}/32 dev {SOURCE}\nroute add {sink}/32 dev {link}\n");
        client += &format!("route add {sink}/32 dev {SINK}\nroute add {source}/32 dev {link}\n");
    }
    for (host, script) in [
        (SOURCE, sources),
        (SINK, sinks),
        (SERVER, server),
        (CLIENT, client),
    ] {
        testbed.ip(host, &script)?;
    }
    Ok(())
}

/// Starts the traffic of `background` in the world of `setup`. It flows until `end`.
pub(super) fn start<'scope>(
    scope: &'scope Scope<'scope, '_>,
    testbed: &Testbed,
    (background, setup): (&'scope Background, &Setup<'_>),
    end: &'scope EndSignal,
) -> Result<(), Error> {
    let namespace = |host| {
        let host = testbed.layout().host(host)?;
        Ok::<_, Error>(host.namespace.clone())
    };
    let (near, far) = (namespace(SOURCE)?, namespace(SINK)?);
    for path in 0..setup.paths.len() {
        let [from, to] = addresses(path);
        let from = move |port| SocketAddr::from((from, port));
        let to = move |port| SocketAddr::from((to, port));
        for (port, role) in (FIRST_PORT..).zip(&background.tcp) {
            let listen = || kernel_tcp::listen(to(port), Transport::Tcp, CC);
            let listener = netns::run_inside(&far, listen)?;
            scope.spawn(move || log_end(end.accept(&listener, CC).and_then(|s| drain(s, end))));
            let near = near.clone();
            let write = move || write([from(0), to(port)], role, end);
            scope.spawn(move || log_end(netns::run_inside(&near, write)));
        }
        // The sink's port is bound, so that its host does not answer with ICMP errors. Nothing reads the
        // socket: the kernel drops packets when its buffer is full.
        let bind = |host, address: SocketAddr| netns::run_inside(host, || UdpSocket::bind(address));
        let (out, unread) = (bind(&near, from(DISCARD))?, bind(&far, to(DISCARD))?);
        let rng = Rng::for_component(setup.seed, SIZES_STREAM + path as u64);
        scope.spawn(move || {
            log_end(send_datagrams(&out, to(DISCARD), (background, rng), end));
            drop(unread);
        });
    }
    Ok(())
}

/// Logs the end of a generator or sink. A failure is no error of the session, because an outage of the path
/// may end the connection.
fn log_end(result: io::Result<()>) {
    if let Err(error) = result {
        tracing::debug!(%error, "a generator ended");
    }
}

/// Opens a connection and writes until `end`: at the rate of `role`, or as fast as possible.
fn write(ends: [SocketAddr; 2], role: &Role, end: &EndSignal) -> io::Result<()> {
    let mut stream = threads::connect(ends, Transport::Tcp, CC)?;
    let rate = match role {
        Role::Capped { rate, .. } => Some(*rate as f64 / 8.0),
        _ => None,
    };
    let (mut tokens, mut filled_at) = (0.0f64, Instant::now());
    loop {
        if let Some(rate) = rate {
            let now = Instant::now();
            tokens = (tokens + rate * (now - filled_at).as_secs_f64()).min(DEPTH);
            filled_at = now;
            if tokens < CHUNK as f64 {
                thread::sleep(Duration::from_secs_f64((CHUNK as f64 - tokens) / rate));
                continue;
            }
        }
        tokens -= end.repeat(|| stream.write(&[0; CHUNK]))? as f64;
    }
}

/// Reads a connection until its end or until `end`.
fn drain(mut stream: impl Read, end: &EndSignal) -> io::Result<()> {
    let mut buffer = vec![0; 1 << 16];
    while end.repeat(|| stream.read(&mut buffer))? > 0 {}
    Ok(())
}

/// Sends datagrams of random sizes at the rate of the background, until `end`.
fn send_datagrams(
    socket: &UdpSocket,
    to: SocketAddr,
    (background, mut rng): (&Background, Rng),
    end: &EndSignal,
) -> io::Result<()> {
    let (min, max) = background.udp_sizes.clone().into_inner();
    let mut due = Instant::now();
    loop {
        end.check()?;
        thread::sleep(due.saturating_duration_since(Instant::now()));
        let size = usize::from(min) + rng.below(u64::from(max - min) + 1) as usize;
        // The send fails if the device's queue is full. That is a loss, as on any link.
        let _ = socket.send_to(&vec![0; size.saturating_sub(HEADERS)], to);
        due += Duration::from_secs_f64(size as f64 * 8.0 / background.udp_rate as f64);
    }
}
