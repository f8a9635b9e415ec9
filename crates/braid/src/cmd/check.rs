//! `braid box check` and `braid server check`, and the same checks at a start.

use std::fs;
use std::os::fd::AsFd;
use std::path::Path;

use braid_linux::check::{self, File};
use braid_linux::run::Signals;
use braid_proxy::config::{BoxConfig, ConfigError, Finding, ServerConfig, Verdict};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;

use super::ask::columns::{Align, Columns};
use crate::failure::Failure;
use crate::print::{print, print_json};

/// Version of the JSON form.
const VERSION: u32 = 1;
/// Exit codes, beside 0 and those of failures.
const WARNINGS: u8 = 3;
const WOULD_NOT_WORK: u8 = 4;
const COULD_NOT_CHECK: u8 = 1;
/// Checks of the machine. A start that only these refuse is a failure at run time; otherwise the file is wrong.
const OF_MACHINE: [&str; 6] = [
    "privileges",
    "tun.device",
    "nft",
    "forwarding",
    "instance",
    "port",
];

/// Checks a box with this file.
pub fn boxed(file: &Path, json: bool) -> Result<(), Failure> {
    let stop = Signals::take_over()?;
    let (name, text) = read(file)?;
    let findings = match BoxConfig::from_toml(&name, &text) {
        Err(error) => vec![of_file(&error)],
        Ok(config) => {
            let text = text.as_str();
            let config = &config;
            let path = file;
            let found = check::check_box(File { path, text, config }, stop.as_fd());
            with_file(&name, found)
        }
    };
    let mut fds = [PollFd::new(&stop, PollFlags::IN)];
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    if poll(&mut fds, Some(&now)).is_ok_and(|n| n > 0) {
        return Err(Failure::Run(
            "interrupted before the check was complete; it has removed what it set up".to_owned(),
        ));
    }
    show("box", &name, findings, json)
}

/// Checks a server with this file.
pub fn server(file: &Path, json: bool) -> Result<(), Failure> {
    let (name, text) = read(file)?;
    let findings = match ServerConfig::from_toml(&name, &text) {
        Err(error) => vec![of_file(&error)],
        Ok(config) => {
            let text = text.as_str();
            let config = &config;
            let path = file;
            with_file(&name, check::check_server(File { path, text, config }))
        }
    };
    show("server", &name, findings, json)
}

/// Refuses the start of a box that can never work, and warns of lesser faults.
pub fn box_may_start(file: &Path, config: &BoxConfig) -> Result<(), Failure> {
    let (_, text) = read(file)?;
    let text = text.as_str();
    let path = file;
    may_start(check::box_starts(File { path, text, config }))
}

/// Does the same for a server, as [`box_may_start`] does for a box.
pub fn server_may_start(file: &Path, config: &ServerConfig) -> Result<(), Failure> {
    let (_, text) = read(file)?;
    let text = text.as_str();
    let path = file;
    may_start(check::server_starts(File { path, text, config }))
}

fn may_start(findings: Vec<Finding>) -> Result<(), Failure> {
    let (refused, others): (Vec<_>, Vec<_>) =
        findings.into_iter().partition(Finding::refuses_start);
    for finding in others.iter().filter(|finding| finding.is_bad()) {
        tracing::warn!(check = finding.id, "{finding}");
    }
    if refused.is_empty() {
        return Ok(());
    }
    let lines: Vec<String> = refused.iter().map(Finding::to_string).collect();
    let text = lines.join("\n  also: ");
    let of_machine = |finding: &Finding| OF_MACHINE.contains(&finding.id);
    Err(match refused.iter().all(of_machine) {
        true => Failure::Run(text),
        false => Failure::Usage(text),
    })
}

fn read(file: &Path) -> Result<(String, String), Failure> {
    let text = fs::read_to_string(file);
    let text = text.map_err(|e| Failure::Run(ConfigError::unreadable(file, &e).to_string()))?;
    Ok((file.display().to_string(), text))
}

/// Returns the finding for a mistake that makes the file unusable.
fn of_file(error: &ConfigError) -> Finding {
    let subject = match error.position {
        Some((line, column)) => format!("{}:{line}:{column}", error.file),
        None => error.file.clone(),
    };
    let remedy = match &error.hint {
        Some(hint) => format!(
            "write instead: {}",
            hint.split_whitespace().collect::<Vec<_>>().join(" ")
        ),
        None => String::new(),
    };
    let message = format!(
        "{}: with this mistake the file can be neither started nor checked further",
        error.message
    );
    Finding::failure(("file", subject), message, remedy)
}

fn with_file(name: &str, mut found: Vec<Finding>) -> Vec<Finding> {
    found.insert(0, Finding::ok(("file", name), "the file can be read"));
    found
}

