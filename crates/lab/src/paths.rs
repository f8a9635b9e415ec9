//! Paths between two hosts, as written on the command line: `5mbit,40ms,0%;5mbit,100ms,2%`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use braid_links::text::{JitterValue, Probability, RateValue, TimeValue};
use braid_links::{Loss, QueueLimit, Rate, Settings, Trace};
use braid_units::value::ValueError;

/// The syntax of a path, shown in every error.
const FORM: &str = "a path as rate,round-trip time,loss[,queue][,jitter=time[/reorder]], such as `5mbit,40ms,0%`, \
                    `swing:5mbit/50%/200ms/1,40ms,1%/4,50ms,jitter=5ms` or `trace:FILE,40ms,1%,50`";
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
    /// Additional delay of a packet, in each direction.
    pub jitter: JitterValue,
    /// Random loss, in each direction.
    pub loss: Loss,
    /// Queue of either direction; `None` for the default of the command.
    pub queue: Option<QueueSpec>,
}

/// The bound on the queue of a path, as written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueueSpec {
    /// A number of packets.
    Packets(u32),
    /// The bytes that the mean rate carries in this time.
    Time(Duration),
}

impl PathSpec {
    /// Returns the settings of either direction. The queue has `queue` packets if the path sets none.
    pub fn settings(&self, queue: u32) -> Settings {
        let queue = match (self.queue, self.rate.mean()) {
            (Some(QueueSpec::Packets(packets)), _) => QueueLimit::Packets(packets),
            // At least two packets of 1500 bytes, because a shorter queue cannot keep the line busy.
            (Some(QueueSpec::Time(time)), Some(rate)) => {
                QueueLimit::Bytes(((rate * time.as_secs_f64() / 8.0) as u64).max(3000))
            }
            _ => QueueLimit::Packets(queue),
        };
        Settings {
            rate: self.rate.clone(),
            delay: self.rtt / 2,
            jitter: self.jitter.max,
            jitter_reorders: self.jitter.reorders,
            queue,
            loss: self.loss,
            ..Settings::default()
        }
    }
}

/// Reads `rate,round-trip time,loss[,queue][,jitter=time[/reorder]]`. A rate `trace:FILE` is a mahimahi trace, whose
/// file is read here. A rate `swing:MEAN/SHARE/STEP/SEED` is the trace of [`Trace::swinging`].
impl FromStr for PathSpec {
    type Err = PathError;

    fn from_str(text: &str) -> Result<Self, PathError> {
        let wrong = |reason: String| error(text.trim(), &reason);
        let invalid = |e: ValueError| wrong(e.to_string());
        let mut parts: Vec<&str> = text.split(',').map(str::trim).collect();
        let jitter = parts.last().and_then(|last| last.strip_prefix("jitter="));
        if jitter.is_some() {
            parts.pop();
        }
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
        let jitter = jitter.unwrap_or("0ms").parse().map_err(invalid)?;
        let loss = loss.parse().map_err(invalid)?;
        let queue = queue.map(queue_spec).transpose().map_err(invalid)?;
        let rate = match (rate.strip_prefix("trace:"), rate.strip_prefix("swing:")) {
            (Some(file), _) => Rate::Trace(Trace::read(file.as_ref()).map_err(wrong)?),
            (_, Some(swing)) => Rate::Trace(swinging(swing).map_err(invalid)?),
            _ => match rate.parse().map_err(invalid)? {
                RateValue(Some(rate)) => Rate::bits_per_second(rate),
                RateValue(None) => Rate::Unlimited,
            },
        };
        if rate == Rate::Unlimited && matches!(queue, Some(QueueSpec::Time(_))) {
            return Err(wrong(
                "an unlimited rate needs a queue in packets, not in time".to_owned(),
            ));
        }
        Ok(PathSpec {
            rate,
            rtt,
            jitter,
            loss,
            queue,
        })
    }
}

fn queue_spec(text: &str) -> Result<QueueSpec, ValueError> {
    if let Ok(TimeValue(time)) = text.parse() {
        return Ok(QueueSpec::Time(time));
    }
    let packets = text.parse().ok().filter(|packets| *packets <= MAX_QUEUE);
    let expected = format!("whole packets, 0 to {MAX_QUEUE}, or a time such as 50ms");
    let packets = packets.ok_or_else(|| ValueError::is_no(text, "queue", &expected))?;
    Ok(QueueSpec::Packets(packets))
}

/// Reads `MEAN/SHARE/STEP/SEED`, a rate that swings around its mean.
fn swinging(text: &str) -> Result<Trace, ValueError> {
    let wrong = |reason: &str| {
        let expected = "mean rate, share, step and seed, such as `swing:20mbit/50%/200ms/7`";
        ValueError::is_no(text, &format!("swinging rate ({reason})"), expected)
    };
    let [mean, share, step, seed] = text.split('/').collect::<Vec<_>>()[..] else {
        return Err(wrong("four values are needed"));
    };
    let RateValue(mean) = mean.parse()?;
    let Probability(share) = share.parse()?;
    let TimeValue(step) = step.parse()?;
    let seed = seed
        .parse()
        .map_err(|_| wrong("the seed is no whole number"))?;
    let mean = mean.ok_or_else(|| wrong("the mean rate must be limited"))?;
    Trace::swinging(mean, share, step, seed).map_err(|reason| wrong(&reason))
}

