//! What measurements need of the machine and the terminal.

use std::num::NonZero;
use std::thread;

use crate::arm::{self, Arm};
use indicatif::{ProgressBar, ProgressStyle};

use crate::command::testbed;
use braid::failure::Failure;

/// Makes sure that `arm` can run here; to be called before anything is started. What arms set up
/// is taken down also where a signal ends the command.
pub fn prepare(arm: Arm) -> Result<(), Failure> {
    if arm.is_virtual() {
        return Ok(());
    }
    testbed::netns_allowed()?;
    ctrlc::set_handler(arm::interrupt).map_err(|e| Failure::run("cannot handle signals", e))
}

/// Processors to spread runs over.
pub fn cores() -> usize {
    thread::available_parallelism().map_or(1, NonZero::get)
}

/// A bar on the terminal; nothing where standard error is none.
pub fn progress_bar(runs: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} runs {elapsed} (left: {eta})");
    ProgressBar::new(runs).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}
