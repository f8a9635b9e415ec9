//! Paths between two hosts, as written on the command line: `5mbit,40ms,0%;5mbit,100ms,2%`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use braid_links::text::{RateValue, TimeValue};
use braid_links::{Loss, QueueLimit, Rate, Settings, Trace};
use braid_units::value::{self, ValueError};

/// The syntax of a path, shown in every error.
const FORM: &str = "a path as rate,round-trip time,loss[,queue in packets], such as `5mbit,40ms,0%` or \
                    `trace:FILE,40ms,1%,50`";
/// Maximum number of paths between two hosts: the engine's default limit of subflows.
const MAX_PATHS: usize = 8;
/// Maximum queue, packets. A guess, far above any useful queue: it rejects typing errors.
const MAX_QUEUE: u32 = 1_000_000;

/// A path between two hosts, the same in both directions.
#[derive(Debug, Clone, PartialEq)]
pub struct PathSpec {
    /// Rate of either direction.
    pub rate: Rate,
    /// Round-trip time without queues and serialisation; each direction delays by half of it.
    pub rtt: Duration,
    /// Probability (0 to 1) with which a packet is lost, in each direction.
    pub loss: f64,
    /// Queue of either direction in packets; `None` for the default of the command.
    pub queue: Option<u32>,
}

impl PathSpec {
    /// Returns the settings of either direction. The queue has `queue` packets if the path sets none.
    pub fn settings(&self, queue: u32) -> Settings {
        Settings {
            rate: self.rate.clone(),
            delay: self.rtt / 2,
            queue: QueueLimit::Packets(self.queue.unwrap_or(queue)),
            loss: Loss::uniform(self.loss),
            ..Settings::default()
        }
    }
}

/// Reads `rate,round-trip time,loss[,queue in packets]`. A rate `trace:FILE` is a mahimahi trace, whose
/// file is read here.
impl FromStr for PathSpec {
    type Err = PathError;

    fn from_str(text: &str) -> Result<Self, PathError> {
        let wrong = |reason: String| error(text.trim(), &reason);
        let invalid = |e: ValueError| wrong(e.to_string());
        let parts: Vec<&str> = text.split(',').map(str::trim).collect();
        let (rate, rtt, loss, queue) = match parts[..] {
            [rate, rtt, loss] => (rate, rtt, loss, None),
            [rate, rtt, loss, queue] => (rate, rtt, loss, Some(queue)),
            // Splitting an empty text gives one empty part.
            [""] => return Err(wrong("expected 3 or 4 values, got none".to_owned())),
            _ => {
                let count = parts.len();
                return Err(wrong(format!("expected 3 or 4 values, got {count}")));
            }
        };
        let TimeValue(rtt) = rtt.parse().map_err(invalid)?;
        let loss = value::probability(loss).map_err(invalid)?;
        let queue = queue.map(packets).transpose().map_err(invalid)?;
        let rate = match rate.strip_prefix("trace:") {
            Some(file) => Rate::Trace(Trace::read(file.as_ref()).map_err(wrong)?),
            None => match rate.parse().map_err(invalid)? {
                RateValue(Some(rate)) => Rate::bits_per_second(rate),
                RateValue(None) => Rate::Unlimited,
            },
        };
        Ok(PathSpec {
            rate,
            rtt,
            loss,
            queue,
        })
    }
}

fn packets(text: &str) -> Result<u32, ValueError> {
    let packets = text.parse().ok().filter(|packets| *packets <= MAX_QUEUE);
    let expected = format!("whole packets, 0 to {MAX_QUEUE}");
    packets.ok_or_else(|| ValueError::is_no(text, "queue", &expected))
}

/// The error of paths that cannot be parsed.
pub type PathError = ValueError;

/// Returns the error of the path or paths `read`.
fn error(read: &str, reason: &str) -> PathError {
    PathError {
        what: format!("path `{read}`: {reason}"),
        expected: FORM.to_owned(),
    }
}

/// All paths between two hosts, two or more, with their text.
#[derive(Debug, Clone, PartialEq)]
pub struct Paths {
    text: String,
    specs: Vec<PathSpec>,
}

impl Paths {
    /// Returns the paths in the order given.
    pub fn specs(&self) -> &[PathSpec] {
        &self.specs
    }

