//! One connection of the kernel peer. It sends and receives at the same time, and reports the result. The engine
//! peer shares the directions and the report.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsFd;
use std::panic;
use std::thread;
use std::time::Instant;

use braid_testbed::Pattern;
use braid_testbed::kernel_tcp as socket;
use braid_testbed::mptcp_info::mptcp_info;
use serde::Serialize;

use crate::cli::PeerArgs;

/// Maximum number of bytes of one read or write. A guess: large enough that calls cost little.
const CHUNK_LEN: usize = 256 * 1024;
/// Number of reads or writes between two readings of `MPTCP_INFO`: up to 4 MiB, so that readings cost little.
const SAMPLE_EVERY_CHUNKS: u64 = 16;

/// The report on one connection.
#[derive(Debug, Serialize)]
pub struct Report {
    /// `listen` or `connect`.
    pub role: &'static str,
    /// True if nothing failed and all expected bytes arrived.
    pub ok: bool,
    /// The first failure.
    pub error: Option<String>,
    /// Congestion control of the socket at its start.
    pub congestion: String,
    /// True if the connection is plain TCP, by request or by fallback.
    pub fallback: bool,
    /// Maximum number of subflows at the same time.
    pub subflows: u8,
    /// The sending direction.
    pub sent: Direction,
    /// The receiving direction.
    pub received: Direction,
}

/// One direction of a transfer.
#[derive(Debug, Default, Serialize)]
pub struct Direction {
    /// Payload bytes.
    pub bytes: u64,
    /// Time from the start of the connection to the end of this direction.
    pub seconds: f64,
}

impl Report {
    /// Returns the report on a connection that has just begun.
    pub fn new(role: &'static str, args: &PeerArgs) -> Report {
        Report {
            role,
            ok: false,
            error: None,
            congestion: args.congestion.clone(),
            fallback: false,
            subflows: 0,
            sent: Direction::default(),
            received: Direction::default(),
        }
    }

    /// Stores the error of `result` if it is the first.
    pub fn keep_error(&mut self, result: Result<(), String>) {
        self.error = self.error.take().or(result.err());
    }

    /// Returns the report on a connection that has ended.
    pub fn finish(mut self, args: &PeerArgs) -> Report {
        let received = self.received.bytes;
        if let Some(expected) = args.expect.filter(|expected| *expected != received) {
            self.keep_error(Err(format!("received {received} of {expected} bytes")));
        }
        self.ok = self.error.is_none();
        self
    }
}

/// Returns the bytes to send, or `None` for a fast transfer, which sends any bytes.
pub fn bytes_to_send(args: &PeerArgs) -> Option<Pattern> {
    (!args.fast).then(|| Pattern::new(args.seed))
}

/// Returns the number of bytes of the next write after `sent` bytes.
pub fn next_write(sent: u64, args: &PeerArgs) -> usize {
    args.send.saturating_sub(sent).min(CHUNK_LEN as u64) as usize
}

/// Compares received bytes with the `expected` ones, if there are any.
pub fn compare(expected: &mut Option<Pattern>, bytes: &[u8]) -> Result<(), String> {
    let compared = expected.as_mut().map_or(Ok(()), |all| all.check(bytes));
    compared.map_err(|at| format!("byte {at} differs from what was expected"))
}

/// Runs the connection to the end of both directions.
pub fn run(stream: &TcpStream, role: &'static str, args: &PeerArgs) -> Report {
    let mut report = Report::new(role, args);
    report.congestion = socket::congestion(stream).unwrap_or_default();
    let [sent, received] = thread::scope(|scope| {
        let sending = scope.spawn(|| Meter::run(stream, |meter| meter.send(args)));
        let received = Meter::run(stream, |meter| meter.receive(args));
        let sent = sending.join();
        let sent = sent.unwrap_or_else(|payload| panic::resume_unwind(payload));
        [sent, received]
    });
    report.fallback = sent.fallback || received.fallback;
    report.subflows = sent.subflows.max(received.subflows);
    report.keep_error(received.result);
    report.keep_error(sent.result);
    report.sent = sent.direction;
    report.received = received.direction;
    report.finish(args)
}

