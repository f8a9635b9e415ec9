//! Requests to a running box or server: `status`, and the switches of a box.

pub mod columns;
pub mod servers;
mod text;
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

/// Name of the TUN device if the configuration names none.
const DEFAULT_TUN: &str = "braid0";
/// Interval between two looks with `--watch`.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);
/// Time between the two looks that rates are computed from, without `--watch`.
const SAMPLE_TIME: Duration = Duration::from_millis(300);
/// Time for measuring the servers: slow links pause for half a minute after each measurement.
const MEASURE_TIMEOUT: Duration = Duration::from_secs(120);
/// Terminal codes: cursor to the upper left corner, and clear everything after it.
const CLEAR: &str = "\x1b[H\x1b[J";

/// The form of a command's output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Output {
    /// Text. The default is what an operator acts on; `verbose` adds the values that strategies decide by.
    Text { verbose: bool },
    /// Everything, as JSON.
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

    /// Returns true for JSON.
    pub fn is_json(self) -> bool {
        self == Output::Json
    }
}

/// A box or server to ask.
pub struct Instance {
    role: Role,
    socket: PathBuf,
}

impl Instance {
    /// Returns the box or server whose configuration names `socket`, or the device `tun`.
    pub fn new(role: Role, socket: Option<&Path>, tun: Option<&str>) -> Instance {
        let instance_names = InstanceNames::of_tun(tun.unwrap_or(DEFAULT_TUN));
        let default = || instance_names.control_socket(text::role(role));
        Instance {
            role,
            socket: socket.map_or_else(default, Path::to_owned),
        }
    }

    /// Returns the box or server with this configuration, or else the one on the default device.
    pub fn of(role: Role, config: Option<&BoxConfig>) -> Instance {
        let socket = config.and_then(|c| c.control.as_deref());
        let tun = config.map(|c| c.tun.name.as_str());
        Instance::new(role, socket, tun)
    }

    /// Shows the servers of a box.
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
        let begun = Instant::now();
        while begun.elapsed() < MEASURE_TIMEOUT {
            if self.status()?.select.is_none_or(|s| !s.measuring) {
                return Ok(());
            }
            thread::sleep(SAMPLE_TIME);
        }
        let seconds = MEASURE_TIMEOUT.as_secs();
        Err(Failure::Run(format!(
            "the measurement of the servers has not finished within {seconds} s; it goes on in the box: \
             see its results by braid box servers"
        )))
    }

    /// Shows the status.
    pub fn show(&self, args: &StatusArgs, output: Output) -> Result<(), Failure> {
        match output {
            Output::Json if !args.watch => {
                let status = self.status()?;
                print_json(&status)?;
                in_order(&status)
            }
            Output::Json => self.show_lines(),
            Output::Text { verbose } => self.show_pages(args.watch, verbose),
        }
    }

    fn show_lines(&self) -> Result<(), Failure> {
        loop {
            let line = serde_json::to_string(&self.status()?);
            let line = line.map_err(|e| Failure::run("cannot write the status", e))?;
            if !is_read(&format!("{line}\n"))? {
                return Ok(());
            }
            thread::sleep(WATCH_INTERVAL);
        }
    }

    fn show_pages(&self, watch: bool, verbose: bool) -> Result<(), Failure> {
        let mut before = self.status()?;
        thread::sleep(SAMPLE_TIME);
        loop {
            let now = self.status()?;
            let page = text::page(&now, &before, verbose);
            let page = match window() {
                Some(size) if watch => format!("{CLEAR}{}", cut(&page, size)),
                _ if watch => format!("{page}\n"),
                _ => page,
            };
            if !is_read(&page)? || !watch {
                return in_order(&now);
            }
            before = now;
            thread::sleep(WATCH_INTERVAL);
        }
    }

    /// Sends a command, and prints its consequence.
    pub fn order(&self, request: &Request, json: bool) -> Result<(), Failure> {
        match self.ask(request)? {
            Answer::Done if json => print_json(&Answer::Done),
            Answer::Done => print(format_args!("{}\n", consequence(request))),
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
                    "no {role} is running on this device; start one by `braid {role} --config FILE`, or name \
                     the configuration of the running one by --config ({error})"
                ),
                AskError::System(..) => format!("cannot ask the {role} ({error})"),
            })
        })
    }

    fn unexpected(&self, answer: Answer) -> Failure {
        let role = text::role(self.role);
        match answer {
            Answer::Wrong(why) => Failure::Usage(format!("the {role} refuses the command: {why}")),
            Answer::Error(why) => {
                Failure::Run(format!("the {role} cannot carry out the command: {why}"))
            }
            _ => Failure::Run(format!(
                "the {role} gave an answer that does not fit the command; use the `braid` of the same release"
            )),
        }
    }
}

/// Returns the status as an exit code: 3 if degraded, 4 if down.
fn in_order(status: &Status) -> Result<(), Failure> {
    match status.verdict.health {
        Health::Working => Ok(()),
        Health::Degraded => Err(Failure::Found(3)),
        Health::Down => Err(Failure::Found(4)),
    }
}

fn consequence(request: &Request) -> String {
    match request {
        // For these the answer itself is shown.
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

/// Writes to standard output; returns false if nobody reads it any more (`| head`).
fn is_read(text: &str) -> Result<bool, Failure> {
    let mut stdout = io::stdout().lock();
    match stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush())
    {
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        written => Ok(written.map(|()| true)?),
    }
}

/// Returns rows and columns of the terminal at standard output, if it is one.
fn window() -> Option<(usize, usize)> {
    let stdout = io::stdout();
    let size = tcgetwinsize(&stdout)
        .ok()
        .filter(|_| stdout.is_terminal())?;
    (size.ws_row > 0).then_some((size.ws_row.into(), size.ws_col.into()))
}

/// Returns the part of `page` that fits the terminal: a longer page would scroll away at once.
fn cut(page: &str, (rows, columns): (usize, usize)) -> String {
    let lines = page.lines().take(rows.saturating_sub(1));
    let line = |line: &str| line.chars().take(columns).chain(['\n']).collect::<String>();
    lines.map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_cut_to_the_terminal() {
        assert_eq!(cut("12345\nµµµµµ\nthird\n", (3, 4)), "1234\nµµµµ\n");
        assert_eq!(cut("a\n", (24, 80)), "a\n");
    }
}
