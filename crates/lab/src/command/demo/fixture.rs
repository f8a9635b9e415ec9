//! The testbed of the demo and of the comparison, and functions that only these commands need.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Stdio};

use braid_testbed::Role;
use braid_testbed::fixture::{self, Fixture};

use super::interrupt::Interrupt;
use crate::command::testbed::options;
use braid::failure::Failure;

/// Rates and one-way delays of the links. The table of the demo prints the same values.
const PATHS: [(&str, &str); 2] = [("20mbit", "15ms"), ("10mbit", "35ms")];
/// Names of the links, in the order of the results.
pub const LINKS: [&str; 2] = ["link1", "link2"];
/// Number of lines of each log that are shown after a failure.
const LOG_LINES: usize = 8;

/// Builds the demo's testbed under the name `name`.
pub fn up(name: &str, congestion: &str, interrupt: Interrupt) -> Result<Fixture, Failure> {
    let mut spec = fixture::spec(&fixture::description(name, PATHS))?;
    congestion.clone_into(&mut spec.congestion);
    // In the `kernel` row, a relay on the box opens MPTCP connections.
    let boxes = spec.hosts.iter_mut().filter(|host| host.role == Role::Box);
    boxes.for_each(|host| host.mptcp = true);
    Ok(Fixture::up(spec, options(Some(congestion))?, move || {
        interrupt.is_set()
    })?)
}

/// Starts a relay of kernel sockets on a host. It listens at the first address and connects to the second. Each
/// address has the name of its transport.
pub fn relay(
    fixture: &Fixture,
    host: &str,
    (listen, accept): (SocketAddr, &str),
    (to, connect): (SocketAddr, &str),
    congestion: &str,
) -> Result<Background, Failure> {
    let own = std::env::current_exe()?;
    let mut command = fixture.exec(host, &own.to_string_lossy())?;
    command
        .args(["kernel-peer", "relay", &listen.to_string(), &to.to_string()])
        .args(["--accept", accept, "--connect", connect])
        .args(["--congestion", congestion])
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    let child = command
        .spawn()
        .map_err(|e| Failure::run("cannot start a relay", e))?;
    let mut background = Background(child);
    // The relay prints its address when it listens. An empty line means that it ended before.
    let mut line = String::new();
    if let Some(stdout) = background.0.stdout.take() {
        BufReader::new(stdout).read_line(&mut line)?;
    }
    if line.is_empty() {
        return Err(Failure::Run(format!("the relay on {host} ended at once")));
    }
    Ok(background)
}

/// Adds the last lines of the logs of box and server to a failure, because the logs are removed with
/// the testbed.
pub fn explain(fixture: &mut Fixture, failure: Failure) -> Failure {
    let Failure::Run(mut text) = failure else {
        return failure;
    };
    for host in ["server", "box"] {
        let log = fixture.log(host);
        let lines: Vec<_> = log.lines().collect();
        for line in &lines[lines.len().saturating_sub(LOG_LINES)..] {
            text.push_str(&format!("\n  {host}: {line}"));
        }
    }
    Failure::Run(text)
}

/// A process that is killed when this value is dropped.
pub struct Background(Child);

impl Background {
    /// Returns the process id.
    pub fn id(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        // The process may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
