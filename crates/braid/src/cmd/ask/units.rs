//! Numbers in human-readable units.

use std::time::Duration;

/// The text for an unknown value.
pub const NONE: &str = "-";

/// Returns the value as `format` writes it, or [`NONE`].
pub fn or_none(value: Option<f64>, format: fn(f64) -> String) -> String {
    value.map_or_else(|| NONE.to_owned(), format)
}

/// Returns bytes as `0 B`, `999 B`, `1.2 kB`, `12 MB`: decimal units, two to three digits.
pub fn bytes(n: u64) -> String {
    scaled(n as f64, ["B", "kB", "MB", "GB", "TB"])
}

/// Returns a rate in bit/s as `18.2 Mbit/s`.
pub fn rate(bits_per_second: f64) -> String {
    scaled(
        bits_per_second,
        ["bit/s", "kbit/s", "Mbit/s", "Gbit/s", "Tbit/s"],
    )
}

/// Returns the value in the smallest unit in which it has at most three digits before the point.
fn scaled(value: f64, units: [&str; 5]) -> String {
    let mut value = value;
    for (i, unit) in units.iter().enumerate() {
        // 999.5 would be rounded up to 1000, which has four digits, and 99.95 to 100.0.
        if value < 999.5 || i + 1 == units.len() {
            let decimals = usize::from(i > 0 && value < 99.95);
            return format!("{value:.decimals$} {unit}");
        }
        value /= 1e3;
    }
    unreachable!("the last unit holds any value")
}

/// Returns milliseconds as `40 ms`, `0.4 ms`.
pub fn milliseconds(ms: f64) -> String {
    // 9.95 would be rounded up to 10.0.
    let decimals = usize::from(ms < 9.95);
    format!("{ms:.decimals$} ms")
}

/// Returns a share (0 to 1) as `0.3 %`.
pub fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

/// Returns seconds as `42 s`, `12 min`, `3 h 5 min`, `2 d 4 h`.
pub fn age(seconds: f64) -> String {
    // A status from another release can hold a negative number or NaN.
    let seconds = Duration::try_from_secs_f64(seconds).map_or(0, |d| d.as_secs());
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match () {
        () if minutes == 0 => format!("{seconds} s"),
        () if hours == 0 => format!("{minutes} min"),
        () if days == 0 => format!("{hours} h {} min", minutes % 60),
        () => format!("{days} d {} h", hours % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_few_digits() {
        let sizes = [
            0, 999, 1_000, 1_234, 99_949, 99_950, 999_499, 999_500, 12_345_678,
        ];
        let texts = sizes.map(bytes);
        let expected = [
            "0 B", "999 B", "1.0 kB", "1.2 kB", "99.9 kB", "100 kB", "999 kB", "1.0 MB", "12.3 MB",
        ];
        assert_eq!(texts, expected);
        assert_eq!(bytes(u64::MAX), "18446744 TB");
    }

    #[test]
    fn rates_times_and_shares() {
        assert_eq!(rate(18_240_000.0), "18.2 Mbit/s");
        assert_eq!(
            [0.42, 9.96, 40.4].map(milliseconds),
            ["0.4 ms", "10 ms", "40 ms"]
        );
        assert_eq!(percent(0.0031), "0.3 %");
        let ages = [0.0, 59.9, 60.0, 3_600.0, 11_130.0, 200_000.0].map(age);
        let expected = ["0 s", "59 s", "1 min", "1 h 0 min", "3 h 5 min", "2 d 7 h"];
        assert_eq!(ages, expected);
        assert_eq!(age(f64::NAN), "0 s");
    }
}
