//! `braid-lab swarm`: random worlds.

use std::time::{Duration, Instant};

use crate::swarm::{self, Figures, Report, Worlds};
use serde_json::json;

use super::setting::{cores, print_result, run_progress};
use crate::cli::measure::SwarmArgs;
use braid::failure::Failure;

/// Runs the seeds, and fails if a rule was violated.
pub fn run(args: &SwarmArgs, json: bool, verbose: bool) -> Result<(), Failure> {
    let bar = run_progress(args.seeds);
    let start = Instant::now();
    // The command line refuses both options together.
    let worlds = match (args.attacked, args.tunnels) {
        (true, _) => Worlds::Attacked,
        (false, true) => Worlds::Tunnels,
        (false, false) => Worlds::All,
    };
    let report = swarm::run(worlds, args.first_seed, args.seeds, cores(), &|| bar.inc(1));
    let took = start.elapsed();
    bar.finish_and_clear();
    let value = json!({ "report": report, "wall_s": took.as_secs_f64() });
    print_result(json, &value, || text(&report, took, verbose))?;
    match report.violations.len() {
        0 => Ok(()),
        n => Err(Failure::Run(format!(
            "{n} of {} seeds violate a rule; the result has the command that repeats each of them",
            report.seeds
        ))),
    }
}

fn text(report: &Report, took: Duration, verbose: bool) -> String {
    let mut text = String::new();
    if verbose {
        for seed in report.first_seed..report.first_seed.saturating_add(report.seeds) {
            text += &format!("seed {seed}: {}\n", swarm::describe(report.worlds, seed));
        }
    }
    for violation in &report.violations {
        text += &format!("seed {}: {}\n", violation.seed, violation.what);
        text += &format!("  repeat it by: {}\n", violation.replay);
    }
    let Figures {
        connections,
        fallbacks,
        aborted,
        broken,
        cut_off,
        late,
        fast_opened,
        tunnelled,
        simulated_ns,
        packets,
        bytes,
        marked,
    } = report.figures;
    text + &format!(
        "{} seeds, {} violations: {connections} connections ({fallbacks} fallbacks, {aborted} \
         aborted, {broken} broken, {cut_off} cut off, {late} \
         ended late, {fast_opened} with payload in the SYN), {tunnelled} packets through tunnels, \
         {:.0} simulated s, {packets} packets ({marked} marked), {:.1} MB, {:.1} s\n",
        report.seeds,
        report.violations.len(),
        simulated_ns as f64 / 1e9,
        bytes as f64 / 1e6,
        took.as_secs_f64(),
    )
}
