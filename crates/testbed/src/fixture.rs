//! A testbed with a box and a server, and operations on it: start, wait, download, cross traffic. The demo, the
//! lab, the end-to-end tests and the benchmarks use it.

mod cross_traffic;
mod download;
mod forward;

use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use braid_linux::run::READY;

pub use self::cross_traffic::CrossTraffic;
pub use self::download::Download;

use crate::error::Error;
use crate::layout::InterfaceLayout;
use crate::spec::{SegmentKind, Spec};
use crate::testbed::{Options, Testbed};

/// Interval at which waits check their condition. The value is a guess: a wait lasts at most about this much too
/// long, and the checks, some of which start a process, cost little processor time.
pub const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// A part of a testbed's description: a user, and the LAN between user and box. The description must have the box
/// itself elsewhere. The user's only gateway is the box, so the user does not see the links.
///
/// The part begins with a setting of the whole testbed, so it must come before all tables of the description. This
/// setting is the congestion control of the kernel's TCP on all hosts. Cubic is the default of descriptions too;
/// it is written here so that benchmarks can replace it.
pub const USER_BEHIND_BOX: &str = r#"
congestion = "cubic"

[[host]]
name = "user"
role = "user"
gateway = "box"

[[lan]]
name = "home"
hosts = ["box", "user"]
private = true
"#;

/// The other part of a description: box, router (`internet`), server and content host, and the LAN that connects
/// the last three. The links between box and router are missing, because [`description`] and [`unshaped`] differ
/// in them.
///
/// With `start = "manual"` the testbed does not start box and server. [`Fixture::start`] starts each of them, and
/// waits until it is ready.
const HOSTS: &str = r#"
[[host]]
name = "box"
role = "box"
start = "manual"
gateway = "internet"

[[host]]
name = "internet"
role = "router"

[[host]]
name = "server"
role = "server"
start = "manual"
gateway = "internet"

[[host]]
name = "content"
role = "content"
gateway = "internet"

[[lan]]
name = "backbone"
hosts = ["internet", "server", "content"]
"#;

/// Returns the description of a testbed named `name`: a user, a box, two links from the box to a router, a server
/// and a content host. `links` has the rates and one-way delays of the links.
pub fn description(name: &str, links: [(&str, &str); 2]) -> String {
    let links = (1..).zip(links).map(|(n, (rate, delay))| {
        format!(
            "[[link]]\nname = \"link{n}\"\nfrom = \"box\"\nto = \"internet\"\n\
             rate = \"{rate}\"\ndelay = \"{delay}\"\n"
        )
    });
    with_links(name, links)
}

/// Returns a description as [`description`] does, but with two plain LANs in place of the emulated links.
pub fn unshaped(name: &str) -> String {
    let links =
        (1..=2).map(|n| format!("[[lan]]\nname = \"link{n}\"\nhosts = [\"box\", \"internet\"]\n"));
    with_links(name, links)
}

fn with_links(name: &str, links: impl Iterator<Item = String>) -> String {
    let links: String = links.collect();
    format!("name = \"{name}\"\n{USER_BEHIND_BOX}{HOSTS}{links}")
}

/// Parses a description that is not in a file.
///
/// # Errors
/// Fails if the description is wrong.
pub fn spec(description: &str) -> Result<Spec, Error> {
    // Errors show this name as the name of the file. It has no directory, so relative paths in the description
    // start at the working directory.
    Ok(Spec::parse(description, Path::new("testbed.toml"))?)
}

/// A running testbed, which is taken down when this value is dropped.
pub struct Fixture {
    /// The testbed.
    pub testbed: Testbed,
    /// Returns true if waits must end, for example after a signal.
    interrupted: Box<dyn Fn() -> bool>,
}

impl std::fmt::Debug for Fixture {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fixture")
            .field("name", &self.testbed.layout().name)
            .finish_non_exhaustive()
    }
}

impl Fixture {
    /// Builds the testbed. Later, every wait of the fixture ends with an error as soon as `interrupted` returns
    /// true. The building itself is not interrupted.
    ///
    /// # Errors
    /// Fails as [`Testbed::up`] does.
    pub fn up(
        spec: Spec,
        options: Options,
        interrupted: impl Fn() -> bool + 'static,
    ) -> Result<Self, Error> {
        Ok(Fixture {
            testbed: Testbed::up(spec, options)?,
            interrupted: Box::new(interrupted),
        })
    }

    /// Returns the IPv4 address of a host's first interface. LANs come before links, each in the description's
    /// order.
    ///
    /// # Errors
    /// Fails if there is no such host, or it has no interface.
    pub fn address(&self, host: &str) -> Result<IpAddr, Error> {
        Ok(self.interface(host, |_| true)?.address4.into())
    }

