//! The delivery rate of a subflow (draft-cheng-iccrg-delivery-rate-estimation-02).
//!
//! Every record remembers how much had been delivered when it was sent. The bytes delivered from then until
//! the record itself is delivered, divided by the time this took, are a sample of the rate. Sending the
//! same bytes may have taken longer than the arrival of their acknowledgements, which receivers that merge
//! segments send in bursts: the longer time counts.

use core::time::Duration;

use braid_wire::Instant;

use crate::cc::{RateSample, TxState};

/// The number of acknowledgements behind the first from which on a train yields a rate.
const MIN_TRAIN_ACKS: u32 = 2;

/// The divisor of the round trip that gives the least duration of a train: a shorter train was compressed
/// by a busy host or an aggregating link.
const MIN_TRAIN_RTT_DIVISOR: u32 = 16;

/// The period of the peak rate in round trips; a peak counts for one to two periods.
const PEAK_PERIOD_RTTS: u32 = 10;

/// The estimator's state when a record was sent. The parts of a split record share it, since they left
/// together.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct PacketState {
    /// The bytes delivered until then.
    delivered: u64,
    /// The time at which the last of them was delivered.
    delivered_time: Instant,
    /// The send time of the newest record delivered until then.
    first_sent_time: Instant,
    /// The bytes in flight before the record.
    in_flight: u64,
    /// The bytes lost until then.
    lost: u64,
    /// Set if the sender had paused, and data sent since was still in flight.
    app_limited: bool,
}

/// The rate estimator of one subflow.
#[derive(Debug)]
pub(crate) struct RateEstimator {
    delivered: u64,
    lost: u64,
    /// The newest of the records being marked as lost, with its send time.
    newest_lost: Option<(Instant, PacketState)>,
    delivered_time: Instant,
    first_sent_time: Instant,
    /// The delivered count up to which samples span a pause.
    app_limited: Option<u64>,
    /// The latest rate in bytes/s.
    rate: u64,
    train: Train,
    /// The highest rates of trains in this period and the one before.
    peaks: [u64; 2],
    peaks_since: Instant,
    /// The rate that earlier subflows found.
    expected: u64,
    /// The highest sample before any peak.
    proved: u64,
}

/// Acknowledgements that followed each other closely, so that the acknowledged data passed the bottleneck
/// back to back.
#[derive(Debug, Clone, Copy, Default)]
struct Train {
    start: Instant,
    last: Instant,
    /// The bytes delivered when the train started.
    delivered: u64,
    acks: u32,
}

impl Train {
    /// Counts an acknowledgement. Returns the rate of the train in bytes/s, once it is long enough.
    fn on_ack(&mut self, now: Instant, delivered: u64, min_rtt: Duration) -> Option<u64> {
        let gap = now.saturating_since(self.last);
        let long = now.saturating_since(self.start) > min_rtt;
        if self.acks == 0 || gap > min_rtt / 2 || long {
            *self = Train {
                start: now,
                delivered,
                ..Train::default()
            };
        }
        self.last = now;
        self.acks += 1;
        let lasted = now.saturating_since(self.start);
        let bytes = u128::from(delivered - self.delivered);
        let rate = (bytes * 1_000_000_000).checked_div(lasted.as_nanos())?;
        let tells = self.acks > MIN_TRAIN_ACKS && lasted >= min_rtt / MIN_TRAIN_RTT_DIVISOR;
        tells.then(|| u64::try_from(rate).unwrap_or(u64::MAX))
    }
}

impl RateEstimator {
    /// Creates an estimator. The first flight counts as following a pause, because nothing was sent before.
    pub fn new() -> Self {
        RateEstimator {
            delivered: 0,
            lost: 0,
            newest_lost: None,
            delivered_time: Instant::ZERO,
            first_sent_time: Instant::ZERO,
            app_limited: Some(0),
            rate: 0,
            train: Train::default(),
            peaks: [0; 2],
            peaks_since: Instant::ZERO,
            expected: 0,
            proved: 0,
        }
    }

    /// Returns the rate of the latest sample in bytes/s, 0 before the first. A sample that spans a pause
    /// reflects the application more than the path, so it counts only if it is higher: then more was in
    /// flight than the path holds.
    pub fn rate(&self) -> u64 {
        self.rate
    }

    /// Returns the peak rate of acknowledgements in bytes/s over the last 10 to 20 round trips: the rate of
    /// the bottleneck, or of the pacer if that is lower. Before the first train it is the rate that earlier
    /// subflows found, or more if a sample proves it, or 0.
    pub fn peak(&self) -> u64 {
        match self.peaks[0].max(self.peaks[1]) {
            0 if self.expected > 0 => self.expected.max(self.proved),
            peak => peak,
        }
    }

