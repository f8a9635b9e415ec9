//! How a box chooses among its servers, and how it measures them.

use core::ops::RangeInclusive;
use core::time::Duration;

use braid_links::{ConfigError, value};
use serde::{Deserialize, Deserializer};
use toml::Spanned;

use crate::select::selection::Quiet;

use super::common::Source;
use super::types::{self, OneOrMany};

/// Which server a new connection goes to, of those that answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Select {
    /// By the lowest delay where the connection is known to carry less than 1 MiB (a mosquito or a
    /// mouse), else by the largest bandwidth.
    #[default]
    Auto,
    /// The one over which most bandwidth is free.
    Bandwidth,
    /// The one with the shortest round trip to destinations.
    Delay,
    /// The first in the configuration's order. None is measured.
    Order,
}

impl Select {
    /// All, with their names.
    pub const NAMES: [(&str, Select); 4] = [
        ("auto", Select::Auto),
        ("bandwidth", Select::Bandwidth),
        ("delay", Select::Delay),
        ("order", Select::Order),
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        let row = Select::NAMES.iter().find(|(_, select)| *select == self);
        row.map_or("auto", |(name, _)| name)
    }
}

pub(super) fn select<'de, D: Deserializer<'de>>(d: D) -> Result<Select, D::Error> {
    types::word(d, "way to choose a server", &Select::NAMES)
}

/// How servers are measured: only while users send something, and never more than 1 % of a link.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Measuring {
    /// From one measurement of a server to the next, while they change.
    #[serde(deserialize_with = "types::duration")]
    pub least: Duration,
    /// The same, while they do not.
    #[serde(deserialize_with = "types::duration")]
    pub most: Duration,
    /// By what share another server must be better to be taken in place of one that works.
    #[serde(deserialize_with = "share")]
    pub gain: f64,
    /// Times of the day, UTC, at which nothing is measured.
    #[serde(deserialize_with = "quiet")]
    pub quiet: Vec<Quiet>,
}

impl Default for Measuring {
    fn default() -> Self {
        Measuring {
            least: Duration::from_secs(5),
            most: Duration::from_secs(300),
            gain: 0.15,
            quiet: Vec::new(),
        }
    }
}

impl Measuring {
    /// The least and the longest time between measurements.
    pub(crate) fn bounds(&self) -> RangeInclusive<Duration> {
        self.least..=self.most
    }

    pub(super) fn check(
        src: &Source<'_>,
        raw: Option<Spanned<Measuring>>,
    ) -> Result<Self, ConfigError> {
        let Some(raw) = raw else {
            return Ok(Measuring::default());
        };
        let Measuring { least, most, .. } = *raw.get_ref();
        if least > most {
            let message = format!("`least` is {least:?}, which is longer than `most`, {most:?}");
            return Err(src.error(&raw, message, "a `least` of at most `most`"));
        }
        Ok(raw.into_inner())
    }
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

/// `"22:00-06:00"`.
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

/// The minute of the day that `"06:30"` stands for.
fn minute(text: &str) -> Option<u16> {
    let (hour, minute) = text.trim().split_once(':')?;
    let number = |s: &str, most: u16| {
        let digits = s.len() == 2 && s.bytes().all(|b| b.is_ascii_digit());
        s.parse::<u16>().ok().filter(|n| digits && *n <= most)
    };
    Some(number(hour, 23)? * 60 + number(minute, 59)?)
}
