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
pub(crate) struct Held<P> {
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
    held: VecDeque<Held<P>>,
    bytes: u64,
    largest: u32,
    max: Tally,
}

impl<P> Queue<P> {
    pub fn new() -> Self {
        Queue {
            held: VecDeque::new(),
            bytes: 0,
            largest: 0,
            max: Tally::default(),
        }
    }

    /// Takes the packet, or returns it if that would exceed `limit`.
    pub fn push(&mut self, limit: QueueLimit, held: Held<P>) -> Result<(), Held<P>> {
        if !limit.admits(self.held.len(), self.bytes, held.len) {
            return Err(held);
        }
        self.bytes += u64::from(held.len);
        self.largest = self.largest.max(held.len);
        self.held.push_back(held);
        self.max.packets = self.max.packets.max(self.held.len() as u64);
        self.max.bytes = self.max.bytes.max(self.bytes);
        Ok(())
    }

    pub fn pop(&mut self) -> Option<Held<P>> {
        let held = self.held.pop_front()?;
        self.bytes -= u64::from(held.len);
        Some(held)
    }

    /// Returns the length of the longest packet that was ever in the queue.
    pub fn largest(&self) -> u32 {
        self.largest
    }

    pub fn now(&self) -> Tally {
        Tally {
            packets: self.held.len() as u64,
            bytes: self.bytes,
        }
    }

    pub fn max(&self) -> Tally {
        self.max
    }
}
