//! A peer that uses the kernel's sockets: the other end of interoperability tests, the relays of the demo,
//! and the reference of benchmarks. It uses Multipath TCP by default, and sets the congestion control of each
//! socket by `TCP_CONGESTION`.
//!
//! It reports each connection as one line of JSON (`Report` in `transfer`).

mod cost;
mod transfer;

use std::io::{self, ErrorKind, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use braid_testbed::kernel_tcp as socket;
use serde::Serialize;
use serde_json::json;

use crate::cli::{PeerArgs, Transport};
use braid::failure::Failure;

pub use cost::Cost;
pub use transfer::{Direction, Report, bytes_to_send, compare, next_write};

/// Accepts `connections` connections (0: any number, without end), and transfers on all at the same time as
/// `args` say.
pub fn listen(address: SocketAddr, connections: u32, args: &PeerArgs) -> Result<(), Failure> {
    let listener = bind(address, args.transport, &args.congestion)?;
    let mut served = Vec::new();
    let mut all_ok = true;
    while connections == 0 || (served.len() as u64) < u64::from(connections) {
        let stream = socket::accept(&listener, &args.congestion)?;
        let args = args.clone();
        let serving = thread::spawn(move || report(&stream, "listen", &args));
        // A peer without end never joins its threads, so it must not collect their handles.
        if connections > 0 {
            served.push(serving);
        }
    }
    for serving in served {
        all_ok &= matches!(serving.join(), Ok(Ok(true)));
    }
    finish(all_ok)
}

/// Listens, and prints the address for the process that started this one.
fn bind(address: SocketAddr, transport: Transport, cc: &str) -> Result<TcpListener, Failure> {
    let listener = socket::listen(address, transport, cc)
        .map_err(|e| Failure::run(format_args!("cannot listen on {address}"), e))?;
    print_line(&json!({ "listening": listener.local_addr()? }))?;
    Ok(listener)
}

/// Connects, transfers as `args` say, and reports.
pub fn connect(
    address: SocketAddr,
    bind: Option<SocketAddr>,
    args: &PeerArgs,
) -> Result<(), Failure> {
    let stream = socket::connect(address, bind, args.transport, &args.congestion)
        .map_err(|e| Failure::run(format_args!("cannot connect to {address}"), e))?;
    finish(report(&stream, "connect", args)?)
}

/// Prints the cost of this process at its end, and fails unless every transfer succeeded.
pub fn finish(all_ok: bool) -> Result<(), Failure> {
    print_line(&Cost::so_far()?)?;
    match all_ok {
        true => Ok(()),
        false => Err(Failure::Run("a transfer failed".to_owned())),
    }
}

/// Relays every connection accepted on `listen` to `to`, until the process is killed. `accept` and `connect`
/// are the transports of the two sides.
pub fn relay(
    listen: SocketAddr,
    to: SocketAddr,
    (accept, connect): (Transport, Transport),
    congestion: &str,
) -> Result<(), Failure> {
    let listener = bind(listen, accept, congestion)?;
    loop {
        let accepted = socket::accept(&listener, congestion)?;
        let congestion = congestion.to_owned();
        thread::spawn(move || {
            let result = socket::connect(to, None, connect, &congestion)
                .and_then(|connected| relay_one(&accepted, &connected));
            match result {
                Ok(()) => {}
                // A user who ends early is no failure of the relay.
                Err(error) if is_early_end(&error) => tracing::debug!(%to, %error, "ended early"),
                Err(error) => tracing::warn!(%to, %error, "relay failed"),
            }
        });
    }
}

/// Returns whether one side of a relay has ended its connection before the other side.
fn is_early_end(error: &io::Error) -> bool {
    use ErrorKind::{BrokenPipe, ConnectionReset, NotConnected};
    matches!(error.kind(), BrokenPipe | ConnectionReset | NotConnected)
}

/// Copies the bytes of both directions. At the end of a direction, closes it towards the other side too.
fn relay_one(near: &TcpStream, far: &TcpStream) -> io::Result<()> {
    thread::scope(|scope| {
        let up = scope.spawn(|| pump(near, far));
        let down = pump(far, near);
        let failed = |_| Err(io::Error::other("relay thread failed"));
        down.and(up.join().unwrap_or_else(failed))
    })
}

fn pump(mut from: &TcpStream, mut to: &TcpStream) -> io::Result<()> {
    let result = io::copy(&mut from, &mut to);
    match &result {
        Ok(_) => to.shutdown(Shutdown::Write)?,
        Err(_) => {
            // The other direction must not wait for a peer that has failed.
            let _ = to.shutdown(Shutdown::Both);
            let _ = from.shutdown(Shutdown::Both);
        }
    }
    result.map(drop)
}

/// Runs one connection and prints its report. Returns whether the transfer succeeded.
fn report(stream: &TcpStream, role: &'static str, args: &PeerArgs) -> io::Result<bool> {
    socket::set_stall(stream, Duration::from_secs(args.stall))?;
    let report = transfer::run(stream, role, args);
    print_line(&report)?;
    Ok(report.ok)
}

/// Prints one line of JSON and flushes it, since another process may wait for the line.
pub fn print_line(value: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_string(value)?;
    line.push('\n');
    let mut out = io::stdout().lock();
    out.write_all(line.as_bytes())?;
    out.flush()
}
