//! Making and removing what a testbed consists of.

use std::fs;
use std::io::{self, Write};
use std::process::{Command, Stdio};

use crate::emulator::{Emulator, LinkPlan};
use crate::error::Error;
use crate::layout::{self, Segment, SegmentKind};
use crate::links::LinkState;
use crate::netns;
use crate::routes;
use crate::spec::{LinkSpec, Start};
use crate::{Testbed, process, state};

/// Packets a device holds for the emulator until it reads them. Bursts must fit, since what is
/// dropped there is dropped by no model.
const DEVICE_QUEUE: u32 = 4096;

/// Kernel settings of every host. Routes must not be learnt, connections must not start from
/// what an earlier one measured, and a packet may arrive at any interface of a multi-homed host.
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
    pub(crate) fn build(&mut self) -> Result<(), Error> {
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
        let wanted = |role| process::has_process(role);
        let auto: Vec<String> = (self.layout.hosts.iter())
            .filter(|h| h.start == Start::Auto && wanted(h.role))
            .map(|h| h.name.clone())
            .collect();
        // Those that serve before those that ask.
        auto.iter()
            .rev()
            .try_for_each(|host| self.start_process(host))
    }

    pub(crate) fn configure_host(&self, host: &str) -> Result<(), Error> {
        let layout = self.layout.host(host)?;
        let segments = layout::segments(&self.spec)?;
        for spec in self.spec.hosts.iter().filter(|h| *h.name == *host) {
            let scripts = routes::script(&self.spec, &segments, layout, spec);
            ip(&layout.namespace, "-4", &scripts.v4)?;
            ip(&layout.namespace, "-6", &scripts.v6)?;
        }
        Ok(())
    }

    fn plan(&self, link: &LinkSpec, state: &LinkState) -> LinkPlan {
        let [forward, reverse] = state.courses();
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

    /// A veth pair between two hosts; between more, a bridge in a namespace of its own.
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

    pub(crate) fn tear_down(&mut self) -> Result<(), Error> {
        // Once only: after the first time the name may be someone else's.
        if std::mem::replace(&mut self.removed, true) {
            return Ok(());
        }
        self.stop_all_processes();
        self.emulator = None;
        remove_leftovers(&self.spec.name)
    }
}

/// Scripts for `ip -4 -batch` and `ip -6 -batch` that give a host its addresses and routes.
#[derive(Default)]
pub(crate) struct Scripts {
    /// May be run again, which mends what was changed since.
    pub v4: String,
    /// The same for IPv6.
    pub v6: String,
    /// To be run once, after the others.
    pub once4: String,
    /// The same for IPv6.
    pub once6: String,
}

impl Scripts {
    /// Settings of the device of an emulated link. Without multicast the kernel sends nothing of
    /// its own accord, so that losses fall on the packets of one index in every run.
    pub fn device(&mut self, name: &str, mtu: u16) {
        self.v4 += &format!("link set {name} mtu {mtu} txqueuelen {DEVICE_QUEUE} multicast off\n");
    }
}

/// Runs `ip -batch` in a namespace.
pub(crate) fn ip(namespace: &str, family: &str, script: &str) -> Result<(), Error> {
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
            // `ip` ends at the first error and reads no further; its own message says more.
            let _ = stdin.write_all(script.as_bytes());
        }
        let output = child.wait_with_output()?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        let line = said
            .rsplit(':')
            .next()
            .and_then(|n| n.trim().parse::<usize>().ok())
            .and_then(|n| script.lines().nth(n.checked_sub(1)?))
            .unwrap_or_default();
        let first = said.lines().next().unwrap_or_default();
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

/// Removes what a testbed named `name` left behind.
pub(crate) fn remove_leftovers(name: &str) -> Result<(), Error> {
    let mut first_error = Ok(());
    let namespaces = netns::list().map_err(|e| Error::system("list namespaces", e))?;
    for namespace in namespaces.iter().filter(|n| layout::belongs_to(n, name)) {
        process::kill_all_in(namespace);
        let deleted = netns::delete(namespace);
        let error = deleted.map_err(|e| Error::system(format!("delete namespace {namespace}"), e));
        first_error = first_error.and(error);
    }
    let directory = state::directory(name);
    let removed = match fs::remove_dir_all(&directory) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    };
    state::remove_root_if_empty();
    first_error
        .and(removed.map_err(|e| Error::system(format!("remove {}", directory.display()), e)))
}
