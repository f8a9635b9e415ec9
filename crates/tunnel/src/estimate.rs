//! Estimates of a path from the peer's reports: round trip, one-way delay, delivery rate, loss.

use core::time::Duration;
use std::collections::VecDeque;

use braid_wire::Instant;

use crate::frame::Report;
use crate::header;
use crate::window::Min;

/// Most datagrams that are remembered. At 1 Gbit/s they are those of 200 ms.
const MAX_SENT: usize = 16_384;
/// Most reports that are remembered. There are about four in a round trip.
const MAX_POINTS: usize = 16;
/// The time over which the least delays are kept. Routes change, and clocks drift by up to 1 ms in it.
const BASE_SPAN: Duration = Duration::from_secs(10);

/// The fewest datagrams whose spacing tells a rate.
const MIN_TRAIN: u16 = 8;
/// The least time over which a rate is measured, in microseconds.
const MIN_SPAN: u64 = 1_000;

/// A datagram that was sent.
#[derive(Debug, Clone, Copy)]
struct Sent {
    at: Instant,
    /// Bytes sent on the path so far, with this datagram.
    total: u64,
    /// The part of `total` that the peer has to report.
    reported: u64,
    /// Datagrams before this one after which there was nothing more to send.
    limited_before: u64,
}

/// The datagrams that were sent on a path, by number.
#[derive(Debug, Default)]
struct SentLog {
    first: u64,
    entries: VecDeque<Sent>,
    /// The numbers and times of the datagrams that the peer has to report and has not: a path may send thousands of
    /// others, so that a search among all entries would take long.
    unreported: VecDeque<(u64, Instant)>,
    total: u64,
    /// The part of `total` that the peer has to report. Only these bytes count as in flight (RFC 9002 section 2).
    reported: u64,
    limited: u64,
}

impl SentLog {
    fn next(&self) -> u64 {
        self.first + self.entries.len() as u64
    }

    fn get(&self, number: u64) -> Option<&Sent> {
        let index = number.checked_sub(self.first)?;
        self.entries.get(usize::try_from(index).ok()?)
    }

    fn push(&mut self, at: Instant, bytes: usize, limited: bool, eliciting: bool) {
        if self.entries.len() == MAX_SENT {
            self.entries.pop_front();
            self.first += 1;
            self.forget_unreported_before(self.first);
        }
        if eliciting {
            self.unreported.push_back((self.next(), at));
            self.reported += bytes as u64;
        }
        self.total += bytes as u64;
        let limited_before = self.limited;
        self.limited += u64::from(limited);
        self.entries.push_back(Sent {
            at,
            total: self.total,
            reported: self.reported,
            limited_before,
        });
    }

    /// Notes that the peer has reported all datagrams before `number`, or that they are forgotten.
    fn forget_unreported_before(&mut self, number: u64) {
        while self.unreported.front().is_some_and(|(n, _)| *n < number) {
            self.unreported.pop_front();
        }
    }

    /// Returns the bytes sent after the datagram `number` that the peer has to report.
    fn unreported_after(&self, number: u64) -> u64 {
        let before = self.get(number).map_or(self.reported, |sent| sent.reported);
        self.reported - before
    }
}

/// One report, as the start of a span over which a rate is measured.
#[derive(Debug, Clone, Copy)]
struct Point {
    number: u64,
    sent: Sent,
    /// The time of the report, in microseconds of the peer's clock.
    reported_at: u64,
    /// Bytes that the peer received so far.
    delivered: u64,
}

/// The rate at which a path delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RateSample {
    /// Bytes per second.
    pub rate: u64,
    /// The path had room for more at some time, so it may be faster.
    pub limited: bool,
}

/// The round-trip time (RFC 6298), without the peer's delay.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rtt {
    pub smoothed: Duration,
    pub variation: Duration,
    least: Min<Duration>,
}

impl Rtt {
    fn new(now: Instant, sample: Duration) -> Self {
        let mut rtt = Rtt {
            smoothed: sample,
            variation: sample / 2,
            least: Min::NEW,
        };
        rtt.least.push(now, BASE_SPAN, sample);
        rtt
    }

    fn push(&mut self, now: Instant, sample: Duration) {
        self.variation = (self.variation * 3 + self.smoothed.abs_diff(sample)) / 4;
        self.smoothed = (self.smoothed * 7 + sample) / 8;
        self.least.push(now, BASE_SPAN, sample);
    }

