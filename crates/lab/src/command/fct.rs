//! `braid-lab fct`: flow completion times.

use std::iter;

use crate::backend::Backend;
use crate::backend::sim::{self, Recording};
use crate::fct::{self, Case, Each, Row, Summary};

use super::setting::{aligned, cores, prepare_links, print_result, run_progress};
use crate::cli::measure::FctArgs;
use braid::failure::Failure;

/// Measures every case and prints one row for each.
pub fn run(args: &FctArgs, json: bool) -> Result<(), Failure> {
    let cases = cases(args);
    for case in &cases {
        args.backend.check(case)?;
    }
    record(args, &cases)?;
    if !args.backend.is_virtual() {
        prepare_links()?;
    }
    let all_runs = cases.len() as u64 * args.runs;
    let bar = run_progress(all_runs);
    let row = |case| {
        let results = fct::run(case, args.backend, args.runs, cores(), &|| bar.inc(1))?;
        Ok(Row {
            each: args.each.then(|| results.iter().map(Each::new).collect()),
            ..Row::new(case, args.backend, &results)
        })
    };
    let rows: Result<Vec<Row>, Failure> = cases.iter().map(row).collect();
    bar.finish_and_clear();
    let rows = rows?;
    print_result(json, &rows, || text(&rows, args))?;
    let missing: u64 = rows.iter().map(|row| row.runs - row.completed).sum();
    match missing {
        0 => Ok(()),
        n => Err(Failure::Run(format!(
            "{n} of {all_runs} runs did not complete; their times are not in the statistics"
        ))),
    }
}

/// Records the first run of each case, if `args` have directories for captures or logs.
fn record(args: &FctArgs, cases: &[Case]) -> Result<(), Failure> {
    let recording = Recording {
        captures: args.pcap.clone(),
        logs: args.log.clone(),
    };
    if recording == Recording::default() {
        return Ok(());
    }
    if !args.backend.is_virtual() {
        let text = format!(
            "--pcap and --log need --backend sim, but the backend is {}",
            args.backend.name()
        );
        return Err(Failure::Usage(text));
    }
    for case in cases {
        let name = format!("{}-{}-{}", case.strategy, case.cc, case.size);
        // The settings of a strategy may contain characters that are unsafe in file names.
        let is_safe = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
        let name = name.replace(|c| !is_safe(c), "_");
        sim::record(case, 0, &recording, &name)?;
    }
    Ok(())
}

/// Returns a case for every combination of size, congestion control and strategy.
fn cases(args: &FctArgs) -> Vec<Case> {
    // The kernel has its own strategy, so further names would only repeat the same cases.
    let mut strategies = braid_strategy::split_list(&args.strategy);
    if args.backend == Backend::Kernel {
        strategies.truncate(1);
    }
    let mut cases = Vec::new();
    for size in &args.size {
        for cc in &args.cc {
            for strategy in &strategies {
                cases.push(Case {
                    paths: args.paths.clone(),
                    size: size.clone(),
                    flows: args.flows,
                    strategy: strategy.clone(),
                    cc: cc.clone(),
                    default_path: args.default_path,
                    warm_subflows: args.warm_subflows,
                    records: args.records,
                    initial_window: args.iw,
                    declare_size: args.declare == "size",
                    queue: args.queue,
                    direction: args.direction,
                    outage: None,
                    seed: args.seed,
                });
            }
        }
    }
    cases
}

