//! `braid lab`: experiments.

mod experiments;
mod fct;
mod setting;
mod swarm;

use crate::cli::lab::Lab;
use crate::failure::Failure;

/// Runs a command of the lab.
pub fn run(command: &Lab, json: bool, verbose: bool) -> Result<(), Failure> {
    match command {
        Lab::Fct(args) => fct::run(args, json),
        Lab::List { arm } => experiments::list(*arm, json),
        Lab::Run(args) => experiments::run(args, json),
        Lab::Swarm(args) => swarm::run(args, json, verbose),
        Lab::Report(args) => experiments::report(args, json),
    }
}
