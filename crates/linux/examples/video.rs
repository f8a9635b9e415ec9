//! Two programs that exchange three streams in one session, over all links between their hosts: the I frames of a
//! video, its P and B frames, and bulk data that takes what the frames leave.
//!
//! The receiver has the address 198.51.100.1. The sender reaches it over the interfaces `wan1` and `wan2`, each with
//! its own gateway in the routing table. Both need root, because they create a TUN device.
//!
//! ```sh
//! cargo build -p braid-linux --example video
//! target/debug/examples/video receive 198.51.100.1:7000            # on one host
//! target/debug/examples/video send 198.51.100.1:7000 wan1 wan2     # on the other
//! ```

use std::collections::{BTreeMap, VecDeque};
use std::env;
use std::error::Error;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use braid_engine::Urgency;
use braid_engine::streams::Read;
use braid_linux::run::{AppConfig, Role, Signals};
use braid_linux::session::{LinkSession, Session};
use braid_proxy::config::LinkConfig;
use braid_wire::Instant;

type Outcome<T> = Result<T, Box<dyn Error>>;

/// The urgencies of I frames, of P and B frames, and of bulk data. The first is important for the strategies `po` and
/// `adaptive`: it goes on the best path.
const URGENCIES: [u8; 3] = [1, 3, 5];
/// Lengths of I, P and B frames: 4 Mbit/s with [`GROUP`].
const FRAME_LENS: [usize; 3] = [62_608, 31_304, 10_434];
const GROUP: &[u8; 12] = b"IBBPBBPBBPBB";
const FRAME_INTERVAL: Duration = Duration::from_millis(40);
const BULK_LEN: usize = 16_000;
/// Before each frame: its length (4 bytes) and the sender's time in nanoseconds (8 bytes).
const HEADER_LEN: usize = 12;
/// Time for what was written to arrive.
const CLOSE_TIME: Duration = Duration::from_secs(10);

fn main() -> Outcome<()> {
    // Without this, a signal would end the process before the session is dropped, which removes its device and rules.
    let signals = Signals::take_over()?;
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments.as_slice() {
        ["receive", address] => {
            let received = receive(address.parse()?, signals.as_fd(), || println!("ready"))?;
            for (stream, frames) in received {
                let (n, mean, max) = (
                    frames.delays.len(),
                    frames.mean(),
                    frames.delays.iter().max(),
                );
                println!(
                    "stream {stream}: {n} frames, later than the earliest: mean {mean:?}, max {max:?}"
                );
            }
            Ok(())
        }
        ["send", address, links @ ..] if !links.is_empty() => send(
            address.parse()?,
            links,
            signals.as_fd(),
            Duration::from_secs(10),
        ),
        _ => Err("usage: video receive ADDRESS:PORT | video send ADDRESS:PORT INTERFACE…".into()),
    }
}

/// Sends frames for `span` to `server` over `links`, and bulk data beside them. Ends early if `stop` is readable.
pub fn send(
    server: SocketAddr,
    links: &[&str],
    stop: BorrowedFd<'_>,
    span: Duration,
) -> Outcome<()> {
    let config = AppConfig::new(Role::Connect {
        links: links.iter().map(|link| LinkConfig::new(*link)).collect(),
        servers: vec![server],
    });
    let mut session = Session::open(&config)?;
    let mut streams = Vec::new();
    for level in URGENCIES {
        streams.push(session.open_stream(Urgency::new(level).ok_or("a level from 0 to 7")?)?);
    }
    // Frames that the send buffer has no room for yet, by stream.
    let mut waiting = [const { VecDeque::new() }; 3];
    let start = session.now();
    let mut frame_at = start;
    for kind in GROUP.iter().cycle() {
        while session.now() < frame_at {
            write(&mut session, &streams, &mut waiting)?;
            if session.wait_or_stop(stop, Some(frame_at))? {
                return Ok(());
            }
            if let Some(reason) = session.closed() {
                return Err(format!("the session ended early: {reason:?}").into());
            }
        }
        if frame_at >= start + span {
            break;
        }
        let (n, len) = match kind {
            b'I' => (0, FRAME_LENS[0]),
            b'P' => (1, FRAME_LENS[1]),
            _ => (1, FRAME_LENS[2]),
        };
        waiting[n].push_back(frame(frame_at, len));
        frame_at += FRAME_INTERVAL;
    }
    waiting[2].clear();
    for (stream, waiting) in streams.into_iter().zip(&mut waiting) {
        while !write_frames(&mut session, stream, waiting)? || !session.finish(stream)? {
            if session.wait_or_stop(stop, None)? {
                return Ok(());
            }
        }
    }
    let end = session.now() + CLOSE_TIME;
    session.close(end)?.ok_or("not everything has arrived")?;
    Ok(())
}

