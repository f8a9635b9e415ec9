//! The engine as a peer of its own, without box and server: the other side of
//! [`crate::kernel_peer`] in interoperability tests and benchmarks. It takes the same arguments
//! and prints the same reports; its links and addresses come from a `box.toml` or `server.toml`,
//! and it sets them up as `braid box` and `braid server` do.

mod core;

use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use braid_engine::{Config, PathConfig, PathId, Stack};
use braid_linux::driver::{Clock, Context, Driver, Host};
use braid_linux::net::SystemError;
use braid_linux::net::links::{LinkSpec, Links, NextHop};
use braid_linux::net::sysctl::Sysctl;
use braid_linux::nft::{BoxRules, Mapping, Rules, ServerRules};
use braid_linux::run::{Device, Signals};
use braid_linux::sockets::Limits;
use braid_linux::tun::Tun;
use braid_proxy::config::{BoxConfig, Gateway, LinkConfig, ServerConfig};
use braid_wire::{Instant, Rng};
use serde::Serialize;

pub use core::Transfers;

use crate::cli::{EnginePeer, PeerArgs};
use crate::failure::Failure;
use crate::kernel_peer::{Cost, print_line};

/// How long the engine goes on after the last connection ended, to answer what the peer repeats.
const LINGER: Duration = Duration::from_millis(500);
/// MTU of paths where the interface does not tell.
const MTU: u16 = 1_500;

/// Runs one of the roles.
pub fn run(role: &EnginePeer) -> Result<(), Failure> {
    match role {
        EnginePeer::Connect {
            config,
            address,
            connections,
            peer,
        } => connect(&BoxConfig::load(config)?, *address, *connections, peer),
        EnginePeer::Listen {
            config,
            connections,
            peer,
        } => listen(&ServerConfig::load(config)?, *connections, peer),
    }
}

fn connect(
    config: &BoxConfig,
    address: SocketAddr,
    connections: u32,
    args: &PeerArgs,
) -> Result<(), Failure> {
    let signals = Signals::take_over()?;
    let (tun, mut device) = Device::open(&config.tun).map_err(failure)?;
    let specs = config
        .links
        .iter()
        .zip(0..)
        .map(|(link, n)| link_spec(config, link, n, address));
    let mut links = Links::new(device.identity(), specs.collect()).map_err(failure)?;
    let settings = settings(config.links.iter().map(|link| link.interface.as_str()));
    device
        .apply_settings(&settings, Rules::Tracking)
        .map_err(failure)?;
    let mut engine = config.engine();
    let mut tun = tun;
    device.adapt_engine(&mut engine, &mut tun, &config.tun, MTU);
    links.install().map_err(failure)?;
    let rules = BoxRules {
        lan: config.lan.clone(),
        links: config
            .links
            .iter()
            .map(|link| link.interface.clone())
            .collect(),
        tun: config.tun.name.clone(),
        // Nothing listens: nothing is taken in.
        intercept_port: 9,
        intercept_v6: false,
        bypass: Vec::new(),
        servers: vec![address],
        quic: config.quic,
    };
    device.apply_rules(Rules::Box(rules)).map_err(failure)?;

    let mut stack = stack(engine)?;
    let mut paths = Vec::new();
    for (link, n) in config.links.iter().zip(0..) {
        let (v4, v6) = (config.tun.path_v4(n), config.tun.path_v6(n));
        paths.push(stack.add_path(PathConfig {
            v4: address.is_ipv4().then_some(v4),
            v6: address.is_ipv6().then_some(v6),
            mtu: link.mtu.unwrap_or(MTU),
            backup: link.backup,
        }));
    }
    let clock = Clock::new();
    for (path, index) in paths.iter().zip(0..) {
        stack.set_path_up(clock.now(), *path, links.is_up(index));
    }
    let mut core = Transfers::new("connect", args.clone());
    for _ in 0..connections {
        core.connect(clock.now(), address, &mut stack)
            .map_err(|e| Failure::run(format_args!("cannot connect to {address}"), e))?;
    }
    let host = PeerHost {
        links,
        paths,
        wanted: connections as usize,
        end: None,
    };
    drive(
        Driver::new(clock, tun, stack, core, host, Limits::default()),
        signals.as_fd(),
    )
}

fn listen(config: &ServerConfig, connections: u32, args: &PeerArgs) -> Result<(), Failure> {
    let signals = Signals::take_over()?;
    let (mut tun, mut device) = Device::open(&config.tun).map_err(failure)?;
    device
        .apply_settings(&settings(std::iter::empty()), Rules::Nothing)
        .map_err(failure)?;
    let mut engine = config.engine();
    device.adapt_engine(&mut engine, &mut tun, &config.tun, MTU);
    let mut stack = stack(engine)?;
    let mut mappings = Vec::new();
    let mut paths = Vec::new();
    for (public, n) in config.endpoints().zip(0..) {
        let (v4, v6) = (config.tun.path_v4(n), config.tun.path_v6(n));
        let path = PathConfig {
            v4: public.is_ipv4().then_some(v4),
            v6: public.is_ipv6().then_some(v6),
            mtu: MTU,
            backup: false,
        };
        let path = stack.add_path(path);
        stack.set_path_up(Instant::ZERO, path, true);
        paths.push(path);
        let inner: IpAddr = if public.is_ipv4() {
            v4.into()
        } else {
            v6.into()
        };
        stack
            .listen(SocketAddr::new(inner, config.port))
            .map_err(|e| Failure::run(format_args!("cannot listen on {public}"), e))?;
        mappings.push(Mapping { public, inner });
    }
    let links = Links::new(device.identity(), Vec::new()).map_err(failure)?;
    let rules = ServerRules {
        tun: config.tun.name.clone(),
        mappings,
    };
    device.apply_rules(Rules::Server(rules)).map_err(failure)?;
    announce(config)?;
    let core = Transfers::new("listen", args.clone());
    let host = PeerHost {
        links,
        paths: Vec::new(),
        wanted: connections as usize,
        end: None,
    };
    drive(
        Driver::new(Clock::new(), tun, stack, core, host, Limits::default()),
        signals.as_fd(),
    )
}

