//! Box and server on a testbed, for the demo, the end-to-end tests and the benchmarks.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use braid_testbed::{Options, Spec, Testbed};

use crate::cmd::serve::READY;
use crate::failure::Failure;

/// Between two looks at something that is about to happen.
pub const POLL: Duration = Duration::from_millis(50);

/// The user knows of no link: its gateway is the box.
const HOSTS: &str = r#"
congestion = "cubic"

[[host]]
name = "user"
role = "user"
gateway = "box"

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
name = "home"
hosts = ["box", "user"]
private = true

[[lan]]
name = "backbone"
hosts = ["internet", "server", "content"]
"#;

/// A testbed called `name`: user, box, two links of these rates and delays, a router, server and
/// content host.
pub fn description(name: &str, links: [(&str, &str); 2]) -> String {
    let links = (1..).zip(links).map(|(n, (rate, delay))| {
        format!(
            "[[link]]\nname = \"link{n}\"\nfrom = \"box\"\nto = \"internet\"\n\
             rate = \"{rate}\"\ndelay = \"{delay}\"\n"
        )
    });
    let links: String = links.collect();
    format!("name = \"{name}\"\n{HOSTS}{links}")
}

/// Reads a description of one's own.
///
/// # Errors
/// It is wrong.
pub fn spec(description: &str) -> Result<Spec, Failure> {
    let spec = Spec::parse(description, Path::new("testbed.toml"));
    spec.map_err(|e| Failure::run("the description of the testbed", e))
}

/// A testbed that is up; taken down when dropped.
pub struct Bed {
    /// The testbed.
    pub testbed: Testbed,
    /// Fails once there is no more waiting.
    goes_on: Box<dyn Fn() -> Result<(), Failure>>,
}

impl Bed {
    /// Builds it. `goes_on` is asked whenever something is waited for.
    ///
    /// # Errors
    /// The system refuses.
    pub fn up(
        spec: Spec,
        options: Options,
        goes_on: impl Fn() -> Result<(), Failure> + 'static,
    ) -> Result<Self, Failure> {
        Ok(Bed {
            testbed: Testbed::up(spec, options)?,
            goes_on: Box::new(goes_on),
        })
    }

    /// A command that runs on a host.
    ///
    /// # Errors
    /// There is no such host.
    pub fn exec(&self, host: &str, program: &str) -> Result<Command, Failure> {
        Ok(self.testbed.exec(host, program)?)
    }

    /// Waits.
    ///
    /// # Errors
    /// There is no more waiting.
    pub fn sleep(&self, time: Duration) -> Result<(), Failure> {
        let end = Instant::now() + time;
        loop {
            (self.goes_on)()?;
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            thread::sleep(left.min(POLL));
        }
    }

    /// Waits until `condition` holds.
    ///
    /// # Errors
    /// It does not within `longest`, cannot any more, or there is no more waiting.
    pub fn wait_for(
        &mut self,
        what: &str,
        longest: Duration,
        mut condition: impl FnMut(&mut Self) -> Result<bool, Failure>,
    ) -> Result<(), Failure> {
        let end = Instant::now() + longest;
        while !condition(self)? {
            if Instant::now() > end {
                return Err(Failure::Run(format!("waited in vain for {what}")));
            }
            self.sleep(POLL)?;
        }
        Ok(())
    }

    /// Starts box or server and waits until it serves.
    ///
    /// # Errors
    /// It ends, or takes longer than `longest`.
    pub fn start(&mut self, host: &str, longest: Duration) -> Result<(), Failure> {
        let earlier = self.log(host).len();
        self.testbed.start(host)?;
        self.wait_for(&format!("the {host} to get ready"), longest, |bed| {
            let log = bed.log(host);
            if bed.testbed.pid(host).is_none() {
                let text = format!("the {host} ended while it started:\n{log}");
                return Err(Failure::Run(text));
            }
            Ok(log[earlier..].lines().any(|line| line.ends_with(READY)))
        })
    }

    /// Waits until the box takes connections in: once it has heard of the server, it listens.
    ///
    /// # Errors
    /// It takes longer than `longest`.
    pub fn wait_for_intake(&mut self, longest: Duration) -> Result<(), Failure> {
        self.wait_for("the box to reach the server", longest, |bed| {
            // Where users' connections are taken in; others may listen elsewhere.
            let only = ["-Hltn", "src", "127.0.0.1"];
            let listening = bed.exec("box", "ss")?.args(only).output()?;
            Ok(!listening.stdout.is_empty())
        })
    }

    /// What the process of a host wrote so far.
    pub fn log(&mut self, host: &str) -> String {
        let hosts = self.testbed.status().map(|status| status.hosts);
        let mut hosts = hosts.unwrap_or_default().into_iter();
        let process = hosts.find(|found| found.name == host);
        let process = process.and_then(|found| found.process);
        process
            .and_then(|process| fs::read_to_string(process.log).ok())
            .unwrap_or_default()
    }
}
