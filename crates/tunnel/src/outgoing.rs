//! The inner packets that wait to be sent: fair by flow (RFC 8290), by urgency, bounded in bytes and time.

use core::time::Duration;
use std::collections::VecDeque;

use arrayvec::ArrayVec;
use braid_engine::Urgency;
use braid_wire::{Instant, Rng, ip};

use crate::SendError;
use crate::classify::{FlowKey, FlowNumbers};
use crate::codel::Limits;
use crate::config::{Config, MAX_FLOWS, MAX_PATHS, Mode};
use crate::control::bytes_in;
use crate::policy::{FlowPolicy, StatedPolicies, Statement};
use crate::pool::Pool;
use crate::send_flow::{SendFlow, State};
use crate::stats::FlowTreatment;
use crate::steer::{Decision, PathView, Rules, View};
use crate::usage::{Direction, Usage};

/// Most flows that are asked for a packet before a path stays idle.
const MAX_ASKED: usize = 16;
/// Most bytes that wait of a flow of low rate that gives way to no other: two packets.
const MAX_SPARSE_BYTES: usize = 3_000;
/// Most packets that wait to be sent once more.
const MAX_AGAIN: usize = 4096;
/// The longest delay in the queue: so many targets of CoDel, and at least [`MIN_LONGEST`].
const LONGEST_TARGETS: u32 = 2;
/// The minimum of that delay: the buffer of a usual access link, which flows in slow start fill.
const MIN_LONGEST: Duration = Duration::from_millis(100);
/// Bytes that a flow may have waiting however many flows there are.
const MIN_SHARE: usize = 64 * 1024;
/// The longest time for which the tail of a cut packet waits. A datagram of its own costs less than a longer wait.
const MAX_TAIL_WAIT: Duration = Duration::from_millis(1);
/// The urgency of flows of low rate, such as calls, for other senders on a path (RFC 9218 has 3 as its default).
const IMPORTANT: Urgency = Urgency::new(2).expect("a level");
/// Most flows for which numbers are stated on idle paths.
const MAX_SPREAD: usize = 16;

/// A packet of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PacketRef {
    pub flow: u16,
    pub sequence: u64,
}

/// A waiting packet that a path takes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Choice {
    pub packet: PacketRef,
    pub len: usize,
    /// The packet has a higher number than all before it on the path.
    pub is_ordered: bool,
    /// The path that sends a copy.
    copy_to: Option<usize>,
}

/// A packet that is sent once more, on the path of its flow unless one is named.
#[derive(Debug, Clone, Copy)]
struct Again {
    packet: PacketRef,
    path: Option<usize>,
}

/// A packet that a path sends once more.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Resend {
    pub packet: PacketRef,
    pub len: usize,
    /// The packet is a copy for this path of one that the best path has.
    pub is_copy: bool,
}

/// The paths as the queue sees them.
#[derive(Debug, Clone)]
pub(crate) struct Ways {
    pub paths: [Option<PathView>; MAX_PATHS],
    /// The urgency to which less urgent packets leave each path for now.
    pub yields_to: [Option<Urgency>; MAX_PATHS],
    pub best: usize,
    /// Packets sent before this time have arrived or are lost, so they no longer affect the order at the peer.
    pub horizon: Instant,
    /// The round trip of the best path.
    pub round_trip: Duration,
    pub limits: Limits,
    /// Most bytes of one level of urgency that wait: those of `LONGEST_TARGETS` targets at the rate of all paths.
    pub max_waiting: usize,
}

impl Ways {
    /// Returns the size of the largest packet that a path takes, in bytes: none if the path may not be used.
    fn largest(&self, path: usize) -> usize {
        self.paths[path].map_or(0, |way| way.largest)
    }

    /// Returns the path for a packet of `len` bytes that any path may take: `home` if it takes so many.
    fn taker(&self, len: usize, home: usize) -> Option<usize> {
        let takes = |path: &usize| self.largest(*path) >= len;
        let mut paths = core::iter::once(home).chain(0..self.paths.len());
        paths.find(takes)
    }
}

