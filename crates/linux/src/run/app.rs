//! Runs applications that use the engine without a proxy, as tests and benchmarks do.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::BorrowedFd;

use braid_engine::{Config, PathConfig, PathId, Stack};
use braid_proxy::app::Core;
use braid_proxy::config::{LinkConfig, MptcpHosts, Quic, TunConfig};
use braid_wire::Instant;
use ipnet::{Ipv4Net, Ipv6Net};

use super::guard::Guard;
use super::ingress::Ingress;
use super::process::{DEBOUNCE_TIME, new_stack};
use super::uplinks::{Uplinks, in_use};
use crate::driver::{Clock, Context, Counters, Driver, Host};
use crate::net::links::Links;
use crate::net::{Result, SystemError};
use crate::sockets::Limits;
use crate::tun::Tun;

/// The role of an application in opening connections.
#[derive(Debug, Clone)]
pub enum Role {
    /// Connects to servers over access links.
    Connect {
        /// Links, in order of preference.
        links: Vec<LinkConfig>,
        /// Servers.
        servers: Vec<SocketAddr>,
    },
    /// Accepts connections at addresses of this machine.
    Listen {
        /// Addresses.
        addresses: Vec<IpAddr>,
        /// TCP port.
        port: u16,
        /// True if peers may reach an address by any interface. The main routing table then routes the answers.
        /// Otherwise each answer leaves by the interface that has the address.
        anywhere: bool,
        /// True if peers are told of the addresses that they did not connect to.
        announce: bool,
    },
}

/// Settings of an application.
#[derive(Debug, Clone)]
pub struct AppConfig {
    /// TUN device and its addresses.
    pub tun: TunConfig,
    /// Settings of the engine, which are adapted to the device.
    pub engine: Config,
    /// Name of the strategy of accepted connections.
    pub strategy: String,
    /// The role in opening connections.
    pub role: Role,
}

impl AppConfig {
    /// Returns settings with the default strategy. The device is `braid-connect` or `braid-listen`, by the role. It
    /// has addresses of its own, so that an application runs beside a box, a server, and an application of the other
    /// role. Two applications of one role on one host need different devices and addresses: change
    /// [`tun`](Self::tun).
    pub fn new(role: Role) -> Self {
        // The defaults of a box are 10.215.77.0/24 and fdb7:a1d0:77::/64, those of a server 78 in both places.
        let (name, v4, v6) = match role {
            Role::Connect { .. } => ("braid-connect", 79, 0x79),
            Role::Listen { .. } => ("braid-listen", 80, 0x80),
        };
        AppConfig {
            tun: TunConfig {
                name: name.to_owned(),
                v4: Ipv4Net::new_assert(Ipv4Addr::new(10, 215, v4, 0), 24),
                v6: Ipv6Net::new_assert(Ipv6Addr::new(0xfdb7, 0xa1d0, v6, 0, 0, 0, 0, 0), 64),
            },
            engine: Config::default(),
            strategy: braid_strategy::DEFAULT.to_owned(),
            role,
        }
    }
}

/// Runs an application until `stop` is readable, or until `finished` returns true after a turn of the loop.
/// `start` creates the application once the paths are set up. Returns the application and the counters of the
/// device.
///
/// # Errors
/// Fails if the kernel refuses something that the paths need. Everything that was created or changed until then
/// is removed or restored.
pub fn run_app<C: Core>(
    config: &AppConfig,
    start: impl FnOnce(Instant, &mut Stack) -> C,
    stop: BorrowedFd<'_>,
    mut finished: impl FnMut(Instant, &mut C, &mut Stack) -> bool,
) -> Result<(C, Counters)> {
    let mut driver = start_app(config, |now, stack| Ok(start(now, stack)))?;
    driver.run(stop, |driver| {
        let now = driver.clock().now();
        finished(now, &mut driver.core, &mut driver.stack)
    })?;
    let counters = driver.counters();
    Ok((driver.core, counters))
}

