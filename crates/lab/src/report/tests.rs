use std::fs;

use serde_json::json;
use tempfile::tempdir;

use super::*;
use crate::experiments::{Bound, ExperimentResult, Outcome, Table, Verdict};
use crate::plot::{Axis, Body, Figure};

/// Returns the result of an experiment with one claim on the value 4.5. The claim holds if `holds` is true.
fn result(holds: bool) -> ExperimentResult {
    let bound = if holds { 3.0 } else { 5.0 };
    let verdict = Verdict::new("a > b", Bound::Above(bound), "| %", [("", 4.5)]);
    let row = ["4k", "1.5 ± 0.1"].map(str::to_owned);
    let outcome = json!({
        "id": "x-1",
        "title": "A <b> & C",
        "source": "paper",
        "setup": "two paths",
        "reported": "more",
        "must_hold": "more than",
        "arm": "sim",
        "runs": 30,
        "seed": 1,
        "parameters": [["commit", "c0ffee"], ["queue", "50"]],
        "verdicts": [verdict.reported("+3 %").unless("too few")],
        "tables": [Table::new("ms", &["size", "mean"], vec![row.to_vec()])],
        "figures": ["fct"],
    });
    let figure = Figure {
        title: "FCT".to_owned(),
        note: String::new(),
        x: Axis::sizes("size (bytes)"),
        y: Axis::linear("ms"),
        body: Body::Plane(Vec::new()),
    };
    ExperimentResult {
        outcome: serde_json::from_value(outcome).unwrap(),
        figures: vec![("fct".to_owned(), figure)],
        records: vec![("cell-1".to_owned(), json!({ "runs": [1] }))],
        captures: Vec::new(),
    }
}

/// Returns the same result as it is read from disk.
fn stored(holds: bool) -> Stored {
    let ExperimentResult {
        outcome, figures, ..
    } = result(holds);
    let svgs = vec![figures[0].1.svg()];
    Stored { outcome, svgs }
}

#[test]
fn what_is_stored_is_loaded_and_replaced() {
    let scratch = tempdir().unwrap();
    let place = store(scratch.path(), &result(true)).unwrap();
    fs::write(place.join("cells/left-over.json"), "{}").unwrap();
    let place = store(scratch.path(), &result(false)).unwrap();
    assert_eq!(place, scratch.path().join("x-1/sim"));
    assert!(!place.join("cells/left-over.json").exists());
    assert!(place.join("cells/cell-1.json").is_file());
    let loaded = load(scratch.path()).unwrap();
    assert_eq!(loaded, [stored(false)]);
}

#[test]
fn nothing_is_removed_that_is_no_result() {
    let scratch = tempdir().unwrap();
    let foreign = scratch.path().join("x-1/sim");
    fs::create_dir_all(&foreign).unwrap();
    fs::write(foreign.join("thesis.txt"), "years of work").unwrap();
    let error = store(scratch.path(), &result(true)).unwrap_err();
    let expected = "exists, and is no result of the lab";
    assert!(error.ends_with(expected), "{error}");
    assert!(foreign.join("thesis.txt").is_file());
}

#[test]
fn a_directory_without_results_is_refused() {
    let scratch = tempdir().unwrap();
    let error = load(scratch.path()).unwrap_err();
    assert!(error.contains("there are no results in"), "{error}");
    let error = load(&scratch.path().join("none")).unwrap_err();
    assert!(error.starts_with("cannot read"), "{error}");
    let place = store(scratch.path(), &result(true)).unwrap();
    for text in ["{}", "["] {
        fs::write(place.join("outcome.json"), text).unwrap();
        let error = load(scratch.path()).unwrap_err();
        assert!(error.contains("is no outcome"), "{error}");
    }
    let changed = |change: fn(&mut Outcome)| {
        let mut outcome = result(true).outcome;
        change(&mut outcome);
        let text = serde_json::to_string(&outcome).unwrap();
        fs::write(place.join("outcome.json"), text).unwrap();
        load(scratch.path()).unwrap_err()
    };
    // A figure, an id or a backend in a file must not lead out of the directory of the results.
    let error = changed(|outcome| outcome.figures[0] = "../../../etc/passwd".to_owned());
    assert!(error.contains("is no name of a figure"), "{error}");
    for error in [
        changed(|outcome| outcome.id = "../../x-1".to_owned()),
        changed(|outcome| outcome.backend = "/etc/sim".to_owned()),
    ] {
        assert!(error.contains("its directories are named after"), "{error}");
    }
}

