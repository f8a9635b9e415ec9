//! Writing results to a directory, and reading them back.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::backend::Backend;
use crate::experiments::{ALL, ExperimentResult, Outcome};

/// The file of an outcome. Its presence also proves that [`store`] wrote the directory, so that a new
/// result never replaces a directory of anything else.
const OUTCOME: &str = "outcome.json";

/// An outcome as read from disk, with its figures.
#[derive(Debug, Clone, PartialEq)]
pub struct Stored {
    /// The outcome.
    pub outcome: Outcome,
    /// The figures as SVG, in the order of [`Outcome::figures`].
    pub svgs: Vec<String>,
}

/// Writes `result` to a directory of its own below `directory`, and returns that directory. Replaces the
/// result of an earlier run of the same experiment on the same backend.
///
/// # Errors
/// One line that names the file that cannot be written, or the directory if it exists and is no result.
pub fn store(directory: &Path, result: &ExperimentResult) -> Result<PathBuf, String> {
    let Outcome {
        id,
        backend,
        figures,
        ..
    } = &result.outcome;
    let result_dir = prepare(directory, id, backend)?;
    // The result is written to another directory, which is renamed at the end. `load` therefore never reads
    // an incomplete result.
    let temp_dir = result_dir.with_extension("part");
    if temp_dir.exists() {
        fs::remove_dir_all(&temp_dir).map_err(|e| failed("remove", &temp_dir, &e))?;
    }
    let cells = temp_dir.join("cells");
    fs::create_dir_all(&cells).map_err(|e| failed("create", &cells, &e))?;
    for (name, record) in &result.records {
        write_json(&cells.join(format!("{name}.json")), record)?;
    }
    for (name, capture) in &result.captures {
        write(&cells.join(format!("{name}.pcapng")), capture)?;
    }
    for (name, (_, figure)) in figures.iter().zip(&result.figures) {
        write(
            &temp_dir.join(format!("{name}.svg")),
            figure.svg().as_bytes(),
        )?;
    }
    write_json(&temp_dir.join(OUTCOME), &result.outcome)?;
    if result_dir.exists() {
        fs::remove_dir_all(&result_dir).map_err(|e| failed("remove", &result_dir, &e))?;
    }
    fs::rename(&temp_dir, &result_dir).map_err(|e| failed("put in place", &result_dir, &e))?;
    Ok(result_dir)
}

/// Returns the directory into which [`store`] will write the result of experiment `id` on `backend`, and
/// creates its parent. The command calls it before it measures, so that an unusable directory is reported
/// before hours of measurement.
///
/// # Errors
/// The errors of [`store`].
pub fn prepare(directory: &Path, id: &str, backend: &str) -> Result<PathBuf, String> {
    let experiment = directory.join(id);
    fs::create_dir_all(&experiment).map_err(|e| failed("create", &experiment, &e))?;
    let result_dir = experiment.join(backend);
    if result_dir.exists() && !result_dir.join(OUTCOME).is_file() {
        return Err(format!(
            "{} exists, and is no result of the lab",
            result_dir.display()
        ));
    }
    Ok(result_dir)
}

/// Reads all results below `directory`. They are sorted by experiment in the order of [`ALL`], then by
/// backend in the order of [`Backend::ALL`].
///
/// # Errors
/// One line that names the file that cannot be read, or the directory if it has no results.
pub fn load(directory: &Path) -> Result<Vec<Stored>, String> {
    let mut stored = Vec::new();
    for experiment in directories(directory)? {
        for result_dir in directories(&experiment)? {
            if result_dir.join(OUTCOME).is_file() {
                stored.push(load_one(&result_dir)?);
            }
        }
    }
    let list_position = |s: &Stored| {
        let Outcome { id, backend, .. } = &s.outcome;
        let id = ALL.iter().position(|definition| definition.id == id);
        (
            id,
            Backend::ALL
                .iter()
                .position(|known| known.name() == backend),
        )
    };
    // `None`, the position of an unknown id, sorts first. The sort is stable, so unknown ids stay sorted by
    // name.
    stored.sort_by_key(list_position);
    match stored.is_empty() {
        true => Err(format!(
            "there are no results in {}; `braid-lab run ID --out {0}` writes some",
            directory.display()
        )),
        false => Ok(stored),
    }
}

fn load_one(result_dir: &Path) -> Result<Stored, String> {
    let file = result_dir.join(OUTCOME);
    let outcome: Outcome = serde_json::from_str(&read(&file)?)
        .map_err(|e| format!("{} is no outcome of the lab: {e}", file.display()))?;
    // Id and backend become file names of the report. A forged file could otherwise make the report write
    // outside its directory.
    let is_name_of =
        |path: Option<&Path>, name: &str| path.and_then(Path::file_name) == Some(name.as_ref());
    let Outcome { id, backend, .. } = &outcome;
    if !is_name_of(result_dir.parent(), id) || !is_name_of(Some(result_dir), backend) {
        return Err(format!(
            "{} is a result of `{id}` with --backend {backend}, not of the experiment and the backend that \
             its directories are named after",
            file.display()
        ));
    }
    let svg = |name: &String| {
        // The name comes from a file. A name such as `../x` would read outside the directory.
        match Path::new(name).file_name() {
            Some(same) if same == name.as_str() => read(&result_dir.join(format!("{name}.svg"))),
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

/// Returns an error of one line: the failed `action`, the file, and the reason.
pub(super) fn failed(action: &str, path: &Path, error: &io::Error) -> String {
    format!("cannot {action} {}: {error}", path.display())
}
