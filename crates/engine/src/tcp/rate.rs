//! The delivery rate of a subflow (draft-cheng-iccrg-delivery-rate-estimation-02).
//!
//! Every record stores the number of bytes that had been delivered when the record was sent. A sample of the rate
//! is the number of bytes delivered between the sending and the delivery of a record, divided by the time between
//! these two events. A receiver that merges segments acknowledges them in bursts, which can take less time than
//! sending the same bytes took. So a sample uses the longer one: the time of sending or the time of delivery.

use core::time::Duration;

use braid_wire::Instant;

use crate::cc::{RateSample, TxState};

/// The minimum number of packets that must follow the first one of a train before the train yields a rate. The
/// value is a guess: with 1, the rate would be that of a single gap and depend on the jitter of one packet.
const MIN_TRAIN_PACKETS: u32 = 2;

/// The minimum duration of a train is the round trip divided by this. A busy host or a link that aggregates
/// frames delivers packets in a burst, and such a burst would yield far too high a rate. The value
/// is a guess: a lower one ignores more real trains, a higher one accepts more bursts.
const MIN_TRAIN_RTT_DIVISOR: u32 = 16;

/// The length in round trips of a period in which the peak rate is recorded; a peak counts for one to two periods.
/// BBR version 1 keeps its highest rate for 10 round trips too.
const PEAK_PERIOD_RTTS: u32 = 10;

/// The estimator's state when a record was sent. The parts of a split record have the same state, since they left
/// together.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct PacketState {
    /// The bytes delivered before the record was sent.
    delivered: u64,
    /// The time of the last delivery before the record was sent.
    delivered_time: Instant,
    /// The send time of the newest record delivered before this record was sent (`P.first_sent_time`). The time
    /// that sending a sample's bytes took is counted from here.
    first_sent_time: Instant,
    /// The bytes in flight before the record was sent.
    in_flight: u64,
    /// The bytes lost before the record was sent.
    lost: u64,
    /// True if the record was sent while a pause of the sender still had an effect (see
    /// `RateEstimator::app_limited`).
    app_limited: bool,
}

/// The rate estimator of one subflow.
#[derive(Debug)]
pub(crate) struct RateEstimator {
    delivered: u64,
    lost: u64,
    /// The send time and state of the newest record among those now being marked as lost.
    newest_lost: Option<(Instant, PacketState)>,
    delivered_time: Instant,
    first_sent_time: Instant,
    /// The value of `delivered` above which the last pause has no effect any more (`C.app_limited`). Records sent
    /// at a lower or equal value count as application-limited. `None` if no pause has an effect.
    app_limited: Option<u64>,
    /// The latest rate in bytes/s.
    rate: u64,
    train: Train,
    peak: Peak,
    /// The peak rate that earlier subflows on the path measured; zero if none did.
    seeded_peak: u64,
    /// The highest rate of the samples taken while there was no peak. Such a sample may span a pause.
    max_early_sample: u64,
}

/// A packet train: packets that followed each other closely, because they (or the data that they acknowledge)
/// passed the bottleneck back to back. The rate of the train is the rate of the bottleneck.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Train {
    /// The time of the first packet.
    start: Instant,
    /// The time of the latest packet.
    last: Instant,
    /// The total number of bytes delivered up to the end of the first packet. The bytes of the first packet do not
    /// count for the train, because they passed the bottleneck before the train's time began.
    delivered: u64,
    /// The number of packets, the first one included.
    packets: u32,
}

impl Train {
    /// Counts a packet, with which `delivered` bytes are delivered in total. Returns the rate of the train in
    /// bytes/s once the train is long enough.
    pub fn on_packet(&mut self, now: Instant, delivered: u64, min_rtt: Duration) -> Option<u64> {
        // A train measures the present rate, so a new one starts after a round trip at the latest.
        let is_over = now > self.start + min_rtt;
        // After half a round trip without a packet the bottleneck has probably been idle. The limit is a
        // guess: a shorter limit would break the trains of slow paths.
        let is_broken = now > self.last + min_rtt / 2;
        if self.packets == 0 || is_broken || is_over {
            *self = Train {
                start: now,
                delivered,
                ..Train::default()
            };
        }
        self.last = now;
        self.packets += 1;
        let is_usable =
            self.packets > MIN_TRAIN_PACKETS && now >= self.start + min_rtt / MIN_TRAIN_RTT_DIVISOR;
        if !is_usable {
            return None;
        }
        let duration = now.saturating_since(self.start);
        let bytes = u128::from(delivered - self.delivered);
        let rate = (bytes * 1_000_000_000).checked_div(duration.as_nanos())?;
        Some(u64::try_from(rate).unwrap_or(u64::MAX))
    }
}

