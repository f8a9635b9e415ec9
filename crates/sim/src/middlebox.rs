//! A node that passes packets through middleboxes of `braid-links`.

use braid_links::middlebox::{Chain, Direction, Middlebox, Output};
use braid_wire::Instant;

use crate::node::{Node, Packet, Turn};

/// A chain of middleboxes between two interfaces. Interface 0 is the inside, and 1 the outside.
#[derive(Debug, Default)]
pub struct MiddleboxNode {
    chain: Chain,
    out: Output,
}

impl MiddleboxNode {
    /// Makes a node that runs `chain`.
    pub fn new(chain: Chain) -> Self {
        MiddleboxNode {
            chain,
            out: Output::new(),
        }
    }

    /// Returns the first middlebox of type `M` in the chain.
    ///
    /// # Panics
    /// Panics if there is none.
    pub fn get_mut<M: Middlebox>(&mut self) -> &mut M {
        self.chain.get_mut().expect("a box of another type")
    }

    /// Sends the chain's output.
    fn send(&mut self, turn: &mut Turn<'_>) {
        for (direction, packet) in self.out.drain(..) {
            let iface = match direction {
                Direction::Inbound => 0,
                Direction::Outbound => 1,
            };
            turn.send(iface, packet);
        }
    }
}

impl Node for MiddleboxNode {
    fn receive(&mut self, turn: &mut Turn<'_>, iface: u32, packet: Packet) {
        let direction = match iface {
            0 => Direction::Outbound,
            _ => Direction::Inbound,
        };
        self.chain
            .process(turn.now, direction, packet, &mut self.out);
        self.send(turn);
    }

    fn wake(&mut self, turn: &mut Turn<'_>) {
        if self.next_timeout().is_some_and(|at| at <= turn.now) {
            self.chain.handle_timeout(turn.now, &mut self.out);
            self.send(turn);
        }
    }

    fn next_timeout(&self) -> Option<Instant> {
        self.chain.next_timeout()
    }

    fn needs_checksums(&self) -> bool {
        true
    }
}
