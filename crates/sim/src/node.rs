//! Nodes of the world, and their turns. A turn is a series of calls in which a node acts.

use core::any::Any;

use braid_wire::{Instant, Rng};

use crate::oracle::Violation;

pub use braid_links::middlebox::Packet;

/// The number of a node in a [`World`](crate::World).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u32);

/// The number of one direction of a link in a [`World`](crate::World).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub u32);

/// A node of a [`World`](crate::World): a host, a router, a middlebox.
///
/// The world calls [`receive`](Self::receive) for each packet. It calls [`wake`](Self::wake) on three occasions:
/// once after all packets that one link delivers at one time, at the time of [`next_timeout`](Self::next_timeout),
/// and after [`World::with_node`](crate::World::with_node). A turn ends with `wake`; the world then hands the
/// packets that the node has sent to the links.
pub trait Node: Any + Send {
    /// Takes a packet that arrived at interface `iface`. The node sends it on, or returns its buffer by
    /// [`Turn::recycle`].
    fn receive(&mut self, turn: &mut Turn<'_>, iface: u32, packet: Packet);

    /// Runs timers and events, and acts on the packets received.
    fn wake(&mut self, turn: &mut Turn<'_>) {
        let _ = turn;
    }

    /// Returns the time of the next wake, if the node has a timer. A time in the past means an immediate wake.
    /// After a wake the node must return a time after the present one, or virtual time would stand still.
    fn next_timeout(&self) -> Option<Instant> {
        None
    }

    /// Returns whether the node reads or adjusts checksums, so that hosts have to compute them: see
    /// [`World::use_checksums`](crate::World::use_checksums).
    fn needs_checksums(&self) -> bool {
        false
    }
}

/// The state of the world that a node may use in its turn: time, random numbers, and sending.
#[derive(Debug)]
pub struct Turn<'a> {
    /// The virtual time.
    pub now: Instant,
    /// The node's own random stream.
    pub rng: &'a mut Rng,
    /// True if hosts compute and verify transport checksums.
    pub checksums: bool,
    pub(crate) sent: &'a mut Vec<(u32, Packet)>,
    /// The number of packets so far, which is the number of the last packet.
    pub(crate) packets: &'a mut u64,
    pub(crate) spare: &'a mut Vec<Vec<u8>>,
    pub(crate) violations: &'a mut Vec<Violation>,
}

/// The maximum number of buffers kept for reuse. 4,096 is a guess: in most worlds fewer packets are in flight.
const MAX_SPARE: usize = 1 << 12;

impl Turn<'_> {
    /// Returns an empty buffer. The buffer is a recycled one, if there is any.
    pub fn buffer(&mut self) -> Vec<u8> {
        self.spare.pop().unwrap_or_default()
    }

    /// Sends `packet` by the node's interface `iface`, and returns the packet's number. Interfaces are numbered
    /// in the order of the calls of [`World::connect`](crate::World::connect); a packet to an interface that
    /// does not exist is dropped.
    pub fn send(&mut self, iface: u32, mut packet: Packet) -> u64 {
        // A forwarded packet keeps its number, so that taps can follow it; a new packet has 0.
        if packet.id == 0 {
            *self.packets += 1;
            packet.id = *self.packets;
        }
        let id = packet.id;
        self.sent.push((iface, packet));
        id
    }

    /// Reports violations that an oracle has seen; see
    /// [`World::keep_violations`](crate::World::keep_violations).
    pub fn report(&mut self, violations: Vec<Violation>) {
        self.violations.extend(violations);
    }

    /// Takes back the buffer of a packet that is not sent on.
    pub fn recycle(&mut self, packet: Packet) {
        recycle(self.spare, packet);
    }
}

/// Keeps the buffer of `packet` for reuse.
pub(crate) fn recycle(spare: &mut Vec<Vec<u8>>, packet: Packet) {
    if spare.len() < MAX_SPARE {
        let mut buffer = packet.bytes;
        buffer.clear();
        spare.push(buffer);
    }
}

/// Returns a new random stream, seeded from `rng`. Because of this, each start of a node gets other random
/// numbers.
pub(crate) fn child(rng: &mut Rng) -> Rng {
    let mut seed = [0; 32];
    rng.fill(&mut seed);
    Rng::from_seed(seed)
}
