//! Values with units in configuration files and on command lines. All parts of Braid use these functions, so
//! that the same text has the same meaning everywhere.

use core::fmt;
use core::net::IpAddr;
use core::time::Duration;

use ipnet::IpNet;

/// The error for a text that is not a valid value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ValueError {
    /// The text that was read, and what is wrong with it.
    pub what: String,
    /// The advice: what to write instead.
    pub expected: String,
}

impl ValueError {
    /// Creates an error which says that `text` is not a value of this `kind`.
    pub fn is_no(text: &str, kind: &str, expected: &str) -> ValueError {
        ValueError {
            what: format!("`{text}` is no {kind}"),
            expected: expected.to_owned(),
        }
    }

    /// Creates an error which says that the value `text` is too low or too high.
    pub fn out_of_range(text: &str, expected: impl Into<String>) -> ValueError {
        ValueError {
            what: format!("`{text}` is out of range"),
            expected: expected.into(),
        }
    }
}

impl fmt::Display for ValueError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; write {}", self.what, self.expected)
    }
}

impl core::error::Error for ValueError {}

/// Splits `text` into its leading number and the unit after it. Returns `None` if `text` does not begin with a
/// number.
pub fn number_and_unit(text: &str) -> Option<(f64, &str)> {
    let text = text.trim();
    let end = text
        .find(|c: char| !(c.is_ascii_digit() || c == '.'))
        .unwrap_or(text.len());
    let number: f64 = text[..end].parse().ok()?;
    Some((number, text[end..].trim()))
}

/// Reads a size in bytes: `64kB` is 64,000, `64KiB` is 65,536. A number without a unit counts bytes.
///
/// # Errors
/// Fails if the unit is unknown or the size exceeds 2^53 bytes.
pub fn size(text: &str) -> Result<u64, ValueError> {
    let expected = "a size such as \"512kB\" (512,000 bytes), \"64MB\" or \"8MiB\"";
    let wrong = || ValueError::is_no(text, "size", expected);
    let (number, unit) = number_and_unit(text).ok_or_else(wrong)?;
    let factor = match unit {
        "" | "B" | "byte" | "bytes" => 1.0,
        "kB" => 1e3,
        "MB" => 1e6,
        "GB" => 1e9,
        "KiB" => 1024.0,
        "MiB" => 1048576.0,
        "GiB" => 1073741824.0,
        _ => return Err(wrong()),
    };
    let bytes = number * factor;
    // Beyond 2^53 an `f64` cannot hold every whole number.
    (bytes <= (1u64 << 53) as f64)
        .then_some(bytes as u64)
        .ok_or_else(|| ValueError::out_of_range(text, "a size of at most 9007199GB"))
}

/// Reads a rate in bit/s: `20Mbit/s`, `20M`, `512kbit`, `1.5G`.
///
/// # Errors
/// Fails if the unit is missing or unknown, or the rate is below 1 bit/s or above 1000 Gbit/s.
pub fn rate(text: &str) -> Result<u64, ValueError> {
    let expected = "a number with its unit, such as \"20Mbit/s\", \"512kbit/s\" or \"1Gbit/s\"";
    let wrong = || ValueError::is_no(text, "rate", expected);
    let (number, unit) = number_and_unit(text).ok_or_else(wrong)?;
    let per_second = unit.strip_suffix("/s").or_else(|| unit.strip_suffix("ps"));
    let factor = match per_second.unwrap_or(unit) {
        "bit" | "b" => 1.0,
        // Rates have no binary prefixes, and their only unit is the bit, so short forms are unambiguous.
        "k" | "K" | "kbit" | "Kbit" | "kb" => 1e3,
        "M" | "m" | "Mbit" | "mbit" | "Mb" => 1e6,
        "G" | "g" | "Gbit" | "gbit" | "Gb" => 1e9,
        _ => return Err(wrong()),
    };
    let rate = number * factor;
    if !(1.0..=1e12).contains(&rate) {
        let expected = "a rate of 1 bit/s to 1000 Gbit/s";
        return Err(ValueError::out_of_range(text, expected));
    }
    Ok(rate.round() as u64)
}

/// Reads a time of at most `max`: `200us`, `15ms`, `1.5s`, `5min`, `2h`, `1d`.
///
/// # Errors
/// Fails if the unit is missing or unknown, or the time exceeds `max`.
pub fn duration(text: &str, max: Duration) -> Result<Duration, ValueError> {
    let expected = "a number with its unit, such as \"15ms\"";
    let wrong = || ValueError::is_no(text, "duration", expected);
    let (number, unit) = number_and_unit(text).ok_or_else(wrong)?;
    let factor = match unit {
        "ns" => 1e-9,
        "us" | "µs" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        "min" | "m" => 60.0,
        "h" => 3600.0,
        "d" => 86400.0,
        _ => return Err(wrong()),
    };
    let seconds = number * factor;
    if seconds > max.as_secs_f64() {
        let expected = format!("at most {}s", max.as_secs());
        return Err(ValueError::out_of_range(text, expected));
    }
    Ok(Duration::from_nanos((seconds * 1e9).round() as u64))
}

