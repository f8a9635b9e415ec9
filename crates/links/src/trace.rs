//! Rates that follow a recorded trace.

use core::fmt;
use core::time::Duration;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;

use braid_wire::{Instant, Rng};

const NANOS_PER_MILLI: u64 = 1_000_000;

/// Maximum size of a trace file, bytes. 4 Mi lines of up to 11 bytes fit. The bound already applies while the file
/// is read, because the path may name a device that never ends.
const MAX_FILE: u64 = 64 << 20;

/// Stream of the random numbers of a swinging rate; any number works.
const SWING_STREAM: u64 = 0;

/// Maximum number of characters of a wrong line that an error quotes.
const MAX_QUOTED_CHARS: usize = 40;

/// A recording of the bytes that a line can carry over time, in the format of mahimahi (Netravali et al.,
/// "Mahimahi: Accurate Record-and-Replay for HTTP", USENIX ATC 2015).
///
/// Each line of the file is the time of an opportunity, in whole milliseconds. At this time up to
/// [`Trace::OPPORTUNITY_BYTES`] bytes leave. Times do not decrease. A time that occurs n times gives n
/// opportunities. After the last time the trace repeats.
///
/// Several small packets share an opportunity. A packet larger than the rest of an opportunity continues in the
/// next opportunity. The packet has left when its last byte leaves. An opportunity that is not used at its time is
/// lost.
///
/// Clones share the data.
#[derive(Clone, PartialEq, Eq)]
pub struct Trace(Arc<[u32]>);

impl Trace {
    /// Bytes that an opportunity carries: a packet of maximum size, as mahimahi defines.
    pub const OPPORTUNITY_BYTES: u32 = 1500;
    /// Maximum number of opportunities in a trace, to bound memory: 2^22 of 4 bytes are 16 MiB. They carry 50
    /// Gbit.
    pub const MAX_OPPORTUNITIES: usize = 1 << 22;

    /// Number of steps after which the trace of [`Self::swinging`] repeats. A guess: so many that no sender
    /// adapts to the repetition.
    pub const SWING_STEPS: u32 = 64;

    /// Parses the text of a trace.
    ///
    /// # Errors
    /// Fails if a line is not a time, or is a time earlier than the previous line's. Fails if the trace is empty,
    /// lasts 0 ms, or has more than [`Self::MAX_OPPORTUNITIES`] lines. The text names the line, and the expected
    /// content.
    pub fn parse(text: &str) -> Result<Trace, String> {
        let mut times: Vec<u32> = Vec::new();
        let wrong = |line: usize, read: &str, expected: String| {
            let read: String = read.chars().take(MAX_QUOTED_CHARS).collect();
            format!("line {line}: `{read}` where a trace has {expected}")
        };
        for (n, line) in (1..).zip(text.trim_end().lines()) {
            let wrong = |expected| wrong(n, line, expected);
            if n > Self::MAX_OPPORTUNITIES {
                return Err(wrong(format!("at most {} lines", Self::MAX_OPPORTUNITIES)));
            }
            let time = line.trim().parse().map_err(|_| {
                let max = u32::MAX;
                wrong(format!("a time in whole milliseconds from 0 to {max}"))
            })?;
            if let Some(last) = times.last().filter(|last| **last > time) {
                let expected = format!("a time not before {last}, that of the previous line");
                return Err(wrong(expected));
            }
            times.push(time);
        }
        let expected = match times.last() {
            None => "a time in milliseconds on each line",
            Some(0) => "a last time after 0, the length of the trace",
            Some(_) => return Ok(Trace(times.into())),
        };
        let last = if times.is_empty() { "" } else { "0" };
        Err(wrong(times.len().max(1), last, expected.to_owned()))
    }

    /// Returns a trace whose rate swings around `mean`, bit/s. Every `step`, in whole milliseconds, a new rate is
    /// drawn uniformly between `mean · (1 - share)` and `mean · (1 + share)`. The trace has
    /// [`Self::SWING_STEPS`] steps, and the same arguments give the same trace.
    ///
    /// # Errors
    /// Fails if the step is shorter than 1 ms, or the trace would have no opportunity, or more than
    /// [`Self::MAX_OPPORTUNITIES`]. The text is the reason.
    pub fn swinging(mean: u64, share: f64, step: Duration, seed: u64) -> Result<Trace, String> {
        let step = u32::try_from(step.as_millis()).unwrap_or(u32::MAX);
        let per_milli = mean as f64 / 1e3 / (f64::from(Self::OPPORTUNITY_BYTES) * 8.0);
        if step == 0 {
            return Err("the step is shorter than 1 ms".to_owned());
        }
        let most = per_milli * 2.0 * f64::from(step) * f64::from(Self::SWING_STEPS);
        if most > Self::MAX_OPPORTUNITIES as f64 {
            return Err("rate and step need too many opportunities; shorten the step".to_owned());
        }
        let mut rng = Rng::for_component(seed, SWING_STREAM);
        let (mut times, mut due, mut factor) = (Vec::new(), 0.0, 1.0);
        for milli in 0..step.saturating_mul(Self::SWING_STEPS) {
            if milli % step == 0 {
                factor = 1.0 + share * (2.0 * rng.unit() - 1.0);
            }
            due += per_milli * factor;
            times.resize(due as usize, milli + 1);
        }
        if times.is_empty() {
            return Err("no packet passes in the whole trace; lengthen the step".to_owned());
        }
        Ok(Trace(times.into()))
    }