fn frame(at: Instant, len: usize) -> Vec<u8> {
    let mut frame = Vec::with_capacity(HEADER_LEN + len);
    frame.extend((len as u32).to_be_bytes());
    frame.extend(at.as_nanos().to_be_bytes());
    frame.resize(HEADER_LEN + len, 0);
    frame
}

/// Writes the waiting frames, and then bulk data, until the send buffer is full.
fn write(
    session: &mut LinkSession,
    streams: &[u32],
    waiting: &mut [VecDeque<Vec<u8>>; 3],
) -> Outcome<()> {
    for (stream, waiting) in streams.iter().zip(&mut *waiting) {
        if !write_frames(session, *stream, waiting)? {
            return Ok(());
        }
    }
    loop {
        waiting[2].push_back(frame(session.now(), BULK_LEN));
        if !write_frames(session, streams[2], &mut waiting[2])? {
            return Ok(());
        }
    }
}

/// Writes the waiting frames of a stream. Returns false if some are left.
fn write_frames(
    session: &mut LinkSession,
    stream: u32,
    waiting: &mut VecDeque<Vec<u8>>,
) -> Outcome<bool> {
    while let Some(frame) = waiting.front_mut() {
        let written = session.write(stream, frame, None)?;
        frame.drain(..written);
        if !frame.is_empty() {
            return Ok(false);
        }
        waiting.pop_front();
    }
    Ok(true)
}

/// The frames received on a stream.
#[derive(Debug, Default)]
pub struct Frames {
    /// The beginning of the next frame.
    begun: Vec<u8>,
    /// The delay of each frame beyond the smallest delay of all. The clocks of the hosts differ, so the smallest is
    /// not known.
    pub delays: Vec<Duration>,
}

impl Frames {
    /// Takes bytes that arrived `now`, and adds the delays of complete frames.
    fn take(&mut self, now: Instant, bytes: &[u8]) {
        self.begun.extend_from_slice(bytes);
        while let Some((header, rest)) = self.begun.split_first_chunk::<HEADER_LEN>() {
            let [l0, l1, l2, l3, at @ ..] = *header;
            let len = u32::from_be_bytes([l0, l1, l2, l3]) as usize;
            if rest.len() < len {
                return;
            }
            // The difference wraps, because the clocks differ.
            let delay = now.as_nanos().wrapping_sub(u64::from_be_bytes(at));
            self.delays.push(Duration::from_nanos(delay));
            self.begun.drain(..HEADER_LEN + len);
        }
    }

    /// Returns the mean delay.
    pub fn mean(&self) -> Duration {
        let n = u32::try_from(self.delays.len()).unwrap_or(u32::MAX);
        self.delays.iter().sum::<Duration>() / n.max(1)
    }
}

/// Receives the streams of one sender at `address`, an address of this host. Calls `on_ready` once senders can
/// connect. Ends early if `stop` is readable. Returns the streams by number.
pub fn receive(
    address: SocketAddr,
    stop: BorrowedFd<'_>,
    on_ready: impl FnOnce(),
) -> Outcome<BTreeMap<u32, Frames>> {
    let mut session = Session::open(&AppConfig::new(Role::Listen {
        addresses: vec![address.ip()],
        port: address.port(),
        anywhere: true,
        announce: false,
    }))?;
    on_ready();
    let mut received: BTreeMap<u32, Frames> = BTreeMap::new();
    let mut buf = [0; 16 << 10];
    while !session.has_ended() && !session.wait_or_stop(stop, None)? {
        let now = session.now();
        for stream in session.incoming() {
            while let Read::Bytes(n) = session.read(stream, &mut buf)? {
                received.entry(stream).or_default().take(now, &buf[..n]);
            }
        }
        if let Some(reason) = session.closed() {
            return Err(format!("the session ended early: {reason:?}").into());
        }
    }
    let end = session.now() + CLOSE_TIME;
    session.close(end)?;
    let smallest = received.values().flat_map(|f| &f.delays).min().copied();
    for delay in received.values_mut().flat_map(|frames| &mut frames.delays) {
        *delay -= smallest.unwrap_or_default();
    }
    Ok(received)
}
