//! A session of several streams over links, through the interface that other programs use: [`braid_linux::session`].

use std::collections::BTreeMap;
use std::thread;

use braid_engine::streams::Read;
use braid_engine::{ConnectOptions, Stack, Urgency};
use braid_linux::driver::{Clock, Driver};
use braid_linux::session::{Peer, Session};
use braid_linux::sockets::Limits;
use braid_linux::sys::become_realtime;
use braid_linux::tun::PacketIo;
use braid_sim::traffic::{Frame, Outbox, Progress, Received, Session as Streams};
use braid_sim::world::START;
use braid_wire::Instant;

use super::error::{Error, run_error};
use super::fixture::ENDPOINT_PRIORITY;
use super::threads::{EndGuard, EndSignal, join_thread};
use crate::session_trace::{SAMPLE_INTERVAL, Samples};

/// Bytes of messages; only their number matters.
static BODY: [u8; 64 << 10] = [0; 64 << 10];

/// The observations of a session at both ends.
#[derive(Debug)]
pub(super) struct Observed {
    /// The samples of client and server.
    pub samples: [Samples; 2],
    /// The frames that arrived, in the order of completion.
    pub messages: Vec<Received>,
    /// Bytes that the server has written.
    pub written: u64,
}

/// One end of a session.
struct End<'a, P> {
    session: Session<P, ()>,
    samples: Samples,
    /// Number of samples of the session.
    count: usize,
    over: &'a EndSignal,
}

/// Sends `streams` from the server to the client, until each end has taken `count` samples.
pub(super) fn run<P: PacketIo + Send>(
    streams: &Streams,
    count: usize,
    (clock, options): (Clock, ConnectOptions),
    [client, server]: [P; 2],
    [mut opening, accepting]: [Stack; 2],
) -> Result<Observed, Error> {
    let over = EndSignal::default();
    let peer = Peer::connect(clock.now(), &mut opening, options)?;
    let end = |device, stack, peer| {
        let driver = Driver::new(clock, device, stack, peer, (), Limits::default())?;
        Ok::<_, Error>(End {
            session: Session::on(driver),
            samples: Samples::default(),
            count,
            over: &over,
        })
    };
    let mut client = end(client, opening, peer)?;
    let mut server = end(server, accepting, Peer::default())?;
    let mut arrivals = by_stream(streams);
    let (sent, received) = thread::scope(|scope| {
        let sending = scope.spawn(|| server.guarded(|end| end.send(streams)));
        let receiving = scope.spawn(|| client.guarded(|end| end.receive(&mut arrivals)));
        (join_thread(sending), join_thread(receiving))
    });
    let ((opened_at, written), ()) = (sent?, received?);
    let mut messages: Vec<Received> = (arrivals.iter())
        .flat_map(|arrivals| arrivals.messages(opened_at))
        .collect();
    messages.sort_by_key(|received| received.complete_at);
    Ok(Observed {
        samples: [client.samples, server.samples],
        messages,
        written,
    })
}

