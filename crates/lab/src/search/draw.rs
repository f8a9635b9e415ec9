//! The draws of a search: random transfers, each drawn from the seed and its number alone. Ranges and probabilities
//! without another source are guesses.

use std::fmt::{self, Display};

use braid_wire::Rng;

use crate::case::{Case, DefaultPath, Direction, Records};

/// First of the random streams of draws. The number is far above the streams of a world's components.
const DRAW_STREAM: u64 = 1 << 50;
/// Sizes of flows, bytes.
const SIZES: [f64; 2] = [4e3, 30e6];
/// Maximum bytes of all flows of a run. Without it, 32 flows of the maximum size would take the time of a hundred
/// draws.
const MAX_RUN_BYTES: u64 = 30_000_000;
/// Maximum number of flows that start at once.
const MAX_FLOWS: f64 = 32.0;
/// Maximum loss, percent.
const MAX_LOSS: f64 = 5.0;
/// Bits of a full packet, by which a queue in seconds becomes packets.
const PACKET_BITS: f64 = 12e3;

/// The values of a path, as texts of the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DrawnPath {
    /// The rate.
    pub rate: String,
    /// The rate without its swing.
    pub mean_rate: String,
    /// The round-trip time.
    pub rtt: String,
    /// The loss.
    pub loss: String,
    /// The queue.
    pub queue: String,
    /// The jitter, if there is any.
    pub jitter: Option<String>,
}

impl Display for DrawnPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DrawnPath {
            rate,
            rtt,
            loss,
            queue,
            jitter,
            ..
        } = self;
        write!(f, "{rate},{rtt},{loss},{queue}")?;
        match jitter {
            Some(jitter) => write!(f, ",jitter={jitter}"),
            None => Ok(()),
        }
    }
}

/// A drawn transfer with its settings, without a strategy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Draw {
    /// The number of the draw, from 0.
    pub number: u64,
    /// The paths.
    pub paths: Vec<DrawnPath>,
    /// Payload of a flow, bytes.
    pub size: u64,
    /// Number of flows that start at once.
    pub flows: u32,
    /// Name of the congestion control.
    pub cc: &'static str,
    /// True if all subflows are established before the transfer.
    pub joined: bool,
    /// The path on which a connection opens.
    pub opens_on: usize,
    /// The records that exist.
    pub records: Records,
    /// True if both ends know the flow's size in advance.
    pub declared: bool,
    /// The direction of the payload.
    pub direction: Direction,
    /// The seeds of the runs: of those that find suspects, and of those that give verdicts.
    pub seeds: [u64; 2],
}

impl Draw {
    /// Makes draw `number` of the search with `seed`.
    pub fn new(seed: u64, number: u64) -> Draw {
        let mut rng = Rng::for_component(seed, DRAW_STREAM + number);
        let rng = &mut rng;
        let count = 2 + rng.below(3) as usize;
        let paths = (0..count).map(|_| path(rng)).collect();
        let size = log_uniform(rng, SIZES) as u64;
        let flows = if rng.chance(0.5) {
            1
        } else {
            log_uniform(rng, [2.0, MAX_FLOWS + 1.0]) as u64
        };
        // The four starts are equally likely; 0 is the cold one.
        let start = rng.below(4);
        let [warm, elsewhere, joined] = [1, 2, 3].map(|n| start == n);
        Draw {
            number,
            paths,
            size,
            flows: flows.min((MAX_RUN_BYTES / size).max(1)) as u32,
            cc: ["bbr", "bbr", "cubic"][rng.below(3) as usize],
            joined,
            opens_on: if elsewhere {
                1 + rng.below(count as u64 - 1) as usize
            } else {
                0
            },
            records: if warm || joined && rng.chance(0.5) {
                Records::Warm
            } else {
                Records::Cold
            },
            declared: rng.chance(0.5),
            direction: if rng.chance(0.5) {
                Direction::Down
            } else {
                Direction::Up
            },
            seeds: [(); 2].map(|()| u64::from(rng.u32())),
        }
    }

