//! HyStart++ (RFC 9406): leaves the initial slow start when round trips grow, before losses.

use core::time::Duration;

use super::AckSample;

const MIN_RTT_THRESH: Duration = Duration::from_millis(4);
const MAX_RTT_THRESH: Duration = Duration::from_millis(16);
const MIN_RTT_DIVISOR: u32 = 8;
const N_RTT_SAMPLE: u32 = 8;
const CSS_GROWTH_DIVISOR: u64 = 4;
const CSS_ROUNDS: u32 = 5;

/// Samples that are enough at the end of a round which delivered at least [`N_RTT_SAMPLE`]
/// segments. Receivers that merge segments send few acknowledgements, so that a round may never
/// reach [`N_RTT_SAMPLE`]; a false alarm is undone in Conservative Slow Start.
const FEW_RTT_SAMPLES: u32 = 3;

/// A window of fewer segments does not end slow start for being more than the path holds.
const LOW_WINDOW: u64 = 16;

/// What slow start does with an acknowledgement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SlowStart {
    /// Grow the window by this many bytes.
    Grow(u64),
    /// Go over to congestion avoidance at the window of now.
    Exit,
}

/// The state of the initial slow start.
///
/// There is no limit L to the growth per acknowledgement (RFC 9406 section 4.3): the engine paces.
///
/// RFC 9406 takes the lowest round trip since a round began, whose first samples are from before the
/// queue grew: it sees in the next round what has grown in this one, and by then the window is twice
/// as large. Here the lowest of the last [`N_RTT_SAMPLE`] of a round counts. A queue shorter than what
/// is in flight in a round trip overflows before any round trip tells of it. That the window is more
/// than the path holds, at the rate at which acknowledgements follow each other, is known before: then
/// slow start is conservative as well, and where both are the case it has ended.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct HyStart {
    last_round_min: Option<Duration>,
    round_min: Option<Duration>,
    recent: [Duration; N_RTT_SAMPLE as usize],
    samples: u32,
    delivered: u64,
    /// Round trips have grown to this or more.
    delayed: Option<Duration>,
    /// The window is more than the path holds.
    full: bool,
    /// Rounds of Conservative Slow Start.
    conservative: Option<u32>,
}

impl HyStart {
    /// Takes in an acknowledgement received in slow start with a window of `cwnd` bytes.
    pub(super) fn on_ack(&mut self, ack: &AckSample<'_>, mss: u32, cwnd: u64) -> SlowStart {
        if ack.round_start && self.end_round(mss) {
            return SlowStart::Exit;
        }
        self.delivered = self.delivered.saturating_add(ack.delivered);
        if let Some(rtt) = ack.rtt {
            self.round_min = Some(self.round_min.map_or(rtt, |min| min.min(rtt)));
            self.recent[(self.samples % N_RTT_SAMPLE) as usize] = rtt;
            self.samples = self.samples.saturating_add(1);
        }
        if self.samples >= N_RTT_SAMPLE {
            self.judge(self.recent.into_iter().min());
            self.full = cwnd >= LOW_WINDOW * u64::from(mss) && is_filled(ack, cwnd);
        }
        if !self.full && self.delayed.is_none() {
            self.conservative = None;
            return SlowStart::Grow(ack.delivered);
        }
        if self.full && self.delayed.is_some() {
            return SlowStart::Exit;
        }
        self.conservative.get_or_insert(0);
        SlowStart::Grow(ack.delivered / CSS_GROWTH_DIVISOR)
    }

    /// Ends a round; true if Conservative Slow Start has lasted long enough.
    fn end_round(&mut self, mss: u32) -> bool {
        if self.samples < N_RTT_SAMPLE
            && self.samples >= FEW_RTT_SAMPLES
            && self.delivered >= u64::from(N_RTT_SAMPLE) * u64::from(mss)
        {
            self.judge(self.round_min);
        }
        // Heaps of acknowledgements tell nothing of the rate at which they follow each other.
        self.full &= self.samples >= N_RTT_SAMPLE;
        if self.round_min.is_some() {
            self.last_round_min = self.round_min.take();
        }
        self.samples = 0;
        self.delivered = 0;
        self.conservative.as_mut().is_some_and(|rounds| {
            *rounds += 1;
            *rounds >= CSS_ROUNDS
        })
    }

