//! Functions that the programs `braid` and `braid-lab` share: parsing the command line, logging, reporting
//! failures, and finding the other program. Results go to standard output, logs and errors to standard error.

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

/// Name of the program with the box and the server.
pub const BRAID: &str = "braid";
/// Name of the program with experiments and the testbed.
pub const BRAID_LAB: &str = "braid-lab";

/// Parses the command line of this process, which runs the program `name`.
///
/// # Errors
/// Fails with the exit code of the process after printing help, the version or an error.
pub fn read_arguments<Cli: Parser>(name: &str) -> Result<Cli, ExitCode> {
    Cli::try_parse().map_err(|error| report_usage(name, &error))
}

/// Prints help and version as clap formats them. Prints an error in the form of [`complain`], like every other
/// error. Returns the exit code.
fn report_usage(name: &str, error: &clap::Error) -> ExitCode {
    if !error.use_stderr() {
        // A closed pipe (`braid --help | head`) is no failure.
        let _ = error.print();
        return ExitCode::SUCCESS;
    }
    let text = error.render().to_string();
    let text = text.strip_prefix("error: ").unwrap_or(&text);
    match error.kind() {
        // clap's first paragraph names the wrong value and the expected ones. The paragraphs after it (tips,
        // usage) add nothing here, so the error is one line.
        ErrorKind::ValueValidation | ErrorKind::InvalidValue => {
            let first_paragraph = text.split("\n\n").next().unwrap_or(text);
            let words: Vec<&str> = first_paragraph.split_whitespace().collect();
            complain(name, words.join(" "));
        }
        _ => complain(name, text.trim_end_matches('\n')),
    }
    Failure::Usage(String::new()).exit_code()
}

/// Starts logging to standard error. If `RUST_LOG` is set, it is the filter. Otherwise the filter is
/// `default_filter` without `-v`, and with `-v` a level that grows with the number of `-v` (`verbose`).
pub fn start_log(default_filter: &str, verbose: u8) {
    let rust_log = env::var("RUST_LOG").unwrap_or_default();
    let rust_log = parse_targets(&rust_log).unwrap_or_else(|part| {
        complain(
            "RUST_LOG",
            format!("ignored `{part}`: expected a level (info), or a target and its level (braid_proxy=debug)"),
        );
        None
    });
    let filter = filter(rust_log, default_filter, verbose);
    let stderr_layer = tracing_subscriber::fmt::layer()
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        // A line that cannot be written (disk full, reader gone) is lost. tracing would report the loss by
        // `eprintln!`, which panics because standard error cannot be written.
        .log_internal_errors(false);
    tracing_subscriber::registry()
        .with(stderr_layer)
        .with(filter)
        .init();
}

/// Parses a comma-separated list of levels and of targets with levels; returns `None` for an empty list.
///
/// # Errors
/// Fails with the first part that cannot be parsed.
fn parse_targets(text: &str) -> Result<Option<Targets>, &str> {
    let parts = text.split(',').map(str::trim);
    let parts: Vec<&str> = parts.filter(|part| !part.is_empty()).collect();
    for part in &parts {
        // `Targets` would take spans, fields (`[...]`) and blanks as parts of a target's name, and this name
        // would match nothing: the target of an event is the path of a module, which has no brackets or blanks.
        let is_module_path = !part.contains(|c: char| c == '[' || c.is_whitespace());
        if !is_module_path || part.parse::<Targets>().is_err() {
            return Err(part);
        }
    }
    let all = (!parts.is_empty()).then(|| parts.join(","));
    Ok(all.and_then(|all| all.parse().ok()))
}

/// Returns `rust_log` if set, otherwise the filter that `-v`, given `verbose` times, selects.
fn filter(rust_log: Option<Targets>, default_filter: &str, verbose: u8) -> Targets {
    let level = match verbose {
        0 => default_filter,
        1 => "info",
        2 => "debug",
        _ => "trace",
    };
    rust_log.or_else(|| level.parse().ok()).unwrap_or_default()
}

