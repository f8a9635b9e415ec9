//! Two hosts in network namespaces, joined by an emulated link for each path.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use braid_testbed as testbed;
use braid_testbed::emulator::Course;
use braid_testbed::emulator::EMULATOR_PRIORITY;
use braid_testbed::netns;
use braid_testbed::{Options, Spec, Testbed};

use super::error::Error;
use super::flow;
use crate::cell::{Cell, RunResult, run_seed};

/// The host that opens connections.
pub(crate) const CLIENT: &str = "client";
/// The host that accepts them.
pub(crate) const SERVER: &str = "server";

/// Priority of the two ends: below the emulator, which must be on time for both.
pub(crate) const END_PRIORITY: i32 = EMULATOR_PRIORITY - 1;
/// How often a run in wall-clock time looks whether it is to end.
pub(crate) const TICK: Duration = Duration::from_millis(250);

/// A run that measures times is thrown away if the emulator was later than this at the 99th percentile.
pub(super) const TOLERABLE_US: f64 = 1_000.0;
/// How often a run is made in the hope that the machine is quiet.
const ATTEMPTS: u32 = 10;
/// Names of testbeds start so; the process id follows.
const PREFIX: &str = "braidlab";

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

pub(super) fn interrupt() {
    INTERRUPTED.store(true, Ordering::Relaxed);
}

pub(crate) fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}

/// The testbed of a cell.
pub(crate) struct Bed {
    pub testbed: Testbed,
    /// Lateness of the emulator at the 99th percentile above which a run is thrown away, µs.
    tolerable_us: f64,
    repeated: u64,
}

impl std::fmt::Debug for Bed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bed")
            .field("name", &self.testbed.layout().name)
            .field("repeated", &self.repeated)
            .finish()
    }
}

impl Bed {
    /// Builds it, with links for so many paths. The hosts are routers, so that what one engine sends
    /// through its device leaves by the links. `others` are joined to these routers by a link each,
    /// which has the other's name.
    pub fn build(paths: usize, others: &[(&str, &str)]) -> Result<Bed, Error> {
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
        Ok(Bed {
            testbed,
            tolerable_us: TOLERABLE_US,
            repeated: 0,
        })
    }

    /// Keeps each run from now on, however late the emulator was: for tests that judge no time, which
    /// must hold on a busy machine too.
    pub fn keep_late_runs(&mut self) {
        self.tolerable_us = f64::INFINITY;
    }

    /// Runs `measure` with links as they are in run `index` of `cell`.
    pub fn run(
        &mut self,
        cell: &Cell,
        index: u64,
        measure: impl FnMut(u64) -> Result<RunResult, Error>,
    ) -> Result<RunResult, Error> {
        let seed = run_seed(cell.seed, index);
        let paths = flow::paths(cell, seed).into_iter();
        let courses = paths.enumerate().map(|(n, path)| {
            [path.up, path.down].map(|settings| Course {
                schedule: flow::schedule(cell, n, &settings),
                settings,
            })
        });
        self.measured(&courses.collect::<Vec<_>>(), seed, measure)
    }

    /// Runs `measure` with links that take these courses from its start on, again if the emulator was
    /// late, which may be why it failed. Every attempt has the same seed, which is handed to
    /// `measure`.
    pub fn measured<T>(
        &mut self,
        courses: &[[Course; 2]],
        seed: u64,
        mut measure: impl FnMut(u64) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let testbed = &self.testbed;
        on_time((ATTEMPTS, self.tolerable_us), &mut self.repeated, || {
            let restarted = testbed.restart_links(courses.to_vec(), seed);
            restarted.map_err(run_error)?;
            testbed.reset_lateness().map_err(run_error)?;
            let result = measure(seed);
            Ok((result, testbed.lateness().map_err(run_error)?.p99_us))
        })?
    }

    pub fn repeated(&self) -> u64 {
        self.repeated
    }

    /// Name of a host's namespace.
    pub fn namespace(&self, host: &str) -> Result<String, Error> {
        let host = self.testbed.layout().host(host).map_err(run_error)?;
        Ok(host.namespace.clone())
    }
}

/// Name of the interface at both ends of path `n`.
pub(crate) fn link_name(n: usize) -> String {
    format!("path{n}")
}

/// A name for a testbed that no other process has; what such processes left behind is removed.
pub(super) fn new_name() -> Result<String, Error> {
    netns::capability().map_err(|reason| {
        Error::Run(format!("runs over links need network namespaces: {reason}"))
    })?;
    remove_abandoned();
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let (pid, count) = (std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    Ok(format!("{PREFIX}{pid}-{count}"))
}

/// Returns the result of the first of `attempts` during which the emulator was at most `tolerable_us` late
/// at the 99th percentile: each attempt tells how late it was, in µs. Counts the results that were thrown
/// away.
pub(super) fn on_time<T>(
    (attempts, tolerable_us): (u32, f64),
    repeated: &mut u64,
    mut attempt: impl FnMut() -> Result<(T, f64), Error>,
) -> Result<T, Error> {
    let mut worst = 0.0f64;
    for _ in 0..attempts {
        let (result, late_us) = attempt()?;
        if interrupted() {
            return Err(Error::Run("interrupted".to_owned()));
        }
        if late_us <= tolerable_us {
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
