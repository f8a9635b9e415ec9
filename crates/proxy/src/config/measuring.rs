//! The settings of a box's choice among servers, and of their measurement.

use braid_units::{ConfigError, value};
use serde::{Deserialize, Deserializer};
use toml::Spanned;

use crate::select::selection::Quiet;
pub use crate::select::selection::{Measuring, Select};

use super::common::Source;
use super::types::{self, OneOrMany, Time};

pub(super) fn select<'de, D: Deserializer<'de>>(d: D) -> Result<Select, D::Error> {
    types::word(d, "way to choose a server", &Select::NAMES)
}

/// Checks the shortest and the longest interval between measurements, and returns them with `gain` and `quiet`.
/// The shortest interval is a setting of the last version only.
pub(super) fn check(
    src: &Source<'_>,
    (least, most): (Option<Spanned<Time>>, Option<Spanned<Time>>),
    gain: Option<Share>,
    quiet: Option<QuietHours>,
) -> Result<Measuring, ConfigError> {
    let defaults = Measuring::default();
    let time = |given: &Option<Spanned<Time>>| given.as_ref().map(|time| time.get_ref().0);
    let measuring = Measuring {
        least: time(&least).unwrap_or(defaults.least),
        most: time(&most).unwrap_or(defaults.most),
        gain: gain.map_or(defaults.gain, |share| share.0),
        quiet: quiet.map_or(defaults.quiet, |hours| hours.0),
    };
    let Measuring {
        least: shortest,
        most: longest,
        ..
    } = measuring;
    match most.or(least).filter(|_| shortest > longest) {
        None => Ok(measuring),
        Some(at) => {
            let message = format!(
                "the longest interval between measurements is {longest:?}, shorter than the shortest, {shortest:?}"
            );
            let hint = format!(
                "max_measurement_interval = \"{}s\" or more",
                shortest.as_secs_f64()
            );
            Err(src.error(&at, message, hint))
        }
    }
}

/// A share such as `"15%"`, from 0 to 1.
#[derive(Debug, Clone, Copy)]
pub(super) struct Share(f64);

impl<'de> Deserialize<'de> for Share {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        types::text(d, |s| {
            value::probability(s).map(Share).map_err(|_| {
                let hint = "a share such as \"15%\" or \"0.15\", up to \"100%\"";
                (format!("{s:?} is no share"), hint.to_owned())
            })
        })
    }
}

/// Times of the day at which nothing is measured.
#[derive(Debug, Clone)]
pub(super) struct QuietHours(Vec<Quiet>);

impl<'de> Deserialize<'de> for QuietHours {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let spans = OneOrMany::<Span>::deserialize(d)?;
        Ok(QuietHours(spans.0.into_iter().map(|span| span.0).collect()))
    }
}

/// A time span of the day such as `"22:00-06:00"`.
struct Span(Quiet);

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        types::text(d, |s| {
            let span = s.split_once('-').and_then(|(from, to)| {
                let (from, to) = (minute(from)?, minute(to)?);
                Some(Span(Quiet { from, to }))
            });
            span.ok_or_else(|| {
                let hint = "hours of the day (UTC) such as \"22:00-06:00\"";
                (format!("{s:?} is no span of hours"), hint.to_owned())
            })
        })
    }
}

/// Returns the minute of the day of a time such as `"06:30"`.
fn minute(text: &str) -> Option<u16> {
    let (hour, minute) = text.trim().split_once(':')?;
    // Rust's parser also accepts a sign and a single digit.
    let number = |s: &str, max: u16| {
        let has_two_digits = s.len() == 2 && s.bytes().all(|b| b.is_ascii_digit());
        s.parse::<u16>()
            .ok()
            .filter(|n| has_two_digits && *n <= max)
    };
    Some(number(hour, 23)? * 60 + number(minute, 59)?)
}
