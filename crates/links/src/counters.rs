//! Counters of a link.

/// A number of packets and of the bytes in them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tally {
    /// Packets.
    pub packets: u64,
    /// Bytes, as handed to [`crate::Link::enqueue`].
    pub bytes: u64,
}

impl Tally {
    pub(crate) fn add(&mut self, len: u32) {
        self.packets += 1;
        self.bytes += u64::from(len);
    }
}

/// Counters of one direction of a link. At any time
/// `offered + duplicated = delivered + dropped_* + what the link holds`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Packets handed to the link.
    pub offered: Tally,
    /// Copies that the link made of packets; each copy then counts like any other packet.
    pub duplicated: Tally,
    /// Packets handed on at the far end.
    pub delivered: Tally,
    /// Delivered packets with a bit to flip.
    pub corrupted: Tally,
    /// Packets marked by CoDel instead of dropped.
    pub marked: Tally,
    /// Packets sent on a detour that lets others overtake.
    pub detoured: Tally,
    /// Packets dropped because the queue was full.
    pub dropped_queue: Tally,
    /// Packets dropped by CoDel.
    pub dropped_codel: Tally,
    /// Packets lost at random.
    pub dropped_loss: Tally,
    /// Packets handed to a link that was down, or held by the link when it went down.
    pub dropped_down: Tally,
    /// The current queue.
    pub queue: Tally,
    /// The most packets and, independently, the most bytes that the queue ever had.
    pub queue_max: Tally,
}
