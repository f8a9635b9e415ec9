//! Requests to a running box or server: `status`, and the switches of a box.

pub mod columns;
pub mod servers;
mod text;
mod tunnel;
pub mod units;

use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use braid_linux::control::{self, AskError};
use braid_linux::net::InstanceNames;
use braid_proxy::config::{AUTO, BoxConfig};
use braid_proxy::control::{Answer, Request};
use braid_proxy::status::{Role, ServerStatus, Status};
use braid_proxy::verdict::Health;
use rustix::termios::tcgetwinsize;

use crate::cli::gateway::{ServersArgs, StatusArgs};
use crate::failure::Failure;
use crate::print::{print, print_json};

/// Name of the TUN device if no configuration is given; also the default in a configuration.
const DEFAULT_TUN: &str = "braid0";
/// Interval between two requests of the status with `--watch`.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);
/// Time between two requests of the status without `--watch`. Rates are computed from these two. The value is a
/// guess: long enough for many packets, and short enough for a person who waits.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(300);
/// The longest wait for the measurement of the servers. At most 1 % of a link is used, so a slow link pauses for
/// half a minute after each measurement. The value is a guess: enough for a few servers over a slow link.
const MEASURE_TIMEOUT: Duration = Duration::from_secs(120);
/// Terminal codes (ECMA-48): cursor to the upper left corner, and clear the screen from there.
const CLEAR_SCREEN: &str = "\x1b[H\x1b[J";

/// The form of a command's output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Output {
    /// Text, with the values on which an operator acts. `verbose` adds the values on which strategies decide.
    Text { verbose: bool },
    /// All values, as JSON.
    Json,
}

impl Output {
    /// Returns the form that the options `--json` and `--verbose` select.
    pub fn new(json: bool, verbose: u8) -> Output {
        match json {
            true => Output::Json,
            false => Output::Text {
                verbose: verbose > 0,
            },
        }
    }

    /// Returns whether the form is JSON.
    pub fn is_json(self) -> bool {
        self == Output::Json
    }
}

/// A running box or server, by its control socket.
pub struct Instance {
    role: Role,
    socket: PathBuf,
}

impl Instance {
    /// Returns the box or server with the control socket `socket`. Without `socket`, the name of the device
    /// `tun` determines the path of the socket.
    pub fn new(role: Role, socket: Option<&Path>, tun: Option<&str>) -> Instance {
        let instance_names = InstanceNames::of_tun(tun.unwrap_or(DEFAULT_TUN));
        let default_socket = || instance_names.control_socket(text::role(role));
        Instance {
            role,
            socket: socket.map_or_else(default_socket, Path::to_owned),
        }
    }

    /// Returns the box or server with this configuration. Without a configuration, returns the box or server on
    /// the default device.
    pub fn of(role: Role, config: Option<&BoxConfig>) -> Instance {
        let socket = config.and_then(|c| c.control.as_deref());
        let tun = config.map(|c| c.tun.name.as_str());
        Instance::new(role, socket, tun)
    }

    /// Prints the servers of a box.
    pub fn show_servers(&self, args: &ServersArgs, json: bool) -> Result<(), Failure> {
        if args.probe {
            self.measure()?;
        }
        let servers = self.servers()?;
        match json {
            true => print_json(&servers),
            false => print(servers::table(&servers, true)),
        }
    }

    /// Returns the servers of a box.
    pub fn servers(&self) -> Result<Vec<ServerStatus>, Failure> {
        Ok(self.status()?.servers)
    }

    /// Makes a box measure its servers, and waits until it has finished.
    fn measure(&self) -> Result<(), Failure> {
        match self.ask(&Request::Measure)? {
            Answer::Done => {}
            other => return Err(self.unexpected(other)),
        }
        let started = Instant::now();
        while started.elapsed() < MEASURE_TIMEOUT {
            if self.status()?.select.is_none_or(|s| !s.measuring) {
                return Ok(());
            }
            thread::sleep(SAMPLE_INTERVAL);
        }
        let seconds = MEASURE_TIMEOUT.as_secs();
        Err(Failure::Run(format!(
            "the measurement of the servers has not finished within {seconds} s; the box continues it: \
             show the results later by `braid box servers`"
        )))
    }

    /// Prints the status, once or repeatedly, and returns the health of the box or server as an exit code.
    pub fn show(&self, args: &StatusArgs, output: Output) -> Result<(), Failure> {
        match output {
            Output::Json if !args.watch => {
                let status = self.status()?;
                print_json(&status)?;
                health_code(&status)
            }
            Output::Json => self.show_json_lines(),
            Output::Text { verbose } => self.show_pages(args.watch, verbose),
        }
    }

    /// Prints the status at intervals as JSON, until the reader closes the pipe or a signal ends the process.
    fn show_json_lines(&self) -> Result<(), Failure> {
        loop {
            let line = serde_json::to_string(&self.status()?);
            let line = line.map_err(|e| Failure::run("cannot write the status", e))?;
            if !write_stdout(&format!("{line}\n"))? {
                return Ok(());
            }
            thread::sleep(WATCH_INTERVAL);
        }
    }

