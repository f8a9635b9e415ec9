//! Measurements of servers that an operator writes by hand, to compute the choice of a server without a box.

use core::time::Duration;

use braid_units::{ConfigError, value};
use serde::{Deserialize, Deserializer};
use toml::Spanned;

use crate::select::plan::Site;
use crate::select::selection::{Measured, Quality};

use super::common::Source;
use super::types::{self, OneOrMany};

/// Maximum round-trip time that is accepted. A guess beyond any real path.
const MAX_DELAY: Duration = Duration::from_secs(60);

/// Reads `text` of `file`. It has a table `[[server]]` for each server, with `name`, the measurements of its
/// `paths`, and its egress metrics (`beyond`).
///
/// # Errors
/// The text is malformed; the error has the position, and says what to write instead.
pub fn sites_from_toml(file: &str, text: &str) -> Result<Vec<Site>, ConfigError> {
    let src = Source { file, text };
    let raw: Raw = src.parse()?;
    let missing = "[[server]]\n                 name = \"…\"\n                 \
                   paths = [{ bandwidth = \"20Mbit/s\", delay = \"40ms\" }]";
    let sites = raw.server.map_or(Vec::new(), |servers| servers.0);
    if sites.is_empty() {
        return Err(src.whole("no [[server]] is given", missing));
    }
    let site = |raw: RawSite| {
        if raw.paths.get_ref().0.is_empty() {
            return Err(src.error(&raw.paths, "no path is given", missing));
        }
        let paths = raw.paths.into_inner().0.into_iter();
        Ok(Site {
            name: raw.name,
            measured: Measured {
                paths: paths.map(Quality::from).collect(),
                egress: raw.beyond.into(),
            },
        })
    };
    sites.into_iter().map(site).collect()
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    server: Option<OneOrMany<RawSite>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawSite {
    name: String,
    paths: Spanned<OneOrMany<RawQuality>>,
    #[serde(default)]
    beyond: RawQuality,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RawQuality {
    #[serde(deserialize_with = "rate")]
    bandwidth: Option<f64>,
    #[serde(deserialize_with = "delay")]
    delay: Option<f64>,
}

impl From<RawQuality> for Quality {
    fn from(raw: RawQuality) -> Self {
        Quality {
            bandwidth: raw.bandwidth,
            delay_ms: raw.delay,
        }
    }
}

fn rate<'de, D: Deserializer<'de>>(d: D) -> Result<Option<f64>, D::Error> {
    types::text(d, |s| match value::rate(s) {
        Ok(bits) => Ok(Some(bits as f64)),
        Err(e) => Err((e.what, e.expected)),
    })
}

fn delay<'de, D: Deserializer<'de>>(d: D) -> Result<Option<f64>, D::Error> {
    types::text(d, |s| match value::duration(s, MAX_DELAY) {
        Ok(time) => Ok(Some(time.as_secs_f64() * 1e3)),
        Err(e) => Err((e.what, e.expected)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const FULL: &str = "[[server]]\nname = \"oslo\"\n\
        paths = [{ bandwidth = \"21.89Mbit/s\", delay = \"53.37ms\" }, { delay = \"90ms\" }]\n\
        beyond = { bandwidth = \"92.8Mbit/s\" }\n";

    #[test]
    fn all_values_are_read() {
        let sites = sites_from_toml("sites.toml", FULL).unwrap();
        let quality = |bandwidth, delay_ms| Quality {
            bandwidth,
            delay_ms,
        };
        assert_eq!(sites[0].name, "oslo");
        let paths = [
            quality(Some(21.89e6), Some(53.37)),
            quality(None, Some(90.0)),
        ];
        assert_eq!(sites[0].measured.paths, paths);
        assert_eq!(sites[0].measured.egress, quality(Some(92.8e6), None));
    }

    #[test]
    fn errors_have_the_position_of_the_mistake() {
        for (from, to, what) in [
            ("21.89Mbit/s", "fast", "sites.toml:3:24: `fast` is no rate"),
            ("53.37ms", "2min", "`2min`"),
            ("beyond", "behind", "no setting `behind`"),
            ("[[server]]", "[[servers]]", "no setting `servers`"),
            (
                "paths = [",
                "paths = [] #",
                "sites.toml:3:9: no path is given",
            ),
            (FULL, "", "no [[server]] is given"),
        ] {
            let error = sites_from_toml("sites.toml", &FULL.replace(from, to)).unwrap_err();
            assert!(error.to_string().contains(what), "{what:?} in:\n{error}");
        }
    }
}
