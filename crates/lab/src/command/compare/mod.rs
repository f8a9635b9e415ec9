//! `braid-lab compare`: Braid beside the kernel's Multipath TCP over the same two emulated links.
//!
//! The demo shows that Braid and the kernel both use the sum of two links' rates. This command measures
//! what else users notice: a page and an echo while a download fills the links, small transfers, a link
//! that dies, and connections a second. It also measures the processor time of a download. In the column
//! `kernel`, relays of kernel sockets replace box and server, as in the demo. Each column has separate
//! hosts and links. The columns take turns, so that changes of the machine's load affect both.

mod measure;
mod variant;

use serde::Serialize;

use self::measure::Samples;
use self::variant::Variant;
use super::demo::fixture::{self, LINKS};
use super::setting::{prepare_links, print_result};
use crate::cli::CompareArgs;
use crate::stats;
use braid::failure::Failure;

/// Runs the comparison. The testbeds are taken down before this returns, even after a failure.
pub fn run(args: &CompareArgs, json: bool) -> Result<(), Failure> {
    if args.links.len() != LINKS.len() {
        let given = args.links.len();
        return Err(Failure::Usage(format!(
            "--link is given {given} times; give it {} times, once for each link",
            LINKS.len()
        )));
    }
    prepare_links()?;
    let mut kernel = Variant::up("kernel", args, true)?;
    let mut braid = Variant::up("braid", args, false)?;
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
    print_result(json, &rows, || text(&rows, args))
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

/// Returns a row for each figure, computed from the samples of both columns.
fn rows(kernel: &Samples, braid: &Samples) -> Vec<Row> {
    let median = |sample: &[f64]| stats::quantile_of(sample, 0.5);
    let p95 = |sample: &[f64]| stats::quantile_of(sample, 0.95);
    let mean = |sample: &[f64]| stats::mean(sample).unwrap_or(f64::NAN);
    let mut rows = Vec::new();
    let mut add = |figure: &str, value: &dyn Fn(&Samples) -> f64| {
        let (kernel, braid) = (value(kernel), value(braid));
        rows.push(Row {
            figure: figure.to_owned(),
            kernel,
            braid,
            ratio: braid / kernel,
        });
    };
    add("download, Mbit/s", &|s| median(&s.download_mbit_s));
    add("page beside a download, median ms", &|s| median(&s.page_ms));
    add("page beside a download, p95 ms", &|s| p95(&s.page_ms));
    add("echo beside a download, median ms", &|s| median(&s.echo_ms));
    add("echo beside a download, p95 ms", &|s| p95(&s.echo_ms));
    for (n, bytes) in measure::SIZES.into_iter().enumerate() {
        let figure = format!("{} kB alone, mean ms", bytes / 1_000);
        add(&figure, &|s| mean(&s.small_ms[n]));
    }
    add("longest pause when link1 dies, median ms", &|s| {
        median(&s.pause_ms)
    });
    add("connections a second", &|s| median(&s.connections_s));
    add("processor time of the download, ms/Gbit", &|s| {
        median(&s.cpu_ms_per_gbit)
    });
    rows
}

/// Returns the rows as a table.
fn text(rows: &[Row], args: &CompareArgs) -> String {
    let links = LINKS.iter().zip(&args.links);
    let links: String = links
        .map(|(name, link)| format!("{name}: {link}\n"))
        .collect();
    let mut text = format!(
        "{links}congestion control {} everywhere; rounds in turn: {}\npage: {}\n\n\
         {:<42}{:>10}{:>10}{:>8}\n",
        args.congestion,
        args.rounds,
        measure::PAGE,
        "",
        "kernel",
        "braid",
        "ratio"
    );
    for row in rows {
        text += &format!(
            "{:<42}{:>10.1}{:>10.1}{:>8.2}\n",
            row.figure, row.kernel, row.braid, row.ratio
        );
    }
    text
}
