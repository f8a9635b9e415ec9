//! The fixture of a measurement over links: two hosts in network namespaces, connected by an emulated link for
//! each path.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use braid_testbed as testbed;
use braid_testbed::emulator::{EMULATOR_PRIORITY, ScheduledSettings};
use braid_testbed::netns;
use braid_testbed::{Options, Spec, Testbed};

use super::background;
use super::error::Error;
use super::setup::{CLIENT, SERVER, Setup, link_name};
use super::threads::{EndGuard, EndSignal, interrupted};

/// Real-time priority of the two ends. It is below the priority of the emulator, so that a busy end cannot
/// delay the packets of both ends.
pub(crate) const ENDPOINT_PRIORITY: i32 = EMULATOR_PRIORITY - 1;
/// Maximum delivery lag of the emulator at the 99th percentile, µs. A run with a higher lag is discarded,
/// because the lag adds to every delay that it measures. 1 ms is a guess: a few percent of the shortest
/// round-trip time of the experiments (20 ms).
pub(super) const MAX_DELIVERY_LAG_US: f64 = 1_000.0;
/// Maximum number of attempts at a run while the emulator is late. A guess: a machine that is late ten
/// times in a row will be late again.
const ATTEMPTS: u32 = 10;
/// Prefix of testbed names; the process id follows. [`remove_abandoned`] finds testbeds by it.
const PREFIX: &str = "braidlab";

/// The testbed of measurements over links.
pub struct Fixture {
    /// Client and server, their links, and the hosts of background traffic.
    pub testbed: Testbed,
    /// [`MAX_DELIVERY_LAG_US`], or infinity if late runs are kept.
    pub max_lag_us: f64,
    /// Number of runs that were discarded because the emulator was late.
    pub repeated: u64,
}

impl Fixture {
    /// Builds the testbed with one link per path of `setup`, and the hosts of its background traffic. Client
    /// and server have the role `router`, so that their kernels forward packets between an engine's device
    /// and the links.
    pub(super) fn build(setup: &Setup<'_>) -> Result<Fixture, Error> {
        let paths = setup.paths.len();
        let background = setup.background.is_some();
        let mut text = format!("name = \"{}\"\n", new_name()?);
        let mut add_host = |host: &str, role: &str| {
            text += &format!("[[host]]\nname = \"{host}\"\nrole = \"{role}\"\n");
        };
        let mut links: Vec<_> = (0..paths).map(|n| (link_name(n), CLIENT, SERVER)).collect();
        add_host(CLIENT, "router");
        add_host(SERVER, "router");
        if background {
            for (host, router) in background::LINKS {
                add_host(host, "user");
                links.push((host.to_owned(), host, router));
            }
        }
        for (link, from, to) in links {
            text += &format!("[[link]]\nname = \"{link}\"\nfrom = \"{from}\"\nto = \"{to}\"\n");
        }
        let spec = Spec::parse(&text, Path::new("lab"))?;
        let testbed = Testbed::up(spec, Options::default())?;
        let fixture = Fixture {
            testbed,
            max_lag_us: MAX_DELIVERY_LAG_US,
            repeated: 0,
        };
        if background {
            background::set_up(&fixture.testbed, paths)?;
        }
        Ok(fixture)
    }

    /// Runs `measure` while the links follow their schedules and background traffic flows, both as `setup`
    /// says. If the emulator was late, discards the result and repeats all of it. This applies to a failed
    /// measurement too, because the lag may be its cause.
    pub(super) fn measure<T>(
        &mut self,
        setup: &Setup<'_>,
        mut measure: impl FnMut() -> Result<T, Error>,
    ) -> Result<T, Error> {
        let link_settings = link_settings(setup);
        let testbed = &self.testbed;
        retry_while_late((ATTEMPTS, self.max_lag_us), &mut self.repeated, || {
            testbed.restart_links(link_settings.clone(), setup.seed)?;
            testbed.reset_delivery_lag()?;
            let end = EndSignal::default();
            let result = thread::scope(|scope| {
                // The traffic must end with the measurement, or the scope would wait for its threads forever.
                let _guard = EndGuard(&end);
                if let Some(traffic) = setup.background {
                    background::start(scope, testbed, (traffic, setup), &end)?;
                }
                measure()
            });
            Ok((result, testbed.delivery_lag()?.p99_us))
        })?
    }

    /// Returns the name of a host's namespace.
    pub fn namespace(&self, host: &str) -> Result<String, Error> {
        let host = self.testbed.layout().host(host)?;
        Ok(host.namespace.clone())
    }
}

/// Returns the settings of both directions of each link, in the order of the testbed's links.
fn link_settings(setup: &Setup<'_>) -> Vec<[ScheduledSettings; 2]> {
    let paths = setup.paths.iter().zip(&setup.schedules);
    let paths = paths.map(|(path, schedule)| {
        [&path.up, &path.down].map(|settings| ScheduledSettings {
            settings: settings.clone(),
            schedule: schedule.clone(),
        })
    });
    let others = setup.background.map(|_| background::link_settings());
    paths.chain(others.into_iter().flatten()).collect()
}

/// Returns a testbed name that no other process uses. Also takes down the testbeds of killed processes, because
/// every measurement over links begins with this call.
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

/// Takes down testbeds of processes that were killed.
fn remove_abandoned() {
    let namespaces = netns::list().unwrap_or_default();
    let names = namespaces
        .iter()
        .filter_map(|namespace| namespace.split('.').next());
    let ours: BTreeSet<&str> = names.filter(|name| name.starts_with(PREFIX)).collect();
    for name in ours.into_iter().filter(|name| !testbed::is_up(name)) {
        if let Err(error) = testbed::down(name) {
            tracing::warn!(%error, "cannot remove the namespaces of a killed measurement");
        }
    }
}
