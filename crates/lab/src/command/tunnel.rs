//! `braid-lab tunnel` measures a flow through a tunnel.

use std::iter;

use braid::failure::Failure;

use super::setting::{aligned, cores, print_result, run_progress};
use crate::backend::Error;
use crate::cli::measure::TunnelArgs;
use crate::tunnel::{self, Row, TunnelCase};

/// Measures the chosen modes and prints one row for each.
pub fn run(args: &TunnelArgs, json: bool) -> Result<(), Failure> {
    let case = case(args)?;
    let all_runs = args
        .mode
        .iter()
        .map(|mode| tunnel::run_count(&case, *mode))
        .sum();
    let bar = run_progress(all_runs);
    let mut rows = Vec::new();
    let mut missing = 0;
    for mode in args.mode {
        let results = tunnel::run(&case, *mode, cores(), &|| bar.inc(1))?;
        // Of mode `single`, `tunnel::run` returns only the runs on the best path. Downloads that the other paths did
        // not complete are in no row.
        missing += results.iter().filter(|run| !run.completed).count();
        rows.push(Row::new(&case, *mode, &results));
    }
    bar.finish_and_clear();
    print_result(json, &rows, || text(&rows, &case))?;
    // The rows are worth printing all the same, but a script must notice that downloads are incomplete.
    match missing {
        0 => Ok(()),
        n => Err(Failure::Run(format!(
            "{n} downloads did not complete in time; their goodput counts the bytes that arrived"
        ))),
    }
}

/// Returns the case that the command line describes.
fn case(args: &TunnelArgs) -> Result<TunnelCase, Error> {
    let size = match &args.size {
        Some(size) => size.clone(),
        None => args.inner.default_size().parse()?,
    };
    Ok(TunnelCase {
        paths: args.paths.clone(),
        inner: args.inner,
        size,
        queue: args.queue,
        runs: args.runs,
        seed: args.seed,
    })
}

/// Returns the rows as a table, after the settings that they have in common and an explanation of the columns. There
/// is a row for each mode, and at least one mode.
fn text(rows: &[Row], case: &TunnelCase) -> String {
    let heads = cells(&rows[0]).map(|(head, _)| head.to_owned());
    let figures = rows.iter().map(|row| cells(row).map(|(_, cell)| cell));
    let lines: Vec<_> = iter::once(heads).chain(figures).map(Vec::from).collect();
    format!(
        // The command line accepts no other backend.
        "paths {}, queue {} packets where a path has none of its own, flow {}, size {}, backend sim, {} runs, seed {}\n\
         goodput: mean ± half of its 95 % interval, Mbit/s; p50, p99: one-way delay of inner packets, ms\n\
         lost, reordered: inner packets of all runs; bytes by path: sent to the client in all runs\n{}",
        case.paths,
        case.queue,
        case.inner,
        case.size,
        case.runs,
        case.seed,
        // The first column has names, the others numbers.
        aligned(&lines, 1)
    )
}

/// Returns the cells of a row, each with the head of its column.
fn cells(row: &Row) -> [(&'static str, String); 7] {
    let goodput = &row.goodput_mbit_s;
    let mean = number(goodput.mean);
    let bytes: Vec<String> = row.bytes_by_path.iter().map(u64::to_string).collect();
    [
        ("mode", row.mode.to_owned()),
        (
            "goodput",
            goodput
                .ci95
                .map_or(mean.clone(), |ci95| format!("{mean} ± {ci95:.1}")),
        ),
        ("p50", number(row.delay_ms.p50)),
        ("p99", number(row.delay_ms.p99)),
        ("lost", row.lost.to_string()),
        ("reordered", row.reordered.to_string()),
        ("bytes by path", bytes.join(" / ")),
    ]
}

fn number(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.1}"))
}
