//! Checks which packets pass from each link to each server, and which are changed on the way.
//!
//! Kernel sockets are not suitable: the rules of a running box keep the servers' packets from kernel sockets,
//! packets of kernel sockets follow the routing table, and not every kernel has Multipath TCP. So the check
//! opens its connections with the engine, and sends and receives the packets by raw sockets.

mod detour;
mod echo;
mod judge;
mod next_hop;
mod probe_result;
mod raw;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use braid_proxy::config::{BoxConfig, Finding, LinkConfig, ServerEntry, Verdict};
use braid_proxy::status::Status;
use braid_proxy::trial::{Trial, TrialEnd, TrialReport, TrialSetup};
use braid_secure::channel::Versions;
use braid_secure::keys::PrivateKey;
use socket2::Socket;

use super::machine::{LinkRoute, Machine};
use crate::driver::Clock;
use crate::random;
use detour::{Detour, Exit, reserve_port};
use echo::Echoes;
use probe_result::{ProbeResult, ProbedPair};
use raw::{Raw, Received};

/// Maximum time for one trial. If SYNs with Multipath TCP are dropped, the engine tries plain TCP after 3 s. The
/// remaining time has to suffice for the handshake, even over a slow link.
const MAX_TRIAL_TIME: Duration = Duration::from_secs(9);

/// The probe of one server over one link in one address family.
struct Task<'a> {
    link: &'a LinkConfig,
    server: &'a ServerEntry,
    /// The local and the remote endpoint.
    ends: (SocketAddr, SocketAddr),
    /// Maximum packet size of the link in bytes.
    mtu: u16,
    exit: Exit,
    /// A socket that is bound to the local port, so that no other socket gets it.
    _reserved: Socket,
}

/// Probes all links in parallel, until `stop` is readable. `status` is the status of a running box, if there is
/// one.
pub(super) fn findings(
    config: &BoxConfig,
    machine: &Machine,
    status: Option<&Status>,
    stop: BorrowedFd<'_>,
) -> Vec<Finding> {
    let mut tasks = Vec::new();
    let mut exits = Vec::new();
    let mut found = Vec::new();
    for (index, link) in (0..).zip(&config.links) {
        for v6 in [false, true] {
            let Some(exit) = exit(machine, link, index, v6) else {
                continue;
            };
            for server in &config.servers {
                match task(machine, link, server, &exit) {
                    Ok(task) => tasks.extend(task),
                    Err(error) => found.push(judge::not_possible(&link.name, &error.to_string())),
                }
            }
            exits.push(exit);
        }
    }
    let ports: Vec<u16> = tasks.iter().map(|task| task.ends.0.port()).collect();
    if ports.is_empty() {
        found.push(Finding::new(
            Verdict::CouldNotCheck,
            ("link.tcp", "links"),
            "no link has both an address and a gateway at present, so none was tested",
            "",
        ));
        return found;
    }
    match Detour::open(&exits, &ports) {
        Ok(detour) => {
            let of_links = probe(config, &detour, &tasks, stop);
            found.extend(next_hops(config, &exits));
            found.extend(of_links);
        }
        Err(error) => found.push(judge::not_possible("links", &error.to_string())),
    }
    found.extend(judge::tunnel(config, status));
    found.extend(judge::rates(config, status));
    found
}

/// Reports whether the gateways answer. The kernel knows this only after packets were sent to the gateways, so
/// this function runs after the probes.
fn next_hops(config: &BoxConfig, exits: &[Exit]) -> Vec<Finding> {
    // If the neighbours cannot be read, this is no finding: the servers' answers show whether the gateways work.
    let neighbours = next_hop::neighbours().unwrap_or_default();
    let of_exit = |exit: &Exit| {
        let gateway = exit.gateway?;
        let link = config.links.get(usize::from(exit.index))?;
        let is_gateway = |(interface, address, _): &&(u32, IpAddr, _)| {
            *interface == exit.interface && *address == gateway
        };
        let (_, _, state) = neighbours.iter().find(is_gateway)?;
        Some(judge::next_hop(&link.name, gateway, *state))
    };
    exits.iter().filter_map(of_exit).collect()
}

/// Returns the route of packets of an address family over a link; `None` if there is none.
fn exit(machine: &Machine, link: &LinkConfig, index: u8, v6: bool) -> Option<Exit> {
    let interface = machine.interface(&link.interface)?;
    let gateway = match machine.route(link, v6) {
        LinkRoute::Out(gateway) => gateway,
        // A server may be a neighbour, which needs no gateway.
        LinkRoute::NoGateway => None,
        _ => return None,
    };
    let of_family = machine
        .addresses_of(interface.index)
        .filter(|a| a.addr.is_ipv6() == v6);
    Some(Exit {
        index,
        interface: interface.index,
        gateway,
        addresses: of_family.copied().collect(),
        v6,
    })
}

