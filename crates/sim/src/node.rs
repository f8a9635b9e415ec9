//! What a node of the world is, and what it may do.

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
/// The world hands over packets by [`receive`](Self::receive) and, when all that arrived by one
/// link at one time are in, calls [`wake`](Self::wake); it also does so when
/// [`next_timeout`](Self::next_timeout) has come, and after
/// [`World::with_node`](crate::World::with_node). What a node sends in any of these calls is on its
/// way when the turn ends.
pub trait Node: Any + Debug + Send {
    /// A packet arrived at interface `iface`. Its buffer is to be sent on or given back by
    /// [`Turn::recycle`].
    fn receive(&mut self, turn: &mut Turn<'_>, iface: u32, packet: Packet);

    /// Time to act: timers, events, whatever packets led to.
    fn wake(&mut self, turn: &mut Turn<'_>) {
        let _ = turn;
    }

    /// When the node wants to be woken, if ever. A time that has passed means at once: the node
    /// must not answer with one after it was woken.
    fn next_timeout(&self) -> Option<Instant> {
        None
    }

    /// Whether it looks at checksums or adjusts them, so that hosts have to compute them: see
    /// [`World::use_checksums`](crate::World::use_checksums).
    fn needs_checksums(&self) -> bool {
        false
    }
}

/// What a node may do while it has its turn: send, draw.
#[derive(Debug)]
pub struct Turn<'a> {
    /// The time.
    pub now: Instant,
    /// The node's own random stream.
    pub rng: &'a mut Rng,
    /// Whether transport checksums are computed and verified in this world.
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
    /// An empty buffer, used before where there is one.
    pub fn buffer(&mut self) -> Vec<u8> {
        self.spare.pop().unwrap_or_default()
    }

    /// Sends `packet` out of the node's interface `iface` (in order of
    /// [`World::connect`](crate::World::connect)). An interface that does not exist swallows it.
    /// Returns the packet's number.
    pub fn send(&mut self, iface: u32, mut packet: Packet) -> u64 {
        if packet.id == 0 {
            *self.packets += 1;
            packet.id = *self.packets;
        }
        let id = packet.id;
        self.sent.push((iface, packet));
        id
    }

    /// Tells the world of what an oracle has seen; see
    /// [`World::keep_violations`](crate::World::keep_violations).
    pub fn report(&mut self, violations: Vec<Violation>) {
        self.violations.extend(violations);
    }

    /// Takes back the buffer of a packet that goes no further.
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
