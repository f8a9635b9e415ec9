//! Checks that this machine has what box and server need: features of the kernel, tools, settings, memory, and the
//! privileges of this process.

use std::fs::{self, OpenOptions};
use std::io::ErrorKind;
use std::net::IpAddr;
use std::path::Path;

use braid_proxy::config::{BoxConfig, Finding, Protection, ServerConfig, Verdict};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CapabilitySet, capabilities};

use super::machine::Machine;
use crate::net::InstanceNames;
use crate::net::routes::Interface;
use crate::net::shortcut::{Shortcut, shared_ports};
use crate::net::sysctl::Sysctl;
use crate::nft;
use crate::sys;

/// Number of descriptors that are needed besides the descriptors of connections. It is the number that box and
/// server reserve (`run::process`).
const OTHER_DESCRIPTORS: u64 = 256;
/// Maximum share of this machine's memory for the data of connections. The rest is for the kernel and other
/// programs. The value is a guess.
const MEMORY_SHARE: f64 = 0.75;
const TUN_DEVICE: &str = "/dev/net/tun";
/// Remedy if this process may not change the network.
const ROOT_REMEDY: &str = "run it as root, or with CAP_NET_ADMIN and CAP_NET_RAW";

/// The needs of an instance.
#[derive(Debug)]
pub(super) struct Needs {
    /// The command, for messages.
    pub role: &'static str,
    /// Interfaces that packets are forwarded between.
    pub forwarding: Vec<String>,
    /// True if IPv6 packets are forwarded too.
    pub forwarding_v6: bool,
    /// Interfaces that receive answers from hosts to which the main table routes over another interface.
    pub asymmetric: Vec<String>,
    /// True if packets to the servers take the shortcut.
    pub shortcut: bool,
    /// Maximum number of connections.
    pub connections: usize,
    /// Maximum size of the connections' data in bytes.
    pub memory: usize,
    /// True if passwords are sent in plaintext. They expire, so the clocks of box and server have to agree.
    pub plaintext: bool,
}

impl Needs {
    pub fn of_box(config: &BoxConfig) -> Self {
        let links: Vec<String> = config.links.iter().map(|l| l.interface.clone()).collect();
        Needs {
            role: "box",
            forwarding: [&config.lan[..], &links].concat(),
            forwarding_v6: config.links.iter().any(|l| l.v6),
            asymmetric: links,
            shortcut: config.shortcut,
            connections: config.limits.connections(),
            memory: config.limits.memory,
            plaintext: config
                .servers
                .iter()
                .any(|s| s.protection == Protection::None),
        }
    }

    pub fn of_server(config: &ServerConfig, machine: &Machine) -> Self {
        let carriers = config
            .listen
            .iter()
            .filter_map(|a| machine.interface_with(*a));
        let mut names: Vec<String> = carriers
            .filter(|i| !i.loopback)
            .map(|i| i.name.clone())
            .collect();
        if config.tunnel.is_some() {
            // Answers to packets of tunnels come in by any of them.
            let tunnel_device = InstanceNames::of_tun(&config.tun.name).tunnel_device();
            let own = [&config.tun.name, &tunnel_device];
            let has_address =
                |i: &&Interface| machine.addresses.iter().any(|a| a.interface == i.index);
            let others = machine.interfaces.iter().filter(has_address);
            let others = others.filter(|i| !i.loopback && !own.contains(&&i.name));
            names.extend(others.map(|i| i.name.clone()));
        }
        names.sort();
        names.dedup();
        Needs {
            role: "server",
            forwarding: names.clone(),
            forwarding_v6: config.listen.iter().any(IpAddr::is_ipv6)
                || (config.tunnel.is_some() && machine.v6),
            asymmetric: names,
            shortcut: false,
            connections: config.limits.connections(),
            memory: config.limits.memory,
            plaintext: config.unprotected,
        }
    }
}

/// Returns whether this process has a capability.
fn has_capability(capability: CapabilitySet) -> bool {
    capabilities(None).is_ok_and(|sets| sets.effective.contains(capability))
}

