use std::fs;
use std::path::PathBuf;

use super::*;
use crate::experiments::{Bound, ExperimentResult, Outcome, Table, Verdict};
use crate::plot::{Axis, Body, Figure};

/// A directory that is removed when the test ends.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("braid-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Returns the result of an experiment with one claim on the value 4.5. The claim holds if `holds` is true.
fn result(holds: bool) -> ExperimentResult {
    let bound = if holds { 3.0 } else { 5.0 };
    let text = |s: &str| s.to_owned();
    ExperimentResult {
        outcome: Outcome {
            id: text("x-1"),
            title: text("A <b> & C"),
            source: text("paper"),
            setup: text("two paths"),
            reported: text("more"),
            must_hold: text("more than"),
            backend: text("sim"),
            runs: 30,
            seed: 1,
            parameters: vec![(text("queue"), text("50"))],
            verdicts: vec![
                Verdict::new("a > b", Bound::Above(bound), "| %", [("", 4.5)])
                    .reported("+3 %")
                    .unless("too few"),
            ],
            tables: vec![Table {
                title: text("ms"),
                columns: vec![text("size"), text("mean")],
                rows: vec![vec![text("4k"), text("1.5 ± 0.1")]],
            }],
            figures: vec![text("fct")],
        },
        figures: vec![(
            text("fct"),
            Figure {
                title: text("FCT"),
                note: String::new(),
                x: Axis::sizes("size (bytes)"),
                y: Axis::linear("ms"),
                body: Body::Plane(Vec::new()),
            },
        )],
        records: vec![(text("cell-1"), serde_json::json!({ "runs": [1] }))],
        captures: Vec::new(),
    }
}

#[test]
fn what_is_stored_is_loaded_and_replaced() {
    let scratch = Scratch::new("report-store");
    let place = store(&scratch.0, &result(true)).unwrap();
    fs::write(place.join("cells/left-over.json"), "{}").unwrap();
    let place = store(&scratch.0, &result(false)).unwrap();
    assert_eq!(place, scratch.0.join("x-1/sim"));
    assert!(!place.join("cells/left-over.json").exists());
    assert!(place.join("cells/cell-1.json").is_file());
    let loaded = load(&scratch.0).unwrap();
    assert_eq!(loaded.len(), 1);
    assert_eq!(loaded[0].outcome, result(false).outcome);
    assert_eq!(loaded[0].svgs, [result(false).figures[0].1.svg()]);
}

#[test]
fn nothing_is_removed_that_is_no_result() {
    let scratch = Scratch::new("report-foreign");
    let foreign = scratch.0.join("x-1/sim");
    fs::create_dir_all(&foreign).unwrap();
    fs::write(foreign.join("thesis.txt"), "years of work").unwrap();
    let error = store(&scratch.0, &result(true)).unwrap_err();
    assert!(
        error.ends_with("exists, and is no result of the lab"),
        "{error}"
    );
    assert!(foreign.join("thesis.txt").is_file());
}

