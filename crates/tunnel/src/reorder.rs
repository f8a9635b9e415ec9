//! The order of the packets of one flow at the receiver.
//!
//! A missing packet is not given up because a timer expires, but because it is proved lost: every path on which it
//! could come has delivered something that was sent after it (RFC 1990 section 4.1.1). A bound on time stands behind
//! the proof, for paths that fall silent.

use core::time::Duration;
use std::collections::VecDeque;

use braid_wire::Instant;

use crate::classify::FlowKey;
use crate::config::MAX_PATHS;
use crate::frontier::Frontier;
use crate::marks::{self, Marks};
use crate::policy::{FlowPolicy, Statement};
use crate::usage::Usage;

/// Maximum number of slots of a flow, for waiting and for missing packets. 100 ms at 1 Gbit/s.
const MAX_SLOTS: usize = marks::SPAN;
/// Maximum number of slots that a statement may add after the highest packet received, since the peer could state any
/// number.
const MAX_STATED: u64 = 256;
/// Most packets that were given up and are still taken if they come.
const MAX_SKIPPED: usize = 4096;

/// The place of a packet that is not delivered.
#[derive(Debug)]
enum Slot {
    /// The packet may come.
    Missing,
    /// The packet is lost, and was asked for at this time.
    Requested(Instant),
    /// The packet is given up.
    Gone,
    /// The packet came at this time and waits for earlier ones.
    Packet(Vec<u8>, Instant),
}

/// The paths as the receiver sees them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PathsView {
    /// The paths on which packets may come, with the time by which their datagrams are late (reordering).
    pub alive: [Option<Duration>; MAX_PATHS],
    /// The time in which a re-requested packet arrives.
    pub round_trip: Duration,
    /// The longest time to wait for a packet that is not proved lost.
    pub bound: Duration,
}

impl PathsView {
    fn lateness(&self, path: usize) -> Duration {
        self.alive[path].unwrap_or_default()
    }
}

/// A packet with its place.
#[derive(Debug)]
pub(crate) struct Arrival {
    pub path: usize,
    pub sequence: u64,
    /// All earlier packets were sent on this path.
    pub sole: bool,
    /// Lost packets of the flow are asked for.
    pub hides_losses: bool,
    /// The packet was sent again.
    pub again: bool,
    pub packet: Vec<u8>,
}

/// The fate of a packet that came.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// The packet has its place.
    Placed,
    /// The packet comes after later ones were delivered, and should be delivered at once.
    Late(Vec<u8>),
    /// The packet came before. Its buffer.
    Duplicate(Vec<u8>),
}

/// Packets that are proved lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Lost {
    pub sequence: u64,
    pub count: u8,
}

/// One flow at the receiver.
#[derive(Debug, Default)]
pub(crate) struct ReceiveFlow {
    /// The number of the first slot: the next packet to deliver.
    next: u64,
    slots: VecDeque<Slot>,
    /// The numbers of packets in the slots: a peer may leave thousands of places before them empty.
    came: Marks,
    /// Packets in the slots, and their bytes.
    waiting: usize,
    bytes: usize,
    frontiers: [Frontier; MAX_PATHS],
    /// The highest number, and the path it came on if the flow uses no other path.
    highest: u64,
    sole_path: Option<usize>,
    hides_losses: bool,
    /// Everything missing below is known to be lost.
    proved: u64,
    /// Numbers that were given up, in order.
    skipped: VecDeque<u64>,
    /// The packets that came, by the key that they have.
    usage: Option<(FlowKey, Usage)>,
    /// The policy in the last packet.
    policy: FlowPolicy,
}

impl ReceiveFlow {
    /// Returns the next number to deliver.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Counts a packet that came on `path` with this key. The peer gives a number to another flow once it has no more.
    pub fn count(&mut self, now: Instant, key: FlowKey, (path, len): (usize, usize), is_new: bool) {
        let usage = match &mut self.usage {
            Some((known, usage)) if *known == key => usage,
            other => &mut other.insert((key, Usage::start(now))).1,
        };
        if is_new {
            usage.add(now, path, len);
        } else {
            usage.add_repeated(path, len);
        }
    }

