//! `braid box check` and `braid server check`, and the checks before a start.

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

/// Version of the JSON output of `check`. It increases with every change that breaks existing readers of the
/// output.
const JSON_VERSION: u32 = 1;
/// Exit codes of `check`, documented in `braid box check --help`. For `check`, a mistake in the file is a result
/// (code 4), so code 2 means only a wrong command line. A refused start has other codes (see [`MACHINE_CHECKS`]).
const EXIT_WARNINGS: u8 = 3;
const EXIT_WOULD_NOT_WORK: u8 = 4;
const EXIT_COULD_NOT_CHECK: u8 = 1;
/// Names of the checks of the machine, which decide the exit code of a refused start. If only these checks refuse
/// the start, the code is 1 (a failure at run time), since a later start with the same file can succeed. If any
/// other check refuses it, the code is 2 (wrong usage), since the file has to be changed.
///
/// The names repeat those in `braid_linux::check` as text, and nothing tests that they agree. They are stable
/// between versions. If one of them changed there but not here, its refusals would get code 2.
const MACHINE_CHECKS: [&str; 6] = [
    "privileges",
    "tun.device",
    "nft",
    "forwarding",
    "instance",
    "port",
];

/// Runs `braid box check` for the configuration in `file`, and prints the findings.
pub fn check_box(file: &Path, json: bool) -> Result<(), Failure> {
    // The check changes settings of the system for its probes. A signal must not end the process before these
    // settings are restored.
    let stop = Signals::take_over()?;
    let (name, text) = read(file)?;
    let findings = match BoxConfig::from_toml(&name, &text) {
        Err(error) => vec![file_mistake(&error)],
        Ok(config) => {
            let text = text.as_str();
            let config = &config;
            let path = file;
            let found = check::check_box(File { path, text, config }, stop.as_fd());
            with_readable_file(&name, found)
        }
    };
    let mut fds = [PollFd::new(&stop, PollFlags::IN)];
    let no_wait = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // A signal has cut the check short, so its findings are incomplete. A poll that fails is no sign of a signal,
    // so the findings are shown then.
    if poll(&mut fds, Some(&no_wait)).is_ok_and(|n| n > 0) {
        return Err(Failure::Run(
            "interrupted before the check was complete; its changes to the system are undone"
                .to_owned(),
        ));
    }
    show("box", &name, findings, json)
}

/// Runs `braid server check` for the configuration in `file`, and prints the findings.
pub fn check_server(file: &Path, json: bool) -> Result<(), Failure> {
    let (name, text) = read(file)?;
    let findings = match ServerConfig::from_toml(&name, &text) {
        Err(error) => vec![file_mistake(&error)],
        Ok(config) => {
            let text = text.as_str();
            let config = &config;
            let path = file;
            with_readable_file(&name, check::check_server(File { path, text, config }))
        }
    };
    show("server", &name, findings, json)
}

/// Checks a box before its start. Fails if the box cannot work for a reason that stays while the box runs. Logs a
/// warning for each other fault. The file is read again, because some checks need its text, which `config` does not
/// keep.
pub fn box_may_start(file: &Path, config: &BoxConfig) -> Result<(), Failure> {
    let (_, text) = read(file)?;
    let text = text.as_str();
    let path = file;
    may_start(check::box_starts(File { path, text, config }))
}

/// Checks a server before its start, as [`box_may_start`] checks a box.
pub fn server_may_start(file: &Path, config: &ServerConfig) -> Result<(), Failure> {
    let (_, text) = read(file)?;
    let text = text.as_str();
    let path = file;
    may_start(check::server_starts(File { path, text, config }))
}

fn may_start(findings: Vec<Finding>) -> Result<(), Failure> {
    let (refusals, others): (Vec<_>, Vec<_>) =
        findings.into_iter().partition(Finding::refuses_start);
    for finding in others.iter().filter(|finding| finding.is_bad()) {
        tracing::warn!(check = finding.id, "{finding}");
    }
    if refusals.is_empty() {
        return Ok(());
    }
    let lines: Vec<String> = refusals.iter().map(Finding::to_string).collect();
    let text = lines.join("\n  also: ");
    let is_of_machine = |finding: &Finding| MACHINE_CHECKS.contains(&finding.id);
    Err(match refusals.iter().all(is_of_machine) {
        true => Failure::Run(text),
        false => Failure::Usage(text),
    })
}