/// The highest rate of the last one or two periods of [`PEAK_PERIOD_RTTS`].
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Peak {
    /// The highest rates in bytes/s of the current period and the previous one.
    rates: [u64; 2],
    /// The start of the current period.
    since: Instant,
}

impl Peak {
    /// Returns the peak in bytes/s; 0 without a sample.
    pub fn get(&self) -> u64 {
        self.rates[0].max(self.rates[1])
    }

    /// Adds a sample in bytes/s, if there is one. `rtt` is the round trip, by which periods are measured.
    pub fn note(&mut self, now: Instant, rtt: Duration, rate: Option<u64>) {
        if now > self.since + PEAK_PERIOD_RTTS * rtt {
            self.rates = [0, self.rates[0]];
            self.since = now;
        }
        self.rates[0] = self.rates[0].max(rate.unwrap_or(0));
    }
}

impl RateEstimator {
    /// Creates an estimator. The first flight counts as application-limited: the sender was idle before, so the
    /// samples of that flight are below the rate of the path.
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
            peak: Peak::default(),
            seeded_peak: 0,
            max_early_sample: 0,
        }
    }

    /// Returns the rate of the latest sample in bytes/s; 0 before the first sample. A sample that spans a pause is
    /// only a lower bound of the path's rate. It is ignored unless it is higher than the sample before it.
    pub fn rate(&self) -> u64 {
        self.rate
    }

    /// Returns the peak rate of acknowledgements in bytes/s over the last 10 to 20 round trips: the rate of the
    /// bottleneck, or of the pacer if the pacer is slower. As long as this subflow has no such rate, the result is
    /// the peak that earlier subflows measured, or the highest sample if it exceeds that peak. If earlier subflows
    /// measured no peak either, the result is 0: samples that span a pause may be far too low.
    pub fn peak(&self) -> u64 {
        match self.peak.get() {
            0 if self.seeded_peak > 0 => self.seeded_peak.max(self.max_early_sample),
            peak => peak,
        }
    }

    /// Returns whether this subflow has measured a peak itself.
    pub fn has_peak(&self) -> bool {
        self.peak.get() > 0
    }

    /// Sets the [peak](Self::peak) that earlier subflows on the path measured, in bytes/s.
    pub fn seed_from(&mut self, rate: u64) {
        self.seeded_peak = rate;
    }

    /// Updates the peak with the train that an acknowledgement belongs to, and with the rate of its `sample`.
    fn note_peak(&mut self, now: Instant, min_rtt: Duration, sample: Option<u64>) {
        let train = self.train.on_packet(now, self.delivered, min_rtt);
        // On a slow path more than half a round trip may pass between acknowledgements, so that no train forms. On
        // such a path a sample measures the bottleneck as well as a train does.
        self.peak.note(now, min_rtt, train.max(sample));
    }

    /// Returns the state of a record that is about to be sent while `in_flight` bytes are in flight. `empty` is
    /// set if everything sent before is acknowledged; `paused` is set if the sender has sent less than it was
    /// allowed to.
    pub fn on_send(
        &mut self,
        now: Instant,
        in_flight: u64,
        empty: bool,
        paused: bool,
    ) -> PacketState {
        if empty {
            // The idle time does not count as time of sending or of delivery.
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

    /// Notes that a record sent at `sent_at` with the state `before` is marked as lost.
    pub fn note_lost(&mut self, sent_at: Instant, before: &PacketState) {
        if self.newest_lost.is_none_or(|(at, _)| at <= sent_at) {
            self.newest_lost = Some((sent_at, *before));
        }
    }

    /// Counts `bytes` as lost. [`note_lost`](Self::note_lost) has reported the lost records since the last call:
    /// returns the state in which the newest of them was sent, or the default if there is none.
    pub fn on_lost(&mut self, bytes: u64) -> TxState {
        self.lost += bytes;
        let newest = self.newest_lost.take();
        newest.map_or_else(TxState::default, |(_, before)| self.tx_state(&before))
    }

    /// Converts the state `before` of a record into the form that controllers use, with the bytes lost since.
    fn tx_state(&self, before: &PacketState) -> TxState {
        TxState {
            in_flight: before.in_flight,
            lost: self.lost - before.lost,
            app_limited: before.app_limited,
        }
    }

    /// Notes that `bytes` were delivered; the newest record among them was sent at `sent_at` with the state
    /// `before`. Returns no sample if the sample would cover less time than `min_rtt`: in that case the
    /// acknowledgement was for an earlier transmission of the record, not for the last one. A sample that
    /// covers more time than the timeout `rto` reflects an outage and does not count for the peak.
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
        // At least 1 ns, because the rate is divided by the interval.
        let is_valid = sample.interval >= min_rtt.max(Duration::from_nanos(1));
        let is_without_outage = is_valid && sample.interval <= rto;
        let shows_path_rate = is_without_outage && !sample.tx.app_limited;
        self.note_peak(now, min_rtt, shows_path_rate.then(|| sample.rate()));
        // A sample that spans a pause underestimates the path, but may still exceed the seeded peak.
        if is_without_outage && self.peak.get() == 0 {
            self.max_early_sample = self.max_early_sample.max(sample.rate());
        }
        if !is_valid {
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

    /// A sender without a congestion window and without pacing. Times are in ms.
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

        /// Returns the state of a record that is sent now.
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

        /// Processes an acknowledgement up to `una`, with the SACK block `sack`. Returns its sample: the bytes,
        /// the interval in ms, and whether the sample is application-limited.
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

    /// Two segments of 1000 bytes in each round trip of 100 ms are 20 kB/s.
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

    /// Every 50 ms 1000 bytes are sent, which is 20 kB/s. A single acknowledgement covers four segments.
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
        // The acknowledgement before arrived at 1240, 160 ms ago. Its newest record was sent at 1100. The newest
        // record of this acknowledgement was sent at 1300, 200 ms later, and 200 ms is the longer time.
        assert_eq!(flow.ack(1400, 6001, None), Some((4000, 200, false)));
        assert_eq!(flow.rate.rate(), 20_000);
    }

    /// A super-segment is acknowledged in parts; each byte counts once, even if a SACK block is repeated.
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
        // The part that was delivered first was sent at 1000, and this part at 1110. These 110 ms are more than
        // the 100 ms between the deliveries.
        assert_eq!(flow.ack(1210, 1001, None), Some((1000, 110, false)));
        // The rest of the record was not retransmitted: it still has its first state, 220 ms old.
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
        // The effect of a pause ends when two things are delivered: the data in flight during the pause, and the
        // first record after the pause.
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

    /// Segments of 1000 bytes that arrive 8 ms apart pass the bottleneck at 125 kB/s, although only 4000 bytes
    /// are sent in a round trip of 100 ms. An acknowledgement 44 ms later does not change the peak.
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
        // 1000 bytes in 16 ms are a lower rate. This rate does not replace the peak in the next period of ten
        // round trips, but it does in the period after that one.
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

    /// A packet of 1000 bytes that arrives within 100 ms proves more than the recorded 20 bytes/s.
    #[test]
    fn what_was_expected_gives_way_to_proof() {
        let mut flow = Flow::new();
        flow.rate.seed_from(20);
        flow.send(1000, 1000, false);
        assert_eq!(flow.ack(1100, 1001, None), Some((1000, 100, true)));
        assert_eq!(flow.rate.peak(), 10_000);
        // The recorded rate is set again after a pause: the sample of 10 kB/s still counts.
        flow.rate.seed_from(20);
        flow.send(1200, 500, true);
        flow.ack(1300, 1501, None);
        assert_eq!(flow.rate.peak(), 10_000);
    }

    /// An outage delays the acknowledgement of the data in flight by 10 s: the sample of 100 bytes/s does not
    /// replace the peak, nor does the sample of the retransmission.
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

    /// A busy host processes acknowledgements 1 ms apart: five such gaps are less than a sixteenth of the round
    /// trip, 6.25 ms.
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