/// Prints the failure of the program `name` if `result` holds a failure. Returns the exit code of the process.
pub fn end(name: &str, result: Result<(), Failure>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // The command has already printed its findings.
        Err(failure @ Failure::Found(_)) => failure.exit_code(),
        Err(failure) => {
            complain(name, &failure);
            failure.exit_code()
        }
    }
}

/// Writes a line to standard error, with the name of the program in front. A line that cannot be written is
/// lost, since there is no other place to report it; the exit code still tells the result.
pub fn complain(name: &str, text: impl fmt::Display) {
    let _ = writeln!(io::stderr(), "{name}: {text}");
}

/// Finds the program `name` in the directory of the running program, otherwise in `PATH`. The directory of the
/// running program comes first, so that programs of the same build run together.
///
/// # Errors
/// Fails with `NotFound`; the text says what to do.
pub fn find(name: &str) -> io::Result<PathBuf> {
    let own_file = env::current_exe().ok();
    let own_directory = own_file.as_deref().and_then(Path::parent);
    find_in(name, own_directory, env::var_os("PATH").as_deref()).ok_or_else(|| {
        let message = format!(
            "the program `{name}` is neither in the directory of this program nor in PATH; put it there, or \
             build it: cargo build --release -p {name}"
        );
        io::Error::new(io::ErrorKind::NotFound, message)
    })
}

fn find_in(name: &str, own_directory: Option<&Path>, path: Option<&OsStr>) -> Option<PathBuf> {
    // Relative directories of PATH are skipped: they depend on the working directory, and root may run this
    // process in a directory where another user has put a program of this name.
    let path_directories = path.into_iter().flat_map(env::split_paths);
    let path_directories = path_directories.filter(|directory| directory.is_absolute());
    let own_directory = own_directory.map(Path::to_owned).into_iter();
    own_directory
        .chain(path_directories)
        .map(|directory| directory.join(name))
        .find(|file| is_executable(file))
}

fn is_executable(file: &Path) -> bool {
    file.metadata()
        .is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};

    use tracing::Level;

    use super::*;

    #[test]
    fn rust_log_replaces_verbose_and_verbose_replaces_the_default_filter() {
        let default_filter = "error,braid_lab=warn,braid::news=info,braid_proxy=off";
        let logs = |rust_log, verbose, target, level| {
            let rust_log = parse_targets(rust_log).expect("a valid filter");
            filter(rust_log, default_filter, verbose).would_enable(target, &level)
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
    fn a_log_filter_that_cannot_be_parsed_is_reported() {
        let wrong_parts = [
            "braid_linux=loud",
            "braid_proxy[span]=debug",
            "two words=info",
        ];
        for part in wrong_parts {
            let text = format!("info,{part}");
            assert_eq!(parse_targets(&text).expect_err("a wrong filter"), part);
        }
        assert!(parse_targets(" , ").is_ok_and(|found| found.is_none()));
    }

    #[test]
    fn a_program_is_found_in_the_own_directory_first_and_then_in_path() {
        let root = env::temp_dir().join(format!("braid-find-{}", std::process::id()));
        let directory = |name: &str, mode: u32| {
            let directory = root.join(name);
            fs::create_dir_all(&directory).expect("a writable directory");
            let file = directory.join("tool");
            fs::write(&file, "").expect("a writable directory");
            fs::set_permissions(&file, Permissions::from_mode(mode)).expect("an own file");
            directory
        };
        let (own, listed, not_executable) = (
            directory("own", 0o755),
            directory("listed", 0o755),
            directory("not_executable", 0o644),
        );
        let path = env::join_paths([Path::new("listed"), &not_executable, &listed]);
        let path = path.expect("no colons");
        let find = |own_directory: &Path| find_in("tool", Some(own_directory), Some(&path));
        // The relative directory and the file without execute permission are passed over.
        let found = [
            find(&own),
            find(&not_executable),
            find_in("tool", Some(&not_executable), None),
        ];
        let _ = fs::remove_dir_all(&root);
        assert_eq!(
            found,
            [Some(own.join("tool")), Some(listed.join("tool")), None]
        );
    }
}
