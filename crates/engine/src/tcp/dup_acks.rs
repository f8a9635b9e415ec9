//! Loss told by duplicate acknowledgements, where the peer sends no SACK (RFC 5681 section 3.2, NewReno:
//! RFC 6582).

/// Duplicates in a row that tell of a loss.
pub(super) const THRESHOLD: u32 = 3;

/// What duplicate acknowledgements have told; sizes and offsets in bytes.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct DupAcks {
    /// In a row.
    count: u32,
    /// Bytes behind the hole that must have arrived, a segment for each duplicate (RFC 9937 section
    /// 6.1).
    arrived: u64,
    /// What was sent when the last recovery began. Duplicates up to here may come from its
    /// retransmissions (RFC 6582 section 3.2, step 2).
    recover: u64,
    /// Partial acknowledgements of this recovery.
    partial: u32,
}

impl DupAcks {
    /// Bytes in flight that are known to have arrived.
    pub fn arrived(self) -> u64 {
        self.arrived
    }

    /// One more, with `flight` bytes in flight behind the segment that is missing. Returns how many
    /// more of these have arrived.
    pub fn on_dup_ack(&mut self, flight: u64, mss: u64) -> u64 {
        self.count += 1;
        let more = mss.min(flight.saturating_sub(self.arrived));
        self.arrived += more;
        more
    }

    /// Whether the segment at `una` is lost, as no recovery is under way.
    // Conforms: 6582-3.2-1
    pub fn is_loss(self, una: u64) -> bool {
        self.count >= THRESHOLD && una > self.recover
    }

    /// `acked` bytes were acknowledged in order: a segment that was missing, and what lay behind it.
    /// `flight` bytes are left in flight behind the next one. Returns how much of it is no news.
    pub fn on_advance(&mut self, acked: u64, mss: u64, flight: u64) -> u64 {
        self.count = 0;
        let told = self.arrived.min(acked.saturating_sub(mss));
        self.arrived = (self.arrived - told).min(flight);
        told
    }

    /// An acknowledgement advanced in the middle of a recovery.
    pub fn on_partial_ack(&mut self) {
        self.partial += 1;
    }

    /// Fast recovery begins.
    pub fn on_recovery(&mut self, nxt: u64) {
        self.recover = nxt;
        self.partial = 0;
    }

    /// Everything in flight counts as lost.
    pub fn on_timeout(&mut self, nxt: u64) {
        *self = DupAcks {
            recover: nxt,
            ..DupAcks::default()
        };
    }

    /// Nothing is missing any more.
    pub fn on_open(&mut self) {
        self.arrived = 0;
        self.partial = 0;
    }

    /// Whether partial acknowledgements give no more time.
    pub fn is_impatient(self) -> bool {
        self.partial > 1
    }
}
