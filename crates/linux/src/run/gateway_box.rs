//! The aggregation box.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};

use braid_engine::{PathId, Stack};
use braid_proxy::config::{BoxConfig, Cidr, Gateway, LinkConfig};
use braid_proxy::{BoxCore, LinkAddresses, Notice};
use braid_wire::Instant;

use super::{
    Device, SETTLING_TIME, Signals, WALL_CLOCK_INTERVAL, path_settings, policy_factory,
    raise_descriptor_limit, since_epoch, system_rng,
};
use crate::driver::{Clock, Context, Driver, Host};
use crate::net::links::{LinkSpec, LinkState, Links, NextHop};
use crate::net::sysctl::Sysctl;
use crate::net::{Result, SystemError};
use crate::nft::{BoxRules, Rules};
use crate::sockets::Limits;
use crate::tun::Tun;

/// Never intercepted, whatever the configuration says: this host, the link, multicast.
const NEVER_INTERCEPTED: [&str; 6] = [
    "0.0.0.0/8",
    "127.0.0.0/8",
    "169.254.0.0/16",
    "224.0.0.0/4",
    "fe80::/10",
    "ff00::/8",
];
/// MTU of a link that is not there yet and for which none is configured.
const DEFAULT_MTU: u16 = 1_500;

/// Runs the box until the process is asked to end. To be called before any thread is started.
///
/// # Errors
/// Where the system refuses what the box needs; everything is put back then.
pub fn run_box(config: &BoxConfig) -> Result<()> {
    let signals = Signals::take_over().map_err(SystemError::doing("take over signals"))?;
    run_box_until(config, signals.as_fd(), || {})
}

/// Runs the box until `stop` is readable; `started` is called once it works.
///
/// # Errors
/// As of [`run_box`].
pub fn run_box_until(
    config: &BoxConfig,
    stop: BorrowedFd<'_>,
    started: impl FnOnce(),
) -> Result<()> {
    raise_descriptor_limit(config.limits.connections);
    let (mut tun, mut device) = Device::open(&config.tun)?;
    let mut links = Links::new(&device.identity, link_specs(config, device.v6))?;
    let mtus: Vec<u16> = config
        .links
        .iter()
        .zip(links.states())
        .map(|(link, state)| mtu(link, state))
        .collect();
    device.apply_rules(Rules::Tracking)?;
    let settings = settings(config, device.v6);
    device.apply_settings(&settings, Rules::Tracking)?;

    let mut engine = config.engine();
    let smallest = mtus.iter().copied().min().unwrap_or(DEFAULT_MTU);
    device.adapt_engine(&mut engine, &mut tun, &config.tun, smallest);
    links.install()?;
    links.install_forwarding(&config.lan)?;
    links.install_interception()?;

    let addresses = path_addresses(config, &device, &links, &mtus);
    let mut driver = assemble(config, engine, tun, links, &settings)?;
    driver.start(&addresses);
    let intercept_v6 = device.v6;
    let port = driver.inner.sockets.reserve_intake(intercept_v6)?;
    let rules = box_rules(config, device.identity.tun(), port, intercept_v6)?;
    device.apply_rules(Rules::Box(rules))?;
    tracing::info!(name = config.name, links = config.links.len(), "box is up");
    started();
    let outcome = driver.inner.run(stop, |_| false);
    tracing::info!(name = config.name, "box ends");
    outcome
}

struct Assembled {
    inner: Driver<Tun, BoxCore, BoxHost>,
}

fn assemble(
    config: &BoxConfig,
    engine: braid_engine::Config,
    tun: Tun,
    links: Links,
    settings: &[Sysctl],
) -> Result<Assembled> {
    let clock = Clock::new();
    let (stack_rng, core_rng) = (system_rng()?, system_rng()?);
    let stack = Stack::new(engine, stack_rng, policy_factory(&config.strategy)?);
    let core = BoxCore::new(config, core_rng, policy_factory(&config.strategy)?);
    let host = BoxHost {
        links,
        settings: settings.to_vec(),
        paths: Vec::new(),
        refresh_at: None,
        wall_clock_at: Instant::ZERO,
    };
    let limits = Limits {
        streams: config.limits.connections,
        ..Limits::default()
    };
    let inner = Driver::new(clock, tun, stack, core, host, limits)?;
    Ok(Assembled { inner })
}