#[test]
fn the_page_stands_alone_and_says_what_holds() {
    let page = html(&[stored(true)]);
    assert!(page.contains("A &lt;b&gt; &amp; C") && page.contains("<svg"));
    assert!(page.contains(">holds<") && !page.contains(">does not hold<"));
    // The page must not load another file.
    for reference in ["href=\"http", "src=", "@import", "url("] {
        assert!(!page.contains(reference), "{reference}");
    }
    assert!(html(&[stored(false)]).contains(">does not hold<"));
    let text = markdown(&[stored(false)]);
    for expected in [
        "- **paper: 0 of 1 claims hold**\n",
        "  - [x-1](#x-1), a > b: above 5 | %: does not hold (too few)\n",
        "Made from commit c0ffee.",
        "| id | what is compared | source | sim |\n",
        "| [x-1](#x-1) | A <b> & C | paper | 0 of 1 claims hold |\n",
        "| a > b: above 5 \\| % | +3 % | 4.500 \\| % | does not hold |\n",
        "**sim**: `braid-lab run x-1 --backend sim --runs 30 --seed 1`; commit: c0ffee; queue: 50\n",
        "![fct](x-1/sim/fct.svg)\n",
    ] {
        assert!(text.contains(expected), "{expected}\n{text}");
    }
}

/// The page shows the first figure of each result, from the directory beside it.
#[test]
fn a_page_elsewhere_has_its_figures_beside_it() {
    let scratch = tempdir().unwrap();
    store(scratch.path(), &result(true)).unwrap();
    let stored = load(scratch.path()).unwrap();
    let [page, figures] = ["docs/results.md", "docs/figures"].map(|name| scratch.path().join(name));
    let text = publish(&stored, &page, &figures).unwrap();
    assert!(text.contains("![fct](figures/x-1-sim-fct.svg)"), "{text}");
    let figure = fs::read_to_string(figures.join("x-1-sim-fct.svg")).unwrap();
    assert_eq!(figure, stored[0].svgs[0]);
    let error = publish(&stored, &page, &scratch.path().join("elsewhere")).unwrap_err();
    let error = error.to_string();
    assert!(error.contains("cannot link to figures"), "{error}");
}

/// Claims of one paper are counted together, and claims that no paper makes are counted apart.
#[test]
fn claims_are_counted_by_publication() {
    let sources = [
        "FSA-MPTCP, figure 2(a)",
        "beyond the paper",
        "T-MPTCP, table 1 and figure 4",
        "FSA-MPTCP, figure 3",
        "beyond the papers",
    ];
    let results = sources.map(|source| {
        let mut one = stored(true);
        one.outcome.id = source.to_owned();
        one.outcome.source = source.to_owned();
        one
    });
    let text = "- **FSA-MPTCP: 2 of 2 claims hold**\n- **T-MPTCP: 1 of 1 claims hold**\n\
                - **beyond the papers: 2 of 2 claims hold**\n";
    assert!(markdown(&results).contains(text));
}

/// A claim that holds in a part of a sweep is counted apart, and the sweep is shown.
#[test]
fn a_sweep_is_shown_by_its_worst_values() {
    let mut one = stored(true);
    let part = |loss, values: [f64; 2]| {
        let values = ["64k", "1M"].into_iter().zip(values);
        let verdict = Verdict::new("mean", Bound::Below(1.0), "", values).reported("shortest");
        verdict.with("CUBIC").at("loss", loss)
    };
    let mut verdict = part("2 %", [0.9, 1.1]);
    verdict.parts.extend(part("4 %", [0.9, 0.8]).parts);
    one.outcome.verdicts.push(verdict);
    let text = markdown(&[one]);
    for expected in [
        "- **paper: 1 of 2 claims hold, 1 more in some of their settings**\n",
        "  - [x-1](#x-1), mean: below 1: holds from 4 % loss on; not at 2 %\n",
        "| claim | with | loss 2 % | loss 4 % |\n",
        "| mean: below 1 | CUBIC | no: 1.100 (1M) | 0.900 (64k) |\n",
        "| 1 of 2 claims hold, 1 in a part |",
    ] {
        assert!(text.contains(expected), "{expected}\n{text}");
    }
}

/// A claim measured on both backends has one row, and a claim of one backend is kept.
#[test]
fn backends_stand_side_by_side() {
    let mut results = [stored(true), stored(true)];
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