/// Returns the rows as text, with what they have in common in front of the table.
fn text(rows: &[Row], args: &FctArgs) -> String {
    let start = match args.warm_subflows {
        // The subflows are established before the transfer.
        true => "start of the transfer",
        false => "first SYN",
    };
    let heads = cells(&rows[0]).map(|(head, _)| head.to_owned());
    let figures = rows.iter().map(|row| cells(row).map(|(_, cell)| cell));
    let lines: Vec<_> = iter::once(heads).chain(figures).map(Vec::from).collect();
    let (flows, over_flows) = match args.flows {
        1 => (String::new(), ""),
        n => (
            format!(", {n} flows at once"),
            ", of a run the mean over its flows",
        ),
    };
    format!(
        "paths {}, {}{flows}, backend {}, {} runs, seed {}\n\
         fct: from the {start} to the last byte; data: from the first byte; times in ms{over_flows}, \
         mean ± 95 % interval\n{}{}",
        args.paths,
        args.direction,
        args.backend.name(),
        args.runs,
        args.seed,
        aligned(&lines, 2),
        rows.iter().map(each).collect::<String>()
    )
}

/// Returns a table of the single runs of a row; empty if they were not requested.
fn each(row: &Row) -> String {
    let Some(each) = &row.each else {
        return String::new();
    };
    let head = ["run", "fct", "data", "each flow"].map(str::to_owned);
    let lines = each.iter().enumerate().map(|(index, run)| {
        let flows = joined(&run.flows_ms, |time| format!("{time:.1}"));
        vec![
            index.to_string(),
            ms(run.fct_ms),
            ms(run.fct_data_ms),
            flows,
        ]
    });
    let lines: Vec<_> = iter::once(Vec::from(head)).chain(lines).collect();
    let Row {
        strategy, cc, size, ..
    } = row;
    format!("\n{strategy} {cc} {size}\n{}", aligned(&lines, 0))
}

/// Returns the cells of a row, each with the head of its column. Names come first, then figures.
fn cells(row: &Row) -> [(&'static str, String); 13] {
    let percent = |share: &f64| format!("{:.1}%", share * 100.0);
    [
        ("strategy", row.strategy.clone()),
        ("cc", row.cc.clone()),
        ("size", row.size.clone()),
        ("fct", mean(&row.fct_ms)),
        ("median", ms(row.fct_ms.median)),
        ("p95", ms(row.fct_ms.p95)),
        ("p99", ms(row.fct_ms.p99)),
        ("data", mean(&row.fct_data_ms)),
        ("bytes by path", joined(&row.bytes_by_path, u64::to_string)),
        ("copies", joined(&row.copy_share_by_path, percent)),
        ("joins", row.join_syns.to_string()),
        ("retx", row.retransmissions.to_string()),
        ("completed", format!("{}/{}", row.completed, row.runs)),
    ]
}

fn joined<T>(values: &[T], show: impl Fn(&T) -> String) -> String {
    values.iter().map(show).collect::<Vec<_>>().join(" / ")
}

fn mean(times: &Summary) -> String {
    match times.ci95 {
        Some(ci95) => format!("{} ± {ci95:.1}", ms(times.mean)),
        None => ms(times.mean),
    }
}

fn ms(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), |ms| format!("{ms:.1}"))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command};

    /// Checks that the command that a failing run prints repeats that run.
    #[test]
    fn the_command_of_a_case_gives_that_case() {
        let read = |line: &str| {
            let words = line.split(' ').map(|word| word.trim_matches('\''));
            match Cli::try_parse_from(words).map(|cli| cli.command) {
                Ok(Command::Fct(args)) => (cases(&args), args.runs),
                other => panic!("{other:?}"),
            }
        };
        for line in [
            "braid-lab fct --paths '5mbit,40ms,0%;5mbit,100ms,2%' --size 64k",
            "braid-lab fct --paths '5mbit,40ms,0%,9;1mbit,1s,0.5%' --size 1M --cc reno --seed 9 \
             --default-path mix --warm-subflows --records warm --iw 3 --declare none --queue 7 \
             --direction up",
            "braid-lab fct --paths 'swing:5mbit/50%/200ms/7,40ms,1%/4,50ms,jitter=5ms' --size 64k --flows 32",
        ] {
            let (first, _) = read(line);
            let again = read(&first[0].command(17));
            assert_eq!(again, (first, 17));
        }
    }
}
