//! Probes, by which a box measures the path from a server and receives the server's egress metrics.
//!
//! On a signed-in connection, a box requests a train of packets instead of a destination. The server answers with
//! its egress metrics and sends the train. Each record carries its departure time, so that the box sees how the
//! path changed the spacing. `docs/protocol.md` describes each field.
//!
//! A burst arrives at C, the rate of the bottleneck. A second train is sent at the rate S = C and arrives at the
//! rate R. If R is lower, cross-traffic of S · (C / R - 1) shared the bottleneck, and the remainder of C is
//! available (Strauss et al., "A Measurement Study of Available Bandwidth Estimation Tools", IMC 2003).

use core::time::Duration;

use braid_secure::channel::RECORD_OVERHEAD;
use braid_wire::Instant;

use super::fields::each_field;
use super::prefix::Prefix;
use super::quality::Quality;
use super::socks::ServerHandshake;

/// Maximum number of records in a train. Ten records and the bytes before them about fill an initial window of ten
/// segments (RFC 6928), which pacing does not delay.
pub(crate) const MAX_TRAIN_RECORDS: u8 = 10;
/// Minimum number of leading records from which a capacity is computed, unless fewer were unpaced. If the engine has no
/// measurements of the path, it sends four segments unpaced.
pub(crate) const UNPACED_RECORDS: u8 = 4;
/// Number of bytes of the record with a protected answer: the answer and its content type are padded to 128 bytes.
pub(crate) const ANSWER_RECORD_LEN: usize = 127 + RECORD_OVERHEAD;
/// Number of payload bytes in a record. With its protection a record has 1,400 bytes. They fit a packet of 1,500
/// bytes with any TCP options, and the channel does not pad them.
pub(crate) const RECORD_LEN: usize = 1400 - RECORD_OVERHEAD;
/// Number of bytes that a record's packet has in addition to the payload: 20 of IPv4, 32 of TCP with timestamps,
/// and the protection of the record.
const HEADERS_LEN: usize = 52 + RECORD_OVERHEAD;
/// Maximum time between records, so that a train takes at most 9 * 50 ms and a server's memory is not held for
/// long. Packets of 1,452 bytes at this gap make 230 kbit/s, the lowest rate of a train.
pub(crate) const MAX_RECORD_GAP: Duration = Duration::from_millis(50);
/// Number of bytes that a measurement costs in one direction: two trains, and 2,000 bytes for the handshakes of
/// each train's connection (an upper estimate).
pub(crate) const MEASUREMENT_BYTES: u64 =
    2 * (MAX_TRAIN_RECORDS as u64 * (RECORD_LEN + HEADERS_LEN) as u64 + 2_000);
/// The highest rate that a train can show, bit/s. If a provider shapes by a token bucket, a burst passes at the
/// rate of the wire until the bucket is empty. The wire is Fast Ethernet (100 Mbit/s) or faster, and most buckets
/// (16 kB and more) are larger than a train. So a higher rate may be the wire's and not the link's.
pub(crate) const MAX_MEASURABLE_RATE: f64 = 90e6;
/// Minimum number of gaps between records that yields the rate of a token bucket after the bucket ran dry. A
/// guess: fewer gaps can be even by chance.
const MIN_GAPS: usize = 4;

/// First byte of an answer, version 1.
const ANSWER: u8 = 0xb3;
/// Number of bytes before the fields of an answer: the first byte and a length of two bytes.
const ANSWER_HEAD_LEN: usize = 3;
/// Maximum number of bytes of the fields in an answer. Those of this version have at most 100 bytes; the rest is
/// room for fields of later versions.
const MAX_FIELDS: usize = 256;
/// Maximum number of prefixes that a probe asks for. With this number, request and answer still fit the 128 bytes
/// to which protection pads every message, so asking costs no byte on the wire.
pub(crate) const MAX_ASKED_PREFIXES: usize = 4;
/// The bytes before a plaintext answer: the server's choice of a method (SOCKS 5, method 2, RFC 1928 section 3),
/// and the status of the sign-in (RFC 1929).
const SIGNED_IN: [u8; 4] = [
    5,
    2,
    ServerHandshake::ACCEPTED[0],
    ServerHandshake::ACCEPTED[1],
];
/// The bytes before a protected answer: SOCKS 5, method 0 (no authentication), because the box's key identifies
/// the user already.
const WELCOME: [u8; 2] = [5, 0];

