//! What a link is like, as said in the file, by its schedule and by `set`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use braid_links::{Loss, QueueLimit, Rate, Settings, Trace};
use serde::de::Deserializer;
use serde::{Deserialize, Serialize};

use crate::emulator::Direction;
use crate::error::Error;
use crate::units::{
    CodelValue, LossValue, Probability, QueueSize, RateValue, ReorderValue, Text, TimeValue,
};

/// Queue of a link without rate.
const UNLIMITED_QUEUE: QueueLimit = QueueLimit::Packets(1000);

/// Largest trace file, bytes.
const MAX_TRACE_FILE: u64 = 64 << 20;

/// Settings of one direction of a link; what is `None` is left to what it is laid over.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkModel {
    /// Rate; unlimited where there is neither this nor a trace.
    pub rate: Option<RateValue>,
    /// Rate as recorded, in place of a constant one.
    pub trace: Option<TraceFile>,
    /// One-way delay; none by default.
    pub delay: Option<TimeValue>,
    /// Largest additional delay; none by default.
    pub jitter: Option<TimeValue>,
    /// Queue bound; 1 BDP by default, 1000 packets for an unlimited rate.
    pub queue: Option<QueueSize>,
    /// CoDel on the queue; off by default.
    pub codel: Option<CodelValue>,
    /// Random loss; none by default.
    pub loss: Option<LossValue>,
    /// Reordering; none by default.
    pub reorder: Option<ReorderValue>,
    /// Probability of duplication; 0 by default.
    pub duplicate: Option<Probability>,
    /// Probability that a bit of a packet is flipped; 0 by default.
    pub corrupt: Option<Probability>,
}

/// A trace in mahimahi's format, by the name of its file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TraceFile {
    /// Where it lies, as written or, once read, from where it was read.
    pub path: PathBuf,
    #[serde(skip)]
    trace: Option<Trace>,
}

impl TraceFile {
    /// The trace in the file at `path`, yet to be read.
    pub fn at(path: impl Into<PathBuf>) -> TraceFile {
        TraceFile {
            path: path.into(),
            trace: None,
        }
    }

    /// Reads it; a relative path starts at `directory`.
    ///
    /// # Errors
    ///
    /// What is wrong with the file and what to write instead.
    pub fn load(&mut self, directory: &Path) -> Result<(), String> {
        self.path = directory.join(&self.path);
        let shown = self.path.display();
        let read = std::fs::metadata(&self.path).and_then(|metadata| {
            match metadata.is_file() && metadata.len() <= MAX_TRACE_FILE {
                true => std::fs::read_to_string(&self.path),
                false => Err(std::io::Error::other("not a file of at most 64 MiB")),
            }
        });
        let text = read.map_err(|e| {
            format!(
                "cannot read the trace `{shown}` ({e}); write the name of a file with a time in \
                 milliseconds on each line, at which 1500 bytes may leave"
            )
        })?;
        let trace = Trace::parse(&text).map_err(|e| format!("trace `{shown}`, {e}"))?;
        self.trace = Some(trace);
        Ok(())
    }
}

impl LinkModel {
    /// These settings, and those of `base` where these say nothing.
    pub(crate) fn or(&self, base: &LinkModel) -> LinkModel {
        // A trace replaces a constant rate, and the other way round.
        let line = match (&self.rate, &self.trace) {
            (None, None) => base,
            _ => self,
        };
        LinkModel {
            rate: line.rate,
            trace: line.trace.clone(),
            delay: self.delay.or(base.delay),
            jitter: self.jitter.or(base.jitter),
            queue: self.queue.or(base.queue),
            codel: self.codel.or(base.codel),
            loss: self.loss.or(base.loss),
            reorder: self.reorder.or(base.reorder),
            duplicate: self.duplicate.or(base.duplicate),
            corrupt: self.corrupt.or(base.corrupt),
        }
    }

    /// Reads the trace, if there is one, and looks for contradictions.
    pub(crate) fn load(&mut self, directory: &Path) -> Result<(), String> {
        match &mut self.trace {
            Some(trace) if self.rate.is_none() => trace.load(directory),
            Some(_) => Err("a link has a rate or a trace, not both; leave one out".to_owned()),
            None => Ok(()),
        }
    }

