//! The search for losses of the strategy `adaptive`: what it draws, and that its results depend on the seed alone.

use std::env;
use std::fs;
use std::process::Command;
use std::time::Duration;

use braid_lab::search::{Draw, search};
use serde_json::Value;

/// A seed whose first draws are small, so that the test is fast.
const SMALL: u64 = 18;
const SNAPSHOT: &str = "tests/search/draws.txt";

/// A change to the draws changes the published searches too, so it must be intended. `BRAID_WRITE=1` writes the file
/// anew.
#[test]
fn the_draws_of_a_seed_stay_the_same() {
    let command = |number| {
        let draw = Draw::new(20_261_127, number);
        draw.case("adaptive", draw.seeds[0]).command(20) + "\n"
    };
    let drawn: String = (0..20).map(command).collect();
    if env::var_os("BRAID_WRITE").is_some() {
        fs::write(SNAPSHOT, &drawn).unwrap();
    }
    assert_eq!(drawn, fs::read_to_string(SNAPSHOT).unwrap());
}

#[test]
fn a_search_depends_on_its_seed_alone() {
    let with = |threads| {
        let report = search(SMALL, 2, Duration::MAX, threads, &|| ()).unwrap();
        report.json()
    };
    let report = with(1);
    assert_eq!(report, with(2));
    assert_eq!(report["draws"], 2);
    for result in report["results"].as_array().unwrap() {
        assert_is_repeated(result);
    }
}

/// Checks that the command of a result gives the same mean.
fn assert_is_repeated(result: &Value) {
    let command = result["command"].as_str().unwrap();
    let words = command
        .split(' ')
        .skip(1)
        .map(|word| word.trim_matches('\''));
    let output = Command::new(env!("CARGO_BIN_EXE_braid-lab"))
        .args(words)
        .arg("--json")
        .output()
        .unwrap();
    assert!(output.status.success(), "{command}: {output:?}");
    let rows: Value = serde_json::from_slice(&output.stdout).unwrap();
    let mean = |value: &Value| value.as_f64().unwrap();
    let [searched, repeated] = [
        mean(&result["variants"][0]["mean_ms"]),
        mean(&rows[0]["fct_ms"]["mean"]),
    ];
    assert!(
        (searched - repeated).abs() < 1e-3,
        "{command}: {searched} {repeated}"
    );
}