/// The packets of all flows.
#[derive(Debug)]
pub(crate) struct Outgoing {
    numbers: FlowNumbers,
    flows: Vec<SendFlow>,
    /// Flows that wait, by urgency, in the order of their turns.
    rings: [VecDeque<u16>; Urgency::COUNT],
    again: VecDeque<Again>,
    /// Flows that lately used several paths.
    spread: ArrayVec<u16, MAX_SPREAD>,
    /// Sent packets in the order of sending, by flow.
    sent: VecDeque<(Instant, u16)>,
    waiting_bytes: usize,
    sent_bytes: usize,
    max_waiting: usize,
    /// Most bytes of one level of urgency that wait, which its flows share.
    max_level: usize,
    max_sent: usize,
    quantum: i64,
    /// The highest rate of a flow that counts as sparse, in bytes per second.
    max_sparse_rate: u64,
    steer: Rules,
    /// The mode of flows for which nobody wants another.
    mode: Mode,
    stated: StatedPolicies,
}

impl Outgoing {
    pub fn new(config: &Config, rng: &mut Rng) -> Self {
        Outgoing {
            numbers: FlowNumbers::new(config.max_flows, rng),
            flows: Vec::new(),
            rings: Default::default(),
            again: VecDeque::new(),
            spread: ArrayVec::new(),
            sent: VecDeque::new(),
            waiting_bytes: 0,
            sent_bytes: 0,
            max_waiting: config.send_queue,
            max_level: usize::MAX,
            max_sent: config.sent_buffer,
            quantum: config.inner_mtu as i64,
            max_sparse_rate: config.redundant_rate,
            steer: Rules::new(config.redundant_rate),
            mode: config.mode,
            stated: StatedPolicies::new(rng),
        }
    }

    /// Returns true if packets wait.
    pub fn is_waiting(&self) -> bool {
        self.waiting_bytes > 0 || !self.again.is_empty()
    }

    pub fn waiting_bytes(&self) -> usize {
        self.waiting_bytes
    }

    /// Takes a packet of the tunnel's user. A policy that the peer has stated for the flow precedes `policy`.
    pub fn push(
        &mut self,
        now: Instant,
        policy: FlowPolicy,
        packet: &[u8],
        pool: &mut Pool,
    ) -> Result<(), SendError> {
        let key = FlowKey::of(packet).ok_or(SendError::Malformed)?;
        if self.waiting_bytes + packet.len() > self.max_waiting {
            return Err(SendError::QueueFull);
        }
        let flows = &self.flows;
        let (number, is_new) = self.numbers.number(key, || oldest(flows));
        while self.flows.len() < self.numbers.len() {
            self.flows.push(SendFlow::new());
        }
        let flow = &mut self.flows[usize::from(number)];
        if is_new {
            flow.usage = Usage::start(now);
            flow.stated = self.stated.get(&key).unwrap_or_default();
        }
        flow.policy = flow.stated.or(policy);
        flow.mode = flow.policy.mode.unwrap_or(self.mode);
        let urgency = flow.policy.urgency.unwrap_or_default();
        // Bounds the delay of a flow that ignores CoDel's drops and marks.
        let sharers = self.rings[usize::from(urgency.level())].len().max(1);
        let share = (self.max_level / sharers).max(MIN_SHARE);
        if flow.waiting_bytes() + packet.len() > share {
            flow.usage.dropped += 1;
            return Err(SendError::QueueFull);
        }
        let mut packet = pool.copy(packet);
        // A mark says the same as a drop, and costs nothing (RFC 3168).
        if flow.codel.takes() && !mark(&mut packet) {
            pool.recycle(packet);
            flow.usage.dropped += 1;
            return Err(SendError::QueueFull);
        }
        self.waiting_bytes += packet.len();
        flow.push(now, packet);
        if !flow.queued {
            flow.queued = true;
            flow.urgency = urgency;
            flow.deficit = self.quantum;
            self.rings[usize::from(urgency.level())].push_back(number);
        }
        Ok(())
    }

