//! The session over emulated links in wall-clock time: the engine and its driver at both ends, and the
//! kernel's sockets for background traffic.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::thread;

use braid_engine::buffer::{PacketBuffer, RangeSet};
use braid_engine::{ConnId, Event, PathId, RxMeta, SegmentKind, Stack, Transmit, TransmitInfo};
use braid_linux::driver::{Clock, Driver, Host};
use braid_linux::sockets::Limits;
use braid_linux::sys::become_realtime;
use braid_linux::tun::{PacketIo, Tun};
use braid_proxy::app::{Core, Ctx};
use braid_sim::oracle::Oracle;
use braid_sim::traffic::Stream;
use braid_sim::transfer::client_addr;
use braid_sim::world::START;
use braid_wire::{Instant, tcp};

use super::environment::Environment;
use super::{Packet, SAMPLE_INTERVAL, SessionScenario, SessionTrace, add_second_path, move_client};
use crate::backend::Error;
use crate::backend::fixture::{self, ENDPOINT_PRIORITY, run_error};
use crate::backend::links::{
    add_paths, discard_packets, join_thread, new_eventfd, new_stack, open_devices,
};

impl SessionScenario<'_> {
    /// Runs the session over emulated links, with the random numbers of `seed`. The call takes as long as the
    /// session.
    ///
    /// # Errors
    /// There is no such strategy; namespaces, links or devices cannot be created; or the machine is too busy.
    pub fn run_over_links(&self, seed: u64) -> Result<SessionTrace, Error> {
        self.run_in(&mut Environment::build(self)?, seed)
    }

    /// Runs the session over the emulated links of `environment`.
    pub(super) fn run_in(
        &self,
        environment: &mut Environment<'_>,
        seed: u64,
    ) -> Result<SessionTrace, Error> {
        let (mut client, mut server) = open_devices(&environment.fixture, self.paths.len())?;
        environment.measure_on_time(seed, |seed| {
            // An earlier attempt whose links were late may have left packets in the devices.
            discard_packets(&mut client);
            discard_packets(&mut server);
            self.transfer(seed, &mut client, &mut server)
        })
    }

    fn transfer(
        &self,
        seed: u64,
        client: &mut Tun,
        server: &mut Tun,
    ) -> Result<SessionTrace, Error> {
        let clock = Clock::starting_at(START);
        let config = self.config();
        let stack = |node| new_stack(self.strategy, self.engine.clone(), (seed, node));
        let (mut opening, mut accepting) = (stack(0)?, stack(1)?);
        add_paths(&mut opening, &mut accepting, self.paths.len())?;
        let moves = self.moves.map(|sample| (sample, self.second_path()));
        if moves.is_some() {
            add_second_path(&mut opening, START);
        }
        let paths = self.paths.len();
        let (mut client_tap, mut server_tap) = (
            Tap::new(clock, client, paths),
            Tap::new(clock, server, paths),
        );
        let [reads, sends] = self.streams();
        let samples = self.samples();
        let [asks, answers] = thread::scope(|scope| {
            let serving = scope.spawn(|| {
                let end = End::new(sends);
                run_end(
                    clock,
                    samples,
                    (&mut server_tap, accepting, end),
                    |_, _, _| Ok(()),
                )
            });
            let asking = scope.spawn(|| {
                let mut end = End::new(reads);
                end.moves = moves;
                let open = |now, end: &mut End, stack: &mut Stack| {
                    let conn = stack.connect(now, config.options()).map_err(run_error)?;
                    end.attach(now, conn);
                    Ok(())
                };
                run_end(clock, samples, (&mut client_tap, opening, end), open)
            });
            let asks = join_thread(asking);
            Ok::<_, Error>([asks?, join_thread(serving)?])
        })?;
        let mut trace = SessionTrace {
            read: asks.samples.iter().map(|sample| sample.read).collect(),
            subflows: asks.samples.iter().map(|sample| sample.subflows).collect(),
            acked: answers.samples.iter().map(|sample| sample.acked).collect(),
            packets: match_packets(server_tap.seen, &client_tap.seen),
            ..SessionTrace::default()
        };
        let ends = [&asks, &answers].map(|end| end.open.as_ref());
        trace.end(ends.map(|open| open.map(|(_, stream)| stream)));
        Ok(trace)
    }
}

