//! What is measured: one transfer, and what one run of it gave.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use braid_wire::Rng;

use crate::paths::Paths;

pub use braid_sim::transfer::Direction;

/// One transfer, to be run many times.
#[derive(Debug, Clone, PartialEq)]
pub struct Cell {
    /// The paths between client and server.
    pub paths: Paths,
    /// Payload of the flow.
    pub size: Size,
    /// Name of the strategy at both ends.
    pub strategy: String,
    /// Name of the congestion control at both ends.
    pub cc: String,
    /// Where the connection opens.
    pub default_path: DefaultPath,
    /// The transfer starts on a connection whose subflows are all established.
    pub warm_subflows: bool,
    /// What both ends know of the paths.
    pub records: Records,
    /// Initial congestion window, segments.
    pub initial_window: u32,
    /// Both ends are told the flow's size in advance.
    pub declare_size: bool,
    /// Packets the queue of a path holds that does not say so itself.
    pub queue: u32,
    /// Which way the payload goes.
    pub direction: Direction,
    /// A path that carries nothing for a while, without a word from its interface. What arrives
    /// is noted then.
    pub dark: Option<Dark>,
    /// Seed of all runs; see [`run_seed`].
    pub seed: u64,
}

impl Cell {
    /// A download as `braid-lab fct` makes it where nothing else is said.
    pub fn new(paths: Paths, size: Size) -> Cell {
        Cell {
            paths,
            size,
            strategy: braid_strategy::DEFAULT.to_owned(),
            cc: "cubic".to_owned(),
            default_path: DefaultPath::Path(0),
            warm_subflows: false,
            records: Records::Cold,
            initial_window: 10,
            declare_size: true,
            queue: 50,
            direction: Direction::Down,
            dark: None,
            seed: 1,
        }
    }

    /// The path (from 0) on which run `index` opens its connection.
    pub fn opening_path(&self, index: u64) -> usize {
        match self.default_path {
            DefaultPath::Path(path) => path,
            DefaultPath::Mix => (index % self.paths.specs().len() as u64) as usize,
        }
    }

    /// The command that makes the first `runs` runs in the simulator, but for a path that goes dark.
    pub fn command(&self, runs: u64) -> String {
        let warm = if self.warm_subflows {
            " --warm-subflows"
        } else {
            ""
        };
        let declare = if self.declare_size { "size" } else { "none" };
        format!(
            "braid-lab fct --paths '{}' --size {} --strategy {} --cc {} --runs {runs} --seed {} \
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

/// When a path of a [`Cell`] is dark, from the start of the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dark {
    /// The path, from 0.
    pub path: usize,
    /// It carries nothing from here on,
    pub from: Duration,
    /// and is as before from here on.
    pub until: Duration,
}

/// What one run of a [`Cell`] gave. Paths are in the order of the cell; a vector by path has one
/// entry for each.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RunResult {
    /// Whether the whole flow arrived in time; the two times mean nothing otherwise.
    pub completed: bool,
    /// From the client's first SYN, or from the first byte of the transfer on warm subflows, to
    /// the last byte at the receiver.
    pub fct: Duration,
    /// From the first byte of the response (of the flow, where the client sends it) at the
    /// receiver to the last; never more than `fct`.
    pub fct_data: Duration,
    /// Payload bytes the flow's sender put on each path, copies included, retransmissions not.
    pub bytes_by_path: Vec<u64>,
    /// Of these, bytes that were copies of what another path carried.
    pub copy_bytes_by_path: Vec<u64>,
    /// Data packets sent on each path while unsent data remained, copies included.
    pub packets_by_path: Vec<u64>,
    /// Of these, copies.
    pub copies_by_path: Vec<u64>,
    /// SYNs with MP_JOIN the client sent, repeated ones included.
    pub join_syns: u64,
    /// Segments the flow's sender sent again.
    pub retransmissions: u64,
    /// Retransmission timeouts of the flow's sender; with the kernel's sockets not counted, and 0.
    pub rtos: u64,
    /// Where a path goes dark: when bytes arrived in order at the receiver, and how many there were
    /// by then.
    pub arrivals: Arrivals,
    /// The retransmission timeout that the sender's engine had for that path by then; 0 where there
    /// is none.
    pub dark_rto: Duration,
}

/// How the bytes of a flow arrived.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Arrivals(Vec<(Duration, u64)>);

impl Arrivals {
    /// What arrives within this time is noted as one.
    const TOGETHER: Duration = Duration::from_millis(1);

    /// Notes that there are `bytes` after `time`.
    pub fn note(&mut self, time: Duration, bytes: u64) {
        match self.0.last_mut() {
            Some((_, before)) if *before == bytes => {}
            Some((at, before)) if time < *at + Self::TOGETHER => *before = bytes,
            _ => self.0.push((time, bytes)),
        }
    }

    /// Bytes there by `time`.
    pub fn by(&self, time: Duration) -> u64 {
        let count = self.0.partition_point(|(at, _)| *at <= time);
        count.checked_sub(1).map_or(0, |last| self.0[last].1)
    }

    /// When the first comes that is not there by `time`.
    pub fn next_after(&self, time: Duration) -> Option<Duration> {
        let there = self.0.partition_point(|(at, _)| *at <= time);
        self.0.get(there).map(|(at, _)| *at)
    }

    /// Mean rate over `span` from `from` on, Mb/s.
    pub fn mbit_s(&self, from: Duration, span: Duration) -> f64 {
        let bytes = self.by(from + span) - self.by(from);
        bytes as f64 * 8.0 / span.as_secs_f64() / 1e6
    }