type PeerDriver = Driver<Tun, Transfers, PeerHost>;

/// Runs to the end and prints the reports.
fn drive(
    driver: braid_linux::net::Result<PeerDriver>,
    stop: BorrowedFd<'_>,
) -> Result<(), Failure> {
    let mut driver = driver.map_err(failure)?;
    driver
        .run(stop, |driver| {
            driver
                .host
                .end
                .is_some_and(|end| end <= driver.clock().now())
        })
        .map_err(failure)?;
    for report in &driver.core.done {
        print_line(report)?;
    }
    print_line(&Cost::so_far()?)?;
    let complete = driver.core.done.len() == driver.host.wanted;
    if complete && driver.core.done.iter().all(|report| report.ok) {
        Ok(())
    } else {
        Err(Failure::Run("a transfer failed".to_owned()))
    }
}

/// The links, and the end of the run.
struct PeerHost {
    links: Links,
    paths: Vec<PathId>,
    /// Connections to serve.
    wanted: usize,
    end: Option<Instant>,
}

impl Host<Transfers> for PeerHost {
    fn sources(&self) -> Vec<(BorrowedFd<'_>, u32)> {
        vec![(self.links.fd(), 0)]
    }

    fn on_ready(&mut self, _: u32, context: &mut Context<'_, Transfers>) {
        if !self.links.has_news() {
            return;
        }
        match self.links.refresh() {
            Ok(changed) => {
                for index in changed
                    .into_iter()
                    .filter(|index| *index < self.paths.len())
                {
                    let up = self.links.is_up(index);
                    context
                        .stack
                        .set_path_up(context.now, self.paths[index], up);
                }
            }
            Err(error) => tracing::warn!(%error, "cannot read the links"),
        }
    }

    fn next_timeout(&self) -> Option<Instant> {
        self.end
    }

    fn after_turn(&mut self, context: &mut Context<'_, Transfers>) {
        if self.end.is_none() && context.core.done.len() >= self.wanted {
            self.end = Some(context.now + LINGER);
        }
    }
}

fn link_spec(config: &BoxConfig, link: &LinkConfig, n: u8, peer: SocketAddr) -> LinkSpec {
    let next_hop = |v6: bool| match link.gateway {
        _ if peer.is_ipv6() != v6 => NextHop::None,
        Gateway::Auto => NextHop::Auto,
        Gateway::Fixed { v4, .. } if !v6 => {
            v4.map_or(NextHop::None, |gateway| NextHop::Gateway(gateway.into()))
        }
        Gateway::Fixed { v6, .. } => {
            v6.map_or(NextHop::None, |gateway| NextHop::Gateway(gateway.into()))
        }
    };
    LinkSpec {
        interface: link.interface.clone(),
        v4: next_hop(false),
        v6: next_hop(true),
        sources: vec![config.tun.path_v4(n).into(), config.tun.path_v6(n).into()],
        targets: vec![peer.ip()],
        exclusive: true,
    }
}

fn settings<'a>(interfaces: impl Iterator<Item = &'a str>) -> Vec<Sysctl> {
    let mut settings = vec![
        Sysctl::new("net/ipv4/ip_forward", 1),
        Sysctl::new("net/ipv6/conf/all/forwarding", 1),
        Sysctl::new("net/netfilter/nf_conntrack_tcp_be_liberal", 1),
    ];
    for interface in interfaces {
        settings.push(Sysctl::new(
            format!("net/ipv4/conf/{interface}/rp_filter"),
            2,
        ));
    }
    settings
}

fn stack(config: Config) -> Result<Stack, Failure> {
    let mut seed = [0; 32];
    io::Read::read_exact(&mut fs::File::open("/dev/urandom")?, &mut seed)?;
    let strategy = || {
        braid_strategy::by_name(braid_strategy::DEFAULT)
            .expect("the default has a name that exists")
    };
    Ok(Stack::new(config, Rng::from_seed(seed), Box::new(strategy)))
}

/// Tells whoever started this process that it listens.
fn announce(config: &ServerConfig) -> io::Result<()> {
    #[derive(Serialize)]
    struct Listening {
        listening: Vec<SocketAddr>,
    }
    print_line(&Listening {
        listening: config.endpoints().collect(),
    })
}

fn failure(error: SystemError) -> Failure {
    Failure::Run(error.to_string())
}
