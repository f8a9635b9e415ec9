//! Probes: a box measures the path from a server, and receives the server's egress metrics.
//!
//! On a signed-in connection, a box asks for a train of packets instead of a destination. The server answers with
//! its egress metrics and sends the train. Each record carries its departure time, so that the box sees how the
//! path changed the spacing. `docs/protocol.md` describes each field.
//!
//! A burst arrives at the rate of the bottleneck, C. A train that leaves at about C and arrives at R met
//! cross-traffic of C · (C / R - 1), so the rest is free (Strauss et al., "A Measurement Study of Available
//! Bandwidth Estimation Tools", IMC 2003).

use core::time::Duration;

use braid_secure::channel::RECORD_OVERHEAD;
use braid_wire::Instant;

use super::quality::Quality;
use super::socks::ServerHandshake;

/// Most records of a train. With the bytes before them, they fit an initial window of ten segments (RFC 6928),
/// which no pacing delays.
pub(crate) const MAX_TRAIN_RECORDS: u8 = 10;
/// Records that pacing does not delay on a path unknown to the engine.
pub(crate) const UNPACED_RECORDS: u8 = 4;
/// Payload bytes of a record: one packet with any TCP options, and a size that protection does not pad.
pub(crate) const RECORD_LEN: usize = 1400 - RECORD_OVERHEAD;
/// Bytes of that packet's headers, and of the record's protection.
const HEADERS_LEN: usize = 52 + RECORD_OVERHEAD;
/// Longest pause between records: a train takes at most nine of them.
pub(crate) const MAX_RECORD_GAP: Duration = Duration::from_millis(50);
/// Bytes of two trains and of their connections, one way, with 2,000 each for handshakes.
pub(crate) const MEASUREMENT_BYTES: u64 =
    2 * (MAX_TRAIN_RECORDS as u64 * (RECORD_LEN + HEADERS_LEN) as u64 + 2_000);
/// The fastest rate that a train can show, bit/s. A provider that shapes by a token bucket lets a burst pass at
/// the rate of the wire, Fast Ethernet or more, and its bucket (16 kB and more) outlasts a train.
pub(crate) const MAX_MEASURABLE_RATE: f64 = 90e6;
/// Fewest gaps between records from which a rate is computed after a token bucket ran dry.
const MIN_GAPS: usize = 4;

/// First byte of an answer, version 1.
const ANSWER: u8 = 0xb3;
/// Bytes before the fields of an answer: the first byte and a length.
const ANSWER_HEAD_LEN: usize = 3;
/// Most bytes of fields in an answer.
const MAX_FIELDS: usize = 256;
/// Bytes before a plaintext answer: method and status of the sign-in.
const SIGNED_IN: [u8; 4] = [
    5,
    2,
    ServerHandshake::ACCEPTED[0],
    ServerHandshake::ACCEPTED[1],
];
/// Bytes before a protected answer, where the box's key is proof enough.
const WELCOME: [u8; 2] = [5, 0];

const TRAIN: u8 = 1;
const BANDWIDTH: u8 = 2;
const DELAY: u8 = 3;

/// A train of records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Train {
    /// The number of records.
    pub(crate) records: u8,
    /// The time between departures; zero sends the records at once.
    pub(crate) gap: Duration,
}

impl Train {
    /// A full train without gaps.
    pub(crate) const BURST: Train = Train {
        records: MAX_TRAIN_RECORDS,
        gap: Duration::ZERO,
    };

    /// Returns a full train at `rate` bit/s, whose gaps are at most [`MAX_RECORD_GAP`].
    pub(crate) fn paced(rate: f64) -> Train {
        let seconds = ((RECORD_LEN + HEADERS_LEN) * 8) as f64 / rate;
        let gap = Duration::try_from_secs_f64(seconds).unwrap_or(MAX_RECORD_GAP);
        Train {
            records: MAX_TRAIN_RECORDS,
            gap: gap.min(MAX_RECORD_GAP),
        }
    }

    /// Encodes the fields of a request.
    pub(crate) fn encode(self) -> Vec<u8> {
        let gap = u32::try_from(self.gap.as_micros()).unwrap_or(u32::MAX);
        let mut out = vec![TRAIN, 5, self.records];
        out.extend(gap.to_be_bytes());
        out
    }

