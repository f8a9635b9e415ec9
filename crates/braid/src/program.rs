//! The common parts of the programs `braid` and `braid-lab`: parsing the command line, logging, reporting
//! failures, and finding each other. Results go to standard output, logs and errors to standard error.

use std::env;
use std::ffi::OsStr;
use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::failure::Failure;

/// The product's program.
pub const BRAID: &str = "braid";
/// The laboratory's program.
pub const BRAID_LAB: &str = "braid-lab";

/// Parses the command line of this process, which runs the program `name`.
///
/// # Errors
/// Fails with the exit code if the process has nothing more to do: help, the version or an error is printed.
pub fn read_arguments<Cli: Parser>(name: &str) -> Result<Cli, ExitCode> {
    Cli::try_parse().map_err(|error| refuse_usage(name, &error))
}

/// Prints help and version as they are, and errors in the form of all errors of a program.
fn refuse_usage(name: &str, error: &clap::Error) -> ExitCode {
    if !error.use_stderr() {
        // A closed pipe (`braid --help | head`) is no failure.
        let _ = error.print();
        return ExitCode::SUCCESS;
    }
    let text = error.render().to_string();
    let text = text.strip_prefix("error: ").unwrap_or(&text);
    match error.kind() {
        // The value and the expected ones say everything, in one line; clap's further lines are left out.
        ErrorKind::ValueValidation | ErrorKind::InvalidValue => {
            let said = text.split("\n\n").next().unwrap_or(text);
            let words: Vec<&str> = said.split_whitespace().collect();
            complain(name, words.join(" "));
        }
        _ => complain(name, text.trim_end_matches('\n')),
    }
    Failure::Usage(String::new()).exit_code()
}

/// Logs to standard error: by default `usual`, more for each `-v` (`verbose`), and as `RUST_LOG` selects if
/// it is set.
pub fn start_log(usual: &str, verbose: u8) {
    let asked = env::var("RUST_LOG").unwrap_or_default();
    let asked = targets(&asked).unwrap_or_else(|part| {
        complain(
            "RUST_LOG",
            format!("ignored `{part}`: expected a level (info), or a target and its level (braid_proxy=debug)"),
        );
        None
    });
    let filter = filter(asked, usual, verbose);
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        // A line that cannot be written (disk full, reader gone) is lost. `eprintln!` would be used to report
        // that, and panic for the same reason.
        .log_internal_errors(false);
    tracing_subscriber::registry()
        .with(lines)
        .with(filter)
        .init();
}

/// Parses levels and targets with levels, separated by commas; returns `None` if there are none.
///
/// # Errors
/// Fails with the part that cannot be parsed.
fn targets(text: &str) -> Result<Option<Targets>, &str> {
    let parts = text.split(',').map(str::trim);
    let parts: Vec<&str> = parts.filter(|part| !part.is_empty()).collect();
    for part in &parts {
        // A target is the path of a module, without spans, fields or blanks.
        let readable = !part.contains(|c: char| c == '[' || c.is_whitespace());
        if !readable || part.parse::<Targets>().is_err() {
            return Err(part);
        }
    }
    let all = (!parts.is_empty()).then(|| parts.join(","));
    Ok(all.and_then(|all| all.parse().ok()))
}

/// Returns the filter: `asked` if it is set, otherwise by `usual` and `verbose`.
fn filter(asked: Option<Targets>, usual: &str, verbose: u8) -> Targets {
    let level = match verbose {
        0 => usual,
        1 => "info",
        2 => "debug",
        _ => "trace",
    };
    asked.or_else(|| level.parse().ok()).unwrap_or_default()
}

/// Reports a failure of the program `name`, and returns the exit code of the process.
pub fn end(name: &str, result: Result<(), Failure>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // The findings are printed already.
        Err(failure @ Failure::Found(_)) => failure.exit_code(),
        Err(failure) => {
            complain(name, &failure);
            failure.exit_code()
        }
    }
}

/// Writes a line of the program `name` to standard error. A line that cannot be written is lost; the exit
/// code remains.
pub fn complain(name: &str, text: impl fmt::Display) {
    let _ = writeln!(io::stderr(), "{name}: {text}");
}