/// Returns whether this process may change the network.
pub(super) fn is_privileged() -> bool {
    has_capability(CapabilitySet::NET_ADMIN) && has_capability(CapabilitySet::NET_RAW)
}

/// Returns all findings. `at_start` is true at a start of box or server, and false for a check. `running` is
/// true if an instance of this configuration runs.
pub(super) fn findings(needs: &Needs, at_start: bool, running: bool) -> Vec<Finding> {
    let privileged = has_capability(CapabilitySet::NET_ADMIN);
    let mut found = Vec::new();
    if !privileged {
        found.push(unprivileged(needs, at_start));
    }
    found.push(tun_device(privileged));
    found.push(packet_filter(needs, privileged));
    if privileged {
        found.extend(settings(needs, running));
    }
    found.extend(port_range_finding(needs));
    found.push(descriptor_finding(needs));
    found.push(memory_finding(needs));
    found.extend(clock_finding(needs));
    found
}

fn unprivileged(needs: &Needs, at_start: bool) -> Finding {
    let at = ("privileges", "this process");
    match at_start {
        true => {
            let message = format!(
                "it may not configure the network (no CAP_NET_ADMIN): the {} cannot work",
                needs.role
            );
            Finding::failure(at, message, ROOT_REMEDY)
        }
        false => {
            let message = "it may not configure the network (no CAP_NET_ADMIN), so the check did not test \
                           whether nftables accepts the rules, whether kernel settings can be changed, the rules \
                           of other instances, and the links";
            Finding::new(Verdict::CouldNotCheck, at, message, ROOT_REMEDY)
        }
    }
}

fn tun_device(privileged: bool) -> Finding {
    let at = || ("tun.device", TUN_DEVICE);
    let opened = OpenOptions::new().read(true).write(true).open(TUN_DEVICE);
    let Err(error) = opened else {
        return Finding::ok(at(), "the device can be opened");
    };
    if error.kind() == ErrorKind::PermissionDenied && !privileged {
        let message = format!("cannot open it as this user: {error}");
        return Finding::new(Verdict::CouldNotCheck, at(), message, ROOT_REMEDY);
    }
    let message = format!("cannot open it: {error}; without a TUN device nothing is aggregated");
    let remedy = match error.kind() {
        ErrorKind::NotFound => {
            "run: modprobe tun; in a container, have the host pass the device in (such as docker run --device \
             /dev/net/tun)"
        }
        _ => "give this process access to it; in a container, have the host allow the device",
    };
    Finding::failure(at(), message, remedy)
}

fn packet_filter(needs: &Needs, privileged: bool) -> Finding {
    let at = || ("nft", "nftables");
    let result = match privileged {
        true => nft::dry_run(),
        false => nft::check_installed(),
    };
    match result {
        Ok(()) if privileged => Finding::ok(at(), "the kernel accepts the rules"),
        Ok(()) => Finding::new(
            Verdict::CouldNotCheck,
            at(),
            "the command exists; only root can test whether the kernel accepts the rules",
            ROOT_REMEDY,
        ),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let message = format!(
                "the command nft is not in PATH ({error}): the {} cannot set up its rules",
                needs.role
            );
            Finding::failure(at(), message, "install nftables (apt-get install nftables)")
        }
        Err(error) => {
            let message = format!("{error}: the {} cannot set up its rules", needs.role);
            let remedy = "use a kernel with nf_tables, nft_tproxy, nft_fib_inet and nft_nat; in a container, \
                          have the host load these modules and allow CAP_NET_ADMIN";
            Finding::failure(at(), message, remedy)
        }
    }
}

