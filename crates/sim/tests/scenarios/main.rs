//! Every strategy and every congestion control over twelve standard scenarios, compared with
//! `strategies.txt` and `congestion.txt`. Any change shows as a difference.
//!
//! `BRAID_SNAPSHOTS=1 cargo test --workspace --test scenarios` writes both files anew.

mod worlds;

use core::fmt::Write;
use core::time::Duration;
use std::path::{Path, PathBuf};
use std::{env, fs};

use braid_engine::Config;
use braid_engine::cc::TABLE;
use braid_links::Settings;
use braid_proxy::config::DEFAULT_CONGESTION;

use worlds::{Download, Scenario, measured, pair, scenarios};

/// Bytes of the flow whose completion is timed.
const FLOW: u64 = 1 << 20;
/// The time after which the flow is given up.
const LIMIT: Duration = Duration::from_secs(60);

/// Returns the goodput of a greedy download, kbit/s.
fn goodput(scenario: &Scenario, strategy: &str, engine: &Config) -> u64 {
    let mut greedy = scenario.start(strategy, engine, 1 << 40);
    greedy.world.advance(scenario.span);
    greedy.received() * 8 / scenario.span.as_millis() as u64
}

/// Returns goodput, and completion time of a flow, ms.
fn cell(scenario: &Scenario, strategy: &str, engine: &Config) -> String {
    let kbit = goodput(scenario, strategy, engine);
    let mut flow = scenario.start(strategy, engine, FLOW);
    let begun = flow.world.now();
    let took = |flow: &Download| flow.world.now().saturating_since(begun);
    while flow.received() < FLOW && took(&flow) < LIMIT {
        flow.world.advance(Duration::from_millis(1));
    }
    format!("{kbit:>7} {:>6}", took(&flow).as_millis())
}

/// Returns a table with a row for each scenario and a column for each of `names`.
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

fn known(file: &str) -> (PathBuf, String) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/scenarios")
        .join(file);
    let text = fs::read_to_string(&path).unwrap_or_default();
    (path, text)
}

#[track_caller]
fn assert_snapshot(file: &str, text: &str) {
    let (path, known) = known(file);
    if env::var_os("BRAID_SNAPSHOTS").is_some() {
        fs::write(&path, text).unwrap();
        return;
    }
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

/// The number of pairs of paths; a normal run compares one in `SELDOM`.
const PAIRS: u64 = 100;
const SELDOM: usize = 20;

/// Returns the goodput of two paths together in a minute, and of each alone, kbit/s, by the default
/// strategy and congestion control of box and server.
fn pair_row(number: u64) -> String {
    let usual = Config {
        congestion: DEFAULT_CONGESTION,
        ..Config::default()
    };
    let over = |paths: &[Settings]| {
        let mut scenario = Scenario::new("pair", paths.iter().cloned());
        scenario.span = Duration::from_secs(60);
        goodput(&scenario, "adaptive", &usual)
    };
    let pair = pair(number);
    let paths = pair.map(measured);
    let alone = [over(&paths[..1]), over(&paths[1..])];
    let joined = over(&paths);
    let mut row = String::new();
    for ((mbit, rtt), alone) in pair.iter().zip(alone) {
        write!(row, "{mbit:>3} Mbit/s {rtt:>3} ms {alone:>6}   ").unwrap();
    }
    let share = joined as f64 / (alone[0] + alone[1]) as f64;
    let most = alone[0].max(alone[1]);
    assert!(share >= 0.95 && joined >= most, "{row} together {joined}");
    write!(row, "together {joined:>6} {:>5.1} %", share * 100.0).unwrap();
    row
}

/// Asserts that two paths together reach at least 95 % of their sum, and never less than the better one.
/// From the pairs of a normal run this takes every second one, beginning with number `first`.
#[track_caller]
fn assert_some_pairs_add_up(first: usize) {
    let (_, known) = known("pairs.txt");
    assert_eq!(known.lines().count() as u64, PAIRS);
    let compared = (0..).zip(known.lines()).step_by(SELDOM);
    for (number, row) in compared.skip(first).step_by(2) {
        assert_eq!(pair_row(number), row);
    }
}

#[test]
fn some_pairs_of_paths_add_up() {
    assert_some_pairs_add_up(0);
}

#[test]
fn so_do_some_others() {
    assert_some_pairs_add_up(1);
}

#[test]
#[ignore = "make aggregation"]
fn all_pairs_of_paths_add_up() {
    let rows: Vec<String> = (0..PAIRS).map(pair_row).collect();
    assert_snapshot("pairs.txt", &(rows.join("\n") + "\n"));
}