    /// Takes what the peer states about the other direction of a flow.
    pub fn on_statement(&mut self, statement: &Statement) {
        self.stated.take(statement);
        if let Some(number) = self.numbers.get(&statement.key.reversed()) {
            self.flows[usize::from(number)].stated = statement.policy;
        }
    }

    /// Returns the urgency of the flow, if one is known, and its mode.
    pub fn policy(&self, flow: u16) -> (Option<Urgency>, Mode) {
        let flow = &self.flows[usize::from(flow)];
        (flow.policy.urgency, flow.mode)
    }

    /// Sets most bytes of one level of urgency that may wait.
    pub fn set_max_level(&mut self, bytes: usize) {
        self.max_level = bytes;
    }

    /// Returns the packet that `path` takes next.
    pub fn choose(&mut self, path: usize, ways: &Ways) -> Option<Choice> {
        if self.waiting_bytes == 0 {
            return None;
        }
        for level in 0..self.rings.len() {
            let mut index = 0;
            // Twice as many turns, because a turn that only renews the deficit of a flow asks for no packet.
            for _ in 0..MAX_ASKED * 2 {
                let ring = &mut self.rings[level];
                if index >= ring.len().min(MAX_ASKED) {
                    break;
                }
                let number = ring[index];
                let flow = &mut self.flows[usize::from(number)];
                if flow.deficit <= 0 {
                    flow.deficit += self.quantum;
                    ring.remove(index);
                    ring.push_back(number);
                    continue;
                }
                let sharers = ring.len() as u64;
                if let Some(choice) = self.ask(number, path, ways, sharers) {
                    return Some(choice);
                }
                index += 1;
            }
        }
        None
    }

    /// Asks steering if `path` takes a packet of the flow.
    fn ask(&self, number: u16, path: usize, ways: &Ways, sharers: u64) -> Option<Choice> {
        let flow = &self.flows[usize::from(number)];
        // A flow of low rate of which hardly anything waits is like a call.
        let is_sparse =
            flow.waiting_bytes() <= MAX_SPARSE_BYTES && flow.rate.get() <= self.max_sparse_rate;
        if !is_sparse && ways.yields_to[path].is_some_and(|urgency| urgency < flow.urgency) {
            return None;
        }
        let view = View {
            paths: &ways.paths,
            best: ways.best,
            path,
            sharers,
            waiting: flow.waiting_bytes(),
            rate: flow.rate.get(),
            urgency: flow.urgency,
        };
        let rule = self.steer.of(flow.mode);
        let (depth, copy_to) = match rule.decide(&view) {
            Decision::Take { depth } => (depth, None),
            Decision::Copy { other } => (0, Some(other)),
            Decision::Leave => (usize::MAX, None),
        };
        let largest = ways.largest(path);
        let first = flow.first_waiting_len();
        let may_take = |i: &usize| ways.largest(*i) >= first && flow.may_take_first(*i);
        let is_ordered = (0..ways.paths.len()).any(|i| may_take(&i));
        let home = rule.home(&ways.paths, ways.best);
        let sequence = if !is_ordered && ways.taker(first, home) == Some(path) {
            flow.first_waiting()
        } else if is_ordered && !may_take(&home) {
            // The path at home cannot take what waits first, so it is for the others.
            flow.waiting_at(path, 0, largest)?
        } else {
            flow.waiting_at(path, depth, largest)?
        };
        Some(Choice {
            is_ordered,
            packet: PacketRef {
                flow: number,
                sequence,
            },
            len: flow.entry(sequence)?.packet.len(),
            copy_to,
        })
    }

    /// Drops waiting packets that no path takes in two datagrams: those behind them would wait for ever. Returns their
    /// number.
    pub fn drop_too_large(&mut self, now: Instant, ways: &Ways) -> u64 {
        let largest = (0..ways.paths.len()).map(|path| ways.largest(path)).max();
        let largest = largest.unwrap_or(0);
        // Larger ones than the quantum are never taken in.
        if self.waiting_bytes == 0 || largest as i64 >= self.quantum {
            return 0;
        }
        let mut count = 0;
        for number in 0..self.flows.len() as u16 {
            while let flow = &self.flows[usize::from(number)]
                && flow.first_waiting_len() > largest
            {
                let sequence = flow.first_waiting();
                let packet = PacketRef {
                    flow: number,
                    sequence,
                };
                self.take(now, packet, ways.best);
                // It is not sent again either.
                self.flows[usize::from(number)].mark_again(now, sequence, ways.best);
                count += 1;
            }
        }
        count
    }

