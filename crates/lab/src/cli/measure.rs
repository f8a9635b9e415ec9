//! The arguments of the commands that measure: `fct`, `list`, `run`, `report` and `swarm`.

use std::convert::Infallible;
use std::error::Error;
use std::ffi::OsString;
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;

use braid_engine::cc::{Algorithm, TABLE};
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};

use crate::arm::Arm;
use crate::fct::{DefaultPath, Direction, Records, Size};
use crate::paths::Paths;

/// The name that the option `--backend` had in the last version; deprecated.
const OLD_BACKEND: &str = "arm";

/// Returns whether `arguments`, those of a process, name the backend by the option's old name.
pub fn name_backend_as_before(arguments: impl IntoIterator<Item = OsString>) -> bool {
    let own = arguments
        .into_iter()
        .take_while(|argument| argument != "--");
    own.filter_map(|argument| argument.into_string().ok())
        .filter_map(|argument| argument.strip_prefix("--").map(str::to_owned))
        .any(|option| option.split('=').next() == Some(OLD_BACKEND))
}

/// Arguments of `braid-lab list`.
#[derive(Debug, Args)]
pub struct ListArgs {
    /// Only those that run so.
    #[arg(long, alias = OLD_BACKEND,
          value_parser = one_of::<Arm>([Arm::Sim, Arm::Links].map(Arm::name)))]
    pub backend: Option<Arm>,
}

/// Arguments of `braid-lab swarm`.
#[derive(Debug, Args)]
pub struct SwarmArgs {
    /// How many seeds.
    #[arg(long, value_name = "N", default_value_t = 300,
          value_parser = whole::<u64>(1..=u64::MAX))]
    pub seeds: u64,
    /// The first seed; the others follow.
    #[arg(long, value_name = "S", default_value_t = 0, allow_negative_numbers = true,
          value_parser = whole::<u64>(0..=u64::MAX))]
    pub first_seed: u64,
    /// Only users behind a box, with an attacker on one of its links who sees all and injects anything.
    #[arg(long)]
    pub attacked: bool,
}

/// Arguments of `braid-lab run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// Experiments, as `braid-lab list` shows them; all: each that runs on the backend.
    #[arg(value_name = "ID", required = true)]
    pub ids: Vec<String>,
    /// How to run: in virtual time (sim), which is usual, or over real, emulated links (links), which
    /// is the only way of some experiments.
    #[arg(long, alias = OLD_BACKEND,
          value_parser = one_of::<Arm>([Arm::Sim, Arm::Links].map(Arm::name)))]
    pub backend: Option<Arm>,
    /// Where to put the results; it is created.
    #[arg(long, value_name = "DIR", default_value = "lab-results")]
    pub out: PathBuf,
    /// Runs of each cell instead of the experiment's own number.
    #[arg(long, value_name = "N", value_parser = whole::<u64>(1..=1_000_000))]
    pub runs: Option<u64>,
    /// Seed of all runs.
    #[arg(long, value_name = "N", default_value_t = 1, allow_negative_numbers = true,
          value_parser = whole::<u64>(0..=u64::MAX))]
    pub seed: u64,
}

/// Arguments of `braid-lab report`.
#[derive(Debug, Args)]
pub struct ReportArgs {
    /// What `braid-lab run` had for --out.
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
    /// Where to put the Markdown instead; with --figures.
    #[arg(long, value_name = "FILE", requires = "figures")]
    pub markdown: Option<PathBuf>,
    /// Where to put its figures; below the directory of --markdown.
    #[arg(long, value_name = "DIR", requires = "markdown")]
    pub figures: Option<PathBuf>,
}

