//! The settings of a box's choice among servers, and of their measurement.

use core::time::Duration;

use braid_units::{ConfigError, value};
use serde::{Deserialize, Deserializer};
use toml::Spanned;

use crate::select::selection::Quiet;
pub use crate::select::selection::{Measuring, Select};

use super::common::Source;
use super::types::{self, OneOrMany};

pub(super) fn select<'de, D: Deserializer<'de>>(d: D) -> Result<Select, D::Error> {
    types::word(d, "way to choose a server", &Select::NAMES)
}

/// [`Measuring`] as written in the file.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename = "Measuring", deny_unknown_fields, default)]
pub(super) struct RawMeasuring {
    #[serde(deserialize_with = "types::duration")]
    least: Duration,
    #[serde(deserialize_with = "types::duration")]
    most: Duration,
    #[serde(deserialize_with = "share")]
    gain: f64,
    #[serde(deserialize_with = "quiet")]
    quiet: Vec<Quiet>,
}

impl Default for RawMeasuring {
    fn default() -> Self {
        let Measuring {
            least,
            most,
            gain,
            quiet,
        } = Measuring::default();
        RawMeasuring {
            least,
            most,
            gain,
            quiet,
        }
    }
}

pub(super) fn check(
    src: &Source<'_>,
    raw: Option<Spanned<RawMeasuring>>,
) -> Result<Measuring, ConfigError> {
    let Some(raw) = raw else {
        return Ok(Measuring::default());
    };
    let RawMeasuring { least, most, .. } = *raw.get_ref();
    if least > most {
        let message = format!("`least` is {least:?}, which is longer than `most`, {most:?}");
        return Err(src.error(&raw, message, "a `least` of at most `most`"));
    }
    let RawMeasuring { gain, quiet, .. } = raw.into_inner();
    Ok(Measuring {
        least,
        most,
        gain,
        quiet,
    })
}

fn share<'de, D: Deserializer<'de>>(d: D) -> Result<f64, D::Error> {
    types::text(d, |s| {
        value::probability(s).map_err(|_| {
            let hint = "a share such as \"15%\" or \"0.15\", up to \"100%\"";
            (format!("{s:?} is no share"), hint.to_owned())
        })
    })
}

fn quiet<'de, D: Deserializer<'de>>(d: D) -> Result<Vec<Quiet>, D::Error> {
    let spans = OneOrMany::<Span>::deserialize(d)?;
    Ok(spans.0.into_iter().map(|span| span.0).collect())
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
    let number = |s: &str, most: u16| {
        let digits = s.len() == 2 && s.bytes().all(|b| b.is_ascii_digit());
        s.parse::<u16>().ok().filter(|n| digits && *n <= most)
    };
    Some(number(hour, 23)? * 60 + number(minute, 59)?)
}
