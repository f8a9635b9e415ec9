//! HyStart++ (RFC 9406): leaves the initial slow start when round trips grow, before losses.

use core::time::Duration;

use super::AckSample;

// The constants are those of RFC 9406 section 4.3.
const MIN_RTT_THRESH: Duration = Duration::from_millis(4);
const MAX_RTT_THRESH: Duration = Duration::from_millis(16);
const MIN_RTT_DIVISOR: u32 = 8;
const N_RTT_SAMPLE: u32 = 8;
const CSS_GROWTH_DIVISOR: u64 = 4;
const CSS_ROUNDS: u32 = 5;

/// The minimum number of samples at the end of a round that delivered at least [`N_RTT_SAMPLE`] segments.
/// Receivers that merge segments send few acknowledgements, so that a round may never reach [`N_RTT_SAMPLE`]
/// samples. The value is a guess: with fewer samples, jitter causes more false alarms. Conservative Slow Start
/// recovers from a false alarm, but only after a round of slower growth.
const FEW_RTT_SAMPLES: u32 = 3;

/// The reaction of slow start to an acknowledgement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SlowStart {
    /// Grow the window by this number of bytes.
    Grow(u64),
    /// Switch to congestion avoidance at the current window.
    Exit,
}

/// The state of Conservative Slow Start.
#[derive(Debug, Clone, Copy)]
struct Css {
    /// The lowest round trip of the round that started the state. A lower round trip shows that there was no
    /// queue.
    baseline: Duration,
    /// The number of complete rounds in the state.
    rounds: u32,
}

/// The state of the initial slow start.
///
/// The growth for each acknowledgement has no limit L, which RFC 9406 section 4.3 requires only without pacing.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct HyStart {
    /// The lowest round trip of the last round that had samples.
    last_round_min: Option<Duration>,
    /// The lowest round trip of the current round.
    round_min: Option<Duration>,
    /// The number of round-trip samples in the current round.
    samples: u32,
    /// The bytes delivered in the current round.
    delivered: u64,
    /// The state of Conservative Slow Start; `None` in normal slow start.
    css: Option<Css>,
}

impl HyStart {
    /// Processes an acknowledgement received in slow start.
    pub(super) fn on_ack(&mut self, ack: &AckSample<'_>, mss: u32) -> SlowStart {
        if ack.round_start && self.end_round(mss) {
            return SlowStart::Exit;
        }
        self.delivered = self.delivered.saturating_add(ack.delivered);
        if let Some(rtt) = ack.rtt {
            self.round_min = Some(self.round_min.map_or(rtt, |min| min.min(rtt)));
            self.samples = self.samples.saturating_add(1);
        }
        if self.samples >= N_RTT_SAMPLE {
            self.update_css();
        }
        SlowStart::Grow(match self.css {
            Some(_) => ack.delivered / CSS_GROWTH_DIVISOR,
            None => ack.delivered,
        })
    }

    /// Ends a round. Returns whether Conservative Slow Start has lasted long enough to end slow start.
    fn end_round(&mut self, mss: u32) -> bool {
        if self.samples < N_RTT_SAMPLE
            && self.samples >= FEW_RTT_SAMPLES
            && self.delivered >= u64::from(N_RTT_SAMPLE) * u64::from(mss)
        {
            self.update_css();
        }
        if self.round_min.is_some() {
            self.last_round_min = self.round_min.take();
        }
        self.samples = 0;
        self.delivered = 0;
        self.css.as_mut().is_some_and(|css| {
            css.rounds += 1;
            css.rounds >= CSS_ROUNDS
        })
    }

