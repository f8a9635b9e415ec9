//! The state of a log, and the functions by which hosts and links report to it.

use core::net::SocketAddr;
use core::time::Duration;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::{self, BufWriter, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use braid_engine::{ConnId, Event, SegmentKind, Stack, SubflowId, Transmit};
use braid_links::DropCause;
use braid_wire::{Instant, ip, tcp};

use super::record::{Ack, EngineEvent, Header, Kind, LinkEnds, Record, Segment};
use super::segments::{End, Segments};
use crate::node::{LinkId, NodeId, Packet};
use crate::tap::{PacketEvent, Tap};
use crate::world::World;

/// The interval between samples. 10 ms is a guess: short against round-trip times, but not too many lines.
pub const SAMPLE_INTERVAL: Duration = Duration::from_millis(10);

/// A log that is written while the world runs.
#[derive(Clone)]
pub struct Log(Arc<Mutex<State>>);

pub(super) struct State {
    pub lines: Lines,
    pub segments: Segments,
    /// The open connections of the logged hosts, each with the name of its host.
    pub live: BTreeMap<End, &'static str>,
    /// The state of the current receiver before its engine takes the packet. A world runs one node at a time, so
    /// the log has to keep the state of one receiver only.
    before: BeforeReceive,
}

/// A consumer of a log's records.
pub trait Reader: Send {
    /// Takes the next record.
    ///
    /// # Errors
    /// Fails if the reader cannot take the record. The log then stops, and [`Log::finish`] returns the error.
    fn take(&mut self, record: &Record<'_>) -> io::Result<()>;

    /// Ends the log: no record follows.
    ///
    /// # Errors
    /// Fails with an error that [`Log::finish`] returns.
    fn finish(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes each record as a line.
impl Reader for BufWriter<Box<dyn Write + Send>> {
    fn take(&mut self, record: &Record<'_>) -> io::Result<()> {
        serde_json::to_writer(&mut *self, record)?;
        self.write_all(b"\n")
    }

    fn finish(&mut self) -> io::Result<()> {
        self.flush()
    }
}

/// The output of a log.
pub(super) struct Lines {
    out: Box<dyn Reader>,
    /// The first error. After an error no record is written.
    error: Option<io::Error>,
}

/// The part of a receiving host's state that a packet may change.
#[derive(Default)]
struct BeforeReceive {
    /// The subflow of the packet.
    subflow: Option<(ConnId, SubflowId)>,
    /// Payload bytes in flight on the subflow.
    in_flight: u64,
    /// Bytes that the connection has received, in any order.
    received: u64,
    /// The number of packets that the host has found corrupted.
    corrupted: u64,
}

impl Log {
    /// Makes a log of `hosts`, each with its name. No host or link reports to the log yet.
    pub(super) fn new(world: &World, hosts: &[(NodeId, &str)], out: Box<dyn Reader>) -> Log {
        let mut lines = Lines { out, error: None };
        lines.write(&Record::Header(header(world, hosts)));
        Log(Arc::new(Mutex::new(State {
            lines,
            segments: Segments::default(),
            live: BTreeMap::new(),
            before: BeforeReceive::default(),
        })))
    }

    /// Writes the segments whose fates are not final, and completes the output.
    ///
    /// # Errors
    /// Fails with the first error of the output.
    pub fn finish(&self) -> io::Result<()> {
        let mut state = self.state();
        state.segments.close();
        state.write_finalized();
        match state.lines.error.take() {
            Some(error) => Err(error),
            None => state.lines.out.finish(),
        }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Tap for Log {
    fn on_packet(&mut self, at: Instant, link: LinkId, event: PacketEvent, packet: &Packet) {
        let mut state = self.state();
        match event {
            PacketEvent::Sent | PacketEvent::Duplicated => state.segments.on_link(packet.id, link),
            PacketEvent::Delivered { .. } => state.segments.off_link(packet.id),
            PacketEvent::Dropped { cause, .. } => {
                let cause = match cause {
                    DropCause::Queue => "queue",
                    DropCause::CoDel => "codel",
                    DropCause::Loss => "loss",
                    DropCause::Down => "down",
                };
                state.segments.off_link(packet.id);
                state.segments.on_lost(packet.id, at, Some(link), cause);
            }
        }
    }
}

/// The handle by which a [`Host`](crate::Host) reports to its log.
pub(crate) struct HostLog {
    pub log: Log,
    pub node: NodeId,
    pub name: &'static str,
}

impl HostLog {
    /// Records that the host sends `transmit` as packets whose numbers begin at `first`.
    pub fn on_sent(&self, now: Instant, transmit: &Transmit<'_>, first: u64) {
        let Some(info) = &transmit.info else { return };
        let kind = match info.kind {
            SegmentKind::New => Kind::New,
            SegmentKind::Copy => Kind::Copy,
            SegmentKind::Retransmission => Kind::Retransmission,
            _ => return,
        };
        let total = info.data.end - info.data.start;
        let size = match transmit.gso_size {
            0 => total.max(1),
            size => u64::from(size),
        };
        let mut expected = info.expected_arrival;
        let mut state = self.log.state();
        for (id, done) in (first..).zip((0..total).step_by(size as usize)) {
            state.segments.on_sent(Segment {
                id,
                host: self.name,
                conn: info.conn.as_u64(),
                subflow: info.subflow.0,
                path: transmit.path.0,
                kind,
                dsn: info.data.start + done,
                ssn: info.subflow_seq + done,
                len: size.min(total - done),
                sent_ns: now.as_nanos(),
                expected_ns: expected.take().map(Instant::as_nanos),
                ..Segment::default()
            });
        }
        state.write_finalized();
    }

    /// Keeps the state of the engine before the engine takes `packet`.
    pub fn before_receive(&self, stack: &Stack, packet: &Packet) {
        let subflow = subflow_of(stack, packet);
        let stats = subflow.and_then(|(conn, subflow)| stack.subflow(conn, subflow));
        self.log.state().before = BeforeReceive {
            subflow,
            in_flight: stats.map_or(0, |stats| stats.in_flight),
            received: subflow.map_or(0, |(conn, _)| received(stack, conn)),
            corrupted: corrupted(stack),
        };
    }

    /// Records the changes that `packet` has made to the engine's state.
    pub fn after_receive(&self, now: Instant, stack: &Stack, packet: &Packet) {
        let state = &mut *self.log.state();
        let before = &state.before;
        // The engine does not return its verdict on a packet. But its counter rises with each corrupted one.
        if corrupted(stack) > before.corrupted {
            state.segments.on_lost(packet.id, now, None, "corruption");
            return;
        }
        // The first data of a connection may have created the subflow.
        let subflow = before.subflow.or_else(|| subflow_of(stack, packet));
        let conn = subflow.map(|(conn, _)| conn);
        let stats = conn.and_then(|conn| stack.conn_stats(conn));
        let received = conn.map_or(0, |conn| received(stack, conn));
        let fresh = received.saturating_sub(before.received);
        if before.in_flight > 0
            && let Some((conn, subflow)) = subflow
            && let Some(stats) = stack.subflow(conn, subflow)
        {
            state.lines.write(&Record::Ack(Ack {
                at_ns: now.as_nanos(),
                host: self.name,
                conn: conn.as_u64(),
                subflow: stats.id.0,
                path: stats.path.0,
                una: stats.snd_una,
                cwnd: stats.cwnd,
                // The engine's initial threshold is the largest number: there is no threshold yet.
                ssthresh: Some(stats.ssthresh).filter(|ssthresh| *ssthresh != u64::MAX),
                srtt_ns: stats.srtt.as_nanos() as u64,
                rto_ns: stats.rto.as_nanos() as u64,
                in_flight: stats.in_flight,
            }));
        }
        let rcv_nxt = stats.map_or(0, |stats| stats.rcv_nxt);
        let host = (self.node, self.name);
        state
            .segments
            .on_arrived(packet.id, now, host, conn, (fresh, rcv_nxt));
        state.write_finalized();
    }

    /// Writes the engine's `event`.
    pub fn on_event(&self, now: Instant, event: &Event) {
        let state = &mut *self.log.state();
        let conn = event.conn();
        let end = (self.node, conn);
        let (event, subflow_and_path, reason) = match *event {
            Event::Accepted { .. } => ("accepted", None, None),
            Event::Connected { .. } => ("connected", None, None),
            Event::FellBack { cause, .. } => ("fell_back", None, Some(format!("{cause:?}"))),
            Event::SubflowEstablished { subflow, path, .. } => {
                ("subflow_established", Some((subflow, path)), None)
            }
            Event::SubflowClosed {
                subflow,
                path,
                reason,
                ..
            } => {
                let reason = Some(format!("{reason:?}"));
                ("subflow_closed", Some((subflow, path)), reason)
            }
            Event::Closed { reason, .. } => ("closed", None, Some(format!("{reason:?}"))),
            _ => return,
        };
        if matches!(event, "accepted" | "connected") {
            state.live.insert(end, self.name);
        } else if event == "closed" {
            state.live.remove(&end);
            state.segments.on_closed(end);
            state.write_finalized();
        }
        state.lines.write(&Record::Event(EngineEvent {
            at_ns: now.as_nanos(),
            host: self.name,
            conn: conn.as_u64(),
            event,
            subflow: subflow_and_path.map(|(subflow, _)| subflow.0),
            path: subflow_and_path.map(|(_, path)| path.0),
            reason,
        }));
    }
}

/// Returns the subflow of a received packet.
fn subflow_of(stack: &Stack, packet: &Packet) -> Option<(ConnId, SubflowId)> {
    let (ip, segment) = ip::Repr::parse(&packet.bytes).ok()?;
    let tcp = tcp::Packet::new(segment).ok()?;
    let local = SocketAddr::new(ip.dst, tcp.dst_port());
    let remote = SocketAddr::new(ip.src, tcp.src_port());
    let subflow = stack.subflow_between(local, remote);
    subflow.filter(|_| ip.protocol == ip::PROTO_TCP)
}

/// Returns the number of received packets with a wrong IP or TCP checksum or a malformed header.
fn corrupted(stack: &Stack) -> u64 {
    let stats = stack.stats();
    stats.malformed + stats.bad_checksum
}

/// Returns the number of bytes of its stream that a connection has received, in any order.
fn received(stack: &Stack, conn: ConnId) -> u64 {
    let stats = stack.conn_stats(conn);
    stats.map_or(0, |stats| stats.rcv_nxt + stats.out_of_order)
}

/// Returns the first record of a log.
fn header<'a>(world: &World, hosts: &[(NodeId, &'a str)]) -> Header<'a> {
    let name = |node: NodeId| {
        let known = hosts.iter().find(|(id, _)| *id == node);
        let unknown = || Cow::Owned(format!("node {}", node.0));
        known.map_or_else(unknown, |(_, name)| Cow::Borrowed(*name))
    };
    let ends = |link| {
        let (from, to) = world.ends(link);
        let [from, to] = [from, to].map(name);
        LinkEnds { from, to }
    };
    Header {
        version: 1,
        seed: world.seed(),
        start_ns: world.now().as_nanos(),
        sample_ns: SAMPLE_INTERVAL.as_nanos() as u64,
        hosts: hosts.iter().map(|(_, name)| *name).collect(),
        links: world.links().map(ends).collect(),
    }
}

impl State {
    pub fn write_finalized(&mut self) {
        for segment in self.segments.finalized() {
            self.lines.write(&Record::Segment(segment));
        }
    }
}

impl Lines {
    pub fn write(&mut self, record: &Record<'_>) {
        if self.error.is_none() {
            self.error = self.out.take(record).err();
        }
    }
}