/// Returns the file's name for messages, and its text. An unreadable file is a failure at run time: the check
/// could not be done.
fn read(file: &Path) -> Result<(String, String), Failure> {
    let text = fs::read_to_string(file);
    let text = text.map_err(|e| Failure::Run(ConfigError::unreadable(file, &e).to_string()))?;
    Ok((file.display().to_string(), text))
}

/// Returns the finding for a mistake that makes the file unusable.
fn file_mistake(error: &ConfigError) -> Finding {
    let subject = match error.position {
        Some((line, column)) => format!("{}:{line}:{column}", error.file),
        None => error.file.clone(),
    };
    let remedy = match &error.hint {
        // A hint may have several lines, but a cell of the table holds only one line.
        Some(hint) => format!(
            "write instead: {}",
            hint.split_whitespace().collect::<Vec<_>>().join(" ")
        ),
        None => String::new(),
    };
    let message = format!(
        "{}: the file cannot be loaded because of this mistake, so no start is possible, and nothing else was \
         checked",
        error.message
    );
    // `check` reports the mistake as a finding, with code 4, so that its JSON output covers this case too. A start
    // fails to load the file before any check, with code 2.
    Finding::failure(("file", subject), message, remedy)
}

/// Adds a first finding, which says that the file can be read.
fn with_readable_file(name: &str, mut findings: Vec<Finding>) -> Vec<Finding> {
    findings.insert(0, Finding::ok(("file", name), "the file can be read"));
    findings
}

/// The result of a check in JSON.
#[derive(Serialize)]
struct Report<'a> {
    version: u32,
    role: &'a str,
    file: &'a str,
    verdict: Verdict,
    findings: &'a [Finding],
}

/// Prints the findings, and returns the worst verdict as an exit code.
fn show(role: &str, file: &str, findings: Vec<Finding>, json: bool) -> Result<(), Failure> {
    // `NotChecked` stands for a check that is impossible on this machine. An operator can do nothing about it, so
    // it does not count. A warning outranks `CouldNotCheck`, because a warning is a known fault. The summary
    // counts both.
    let verdicts = findings.iter().map(|f| f.verdict);
    let worst = verdicts.filter(|v| *v != Verdict::NotChecked).max();
    let verdict = worst.unwrap_or(Verdict::Ok);
    match json {
        true => print_json(&Report {
            version: JSON_VERSION,
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
        Verdict::CouldNotCheck => Err(Failure::Found(EXIT_COULD_NOT_CHECK)),
        Verdict::Warning => Err(Failure::Found(EXIT_WARNINGS)),
        Verdict::Failure => Err(Failure::Found(EXIT_WOULD_NOT_WORK)),
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

/// Returns a sentence that says what the findings mean for the operator.
fn summary(role: &str, findings: &[Finding], verdict: Verdict) -> String {
    let count = |wanted: Verdict| findings.iter().filter(|f| f.verdict == wanted).count();
    let counted = |n: usize, noun: &str| match n {
        1 => format!("1 {noun}"),
        n => format!("{n} {noun}s"),
    };
    let (failures, warnings) = (count(Verdict::Failure), count(Verdict::Warning));
    let unknown = count(Verdict::CouldNotCheck);
    let and_unknown = match unknown {
        0 => String::new(),
        n => format!("; {} could not be done", counted(n, "check")),
    };
    match verdict {
        Verdict::Failure => format!(
            "the {role} would not work: {}, {}{and_unknown}",
            counted(failures, "failure"),
            counted(warnings, "warning")
        ),
        Verdict::Warning => format!(
            "the {role} works, but not as well as it could: {}{and_unknown}",
            counted(warnings, "warning")
        ),
        Verdict::CouldNotCheck => format!(
            "the checks that were done found no fault, but {} could not be done",
            counted(unknown, "check")
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
    fn a_row_has_a_verdict_and_the_remedy_below() {
        let text = table(&[finding(Verdict::Warning)]);
        let expected = "  verdict  check  about             found\n  \
                        warning  unit   timeouts.connect  30 has no unit\n      to do: write 30s\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn a_start_is_refused_for_a_failure_that_cannot_heal() {
        assert!(may_start(vec![finding(Verdict::Warning)]).is_ok());
        assert!(may_start(vec![finding(Verdict::Failure).healing()]).is_ok());
        let refused = may_start(vec![finding(Verdict::Failure)]).unwrap_err();
        assert!(matches!(&refused, Failure::Usage(text) if text.contains("to do: write 30s")));
        // If a check of the machine refuses the start, the same file may work later: a failure at run time.
        let busy = Finding::failure(("instance", "tun braid0"), "it is there", "");
        assert!(matches!(may_start(vec![busy]), Err(Failure::Run(_))));
    }
}
