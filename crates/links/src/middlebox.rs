//! Models of middleboxes: machines between two hosts that do more than forward packets.
//!
//! A [`Middlebox`] takes packets of either direction, and returns the packets that leave in their place with their
//! directions. A [`Chain`] connects several middleboxes in series. No middlebox has a clock; the driver passes the
//! time.
//!
//! A middlebox never repairs a corrupted packet. If it rewrites a packet, it adjusts the checksums (RFC 1624)
//! instead of computing them. If it splits or merges packets, it forwards corrupted ones unchanged.

mod merge;
mod mtu_limit;
mod nat;
mod options;
mod segment;
mod sequence;
mod split;

use core::any::Any;
use core::fmt::Debug;
use std::collections::VecDeque;

use braid_wire::Instant;

pub use merge::{Keep, Merge};
pub use mtu_limit::MtuLimit;
pub use nat::{Nat, NatConfig, NatCounters};
pub use options::{Edit, OptionEdit, Scope, Target};
pub use sequence::SequenceShift;
pub use split::Split;

/// An IP packet on its way through the network.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Packet {
    /// The bytes from the IP header to the end of the payload.
    pub bytes: Vec<u8>,
    /// The number that identifies the packet in logs, along its whole way through the network. The number is 0
    /// until the packet is first sent. A middlebox that rewrites or splits a packet keeps the number.
    pub id: u64,
}

impl Packet {
    /// Creates a packet that was not sent yet.
    pub fn new(bytes: Vec<u8>) -> Self {
        Packet { bytes, id: 0 }
    }
}

/// The direction in which a packet passes a middlebox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Direction {
    /// From the inside, where the hosts behind the middlebox are, to the outside.
    Outbound,
    /// From the outside to the inside.
    Inbound,
}

/// The packets that leave a middlebox, in order, with their directions.
pub type Output = VecDeque<(Direction, Packet)>;

/// A middlebox that rewrites, drops, splits or merges packets.
///
/// The driver calls [`process`](Self::process) for each packet. After each call it queries
/// [`next_timeout`](Self::next_timeout), and calls [`handle_timeout`](Self::handle_timeout) at that time. If a
/// middlebox does not put a packet into `out`, the packet is dropped. A packet may contain any bytes, not only
/// valid IP.
pub trait Middlebox: Any + Debug + Send {
    /// Processes a packet that arrives in `direction`.
    fn process(&mut self, now: Instant, direction: Direction, packet: Packet, out: &mut Output);

    /// Returns the time at which the middlebox acts without a packet, or `None`.
    fn next_timeout(&self) -> Option<Instant> {
        None
    }

    /// Performs the actions that are due by `now`.
    fn handle_timeout(&mut self, now: Instant, out: &mut Output) {
        let _ = (now, out);
    }
}

/// Middleboxes in series. The chain as a whole is a middlebox too.
#[derive(Debug, Default)]
pub struct Chain {
    /// The middleboxes, the innermost first.
    boxes: Vec<Box<dyn Middlebox>>,
    /// Packets between middleboxes, with the index of the next middlebox. If there is no middlebox of this index,
    /// the packet leaves the chain.
    between: VecDeque<(usize, Direction, Packet)>,
}

impl Chain {
    /// Creates an empty chain, which forwards all packets unchanged.
    pub fn new() -> Self {
        Chain::default()
    }

    /// Adds a middlebox on the outer side.
    #[must_use]
    pub fn and(mut self, middlebox: impl Middlebox) -> Self {
        self.boxes.push(Box::new(middlebox));
        self
    }

    /// Returns the innermost middlebox of type `M`, for reading its counters or changing its settings.
    pub fn get_mut<M: Middlebox>(&mut self) -> Option<&mut M> {
        self.boxes.iter_mut().find_map(|middlebox| {
            let middlebox: &mut dyn Any = &mut **middlebox;
            middlebox.downcast_mut()
        })
    }

    /// Moves the packets from middlebox to middlebox, until all have left the chain or were dropped.
    fn run(&mut self, now: Instant, out: &mut Output) {
        let mut step = Output::new();
        while let Some((index, direction, packet)) = self.between.pop_front() {
            let Some(middlebox) = self.boxes.get_mut(index) else {
                out.push_back((direction, packet));
                continue;
            };
            middlebox.process(now, direction, packet, &mut step);
            self.place(index, &mut step);
        }
    }

    /// Moves the output of the middlebox at `index` towards the middlebox on its outer or inner side.
    fn place(&mut self, index: usize, step: &mut Output) {
        for (direction, packet) in step.drain(..) {
            let next = match direction {
                Direction::Outbound => index + 1,
                // The innermost middlebox has no inner neighbour, and no middlebox has the index to which 0 wraps.
                // So the packet leaves the chain.
                Direction::Inbound => index.wrapping_sub(1),
            };
            self.between.push_back((next, direction, packet));
        }
    }
}

impl Middlebox for Chain {
    fn process(&mut self, now: Instant, direction: Direction, packet: Packet, out: &mut Output) {
        let first = match direction {
            Direction::Outbound => 0,
            Direction::Inbound => self.boxes.len().wrapping_sub(1),
        };
        self.between.push_back((first, direction, packet));
        self.run(now, out);
    }

    fn next_timeout(&self) -> Option<Instant> {
        self.boxes.iter().filter_map(|b| b.next_timeout()).min()
    }

    fn handle_timeout(&mut self, now: Instant, out: &mut Output) {
        let mut step = Output::new();
        for index in 0..self.boxes.len() {
            self.boxes[index].handle_timeout(now, &mut step);
            self.place(index, &mut step);
        }
        self.run(now, out);
    }
}
