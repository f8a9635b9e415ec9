//! Proportional rate reduction (RFC 9937): the number of bytes to send during fast recovery.
//!
//! For each acknowledgement the sender sends a little less than was delivered, so that the data in flight shrinks
//! to the reduced window over one round trip. RFC 6675 instead sends nothing until the data in flight fits into
//! the reduced window. This makes the sender silent for half a round trip, and a paced sender cannot make up for
//! the silence.

/// The state of one fast recovery. All values are in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Prr {
    /// The bytes in flight when recovery began, including lost bytes (`RecoverFS`).
    initial_flight: u64,
    /// The bytes delivered since recovery began (`prr_delivered`).
    delivered: u64,
    /// The bytes sent since recovery began (`prr_out`).
    sent: u64,
    /// The bytes that may be sent now (`SndCnt` less the bytes sent since the last acknowledgement).
    room: u64,
}

impl Prr {
    /// Begins a recovery with `flight` bytes in flight. The first retransmission may leave at once.
    pub fn new(flight: u64, mss: u32) -> Self {
        Prr {
            initial_flight: flight,
            delivered: 0,
            sent: 0,
            room: mss.into(),
        }
    }

    /// Returns the bytes that may be sent now.
    pub fn room(&self) -> u64 {
        self.room
    }

    /// Processes an acknowledgement of `delivered` bytes, after losses were marked. `target` is the window
    /// at the end of recovery; `is_safe` is set if the cumulative acknowledgement advanced and no further loss
    /// was found (`SafeACK`).
    pub fn on_ack(&mut self, delivered: u64, in_flight: u64, target: u64, mss: u32, is_safe: bool) {
        self.delivered += delivered;
        self.room = if in_flight > target {
            // The sender sends the same fraction of the target as was delivered of the initial flight.
            let product = u128::from(self.delivered) * u128::from(target);
            let quota = product.div_ceil(u128::from(self.initial_flight.max(1)));
            u64::try_from(quota)
                .unwrap_or(u64::MAX)
                .saturating_sub(self.sent)
        } else {
            // Losses left less in flight than the target. So the delivered number of bytes may be sent. A safe
            // acknowledgement allows a segment more, as in slow start.
            let unused = self.delivered.saturating_sub(self.sent).max(delivered);
            let limit = unused + if is_safe { mss.into() } else { 0 };
            limit.min(target - in_flight)
        };
        // The first retransmission must not wait for further acknowledgements (RFC 9937 section 6.2).
        if self.sent == 0 {
            self.room = self.room.max(mss.into());
        }
    }

    /// Notes that `bytes` were sent.
    pub fn on_sent(&mut self, bytes: u64) {
        self.sent += bytes;
        self.room = self.room.saturating_sub(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MSS: u32 = 1000;

    /// Acknowledges one segment at a time and sends whole segments. Returns the numbers of the acknowledgements
    /// after which a segment was sent.
    fn sends(prr: &mut Prr, in_flight: &mut u64, target: u64, acks: u32) -> Vec<u32> {
        let mut sent = Vec::new();
        for n in 1..=acks {
            *in_flight -= 1000;
            prr.on_ack(1000, *in_flight, target, MSS, false);
            while prr.room() >= 1000 {
                prr.on_sent(1000);
                *in_flight += 1000;
                sent.push(n);
            }
        }
        sent
    }

    /// Section 6.2: of 20 segments in flight one was lost and two more were delivered; the window is halved. The
    /// first segment leaves at once. After that a segment leaves for every two delivered segments until the data
    /// in flight fits into the window. From that time, one leaves for each delivered segment.
    #[test]
    fn sends_in_proportion_until_the_flight_fits() {
        let mut prr = Prr::new(20_000, MSS);
        let mut in_flight = 17_000;
        let sent = sends(&mut prr, &mut in_flight, 10_000, 16);
        assert_eq!(sent, [1, 4, 6, 8, 10, 13, 14, 15, 16]);
        assert_eq!(in_flight, 10_000);
    }

    /// If less is in flight than the target, at most the delivered number of bytes leaves; a safe acknowledgement
    /// allows a segment more.
    #[test]
    fn catches_up_carefully_after_heavy_loss() {
        let mut prr = Prr::new(20_000, MSS);
        prr.on_ack(1000, 4000, 10_000, MSS, false);
        assert_eq!(prr.room(), 1000);
        prr.on_sent(1000);
        prr.on_ack(1000, 4000, 10_000, MSS, true);
        assert_eq!(prr.room(), 2000);
        prr.on_sent(2000);
        prr.on_ack(1000, 9500, 10_000, MSS, true);
        assert_eq!(prr.room(), 500, "not past the target");
    }

    #[test]
    fn what_was_not_used_is_kept() {
        let mut prr = Prr::new(20_000, MSS);
        // After 8000 delivered bytes, 8000 * 10,000 / 20,000 - 1000 sent = 3000 bytes may be sent; after 9000,
        // 3500 bytes.
        prr.on_sent(1000);
        prr.on_ack(8000, 11_000, 10_000, MSS, true);
        assert_eq!(prr.room(), 3000);
        prr.on_ack(1000, 10_500, 10_000, MSS, true);
        assert_eq!(prr.room(), 3500);
    }
}