    /// Returns the case in which `strategy` makes the transfer, with the runs of `seed`.
    pub fn case(&self, strategy: &str, seed: u64) -> Case {
        let paths: Vec<String> = self.paths.iter().map(DrawnPath::to_string).collect();
        let paths = paths.join(";").parse().expect("drawn paths");
        let size = self.size.to_string().parse().expect("a drawn size");
        Case {
            strategy: strategy.to_owned(),
            flows: self.flows,
            cc: self.cc.to_owned(),
            default_path: DefaultPath::Path(self.opens_on),
            warm_subflows: self.joined,
            records: self.records,
            declare_size: self.declared,
            direction: self.direction,
            seed,
            ..Case::new(paths, size)
        }
    }

    /// Returns the name of the start: joined (with or without records), warm, opening (on another path than the
    /// first) or cold.
    pub fn start(&self) -> &'static str {
        if self.joined {
            "joined"
        } else if self.records == Records::Warm {
            "warm"
        } else if self.opens_on > 0 {
            "opening"
        } else {
            "cold"
        }
    }

    /// Returns the draw with only the paths for which `keep` returns true. If the path on which the connection opens
    /// is not kept, the connection opens on the first kept path.
    pub fn with_paths(&self, keep: impl Fn(usize) -> bool) -> Draw {
        let kept: Vec<usize> = (0..self.paths.len()).filter(|n| keep(*n)).collect();
        Draw {
            opens_on: kept.iter().position(|n| *n == self.opens_on).unwrap_or(0),
            paths: kept.iter().map(|n| self.paths[*n].clone()).collect(),
            ..self.clone()
        }
    }

    /// Returns the bytes of all flows.
    pub fn bytes(&self) -> u64 {
        self.size * u64::from(self.flows)
    }

    /// Returns the number of runs that carry `bytes` bytes, at least `min` and at most `max`.
    pub fn runs(&self, bytes: u64, [min, max]: [u64; 2]) -> u64 {
        (bytes / self.bytes()).clamp(min, max)
    }

    /// Returns whether the strategy knows everything that it can know: the paths and the size.
    pub fn is_told_everything(&self) -> bool {
        self.records == Records::Warm && self.declared
    }

    /// Returns whether any path loses packets at random.
    pub fn is_lossy(&self) -> bool {
        self.paths.iter().any(|path| path.loss != NO_LOSS)
    }
}

/// The text of a path without loss.
pub const NO_LOSS: &str = "0%";

fn path(rng: &mut Rng) -> DrawnPath {
    let mbit = log_uniform(rng, [0.5, 1000.0]);
    let rtt_ms = log_uniform(rng, [5.0, 600.0]);
    let loss = uniform(rng, [0.0, MAX_LOSS]);
    let loss = match rng.below(5) {
        0 | 1 => NO_LOSS.to_owned(),
        2 => {
            let burst = uniform(rng, [2.0, 10.0]);
            format!("{}%/{}", digits(loss), digits(burst))
        }
        _ => format!("{}%", digits(loss)),
    };
    let two_seconds = 2.0 * mbit * 1e6 / PACKET_BITS;
    let queue = log_uniform(rng, [10.0, two_seconds]) as u64;
    let jitter = rng
        .chance(0.25)
        .then(|| log_uniform(rng, [1.0, rtt_ms / 2.0]));
    let mean_rate = format!("{}mbit", digits(mbit));
    // A fast path has short steps. A trace has a fixed number of steps, and each packet in it takes memory.
    let step_ms = log_uniform(rng, [20.0, (2e5 / mbit).clamp(50.0, 1000.0)]) as u64;
    let share = rng.below(80) + 10;
    let swing = rng.below(1000);
    let rate = if rng.chance(0.2) {
        format!("swing:{mean_rate}/{share}%/{step_ms}ms/{swing}")
    } else {
        mean_rate.clone()
    };
    DrawnPath {
        rate,
        mean_rate,
        rtt: format!("{}ms", digits(rtt_ms)),
        loss,
        queue: queue.to_string(),
        jitter: jitter.map(|ms| format!("{}ms", digits(ms))),
    }
}

/// Draws a number between `from` and `to`, whose logarithm is uniform.
fn log_uniform(rng: &mut Rng, [from, to]: [f64; 2]) -> f64 {
    from * (to / from).powf(rng.unit())
}

fn uniform(rng: &mut Rng, [from, to]: [f64; 2]) -> f64 {
    from + (to - from) * rng.unit()
}

/// Writes three significant digits, and all digits before the point.
fn digits(value: f64) -> String {
    let decimals = 2 - value.log10().floor().clamp(-3.0, 2.0) as i32;
    format!("{value:.*}", decimals as usize)
}
