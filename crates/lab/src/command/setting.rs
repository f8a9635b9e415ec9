//! Preparation of the machine and the terminal for measurements.

use std::num::NonZero;
use std::thread;

use crate::backend::{self, Backend};
use indicatif::{ProgressBar, ProgressStyle};

use crate::command::testbed;
use braid::failure::Failure;

/// Checks that `backend` can run on this machine. Makes signals end its runs in an orderly way, so that
/// namespaces and links are removed. Call it before anything is started: a signal before it ends the process at
/// once.
pub fn prepare(backend: Backend) -> Result<(), Failure> {
    if backend.is_virtual() {
        return Ok(());
    }
    testbed::netns_allowed()?;
    ctrlc::set_handler(backend::interrupt).map_err(|e| Failure::run("cannot handle signals", e))
}

/// Returns the number of processors that this process may use; 1 if it is not known.
pub fn cores() -> usize {
    thread::available_parallelism().map_or(1, NonZero::get)
}

/// Returns a progress bar on standard error. It is hidden if standard error is no terminal.
pub fn progress_bar(runs: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} runs {elapsed} (left: {eta})");
    ProgressBar::new(runs).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}
