//! Loss detection by duplicate acknowledgements, for a peer without SACK (RFC 5681 section 3.2; NewReno:
//! RFC 6582).

/// The number of duplicates in a row that indicate a loss (RFC 5681 section 3.2).
pub(super) const DUP_ACK_THRESHOLD: u32 = 3;

/// The state derived from duplicate acknowledgements. Sizes and offsets are in bytes.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct DupAcks {
    /// The number of duplicates in a row.
    count: u32,
    /// The number of bytes after the missing segment that must have arrived: a segment for each duplicate
    /// (RFC 9937 section 6.1).
    arrived: u64,
    /// The end of the sent data when the last recovery began. The retransmissions of that recovery may cause
    /// duplicates of acknowledgements up to this offset (RFC 6582 section 3.2, step 2).
    recover: u64,
    /// The number of partial acknowledgements in this recovery.
    partial_acks: u32,
}

impl DupAcks {
    /// Returns the number of bytes in flight that have arrived according to duplicates.
    pub fn arrived(self) -> u64 {
        self.arrived
    }

    /// Counts a duplicate with `flight` bytes in flight after the missing segment. Returns the number of these
    /// bytes that have arrived since the last duplicate.
    pub fn on_dup_ack(&mut self, flight: u64, mss: u64) -> u64 {
        self.count += 1;
        let newly_arrived = mss.min(flight.saturating_sub(self.arrived));
        self.arrived += newly_arrived;
        newly_arrived
    }

    /// Returns whether duplicates show the segment at `una` to be lost. The result is valid only outside of a
    /// recovery.
    // Conforms: 6582-3.2-1
    pub fn is_loss(self, una: u64) -> bool {
        self.count >= DUP_ACK_THRESHOLD && una > self.recover
    }

    /// Notes that `acked` bytes were acknowledged in order: the missing segment and data after it. `flight` bytes
    /// remain in flight after the next missing segment. Returns the number of acknowledged bytes that duplicates
    /// had counted as arrived.
    pub fn on_advance(&mut self, acked: u64, mss: u64, flight: u64) -> u64 {
        self.count = 0;
        let counted = self.arrived.min(acked.saturating_sub(mss));
        self.arrived = (self.arrived - counted).min(flight);
        counted
    }

    /// Counts a partial acknowledgement: it covers new data, but not all data sent before the recovery.
    pub fn on_partial_ack(&mut self) {
        self.partial_acks += 1;
    }

    /// Notes that fast recovery begins, with data sent up to the offset `nxt`.
    pub fn on_recovery(&mut self, nxt: u64) {
        self.recover = nxt;
        self.partial_acks = 0;
    }

    /// Notes a timeout, with data sent up to the offset `nxt`: everything in flight counts as lost.
    pub fn on_timeout(&mut self, nxt: u64) {
        *self = DupAcks {
            recover: nxt,
            ..DupAcks::default()
        };
    }

    /// Notes that recovery is over and no data is missing.
    pub fn on_open(&mut self) {
        self.arrived = 0;
        self.partial_acks = 0;
    }

    /// Returns whether a partial acknowledgement no longer restarts the retransmission timer: only the first
    /// partial acknowledgement does (RFC 6582 section 3.2, step 3, the variant "Impatient").
    pub fn is_impatient(self) -> bool {
        self.partial_acks > 1
    }
}