/// Sets up the paths and returns the application, created by `start`, on a driver. If the driver is dropped,
/// everything that was created or changed is removed or restored.
pub(crate) fn start_app<C: Core>(
    config: &AppConfig,
    start: impl FnOnce(Instant, &mut Stack) -> Result<C>,
) -> Result<Driver<Tun, C, AppHost>> {
    let clock = Clock::new();
    let mut engine = config.engine.clone();
    let (tun, guard, mut stack, links) = match &config.role {
        Role::Connect { links, servers } => set_up_connect(config, links, servers, &mut engine)?,
        Role::Listen {
            addresses,
            port,
            anywhere,
            announce,
        } => {
            let mut ingress = Ingress {
                tun: &config.tun,
                listen: addresses,
                port: *port,
                anywhere: *anywhere,
                announce: *announce,
                tunnel: None,
            };
            let mut paths = ingress.set_up(&mut engine)?;
            let mut stack = new_stack(engine, &config.strategy)?;
            paths.listen(*port, &mut stack)?;
            paths.guard.apply_rules(ingress.rules())?;
            (paths.tun, paths.guard, stack, None)
        }
    };
    let core = start(clock.now(), &mut stack)?;
    let host = AppHost {
        links,
        refresh_at: None,
        _guard: guard,
    };
    Driver::new(clock, tun, stack, core, host, Limits::default())
}

type Connected = (Tun, Guard, Stack, Option<Links>);

/// Sets up the paths of an application that connects.
fn set_up_connect(
    config: &AppConfig,
    links: &[LinkConfig],
    servers: &[SocketAddr],
    engine: &mut Config,
) -> Result<Connected> {
    let links_by_place: Vec<_> = links.iter().cloned().map(Some).collect();
    let uplinks = Uplinks {
        tun: &config.tun,
        links: &links_by_place,
        lan: &[],
        servers: servers.to_vec(),
        private: &[],
        shortcut: true,
        tunnel: false,
    };
    let mut paths = uplinks.set_up(engine)?;
    let mut stack = new_stack(engine.clone(), &config.strategy)?;
    for (index, (link, addresses)) in links.iter().zip(&paths.addresses).enumerate() {
        let addresses = in_use(*addresses, &paths.links, index);
        let path = stack.add_path(PathConfig {
            v4: addresses.v4,
            v6: addresses.v6,
            mtu: addresses.mtu,
            backup: link.backup,
            ..PathConfig::default()
        });
        let action = format!("add the link {}", link.name);
        let path = path.map_err(|e| SystemError::other(action, e.to_string()))?;
        stack.set_path_up(Instant::ZERO, path, paths.links.is_up(index));
    }
    let treatments = (Quic::Forward, MptcpHosts::Forward);
    let v6 = paths.guard.device().has_v6();
    let rules = uplinks.rules(v6, 0, paths.ports, Vec::new(), treatments);
    paths.guard.apply_rules(rules)?;
    Ok((paths.tun, paths.guard, stack, Some(paths.links)))
}

/// The machine around an application. It tells the engine about changes of the links.
#[derive(Debug)]
pub struct AppHost {
    /// The links of an application that connects.
    links: Option<Links>,
    /// Time of the next refresh of the links, after a notification.
    refresh_at: Option<Instant>,
    /// The rules. They are dropped after the links, which release the shortcut before the rules are removed.
    _guard: Guard,
}

impl<C: Core> Host<C> for AppHost {
    fn sources(&self) -> Vec<(BorrowedFd<'_>, u32)> {
        self.links.iter().map(|links| (links.fd(), 0)).collect()
    }

    fn on_ready(&mut self, _source: u32, context: &mut Context<'_, C>) {
        let news = self.links.as_mut().is_some_and(Links::has_news);
        if news && self.refresh_at.is_none() {
            self.refresh_at = Some(context.now + DEBOUNCE_TIME);
        }
    }

    fn next_timeout(&self) -> Option<Instant> {
        self.refresh_at
    }

    fn handle_timeout(&mut self, context: &mut Context<'_, C>) {
        self.refresh_at = None;
        let Some(links) = &mut self.links else {
            return;
        };
        match links.refresh(true) {
            Ok(changed) => {
                for (index, readdressed) in changed {
                    let path = PathId(u8::try_from(index).unwrap_or(u8::MAX));
                    let up = links.is_up(index);
                    context.stack.set_path_up(context.now, path, up);
                    if readdressed {
                        context.stack.revalidate_path(context.now, path);
                    }
                }
            }
            Err(error) => {
                tracing::warn!(%error, "cannot read the state of the links; the last known state stays")
            }
        }
    }
}
