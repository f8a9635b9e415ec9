//! Speed of the simulator. Needs no privileges.

use std::num::NonZero;
use std::thread;
use std::time::Instant;

use braid::failure::Failure;
use braid_lab::backend::Backend;
use braid_lab::fct::{self, Case};
use serde::Serialize;

/// Least simulated seconds per second, and the goal.
const SPEED_BAR: f64 = 400.0;
const SPEED_GOAL: f64 = 1000.0;
/// Most seconds that the table may take on two cores.
const TABLE_BAR: f64 = 20.0;

/// Flow sizes and losses of the poor path of the table's 40 cases.
const SIZES: [&str; 8] = ["4k", "8k", "16k", "32k", "64k", "256k", "512k", "1M"];
const LOSSES: [&str; 5] = ["0%", "0.5%", "1%", "2%", "5%"];
const RUNS: u64 = 100;

/// The simulator's speed in one transfer and in a table.
#[derive(Debug, Serialize)]
pub struct Sim {
    /// Simulated seconds per second of one greedy transfer over two paths of 5 Mb/s, on one core.
    simulated_s_per_s: f64,
    speed_bar: f64,
    speed_holds: bool,
    /// Time of 40 cases of 100 runs, s.
    table_s: f64,
    table_cores: usize,
    table_bar: f64,
    table_holds: bool,
}

/// Measures the transfer and the table.
pub fn measure() -> Result<Sim, Failure> {
    let simulated_s_per_s = speed()?;
    let table_cores = thread::available_parallelism().map_or(1, NonZero::get);
    let table_s = table(table_cores)?;
    Ok(Sim {
        simulated_s_per_s,
        speed_bar: SPEED_BAR,
        speed_holds: simulated_s_per_s >= SPEED_BAR,
        table_s,
        table_cores,
        table_bar: TABLE_BAR,
        table_holds: table_s <= TABLE_BAR,
    })
}

/// Returns simulated seconds per second, the median of five transfers.
fn speed() -> Result<f64, Failure> {
    let case = case("5mbit,40ms,0%;5mbit,40ms,0%", "512M")?;
    let mut session = Backend::Sim.open(&case)?;
    let mut speeds = Vec::new();
    for index in 0..5 {
        let start = Instant::now();
        let result = session.run(&case, index)?;
        speeds.push(result.fct.as_secs_f64() / start.elapsed().as_secs_f64());
    }
    speeds.sort_unstable_by(f64::total_cmp);
    Ok(speeds[speeds.len() / 2])
}

/// Returns the seconds that the table takes.
fn table(cores: usize) -> Result<f64, Failure> {
    let start = Instant::now();
    for loss in LOSSES {
        for size in SIZES {
            let case = case(&format!("5mbit,40ms,0%;5mbit,100ms,{loss}"), size)?;
            fct::run(&case, Backend::Sim, RUNS, cores, &|| ())?;
        }
    }
    Ok(start.elapsed().as_secs_f64())
}

/// Returns the case of a download with the default strategy.
pub fn case(paths: &str, size: &str) -> Result<Case, Failure> {
    let paths = paths.parse().map_err(|e| Failure::run("paths", e))?;
    let size = size.parse().map_err(|e| Failure::run("size", e))?;
    Ok(Case::new(paths, size))
}

impl Sim {
    /// Prints both figures as text.
    pub fn print(&self) {
        println!(
            "simulator: {:.0} simulated seconds a second (2 paths of 5 Mb/s, one greedy transfer, \
             one core; bar {SPEED_BAR}, goal {SPEED_GOAL})",
            self.simulated_s_per_s
        );
        println!(
            "simulator: {:.1} s for a table of {} cells of {RUNS} runs on {} cores (bar {TABLE_BAR} \
             on 2)",
            self.table_s,
            SIZES.len() * LOSSES.len(),
            self.table_cores
        );
    }
}