    /// Decodes the fields of a request, limited to what a server grants. Without a train field no record is sent.
    pub(crate) fn decode(fields: &[u8]) -> Train {
        let mut train = Train::default();
        each_field(fields, |kind, value| {
            if let (TRAIN, [records, gap @ ..]) = (kind, value)
                && let Ok(gap) = <[u8; 4]>::try_from(gap)
            {
                train = Train {
                    records: (*records).min(MAX_TRAIN_RECORDS),
                    gap: Duration::from_micros(u32::from_be_bytes(gap).into()).min(MAX_RECORD_GAP),
                };
            }
        });
        train
    }
}

/// The bottleneck's capacity, as far as a burst shows it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Capacity {
    /// The capacity, bit/s.
    Rate(f64),
    /// The bottleneck is at least as fast as [`MAX_MEASURABLE_RATE`], or its bucket lets a whole train pass.
    TooFast,
    /// A part of the burst passed at once, and the rest came unevenly: at this mean rate, bit/s.
    Uneven(f64),
}

/// Encodes the answer before a train of `records`, of which the first `unpaced` leave at their times.
pub(crate) fn answer(records: u8, unpaced: u8, egress: Quality) -> Vec<u8> {
    let mut fields = vec![TRAIN, 2, records, unpaced];
    if let Some(bits) = egress.bandwidth {
        fields.extend([BANDWIDTH, 8]);
        fields.extend((bits as u64).to_be_bytes());
    }
    if let Some(ms) = egress.delay_ms {
        fields.extend([DELAY, 4]);
        fields.extend(((ms * 1e3) as u32).to_be_bytes());
    }
    let length = u16::try_from(fields.len()).unwrap_or(u16::MAX);
    let mut out = vec![ANSWER];
    out.extend(length.to_be_bytes());
    out.extend(fields);
    out
}

/// Returns a record that leaves `after` the answer.
pub(crate) fn record(after: Duration) -> [u8; RECORD_LEN] {
    let after = u32::try_from(after.as_micros()).unwrap_or(u32::MAX);
    // Pseudo-random bytes (xorshift), so that no link compresses the record.
    let mut noise = after | 1;
    let mut record = [0; RECORD_LEN];
    for byte in &mut record {
        noise ^= noise << 13;
        noise ^= noise >> 17;
        noise ^= noise << 5;
        *byte = noise as u8;
    }
    record[..4].copy_from_slice(&after.to_be_bytes());
    record
}

/// Calls `take` with kind and value of each complete field.
fn each_field(mut fields: &[u8], mut take: impl FnMut(u8, &[u8])) {
    while let [kind, len, rest @ ..] = fields {
        let Some((value, rest)) = rest.split_at_checked(usize::from(*len)) else {
            return;
        };
        take(*kind, value);
        fields = rest;
    }
}

/// The receiving end of a probe, at the box.
#[derive(Debug, Default)]
pub(crate) struct TrainReceiver {
    /// The bytes expected before the answer.
    before: &'static [u8],
    /// The bytes received before the first record.
    head: Vec<u8>,
    /// The number of records, known from the answer on.
    records: Option<u8>,
    /// The number of leading records that pacing did not delay.
    unpaced: u8,
    egress: Quality,
    /// Bytes received of the current record.
    partial: usize,
    stamp: [u8; 4],
    /// Departure and arrival of each record.
    seen: Vec<(Duration, Instant)>,
}

/// The answer is malformed: the peer is not a Braid server, or of an incompatible version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MalformedAnswer;

impl TrainReceiver {
    /// Creates the receiver for a protected or a plaintext connection.
    pub(crate) fn new(protected: bool) -> Self {
        TrainReceiver {
            before: match protected {
                true => &WELCOME,
                false => &SIGNED_IN,
            },
            ..TrainReceiver::default()
        }
    }

