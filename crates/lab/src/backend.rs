//! Backends: the ways to carry out one run of a [`Case`], or a session.

mod background;
mod error;
mod fixture;
mod flow;
pub(crate) mod gateways;
mod history;
mod kernel;
mod links;
mod setup;
pub mod sim;
mod streams;
mod tap;
mod threads;

use braid_engine::Config;

pub use self::error::Error;
pub(crate) use self::error::run_error;
use self::fixture::Fixture;
use self::setup::Setup;
pub use self::threads::interrupt;
pub(crate) use self::threads::interrupted;
use crate::case::{Case, DefaultPath, Records, RunResult};
use crate::session_trace::{SessionScenario, SessionTrace};

/// A backend that runs cases.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    /// The deterministic simulator.
    Sim,
    /// The engine over emulated links between network namespaces, in wall-clock time.
    Links,
    /// The kernel's MPTCP over the same links.
    Kernel,
}

impl Backend {
    /// All backends.
    pub const ALL: [Backend; 3] = [Backend::Sim, Backend::Links, Backend::Kernel];

    /// Returns the name by which a user picks the backend.
    pub fn name(self) -> &'static str {
        match self {
            Backend::Sim => "sim",
            Backend::Links => "links",
            Backend::Kernel => "kernel",
        }
    }

    /// Returns whether runs take virtual time. If so, concurrent runs do not disturb each other.
    pub fn is_virtual(self) -> bool {
        self == Backend::Sim
    }

    /// Checks that the backend can run `case`.
    ///
    /// # Errors
    /// [`Error::Usage`] with the value in the case and the expected values.
    pub fn check(self, case: &Case) -> Result<(), Error> {
        let paths = case.paths.specs().len();
        if let DefaultPath::Path(path) = case.default_path
            && path >= paths
        {
            let last = paths - 1;
            let text = format!("there is no path {path}; expected 0 to {last}, or mix");
            return Err(Error::Usage(text));
        }
        if case.records == Records::Warm && self == Backend::Kernel {
            let text = "--records warm does not work with --backend kernel, which has no records; \
                        expected --records cold"
                .to_owned();
            return Err(Error::Usage(text));
        }
        if case.flows > 1 && !self.is_virtual() {
            let name = self.name();
            let text = format!(
                "--flows {} needs --backend sim, but the backend is {name}",
                case.flows
            );
            return Err(Error::Usage(text));
        }
        match self {
            Backend::Sim | Backend::Links => flow::engine(case).map(drop),
            Backend::Kernel => kernel::check(case),
        }
    }

    /// Sets up everything that runs of `case` need.
    ///
    /// # Errors
    /// [`Error::Run`] if the namespaces, links or devices cannot be created, with the reason.
    pub fn open(self, case: &Case) -> Result<Box<dyn Session>, Error> {
        let world = Setup::of_case(case, 0, Config::default());
        self.open_in(&world, (&case.cc, case.initial_window))
    }

    /// Sets up everything that runs of `scenario` need.
    ///
    /// # Errors
    /// The errors of [`Self::open`], and [`Error::Usage`] if there is no such strategy.
    pub(crate) fn open_for_session(
        self,
        scenario: &SessionScenario<'_>,
    ) -> Result<Box<dyn Session>, Error> {
        braid_strategy::by_name(scenario.strategy).map_err(|e| Error::Usage(e.to_string()))?;
        let engine = &scenario.engine;
        let world = Setup::of_session(scenario, 0);
        self.open_in(&world, (engine.congestion.name(), engine.initial_window))
    }

    /// Sets up everything for worlds like `setup`. Congestion control and initial window are those of the
    /// kernel's sockets.
    fn open_in(self, setup: &Setup<'_>, kernel: (&str, u32)) -> Result<Box<dyn Session>, Error> {
        Ok(match self {
            Backend::Sim => Box::new(sim::Sim::default()),
            Backend::Links => Box::new(links::Links::open(setup)?),
            Backend::Kernel => Box::new(kernel::Kernel::open(setup, kernel)?),
        })
    }
}

/// A backend that is set up for a case or a scenario, until it is dropped.
pub trait Session {
    /// Makes run `index` of the case that the session was opened for. In the simulator, cases that differ only in
    /// their strategy may share a session.
    ///
    /// # Errors
    /// The run could not be made. A flow that does not arrive in time is no error: its result has
    /// `completed` false.
    fn run(&mut self, case: &Case, index: u64) -> Result<RunResult, Error>;

    /// Runs the scenario that the session was opened for, with the random numbers of `seed`.
    ///
    /// # Errors
    /// The session does not open, an oracle found a violation, or the machine is too busy.
    fn trace(&mut self, scenario: &SessionScenario<'_>, seed: u64) -> Result<SessionTrace, Error>;

    /// Returns the testbed, if the backend has one.
    fn fixture(&mut self) -> Option<&mut Fixture> {
        None
    }

    /// Keeps the result of every later run, even if the emulated links were late. Meant for tests that do
    /// not judge times and must pass on a busy machine. By default a late run is repeated, because its
    /// times mean nothing. After several late attempts the error is [`Error::Busy`].
    fn keep_late_runs(&mut self) {
        if let Some(fixture) = self.fixture() {
            fixture.max_lag_us = f64::INFINITY;
        }
    }

    /// Returns the number of runs that were discarded and repeated because the emulated links were late.
    fn repeated(&mut self) -> u64 {
        self.fixture().map_or(0, |fixture| fixture.repeated)
    }
}

impl SessionScenario<'_> {
    /// Runs the session on `backend`, with the random numbers of `seed`. A backend in wall-clock time takes
    /// as long as the session.
    ///
    /// # Errors
    /// There is no such strategy; the session does not open; an oracle found a violation; namespaces, links
    /// or devices cannot be created; or the machine is too busy.
    pub fn run_on(&self, backend: Backend, seed: u64) -> Result<SessionTrace, Error> {
        backend.open_for_session(self)?.trace(self, seed)
    }
}
