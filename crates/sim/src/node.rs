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
/// The world hands over packets by [`receive`](Self::receive) and, after all packets that arrived by one
/// link at one time, calls [`wake`](Self::wake). It also calls `wake` when
/// [`next_timeout`](Self::next_timeout) has come, and after
/// [`World::with_node`](crate::World::with_node). Packets that a node sends in any of these calls are on
/// their way when the turn ends.
pub trait Node: Any + Debug + Send {
    /// Takes a packet that arrived at interface `iface`. Its buffer is sent on or returned by
    /// [`Turn::recycle`].
    fn receive(&mut self, turn: &mut Turn<'_>, iface: u32, packet: Packet);

    /// Runs timers and events, and acts on the packets received.
    fn wake(&mut self, turn: &mut Turn<'_>) {
        let _ = turn;
    }

    /// Returns when the node wants to be woken, if ever. A time that has passed means at once; after a
    /// wake the node must return a later one, or the world would not get on.
    fn next_timeout(&self) -> Option<Instant> {
        None
    }

    /// Returns whether the node reads or adjusts checksums, so that hosts have to compute them: see
    /// [`World::use_checksums`](crate::World::use_checksums).
    fn needs_checksums(&self) -> bool {
        false
    }
}

/// The operations of a node during its turn: sending and drawing.
#[derive(Debug)]
pub struct Turn<'a> {
    /// The time.
    pub now: Instant,
    /// The node's own random stream.
    pub rng: &'a mut Rng,
    /// The world computes and verifies transport checksums.
    pub checksums: bool,
    pub(crate) sent: &'a mut Vec<(u32, Packet)>,
    /// Packets numbered so far.
    pub(crate) packets: &'a mut u64,
    pub(crate) spare: &'a mut Vec<Vec<u8>>,
    pub(crate) violations: &'a mut Vec<Violation>,
}

/// Most buffers kept for reuse.
const MAX_SPARE: usize = 1 << 12;

impl Turn<'_> {
    /// Returns an empty buffer, a recycled one if there is one.
    pub fn buffer(&mut self) -> Vec<u8> {
        self.spare.pop().unwrap_or_default()
    }

    /// Sends `packet` out of the node's interface `iface` (in order of
    /// [`World::connect`](crate::World::connect)) and returns the packet's number. An interface that does
    /// not exist drops it.
    pub fn send(&mut self, iface: u32, mut packet: Packet) -> u64 {
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