/// Finds the program `name` beside the running one, otherwise in `PATH`.
///
/// # Errors
/// Fails with `NotFound` and the remedy.
pub fn find(name: &str) -> io::Result<PathBuf> {
    let own = env::current_exe().ok();
    let beside = own.as_deref().and_then(Path::parent);
    find_in(name, beside, env::var_os("PATH").as_deref()).ok_or_else(|| {
        let what = format!(
            "the program `{name}` is neither beside this one nor in PATH; put it there, or build it: cargo \
             build --release -p {name}"
        );
        io::Error::new(io::ErrorKind::NotFound, what)
    })
}

fn find_in(name: &str, beside: Option<&Path>, path: Option<&OsStr>) -> Option<PathBuf> {
    // This process may be root's: relative directories, which depend on where it was started, are skipped.
    let listed = path.into_iter().flat_map(env::split_paths);
    let listed = listed.filter(|directory| directory.is_absolute());
    let places = beside.map(Path::to_owned).into_iter().chain(listed);
    places
        .map(|directory| directory.join(name))
        .find(|file| is_executable(file))
}

fn is_executable(file: &Path) -> bool {
    file.metadata()
        .is_ok_and(|about| about.is_file() && about.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};

    use tracing::Level;

    use super::*;

    #[test]
    fn more_is_logged_where_it_is_asked_for() {
        let usual = "error,braid_lab=warn,braid::news=info,braid_proxy=off";
        let logs = |asked, verbose, target, level| {
            let asked = targets(asked).expect("it can be read");
            filter(asked, usual, verbose).would_enable(target, &level)
        };
        assert!(logs("", 0, "braid::news", Level::INFO));
        assert!(!logs("", 0, "braid_linux", Level::WARN));
        assert!(!logs("", 0, "braid_proxy::relay", Level::ERROR));
        assert!(logs("", 1, "braid_proxy::relay", Level::INFO));
        let linux = "braid_linux=debug";
        assert!(logs(linux, 0, "braid_linux::run", Level::DEBUG));
        assert!(!logs(linux, 3, "braid_proxy", Level::ERROR));
        // Empty parts and blanks are ignored.
        assert!(logs("info,", 0, "braid_proxy", Level::INFO));
        let both = "warn, braid_linux=debug";
        assert!(logs(both, 0, "braid_linux", Level::DEBUG));
        assert!(!logs(both, 0, "braid_proxy", Level::INFO));
    }

    #[test]
    fn what_cannot_be_read_of_a_log_filter_is_told() {
        let all = [
            "braid_linux=loud",
            "braid_proxy[span]=debug",
            "two words=info",
        ];
        for part in all {
            let text = format!("info,{part}");
            assert_eq!(targets(&text).expect_err("it is told"), part);
        }
        assert!(targets(" , ").is_ok_and(|found| found.is_none()));
    }

    #[test]
    fn a_program_is_found_beside_this_one_first_and_then_in_path() {
        let root = env::temp_dir().join(format!("braid-find-{}", std::process::id()));
        let directory = |name: &str, mode: u32| {
            let directory = root.join(name);
            fs::create_dir_all(&directory).expect("a writable directory");
            let file = directory.join("tool");
            fs::write(&file, "").expect("a writable directory");
            fs::set_permissions(&file, Permissions::from_mode(mode)).expect("it is ours");
            directory
        };
        let (own, listed, plain) = (
            directory("own", 0o755),
            directory("listed", 0o755),
            directory("plain", 0o644),
        );
        let path = env::join_paths([Path::new("listed"), &plain, &listed]).expect("no colons");
        let find = |beside: &Path| find_in("tool", Some(beside), Some(&path));
        let found = [
            find(&own),
            find(&plain),
            find_in("tool", Some(&plain), None),
        ];
        let _ = fs::remove_dir_all(&root);
        assert_eq!(
            found,
            [Some(own.join("tool")), Some(listed.join("tool")), None]
        );
    }
}