    /// Takes bytes that came at `now`; returns whether all records are here.
    pub(crate) fn input(
        &mut self,
        now: Instant,
        mut bytes: &[u8],
    ) -> Result<bool, MalformedAnswer> {
        while let Some((first, rest)) = bytes.split_first().filter(|_| self.records.is_none()) {
            bytes = rest;
            self.head.push(*first);
            self.read_head()?;
        }
        let Some(records) = self.records else {
            return Ok(false);
        };
        while !bytes.is_empty() && self.seen.len() < usize::from(records) {
            let (now_here, rest) = bytes.split_at(bytes.len().min(RECORD_LEN - self.partial));
            let stamp = self.stamp.iter_mut().skip(self.partial);
            stamp.zip(now_here).for_each(|(to, from)| *to = *from);
            self.partial += now_here.len();
            bytes = rest;
            if self.partial == RECORD_LEN {
                let left = u32::from_be_bytes(self.stamp);
                self.seen.push((Duration::from_micros(left.into()), now));
                self.partial = 0;
            }
        }
        Ok(self.seen.len() >= usize::from(records))
    }

    fn read_head(&mut self) -> Result<(), MalformedAnswer> {
        let (signed_in, answer) = self.head.split_at(self.head.len().min(self.before.len()));
        if !self.before.starts_with(signed_in) || answer.first().is_some_and(|a| *a != ANSWER) {
            return Err(MalformedAnswer);
        }
        let [_, a, b, fields @ ..] = answer else {
            return Ok(());
        };
        let length = usize::from(u16::from_be_bytes([*a, *b]));
        if length > MAX_FIELDS {
            return Err(MalformedAnswer);
        }
        if fields.len() < length {
            return Ok(());
        }
        let (mut train, mut egress) = ((0, 0), Quality::default());
        each_field(fields, |kind, value| match (kind, value) {
            (TRAIN, [records, unpaced]) => train = (*records, *unpaced),
            (BANDWIDTH, value) => {
                let bits = value.try_into().map(u64::from_be_bytes);
                egress.bandwidth = bits.ok().map(|bits| bits as f64);
            }
            (DELAY, value) => {
                let us = value.try_into().map(u32::from_be_bytes);
                egress.delay_ms = us.ok().map(|us| f64::from(us) / 1e3);
            }
            _ => {}
        });
        let (records, unpaced) = train;
        if records > MAX_TRAIN_RECORDS {
            return Err(MalformedAnswer);
        }
        (self.records, self.unpaced, self.egress) = (Some(records), unpaced, egress);
        debug_assert!(self.head.len() <= SIGNED_IN.len() + ANSWER_HEAD_LEN + MAX_FIELDS);
        Ok(())
    }

    /// Returns the server's egress metrics.
    pub(crate) fn egress(&self) -> Quality {
        self.egress
    }

    /// Returns the rates, bit/s, at which the first `records` left and came, each at most [`MAX_MEASURABLE_RATE`].
    /// `None` where there are fewer than two.
    fn rates(&self, records: u8) -> Option<(f64, f64)> {
        let seen = &self.seen[..self.seen.len().min(records.into())];
        let ((left, came), (left_last, came_last)) = (*seen.first()?, *seen.last()?);
        let bits = (seen.len() - 1) as f64 * ((RECORD_LEN + HEADERS_LEN) * 8) as f64;
        let rate = |time: Duration| (bits / time.as_secs_f64()).min(MAX_MEASURABLE_RATE);
        let out = rate(left_last.saturating_sub(left));
        (bits > 0.0).then(|| (out, rate(came_last.saturating_since(came))))
    }

    /// Returns the times between arrivals of the first `records`.
    fn gaps(&self, records: u8) -> Vec<Duration> {
        let seen = &self.seen[..self.seen.len().min(records.into())];
        let pairs = seen.windows(2);
        let gap = |pair: &[(_, Instant)]| pair[1].1.saturating_since(pair[0].1);
        pairs.map(gap).collect()
    }

