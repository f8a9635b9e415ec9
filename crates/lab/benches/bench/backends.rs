//! Mean flow completion times of the simulator against emulated links: the same flows by the same
//! engine, which lose the packets of the same numbers.

use braid::failure::Failure;
use braid_lab::backend::Backend;
use braid_lab::fct::{self, Row};
use serde::Serialize;

use crate::sim;

const PATHS: [&str; 2] = [
    "5mbit,40ms,0%;5mbit,100ms,0%",
    "5mbit,40ms,1%;5mbit,100ms,1%",
];
const SIZES: [&str; 4] = ["16k", "64k", "256k", "1M"];
/// Largest difference between the means: this share of the simulator's mean plus this many
/// milliseconds.
const MAX_DIFFERENCE_SHARE: f64 = 0.05;
const MAX_DIFFERENCE_MS: f64 = 3.0;

/// Both means of one case, and the verdict on their difference.
#[derive(Debug, Serialize)]
pub struct Agreement {
    paths: String,
    size: String,
    runs: u64,
    sim_ms: f64,
    links_ms: f64,
    difference_ms: f64,
    bar_ms: f64,
    holds: bool,
}

/// Measures every case with `runs` runs on each backend.
pub fn measure(runs: u64) -> Result<Vec<Agreement>, Failure> {
    let cases = PATHS.iter().flat_map(|p| SIZES.map(|size| (*p, size)));
    cases
        .map(|(paths, size)| agreement(paths, size, runs))
        .collect()
}

fn agreement(paths: &str, size: &str, runs: u64) -> Result<Agreement, Failure> {
    let case = sim::case(paths, size)?;
    let mean = |backend| {
        let row = Row::new(&case, backend, &fct::run(&case, backend, runs, 1, &|| ())?);
        let whole = row.fct_ms.mean.filter(|_| row.completed == runs);
        let missing = || Failure::Run(format!("{} of {runs} runs completed", row.completed));
        whole.ok_or_else(missing)
    };
    let (sim_ms, links_ms) = (mean(Backend::Sim)?, mean(Backend::Links)?);
    let difference_ms = links_ms - sim_ms;
    let bar_ms = MAX_DIFFERENCE_SHARE * sim_ms + MAX_DIFFERENCE_MS;
    Ok(Agreement {
        paths: paths.to_owned(),
        size: size.to_owned(),
        runs,
        sim_ms,
        links_ms,
        difference_ms,
        bar_ms,
        holds: difference_ms.abs() <= bar_ms,
    })
}

/// Prints the rows as text.
pub fn print(rows: &[Agreement]) {
    println!(
        "mean flow completion time, simulator and emulated links, ms ({}, cubic):",
        braid_strategy::DEFAULT
    );
    println!(
        "{:<32} {:>5} {:>5} {:>8} {:>8} {:>7} {:>6}",
        "paths", "size", "runs", "sim", "links", "differ", "bar"
    );
    for row in rows {
        println!(
            "{:<32} {:>5} {:>5} {:>8.1} {:>8.1} {:>+7.1} {:>6.1}  {}",
            row.paths,
            row.size,
            row.runs,
            row.sim_ms,
            row.links_ms,
            row.difference_ms,
            row.bar_ms,
            if row.holds { "holds" } else { "misses" }
        );
    }
}