/// Runs an end until all samples are taken. Calls `start` first, within the end's thread.
fn run_end(
    clock: Clock,
    samples: usize,
    (tap, stack, end): (&mut Tap<'_>, Stack, End),
    start: impl FnOnce(Instant, &mut End, &mut Stack) -> Result<(), Error>,
) -> Result<End, Error> {
    become_realtime(ENDPOINT_PRIORITY);
    let driver = Driver::new(clock, tap, stack, end, NoHostEvents, Limits::default());
    let mut driver = driver.map_err(run_error)?;
    start(clock.now(), &mut driver.core, &mut driver.stack)?;
    // The driver also stops when something is written to this eventfd. Nothing is ever written to it.
    let never = new_eventfd()?;
    let ended = driver.run(never.as_fd(), |driver| {
        driver.core.samples.len() >= samples || fixture::interrupted()
    });
    ended.map_err(run_error)?;
    // An end that was late takes all missed samples at once, which may be more than the session has.
    driver.core.samples.truncate(samples);
    Ok(driver.core)
}

/// A host without event sources of its own: an end reacts to packets and timeouts only.
#[derive(Debug)]
struct NoHostEvents;

impl Host<End> for NoHostEvents {}

/// The state of an end at the time of a sample.
#[derive(Debug, Clone, Copy, Default)]
struct Sample {
    read: u64,
    acked: u64,
    subflows: u32,
}

/// One end of the session.
#[derive(Debug)]
struct End {
    /// The stream for the next connection; `None` after a connection took it.
    waiting: Option<Stream>,
    /// The connection and its stream.
    open: Option<(ConnId, Stream)>,
    samples: Vec<Sample>,
    /// The time of the next sample.
    next_sample: Instant,
    /// The number of the sample after which the end changes its address, and the path of the new address.
    moves: Option<(usize, PathId)>,
    /// Checks the bytes that the stream reads. It sees no packets, because the driver has no tap.
    oracle: Oracle,
}

impl End {
    fn new(stream: Stream) -> Self {
        End {
            waiting: Some(stream),
            open: None,
            samples: Vec::new(),
            next_sample: START + SAMPLE_INTERVAL,
            moves: None,
            oracle: Oracle::new(braid_engine::Config::default()),
        }
    }

    /// Gives the stream to the connection.
    fn attach(&mut self, now: Instant, conn: ConnId) {
        if let Some(mut stream) = self.waiting.take() {
            stream.open(now);
            self.open = Some((conn, stream));
        }
    }

    fn pump(&mut self, now: Instant, stack: &mut Stack) {
        if let Some((conn, stream)) = &mut self.open {
            stream.pump(now, *conn, stack, &mut self.oracle);
            if let Some(violation) = self.oracle.take().first() {
                panic!("{violation}");
            }
        }
    }

    fn sample(&self, stack: &Stack) -> Sample {
        let previous = self.samples.last().copied().unwrap_or_default();
        let Some((conn, stream)) = &self.open else {
            return previous;
        };
        let subflows = stack.subflows(*conn).into_iter();
        let established = subflows.filter(|s| s.established);
        Sample {
            read: stream.received,
            acked: stack
                .conn_stats(*conn)
                .map_or(previous.acked, |s| s.snd_una),
            subflows: established.fold(0, |bits, s| bits | 1 << s.path.0),
        }
    }
}

impl Core for End {
    fn on_engine_event(&mut self, ctx: &mut Ctx<'_>, event: Event) {
        if let Event::Accepted { conn, .. } = event {
            self.attach(ctx.now, conn);
        }
        self.pump(ctx.now, ctx.stack);
    }

    fn next_timeout(&self) -> Option<Instant> {
        let stream = self.open.as_ref().and_then(|(_, s)| s.next_timeout());
        stream.into_iter().chain([self.next_sample]).min()
    }

    fn handle_timeout(&mut self, ctx: &mut Ctx<'_>) {
        self.pump(ctx.now, ctx.stack);
        while ctx.now >= self.next_sample {
            let sample = self.sample(ctx.stack);
            self.samples.push(sample);
            self.next_sample += SAMPLE_INTERVAL;
            let due = |(after, _): &(usize, PathId)| *after == self.samples.len();
            if let Some((_, to)) = self.moves.filter(due) {
                move_client(ctx.stack, ctx.now, to);
            }
        }
    }
}

/// A segment with payload, as an end sent or received it.
#[derive(Debug, Clone, Copy)]
struct SeenSegment {
    path: usize,
    /// Sequence number of the first byte in the TCP header.
    seq: u32,
    len: u64,
    at: Instant,
    /// For a sent segment, its data sequence number, and true if its bytes were not sent before.
    dsn_and_new: Option<(u64, bool)>,
}

/// A device that records the segments with payload to the client.
struct Tap<'a> {
    clock: Clock,
    device: &'a mut Tun,
    /// The client's addresses.
    addresses: Vec<IpAddr>,
    seen: Vec<SeenSegment>,
}

