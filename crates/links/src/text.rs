//! The values of a link's settings as text, for files and command lines.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use braid_units::value::{self, ValueError};
use serde::Deserialize;
use serde::de::{Deserializer, Error as _};

use crate::codel::CoDel;
use crate::queue::QueueLimit;
use crate::settings::{GilbertElliott, Loss, Reorder};

/// Maximum delay, jitter or detour. A longer one is probably a mistake in the unit.
const MAX_DURATION: Duration = Duration::from_secs(60);

/// A rate in bit/s: `"20Mbit/s"`, `"20M"`, `"512k"`, `"1.5G"`, `"unlimited"`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateValue(pub Option<u64>);

/// A duration of at most 60 s: `"15ms"`, `"1.5s"`, `"200us"`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimeValue(pub Duration);

/// Jitter of at most 60 s: `"5ms"`, or `"5ms/reorder"` if packets may overtake each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct JitterValue {
    /// Maximum additional delay of a packet.
    pub max: Duration,
    /// True if packets may overtake each other.
    pub reorders: bool,
}

/// A probability: `"1%"` or `0.01`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Probability(pub f64);

/// CoDel: `"on"`, `"off"`, or target and interval: `"5ms/100ms"`. With `"/mark"` after them, CoDel marks packets
/// (ECN).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CodelValue(pub Option<CoDel>);

/// A bound on a queue: `"50 packets"`, `"64000 bytes"`, `"64kB"`, `"1BDP"`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum QueueSize {
    /// A number of packets or bytes.
    Limit(QueueLimit),
    /// A multiple of the bandwidth-delay product: the rate times the delays of both directions.
    Bdp(f64),
}

fn rate(text: &str) -> Result<RateValue, ValueError> {
    if text.trim() == "unlimited" {
        return Ok(RateValue(None));
    }
    let rate = value::rate(text).map_err(|e| ValueError {
        what: e.what,
        expected: e.expected + ", or \"unlimited\"",
    })?;
    Ok(RateValue(Some(rate)))
}

fn time(text: &str) -> Result<TimeValue, ValueError> {
    value::duration(text, MAX_DURATION).map(TimeValue)
}

fn jitter(text: &str) -> Result<JitterValue, ValueError> {
    let max = text.strip_suffix("/reorder");
    Ok(JitterValue {
        max: value::duration(max.unwrap_or(text), MAX_DURATION)?,
        reorders: max.is_some(),
    })
}

fn probability(text: &str) -> Result<Probability, ValueError> {
    value::probability(text).map(Probability)
}

/// Reads random loss in one of three forms:
///
/// - `"1%"`: a probability.
/// - `"1%/4"`: a share of 1 % in bursts with a mean length of 4 packets.
/// - `"1%/25%/0%/100%"`: the probabilities of the Gilbert-Elliott model: of the change from good to bad, of the
///   change from bad to good, of loss in the good state, and of loss in the bad state.
fn loss(text: &str) -> Result<Loss, ValueError> {
    let wrong = || {
        let expected = "a probability such as \"1%\", \"1%/4\" for bursts with a mean of 4 \
                        packets, or \"1%/25%/0%/100%\" (good to bad, bad to good, loss while \
                        good, loss while bad)";
        ValueError::is_no(text, "loss", expected)
    };
    let share = |part| value::probability(part).map_err(|_| wrong());
    match text.split('/').collect::<Vec<_>>()[..] {
        [mean] => Ok(Loss::uniform(share(mean)?)),
        [mean, burst] => {
            let mean = share(mean)?;
            let burst: f64 = burst.trim().parse().map_err(|_| wrong())?;
            if !(1.0..=1e6).contains(&burst) || mean > burst / (burst + 1.0) {
                let expected = "a burst of 1 to 1000000 packets, and a share so low that at \
                                least one packet arrives between two bursts";
                return Err(ValueError::out_of_range(text, expected));
            }
            Ok(Loss::bursts(mean, burst))
        }
        [to_bad, to_good, good, bad] => Ok(Loss::GilbertElliott(GilbertElliott {
            to_bad: share(to_bad)?,
            to_good: share(to_good)?,
            loss_good: share(good)?,
            loss_bad: share(bad)?,
        })),
        _ => Err(wrong()),
    }
}