    /// How long after `from` the second begins that is the first with this rate or more; none within
    /// 20 s counts.
    pub fn comes_to(&self, mbit_s: f64, from: Duration) -> Option<Duration> {
        let second = Duration::from_secs(1);
        let mut times = (0..2_000).map(|n| Duration::from_millis(10) * n);
        times.find(|time| self.mbit_s(from + *time, second) >= mbit_s)
    }

    /// The longest time without any, among those that end after `from` and begin before `until`.
    pub fn longest_gap(&self, from: Duration, until: Duration) -> Duration {
        let pairs = self.0.windows(2).map(|pair| (pair[0].0, pair[1].0));
        let within = pairs.filter(|(begin, end)| *end > from && *begin < until);
        within
            .map(|(begin, end)| end - begin)
            .max()
            .unwrap_or_default()
    }
}

/// The seed of run `index` of an experiment with `seed`. It depends on nothing else, so that all
/// strategies see the same runs.
pub fn run_seed(seed: u64, index: u64) -> u64 {
    Rng::for_component(seed, RUNS + index).u64()
}

/// Streams of runs count from here, apart from those of a world's components.
const RUNS: u64 = 1 << 48;

/// The path a connection opens on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DefaultPath {
    /// This one, from 0.
    Path(usize),
    /// Each in turn: run `i` opens on path `i` modulo their number.
    Mix,
}

/// Reads the number of a path, from 0, or `mix`.
impl FromStr for DefaultPath {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Self, UnknownName> {
        match (text, text.parse()) {
            ("mix", _) => Ok(DefaultPath::Mix),
            (_, Ok(path)) => Ok(DefaultPath::Path(path)),
            _ => Err(UnknownName::new("path", text, &["0", "1", "…", "mix"])),
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

/// What both ends know of the paths between them before a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Records {
    /// Nothing.
    Cold,
    /// What earlier connections between them, one over each path, have told.
    Warm,
}

impl Records {
    /// Both.
    pub const ALL: [Records; 2] = [Records::Cold, Records::Warm];

    /// The name a user picks it by.
    pub fn name(self) -> &'static str {
        match self {
            Records::Cold => "cold",
            Records::Warm => "warm",
        }
    }
}

impl FromStr for Records {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Self, UnknownName> {
        let records = Records::ALL.into_iter().find(|r| r.name() == name);
        records.ok_or_else(|| UnknownName::new("records", name, &Records::ALL.map(Records::name)))
    }
}

/// A name that is none of those there are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownName(String);

impl UnknownName {
    /// `name` was read where one of `known` was to name a `kind`.
    pub fn new(kind: &str, name: &str, known: &[&str]) -> Self {
        UnknownName(format!(
            "unknown {kind} `{name}`; known are: {}",
            known.join(", ")
        ))
    }
}

impl fmt::Display for UnknownName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for UnknownName {}

/// A size as it was written: bytes, or with a binary `k` (1024) or `M` (1024 k).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Size {
    text: String,
    bytes: u64,
}

impl Size {
    /// Largest flow, bytes.
    pub const MAX: u64 = 1 << 32;

    /// Bytes, 1 to [`Self::MAX`].
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl FromStr for Size {
    type Err = SizeError;

    fn from_str(text: &str) -> Result<Self, SizeError> {
        let (number, factor) = match text.as_bytes().last() {
            Some(b'k') => (&text[..text.len() - 1], 1 << 10),
            Some(b'M') => (&text[..text.len() - 1], 1 << 20),
            _ => (text, 1),
        };
        let bytes = number
            .parse::<u64>()
            .ok()
            .and_then(|n| n.checked_mul(factor));
        match bytes {
            // `+4` is a number for the standard library.
            Some(bytes) if (1..=Self::MAX).contains(&bytes) && !text.starts_with('+') => Ok(Size {
                text: text.to_owned(),
                bytes,
            }),
            _ => Err(SizeError(text.to_owned())),
        }
    }
}

/// As written.
impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.text)
    }
}

/// A text that is no [`Size`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SizeError(String);

impl fmt::Display for SizeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "`{}` is no size; write whole bytes, or with a binary k or M, such as `64k` or `1M`, \
             from 1 to 4096M",
            self.0
        )
    }
}

impl std::error::Error for SizeError {}

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
        let wrong = [
            "",
            "k",
            "0",
            "0k",
            "64K",
            "64kB",
            "1.5M",
            "-1",
            "+4",
            "4097M",
            "1 M",
            "9999999999999M",
        ];
        for text in wrong {
            let error = text.parse::<Size>().unwrap_err().to_string();
            assert!(error.contains(&format!("`{text}`")), "{error}");
            assert!(error.contains("`64k`"), "{error}");
        }
    }

    #[test]
    fn arrivals_tell_amounts_and_gaps() {
        let ms = Duration::from_millis;
        let mut arrivals = Arrivals::default();
        for (at, bytes) in [
            (10, 100),
            (20, 200),
            (20, 300),
            (90, 300),
            (100, 400),
            (110, 500),
        ] {
            arrivals.note(ms(at), bytes);
        }
        assert_eq!(
            [5, 10, 25, 500].map(|at| arrivals.by(ms(at))),
            [0, 100, 300, 500]
        );
        assert_eq!(arrivals.longest_gap(ms(0), ms(200)), ms(80));
        assert_eq!(arrivals.longest_gap(ms(100), ms(200)), ms(10));
    }

    #[test]
    fn a_default_path_is_a_number_or_a_mix() {
        assert_eq!("1".parse(), Ok(DefaultPath::Path(1)));
        assert_eq!("mix".parse(), Ok(DefaultPath::Mix));
        let error = "first".parse::<DefaultPath>().unwrap_err().to_string();
        assert_eq!(error, "unknown path `first`; known are: 0, 1, …, mix");
    }
}
