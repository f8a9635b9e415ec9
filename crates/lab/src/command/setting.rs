//! Preparation of the machine, progress bars and output, for all commands.

use std::fmt::Display;
use std::num::NonZero;
use std::thread;

use braid_testbed::netns;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use crate::backend;
use braid::failure::Failure;
use braid::print::{print, print_json};

/// Checks that this machine can have emulated links, and handles signals, so that an interrupted command still
/// removes its namespaces and links. Must be called before anything is started: without root it starts this
/// program again in a user namespace.
pub fn prepare_links() -> Result<(), Failure> {
    ensure_netns()?;
    ctrlc::set_handler(backend::interrupt).map_err(|e| Failure::run("cannot handle signals", e))
}

/// Makes sure that this process may make network namespaces, or fails with the reason. Without root it starts
/// this program again in a user namespace.
pub fn ensure_netns() -> Result<(), Failure> {
    netns::ensure_capable()
        .map(drop)
        .map_err(|reason| Failure::run("cannot make network namespaces", reason))
}

/// Returns the number of processors: one thread of runs for each.
pub fn cores() -> usize {
    thread::available_parallelism().map_or(1, NonZero::get)
}

/// Returns a progress bar of runs on standard error.
pub fn run_progress(runs: u64) -> ProgressBar {
    progress_bar(runs, "{bar:40} {pos}/{len} runs {elapsed} (left: {eta})")
}

/// Returns a progress bar on standard error. It is hidden if standard error is no terminal.
pub fn progress_bar(len: u64, template: &str) -> ProgressBar {
    let style = ProgressStyle::with_template(template);
    ProgressBar::new(len).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

/// Prints a result: `value` as JSON, or `text`.
pub fn print_result<T: Display>(
    json: bool,
    value: &impl Serialize,
    text: impl FnOnce() -> T,
) -> Result<(), Failure> {
    if json {
        print_json(value)
    } else {
        print(text())
    }
}

/// Returns rows as lines of text. Columns are two spaces apart; the first `left` of them are aligned left, the
/// others right.
pub fn aligned(rows: &[Vec<String>], left: usize) -> String {
    let width = |n: usize| rows.iter().map(|row| row[n].chars().count()).max();
    let columns = rows.first().map_or(0, Vec::len);
    let widths: Vec<usize> = (0..columns).filter_map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).enumerate();
        let cells = cells.map(|(n, (cell, width))| {
            if n < left {
                format!("{cell:<width$}")
            } else {
                format!("{cell:>width$}")
            }
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    rows.iter().map(line).collect()
}

/// Returns the last `n` lines of a log, or all if there are fewer.
pub fn last_lines(log: &str, n: usize) -> impl Iterator<Item = &str> {
    let skipped = log.lines().count().saturating_sub(n);
    log.lines().skip(skipped)
}
