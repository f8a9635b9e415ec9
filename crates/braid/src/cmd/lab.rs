//! `braid lab`: experiments.

mod fct;

use std::num::NonZero;
use std::thread;

use crate::cli::lab::Lab;
use crate::failure::Failure;

/// Runs a command of the lab.
pub fn run(command: &Lab, json: bool) -> Result<(), Failure> {
    match command {
        Lab::Fct(args) => fct::run(args, json),
    }
}

/// Processors to spread runs over.
fn cores() -> usize {
    thread::available_parallelism().map_or(1, NonZero::get)
}
