//! A case, which is the unit of measurement: one transfer and its settings. Also the result of one run of a
//! case.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use braid_units::value::ValueError;
use braid_wire::Rng;

use crate::paths::Paths;

pub use braid_sim::transfer::Direction;

/// A transfer with its settings, which is run many times.
#[derive(Debug, Clone, PartialEq)]
pub struct Case {
    /// The paths between client and server.
    pub paths: Paths,
    /// Payload of a flow, bytes.
    pub size: Size,
    /// Number of flows, each on a connection of its own, that start at once.
    pub flows: u32,
    /// Name of the strategy at both ends.
    pub strategy: String,
    /// Name of the congestion control at both ends.
    pub cc: String,
    /// The path on which a run opens its connection.
    pub default_path: DefaultPath,
    /// True if the transfer waits until all subflows are established.
    pub warm_subflows: bool,
    /// The knowledge that both ends have of the paths before a run.
    pub records: Records,
    /// Initial congestion window, segments.
    pub initial_window: u32,
    /// True if both ends know the flow's size in advance.
    pub declare_size: bool,
    /// Queue length, packets, of each path whose settings have no queue length.
    pub queue: u32,
    /// The direction of the payload.
    pub direction: Direction,
    /// An outage of a path. Only a case with an outage records [`RunResult::arrivals`].
    pub outage: Option<Outage>,
    /// Seed of all runs; see [`run_seed`].
    pub seed: u64,
}

impl Case {
    /// Returns a download with the defaults of `braid-lab fct`.
    pub fn new(paths: Paths, size: Size) -> Case {
        Case {
            paths,
            size,
            flows: 1,
            strategy: braid_strategy::DEFAULT.to_owned(),
            cc: "cubic".to_owned(),
            default_path: DefaultPath::Path(0),
            warm_subflows: false,
            records: Records::Cold,
            initial_window: 10,
            declare_size: true,
            queue: 50,
            direction: Direction::Down,
            outage: None,
            seed: 1,
        }
    }

    /// Returns the path (from 0) on which run `index` opens its connection.
    pub fn opening_path(&self, index: u64) -> usize {
        match self.default_path {
            DefaultPath::Path(path) => path,
            DefaultPath::Mix => (index % self.paths.specs().len() as u64) as usize,
        }
    }

    /// Returns the command that makes the first `runs` runs in the simulator. The command line has no
    /// option for an outage, so the command leaves the outage out.
    pub fn command(&self, runs: u64) -> String {
        let warm = self.warm_subflows.then_some(" --warm-subflows");
        let warm = warm.unwrap_or_default();
        let declare = if self.declare_size { "size" } else { "none" };
        let flows = match self.flows {
            1 => String::new(),
            flows => format!(" --flows {flows}"),
        };
        format!(
            "braid-lab fct --paths '{}' --size {}{flows} --strategy {} --cc {} --runs {runs} --seed {} \
             --default-path {}{warm} --records {} --iw {} --declare {declare} --queue {} \
             --direction {}",
            self.paths,
            self.size,
            self.strategy,
            self.cc,
            self.seed,
            self.default_path,
            self.records.name(),
            self.initial_window,
            self.queue,
            self.direction
        )
    }
}

/// An outage of a path: the path drops every packet for a while, although its interface stays up. Times
/// count from the start of the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outage {
    /// The path, from 0.
    pub path: usize,
    /// The time from which the path carries nothing.
    pub from: Duration,
    /// The time from which the path works again.
    pub until: Duration,
}

