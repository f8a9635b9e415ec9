//! Oracles, which check invariants of the protocol while a world runs.
//!
//! An [`Oracle`] observes one engine. It reads the packets that the engine receives and sends, and builds its own
//! record from them: sequences and mappings, acknowledgements, windows, keys. It compares this record with the
//! packets that the engine sends, the bytes that the engine delivers, and the statistics that the engine reports.
//! The oracle takes nothing else from the engine, so that a fault in the engine's bookkeeping is visible. [`Rule`]
//! lists the checks.
//!
//! A node takes the violations from its oracle ([`Oracle::take`]) and reports them to its world
//! ([`Turn::report`](crate::node::Turn::report)), which panics or keeps them.

mod conn;
mod flow;
mod periodic;
mod segment;
#[cfg(test)]
mod tests;
mod violation;

use core::net::{IpAddr, SocketAddr};
use core::ops::Range;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use braid_engine::{Config, ConnId, Event, SegmentKind, Stack, SubflowId, Transmit, TransmitInfo};
use braid_wire::Instant;
use braid_wire::tcp::Flags;

use self::conn::Conn;
use self::flow::Flow;
use self::periodic::{MAX_LINGER, TimerCheck, check_bounds, check_life};
use self::segment::Segment;
use self::violation::ViolationLog;
pub use self::violation::{Rule, Violation};

/// The addresses and ports of a subflow, as numbers that are fast to compare.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Tuple {
    ports: (u16, u16),
    local: u128,
    remote: u128,
}

impl Tuple {
    fn new(local: SocketAddr, remote: SocketAddr) -> Self {
        let number = |addr: SocketAddr| match addr.ip() {
            IpAddr::V4(addr) => addr.to_ipv6_mapped().to_bits(),
            IpAddr::V6(addr) => addr.to_bits(),
        };
        Tuple {
            ports: (local.port(), remote.port()),
            local: number(local),
            remote: number(remote),
        }
    }
}

/// An observer of one engine. The node that owns the engine calls in this order:
///
/// 1. [`on_received`](Self::on_received) after [`Stack::receive`];
/// 2. [`on_event`](Self::on_event) for each event of [`Stack::poll_event`];
/// 3. [`on_read`](Self::on_read), [`on_content`](Self::on_content) and [`on_end`](Self::on_end) when the
///    application reads, if the application knows the bytes that its peer sends;
/// 4. [`on_transmit`](Self::on_transmit) for each packet of [`Stack::poll_transmit`], and
///    [`check_sent`](Self::check_sent) after the packet has been passed on;
/// 5. [`end_turn`](Self::end_turn) when the engine has no more events and packets;
/// 6. [`take`](Self::take).
#[derive(Debug, Default)]
pub struct Oracle {
    config: Config,
    log: ViolationLog,
    flows: BTreeMap<Tuple, Flow>,
    conns: BTreeMap<ConnId, Conn>,
    /// The closed connections, each with the time at which the engine reported the close.
    ended: VecDeque<(Instant, ConnId)>,
    /// The packet that [`check_sent`](Oracle::check_sent) will check. The packet borrows the engine, so the oracle
    /// can read statistics only after the packet is released.
    sent: Option<Sent>,
    timers: TimerCheck,
    /// The number of packets that the engine has found corrupted or malformed.
    damaged: u64,
}

/// A packet with payload that the engine has sent.
#[derive(Debug)]
struct Sent {
    conn: ConnId,
    subflow: SubflowId,
    tuple: Tuple,
    kind: SegmentKind,
    /// True if the payload is one segment, false if it is a super-segment.
    single: bool,
}

impl Oracle {
    /// Makes an oracle for an engine with these settings.
    pub fn new(config: Config) -> Self {
        Oracle {
            config,
            ..Oracle::default()
        }
    }

    /// Returns the first violations since the last call, in order. Later violations are often consequences of the
    /// first.
    pub fn take(&mut self) -> Vec<Violation> {
        self.log.take()
    }