    /// Moves a packet from those that wait to those that were sent. Returns the time at which it came.
    fn take(&mut self, now: Instant, packet: PacketRef, path: usize) -> Option<Instant> {
        let flow = &mut self.flows[usize::from(packet.flow)];
        let len = flow.entry(packet.sequence)?.packet.len();
        let since = flow.mark_sent(now, packet.sequence, path)?;
        self.waiting_bytes -= len;
        self.sent_bytes += len;
        self.sent.push_back((now, packet.flow));
        if !flow.is_waiting() {
            flow.queued = false;
            let ring = &mut self.rings[usize::from(flow.urgency.level())];
            if let Some(at) = ring.iter().position(|n| *n == packet.flow) {
                ring.remove(at);
            }
        }
        Some(since)
    }

    /// Notes that `path` sends the packet. Returns true if the flow uses no other path.
    pub fn commit(&mut self, now: Instant, choice: Choice, path: usize, ways: &Ways) -> bool {
        let Some(since) = self.take(now, choice.packet, path) else {
            return false;
        };
        let flow = choice.packet.flow;
        let entry = &mut self.flows[usize::from(flow)];
        entry.deficit -= choice.len as i64;
        entry.rate.add(now, choice.len);
        entry.usage.add(now, path, choice.len);
        entry.trial.on_sent(now, choice.len, ways.round_trip);
        let last = !entry.is_waiting();
        let delay = now.saturating_since(since);
        entry.codel.on_dequeue(now, delay, last, ways.limits);
        let sole = entry.is_sole(path, ways.horizon);
        if !sole && !self.spread.contains(&flow) {
            // If the list is full, the peer gets no statement about this flow and waits up to its time bound.
            let _ = self.spread.try_push(flow);
        }
        if let Some(other) = choice.copy_to {
            self.push_again(choice.packet, Some(other));
        }
        sole
    }

    /// Returns the urgency of the flow's packets for other senders on the path: a flow of low rate is important even if
    /// nothing says so.
    pub fn urgency_for_others(&self, flow: u16) -> Urgency {
        let flow = &self.flows[usize::from(flow)];
        let is_sparse = !flow.is_waiting() && flow.rate.get() <= self.max_sparse_rate;
        if is_sparse && flow.urgency <= Urgency::default() {
            flow.urgency.min(IMPORTANT)
        } else {
            flow.urgency
        }
    }

    fn push_again(&mut self, packet: PacketRef, path: Option<usize>) {
        if self.again.len() < MAX_AGAIN {
            self.again.push_back(Again { packet, path });
        }
    }

    /// Takes the peer's request for lost packets.
    pub fn on_rerequest(&mut self, flow: u16, first: u64, count: u8) {
        if let Some(flow) = self.flows.get_mut(usize::from(flow)) {
            flow.trial.on_losses(count);
        }
        for sequence in first..first + u64::from(count) {
            self.push_again(PacketRef { flow, sequence }, None);
        }
    }

    /// Returns the number of the flow's packet with these lowest bits.
    pub fn expand(&self, flow: u16, truncated: u32) -> Option<u64> {
        let flow = self.flows.get(usize::from(flow))?;
        Some(crate::header::expand(truncated, flow.end()))
    }

    /// Returns a packet to send once more on `path`. Forgets those that no path takes, and copies for a path that does
    /// not work.
    pub fn next_again(&mut self, path: usize, ways: &Ways) -> Option<Resend> {
        let mut at = 0;
        while let Some(&Again {
            packet,
            path: named,
        }) = self.again.get(at)
        {
            let len = self.sent_once(packet).map(<[u8]>::len);
            let taker = len.and_then(|len| match named {
                Some(named) => (ways.largest(named) >= len).then_some(named),
                None => ways.taker(len, self.home(packet.flow, ways)),
            });
            match (taker, len) {
                (Some(taker), Some(len)) if taker == path => {
                    let is_copy = named.is_some();
                    return Some(Resend {
                        packet,
                        len,
                        is_copy,
                    });
                }
                (Some(_), _) => at += 1,
                (None, _) => drop(self.again.remove(at)),
            }
        }
        None
    }

