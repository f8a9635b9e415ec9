//! Loss detection by duplicate acknowledgements, for a peer without SACK (RFC 5681 section 3.2; NewReno:
//! RFC 6582).

/// The number of duplicates in a row that indicate a loss (RFC 5681 section 3.2).
pub(super) const DUP_ACK_THRESHOLD: u32 = 3;

/// The state derived from duplicate acknowledgements; sizes and offsets in bytes.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct DupAcks {
    /// The number of duplicates in a row.
    count: u32,
    /// The bytes behind the hole that must have arrived, a segment for each duplicate (RFC 9937 section
    /// 6.1).
    arrived: u64,
    /// The end of the sent data when the last recovery began. Duplicates up to here may come from its
    /// retransmissions (RFC 6582 section 3.2, step 2).
    recover: u64,
    /// The number of partial acknowledgements in this recovery.
    partial: u32,
}

impl DupAcks {
    /// Returns the bytes in flight that are known to have arrived.
    pub fn arrived(self) -> u64 {
        self.arrived
    }

    /// Counts a duplicate with `flight` bytes in flight behind the missing segment. Returns how many more
    /// of these bytes have arrived.
    pub fn on_dup_ack(&mut self, flight: u64, mss: u64) -> u64 {
        self.count += 1;
        let more = mss.min(flight.saturating_sub(self.arrived));
        self.arrived += more;
        more
    }

    /// Returns whether the segment at `una` is lost, provided no recovery is under way.
    // Conforms: 6582-3.2-1
    pub fn is_loss(self, una: u64) -> bool {
        self.count >= DUP_ACK_THRESHOLD && una > self.recover
    }

    /// Notes that `acked` bytes were acknowledged in order: a missing segment and the data behind it.
    /// `flight` bytes remain in flight behind the next one. Returns how many of the acknowledged bytes were
    /// counted as arrived before.
    pub fn on_advance(&mut self, acked: u64, mss: u64, flight: u64) -> u64 {
        self.count = 0;
        let counted = self.arrived.min(acked.saturating_sub(mss));
        self.arrived = (self.arrived - counted).min(flight);
        counted
    }

    /// Counts an acknowledgement that advanced in the middle of a recovery.
    pub fn on_partial_ack(&mut self) {
        self.partial += 1;
    }

    /// Notes that fast recovery begins.
    pub fn on_recovery(&mut self, nxt: u64) {
        self.recover = nxt;
        self.partial = 0;
    }

    /// Notes a timeout: everything in flight counts as lost.
    pub fn on_timeout(&mut self, nxt: u64) {
        *self = DupAcks {
            recover: nxt,
            ..DupAcks::default()
        };
    }

    /// Notes that nothing is missing any more.
    pub fn on_open(&mut self) {
        self.arrived = 0;
        self.partial = 0;
    }

    /// Returns whether a partial acknowledgement no longer restarts the retransmission timer: only the
    /// first one does (RFC 6582 section 3.2, step 3, the variant "Impatient").
    pub fn is_impatient(self) -> bool {
        self.partial > 1
    }
}