/// The result of one run of a [`Case`]. A vector by path has an entry for each path, in the order of the case.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RunResult {
    /// True if every flow arrived completely within the time limit. If false, `fct` and `fct_data` mean
    /// nothing.
    pub completed: bool,
    /// Flow completion time: from the client's first SYN to the last byte at the receiver. With warm
    /// subflows it starts at the first byte of the transfer. With several flows it is the mean over them.
    pub fct: Duration,
    /// Time at the receiver from the first byte of the flow to the last byte; at most `fct`. With several flows
    /// it is the mean over them.
    pub fct_data: Duration,
    /// Completion time of each flow that arrived, in the order in which they ended.
    pub flow_fcts: Vec<Duration>,
    /// Payload bytes that the flow's sender sent on each path. Copies count, retransmissions do not.
    pub bytes_by_path: Vec<u64>,
    /// The part of `bytes_by_path` that consists of copies of bytes sent on another path.
    pub copy_bytes_by_path: Vec<u64>,
    /// Data packets sent on each path while unsent data remained, copies included.
    pub packets_by_path: Vec<u64>,
    /// The part of `packets_by_path` that consists of copies.
    pub copies_by_path: Vec<u64>,
    /// Number of SYNs with MP_JOIN that the client sent. The engine counts retransmitted SYNs too, the
    /// kernel does not.
    pub join_syns: u64,
    /// Number of segments that the flow's sender retransmitted.
    pub retransmissions: u64,
    /// Number of retransmission timeouts of the flow's sender; always 0 with the kernel's sockets, which do
    /// not count them.
    pub rtos: u64,
    /// Bytes in order at the receiver over time; empty if the case has no outage.
    pub arrivals: ReceivedBytes,
    /// Retransmission timeout of the sender's engine for the path of the outage, at the start of the
    /// outage; 0 if the case has no outage.
    pub outage_rto: Duration,
}

impl RunResult {
    /// Returns the flow completion time, ms; `None` if a flow did not arrive.
    pub fn fct_ms(&self) -> Option<f64> {
        self.completed.then(|| millis(self.fct))
    }

    /// Returns the time from the first byte to the last, ms; `None` if a flow did not arrive.
    pub fn fct_data_ms(&self) -> Option<f64> {
        self.completed.then(|| millis(self.fct_data))
    }
}

/// Returns `time` in milliseconds.
pub fn millis(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1e6
}

/// The bytes of a flow at its receiver over time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReceivedBytes(Vec<(Duration, u64)>);

impl ReceivedBytes {
    /// Arrivals within this time are recorded as one arrival. This bounds memory, and no figure needs more
    /// precision.
    const MERGE_WINDOW: Duration = Duration::from_millis(1);

    /// Records that `bytes` bytes have arrived by `time`.
    pub fn record(&mut self, time: Duration, bytes: u64) {
        match self.0.last_mut() {
            Some((_, before)) if *before == bytes => {}
            Some((at, before)) if time < *at + Self::MERGE_WINDOW => *before = bytes,
            _ => self.0.push((time, bytes)),
        }
    }

    /// Returns the bytes that had arrived by `time`.
    pub fn at(&self, time: Duration) -> u64 {
        let count = self.0.partition_point(|(at, _)| *at <= time);
        count.checked_sub(1).map_or(0, |last| self.0[last].1)
    }

    /// Returns the time of the first arrival after `time`.
    pub fn next_after(&self, time: Duration) -> Option<Duration> {
        let next = self.0.partition_point(|(at, _)| *at <= time);
        self.0.get(next).map(|(at, _)| *at)
    }

    /// Returns the mean rate over `span` from `from` on, Mb/s.
    pub fn mbit_s(&self, from: Duration, span: Duration) -> f64 {
        let bytes = self.at(from + span) - self.at(from);
        bytes as f64 * 8.0 / span.as_secs_f64() / 1e6
    }

    /// Returns the time from `from` to the start of the first second whose mean rate is at least `mbit_s`;
    /// `None` if there is no such second within 20 s. A new second is tried every 10 ms.
    pub fn time_to_rate(&self, mbit_s: f64, from: Duration) -> Option<Duration> {
        let second = Duration::from_secs(1);
        let mut times = (0..2_000).map(|n| Duration::from_millis(10) * n);
        times.find(|time| self.mbit_s(from + *time, second) >= mbit_s)
    }

    /// Returns the longest time between two arrivals. Only a time that ends after `from` and begins before
    /// `until` counts.
    pub fn longest_gap(&self, from: Duration, until: Duration) -> Duration {
        let pairs = self.0.windows(2).map(|pair| (pair[0].0, pair[1].0));
        let within = pairs.filter(|(begin, end)| *end > from && *begin < until);
        within
            .map(|(begin, end)| end - begin)
            .max()
            .unwrap_or_default()
    }
}

/// Returns the seed of run `index` of an experiment with `seed`. The result depends on nothing else, so
/// that runs of the same index have the same random numbers with all strategies.
pub fn run_seed(seed: u64, index: u64) -> u64 {
    Rng::for_component(seed, RUN_STREAM + index).u64()
}

/// First of the random streams of runs. The number is far above the streams of a world's components, which
/// count from 0.
const RUN_STREAM: u64 = 1 << 48;

