//! Finds running instances: the instance of this configuration, and others that compete with it.

use std::fs;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use braid_proxy::config::{BoxConfig, Finding, ServerConfig, Verdict};
use braid_proxy::control::{Answer, Request};
use braid_proxy::status::{Role, Status};

use super::machine::Machine;
use crate::control::{self, AskError};
use crate::net::InstanceNames;
use crate::nft;

/// Directory of control sockets, unless a configuration names another.
const SOCKET_DIR: &str = "/run/braid";

/// Maximum time to wait for the instance of this configuration. It is also the maximum for all other instances
/// together, since an instance that hangs must not delay the check. The value is a guess: more than a busy event
/// loop needs to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(2_500);
/// Maximum time to wait for one of the other instances. It is a fraction of [`ANSWER_TIMEOUT`], so that an instance
/// that hangs leaves time for the next ones.
const SOCKET_TIMEOUT: Duration = Duration::from_millis(500);

/// The properties that identify the instance of a configuration.
#[derive(Debug)]
pub(super) struct WantedInstance<'a> {
    pub role: Role,
    pub name: &'a str,
    pub tun: &'a str,
    pub control: Option<&'a Path>,
    /// The names of the links of a box, or the endpoints at which a server listens.
    pub paths: Vec<String>,
    pub servers: Vec<SocketAddr>,
    /// Texts in nftables rules. Each shows something that only one instance can have: an interface of the local
    /// network, or a listening endpoint.
    pub claims: Vec<String>,
}

impl<'a> WantedInstance<'a> {
    pub fn of_box(config: &'a BoxConfig) -> Self {
        let endpoints = config.servers.iter();
        let endpoints = endpoints.flat_map(|s| [s.endpoint_v4(), s.endpoint_v6()]);
        WantedInstance {
            role: Role::Box,
            name: &config.name,
            tun: &config.tun.name,
            control: config.control.as_deref(),
            paths: config.links.iter().map(|l| l.name.clone()).collect(),
            servers: endpoints.flatten().collect(),
            claims: config.lan.iter().map(|lan| format!("\"{lan}\"")).collect(),
        }
    }

    pub fn of_server(config: &'a ServerConfig) -> Self {
        let claim = |addr: SocketAddr| format!("daddr {} tcp dport {} ", addr.ip(), addr.port());
        WantedInstance {
            role: Role::Server,
            name: &config.name,
            tun: &config.tun.name,
            control: config.control.as_deref(),
            paths: config.listen.iter().map(ToString::to_string).collect(),
            servers: Vec::new(),
            claims: config.endpoints().map(claim).collect(),
        }
    }

    fn role_name(&self) -> &'static str {
        match self.role {
            Role::Box => "box",
            Role::Server => "server",
        }
    }

    fn socket(&self) -> PathBuf {
        let default = || InstanceNames::of_tun(self.tun).control_socket(self.role_name());
        self.control.map_or_else(default, Path::to_owned)
    }

    /// Returns whether this is the status of the instance of this configuration.
    fn is_instance(&self, status: &Status) -> bool {
        let paths = status.paths.iter().map(|p| &p.name);
        let servers = status.servers.iter().flat_map(|s| s.addresses.iter());
        status.role == self.role
            && status.name == self.name
            && paths.eq(self.paths.iter())
            && servers.eq(self.servers.iter())
    }
}

/// The running instances that were found.
#[derive(Debug)]
pub(super) struct Running {
    /// The status of the instance of this configuration.
    pub own_status: Option<Box<Status>>,
    pub findings: Vec<Finding>,
}

/// Finds running instances. `at_start` is true at a start of box or server, and false for a check.
pub(super) fn find(wanted: &WantedInstance<'_>, machine: &Machine, at_start: bool) -> Running {
    let role_name = wanted.role_name();
    let at = || ("instance", format!("tun {}", wanted.tun));
    let device_exists = machine.interface(wanted.tun).is_some();
    let (status, unanswered_request) =
        match control::ask_within(&wanted.socket(), &Request::Status, ANSWER_TIMEOUT) {
            Ok(Answer::Status(status)) => (Some(status), None),
            Ok(_) | Err(AskError::NotRunning(..)) => (None, None),
            Err(AskError::System(path, error)) => (None, Some((path, error))),
        };
    let stop_remedy = format!(
        "stop it, or give this one another device: [tun] name = \"…\" (see: ip link show {})",
        wanted.tun
    );
    let mut running = Running {
        own_status: None,
        findings: Vec::new(),
    };
    let finding = match (status, device_exists) {
        (Some(status), true) if wanted.is_instance(&status) => {
            let message = format!(
                "a {role_name} of this configuration runs (process {})",
                status.pid
            );
            running.own_status = Some(status);
            match at_start {
                true => Finding::failure(
                    at(),
                    format!("{message}: a second one cannot start"),
                    stop_remedy,
                ),
                false => Finding::ok(at(), message),
            }
        }
        (Some(status), true) => {
            let message = format!(
                "a {role_name} named {} with another configuration uses the device (process {}): this one cannot \
                 start beside it",
                status.name, status.pid
            );
            let remedy = format!(
                "restart that {role_name} if this is its new configuration, or {stop_remedy}"
            );
            match at_start {
                true => Finding::failure(at(), message, remedy),
                false => Finding::warning(at(), message, remedy),
            }
        }
        (None, true) => match unanswered_request {
            // A start fails in any case if the device exists. So only a check reports that the cause is unknown.
            Some((path, error)) if !at_start => unanswered(at(), &path, &error),
            _ => {
                let message = format!(
                    "a device of this name exists, and no {role_name} of this configuration uses it: the \
                     {role_name} cannot start"
                );
                Finding::failure(at(), message, stop_remedy)
            }
        },
        // An instance may answer at this control socket, but it does not use a device that is missing.
        (_, false) => Finding::ok(at(), format!("no {role_name} runs on this device")),
    };
    running.findings.push(finding);
    running.findings.extend(rivals(wanted));
    running
}