    /// Sets the [peak](Self::peak) that earlier subflows on the path found, in bytes/s.
    pub fn seed_from(&mut self, rate: u64) {
        self.expected = rate;
    }

    fn note_peak(&mut self, now: Instant, min_rtt: Duration, sample: Option<u64>) {
        if now.saturating_since(self.peaks_since) > PEAK_PERIOD_RTTS * min_rtt {
            self.peaks = [0, self.peaks[0]];
            self.peaks_since = now;
        }
        let train = self.train.on_ack(now, self.delivered, min_rtt);
        // If packets pass too slowly to form trains, a sample is as good.
        let rate = train.max(sample).unwrap_or(0);
        self.peaks[0] = self.peaks[0].max(rate);
    }

    /// Returns the state of a record about to be sent behind `in_flight` bytes. `empty` is set if
    /// everything before it is acknowledged, `paused` if more could have been sent before but was not.
    pub fn on_send(
        &mut self,
        now: Instant,
        in_flight: u64,
        empty: bool,
        paused: bool,
    ) -> PacketState {
        if empty {
            self.first_sent_time = now;
            self.delivered_time = now;
        }
        if paused {
            self.app_limited = Some(self.delivered + in_flight);
        }
        PacketState {
            delivered: self.delivered,
            delivered_time: self.delivered_time,
            first_sent_time: self.first_sent_time,
            in_flight,
            lost: self.lost,
            app_limited: self.app_limited.is_some(),
        }
    }

    /// Notes that a record sent at `sent_at` with the state `before` is deemed lost.
    pub fn note_lost(&mut self, sent_at: Instant, before: &PacketState) {
        if self.newest_lost.is_none_or(|(at, _)| at <= sent_at) {
            self.newest_lost = Some((sent_at, *before));
        }
    }

    /// Counts `bytes` as lost. Returns the state in which the newest of the noted records was sent; the
    /// default if none was noted.
    pub fn on_lost(&mut self, bytes: u64) -> TxState {
        self.lost += bytes;
        let newest = self.newest_lost.take();
        newest.map_or_else(TxState::default, |(_, before)| self.tx_state(&before))
    }

    /// Returns the state in which a record with the counters `before` was sent.
    fn tx_state(&self, before: &PacketState) -> TxState {
        TxState {
            in_flight: before.in_flight,
            lost: self.lost - before.lost,
            app_limited: before.app_limited,
        }
    }