    /// Returns the IPv4 address of a host on the first of its LANs, in the description's order. For the box this
    /// is the LAN with the user.
    ///
    /// # Errors
    /// Fails if there is no such host, or it is on no LAN.
    pub fn lan_address(&self, host: &str) -> Result<IpAddr, Error> {
        let lan = self.interface(host, |i| i.kind == SegmentKind::Lan)?;
        Ok(lan.address4.into())
    }

    /// Returns the first interface of a host for which `wanted` returns true.
    ///
    /// # Errors
    /// Fails if there is no such host, or no such interface.
    pub fn interface(
        &self,
        host: &str,
        wanted: impl Fn(&InterfaceLayout) -> bool,
    ) -> Result<&InterfaceLayout, Error> {
        let mut all = self.testbed.layout().host(host)?.interfaces.iter();
        all.find(|i| wanted(i)).ok_or_else(|| {
            let missing = io::Error::from(io::ErrorKind::AddrNotAvailable);
            Error::system(format!("find the interface of host `{host}`"), missing)
        })
    }

    /// Returns a command that runs on a host.
    ///
    /// # Errors
    /// Fails if there is no such host.
    pub fn exec(&self, host: &str, program: &str) -> Result<Command, Error> {
        self.testbed.exec(host, program)
    }

    /// Waits for `time`.
    ///
    /// # Errors
    /// Fails if waiting is interrupted.
    pub fn sleep(&self, time: Duration) -> Result<(), Error> {
        let end = Instant::now() + time;
        loop {
            if (self.interrupted)() {
                return Err(Error::Interrupted);
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            thread::sleep(left.min(POLL_INTERVAL));
        }
    }

    /// Waits until `condition` holds.
    ///
    /// # Errors
    /// Fails if the condition does not hold within `timeout` or returns an error, or if waiting is interrupted.
    pub fn wait_for(
        &mut self,
        what: &str,
        timeout: Duration,
        mut condition: impl FnMut(&mut Self) -> Result<bool, Error>,
    ) -> Result<(), Error> {
        let end = Instant::now() + timeout;
        while !condition(self)? {
            if Instant::now() > end {
                return Err(Error::Failed(format!("timed out while waiting for {what}")));
            }
            self.sleep(POLL_INTERVAL)?;
        }
        Ok(())
    }

    /// Starts the process of a box or server, and waits until its log says that it is ready.
    ///
    /// # Errors
    /// Fails if the process ends, or takes longer than `timeout`.
    pub fn start(&mut self, host: &str, timeout: Duration) -> Result<(), Error> {
        // The process appends to the log of an earlier process, which may have a line with `READY` too.
        let old_log_len = self.log(host).len();
        self.testbed.start(host)?;
        self.wait_for(&format!("the {host} to get ready"), timeout, |fixture| {
            let log = fixture.log(host);
            if fixture.testbed.pid(host).is_none() {
                let text = format!("the {host} ended while it started:\n{log}");
                return Err(Error::Failed(text));
            }
            // A log that cannot be read counts as empty. It may then be shorter than before, so `get` may return
            // nothing.
            let new_log = log.get(old_log_len..).unwrap_or_default();
            // The whole line is, for example, "braid box demo: ready".
            Ok(new_log.lines().any(|line| line.ends_with(READY)))
        })
    }

    /// Waits until the box intercepts connections. The box does so once it has reached the server.
    ///
    /// # Errors
    /// Fails if that takes longer than `timeout`.
    pub fn wait_for_interception(&mut self, timeout: Duration) -> Result<(), Error> {
        self.wait_for("the box to reach the server", timeout, |fixture| {
            // In the box's network namespace, only the listener for intercepted connections has this address. It
            // listens only while the box intercepts. `-H` omits the heading, so no output means no listener.
            let only = ["-Hltn", "src", "127.0.0.1"];
            let listening = fixture.exec("box", "ss")?.args(only).output();
            let listening = listening.map_err(|e| Error::system("run ss", e))?;
            Ok(!listening.stdout.is_empty())
        })
    }

    /// Returns the bytes that each of these links has delivered towards its `from` end.
    ///
    /// # Errors
    /// Fails if there is no such link.
    pub fn delivered_in_reverse(&self, links: &[&str]) -> Result<Vec<u64>, Error> {
        let bytes = |link: &&str| Ok(self.testbed.link_status(link)?.reverse.bytes_delivered);
        links.iter().map(bytes).collect()
    }

    /// Returns the log of a host's processes so far; empty if no process was started, or if the log cannot be
    /// read. A missing log is no error, because callers also ask before the start and for error messages.
    pub fn log(&self, host: &str) -> String {
        fs::read_to_string(self.testbed.log(host)).unwrap_or_default()
    }
}
