use std::fs;
use std::path::PathBuf;

use super::*;
use crate::experiments::{Bound, Findings, Outcome, Table, Verdict};
use crate::plot::{Axis, Body, Figure};

/// A directory that is gone when the test is over.
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

fn findings(holds: bool) -> Findings {
    let bound = if holds { 3.0 } else { 5.0 };
    let text = |s: &str| s.to_owned();
    Findings {
        outcome: Outcome {
            id: text("x-1"),
            title: text("A <b> & C"),
            source: text("paper"),
            setup: text("two paths"),
            reported: text("more"),
            must_hold: text("more than"),
            arm: text("sim"),
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
    let place = store(&scratch.0, &findings(true)).unwrap();
    fs::write(place.join("cells/left-over.json"), "{}").unwrap();
    let place = store(&scratch.0, &findings(false)).unwrap();
    assert_eq!(place, scratch.0.join("x-1/sim"));
    assert!(!place.join("cells/left-over.json").exists());
    assert!(place.join("cells/cell-1.json").is_file());
    let loaded = load(&scratch.0).unwrap();
    assert_eq!(loaded.len(), 1);
    assert_eq!(loaded[0].outcome, findings(false).outcome);
    assert_eq!(loaded[0].svgs, [findings(false).figures[0].1.svg()]);
}

#[test]
fn nothing_is_removed_that_is_no_result() {
    let scratch = Scratch::new("report-foreign");
    let foreign = scratch.0.join("x-1/sim");
    fs::create_dir_all(&foreign).unwrap();
    fs::write(foreign.join("thesis.txt"), "years of work").unwrap();
    let error = store(&scratch.0, &findings(true)).unwrap_err();
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
    let place = store(&scratch.0, &findings(true)).unwrap();
    for (text, expected) in [("{}", "is no outcome"), ("[", "is no outcome")] {
        fs::write(place.join("outcome.json"), text).unwrap();
        let error = load(&scratch.0).unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
    let mut outcome = findings(true).outcome;
    outcome.figures = vec!["../../../etc/passwd".to_owned()];
    let text = serde_json::to_string(&outcome).unwrap();
    fs::write(place.join("outcome.json"), text).unwrap();
    let error = load(&scratch.0).unwrap_err();
    assert!(error.contains("is no name of a figure"), "{error}");
}

#[test]
fn the_page_stands_alone_and_says_what_holds() {
    let stored = |holds| {
        let Findings {
            outcome, figures, ..
        } = findings(holds);
        [Stored {
            outcome,
            svgs: vec![figures[0].1.svg()],
        }]
    };
    let page = html(&stored(true));
    assert!(page.contains("A &lt;b&gt; &amp; C") && page.contains("<svg"));
    assert!(page.contains(">holds<") && !page.contains(">does not hold<"));
    for outside in ["href=\"http", "src=", "@import", "url("] {
        assert!(!page.contains(outside), "{outside}");
    }
    assert!(html(&stored(false)).contains(">does not hold<"));
    let text = markdown(&stored(false));
    assert!(
        text.contains("| a > b: above 5 \\| % | +3 % | 4.500 \\| % | does not hold: too few |"),
        "{text}"
    );
    assert!(text.contains("![fct](x-1/sim/fct.svg)"));
}

/// What was measured on both arms stands in one row, and what only one has is not lost.
#[test]
fn arms_stand_side_by_side() {
    let mut results = [true, true].map(|holds| Stored {
        outcome: findings(holds).outcome,
        svgs: Vec::new(),
    });
    let value = |claim, value| Verdict::new(claim, Bound::AtMost(1.0), "", [("", value)]);
    results[0].outcome.verdicts = vec![value("a", 0.5), value("b", 0.5)];
    results[1].outcome.verdicts = vec![value("a", 2.0), value("c", 0.25)];
    results[1].outcome.arm = "links".to_owned();
    let text = markdown(&results);
    for row in [
        "| must hold | reported | measured (sim) | measured (links) | holds? |",
        "| a: at most 1 |  | 0.500 | 2 | sim holds; links does not hold |",
        "| b: at most 1 |  | 0.500 |  | holds |",
        "| c: at most 1 |  |  | 0.250 | holds |",
    ] {
        assert!(text.contains(row), "{row}\n{text}");
    }
}
