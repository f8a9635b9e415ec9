//! The settings of box and server are few, and the pages list those that the parsers know.
//!
//! `make settings` prints how many there are.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use braid_proxy::config::{BoxConfig, ConfigError, ServerConfig};
use braid_secure::keys::PrivateKey;

/// Most settings that docs/configuration.md lists: what an operator decides about.
const MOST_DOCUMENTED: usize = 50;
/// Most settings of `[expert]`, which docs/expert.md lists.
const MOST_EXPERT: usize = 20;

type Names = BTreeSet<String>;

/// Reads a file, and returns the mistake in it.
type Parse = fn(&str) -> Option<ConfigError>;

fn own_key() -> PrivateKey {
    PrivateKey::from_seed([1; 32])
}

fn of_box(text: &str) -> Option<ConfigError> {
    BoxConfig::with_key("box.toml", text, own_key()).err()
}

fn of_server(text: &str) -> Option<ConfigError> {
    ServerConfig::with_key("server.toml", text, own_key()).err()
}

/// A key that is like no setting, so that the parser lists those that it knows.
const UNKNOWN: &str = "zzzzzzzzzzzzzzzzzzzzzzzzzzzzzz";

/// Returns the keys that the parser knows in a table; `None` where `table` is a setting itself.
fn keys_in(parse: Parse, table: &str) -> Option<Vec<String>> {
    let text = match table {
        "" => format!("{UNKNOWN} = 0"),
        _ => format!("{table}.{UNKNOWN} = 0"),
    };
    let error = parse(&text).expect("nothing that is needed is there");
    if error.message != format!("there is no setting `{UNKNOWN}` here") {
        return None;
    }
    let hint = error.hint.expect("the known keys");
    let keys = hint.strip_prefix("one of ").expect("a list");
    Some(keys.split(", ").map(str::to_owned).collect())
}

/// Returns the settings that the parser knows, each with its table. A table is no setting, its keys are.
fn settings(parse: Parse) -> Names {
    let mut all = Names::new();
    let top = keys_in(parse, "").expect("the file is a table");
    for key in top {
        match keys_in(parse, &key) {
            None => drop(all.insert(key)),
            Some(keys) => all.extend(keys.iter().map(|inner| format!("{key}.{inner}"))),
        }
    }
    all
}

/// Returns the settings in the first column of the tables below a heading. A row with a table's header, such as
/// `[tun]`, says that the rows after it are of that table.
fn listed(page: &str, heading: &str, table: &str) -> Vec<String> {
    let lines = page.lines().skip_while(|line| *line != heading).skip(1);
    let rows = lines
        .take_while(|line| !line.starts_with("## "))
        .filter_map(|line| line.strip_prefix("| "))
        .filter(|row| !row.starts_with("setting ") && !row.starts_with("---"));
    let (mut table, mut all) = (table.to_owned(), Vec::new());
    for row in rows {
        let column = row.split(" |").next().expect("a column");
        for name in column.split('`').skip(1).step_by(2) {
            if name.starts_with('[') {
                table = format!("{}.", name.trim_matches(['[', ']']));
            } else {
                all.push(format!("{table}{name}"));
            }
        }
    }
    assert!(!all.is_empty(), "no settings below {heading:?}");
    all
}

/// Fails unless the lists together have each setting once.
fn expect_each_once(what: &str, known: &Names, lists: &[&[String]]) {
    let all = lists.concat();
    let found: Names = all.iter().cloned().collect();
    assert_eq!(found.len(), all.len(), "{what}: one is listed twice");
    let missing: Vec<_> = known.difference(&found).collect();
    let stale: Vec<_> = found.difference(known).collect();
    assert!(
        missing.is_empty() && stale.is_empty(),
        "{what}: the pages lack {missing:?}, and list {stale:?}, which the parser does not know"
    );
}

fn page(name: &str) -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../docs")
        .join(name);
    fs::read_to_string(file).expect("a readable page")
}

/// Rule of the count: one key of one table is one setting. A key that both files have means the same in both,
/// stands in one row, and counts once.
#[test]
fn settings_are_few_and_all_on_the_pages() {
    let (boxed, server) = (settings(of_box), settings(of_server));
    let page_of_all = page("configuration.md");
    let [both, only_box, only_server] = [
        "## Settings of both",
        "## Settings of the box",
        "## Settings of the server",
    ]
    .map(|heading| listed(&page_of_all, heading, ""));
    let page_of_expert = page("expert.md");
    let [both_expert, box_expert, server_expert] =
        ["## Of both", "## Of the box", "## Of the server"]
            .map(|heading| listed(&page_of_expert, heading, "expert."));
    let lists = [&both[..], &only_box, &both_expert, &box_expert];
    expect_each_once("box", &boxed, &lists);
    let lists = [&both[..], &only_server, &both_expert, &server_expert];
    expect_each_once("server", &server, &lists);

    let is_expert = |name: &&String| name.starts_with("expert.");
    let all: Names = boxed.union(&server).cloned().collect();
    let expert = all.iter().filter(is_expert).count();
    let documented = all.len() - expert;
    let of_file = |names: &Names| {
        let expert = names.iter().filter(is_expert).count();
        (names.len() - expert, expert)
    };
    println!("settings: {documented} documented (at most {MOST_DOCUMENTED})");
    println!("settings: {expert} in [expert] (at most {MOST_EXPERT})");
    for (file, (documented, expert)) in [
        ("box.toml", of_file(&boxed)),
        ("server.toml", of_file(&server)),
    ] {
        println!("{file}: {documented} documented, {expert} in [expert]");
    }
    assert!(documented <= MOST_DOCUMENTED, "{documented} documented");
    assert!(expert <= MOST_EXPERT, "{expert} in [expert]");
}
