//! The session by the kernel's MPTCP. Only the bytes that the client reads are observed, not the packets.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use braid_linux::sys::become_realtime;
use braid_sim::transfer::{REMOTE, client_addr};
use braid_testbed::kernel_tcp::{self, Transport};
use braid_testbed::netns;

use super::environment::Environment;
use super::{SAMPLE_INTERVAL, SessionScenario, SessionTrace, is_transient};
use crate::backend::fixture::{self, CLIENT, ENDPOINT_PRIORITY, SERVER, run_error};
use crate::backend::{Error, kernel};

/// Maximum bytes of one read or write. A guess, large enough to make system calls rare.
const CHUNK: usize = 64 << 10;

impl SessionScenario<'_> {
    /// Runs the session over emulated links with the kernel's sockets and its own scheduler. The server
    /// sends as fast as the socket takes data.
    ///
    /// # Errors
    /// Namespaces, links or sockets cannot be created, the connection fails, or the machine is too busy.
    pub fn run_by_kernel(&self, seed: u64) -> Result<SessionTrace, Error> {
        self.run_by_kernel_in(&mut Environment::build(self)?, seed)
    }

    /// Runs the session by the kernel over the emulated links of `environment`.
    pub(super) fn run_by_kernel_in(
        &self,
        environment: &mut Environment<'_>,
        seed: u64,
    ) -> Result<SessionTrace, Error> {
        let cc = self.engine.congestion.name();
        let window = self.engine.initial_window;
        kernel::addresses(&environment.fixture, self.paths.len(), (cc, window))?;
        let [near, far] = [CLIENT, SERVER].map(|host| environment.fixture.namespace(host));
        let (near, far) = (near?, far?);
        environment.measure_on_time(seed, |_| {
            let over = AtomicBool::new(false);
            let listen = || kernel_tcp::listen(REMOTE, Transport::Mptcp, cc);
            let listener = netns::run_inside(&far, listen).map_err(run_error)?;
            thread::scope(|scope| {
                let sending = scope.spawn(|| send(&listener, cc, &over));
                let read = netns::run_inside(&near, || receive(cc, self.samples()));
                over.store(true, Ordering::Relaxed);
                let sent = sending.join();
                sent.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
                    .map_err(run_error)?;
                let read = read.map_err(run_error)?;
                Ok(SessionTrace {
                    // Acknowledgements of the kernel are not observed. The bytes read stand for them, because
                    // the client reads at once.
                    acked: read.clone(),
                    read,
                    ..SessionTrace::default()
                })
            })
        })
    }
}

/// Accepts the client's connection and sends over it until `over` is true. The client ends first and resets
/// the connection.
fn send(listener: &TcpListener, cc: &str, over: &AtomicBool) -> io::Result<()> {
    use io::ErrorKind::{BrokenPipe, ConnectionReset};
    become_realtime(ENDPOINT_PRIORITY);
    let mut stream = None;
    let bytes = vec![0; CHUNK];
    while !over.load(Ordering::Relaxed) {
        let Some(open) = &mut stream else {
            stream = kernel_tcp::accept_within(listener, cc, SAMPLE_INTERVAL)?;
            if let Some(open) = &stream {
                kernel_tcp::set_stall(open, SAMPLE_INTERVAL)?;
                kernel_tcp::reset_on_drop(open)?;
            }
            continue;
        };
        match open.write(&bytes) {
            Ok(_) => {}
            Err(e) if is_transient(&e) => {}
            // The client has ended. If it ended too early, the client reports that.
            Err(e) if matches!(e.kind(), BrokenPipe | ConnectionReset) => return Ok(()),
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Opens a connection and reads from it. Returns the number of bytes read until the end of each of `all`
/// samples.
fn receive(cc: &str, all: usize) -> io::Result<Vec<u64>> {
    become_realtime(ENDPOINT_PRIORITY);
    let started = Instant::now();
    let local = SocketAddr::new(client_addr(0).into(), 0);
    let mut stream = kernel_tcp::connect(REMOTE, Some(local), Transport::Mptcp, cc)?;
    // A read waits at most a tenth of the interval. A sample is therefore late by at most this time.
    kernel_tcp::set_stall(&stream, SAMPLE_INTERVAL / 10)?;
    kernel_tcp::reset_on_drop(&stream)?;
    let (mut buffer, mut read, mut samples) = (vec![0; CHUNK], 0, Vec::new());
    loop {
        let passed = started.elapsed().div_duration_f64(SAMPLE_INTERVAL) as usize;
        samples.resize(passed.min(all), read);
        if passed >= all || fixture::interrupted() {
            return Ok(samples);
        }
        match stream.read(&mut buffer) {
            Ok(0) => {
                let text = format!(
                    "the server's connection ended {:.1?} after the start",
                    started.elapsed()
                );
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, text));
            }
            Ok(bytes) => read += bytes as u64,
            Err(e) if is_transient(&e) => {}
            Err(e) => return Err(e),
        }
    }
}