    /// Returns the path for packets of the flow that any path may take.
    fn home(&self, flow: u16, ways: &Ways) -> usize {
        let mode = self.flows[usize::from(flow)].mode;
        self.steer.of(mode).home(&ways.paths, ways.best)
    }

    /// Notes that `path` sends the packet that [`Outgoing::next_again`] returned.
    pub fn commit_again(&mut self, now: Instant, packet: PacketRef, path: usize) {
        if let Some(at) = self.again.iter().position(|again| again.packet == packet) {
            self.again.remove(at);
        }
        let flow = &mut self.flows[usize::from(packet.flow)];
        let is_marked = flow.mark_again(now, packet.sequence, path);
        if let Some(entry) = flow.entry(packet.sequence).filter(|_| is_marked) {
            let len = entry.packet.len();
            flow.usage.add_repeated(path, len);
        }
        // The packet is kept for as long as one that was sent now.
        if is_marked {
            self.sent.push_back((now, packet.flow));
        }
    }

    /// Returns a packet that was sent, and not again.
    fn sent_once(&self, packet: PacketRef) -> Option<&[u8]> {
        let flow = self.flows.get(usize::from(packet.flow))?;
        let entry = flow.entry(packet.sequence)?;
        matches!(entry.state, State::Sent { again: false, .. }).then_some(&entry.packet[..])
    }

    /// Returns true if the peer should ask for lost packets of the flow.
    pub fn hides_losses(&self, flow: u16) -> bool {
        let flow = self.flows.get(usize::from(flow));
        flow.is_some_and(|flow| flow.trial.hides_losses())
    }

    /// Returns how long the tail of a cut packet waits for packets for the same datagram. It waits if the flow's
    /// packets come evenly and fast, so that the next one is sure to come. The end of a burst is not delayed.
    pub fn tail_wait(&self, flow: u16) -> Duration {
        let flow = self.flows.get(usize::from(flow));
        let wait = flow.and_then(SendFlow::even_gap).unwrap_or_default() * 3 / 2;
        if wait > MAX_TAIL_WAIT {
            Duration::ZERO
        } else {
            wait
        }
    }

    /// Returns the bytes of a packet.
    pub fn bytes(&self, packet: PacketRef) -> Option<&[u8]> {
        let flow = self.flows.get(usize::from(packet.flow))?;
        Some(&flow.entry(packet.sequence)?.packet)
    }

    /// Queues for other paths what was sent on `path` since `since`, because the path fell silent or was removed.
    /// Returns the number of packets.
    pub fn on_silent_path(&mut self, path: usize, since: Instant) -> u64 {
        let mut count = 0;
        for (flow, number) in self.flows.iter().zip(0..) {
            for sequence in flow.sent_since(path, since) {
                if self.again.len() < MAX_AGAIN {
                    let packet = PacketRef {
                        flow: number,
                        sequence,
                    };
                    self.again.push_back(Again { packet, path: None });
                    count += 1;
                }
            }
        }
        // Packets that were left to this path may now go on any path.
        self.flows.iter_mut().for_each(SendFlow::forget_order);
        // A copy is for a path that works.
        self.again.retain(|again| again.path != Some(path));
        count
    }

    /// Returns true if numbers have to be stated on idle paths.
    pub fn is_spread(&self) -> bool {
        !self.spread.is_empty()
    }

    /// Forgets flows that use one path only.
    pub fn prune_spread(&mut self, horizon: Instant) {
        let flows = &self.flows;
        self.spread
            .retain(|number| flows[usize::from(*number)].is_spread(horizon));
    }