impl<P: PacketIo> End<'_, P> {
    /// Does `work` with real-time priority. If it fails, the other end ends too.
    fn guarded<T>(&mut self, work: impl FnOnce(&mut Self) -> Result<T, Error>) -> Result<T, Error> {
        become_realtime(ENDPOINT_PRIORITY);
        let failed = EndGuard(self.over);
        let done = work(self)?;
        // This end has not failed, so the other may go on.
        std::mem::forget(failed);
        Ok(done)
    }

    /// Waits until the session changes, but at most until `until` or the next sample, and takes the samples that are
    /// due. `read` is the number of bytes read so far. Returns false after the last sample.
    fn wait(&mut self, until: Option<Instant>, read: u64) -> Result<bool, Error> {
        let next_sample = |end: &Self| START + SAMPLE_INTERVAL * (end.samples.len() as u32 + 1);
        let until = until.into_iter().chain([next_sample(self)]).min();
        self.session.wait(until)?;
        self.over.check()?;
        let driver = self.session.driver();
        while next_sample(self) <= driver.clock().now() && self.samples.len() < self.count {
            self.samples.take(read, driver.core.conn(), &driver.stack);
        }
        Ok(self.samples.len() < self.count)
    }

    /// Sends the messages of `streams` in due time. Returns the time of the start and the number of bytes written.
    fn send(&mut self, streams: &Streams) -> Result<(Instant, u64), Error> {
        while !self.session.is_connected() {
            if !self.wait(None, 0)? {
                return Err(run_error("the session does not open"));
            }
        }
        let start = self.session.now();
        let mut numbers = BTreeMap::new();
        for (stream, priority) in priorities(streams) {
            let urgency = Urgency::new(priority).unwrap_or(Urgency::LEAST_URGENT);
            numbers.insert(stream, self.session.open_stream(urgency)?);
        }
        let (mut progress, mut outbox) = (Progress::default(), Outbox::default());
        let mut written = 0;
        loop {
            let elapsed = self.session.now().saturating_since(start);
            streams.make_due(&mut progress, start, elapsed, &mut outbox);
            let n = match outbox.front() {
                Some((stream, left)) => {
                    let bytes = &BODY[..BODY.len().min(left as usize)];
                    self.session.write(numbers[&stream], bytes, None)? as u64
                }
                None => 0,
            };
            outbox.note_written(n);
            written += n;
            let next = streams.next(&progress).map(|at| start + at);
            if n == 0 && !self.wait(next, 0)? {
                return Ok((start, written));
            }
        }
    }

    /// Reads all streams, and notes when their frames arrive.
    fn receive(&mut self, arrivals: &mut [Arrivals<'_>]) -> Result<(), Error> {
        let (mut read, mut buf) = (0, [0; 16 << 10]);
        while self.wait(None, read)? {
            let now = self.session.now();
            for stream in self.session.incoming() {
                while let Read::Bytes(n) = self.session.read(stream, &mut buf)? {
                    read += n as u64;
                    arrivals[stream as usize].take(now, n as u64);
                }
            }
        }
        Ok(())
    }
}

/// Returns the streams of a session in order, with their priorities. The engine numbers them in this order.
fn priorities(streams: &Streams) -> BTreeMap<u16, u8> {
    let frames = streams.frames.iter().map(|f| (f.stream, f.priority));
    let bulk = streams.bulk.iter().map(|b| (b.stream, b.priority));
    frames.chain(bulk).collect()
}

/// The arrivals of a stream's frames.
#[derive(Debug)]
struct Arrivals<'a> {
    frames: Vec<&'a Frame>,
    /// The times of the first and the last byte of each complete frame.
    times: Vec<(Instant, Instant)>,
    /// The time of the first byte of the current frame, and the number of its bytes that have arrived.
    current: (Instant, u64),
}

/// Returns the frames by stream, in the order of the streams' numbers. Bulk streams have none.
fn by_stream(streams: &Streams) -> Vec<Arrivals<'_>> {
    let of_stream = |stream| Arrivals {
        frames: streams
            .frames
            .iter()
            .filter(|f| f.stream == stream)
            .collect(),
        times: Vec::new(),
        current: (START, 0),
    };
    priorities(streams).into_keys().map(of_stream).collect()
}

impl Arrivals<'_> {
    /// Takes `n` bytes that arrived `now`.
    fn take(&mut self, now: Instant, mut n: u64) {
        while let Some(frame) = self.frames.get(self.times.len()).filter(|_| n > 0) {
            let (first, have) = &mut self.current;
            if *have == 0 {
                *first = now;
            }
            let part = n.min(u64::from(frame.len) - *have);
            n -= part;
            *have += part;
            if *have == u64::from(frame.len) {
                self.times.push((*first, now));
                *have = 0;
            }
        }
    }

    /// Returns the complete frames. The session began at `opened_at`.
    fn messages(&self, opened_at: Instant) -> impl Iterator<Item = Received> {
        self.frames
            .iter()
            .zip(&self.times)
            .map(move |(frame, times)| Received {
                message: frame.message(opened_at),
                first_byte_at: times.0,
                complete_at: times.1,
                parts: 1,
            })
    }
}