    /// Notes key and policy of a packet that came for flow `number`, before it is counted. Returns them if they are not
    /// those of the packet before.
    pub fn state(&mut self, number: u16, key: FlowKey, policy: FlowPolicy) -> Option<Statement> {
        let former = self.usage.map(|(key, _)| key);
        if former == Some(key) && self.policy == policy {
            return None;
        }
        self.policy = policy;
        Some(Statement {
            number,
            former,
            key,
            policy,
        })
    }

    /// Returns the packets that came, and the key of the last ones.
    pub fn usage(&self) -> Option<(FlowKey, Usage)> {
        self.usage
    }

    /// Returns the bytes of packets that wait.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns true if nothing is missing or waits.
    pub fn is_settled(&self) -> bool {
        self.slots.is_empty()
    }

    /// Returns the number of places for packets that wait or are missing.
    pub fn slots(&self) -> usize {
        self.slots.len()
    }

    /// Returns true if packets wait for earlier ones.
    pub fn is_waiting(&self) -> bool {
        self.waiting > 0
    }

    /// Notes that nothing below `sequence` was sent on `path` after what arrives now.
    pub fn on_frontier(&mut self, now: Instant, path: usize, sequence: u64, paths: &PathsView) {
        // A statement adds slots for missing packets, and the peer could state any number.
        let sequence = sequence.min(self.highest.max(self.next) + MAX_STATED);
        self.frontiers[path].rise(now, sequence, paths.lateness(path));
    }

    /// Takes a packet that came.
    pub fn insert(&mut self, now: Instant, arrival: Arrival, paths: &PathsView) -> Outcome {
        let Arrival { sequence, path, .. } = arrival;
        if !arrival.again {
            self.frontiers[path].rise(now, sequence + 1, paths.lateness(path));
            if sequence >= self.highest {
                self.highest = sequence;
                self.sole_path = arrival.sole.then_some(path);
                self.hides_losses = arrival.hides_losses;
            }
        }
        let Some(index) = sequence.checked_sub(self.next) else {
            return self.insert_late(sequence, arrival.packet);
        };
        let index = index as usize;
        while self.slots.len() <= index {
            self.slots.push_back(Slot::Missing);
        }
        if let Slot::Packet(..) = self.slots[index] {
            return Outcome::Duplicate(arrival.packet);
        }
        self.waiting += 1;
        self.bytes += arrival.packet.len();
        self.slots[index] = Slot::Packet(arrival.packet, now);
        self.came.insert(sequence);
        Outcome::Placed
    }

    /// Returns true if the packet would need more slots than a flow may have.
    pub fn is_beyond(&self, sequence: u64) -> bool {
        sequence.saturating_sub(self.next) >= MAX_SLOTS as u64
    }

    fn insert_late(&mut self, sequence: u64, packet: Vec<u8>) -> Outcome {
        match self.skipped.binary_search(&sequence) {
            Ok(at) => {
                self.skipped.remove(at);
                Outcome::Late(packet)
            }
            Err(_) => Outcome::Duplicate(packet),
        }
    }

    /// Returns the number below which everything missing is lost.
    fn proof(&mut self, now: Instant, paths: &PathsView) -> u64 {
        let mut proof = None;
        for (path, frontier) in self.frontiers.iter_mut().enumerate() {
            let reached = frontier.get(now, paths.lateness(path));
            let counts = match self.sole_path {
                Some(sole) => path == sole,
                None => paths.alive[path].is_some(),
            };
            if counts {
                proof = Some(proof.map_or(reached, |least: u64| least.min(reached)));
            }
        }
        proof.unwrap_or(0)
    }

    /// Finds packets that are proved lost since the last call. They are asked for by `ask` if the flow's losses are
    /// hidden, and given up otherwise.
    pub fn prove(&mut self, now: Instant, paths: &PathsView, mut ask: impl FnMut(Lost)) {
        let proof = self.proof(now, paths);
        // Everything below the proof was sent, so the last packets of a burst can be missing too.
        while self.next + (self.slots.len() as u64) < proof && self.slots.len() < MAX_SLOTS {
            self.slots.push_back(Slot::Missing);
        }
        let proof = proof.min(self.next + self.slots.len() as u64);
        let from = self.proved.max(self.next);
        let mut run: Option<Lost> = None;
        for sequence in from..proof {
            let slot = &mut self.slots[(sequence - self.next) as usize];
            if !matches!(slot, Slot::Missing) {
                run.take().into_iter().for_each(&mut ask);
                continue;
            }
            if !self.hides_losses {
                *slot = Slot::Gone;
                continue;
            }
            *slot = Slot::Requested(now);
            match &mut run {
                Some(lost) if lost.count < u8::MAX => lost.count += 1,
                _ => {
                    run.take().into_iter().for_each(&mut ask);
                    run = Some(Lost { sequence, count: 1 });
                }
            }
        }
        run.into_iter().for_each(ask);
        self.proved = self.proved.max(proof);
    }

