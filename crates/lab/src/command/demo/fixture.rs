//! The testbed of `braid-lab demo` and `braid-lab compare`, and the relays on it.

use std::env;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Stdio};
use std::time::Duration;

use braid_testbed::Role;
use braid_testbed::fixture::{self, Fixture};
use braid_testbed::render::with_strategy;

use crate::backend::interrupted;
use crate::command::setting::last_lines;
use crate::command::testbed::options;
use braid::failure::Failure;

/// Rates and one-way delays of the links. The demo's table and help name the same values.
const LINK_SETTINGS: [(&str, &str); 2] = [("20mbit", "15ms"), ("10mbit", "35ms")];
/// Names of the links, in the order of the results.
pub const LINKS: [&str; 2] = ["link1", "link2"];
/// Port of the relays on the hosts of box and server: any free port.
const RELAY_PORT: u16 = 7001;
/// Maximum time that box and server may take to start. It bounds only a program that hangs.
const START_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum delivery lag of the emulator (99th percentile, µs) with which the result is reliable. 1 ms is
/// small against the links' delays of 15 and 35 ms.
const MAX_DELIVERY_LAG_US: f64 = 1000.0;
/// Number of last lines of each log that are shown after a failure.
const LOG_LINES: usize = 8;

/// Builds the demo's testbed under the name `name`. Box and server use `strategy`.
pub fn up(name: &str, congestion: &str, strategy: &str) -> Result<Fixture, Failure> {
    let mut spec = fixture::spec(&fixture::description(name, LINK_SETTINGS))?;
    congestion.clone_into(&mut spec.congestion);
    // The relay on the box's host opens kernel MPTCP connections, which need endpoints on the links.
    let boxes = spec.hosts.iter_mut().filter(|host| host.role == Role::Box);
    boxes.for_each(|host| host.mptcp = true);
    let mut options = options(Some(congestion))?;
    let with_strategy = |render| with_strategy(render, strategy.to_owned());
    options.render = options.render.map(with_strategy);
    Ok(Fixture::up(spec, options, interrupted)?)
}

/// Prints a warning if the emulator's delivery lag (99th percentile, µs) makes the result unreliable.
pub fn warn_if_busy(lag_us: f64) {
    if lag_us > MAX_DELIVERY_LAG_US {
        eprintln!(
            "braid-lab: the machine was busy (links {lag_us:.0} µs late): do not trust the result"
        );
    }
}

/// Starts box and server, and waits until the box intercepts connections.
pub fn start_gateways(fixture: &mut Fixture) -> Result<(), Failure> {
    fixture.start("server", START_TIMEOUT)?;
    fixture.start("box", START_TIMEOUT)?;
    Ok(fixture.wait_for_interception(START_TIMEOUT)?)
}

/// Starts relays of kernel sockets in place of box and server, with one kernel MPTCP connection between them for
/// each connection of a user. Relays do not intercept connections. Returns them with the address of the relay on
/// the box's host, which users connect to in place of `content`.
pub fn start_relays(
    fixture: &Fixture,
    content: SocketAddr,
    congestion: &str,
) -> Result<(SocketAddr, Vec<Background>), Failure> {
    let at_box = SocketAddr::new(fixture.lan_address("box")?, RELAY_PORT);
    let at_server = SocketAddr::new(fixture.address("server")?, RELAY_PORT);
    let mut relays = Vec::new();
    for (host, listen, accept, to, connect) in [
        ("server", at_server, "mptcp", content, "tcp"),
        ("box", at_box, "tcp", at_server, "mptcp"),
    ] {
        let mut relay = fixture.exec(host, &env::current_exe()?.to_string_lossy())?;
        relay
            .args(["kernel-peer", "relay", &listen.to_string(), &to.to_string()])
            .args(["--accept", accept, "--connect", connect])
            .args(["--congestion", congestion])
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        let relay = relay.spawn();
        let mut relay = Background(relay.map_err(|e| Failure::run("cannot start a relay", e))?);
        // The relay prints its address once it listens, so that users may connect at once.
        let mut line = String::new();
        if let Some(stdout) = relay.0.stdout.take() {
            BufReader::new(stdout).read_line(&mut line)?;
        }
        if line.is_empty() {
            return Err(Failure::Run(format!("the relay on {host} ended at once")));
        }
        relays.push(relay);
    }
    Ok((at_box, relays))
}

/// Adds the last lines of the logs of box and server to a failure, because the logs are removed with
/// the testbed.
pub fn with_log_lines(fixture: &mut Fixture, failure: Failure) -> Failure {
    let Failure::Run(mut text) = failure else {
        return failure;
    };
    for host in ["server", "box"] {
        let log = fixture.log(host);
        for line in last_lines(&log, LOG_LINES) {
            text += &format!("\n  {host}: {line}");
        }
    }
    Failure::Run(text)
}

/// A process in the background, killed when this value is dropped.
pub struct Background(Child);

impl Background {
    /// Returns the process ID.
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
