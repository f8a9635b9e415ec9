//! The arms: ways to carry out one run of a [`Cell`].

pub(crate) mod bed;
mod error;
mod flow;
pub(crate) mod gateways;
mod history;
pub mod kernel;
pub mod links;
pub mod sim;

use std::str::FromStr;

pub(crate) use self::bed::run_error;
pub use self::error::Error;
use crate::cell::{Cell, DefaultPath, Records, RunResult, UnknownName};

/// How a cell is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arm {
    /// In the deterministic simulator.
    Sim,
    /// Over emulated links between network namespaces, in wall-clock time.
    Links,
    /// The same links with the kernel's Multipath TCP in place of the engine.
    Kernel,
}

impl Arm {
    /// All arms.
    pub const ALL: [Arm; 3] = [Arm::Sim, Arm::Links, Arm::Kernel];

    /// The name a user picks it by.
    pub fn name(self) -> &'static str {
        match self {
            Arm::Sim => "sim",
            Arm::Links => "links",
            Arm::Kernel => "kernel",
        }
    }

    /// Whether it runs in virtual time, so that runs side by side do not disturb each other.
    pub fn is_virtual(self) -> bool {
        self == Arm::Sim
    }

    /// Whether `cell` can be run here.
    ///
    /// # Errors
    /// [`Error::Usage`] with what the cell says and what is expected.
    pub fn check(self, cell: &Cell) -> Result<(), Error> {
        let paths = cell.paths.specs().len();
        if let DefaultPath::Path(path) = cell.default_path
            && path >= paths
        {
            let last = paths - 1;
            let text = format!("there is no path {path}; expected 0 to {last}, or mix");
            return Err(Error::Usage(text));
        }
        if cell.records == Records::Warm && self == Arm::Kernel {
            let text = "--records warm is for engines, and this is --backend kernel".to_owned();
            return Err(Error::Usage(text));
        }
        match self {
            Arm::Sim | Arm::Links => flow::check(cell),
            Arm::Kernel => kernel::check(cell),
        }
    }

    /// Sets up what runs of `cell` need.
    ///
    /// # Errors
    /// [`Error::Run`] with what the system refused.
    pub fn open(self, cell: &Cell) -> Result<Session, Error> {
        Ok(match self {
            Arm::Sim => Session::Sim(sim::Sim::default()),
            Arm::Links => Session::Links(Box::new(links::Links::open(cell)?)),
            Arm::Kernel => Session::Kernel(Box::new(kernel::Kernel::open(cell)?)),
        })
    }
}

/// An arm that is set up for a cell, until it is dropped.
#[derive(Debug)]
pub enum Session {
    /// Nothing to set up; remembers what earlier connections have told.
    Sim(sim::Sim),
    /// Namespaces and links, with an engine's device at both ends.
    Links(Box<links::Links>),
    /// Namespaces and links.
    Kernel(Box<kernel::Kernel>),
}

impl Session {
    /// Run `index` of the cell that this was opened for.
    ///
    /// # Errors
    /// The run could not be made; one that does not complete is no error.
    pub fn run(&mut self, cell: &Cell, index: u64) -> Result<RunResult, Error> {
        match self {
            Session::Sim(sim) => sim.run(cell, index),
            Session::Links(links) => links.run(cell, index),
            Session::Kernel(kernel) => kernel.run(cell, index),
        }
    }

    /// Keeps each run from now on, however late the emulated links were. Without it such a run is made
    /// again, and given up with [`Error::Busy`] at last: its times tell nothing. For tests that judge no
    /// time, which must hold on a busy machine too.
    pub fn keep_late_runs(&mut self) {
        match self {
            Session::Sim(_) => {}
            Session::Links(links) => links.keep_late_runs(),
            Session::Kernel(kernel) => kernel.keep_late_runs(),
        }
    }

    /// Runs that were made again because the machine was late: what they measured was thrown
    /// away.
    pub fn repeated(&self) -> u64 {
        match self {
            Session::Sim(_) => 0,
            Session::Links(links) => links.repeated(),
            Session::Kernel(kernel) => kernel.repeated(),
        }
    }
}

/// Ends runs in wall-clock time soon, with an error: for a handler of signals, so that what they
/// set up is taken down.
pub fn interrupt() {
    bed::interrupt();
}

impl FromStr for Arm {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Self, UnknownName> {
        let arm = Arm::ALL.into_iter().find(|arm| arm.name() == name);
        arm.ok_or_else(|| UnknownName::new("arm", name, &Arm::ALL.map(Arm::name)))
    }
}