fn codel(text: &str) -> Result<CodelValue, ValueError> {
    match text.trim() {
        "on" => return Ok(CodelValue(Some(CoDel::default()))),
        "off" => return Ok(CodelValue(None)),
        _ => {}
    }
    let codel = || {
        let without_mark = text.strip_suffix("/mark");
        let (target, interval) = without_mark.unwrap_or(text).split_once('/')?;
        let target = value::duration(target, MAX_DURATION).ok()?;
        let interval = value::duration(interval, MAX_DURATION).ok()?;
        (!interval.is_zero()).then_some(CoDel {
            target,
            interval,
            marks: without_mark.is_some(),
        })
    };
    let expected = "\"on\", \"off\", or target and interval such as \"5ms/100ms\", with \"/mark\" \
                    to mark packets instead of dropping them";
    let codel = codel().ok_or_else(|| ValueError::is_no(text, "setting of CoDel", expected))?;
    Ok(CodelValue(Some(codel)))
}

/// Reads reordering: `"off"`, or the share of packets that take a detour and the additional delay of the detour:
/// `"1%/10ms"`.
fn reorder(text: &str) -> Result<Reorder, ValueError> {
    if text.trim() == "off" {
        return Ok(Reorder::default());
    }
    let reorder = || {
        let (share, detour) = text.split_once('/')?;
        Some(Reorder {
            share: value::probability(share).ok()?,
            detour: value::duration(detour, MAX_DURATION).ok()?,
        })
    };
    let expected = "the share of packets that are delayed and the delay by which others overtake \
                    them, such as \"1%/10ms\", or \"off\"";
    reorder().ok_or_else(|| ValueError::is_no(text, "reordering", expected))
}

fn queue_size(text: &str) -> Result<QueueSize, ValueError> {
    let size = || {
        let (number, unit) = value::number_and_unit(text).filter(|(n, _)| *n <= 1e9)?;
        Some(match unit {
            "packets" | "packet" | "p" => QueueSize::Limit(QueueLimit::Packets(number as u32)),
            "BDP" | "bdp" => QueueSize::Bdp(number),
            // A number without a unit could mean bytes or packets, so it is an error.
            "" => return None,
            _ => QueueSize::Limit(QueueLimit::Bytes(value::size(text).ok()?)),
        })
    };
    let expected = "\"50 packets\", \"64000 bytes\", \"64kB\" or \"1BDP\" (a multiple of rate x \
                    round-trip time)";
    size().ok_or_else(|| ValueError::is_no(text, "queue size", expected))
}

// For both of these types, the functions above read the output of `Display` as the same value.

impl fmt::Display for CoDel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [target, interval] = [self.target, self.interval].map(value::show_duration);
        let mark = if self.marks { "/mark" } else { "" };
        write!(f, "{target}/{interval}{mark}")
    }
}

impl fmt::Display for QueueLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            QueueLimit::Packets(n) => write!(f, "{n} packets"),
            QueueLimit::Bytes(n) => write!(f, "{n} bytes"),
        }
    }
}

/// The text of a value, or a number without quotes.
#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a string: a value with its unit")]
enum Text {
    String(String),
    Integer(i64),
    Float(f64),
}

/// Deserialises a string, or a number as a string, so that files may omit the quotes.
fn string_or_number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    Ok(match Text::deserialize(deserializer)? {
        Text::String(text) => text,
        Text::Integer(number) => number.to_string(),
        Text::Float(number) => number.to_string(),
    })
}