    fn line(&self) -> Rate {
        let trace = self.trace.as_ref().and_then(|t| t.trace.clone());
        match (trace, self.rate.and_then(|r| r.0)) {
            (Some(trace), _) => Rate::Trace(trace),
            (None, Some(rate)) => Rate::bits_per_second(rate),
            (None, None) => Rate::Unlimited,
        }
    }

    fn delay(&self) -> Duration {
        self.delay.map(|t| t.0).unwrap_or_default()
    }

    /// Settings of this direction, whose way back is `back`.
    pub(crate) fn settings(&self, back: &LinkModel, up: bool) -> Settings {
        let line = self.line();
        let rate = match &line {
            Rate::Unlimited => None,
            Rate::Fixed(rate) => Some(rate.get() as f64),
            Rate::Trace(trace) => Some(trace.mean_rate()),
        };
        let queue = match (self.queue.unwrap_or(QueueSize::Bdp(1.0)), rate) {
            (QueueSize::Packets(n), _) => QueueLimit::Packets(n),
            (QueueSize::Bytes(n), _) => QueueLimit::Bytes(n),
            (QueueSize::Bdp(_), None) => UNLIMITED_QUEUE,
            (QueueSize::Bdp(times), Some(rate)) => {
                let rtt = (self.delay() + back.delay()).as_secs_f64();
                // Room for two packets, without which a line cannot be kept busy.
                QueueLimit::Bytes(((rate * rtt / 8.0 * times) as u64).max(3000))
            }
        };
        let probability = |p: Option<Probability>| p.map_or(0.0, |p| p.0);
        Settings {
            rate: line,
            delay: self.delay(),
            jitter: self.jitter.map(|t| t.0).unwrap_or_default(),
            queue,
            codel: self.codel.and_then(|c| c.0),
            loss: self.loss.map_or(Loss::None, |loss| loss.0),
            reorder: self.reorder.map(|r| r.0).unwrap_or_default(),
            duplicate: probability(self.duplicate),
            corrupt: probability(self.corrupt),
            up,
        }
    }
}

/// A change of a running link.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct LinkChange {
    /// First starts the link anew, as the file has it: what it holds is dropped, and counters,
    /// traces, schedule and random streams begin.
    pub restart: bool,
    /// New settings; what is `None` stays.
    pub model: LinkModel,
    /// Carry packets or drop them all, silently: the interfaces stay up.
    pub up: Option<bool>,
}

impl LinkChange {
    /// Reads `rate=… trace=… delay=… jitter=… queue=… codel=… loss=… reorder=… duplicate=…
    /// corrupt=… up down restart` in any order. A trace is to be [loaded](Self::load) yet.
    ///
    /// # Errors
    ///
    /// [`Error::BadChange`] with what to write instead.
    pub fn parse<S: AsRef<str>>(words: impl IntoIterator<Item = S>) -> Result<LinkChange, Error> {
        let mut change = LinkChange::default();
        for word in words {
            change.apply_word(word.as_ref()).map_err(Error::BadChange)?;
        }
        Ok(change)
    }

    /// Reads the trace, if one is named; a relative path starts at `directory`.
    ///
    /// # Errors
    ///
    /// [`Error::BadChange`] with what is wrong with it.
    pub fn load(&mut self, directory: &Path) -> Result<(), Error> {
        self.model.load(directory).map_err(Error::BadChange)
    }

    fn apply_word(&mut self, word: &str) -> Result<(), String> {
        let model = &mut self.model;
        match word.split_once('=') {
            None if word == "up" => self.up = Some(true),
            None if word == "down" => self.up = Some(false),
            None if word == "restart" => self.restart = true,
            Some(("rate", v)) => model.rate = Some(RateValue::parse(v)?),
            Some(("trace", v)) if !v.is_empty() => model.trace = Some(TraceFile::at(v)),
            Some(("delay", v)) => model.delay = Some(TimeValue::parse(v)?),
            Some(("jitter", v)) => model.jitter = Some(TimeValue::parse(v)?),
            Some(("queue", v)) => model.queue = Some(QueueSize::parse(v)?),
            Some(("codel", v)) => model.codel = Some(CodelValue::parse(v)?),
            Some(("loss", v)) => model.loss = Some(LossValue::parse(v)?),
            Some(("reorder", v)) => model.reorder = Some(ReorderValue::parse(v)?),
            Some(("duplicate", v)) => model.duplicate = Some(Probability::parse(v)?),
            Some(("corrupt", v)) => model.corrupt = Some(Probability::parse(v)?),
            _ => {
                return Err(format!(
                    "`{word}` cannot be set; write rate=…, trace=…, delay=…, jitter=…, queue=…, \
                     codel=…, loss=…, reorder=…, duplicate=…, corrupt=…, up, down or restart"
                ));
            }
        }
        Ok(())
    }
}

