//! The arguments of the commands that measure: `fct`, `search`, `tunnel`, `list`, `run`, `report` and `swarm`.

use std::ffi::OsString;
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;

use braid_engine::cc::{Algorithm, TABLE};
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};

use crate::backend::Backend;
use crate::fct::{DefaultPath, Direction, Records, Size};
use crate::paths::Paths;
use crate::tunnel::{Inner, Mode};

/// The deprecated name of the option `--backend`, from the last version.
const OLD_BACKEND: &str = "arm";

/// Returns whether `arguments`, the command line of a process, use the old name of the option `--backend`.
pub fn use_old_backend_option(arguments: impl IntoIterator<Item = OsString>) -> bool {
    // Arguments after `--` are no options.
    let mut own = arguments
        .into_iter()
        .take_while(|argument| argument != "--");
    own.any(|argument| {
        let argument = argument.to_string_lossy();
        let option = argument.strip_prefix("--");
        option.is_some_and(|option| option.split('=').next() == Some(OLD_BACKEND))
    })
}

/// Arguments of `braid-lab list`.
#[derive(Debug, Args)]
pub struct ListArgs {
    /// Only experiments that run on this backend.
    #[arg(long, alias = OLD_BACKEND,
          value_parser = one_of([Backend::Sim, Backend::Links].map(|backend| (backend.name(), backend))))]
    pub backend: Option<Backend>,
}

/// Arguments of `braid-lab swarm`.
#[derive(Debug, Args)]
pub struct SwarmArgs {
    /// Number of seeds.
    #[arg(long, value_name = "N", default_value_t = 300,
          value_parser = whole::<u64>(1..=u64::MAX))]
    pub seeds: u64,
    /// The first seed; the others follow.
    #[arg(long, value_name = "S", default_value_t = 0, allow_negative_numbers = true,
          value_parser = whole::<u64>(0..=u64::MAX))]
    pub first_seed: u64,
    /// Run only worlds with users behind a box, and with an attacker on one of its links who reads every packet
    /// and forges others.
    #[arg(long)]
    pub attacked: bool,
    /// Run only worlds with a tunnel, over paths that change and fail.
    #[arg(long, conflicts_with = "attacked")]
    pub tunnels: bool,
}

/// Arguments of `braid-lab search`.
#[derive(Debug, Args)]
pub struct SearchArgs {
    /// Number of draws.
    #[arg(long, value_name = "N", default_value_t = 300,
          value_parser = whole::<u64>(1..=1_000_000))]
    pub draws: u64,
    /// Seed of the draws.
    #[arg(long, value_name = "N", default_value_t = 1, allow_negative_numbers = true,
          value_parser = whole::<u64>(0..=u64::MAX))]
    pub seed: u64,
    /// Begin no further draw after this time.
    #[arg(long, value_name = "SECONDS", value_parser = whole::<u64>(1..=1_000_000))]
    pub seconds: Option<u64>,
    /// Directory for the results as JSON, search-SEED.json; created if missing.
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
}

/// Arguments of `braid-lab run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// IDs of experiments as `braid-lab list` shows them, or `all` for every experiment that runs on the
    /// backend.
    #[arg(value_name = "ID", required = true)]
    pub ids: Vec<String>,
    /// Backend: sim runs in virtual time, links over emulated links in real time. The default is the first
    /// that the experiment has; some experiments run over links only.
    #[arg(long, alias = OLD_BACKEND,
          value_parser = one_of([Backend::Sim, Backend::Links].map(|backend| (backend.name(), backend))))]
    pub backend: Option<Backend>,
    /// Directory for the results; created if missing.
    #[arg(long, value_name = "DIR", default_value = "lab-results")]
    pub out: PathBuf,
    /// Number of runs of each case, in place of the experiment's own number.
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
    /// Directory that was given to `braid-lab run` as --out.
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
    /// File for the Markdown page, in place of report.md in the directory; needs --figures.
    #[arg(long, value_name = "FILE", requires = "figures")]
    pub markdown: Option<PathBuf>,
    /// Directory for the figures of the Markdown page, below the directory of --markdown.
    #[arg(long, value_name = "DIR", requires = "markdown")]
    pub figures: Option<PathBuf>,
}

