//! Values with units, as written in a testbed file and on the command line of `set`.

use std::fmt;
use std::time::Duration;

use braid_links::{CoDel, Loss, Reorder};
use serde::de::{self, Deserializer, Visitor};
use serde::{Deserialize, Serialize, Serializer};

/// A rate in bit/s: `"20Mbit/s"`, `"20M"`, `"512k"`, `"1.5G"`, `"unlimited"`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateValue(pub Option<u64>);

/// A duration: `"15ms"`, `"1.5s"`, `"200us"`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimeValue(pub Duration);

/// A probability: `"1%"` or `0.01`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Probability(pub f64);

/// Random loss: a probability; `"1%/4"`, 1 % in bursts of 4 packets in the mean; or the four
/// probabilities of Gilbert and Elliott, `"1%/25%/0%/100%"`: from good to bad, from bad to good,
/// of loss while good and while bad.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LossValue(pub Loss);

/// `"on"`, `"off"`, or target and interval, `"5ms/100ms"`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CodelValue(pub Option<CoDel>);

/// Share of packets that take a detour, and its length: `"1%/10ms"`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ReorderValue(pub Reorder);

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
        TimeValue::parse_up_to(text, Duration::from_secs(60))
    }

    pub(crate) fn parse_up_to(text: &str, most: Duration) -> Result<TimeValue, String> {
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
        if seconds > most.as_secs_f64() {
            let most = most.as_secs();
            return Err(format!(
                "`{text}` is out of range; at most {most}s are possible"
            ));
        }
        Ok(TimeValue(Duration::from_nanos(
            (seconds * 1e9).round() as u64
        )))
    }
}

impl Probability {
    /// Parses a probability.
    ///
    /// # Errors
    ///
    /// What to write instead.
    pub fn parse(text: &str) -> Result<Probability, String> {
        let help =
            || format!("`{text}` is no probability; write a percentage such as \"1%\", or 0.01");
        let (number, unit) = number_and_unit(text).ok_or_else(help)?;
        let ratio = match unit {
            "%" => number / 100.0,
            "" => number,
            _ => return Err(help()),
        };
        Probability::checked(ratio).map_err(|e| format!("`{text}` {e}"))
    }

    fn checked(ratio: f64) -> Result<Probability, String> {
        if (0.0..=1.0).contains(&ratio) {
            Ok(Probability(ratio))
        } else {
            Err("is out of range; a probability is 0% to 100%".to_owned())
        }
    }
}

impl LossValue {
    /// Parses random loss.
    ///
    /// # Errors
    ///
    /// What to write instead.
    pub fn parse(text: &str) -> Result<LossValue, String> {
        let help = || {
            format!(
                "`{text}` is no loss; write a probability such as \"1%\", \"1%/4\" for bursts of 4 \
                 packets in the mean, or \"1%/25%/0%/100%\" (good to bad, bad to good, loss while \
                 good, loss while bad)"
            )
        };
        let parts: Vec<&str> = text.split('/').collect();
        let share = |part: &str| Probability::parse(part).map(|p| p.0);
        match parts[..] {
            [mean] => Ok(LossValue::uniform(share(mean).map_err(|_| help())?)),
            [mean, burst] => {
                let mean = share(mean).map_err(|_| help())?;
                let burst: f64 = burst.trim().parse().map_err(|_| help())?;
                if !(1.0..=1e6).contains(&burst) || mean > burst / (burst + 1.0) {
                    let expected = "a burst is 1 to 1000000 packets, and at least one packet \
                                    between two bursts arrives";
                    return Err(format!("`{text}` is out of range; {expected}"));
                }
                Ok(LossValue(Loss::bursts(mean, burst)))
            }
            [to_bad, to_good, good, bad] => Ok(LossValue(Loss::GilbertElliott {
                to_bad: share(to_bad)?,
                to_good: share(to_good)?,
                loss_good: share(good)?,
                loss_bad: share(bad)?,
            })),
            _ => Err(help()),
        }
    }

