//! Building and removing a testbed's parts.

use std::io;
use std::process::{Command, Stdio};

use braid_linux::net::sysctl::Sysctl;

use crate::emulator::{Emulator, LinkPlan};
use crate::error::Error;
use crate::layout;
use crate::netns;
use crate::programs::run_script;
use crate::spec::{LanSpec, Role, Start};
use crate::{routes, stale_resources};

use super::Testbed;
use super::links::LinkState;

/// Kernel settings of every host: a host learns no routes, a TCP connection does not start with the metrics of an
/// earlier one, and a packet may arrive at any interface of a multi-homed host. Addresses are usable at once,
/// without duplicate address detection.
const SYSCTLS: [(&str, &str); 9] = [
    ("net/ipv4/conf/all/rp_filter", "0"),
    ("net/ipv4/conf/default/rp_filter", "0"),
    ("net/ipv4/conf/all/send_redirects", "0"),
    ("net/ipv4/conf/all/accept_redirects", "0"),
    ("net/ipv4/tcp_no_metrics_save", "1"),
    ("net/ipv6/conf/all/accept_dad", "0"),
    ("net/ipv6/conf/default/accept_dad", "0"),
    ("net/ipv6/conf/all/accept_ra", "0"),
    ("net/ipv6/conf/default/accept_ra", "0"),
];

impl Testbed {
    pub(super) fn build(&mut self) -> Result<(), Error> {
        for host in &self.layout.hosts {
            create_namespace(&host.namespace)?;
            set_sysctls(&host.namespace, host.role.forwards())?;
        }
        self.link_states = self.spec.links.iter().map(LinkState::of).collect();
        let namespace = |host: &str| layout::namespace(&self.spec.name, host);
        let links = self.spec.links.iter().zip(&self.link_states);
        let plans = links.map(|(link, state)| LinkPlan {
            name: link.name.to_string(),
            from: namespace(&link.from),
            to: namespace(&link.to),
            directions: state.scheduled_settings(),
            seed: link.seed.unwrap_or(self.spec.seed),
        });
        let emulator = Emulator::start(plans.collect());
        self.emulator = Some(emulator.map_err(|e| Error::system("start the link emulator", e))?);
        for lan in &self.spec.lans {
            self.build_lan(lan)?;
        }
        for host in &self.layout.hosts {
            let scripts = routes::script(&self.spec, host);
            ip_both(&host.namespace, &scripts.repeatable)?;
            ip_both(&host.namespace, &scripts.once)?;
        }
        if self.options.start_nothing {
            return Ok(());
        }
        let has_process = |role| matches!(role, Role::Box | Role::Server | Role::Content);
        let auto: Vec<String> = (self.layout.hosts.iter())
            .filter(|h| h.spec.start == Start::Auto && has_process(h.role))
            .map(|h| h.name.clone())
            .collect();
        // Servers and content hosts have to start first, but files describe them after users and boxes; so the
        // order is reversed.
        auto.iter().rev().try_for_each(|host| self.start(host))
    }

    /// Gives a host its addresses and routes again, after an interface was down or addresses were removed.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchHost`], [`Error::System`].
    pub fn reconfigure(&self, host: &str) -> Result<(), Error> {
        let host = self.layout.host(host)?;
        let scripts = routes::script(&self.spec, host);
        ip_both(&host.namespace, &scripts.repeatable)
    }

    /// Runs the lines of `script` by `ip -4 -batch` on `host`, for settings that the file has no keys for.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchHost`]; [`Error::System`] with the first line that `ip` rejected.
    pub fn ip(&self, host: &str, script: &str) -> Result<(), Error> {
        ip(&self.layout.host(host)?.namespace, "-4", script)
    }

    /// Connects two hosts by a veth pair, or more hosts by a bridge in a separate namespace.
    fn build_lan(&self, lan: &LanSpec) -> Result<(), Error> {
        let namespace = |host: &str| layout::namespace(&self.spec.name, host);
        if let [one, other] = &lan.hosts[..] {
            let (name, other) = (&lan.name, namespace(other));
            let script = format!("link add {name} type veth peer name {name} netns {other}\n");
            return ip(&namespace(one), "-4", &script);
        }
        let switch = layout::switch_namespace(&self.spec.name, &lan.name);
        create_namespace(&switch)?;
        let mut script = "link add switch type bridge\nlink set switch up\n".to_owned();
        for (port, host) in lan.hosts.iter().enumerate() {
            let (name, host) = (&lan.name, namespace(host));
            script += &format!(
                "link add port{port} type veth peer name {name} netns {host}\n\
                 link set port{port} master switch\nlink set port{port} up\n"
            );
        }
        ip(&switch, "-4", &script)
    }

    /// Stops all processes and removes everything that was made.
    pub(crate) fn tear_down(&mut self) -> Result<(), Error> {
        // The removal runs only once, because another testbed may have the same name later.
        if std::mem::replace(&mut self.removed, true) {
            return Ok(());
        }
        self.stop_all();
        self.emulator = None;
        stale_resources::remove(&self.spec.name)
    }
}

/// Runs `ip -batch` in a namespace, with a script for IPv4 and one for IPv6.
fn ip_both(namespace: &str, [v4, v6]: &[String; 2]) -> Result<(), Error> {
    ip(namespace, "-4", v4)?;
    ip(namespace, "-6", v6)
}

/// Runs `ip -batch` in a namespace.
fn ip(namespace: &str, family: &str, script: &str) -> Result<(), Error> {
    if script.is_empty() {
        return Ok(());
    }
    let run = || -> io::Result<()> {
        let mut command = Command::new("ip");
        command.args(["-n", namespace, family, "-batch", "-"]);
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        let output = run_script(&mut command, script)?;
        if output.status.success() {
            return Ok(());
        }
        let stderr = String::from_utf8_lossy(&output.stderr);
        // The last line of the message ends in the number of the failed line of the script.
        let number = stderr.rsplit(':').next().unwrap_or_default().trim();
        let number: Option<usize> = number.parse().ok();
        let line = number.and_then(|n| script.lines().nth(n.checked_sub(1)?));
        let line = line.unwrap_or_default();
        let first = stderr.lines().next().unwrap_or_default();
        Err(io::Error::other(format!("`ip {line}`: {first}")))
    };
    run().map_err(|e| {
        let e = match e.kind() {
            io::ErrorKind::NotFound => io::Error::other("there is no `ip`; install iproute2"),
            _ => e,
        };
        Error::system(format!("set up namespace {namespace}"), e)
    })
}

fn create_namespace(name: &str) -> Result<(), Error> {
    netns::create(name).map_err(|e| Error::system(format!("make namespace {name}"), e))
}

fn set_sysctls(namespace: &str, forwards: bool) -> Result<(), Error> {
    let forward = if forwards { "1" } else { "0" };
    let forwarding = [
        ("net/ipv4/ip_forward", forward),
        ("net/ipv6/conf/all/forwarding", forward),
    ];
    let set = netns::run_inside(namespace, || {
        let mut all = SYSCTLS.iter().chain(&forwarding);
        all.try_for_each(|(key, value)| Sysctl::new(*key, value).apply().map_err(io::Error::other))
    });
    set.map_err(|e| Error::system(format!("set up namespace {namespace}"), e))
}
