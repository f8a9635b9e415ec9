//! `braid-lab search`: random draws in which `adaptive` may lose.

use std::fs;
use std::iter;
use std::time::{Duration, Instant};

use super::setting::{aligned, cores, print_result, progress_bar};
use crate::cli::measure::SearchArgs;
use crate::search::{self, Contest, Report, Searched, Variant, command, first_command};
use braid::failure::Failure;

/// Exit code of a search in which a figure does not hold.
const DOES_NOT_HOLD: u8 = 3;

/// Searches, and prints the figures that must hold and the lost draws.
pub fn run(args: &SearchArgs, json: bool) -> Result<(), Failure> {
    let bar = progress_bar(
        args.draws,
        "{bar:40} {pos}/{len} draws {elapsed} (left: {eta})",
    );
    let begin = Instant::now();
    let time = args.seconds.map_or(Duration::MAX, Duration::from_secs);
    let report = search::search(args.seed, args.draws, time, cores(), &|| bar.inc(1))?;
    let took = begin.elapsed();
    bar.finish_and_clear();
    let value = report.json();
    if let Some(directory) = &args.out {
        let path = directory.join(format!("search-{}.json", args.seed));
        fs::create_dir_all(directory)
            .and_then(|()| fs::write(&path, format!("{value:#}\n")))
            .map_err(|e| Failure::run(format!("cannot write {}", path.display()), e))?;
    }
    print_result(json, &value, || text(&report, args.draws, took))?;
    if report.figures().iter().all(|figure| figure.holds()) {
        Ok(())
    } else {
        Err(Failure::Found(DOES_NOT_HOLD))
    }
}

fn text(report: &Report, requested: u64, took: Duration) -> String {
    let mut text = String::new();
    for (heading, to_payers) in [
        ("Lost, the widest gap first", false),
        (
            "Lost only to a rival that sent more copies than adaptive may",
            true,
        ),
    ] {
        let lost = report.lost(to_payers);
        if !lost.is_empty() {
            text += &format!("{heading}:\n");
        }
        for (searched, contest) in lost {
            text += &lost_text(searched, contest);
        }
    }
    for searched in report.over_copies() {
        let copies = searched.measured[0].copies(&searched.draw) * 100.0;
        text += &format!(
            "draw {}: adaptive sent {copies:.2} % of the bytes as copies\n  {}\n",
            searched.draw.number,
            first_command(searched, Variant::CANDIDATE)
        );
    }
    for (searched, measured) in report.incomplete() {
        let reason = match &measured.failure {
            Some(failure) => failure.clone(),
            None => {
                let runs = measured.sample.ms.len();
                format!(
                    "{} of {runs} runs did not complete",
                    measured.sample.missing
                )
            }
        };
        let (number, name) = (searched.draw.number, measured.variant.name());
        let command = first_command(searched, measured.variant);
        text += &format!("draw {number}: {name}: {reason}\n  {command}\n");
    }
    let shares = report.shares().into_iter();
    let shares = shares.map(|(name, share)| format!("{name} {share:.3}"));
    text += &format!(
        "Geometric mean of the time of adaptive as a share of that of: {}\n",
        shares.collect::<Vec<_>>().join(", ")
    );
    let rows = report.figures().into_iter();
    let rows = rows.map(|figure| {
        let word = figure.word().to_owned();
        let bound = format!("{} {}", figure.bound, figure.unit);
        vec![figure.claim.clone(), bound, figure.measured(), word]
    });
    let head = ["figure", "must be", "measured", ""].map(str::to_owned);
    let rows = iter::once(Vec::from(head)).chain(rows);
    text += &aligned(&rows.collect::<Vec<_>>(), 4);
    let made = report.searched.len();
    let all = if made as u64 == requested {
        String::new()
    } else {
        format!(" of {requested}")
    };
    let (seed, seconds) = (report.seed, took.as_secs_f64());
    text + &format!("{made}{all} draws of seed {seed}, {seconds:.0} s\n")
}

/// Returns the lines on a lost draw: the gap, the command that repeats it, and what closes the gap.
fn lost_text(searched: &Searched, contest: &Contest) -> String {
    let [ours, theirs] = contest.ms;
    let paid = contest
        .paid
        .map(|copies| format!("; it sent {:.0} % copies", copies * 100.0));
    let closing = match contest.closed_by.as_deref().unwrap_or_default() {
        [] => "none of the changes tried".to_owned(),
        closing => closing.join(", "),
    };
    format!(
        "draw {}, {}: {} takes {theirs:.1} ms and adaptive {ours:.1} ms ({:.2} x): {}{}\n  {}\n  closed by: {}\n",
        searched.draw.number,
        searched.draw.start(),
        contest.rival.name(),
        contest.ratio(),
        contest.criterion().claim,
        paid.unwrap_or_default(),
        command(searched, contest),
        closing,
    )
}
