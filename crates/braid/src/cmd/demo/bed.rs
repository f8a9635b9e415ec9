//! The demo's testbed, and what the demo does to it.

use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, SocketAddr};
use std::process::{Child, Stdio};

use braid_testbed::{InterfaceLayout, Role, SegmentKind};

use super::interrupt::Interrupt;
use crate::bed::{self, Bed};
use crate::cmd::testbed::options;
use crate::failure::Failure;

/// Name of the testbed.
const NAME: &str = "braid-demo";
/// Rates and delays of its links.
const PATHS: [(&str, &str); 2] = [("20mbit", "15ms"), ("10mbit", "35ms")];
/// Links, in the order of the results.
const LINKS: [&str; 2] = ["link1", "link2"];
/// nftables' name for what the plain rows need.
const TABLE: &str = "braid_demo";
/// Lines of a log that are shown when something failed.
const LOG_LINES: usize = 8;

/// Builds the demo's testbed.
pub fn up(congestion: &str, interrupt: Interrupt) -> Result<Bed, Failure> {
    let mut spec = bed::spec(&bed::description(NAME, PATHS))?;
    congestion.clone_into(&mut spec.congestion);
    // For the box's relay.
    let boxes = spec.hosts.iter_mut().filter(|host| host.role == Role::Box);
    boxes.for_each(|host| host.mptcp = true);
    Bed::up(spec, options()?, move || interrupt.check())
}

/// What the demo does to it.
impl Bed {
    /// The address of a host that has only one.
    pub fn address(&self, host: &str) -> Result<IpAddr, Failure> {
        self.interface(host, |_| true)
            .map(|interface| interface.address4.into())
    }

    /// The address of a host on its first LAN.
    pub fn lan_address(&self, host: &str) -> Result<IpAddr, Failure> {
        self.interface(host, |i| i.kind == SegmentKind::Lan)
            .map(|i| i.address4.into())
    }

    fn interface(
        &self,
        host: &str,
        wanted: impl Fn(&InterfaceLayout) -> bool,
    ) -> Result<&InterfaceLayout, Failure> {
        let found = self
            .testbed
            .layout()
            .host(host)?
            .interfaces
            .iter()
            .find(|i| wanted(i));
        found.ok_or_else(|| Failure::Run(format!("the demo's testbed: {host} has no address")))
    }

    /// Makes the box a plain router with NAT that uses one link only.
    pub fn forward_over(&self, link: usize) -> Result<(), Failure> {
        let name = LINKS[link];
        let gateway = self
            .interface("box", |i| i.name == name)?
            .gateway4
            .ok_or_else(|| Failure::Run(format!("the demo's testbed: {name} has no gateway")))?;
        let script = format!(
            "table ip {TABLE}\ndelete table ip {TABLE}\ntable ip {TABLE} {{\n\
             chain postrouting {{\ntype nat hook postrouting priority srcnat;\n\
             oifname \"{name}\" masquerade\n}}\n}}\n"
        );
        self.nft("box", &script)?;
        let route = format!("route replace default via {gateway} dev {name} metric 1");
        self.run("box", "ip", &route.split(' ').collect::<Vec<_>>())
    }

    /// Ends what `forward_over` began.
    pub fn stop_forwarding(&self) -> Result<(), Failure> {
        self.nft("box", &format!("delete table ip {TABLE}\n"))?;
        self.run("box", "ip", &["route", "del", "default", "metric", "1"])
    }

    fn nft(&self, host: &str, script: &str) -> Result<(), Failure> {
        let mut command = self.exec(host, "nft")?;
        let mut child = command
            .args(["-f", "-"])
            .stdin(Stdio::piped())
            .spawn()
            .map_err(|e| Failure::run("cannot run nft", e))?;
        if let Some(mut stdin) = child.stdin.take() {
            stdin.write_all(script.as_bytes())?;
        }
        check("nft", child.wait()?)
    }

    fn run(&self, host: &str, program: &str, arguments: &[&str]) -> Result<(), Failure> {
        let status = self
            .exec(host, program)?
            .args(arguments)
            .status()
            .map_err(|e| Failure::run(format_args!("cannot run {program}"), e))?;
        check(&format!("{program} {}", arguments.join(" ")), status)
    }

    /// Starts a relay of kernel sockets on a host: listens at the first address, connects to the
    /// second, each over the transport named with it.
    pub fn relay(
        &self,
        host: &str,
        (listen, accept): (SocketAddr, &str),
        (to, connect): (SocketAddr, &str),
        congestion: &str,
    ) -> Result<Background, Failure> {
        let own = std::env::current_exe()?;
        let mut command = self.exec(host, &own.to_string_lossy())?;
        command
            .args(["kernel-peer", "relay", &listen.to_string(), &to.to_string()])
            .args([
                "--accept",
                accept,
                "--connect",
                connect,
                "--congestion",
                congestion,
            ])
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        let child = command
            .spawn()
            .map_err(|e| Failure::run("cannot start a relay", e))?;
        let mut background = Background(child);
        let mut line = String::new();
        if let Some(stdout) = background.0.stdout.take() {
            BufReader::new(stdout).read_line(&mut line)?;
        }
        if line.is_empty() {
            return Err(Failure::Run(format!("the relay on {host} ended at once")));
        }
        Ok(background)
    }

    /// Bytes each link has carried towards the user so far.
    pub fn bytes_by_link(&self) -> Result<Vec<u64>, Failure> {
        let bytes = |link| Ok(self.testbed.link_status(link)?.reverse.bytes_delivered);
        LINKS.into_iter().map(bytes).collect()
    }

    /// How late the links delivered (99th percentile, µs).
    pub fn lateness_us(&mut self) -> Option<f64> {
        self.testbed
            .status()
            .ok()
            .map(|status| status.lateness.p99_us)
    }

    /// Adds the ends of the logs of box and server, which go away with the testbed.
    pub fn explain(&mut self, failure: Failure) -> Failure {
        let Failure::Run(mut text) = failure else {
            return failure;
        };
        for host in ["server", "box"] {
            let log = self.log(host);
            let lines: Vec<_> = log.lines().collect();
            for line in &lines[lines.len().saturating_sub(LOG_LINES)..] {
                text.push_str(&format!("\n  {host}: {line}"));
            }
        }
        Failure::Run(text)
    }
}

/// A process that ends with this value.
pub struct Background(Child);

impl Drop for Background {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn check(what: &str, status: std::process::ExitStatus) -> Result<(), Failure> {
    if status.success() {
        Ok(())
    } else {
        Err(Failure::Run(format!("{what}: {status}")))
    }
}