/// Formats a duration so that [`duration`] can read it: in milliseconds, microseconds or nanoseconds. The unit is
/// the largest one that gives a whole number.
pub fn show_duration(duration: Duration) -> String {
    match duration.as_nanos() {
        nanos if nanos % 1_000_000 == 0 => format!("{}ms", nanos / 1_000_000),
        nanos if nanos % 1_000 == 0 => format!("{}us", nanos / 1_000),
        nanos => format!("{nanos}ns"),
    }
}

/// Reads a probability: `1%` or `0.01`.
///
/// # Errors
/// Fails if the text is not a probability, or the probability exceeds 100 %.
pub fn probability(text: &str) -> Result<f64, ValueError> {
    let expected = "a percentage such as \"1%\", or 0.01";
    let wrong = || ValueError::is_no(text, "probability", expected);
    let (number, unit) = number_and_unit(text).ok_or_else(wrong)?;
    let ratio = match unit {
        "%" => number / 100.0,
        "" => number,
        _ => return Err(wrong()),
    };
    (ratio <= 1.0)
        .then_some(ratio)
        .ok_or_else(|| ValueError::out_of_range(text, "a probability of 0% to 100%"))
}

/// Reads a range of addresses: `10.0.0.0/8`, `2001:db8::/32`. An address without a prefix length is a range of one
/// address.
///
/// # Errors
/// Fails if the text is not a range, or if bits after the prefix are set.
pub fn prefix(text: &str) -> Result<IpNet, ValueError> {
    let wrong = |why: &str, expected: String| ValueError {
        what: format!("{text:?}: {why}"),
        expected,
    };
    let example = || "a range such as \"10.0.0.0/8\" or \"2001:db8::/32\"".to_owned();
    let (address, length) = match text.split_once('/') {
        Some((address, length)) => (address, Some(length)),
        None => (text, None),
    };
    let address: IpAddr = address
        .parse()
        .map_err(|_| wrong("not an address range", example()))?;
    let Some(length) = length else {
        return Ok(address.into());
    };
    let length = length
        .parse()
        .map_err(|_| wrong("the prefix length is not a number", example()))?;
    let net = IpNet::new(address, length)
        .map_err(|_| wrong("the prefix is longer than the address", example()))?;
    if net.trunc() != net {
        let expected = format!("\"{}\"", net.trunc());
        return Err(wrong("bits after the prefix are set", expected));
    }
    Ok(net)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_with_their_units() {
        for (text, bytes) in [
            ("64kB", 64_000),
            ("64KiB", 65_536),
            ("1.5 MB", 1_500_000),
            ("8MiB", 8 << 20),
            ("1GiB", 1 << 30),
            ("700", 700),
        ] {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for text in ["64k", "1M", "64KB", "-1", "9999999999GB", ""] {
            assert!(size(text).is_err(), "{text}");
        }
        for (text, bits) in [
            ("20Mbit/s", 20_000_000),
            ("1.5G", 1_500_000_000),
            ("512kbps", 512_000),
        ] {
            assert_eq!(rate(text), Ok(bits), "{text}");
        }
        let minute = Duration::from_secs(60);
        assert_eq!(duration("1min", minute), Ok(minute));
        assert_eq!(duration("1.5ms", minute), Ok(Duration::from_micros(1500)));
        assert_eq!(
            (probability("1%"), probability("0.01")),
            (Ok(0.01), Ok(0.01))
        );
        for text in ["0ms", "1500ms", "200us", "1001ns"] {
            assert_eq!(show_duration(duration(text, minute).unwrap()), text);
        }
    }

    #[test]
    fn nonsense_is_answered_by_what_to_write() {
        let time = |text| duration(text, Duration::from_secs(60)).map(drop);
        for (answer, advice) in [
            (rate("fast").map(drop), "20Mbit/s"),
            (rate("20").map(drop), "20Mbit/s"),
            (rate("20Mbit/s/s").map(drop), "20Mbit/s"),
            (rate("0Mbit/s").map(drop), "1 bit/s"),
            (time("15"), "15ms"),
            (time("2000s"), "60s"),
            (probability("101%").map(drop), "0% to 100%"),
            (probability("-1%").map(drop), "1%"),
            (size("64K").map(drop), "512,000 bytes"),
            (size("9999999999GB").map(drop), "at most 9007199GB"),
            (prefix("10.0.0.1/8").map(drop), "\"10.0.0.0/8\""),
            (prefix("10.0.0.0/33").map(drop), "longer than the address"),
        ] {
            let answer = answer.unwrap_err().to_string();
            assert!(answer.contains(advice), "{answer}");
        }
    }
}