    /// Computes the capacity of the bottleneck from a [burst](Train::BURST). Tries each number of leading records,
    /// because a queue too short for the burst still takes the first few. `None` where there are too few records.
    pub(crate) fn capacity(&self) -> Option<Capacity> {
        // The burst fills its packets, so the last packet is a short one with the rest of the last record.
        let whole = self.unpaced.min(self.records?.saturating_sub(1));
        let heads = UNPACED_RECORDS.min(whole)..=whole;
        let rates = heads.filter_map(|records| Some(self.rates(records)?.1));
        let rate = rates.reduce(f64::max)?;
        let gaps = self.gaps(whole);
        let at_once = |gap: &Duration| rate_of(*gap) >= MAX_MEASURABLE_RATE;
        let tokens = gaps.iter().take_while(|gap| at_once(gap)).count();
        let (_, rest) = gaps.split_at(tokens);
        if tokens == 0 || rest.is_empty() {
            return Some(match rate < MAX_MEASURABLE_RATE {
                true => Capacity::Rate(rate),
                false => Capacity::TooFast,
            });
        }
        let mean = self.rates(whole)?.1;
        // Records that follow each other at once after a pause come from a busy host, or from one that batches.
        if at_once(&median(rest)) {
            return Some(match mean < MAX_MEASURABLE_RATE {
                true => Capacity::Uneven(mean),
                false => Capacity::TooFast,
            });
        }
        Some(after_bucket(rest).map_or(Capacity::Uneven(mean), Capacity::Rate))
    }

    /// Returns the rate, bit/s, at which records came of a train that is incomplete after `time`. `None` before
    /// the answer.
    pub(crate) fn partial_rate(&self, time: Duration) -> Option<f64> {
        self.records?;
        let bits = (self.seen.len() * RECORD_LEN * 8) as f64;
        Some(bits / time.as_secs_f64().max(1e-3))
    }

    /// Computes the free part of `capacity`, bit/s, from a train at about that rate. `None` where there are too
    /// few records, or where a token bucket ran dry: the first half came as it left, the rest much later.
    pub(crate) fn available(&self, capacity: f64) -> Option<f64> {
        let gaps = self.gaps(self.unpaced);
        let (early, late) = gaps.split_at(gaps.len() / 2);
        if early.len() >= MIN_GAPS {
            let (early, late) = (rate_of(median(early)), rate_of(median(late)));
            let (sent, _) = self.rates(self.unpaced)?;
            // A bucket lets the first half pass at nearly the rate sent, then at half of it or less.
            // Cross-traffic slows both halves.
            if early >= sent * 0.8 && late <= sent / 2.0 {
                return None;
            }
        }
        let (sent, received) = self.rates(self.unpaced)?;
        let others = sent * (capacity / received - 1.0);
        Some((capacity - others).clamp(0.0, capacity))
    }
}

/// Returns the rate of records with this gap, bit/s.
fn rate_of(gap: Duration) -> f64 {
    ((RECORD_LEN + HEADERS_LEN) * 8) as f64 / gap.as_secs_f64()
}

/// Returns the lower median of gaps, which ignores the one gap in which a lost packet was retransmitted.
fn median(gaps: &[Duration]) -> Duration {
    let mut gaps = gaps.to_vec();
    gaps.sort_unstable();
    let at = gaps.len().saturating_sub(1) / 2;
    gaps.get(at).copied().unwrap_or_default()
}

