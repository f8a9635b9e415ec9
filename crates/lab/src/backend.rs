//! Backends: the ways to carry out one run of a [`Case`].

mod error;
pub(crate) mod fixture;
mod flow;
pub(crate) mod gateways;
mod history;
pub mod kernel;
pub mod links;
pub mod sim;

pub use self::error::Error;
pub(crate) use self::fixture::run_error;
use crate::case::{Case, DefaultPath, Records, RunResult};

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
        match self {
            Backend::Sim | Backend::Links => flow::check(case),
            Backend::Kernel => kernel::check(case),
        }
    }

    /// Sets up everything that runs of `case` need.
    ///
    /// # Errors
    /// [`Error::Run`] if the namespaces, links or devices cannot be created, with the reason.
    pub fn open(self, case: &Case) -> Result<Session, Error> {
        Ok(match self {
            Backend::Sim => Session::Sim(sim::Sim::default()),
            Backend::Links => Session::Links(Box::new(links::Links::open(case)?)),
            Backend::Kernel => Session::Kernel(Box::new(kernel::Kernel::open(case)?)),
        })
    }
}

/// A backend that is set up for a case, until it is dropped.
#[derive(Debug)]
pub enum Session {
    /// The simulator, with the records of earlier connections that its runs share.
    Sim(sim::Sim),
    /// Namespaces and links, with an engine's device at both ends.
    Links(Box<links::Links>),
    /// Namespaces and links, with addresses and MPTCP endpoints for the kernel.
    Kernel(Box<kernel::Kernel>),
}

impl Session {
    /// Makes run `index` of the case that the session was opened for.
    ///
    /// # Errors
    /// The run could not be made. A flow that does not arrive in time is no error: its result has
    /// `completed` false.
    pub fn run(&mut self, case: &Case, index: u64) -> Result<RunResult, Error> {
        match self {
            Session::Sim(sim) => sim.run(case, index),
            Session::Links(links) => links.run(case, index),
            Session::Kernel(kernel) => kernel.run(case, index),
        }
    }

    /// Keeps the result of every later run, even if the emulated links were late. Meant for tests that do
    /// not judge times and must pass on a busy machine. By default a late run is repeated, because its
    /// times mean nothing. After several late attempts the error is [`Error::Busy`].
    pub fn keep_late_runs(&mut self) {
        if let Some(fixture) = self.fixture() {
            fixture.keep_late_runs();
        }
    }

    /// Returns the number of runs that were discarded and repeated because the emulated links were late.
    pub fn repeated(&mut self) -> u64 {
        self.fixture().map_or(0, |fixture| fixture.repeated())
    }

    /// Returns the testbed, if the backend has one.
    fn fixture(&mut self) -> Option<&mut fixture::Fixture> {
        match self {
            Session::Sim(_) => None,
            Session::Links(links) => Some(&mut links.fixture),
            Session::Kernel(kernel) => Some(&mut kernel.fixture),
        }
    }
}

/// Makes runs in wall-clock time end soon with an error, so that they remove their namespaces and links. A
/// signal handler calls it.
pub fn interrupt() {
    fixture::interrupt();
}
