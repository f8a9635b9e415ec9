//! What went through a link.

/// Packets, and the bytes in them.
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
    /// Handed to the link.
    pub offered: Tally,
    /// Copies the link made of packets; from then on packets like all others.
    pub duplicated: Tally,
    /// Handed on at the far end.
    pub delivered: Tally,
    /// Of those, with a bit to flip.
    pub corrupted: Tally,
    /// Marked by CoDel instead of dropped.
    pub marked: Tally,
    /// Sent on a detour that lets others overtake.
    pub detoured: Tally,
    /// Dropped because the queue was full.
    pub dropped_queue: Tally,
    /// Dropped by CoDel.
    pub dropped_codel: Tally,
    /// Lost at random.
    pub dropped_loss: Tally,
    /// Handed to a link that was down, or in it when it went down.
    pub dropped_down: Tally,
    /// In the queue now.
    pub queue: Tally,
    /// Most packets and, apart from that, most bytes ever in the queue.
    pub queue_max: Tally,
}
