//! Every strategy and every congestion control over twelve standard scenarios, beside what is written
//! down in `strategies.txt` and `congestion.txt`: whatever changes there is a difference to look at.
//!
//! `BRAID_SNAPSHOTS=1 cargo test -p braid-sim --test scenarios` writes both anew.

mod worlds;

use core::fmt::Write;
use core::time::Duration;
use std::path::Path;
use std::{env, fs};

use braid_engine::Config;
use braid_engine::cc::TABLE;

use worlds::{Download, Scenario, scenarios};

/// Bytes of the flow whose completion is timed.
const FLOW: u64 = 1 << 20;
/// It is given up after so long.
const LIMIT: Duration = Duration::from_secs(60);

/// Goodput of a greedy download, kbit/s, and completion time of a flow, ms.
fn cell(scenario: &Scenario, strategy: &str, engine: &Config) -> String {
    let mut greedy = scenario.start(strategy, engine, 1 << 40);
    greedy.world.advance(scenario.span);
    let kbit = greedy.received() * 8 / scenario.span.as_millis() as u64;
    let mut flow = scenario.start(strategy, engine, FLOW);
    let begun = flow.world.now();
    let took = |flow: &Download| flow.world.now().saturating_since(begun);
    while flow.received() < FLOW && took(&flow) < LIMIT {
        flow.world.advance(Duration::from_millis(1));
    }
    format!("{kbit:>7} {:>6}", took(&flow).as_millis())
}

/// A row for each scenario, a column for each of `names`.
fn table(names: &[&str], cell: impl Fn(&Scenario, &str) -> String) -> String {
    let mut text = format!("{:<18}", "kbit/s, ms");
    for name in names {
        write!(text, " {name:>15}").unwrap();
    }
    text.push('\n');
    for scenario in scenarios() {
        write!(text, "{:<18}", scenario.name).unwrap();
        for name in names {
            write!(text, "  {}", cell(&scenario, name)).unwrap();
        }
        text.push('\n');
    }
    text
}

#[track_caller]
fn assert_snapshot(file: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/scenarios")
        .join(file);
    if env::var_os("BRAID_SNAPSHOTS").is_some() {
        fs::write(&path, text).unwrap();
        return;
    }
    let known = fs::read_to_string(&path).unwrap_or_default();
    let differ = known.lines().zip(text.lines()).filter(|(a, b)| a != b);
    let differ: Vec<String> = differ.map(|(a, b)| format!("-{a}\n+{b}")).collect();
    assert!(
        known == text,
        "{file} differs; if that is wanted, write it anew with BRAID_SNAPSHOTS=1:\n{}",
        differ.join("\n")
    );
}

#[test]
fn strategies_do_as_is_written_down() {
    let names: Vec<&str> = braid_strategy::names().collect();
    let engine = Config::default();
    let text = table(&names, |scenario, name| cell(scenario, name, &engine));
    assert_snapshot("strategies.txt", &text);
}

#[test]
fn congestion_controls_do_as_is_written_down() {
    let names: Vec<&str> = TABLE.iter().map(|row| row.name()).collect();
    let text = table(&names, |scenario, name| {
        let engine = Config {
            congestion: name.parse().unwrap(),
            ..Config::default()
        };
        cell(scenario, "minrtt", &engine)
    });
    assert_snapshot("congestion.txt", &text);
}
