//! The queue of packets that wait for the line.

use std::collections::VecDeque;
use std::time::Duration;

use braid_wire::Instant;

use crate::counters::Tally;

/// The bound of a queue. The packet that is being serialised is not in the queue, so even a bound of 0 lets single
/// packets pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueueLimit {
    /// Maximum number of packets.
    Packets(u32),
    /// Maximum number of bytes. A packet that would exceed this number is dropped.
    Bytes(u64),
}

impl QueueLimit {
    /// Returns whether a queue with this content has room for a packet of `len` bytes.
    fn admits(self, content: Tally, len: u32) -> bool {
        match self {
            QueueLimit::Packets(limit) => content.packets < limit.into(),
            QueueLimit::Bytes(limit) => content.bytes.saturating_add(len.into()) <= limit,
        }
    }
}

/// A packet, with the properties that the link needs.
#[derive(Debug)]
pub(crate) struct QueuedPacket<P> {
    pub packet: P,
    pub len: u32,
    /// The time at which the packet entered the queue.
    pub entered: Instant,
    /// The random events, drawn when the packet enters the link, so that the order of the draws does not depend on
    /// the rate.
    pub draw: PacketDraw,
}

/// The random events of one packet.
#[derive(Debug)]
pub(crate) struct PacketDraw {
    /// The additional delay by jitter that keeps packets in order.
    pub jitter: Duration,
    /// The additional delay of a detour or of jitter that reorders: later packets overtake this one. Zero if the
    /// packet takes no detour.
    pub detour: Duration,
    /// The bit to flip if the packet is corrupted.
    pub flip: Option<u32>,
}

/// A droptail queue.
#[derive(Debug)]
pub(crate) struct Queue<P> {
    queued: VecDeque<QueuedPacket<P>>,
    /// The packets and bytes in the queue.
    now: Tally,
    /// The length of the longest packet so far.
    largest: u32,
    /// The maximum numbers of packets and of bytes so far.
    max: Tally,
}

impl<P> Queue<P> {
    pub fn new() -> Self {
        Queue {
            queued: VecDeque::new(),
            now: Tally::default(),
            largest: 0,
            max: Tally::default(),
        }
    }

    /// Appends a packet to the queue, or returns it if the queue would exceed `limit`.
    pub fn push(
        &mut self,
        limit: QueueLimit,
        queued: QueuedPacket<P>,
    ) -> Result<(), QueuedPacket<P>> {
        if !limit.admits(self.now, queued.len) {
            return Err(queued);
        }
        self.now.add(queued.len);
        self.max.packets = self.max.packets.max(self.now.packets);
        self.max.bytes = self.max.bytes.max(self.now.bytes);
        self.largest = self.largest.max(queued.len);
        self.queued.push_back(queued);
        Ok(())
    }

    pub fn pop(&mut self) -> Option<QueuedPacket<P>> {
        let queued = self.queued.pop_front()?;
        self.now.packets -= 1;
        self.now.bytes -= u64::from(queued.len);
        Some(queued)
    }

    /// Returns the length of the longest packet that was ever in the queue.
    pub fn largest(&self) -> u32 {
        self.largest
    }

    pub fn now(&self) -> Tally {
        self.now
    }

    pub fn max(&self) -> Tally {
        self.max
    }
}