    /// Reads the trace in the file at `path`. The file may have up to 64 MiB.
    ///
    /// # Errors
    /// Fails if the file cannot be read, is too long, or is not a trace. The text names the file, the line, and
    /// the expected content.
    pub fn read(path: &Path) -> Result<Trace, String> {
        let shown = path.display();
        let cannot = |e: io::Error| {
            format!(
                "cannot read the trace `{shown}` ({e}); name a file with a time in milliseconds on \
                 each line, at which {} bytes may leave",
                Self::OPPORTUNITY_BYTES
            )
        };
        let mut text = String::new();
        // A device or a pipe has no known size, so the read itself has a limit. The limit is one byte more than
        // allowed; reaching it shows that the file is too long.
        let mut limited = File::open(path).map_err(cannot)?.take(MAX_FILE + 1);
        let bytes = limited.read_to_string(&mut text).map_err(cannot)?;
        if bytes as u64 > MAX_FILE {
            return Err(format!(
                "the trace `{shown}` is longer than the maximum of {MAX_FILE} bytes"
            ));
        }
        Trace::parse(&text).map_err(|e| format!("the trace `{shown}`: {e}"))
    }

    /// Returns the number of opportunities in one repetition of the trace, at least 1.
    pub fn opportunities(&self) -> usize {
        self.0.len()
    }

    /// Returns the time after which the trace repeats, at least 1 ms.
    pub fn duration(&self) -> Duration {
        Duration::from_nanos(self.length_nanos())
    }

    /// Returns the mean rate, bit/s.
    pub fn mean_rate(&self) -> f64 {
        let bits = self.0.len() as f64 * f64::from(Self::OPPORTUNITY_BYTES) * 8.0;
        bits / self.duration().as_secs_f64()
    }

    fn length_nanos(&self) -> u64 {
        self.0.last().map_or(1, |last| u64::from(*last)) * NANOS_PER_MILLI
    }

    /// Returns the time of the opportunity `index`, in nanoseconds since the start. Indices count on through
    /// repetitions.
    fn nanos(&self, index: u64) -> u64 {
        let (round, position) = (index / self.0.len() as u64, index % self.0.len() as u64);
        let within = u64::from(self.0[position as usize]) * NANOS_PER_MILLI;
        let start = round.saturating_mul(self.length_nanos());
        start.saturating_add(within)
    }

    /// Returns the index of the first opportunity at or after `elapsed` nanoseconds since the start.
    fn first_from(&self, elapsed: u64) -> u64 {
        // A round ends at the time of its last opportunity, and the next round starts at this time. Here the time
        // belongs to the earlier round, so that the round's last opportunities are found.
        let round = elapsed.div_ceil(self.length_nanos()).saturating_sub(1);
        let within = elapsed - round * self.length_nanos();
        let is_before = |time: &u32| u64::from(*time) * NANOS_PER_MILLI < within;
        let position = self.0.partition_point(is_before) as u64;
        let start = round.saturating_mul(self.0.len() as u64);
        start.saturating_add(position)
    }
}

/// Shows the number of opportunities and the length only: the list of times is too long to read.
impl fmt::Debug for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trace")
            .field("opportunities", &self.opportunities())
            .field("length", &self.duration())
            .finish()
    }
}

/// The position of a line in its trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cursor {
    /// The time at which the trace started.
    origin: Instant,
    /// The index of the opportunity in use. Indices count on through repetitions.
    index: u64,
    /// Unused bytes of that opportunity.
    left: u32,
}

impl Cursor {
    pub fn new(origin: Instant) -> Self {
        Cursor {
            origin,
            index: 0,
            left: Trace::OPPORTUNITY_BYTES,
        }
    }

    /// Forgets the opportunity in use. The next [`send`](Self::send) finds the current opportunity by the time.
    pub fn forget(&mut self) {
        *self = Cursor::new(self.origin);
    }

    /// Sends a packet of `len` bytes, beginning at `now`. Returns the time at which the last byte leaves.
    pub fn send(&mut self, trace: &Trace, now: Instant, len: u32) -> Instant {
        // Opportunities before `now` are lost.
        let first = trace.first_from(self.elapsed(now));
        if first > self.index {
            *self = Cursor {
                index: first,
                ..Cursor::new(self.origin)
            };
        }
        // `rest` is the number of bytes that do not fit the opportunity in use.
        if let Some(rest) = len.checked_sub(self.left).filter(|rest| *rest > 0) {
            let further = rest.div_ceil(Trace::OPPORTUNITY_BYTES);
            self.index += u64::from(further);
            self.left =
                (u64::from(further) * u64::from(Trace::OPPORTUNITY_BYTES) - u64::from(rest)) as u32;
        } else {
            self.left -= len;
        }
        self.origin + Duration::from_nanos(trace.nanos(self.index))
    }

    /// Returns the number of bytes of the last packet that have not left by `now`. The last packet has `len`
    /// bytes.
    pub fn remaining(&self, trace: &Trace, now: Instant, len: u32) -> u32 {
        // `next` is the first opportunity after `now`. The one with the packet's last byte is `ahead`
        // opportunities later.
        let next = trace.first_from(self.elapsed(now).saturating_add(1));
        let Some(ahead) = self.index.checked_sub(next) else {
            return 0;
        };
        let bytes = (ahead + 1) * u64::from(Trace::OPPORTUNITY_BYTES) - u64::from(self.left);
        bytes.min(len.into()) as u32
    }

    fn elapsed(&self, now: Instant) -> u64 {
        now.as_nanos().saturating_sub(self.origin.as_nanos())
    }
}
