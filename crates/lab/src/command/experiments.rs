//! `braid-lab list`, `run` and `report`: experiments.

use std::path::Path;

use crate::backend::{Backend, Error};
use crate::experiments::{self, ALL, Definition, Outcome, Request};
use crate::report;
use serde_json::json;

use super::setting::{aligned, cores, prepare_links, print_result, run_progress};
use crate::cli::measure::{ReportArgs, RunArgs};
use braid::failure::Failure;
use braid::print::{print, print_json};

/// The ID that stands for all experiments.
const ALL_IDS: &str = "all";

/// Prints ids and titles of all experiments, or of those that run on `backend`.
pub fn list(backend: Option<Backend>, json: bool) -> Result<(), Failure> {
    let runs = |d: &&Definition| backend.is_none_or(|b| d.entry.backends.contains(&b));
    let listed: Vec<&Definition> = ALL.iter().filter(runs).collect();
    let each = |Definition { id, entry, .. }: &&Definition| json!({ "id": id, "title": entry.title, "source": entry.source });
    let value: Vec<_> = listed.iter().map(each).collect();
    let line = |Definition { id, entry, .. }: &&Definition| {
        vec![
            (*id).to_owned(),
            format!("{} ({})", entry.title, entry.source),
        ]
    };
    let lines: Vec<_> = listed.iter().map(line).collect();
    print_result(json, &value, || aligned(&lines, 2))
}

/// Runs the experiments one after the other and stores the results of each. If there are several, an
/// experiment whose external program is not installed is skipped with a message.
pub fn run(args: &RunArgs, json: bool) -> Result<(), Failure> {
    let chosen = chosen(&args.ids, args.backend)?;
    if chosen.iter().any(|(_, backend)| !backend.is_virtual()) {
        prepare_links()?;
    }
    for (definition, backend) in &chosen {
        // All directories are checked first, since a run may take hours.
        report::prepare(&args.out, definition.id, backend.name()).map_err(Failure::Run)?;
    }
    let is_single = chosen.len() == 1;
    let mut outcomes = Vec::new();
    for (definition, backend) in chosen {
        let runs = args.runs.unwrap_or(definition.default_runs(backend));
        let bar = run_progress(definition.cases(backend) as u64 * runs);
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

/// Returns the verdicts as text, and the directory of the results.
fn verdicts(outcome: &Outcome, place: &Path) -> String {
    let mut text = format!("{} ({}): {}\n", outcome.id, outcome.backend, outcome.title);
    for verdict in &outcome.verdicts {
        let (word, expected, measured) = (verdict.word(), verdict.expected(), verdict.measured());
        text += &format!("  {expected}\n      {word}; measured: {measured}\n");
        if !verdict.why().is_empty() {
            text += &format!("      {}\n", verdict.why());
        }
    }
    text + &format!("  results: {}\n", place.display())
}

/// Writes the report's HTML and Markdown pages from stored results, and prints their paths.
pub fn report(args: &ReportArgs, json: bool) -> Result<(), Failure> {
    let directory = &args.directory;
    let stored = report::load(directory).map_err(Failure::Usage)?;
    let markdown = match (&args.markdown, &args.figures) {
        (Some(page), Some(figures)) => (page.clone(), report::publish(&stored, page, figures)?),
        _ => (directory.join("report.md"), report::markdown(&stored)),
    };
    let html = (directory.join("report.html"), report::html(&stored));
    let mut files = Vec::new();
    for (file, text) in [html, markdown] {
        report::write(&file, text.as_bytes()).map_err(Failure::Run)?;
        files.push(file.display().to_string());
    }
    let results = stored.len();
    let holding = stored.iter().filter(|s| s.outcome.holds()).count();
    let value = json!({ "pages": files, "results": results, "holding": holding });
    let files = files.join("\n");
    print_result(json, &value, || {
        format!("{files}\n{holding} of {results} results hold\n")
    })
}
