//! The report as one page of Markdown.

use std::fs;
use std::path::{Component, Path, PathBuf, absolute};

use super::store::{Stored, at, write};
use super::tables::{self, by_experiment, claims, commits, parameters, summary, sweeps};
use crate::backend::Error;
use crate::experiments::{Outcome, Table};

const OPENING: &str = "\
# Results

An experiment repeats a measurement that a paper reports, or asks a question that no paper answers. It states its
claims before it runs: each is a bound that all measured values must keep. Where a paper leaves a parameter open, the
parameter is swept, and the verdict says with which values the claim holds. Two sides whose 95 % intervals do not tell
them apart are a tie. Claims were measured in the simulator (`sim`) and over emulated links (`links`).
";

const CLOSING: &str = "\
`braid-lab report` writes this page from the stored results of `braid-lab run`; do not edit it. `report.html`, which
it writes from the same results, has every table and figure.
";

/// Returns the page for the directory of the results: a summary, reported and measured values, and the first
/// figure of each result. It links to the figures that are stored there.
pub fn markdown(stored: &[Stored]) -> String {
    page(stored, false, |outcome, name| {
        format!("![{name}]({}/{}/{name}.svg)", outcome.id, outcome.backend)
    })
}

/// Returns the page, with every table and figure if it is `complete`. `image` returns the image of a figure, from
/// the outcome and the figure's name.
pub(super) fn page(
    stored: &[Stored],
    complete: bool,
    image: impl Fn(&Outcome, &str) -> String,
) -> String {
    let mut blocks = vec![OPENING.to_owned(), tables::opening(stored)];
    blocks.push(format!(
        "Made from commit {}. `make results-check` repeats lines of this page and compares.\n",
        commits(stored).join(" and ")
    ));
    blocks.extend(["## Experiments\n".to_owned(), table(&summary(stored))]);
    for results in by_experiment(stored) {
        blocks.extend(opening(&results[0].outcome, complete));
        blocks.push(table(&claims(results)));
        let mut previous = None;
        for Stored { outcome, .. } in results {
            // Parameters that the previous backend has too are not repeated.
            blocks.push(run_line(outcome, previous.replace(outcome)));
            let shown = if complete { usize::MAX } else { 1 };
            let figures = outcome.figures.iter().take(shown);
            blocks.extend(figures.map(|name| image(outcome, name) + "\n"));
            blocks.extend(sweeps(outcome, complete).iter().map(table));
            for one in outcome.tables.iter().filter(|_| complete) {
                blocks.push(format!("{}: {}\n", outcome.backend, one.title));
                blocks.push(table(one));
            }
        }
    }
    blocks.push(CLOSING.to_owned());
    blocks.join("\n")
}

/// Returns the heading of an experiment, and the texts of its definition.
fn opening(outcome: &Outcome, complete: bool) -> Vec<String> {
    let id = &outcome.id;
    // GitHub makes anchors of headings by itself.
    let anchor = complete.then(|| format!(" {{#{id}}}"));
    let mut texts = vec![
        format!("## {id}{}\n", anchor.unwrap_or_default()),
        format!(
            "{} ({}): {}\n",
            outcome.title, outcome.source, outcome.setup
        ),
    ];
    // A source beyond the papers reports nothing.
    if !outcome.reported.is_empty() {
        texts.push(format!("Reported: {}\n", outcome.reported));
    }
    if complete {
        texts.push(format!("Must hold: {}\n", outcome.must_hold));
    }
    texts
}

/// Returns the command that reproduces a result, and the result's parameters.
fn run_line(outcome: &Outcome, previous: Option<&Outcome>) -> String {
    format!(
        "**{backend}**: `braid-lab run {} --backend {backend} --runs {} --seed {}`; {}\n",
        outcome.id,
        outcome.runs,
        outcome.seed,
        parameters(outcome, previous),
        backend = outcome.backend,
    )
}

/// Returns a table. In a table of experiments, each id links to the section of its experiment.
fn table(table: &Table) -> String {
    let line = |cells: &[String]| {
        let cells = cells
            .iter()
            .map(|c| c.replace('|', "\\|").replace('\n', " "));
        format!("| {} |\n", cells.collect::<Vec<_>>().join(" | "))
    };
    let row = |row: &Vec<String>| {
        let mut row = row.clone();
        let has_ids = table.columns.first().is_some_and(|column| column == "id");
        if let Some(id) = row.first_mut().filter(|_| has_ids) {
            *id = format!("[{id}](#{id})");
        }
        line(&row)
    };
    let rule = vec!["---".to_owned(); table.columns.len()];
    let rows: String = table.rows.iter().map(row).collect();
    line(&table.columns) + &line(&rule) + &rows
}

/// Returns the page for the file `page_file` outside the directory of the results, and copies its figures into
/// the directory `figures` as `ID-BACKEND-NAME.svg`. Creates `figures`, but does not write the page.
///
/// # Errors
/// [`Error::Usage`] if `figures` is not below the directory of the page, because the page links to its
/// figures by paths without `..`; otherwise one line that names the file that cannot be written.
pub fn publish(stored: &[Stored], page_file: &Path, figures: &Path) -> Result<String, Error> {
    let below = below(page_file, figures)?;
    at("create", figures, fs::create_dir_all(figures)).map_err(Error::Run)?;
    let file =
        |outcome: &Outcome, name: &str| format!("{}-{}-{name}.svg", outcome.id, outcome.backend);
    for Stored { outcome, svgs } in stored {
        if let (Some(name), Some(svg)) = (outcome.figures.first(), svgs.first()) {
            let file = figures.join(file(outcome, name));
            write(&file, svg.as_bytes()).map_err(Error::Run)?;
        }
    }
    Ok(page(stored, false, |outcome, name| {
        let file = below.join(file(outcome, name));
        format!("![{name}]({})", file.display())
    }))
}

/// Returns `figures` relative to the directory of `page_file`, which must contain it.
fn below(page_file: &Path, figures: &Path) -> Result<PathBuf, Error> {
    let [page_file, figures] = [page_file, figures].map(|path| absolute(path).unwrap_or_default());
    let root = page_file.parent().unwrap_or(&page_file);
    match figures.strip_prefix(root) {
        // A `..` after the prefix could lead out of `root` again.
        Ok(below)
            if below
                .components()
                .all(|c| matches!(c, Component::Normal(_))) =>
        {
            Ok(below.to_owned())
        }
        _ => Err(Error::Usage(format!(
            "the page cannot link to figures in {}; expected a directory below {}, where the page is",
            figures.display(),
            root.display()
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_below_the_page() {
        let below = |root, figures| below(&Path::new(root).join("page.md"), Path::new(figures));
        for (root, figures, expected) in [
            ("", "figures", "figures"),
            (".", "figures", "figures"),
            ("", "./figures/.", "figures"),
            ("./docs", "docs/./figures", "figures"),
            ("../docs", "../docs/a/b", "a/b"),
            ("/docs", "/docs", ""),
        ] {
            let expected = Ok(PathBuf::from(expected));
            assert_eq!(below(root, figures), expected, "{root} {figures}");
        }
        for (root, figures) in [
            ("docs", "figures"),
            ("docs", "docs/../figures"),
            ("", "../figures"),
            ("", "/figures"),
            ("/docs", "docs"),
        ] {
            let refused = matches!(below(root, figures), Err(Error::Usage(_)));
            assert!(refused, "{root} {figures}");
        }
    }
}