/// Checks forwarding and reverse-path filtering. Box and server change these settings at their start, so a wrong
/// value is a finding only if an instance runs or if the settings cannot be changed.
fn settings(needs: &Needs, running: bool) -> Vec<Finding> {
    let mut found = Vec::new();
    for name in &needs.forwarding {
        let key = format!("net/ipv4/conf/{name}/forwarding");
        let is_off = Sysctl::current(&key).is_some_and(|now| now.value != "1");
        if is_off && running {
            let message = format!(
                "another program has switched forwarding off since the {} started: packets are not forwarded",
                needs.role
            );
            let remedy = format!("run: sysctl -w {}=1", key.replace('/', "."));
            found.push(Finding::warning(("forwarding", name), message, remedy).healing());
        } else if is_off && !is_writable(&key) {
            let message = format!(
                "forwarding is off and cannot be switched on here (/proc/sys is read-only): the {} forwards \
                 nothing",
                needs.role
            );
            let remedy = format!("have the host set {}=1", key.replace('/', "."));
            found.push(Finding::failure(("forwarding", name), message, remedy));
        }
    }
    found.extend(forwarding_v6(needs, running));
    found.extend(strict_filter(needs, running));
    found
}

/// Checks IPv6 forwarding, which the kernel switches for all interfaces at once. IPv4 works without it, so the
/// finding is only a warning.
fn forwarding_v6(needs: &Needs, running: bool) -> Option<Finding> {
    let key = "net/ipv6/conf/all/forwarding";
    let is_off = Sysctl::current(key).is_some_and(|now| now.value == "0");
    let is_obstacle = is_off && needs.forwarding_v6 && (running || !is_writable(key));
    is_obstacle.then(|| {
        let message = "forwarding of IPv6 is off, and the running box does not change this: IPv6 packets are \
                       not forwarded";
        let remedy = format!("run: sysctl -w {}=1, or have the host set it", key.replace('/', "."));
        Finding::warning(("forwarding", "IPv6"), message, remedy).healing()
    })
}

fn strict_filter(needs: &Needs, running: bool) -> Vec<Finding> {
    let value = |name: &str| {
        let key = format!("net/ipv4/conf/{name}/rp_filter");
        Sysctl::current(&key)?.value.parse::<u8>().ok()
    };
    let all = value("all").unwrap_or(0);
    let mut found = Vec::new();
    for name in &needs.asymmetric {
        // The kernel uses the maximum of the value of the interface and the value of `all` (ip-sysctl.rst). 1 is
        // strict and 2 is loose.
        let is_strict = value(name).is_some_and(|own| own.max(all) == 1);
        let key = format!("net/ipv4/conf/{name}/rp_filter");
        if is_strict && (running || !is_writable(&key)) {
            let message = "rp_filter is strict (1) instead of loose (2) or off (0): the kernel drops answers \
                           whose sender the routing table reaches over another link, so only the first link \
                           carries traffic";
            let remedy = format!("run: sysctl -w {}=2", key.replace('/', "."));
            found.push(Finding::warning(("rp_filter", name), message, remedy).healing());
        }
    }
    found
}

/// Returns whether this process may change a setting. Opening its file for writing changes nothing.
fn is_writable(key: &str) -> bool {
    let path = Path::new("/proc/sys").join(key);
    OpenOptions::new().write(true).open(path).is_ok()
}

fn port_range_finding(needs: &Needs) -> Option<Finding> {
    let at = ("ports", "net.ipv4.ip_local_port_range");
    let range = shared_ports().filter(|_| needs.shortcut)?;
    let ports = Shortcut::ports();
    let message = format!(
        "it is {:?} and must not contain any port from {} to {}: packets to servers take the kernel's routing \
         instead of the shortcut, which costs more processor time",
        range.split_whitespace().collect::<Vec<_>>().join(" to "),
        ports.start(),
        ports.end()
    );
    let remedy = "run before the start: sysctl -w net.ipv4.ip_local_port_range=\"32768 60999\"; or write \
                  shortcut = false to do without the shortcut";
    Some(Finding::warning(at, message, remedy))
}

