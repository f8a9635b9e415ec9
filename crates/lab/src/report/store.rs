//! Writing results to a directory, and reading them back.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::backend::Backend;
use crate::experiments::{ALL, ExperimentResult, Outcome};

/// The file of an outcome. [`store`] replaces a directory only if the directory has this file, so that a new
/// result never replaces anything but a result.
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
    let outcome = &result.outcome;
    let result_dir = prepare(directory, &outcome.id, &outcome.backend)?;
    // The result is written to another directory, which is renamed at the end. `load` therefore never reads
    // an incomplete result.
    let temp_dir = result_dir.with_extension("part");
    remove(&temp_dir)?;
    let cells = temp_dir.join("cells");
    at("create", &cells, fs::create_dir_all(&cells))?;
    for (name, record) in &result.records {
        write_json(&cells.join(format!("{name}.json")), record)?;
    }
    for (name, capture) in &result.captures {
        write(&cells.join(format!("{name}.pcapng")), capture)?;
    }
    for (name, (_, figure)) in outcome.figures.iter().zip(&result.figures) {
        let file = temp_dir.join(format!("{name}.svg"));
        write(&file, figure.svg().as_bytes())?;
    }
    write_json(&temp_dir.join(OUTCOME), outcome)?;
    remove(&result_dir)?;
    at(
        "put in place",
        &result_dir,
        fs::rename(&temp_dir, &result_dir),
    )?;
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
    at("create", &experiment, fs::create_dir_all(&experiment))?;
    let result_dir = experiment.join(backend);
    if result_dir.exists() && !result_dir.join(OUTCOME).is_file() {
        let place = result_dir.display();
        return Err(format!("{place} exists, and is no result of the lab"));
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
    // `None`, the position of an unknown id, sorts first. The sort is stable, so unknown ids stay sorted by
    // name.
    stored.sort_by_key(|Stored { outcome, .. }| {
        let mut backends = Backend::ALL.iter();
        let backend = backends.position(|known| known.name() == outcome.backend);
        (ALL.iter().position(|known| known.id == outcome.id), backend)
    });
    if stored.is_empty() {
        return Err(format!(
            "there are no results in {}; `braid-lab run ID --out {0}` writes some",
            directory.display()
        ));
    }
    Ok(stored)
}

fn load_one(result_dir: &Path) -> Result<Stored, String> {
    let file = result_dir.join(OUTCOME);
    let outcome: Outcome = serde_json::from_str(&read(&file)?)
        .map_err(|e| format!("{} is no outcome of the lab: {e}", file.display()))?;
    // Id, backend and figures become file names of the report. A forged file could otherwise make the report
    // read and write outside its directories.
    let is_name = |name: &str| Path::new(name).file_name() == Some(name.as_ref());
    let (id, backend) = (&outcome.id, &outcome.backend);
    if !is_name(id) || !is_name(backend) || !result_dir.ends_with(Path::new(id).join(backend)) {
        return Err(format!(
            "{} is a result of `{id}` with --backend {backend}, not of the experiment and the backend that \
             its directories are named after",
            file.display()
        ));
    }
    if let Some(name) = outcome.figures.iter().find(|name| !is_name(name)) {
        let file = file.display();
        return Err(format!("{file}: `{name}` is no name of a figure"));
    }
    let svgs = outcome.figures.iter();
    let svgs = svgs.map(|name| read(&result_dir.join(format!("{name}.svg"))));
    let svgs = svgs.collect::<Result<_, _>>()?;
    Ok(Stored { outcome, svgs })
}

/// Returns the directories in `directory`, sorted by name.
fn directories(directory: &Path) -> Result<Vec<PathBuf>, String> {
    let entries = at("read", directory, fs::read_dir(directory))?;
    let paths = entries.map(|entry| entry.map(|entry| entry.path()));
    let mut found: Vec<PathBuf> = at("read", directory, paths.collect())?;
    found.retain(|path| path.is_dir());
    found.sort();
    Ok(found)
}

/// Removes a directory, if there is one.
fn remove(directory: &Path) -> Result<(), String> {
    match fs::remove_dir_all(directory) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => at("remove", directory, removed),
    }
}

fn read(path: &Path) -> Result<String, String> {
    at("read", path, fs::read_to_string(path))
}

fn write_json(path: &Path, value: &impl serde::Serialize) -> Result<(), String> {
    let text = serde_json::to_string_pretty(value).map_err(io::Error::from);
    let text = at("write", path, text)? + "\n";
    write(path, text.as_bytes())
}

/// Writes a file.
///
/// # Errors
/// One line that names the file.
pub fn write(path: &Path, bytes: &[u8]) -> Result<(), String> {
    at("write", path, fs::write(path, bytes))
}

/// Returns the result of an action on a file.
///
/// # Errors
/// One line: the failed `action`, the file, and the reason.
pub(super) fn at<T>(action: &str, path: &Path, result: io::Result<T>) -> Result<T, String> {
    result.map_err(|error| format!("cannot {action} {}: {error}", path.display()))
}