    /// Records that `stack` has received `packet`.
    pub fn on_received(&mut self, now: Instant, packet: &[u8], stack: &Stack) {
        self.timers.progressed = true;
        let stats = stack.stats();
        // The engine has dropped this packet, so it must not count as received.
        let damaged = stats.bad_checksum + stats.malformed;
        if core::mem::replace(&mut self.damaged, damaged) != damaged {
            return;
        }
        Segment::of(packet, None, |segment| {
            self.on_segment_received(now, segment, stack)
        });
    }

    fn on_segment_received(&mut self, now: Instant, segment: &Segment<'_>, stack: &Stack) {
        let tuple = Tuple::new(segment.dst, segment.src);
        if segment.has(Flags::SYN) {
            self.on_syn_received(now, tuple, segment, stack);
            return;
        }
        let Some(flow) = self.flows.get_mut(&tuple) else {
            return;
        };
        let conn = flow.conn.and_then(|conn| self.conns.get_mut(&conn));
        if let Some(conn) = conn.filter(|_| !segment.has(Flags::RST)) {
            conn.on_received(now, flow, segment);
        }
    }

    fn on_syn_received(
        &mut self,
        now: Instant,
        tuple: Tuple,
        segment: &Segment<'_>,
        stack: &Stack,
    ) {
        let flow = self.flows.entry(tuple).or_default();
        let answer = segment.has(Flags::ACK);
        // A SYN can have several answers, for example from its destination and from a box that intercepts its
        // retransmission. The first answer counts.
        let expected = flow.taken(segment).is_some();
        let awaits_none = flow.iss.is_none() || flow.irs.is_some() || !expected;
        if flow.irs == Some(segment.tcp.seq) || (answer && awaits_none) {
            return;
        }
        let alive = flow.conn.is_some_and(|conn| {
            let mut subflows = stack.subflows(conn).into_iter();
            subflows.any(|s| Tuple::new(s.local, s.remote) == tuple && Some(s.id) == flow.id)
        });
        if !answer {
            // RFC 5961 section 4.2: a SYN does not reset an existing subflow. The subflow answers with a challenge
            // ACK.
            if alive {
                return;
            }
            *flow = Flow::default();
        }
        flow.on_syn_received(segment);
        let opened = (!answer && segment.len > 0)
            .then(|| stack.subflow_between(segment.dst, segment.src))
            .flatten();
        if let Some((conn, subflow)) = opened
            && !self.conns.contains_key(&conn)
        {
            // The connection is known before its SYN/ACK: with TCP Fast Open, the engine may deliver the payload
            // of the SYN first.
            (flow.conn, flow.id) = (Some(conn), Some(subflow));
            let conn = self.conns.entry(conn).or_insert_with(|| Conn::new(now));
            conn.arrived.insert(0..segment.len);
        }
        if let Some(conn) = flow.conn.and_then(|conn| self.conns.get_mut(&conn)) {
            conn.on_syn_received(flow, segment, alive);
        }
    }

    /// Checks an event of the engine.
    pub fn on_event(&mut self, now: Instant, event: &Event) {
        self.timers.progressed = true;
        let conn = event.conn();
        let known = self.conns.get_mut(&conn);
        let ended = known.as_ref().is_some_and(|c| c.ended);
        let mut checker = self.log.checker(now, Some(conn));
        checker.check(!ended, Rule::Event, || {
            format!("{event:?} after the connection's end")
        });
        match *event {
            Event::Accepted { .. } | Event::Connected { .. } => {
                let first = known.is_some_and(|c| !core::mem::replace(&mut c.open, true));
                checker.check(first, Rule::Event, || {
                    format!("{event:?} of a connection that was never opened, or is open")
                });
            }
            Event::FellBack { .. } => {
                let flows = self.flows.values_mut().filter(|f| f.conn == Some(conn));
                if let Some(known) = known {
                    known.on_fallback(flows);
                }
            }
            Event::Closed { .. } => {
                known.into_iter().for_each(|c| c.ended = true);
                self.ended.push_back((now, conn));
            }
            _ => {}
        }
    }