/// Computes the rate, bit/s, from even gaps, of which the token bucket ran dry in the first.
fn after_bucket(gaps: &[Duration]) -> Option<f64> {
    // Tokens let a part of the first gap's record pass, so that gap is too short.
    let gaps = gaps.get(1..).filter(|gaps| gaps.len() >= MIN_GAPS)?;
    let (least, most) = (gaps.iter().min()?, gaps.iter().max()?);
    let mean = gaps.iter().sum::<Duration>() / u32::try_from(gaps.len()).ok()?;
    (*most <= *least * 2).then(|| rate_of(mean))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MBIT: f64 = 1e6;

    /// Simulates a full train whose records left `left` µs and came `came` µs apart.
    fn arrivals(left: u64, came: u64) -> TrainReceiver {
        let mut arrivals = TrainReceiver::new(false);
        let at = |n: u64| Instant::from_millis(500) + Duration::from_micros(n * came);
        let head = [
            &SIGNED_IN[..],
            &answer(MAX_TRAIN_RECORDS, MAX_TRAIN_RECORDS, Quality::default()),
        ]
        .concat();
        assert_eq!(arrivals.input(at(0), &head), Ok(false));
        for n in 0..u64::from(MAX_TRAIN_RECORDS) {
            let record = record(Duration::from_micros(n * left));
            let last = n + 1 == u64::from(MAX_TRAIN_RECORDS);
            assert_eq!(arrivals.input(at(n), &record), Ok(last));
        }
        arrivals
    }

    fn rate(arrivals: &TrainReceiver) -> f64 {
        match arrivals.capacity() {
            Some(Capacity::Rate(rate)) => rate,
            other => panic!("{other:?}"),
        }
    }

    fn is_uneven(arrivals: &TrainReceiver) -> bool {
        matches!(arrivals.capacity(), Some(Capacity::Uneven(_)))
    }

    /// Simulates a burst whose records came at these times, µs.
    fn arrived(came: &[u64]) -> TrainReceiver {
        let mut arrivals = TrainReceiver::new(false);
        let records = came.len() as u8;
        let head = [
            &SIGNED_IN[..],
            &answer(records, records, Quality::default()),
        ]
        .concat();
        let start = Instant::from_millis(500);
        assert_eq!(arrivals.input(start, &head), Ok(false));
        for came in came {
            let _ = arrivals.input(
                start + Duration::from_micros(*came),
                &record(Duration::ZERO),
            );
        }
        arrivals
    }

    #[test]
    fn a_burst_shows_the_bottleneck_and_a_paced_train_what_is_free() {
        // 1452 bytes in 580.8 µs are 20 Mbit/s.
        let capacity = rate(&arrivals(0, 581));
        assert!((capacity / (20.0 * MBIT) - 1.0).abs() < 0.01, "{capacity}");
        let paced = Train::paced(capacity);
        assert_eq!(paced.gap.as_micros(), 581);
        for (came, free) in [
            (581, 20.0),
            (871, 10.0),
            (1162, 0.0),
            (5000, 0.0),
            (300, 20.0),
        ] {
            let available = arrivals(581, came).available(capacity).unwrap() / MBIT;
            assert!((available - free).abs() < 0.1, "{came}: {available}");
        }
        // A train slower than the capacity shows at most its own rate to be free.
        let available = arrivals(1162, 1162).available(capacity).unwrap() / MBIT;
        assert!((available - 10.0).abs() < 0.1, "{available}");
    }

    /// The pacing of a server that does not know the path yet has no effect on the result.
    #[test]
    fn records_that_were_held_back_tell_nothing() {
        let head = answer(MAX_TRAIN_RECORDS, UNPACED_RECORDS, Quality::default());
        let mut arrivals = TrainReceiver::new(false);
        let head = [&SIGNED_IN[..], &head].concat();
        assert_eq!(arrivals.input(Instant::ZERO, &head), Ok(false));
        for (n, came) in [0, 581, 1162, 1743, 9_000, 12_000].into_iter().enumerate() {
            let record = record(Duration::from_micros(n as u64 * 581));
            let _ = arrivals.input(Instant::ZERO + Duration::from_micros(came), &record);
        }
        for rate in [rate(&arrivals), arrivals.available(20.0 * MBIT).unwrap()] {
            assert!((rate / MBIT - 20.0).abs() < 0.1, "{rate:?}");
        }
    }

    #[test]
    fn what_comes_at_once_tells_no_rate() {
        assert_eq!(arrivals(0, 0).capacity(), Some(Capacity::TooFast));
        assert_eq!(arrivals(0, 100).capacity(), Some(Capacity::TooFast));
        assert_eq!(arrived(&[0, 0, 0, 0]).capacity(), Some(Capacity::TooFast));
        // 77 Mbit/s can be measured.
        assert!((rate(&arrivals(0, 150)) / MBIT - 77.4).abs() < 0.1);
        assert_eq!(Train::paced(1.0).gap, MAX_RECORD_GAP);
        assert_eq!(Train::paced(0.0).gap, MAX_RECORD_GAP);
    }

    /// The first records pass by the tokens in the bucket, the others as tokens come.
    #[test]
    fn behind_a_bucket_that_ran_dry_the_rest_tells_the_rate() {
        // The gap in which the bucket ran dry is of both kinds, and the last packet is a short one.
        let dry = arrived(&[0, 12, 24, 36, 388, 969, 1550, 2131, 2712, 2742]);
        assert!((rate(&dry) / MBIT - 20.0).abs() < 0.1);
        let late = arrived(&[0, 12, 24, 36, 48, 60, 72, 390, 971, 1_001]);
        assert!(is_uneven(&late));
        // Cross-traffic came in between, or there are too few gaps.
        let others = arrived(&[0, 0, 0, 0, 0, 581, 3_000, 3_581, 6_000, 6_581]);
        assert!(is_uneven(&others));
        assert!(is_uneven(&arrived(&[0, 0, 581, 1162])));
        // A host that batches packets by twos passes on the second of each pair at once.
        let pairs = [0, 0, 464, 464, 928, 928, 1392, 1392, 1856, 1856];
        assert!(is_uneven(&arrived(&pairs)));
        let paused = arrived(&[0, 12, 24, 36, 448, 460, 472, 484, 496, 508]);
        assert_eq!(paused.capacity(), Some(Capacity::TooFast));
        // A lost packet releases those behind it at once, which is no token bucket.
        let lost = arrived(&[
            0, 581, 1162, 1743, 2323, 90_000, 90_000, 90_000, 90_000, 90_000,
        ]);
        assert!((rate(&lost) / MBIT - 20.0).abs() < 0.1);
    }

    #[test]
    fn a_paced_train_that_begins_on_tokens_tells_nothing() {
        // At 60 Mbit/s, and a bucket that lets half a train pass.
        let mut came = vec![0, 194, 388, 582, 776];
        came.extend((1..=5).map(|n| 776 + n * 581));
        let mut train = arrived(&came);
        for (n, (left, _)) in train.seen.iter_mut().enumerate() {
            *left = Duration::from_micros(n as u64 * 194);
        }
        assert_eq!(train.available(60.0 * MBIT), None);
    }

    #[test]
    fn requests_and_answers_are_read_back_however_they_come() {
        let train = Train::paced(20.0 * MBIT);
        assert_eq!(
            Train::decode(&train.encode()),
            Train {
                gap: Duration::from_micros(580),
                ..train
            }
        );
        let egress = Quality {
            bandwidth: Some(98.4e6),
            delay_ms: Some(36.05),
        };
        let head = [&SIGNED_IN[..], &answer(0, 0, egress)].concat();
        for cut in 0..head.len() {
            let mut arrivals = TrainReceiver::new(false);
            assert_eq!(
                arrivals.input(Instant::ZERO, &head[..cut]),
                Ok(false),
                "{cut}"
            );
            assert_eq!(
                arrivals.input(Instant::ZERO, &head[cut..]),
                Ok(true),
                "{cut}"
            );
            assert_eq!(arrivals.egress(), egress);
            assert_eq!(arrivals.capacity(), None);
        }
    }

    #[test]
    fn nothing_more_than_is_bounded_is_sent_or_taken() {
        let greedy = [TRAIN, 5, 255, 255, 255, 255, 255];
        let most = Train {
            records: MAX_TRAIN_RECORDS,
            gap: MAX_RECORD_GAP,
        };
        assert_eq!(Train::decode(&greedy), most);
        for fields in [
            &[][..],
            &[9, 1, 1],
            &[TRAIN, 2, 1, 1],
            &[TRAIN, 5, 1],
            &[TRAIN],
        ] {
            assert_eq!(Train::decode(fields), Train::default(), "{fields:?}");
        }
        let garbage: [&[u8]; 6] = [
            &[5, 0xff],
            &[5, 2, 1, 1],
            &[5, 2, 1, 0, 5],
            &[5, 2, 1, 0, ANSWER, 1, 1],
            &[5, 2, 1, 0, ANSWER, 0xff, 0xff],
            &[5, 2, 1, 0, ANSWER, 0, 4, TRAIN, 2, MAX_TRAIN_RECORDS + 1, 4],
        ];
        for bytes in garbage {
            let taken = TrainReceiver::new(false).input(Instant::ZERO, bytes);
            assert_eq!(taken, Err(MalformedAnswer), "{bytes:?}");
        }
    }
}
