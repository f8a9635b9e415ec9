//! Checks of each link to each server: what passes, and what is changed on the way.
//!
//! Kernel sockets would not do: a running box keeps the servers' packets from them, they follow the routing
//! table, and not every kernel has Multipath TCP. So the check opens its connections with the engine, and
//! sends and reads the packets below the kernel's TCP.

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

/// Longest time for one trial. SYNs with Multipath TCP that are dropped take three seconds, and the handshake
/// that follows must fit too.
const MAX_TRIAL_TIME: Duration = Duration::from_secs(9);

/// A trial of one server over one link in one family.
struct Task<'a> {
    link: &'a LinkConfig,
    server: &'a ServerEntry,
    ends: (SocketAddr, SocketAddr),
    mtu: u16,
    exit: Exit,
    /// Keeps the port from other sockets.
    _reserved: Socket,
}

/// Probes all links at once, until `stop` is readable; `status` is a running box's.
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
            let of_links = look(config, &detour, &tasks, stop);
            found.extend(next_hops(config, &exits));
            found.extend(of_links);
        }
        Err(error) => found.push(judge::not_possible("links", &error.to_string())),
    }
    found.extend(judge::rates(config, status));
    found
}

/// Reports whether the gateways answer, now that packets were sent to them.
fn next_hops(config: &BoxConfig, exits: &[Exit]) -> Vec<Finding> {
    // Neighbours that cannot be read are no finding: the servers' answers tell whether the gateway works.
    let known = next_hop::neighbours().unwrap_or_default();
    let of_exit = |exit: &Exit| {
        let gateway = exit.gateway?;
        let link = config.links.get(usize::from(exit.index))?;
        let is_it = |(interface, address, _): &&(u32, IpAddr, _)| {
            *interface == exit.interface && *address == gateway
        };
        let (_, _, state) = known.iter().find(is_it)?;
        Some(judge::next_hop(&link.name, gateway, *state))
    };
    exits.iter().filter_map(of_exit).collect()
}

/// Returns the route of a family's packets over a link; `None` if there is none.
fn exit(machine: &Machine, link: &LinkConfig, index: u8, v6: bool) -> Option<Exit> {
    let interface = machine.interface(&link.interface)?;
    let gateway = match machine.route(link, v6) {
        LinkRoute::Out(gateway) => gateway,
        // A server may be a neighbour, which needs no gateway.
        LinkRoute::NoGateway => None,
        _ => return None,
    };
    let of_family = machine
        .of(interface.index)
        .filter(|a| a.addr.is_ipv6() == v6);
    Some(Exit {
        index,
        interface: interface.index,
        gateway,
        addresses: of_family.copied().collect(),
        v6,
    })
}

/// Makes the task for a server over a link; `None` if the server has no address of the family.
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
    // The engine chooses alike: a lasting address of the gateway's network comes first.
    let beside = |addr: &crate::net::routes::Address| {
        let net = crate::net::link::network(addr);
        exit.gateway.is_some_and(|gateway| net.contains(&gateway))
    };
    let local = exit
        .addresses
        .iter()
        .min_by_key(|a| (a.deprecated, a.secondary, !beside(a)));
    let (Some(remote), Some(local)) = (remote, local) else {
        return Ok(None);
    };
    let (reserved, port) = reserve_port(local.addr)?;
    let largest = machine.interface(&link.interface).map_or(1_500, |i| i.mtu);
    let mtu = u16::try_from(largest).unwrap_or(u16::MAX);
    Ok(Some(Task {
        link,
        server,
        ends: (SocketAddr::new(local.addr, port), remote),
        mtu: link.mtu.map_or(mtu, |wanted| wanted.min(mtu)),
        exit: exit.clone(),
        _reserved: reserved,
    }))
}

fn look(
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
                let echoes = scope.spawn(move || task.ask(mark, stop));
                (trial, echoes)
            })
            .collect();
        let panicked =
            || io::Error::other("the check itself failed; please report this with the log");
        let ended = running.into_iter().map(|(trial, echoes)| ProbeResult {
            trial: trial.join().unwrap_or_else(|_| Err(panicked())),
            echoes: echoes.join().unwrap_or_else(|_| Err(panicked())),
        });
        ended.collect()
    });
    let seen: Vec<_> = tasks
        .iter()
        .zip(&results)
        .map(|(task, found)| (task.about(), found))
        .collect();
    judge::links(config, &seen)
}

impl Task<'_> {
    fn about(&self) -> ProbedPair<'_> {
        ProbedPair {
            link: &self.link.name,
            server: self.server,
            remote: self.ends.1,
            mtu: self.mtu,
        }
    }

    fn open(&self, mark: u32) -> io::Result<Raw> {
        let interface = (self.link.interface.as_str(), self.exit.interface);
        Raw::open(interface, mark, self.ends.1.ip(), self.ends.0.port())
    }

    fn ips(&self) -> (IpAddr, IpAddr) {
        (self.ends.0.ip(), self.ends.1.ip())
    }

    fn ask(&self, mark: u32, stop: BorrowedFd<'_>) -> io::Result<Echoes> {
        let mut raw = self.open(mark)?;
        let [a, b] = random()?;
        let id = u16::from_be_bytes([a, b]);
        echo::ask(
            &mut raw,
            self.ips(),
            (self.ends.1.port(), id),
            self.mtu,
            stop,
        )
    }

    /// Opens a connection to the server as a box does, and reports how far it gets.
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
        let begun = Instant::now();
        let mut refused = None;
        loop {
            while let Some(packet) = trial.poll_transmit(clock.now()) {
                refused = raw.send(&packet).err().or(refused);
            }
            if trial.is_over() || begun.elapsed() >= MAX_TRIAL_TIME {
                break;
            }
            let due = trial
                .next_timeout()
                .map(|at| at.saturating_since(clock.now()));
            let until = Instant::now() + due.unwrap_or(MAX_TRIAL_TIME);
            match raw.receive(until.min(begun + MAX_TRIAL_TIME), stop)? {
                Received::Packet(packet) => trial.receive(clock.now(), packet),
                Received::Nothing => trial.handle_timeout(clock.now()),
                Received::Stop => break,
            }
        }
        trial.give_up(clock.now());
        while let Some(packet) = trial.poll_transmit(clock.now()) {
            // The server times out by itself if this packet is lost.
            let _ = raw.send(&packet);
        }
        let report = trial.report();
        match refused {
            Some(error) if report.opened.is_none() && report.end == TrialEnd::Pending => Err(error),
            _ => Ok(report),
        }
    }
}