// Kinds of fields.
const TRAIN: u8 = 1;
const BANDWIDTH: u8 = 2;
const DELAY: u8 = 3;
const PREFIX: u8 = 4;

/// A train of records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Train {
    /// The number of records.
    pub(crate) records: u8,
    /// The time between departures; zero sends the records at once.
    pub(crate) gap: Duration,
}

impl Train {
    /// A train of the maximum length without gaps.
    pub(crate) const BURST: Train = Train {
        records: MAX_TRAIN_RECORDS,
        gap: Duration::ZERO,
    };

    /// Returns a train of the maximum length at `rate` bit/s, or at a higher rate if the gaps would exceed
    /// [`MAX_RECORD_GAP`].
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

    /// Decodes the fields of a request. Larger values than a server grants are reduced to the maximum. Without a
    /// field for the train, the train is empty.
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

/// Adds the question for the egress metrics of `prefix` to the fields of a request. A server without an answer, or
/// of an earlier release, skips the field.
pub(crate) fn ask(fields: &mut Vec<u8>, prefix: Prefix) {
    let bytes = prefix.bytes();
    fields.extend([PREFIX, bytes.len() as u8]);
    fields.extend(bytes);
}

/// Decodes the prefixes that a request asks for; those beyond [`MAX_ASKED_PREFIXES`] are ignored.
pub(crate) fn asked(fields: &[u8]) -> Vec<Prefix> {
    let mut asked = Vec::new();
    each_field(fields, |kind, value| {
        if kind == PREFIX && asked.len() < MAX_ASKED_PREFIXES {
            asked.extend(Prefix::decode(value));
        }
    });
    asked
}

/// The capacity of the bottleneck, estimated from a burst.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Capacity {
    /// The capacity, bit/s.
    Rate(f64),
    /// The train arrived at [`MAX_MEASURABLE_RATE`] or more: the bottleneck is that fast, or its token bucket
    /// holds a whole train.
    TooFast,
    /// The first records arrived at once and the rest at uneven intervals, so only the mean rate in bit/s is
    /// known.
    Uneven(f64),
}

/// Encodes the answer before a train of `records`. The server's pacing does not delay the first `unpaced` of
/// them, so only their spacing is meaningful. `egress` has the metrics over all destinations, `prefixes` those of
/// the prefixes that the request asked for and that were measured.
pub(crate) fn answer(
    records: u8,
    unpaced: u8,
    egress: Quality,
    prefixes: &[(Prefix, Quality)],
) -> Vec<u8> {
    let mut fields = vec![TRAIN, 2, records, unpaced];
    if let Some(bits) = egress.bandwidth {
        fields.extend([BANDWIDTH, 8]);
        fields.extend((bits as u64).to_be_bytes());
    }
    if let Some(ms) = egress.delay_ms {
        fields.extend([DELAY, 4]);
        fields.extend(micros(ms));
    }
    for (prefix, quality) in prefixes {
        let mut value = prefix.bytes().to_vec();
        value.extend(quality.delay_ms.map_or([0; 4], micros));
        value.extend(
            quality
                .bandwidth
                .iter()
                .flat_map(|bits| (*bits as u64).to_be_bytes()),
        );
        fields.extend([PREFIX, value.len() as u8]);
        fields.extend(value);
    }
    let length = u16::try_from(fields.len()).unwrap_or(u16::MAX);
    let mut out = vec![ANSWER];
    out.extend(length.to_be_bytes());
    out.extend(fields);
    out
}

fn micros(ms: f64) -> [u8; 4] {
    ((ms * 1e3) as u32).to_be_bytes()
}