#[test]
fn a_directory_without_results_is_refused() {
    let scratch = Scratch::new("report-empty");
    let error = load(&scratch.0).unwrap_err();
    assert!(error.contains("there are no results in"), "{error}");
    let error = load(&scratch.0.join("none")).unwrap_err();
    assert!(error.starts_with("cannot read"), "{error}");
    let place = store(&scratch.0, &result(true)).unwrap();
    for (text, expected) in [("{}", "is no outcome"), ("[", "is no outcome")] {
        fs::write(place.join("outcome.json"), text).unwrap();
        let error = load(&scratch.0).unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
    let changed = |change: fn(&mut Outcome)| {
        let mut outcome = result(true).outcome;
        change(&mut outcome);
        let text = serde_json::to_string(&outcome).unwrap();
        fs::write(place.join("outcome.json"), text).unwrap();
        load(&scratch.0).unwrap_err()
    };
    let error = changed(|outcome| outcome.figures = vec!["../../../etc/passwd".to_owned()]);
    assert!(error.contains("is no name of a figure"), "{error}");
    // An id or a backend in a file must not lead out of the directory of the results.
    let escapes: [fn(&mut Outcome); 2] = [
        |outcome| outcome.id = "../../x-1".to_owned(),
        |outcome| outcome.backend = "/etc/sim".to_owned(),
    ];
    for change in escapes {
        let error = changed(change);
        assert!(error.contains("its directories are named after"), "{error}");
    }
}

#[test]
fn the_page_stands_alone_and_says_what_holds() {
    let stored = |holds| {
        let ExperimentResult {
            outcome, figures, ..
        } = result(holds);
        [Stored {
            outcome,
            svgs: vec![figures[0].1.svg()],
        }]
    };
    let page = html(&stored(true));
    assert!(page.contains("A &lt;b&gt; &amp; C") && page.contains("<svg"));
    assert!(page.contains(">holds<") && !page.contains(">does not hold<"));
    // The page must not load another file.
    for reference in ["href=\"http", "src=", "@import", "url("] {
        assert!(!page.contains(reference), "{reference}");
    }
    assert!(html(&stored(false)).contains(">does not hold<"));
    let text = markdown(&stored(false));
    for expected in [
        "| paper | 1 | 1 | 0 |\n| all | 1 | 1 | 0 |\n",
        "| [x-1](#x-1) | 1 of 1 | too few |\n",
        "| id | what is compared | source | sim |\n",
        "| [x-1](#x-1) | A <b> & C | paper | 0 of 1 claims hold |\n",
        "| a > b: above 5 \\| % | +3 % | 4.500 \\| % | does not hold |\n",
        "- a > b (sim): too few\n",
        "**sim**: `braid-lab run x-1 --backend sim --runs 30 --seed 1`; queue: 50\n",
        "![fct](x-1/sim/fct.svg)\n",
    ] {
        assert!(text.contains(expected), "{expected}\n{text}");
    }
}

/// The page shows the first figure of each result, from the directory beside it.
#[test]
fn a_page_elsewhere_has_its_figures_beside_it() {
    let scratch = Scratch::new("report-publish");
    store(&scratch.0, &result(true)).unwrap();
    let stored = load(&scratch.0).unwrap();
    let [page, figures] = ["docs/results.md", "docs/figures"].map(|name| scratch.0.join(name));
    let text = publish(&stored, &page, &figures).unwrap();
    assert!(text.contains("![fct](figures/x-1-sim-fct.svg)"), "{text}");
    let figure = fs::read_to_string(figures.join("x-1-sim-fct.svg")).unwrap();
    assert_eq!(figure, stored[0].svgs[0]);
    let error = publish(&stored, &page, &scratch.0.join("elsewhere")).unwrap_err();
    assert!(
        error.to_string().contains("cannot link to figures"),
        "{error}"
    );
}

/// A claim measured on both backends has one row, and a claim of one backend is kept.
#[test]
fn backends_stand_side_by_side() {
    let mut results = [true, true].map(|holds| Stored {
        outcome: result(holds).outcome,
        svgs: Vec::new(),
    });
    let value = |claim, value| Verdict::new(claim, Bound::AtMost(1.0), "", [("", value)]);
    results[0].outcome.verdicts = vec![value("a", 0.5), value("b", 0.5)];
    results[1].outcome.verdicts = vec![value("a", 2.0), value("c", 0.25)];
    results[1].outcome.backend = "links".to_owned();
    let kernel = ("kernel".to_owned(), "6.18".to_owned());
    results[1].outcome.parameters.push(kernel);
    let text = markdown(&results);
    for row in [
        "| must hold | reported | measured (sim) | measured (links) | holds? |",
        "| a: at most 1 |  | 0.500 | 2 | sim holds; links does not hold |",
        "| b: at most 1 |  | 0.500 |  | holds |",
        "| c: at most 1 |  |  | 0.250 | holds |",
        "holds (2 of 2 claims) | 1 of 2 claims hold |",
        // Parameters that the other backend has too are not repeated.
        "**links**: `braid-lab run x-1 --backend links --runs 30 --seed 1`; kernel: 6.18\n",
    ] {
        assert!(text.contains(row), "{row}\n{text}");
    }
}