impl<'a> Tap<'a> {
    fn new(clock: Clock, device: &'a mut Tun, paths: usize) -> Self {
        Tap {
            clock,
            device,
            addresses: (0..paths).map(|n| client_addr(n).into()).collect(),
            seen: Vec::new(),
        }
    }
}

/// Records the segments of a packet to the client with `len` bytes of payload. A super-segment counts as the
/// segments of `gso_size` bytes into which it is cut.
fn record_segments(
    seen: &mut Vec<SeenSegment>,
    addresses: &[IpAddr],
    (header, len, gso_size): (&[u8], u64, u16),
    (at, info): (Instant, Option<&TransmitInfo>),
) {
    let Some((to, segment)) = parse_ipv4_tcp(header) else {
        return;
    };
    let Some(path) = addresses.iter().position(|a| *a == to) else {
        return;
    };
    let step = match gso_size {
        0 => len.max(1),
        size => u64::from(size),
    };
    for offset in (0..len).step_by(step as usize) {
        seen.push(SeenSegment {
            path,
            seq: segment.seq().0.wrapping_add(offset as u32),
            len: step.min(len - offset),
            at,
            dsn_and_new: info.map(|i| (i.data.start + offset, i.kind == SegmentKind::New)),
        });
    }
}

impl PacketIo for Tap<'_> {
    fn fd(&self) -> BorrowedFd<'_> {
        self.device.fd()
    }

    fn send(&mut self, transmit: &Transmit<'_>) -> io::Result<()> {
        let stream = transmit.info.as_ref().filter(|info| !info.data.is_empty());
        if let Some(info) = stream {
            let len = info.data.end - info.data.start;
            let packet = (transmit.header, len, transmit.gso_size);
            let event = (self.clock.now(), Some(info));
            record_segments(&mut self.seen, &self.addresses, packet, event);
        }
        self.device.send(transmit)
    }

    fn recv(&mut self) -> io::Result<Option<(&mut PacketBuffer, RxMeta)>> {
        let received = self.device.recv()?;
        if let Some((packet, meta)) = &received {
            let at = self.clock.now();
            let [head, rest] = packet.parts();
            let tcp = parse_ipv4_tcp(head);
            let len = tcp.map_or(0, |(_, tcp)| (tcp.payload().len() + rest.len()) as u64);
            record_segments(
                &mut self.seen,
                &self.addresses,
                (head, len, meta.gso_size),
                (at, None),
            );
        }
        Ok(received)
    }
}

/// Returns the destination and the TCP segment of an IPv4 packet. The packet may lack its payload: the payload
/// of a super-segment lies elsewhere.
fn parse_ipv4_tcp(packet: &[u8]) -> Option<(IpAddr, tcp::Packet<&[u8]>)> {
    const TCP: u8 = 6;
    let first = *packet.first()?;
    let to: [u8; 4] = packet.get(16..20)?.try_into().ok()?;
    let segment = packet.get(usize::from(first & 0xf) * 4..)?;
    if first >> 4 != 4 || packet.get(9) != Some(&TCP) {
        return None;
    }
    Some((to.into(), tcp::Packet::new(segment).ok()?))
}

/// Returns the sent segments, each with its arrival if it arrived. A segment and its retransmissions have
/// the same sequence number. An arrival is therefore matched with one of them: the latest that was sent
/// before the arrival and has no arrival yet.
fn match_packets(sent: Vec<SeenSegment>, arrived: &[SeenSegment]) -> Vec<Packet> {
    let mut packets = Vec::with_capacity(sent.len());
    let mut by_seq: BTreeMap<(usize, u32), Vec<usize>> = BTreeMap::new();
    for (n, one) in sent.iter().enumerate() {
        let (dsn, new) = one.dsn_and_new.unwrap_or_default();
        by_seq.entry((one.path, one.seq)).or_default().push(n);
        packets.push(Packet {
            path: one.path,
            new,
            dsn,
            len: one.len,
            sent: super::seconds(one.at),
            arrived: None,
            fresh: 0,
        });
    }
    let mut received = RangeSet::new();
    for one in arrived {
        let key = (one.path, one.seq);
        let candidates = by_seq.get(&key).map_or(&[][..], Vec::as_slice);
        let fits = |n: &&usize| sent[**n].at <= one.at && packets[**n].arrived.is_none();
        let Some(n) = candidates.iter().rev().find(fits) else {
            continue;
        };
        let packet = &mut packets[*n];
        packet.arrived = Some(super::seconds(one.at));
        packet.fresh = received.insert(packet.dsn..packet.dsn + packet.len);
    }
    packets
}