/// The result in JSON.
#[derive(Serialize)]
struct Report<'a> {
    version: u32,
    role: &'a str,
    file: &'a str,
    verdict: Verdict,
    findings: &'a [Finding],
}

fn show(role: &str, file: &str, findings: Vec<Finding>, json: bool) -> Result<(), Failure> {
    // Things that can never be checked here do not lower the verdict.
    let verdicts = findings.iter().map(|f| f.verdict);
    let worst = verdicts.filter(|v| *v != Verdict::NotChecked).max();
    let verdict = worst.unwrap_or(Verdict::Ok);
    match json {
        true => print_json(&Report {
            version: VERSION,
            role,
            file,
            verdict,
            findings: &findings,
        })?,
        false => print(format_args!(
            "{}{}\n",
            table(&findings),
            summary(role, &findings, verdict)
        ))?,
    }
    match verdict {
        Verdict::Ok | Verdict::NotChecked => Ok(()),
        Verdict::CouldNotCheck => Err(Failure::Found(COULD_NOT_CHECK)),
        Verdict::Warning => Err(Failure::Found(WARNINGS)),
        Verdict::Failure => Err(Failure::Found(WOULD_NOT_WORK)),
    }
}

fn table(findings: &[Finding]) -> String {
    let heads = ["verdict", "check", "about", "found"].map(|head| (head, Align::Left));
    let mut columns = Columns::new(&heads);
    for finding in findings {
        let row = [
            finding.verdict.word().to_owned(),
            finding.id.to_owned(),
            finding.subject.clone(),
            finding.message.clone(),
        ];
        let remedy = match finding.remedy.as_str() {
            "" => Vec::new(),
            remedy => vec![format!("to do: {remedy}")],
        };
        columns.row(row, remedy);
    }
    columns.text()
}

fn summary(role: &str, findings: &[Finding], verdict: Verdict) -> String {
    let count = |wanted: Verdict| findings.iter().filter(|f| f.verdict == wanted).count();
    let named = |n: usize, what: &str| match n {
        1 => format!("1 {what}"),
        n => format!("{n} {what}s"),
    };
    let (failures, warnings) = (count(Verdict::Failure), count(Verdict::Warning));
    let unknown = count(Verdict::CouldNotCheck);
    let and_unknown = match unknown {
        0 => String::new(),
        n => format!("; {} could not be done", named(n, "check")),
    };
    match verdict {
        Verdict::Failure => format!(
            "the {role} would not work: {}, {}{and_unknown}",
            named(failures, "failure"),
            named(warnings, "warning")
        ),
        Verdict::Warning => format!(
            "the {role} works, but not as well as it could: {}{and_unknown}",
            named(warnings, "warning")
        ),
        Verdict::CouldNotCheck => format!(
            "the checks that were done found no fault, but {} could not be done",
            named(unknown, "check")
        ),
        Verdict::Ok | Verdict::NotChecked => format!("the {role} is fine"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(verdict: Verdict) -> Finding {
        Finding::new(
            verdict,
            ("unit", "timeouts.connect"),
            "30 has no unit",
            "write 30s",
        )
    }

    #[test]
    fn the_worst_verdict_is_the_exit_code() {
        for (verdicts, code) in [
            (vec![], None),
            (vec![Verdict::Ok, Verdict::NotChecked], None),
            (vec![Verdict::CouldNotCheck, Verdict::Ok], Some(1)),
            (vec![Verdict::Warning, Verdict::CouldNotCheck], Some(3)),
            (vec![Verdict::Failure, Verdict::Warning], Some(4)),
        ] {
            let findings: Vec<Finding> = verdicts.iter().map(|v| finding(*v)).collect();
            let shown = show("box", "box.toml", findings, true);
            let found = shown.err().map(|failure| match failure {
                Failure::Found(code) => code,
                other => panic!("{other:?}"),
            });
            assert_eq!(found, code, "{verdicts:?}");
        }
    }

    #[test]
    fn a_line_has_a_verdict_and_below_it_what_to_do() {
        let text = table(&[finding(Verdict::Warning)]);
        let expected = "  verdict  check  about             found\n  \
                        warning  unit   timeouts.connect  30 has no unit\n      to do: write 30s\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn a_start_is_refused_for_what_does_not_heal() {
        assert!(may_start(vec![finding(Verdict::Warning)]).is_ok());
        assert!(may_start(vec![finding(Verdict::Failure).healing()]).is_ok());
        let refused = may_start(vec![finding(Verdict::Failure)]).unwrap_err();
        assert!(matches!(&refused, Failure::Usage(text) if text.contains("to do: write 30s")));
        let busy = Finding::failure(("instance", "tun braid0"), "it is there", "");
        assert!(matches!(may_start(vec![busy]), Err(Failure::Run(_))));
    }
}
