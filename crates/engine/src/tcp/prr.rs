//! Proportional rate reduction (RFC 9937): the amount to send during fast recovery.
//!
//! The flight shrinks to the reduced window over one round trip, by sending a little less than every
//! acknowledgement reports as delivered. Sending nothing until the flight fits into the reduced window (RFC
//! 6675) would work as well without pacing, but a paced sender that was silent for half a round trip cannot
//! catch up afterwards.

/// The state of one fast recovery; all in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Prr {
    /// The bytes in flight when recovery began, lost ones included (`RecoverFS`).
    flight: u64,
    /// The bytes delivered since (`prr_delivered`).
    delivered: u64,
    /// The bytes sent since (`prr_out`).
    out: u64,
    /// The bytes that may be sent now (`SndCnt` less those sent since).
    room: u64,
}

impl Prr {
    /// Begins a recovery. The first retransmission may leave at once.
    pub fn new(flight: u64, mss: u32) -> Self {
        Prr {
            flight,
            delivered: 0,
            out: 0,
            room: mss.into(),
        }
    }

    /// Returns the bytes that may be sent now.
    pub fn room(&self) -> u64 {
        self.room
    }

    /// Processes an acknowledgement of `delivered` bytes, after losses were marked. `target` is the window
    /// at the end of recovery; `safe` is set if the cumulative acknowledgement advanced and no further loss
    /// was found.
    pub fn on_ack(&mut self, delivered: u64, in_flight: u64, target: u64, mss: u32, safe: bool) {
        self.delivered += delivered;
        self.room = if in_flight > target {
            let share = u128::from(self.delivered) * u128::from(target);
            let share = share.div_ceil(u128::from(self.flight.max(1)));
            u64::try_from(share)
                .unwrap_or(u64::MAX)
                .saturating_sub(self.out)
        } else {
            let kept = self.delivered.saturating_sub(self.out).max(delivered);
            let limit = kept + if safe { mss.into() } else { 0 };
            limit.min(target - in_flight)
        };
        if self.out == 0 {
            self.room = self.room.max(mss.into());
        }
    }

    /// Notes that `bytes` were sent.
    pub fn on_sent(&mut self, bytes: u64) {
        self.out += bytes;
        self.room = self.room.saturating_sub(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MSS: u32 = 1000;

    /// Acknowledges segment after segment, sends whole segments, and returns the numbers of the
    /// acknowledgements after which one left.
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

    /// Section 6.2: of 20 in flight one was lost, three were delivered; the window is halved. The first
    /// segment leaves at once, then one for every two delivered, until the flight fits; then one for each.
    #[test]
    fn sends_in_proportion_until_the_flight_fits() {
        let mut prr = Prr::new(20_000, MSS);
        let mut in_flight = 17_000;
        let sent = sends(&mut prr, &mut in_flight, 10_000, 16);
        assert_eq!(sent, [1, 4, 6, 8, 10, 13, 14, 15, 16]);
        assert_eq!(in_flight, 10_000);
    }

    /// With less in flight than the target, no more leaves than arrived, unless the acknowledgements are
    /// safe: then one more each.
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
        prr.on_sent(1000);
        prr.on_ack(8000, 11_000, 10_000, MSS, true);
        assert_eq!(prr.room(), 3000);
        prr.on_ack(1000, 10_500, 10_000, MSS, true);
        assert_eq!(prr.room(), 3500);
    }
}
