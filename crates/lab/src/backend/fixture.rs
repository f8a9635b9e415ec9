//! The fixture of a case over links: two hosts in network namespaces, connected by an emulated link for
//! each path.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use braid_testbed as testbed;
use braid_testbed::emulator::EMULATOR_PRIORITY;
use braid_testbed::emulator::ScheduledSettings;
use braid_testbed::netns;
use braid_testbed::{Options, Spec, Testbed};

use super::error::Error;
use super::flow;
use crate::case::{Case, RunResult, run_seed};

/// Name of the host that opens connections.
pub(crate) const CLIENT: &str = "client";
/// Name of the host that accepts connections.
pub(crate) const SERVER: &str = "server";

/// Real-time priority of the two ends. It is below the priority of the emulator, so that a busy end cannot
/// delay the packets of both ends.
pub(crate) const ENDPOINT_PRIORITY: i32 = EMULATOR_PRIORITY - 1;
/// Interval at which a run in wall-clock time checks whether it has ended, timed out or been interrupted.
/// A guess: short for a user who presses Ctrl-C, and rare beside the packets of a run.
pub(crate) const END_CHECK_INTERVAL: Duration = Duration::from_millis(250);

/// Maximum delivery lag of the emulator at the 99th percentile, µs. A run with a higher lag is discarded,
/// because the lag adds to every delay that it measures. 1 ms is a guess: a few percent of the shortest
/// round-trip time of the experiments (20 ms).
pub(super) const MAX_DELIVERY_LAG_US: f64 = 1_000.0;
/// Maximum number of attempts at a run while the emulator is late. A guess: a machine that is late ten
/// times in a row will be late again.
const ATTEMPTS: u32 = 10;
/// Prefix of testbed names; the process id follows. [`remove_abandoned`] finds testbeds by it.
const PREFIX: &str = "braidlab";

/// True after a signal. It is static because a signal handler sets it.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

pub(super) fn interrupt() {
    INTERRUPTED.store(true, Ordering::Relaxed);
}

pub(crate) fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}

/// The testbed of a case.
pub(crate) struct Fixture {
    pub testbed: Testbed,
    /// [`MAX_DELIVERY_LAG_US`], or infinity if late runs are kept.
    max_lag_us: f64,
    /// Number of runs that were discarded because the emulator was late.
    repeated: u64,
}

impl std::fmt::Debug for Fixture {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fixture")
            .field("name", &self.testbed.layout().name)
            .field("repeated", &self.repeated)
            .finish()
    }
}

impl Fixture {
    /// Builds the testbed with one link per path. Both hosts have the role `router`, so that their kernels
    /// forward packets between an engine's device and the links. Each of `others` is a pair of names, a
    /// further host and the router that it is connected to; the link is named after the further host.
    pub fn build(paths: usize, others: &[(&str, &str)]) -> Result<Fixture, Error> {
        let mut text = format!(
            "name = \"{}\"\n\
             [[host]]\nname = \"{CLIENT}\"\nrole = \"router\"\n\
             [[host]]\nname = \"{SERVER}\"\nrole = \"router\"\n",
            new_name()?
        );
        let link_text = |link: &str, from: &str, to: &str| {
            format!("[[link]]\nname = \"{link}\"\nfrom = \"{from}\"\nto = \"{to}\"\n")
        };
        for n in 0..paths {
            text += &link_text(&link_name(n), CLIENT, SERVER);
        }
        for (other, router) in others {
            text += &format!("[[host]]\nname = \"{other}\"\nrole = \"user\"\n");
            text += &link_text(other, other, router);
        }
        let spec = Spec::parse(&text, Path::new("lab")).map_err(|e| Error::Run(e.to_string()))?;
        let testbed = Testbed::up(spec, Options::default()).map_err(run_error)?;
        Ok(Fixture {
            testbed,
            max_lag_us: MAX_DELIVERY_LAG_US,
            repeated: 0,
        })
    }

    /// Makes the fixture keep the result of every later run, even if the emulator was late. Meant for tests
    /// that do not judge times and must pass on a busy machine.
    pub fn keep_late_runs(&mut self) {
        self.max_lag_us = f64::INFINITY;
    }

