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
/// The least time in which a train arrives, as a multiple of the mean jitter.
const TRAIN_JITTERS: u64 = 8;
/// The least time over which a rate is measured, in microseconds.
const MIN_SPAN: u64 = 1_000;
/// Large datagrams that are lost one after the other before the path counts as too narrow for them. A path that loses
/// a third of its datagrams loses so many in a row once in 6,000 times.
const BLACK_HOLE_LOSSES: u64 = 8;

/// A datagram that is about to be sent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Departure {
    pub bytes: usize,
    /// The path has room for more than there is to send.
    pub limited: bool,
    /// The peer has to report the datagram.
    pub eliciting: bool,
    /// The datagram is larger than every path is taken to carry, and no probe.
    pub is_large: bool,
}

/// A datagram that was sent.
#[derive(Debug, Clone, Copy)]
struct Sent {
    at: Instant,
    /// Bytes sent on the path so far, with this datagram.
    total: u64,
    /// The part of `total` that the peer has to report.
    reported: u64,
    /// Number of earlier datagrams after which no data was left to send (application-limited).
    limited_before: u64,
    is_large: bool,
    /// Large datagrams so far, with this one.
    large: u64,
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
    large: u64,
}

impl SentLog {
    fn next(&self) -> u64 {
        self.first + self.entries.len() as u64
    }

    fn get(&self, number: u64) -> Option<&Sent> {
        let index = number.checked_sub(self.first)?;
        self.entries.get(usize::try_from(index).ok()?)
    }

    fn push(&mut self, at: Instant, departure: Departure) {
        let bytes = departure.bytes as u64;
        if self.entries.len() == MAX_SENT {
            self.entries.pop_front();
            self.first += 1;
            self.forget_unreported_before(self.first);
        }
        if departure.eliciting {
            self.unreported.push_back((self.next(), at));
            self.reported += bytes;
        }
        self.total += bytes;
        let limited_before = self.limited;
        self.limited += u64::from(departure.limited);
        self.large += u64::from(departure.is_large);
        self.entries.push_back(Sent {
            at,
            total: self.total,
            reported: self.reported,
            limited_before,
            is_large: departure.is_large,
            large: self.large,
        });
    }

    /// Forgets all datagrams. Numbers and the sum of bytes go on.
    fn clear(&mut self) {
        self.first = self.next();
        self.entries.clear();
        self.unreported.clear();
        self.reported = 0;
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
    /// The mean difference of one sample and the next. A queue that grows or shrinks has little part in it.
    pub jitter: Duration,
    last: Duration,
    least: Min<Duration>,
}

impl Rtt {
    fn new(now: Instant, sample: Duration) -> Self {
        let mut rtt = Rtt {
            smoothed: sample,
            variation: sample / 2,
            jitter: Duration::ZERO,
            last: sample,
            least: Min::NEW,
        };
        rtt.least.push(now, BASE_SPAN, sample);
        rtt
    }

    fn push(&mut self, now: Instant, sample: Duration) {
        self.variation = (self.variation * 3 + self.smoothed.abs_diff(sample)) / 4;
        self.smoothed = (self.smoothed * 7 + sample) / 8;
        self.jitter = (self.jitter * 15 + self.last.abs_diff(sample)) / 16;
        self.last = sample;
        self.least.push(now, BASE_SPAN, sample);
    }

    /// Returns the least round trip of the last seconds.
    pub fn least(&self) -> Duration {
        self.least.get().unwrap_or(self.smoothed)
    }
}

/// The result of a report.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Update {
    /// A delivery rate, if the span was long enough.
    pub sample: Option<RateSample>,
    /// The rate of the bottleneck in bytes per second, if datagrams were spread on their way.
    pub spread_rate: Option<u64>,
    /// The highest number reported.
    pub highest: u64,
    /// Bytes that arrived since the last report.
    pub delivered: u64,
    /// Large datagrams vanish, while others arrive.
    pub is_black_hole: bool,
}

/// The one-way delay, in microseconds of the peer's clock less our own. The clocks are not synchronised, so only
/// differences mean something: between two times on a path, or between two paths, which have the same two clocks.
#[derive(Debug, Clone, Copy)]
struct OneWay {
    base: Min<i64>,
    /// The least of about the last round trip: a window keeps one to two spans, and the span is half a round trip.
    recent: Min<i64>,
    last: i64,
    /// The mean difference of one delay and the next (RFC 3550 section 6.4.1). A queue that grows or shrinks has little
    /// part in it. If jitter is uniform over a range, this mean difference is a third of the range. In 1/16 µs.
    jitter: i64,
}

