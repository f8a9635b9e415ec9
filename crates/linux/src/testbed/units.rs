//! Values with units, as written in a testbed file and on the command line of `set`.

use std::fmt;
use std::time::Duration;

use serde::de::{self, Deserializer, Visitor};
use serde::{Deserialize, Serialize, Serializer};

use super::error::Error;

/// A rate in bit/s: `"20Mbit/s"`, `"20M"`, `"512k"`, `"1.5G"`, `"unlimited"`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateValue(pub Option<u64>);

/// A duration: `"15ms"`, `"1.5s"`, `"200us"`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimeValue(pub Duration);

/// A probability: `"1%"` or `0.01`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LossRatio(pub f64);

/// A bound on a queue: `"50 packets"`, `"64000 bytes"`, `"64kB"`, `"1BDP"`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum QueueSize {
    /// Whole packets.
    Packets(u32),
    /// Bytes of whole IP packets.
    Bytes(u64),
    /// Multiples of rate x (delay there + delay back).
    Bdp(f64),
}

/// Splits `text` into its leading number and the unit after it.
fn number_and_unit(text: &str) -> Option<(f64, &str)> {
    let text = text.trim();
    let end = text
        .find(|c: char| !(c.is_ascii_digit() || c == '.'))
        .unwrap_or(text.len());
    let number: f64 = text[..end].parse().ok()?;
    Some((number, text[end..].trim()))
}

impl RateValue {
    /// Parses a rate.
    ///
    /// # Errors
    ///
    /// What to write instead.
    pub fn parse(text: &str) -> Result<RateValue, String> {
        let help = || {
            format!(
                "`{text}` is no rate; write a number with its unit, such as \"20Mbit/s\", \
                 \"512kbit/s\", \"1Gbit/s\", or \"unlimited\""
            )
        };
        if text.trim() == "unlimited" {
            return Ok(RateValue(None));
        }
        let (number, unit) = number_and_unit(text).ok_or_else(help)?;
        let factor = match unit.trim_end_matches("/s").trim_end_matches("ps") {
            "bit" | "b" => 1.0,
            "k" | "K" | "kbit" | "Kbit" | "kb" => 1e3,
            "M" | "m" | "Mbit" | "mbit" | "Mb" => 1e6,
            "G" | "g" | "Gbit" | "gbit" | "Gb" => 1e9,
            _ => return Err(help()),
        };
        let rate = number * factor;
        if !(1.0..=1e12).contains(&rate) {
            return Err(format!(
                "`{text}` is out of range; a rate is 1 bit/s to 1000 Gbit/s"
            ));
        }
        Ok(RateValue(Some(rate.round() as u64)))
    }
}

impl TimeValue {
    /// Parses a duration.
    ///
    /// # Errors
    ///
    /// What to write instead.
    pub fn parse(text: &str) -> Result<TimeValue, String> {
        let help =
            || format!("`{text}` is no duration; write a number with its unit, such as \"15ms\"");
        let (number, unit) = number_and_unit(text).ok_or_else(help)?;
        let factor = match unit {
            "ns" => 1e-9,
            "us" | "µs" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            _ => return Err(help()),
        };
        let seconds = number * factor;
        if seconds > 60.0 {
            return Err(format!("`{text}` is out of range; a delay is at most 60s"));
        }
        Ok(TimeValue(Duration::from_nanos(
            (seconds * 1e9).round() as u64
        )))
    }
}

impl LossRatio {
    /// Parses a probability.
    ///
    /// # Errors
    ///
    /// What to write instead.
    pub fn parse(text: &str) -> Result<LossRatio, String> {
        let help =
            || format!("`{text}` is no loss ratio; write a percentage such as \"1%\", or 0.01");
        let (number, unit) = number_and_unit(text).ok_or_else(help)?;
        let ratio = match unit {
            "%" => number / 100.0,
            "" => number,
            _ => return Err(help()),
        };
        LossRatio::checked(ratio).map_err(|e| format!("`{text}` {e}"))
    }

