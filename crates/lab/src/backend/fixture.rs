//! Two hosts in network namespaces, connected by an emulated link for each path.

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

/// Real-time priority of the two ends, below the emulator, which must be on time for both.
pub(crate) const ENDPOINT_PRIORITY: i32 = EMULATOR_PRIORITY - 1;
/// Interval at which a run in wall-clock time checks for its end.
pub(crate) const END_CHECK_INTERVAL: Duration = Duration::from_millis(250);

/// Delivery lag of the emulator at the 99th percentile above which a run that measures times is thrown
/// away, µs.
pub(super) const MAX_DELIVERY_LAG_US: f64 = 1_000.0;
/// Most attempts at a run while the emulator is late.
const ATTEMPTS: u32 = 10;
/// Prefix of testbed names; the process id follows.
const PREFIX: &str = "braidlab";

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
    /// Delivery lag of the emulator at the 99th percentile above which a run is thrown away, µs.
    max_lag_us: f64,
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
    /// Builds the testbed with one link per path. The hosts are routers, so that an engine's packets
    /// from its device leave by the links. Each of `others` (name, router) is connected to its router
    /// by a link of its own name.
    pub fn build(paths: usize, others: &[(&str, &str)]) -> Result<Fixture, Error> {
        let mut text = format!(
            "name = \"{}\"\n\
             [[host]]\nname = \"{CLIENT}\"\nrole = \"router\"\n\
             [[host]]\nname = \"{SERVER}\"\nrole = \"router\"\n",
            new_name()?
        );
        let join = |link: &str, from: &str, to: &str| {
            format!("[[link]]\nname = \"{link}\"\nfrom = \"{from}\"\nto = \"{to}\"\n")
        };
        for n in 0..paths {
            text += &join(&link_name(n), CLIENT, SERVER);
        }
        for (other, router) in others {
            text += &format!("[[host]]\nname = \"{other}\"\nrole = \"user\"\n");
            text += &join(other, other, router);
        }
        let spec = Spec::parse(&text, Path::new("lab")).map_err(|e| Error::Run(e.to_string()))?;
        let testbed = Testbed::up(spec, Options::default()).map_err(run_error)?;
        Ok(Fixture {
            testbed,
            max_lag_us: MAX_DELIVERY_LAG_US,
            repeated: 0,
        })
    }

    /// Keeps every run from now on, however late the emulator was. Meant for tests that judge no times
    /// and must pass on a busy machine.
    pub fn keep_late_runs(&mut self) {
        self.max_lag_us = f64::INFINITY;
    }

    /// Runs `measure` with the links of run `index` of `case`.
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

    /// Runs `measure` with these settings of the links from its start. Repeats it if the emulator was
    /// late, even if it failed, because the delivery lag may be the cause. Every attempt passes the same
    /// seed to `measure`.
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

/// Returns a testbed name that no other process has, and removes what killed processes left behind.
pub(super) fn new_name() -> Result<String, Error> {
    netns::capability().map_err(|reason| {
        Error::Run(format!("runs over links need network namespaces: {reason}"))
    })?;
    remove_abandoned();
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let (pid, count) = (std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    Ok(format!("{PREFIX}{pid}-{count}"))
}

/// Returns the first result during which the emulator was at most `max_lag_us` late at the 99th
/// percentile, in at most `attempts` attempts. Every attempt returns its delivery lag in µs. `repeated`
/// counts the results that were thrown away.
pub(super) fn retry_while_late<T>(
    (attempts, max_lag_us): (u32, f64),
    repeated: &mut u64,
    mut attempt: impl FnMut() -> Result<(T, f64), Error>,
) -> Result<T, Error> {
    let mut worst = 0.0f64;
    for _ in 0..attempts {
        let (result, late_us) = attempt()?;
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
        "this machine is too busy to emulate links: in {attempts} attempts in a row packets were \
         late, by up to {:.1} ms at the 99th percentile",
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
            tracing::warn!(%error, "cannot remove what an earlier measurement left behind");
        }
    }
}
