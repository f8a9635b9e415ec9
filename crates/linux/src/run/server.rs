//! The aggregation server.

use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};

use braid_engine::{PathConfig, Stack};
use braid_proxy::ServerCore;
use braid_proxy::config::ServerConfig;
use braid_wire::Instant;

use super::{
    Device, SETTLING_TIME, Signals, WALL_CLOCK_INTERVAL, path_settings, policy_factory,
    raise_descriptor_limit, since_epoch, system_rng,
};
use crate::driver::{Clock, Context, Driver, Host};
use crate::net::links::{LinkSpec, Links, NextHop};
use crate::net::sysctl::Sysctl;
use crate::net::{Result, SystemError};
use crate::nft::{Mapping, Rules, ServerRules};
use crate::sockets::Limits;

/// MTU towards boxes where the interface of the address is not there.
const DEFAULT_MTU: u16 = 1_500;

/// Runs the server until the process is asked to end. To be called before any thread is started.
///
/// # Errors
/// Where the system refuses what the server needs; everything is put back then.
pub fn run_server(config: &ServerConfig) -> Result<()> {
    let signals = Signals::take_over().map_err(SystemError::doing("take over signals"))?;
    run_server_until(config, signals.as_fd(), || {})
}

/// Runs the server until `stop` is readable; `started` is called once it works.
///
/// # Errors
/// As of [`run_server`].
pub fn run_server_until(
    config: &ServerConfig,
    stop: BorrowedFd<'_>,
    started: impl FnOnce(),
) -> Result<()> {
    raise_descriptor_limit(config.limits.connections);
    let (mut tun, mut device) = Device::open(&config.tun)?;
    let mut links = Links::new(&device.identity, link_specs(config)?)?;
    device.apply_settings(&settings(config, &links, device.v6), Rules::Nothing)?;

    let mtus: Vec<u16> = links
        .states()
        .iter()
        .map(|state| u16::try_from(state.mtu).unwrap_or(u16::MAX))
        .map(|mtu| if mtu == 0 { DEFAULT_MTU } else { mtu })
        .collect();
    let mut engine = config.engine();
    let smallest = mtus.iter().copied().min().unwrap_or(DEFAULT_MTU);
    device.adapt_engine(&mut engine, &mut tun, &config.tun, smallest);
    links.install()?;

    let mut stack = Stack::new(engine, system_rng()?, policy_factory(&config.strategy)?);
    add_paths(config, &mtus, &mut stack)?;
    let clock = Clock::new();
    let host = ServerHost {
        links,
        refresh_at: Some(Instant::ZERO),
        wall_clock_at: clock.now() + WALL_CLOCK_INTERVAL,
    };
    let mut core = ServerCore::new(config);
    core.set_wall_clock(clock.now(), since_epoch());
    let limits = Limits {
        streams: config.limits.connections,
        connect_timeout: config.timeouts.connect,
    };
    let mut driver = Driver::new(clock, tun, stack, core, host, limits)?;
    device.apply_rules(Rules::Server(server_rules(config)))?;
    tracing::info!(name = config.name, port = config.port, "server is up");
    started();
    let outcome = driver.run(stop, |_| false);
    tracing::info!(name = config.name, "server ends");
    outcome
}

/// What surrounds the core: this machine's addresses and the wall clock.
#[derive(Debug)]
struct ServerHost {
    links: Links,
    refresh_at: Option<Instant>,
    wall_clock_at: Instant,
}

impl ServerHost {
    fn refresh(&mut self, context: &mut Context<'_, ServerCore>) {
        let own = match self.links.refresh() {
            Ok(_) => self.links.netlink().addresses(),
            Err(error) => Err(std::io::Error::other(error.to_string())),
        };
        match own {
            Ok(own) => context
                .core
                .set_own_addresses(own.iter().map(|a| a.addr).collect()),
            Err(error) => {
                tracing::warn!(%error, "cannot read this machine's addresses; trying again");
                self.refresh_at = Some(context.now + WALL_CLOCK_INTERVAL);
            }
        }
    }
}

impl Host<ServerCore> for ServerHost {
    fn sources(&self) -> Vec<(BorrowedFd<'_>, u32)> {
        vec![(self.links.fd(), 0)]
    }