    /// Each packet by itself.
    fn uniform(p: f64) -> LossValue {
        LossValue(if p > 0.0 {
            Loss::Uniform(p)
        } else {
            Loss::None
        })
    }
}

impl CodelValue {
    /// Parses whether there is CoDel.
    ///
    /// # Errors
    ///
    /// What to write instead.
    pub fn parse(text: &str) -> Result<CodelValue, String> {
        let help = || {
            format!(
                "`{text}` is no setting of CoDel; write \"on\", \"off\", or target and interval \
                 such as \"5ms/100ms\""
            )
        };
        match text.trim() {
            "on" => return Ok(CodelValue(Some(CoDel::default()))),
            "off" => return Ok(CodelValue(None)),
            _ => {}
        }
        let (target, interval) = text.split_once('/').ok_or_else(help)?;
        let codel = CoDel {
            target: TimeValue::parse(target).map_err(|_| help())?.0,
            interval: TimeValue::parse(interval).map_err(|_| help())?.0,
        };
        match codel.interval.is_zero() {
            true => Err(help()),
            false => Ok(CodelValue(Some(codel))),
        }
    }
}

impl ReorderValue {
    /// Parses reordering.
    ///
    /// # Errors
    ///
    /// What to write instead.
    pub fn parse(text: &str) -> Result<ReorderValue, String> {
        let help = || {
            format!(
                "`{text}` is no reordering; write the share of packets that are overtaken and by \
                 how much, such as \"1%/10ms\", or \"off\""
            )
        };
        if text.trim() == "off" {
            return Ok(ReorderValue(Reorder::default()));
        }
        let (share, detour) = text.split_once('/').ok_or_else(help)?;
        Ok(ReorderValue(Reorder {
            share: Probability::parse(share).map_err(|_| help())?.0,
            detour: TimeValue::parse(detour).map_err(|_| help())?.0,
        }))
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
        match self.0.as_nanos() {
            nanos if nanos % 1_000_000 == 0 => write!(f, "{}ms", nanos / 1_000_000),
            nanos if nanos % 1_000 == 0 => write!(f, "{}us", nanos / 1_000),
            nanos => write!(f, "{nanos}ns"),
        }
    }
}

impl fmt::Display for Probability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl fmt::Display for LossValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Loss::None => f.write_str("0"),
            Loss::Uniform(p) => write!(f, "{p}"),
            Loss::GilbertElliott {
                to_bad,
                to_good,
                loss_good,
                loss_bad,
            } => write!(f, "{to_bad}/{to_good}/{loss_good}/{loss_bad}"),
        }
    }
}

impl fmt::Display for CodelValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            None => f.write_str("off"),
            Some(CoDel { target, interval }) => {
                write!(f, "{}/{}", TimeValue(target), TimeValue(interval))
            }
        }
    }
}

impl fmt::Display for ReorderValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.0.share, TimeValue(self.0.detour))
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

serialize_as_text!(
    RateValue,
    TimeValue,
    Probability,
    LossValue,
    CodelValue,
    ReorderValue,
    QueueSize
);

/// Reads a TOML string through a `parse` function; probabilities are also taken as bare numbers.
pub(crate) struct Text<T> {
    pub parse: fn(&str) -> Result<T, String>,
    pub number: Option<fn(f64) -> Result<T, String>>,
    pub expecting: &'static str,
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

impl<'de> Deserialize<'de> for Probability {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        d.deserialize_any(Text {
            parse: Probability::parse,
            number: Some(Probability::checked),
            expecting: "a probability such as \"1%\" or 0.01",
        })
    }
}

impl<'de> Deserialize<'de> for LossValue {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        d.deserialize_any(Text {
            parse: LossValue::parse,
            number: Some(|p| Probability::checked(p).map(|p| LossValue::uniform(p.0))),
            expecting: "a loss such as \"1%\", 0.01, or \"1%/4\" (in bursts)",
        })
    }
}