fn descriptor_finding(needs: &Needs) -> Finding {
    let at = || ("descriptors", "expert.max_connections");
    let wanted = needs.connections as u64 + OTHER_DESCRIPTORS;
    let now = getrlimit(Resource::Nofile);
    let enough = |limit: Option<u64>| limit.is_none_or(|limit| limit >= wanted);
    if enough(now.maximum) {
        return Finding::ok(at(), format!("the process may open {wanted} descriptors"));
    }
    // Raising the hard limit needs CAP_SYS_RESOURCE in the initial user namespace. Only an attempt shows whether
    // this process may raise it.
    let raised = Rlimit {
        current: now.current,
        maximum: Some(wanted),
    };
    if setrlimit(Resource::Nofile, raised).is_ok() {
        return Finding::ok(at(), format!("the process may open {wanted} descriptors"));
    }
    let current_limit = now.maximum.unwrap_or(0);
    let message = format!(
        "{} connections need {wanted} descriptors, but this process may open {current_limit}: more than {} \
         connections are refused",
        needs.connections,
        current_limit.saturating_sub(OTHER_DESCRIPTORS)
    );
    let remedy = format!(
        "raise the limit before the start (ulimit -Hn {wanted}; for a systemd unit, LimitNOFILE={wanted}), or \
         lower `max_connections` in [expert]"
    );
    Finding::warning(at(), message, remedy)
}

fn memory_finding(needs: &Needs) -> Finding {
    let at = || ("memory", "limits.memory");
    let Some(total) = memory_of_machine() else {
        return Finding::new(
            Verdict::NotChecked,
            at(),
            "the system does not report how much memory there is",
            "",
        );
    };
    let mib = |bytes: u64| bytes >> 20;
    let wanted = needs.memory as u64;
    if wanted as f64 <= total as f64 * MEMORY_SHARE {
        let message = format!("{} MiB of {} MiB", mib(wanted), mib(total));
        return Finding::ok(at(), message);
    }
    let message = format!(
        "connections may hold {} MiB, but this machine (or its cgroup) has {} MiB in all: under load the system \
         may kill the {}, and all connections with it",
        mib(wanted),
        mib(total),
        needs.role
    );
    let remedy = format!(
        "write memory = \"{}MiB\" or less in [limits]",
        mib(total) / 2
    );
    Finding::warning(at(), message, remedy)
}

/// Returns the number of bytes of memory that this process can use: the memory of the machine, or the limit of
/// the process's control group if the limit is lower.
fn memory_of_machine() -> Option<u64> {
    let info = fs::read_to_string("/proc/meminfo").ok();
    let total = info.as_deref().and_then(|text| {
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("MemTotal:"))?;
        let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
        Some(kib << 10)
    });
    total.into_iter().chain(memory_of_group()).min()
}

/// Returns the lowest memory limit (`memory.max`) that applies to this process: the limits of its control group
/// (version 2) and of the groups above it all apply.
fn memory_of_group() -> Option<u64> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let group = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let root = Path::new("/sys/fs/cgroup");
    let directory = root.join(group);
    let limits = directory
        .ancestors()
        .take_while(|path| path.starts_with(root));
    let limits = limits.filter_map(|path| fs::read_to_string(path.join("memory.max")).ok());
    limits.filter_map(|text| text.trim().parse().ok()).min()
}

/// Checks the clock of instances that send passwords in plaintext, since these passwords expire.
fn clock_finding(needs: &Needs) -> Option<Finding> {
    if !needs.plaintext {
        return None;
    }
    let at = ("clock", "clock");
    Some(match sys::clock_is_synchronised() {
        Ok(true) => Finding::ok(at, "the clock is synchronised"),
        Ok(false) => Finding::warning(
            at,
            "no time service keeps the clock right, and a plaintext password is valid only within `time_window` of \
             the server's clock: connections are refused once the clocks differ by more",
            "run a time service (timedatectl set-ntp true), or protect the connections (protection = \"tls\")",
        ),
        Err(error) => Finding::new(
            Verdict::NotChecked,
            at,
            format!("the system does not report whether the clock is synchronised ({error})"),
            "",
        ),
    })
}