    /// Removes the next packet in order, if it came or everything before it is given up at `now`. Adds the number
    /// of packets given up to `missing`.
    pub fn pop(&mut self, now: Instant, paths: &PathsView, missing: &mut u64) -> Option<Vec<u8>> {
        loop {
            let given_up = match self.slots.front()? {
                Slot::Packet(..) => break,
                Slot::Gone => true,
                Slot::Requested(at) => now >= *at + paths.round_trip,
                Slot::Missing => false,
            };
            if !given_up && self.expires(paths).is_none_or(|at| now < at) {
                return None;
            }
            self.skip();
            *missing += 1;
        }
        let Some(Slot::Packet(packet, _)) = self.slots.pop_front() else {
            unreachable!("the loop ends at a packet");
        };
        self.came.remove(self.next);
        self.next += 1;
        self.waiting -= 1;
        self.bytes -= packet.len();
        Some(packet)
    }

    /// Gives up the packets before the first that waits, or all if none waits, because there is no room for more.
    pub fn give_up(&mut self, missing: &mut u64) {
        while !matches!(self.slots.front(), Some(Slot::Packet(..)) | None) {
            self.skip();
            *missing += 1;
        }
    }

    /// Gives up everything before `sequence`, of which no packet may wait.
    pub fn jump(&mut self, sequence: u64) {
        debug_assert_eq!(self.waiting, 0);
        self.slots.clear();
        self.next = self.next.max(sequence);
        self.skipped.clear();
    }

    /// Removes the first slot, which has no packet.
    fn skip(&mut self) {
        self.slots.pop_front();
        if self.skipped.len() == MAX_SKIPPED {
            self.skipped.pop_front();
        }
        self.skipped.push_back(self.next);
        self.next += 1;
    }

    /// Returns the time at which the packets before the first that waits are given up without proof.
    fn expires(&self, paths: &PathsView) -> Option<Instant> {
        let first = self.came.first(self.next).filter(|_| self.waiting > 0)?;
        // The front slot has no packet, so `first` waits for the missing packets before it.
        match self.slots.get((first - self.next) as usize)? {
            Slot::Packet(_, at) => Some(*at + paths.bound),
            _ => None,
        }
    }

    /// Returns the time at which something can be proved or given up.
    pub fn next_timeout(&self, paths: &PathsView) -> Option<Instant> {
        if self.slots.is_empty() {
            return None;
        }
        let requested = match self.slots.front() {
            Some(Slot::Requested(at)) => Some(*at + paths.round_trip),
            _ => None,
        };
        let steps = self
            .frontiers
            .iter()
            .enumerate()
            .filter_map(|(path, frontier)| frontier.next_step(paths.lateness(path)));
        let step = steps.min();
        Instant::earliest([requested, step, self.expires(paths)])
    }

    /// Forgets what came on a path.
    pub fn forget_path(&mut self, path: usize) {
        self.frontiers[path] = Frontier::default();
    }

    pub fn invariants(&self) {
        let packets = self.slots.iter().filter_map(|slot| match slot {
            Slot::Packet(packet, _) => Some(packet.len()),
            _ => None,
        });
        let (count, bytes) = packets.fold((0, 0), |(n, sum), len| (n + 1, sum + len));
        assert_eq!((self.waiting, self.bytes), (count, bytes));
        let is_packet = |slot: &Slot| matches!(slot, Slot::Packet(..));
        let first = self.slots.iter().position(is_packet);
        let first = first.map(|index| self.next + index as u64);
        assert_eq!(self.came.first(self.next), first);
        assert!(self.slots.len() <= MAX_SLOTS && self.skipped.len() <= MAX_SKIPPED);
    }
}

#[cfg(test)]
mod tests;