    /// Notes that `bytes` were delivered; the newest record among them was sent at `sent_at` with the state
    /// `before`. Returns no sample if that took less than `min_rtt`: then an earlier transmission was
    /// acknowledged, not the last. A sample that took longer than the timeout `rto` reflects an outage and
    /// does not count for the peak.
    pub fn on_ack(
        &mut self,
        now: Instant,
        bytes: u64,
        sent_at: Instant,
        before: &PacketState,
        min_rtt: Duration,
        rto: Duration,
    ) -> Option<RateSample> {
        self.delivered += bytes;
        self.delivered_time = now;
        if self.app_limited.is_some_and(|end| self.delivered > end) {
            self.app_limited = None;
        }
        self.first_sent_time = sent_at;
        let send_elapsed = sent_at.saturating_since(before.first_sent_time);
        let ack_elapsed = now.saturating_since(before.delivered_time);
        let sample = RateSample {
            delivered: self.delivered - before.delivered,
            interval: send_elapsed.max(ack_elapsed),
            tx: self.tx_state(before),
        };
        let long = sample.interval >= min_rtt.max(Duration::from_nanos(1));
        let tells = long && sample.interval <= rto;
        let whole = tells && !sample.tx.app_limited;
        self.note_peak(now, min_rtt, whole.then(|| sample.rate()));
        // A sample that spans a pause underestimates the path, but may still exceed the expected rate.
        if tells && self.peaks == [0; 2] {
            self.proved = self.proved.max(sample.rate());
        }
        if !long {
            return None;
        }
        if !sample.tx.app_limited || sample.rate() > self.rate {
            self.rate = sample.rate();
        }
        Some(sample)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tcp::scoreboard::{Delivered, Mapping, Scoreboard, Sent};

    const RTT: Duration = Duration::from_millis(100);
    const RTO: Duration = Duration::from_millis(300);

    /// A sender without windows and pacing. Times are in ms.
    struct Flow {
        board: Scoreboard,
        rate: RateEstimator,
        nxt: u64,
    }

    impl Flow {
        fn new() -> Self {
            Flow {
                board: Scoreboard::default(),
                rate: RateEstimator::new(),
                nxt: 1,
            }
        }

        fn state(&mut self, at: u64, paused: bool) -> PacketState {
            let (in_flight, empty) = (self.board.in_flight(), self.board.is_empty());
            let now = Instant::from_millis(at);
            self.rate.on_send(now, in_flight, empty, paused)
        }

        /// Sends one record of `len` bytes.
        fn send(&mut self, at: u64, len: u32, paused: bool) {
            let packet = self.state(at, paused);
            let map = Mapping {
                data: self.nxt - 1,
                sub: self.nxt,
                len,
                fin: false,
                checksum: None,
            };
            self.board.push(Sent {
                start: map.sub,
                end: map.sub_end(),
                map,
                sent_at: Instant::from_millis(at),
                packet,
                retransmitted: false,
                sacked: false,
                lost: false,
                fin: false,
            });
            self.nxt = map.sub_end();
        }

        /// Returns the sample of an acknowledgement: bytes, ms, and whether it spans a pause.
        fn ack(&mut self, at: u64, una: u64, sack: Option<(u64, u64)>) -> Option<(u64, u64, bool)> {
            let mut delivered = Delivered::default();
            self.board.ack_to(una, &mut delivered);
            if let Some((start, end)) = sack {
                self.board.sack(start, end, &mut delivered);
            }
            let now = Instant::from_millis(at);
            let newest = delivered.newest?;
            let (bytes, sent_at) = (delivered.bytes, newest.sent_at);
            let packet = &newest.packet;
            let sample = self.rate.on_ack(now, bytes, sent_at, packet, RTT, RTO)?;
            let ms = sample.interval.as_millis() as u64;
            Some((sample.delivered, ms, sample.tx.app_limited))
        }
    }

    /// Two segments a round trip: 20 kB/s.
    #[test]
    fn a_sample_is_what_was_delivered_since_the_record_left() {
        let mut flow = Flow::new();
        flow.send(1000, 1000, false);
        flow.send(1010, 1000, false);
        assert_eq!(flow.rate.rate(), 0);
        assert_eq!(flow.ack(1100, 1001, None), Some((1000, 100, true)));
        assert_eq!(flow.rate.rate(), 10_000);
        flow.send(1100, 1000, false);
        assert_eq!(flow.ack(1110, 2001, None), Some((2000, 110, true)));
        flow.send(1110, 1000, false);
        assert_eq!(flow.ack(1200, 3001, None), Some((2000, 100, false)));
        assert_eq!(flow.ack(1210, 4001, None), Some((2000, 100, false)));
        assert_eq!(flow.rate.rate(), 20_000);
    }

    /// A segment every 50 ms; the acknowledgements of four arrive in a burst.
    #[test]
    fn heaped_acknowledgements_are_no_faster_than_the_sender() {
        let mut flow = Flow::new();
        flow.send(1000, 1000, false);
        flow.ack(1100, 1001, None);
        for at in [1100, 1150, 1200, 1250] {
            flow.send(at, 1000, false);
        }
        assert_eq!(flow.ack(1240, 2001, None), Some((1000, 140, false)));
        flow.send(1300, 1000, false);
        // 160 ms since the acknowledgement before, 200 ms between the sending of both.
        assert_eq!(flow.ack(1400, 6001, None), Some((4000, 200, false)));
        assert_eq!(flow.rate.rate(), 20_000);
    }

    /// A super-segment arrives in parts; each byte counts once, whichever part reports it.
    #[test]
    fn parts_of_a_record_are_samples_of_it() {
        let mut flow = Flow::new();
        flow.send(1000, 64_000, false);
        let sample = flow.ack(1100, 1, Some((32_001, 48_001)));
        assert_eq!(sample, Some((16_000, 100, true)));
        let sample = flow.ack(1110, 16_001, Some((32_001, 48_001)));
        assert_eq!(sample, Some((32_000, 110, true)));
        assert_eq!(flow.ack(1120, 16_001, Some((32_001, 48_001))), None);
        assert_eq!(flow.ack(1130, 64_001, None), Some((64_000, 130, true)));
    }

    #[test]
    fn a_record_sent_again_counts_from_then() {
        let mut flow = Flow::new();
        flow.send(1000, 3000, false);
        assert_eq!(
            flow.ack(1100, 1, Some((2001, 3001))),
            Some((1000, 100, true))
        );
        flow.board.mark_all_lost();
        let packet = flow.state(1110, false);
        let again = flow
            .board
            .take_lost(Instant::from_millis(1110), packet, 1000);
        assert_eq!(again.map(|sent| (sent.start, sent.end)), Some((1, 1001)));
        // 1000 to 1110 between the sending of the part reported first and of this one.
        assert_eq!(flow.ack(1210, 1001, None), Some((1000, 110, false)));
        // The rest of the record was not sent again: it still has its first state.
        assert_eq!(flow.ack(1220, 3001, None), Some((3000, 220, true)));
    }

    #[test]
    fn samples_over_a_pause_say_so_and_do_not_lower_the_rate() {
        let mut flow = Flow::new();
        flow.send(1000, 10_000, false);
        flow.ack(1100, 10_001, None);
        flow.send(1100, 10_000, false);
        assert_eq!(flow.ack(1200, 20_001, None), Some((10_000, 100, false)));
        flow.send(1300, 1000, true);
        assert_eq!(flow.ack(1400, 21_001, None), Some((1000, 100, true)));
        assert_eq!(flow.rate.rate(), 100_000);
        // A pause with data in flight lasts until that and something more is delivered.
        flow.send(1400, 1000, false);
        flow.send(1450, 1000, true);
        let mut spans = [false; 4];
        for (n, span) in (0u64..).zip(&mut spans) {
            *span = flow.ack(1500 + 50 * n, 22_001 + 1000 * n, None).unwrap().2;
            flow.send(1500 + 50 * n, 1000, false);
        }
        assert_eq!(spans, [false, true, true, false]);
        assert!(flow.rate.rate() < 100_000);
    }

    #[test]
    fn less_than_a_round_trip_is_no_sample() {
        let mut flow = Flow::new();
        flow.send(1000, 1000, false);
        assert_eq!(flow.ack(1099, 1001, None), None);
        assert_eq!(flow.rate.rate(), 0);
    }

    /// Three segments 8 ms apart pass the bottleneck at 125 kB/s, whatever the window lets out in a round
    /// trip. A segment that follows a pause tells nothing about the bottleneck.
    #[test]
    fn the_peak_is_the_rate_at_which_acknowledgements_follow() {
        let mut flow = Flow::new();
        flow.rate.seed_from(60_000);
        for _ in 0..4 {
            flow.send(1000, 1000, false);
        }
        for (at, una, peak) in [
            (1100, 1001, 60_000),
            (1108, 2001, 60_000),
            (1116, 3001, 125_000),
        ] {
            flow.ack(at, una, None);
            assert_eq!(flow.rate.peak(), peak, "{at}");
        }
        flow.ack(1160, 4001, None);
        assert_eq!(flow.rate.peak(), 125_000);
        // Ten round trips later a lower rate counts, and after as many again alone.
        let mut una = 4001;
        for (from, peak) in [(2300, 125_000), (3400, 62_500)] {
            for _ in 0..3 {
                flow.send(from - 100, 1000, false);
            }
            for n in 0..3 {
                una += 1000;
                flow.ack(from + 16 * n, una, None);
            }
            assert_eq!(flow.rate.peak(), peak, "{from}");
        }
    }

    /// A packet that arrives at once proves that the path is faster than recorded.
    #[test]
    fn what_was_expected_gives_way_to_proof() {
        let mut flow = Flow::new();
        flow.rate.seed_from(20);
        flow.send(1000, 1000, false);
        assert_eq!(flow.ack(1100, 1001, None), Some((1000, 100, true)));
        assert_eq!(flow.rate.peak(), 10_000);
        // After a pause the recorded rate is expected again.
        flow.rate.seed_from(20);
        flow.send(1200, 500, true);
        flow.ack(1300, 1501, None);
        assert_eq!(flow.rate.peak(), 10_000);
    }

    /// Nothing gets through for 10 s, neither the data in flight nor its retransmission.
    #[test]
    fn an_outage_is_not_the_rate() {
        let mut flow = Flow::new();
        flow.rate.seed_from(125_000);
        flow.send(1000, 1000, false);
        flow.ack(1100, 1001, None);
        for _ in 0..2 {
            flow.send(1100, 1000, false);
        }
        assert_eq!(flow.ack(11_100, 2001, None), Some((1000, 10_000, false)));
        assert_eq!(flow.rate.peak(), 125_000);
        flow.board.mark_all_lost();
        let packet = flow.state(11_100, false);
        let now = Instant::from_millis(11_100);
        assert!(flow.board.take_lost(now, packet, 1000).is_some());
        flow.ack(11_200, 3001, None);
        assert_eq!(flow.rate.peak(), 125_000);
    }

    /// A busy host processes acknowledgements one right behind the other.
    #[test]
    fn a_heap_is_no_train() {
        let mut flow = Flow::new();
        for _ in 0..6 {
            flow.send(1000, 1000, false);
        }
        for n in 1..=6 {
            flow.ack(1100 + n, 1000 * n + 1, None);
        }
        assert_eq!(flow.rate.peak(), 0);
    }
}