impl Assembled {
    /// Tells the core of the time and the links.
    fn start(&mut self, addresses: &[LinkAddresses]) {
        let driver = &mut self.inner;
        let now = driver.clock().now();
        driver.core.set_wall_clock(now, since_epoch());
        driver.host.wall_clock_at = now + WALL_CLOCK_INTERVAL;
        for (index, addresses) in addresses.iter().enumerate() {
            let path = driver
                .core
                .add_link(now, index, *addresses, &mut driver.stack);
            driver.host.paths.push(path);
            let up = driver.host.links.is_up(index);
            driver.core.set_link_up(now, path, up, &mut driver.stack);
        }
        driver.host.keep_forwarding();
    }
}

/// What surrounds the core: the links and the wall clock.
#[derive(Debug)]
struct BoxHost {
    links: Links,
    /// For interfaces that come back as new ones.
    settings: Vec<Sysctl>,
    paths: Vec<PathId>,
    refresh_at: Option<Instant>,
    wall_clock_at: Instant,
}

impl BoxHost {
    fn refresh(&mut self, context: &mut Context<'_, BoxCore>) {
        let changed = match self.links.refresh() {
            Ok(changed) => changed,
            Err(error) => {
                tracing::warn!(%error, "trying again");
                self.refresh_at = Some(context.now + WALL_CLOCK_INTERVAL);
                return;
            }
        };
        if changed.is_empty() {
            return;
        }
        for setting in &self.settings {
            // Fails for interfaces that are gone.
            let _ = setting.apply();
        }
        for index in changed {
            let (state, up) = (&self.links.states()[index], self.links.is_up(index));
            tracing::info!(link = index, up, running = state.running, "link changed");
            let path = self.paths[index];
            context
                .core
                .set_link_up(context.now, path, up, context.stack);
        }
        self.keep_forwarding();
    }

    /// Where the link that everything is forwarded over cannot be used, takes the first that can:
    /// the core finds out later than this host that an interface is down.
    fn keep_forwarding(&mut self) {
        let current = self.links.forwarding().filter(|i| self.links.is_up(*i));
        let first = || (0..self.paths.len()).find(|i| self.links.is_up(*i));
        if let Some(index) = current.or_else(first) {
            self.links.forward_over(index);
        }
    }
}

impl Host<BoxCore> for BoxHost {
    fn sources(&self) -> Vec<(BorrowedFd<'_>, u32)> {
        vec![(self.links.fd(), 0)]
    }

    fn on_ready(&mut self, _source: u32, context: &mut Context<'_, BoxCore>) {
        if self.links.has_news() && self.refresh_at.is_none() {
            self.refresh_at = Some(context.now + SETTLING_TIME);
        }
    }

    fn next_timeout(&self) -> Option<Instant> {
        let wall_clock = self.wall_clock_at;
        Some(self.refresh_at.map_or(wall_clock, |at| at.min(wall_clock)))
    }

    fn handle_timeout(&mut self, context: &mut Context<'_, BoxCore>) {
        if self.refresh_at.is_some_and(|at| at <= context.now) {
            self.refresh_at = None;
            self.refresh(context);
        }
        if self.wall_clock_at <= context.now {
            self.wall_clock_at = context.now + WALL_CLOCK_INTERVAL;
            context.core.set_wall_clock(context.now, since_epoch());
        }
    }

    fn after_turn(&mut self, context: &mut Context<'_, BoxCore>) {
        while let Some(notice) = context.core.poll_notice() {
            match notice {
                Notice::BestPath(Some(path)) => {
                    if let Some(index) = self.paths.iter().position(|p| *p == path) {
                        tracing::info!(link = index, "forwarding over this link");
                        self.links.forward_over(index);
                    }
                }
                Notice::BestPath(None) => {}
                Notice::Intake(open) => {
                    tracing::info!(open, "intake of connections");
                    if let Err(error) = context.sockets.set_intake(open) {
                        tracing::error!(%error, "connections are forwarded unjoined");
                    }
                }
            }
        }
    }
}