    /// Returns the least round trip of the last seconds.
    pub fn least(&self) -> Duration {
        self.least.get().unwrap_or(self.smoothed)
    }
}

/// The news of a report.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Update {
    /// A delivery rate, if the span was long enough.
    pub sample: Option<RateSample>,
    /// The rate of the bottleneck in bytes per second, if datagrams were spread on their way.
    pub spread_rate: Option<u64>,
    /// The highest number reported.
    pub highest: u64,
}

/// The one-way delay, in microseconds of the peer's clock less our own. Only differences mean something: between
/// times, and between paths, which have the same two clocks.
#[derive(Debug, Clone, Copy)]
struct OneWay {
    base: Min<i64>,
    /// The least of about the last round trip.
    recent: Min<i64>,
    smoothed: i64,
    /// The mean deviation from the smoothed delay.
    variation: i64,
}

impl OneWay {
    fn push(&mut self, now: Instant, span: Duration, delay: i64) {
        if self.base.get().is_none() {
            self.smoothed = delay;
        }
        self.base.push(now, BASE_SPAN, delay);
        self.recent.push(now, span, delay);
        let deviation = (delay - self.smoothed).abs();
        self.smoothed += (delay - self.smoothed) / 16;
        self.variation += (deviation - self.variation) / 16;
    }
}

/// The estimates of one path.
#[derive(Debug)]
pub(crate) struct Estimate {
    sent: SentLog,
    points: VecDeque<Point>,
    highest: Option<u64>,
    rtt: Option<Rtt>,
    one_way: OneWay,
    /// Counters of the last report.
    datagrams: u32,
    bytes: u32,
    delivered: u64,
    lost: u64,
}

impl Estimate {
    pub fn new() -> Self {
        Estimate {
            sent: SentLog::default(),
            points: VecDeque::with_capacity(MAX_POINTS),
            highest: None,
            rtt: None,
            one_way: OneWay {
                base: Min::NEW,
                recent: Min::NEW,
                smoothed: 0,
                variation: 0,
            },
            datagrams: 0,
            bytes: 0,
            delivered: 0,
            lost: 0,
        }
    }

    /// Returns the number of the next datagram.
    pub fn next_number(&self) -> u64 {
        self.sent.next()
    }

    /// Returns the bytes of all datagrams sent.
    pub fn bytes_sent(&self) -> u64 {
        self.sent.total
    }

    /// Notes that the next datagram is sent. `limited` says that the path has room for more than there is to send.
    pub fn on_sent(&mut self, now: Instant, bytes: usize, limited: bool, eliciting: bool) {
        self.sent.push(now, bytes, limited, eliciting);
    }

    /// Returns the bytes that were sent after the last datagram reported, and that the peer has to report.
    pub fn in_flight(&self) -> u64 {
        let sent = &self.sent;
        self.highest
            .map_or(sent.reported, |number| sent.unreported_after(number))
    }

    /// Returns the time at which the first datagram was sent that the peer should report and has not.
    pub fn unreported_since(&self) -> Option<Instant> {
        self.sent.unreported.front().map(|(_, at)| *at)
    }

    pub fn rtt(&self) -> Option<Rtt> {
        self.rtt
    }

    /// Returns the one-way delay of an empty path, in microseconds on a scale that all paths share.
    pub fn base_delay(&self) -> Option<i64> {
        self.one_way.base.get()
    }

    /// Returns the delay by the queue of the link: the least delay of the last round trip over that of an empty
    /// path.
    pub fn queue_delay(&self) -> Duration {
        let excess = match (self.one_way.recent.get(), self.one_way.base.get()) {
            (Some(recent), Some(base)) => recent.saturating_sub(base).max(0),
            _ => 0,
        };
        Duration::from_micros(excess as u64)
    }

    /// Returns the mean deviation of the one-way delay: jitter, and queues that grow or shrink.
    pub fn delay_variation(&self) -> Duration {
        Duration::from_micros(self.one_way.variation.unsigned_abs())
    }

