//! The path model of BBR (draft-ietf-ccwg-bbr-06 section 5.5): rate, round-trip time, and the bounds of the
//! data in flight. Names in brackets are the draft's, and all constants have the draft's values.

use core::ops::RangeInclusive;
use core::time::Duration;

use braid_wire::Instant;

use super::{AckSample, RateSample};

/// The value of a bound that is not set.
pub(super) const UNBOUNDED: u64 = u64::MAX;
/// The percentage of the data in flight that a probe of the path may lose (`LossThresh`).
const LOSS_THRESH_PERCENT: u64 = 2;
/// The minimum percentage of the short-term model that remains after a round with losses (`Beta`). CUBIC has the
/// same factor.
pub(super) const BETA_PERCENT: u64 = 70;
/// The time after which the lowest round trip is forgotten, because the route may have changed
/// (`MinRTTFilterLen`).
const MIN_RTT_FILTER_LEN: Duration = Duration::from_secs(10);
/// The time after which a probe of the round trip is due (`ProbeRTTInterval`). The time begins anew with each
/// round trip that is as low as the lowest one.
const PROBE_RTT_INTERVAL: Duration = Duration::from_secs(5);
/// The number of rounds in a period of [`Aggregation`]: half of the draft's ten rounds (`ExtraAckedFilterLen`).
/// The results of two periods are kept, so that each result counts for five to ten rounds.
const EXTRA_ACKED_ROUNDS: u64 = 5;
/// The number of rounds in a row after which the pipe counts as full, if the rate grows by less than a quarter in
/// each of them. In a single round the peer's window or a burst may hide growth.
const FULL_BW_ROUNDS: u32 = 3;

/// Returns `percent` of `value`.
pub(super) fn share(value: u64, percent: u64) -> u64 {
    let part = u128::from(value) * u128::from(percent) / 100;
    u64::try_from(part).unwrap_or(u64::MAX)
}

