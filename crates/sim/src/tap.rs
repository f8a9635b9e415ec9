//! Taps, which watch links.

use std::sync::{Arc, Mutex, PoisonError};

use braid_links::DropCause;
use braid_wire::Instant;

use crate::node::{LinkId, Packet};

/// An event that happens to a packet on a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PacketEvent {
    /// A node handed the packet to the link.
    Sent,
    /// The link made a copy of the packet. Later events of original and copy have the same packet number.
    Duplicated,
    /// The link dropped the packet.
    Dropped {
        /// The time at which the packet was handed to the link.
        sent_at: Instant,
        /// The reason of the drop.
        cause: DropCause,
    },
    /// The packet arrived at the end of the link. A packet that the link duplicated may arrive twice.
    Delivered {
        /// The time at which the packet was handed to the link.
        sent_at: Instant,
    },
}

/// An observer of links: see [`World::tap`](crate::World::tap). The world owns its taps. To read a tap's records,
/// or to watch several links with one tap, give the world an `Arc<Mutex<_>>`.
pub trait Tap: Send {
    /// Records that `event` happened at `at` to `packet` on `link`. Events come in the order of time, except that
    /// a drop by CoDel may come late: the world reports it when it next polls the link.
    fn on_packet(&mut self, at: Instant, link: LinkId, event: PacketEvent, packet: &Packet);
}

impl<T: Tap> Tap for Arc<Mutex<T>> {
    fn on_packet(&mut self, at: Instant, link: LinkId, event: PacketEvent, packet: &Packet) {
        let mut tap = self.lock().unwrap_or_else(PoisonError::into_inner);
        tap.on_packet(at, link, event, packet);
    }
}
