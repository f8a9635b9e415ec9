//! Namespaces of one test, and helpers for them.

use std::io;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use braid_testbed::netns;

/// Bound on every wait: other work may delay a machine for seconds.
pub const TIMEOUT: Duration = Duration::from_secs(60);
/// Interval between two looks at a condition that is waited for.
const POLL: Duration = Duration::from_millis(10);

/// Polls `attempt` until it returns a value, and returns that. For the failure message, `what` names the
/// condition and `seen` returns the state.
pub fn wait_for<T>(
    what: &str,
    seen: impl Fn() -> String,
    mut attempt: impl FnMut() -> Option<T>,
) -> T {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        if let Some(value) = attempt() {
            return value;
        }
        if Instant::now() > deadline {
            panic!("{what}: not within {TIMEOUT:?}: {}", seen());
        }
        thread::sleep(POLL);
    }
}

/// Network namespaces that are removed when this is dropped.
pub struct World {
    prefix: String,
    names: Vec<String>,
}

impl World {
    /// Makes a namespace for each of `names`, with its loopback interface up.
    pub fn new(names: &[&str]) -> World {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let mut world = World {
            prefix: format!("bt{}-io{count}-", std::process::id()),
            names: Vec::new(),
        };
        for name in names {
            let full = world.name(name);
            netns::create(&full).expect("namespaces can be made (see scripts/with-net.sh)");
            world.names.push(full);
            world.ip(name, "link set lo up");
        }
        world
    }

    /// Returns the full name of namespace `name`.
    pub fn name(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    /// Runs `work` inside namespace `name`.
    pub fn inside<T: Send>(&self, name: &str, work: impl FnOnce() -> T + Send) -> T {
        netns::run_inside(&self.name(name), || io::Result::Ok(work())).unwrap()
    }

    /// Returns a command inside namespace `name`.
    pub fn command(&self, name: &str, program: &str) -> Command {
        netns::command(&self.name(name), program).unwrap()
    }

    /// Runs a shell line inside namespace `name` and returns what it printed.
    pub fn sh(&self, name: &str, line: &str) -> String {
        let output = self.try_sh(name, line);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{line}: {stderr}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs a shell line that may fail.
    pub fn try_sh(&self, name: &str, line: &str) -> Output {
        let path = "PATH=$PATH:/usr/sbin:/sbin;";
        self.command(name, "sh")
            .args(["-c", &format!("{path} {line}")])
            .output()
            .unwrap()
    }

    /// Runs `ip` inside namespace `name`.
    pub fn ip(&self, name: &str, args: &str) -> String {
        self.sh(name, &format!("ip {args}"))
    }

    /// Returns the bytes that a device has received and sent so far.
    pub fn carried(&self, name: &str, device: &str) -> [u64; 2] {
        let text = self.ip(name, &format!("-s link show {device}"));
        let first = |line: &str| line.split_whitespace().next()?.parse().ok();
        // The lines below `RX:` and below `TX:` begin with them.
        [3, 5].map(|line| text.lines().nth(line).and_then(first).unwrap())
    }

    /// Makes a link between two namespaces: interface name, IPv4 and IPv6 address with prefix of each end.
    pub fn veth(&self, a: (&str, &str, &str), b: (&str, &str, &str)) {
        let peer = self.name(b.0);
        self.ip(
            a.0,
            &format!("link add {} type veth peer name {} netns {peer}", a.1, b.1),
        );
        for (ns, device, addresses) in [a, b] {
            for address in addresses.split_whitespace() {
                self.ip(ns, &format!("addr add {address} dev {device} nodad"));
            }
            self.ip(ns, &format!("link set {device} up"));
        }
        // Carrier, and the routes that depend on it, appear a little later. IPv6 adds the route to an address
        // of its own from a work queue.
        for (ns, device, addresses) in [a, b] {
            let state = || {
                let routes = format!("route show table all dev {device}");
                let link = self.ip(ns, &format!("link show {device}"));
                link + &self.ip(ns, &routes) + &self.ip(ns, &format!("-6 {routes}"))
            };
            wait_for("the link is up with its routes", state, || {
                let state = state();
                let has_route = |address: &str| {
                    let own = address.split('/').next().unwrap_or_default();
                    state.contains(&format!("local {own} "))
                };
                let settled = state.contains("state UP")
                    && !state.contains("linkdown")
                    && addresses.split_whitespace().all(has_route);
                settled.then_some(())
            });
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = netns::delete(name);
        }
    }
}
