//! What the demo promises.

use std::collections::BTreeMap;
use std::process::Command;

use serde_json::Value;

use super::bed::stderr;

/// How often the demo is tried where it says itself that the machine was too busy, or a download was
/// slow: half a second in which one of its programs does not run is a tenth of it.
const ATTEMPTS: usize = 3;

/// Runs it once; `None` where it says that the machine was too busy.
fn rows() -> Option<BTreeMap<String, Value>> {
    let mut demo = Command::new(env!("CARGO_BIN_EXE_braid"));
    let output = demo.args(["demo", "--json"]).output().expect("it runs");
    let said = stderr(&output);
    assert!(output.status.success(), "{said}");
    if said.contains("do not trust") {
        return None;
    }
    let rows: Vec<Value> = serde_json::from_slice(&output.stdout).expect("an array");
    let via = |row: &Value| row["via"].as_str().expect("a name").to_owned();
    Some(rows.iter().map(|row| (via(row), row.clone())).collect())
}

/// What is wrong with the rates, if anything.
fn too_slow(rows: &BTreeMap<String, Value>) -> Option<String> {
    let number = |via: &str, field: &str| rows[via][field].as_f64().expect("a number");
    let sum = number("link1", "mbit_s") + number("link2", "mbit_s");
    let (braid, kernel) = (number("braid", "mbit_s"), number("kernel", "mbit_s"));
    assert!((number("braid", "share_of_sum") - braid / sum).abs() < 1e-9);
    let fast = braid >= 0.90 * sum && braid >= 0.95 * kernel;
    (!fast).then(|| format!("{braid:.2} Mbit/s of {sum:.2}; the kernel {kernel:.2}"))
}

#[test]
#[ignore = "network"]
fn the_demo_keeps_its_promises() {
    let mut failed = Vec::new();
    for _ in 0..ATTEMPTS {
        let Some(rows) = rows() else {
            failed.push("the machine was too busy for the emulated links".to_owned());
            continue;
        };
        let names: Vec<_> = rows.keys().map(String::as_str).collect();
        assert_eq!(names, ["braid", "kernel", "link1", "link2"]);
        for row in rows.values() {
            assert_eq!(row["sha256_ok"], true, "{row}");
        }
        for via in ["kernel", "braid"] {
            let links = rows[via]["bytes_by_link"].as_array().expect("an array");
            let bytes: Vec<_> = links
                .iter()
                .map(|bytes| bytes.as_u64().expect("a number"))
                .collect();
            assert!(
                bytes.len() == 2 && bytes.iter().all(|b| *b > 2_000_000),
                "{via}: {bytes:?}"
            );
        }
        let Some(message) = too_slow(&rows) else {
            return;
        };
        failed.push(message);
    }
    panic!("{failed:#?}");
}
