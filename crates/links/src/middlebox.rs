//! Middleboxes as plain code: boxes between two hosts that do more than forward.
//!
//! A [`Middlebox`] takes packets of either direction and returns what leaves in their place, and in which
//! direction. A [`Chain`] puts several behind each other. None of them has a clock: the time is handed
//! in. A box that rewrites a packet adjusts its checksums (RFC 1624), so that a packet that was corrupted
//! before stays corrupted; a box that cuts or joins packets leaves corrupted ones as they are.

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
    /// From the IP header to the end of the payload.
    pub bytes: Vec<u8>,
    /// The number by which logs follow the packet through the network, assigned when it is first sent; 0
    /// before. A box that rewrites or cuts a packet keeps the number.
    pub id: u64,
}

impl Packet {
    /// Makes a packet that was not sent yet.
    pub fn new(bytes: Vec<u8>) -> Self {
        Packet { bytes, id: 0 }
    }
}

/// The direction in which a packet passes a middlebox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Direction {
    /// From the inside, where the box's own hosts are.
    Outbound,
    /// From the outside.
    Inbound,
}

/// The packets that leave a middlebox and their directions, in order.
pub type Output = VecDeque<(Direction, Packet)>;

/// A box on the way that rewrites, drops, cuts or joins packets.
///
/// The driver calls [`process`](Self::process) for each packet, and
/// [`handle_timeout`](Self::handle_timeout) when [`next_timeout`](Self::next_timeout), asked after each
/// call, has come. A packet that is not put into `out` is dropped. Any bytes may be handed in.
pub trait Middlebox: Any + Debug + Send {
    /// Takes a packet.
    fn process(&mut self, now: Instant, direction: Direction, packet: Packet, out: &mut Output);

    /// Returns when the box acts by itself, if ever.
    fn next_timeout(&self) -> Option<Instant> {
        None
    }

    /// Lets the box do what is due by `now`.
    fn handle_timeout(&mut self, now: Instant, out: &mut Output) {
        let _ = (now, out);
    }
}

/// Middleboxes behind each other, the innermost first; a chain is a middlebox too.
#[derive(Debug, Default)]
pub struct Chain {
    boxes: Vec<Box<dyn Middlebox>>,
    /// Packets between boxes; the number counts the boxes on the inside of each.
    between: VecDeque<(usize, Direction, Packet)>,
}

impl Chain {
    /// Makes an empty chain, which passes everything.
    pub fn new() -> Self {
        Chain::default()
    }

    /// Adds a box on the outer side.
    #[must_use]
    pub fn and(mut self, middlebox: impl Middlebox) -> Self {
        self.boxes.push(Box::new(middlebox));
        self
    }

    /// Returns the first box of type `M` from the inside, to look at it or to give it a command.
    pub fn get_mut<M: Middlebox>(&mut self) -> Option<&mut M> {
        self.boxes.iter_mut().find_map(|middlebox| {
            let middlebox: &mut dyn Any = &mut **middlebox;
            middlebox.downcast_mut()
        })
    }

    /// Passes on the packets between the boxes until all have left.
    fn run(&mut self, now: Instant, out: &mut Output) {
        let mut step = Output::new();
        while let Some((place, direction, packet)) = self.between.pop_front() {
            let index = match direction {
                Direction::Outbound => Some(place),
                Direction::Inbound => place.checked_sub(1),
            };
            let next = index.and_then(|index| self.boxes.get_mut(index).map(|b| (index, b)));
            let Some((index, middlebox)) = next else {
                out.push_back((direction, packet));
                continue;
            };
            middlebox.process(now, direction, packet, &mut step);
            self.place(index, &mut step);
        }
    }

    /// Puts the output of the box at `index` on its inner or outer side.
    fn place(&mut self, index: usize, step: &mut Output) {
        for (direction, packet) in step.drain(..) {
            let place = match direction {
                Direction::Outbound => index + 1,
                Direction::Inbound => index,
            };
            self.between.push_back((place, direction, packet));
        }
    }
}

impl Middlebox for Chain {
    fn process(&mut self, now: Instant, direction: Direction, packet: Packet, out: &mut Output) {
        let place = match direction {
            Direction::Outbound => 0,
            Direction::Inbound => self.boxes.len(),
        };
        self.between.push_back((place, direction, packet));
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
