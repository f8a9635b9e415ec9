//! The settings of a link by the keys they have in files and on command lines.

use std::path::{Path, PathBuf};

use braid_units::value::ValueError;
use serde::{Deserialize, Serialize};

use crate::queue::QueueLimit;
use crate::settings::{Loss, Rate, Settings};
use crate::text::{
    CodelValue, LossValue, Probability, QueueSize, RateValue, ReorderValue, TimeValue,
};
use crate::trace::Trace;

/// The queue of a link of unlimited rate, which has no bandwidth-delay product.
const UNLIMITED_QUEUE: QueueLimit = QueueLimit::Packets(1000);

/// Settings of one direction of a link; `None` leaves a setting to the model below.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkModel {
    /// The rate; unlimited without this and without a trace.
    pub rate: Option<RateValue>,
    /// A recorded rate, in place of a constant one.
    pub trace: Option<TraceFile>,
    /// The one-way delay; none by default.
    pub delay: Option<TimeValue>,
    /// The largest additional delay; none by default.
    pub jitter: Option<TimeValue>,
    /// The bound of the queue; 1 BDP by default, 1000 packets for an unlimited rate.
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
    /// The path as written or, once read, the path from which the trace was read.
    pub path: PathBuf,
    #[serde(skip)]
    trace: Option<Trace>,
}

impl LinkModel {
    /// The keys of all settings.
    pub const KEYS: [&str; 10] = [
        "rate",
        "trace",
        "delay",
        "jitter",
        "queue",
        "codel",
        "loss",
        "reorder",
        "duplicate",
        "corrupt",
    ];

    /// Sets the setting `key`.
    ///
    /// # Errors
    /// Fails if there is no such setting, or `text` is no value of it.
    pub fn set(&mut self, key: &str, text: &str) -> Result<(), ValueError> {
        match key {
            "rate" => self.rate = Some(text.parse()?),
            "trace" => {
                self.trace = Some(TraceFile {
                    path: text.into(),
                    trace: None,
                });
            }
            "delay" => self.delay = Some(text.parse()?),
            "jitter" => self.jitter = Some(text.parse()?),
            "queue" => self.queue = Some(text.parse()?),
            "codel" => self.codel = Some(text.parse()?),
            "loss" => self.loss = Some(text.parse()?),
            "reorder" => self.reorder = Some(text.parse()?),
            "duplicate" => self.duplicate = Some(text.parse()?),
            "corrupt" => self.corrupt = Some(text.parse()?),
            _ => {
                let expected = Self::KEYS.join(", ");
                return Err(ValueError::is_no(key, "setting of a link", &expected));
            }
        }
        Ok(())
    }

    /// Returns these settings, completed by those of `base`.
    #[must_use]
    pub fn or(&self, base: &LinkModel) -> LinkModel {
        // A trace replaces a constant rate, and a rate a trace.
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

    /// Reads the trace, if there is one, and checks for contradictions. A relative path starts at
    /// `directory`.
    ///
    /// # Errors
    /// Says what is wrong and what to write instead.
    pub fn load(&mut self, directory: &Path) -> Result<(), String> {
        match &mut self.trace {
            Some(_) if self.rate.is_some() => {
                Err("a link has a rate or a trace, not both; leave one out".to_owned())
            }
            Some(file) => {
                file.path = directory.join(&file.path);
                file.trace = Some(Trace::read(&file.path)?);
                Ok(())
            }
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

    /// Returns the settings of this direction; `back` is the opposite direction, whose delay counts for
    /// the bandwidth-delay product.
    pub fn settings(&self, back: &LinkModel, up: bool) -> Settings {
        let rate = self.line();
        let time = |t: Option<TimeValue>| t.map(|t| t.0).unwrap_or_default();
        let probability = |p: Option<Probability>| p.map_or(0.0, |p| p.0);
        let queue = match (self.queue.unwrap_or(QueueSize::Bdp(1.0)), rate.mean()) {
            (QueueSize::Limit(limit), _) => limit,
            (QueueSize::Bdp(_), None) => UNLIMITED_QUEUE,
            (QueueSize::Bdp(times), Some(rate)) => {
                let rtt = (time(self.delay) + time(back.delay)).as_secs_f64();
                // Room for two packets of 1500 bytes: with less a line cannot be kept busy.
                QueueLimit::Bytes(((rate * rtt / 8.0 * times) as u64).max(3000))
            }
        };
        Settings {
            rate,
            burst: 0,
            delay: time(self.delay),
            jitter: time(self.jitter),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_replaces_a_rate_and_a_rate_a_trace() {
        let of = |key, text| {
            let mut model = LinkModel::default();
            model.set(key, text).unwrap();
            model
        };
        let (rate, trace) = (of("rate", "1M"), of("trace", "lte.down"));
        assert_eq!(trace.or(&rate), trace);
        assert_eq!(rate.or(&trace), rate);
        let delay = of("delay", "1ms");
        let both = rate.or(&delay);
        assert_eq!((both.rate, both.delay), (rate.rate, delay.delay));
        assert!(LinkModel::default().set("speed", "1M").is_err());
    }
}
