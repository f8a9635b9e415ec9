//! The queue before the line.

use std::collections::VecDeque;
use std::time::Duration;

use braid_wire::Instant;

use crate::counters::Tally;

/// The bound of a queue. The packet being serialised is not in the queue, so that even a bound of 0 lets
/// single packets pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueueLimit {
    /// Most packets.
    Packets(u32),
    /// Most bytes; a packet that would exceed them is dropped.
    Bytes(u64),
}

impl QueueLimit {
    /// Returns whether a queue of `packets` packets and `bytes` bytes takes one more of `len` bytes.
    fn admits(self, packets: usize, bytes: u64, len: u32) -> bool {
        match self {
            QueueLimit::Packets(limit) => packets < limit as usize,
            QueueLimit::Bytes(limit) => bytes.saturating_add(u64::from(len)) <= limit,
        }
    }
}

/// A packet and what the link must know of it.
#[derive(Debug)]
pub(crate) struct QueuedPacket<P> {
    pub packet: P,
    pub len: u32,
    /// The time at which the packet came.
    pub entered: Instant,
    /// The packet's share of the jitter, drawn when the packet came, as are the two below.
    pub jitter: Duration,
    /// The additional delay by which others overtake the packet; zero for none.
    pub detour: Duration,
    /// The bit to flip, if any.
    pub flip: Option<u32>,
}

/// A queue bounded as by droptail.
#[derive(Debug)]
pub(crate) struct Queue<P> {
    queued: VecDeque<QueuedPacket<P>>,
    bytes: u64,
    largest: u32,
    max: Tally,
}

impl<P> Queue<P> {
    pub fn new() -> Self {
        Queue {
            queued: VecDeque::new(),
            bytes: 0,
            largest: 0,
            max: Tally::default(),
        }
    }

    /// Takes the packet, or returns it if that would exceed `limit`.
    pub fn push(
        &mut self,
        limit: QueueLimit,
        queued: QueuedPacket<P>,
    ) -> Result<(), QueuedPacket<P>> {
        if !limit.admits(self.queued.len(), self.bytes, queued.len) {
            return Err(queued);
        }
        self.bytes += u64::from(queued.len);
        self.largest = self.largest.max(queued.len);
        self.queued.push_back(queued);
        self.max.packets = self.max.packets.max(self.queued.len() as u64);
        self.max.bytes = self.max.bytes.max(self.bytes);
        Ok(())
    }

    pub fn pop(&mut self) -> Option<QueuedPacket<P>> {
        let queued = self.queued.pop_front()?;
        self.bytes -= u64::from(queued.len);
        Some(queued)
    }

    /// Returns the length of the longest packet that was ever in the queue.
    pub fn largest(&self) -> u32 {
        self.largest
    }

    pub fn now(&self) -> Tally {
        Tally {
            packets: self.queued.len() as u64,
            bytes: self.bytes,
        }
    }

    pub fn max(&self) -> Tally {
        self.max
    }
}
