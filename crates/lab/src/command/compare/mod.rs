//! `braid-lab compare`: Braid beside the kernel's Multipath TCP over the same two emulated links.
//!
//! The demo shows that Braid and the kernel both use the sum of two links' rates. This command measures
//! what else users notice: a page and an echo while a download fills the links, small transfers, a link
//! that dies, and connections a second. It also measures the processor time of a download. In the column
//! `kernel`, relays of kernel sockets replace box and server, as in the demo. Each column has separate
//! hosts and links. The columns take turns, so that changes of the machine's load affect both.

mod measure;
mod variant;

use std::fmt;

use serde::Serialize;

use self::measure::Samples;
use self::variant::Variant;
use super::demo::fixture::{self, LINKS};
use super::demo::interrupt::Interrupt;
use super::testbed;
use crate::cli::CompareArgs;
use crate::stats;
use braid::failure::Failure;
use braid::print::{print, print_json};

/// Runs the comparison. The testbeds are taken down before this returns, even after a failure.
pub fn run(args: &CompareArgs, json: bool) -> Result<(), Failure> {
    if args.links.len() != LINKS.len() {
        let given = args.links.len();
        return Err(Failure::Usage(format!(
            "--link is given {given} times; give it {} times, once for each link",
            LINKS.len()
        )));
    }
    testbed::ensure_netns()?;
    let interrupt = Interrupt::install()?;
    let mut kernel = Variant::kernel(args, interrupt.clone())?;
    let mut braid = Variant::braid(args, interrupt)?;
    let mut samples = [Samples::default(), Samples::default()];
    for round in 1..=args.rounds {
        for (variant, samples) in [&mut kernel, &mut braid].into_iter().zip(&mut samples) {
            eprintln!("round {round} of {}: {}", args.rounds, variant.name);
            measure::round(variant, samples)?;
        }
    }
    fixture::warn_if_busy(kernel.lateness_us()?.max(braid.lateness_us()?));
    let [kernel, braid] = samples;
    let rows = rows(&kernel, &braid);
    if json {
        return print_json(&rows);
    }
    print(Table { rows: &rows, args })
}

/// One figure of both columns.
#[derive(Debug, Serialize)]
struct Row {
    /// Name and unit of the figure.
    figure: String,
    kernel: f64,
    braid: f64,
    /// `braid / kernel`.
    ratio: f64,
}

impl Row {
    fn new(figure: impl Into<String>, kernel: f64, braid: f64) -> Row {
        Row {
            figure: figure.into(),
            kernel,
            braid,
            ratio: braid / kernel,
        }
    }
}

fn rows(kernel: &Samples, braid: &Samples) -> Vec<Row> {
    type Values = fn(&Samples) -> &Vec<f64>;
    let mut rows = Vec::new();
    // The closures are separate, so that the rows of small transfers can be added between them.
    let mut add = |name: &str, q: f64, values: Values| {
        rows.push(Row::new(
            name,
            stats::quantile_of(values(kernel), q),
            stats::quantile_of(values(braid), q),
        ));
    };
    add("download, Mbit/s", 0.5, |s| &s.download_mbit_s);
    add("page beside a download, median ms", 0.5, |s| &s.page_ms);
    add("page beside a download, p95 ms", 0.95, |s| &s.page_ms);
    add("echo beside a download, median ms", 0.5, |s| &s.echo_ms);
    add("echo beside a download, p95 ms", 0.95, |s| &s.echo_ms);
    for (n, bytes) in measure::SIZES.into_iter().enumerate() {
        let mean = |samples: &Samples| stats::mean(&samples.small_ms[n]).unwrap_or(f64::NAN);
        let figure = format!("{} kB alone, mean ms", bytes / 1_000);
        rows.push(Row::new(figure, mean(kernel), mean(braid)));
    }
    let mut add = |name: &str, values: Values| {
        rows.push(Row::new(
            name,
            stats::quantile_of(values(kernel), 0.5),
            stats::quantile_of(values(braid), 0.5),
        ));
    };
    add("longest pause when link1 dies, median ms", |s| &s.pause_ms);
    add("connections a second", |s| &s.connections_s);
    add("processor time of the download, ms/Gbit", |s| {
        &s.cpu_ms_per_gbit
    });
    rows
}

/// The rows as a table.
struct Table<'a> {
    rows: &'a [Row],
    args: &'a CompareArgs,
}

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CompareArgs {
            links,
            rounds,
            congestion,
        } = self.args;
        for (name, link) in LINKS.iter().zip(links) {
            writeln!(f, "{name}: {link}")?;
        }
        writeln!(
            f,
            "congestion control {congestion} everywhere; rounds in turn: {rounds}"
        )?;
        writeln!(f, "page: {}\n", measure::PAGE)?;
        writeln!(f, "{:<42}{:>10}{:>10}{:>8}", "", "kernel", "braid", "ratio")?;
        for row in self.rows {
            let Row {
                figure,
                kernel,
                braid,
                ratio,
            } = row;
            writeln!(f, "{figure:<42}{kernel:>10.1}{braid:>10.1}{ratio:>8.2}")?;
        }
        Ok(())
    }
}