/// Arguments of `braid-lab fct`.
#[derive(Debug, Args)]
pub struct FctArgs {
    /// Two or more paths: rate, round-trip time, loss each way, and queue in packets if it is not
    /// --queue, such as '5mbit,40ms,0%;5mbit,100ms,2%,100'. For a rate, trace:FILE plays a mahimahi
    /// trace.
    #[arg(long, value_name = "PATHS")]
    pub paths: Paths,
    /// Payload bytes of the flows; k and M are binary.
    #[arg(long, value_name = "SIZE,…", value_delimiter = ',', required = true)]
    pub size: Vec<Size>,
    /// Strategies of both ends.
    #[arg(
        long,
        value_name = "NAME[:SETTING,…],…",
        default_value = "minrtt",
        help = known("Strategies of both ends", braid_strategy::names())
    )]
    pub strategy: Strategies,
    /// Congestion controls of both ends.
    #[arg(
        long,
        value_name = "NAME,…",
        value_delimiter = ',',
        default_value = "cubic",
        help = known("Congestion controls of both ends", TABLE.iter().map(Algorithm::name))
    )]
    pub cc: Vec<String>,
    /// Runs of each cell.
    #[arg(long, value_name = "N", default_value_t = 100,
          value_parser = whole::<u64>(1..=1_000_000))]
    pub runs: u64,
    /// Seed of all runs.
    #[arg(long, value_name = "N", default_value_t = 1, allow_negative_numbers = true,
          value_parser = whole::<u64>(0..=u64::MAX))]
    pub seed: u64,
    /// How to run: in virtual time; over emulated links; or over the same links by the kernel's
    /// Multipath TCP.
    ///
    /// The last two take as long as the flows do, and root or a user namespace. The kernel has a
    /// strategy of its own, and cannot be told a size.
    #[arg(long, alias = OLD_BACKEND, default_value = "sim",
          value_parser = one_of::<Arm>(Arm::ALL.map(Arm::name)))]
    pub backend: Arm,
    /// Path (from 0) on which a connection opens; mix: each path in turn.
    #[arg(long, value_name = "N|mix", default_value = "0")]
    pub default_path: DefaultPath,
    /// Start the transfer on a connection whose subflows are all established.
    #[arg(long)]
    pub warm_subflows: bool,
    /// What both ends know of the paths before a run: nothing, or what one earlier connection over
    /// each of them has told.
    #[arg(long, default_value = "cold",
          value_parser = one_of::<Records>(Records::ALL.map(Records::name)))]
    pub records: Records,
    /// Initial congestion window, in segments.
    #[arg(long, default_value = "10", value_parser = one_of::<u32>(["3", "10"]))]
    pub iw: u32,
    /// What both ends are told of the flow in advance.
    #[arg(long, default_value = "size", value_parser = ["size", "none"])]
    pub declare: String,
    /// Packets that the queue of a path holds.
    #[arg(long, value_name = "PACKETS", default_value_t = 50,
          value_parser = whole::<u32>(0..=1_000_000))]
    pub queue: u32,
    /// Whether the server or the client sends the flow.
    #[arg(long, default_value = "down", value_parser = direction())]
    pub direction: Direction,
    /// Capture the first run of each cell here, at both ends, as pcapng files for Wireshark
    /// (--backend sim only).
    #[arg(long, value_name = "DIR")]
    pub pcap: Option<PathBuf>,
    /// Log the first run of each cell here, one JSON object a line (--backend sim only).
    #[arg(long, value_name = "DIR")]
    pub log: Option<PathBuf>,
}

/// Names of strategies, some of them with settings.
#[derive(Debug, Clone)]
pub struct Strategies(pub Vec<String>);

impl FromStr for Strategies {
    type Err = Infallible;

    fn from_str(list: &str) -> Result<Self, Infallible> {
        Ok(Strategies(braid_strategy::split_list(list)))
    }
}

/// Reads a whole number in `range`.
fn whole<T>(range: RangeInclusive<T>) -> impl TypedValueParser<Value = T>
where
    T: FromStr + PartialOrd + Display + Clone + Send + Sync + 'static,
{
    move |text: &str| {
        let number = text.parse().ok().filter(|number| range.contains(number));
        let (least, most) = (range.start(), range.end());
        number.ok_or_else(|| format!("expected a whole number from {least} to {most}"))
    }
}

/// The help of an option that takes names: `what` they are of, and those there are.
fn known(what: &str, names: impl Iterator<Item = &'static str>) -> String {
    let names: Vec<&str> = names.collect();
    format!("{what}; known are: {}", names.join(", "))
}

fn direction() -> impl TypedValueParser<Value = Direction> {
    PossibleValuesParser::new(["down", "up"]).map(|name| match name == "up" {
        true => Direction::Up,
        false => Direction::Down,
    })
}

/// Reads one of `names`, which help and completions show, as a `T`.
fn one_of<T>(names: impl IntoIterator<Item = &'static str>) -> impl TypedValueParser<Value = T>
where
    T: FromStr<Err: Error + Send + Sync> + Clone + Send + Sync + 'static,
{
    PossibleValuesParser::new(names).try_map(|name| name.parse())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_old_name_of_the_backend_is_noticed_among_options_only() {
        let noticed = |line: &str| name_backend_as_before(line.split(' ').map(OsString::from));
        assert!(noticed("braid-lab list --arm sim"));
        assert!(noticed("braid-lab run --arm=links fsa-2a"));
        assert!(!noticed("braid-lab list --backend sim"));
        assert!(!noticed("braid-lab run arm --armed -- --arm"));
    }
}