impl<'de> Deserialize<'de> for CodelValue {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        d.deserialize_any(Text {
            parse: CodelValue::parse,
            number: None,
            expecting: "a setting of CoDel: \"on\", \"off\" or \"5ms/100ms\"",
        })
    }
}

impl<'de> Deserialize<'de> for ReorderValue {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        d.deserialize_any(Text {
            parse: ReorderValue::parse,
            number: None,
            expecting: "reordering as a string, such as \"1%/10ms\"",
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
        assert_eq!(Probability::parse("0.25"), Ok(Probability(0.25)));
        let loss = |text| LossValue::parse(text).map(|loss| loss.0);
        assert_eq!(loss("1%"), Ok(Loss::Uniform(0.01)));
        assert_eq!(loss("0"), Ok(Loss::None));
        assert_eq!(loss("1%/4"), Ok(Loss::bursts(0.01, 4.0)));
        assert_eq!(
            loss("1%/25%/0/0.5"),
            Ok(Loss::GilbertElliott {
                to_bad: 0.01,
                to_good: 0.25,
                loss_good: 0.0,
                loss_bad: 0.5
            })
        );
        assert_eq!(
            CodelValue::parse("on"),
            Ok(CodelValue(Some(CoDel::default())))
        );
        assert_eq!(CodelValue::parse("off"), Ok(CodelValue(None)));
        assert_eq!(
            CodelValue::parse("10ms/200ms"),
            Ok(CodelValue(Some(CoDel {
                target: Duration::from_millis(10),
                interval: Duration::from_millis(200)
            })))
        );
        assert_eq!(
            ReorderValue::parse("1%/10ms"),
            Ok(ReorderValue(Reorder {
                share: 0.01,
                detour: Duration::from_millis(10)
            }))
        );
        assert_eq!(QueueSize::parse("50 packets"), Ok(QueueSize::Packets(50)));
        assert_eq!(QueueSize::parse("64kB"), Ok(QueueSize::Bytes(64_000)));
        assert_eq!(QueueSize::parse("0.5BDP"), Ok(QueueSize::Bdp(0.5)));
    }

    #[test]
    fn what_is_written_is_read_back() {
        for text in ["0ms", "1500ms", "200us", "1001ns"] {
            let value = TimeValue::parse(text).unwrap();
            assert_eq!(value.to_string(), text);
        }
        for text in ["on", "off", "5ms/150us"] {
            let value = CodelValue::parse(text).unwrap();
            assert_eq!(CodelValue::parse(&value.to_string()), Ok(value));
        }
    }

    #[test]
    fn nonsense_is_answered_by_what_to_write() {
        for (answer, advice) in [
            (RateValue::parse("fast").unwrap_err(), "20Mbit/s"),
            (RateValue::parse("20").unwrap_err(), "20Mbit/s"),
            (RateValue::parse("0Mbit/s").unwrap_err(), "1 bit/s"),
            (TimeValue::parse("15").unwrap_err(), "15ms"),
            (TimeValue::parse("2000s").unwrap_err(), "60s"),
            (Probability::parse("101%").unwrap_err(), "0% to 100%"),
            (Probability::parse("-1%").unwrap_err(), "1%"),
            (LossValue::parse("much").unwrap_err(), "1%/4"),
            (LossValue::parse("1%/0.5").unwrap_err(), "1 to 1000000"),
            (LossValue::parse("90%/2").unwrap_err(), "arrives"),
            (LossValue::parse("1%/2/3").unwrap_err(), "good to bad"),
            (CodelValue::parse("yes").unwrap_err(), "5ms/100ms"),
            (CodelValue::parse("5ms/0ms").unwrap_err(), "5ms/100ms"),
            (ReorderValue::parse("1%").unwrap_err(), "1%/10ms"),
            (QueueSize::parse("big").unwrap_err(), "1BDP"),
        ] {
            assert!(answer.contains(advice), "{answer}");
        }
    }
}