/// Returns the task for a server over a link; `None` if server or link has no address of the family.
fn task<'a>(
    machine: &Machine,
    link: &'a LinkConfig,
    server: &'a ServerEntry,
    exit: &Exit,
) -> io::Result<Option<Task<'a>>> {
    let remote = match exit.v6 {
        false => server.endpoint_v4(),
        true => server.endpoint_v6(),
    };
    // A running box chooses the source address in the same way: an address that is not deprecated wins, then a
    // permanent one, then an address in the gateway's network.
    let in_gateway_network = |addr: &crate::net::routes::Address| {
        let net = crate::net::link::network(addr);
        exit.gateway.is_some_and(|gateway| net.contains(&gateway))
    };
    let local = exit
        .addresses
        .iter()
        .min_by_key(|a| (a.deprecated, a.secondary, !in_gateway_network(a)));
    let (Some(remote), Some(local)) = (remote, local) else {
        return Ok(None);
    };
    let (reserved, port) = reserve_port(local.addr)?;
    let interface_mtu = machine.interface(&link.interface).map_or(1_500, |i| i.mtu);
    let mtu = u16::try_from(interface_mtu).unwrap_or(u16::MAX);
    Ok(Some(Task {
        link,
        server,
        ends: (SocketAddr::new(local.addr, port), remote),
        mtu: link.mtu.map_or(mtu, |wanted| wanted.min(mtu)),
        exit: exit.clone(),
        _reserved: reserved,
    }))
}

/// Runs all tasks, each on two threads, and returns the findings on their results.
fn probe(
    config: &BoxConfig,
    detour: &Detour,
    tasks: &[Task<'_>],
    stop: BorrowedFd<'_>,
) -> Vec<Finding> {
    let results: Vec<ProbeResult> = thread::scope(|scope| {
        let running: Vec<_> = tasks
            .iter()
            .map(|task| {
                let mark = detour.mark(task.exit.index);
                let trial = scope.spawn(move || task.try_server(&config.key, mark, stop));
                let echoes = scope.spawn(move || task.probe_echoes(mark, stop));
                (trial, echoes)
            })
            .collect();
        let panicked =
            || io::Error::other("the check itself failed; please report this with the log");
        let joined = running.into_iter().map(|(trial, echoes)| ProbeResult {
            trial: trial.join().unwrap_or_else(|_| Err(panicked())),
            echoes: echoes.join().unwrap_or_else(|_| Err(panicked())),
        });
        joined.collect()
    });
    let seen: Vec<_> = tasks
        .iter()
        .zip(&results)
        .map(|(task, found)| (task.about(), found))
        .collect();
    judge::links(config, &seen)
}

impl Task<'_> {
    /// Returns the link and the server that the task probes.
    fn about(&self) -> ProbedPair<'_> {
        ProbedPair {
            link: &self.link.name,
            server: self.server,
            remote: self.ends.1,
            mtu: self.mtu,
        }
    }

    /// Opens sockets for packets over the link.
    fn open(&self, mark: u32) -> io::Result<Raw> {
        let interface = (self.link.interface.as_str(), self.exit.interface);
        Raw::open(interface, mark, self.ends.1.ip(), self.ends.0.port())
    }

    /// Returns the local and the remote address.
    fn ips(&self) -> (IpAddr, IpAddr) {
        (self.ends.0.ip(), self.ends.1.ip())
    }

    /// Probes packet sizes and UDP.
    fn probe_echoes(&self, mark: u32, stop: BorrowedFd<'_>) -> io::Result<Echoes> {
        let mut raw = self.open(mark)?;
        let [a, b] = random()?;
        let id = u16::from_be_bytes([a, b]);
        echo::ask(&mut raw, self.ips(), id, self.mtu, stop)
    }

    /// Opens a connection to the server as a box does, and reports which step of this succeeds.
    fn try_server(
        &self,
        key: &PrivateKey,
        mark: u32,
        stop: BorrowedFd<'_>,
    ) -> io::Result<TrialReport> {
        let mut raw = self.open(mark)?;
        let clock = Clock::new();
        let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let setup = TrialSetup {
            local: self.ends.0,
            remote: self.ends.1,
            mtu: self.mtu,
            key,
            server: self.server,
            versions: Versions::OURS,
            seed: random()?,
            since_epoch: since_epoch.unwrap_or_default(),
        };
        let trial = Trial::begin(clock.now(), &setup);
        let mut trial = trial.map_err(|e| io::Error::other(e.to_string()))?;
        let started_at = Instant::now();
        let mut send_error = None;
        loop {
            while let Some(packet) = trial.poll_transmit(clock.now()) {
                send_error = raw.send(&packet).err().or(send_error);
            }
            if trial.is_over() || started_at.elapsed() >= MAX_TRIAL_TIME {
                break;
            }
            let time_left = trial
                .next_timeout()
                .map(|at| at.saturating_since(clock.now()));
            let until = Instant::now() + time_left.unwrap_or(MAX_TRIAL_TIME);
            match raw.receive(until.min(started_at + MAX_TRIAL_TIME), stop)? {
                Received::Packet(packet) => trial.receive(clock.now(), packet),
                Received::Nothing => trial.handle_timeout(clock.now()),
                Received::Stop => break,
            }
        }
        trial.give_up(clock.now());
        while let Some(packet) = trial.poll_transmit(clock.now()) {
            // This packet closes the connection. If it is lost, the server's timeout ends the connection.
            let _ = raw.send(&packet);
        }
        let report = trial.report();
        match send_error {
            Some(error) if report.opened.is_none() && report.end == TrialEnd::Pending => Err(error),
            _ => Ok(report),
        }
    }
}