    /// Runs `measure` with the links set up for run `index` of `case`.
    pub fn run(
        &mut self,
        case: &Case,
        index: u64,
        measure: impl FnMut(u64) -> Result<RunResult, Error>,
    ) -> Result<RunResult, Error> {
        let seed = run_seed(case.seed, index);
        let paths = flow::paths(case, seed).into_iter();
        let link_settings = paths.enumerate().map(|(n, path)| {
            [path.up, path.down].map(|settings| ScheduledSettings {
                schedule: flow::schedule(case, n, &settings),
                settings,
            })
        });
        self.measure_on_time(&link_settings.collect::<Vec<_>>(), seed, measure)
    }

    /// Restarts the links with these settings and runs `measure`. If the emulator was late, discards the
    /// result and repeats the measurement. This applies to a failed measurement too, because the lag may be
    /// its cause. Every attempt passes the same seed to `measure`.
    pub fn measure_on_time<T>(
        &mut self,
        link_settings: &[[ScheduledSettings; 2]],
        seed: u64,
        mut measure: impl FnMut(u64) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let testbed = &self.testbed;
        retry_while_late((ATTEMPTS, self.max_lag_us), &mut self.repeated, || {
            let restarted = testbed.restart_links(link_settings.to_vec(), seed);
            restarted.map_err(run_error)?;
            testbed.reset_delivery_lag().map_err(run_error)?;
            let result = measure(seed);
            Ok((result, testbed.delivery_lag().map_err(run_error)?.p99_us))
        })?
    }

    /// Returns the number of runs that were discarded because the emulator was late.
    pub fn repeated(&self) -> u64 {
        self.repeated
    }

    /// Returns the name of a host's namespace.
    pub fn namespace(&self, host: &str) -> Result<String, Error> {
        let host = self.testbed.layout().host(host).map_err(run_error)?;
        Ok(host.namespace.clone())
    }
}

/// Returns the name of the interface at both ends of path `n`.
pub(crate) fn link_name(n: usize) -> String {
    format!("path{n}")
}

/// Returns a testbed name that no other process uses. Also takes down the testbeds of killed processes:
/// this is where every measurement over links begins.
pub(super) fn new_name() -> Result<String, Error> {
    netns::capability().map_err(|reason| {
        Error::Run(format!("runs over links need network namespaces: {reason}"))
    })?;
    remove_abandoned();
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let (pid, count) = (std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    Ok(format!("{PREFIX}{pid}-{count}"))
}

/// Returns the result of the first attempt in which the emulator was at most `max_lag_us` late at the 99th
/// percentile. Makes at most `attempts` attempts. `attempt` returns a result and its delivery lag in µs.
/// `repeated` counts the discarded results.
pub(super) fn retry_while_late<T>(
    (attempts, max_lag_us): (u32, f64),
    repeated: &mut u64,
    mut attempt: impl FnMut() -> Result<(T, f64), Error>,
) -> Result<T, Error> {
    let mut worst = 0.0f64;
    for _ in 0..attempts {
        let (result, late_us) = attempt()?;
        // An interrupted attempt ends early, so its result is incomplete.
        if interrupted() {
            return Err(Error::Run("interrupted".to_owned()));
        }
        if late_us <= max_lag_us {
            return Ok(result);
        }
        worst = worst.max(late_us);
        *repeated += 1;
    }
    Err(Error::Busy(format!(
        "this machine is too busy to emulate links: packets were late in {attempts} attempts in a row, \
         by up to {:.1} ms at the 99th percentile; run it on an idle machine",
        worst / 1e3
    )))
}

pub(crate) fn run_error(error: impl std::fmt::Display) -> Error {
    Error::Run(error.to_string())
}

/// Takes down testbeds of processes that were killed.
fn remove_abandoned() {
    let Ok(namespaces) = netns::list() else {
        return;
    };
    let mut names: Vec<&str> = namespaces
        .iter()
        .filter_map(|namespace| namespace.split('.').next())
        .filter(|name| name.starts_with(PREFIX) && !testbed::is_up(name))
        .collect();
    names.dedup();
    for name in names {
        if let Err(error) = testbed::down(name) {
            tracing::warn!(%error, "cannot remove the namespaces of a killed measurement");
        }
    }
}