impl OneWay {
    fn push(&mut self, now: Instant, span: Duration, delay: i64) {
        if self.base.get().is_some() {
            let difference = (delay - self.last).abs();
            self.jitter += difference - self.jitter / 16;
        }
        self.last = delay;
        self.base.push(now, BASE_SPAN, delay);
        self.recent.push(now, span, delay);
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
    /// The same counters in 64 bits.
    received: u64,
    delivered: u64,
    lost: u64,
    /// Large datagrams lost since one arrived.
    large_lost: u64,
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
                last: 0,
                jitter: 0,
            },
            datagrams: 0,
            bytes: 0,
            received: 0,
            delivered: 0,
            lost: 0,
            large_lost: 0,
        }
    }

    /// Forgets everything about the network, because the path leads over another one. Numbers and counters go on,
    /// because a number never seals twice and the peer counts on.
    pub fn restart(&mut self) {
        let mut sent = core::mem::take(&mut self.sent);
        sent.clear();
        *self = Estimate {
            sent,
            datagrams: self.datagrams,
            bytes: self.bytes,
            received: self.received,
            delivered: self.delivered,
            lost: self.lost,
            ..Estimate::new()
        };
    }

    /// Returns the number of the next datagram.
    pub fn next_number(&self) -> u64 {
        self.sent.next()
    }

    /// Returns the bytes of all datagrams sent.
    pub fn bytes_sent(&self) -> u64 {
        self.sent.total
    }

    /// Notes that the next datagram is sent.
    pub fn on_sent(&mut self, now: Instant, departure: Departure) {
        self.sent.push(now, departure);
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

    /// Takes the delays of now for those of an empty path, because what looked like a queue does not drain.
    pub fn rebase(&mut self, now: Instant) {
        if let Some(recent) = self.one_way.recent.get() {
            self.one_way.base = Min::NEW;
            self.one_way.base.push(now, BASE_SPAN, recent);
        }
        if let Some(rtt) = &mut self.rtt {
            rtt.least = Min::NEW;
            rtt.least.push(now, BASE_SPAN, rtt.smoothed);
        }
    }

    /// Returns the mean difference of the one-way delays of datagrams that follow each other.
    pub fn jitter(&self) -> Duration {
        Duration::from_micros(self.one_way.jitter.unsigned_abs() / 16)
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
        self.received += u64::from(newer);
        let is_black_hole = self.on_large(report, highest, newer.into());
        self.lost = (highest + 1).saturating_sub(self.received);
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
            delivered,
            is_black_hole,
        })
    }

    /// Counts large datagrams that are lost. `newer` is how many datagrams arrived since the last report. Returns
    /// true if large ones vanish one after the other.
    fn on_large(&mut self, report: &Report, highest: u64, newer: u64) -> bool {
        let is_large = |below: u16| {
            let number = highest.checked_sub(below.into());
            number
                .and_then(|number| self.sent.get(number))
                .is_some_and(|sent| sent.is_large)
        };
        let before = self.highest.unwrap_or(self.sent.first);
        let (Some(from), Some(to)) = (self.sent.get(before), self.sent.get(highest)) else {
            return false;
        };
        let large = to.large.saturating_sub(from.large);
        let lost = highest.saturating_sub(before).saturating_sub(newer);
        if large == 0 && !is_large(0) {
            return false;
        }
        let arrived = is_large(0) || report.samples.iter().any(|s| is_large(s.below));
        // If fewer datagrams were lost than large ones were sent, a large one arrived that no sample shows.
        if arrived || lost < large {
            self.large_lost = 0;
            return false;
        }
        self.large_lost += large;
        let is_black_hole = self.large_lost >= BLACK_HOLE_LOSSES;
        if is_black_hole {
            self.large_lost = 0;
        }
        is_black_hole
    }

    /// Returns the rate at which datagrams arrived that were sent close together, because the bottleneck spreads them:
    /// they took at least twice as long to arrive as to be sent. The factor is a guess.
    fn spread_rate(&self, report: &Report, highest: u64, sent: &Sent) -> Option<u64> {
        // Jitter moves both ends of a train.
        let noise = self.jitter().as_micros() as u64 * TRAIN_JITTERS;
        let trains = report.samples.iter().filter(|s| s.below >= MIN_TRAIN);
        let spread = trains.filter_map(|first| {
            let start = self.sent.get(highest.checked_sub(first.below.into())?)?;
            let received = u64::from(first.before);
            let least = 2 * sent.at.saturating_since(start.at).as_micros() as u64;
            let is_spread = received >= least.max(noise);
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
            // The last datagram of the span does not count: data ran out after it, outside the span.
            limited: point.sent.limited_before > start.sent.limited_before,
        })
    }
}

#[cfg(test)]
mod tests;
