//! `braid plan`: a ranking of servers, to decide which ones to rent.

use std::path::Path;

use braid_proxy::config::{BoxConfig, ConfigError, sites_from_toml};
use braid_proxy::plan::{Site, Step, plan};
use braid_proxy::selection::Need;
use braid_proxy::status::Role;
use serde::Deserialize;

use super::ask::columns::{Align, Columns};
use super::ask::{Instance, units};
use crate::cli::{By, PlanArgs};
use crate::failure::Failure;
use crate::print::{print, print_json};

/// Prints the servers in the order in which an operator should rent them.
pub fn run(args: &PlanArgs, json: bool) -> Result<(), Failure> {
    let boxes = match &args.files[..] {
        [] => vec![ask_box(args.config.as_deref())?],
        files => files.iter().map(|f| read(f)).collect::<Result<_, _>>()?,
    };
    let need = match args.by {
        By::Bandwidth => Need::Throughput,
        By::Delay => Need::Latency,
    };
    let mut steps = plan(need, &boxes);
    steps.truncate(args.count.map_or(usize::MAX, usize::from));
    match json {
        true => print_json(&steps),
        false => print(table(&steps, args.by)),
    }
}

/// Returns the measurements of the running box.
fn ask_box(config: Option<&Path>) -> Result<Vec<Site>, Failure> {
    let config = config.map(BoxConfig::load).transpose()?;
    let servers = Instance::of(Role::Box, config.as_ref()).servers()?;
    let sites = servers.into_iter().map(|server| Site {
        name: server.name,
        measured: server.measured,
    });
    Ok(sites.collect())
}

/// The output of `braid box servers --json` or `braid box status --json`; other fields are ignored.
#[derive(Deserialize)]
#[serde(untagged)]
enum JsonFile {
    Servers(Vec<Site>),
    Status { servers: Vec<Site> },
}

/// Reads the measurements of one box from a file in JSON or TOML.
fn read(file: &Path) -> Result<Vec<Site>, Failure> {
    let name = file.display().to_string();
    let text = std::fs::read_to_string(file).map_err(|e| ConfigError::unreadable(file, &e))?;
    // JSON begins with `{` or `[`. TOML may begin with `[` too, as in `[[server]]`. A JSON array of arrays holds
    // no measurements, so `[[` means TOML.
    if text.trim_start().starts_with("[[") || !text.trim_start().starts_with(['{', '[']) {
        return Ok(sites_from_toml(&name, &text)?);
    }
    match serde_json::from_str(&text) {
        Ok(JsonFile::Servers(sites) | JsonFile::Status { servers: sites }) if !sites.is_empty() => {
            Ok(sites)
        }
        _ => Err(Failure::Usage(format!(
            "{name}: the file holds no measurements of servers; write it by `braid box servers --json`, \
             or as TOML with a table [[server]] for each server"
        ))),
    }
}

/// Returns one row for each server, best first. The last column holds the value of `by` for a set of servers:
/// the row's server and all servers above it.
fn table(steps: &[Step], by: By) -> String {
    use Align::{Left, Right};
    let mut columns = Columns::new(&[
        ("", Right),
        ("server", Left),
        ("bandwidth", Right),
        ("delay", Right),
        ("with those above", Right),
    ]);
    for (i, step) in steps.iter().enumerate() {
        let together = match by {
            By::Bandwidth => units::rate(step.together),
            By::Delay => units::milliseconds(step.together),
        };
        let row = [
            (i + 1).to_string(),
            step.name.clone(),
            units::rate(step.bandwidth),
            units::milliseconds(step.delay_ms),
            together,
        ];
        columns.row(row, Vec::new());
    }
    columns.text()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn temp_file(name: &str, text: &str) -> std::path::PathBuf {
        let name = format!("braid-plan-{}-{name}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    #[test]
    fn json_of_boxes_and_toml_of_operators_are_read() {
        let servers = r#"[{"name":"oslo","addresses":[],"measured":
            {"paths":[{"bandwidth":2e7,"delay_ms":40.0}],"beyond":{}}}]"#;
        let site = r#"{"name":"oslo","measured":{"paths":[{"bandwidth":2e7,"delay_ms":40.0}]}}"#;
        let toml =
            "[[server]]\nname = \"oslo\"\npaths = [{ bandwidth = \"20Mbit/s\", delay = \"40ms\" }]";
        let status = format!(r#"{{"version":1,"servers":[{site}]}}"#);
        for (n, text) in [servers, toml, &status].into_iter().enumerate() {
            let path = temp_file(&n.to_string(), text);
            let sites = read(&path).unwrap();
            std::fs::remove_file(&path).unwrap();
            let steps = plan(Need::Throughput, &[sites]);
            let expected = "     server    bandwidth  delay  with those above\n  \
                            1  oslo    20.0 Mbit/s  40 ms       20.0 Mbit/s\n";
            assert_eq!(table(&steps, By::Bandwidth), expected);
        }
    }

    #[test]
    fn a_file_without_measurements_is_a_usage_error() {
        for text in ["{}", "[]", "[1]", "{", "servers"] {
            let path = temp_file("bad", text);
            let failure = read(&path).unwrap_err();
            assert!(matches!(failure, Failure::Usage(_)), "{text}");
            let message = failure.to_string();
            let names_the_file = message.starts_with(&path.display().to_string());
            assert!(names_the_file, "{message}");
        }
        let path = temp_file("bad", "");
        std::fs::remove_file(&path).unwrap();
        assert!(
            read(&path)
                .unwrap_err()
                .to_string()
                .contains("cannot read the file")
        );
    }
}