/// Makes each type parse and deserialise its text by the function after it.
macro_rules! read_from_text {
    ($($name:ty: $read:ident,)*) => {$(
        impl FromStr for $name {
            type Err = ValueError;

            fn from_str(text: &str) -> Result<Self, ValueError> {
                $read(text)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                string_or_number(deserializer)?.parse().map_err(D::Error::custom)
            }
        }
    )*};
}

read_from_text! {
    RateValue: rate,
    TimeValue: time,
    JitterValue: jitter,
    Probability: probability,
    Loss: loss,
    CodelValue: codel,
    Reorder: reorder,
    QueueSize: queue_size,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read() {
        assert_eq!("unlimited".parse(), Ok(RateValue(None)));
        assert_eq!("20M".parse(), Ok(RateValue(Some(20_000_000))));
        assert_eq!("0".parse(), Ok(Loss::None));
        assert_eq!("1%".parse(), Ok(Loss::Uniform(0.01)));
        assert_eq!("1%/4".parse(), Ok(Loss::bursts(0.01, 4.0)));
        let gilbert_elliott = GilbertElliott {
            to_bad: 0.01,
            to_good: 0.25,
            loss_good: 0.0,
            loss_bad: 0.5,
        };
        let loss = Loss::GilbertElliott(gilbert_elliott);
        assert_eq!("1%/25%/0/0.5".parse(), Ok(loss));
        assert_eq!("on".parse(), Ok(CodelValue(Some(CoDel::default()))));
        let reorder = Reorder {
            share: 0.01,
            detour: Duration::from_millis(10),
        };
        assert_eq!("1%/10ms".parse(), Ok(reorder));
        let limit = |limit| Ok(QueueSize::Limit(limit));
        assert_eq!("50 packets".parse(), limit(QueueLimit::Packets(50)));
        assert_eq!("64kB".parse(), limit(QueueLimit::Bytes(64_000)));
        assert_eq!("64KiB".parse(), limit(QueueLimit::Bytes(65_536)));
        assert_eq!("0.5BDP".parse(), Ok(QueueSize::Bdp(0.5)));
        assert_eq!("off".parse(), Ok(CodelValue(None)));
        let jitter = |reorders| {
            let max = Duration::from_millis(5);
            Ok(JitterValue { max, reorders })
        };
        assert_eq!("5ms".parse(), jitter(false));
        assert_eq!("5ms/reorder".parse(), jitter(true));
        for text in ["on", "5ms/150us", "10ms/200ms", "10ms/200ms/mark"] {
            let CodelValue(codel) = text.parse().unwrap();
            let shown = codel.unwrap().to_string();
            assert_eq!(shown.parse(), Ok(CodelValue(codel)), "{shown}");
        }
    }

    #[test]
    fn errors_name_valid_values() {
        fn answer<T: FromStr<Err = ValueError>>(text: &str) -> String {
            text.parse::<T>().map(drop).unwrap_err().to_string()
        }
        for (answer, advice) in [
            (answer::<RateValue>("fast"), "\"unlimited\""),
            (answer::<TimeValue>("2000s"), "60s"),
            (answer::<JitterValue>("5ms/swap"), "no duration"),
            (answer::<Loss>("much"), "1%/4"),
            (answer::<Loss>("1%/0.5"), "1 to 1000000"),
            // At most 2 of 3 packets can be lost in bursts of 2.
            (answer::<Loss>("90%/2"), "arrives"),
            (answer::<Loss>("1%/2/3"), "good to bad"),
            (answer::<CodelValue>("yes"), "5ms/100ms"),
            (answer::<CodelValue>("5ms/0ms"), "5ms/100ms"),
            (answer::<Reorder>("1%"), "1%/10ms"),
            (answer::<QueueSize>("big"), "1BDP"),
            (answer::<QueueSize>("50"), "50 packets"),
        ] {
            assert!(answer.contains(advice), "{answer}");
        }
    }
}
