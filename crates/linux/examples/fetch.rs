//! A client on a TUN device: fetches `/` by HTTP from a server, which may be the kernel's Multipath TCP. Each
//! address is a path of its own, so that the connection has a subflow for each.
//!
//! ```sh
//! cargo build -p braid-linux --example fetch
//! scripts/with-net.sh sh -c '
//!     ip link set lo up && ip addr add 10.9.0.1/32 dev lo
//!     mptcpize run python3 -m http.server --bind 10.9.0.1 8080 & sleep 1
//!     target/debug/examples/fetch 10.9.0.1:8080 10.9.1.2 10.9.2.2; kill $!'
//! ```
//!
//! Server and client are on one machine there. To reach others, let the kernel forward the addresses, and send
//! each over a link of its own (`ip rule add from ADDRESS`).

use std::error::Error;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::Command;
use std::{env, io};

use braid_engine::{
    ApiError, CloseReason, Config, ConnId, ConnectOptions, Event, PathConfig, Stack,
};
use braid_linux::random;
use braid_linux::tun::{PacketIo, Tun};
use braid_wire::{Instant, Rng};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

const DEVICE: &str = "fetch0";

/// The outcome of a fetch.
#[derive(Debug)]
pub struct Fetched {
    /// The head of the answer and the page.
    pub answer: Vec<u8>,
    /// True if the connection was Multipath TCP to its end.
    pub is_mptcp: bool,
    /// The subflows that were established.
    pub subflows: usize,
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let (server, addresses) = arguments
        .split_first()
        .ok_or("usage: fetch SERVER ADDRESS…")?;
    let addresses: Result<Vec<Ipv4Addr>, _> = addresses.iter().map(|a| a.parse()).collect();
    let fetched = fetch(server.parse()?, &addresses?)?;
    let (bytes, subflows) = (fetched.answer.len(), fetched.subflows);
    println!(
        "{bytes} bytes, {subflows} subflows, Multipath TCP: {}",
        fetched.is_mptcp
    );
    Ok(())
}

/// Fetches `/` from `server` over a path for each of `addresses`.
pub fn fetch(server: SocketAddr, addresses: &[Ipv4Addr]) -> Result<Fetched, Box<dyn Error>> {
    let mut tun = Tun::create(DEVICE)?;
    ip(&["link", "set", DEVICE, "up"])?;
    // Keys and nonces come from this seed, so it must be hard to guess.
    let rng = Rng::from_seed(random()?);
    let mut stack = Stack::new(Config::default(), rng, braid_strategy::default_factory());
    for address in addresses {
        ip(&["route", "add", &address.to_string(), "dev", DEVICE])?;
        stack.add_path(PathConfig::v4(*address))?;
    }
    let start = std::time::Instant::now();
    let clock = || Instant::from_std(std::time::Instant::now(), start);
    let mut now = clock();
    let options = ConnectOptions::new(server, braid_strategy::default_strategy());
    let conn = stack.connect(now, options)?;
    let request = format!("GET / HTTP/1.0\r\nHost: {}\r\n\r\n", server.ip());
    stack.write(now, conn, request.as_bytes())?;

    let (mut answer, mut is_mptcp, mut subflows) = (Vec::new(), true, 0);
    loop {
        // After any call: first the events …
        while let Some(event) = stack.poll_event() {
            match event {
                Event::SubflowEstablished { .. } => subflows += 1,
                Event::FellBack { .. } => is_mptcp = false,
                Event::Readable { .. } => read(now, &mut stack, conn, &mut answer)?,
                Event::Closed { reason, .. } => {
                    return match reason {
                        CloseReason::Finished => Ok(Fetched {
                            answer,
                            is_mptcp,
                            subflows,
                        }),
                        reason => Err(format!("the connection ended early: {reason:?}").into()),
                    };
                }
                _ => {}
            }
        }
        // … then the packets. If the device refuses one, it is lost, as it may be on any link.
        while let Some(packet) = stack.poll_transmit(now) {
            let _ = tun.send(&packet);
        }
        let timeout = stack
            .next_timeout()
            .map(|at| at.saturating_since(now).try_into());
        wait(&tun, timeout.transpose()?)?;
        now = clock();
        while let Some((packet, meta)) = tun.recv()? {
            stack.receive_from(now, packet, meta);
        }
        stack.handle_timeout(now);
    }
}

/// Reads all data that has arrived, and closes the connection once the peer has closed it.
fn read(
    now: Instant,
    stack: &mut Stack,
    conn: ConnId,
    answer: &mut Vec<u8>,
) -> Result<(), ApiError> {
    loop {
        let read = stack.read_with(now, conn, |parts| {
            let before = answer.len();
            parts.iter().for_each(|part| answer.extend_from_slice(part));
            Ok::<_, ApiError>(answer.len() - before)
        })?;
        if read == 0 {
            break;
        }
    }
    if stack.read_finished(conn) {
        stack.shutdown(now, conn)?;
    }
    Ok(())
}

/// Waits for a packet.
fn wait(tun: &Tun, timeout: Option<Timespec>) -> io::Result<()> {
    match poll(
        &mut [PollFd::new(&tun.fd(), PollFlags::IN)],
        timeout.as_ref(),
    ) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Runs `ip` of iproute2.
fn ip(arguments: &[&str]) -> Result<(), Box<dyn Error>> {
    let succeeded = Command::new("ip").args(arguments).status()?.success();
    let failed = || format!("ip {} failed", arguments.join(" "));
    succeeded.then_some(()).ok_or_else(|| failed().into())
}