/// Arguments of `braid-lab fct`.
#[derive(Debug, Args)]
pub struct FctArgs {
    /// Paths: rate, round-trip time, loss each way, and optionally a queue in place of --queue, such as
    /// '5mbit,40ms,0%;5mbit,100ms,2%,100'.
    ///
    /// Semicolons separate 1 to 8 paths. The rate swing:MEAN/SHARE/STEP/SEED draws a new rate each STEP, up to
    /// SHARE above or below MEAN; trace:FILE plays a mahimahi trace. The loss 1%/4 comes in bursts with a mean of 4
    /// packets; to-bad/to-good/while-good/while-bad are the probabilities of the Gilbert-Elliott model. A queue is
    /// a number of packets or a time (50ms). jitter=5ms as the last value delays each packet by up to 5 ms more, in
    /// order; with jitter=5ms/reorder packets overtake each other.
    #[arg(long, value_name = "PATHS")]
    pub paths: Paths,
    /// Payload bytes of a flow; k and M are binary.
    #[arg(long, value_name = "SIZE,…", value_delimiter = ',', required = true)]
    pub size: Vec<Size>,
    /// Flows that start at once, each on a connection of its own (--backend sim only). Times of a run are means
    /// over its flows.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = whole::<u32>(1..=32))]
    pub flows: u32,
    /// Strategies of both ends.
    #[arg(
        long,
        value_name = "NAME[:SETTING,…],…",
        default_value = "minrtt",
        help = known("Strategies of both ends", braid_strategy::names())
    )]
    pub strategy: String,
    /// Congestion controls of both ends.
    #[arg(
        long,
        value_name = "NAME,…",
        value_delimiter = ',',
        default_value = "cubic",
        help = known("Congestion controls of both ends", TABLE.iter().map(Algorithm::name))
    )]
    pub cc: Vec<String>,
    /// Runs of each case.
    #[arg(long, value_name = "N", default_value_t = 100,
          value_parser = whole::<u64>(1..=1_000_000))]
    pub runs: u64,
    /// Seed of all runs.
    #[arg(long, value_name = "N", default_value_t = 1, allow_negative_numbers = true,
          value_parser = whole::<u64>(0..=u64::MAX))]
    pub seed: u64,
    /// Backend: virtual time (sim), emulated links (links), or the same links by the kernel's Multipath
    /// TCP (kernel).
    ///
    /// The last two take as long as the flows do, and need root or a user namespace. The kernel uses its own
    /// strategy and cannot be told the size of a flow.
    #[arg(long, alias = OLD_BACKEND, default_value = "sim",
          value_parser = one_of(Backend::ALL.map(|backend| (backend.name(), backend))))]
    pub backend: Backend,
    /// Path on which a connection opens, counted from 0; mix changes the path from run to run.
    #[arg(long, value_name = "N|mix", default_value = "0")]
    pub default_path: DefaultPath,
    /// Start the transfer on a connection whose subflows are all established.
    #[arg(long)]
    pub warm_subflows: bool,
    /// Records of the paths that both ends have before a run: none (cold), or those of one earlier
    /// connection over each path (warm).
    #[arg(long, default_value = "cold",
          value_parser = one_of([Records::Cold, Records::Warm].map(|records| (records.name(), records))))]
    pub records: Records,
    /// Initial congestion window, in segments.
    #[arg(long, default_value = "10", value_parser = one_of([("3", 3_u32), ("10", 10)]))]
    pub iw: u32,
    /// Knowledge that both ends have of the flow in advance: its size, or none.
    #[arg(long, default_value = "size", value_parser = ["size", "none"])]
    pub declare: String,
    /// Queue of each path that states none, in packets.
    #[arg(long, value_name = "PACKETS", default_value_t = 50,
          value_parser = whole::<u32>(0..=1_000_000))]
    pub queue: u32,
    /// Direction of the flow: down from the server, up from the client.
    #[arg(long, default_value = "down", value_parser = one_of([("down", Direction::Down), ("up", Direction::Up)]))]
    pub direction: Direction,
    /// Print also each run: the completion times of its flows, in the order in which they ended.
    #[arg(long)]
    pub each: bool,
    /// Directory for captures of the first run of each case, at both ends, as pcapng files for
    /// Wireshark (--backend sim only).
    #[arg(long, value_name = "DIR")]
    pub pcap: Option<PathBuf>,
    /// Directory for logs of the first run of each case, one JSON object a line (--backend sim only).
    #[arg(long, value_name = "DIR")]
    pub log: Option<PathBuf>,
}

