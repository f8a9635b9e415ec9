//! A connection of the kernel peer, which sends and receives at the same time, and then makes a report.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::thread;
use std::time::Instant;

use braid_testbed::Pattern;
use braid_testbed::kernel_tcp as socket;
use braid_testbed::mptcp_info::mptcp_info;
use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::cli::PeerArgs;

/// Maximum bytes of one read or write. A guess, large enough to make system calls rare.
const CHUNK: usize = 256 * 1024;
/// Number of chunks between two readings of the connection's state, so that these calls cost little in
/// benchmarks.
const SAMPLE_EVERY: u64 = 16;

/// The report on one connection.
#[derive(Debug, Serialize)]
pub struct Report {
    /// `listen` or `connect`.
    pub role: &'static str,
    /// True if nothing failed and all expected bytes arrived.
    pub ok: bool,
    /// The failure of the receiving direction, or else of the sending direction.
    pub error: Option<String>,
    /// Address of the peer on the first subflow.
    pub peer: Option<SocketAddr>,
    /// Congestion control of the socket at its start.
    pub congestion: String,
    /// True if the connection is plain TCP, by request or by fallback.
    pub fallback: bool,
    /// Maximum number of subflows at a time.
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
    /// SHA-256 of the payload; `None` with `--fast`.
    pub sha256: Option<String>,
}

/// The result of one direction, and the connection's state while it ran.
#[derive(Default)]
struct Half {
    direction: Direction,
    error: Option<String>,
    subflows: u8,
    fallback: bool,
}

/// Transfers until both directions have ended, and returns the report.
pub fn run(stream: &TcpStream, role: &'static str, args: &PeerArgs) -> Report {
    let peer = stream.peer_addr().ok();
    let congestion = socket::congestion(stream).unwrap_or_default();
    let (sent, received) = thread::scope(|scope| {
        let sending = scope.spawn(|| send(stream, args));
        let received = receive(stream, args);
        let sent = sending.join().unwrap_or_else(|_| Half {
            error: Some("the sending thread failed".to_owned()),
            ..Half::default()
        });
        (sent, received)
    });
    let missed = args
        .expect
        .filter(|expected| *expected != received.direction.bytes)
        .map(|expected| format!("received {} of {expected} bytes", received.direction.bytes));
    let error = received
        .error
        .clone()
        .or(missed)
        .or_else(|| sent.error.clone());
    Report {
        role,
        ok: error.is_none(),
        error,
        peer,
        congestion,
        fallback: sent.fallback || received.fallback,
        subflows: sent.subflows.max(received.subflows),
        sent: sent.direction,
        received: received.direction,
    }
}

/// Sends the number of bytes that `args` asks for, and ends the direction.
fn send(stream: &TcpStream, args: &PeerArgs) -> Half {
    let mut meter = Meter::new(stream, args.fast);
    let mut pattern = Pattern::new(args.seed);
    let mut buf = vec![0; CHUNK];
    if args.fast {
        pattern.fill(&mut buf);
    }
    let mut writer = stream;
    while meter.half.direction.bytes < args.send {
        let left = args.send - meter.half.direction.bytes;
        let n = CHUNK.min(usize::try_from(left).unwrap_or(CHUNK));
        if !args.fast {
            pattern.fill(&mut buf[..n]);
        }
        if let Err(error) = writer.write_all(&buf[..n]) {
            return meter.end(Some(format!("sending: {}", stalled(error))));
        }
        meter.count(&buf[..n]);
    }
    // A side that only receives ends its direction after the peer has ended; see `receive`.
    let error = if args.only_receives() {
        None
    } else {
        stream.shutdown(Shutdown::Write).err()
    };
    meter.end(error.map(|e| format!("ending the sending direction: {e}")))
}

/// Receives up to the end of the direction. Compares with the expected bytes if `args` asks for it.
fn receive(stream: &TcpStream, args: &PeerArgs) -> Half {
    let mut meter = Meter::new(stream, args.fast);
    let mut expected = args.verify.map(Pattern::new);
    let mut buf = vec![0; CHUNK];
    let mut reader = stream;
    loop {
        let n = match reader.read(&mut buf) {
            Ok(0) => {
                let ended = args
                    .only_receives()
                    .then(|| stream.shutdown(Shutdown::Write));
                let error = ended.and_then(Result::err);
                return meter.end(error.map(|e| format!("ending the sending direction: {e}")));
            }
            Ok(n) => n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return meter.end(Some(format!("receiving: {}", stalled(error)))),
        };
        meter.count(&buf[..n]);
        if args.aborts_at(meter.half.direction.bytes) {
            let aborted = socket::reset_on_drop(stream).err();
            return meter.end(aborted.map(|e| format!("aborting: {e}")));
        }
        if let Some(Err(at)) = expected.as_mut().map(|pattern| pattern.check(&buf[..n])) {
            return meter.end(Some(format!("byte {at} differs from the expected byte")));
        }
    }
}

/// Replaces the error of a socket's timeout, which the system calls "would block", by one that names the cause.
fn stalled(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            io::Error::new(io::ErrorKind::TimedOut, "no progress for too long")
        }
        _ => error,
    }
}

/// Counts and hashes the bytes of one direction, and samples the connection's state.
struct Meter<'a> {
    stream: &'a TcpStream,
    start: Instant,
    hash: Option<Sha256>,
    chunks: u64,
    half: Half,
}

impl<'a> Meter<'a> {
    fn new(stream: &'a TcpStream, fast: bool) -> Self {
        let hash = (!fast).then(Sha256::new);
        let half = Half::default();
        Meter {
            stream,
            start: Instant::now(),
            hash,
            chunks: 0,
            half,
        }
    }

    fn count(&mut self, bytes: &[u8]) {
        self.half.direction.bytes += bytes.len() as u64;
        if let Some(hash) = &mut self.hash {
            hash.update(bytes);
        }
        if self.chunks.is_multiple_of(SAMPLE_EVERY) {
            self.sample();
        }
        self.chunks += 1;
    }

    /// Reads the connection's state. A connection that ends loses its subflows one by one, so the maximum is
    /// stored, not the last number.
    fn sample(&mut self) {
        match mptcp_info(self.stream.as_fd()) {
            Ok(Some(info)) => {
                self.half.subflows = self.half.subflows.max(info.subflows);
                self.half.fallback |= info.fallback;
            }
            Ok(None) => self.half.fallback = true,
            Err(_) => {}
        }
    }

    fn end(mut self, error: Option<String>) -> Half {
        self.sample();
        self.half.direction.seconds = self.start.elapsed().as_secs_f64();
        self.half.direction.sha256 = self.hash.map(|hash| hex(&hash.finalize()));
        self.half.error = error;
        self.half
    }
}

/// Returns the bytes as lower-case hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes
        .iter()
        .fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        })
}
