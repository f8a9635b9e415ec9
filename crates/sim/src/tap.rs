//! Taps, which observe the packets on links.

use core::fmt::Debug;
use std::sync::{Arc, Mutex, PoisonError};

use braid_links::DropCause;
use braid_wire::Instant;

use crate::node::{LinkId, Packet};

/// The event of a packet on a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PacketEvent {
    /// A node sent the packet on the link.
    Sent,
    /// The link made a copy of the packet. The copy has the same number and follows the packet.
    Duplicated,
    /// The link dropped the packet.
    Dropped {
        /// The time at which the packet was handed to the link.
        sent_at: Instant,
        /// The reason of the drop.
        cause: DropCause,
    },
    /// The packet arrived at the far end; twice if the link duplicated it.
    Delivered {
        /// The time at which the packet was handed to the link.
        sent_at: Instant,
    },
}

/// An observer of links: see [`World::tap`](crate::World::tap). Pass an `Arc<Mutex<_>>` to read the records
/// of a tap that the world owns, or to observe several links with one tap.
pub trait Tap: Debug + Send {
    /// Records that `event` happened at `at` to `packet` on `link`. Calls come in the order of time, except
    /// for drops by CoDel, which are reported late, when the link is next polled.
    fn on_packet(&mut self, at: Instant, link: LinkId, event: PacketEvent, packet: &Packet);
}

impl<T: Tap> Tap for Arc<Mutex<T>> {
    fn on_packet(&mut self, at: Instant, link: LinkId, event: PacketEvent, packet: &Packet) {
        let mut tap = self.lock().unwrap_or_else(PoisonError::into_inner);
        tap.on_packet(at, link, event, packet);
    }
}