/// Arguments of `braid-lab tunnel`.
#[derive(Debug, Args)]
pub struct TunnelArgs {
    /// Paths: rate, round-trip time, loss each way, and optionally a queue in place of --queue, and jitter, such as
    /// '50mbit,40ms,0%;50mbit,30ms,2%,100ms,jitter=10ms/reorder'.
    ///
    /// The form is that of `braid-lab fct`. With jitter=10ms/reorder each packet is delayed by up to 10 ms more, and
    /// packets overtake each other.
    #[arg(long, value_name = "PATHS")]
    pub paths: Paths,
    /// Inner flow: quic:bbr or quic:cubic, udp:RATE:SIZE (SIZE: bytes of an IP packet), or voip (50 packets of 200
    /// bytes a second, urgency 1).
    #[arg(long, value_name = "FLOW", default_value = "quic:bbr")]
    pub inner: Inner,
    /// Bytes of the flow; k and M are binary. The default is 20M; for voip, the bytes of a call of 20 s.
    #[arg(long, value_name = "SIZE")]
    pub size: Option<Size>,
    /// Mode of the tunnel; single: the best path alone, without a tunnel; all: one row for each.
    #[arg(long, default_value = "all", value_parser = one_of(MODES))]
    pub mode: &'static [Mode],
    /// Runs of each mode.
    #[arg(long, value_name = "N", default_value_t = 10,
          value_parser = whole::<u64>(1..=1_000_000))]
    pub runs: u64,
    /// Seed of all runs.
    #[arg(long, value_name = "N", default_value_t = 1, allow_negative_numbers = true,
          value_parser = whole::<u64>(0..=u64::MAX))]
    pub seed: u64,
    /// Backend: virtual time (sim).
    #[arg(long, default_value = "sim",
          value_parser = one_of([Backend::Sim].map(|backend| (backend.name(), backend))))]
    pub backend: Backend,
    /// Queue of each path that states none, in packets.
    #[arg(long, value_name = "PACKETS", default_value_t = 500,
          value_parser = whole::<u32>(0..=1_000_000))]
    pub queue: u32,
}

/// The values of `--mode`.
const MODES: [(&str, &[Mode]); 5] = [
    ("aggregate", &[Mode::Aggregate]),
    ("fastest", &[Mode::Fastest]),
    ("redundant", &[Mode::Redundant]),
    ("single", &[Mode::Single]),
    ("all", &Mode::ALL),
];

/// Returns a parser of whole numbers in `range`.
fn whole<T>(range: RangeInclusive<T>) -> impl TypedValueParser<Value = T>
where
    T: FromStr + PartialOrd + Display + Clone + Send + Sync + 'static,
{
    move |text: &str| {
        let number = text.parse().ok().filter(|number| range.contains(number));
        let (min, max) = (range.start(), range.end());
        number.ok_or_else(|| format!("expected a whole number from {min} to {max}"))
    }
}

/// Returns the help of an option that takes names: `what` it sets, and the known `names`.
fn known(what: &str, names: impl Iterator<Item = &'static str>) -> String {
    let names: Vec<&str> = names.collect();
    format!("{what}; known are: {}", names.join(", "))
}

/// Returns a parser of the names of `values`. Help and completions show the names.
pub(super) fn one_of<T: Clone + Send + Sync + 'static, const N: usize>(
    values: [(&'static str, T); N],
) -> impl TypedValueParser<Value = T> {
    let names = values.each_ref().map(|(name, _)| *name);
    PossibleValuesParser::new(names).map(move |name| {
        let mut values = values.iter().filter(|(known, _)| *known == name);
        let (_, value) = values.next().expect("one of the names");
        value.clone()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_old_name_of_the_backend_is_noticed_among_options_only() {
        let noticed = |line: &str| use_old_backend_option(line.split(' ').map(OsString::from));
        assert!(noticed("braid-lab list --arm sim"));
        assert!(noticed("braid-lab run --arm=links fsa-2a"));
        assert!(!noticed("braid-lab list --backend sim"));
        assert!(!noticed("braid-lab run arm --armed -- --arm"));
    }
}