    /// Calls `state` with the number to state on `path`, for up to `most` flows without packet or statement there since
    /// `since`.
    pub fn statements(
        &mut self,
        most: usize,
        now: Instant,
        (path, since): (usize, Instant),
        state: impl FnMut(PacketRef),
    ) {
        let flows = &mut self.flows;
        let statements = self.spread.iter().filter_map(|&number| {
            let sequence = flows[usize::from(number)].statement(now, path, since)?;
            Some(PacketRef {
                flow: number,
                sequence,
            })
        });
        statements.take(most).for_each(state);
    }

    /// Drops packets that were sent before `horizon`, and the oldest ones if there are too many.
    pub fn expire(&mut self, horizon: Instant, pool: &mut Pool) {
        while let Some(&(at, number)) = self.sent.front() {
            let is_over = self.sent_bytes > self.max_sent;
            if at >= horizon && !is_over {
                break;
            }
            self.sent.pop_front();
            let horizon = if is_over {
                Instant::FAR_FUTURE
            } else {
                horizon
            };
            let flow = &mut self.flows[usize::from(number)];
            while let Some(packet) = flow.pop_sent(horizon) {
                self.sent_bytes -= packet.len();
                pool.recycle(packet);
                if is_over {
                    break;
                }
            }
        }
    }

    /// Returns the traffic of each flow.
    pub fn usage(&self) -> impl Iterator<Item = Direction> {
        let flows = self.flows.iter().zip(self.numbers.keys());
        flows.map(|(flow, key)| Direction {
            key: *key,
            usage: flow.usage,
            treatment: Some(FlowTreatment {
                urgency: flow.urgency.level(),
                mode: self.steer.of(flow.mode).mode(flow.urgency, flow.rate.get()),
                hides_losses: flow.trial.hides_losses(),
                queued_bytes: flow.waiting_bytes(),
            }),
        })
    }

    /// Forgets the use of a path that is new.
    pub fn forget_path(&mut self, path: usize) {
        for flow in &mut self.flows {
            flow.forget_path(path);
        }
    }

    pub fn invariants(&self) {
        let waiting: usize = self.flows.iter().map(SendFlow::waiting_bytes).sum();
        assert_eq!(waiting, self.waiting_bytes);
        assert!(self.waiting_bytes <= self.max_waiting);
        assert!(self.again.len() <= MAX_AGAIN);
        assert!(self.stated.len() <= usize::from(MAX_FLOWS));
        let queued: usize = self.rings.iter().map(VecDeque::len).sum();
        assert_eq!(queued, self.flows.iter().filter(|f| f.queued).count());
        for flow in &self.flows {
            flow.invariants();
            assert_eq!(flow.queued, flow.is_waiting());
        }
    }
}

/// Returns the flow without waiting packets that was unused for longest, or flow 0 if packets of all flows wait.
fn oldest(flows: &[SendFlow]) -> u16 {
    let idle = flows.iter().zip(0..).filter(|(flow, _)| !flow.is_waiting());
    let oldest = idle.min_by_key(|(flow, _)| flow.used_at);
    oldest.map_or(0, |(_, number)| number)
}

/// Marks a packet of an ECN-capable transport. Returns false if it is none.
fn mark(packet: &mut [u8]) -> bool {
    ip::Packet::new(packet).is_ok_and(|mut packet| packet.mark())
}

/// Returns the bytes that may wait at a rate in bytes per second.
pub(crate) fn max_waiting(rate: u64, limits: Limits) -> usize {
    let longest = (limits.target * LONGEST_TARGETS).max(MIN_LONGEST);
    bytes_in(rate, longest) as usize
}

/// Returns CoDel's limits for the round trips and the spread of the paths.
pub(crate) fn limits(round_trip: Duration, spread: Duration) -> Limits {
    Limits {
        // RFC 8289 has 5 ms and 100 ms. For up to the spread of the paths, packets wait on purpose: the faster paths
        // send them while a slower one delivers a later one. The quarter of a round trip and the two round trips are
        // guesses.
        target: Duration::from_millis(5) + spread + round_trip / 4,
        interval: Duration::from_millis(100).max(round_trip * 2),
    }
}