    /// Starts or ends Conservative Slow Start by comparing the round trips of this round with those of the last
    /// one (RFC 9406 section 4.2).
    fn update_css(&mut self) {
        let Some(round_min) = self.round_min else {
            return;
        };
        if let Some(css) = self.css {
            if round_min < css.baseline {
                self.css = None;
            }
            return;
        }
        let Some(last) = self.last_round_min else {
            return;
        };
        let thresh = (last / MIN_RTT_DIVISOR).clamp(MIN_RTT_THRESH, MAX_RTT_THRESH);
        if round_min >= last + thresh {
            self.css = Some(Css {
                baseline: round_min,
                rounds: 0,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MSS: u32 = 1000;

    /// Runs one round of `acks` acknowledgements of `segments` segments each.
    fn round(
        hystart: &mut HyStart,
        acks: u64,
        segments: u64,
        rtt_ms: impl Fn(u64) -> u64,
    ) -> Vec<SlowStart> {
        (0..acks)
            .map(|i| {
                let rtt = Duration::from_millis(rtt_ms(i));
                let ack = AckSample {
                    delivered: segments * u64::from(MSS),
                    rtt: Some(rtt),
                    min_rtt: rtt,
                    srtt: rtt,
                    round_start: i == 0,
                    ..AckSample::default()
                };
                hystart.on_ack(&ack, MSS)
            })
            .collect()
    }

    #[test]
    fn rising_round_trips_end_slow_start_after_five_conservative_rounds() {
        let mut hystart = HyStart::default();
        for _ in 0..3 {
            assert!(
                round(&mut hystart, 20, 1, |_| 40)
                    .iter()
                    .all(|s| *s == SlowStart::Grow(1000))
            );
        }
        // The threshold is 40 ms / 8 = 5 ms. The eighth sample is the first at which it is checked.
        let rise = round(&mut hystart, 20, 1, |_| 45);
        assert_eq!(rise[6], SlowStart::Grow(1000));
        assert_eq!(rise[7], SlowStart::Grow(250));
        for _ in 0..4 {
            assert!(
                round(&mut hystart, 20, 1, |_| 46)
                    .iter()
                    .all(|s| *s == SlowStart::Grow(250))
            );
        }
        assert_eq!(round(&mut hystart, 1, 1, |_| 46), [SlowStart::Exit]);
    }

    #[test]
    fn the_threshold_is_clamped_between_4_and_16_ms() {
        for (base, rise, conservative) in [
            (8, 3, false),
            (8, 4, true),
            (400, 15, false),
            (400, 16, true),
        ] {
            let mut hystart = HyStart::default();
            round(&mut hystart, 10, 1, |_| base);
            let last = round(&mut hystart, 10, 1, |_| base + rise)[9];
            assert_eq!(
                last == SlowStart::Grow(250),
                conservative,
                "{base} + {rise} ms"
            );
        }
    }

    #[test]
    fn jitter_does_not_end_slow_start() {
        let mut hystart = HyStart::default();
        for r in 0..40 {
            // Round trips are 50 ms plus a jitter of 0 to 15 ms, but in every round some samples have a jitter of
            // at most 3 ms. The threshold is at least 50 ms / 8 = 6.25 ms.
            let rtts = |i: u64| {
                50 + if i % 8 == r % 8 {
                    r % 4
                } else {
                    (i * 7 + r * 5) % 16
                }
            };
            let steps = round(&mut hystart, 16, 1, rtts);
            assert!(
                steps.iter().all(|s| *s == SlowStart::Grow(1000)),
                "round {r}"
            );
        }
    }

    #[test]
    fn a_passing_rise_returns_to_slow_start() {
        let mut hystart = HyStart::default();
        round(&mut hystart, 10, 1, |_| 40);
        assert_eq!(round(&mut hystart, 10, 1, |_| 60)[9], SlowStart::Grow(250));
        assert_eq!(round(&mut hystart, 10, 1, |_| 40)[9], SlowStart::Grow(1000));
        for _ in 0..10 {
            assert_eq!(round(&mut hystart, 10, 1, |_| 40)[9], SlowStart::Grow(1000));
        }
    }

    #[test]
    fn few_acknowledgements_of_much_data_are_enough() {
        let mut hystart = HyStart::default();
        round(&mut hystart, 4, 40, |_| 40);
        round(&mut hystart, 4, 40, |_| 60);
        assert_eq!(
            round(&mut hystart, 4, 40, |_| 60)[0],
            SlowStart::Grow(10_000)
        );
        // Rounds of five samples, each of one segment, have too few samples. The first rounds of a flow are like
        // this.
        let mut hystart = HyStart::default();
        round(&mut hystart, 5, 1, |_| 40);
        round(&mut hystart, 5, 1, |_| 60);
        assert_eq!(round(&mut hystart, 5, 1, |_| 60)[0], SlowStart::Grow(1000));
    }
}
