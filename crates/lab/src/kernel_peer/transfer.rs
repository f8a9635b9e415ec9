//! One connection of the kernel peer. It sends and receives at the same time, and reports the result.

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
    /// Address of the peer on the first subflow.
    pub peer: Option<SocketAddr>,
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
    /// SHA-256 of the payload; none with `--fast`.
    pub sha256: Option<String>,
}

/// The result of one direction, and the connection's state as observed from that direction.
#[derive(Default)]
struct Half {
    transferred: Direction,
    error: Option<String>,
    subflows: u8,
    fallback: bool,
}

/// Runs the connection to the end of both directions.
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
        .filter(|expected| *expected != received.transferred.bytes)
        .map(|expected| {
            format!(
                "received {} of {expected} bytes",
                received.transferred.bytes
            )
        });
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
        sent: sent.transferred,
        received: received.transferred,
    }
}

/// Sends the bytes that `args` ask for, and then closes the direction, unless this side only receives.
fn send(stream: &TcpStream, args: &PeerArgs) -> Half {
    let mut meter = Meter::new(stream, args.fast);
    let mut pattern = Pattern::new(args.seed);
    let mut buf = vec![0; CHUNK_LEN];
    // A fast transfer sends this block again and again.
    if args.fast {
        pattern.fill(&mut buf);
    }
    let mut writer = stream;
    while meter.half.transferred.bytes < args.send {
        let n = CHUNK_LEN
            .min(usize::try_from(args.send - meter.half.transferred.bytes).unwrap_or(CHUNK_LEN));
        if !args.fast {
            pattern.fill(&mut buf[..n]);
        }
        if let Err(error) = writer.write_all(&buf[..n]) {
            return meter.end(Some(format!("sending: {}", name_stall(error))));
        }
        meter.count(&buf[..n]);
    }
    let error = if args.only_receives() {
        None
    } else {
        stream.shutdown(Shutdown::Write).err()
    };
    meter.end(error.map(|e| format!("ending the sending direction: {e}")))
}

/// Receives to the end of the direction, and compares the bytes with the expected ones if `args` ask for it.
fn receive(stream: &TcpStream, args: &PeerArgs) -> Half {
    let mut meter = Meter::new(stream, args.fast);
    let mut expected = args.verify.map(Pattern::new);
    let mut buf = vec![0; CHUNK_LEN];
    let mut reader = stream;
    loop {
        let n = match reader.read(&mut buf) {
            Ok(0) => {
                // A side that only receives closes its direction now, after the peer.
                let ended = args
                    .only_receives()
                    .then(|| stream.shutdown(Shutdown::Write));
                let error = ended.and_then(Result::err);
                return meter.end(error.map(|e| format!("ending the sending direction: {e}")));
            }
            Ok(n) => n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return meter.end(Some(format!("receiving: {}", name_stall(error)))),
        };
        meter.count(&buf[..n]);
        if args.aborts_at(meter.half.transferred.bytes) {
            let aborted = socket::reset_on_drop(stream).err();
            return meter.end(aborted.map(|e| format!("aborting: {e}")));
        }
        if let Some(Err(at)) = expected.as_mut().map(|pattern| pattern.check(&buf[..n])) {
            return meter.end(Some(format!("byte {at} differs from what was expected")));
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

/// A counter and hash of one direction, which also reads the connection's state now and then.
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
        self.half.transferred.bytes += bytes.len() as u64;
        if let Some(hash) = &mut self.hash {
            hash.update(bytes);
        }
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
                self.half.subflows = self.half.subflows.max(info.subflows);
                self.half.fallback |= info.fallback;
            }
            Ok(None) => self.half.fallback = true,
            // A failed reading is left out; it says nothing about the transfer.
            Err(_) => {}
        }
    }

    fn end(mut self, error: Option<String>) -> Half {
        self.sample();
        self.half.transferred.seconds = self.start.elapsed().as_secs_f64();
        self.half.transferred.sha256 = self.hash.map(|hash| hex(&hash.finalize()));
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
