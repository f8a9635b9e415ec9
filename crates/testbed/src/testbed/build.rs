//! Building and removing a testbed's parts.

use std::fs;
use std::io::{self, Write};
use std::process::{Command, Stdio};

use crate::emulator::{Emulator, LinkPlan};
use crate::error::Error;
use crate::layout::{self, Segment, SegmentKind};
use crate::netns;
use crate::spec::{LinkSpec, Role, Start};
use crate::{routes, stale_resources};

use super::Testbed;
use super::links::LinkState;

/// Kernel settings of every host: a host learns no routes, a TCP connection does not start with the metrics of an
/// earlier one, and a packet may arrive at any interface of a multi-homed host. Addresses are usable at once,
/// without duplicate address detection.
const SYSCTLS: [(&str, &str); 9] = [
    ("ipv4/conf/all/rp_filter", "0"),
    ("ipv4/conf/default/rp_filter", "0"),
    ("ipv4/conf/all/send_redirects", "0"),
    ("ipv4/conf/all/accept_redirects", "0"),
    ("ipv4/tcp_no_metrics_save", "1"),
    ("ipv6/conf/all/accept_dad", "0"),
    ("ipv6/conf/default/accept_dad", "0"),
    ("ipv6/conf/all/accept_ra", "0"),
    ("ipv6/conf/default/accept_ra", "0"),
];

impl Testbed {
    pub(super) fn build(&mut self) -> Result<(), Error> {
        let segments = layout::segments(&self.spec)?;
        for host in &self.layout.hosts {
            create_namespace(&host.namespace)?;
            set_sysctls(&host.namespace, host.role.forwards())?;
        }
        self.link_states = self.spec.links.iter().map(LinkState::of).collect();
        let links = self.spec.links.iter().zip(&self.link_states);
        let plans: Vec<_> = links.map(|(l, state)| self.plan(l, state)).collect();
        let emulator =
            Emulator::start(&plans).map_err(|e| Error::system("start the link emulator", e))?;
        self.emulator = Some(emulator);
        for segment in segments.iter().filter(|s| s.kind == SegmentKind::Lan) {
            self.build_lan(segment)?;
        }
        for (host, spec) in self.layout.hosts.iter().zip(&self.spec.hosts) {
            let scripts = routes::script(&self.spec, &segments, host, spec);
            ip(&host.namespace, "-4", &scripts.v4)?;
            ip(&host.namespace, "-6", &scripts.v6)?;
            ip(&host.namespace, "-4", &scripts.once4)?;
            ip(&host.namespace, "-6", &scripts.once6)?;
        }
        if self.options.start_nothing {
            return Ok(());
        }
        let has_process = |role| matches!(role, Role::Box | Role::Server | Role::Content);
        let auto: Vec<String> = (self.layout.hosts.iter())
            .filter(|h| h.start == Start::Auto && has_process(h.role))
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
        let layout = self.layout.host(host)?;
        let segments = layout::segments(&self.spec)?;
        for spec in self.spec.hosts.iter().filter(|h| *h.name == *host) {
            let scripts = routes::script(&self.spec, &segments, layout, spec);
            ip(&layout.namespace, "-4", &scripts.v4)?;
            ip(&layout.namespace, "-6", &scripts.v6)?;
        }
        Ok(())
    }

    /// Runs the lines of `script` by `ip -4 -batch` on `host`, for settings that the file has no keys for.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchHost`]; [`Error::System`] with the first line that `ip` rejected.
    pub fn ip(&self, host: &str, script: &str) -> Result<(), Error> {
        ip(&self.layout.host(host)?.namespace, "-4", script)
    }

    fn plan(&self, link: &LinkSpec, state: &LinkState) -> LinkPlan {
        let [forward, reverse] = state.scheduled_settings();
        LinkPlan {
            name: link.name.to_string(),
            from: layout::namespace(&self.spec.name, &link.from),
            to: layout::namespace(&self.spec.name, &link.to),
            mtu: link.mtu,
            forward,
            reverse,
            seed: link.seed.unwrap_or(self.spec.seed),
        }
    }

    /// Connects two hosts by a veth pair, or more hosts by a bridge in a separate namespace.
    fn build_lan(&self, lan: &Segment) -> Result<(), Error> {
        let namespace = |host: &str| layout::namespace(&self.spec.name, host);
        if let [one, other] = &lan.hosts[..] {
            let script = format!(
                "link add {0} type veth peer name {0} netns {1}\n",
                lan.name,
                namespace(other)
            );
            return ip(&namespace(one), "-4", &script);
        }
        let switch = layout::switch_namespace(&self.spec.name, &lan.name);
        create_namespace(&switch)?;
        let mut script = "link add switch type bridge\nlink set switch up\n".to_owned();
        for (port, host) in lan.hosts.iter().enumerate() {
            script += &format!(
                "link add port{port} type veth peer name {} netns {}\n\
                 link set port{port} master switch\nlink set port{port} up\n",
                lan.name,
                namespace(host)
            );
        }
        ip(&switch, "-4", &script)
    }

    /// Stops all processes and removes everything that was made.
    pub(super) fn tear_down(&mut self) -> Result<(), Error> {
        // The removal runs only once, because another testbed may have the same name later.
        if std::mem::replace(&mut self.removed, true) {
            return Ok(());
        }
        self.stop_all();
        self.emulator = None;
        stale_resources::remove(&self.spec.name)
    }
}

/// Runs `ip -batch` in a namespace.
fn ip(namespace: &str, family: &str, script: &str) -> Result<(), Error> {
    if script.is_empty() {
        return Ok(());
    }
    let run = || -> io::Result<()> {
        let mut child = Command::new("ip")
            .args(["-n", namespace, family, "-batch", "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()?;
        if let Some(mut stdin) = child.stdin.take() {
            // `ip` stops reading at the first error. Its own message says more than the broken pipe here.
            let _ = stdin.write_all(script.as_bytes());
        }
        let output = child.wait_with_output()?;
        if output.status.success() {
            return Ok(());
        }
        let stderr = String::from_utf8_lossy(&output.stderr);
        // The last line of the message ends in the number of the failed line of the script.
        let line = stderr
            .rsplit(':')
            .next()
            .and_then(|n| n.trim().parse::<usize>().ok())
            .and_then(|n| script.lines().nth(n.checked_sub(1)?))
            .unwrap_or_default();
        let first = stderr.lines().next().unwrap_or_default();
        Err(io::Error::other(format!("`ip {line}`: {first}")))
    };
    run().map_err(|e| {
        let step = format!("set up namespace {namespace}");
        if e.kind() == io::ErrorKind::NotFound {
            let e = io::Error::new(e.kind(), "there is no `ip`; install iproute2");
            return Error::system(step, e);
        }
        Error::system(step, e)
    })
}

fn create_namespace(name: &str) -> Result<(), Error> {
    netns::create(name).map_err(|e| Error::system(format!("make namespace {name}"), e))
}

fn set_sysctls(namespace: &str, forwards: bool) -> Result<(), Error> {
    let forward = if forwards { "1" } else { "0" };
    let forwarding = [
        ("ipv4/ip_forward", forward),
        ("ipv6/conf/all/forwarding", forward),
    ];
    netns::run_inside(namespace, || {
        SYSCTLS
            .iter()
            .chain(&forwarding)
            .try_for_each(|(name, value)| {
                fs::write(format!("/proc/sys/net/{name}"), value)
                    .map_err(|e| io::Error::new(e.kind(), format!("sysctl net/{name}: {e}")))
            })
    })
    .map_err(|e| Error::system(format!("set up namespace {namespace}"), e))
}
