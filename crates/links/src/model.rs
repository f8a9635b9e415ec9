//! The settings of a link by their keys in files and on command lines.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use braid_units::value::ValueError;
use serde::Deserialize;

use crate::queue::QueueLimit;
use crate::settings::{Loss, Rate, Reorder, Settings};
use crate::text::{CodelValue, JitterValue, Probability, QueueSize, RateValue, TimeValue};
use crate::trace::Trace;

/// The default queue of a link with unlimited rate, because such a link has no bandwidth-delay product. 1000
/// packets is the default length of interfaces in Linux (`txqueuelen`).
const UNLIMITED_QUEUE: QueueLimit = QueueLimit::Packets(1000);

/// Makes [`LinkModel`] and the methods that concern each of its settings, from the table of the settings.
macro_rules! link_model {
    ($($(#[$doc:meta])* $key:ident: $value:ty,)*) => {
        /// Settings of one direction of a link. `None` leaves a setting to the base model (see [`or`](Self::or)),
        /// or to the default.
        #[derive(Debug, Clone, Default, PartialEq, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct LinkModel {
            $($(#[$doc])* pub $key: Option<$value>,)*
        }

        impl LinkModel {
            /// The keys of all settings.
            pub const KEYS: &[&str] = &[$(stringify!($key)),*];

            /// Sets the setting `key` to the value that `text` describes.
            ///
            /// # Errors
            /// Fails if there is no such setting, or `text` is not a value of it.
            pub fn set(&mut self, key: &str, text: &str) -> Result<(), ValueError> {
                match key {
                    $(stringify!($key) => self.$key = Some(text.parse()?),)*
                    _ => {
                        let expected = Self::KEYS.join(", ");
                        return Err(ValueError::is_no(key, "setting of a link", &expected));
                    }
                }
                Ok(())
            }

            /// Returns these settings. A setting that is `None` here has the value of `base`.
            #[must_use]
            pub fn or(&self, base: &LinkModel) -> LinkModel {
                let mut both = LinkModel {
                    $($key: self.$key.clone().or_else(|| base.$key.clone()),)*
                };
                // Rate and trace exclude each other, so both are taken from the same model.
                if self.rate.is_some() || self.trace.is_some() {
                    (both.rate, both.trace) = (self.rate, self.trace.clone());
                }
                both
            }
        }
    };
}

link_model! {
    /// The constant rate. If there is neither a constant rate nor a trace, the rate is unlimited.
    rate: RateValue,
    /// A recorded rate instead of a constant one.
    trace: TraceFile,
    /// The one-way delay; 0 by default.
    delay: TimeValue,
    /// The maximum additional delay; 0 by default.
    jitter: JitterValue,
    /// The bound of the queue. The default is one bandwidth-delay product, or 1000 packets with an unlimited rate.
    queue: QueueSize,
    /// CoDel on the queue; off by default.
    codel: CodelValue,
    /// Random loss; none by default.
    loss: Loss,
    /// Reordering; none by default.
    reorder: Reorder,
    /// Probability of duplication; 0 by default.
    duplicate: Probability,
    /// Probability that a bit of a packet is flipped; 0 by default.
    corrupt: Probability,
}

/// A trace in the format of mahimahi, named by its file.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct TraceFile {
    /// The path as written or, after [`LinkModel::load`], the path of the file that was read.
    pub path: PathBuf,
    /// The trace; `None` until it is read.
    #[serde(skip)]
    trace: Option<Trace>,
}

impl FromStr for TraceFile {
    type Err = ValueError;

    fn from_str(path: &str) -> Result<Self, ValueError> {
        Ok(TraceFile {
            path: path.into(),
            trace: None,
        })
    }
}

impl LinkModel {
    /// Reads the trace file, if there is one, and checks that rate and trace are not both set. A relative path is
    /// relative to `directory`.
    ///
    /// # Errors
    /// Fails if both are set, or the trace cannot be read. The text says what to write instead.
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

    /// Returns the rate: that of the trace or the constant rate. If there is neither, the rate is unlimited.
    fn rate(&self) -> Rate {
        let trace = self.trace.as_ref().and_then(|t| t.trace.clone());
        match (trace, self.rate.and_then(|r| r.0)) {
            (Some(trace), _) => Rate::Trace(trace),
            (None, Some(rate)) => Rate::bits_per_second(rate),
            (None, None) => Rate::Unlimited,
        }
    }

    /// Returns the settings of this direction. `opposite` is the opposite direction; its delay is a part of the
    /// round trip, and so of the bandwidth-delay product.
    pub fn settings(&self, opposite: &LinkModel, up: bool) -> Settings {
        let rate = self.rate();
        let time = |t: Option<TimeValue>| t.map(|t| t.0).unwrap_or_default();
        let probability = |p: Option<Probability>| p.map_or(0.0, |p| p.0);
        let queue = match (self.queue.unwrap_or(QueueSize::Bdp(1.0)), rate.mean()) {
            (QueueSize::Limit(limit), _) => limit,
            (QueueSize::Bdp(_), None) => UNLIMITED_QUEUE,
            (QueueSize::Bdp(times), Some(rate)) => {
                let rtt = (time(self.delay) + time(opposite.delay)).as_secs_f64();
                // At least two packets of 1500 bytes, because a shorter queue cannot keep the line busy.
                QueueLimit::Bytes(((rate * rtt / 8.0 * times) as u64).max(3000))
            }
        };
        Settings {
            rate,
            burst: 0,
            delay: time(self.delay),
            jitter: self.jitter.map(|j| j.max).unwrap_or_default(),
            jitter_reorders: self.jitter.is_some_and(|j| j.reorders),
            queue,
            codel: self.codel.and_then(|c| c.0),
            loss: self.loss.unwrap_or(Loss::None),
            reorder: self.reorder.unwrap_or_default(),
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
        let with = |key, text| {
            let mut model = LinkModel::default();
            model.set(key, text).unwrap();
            model
        };
        let (rate, trace) = (with("rate", "1M"), with("trace", "lte.down"));
        assert_eq!(trace.or(&rate), trace);
        assert_eq!(rate.or(&trace), rate);
        let delay = with("delay", "1ms");
        let both = rate.or(&delay);
        assert_eq!((both.rate, both.delay), (rate.rate, delay.delay));
        assert!(LinkModel::default().set("speed", "1M").is_err());
    }
}