    /// Compares round trips of this round with those of the last one (RFC 9406 section 4.2).
    fn judge(&mut self, lowest: Option<Duration>) {
        let Some(lowest) = lowest else {
            return;
        };
        if let Some(delayed) = self.delayed {
            if lowest < delayed {
                self.delayed = None;
            }
            return;
        }
        let Some(last) = self.last_round_min else {
            return;
        };
        let thresh = (last / MIN_RTT_DIVISOR).clamp(MIN_RTT_THRESH, MAX_RTT_THRESH);
        self.delayed = (lowest >= last + thresh).then_some(last + thresh);
    }
}

/// Whether `cwnd` is more than the path holds, by a quarter.
fn is_filled(ack: &AckSample<'_>, cwnd: u64) -> bool {
    let held = u128::from(ack.peak_rate) * ack.min_rtt.as_nanos() / 1_000_000_000;
    held > 0 && u128::from(cwnd) * 4 > held * 5
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
                hystart.on_ack(&ack, MSS, 1 << 20)
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
        // 40 ms / 8 = 5 ms is the threshold; it is met by the eighth sample.
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
            // 0 to 15 ms on top, but every round has a sample of at most 3 ms.
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
        // Few samples of little data, as in the first rounds, tell nothing.
        let mut hystart = HyStart::default();
        round(&mut hystart, 5, 1, |_| 40);
        round(&mut hystart, 5, 1, |_| 60);
        assert_eq!(round(&mut hystart, 5, 1, |_| 60)[0], SlowStart::Grow(1000));
    }

    /// RFC 9406 looks at the lowest round trip since the round began, and would see a round later what
    /// has grown in this one.
    #[test]
    fn a_queue_that_grows_within_a_round_is_seen_in_it() {
        let mut hystart = HyStart::default();
        round(&mut hystart, 20, 1, |_| 40);
        let rise = round(&mut hystart, 20, 1, |i| 40 + i);
        // The lowest of samples 5 to 12 is 45 ms.
        assert_eq!(rise[11], SlowStart::Grow(1000));
        assert_eq!(rise[12], SlowStart::Grow(250));
    }

    /// 1 MB/s and 40 ms hold 40 segments.
    #[test]
    fn a_window_of_more_than_the_path_holds_grows_slowly() {
        let last_of = |hystart: &mut HyStart, acks: u64, rtt: u64, cwnd: u64, peak_rate: u64| {
            let rtt = Duration::from_millis(rtt);
            let step = |n| {
                let ack = AckSample {
                    delivered: 1000,
                    rtt: Some(rtt),
                    min_rtt: Duration::from_millis(40),
                    peak_rate,
                    round_start: n == 0,
                    ..AckSample::default()
                };
                hystart.on_ack(&ack, MSS, cwnd)
            };
            (0..acks).map(step).last().unwrap()
        };
        let mut hystart = HyStart::default();
        let (fast, slow) = (SlowStart::Grow(1000), SlowStart::Grow(250));
        assert_eq!(last_of(&mut hystart, 8, 40, 50_000, 1_000_000), fast);
        assert_eq!(last_of(&mut hystart, 7, 40, 50_001, 1_000_000), fast);
        assert_eq!(last_of(&mut hystart, 8, 40, 50_001, 1_000_000), slow);
        // The path turns out to be faster.
        assert_eq!(last_of(&mut hystart, 8, 40, 50_250, 2_000_000), fast);
        // Small windows, and those on paths of which nothing is known, may grow.
        assert_eq!(last_of(&mut hystart, 8, 40, 15_999, 100_000), fast);
        assert_eq!(last_of(&mut hystart, 8, 40, 1 << 30, 0), fast);
        // A queue that has grown as well leaves no doubt.
        assert_eq!(
            last_of(&mut hystart, 8, 45, 60_000, 1_000_000),
            SlowStart::Exit
        );
    }
}