/// Returns the number of bytes that a rate of `rate` bytes/s delivers in `time`.
fn carried(rate: u64, time: Duration) -> u64 {
    let bytes = u128::from(rate) * time.as_nanos() / 1_000_000_000;
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

/// Returns the time that `bytes` take at `rate` bytes/s; zero if the rate is not known yet.
fn time_of(bytes: u64, rate: u64) -> Duration {
    let nanos = (bytes * 1_000_000_000).checked_div(rate);
    Duration::from_nanos(nanos.unwrap_or(0))
}

/// Returns the rate in bytes/s that delivers `bytes` in `time`; `None` if `time` is zero.
pub(super) fn rate_over(bytes: u64, time: Duration) -> Option<u64> {
    let rate = (u128::from(bytes) * 1_000_000_000).checked_div(time.as_nanos())?;
    Some(u64::try_from(rate).unwrap_or(u64::MAX))
}

/// Returns whether losing `lost` of `in_flight` bytes is more than a probe may cause (`IsInflightTooHigh`).
pub(super) fn is_inflight_too_high(lost: u64, in_flight: u64) -> bool {
    lost > share(in_flight, LOSS_THRESH_PERCENT)
}

/// Returns the number of bytes in flight at which the losses became more than a probe may cause
/// (`InflightAtLoss`). `lost` of `in_flight` bytes were lost, among them the `size` bytes sent last.
pub(super) fn in_flight_at_loss(in_flight: u64, lost: u64, size: u64) -> u64 {
    let before = in_flight.saturating_sub(size);
    let lost_before = lost.saturating_sub(size);
    // The losses reach 2 % after the first `prefix` of the last `size` bytes. `prefix` solves the equation
    // lost_before + prefix = 2 % * (before + prefix).
    let prefix = share(before, LOSS_THRESH_PERCENT).saturating_sub(lost_before) * 100
        / (100 - LOSS_THRESH_PERCENT);
    before + prefix
}

/// The detection of a full pipe: the delivery rate does not grow any more although the flow sends faster
/// (section 5.3.1.2).
#[derive(Debug, Default)]
pub(super) struct FullPipe {
    /// The rate in bytes/s from which growth is measured.
    pub bw: u64,
    /// The number of rounds in a row without growth.
    count: u32,
    /// True if the pipe was found full since the search began (`full_bw_now`).
    pub now: bool,
    /// True if the pipe was ever found full (`full_bw_reached`), which ends Startup.
    pub reached: bool,
}

impl FullPipe {
    /// Begins a search at a rate of `bw` bytes/s (`ResetFullBW`).
    pub fn restart(&mut self, bw: u64) {
        *self = FullPipe {
            bw,
            reached: self.reached,
            ..FullPipe::default()
        };
    }

    /// Notes that a round began with a sample of `rate` (`CheckFullBWReached`).
    fn on_round(&mut self, rate: u64) {
        if self.now {
            return;
        }
        // If the rate grows by a quarter, the pipe is not full. In Startup the flow sends nearly three times as
        // fast as the path delivered before, so a pipe that is not full yet lets the rate grow by more than a
        // quarter.
        if rate >= share(self.bw, 125) {
            self.restart(rate);
            return;
        }
        self.count += 1;
        self.now = self.count >= FULL_BW_ROUNDS;
        self.reached |= self.now;
    }
}

/// The aggregation of acknowledgements: the number of bytes by which deliveries run ahead of the estimated rate
/// when acknowledgements arrive in bursts (section 5.5.9). The window grows by this number, so that the flow can
/// send during the silence before the next burst.
#[derive(Debug, Default)]
struct Aggregation {
    /// The start of the interval over which deliveries are compared with the rate.
    since: Instant,
    /// The bytes delivered in the interval.
    delivered: u64,
    /// The largest excess in bytes in the current period, and that in the previous period.
    largest: [u64; 2],
    /// The number of the round in which the current period began.
    period_start: u64,
}

impl Aggregation {
    /// Processes an acknowledgement in the given round, at an estimated rate of `bw` bytes/s. A period takes
    /// `period_rounds`. The excess is at most `cwnd`, since more bytes cannot be acknowledged at once.
    fn on_ack(&mut self, ack: &AckSample<'_>, bw: u64, cwnd: u64, round: u64, period_rounds: u64) {
        let mut expected = carried(bw, ack.now.saturating_since(self.since));
        // If deliveries have fallen behind the rate, the burst is over, and the measurement of the next burst
        // begins now.
        if self.delivered <= expected {
            self.restart(ack.now);
            expected = 0;
        }
        self.delivered += ack.delivered;
        if round >= self.period_start + period_rounds {
            self.largest = [0, self.largest[0]];
            self.period_start = round;
        }
        let extra = self.delivered.saturating_sub(expected).min(cwnd);
        self.largest[0] = self.largest[0].max(extra);
    }

    fn restart(&mut self, now: Instant) {
        self.delivered = 0;
        self.since = now;
    }

    fn largest(&self) -> u64 {
        self.largest[0].max(self.largest[1])
    }
}

/// The lowest round trip, and the time to probe for a new one (section 5.3.4.3). Unlike in the draft, a round trip
/// that is about as low as the lowest one postpones the probe too, because such a round trip shows that the queue
/// empties by itself. In the draft only a lower round trip postpones the probe. So a flow that is alone on its
/// link would hold back every five seconds, and would measure a round trip that it knows already.
#[derive(Debug, Default)]
struct MinRtt {
    /// The lowest round trip of the last ten seconds (`min_rtt`); zero before the first sample.
    rtt: Duration,
    /// The time of the measurement of `rtt`.
    at: Instant,
    /// The lowest round trip since a probe was last due (`probe_rtt_min_delay`); zero before the first sample.
    probed: Duration,
    /// The last time at which a round trip as low as `probed` was measured.
    probed_at: Instant,
    /// True if no round trip as low as `probed` was measured for [`PROBE_RTT_INTERVAL`].
    expired: bool,
}

impl MinRtt {
    /// Notes a round trip; a round trip that is longer than the lowest one by at most `slack` counts as equally
    /// low.
    fn on_ack(&mut self, now: Instant, rtt: Option<Duration>, slack: Duration) {
        self.expired = now > self.probed_at + PROBE_RTT_INTERVAL && !self.probed.is_zero();
        if let Some(rtt) = rtt
            && (self.probed.is_zero() || rtt < self.probed || self.expired)
        {
            self.probed = rtt;
            self.probed_at = now;
        } else if rtt.is_some_and(|rtt| rtt <= self.probed + slack) {
            self.probed_at = now;
        }
        let lower = self.rtt.is_zero() || self.probed < self.rtt;
        if lower || now > self.at + MIN_RTT_FILTER_LEN {
            self.rtt = self.probed;
            self.at = self.probed_at;
        }
    }
}

/// Packet-timed round trips (section 5.5.1): a round ends when data sent after its beginning is acknowledged. A
/// round of the state machine also begins when the state changes. A loss round also begins anew at the first loss
/// in it.
#[derive(Debug, Default)]
pub(super) struct Rounds {
    /// The delivered count at the beginning of the current round.
    next: u64,
    /// The delivered count at the beginning of the current loss round.
    loss_next: u64,
    /// The number of rounds of the state machine.
    pub count: u64,
    /// True if this acknowledgement begins a round.
    pub start: bool,
    /// True if this acknowledgement begins a loss round.
    pub loss_start: bool,
    /// True if there was a loss in the current loss round.
    pub is_loss_in_round: bool,
    /// The number of loss reports in the current loss round (`loss_events_in_round`).
    pub losses: u32,
}

/// The path model.
#[derive(Debug)]
pub(super) struct Model {
    /// The total number of bytes delivered.
    delivered: u64,
    /// The sample of the acknowledgement that is being processed.
    pub sample: Option<RateSample>,
    /// The values of `delivered` at which the flow held itself back for ProbeRTT. A sample counts as
    /// application-limited if its data was sent at one of these values.
    app_limited_range: RangeInclusive<u64>,
    pub rounds: Rounds,
    pub full: FullPipe,
    aggregation: Aggregation,
    min_rtt: MinRtt,
    /// The highest rates in bytes/s of the current cycle of probing and the previous one.
    max_bw: [u64; 2],
    /// The highest rate in bytes/s of the current loss round.
    bw_latest: u64,
    /// The maximum number of bytes delivered during a round trip in the current loss round.
    inflight_latest: u64,
    /// The short-term bound of the rate in bytes/s. A loss outside of a probe sets the bound; the next probe
    /// removes it.
    pub bw_shortterm: u64,
    /// The short-term bound of the data in flight. A loss outside of a probe sets the bound; the next probe
    /// removes it.
    pub inflight_shortterm: u64,
    /// The long-term bound of the data in flight. Losses in Startup or in a probe set the bound. The next probe
    /// does not remove it. The bound rises when more data in flight causes little loss.
    pub inflight_longterm: u64,
}

impl Model {
    pub fn new() -> Self {
        Model {
            delivered: 0,
            sample: None,
            // An empty range: the flow has not held itself back.
            app_limited_range: RangeInclusive::new(1, 0),
            rounds: Rounds::default(),
            full: FullPipe::default(),
            aggregation: Aggregation::default(),
            min_rtt: MinRtt::default(),
            max_bw: [0; 2],
            bw_latest: 0,
            inflight_latest: 0,
            bw_shortterm: UNBOUNDED,
            inflight_shortterm: UNBOUNDED,
            inflight_longterm: UNBOUNDED,
        }
    }

    pub fn delivered(&self) -> u64 {
        self.delivered
    }

    pub fn max_bw(&self) -> u64 {
        self.max_bw[0].max(self.max_bw[1])
    }

    /// Returns the estimated rate in bytes/s: the highest rate, or the short-term bound if it is lower.
    pub fn bw(&self) -> u64 {
        self.max_bw().min(self.bw_shortterm)
    }

    /// Returns `percent` of the bandwidth-delay product in bytes; `None` before the first round trip.
    pub fn bdp(&self, percent: u64) -> Option<u64> {
        let rtt = self.min_rtt.rtt;
        (!rtt.is_zero()).then(|| share(carried(self.bw(), rtt), percent))
    }

    /// Returns the rate in bytes/s at which `bytes` would be the bandwidth-delay product; `None` before the first
    /// round trip.
    pub fn rate_of(&self, bytes: u64) -> Option<u64> {
        rate_over(bytes, self.min_rtt.rtt)
    }

    pub fn extra_acked(&self) -> u64 {
        self.aggregation.largest()
    }

    /// Returns the maximum number of bytes delivered during a round trip in the current loss round.
    pub fn inflight_latest(&self) -> u64 {
        self.inflight_latest
    }

    /// Processes an acknowledgement, with a window of `cwnd` bytes. `probing` is set while the flow probes for
    /// bandwidth: the losses that a probe causes do not lower the short-term model.
    pub fn on_ack(&mut self, ack: &AckSample<'_>, cwnd: u64, probing: bool) {
        self.delivered += ack.delivered;
        self.sample = ack.rate.map(|sample| self.mark_app_limited(sample));
        self.rounds.start = false;
        self.rounds.loss_start = false;
        if let Some(sample) = self.sample {
            self.on_sample(sample);
        }
        if self.rounds.loss_start {
            if self.rounds.is_loss_in_round && !probing {
                self.adapt_to_loss(cwnd);
            }
            self.rounds.is_loss_in_round = false;
        }
        // In Startup the rate grows so fast that an excess over an earlier rate says nothing about the present
        // one, so a period is a single round.
        let period_rounds = match self.full.reached {
            true => EXTRA_ACKED_ROUNDS,
            false => 1,
        };
        let bw = self.bw();
        self.aggregation
            .on_ack(ack, bw, cwnd, self.rounds.count, period_rounds);
        if let Some(sample) = self.sample
            && self.rounds.start
            && !sample.tx.app_limited
        {
            self.full.on_round(sample.rate());
        }
    }

    /// Returns `sample`, marked as application-limited if its newest record was sent while the flow held itself
    /// back.
    fn mark_app_limited(&self, mut sample: RateSample) -> RateSample {
        let prior_delivered = self.delivered.saturating_sub(sample.delivered);
        sample.tx.app_limited |= self.app_limited_range.contains(&prior_delivered);
        sample
    }

    /// Notes that the flow holds itself back, with `in_flight` bytes in flight, until these are delivered
    /// (`MarkConnectionAppLimited`).
    pub fn hold_back(&mut self, in_flight: u64) {
        let since = match self.app_limited_range.contains(&self.delivered) {
            true => *self.app_limited_range.start(),
            false => self.delivered,
        };
        self.app_limited_range = since..=self.delivered + in_flight;
    }

    /// Updates the delivery signals and the highest rate (`UpdateLatestDeliverySignals` and `UpdateMaxBw`).
    fn on_sample(&mut self, sample: RateSample) {
        let rate = sample.rate();
        // The delivered count when the newest delivered record was sent.
        let prior_delivered = self.delivered.saturating_sub(sample.delivered);
        self.bw_latest = self.bw_latest.max(rate);
        self.inflight_latest = self.inflight_latest.max(sample.delivered);
        if prior_delivered >= self.rounds.loss_next {
            self.rounds.loss_next = self.delivered;
            self.rounds.loss_start = true;
        }
        if prior_delivered >= self.rounds.next {
            self.start_round();
            self.rounds.count += 1;
            self.rounds.start = true;
        }
        // An application-limited sample is only a lower bound of the rate of the path, so it is ignored if it is
        // lower than the highest rate.
        if !sample.tx.app_limited || rate >= self.max_bw() {
            self.max_bw[0] = self.max_bw[0].max(rate);
        }
    }

    /// Lowers the short-term model after losses (`AdaptLowerBoundsFromCongestion`).
    fn adapt_to_loss(&mut self, cwnd: u64) {
        if self.bw_shortterm == UNBOUNDED {
            self.bw_shortterm = self.max_bw();
        }
        if self.inflight_shortterm == UNBOUNDED {
            self.inflight_shortterm = cwnd;
        }
        self.bw_shortterm = self.bw_latest.max(share(self.bw_shortterm, BETA_PERCENT));
        let in_flight = share(self.inflight_shortterm, BETA_PERCENT);
        self.inflight_shortterm = self.inflight_latest.max(in_flight);
    }

    /// Ends the processing of an acknowledgement (`AdvanceLatestDeliverySignals`). As in the draft, this step
    /// follows the updates of the state machine, because these updates use the values of the round that ends.
    pub fn advance(&mut self) {
        if let (Some(sample), true) = (self.sample, self.rounds.loss_start) {
            self.bw_latest = sample.rate();
            self.inflight_latest = sample.delivered;
        }
        if self.rounds.loss_start {
            self.rounds.losses = 0;
        }
    }

    /// Processes the round trip that an acknowledgement measured. Returns whether it is time to probe for a lower
    /// one.
    pub fn on_rtt(&mut self, ack: &AckSample<'_>, mss: u64) -> bool {
        // With an application-limited sample the rate says nothing about the path.
        let shows_path_rate = self.sample.is_some_and(|s| !s.tx.app_limited);
        // The lowest round trip may be that of a SYN. A segment of `mss` bytes takes longer to transmit, and only
        // every second segment is acknowledged: even with an empty queue, the round trip of data can be longer by
        // the time of two segments.
        let slack = match shows_path_rate {
            true => time_of(2 * mss, self.bw()),
            false => Duration::ZERO,
        };
        self.min_rtt.on_ack(ack.now, ack.rtt, slack);
        self.min_rtt.expired
    }

    /// Notes that a probe of the round trip has ended: the next one is due an interval later.
    pub fn note_probed(&mut self, now: Instant) {
        self.min_rtt.probed_at = now;
    }

    /// Notes a loss. Returns whether it is the first in a loss round.
    pub fn note_loss(&mut self) -> bool {
        let first = !self.rounds.is_loss_in_round;
        if first {
            self.rounds.loss_next = self.delivered;
        }
        self.rounds.is_loss_in_round = true;
        self.rounds.losses += 1;
        first
    }

    /// Begins a round of the state machine with the data sent from now on (`StartRound`).
    pub fn start_round(&mut self) {
        self.rounds.next = self.delivered;
    }

    /// Ends a cycle of probing, and forgets the highest rate of the cycle before it (`AdvanceMaxBwFilter`).
    pub fn advance_max_bw(&mut self) {
        self.max_bw = [0, self.max_bw[0]];
    }

    /// Resets the congestion signals (`ResetCongestionSignals`).
    pub fn forget_signals(&mut self) {
        self.rounds.is_loss_in_round = false;
        self.bw_latest = 0;
        self.inflight_latest = 0;
    }

    /// Removes the short-term bounds (`ResetShortTermModel`).
    pub fn forget_shortterm(&mut self) {
        self.bw_shortterm = UNBOUNDED;
        self.inflight_shortterm = UNBOUNDED;
    }

    /// Restarts the measurement of aggregation after a pause. Otherwise the pause would count as time in which
    /// data could have been delivered.
    pub fn restart(&mut self, now: Instant) {
        self.aggregation.restart(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cc::TxState;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// Returns an acknowledgement of the data that `rate` delivers in a round of 100 ms, with its rate sample.
    fn ack<'a>(at: u64, rate: u64, app_limited: bool) -> AckSample<'a> {
        AckSample {
            now: Instant::from_millis(at),
            delivered: rate / 10,
            rtt: Some(ms(100)),
            rate: Some(RateSample {
                delivered: rate / 10,
                interval: ms(100),
                tx: TxState {
                    app_limited,
                    ..TxState::default()
                },
            }),
            ..AckSample::default()
        }
    }

    /// Processes an acknowledgement as the controller does, without a state machine.
    fn take(model: &mut Model, ack: &AckSample<'_>, probing: bool) {
        model.on_ack(ack, 20_000, probing);
        model.on_rtt(ack, 1_000);
        model.advance();
    }

    #[test]
    fn the_highest_rate_of_two_cycles_counts() {
        let mut model = Model::new();
        take(&mut model, &ack(100, 100_000, false), true);
        assert_eq!((model.bw(), model.bdp(200)), (100_000, Some(20_000)));
        take(&mut model, &ack(200, 50_000, false), true);
        assert_eq!(model.bw(), 100_000);
        // An application-limited sample counts if it is higher.
        take(&mut model, &ack(300, 110_000, true), true);
        assert_eq!(model.bw(), 110_000);
        model.advance_max_bw();
        take(&mut model, &ack(400, 60_000, true), true);
        take(&mut model, &ack(500, 80_000, false), true);
        assert_eq!(model.bw(), 110_000);
        model.advance_max_bw();
        assert_eq!(model.bw(), 80_000);
    }

    /// Section 5.3.1.2: the pipe is full after three rounds without growth by a quarter.
    #[test]
    fn a_pipe_is_full_when_rates_grow_no_longer() {
        let mut full = FullPipe::default();
        for rate in [100, 200, 250, 312, 312] {
            full.on_round(rate);
        }
        assert!(!full.now);
        full.on_round(389);
        full.on_round(300);
        assert!(full.now && full.reached);
        full.restart(300);
        assert!(!full.now && full.reached);
        full.on_round(375);
        assert_eq!(full.bw, 375);
    }

    /// Section 5.5.10.3: losses lower the short-term model to the latest rate, but by at most 30 % in a round. The
    /// window is 20,000 bytes: 70 % are 14,000.
    #[test]
    fn losses_lower_the_short_term_model_once_a_round() {
        let mut model = Model::new();
        take(&mut model, &ack(100, 100_000, false), false);
        assert!(model.note_loss());
        assert!(!model.note_loss());
        take(&mut model, &ack(200, 90_000, false), false);
        assert_eq!(model.bw(), 100_000);
        assert_eq!(model.inflight_shortterm, 14_000);
        model.note_loss();
        take(&mut model, &ack(300, 10_000, false), false);
        take(&mut model, &ack(400, 10_000, false), false);
        assert_eq!(model.bw(), 90_000);
        model.note_loss();
        take(&mut model, &ack(500, 10_000, false), false);
        assert_eq!(model.bw(), 63_000);
        model.forget_shortterm();
        assert_eq!(model.bw(), 100_000);
        // While the flow probes, losses do not lower the short-term model.
        model.note_loss();
        take(&mut model, &ack(600, 10_000, false), true);
        assert_eq!(model.bw(), 100_000);
    }

    #[test]
    fn the_lowest_round_trip_is_sought_anew_after_five_seconds() {
        let mut model = Model::new();
        let at = |at, rtt| AckSample {
            now: Instant::from_millis(at),
            rtt: Some(ms(rtt)),
            ..AckSample::default()
        };
        assert!(!model.on_rtt(&at(100, 40), 1_000));
        assert!(!model.on_rtt(&at(5_100, 60), 1_000));
        assert!(model.on_rtt(&at(5_101, 60), 1_000));
        assert_eq!(model.min_rtt.rtt, ms(40));
        assert!(!model.on_rtt(&at(5_200, 60), 1_000));
        // The lowest round trip is forgotten ten seconds after its measurement.
        assert!(!model.on_rtt(&at(10_100, 50), 1_000));
        assert_eq!(model.min_rtt.rtt, ms(40));
        model.on_rtt(&at(10_101, 70), 1_000);
        assert_eq!(model.min_rtt.rtt, ms(50));
    }

    /// At the rate of a chat, 1 kB/s, two segments take two seconds. This rate is the application's and must not
    /// make a round trip with a queue count as equally low. At the 100 kB/s of a transfer two segments take 20 ms:
    /// 90 ms count as equally low as 70 ms, 91 ms do not.
    #[test]
    fn what_the_application_holds_back_gives_no_slack() {
        let mut model = Model::new();
        let mut round = |at, rate, rtt, app_limited| {
            let ack = AckSample {
                rtt: Some(ms(rtt)),
                ..ack(at, rate, app_limited)
            };
            model.on_ack(&ack, 20_000, true);
            model.on_rtt(&ack, 1_000)
        };
        assert!(!round(100, 1_000, 40, true));
        let chat = (200..15_000).step_by(100);
        let probed = chat.into_iter().find(|at| round(*at, 1_000, 70, true));
        assert_eq!(probed, Some(5_200));
        for at in (5_300..=15_000).step_by(100) {
            assert!(!round(at, 100_000, 90, false), "{at}");
        }
        let transfer = (15_100..30_000).step_by(100);
        let probed = transfer
            .into_iter()
            .find(|at| round(*at, 100_000, 91, false));
        assert_eq!(probed, Some(20_100));
    }

    #[test]
    fn acknowledgements_in_bursts_are_extra() {
        let mut model = Model::new();
        take(&mut model, &ack(100, 100_000, false), false);
        model.full.reached = true;
        for n in 1..10 {
            // Every 50 ms 5,000 bytes arrive at once: the rate stays 100 kB/s.
            let burst = AckSample {
                now: Instant::from_millis(100 + 50 * n),
                delivered: 5_000,
                ..AckSample::default()
            };
            model.on_ack(&burst, 20_000, false);
        }
        assert_eq!(model.extra_acked(), 10_000);
    }

    /// Section 5.5.10.2, with a bound of 2 %. If 1,000 of 50,000 bytes were lost before, none of the last 10,000
    /// fit. If none were lost before, 1,020 of the last 10,000 fit: these are 2 % of 51,020.
    #[test]
    fn the_bound_is_where_losses_passed_two_percent() {
        assert!(!is_inflight_too_high(1_000, 50_000));
        assert!(is_inflight_too_high(1_001, 50_000));
        assert_eq!(in_flight_at_loss(60_000, 11_000, 10_000), 50_000);
        assert_eq!(in_flight_at_loss(60_000, 10_000, 10_000), 51_020);
        assert_eq!(in_flight_at_loss(10_000, 90_000, 20_000), 0);
    }
}
