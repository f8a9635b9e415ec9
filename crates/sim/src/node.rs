//! Nodes of the world, and the operations of their turns.

use core::any::Any;
use core::fmt::Debug;

use braid_wire::{Instant, Rng};

use crate::oracle::Violation;

pub use braid_links::middlebox::Packet;

/// A node of a [`World`](crate::World).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u32);

/// One direction of a link of a [`World`](crate::World).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub u32);

/// A node of a [`World`](crate::World): a host, a router, a middlebox.
///
/// The world calls [`receive`](Self::receive) for each packet, and [`wake`](Self::wake) after all packets
/// that arrived on a link at the same time. It also calls `wake` at [`next_timeout`](Self::next_timeout) and
/// after [`World::with_node`](crate::World::with_node). Packets that a node sends in these calls enter their
/// links at the end of the turn.
pub trait Node: Any + Debug + Send {
    /// Receives a packet at interface `iface`. A node that does not forward the packet returns its buffer by
    /// [`Turn::recycle`].
    fn receive(&mut self, turn: &mut Turn<'_>, iface: u32, packet: Packet);

    /// Handles timers and events, and acts on received packets.
    fn wake(&mut self, turn: &mut Turn<'_>) {
        let _ = turn;
    }

    /// Returns the time at which the world must wake the node; `None` for never. A time in the past means at once.
    /// After a wake the node must return a later time, or the world would wake it forever without advancing.
    fn next_timeout(&self) -> Option<Instant> {
        None
    }

    /// Returns whether the node reads or adjusts checksums, so that hosts have to compute them: see
    /// [`World::use_checksums`](crate::World::use_checksums).
    fn needs_checksums(&self) -> bool {
        false
    }
}

/// The operations of a node during its turn: sending packets, and drawing random numbers.
#[derive(Debug)]
pub struct Turn<'a> {
    /// The time.
    pub now: Instant,
    /// The node's own random stream.
    pub rng: &'a mut Rng,
    /// True if the world computes and verifies transport checksums.
    pub checksums: bool,
    pub(crate) sent: &'a mut Vec<(u32, Packet)>,
    /// The number of the last packet.
    pub(crate) packets: &'a mut u64,
    pub(crate) spare: &'a mut Vec<Vec<u8>>,
    pub(crate) violations: &'a mut Vec<Violation>,
}

/// Maximum number of buffers that are stored for reuse. A guess: more packets are rarely on their way.
const MAX_SPARE: usize = 1 << 12;

impl Turn<'_> {
    /// Returns an empty buffer, a recycled one if there is one.
    pub fn buffer(&mut self) -> Vec<u8> {
        self.spare.pop().unwrap_or_default()
    }

    /// Sends `packet` on the node's interface `iface`, and returns the number of the packet. Interfaces count
    /// in the order of [`World::connect`](crate::World::connect). A packet for an interface that does not
    /// exist is dropped.
    pub fn send(&mut self, iface: u32, mut packet: Packet) -> u64 {
        // A packet that is forwarded keeps its number.
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