/// The error of paths that cannot be parsed.
pub type PathError = ValueError;

/// Returns the error for the text `read` of a path or of several paths.
fn error(read: &str, reason: &str) -> PathError {
    PathError {
        what: format!("path `{read}`: {reason}"),
        expected: FORM.to_owned(),
    }
}

/// All paths between two hosts, one or more, with their text.
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

    /// Returns path `n`, counted from 0, alone; empty if there is no path `n`.
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
        if !(1..=MAX_PATHS).contains(&specs.len()) {
            let count = specs.len();
            let reason = format!("expected 1 to {MAX_PATHS} paths separated by `;`, got {count}");
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
            jitter: JitterValue::default(),
            loss: Loss::Uniform(0.015),
            queue: None,
        };
        assert_eq!(path, expected);
        assert_eq!(path.settings(50).delay, Duration::from_millis(20));
        assert_eq!(path.settings(50).queue, QueueLimit::Packets(50));
        let path: PathSpec = " unlimited, 0ms, 0%, 7".parse().unwrap();
        let queue = Some(QueueSpec::Packets(7));
        assert_eq!((path.rate.clone(), path.queue), (Rate::Unlimited, queue));
        assert_eq!(path.settings(50).queue, QueueLimit::Packets(7));
        assert_eq!(path.settings(50).loss, Loss::None);
    }

    #[test]
    fn loss_in_bursts_jitter_and_queues_in_time_are_read() {
        let path: PathSpec = "swing:8mbit/50%/100ms/1,40ms,1%/4,100ms,jitter=5ms"
            .parse()
            .unwrap();
        let settings = path.settings(50);
        assert_eq!(settings.jitter, Duration::from_millis(5));
        assert_eq!(settings.loss, Loss::bursts(0.01, 4.0));
        let Rate::Trace(trace) = &settings.rate else {
            panic!("{path:?}");
        };
        let QueueLimit::Bytes(queue) = settings.queue else {
            panic!("{path:?}");
        };
        // The bytes of a tenth of a second.
        assert_eq!(queue, (trace.mean_rate() / 80.0) as u64);
        let path: PathSpec = "8mbit,40ms,0%,jitter=5ms".parse().unwrap();
        let max = Duration::from_millis(5);
        let ordered = JitterValue {
            max,
            reorders: false,
        };
        assert_eq!((path.jitter, path.queue), (ordered, None));
        let path: PathSpec = "8mbit,40ms,0%,jitter=5ms/reorder".parse().unwrap();
        let settings = path.settings(50);
        assert_eq!((settings.jitter, settings.jitter_reorders), (max, true));
    }

    #[test]
    fn paths_are_shown_as_written() {
        let text = "5mbit,40ms,0%;5mbit,100ms,2%";
        let paths: Paths = text.parse().unwrap();
        assert_eq!(paths.to_string(), text);
        assert_eq!(paths.specs().len(), 2);
        assert_eq!(paths.specs()[1].loss, Loss::Uniform(0.02));
    }

    #[test]
    fn errors_show_what_was_read_and_what_is_expected() {
        for (text, shown) in [
            ("", "got none"),
            (
                "1mbit,1ms,0;1mbit,1ms,0;1mbit,1ms,0;1mbit,1ms,0;1mbit,1ms,0;1mbit,1ms,0;1mbit,1ms,0;\
              1mbit,1ms,0;1mbit,1ms,0",
                "expected 1 to 8 paths separated by `;`, got 9",
            ),
            (
                "5mbit,40ms;5mbit,40ms,0%",
                "path `5mbit,40ms`: expected 3 or 4 values, got 2",
            ),
            ("5mbit,40ms,0%;", "got none"),
            ("fast,40ms,0%;5mbit,40ms,0%", "`fast` is no rate"),
            ("0mbit,40ms,0%;5mbit,40ms,0%", "`0mbit` is out of range"),
            ("5mbit,40,0%;5mbit,40ms,0%", "`40` is no duration"),
            ("5mbit,-1ms,0%;5mbit,40ms,0%", "`-1ms` is no duration"),
            ("5mbit,40ms,101%;5mbit,40ms,0%", "`101%` is no loss"),
            ("5mbit,40ms,0%,few;5mbit,40ms,0%", "`few` is no queue"),
            ("5mbit,40ms,0%,jitter=5;5mbit,40ms,0%", "`5` is no duration"),
            ("5mbit,40ms,jitter=5ms;5mbit,40ms,0%", "got 2"),
            (
                "5mbit,40ms,1%/0.5;5mbit,40ms,0%",
                "`1%/0.5` is out of range",
            ),
            ("unlimited,40ms,0%,50ms", "needs a queue in packets"),
            ("swing:5mbit/50%/1ms,40ms,0%", "four values"),
            (
                "swing:5mbit/50%/1ms/x,40ms,0%",
                "the seed is no whole number",
            ),
            (
                "swing:5mbit/50%/0ms/1,40ms,0%",
                "the step is shorter than 1 ms",
            ),
            ("swing:1bit/50%/1ms/1,40ms,0%", "no packet"),
            ("swing:1000gbit/50%/1ms/1,40ms,0%", "too many"),
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
