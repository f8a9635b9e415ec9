//! Changes of a link, from the schedule in the file or by `set`.

use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use braid_links::LinkModel;
use braid_units::value;
use serde::{Deserialize, Serialize};

use crate::emulator::Direction;
use crate::error::Error;

/// A change of a running link. The words that describe the change are also the form in which it goes to a daemon.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Vec<String>", into = "Vec<String>")]
pub struct LinkChange {
    /// True to restart the link with the settings of the file before the change. A restart drops the packets in
    /// the link; its counters, traces, schedule and random streams start again.
    pub(crate) restart: bool,
    /// New settings. A setting that is `None` does not change.
    pub(crate) model: LinkModel,
    /// True to carry packets, false to drop all packets while the interfaces stay up; `None` for no change.
    pub(crate) up: Option<bool>,
    words: Vec<String>,
}

impl TryFrom<Vec<String>> for LinkChange {
    type Error = Error;

    fn try_from(words: Vec<String>) -> Result<LinkChange, Error> {
        LinkChange::parse(words)
    }
}

impl From<LinkChange> for Vec<String> {
    fn from(change: LinkChange) -> Vec<String> {
        change.words
    }
}

impl LinkChange {
    /// Reads `rate=… trace=… delay=… jitter=… queue=… codel=… loss=… reorder=… duplicate=… corrupt=… up down
    /// restart` in any order. A trace has to be [loaded](Self::load) afterwards.
    ///
    /// # Errors
    ///
    /// [`Error::BadChange`], whose text says what to write instead.
    pub fn parse<S: AsRef<str>>(words: impl IntoIterator<Item = S>) -> Result<LinkChange, Error> {
        let mut change = LinkChange::default();
        for word in words {
            change.apply_word(word.as_ref()).map_err(Error::BadChange)?;
        }
        Ok(change)
    }

    /// Reads the trace, if one is named; a relative path starts at `directory`.
    ///
    /// # Errors
    ///
    /// [`Error::BadChange`], whose text says what is wrong with the trace.
    pub fn load(&mut self, directory: &Path) -> Result<(), Error> {
        self.model.load(directory).map_err(Error::BadChange)?;
        if let Some(trace) = &self.model.trace {
            // A daemon runs in another directory, so it needs the path that was found here.
            self.words.push(format!("trace={}", trace.path.display()));
        }
        Ok(())
    }

    fn apply_word(&mut self, word: &str) -> Result<(), String> {
        match word.split_once('=') {
            None if word == "up" => self.up = Some(true),
            None if word == "down" => self.up = Some(false),
            None if word == "restart" => self.restart = true,
            Some((key, text)) if LinkModel::KEYS.contains(&key) && !text.is_empty() => {
                self.model.set(key, text).map_err(|e| e.to_string())?;
            }
            _ => {
                let keys = LinkModel::KEYS.join("=…, ");
                return Err(format!(
                    "`{word}` cannot be set; write {keys}=…, up, down or restart"
                ));
            }
        }
        self.words.push(word.to_owned());
        Ok(())
    }
}

/// An entry of a link's schedule: `"10s rate=1Mbit/s loss=5%"`, `"12s forward down"`.
#[derive(Debug, Clone, PartialEq)]
pub struct ScheduledChange {
    /// Time from the start of the link.
    pub at: Duration,
    /// The direction that changes; `None` for both.
    pub direction: Option<Direction>,
    /// The change.
    pub change: LinkChange,
}

impl FromStr for ScheduledChange {
    type Err = String;

    fn from_str(text: &str) -> Result<ScheduledChange, String> {
        let help = || {
            format!(
                "`{text}` is no entry of a schedule; write a time, then `forward` or `reverse` to change \
                 only one direction, then the changes, such as \"10s rate=1Mbit/s loss=5%\""
            )
        };
        let mut words = text.split_whitespace().peekable();
        let at = words.next().ok_or_else(help)?;
        let at = value::duration(at, MAX_SCHEDULE_TIME).map_err(|_| help())?;
        let direction = match words.peek() {
            Some(&"forward") => Some(Direction::Forward),
            Some(&"reverse") => Some(Direction::Reverse),
            _ => None,
        };
        let words: Vec<&str> = words.skip(usize::from(direction.is_some())).collect();
        let mut change = LinkChange::default();
        for word in &words {
            change.apply_word(word)?;
        }
        // A restart in a schedule would begin the schedule again, and so repeat itself for ever.
        if words.is_empty() || change.restart {
            return Err(help());
        }
        Ok(ScheduledChange {
            at,
            direction,
            change,
        })
    }
}

/// Latest time in a schedule. The limit rejects typing errors. A day is a guess, longer than any measurement.
const MAX_SCHEDULE_TIME: Duration = Duration::from_secs(24 * 3600);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_survives_the_way_to_the_daemon() {
        let words = "rate=1.5M delay=200us jitter=1ms queue=2BDP codel=3ms/50ms loss=0.1%/3 \
                     reorder=1%/10ms duplicate=0.5% corrupt=0.01 restart down";
        let change = LinkChange::parse(words.split(' ')).unwrap();
        let json = serde_json::to_string(&change).unwrap();
        assert_eq!(serde_json::from_str::<LinkChange>(&json).unwrap(), change);
        let unknown = LinkChange::parse(["speed=3"]);
        assert!(matches!(unknown, Err(Error::BadChange(_))));
    }

    #[test]
    fn an_entry_of_a_schedule_is_read() {
        let read = |text: &str| text.parse::<ScheduledChange>();
        let entry = read("90s reverse rate=1M down").unwrap();
        assert_eq!(entry.at, Duration::from_secs(90));
        assert_eq!(entry.direction, Some(Direction::Reverse));
        assert_eq!(entry.change.up, Some(false));
        for wrong in ["", "10s", "rate=1M", "10s forward", "10s restart"] {
            let advice = read(wrong).unwrap_err();
            assert!(advice.contains("10s rate=1Mbit/s"), "{wrong:?}: {advice}");
        }
        let advice = read("10s rate=fast").unwrap_err();
        assert!(advice.contains("20Mbit/s"), "{advice}");
    }
}