/// Decodes the metrics of a prefix.
fn read_prefix(value: &[u8]) -> Option<(Prefix, Quality)> {
    // 4 bytes of delay follow the prefix, or 12 of delay and bandwidth.
    let prefix_len = match value.len() {
        7 | 15 => 3,
        10 | 18 => 6,
        _ => return None,
    };
    let (prefix, metrics) = value.split_at_checked(prefix_len)?;
    let (delay, bandwidth) = metrics.split_first_chunk()?;
    let bandwidth = bandwidth.try_into().map(u64::from_be_bytes);
    let quality = Quality {
        bandwidth: bandwidth.ok().map(|bits| bits as f64),
        delay_ms: match u32::from_be_bytes(*delay) {
            0 => None,
            us => Some(f64::from(us) / 1e3),
        },
    };
    Some((Prefix::decode(prefix)?, quality))
}

/// Returns a record that leaves at the time `since_answer` after the answer.
pub(crate) fn record(since_answer: Duration) -> [u8; RECORD_LEN] {
    let micros = u32::try_from(since_answer.as_micros()).unwrap_or(u32::MAX);
    // Pseudo-random bytes (xorshift, Marsaglia 2003), so that no link compresses the record. The seed must not be
    // 0, from which xorshift yields only zeros.
    let mut noise = micros | 1;
    let mut record = [0; RECORD_LEN];
    for byte in &mut record {
        noise ^= noise << 13;
        noise ^= noise >> 17;
        noise ^= noise << 5;
        *byte = noise as u8;
    }
    record[..4].copy_from_slice(&micros.to_be_bytes());
    record
}

/// The receiving end of a probe, at the box.
#[derive(Debug, Default)]
pub(crate) struct TrainReceiver {
    /// The bytes expected before the answer.
    preamble: &'static [u8],
    /// The bytes received before the first record.
    head: Vec<u8>,
    /// The number of records; `None` until the answer has come.
    records: Option<u8>,
    /// The number of leading records that pacing did not delay.
    unpaced: u8,
    egress: Quality,
    prefixes: Vec<(Prefix, Quality)>,
    /// Number of bytes received of the current record.
    partial: usize,
    /// The departure time in the current record.
    departure: [u8; 4],
    /// Departure and arrival of each complete record. The departure is the time since the answer.
    seen: Vec<(Duration, Instant)>,
}

/// The error of a malformed answer: the peer is no Braid server, or has an incompatible version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MalformedAnswer;

impl TrainReceiver {
    /// Creates the receiver for a protected or a plaintext connection.
    pub(crate) fn new(protected: bool) -> Self {
        TrainReceiver {
            preamble: match protected {
                true => &WELCOME,
                false => &SIGNED_IN,
            },
            ..TrainReceiver::default()
        }
    }