    /// Returns path `n`, counted from 0, alone; no path if there is none of this number.
    pub fn only(&self, n: usize) -> Paths {
        let text = self.text.split(';').nth(n).unwrap_or_default();
        Paths {
            text: text.trim().to_owned(),
            specs: self.specs.get(n).cloned().into_iter().collect(),
        }
    }
}

impl FromStr for Paths {
    type Err = PathError;

    /// Reads paths separated by semicolons.
    fn from_str(text: &str) -> Result<Self, PathError> {
        let specs = text.split(';').map(str::parse);
        let specs: Vec<PathSpec> = specs.collect::<Result<_, _>>()?;
        if !(2..=MAX_PATHS).contains(&specs.len()) {
            let count = specs.len();
            let reason = format!("{count} where 2 to {MAX_PATHS} separated by `;` are needed");
            return Err(error(text, &reason));
        }
        Ok(Paths {
            text: text.to_owned(),
            specs,
        })
    }
}

/// Writes the paths as they were read.
impl fmt::Display for Paths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_read_with_and_without_queue() {
        let path: PathSpec = "5mbit,40ms,1.5%".parse().unwrap();
        let expected = PathSpec {
            rate: Rate::bits_per_second(5_000_000),
            rtt: Duration::from_millis(40),
            loss: 0.015,
            queue: None,
        };
        assert_eq!(path, expected);
        assert_eq!(path.settings(50).delay, Duration::from_millis(20));
        assert_eq!(path.settings(50).queue, QueueLimit::Packets(50));
        let path: PathSpec = " unlimited, 0ms, 0%, 7".parse().unwrap();
        assert_eq!((path.rate.clone(), path.queue), (Rate::Unlimited, Some(7)));
        assert_eq!(path.settings(50).queue, QueueLimit::Packets(7));
        assert_eq!(path.settings(50).loss, Loss::None);
    }

    #[test]
    fn paths_are_shown_as_written() {
        let text = "5mbit,40ms,0%;5mbit,100ms,2%";
        let paths: Paths = text.parse().unwrap();
        assert_eq!(paths.to_string(), text);
        assert_eq!(paths.specs().len(), 2);
        assert_eq!(paths.specs()[1].loss, 0.02);
    }

    #[test]
    fn errors_show_what_was_read_and_what_is_expected() {
        for (text, shown) in [
            ("", "got none"),
            ("5mbit,40ms,0%", "1 where 2 to 8"),
            (
                "5mbit,40ms;5mbit,40ms,0%",
                "path `5mbit,40ms`: expected 3 or 4 values, got 2",
            ),
            ("5mbit,40ms,0%;", "got none"),
            ("fast,40ms,0%;5mbit,40ms,0%", "`fast` is no rate"),
            ("0mbit,40ms,0%;5mbit,40ms,0%", "`0mbit` is out of range"),
            ("5mbit,40,0%;5mbit,40ms,0%", "`40` is no duration"),
            ("5mbit,-1ms,0%;5mbit,40ms,0%", "`-1ms` is no duration"),
            ("5mbit,40ms,101%;5mbit,40ms,0%", "`101%` is out of range"),
            ("5mbit,40ms,0%,few;5mbit,40ms,0%", "`few` is no queue"),
            ("trace:/nowhere,40ms,0%;5mbit,40ms,0%", "`/nowhere`"),
            (
                "trace:/dev/zero,40ms,0%;5mbit,40ms,0%",
                "`/dev/zero` is longer than",
            ),
        ] {
            let error = text.parse::<Paths>().unwrap_err().to_string();
            assert!(error.contains(shown), "{text}: {error}");
            assert!(error.contains("write a path as rate,"), "{text}: {error}");
            assert!(!error.contains('\n'), "{error}");
        }
    }

    #[test]
    fn a_trace_is_read_from_its_file() {
        let read = |text: &str| {
            let file = tempfile::NamedTempFile::new().unwrap();
            std::fs::write(&file, text).unwrap();
            format!("trace:{},40ms,0%", file.path().display()).parse::<PathSpec>()
        };
        // Three packets of 1500 bytes in 3 ms: 36,000 bits / 3 ms = 12 Mbit/s.
        assert_eq!(read("1\n2\n3\n").unwrap().rate.mean(), Some(12e6));
        let bad = read("1\nsoon\n").unwrap_err().to_string();
        assert!(bad.contains("line 2: `soon`"), "{bad}");
    }
}
