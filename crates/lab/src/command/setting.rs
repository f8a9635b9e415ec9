//! Preparation of the machine and the terminal for measurements.

use std::num::NonZero;
use std::thread;

use crate::backend::{self, Backend};
use indicatif::{ProgressBar, ProgressStyle};

use crate::command::testbed;
use braid::failure::Failure;

/// Checks that `backend` can run here, and handles signals, so that an interrupted run still removes its
/// namespaces and links. Must be called before anything is started: without root it starts this program
/// again in a user namespace.
pub fn prepare(backend: Backend) -> Result<(), Failure> {
    if backend.is_virtual() {
        return Ok(());
    }
    testbed::ensure_netns()?;
    ctrlc::set_handler(backend::interrupt).map_err(|e| Failure::run("cannot handle signals", e))
}

/// Returns the number of processors: one thread of runs for each.
pub fn cores() -> usize {
    thread::available_parallelism().map_or(1, NonZero::get)
}

/// Returns a progress bar on standard error. It is hidden if standard error is no terminal.
pub fn progress_bar(runs: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} runs {elapsed} (left: {eta})");
    ProgressBar::new(runs).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}