    /// Processes bytes that arrived at `now`. Returns whether all records have arrived.
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
            let (part, rest) = bytes.split_at(bytes.len().min(RECORD_LEN - self.partial));
            let departure = self.departure.iter_mut().skip(self.partial);
            departure.zip(part).for_each(|(to, from)| *to = *from);
            self.partial += part.len();
            bytes = rest;
            if self.partial == RECORD_LEN {
                let micros = u32::from_be_bytes(self.departure);
                self.seen.push((Duration::from_micros(micros.into()), now));
                self.partial = 0;
            }
        }
        Ok(self.seen.len() >= usize::from(records))
    }

    /// Decodes the bytes before the first record, if they are complete.
    fn read_head(&mut self) -> Result<(), MalformedAnswer> {
        let (preamble, answer) = self.head.split_at(self.head.len().min(self.preamble.len()));
        if !self.preamble.starts_with(preamble) || answer.first().is_some_and(|a| *a != ANSWER) {
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
        let prefixes = &mut self.prefixes;
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
            (PREFIX, value) => {
                // `MAX_FIELDS` bounds the number.
                prefixes.extend(read_prefix(value));
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

    /// Returns the egress metrics of the prefixes that the request asked for, as far as the server has any.
    pub(crate) fn prefixes(&self) -> &[(Prefix, Quality)] {
        &self.prefixes
    }

    /// Returns the rates in bit/s at which the first `records` departed and arrived, each at most
    /// [`MAX_MEASURABLE_RATE`]. `None` if fewer than two records have arrived.
    fn rates(&self, records: u8) -> Option<(f64, f64)> {
        let seen = &self.seen[..self.seen.len().min(records.into())];
        let ((first_departure, first_arrival), (last_departure, last_arrival)) =
            (*seen.first()?, *seen.last()?);
        // The first record only starts the clock, so its bytes do not count.
        let bits = (seen.len() - 1) as f64 * ((RECORD_LEN + HEADERS_LEN) * 8) as f64;
        let rate = |time: Duration| (bits / time.as_secs_f64()).min(MAX_MEASURABLE_RATE);
        let sent = rate(last_departure.saturating_sub(first_departure));
        (bits > 0.0).then(|| (sent, rate(last_arrival.saturating_since(first_arrival))))
    }

    /// Returns the times between arrivals of the first `records`.
    fn gaps(&self, records: u8) -> Vec<Duration> {
        let seen = &self.seen[..self.seen.len().min(records.into())];
        let pairs = seen.windows(2);
        let gap = |pair: &[(_, Instant)]| pair[1].1.saturating_since(pair[0].1);
        pairs.map(gap).collect()
    }

    /// Computes the capacity of the bottleneck from a [burst](Train::BURST). `None` if too few records have
    /// arrived.
    ///
    /// A queue that is too short for the burst drops records. Their retransmission delays all later records, but
    /// the records before the first loss still show the rate. Therefore a rate is computed from the first
    /// [`UNPACED_RECORDS`] records, and from each larger number of leading records. The highest of these rates
    /// counts.
    pub(crate) fn capacity(&self) -> Option<Capacity> {
        // The server sends a burst as full packets. The last packet is short, because it has only the rest of the
        // last record. So the last record would show too high a rate.
        let counted = self.unpaced.min(self.records?.saturating_sub(1));
        let heads = UNPACED_RECORDS.min(counted)..=counted;
        let rates = heads.filter_map(|records| Some(self.rates(records)?.1));
        let rate = rates.reduce(f64::max)?;
        let gaps = self.gaps(counted);
        let at_once = |gap: &Duration| rate_of(*gap) >= MAX_MEASURABLE_RATE;
        // Leading gaps at the rate of the wire: a token bucket let these records pass.
        let from_bucket = gaps.iter().take_while(|gap| at_once(gap)).count();
        let (_, rest) = gaps.split_at(from_bucket);
        if from_bucket == 0 || rest.is_empty() {
            return Some(match rate < MAX_MEASURABLE_RATE {
                true => Capacity::Rate(rate),
                false => Capacity::TooFast,
            });
        }
        let mean = self.rates(counted)?.1;
        // If most records after a pause arrive at once, no bucket ran dry: a busy or batching host made the pause.
        if at_once(&median(rest)) {
            return Some(match mean < MAX_MEASURABLE_RATE {
                true => Capacity::Uneven(mean),
                false => Capacity::TooFast,
            });
        }
        Some(after_bucket(rest).map_or(Capacity::Uneven(mean), Capacity::Rate))
    }

    /// Returns the mean arrival rate, bit/s, of a train that is still incomplete `time` after the request. `None`
    /// before the answer.
    pub(crate) fn partial_rate(&self, time: Duration) -> Option<f64> {
        self.records?;
        let bits = (self.seen.len() * RECORD_LEN * 8) as f64;
        // At least 1 ms, so that the result is finite.
        Some(bits / time.as_secs_f64().max(1e-3))
    }

    /// Computes the available part of `capacity`, bit/s, from a train that was sent at about that rate. `None` if
    /// too few records have arrived, or if a token bucket ran dry during the train: then `capacity` was the rate
    /// of the wire and not of the link.
    pub(crate) fn available(&self, capacity: f64) -> Option<f64> {
        let gaps = self.gaps(self.unpaced);
        let (early, late) = gaps.split_at(gaps.len() / 2);
        if early.len() >= MIN_GAPS {
            let (early, late) = (rate_of(median(early)), rate_of(median(late)));
            let (sent, _) = self.rates(self.unpaced)?;
            // While a bucket has tokens, records arrive at the rate at which they were sent; afterwards they
            // arrive at the link's rate. Cross-traffic slows both halves instead. The bounds 0.8 and 1/2 are
            // guesses between the two patterns.
            if early >= sent * 0.8 && late <= sent / 2.0 {
                return None;
            }
        }
        let (sent, received) = self.rates(self.unpaced)?;
        // The formula at the head of the module.
        let cross_traffic = sent * (capacity / received - 1.0);
        Some((capacity - cross_traffic).clamp(0.0, capacity))
    }
}

/// Returns the rate, bit/s, of records that arrive at intervals of `gap`.
fn rate_of(gap: Duration) -> f64 {
    ((RECORD_LEN + HEADERS_LEN) * 8) as f64 / gap.as_secs_f64()
}

/// Returns the lower median of gaps. Unlike a mean, the median ignores a single long gap, in which a lost packet
/// was retransmitted.
fn median(gaps: &[Duration]) -> Duration {
    let mut gaps = gaps.to_vec();
    gaps.sort_unstable();
    let at = gaps.len().saturating_sub(1) / 2;
    gaps.get(at).copied().unwrap_or_default()
}

/// Computes the rate, bit/s, at which a token bucket fills. The bucket ran dry in the first of `gaps`. `None` if
/// the other gaps are too few or uneven.
fn after_bucket(gaps: &[Duration]) -> Option<f64> {
    // The last tokens let a part of the record after the first gap pass at once, so the first gap is too short.
    let gaps = gaps.get(1..).filter(|gaps| gaps.len() >= MIN_GAPS)?;
    let (shortest, longest) = (gaps.iter().min()?, gaps.iter().max()?);
    let mean = gaps.iter().sum::<Duration>() / u32::try_from(gaps.len()).ok()?;
    // A bucket fills steadily; cross-traffic does not come so evenly. The factor is a guess.
    (*longest <= *shortest * 2).then(|| rate_of(mean))
}

#[cfg(test)]
mod tests {
    use core::net::IpAddr;

    use super::*;

    const MBIT: f64 = 1e6;

    /// Simulates a train of the maximum length whose records departed at intervals of `sent` µs, and arrived at
    /// intervals of `received` µs.
    fn arrivals(sent: u64, received: u64) -> TrainReceiver {
        let mut arrivals = TrainReceiver::new(false);
        let at = |n: u64| Instant::from_millis(500) + Duration::from_micros(n * received);
        let head = [
            &SIGNED_IN[..],
            &answer(
                MAX_TRAIN_RECORDS,
                MAX_TRAIN_RECORDS,
                Quality::default(),
                &[],
            ),
        ]
        .concat();
        assert_eq!(arrivals.input(at(0), &head), Ok(false));
        for n in 0..u64::from(MAX_TRAIN_RECORDS) {
            let record = record(Duration::from_micros(n * sent));
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

    /// Simulates a burst whose records arrived at the times `came`, µs.
    fn arrived(came: &[u64]) -> TrainReceiver {
        let mut arrivals = TrainReceiver::new(false);
        let records = came.len() as u8;
        let head = [
            &SIGNED_IN[..],
            &answer(records, records, Quality::default(), &[]),
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
        // The record size is 11,616 bits; the available rate is 20 - 20 * (20 / R - 1) Mbit/s, from 0 to 20.
        for (came, free) in [
            (581, 20.0),
            // R = 13.3 Mbit/s.
            (871, 10.0),
            // R = 10 Mbit/s.
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

    /// A server that does not know the path paces the records after the first four. The times of the paced records
    /// must not count.
    #[test]
    fn paced_records_have_no_effect_on_the_result() {
        let head = answer(MAX_TRAIN_RECORDS, UNPACED_RECORDS, Quality::default(), &[]);
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
    fn records_that_arrive_at_once_show_no_rate() {
        assert_eq!(arrivals(0, 0).capacity(), Some(Capacity::TooFast));
        assert_eq!(arrivals(0, 100).capacity(), Some(Capacity::TooFast));
        assert_eq!(arrived(&[0, 0, 0, 0]).capacity(), Some(Capacity::TooFast));
        // 11,616 bits in 150 µs are 77.4 Mbit/s, less than the highest measurable rate.
        assert!((rate(&arrivals(0, 150)) / MBIT - 77.4).abs() < 0.1);
        assert_eq!(Train::paced(1.0).gap, MAX_RECORD_GAP);
        assert_eq!(Train::paced(0.0).gap, MAX_RECORD_GAP);
    }

    /// Tokens in the bucket let the first records pass at once; the others wait for new tokens.
    #[test]
    fn records_after_an_empty_bucket_show_the_rate() {
        // The bucket runs dry in the gap of 352 µs, a part of which is at the wire's rate. The last packet is
        // short. The gaps of 581 µs between are 20 Mbit/s.
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
        // The retransmission of a lost packet releases the records behind it at once. That is no token bucket.
        let lost = arrived(&[
            0, 581, 1162, 1743, 2323, 90_000, 90_000, 90_000, 90_000, 90_000,
        ]);
        assert!((rate(&lost) / MBIT - 20.0).abs() < 0.1);
    }

    #[test]
    fn a_paced_train_that_begins_on_tokens_shows_no_rate() {
        // Records leave at intervals of 194 µs, 60 Mbit/s. The bucket lets the first half pass and then fills at
        // 20 Mbit/s, an interval of 581 µs.
        let mut came = vec![0, 194, 388, 582, 776];
        came.extend((1..=5).map(|n| 776 + n * 581));
        let mut train = arrived(&came);
        for (n, (left, _)) in train.seen.iter_mut().enumerate() {
            *left = Duration::from_micros(n as u64 * 194);
        }
        assert_eq!(train.available(60.0 * MBIT), None);
    }

    #[test]
    fn requests_and_answers_are_decoded_in_any_fragments() {
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
        let addr = |text: &str| Prefix::from(text.parse::<IpAddr>().unwrap());
        let asked = [addr("198.51.100.7"), addr("2001:db8::1"), addr("192.0.2.1")];
        let mut fields = train.encode();
        asked.iter().for_each(|prefix| ask(&mut fields, *prefix));
        assert_eq!(super::asked(&fields), asked);
        let delay_alone = Quality {
            bandwidth: None,
            delay_ms: Some(7.125),
        };
        let prefixes = [(asked[0], egress), (asked[1], delay_alone)];
        let head = [&SIGNED_IN[..], &answer(0, 0, egress, &prefixes)].concat();
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
            assert_eq!(arrivals.prefixes(), prefixes);
            assert_eq!(arrivals.capacity(), None);
        }
    }

    /// A release that knows no prefixes reads the other fields, in the request and in the answer. With the maximum
    /// of prefixes, both fit the least padding: 127 bytes besides the type.
    #[test]
    fn prefixes_cost_no_byte_on_the_wire() {
        let prefix = |n: u8| Prefix::from(IpAddr::from([0x2001, 0xdb8, n.into(), 0, 0, 0, 0, 1]));
        let all: Vec<_> = (0..MAX_ASKED_PREFIXES as u8).map(prefix).collect();
        let mut fields = Train::BURST.encode();
        all.iter().for_each(|prefix| ask(&mut fields, *prefix));
        ask(&mut fields, prefix(99));
        assert_eq!(asked(&fields), all);
        assert_eq!(Train::decode(&fields), Train::BURST);
        let greeting_and_head = 3 + 3;
        assert!(greeting_and_head + fields.len() <= 127);
        let metrics = Quality {
            bandwidth: Some(1e9),
            delay_ms: Some(10.0),
        };
        let all: Vec<_> = all.into_iter().map(|prefix| (prefix, metrics)).collect();
        assert!(WELCOME.len() + answer(10, 10, metrics, &all).len() <= 127);
        assert_eq!(read_prefix(&[1, 2, 3, 0, 0, 0]), None);
        assert_eq!(read_prefix(&[0; 16]), None);
    }

    #[test]
    fn requests_and_answers_beyond_the_limits_are_reduced_or_refused() {
        let greedy = [TRAIN, 5, 255, 255, 255, 255, 255];
        let max = Train {
            records: MAX_TRAIN_RECORDS,
            gap: MAX_RECORD_GAP,
        };
        assert_eq!(Train::decode(&greedy), max);
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
