//! The same session by the kernel's Multipath TCP. Only the bytes that the client reads are observed.

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

/// Maximum number of bytes of one read or write. A guess: large enough that calls cost little.
const CHUNK_LEN: usize = 64 << 10;

impl SessionScenario<'_> {
    /// Runs the session over emulated links with the kernel's sockets and strategy. The server sends
    /// as fast as it can until the client has taken all samples.
    ///
    /// # Errors
    /// A namespace, a link or a socket cannot be set up; the connection breaks; the machine is too busy for
    /// the emulator to be on time.
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
        let [client_ns, server_ns] =
            [CLIENT, SERVER].map(|host| environment.fixture.namespace(host));
        let (client_ns, server_ns) = (client_ns?, server_ns?);
        environment.measure_on_time(seed, |_| {
            let stop = AtomicBool::new(false);
            let listen = || kernel_tcp::listen(REMOTE, Transport::Mptcp, cc);
            let listener = netns::run_inside(&server_ns, listen).map_err(run_error)?;
            thread::scope(|scope| {
                let sending = scope.spawn(|| send(&listener, cc, &stop));
                let read = netns::run_inside(&client_ns, || receive(cc, self.samples()));
                stop.store(true, Ordering::Relaxed);
                let sent = sending.join();
                sent.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
                    .map_err(run_error)?;
                let read = read.map_err(run_error)?;
                Ok(SessionTrace {
                    // The kernel's acknowledgements are not observed. The bytes read stand for them, since
                    // the client reads at once.
                    acked: read.clone(),
                    read,
                    ..SessionTrace::default()
                })
            })
        })
    }
}

/// Sends until `stop` is set, or until the client resets the connection at its end.
fn send(listener: &TcpListener, cc: &str, stop: &AtomicBool) -> io::Result<()> {
    use io::ErrorKind::{BrokenPipe, ConnectionReset};
    become_realtime(ENDPOINT_PRIORITY);
    let mut stream = None;
    let bytes = vec![0; CHUNK_LEN];
    while !stop.load(Ordering::Relaxed) {
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
            // The client ended the session. If that was too early, the client reports it.
            Err(e) if matches!(e.kind(), BrokenPipe | ConnectionReset) => return Ok(()),
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Returns the number of bytes read by the time of each sample, for the first `count` samples.
fn receive(cc: &str, count: usize) -> io::Result<Vec<u64>> {
    become_realtime(ENDPOINT_PRIORITY);
    let started = Instant::now();
    let local = SocketAddr::new(client_addr(0).into(), 0);
    let mut stream = kernel_tcp::connect(REMOTE, Some(local), Transport::Mptcp, cc)?;
    // A read waits for at most a tenth of the interval, so that no sample is late by more than that.
    kernel_tcp::set_stall(&stream, SAMPLE_INTERVAL / 10)?;
    kernel_tcp::reset_on_drop(&stream)?;
    let (mut buffer, mut read, mut samples) = (vec![0; CHUNK_LEN], 0, Vec::new());
    loop {
        let passed = started.elapsed().div_duration_f64(SAMPLE_INTERVAL) as usize;
        samples.resize(passed.min(count), read);
        if passed >= count || fixture::interrupted() {
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
