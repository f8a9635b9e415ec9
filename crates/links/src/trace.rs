//! Rates read from a trace.

use core::fmt;
use core::time::Duration;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;

use braid_wire::Instant;

const NANOS_PER_MILLI: u64 = 1_000_000;

/// Largest file of a trace, bytes. The bound comes before parsing, for the path may name a device.
const MAX_FILE: u64 = 64 << 20;

/// The bytes that a line can carry over time, recorded from a real line in the format of mahimahi
/// (Netravali et al., "Mahimahi: Accurate Record-and-Replay for HTTP", USENIX ATC 2015).
///
/// Each line of text is a time in whole milliseconds at which up to [`Trace::OPPORTUNITY_BYTES`] bytes leave.
/// Times do not go back, a time that stands n times gives n opportunities, and after the last time the
/// trace begins anew.
///
/// A packet larger than the rest of an opportunity goes on in the next one, and leaves in the one that
/// has its last byte; several small packets share an opportunity. An opportunity that is not used at its
/// time is lost.
/// A clone shares the data.
#[derive(Clone, PartialEq, Eq)]
pub struct Trace(Arc<[u32]>);

impl Trace {
    /// Bytes that an opportunity carries.
    pub const OPPORTUNITY_BYTES: u32 = 1500;
    /// Most opportunities of a trace: 16 MiB of memory, 50 Gbit.
    pub const MAX_OPPORTUNITIES: usize = 1 << 22;

    /// Reads the text of a trace.
    ///
    /// # Errors
    /// Fails if a line is no time or one before its predecessor's, or if the trace is empty, lasts 0 ms
    /// or has more than [`Self::MAX_OPPORTUNITIES`] lines.
    pub fn parse(text: &str) -> Result<Trace, TraceError> {
        let mut times: Vec<u32> = Vec::new();
        for (n, read) in text.trim_end().lines().enumerate() {
            let wrong = |expected: String| TraceError::new(n + 1, read, expected);
            if n == Self::MAX_OPPORTUNITIES {
                return Err(wrong(format!("at most {} lines", Self::MAX_OPPORTUNITIES)));
            }
            let time = read.trim().parse().map_err(|_| {
                let most = u32::MAX;
                wrong(format!("a time in whole milliseconds from 0 to {most}"))
            })?;
            if let Some(last) = times.last().filter(|last| **last > time) {
                return Err(wrong(format!("{last} or later, the line before")));
            }
            times.push(time);
        }
        match times.last() {
            None => {
                let expected = "a time in milliseconds on each line".to_owned();
                Err(TraceError::new(1, "", expected))
            }
            Some(0) => {
                let expected = "a last time after 0, the length of the trace".to_owned();
                Err(TraceError::new(times.len(), "0", expected))
            }
            Some(_) => Ok(Trace(times.into())),
        }
    }

    /// Reads the trace in the file at `path`, of at most 64 MiB.
    ///
    /// # Errors
    /// Says what is wrong with the file, or with which of its lines, and what it should hold.
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
        // A device or a pipe does not say how much there is to come.
        let mut start = File::open(path).map_err(cannot)?.take(MAX_FILE + 1);
        let bytes = start.read_to_string(&mut text).map_err(cannot)?;
        if bytes as u64 > MAX_FILE {
            return Err(format!(
                "the trace `{shown}` has more than the {MAX_FILE} bytes that are read"
            ));
        }
        Trace::parse(&text).map_err(|e| format!("the trace `{shown}`: {e}"))
    }

    /// Returns the number of opportunities until the trace begins anew, at least 1.
    pub fn opportunities(&self) -> usize {
        self.0.len()
    }

    /// Returns the time after which the trace begins anew, at least 1 ms.
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

    /// Returns when opportunity `index` comes, in nanoseconds from the start, counted through
    /// repetitions.
    fn nanos(&self, index: u64) -> u64 {
        let (round, at) = (index / self.0.len() as u64, index % self.0.len() as u64);
        let within = u64::from(self.0[at as usize]) * NANOS_PER_MILLI;
        round
            .saturating_mul(self.length_nanos())
            .saturating_add(within)
    }

    /// Returns the first opportunity at or after `elapsed` nanoseconds from the start.
    fn first_from(&self, elapsed: u64) -> u64 {
        // The last opportunity of a round and the start of the next are the same moment.
        let round = elapsed.div_ceil(self.length_nanos()).saturating_sub(1);
        let within = elapsed - round * self.length_nanos();
        let at = self
            .0
            .partition_point(|time| u64::from(*time) * NANOS_PER_MILLI < within);
        round
            .saturating_mul(self.0.len() as u64)
            .saturating_add(at as u64)
    }
}

/// Shows the figures only, since the times are too many to read.
impl fmt::Debug for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trace")
            .field("opportunities", &self.opportunities())
            .field("length", &self.duration())
            .finish()
    }
}

/// A mistake in the text of a trace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceError {
    /// The number of the line, from 1.
    pub line: usize,
    /// The line's text, cut to 40 characters.
    pub read: String,
    /// The text that was expected.
    pub expected: String,
}

impl TraceError {
    fn new(line: usize, read: &str, expected: String) -> Self {
        TraceError {
            line,
            read: read.chars().take(40).collect(),
            expected,
        }
    }
}

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TraceError {
            line,
            read,
            expected,
        } = self;
        write!(f, "line {line}: `{read}` where a trace has {expected}")
    }
}

impl core::error::Error for TraceError {}

/// The position in a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cursor {
    /// The start of the trace.
    origin: Instant,
    /// The opportunity in use, counted through repetitions.
    index: u64,
    /// Bytes left of the opportunity.
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

    /// Goes back to the start of the same trace: what was in use is forgotten.
    pub fn forget(&mut self) {
        *self = Cursor::new(self.origin);
    }

    /// Sends a packet of `len` bytes from `now` on and returns when its last byte leaves.
    pub fn send(&mut self, trace: &Trace, now: Instant, len: u32) -> Instant {
        let first = trace.first_from(self.elapsed(now));
        if first > self.index {
            *self = Cursor {
                index: first,
                ..Cursor::new(self.origin)
            };
        }
        if let Some(beyond) = len.checked_sub(self.left).filter(|beyond| *beyond > 0) {
            let more = beyond.div_ceil(Trace::OPPORTUNITY_BYTES);
            self.index += u64::from(more);
            self.left =
                (u64::from(more) * u64::from(Trace::OPPORTUNITY_BYTES) - u64::from(beyond)) as u32;
        } else {
            self.left -= len;
        }
        self.origin + Duration::from_nanos(trace.nanos(self.index))
    }

    /// Returns how many bytes of the packet of `len` bytes sent last are not sent at `now`.
    pub fn remaining(&self, trace: &Trace, now: Instant, len: u32) -> u32 {
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
