//! Counters of a link.

/// A number of packets and of the bytes in them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tally {
    /// Packets.
    pub packets: u64,
    /// Bytes: the sum of the packets' lengths, as passed to [`crate::Link::enqueue`].
    pub bytes: u64,
}

impl Tally {
    pub(crate) fn add(&mut self, len: u32) {
        self.packets += 1;
        self.bytes += u64::from(len);
    }
}

/// Counters of one direction of a link. At any time, `offered + duplicated` equals the sum of `delivered`, all
/// `dropped_*`, and the packets in the link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Packets that the driver passed to the link.
    pub offered: Tally,
    /// Copies that the link made of packets. A copy counts in the other counters like any packet.
    pub duplicated: Tally,
    /// Packets that left at the far end of the link.
    pub delivered: Tally,
    /// Delivered packets in which the link told the driver to flip a bit.
    pub corrupted: Tally,
    /// Packets that CoDel marked instead of dropping them.
    pub marked: Tally,
    /// Packets that took a detour, so that others could overtake them.
    pub detoured: Tally,
    /// Packets dropped because the queue was full.
    pub dropped_queue: Tally,
    /// Packets dropped by CoDel.
    pub dropped_codel: Tally,
    /// Packets lost at random.
    pub dropped_loss: Tally,
    /// Packets that were passed to the link while it was down, or were in the link when it went down.
    pub dropped_down: Tally,
    /// Packets and bytes in the queue now.
    pub queue: Tally,
    /// The maximum number of packets and, independently, the maximum number of bytes in the queue so far.
    pub queue_max: Tally,
}
