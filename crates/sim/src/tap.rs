//! Watching links.

use core::fmt::Debug;
use std::sync::{Arc, Mutex, PoisonError};

use braid_links::Cause;
use braid_wire::Instant;

use crate::node::{LinkId, Packet};

/// What happened to a packet on a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// A node handed it to the link.
    Sent,
    /// The link made a copy of it, which goes on behind it under the same number.
    Duplicated,
    /// The link dropped it.
    Dropped {
        /// When it was handed to the link.
        sent_at: Instant,
        /// Why.
        cause: Cause,
    },
    /// It arrived at the far end; twice where the link duplicated it.
    Delivered {
        /// When it was handed to the link.
        sent_at: Instant,
    },
}

/// Watches links: see [`World::tap`](crate::World::tap). A tap whose records are to be read while
/// the world has it is handed over as `Arc<Mutex<_>>`; so is one that watches several links.
pub trait Tap: Debug + Send {
    /// `what` happened at `at` to `packet` on `link`. Times do not go back, except
    /// for a drop by CoDel, which comes out when the link is next looked at.
    fn on_packet(&mut self, at: Instant, link: LinkId, what: What, packet: &Packet);
}

impl<T: Tap> Tap for Arc<Mutex<T>> {
    fn on_packet(&mut self, at: Instant, link: LinkId, what: What, packet: &Packet) {
        let mut tap = self.lock().unwrap_or_else(PoisonError::into_inner);
        tap.on_packet(at, link, what, packet);
    }
}
