//! The `braid` command as a library, so that its tests can use its parts. It reads the command
//! line, hands over to the crates that do the work, and prints what they answer. Results go to
//! standard output, logs and errors to standard error.

pub mod cli;
pub mod cmd;
pub mod engine_peer;
pub mod failure;
pub mod kernel_peer;

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;
use tracing_subscriber::EnvFilter;

use crate::cli::{Cli, Command};
use crate::failure::Failure;

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return refuse_usage(&error),
    };
    start_log(&cli);
    match cmd::run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        // What was found is printed.
        Err(failure @ Failure::Found(_)) => failure.exit_code(),
        Err(failure) => {
            complain(format_args!("{failure}\n"));
            failure.exit_code()
        }
    }
}

/// Prints help and version as they are, and errors in the one form all errors of `braid` have.
fn refuse_usage(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() {
        // A closed pipe (`braid --help | head`) is no failure.
        let _ = error.print();
        return ExitCode::SUCCESS;
    }
    let text = error.render().to_string();
    let text = text.strip_prefix("error: ").unwrap_or(&text);
    match error.kind() {
        // What was read and what is expected is all there is to say, in one line.
        ErrorKind::ValueValidation | ErrorKind::InvalidValue => {
            let said = text.split("\n\n").next().unwrap_or(text);
            let words: Vec<&str> = said.split_whitespace().collect();
            complain(format_args!("{}\n", words.join(" ")));
        }
        _ => complain(format_args!("{text}")),
    }
    Failure::Usage(String::new()).exit_code()
}

/// Writes an error to standard error. One that cannot be written is lost: the exit code remains.
fn complain(error: std::fmt::Arguments<'_>) {
    let _ = write!(std::io::stderr(), "braid: {error}");
}

/// Logs to standard error: warnings by default, more with `-v`, anything with `RUST_LOG`.
fn start_log(cli: &Cli) {
    let level = match cli.verbose {
        // What goes wrong in the lab's worlds is meant to, above all with their boxes and servers.
        0 if matches!(cli.command, Command::Lab(_)) => "error,braid_lab=warn,braid_proxy=off",
        // What users feel of links and servers is said, well or not.
        0 => "warn,braid::news=info",
        1 => "info",
        2 => "debug",
        _ => "trace",
    };
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(level));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        // A line that cannot be written (disk full, reader gone) is lost. It would be reported by
        // `eprintln!`, which panics for the same reason.
        .log_internal_errors(false)
        .init();
}