fn link_specs(config: &BoxConfig, v6: bool) -> Vec<LinkSpec> {
    let targets: Vec<IpAddr> = servers(config).iter().map(SocketAddr::ip).collect();
    let spec = |(link, n): (&LinkConfig, u8)| {
        let next_hop = |wanted: bool, fixed: Option<IpAddr>| match (wanted, link.gateway) {
            (false, _) => NextHop::None,
            (true, Gateway::Auto) => NextHop::Auto,
            (true, Gateway::Fixed { .. }) => fixed.map_or(NextHop::None, NextHop::Gateway),
        };
        let (fixed_v4, fixed_v6) = match link.gateway {
            Gateway::Auto => (None, None),
            Gateway::Fixed { v4, v6 } => (v4.map(IpAddr::from), v6.map(IpAddr::from)),
        };
        let mut sources = vec![IpAddr::from(config.tun.path_v4(n))];
        if v6 {
            sources.push(config.tun.path_v6(n).into());
        }
        LinkSpec {
            interface: link.interface.clone(),
            v4: next_hop(link.v4, fixed_v4),
            v6: next_hop(link.v6 && v6, fixed_v6),
            sources,
            targets: targets.clone(),
            exclusive: true,
        }
    };
    config.links.iter().zip(0..).map(spec).collect()
}

fn servers(config: &BoxConfig) -> Vec<SocketAddr> {
    let endpoints = config.servers.iter();
    endpoints
        .flat_map(|s| [s.endpoint_v4(), s.endpoint_v6()])
        .flatten()
        .collect()
}

fn mtu(link: &LinkConfig, state: &LinkState) -> u16 {
    let found = u16::try_from(state.mtu).unwrap_or(u16::MAX);
    link.mtu
        .unwrap_or(if found == 0 { DEFAULT_MTU } else { found })
}

/// A link gets an address in each family that it has now, or may have once it is there.
fn path_addresses(
    config: &BoxConfig,
    device: &Device,
    links: &Links,
    mtus: &[u16],
) -> Vec<LinkAddresses> {
    let all = config.links.iter().zip(links.states()).zip(mtus).zip(0..);
    let addresses = all.map(|(((link, state), mtu), n)| {
        let unknown = state.addresses.is_empty();
        let has = |v6: bool| unknown || (state.has_family(v6) && leads_out(config, state, v6));
        LinkAddresses {
            v4: (link.v4 && has(false)).then(|| config.tun.path_v4(n)),
            v6: (link.v6 && device.v6 && has(true)).then(|| config.tun.path_v6(n)),
            mtu: *mtu,
        }
    });
    addresses.collect()
}

/// IPv6 addresses without a way out are common; a path that has one would be tried in vain.
fn leads_out(config: &BoxConfig, state: &LinkState, v6: bool) -> bool {
    let servers = servers(config);
    let mut targets = servers
        .iter()
        .map(SocketAddr::ip)
        .filter(|t| t.is_ipv6() == v6);
    !v6 || state.exit(v6).is_some() || targets.any(|t| state.is_on_link(t))
}

fn settings(config: &BoxConfig, v6: bool) -> Vec<Sysctl> {
    let mut settings = Vec::new();
    if v6 {
        settings.push(Sysctl::new("net/ipv6/conf/all/forwarding", 1));
    }
    for interface in &config.lan {
        settings.push(Sysctl::new(
            format!("net/ipv4/conf/{interface}/forwarding"),
            1,
        ));
    }
    for link in &config.links {
        settings.extend(path_settings(&link.interface, v6));
    }
    // The window of a subflow is the connection's (RFC 8684 section 3.3.1), so its packets may
    // lie outside what connection tracking takes for the window.
    settings.push(Sysctl::new("net/netfilter/nf_conntrack_tcp_be_liberal", 1));
    settings
}

fn box_rules(config: &BoxConfig, tun: &str, port: u16, v6: bool) -> Result<BoxRules> {
    let mut bypass = config.bypass.clone();
    for network in NEVER_INTERCEPTED {
        bypass.extend(network.parse::<Cidr>());
    }
    let servers = servers(config);
    for server in &servers {
        let bits = crate::net::routes::full_prefix(server.ip());
        bypass.extend(Cidr::new(server.ip(), bits));
    }
    Ok(BoxRules {
        lan: config.lan.clone(),
        links: config.links.iter().map(|l| l.interface.clone()).collect(),
        tun: tun.to_owned(),
        intercept_port: port,
        intercept_v6: v6,
        bypass,
        servers,
        quic: config.quic,
    })
}
