//! `braid lab list`, `run` and `report`: experiments.

use std::fs;
use std::path::Path;

use braid_lab::arm::{Arm, Error};
use braid_lab::experiments::{self, ALL, Definition, Outcome, Request};
use braid_lab::report;
use serde_json::json;

use super::setting::{cores, prepare, progress_bar};
use crate::cli::lab::RunArgs;
use crate::cmd::print::{print, print_json};
use crate::failure::Failure;

/// Prints ids and titles.
pub fn list(json: bool) -> Result<(), Failure> {
    if json {
        let each = |d: &Definition| json!({ "id": d.id, "title": d.title, "source": d.source });
        return print_json(&ALL.iter().map(each).collect::<Vec<_>>());
    }
    let width = ALL.iter().map(|d| d.id.len()).max().unwrap_or(0);
    let line = |d: &Definition| format!("{:width$}  {} ({})\n", d.id, d.title, d.source);
    print(ALL.iter().map(line).collect::<String>())
}

/// Runs the experiments one after the other and stores what each found. One that calls what is not
/// installed is skipped where there are others.
pub fn run(args: &RunArgs, json: bool) -> Result<(), Failure> {
    let definitions = args.ids.iter().map(|id| experiments::find(id));
    let definitions: Vec<&'static Definition> = definitions
        .collect::<Result<_, _>>()
        .map_err(|e| Failure::Usage(e.to_string()))?;
    let with_arm = |d: &'static Definition| Ok::<_, Error>((d, d.arm(args.arm)?));
    let chosen: Vec<(&Definition, Arm)> = definitions
        .into_iter()
        .map(with_arm)
        .collect::<Result<_, _>>()?;
    let real = chosen.iter().find(|(_, arm)| !arm.is_virtual());
    prepare(real.map_or(Arm::Sim, |(_, arm)| *arm))?;
    for (definition, arm) in &chosen {
        report::prepare(&args.out, definition.id, arm.name()).map_err(Failure::Run)?;
    }
    let mut outcomes = Vec::new();
    for (definition, arm) in chosen {
        let runs = args.runs.unwrap_or(definition.default_runs(arm));
        let bar = progress_bar((definition.cells)(arm) as u64 * runs);
        let found = definition.run(Request {
            arm,
            runs,
            seed: args.seed,
            threads: cores(),
            progress: &|| bar.inc(1),
        });
        bar.finish_and_clear();
        let found = match found {
            Err(Error::Missing(why)) if args.ids.len() > 1 => {
                eprintln!("braid: {} is skipped: {why}", definition.id);
                continue;
            }
            found => found?,
        };
        let place = report::store(&args.out, &found).map_err(Failure::Run)?;
        if !json {
            print(verdicts(&found.outcome, &place))?;
        }
        outcomes.push(found.outcome.json());
    }
    match json {
        true => print_json(&outcomes),
        false => Ok(()),
    }
}

fn verdicts(outcome: &Outcome, place: &Path) -> String {
    let mut text = format!("{} ({}): {}\n", outcome.id, outcome.arm, outcome.title);
    for verdict in &outcome.verdicts {
        let word = if verdict.holds {
            "holds        "
        } else {
            "DOES NOT HOLD"
        };
        text.push_str(&format!(
            "  {word}  {}; measured: {}\n",
            verdict.expected(),
            verdict.measured()
        ));
        if !verdict.why.is_empty() {
            text.push_str(&format!("                 {}\n", verdict.why));
        }
    }
    text.push_str(&format!("  results: {}\n", place.display()));
    text
}

/// Makes the report's two pages of the results in `directory`, and says where they are.
pub fn report(directory: &Path, json: bool) -> Result<(), Failure> {
    let stored = report::load(directory).map_err(Failure::Usage)?;
    let pages = [
        ("report.html", report::html(&stored)),
        ("report.md", report::markdown(&stored)),
    ];
    let mut files = Vec::new();
    for (name, text) in pages {
        let file = directory.join(name);
        let failed = |e| Failure::run(format_args!("cannot write {}", file.display()), e);
        fs::write(&file, text).map_err(failed)?;
        files.push(file.display().to_string());
    }
    let results = stored.len();
    let holding = stored.iter().filter(|s| s.outcome.holds()).count();
    if json {
        return print_json(&json!({ "pages": files, "results": results, "holding": holding }));
    }
    print(format_args!(
        "{}\n{holding} of {results} results hold\n",
        files.join("\n")
    ))
}