    fn checked(ratio: f64) -> Result<LossRatio, String> {
        if (0.0..=1.0).contains(&ratio) {
            Ok(LossRatio(ratio))
        } else {
            Err("is out of range; a loss ratio is 0% to 100%".to_owned())
        }
    }
}

impl QueueSize {
    /// Parses a queue bound.
    ///
    /// # Errors
    ///
    /// What to write instead.
    pub fn parse(text: &str) -> Result<QueueSize, String> {
        let help = || {
            format!(
                "`{text}` is no queue size; write \"50 packets\", \"64000 bytes\", \"64kB\" or \
                 \"1BDP\" (a multiple of rate x round-trip time)"
            )
        };
        let (number, unit) = number_and_unit(text).ok_or_else(help)?;
        if number > 1e9 {
            return Err(help());
        }
        match unit {
            "packets" | "packet" | "p" => Ok(QueueSize::Packets(number as u32)),
            "bytes" | "byte" | "B" => Ok(QueueSize::Bytes(number as u64)),
            "kB" => Ok(QueueSize::Bytes((number * 1e3) as u64)),
            "MB" => Ok(QueueSize::Bytes((number * 1e6) as u64)),
            "BDP" | "bdp" => Ok(QueueSize::Bdp(number)),
            _ => Err(help()),
        }
    }
}

// What `Display` writes, `parse` reads back as the same value.

impl fmt::Display for RateValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(rate) => write!(f, "{rate}bit/s"),
            None => f.write_str("unlimited"),
        }
    }
}

impl fmt::Display for TimeValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}ns", self.0.as_nanos())
    }
}

impl fmt::Display for LossRatio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl fmt::Display for QueueSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            QueueSize::Packets(n) => write!(f, "{n} packets"),
            QueueSize::Bytes(n) => write!(f, "{n} bytes"),
            QueueSize::Bdp(n) => write!(f, "{n}BDP"),
        }
    }
}

macro_rules! serialize_as_text {
    ($($name:ty),*) => {$(
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }
    )*};
}

serialize_as_text!(RateValue, TimeValue, LossRatio, QueueSize);

/// Reads a TOML string through a `parse` function; `loss` also takes a bare number.
struct Text<T> {
    parse: fn(&str) -> Result<T, String>,
    number: Option<fn(f64) -> Result<T, String>>,
    expecting: &'static str,
}

impl<T> Visitor<'_> for Text<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expecting)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        (self.parse)(text).map_err(E::custom)
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<T, E> {
        match self.number {
            Some(number) => number(value).map_err(|e| E::custom(format!("`{value}` {e}"))),
            None => Err(E::invalid_type(de::Unexpected::Float(value), &self)),
        }
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<T, E> {
        match self.number {
            Some(number) => number(value as f64).map_err(|e| E::custom(format!("`{value}` {e}"))),
            None => Err(E::invalid_type(de::Unexpected::Signed(value), &self)),
        }
    }
}

impl<'de> Deserialize<'de> for RateValue {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        d.deserialize_any(Text {
            parse: RateValue::parse,
            number: None,
            expecting: "a rate as a string with its unit, such as \"20Mbit/s\" or \"unlimited\"",
        })
    }
}

impl<'de> Deserialize<'de> for TimeValue {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        d.deserialize_any(Text {
            parse: TimeValue::parse,
            number: None,
            expecting: "a duration as a string with its unit, such as \"15ms\"",
        })
    }
}

impl<'de> Deserialize<'de> for LossRatio {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        d.deserialize_any(Text {
            parse: LossRatio::parse,
            number: Some(LossRatio::checked),
            expecting: "a loss ratio such as \"1%\" or 0.01",
        })
    }
}