/// Reports that the process that uses the device does not answer.
fn unanswered(at: (&'static str, String), path: &Path, error: &io::Error) -> Finding {
    let message = format!(
        "the device exists, and the process that uses it does not answer ({}: {error})",
        path.display()
    );
    let remedy = match error.kind() {
        ErrorKind::TimedOut => "look in its log for the cause, or restart it",
        _ => "run the check as the user that Braid runs as, usually root",
    };
    Finding::new(Verdict::CouldNotCheck, at, message, remedy)
}

/// Finds instances on other TUN devices that use an interface or an endpoint of this configuration
/// ([`claims`](WantedInstance::claims)).
fn rivals(wanted: &WantedInstance<'_>) -> Vec<Finding> {
    let own = InstanceNames::of_tun(wanted.tun).nft_table();
    // Reading the rules needs privileges. The control sockets may be accessible without privileges.
    let Ok(tables) = nft::instances() else {
        return rivals_by_sockets(wanted);
    };
    let mut found = Vec::new();
    for (table, rules) in tables.iter().filter(|(table, _)| *table != own) {
        let claims = wanted.claims.iter().filter(|claim| match wanted.role {
            Role::Box => rules.contains("tproxy") && is_lan_of(rules, claim),
            Role::Server => rules.contains(claim.as_str()),
        });
        for claim in claims {
            found.push(rival(wanted, claim, &format!("table {table}")));
        }
    }
    found
}

/// Returns whether the rules of a box intercept connections from an interface, whose name is in quotes.
fn is_lan_of(rules: &str, interface: &str) -> bool {
    // The first rule of the chain lets connections from all other interfaces pass, so it names those of the local
    // network: `iifname != { "eth0" } return`.
    let chain = rules.split("chain prerouting").nth(1).unwrap_or_default();
    let first = chain.lines().find(|line| line.contains("iifname != "));
    first.is_some_and(|line| line.contains(interface))
}

fn rival(wanted: &WantedInstance<'_>, claim: &str, owner: &str) -> Finding {
    let role_name = wanted.role_name();
    let claim = claim.replace(['"'], "");
    let (subject, what) = match wanted.role {
        Role::Box => (
            format!("lan {claim}"),
            "intercepts users' connections on this interface",
        ),
        Role::Server => (
            format!("listen {}", claim.trim()),
            "accepts boxes' connections there",
        ),
    };
    let message = format!("another {role_name} ({owner}) {what}: only one of the two gets them");
    let remedy =
        format!("stop one of the two, or change this configuration (see: ls {SOCKET_DIR})");
    Finding::warning(("port", subject), message, remedy)
}

/// Finds competing servers by their control sockets, if this process may not read the rules. Finds no boxes, because
/// the status of a box does not name the interfaces of its local network.
fn rivals_by_sockets(wanted: &WantedInstance<'_>) -> Vec<Finding> {
    let own = wanted.socket();
    let files = fs::read_dir(SOCKET_DIR).into_iter().flatten().flatten();
    let others = files.map(|file| file.path()).filter(|path| *path != own);
    let mut found = Vec::new();
    let until = Instant::now() + ANSWER_TIMEOUT;
    // The bound limits the time if the directory is full of stale sockets. The number is a guess.
    for socket in others.take(16) {
        let time_left = until.saturating_duration_since(Instant::now());
        let time_left = time_left.min(SOCKET_TIMEOUT);
        if let Ok(Answer::Status(status)) =
            control::ask_within(&socket, &Request::Status, time_left)
            && status.role == wanted.role
            && wanted.role == Role::Server
        {
            let shared = |path: &&String| wanted.paths.iter().any(|p| p == *path);
            let names: Vec<String> = status.paths.into_iter().map(|p| p.name).collect();
            for path in names.iter().filter(shared) {
                found.push(rival(wanted, path, &format!("{}", socket.display())));
            }
        }
    }
    found
}
