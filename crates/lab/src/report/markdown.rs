//! The report as one page of Markdown: a summary, reported and measured values, and the first figure of
//! each result.

use std::fmt::Write;
use std::fs;
use std::path::{Component, Path, PathBuf};

use super::overview::{by_source, failing};
use super::parts::{by_experiment, claims, command, parameters, reasons, summary};
use super::store::{Stored, failed, write};
use crate::backend::Error;
use crate::experiments::{Outcome, Table};

const OPENING: &str = "\
# Results

An experiment repeats a measurement that a paper reports, or asks a question that no paper answers. It states its
claims before it runs: each is a bound that all measured values must keep. A claim counts once for each backend
that measured it, the simulator (`sim`) or emulated links (`links`).

";

const CLOSING: &str = "
`braid-lab report` writes this page from the stored results of `braid-lab run`; do not edit it. `report.html`, which
it writes from the same results, has every table and figure.
";

/// Returns the page for the directory of the results. It links to the figures that are stored there.
pub fn markdown(stored: &[Stored]) -> String {
    page(stored, |outcome, name| {
        format!("{}/{}/{name}.svg", outcome.id, outcome.backend)
    })
}

/// Returns the page. `link` returns the path of a figure relative to the page, from the outcome and the
/// figure's name.
fn page(stored: &[Stored], link: impl Fn(&Outcome, &str) -> String) -> String {
    let mut out = String::from(OPENING);
    table(&mut out, &by_source(stored));
    let failing = failing(stored);
    if !failing.rows.is_empty() {
        out.push_str("\nClaims that do not hold stay on this page:\n\n");
        table(&mut out, &failing);
    }
    out.push_str("\n## Experiments\n\n");
    table(&mut out, &summary(stored));
    // Writing to a string does not fail.
    for backends in by_experiment(stored) {
        let first = &backends[0].outcome;
        let _ = writeln!(
            out,
            "\n## {}\n\n{} ({}): {}\n",
            first.id, first.title, first.source, first.setup
        );
        if !first.reported.is_empty() {
            let _ = writeln!(out, "Reported: {}\n", first.reported);
        }
        table(&mut out, &claims(backends));
        for (n, (claims, why)) in reasons(backends).iter().enumerate() {
            // A list needs an empty line before it, or Markdown appends it to the table.
            let gap = if n == 0 { "\n" } else { "" };
            let _ = writeln!(out, "{gap}- {claims}: {why}");
        }
        for (n, Stored { outcome, .. }) in backends.iter().enumerate() {
            // Parameters that the previous backend has too are not repeated.
            let previous = n.checked_sub(1).map(|n| &backends[n].outcome);
            let _ = writeln!(
                out,
                "\n**{}**: `{}`; {}",
                outcome.backend,
                command(outcome),
                parameters(outcome, previous)
            );
            if let Some(name) = outcome.figures.first() {
                let _ = writeln!(out, "\n![{name}]({})", link(outcome, name));
            }
        }
    }
    out.push_str(CLOSING);
    out
}

/// Writes a table. In a table of experiments, each id links to the section of its experiment.
fn table(out: &mut String, table: &Table) {
    let line = |cells: &[String]| {
        let cells: Vec<_> = cells
            .iter()
            .map(|c| c.replace('|', "\\|").replace('\n', " "))
            .collect();
        format!("| {} |\n", cells.join(" | "))
    };
    out.push_str(&line(&table.columns));
    out.push_str(&line(&vec!["---".to_owned(); table.columns.len()]));
    for row in &table.rows {
        let mut row = row.clone();
        if table.columns[0] == "id" {
            row[0] = format!("[{0}](#{0})", row[0]);
        }
        out.push_str(&line(&row));
    }
}

/// Returns the page for the file `at` outside the directory of the results, and copies its figures into
/// the directory `figures` as `ID-BACKEND-NAME.svg`. Creates `figures`, but does not write the page.
///
/// # Errors
/// [`Error::Usage`] if `figures` is not below the directory of the page, because the page links to its
/// figures by paths without `..`; otherwise one line that names the file that cannot be written.
pub fn publish(stored: &[Stored], at: &Path, figures: &Path) -> Result<String, Error> {
    let below = below(at.parent().unwrap_or(Path::new("")), figures)?;
    fs::create_dir_all(figures).map_err(|e| Error::Run(failed("create", figures, &e)))?;
    let file =
        |outcome: &Outcome, name: &str| format!("{}-{}-{name}.svg", outcome.id, outcome.backend);
    for Stored { outcome, svgs } in stored {
        if let (Some(name), Some(svg)) = (outcome.figures.first(), svgs.first()) {
            let file = figures.join(file(outcome, name));
            write(&file, svg.as_bytes()).map_err(Error::Run)?;
        }
    }
    let link = |outcome: &Outcome, name: &str| {
        let below = below.join(file(outcome, name));
        below.display().to_string()
    };
    Ok(page(stored, link))
}

/// Returns `figures` relative to the directory `root`, which must contain it.
fn below(root: &Path, figures: &Path) -> Result<PathBuf, Error> {
    // `components` removes every `.` except one at the beginning of a path.
    let without_dot = |path: &Path| -> PathBuf {
        let components = path.components();
        components.skip_while(|c| *c == Component::CurDir).collect()
    };
    let below = without_dot(figures)
        .strip_prefix(without_dot(root))
        .map(PathBuf::from);
    // A `..` after the prefix could lead out of `root` again.
    let descends = |path: &PathBuf| path.components().all(|c| matches!(c, Component::Normal(_)));
    below.ok().filter(descends).ok_or_else(|| {
        let root = if root == Path::new("") {
            Path::new(".")
        } else {
            root
        };
        Error::Usage(format!(
            "the page cannot link to figures in {}; expected a directory below {}, where the page is",
            figures.display(),
            root.display()
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_below_the_page() {
        for (root, figures, expected) in [
            ("", "figures", "figures"),
            (".", "figures", "figures"),
            ("", "./figures/.", "figures"),
            ("./docs", "docs/./figures", "figures"),
            ("../docs", "../docs/a/b", "a/b"),
            ("/docs", "/docs", ""),
        ] {
            let below = below(Path::new(root), Path::new(figures));
            assert_eq!(below, Ok(PathBuf::from(expected)), "{root} {figures}");
        }
        for (root, figures) in [
            ("docs", "figures"),
            ("docs", "docs/../figures"),
            ("", "../figures"),
            ("", "/figures"),
            ("/docs", "docs"),
        ] {
            let below = below(Path::new(root), Path::new(figures));
            assert!(matches!(below, Err(Error::Usage(_))), "{root} {figures}");
        }
    }
}
