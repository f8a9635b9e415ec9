//! Results on disk.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::backend::Backend;
use crate::experiments::{ALL, ExperimentResult, Outcome};

/// The file that marks a directory as written by [`store`].
const OUTCOME: &str = "outcome.json";

/// A stored outcome with its figures.
#[derive(Debug, Clone, PartialEq)]
pub struct Stored {
    /// The outcome.
    pub outcome: Outcome,
    /// The figures as SVG, in the order of [`Outcome::figures`].
    pub svgs: Vec<String>,
}

/// Writes `result` below `directory`. Returns their directory, in which the results of an earlier run
/// of the same experiment and backend are replaced.
///
/// # Errors
/// One line that names the file that cannot be written, or the directory if it holds anything else than
/// results.
pub fn store(directory: &Path, result: &ExperimentResult) -> Result<PathBuf, String> {
    let Outcome {
        id,
        backend,
        figures,
        ..
    } = &result.outcome;
    let place = prepare(directory, id, backend)?;
    // Written beside its place until it is complete, so that an interrupted write is never read as a
    // result.
    let draft = place.with_extension("part");
    if draft.exists() {
        fs::remove_dir_all(&draft).map_err(|e| failed("remove", &draft, &e))?;
    }
    let cells = draft.join("cells");
    fs::create_dir_all(&cells).map_err(|e| failed("create", &cells, &e))?;
    for (name, record) in &result.records {
        write_json(&cells.join(format!("{name}.json")), record)?;
    }
    for (name, capture) in &result.captures {
        write(&cells.join(format!("{name}.pcapng")), capture)?;
    }
    for (name, (_, figure)) in figures.iter().zip(&result.figures) {
        write(&draft.join(format!("{name}.svg")), figure.svg().as_bytes())?;
    }
    write_json(&draft.join(OUTCOME), &result.outcome)?;
    if place.exists() {
        fs::remove_dir_all(&place).map_err(|e| failed("remove", &place, &e))?;
    }
    fs::rename(&draft, &place).map_err(|e| failed("put in place", &place, &e))?;
    Ok(place)
}

/// Returns the directory into which [`store`] will put the results of experiment `id` on `backend`, and
/// creates its parent. Called before measuring, so that a wrong directory is found early.
///
/// # Errors
/// The errors of [`store`].
pub fn prepare(directory: &Path, id: &str, backend: &str) -> Result<PathBuf, String> {
    let experiment = directory.join(id);
    fs::create_dir_all(&experiment).map_err(|e| failed("create", &experiment, &e))?;
    let place = experiment.join(backend);
    if place.exists() && !place.join(OUTCOME).is_file() {
        return Err(format!(
            "{} exists, and is no result of the lab",
            place.display()
        ));
    }
    Ok(place)
}

/// Reads all outcomes below `directory`, in the order in which experiments and backends are listed.
///
/// # Errors
/// One line that names the file that cannot be read, or the directory if it has no results.
pub fn load(directory: &Path) -> Result<Vec<Stored>, String> {
    let mut stored = Vec::new();
    for experiment in directories(directory)? {
        for place in directories(&experiment)? {
            if place.join(OUTCOME).is_file() {
                stored.push(load_one(&place)?);
            }
        }
    }
    let listed = |s: &Stored| {
        let Outcome { id, backend, .. } = &s.outcome;
        let id = ALL.iter().position(|definition| definition.id == id);
        (
            id,
            Backend::ALL
                .iter()
                .position(|known| known.name() == backend),
        )
    };
    // Unknown ids sort first, by name.
    stored.sort_by_key(listed);
    match stored.is_empty() {
        true => Err(format!(
            "there are no results in {}; `braid-lab run ID --out {0}` puts some there",
            directory.display()
        )),
        false => Ok(stored),
    }
}

fn load_one(place: &Path) -> Result<Stored, String> {
    let file = place.join(OUTCOME);
    let outcome: Outcome = serde_json::from_str(&read(&file)?)
        .map_err(|e| format!("{} is no outcome of the lab: {e}", file.display()))?;
    // Id and backend become file names of the report, so a stored file must not choose them freely.
    let named =
        |path: Option<&Path>, name: &str| path.and_then(Path::file_name) == Some(name.as_ref());
    let Outcome { id, backend, .. } = &outcome;
    if !named(place.parent(), id) || !named(Some(place), backend) {
        return Err(format!(
            "{} is of `{id}` with --backend {backend}, and not of what its directories are called after",
            file.display()
        ));
    }
    let svg = |name: &String| {
        // The name comes from a file, so it must not lead out of the directory.
        match Path::new(name).file_name() {
            Some(same) if same == name.as_str() => read(&place.join(format!("{name}.svg"))),
            _ => Err(format!(
                "{}: `{name}` is no name of a figure",
                file.display()
            )),
        }
    };
    let svgs = outcome.figures.iter().map(svg).collect::<Result<_, _>>()?;
    Ok(Stored { outcome, svgs })
}

/// Returns the directories in `directory`, sorted by name.
fn directories(directory: &Path) -> Result<Vec<PathBuf>, String> {
    let entries = fs::read_dir(directory).map_err(|e| failed("read", directory, &e))?;
    let mut found = Vec::new();
    for entry in entries {
        let path = entry.map_err(|e| failed("read", directory, &e))?.path();
        if path.is_dir() {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|e| failed("read", path, &e))
}

fn write_json(path: &Path, value: &impl serde::Serialize) -> Result<(), String> {
    let mut text = serde_json::to_string_pretty(value)
        .map_err(|e| failed("write", path, &io::Error::other(e)))?;
    text.push('\n');
    write(path, text.as_bytes())
}

/// Writes a file.
///
/// # Errors
/// One line that names the file.
pub(super) fn write(path: &Path, bytes: &[u8]) -> Result<(), String> {
    fs::write(path, bytes).map_err(|e| failed("write", path, &e))
}

/// Returns an error of one line: the failed action, the file, and the reason.
pub(super) fn failed(what: &str, path: &Path, error: &io::Error) -> String {
    format!("cannot {what} {}: {error}", path.display())
}