/// The path on which a connection opens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DefaultPath {
    /// The path of this number, from 0.
    Path(usize),
    /// Each path in turn: run `i` opens on path `i` modulo the number of paths.
    Mix,
}

/// Reads the number of a path, from 0, or `mix`.
impl FromStr for DefaultPath {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        match (text, text.parse()) {
            ("mix", _) => Ok(DefaultPath::Mix),
            (_, Ok(path)) => Ok(DefaultPath::Path(path)),
            _ => Err(ValueError::is_no(text, "path", "0, 1, … or mix")),
        }
    }
}

impl fmt::Display for DefaultPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DefaultPath::Path(path) => path.fmt(f),
            DefaultPath::Mix => f.write_str("mix"),
        }
    }
}

/// The knowledge that both ends have of the paths before a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Records {
    /// No records.
    Cold,
    /// The records of earlier connections between the ends, one over each path.
    Warm,
}

impl Records {
    /// Returns the name by which a user picks the kind.
    pub fn name(self) -> &'static str {
        match self {
            Records::Cold => "cold",
            Records::Warm => "warm",
        }
    }
}

/// The size of a flow, in the syntax of the command line: a number of bytes, or a number with the binary
/// unit `k` (1024) or `M` (1024 k). The value keeps its text, so that tables show the size as the user
/// wrote it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Size {
    text: String,
    bytes: u64,
}

impl Size {
    /// Maximum size of a flow, bytes. A guess, far above any flow of the experiments.
    pub const MAX: u64 = 1 << 32;
    const EXPECTED: &str =
        "whole bytes, or with a binary k or M, such as `64k` or `1M`, from 1 to 4096M";

    /// Returns the size in bytes, 1 to [`Self::MAX`].
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl FromStr for Size {
    type Err = SizeError;

    fn from_str(text: &str) -> Result<Self, SizeError> {
        let (number, factor) = match (text.strip_suffix('k'), text.strip_suffix('M')) {
            (Some(number), _) => (number, 1 << 10),
            (_, Some(number)) => (number, 1 << 20),
            _ => (text, 1),
        };
        // The standard library accepts `+4` as a number.
        let number = number.parse().ok().filter(|_| !text.starts_with('+'));
        let bytes = number.and_then(|number: u64| number.checked_mul(factor));
        match bytes {
            Some(bytes @ 1..=Self::MAX) => Ok(Size {
                text: text.to_owned(),
                bytes,
            }),
            _ => Err(ValueError::is_no(text, "size", Self::EXPECTED)),
        }
    }
}

/// Writes the size as it was read.
impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.text)
    }
}

/// The error of a text that is no [`Size`].
pub type SizeError = ValueError;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_binary_and_shown_as_written() {
        for (text, bytes) in [
            ("1", 1),
            ("64k", 65_536),
            ("1M", 1 << 20),
            ("4096M", 1 << 32),
        ] {
            let size: Size = text.parse().unwrap();
            assert_eq!(size.bytes(), bytes);
            assert_eq!(size.to_string(), text);
        }
        for text in ",k,0,0k,64K,64kB,1.5M,-1,+4,4097M,1 M,9999999999999M".split(',') {
            let error = text.parse::<Size>().unwrap_err().to_string();
            assert!(error.contains(&format!("`{text}`")), "{error}");
            assert!(error.contains("`64k`"), "{error}");
        }
    }

    #[test]
    fn arrivals_tell_amounts_and_gaps() {
        let ms = Duration::from_millis;
        let mut arrivals = ReceivedBytes::default();
        for (at, bytes) in [
            (10, 100),
            (20, 200),
            (20, 300),
            (90, 300),
            (100, 400),
            (110, 500),
        ] {
            arrivals.record(ms(at), bytes);
        }
        let amounts = [5, 10, 25, 500].map(|at| arrivals.at(ms(at)));
        assert_eq!(amounts, [0, 100, 300, 500]);
        assert_eq!(arrivals.longest_gap(ms(0), ms(200)), ms(80));
        assert_eq!(arrivals.longest_gap(ms(100), ms(200)), ms(10));
    }

    #[test]
    fn a_default_path_is_a_number_or_a_mix() {
        assert_eq!("1".parse(), Ok(DefaultPath::Path(1)));
        assert_eq!("mix".parse(), Ok(DefaultPath::Mix));
        let error = "first".parse::<DefaultPath>().unwrap_err().to_string();
        assert_eq!(error, "`first` is no path; write 0, 1, … or mix");
    }
}