    /// Returns the number of datagrams sent and reported lost.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Reads a report. Returns `None` if it is older than another one or reports what was not sent.
    pub fn on_report(&mut self, now: Instant, report: &Report) -> Option<Update> {
        let highest = header::expand(report.highest, self.sent.next());
        let sent = *self.sent.get(highest)?;
        let newer = report.datagrams.wrapping_sub(self.datagrams);
        if self.highest.is_some_and(|known| highest < known) || newer == 0 || newer > 1 << 31 {
            return None;
        }
        // A peer cannot have received more than was sent (RFC 9000 section 21.4).
        let delivered = u64::from(report.bytes.wrapping_sub(self.bytes));
        self.delivered = (self.delivered + delivered).min(self.sent.total);
        (self.datagrams, self.bytes) = (report.datagrams, report.bytes);
        self.lost = (highest + 1).saturating_sub(u64::from(report.datagrams));
        self.on_times(now, report, highest, &sent);
        let sample = self.on_point(Point {
            number: highest,
            sent,
            reported_at: self.unwrapped(report.received_at.wrapping_add(report.delay)),
            delivered: self.delivered,
        });
        self.highest = Some(highest);
        self.sent.forget_unreported_before(highest + 1);
        Some(Update {
            sample,
            spread_rate: self.spread_rate(report, highest, &sent),
            highest,
        })
    }

    /// Returns the rate at which datagrams arrived that were sent close together: the bottleneck spreads them.
    fn spread_rate(&self, report: &Report, highest: u64, sent: &Sent) -> Option<u64> {
        let trains = report.samples.iter().filter(|s| s.below >= MIN_TRAIN);
        let spread = trains.filter_map(|first| {
            let start = self.sent.get(highest.checked_sub(first.below.into())?)?;
            let received = u64::from(first.before);
            let is_spread = received >= 2 * sent.at.saturating_since(start.at).as_micros() as u64;
            let rate = (sent.total - start.total).saturating_mul(1_000_000) / received.max(1);
            (is_spread && received > 0).then_some((first.below, rate))
        });
        // The longest train is the most exact one.
        spread.max().map(|(_, rate)| rate)
    }

    /// Returns the peer's time in 64 bits.
    fn unwrapped(&self, at: u32) -> u64 {
        let Some(last) = self.points.back().map(|point| point.reported_at) else {
            return at.into();
        };
        let step = at.wrapping_sub(last as u32) as i32;
        last.saturating_add_signed(step.into())
    }

    /// Reads round trip and one-way delays.
    fn on_times(&mut self, now: Instant, report: &Report, highest: u64, sent: &Sent) {
        if self.highest.is_none_or(|known| highest > known) {
            let delay = Duration::from_micros(report.delay.into());
            let sample = now.saturating_since(sent.at).saturating_sub(delay);
            match &mut self.rtt {
                Some(rtt) => rtt.push(now, sample),
                None => self.rtt = Some(Rtt::new(now, sample)),
            }
        }
        let span = self.rtt.map_or(Duration::ZERO, |rtt| rtt.smoothed) / 2;
        let arrivals = report.samples.iter().map(|s| (s.below, s.before));
        for (below, before) in arrivals.chain([(0, 0)]) {
            let Some(sent) = highest
                .checked_sub(below.into())
                .and_then(|number| self.sent.get(number))
            else {
                continue;
            };
            // Both clocks have an origin of their own and wrap, and so does the difference.
            let arrived = report.received_at.wrapping_sub(before);
            let delay = i64::from(arrived.wrapping_sub(sent.at.as_micros() as u32) as i32);
            self.one_way.push(now, span, delay);
        }
    }

    /// Measures the rate since a report of about a round trip ago (as draft-cheng-iccrg-delivery-rate-estimation does
    /// between acknowledgements). In shorter spans jitter would look like rate.
    fn on_point(&mut self, point: Point) -> Option<RateSample> {
        let span = self.rtt.map_or(Duration::ZERO, |rtt| rtt.least());
        let long_enough = |old: &&Point| {
            let passed = point.reported_at.saturating_sub(old.reported_at);
            passed >= (span.as_micros() as u64).max(MIN_SPAN)
        };
        let start = self.points.iter().rev().find(long_enough).copied();
        if self.points.len() == MAX_POINTS {
            self.points.pop_front();
        }
        self.points.push_back(point);
        let start = start.filter(|start| start.number + u64::from(MIN_TRAIN) <= point.number)?;
        let received = point.reported_at - start.reported_at;
        let sent = point.sent.at.saturating_since(start.sent.at).as_micros() as u64;
        // Neither a burst that was queued on the way nor a pause of the sender shows what the path can do.
        let micros = received.max(sent).max(1);
        Some(RateSample {
            rate: (point.delivered - start.delivered).saturating_mul(1_000_000) / micros,
            // The last datagram was measured already when the path ran out of data after it.
            limited: point.sent.limited_before > start.sent.limited_before,
        })
    }
}