    /// Prints the status as text, once or at intervals. On a terminal each page replaces the previous one;
    /// otherwise an empty line separates them.
    fn show_pages(&self, watch: bool, verbose: bool) -> Result<(), Failure> {
        let mut before = self.status()?;
        thread::sleep(SAMPLE_INTERVAL);
        loop {
            let now = self.status()?;
            let page = text::page(&now, &before, verbose);
            let page = match terminal_size() {
                Some(size) if watch => format!("{CLEAR_SCREEN}{}", crop(&page, size)),
                _ if watch => format!("{page}\n"),
                _ => page,
            };
            if !write_stdout(&page)? || !watch {
                return health_code(&now);
            }
            before = now;
            thread::sleep(WATCH_INTERVAL);
        }
    }

    /// Sends a command to the box or server, and prints its effect.
    pub fn execute(&self, request: &Request, json: bool) -> Result<(), Failure> {
        match self.ask(request)? {
            Answer::Done if json => print_json(&Answer::Done),
            Answer::Done => print(format_args!("{}\n", effect(request))),
            other => Err(self.unexpected(other)),
        }
    }

    /// Makes a box or a server read its configuration again, and prints the changes.
    pub fn reload(&self, json: bool) -> Result<(), Failure> {
        match self.ask(&Request::Reload)? {
            Answer::Reloaded(changes) if json => print_json(&changes),
            Answer::Reloaded(changes) => print(format_args!("{changes}\n")),
            other => Err(self.unexpected(other)),
        }
    }

    fn status(&self) -> Result<Status, Failure> {
        match self.ask(&Request::Status)? {
            Answer::Status(status) => Ok(*status),
            other => Err(self.unexpected(other)),
        }
    }

    fn ask(&self, request: &Request) -> Result<Answer, Failure> {
        control::ask(&self.socket, request).map_err(|error| {
            let role = text::role(self.role);
            Failure::Run(match error {
                AskError::NotRunning(..) => format!(
                    "no {role} is running on this device; start a {role} by `braid {role} --config FILE`, or \
                     name the configuration of the running {role} by --config ({error})"
                ),
                AskError::System(..) => format!("cannot ask the {role} ({error})"),
            })
        })
    }

    /// Returns the failure for an answer other than the request's own.
    fn unexpected(&self, answer: Answer) -> Failure {
        let role = text::role(self.role);
        match answer {
            Answer::Wrong(why) => Failure::Usage(format!("the {role} refuses the command: {why}")),
            Answer::Error(why) => {
                Failure::Run(format!("the {role} cannot carry out the command: {why}"))
            }
            _ => Failure::Run(format!(
                "the {role} gave an answer that does not fit the command; use the program `braid` of the \
                 {role}'s release"
            )),
        }
    }
}

/// Returns the health as an exit code: 0 if working, 3 if degraded, 4 if down, as `check` does.
fn health_code(status: &Status) -> Result<(), Failure> {
    match status.verdict.health {
        Health::Working => Ok(()),
        Health::Degraded => Err(Failure::Found(3)),
        Health::Down => Err(Failure::Found(4)),
    }
}

/// Returns the effect of a command that succeeded, for its operator.
fn effect(request: &Request) -> String {
    match request {
        // The answers to these requests are printed instead.
        Request::Status | Request::Reload => String::new(),
        Request::Proxy { on: true } => {
            "on: new connections are aggregated while a server can be used".to_owned()
        }
        Request::Proxy { on: false } => {
            "off: new connections are forwarded over one link, unprotected; existing ones go on"
                .to_owned()
        }
        Request::Link { name, on: true } => format!("on: {name} is used"),
        Request::Link { name, on: false } => format!("off: {name} is no longer used"),
        Request::Backup { name, on: true } => {
            format!("backup: {name} is used while no other link works")
        }
        Request::Backup { name, on: false } => {
            format!("regular: {name} is used beside the others")
        }
        Request::Measure => "the measurement of the servers has begun".to_owned(),
        Request::Server { name } if name == AUTO => "the box chooses the server".to_owned(),
        Request::Server { name } => format!("new connections go to {name} while it answers"),
    }
}

/// Writes to standard output. Returns false if its reader has closed the pipe (`| head`).
fn write_stdout(text: &str) -> Result<bool, Failure> {
    let mut stdout = io::stdout().lock();
    match stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush())
    {
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        written => Ok(written.map(|()| true)?),
    }
}

/// Returns rows and columns of the terminal, if standard output is a terminal that knows its size.
fn terminal_size() -> Option<(usize, usize)> {
    let stdout = io::stdout();
    let size = tcgetwinsize(&stdout)
        .ok()
        .filter(|_| stdout.is_terminal())?;
    (size.ws_row > 0).then_some((size.ws_row.into(), size.ws_col.into()))
}

/// Returns the part of `page` that fits the terminal. If a longer page were printed, its head would scroll out
/// of view.
fn crop(page: &str, (rows, columns): (usize, usize)) -> String {
    // One row stays free, since the newline after the last line moves the cursor one row further.
    let lines = page.lines().take(rows.saturating_sub(1));
    let line = |line: &str| line.chars().take(columns).chain(['\n']).collect::<String>();
    lines.map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_cropped_to_the_terminal() {
        assert_eq!(crop("12345\nµµµµµ\nthird\n", (3, 4)), "1234\nµµµµ\n");
        assert_eq!(crop("a\n", (24, 80)), "a\n");
    }
}
