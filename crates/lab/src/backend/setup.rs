//! The world of a measurement and the connection in it, the same for all backends.

use std::time::Duration;

use braid_engine::{Config, PathId};
use braid_links::{Change, Schedule, Settings};
use braid_sim::background::Background;
use braid_sim::traffic::{Role, Stream};
use braid_sim::transfer::{Direction, PathSettings, TransferConfig};
use braid_wire::Rng;

use crate::case::{Case, run_seed};
use crate::session_trace::SessionScenario;

/// Name of the host that opens connections.
pub(super) const CLIENT: &str = "client";
/// Name of the host that accepts connections.
pub(super) const SERVER: &str = "server";
/// Number of the client's routing table for path 0 over links, and of the rule that selects this table. The
/// other paths have the next numbers. Any number works except 253 to 255, which the kernel uses itself.
pub(super) const FIRST_TABLE: usize = 100;

/// Stream of the random numbers of the links' delays. The number is far above the streams of a world's
/// components, which count from 0.
const LINKS_STREAM: u64 = 1 << 40;
/// Maximum difference between a path's delay in a run and its setting. Without the difference, all runs
/// without loss would be equal, and intervals would have no width. 100 µs is a guess: small against every
/// delay of the experiments.
const DELAY_VARIATION: Duration = Duration::from_micros(100);

/// The world of a measurement, and the connection in it.
#[derive(Debug)]
pub(super) struct Setup<'a> {
    /// Seed of all random numbers.
    pub seed: u64,
    /// The paths at the start.
    pub paths: Vec<PathSettings>,
    /// Changes of both directions of each path.
    pub schedules: Vec<Schedule>,
    /// Background traffic on each path.
    pub background: Option<&'a Background>,
    /// The streams of client and server.
    pub streams: [Stream; 2],
    /// Settings of engines and connection, without the paths.
    settings: TransferConfig<'a>,
}

impl<'a> Setup<'a> {
    /// Returns the setup of run `index` of `case`, with these settings of the engines.
    pub fn of_case(case: &'a Case, index: u64, engine: Config) -> Self {
        let seed = run_seed(case.seed, index);
        let paths = case_paths(case, seed);
        let settings = TransferConfig {
            engine,
            initial_path: Some(PathId(case.opening_path(index) as u8)),
            strategy: &case.strategy,
            declared: case.declare_size,
            awaiting_release: case.warm_subflows,
            ..TransferConfig::new(&[], case.size.bytes(), case.direction)
        };
        let outages = paths
            .iter()
            .enumerate()
            .map(|(n, path)| outage(case, n, &path.up));
        Setup {
            seed,
            schedules: outages.collect(),
            paths,
            background: None,
            streams: [settings.client_stream(), settings.server_stream()],
            settings,
        }
    }

    /// Returns the setup of a session.
    pub fn of_session(scenario: &'a SessionScenario<'_>, seed: u64) -> Self {
        let reads = match scenario.sends {
            Role::Send(_) => Role::Collect,
            _ => Role::Sink,
        };
        let mut schedules = vec![Schedule::default(); scenario.paths.len()];
        schedules[0] = scenario.first.clone();
        Setup {
            seed,
            paths: scenario.paths.clone(),
            schedules,
            background: scenario.background.as_ref(),
            streams: [reads, scenario.sends.clone()].map(Stream::new),
            settings: TransferConfig {
                strategy: scenario.strategy,
                engine: scenario.engine.clone(),
                initial_path: Some(PathId(0)),
                ..TransferConfig::new(&[], 0, Direction::Down)
            },
        }
    }

    /// Returns the settings of engines and connection.
    pub fn config(&self) -> TransferConfig<'_> {
        TransferConfig {
            paths: &self.paths,
            ..self.settings.clone()
        }
    }
}

/// Returns the paths of `case` in the world of `seed`, each with the same settings in both directions.
pub(super) fn case_paths(case: &Case, seed: u64) -> Vec<PathSettings> {
    let mut rng = Rng::for_component(seed, LINKS_STREAM);
    let paths = case.paths.specs().iter().map(|path| {
        let mut settings = path.settings(case.queue);
        settings.delay = varied(settings.delay, &mut rng);
        PathSettings::both(settings)
    });
    paths.collect()
}

/// Returns `delay` plus or minus up to [`DELAY_VARIATION`].
fn varied(delay: Duration, rng: &mut Rng) -> Duration {
    // A delay must not become negative.
    let variation = DELAY_VARIATION.min(delay);
    let drawn = Duration::from_nanos(rng.below(2 * variation.as_nanos() as u64 + 1));
    delay + drawn - variation
}

/// Returns the changes of path `n` during a run: its outage, if it has one. `settings` are the path's
/// settings outside the outage.
fn outage(case: &Case, n: usize, settings: &Settings) -> Schedule {
    let outage = case.outage.filter(|outage| outage.path == n);
    let changes = outage.into_iter().flat_map(|outage| {
        [(outage.from, false), (outage.until, true)].map(|(at, up)| Change {
            at,
            settings: Settings {
                up,
                ..settings.clone()
            },
        })
    });
    Schedule::new(changes)
}

/// Returns the name of the interface at both ends of path `n` over links.
pub(super) fn link_name(n: usize) -> String {
    format!("path{n}")
}