/// An entry of a link's schedule: `"10s rate=1Mbit/s loss=5%"`, `"12s forward down"`.
#[derive(Debug, Clone, PartialEq)]
pub struct ScheduledChange {
    /// When, from the start of the link.
    pub at: Duration,
    /// Which direction; both where absent.
    pub direction: Option<Direction>,
    /// What.
    pub change: LinkChange,
}

impl ScheduledChange {
    /// Reads an entry.
    ///
    /// # Errors
    ///
    /// What to write instead.
    pub fn parse(text: &str) -> Result<ScheduledChange, String> {
        let help = || {
            format!(
                "`{text}` is no change of a link; write a time, `forward` or `reverse` if only \
                 one direction is meant, and what changes, such as \"10s rate=1Mbit/s loss=5%\""
            )
        };
        let mut words = text.split_whitespace().peekable();
        let at = words.next().ok_or_else(help)?;
        let at = TimeValue::parse_up_to(at, MAX_TIME).map_err(|_| help())?.0;
        let direction = match words.peek() {
            Some(&"forward") => Some(Direction::Forward),
            Some(&"reverse") => Some(Direction::Reverse),
            _ => None,
        };
        let words: Vec<&str> = words.skip(usize::from(direction.is_some())).collect();
        let mut change = LinkChange::default();
        for word in &words {
            change.apply_word(word)?;
        }
        if words.is_empty() || change.restart {
            return Err(help());
        }
        Ok(ScheduledChange {
            at,
            direction,
            change,
        })
    }
}

/// Latest time in a schedule.
const MAX_TIME: Duration = Duration::from_secs(24 * 3600);

impl<'de> Deserialize<'de> for ScheduledChange {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        d.deserialize_any(Text {
            parse: ScheduledChange::parse,
            number: None,
            expecting: "a change as a string, such as \"10s rate=1Mbit/s loss=5%\"",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_survives_the_way_to_the_daemon() {
        let words = [
            "rate=1.5M",
            "delay=200us",
            "jitter=1ms",
            "queue=2BDP",
            "codel=3ms/50ms",
            "loss=0.1%/3",
            "reorder=1%/10ms",
            "duplicate=0.5%",
            "corrupt=0.01",
            "restart",
            "down",
        ];
        let change = LinkChange::parse(words).unwrap();
        let json = serde_json::to_string(&change).unwrap();
        assert_eq!(serde_json::from_str::<LinkChange>(&json).unwrap(), change);
        assert!(matches!(
            LinkChange::parse(["speed=3"]),
            Err(Error::BadChange(_))
        ));
    }

    #[test]
    fn a_trace_replaces_a_rate_and_a_rate_a_trace() {
        let of = |word| LinkChange::parse([word]).unwrap().model;
        let (rate, trace) = (of("rate=1M"), of("trace=lte.down"));
        assert_eq!(trace.or(&rate), trace);
        assert_eq!(rate.or(&trace), rate);
        let both = rate.or(&of("delay=1ms"));
        assert_eq!((both.rate, both.delay), (rate.rate, of("delay=1ms").delay));
    }

    #[test]
    fn an_entry_of_a_schedule_is_read() {
        let entry = ScheduledChange::parse("90s reverse rate=1M down").unwrap();
        assert_eq!(entry.at, Duration::from_secs(90));
        assert_eq!(entry.direction, Some(Direction::Reverse));
        assert_eq!(entry.change.up, Some(false));
        for wrong in ["", "10s", "rate=1M", "10s forward", "10s restart"] {
            let advice = ScheduledChange::parse(wrong).unwrap_err();
            assert!(advice.contains("10s rate=1Mbit/s"), "{wrong:?}: {advice}");
        }
        let advice = ScheduledChange::parse("10s rate=fast").unwrap_err();
        assert!(advice.contains("20Mbit/s"), "{advice}");
    }
}