impl<'de> Deserialize<'de> for QueueSize {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        d.deserialize_any(Text {
            parse: QueueSize::parse,
            number: None,
            expecting: "a queue size as a string, such as \"50 packets\", \"64kB\" or \"1BDP\"",
        })
    }
}

/// What `set` changes of a running link; `None` leaves a setting as it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct LinkChange {
    /// New rate.
    pub rate: Option<RateValue>,
    /// New one-way delay.
    pub delay: Option<TimeValue>,
    /// New jitter.
    pub jitter: Option<TimeValue>,
    /// New loss ratio.
    pub loss: Option<LossRatio>,
    /// New queue bound.
    pub queue: Option<QueueSize>,
    /// Carry packets or drop them all, silently: the interfaces stay up.
    pub up: Option<bool>,
}

impl LinkChange {
    /// Reads `rate=… delay=… jitter=… loss=… queue=… up down` in any order.
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

    fn apply_word(&mut self, word: &str) -> Result<(), String> {
        match word.split_once('=') {
            None if word == "up" => self.up = Some(true),
            None if word == "down" => self.up = Some(false),
            Some(("rate", v)) => self.rate = Some(RateValue::parse(v)?),
            Some(("delay", v)) => self.delay = Some(TimeValue::parse(v)?),
            Some(("jitter", v)) => self.jitter = Some(TimeValue::parse(v)?),
            Some(("loss", v)) => self.loss = Some(LossRatio::parse(v)?),
            Some(("queue", v)) => self.queue = Some(QueueSize::parse(v)?),
            _ => {
                return Err(format!(
                    "`{word}` cannot be set; write rate=…, delay=…, jitter=…, loss=…, queue=…, \
                     up or down"
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_with_their_units() {
        assert_eq!(
            RateValue::parse("20Mbit/s"),
            Ok(RateValue(Some(20_000_000)))
        );
        assert_eq!(RateValue::parse("1.5G"), Ok(RateValue(Some(1_500_000_000))));
        assert_eq!(RateValue::parse("512 kbps"), Ok(RateValue(Some(512_000))));
        assert_eq!(RateValue::parse("unlimited"), Ok(RateValue(None)));
        assert_eq!(
            TimeValue::parse("1.5s"),
            Ok(TimeValue(Duration::from_millis(1500)))
        );
        assert_eq!(
            TimeValue::parse("200us"),
            Ok(TimeValue(Duration::from_micros(200)))
        );
        assert_eq!(LossRatio::parse("1%"), Ok(LossRatio(0.01)));
        assert_eq!(LossRatio::parse("0.25"), Ok(LossRatio(0.25)));
        assert_eq!(QueueSize::parse("50 packets"), Ok(QueueSize::Packets(50)));
        assert_eq!(QueueSize::parse("64kB"), Ok(QueueSize::Bytes(64_000)));
        assert_eq!(QueueSize::parse("0.5BDP"), Ok(QueueSize::Bdp(0.5)));
    }

    #[test]
    fn nonsense_is_answered_by_what_to_write() {
        for (answer, advice) in [
            (RateValue::parse("fast").unwrap_err(), "20Mbit/s"),
            (RateValue::parse("20").unwrap_err(), "20Mbit/s"),
            (RateValue::parse("0Mbit/s").unwrap_err(), "1 bit/s"),
            (TimeValue::parse("15").unwrap_err(), "15ms"),
            (TimeValue::parse("2000s").unwrap_err(), "60s"),
            (LossRatio::parse("101%").unwrap_err(), "0% to 100%"),
            (LossRatio::parse("-1%").unwrap_err(), "1%"),
            (QueueSize::parse("big").unwrap_err(), "1BDP"),
        ] {
            assert!(answer.contains(advice), "{answer}");
        }
    }

    #[test]
    fn a_change_survives_the_way_to_the_daemon() {
        let words = [
            "rate=1.5M",
            "delay=200us",
            "jitter=1ms",
            "loss=0.1%",
            "queue=2BDP",
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
}
