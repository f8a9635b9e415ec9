//! The datagrams received on one path: what is reported of them, and how far they come out of order.

use core::time::Duration;
use std::collections::VecDeque;

use arrayvec::ArrayVec;
use braid_engine::PathId;
use braid_wire::Instant;

use crate::frame::{MAX_SAMPLES, Report, Sample};
use crate::header;
use crate::window::Max;

/// Most arrivals of a new highest number that are remembered. A guess: a datagram that comes after more of them counts
/// as less late than it is.
const MAX_RECORDS: usize = 512;
/// The time for which lateness counts. A guess: for as long after reordering has ended, packets still wait for it.
const LATENESS_SPAN: Duration = Duration::from_secs(5);

/// The arrivals on one path.
#[derive(Debug)]
pub(crate) struct Arrivals {
    datagrams: u64,
    bytes: u64,
    highest: Option<(u64, Instant)>,
    /// The latest numbers that were higher than all before, and their times.
    records: VecDeque<(u64, Instant)>,
    lateness: Max<Duration>,
    samples: ArrayVec<(u64, Instant), MAX_SAMPLES>,
    /// One arrival in so many becomes a sample.
    stride: u32,
    since_sample: u32,
    /// The time of the first arrival that has to be reported.
    pending_since: Option<Instant>,
    last_at: Option<Instant>,
}

impl Arrivals {
    pub fn new() -> Self {
        Arrivals {
            datagrams: 0,
            bytes: 0,
            highest: None,
            records: VecDeque::new(),
            lateness: Max::NEW,
            samples: ArrayVec::new(),
            stride: 1,
            since_sample: 0,
            pending_since: None,
            last_at: None,
        }
    }

    /// Forgets the delays and the reordering of the old network. The counters continue, because the peer uses their
    /// differences. A pending report stays pending, because the peer may wait for it with a full window.
    pub fn restart(&mut self) {
        *self = Arrivals {
            datagrams: self.datagrams,
            bytes: self.bytes,
            highest: self.highest,
            pending_since: self.pending_since,
            ..Arrivals::new()
        };
    }

    pub fn datagrams(&self) -> u64 {
        self.datagrams
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the time of the last arrival.
    pub fn last_at(&self) -> Option<Instant> {
        self.last_at
    }

    /// Returns the longest time by which a datagram recently came after one with a higher number.
    pub fn lateness(&self) -> Duration {
        self.lateness.get().unwrap_or_default()
    }

    pub fn on_datagram(&mut self, now: Instant, number: u64, bytes: usize) {
        self.datagrams += 1;
        self.bytes += bytes as u64;
        self.last_at = Some(now);
        if self.highest.is_none_or(|(highest, _)| number > highest) {
            self.highest = Some((number, now));
            if self.records.len() == MAX_RECORDS {
                self.records.pop_front();
            }
            self.records.push_back((number, now));
            self.lateness.push(now, LATENESS_SPAN, Duration::ZERO);
        } else {
            let after = self.records.partition_point(|(n, _)| *n <= number);
            if let Some((_, at)) = self.records.get(after) {
                let late = now.saturating_since(*at);
                self.lateness.push(now, LATENESS_SPAN, late);
            }
        }
        self.sample(now, number);
    }

    /// Takes every n-th arrival, so that the samples spread over the time between two reports.
    fn sample(&mut self, now: Instant, number: u64) {
        self.since_sample += 1;
        if self.since_sample < self.stride {
            return;
        }
        self.since_sample = 0;
        if self.samples.is_full() {
            let mut keep = false;
            self.samples.retain(|_| {
                keep = !keep;
                keep
            });
            self.stride *= 2;
        }
        self.samples.push((number, now));
    }

    /// Notes that the last datagram has to be reported.
    pub fn want_report(&mut self, now: Instant) {
        self.pending_since.get_or_insert(now);
    }

    /// Returns the time of the first arrival that has to be reported.
    pub fn pending_since(&self) -> Option<Instant> {
        self.pending_since
    }

    /// Returns the report that leaves at `now`, without samples.
    pub fn report(&self, now: Instant, path: PathId) -> Option<Report> {
        let (highest, at) = self.highest?;
        Some(Report {
            path,
            highest: header::truncate(highest),
            datagrams: self.datagrams as u32,
            bytes: self.bytes as u32,
            received_at: at.as_micros() as u32,
            delay: micros(now.saturating_since(at)),
            samples: ArrayVec::new(),
        })
    }

    /// Returns the report that leaves at `now`, and starts the next one.
    pub fn take_report(&mut self, now: Instant, path: PathId) -> Option<Report> {
        let report = self.report(now, path)?;
        let (highest, at) = self.highest?;
        self.pending_since = None;
        self.stride = 1;
        self.since_sample = 0;
        let samples = self.samples.drain(..).filter_map(|(number, time)| {
            // A sample states a time before the arrival of the highest number, so later arrivals are left out. They are
            // not the shortest delays anyway.
            let is_earlier = time <= at && number < highest;
            is_earlier.then_some(Sample {
                below: u16::try_from(highest.checked_sub(number)?).ok()?,
                before: micros(at.saturating_since(time)),
            })
        });
        let samples = samples.collect();
        Some(Report { samples, ..report })
    }
}

/// Returns microseconds in 24 bits. Longer times saturate.
fn micros(time: Duration) -> u32 {
    (time.as_micros()).min((1 << 24) - 1) as u32
}