/// One direction of a connection. It also reads the state of the connection at intervals.
struct Meter<'a> {
    stream: &'a TcpStream,
    direction: Direction,
    result: Result<(), String>,
    chunks: u64,
    subflows: u8,
    fallback: bool,
}

impl<'a> Meter<'a> {
    /// Carries out one direction, and stores its duration and result.
    fn run(stream: &'a TcpStream, work: impl FnOnce(&mut Self) -> Result<(), String>) -> Self {
        let start = Instant::now();
        let mut meter = Meter {
            stream,
            direction: Direction::default(),
            result: Ok(()),
            chunks: 0,
            subflows: 0,
            fallback: false,
        };
        meter.result = work(&mut meter);
        meter.sample();
        meter.direction.seconds = start.elapsed().as_secs_f64();
        meter
    }

    /// Sends the bytes that `args` ask for, and then closes the direction, unless this side only receives.
    fn send(&mut self, args: &PeerArgs) -> Result<(), String> {
        let mut buf = vec![0; CHUNK_LEN];
        let mut pattern = bytes_to_send(args);
        // A fast transfer sends this block again and again.
        Pattern::new(args.seed).fill(&mut buf);
        let mut writer = self.stream;
        while self.direction.bytes < args.send {
            let chunk = &mut buf[..next_write(self.direction.bytes, args)];
            if let Some(pattern) = &mut pattern {
                pattern.fill(chunk);
            }
            let written = writer.write_all(chunk);
            written.map_err(|error| format!("sending: {}", name_stall(error)))?;
            self.count(chunk.len());
        }
        match args.only_receives() {
            true => Ok(()),
            false => self.end_sending(),
        }
    }

    /// Receives to the end of the direction, and compares the bytes with the expected ones if `args` ask for it.
    fn receive(&mut self, args: &PeerArgs) -> Result<(), String> {
        let mut buf = vec![0; CHUNK_LEN];
        let mut expected = args.verify.map(Pattern::new);
        let mut reader = self.stream;
        loop {
            let n = match reader.read(&mut buf) {
                // A side that only receives closes its direction now, after the peer.
                Ok(0) if args.only_receives() => return self.end_sending(),
                Ok(0) => return Ok(()),
                Ok(n) => n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(format!("receiving: {}", name_stall(error))),
            };
            self.count(n);
            if args.aborts_at(self.direction.bytes) {
                return socket::reset_on_drop(self.stream).map_err(|e| format!("aborting: {e}"));
            }
            compare(&mut expected, &buf[..n])?;
        }
    }

    fn end_sending(&self) -> Result<(), String> {
        let ended = self.stream.shutdown(Shutdown::Write);
        ended.map_err(|e| format!("ending the sending direction: {e}"))
    }

    fn count(&mut self, bytes: usize) {
        self.direction.bytes += bytes as u64;
        if self.chunks.is_multiple_of(SAMPLE_EVERY_CHUNKS) {
            self.sample();
        }
        self.chunks += 1;
    }

    /// Reads the connection's state. Stores the maximum number of subflows, since a connection that ends loses
    /// its subflows one by one.
    fn sample(&mut self) {
        match mptcp_info(self.stream.as_fd()) {
            Ok(Some(info)) => {
                self.subflows = self.subflows.max(info.subflows);
                self.fallback |= info.fallback;
            }
            Ok(None) => self.fallback = true,
            // A failed reading is left out; it says nothing about the transfer.
            Err(_) => {}
        }
    }
}

/// Replaces the error of a socket's timeout by one that says that there was no progress.
fn name_stall(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            io::Error::new(io::ErrorKind::TimedOut, "no progress for too long")
        }
        _ => error,
    }
}
