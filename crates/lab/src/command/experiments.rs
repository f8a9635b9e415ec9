//! `braid-lab list`, `run` and `report`: experiments.

use std::fs;
use std::path::Path;

use crate::backend::{Backend, Error};
use crate::experiments::{self, ALL, Definition, Outcome, Request};
use crate::report;
use serde_json::json;

use super::setting::{cores, prepare, progress_bar};
use crate::cli::measure::{ReportArgs, RunArgs};
use braid::failure::Failure;
use braid::print::{print, print_json};

/// The ID that stands for all experiments.
const ALL_IDS: &str = "all";

/// Prints ids and titles of all experiments, or of those that run on `backend`.
pub fn list(backend: Option<Backend>, json: bool) -> Result<(), Failure> {
    let runs = |d: &&Definition| backend.is_none_or(|backend| d.backends.contains(&backend));
    let listed: Vec<&Definition> = ALL.iter().filter(runs).collect();
    if json {
        let each = |d: &&Definition| json!({ "id": d.id, "title": d.title, "source": d.source });
        return print_json(&listed.iter().map(each).collect::<Vec<_>>());
    }
    let width = listed.iter().map(|d| d.id.len()).max().unwrap_or(0);
    let line = |d: &&Definition| format!("{:width$}  {} ({})\n", d.id, d.title, d.source);
    print(listed.iter().map(line).collect::<String>())
}

/// Runs the experiments one after the other and stores the results of each. If there are several, an
/// experiment whose external program is not installed is skipped with a message.
pub fn run(args: &RunArgs, json: bool) -> Result<(), Failure> {
    let chosen = chosen(&args.ids, args.backend)?;
    // One experiment over real links is enough to need namespaces and signal handling.
    let real = chosen.iter().find(|(_, backend)| !backend.is_virtual());
    prepare(real.map_or(Backend::Sim, |(_, backend)| *backend))?;
    for (definition, backend) in &chosen {
        // All directories are checked first, since a run may take hours.
        report::prepare(&args.out, definition.id, backend.name()).map_err(Failure::Run)?;
    }
    let is_single = chosen.len() == 1;
    let mut outcomes = Vec::new();
    for (definition, backend) in chosen {
        let runs = args.runs.unwrap_or(definition.default_runs(backend));
        let bar = progress_bar(definition.cases(backend) as u64 * runs);
        let found = definition.run(Request {
            backend,
            runs,
            seed: args.seed,
            threads: cores(),
            progress: &|| bar.inc(1),
        });
        bar.finish_and_clear();
        let found = match found {
            Err(Error::Missing(why)) if !is_single => {
                eprintln!("braid-lab: {} is skipped: {why}", definition.id);
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

/// Returns the experiments to run, each with its backend. `all` among `ids` selects every experiment.
/// Experiments that do not run on `backend` are then left out with a message.
fn chosen(
    ids: &[String],
    backend: Option<Backend>,
) -> Result<Vec<(&'static Definition, Backend)>, Failure> {
    let with_backend = |d: &'static Definition| Ok::<_, Error>((d, d.backend(backend)?));
    let named = ids.iter().filter(|id| *id != ALL_IDS);
    let named = named.map(|id| experiments::find(id));
    let named: Vec<&'static Definition> = named.collect::<Result<_, _>>()?;
    if named.len() < ids.len() {
        let left_out = |e: Error| eprintln!("braid-lab: left out: {e}");
        let all = ALL.iter().map(|d| with_backend(d).map_err(left_out));
        return Ok(all.filter_map(Result::ok).collect());
    }
    named.into_iter().map(|d| Ok(with_backend(d)?)).collect()
}

fn verdicts(outcome: &Outcome, place: &Path) -> String {
    let mut text = format!("{} ({}): {}\n", outcome.id, outcome.backend, outcome.title);
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

/// Writes the report's HTML and Markdown pages from stored results, and prints their paths.
pub fn report(args: &ReportArgs, json: bool) -> Result<(), Failure> {
    let directory = &args.directory;
    let stored = report::load(directory).map_err(Failure::Usage)?;
    let markdown = match (&args.markdown, &args.figures) {
        (Some(page), Some(figures)) => (page.clone(), report::publish(&stored, page, figures)?),
        _ => (directory.join("report.md"), report::markdown(&stored)),
    };
    let mut files = Vec::new();
    for (file, text) in [
        (directory.join("report.html"), report::html(&stored)),
        markdown,
    ] {
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
