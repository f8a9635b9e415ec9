//! `braid-lab tunnel`: a flow through a tunnel.

use std::iter;

use braid::failure::Failure;

use super::setting::{aligned, cores, print_result, run_progress};
use crate::backend::Error;
use crate::cli::measure::TunnelArgs;
use crate::tunnel::{self, Row, TunnelCase};

/// Measures every mode and prints one row for each.
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
        missing += results.iter().filter(|run| !run.completed).count();
        rows.push(Row::new(&case, *mode, &results));
    }
    bar.finish_and_clear();
    print_result(json, &rows, || text(&rows, &case))?;
    match missing {
        0 => Ok(()),
        n => Err(Failure::Run(format!(
            "{n} downloads did not complete in time; their goodput counts the bytes that arrived"
        ))),
    }
}

/// Returns the case of the command line.
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

/// Returns the rows as text, with what they have in common in front of the table.
fn text(rows: &[Row], case: &TunnelCase) -> String {
    let heads = cells(&rows[0]).map(|(head, _)| head.to_owned());
    let figures = rows.iter().map(|row| cells(row).map(|(_, cell)| cell));
    let lines: Vec<_> = iter::once(heads).chain(figures).map(Vec::from).collect();
    format!(
        "paths {}, {} of {}, backend sim, {} runs, seed {}\n\
         goodput in Mbit/s, mean ± 95 % interval; one-way delay of inner packets in ms\n{}",
        case.paths,
        case.inner,
        case.size,
        case.runs,
        case.seed,
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