    fn on_ready(&mut self, _source: u32, context: &mut Context<'_, ServerCore>) {
        if self.links.has_news() && self.refresh_at.is_none() {
            self.refresh_at = Some(context.now + SETTLING_TIME);
        }
    }

    fn next_timeout(&self) -> Option<Instant> {
        let wall_clock = self.wall_clock_at;
        Some(self.refresh_at.map_or(wall_clock, |at| at.min(wall_clock)))
    }

    fn handle_timeout(&mut self, context: &mut Context<'_, ServerCore>) {
        if self.refresh_at.is_some_and(|at| at <= context.now) {
            self.refresh_at = None;
            self.refresh(context);
        }
        if self.wall_clock_at <= context.now {
            self.wall_clock_at = context.now + WALL_CLOCK_INTERVAL;
            context.core.set_wall_clock(context.now, since_epoch());
        }
    }
}

/// The address behind the TUN that stands for the listening address number `n`.
fn inner(config: &ServerConfig, n: u8) -> IpAddr {
    match config.listen[usize::from(n)] {
        IpAddr::V4(_) => config.tun.path_v4(n).into(),
        IpAddr::V6(_) => config.tun.path_v6(n).into(),
    }
}

fn numbered(config: &ServerConfig) -> impl Iterator<Item = (u8, IpAddr)> + '_ {
    (0..).zip(config.listen.iter().copied())
}

/// Answers leave by the interface that carries the address they come from.
fn link_specs(config: &ServerConfig) -> Result<Vec<LinkSpec>> {
    let doing = || SystemError::doing("read this machine's addresses");
    let mut netlink = crate::net::netlink::Netlink::open().map_err(doing())?;
    let addresses = netlink.addresses().map_err(doing())?;
    let interfaces = netlink.interfaces().map_err(doing())?;
    let spec = |(n, listen): (u8, IpAddr)| {
        let carrier = addresses.iter().find(|a| a.addr == listen);
        let found = carrier.and_then(|a| interfaces.iter().find(|i| i.index == a.interface));
        if found.is_none() {
            tracing::warn!(address = %listen, "no interface carries this address");
        }
        let family = |v6: bool| {
            if listen.is_ipv6() == v6 {
                NextHop::Auto
            } else {
                NextHop::None
            }
        };
        LinkSpec {
            interface: found.map(|i| i.name.clone()).unwrap_or_default(),
            v4: family(false),
            v6: family(true),
            sources: vec![inner(config, n)],
            targets: Vec::new(),
            exclusive: false,
        }
    };
    Ok(numbered(config).map(spec).collect())
}

fn settings(config: &ServerConfig, links: &Links, v6: bool) -> Vec<Sysctl> {
    let mut settings = Vec::new();
    if v6 && config.listen.iter().any(IpAddr::is_ipv6) {
        settings.push(Sysctl::new("net/ipv6/conf/all/forwarding", 1));
    }
    for interface in links.interfaces() {
        for setting in path_settings(interface, v6) {
            if !settings.contains(&setting) {
                settings.push(setting);
            }
        }
    }
    settings
}

fn add_paths(config: &ServerConfig, mtus: &[u16], stack: &mut Stack) -> Result<()> {
    for (n, _) in numbered(config) {
        let addr = inner(config, n);
        let (v4, v6) = match addr {
            IpAddr::V4(a) => (Some(a), None),
            IpAddr::V6(a) => (None, Some(a)),
        };
        let path = stack.add_path(PathConfig {
            v4,
            v6,
            mtu: mtus[usize::from(n)],
            backup: false,
        });
        stack.set_path_up(Instant::ZERO, path, true);
        stack
            .listen((addr, config.port).into())
            .map_err(|error| SystemError::other(format!("listen on {addr}"), error.to_string()))?;
    }
    Ok(())
}

fn server_rules(config: &ServerConfig) -> ServerRules {
    let mapping = |(n, listen): (u8, IpAddr)| Mapping {
        public: (listen, config.port).into(),
        inner: inner(config, n),
    };
    ServerRules {
        tun: config.tun.name.clone(),
        mappings: numbered(config).map(mapping).collect(),
    }
}