    /// Checks that the application has read the bytes `range` of the stream of `conn` in order.
    pub fn on_read(&mut self, now: Instant, conn: ConnId, range: Range<u64>) {
        let Some(known) = self.conns.get_mut(&conn) else {
            return;
        };
        let mut checker = self.log.checker(now, Some(conn));
        let delivered = known.delivered;
        checker.check(range.start == delivered, Rule::Bytes, || {
            format!(
                "byte {} is delivered instead of byte {delivered}",
                range.start
            )
        });
        known.delivered = range.end;
        let next = known.arrived.next;
        let arrived = range.end <= next || known.blind;
        checker.check(arrived, Rule::Gap, || {
            format!("bytes {range:?} are delivered, but only those below {next} have arrived")
        });
    }

    /// Checks `bytes` that were read at `offset` of a stream, or of one stream of a session. For an offset,
    /// `expected` returns the bytes that the peer sends there, at least one. This check needs no packets.
    pub fn on_content<'a>(
        &mut self,
        (now, conn): (Instant, Option<ConnId>),
        mut offset: u64,
        mut bytes: &[u8],
        expected: impl Fn(u64) -> &'a [u8],
    ) {
        while !bytes.is_empty() {
            let run = expected(offset);
            let len = run.len().min(bytes.len());
            if bytes[..len] != run[..len] {
                let wrong = bytes.iter().zip(run).position(|(a, b)| a != b);
                let wrong = offset + wrong.unwrap_or(0) as u64;
                let mut checker = self.log.checker(now, conn);
                checker.check(false, Rule::Bytes, || {
                    format!("byte {wrong} of the stream is not what was sent")
                });
                return;
            }
            bytes = &bytes[len..];
            offset += len as u64;
        }
    }

    /// Checks that the application has read the stream of `conn` to its end.
    pub fn on_end(&mut self, now: Instant, conn: ConnId) {
        let Some(known) = self.conns.get(&conn) else {
            return;
        };
        let (end, delivered) = (known.end(), known.delivered);
        let right = end == Some(delivered) || known.blind;
        let mut checker = self.log.checker(now, Some(conn));
        checker.check(right, Rule::Fin, || {
            format!("the stream ends after {delivered} bytes, but the peer ended it at {end:?}")
        });
    }

    /// Checks that the engine may send `transmit`.
    pub fn on_transmit(&mut self, now: Instant, transmit: &Transmit<'_>) {
        self.timers.progressed = true;
        let Some(info) = &transmit.info else {
            return;
        };
        let payload = transmit.payload.iter().map(|p| p.len() as u64).sum();
        let is_super_segment = transmit.gso_size != 0;
        let found = Segment::of(transmit.header, Some(payload), |segment| {
            self.on_segment_sent(now, segment, info, is_super_segment);
        });
        let mut checker = self.log.checker(now, Some(info.conn));
        checker.check(found.is_some(), Rule::Info, || {
            "not a TCP segment".to_owned()
        });
    }

    fn on_segment_sent(
        &mut self,
        now: Instant,
        segment: &Segment<'_>,
        info: &TransmitInfo,
        is_super_segment: bool,
    ) {
        let mut checker = self.log.checker(now, Some(info.conn));
        let tuple = Tuple::new(segment.src, segment.dst);
        if segment.has(Flags::SYN) {
            let flow = self.flows.entry(tuple).or_default();
            let first = flow.on_syn_sent(segment, &mut checker);
            flow.conn = Some(info.conn);
            flow.id = Some(info.subflow);
            let conn = self.conns.entry(info.conn);
            let conn = conn.or_insert_with(|| Conn::new(now));
            return conn.on_syn_sent((flow, first), segment, info, &mut checker);
        }
        let flow = self.flows.get_mut(&tuple);
        let flow =
            flow.filter(|flow| flow.conn == Some(info.conn) && flow.id == Some(info.subflow));
        let known = flow.is_some();
        let (Some(flow), Some(conn)) = (flow, self.conns.get_mut(&info.conn)) else {
            return checker.check(known, Rule::Info, || {
                let ends = (segment.src, segment.dst);
                format!("{info:?} on a subflow {ends:?} that was never opened")
            });
        };
        if segment.has(Flags::RST) {
            return;
        }
        if let Some(place) = flow.on_sent(segment, &mut checker) {
            conn.on_sent(flow, (segment, info), place, &mut checker);
        }
        self.sent = (info.kind != SegmentKind::Control).then_some(Sent {
            conn: info.conn,
            subflow: info.subflow,
            tuple,
            kind: info.kind,
            single: !is_super_segment,
        });
    }

    /// Compares the engine's statistics with the packets, once the packet of the last
    /// [`on_transmit`](Self::on_transmit) has left.
    pub fn check_sent(&mut self, now: Instant, stack: &Stack) {
        // Most calls come without a packet, so these end before the large record is moved.
        if self.sent.is_none() {
            return;
        }
        let Some(sent) = self.sent.take() else { return };
        let flow = self.flows.get_mut(&sent.tuple);
        let stats = stack.subflow(sent.conn, sent.subflow);
        if let (Some(flow), Some(stats)) = (flow, stats) {
            let mut checker = self.log.checker(now, Some(sent.conn));
            flow.check_flight(&stats, (sent.kind, sent.single), &mut checker);
        }
    }

    /// Checks that timers lie in the future and that bounds hold. Once a second, also checks that no connection
    /// lives too long. Call this when the engine has no more events and packets.
    pub fn end_turn(&mut self, now: Instant, stack: &Stack) {
        let (buffered, connections) = (stack.buffered(), stack.connections());
        let mut checker = self.log.checker(now, None);
        self.timers
            .check(stack.next_timeout(), connections, &mut checker);
        let bounded = buffered <= self.config.memory && connections <= self.config.max_connections;
        checker.check(bounded, Rule::Bound, || {
            format!("{buffered} bytes buffered, {connections} connections")
        });
        if self.timers.sweep_due(now) {
            self.sweep(now, stack);
        }
    }

    /// Checks all connections, and forgets those that are gone.
    fn sweep(&mut self, now: Instant, stack: &Stack) {
        let mut gone = BTreeSet::new();
        while let Some(&(at, conn)) = self.ended.front() {
            if now.saturating_since(at) < MAX_LINGER {
                break;
            }
            let lingers = stack.conn_stats(conn).is_some();
            let mut checker = self.log.checker(now, Some(conn));
            checker.check(!lingers, Rule::Liveness, || {
                format!("ended at {at} s, but the engine still has it")
            });
            self.ended.pop_front();
            gone.insert(conn);
        }
        for (id, conn) in &mut self.conns {
            if conn.ended {
                continue;
            }
            let mut checker = self.log.checker(now, Some(*id));
            match stack.conn_stats(*id) {
                Some(stats) => {
                    let subflows = stack.subflows(*id).len();
                    check_bounds(&self.config, &stats, subflows, &mut checker);
                    check_life(&self.config, conn, &stats, &mut checker);
                }
                None => {
                    // A connection that the engine never reported as open may end without a report, for example if
                    // its SYN/ACK got no third ACK.
                    checker.check(!conn.open, Rule::Liveness, || {
                        "vanished without an end".to_owned()
                    });
                    gone.insert(*id);
                }
            }
        }
        self.conns.retain(|id, _| !gone.contains(id));
        // A flow without a connection belongs to a SYN that the engine refused or dropped.
        let known = |conn| self.conns.contains_key(&conn);
        self.flows.retain(|_, flow| flow.conn.is_some_and(known));
    }
}
