//! The arms: ways to carry out one run of a [`Cell`].

pub mod sim;

use std::fmt;
use std::str::FromStr;

use crate::fct::{Cell, DefaultPath, RunResult, UnknownName};

/// How a cell is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arm {
    /// In the deterministic simulator.
    Sim,
}

impl Arm {
    /// All arms.
    pub const ALL: [Arm; 1] = [Arm::Sim];

    /// The name a user picks it by.
    pub fn name(self) -> &'static str {
        match self {
            Arm::Sim => "sim",
        }
    }

    /// Whether it runs in virtual time, so that runs side by side do not disturb each other.
    pub fn is_virtual(self) -> bool {
        match self {
            Arm::Sim => true,
        }
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
        match self {
            Arm::Sim => sim::check(cell),
        }
    }

    /// Run `index` of `cell`, which [`Self::check`] has passed.
    ///
    /// # Errors
    /// The run could not be made; one that does not complete is no error.
    pub fn run(self, cell: &Cell, index: u64) -> Result<RunResult, Error> {
        match self {
            Arm::Sim => sim::run(cell, index),
        }
    }
}

impl FromStr for Arm {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Self, UnknownName> {
        let arm = Arm::ALL.into_iter().find(|arm| arm.name() == name);
        arm.ok_or_else(|| UnknownName::new("arm", name, &Arm::ALL.map(Arm::name)))
    }
}

/// Why a cell could not be run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Error {
    /// It asks for what there is not: one line with what was read and what is expected.
    Usage(String),
    /// The run itself failed.
    Run(String),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Usage(text) | Error::Run(text) => f.write_str(text),
        }
    }
}

impl std::error::Error for Error {}
