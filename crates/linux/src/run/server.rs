//! Runs the aggregation server: sets it up, and connects its core to the addresses and the clock of this machine.

use std::net::IpAddr;
use std::os::fd::BorrowedFd;

use braid_proxy::app::Ctx;
use braid_proxy::config::ServerConfig;
use braid_proxy::{Routes, ServerCore};
use braid_wire::Instant;
use ipnet::IpNet;

use super::Privileges;
use super::confine::{self, Files};
use super::guard::Guard;
use super::ingress::{Forwarding, Ingress, IngressPaths};
use super::memory_releaser::MemoryReleaser;
use super::process::{
    CONTROL_TOKEN, DEBOUNCE_TIME, HANGUP_TOKEN, LINKS_TOKEN, RELOADED_TOKEN, WALL_CLOCK_INTERVAL,
    directory_of, new_stack, open_control, raise_descriptor_limit, serve, since_epoch,
};
use super::reload::{self, Reload, Reloader};
use crate::control::ControlSocket;
use crate::driver::{Clock, Context, Driver, Host};
use crate::net::internet;
use crate::net::links::Links;
use crate::net::{Result, SystemError};
use crate::sockets::Limits;
use crate::tun::{PacketTun, Tun};

/// Runs the server until `stop` is readable. Calls `started` once the server works. Reads the input at `stop`,
/// so that a second signal can be told from the first. The caller must not read from `stop` meanwhile.
///
/// # Errors
/// Fails if the kernel refuses something that the server needs, such as the TUN device or its rules. Everything
/// that was created or changed until then is removed or restored.
pub fn run_server(
    config: &ServerConfig,
    reload: Option<Reload<'_>>,
    privileges: Privileges,
    stop: BorrowedFd<'_>,
    started: impl FnOnce(),
) -> Result<()> {
    let streams = raise_descriptor_limit(config.limits.connections());
    let mut ingress = Ingress {
        tun: &config.tun,
        listen: &config.listen,
        port: config.port,
        anywhere: false,
        announce: config.announce,
        tunnel: config.tunnel,
    };
    let mut engine = config.engine();
    let paths = ingress.set_up(&mut engine)?;
    let mut stack = new_stack(engine, &config.strategy)?;
    paths.listen(config.port, &mut stack)?;
    let IngressPaths {
        tun,
        packet_device,
        forwarding,
        guard,
        links,
        ..
    } = paths;

    let clock = Clock::new();
    let names = guard.device().instance_names();
    let default_control = names.control_socket("server");
    let control = open_control(config.control.as_deref(), "server", names);
    let host = ServerHost {
        control,
        reload: reload
            .map(|r| Reloader::new(r, config.clone(), default_control))
            .transpose()?,
        links,
        guard,
        forwarding,
        refresh_at: Some(Instant::ZERO),
        wall_clock_at: clock.now() + WALL_CLOCK_INTERVAL,
        known_routes: [None, None],
        memory_releaser: MemoryReleaser::default(),
    };
    let mut core = ServerCore::new(config);
    core.set_wall_clock(clock.now(), since_epoch());
    core.set_max_streams(streams);
    let limits = Limits {
        streams,
        connect_timeout: config.timeouts.connect,
    };
    let mut driver = Driver::new(clock, tun, stack, core, host, limits)?;
    open_tunnel(&mut driver, &ingress, packet_device);
    driver.host.guard.apply_rules(ingress.rules())?;
    let confined = confine::give_up(privileges, &driver.host.files(config))?;
    driver.host.start_threads()?;
    tracing::info!(name = config.name, port = config.port, "the server is up");
    if config.unprotected {
        tracing::warn!(
            "unprotected = true: this server also accepts plaintext connections, which anybody on \
                        the path can read and change"
        );
    }
    started();
    let outcome = serve(&mut driver, &config.name, stop);
    // Dropping the driver removes everything that it created in the kernel. `confined` is dropped after the
    // driver, since the removal needs the files that `confined` keeps open.
    drop((driver, confined));
    outcome
}

/// Lets the core grant tunnels, if it has a packet device and sockets for them. Without a socket, because another program
/// has the port, the server serves connections only.
fn open_tunnel(
    driver: &mut Driver<Tun, ServerCore, ServerHost<'_>>,
    ingress: &Ingress<'_>,
    packet_device: Option<Result<PacketTun>>,
) {
    let Some(packet_device) = packet_device else {
        return;
    };
    let has_device = packet_device.and_then(|device| driver.tunnel.set_device(device));
    match has_device.and_then(|()| ingress.open_sockets(&mut driver.tunnel)) {
        Ok(()) => driver.core.enable_tunnel(),
        Err(error) => {
            tracing::error!(
                %error,
                "boxes get no tunnel: they forward all traffic other than TCP over one link, unprotected"
            );
            driver.core.set_tunnel_fault(error.to_string());
        }
    }
}

/// The machine around the core of a server: its addresses and routes, the wall clock and the configuration.
#[derive(Debug)]
struct ServerHost<'a> {
    control: Option<ControlSocket>,
    reload: Option<Reloader<'a, ServerConfig>>,
    // Fields are dropped in their order. The guard comes after the links, since its device removes all rules
    // when it is dropped.
    links: Links,
    guard: Guard,
    /// The interfaces that pass packets of the tunnel, if there is one.
    forwarding: Option<Forwarding>,
    /// Time of the next refresh of addresses and rules, if a notification or failure calls for one.
    refresh_at: Option<Instant>,
    /// Time at which the core next gets the wall clock's time.
    wall_clock_at: Instant,
    /// The routes to IPv4 and to IPv6 destinations at the last refresh.
    known_routes: [Option<KnownRoutes>; 2],
    memory_releaser: MemoryReleaser,
}

/// Routes to destinations of one address family.
#[derive(Debug, PartialEq, Eq)]
struct KnownRoutes {
    /// True if there is a route to the Internet.
    to_internet: bool,
    /// True if this machine has an address to which destinations can answer.
    has_address: bool,
    /// Networks to which the main table has routes.
    networks: Vec<IpNet>,
}

impl ServerHost<'_> {
    /// Returns the files that the server needs later: configuration and key, which are read again, the resolver's
    /// files, and the directory of the control socket, which is removed at the end.
    fn files(&self, config: &ServerConfig) -> Files {
        let reloader = self.reload.iter().map(|reloader| reloader.file);
        let directories = reloader
            .chain(config.key_file.as_deref())
            .flat_map(confine::directories_around);
        let control = self.control.iter();
        Files {
            read: directories.chain(confine::resolver_files()).collect(),
            remove: control.map(|c| directory_of(c.path())).collect(),
            own: Vec::new(),
        }
    }

    /// Starts the threads. Must be called after privileges were given up: a thread keeps the privileges that it
    /// has from its parent.
    fn start_threads(&mut self) -> Result<()> {
        let cannot = || SystemError::cannot("start a thread");
        if let Some(control) = &mut self.control {
            control.start().map_err(cannot())?;
        }
        if let Some(reloader) = &mut self.reload {
            reloader.start().map_err(cannot())?;
        }
        Ok(())
    }

    /// Tells the core if the routes to destinations have changed. A family may have no route to the Internet
    /// although this machine has an address of the family. Then some destinations in local networks may still be
    /// reached, and only connection attempts show which.
    fn follow_routes(&mut self, core: &mut ServerCore) {
        let own = self.guard.device().instance_names().devices();
        let own = self
            .links
            .interfaces()
            .iter()
            .filter(|i| own.contains(&i.name));
        let own: Vec<u32> = own.map(|i| i.index).collect();
        // Without another address the kernel would choose an address of an own device as the source. No
        // destination can answer to this address, so it does not count.
        let addresses = self.links.addresses().iter();
        let addresses = addresses.filter(|a| !own.contains(&a.interface) && !a.addr.is_loopback());
        let addresses: Vec<IpAddr> = addresses.map(|a| a.addr).collect();
        for (v6, before) in [false, true].into_iter().zip(&mut self.known_routes) {
            let networks = self.links.reached().iter();
            let of_family = |network: &&IpNet| network.addr().is_ipv6() == v6;
            let source = internet::source_towards(v6);
            let now = KnownRoutes {
                to_internet: source.is_some_and(|source| addresses.contains(&source)),
                has_address: addresses.iter().any(|a| a.is_ipv6() == v6),
                networks: networks.filter(of_family).copied().collect(),
            };
            if before.as_ref() != Some(&now) {
                let routes = match (now.to_internet, now.has_address) {
                    (true, _) => Routes::Internet,
                    (false, true) => Routes::Networks,
                    (false, false) => Routes::Nowhere,
                };
                core.set_routes(v6, routes);
                *before = Some(now);
            }
        }
    }

    /// Lets interfaces pass packets of the tunnel that have got an address.
    fn follow_interfaces(&mut self) {
        let (interfaces, addresses) = (self.links.interfaces(), self.links.addresses());
        let forwarding = self.forwarding.as_mut();
        let settings = forwarding.and_then(|f| f.extend(interfaces, addresses));
        if let Some(settings) = settings
            && let Err(error) = self.guard.change_settings(settings)
        {
            tracing::warn!(%error, "cannot change the settings of an interface that has got an address: answers to \
                                    packets of tunnels that come in by it are lost");
        }
    }

    /// Reads this machine's addresses and routes again, restores missing rules, and tells the core of changes.
    fn refresh(&mut self, context: &mut Context<'_, ServerCore>) {
        match self.guard.refresh(context.now, &mut self.links) {
            Ok(_) => {
                let own = self.links.addresses().iter().map(|a| a.addr);
                context.core.set_own_addresses(own.collect());
                self.follow_routes(context.core);
                self.follow_interfaces();
            }
            Err(error) => {
                tracing::warn!(%error, "cannot read this machine's addresses; the next attempt follows");
                self.refresh_at = Some(context.now + WALL_CLOCK_INTERVAL);
            }
        }
    }
}

impl Host<ServerCore> for ServerHost<'_> {
    fn sources(&self) -> Vec<(BorrowedFd<'_>, u32)> {
        let control = self.control.as_ref().map(|c| (c.fd(), CONTROL_TOKEN));
        let reloader = self.reload.iter();
        let reloader =
            reloader.flat_map(|a| [(a.signal(), HANGUP_TOKEN), (a.fd(), RELOADED_TOKEN)]);
        control
            .into_iter()
            .chain([
                (self.links.fd(), LINKS_TOKEN),
                (self.guard.fd(), LINKS_TOKEN),
            ])
            .chain(reloader)
            .collect()
    }

    fn on_ready(&mut self, source: u32, context: &mut Context<'_, ServerCore>) {
        match (source, &self.control, &self.reload) {
            (CONTROL_TOKEN, Some(control), reloader) => {
                let reload_requests = reloader.as_ref().map(|reloader| &reloader.reload_requests);
                return control.serve(context.now, context.core, context.stack, reload_requests);
            }
            (HANGUP_TOKEN, _, Some(reloader)) => return reloader.on_signal(),
            (RELOADED_TOKEN, _, Some(_)) => return self.apply_reloads(context),
            _ => {}
        }
        let news = self.links.has_news() | self.guard.has_news();
        if news && self.refresh_at.is_none() {
            self.refresh_at = Some(context.now + DEBOUNCE_TIME);
        }
    }

    fn next_timeout(&self) -> Option<Instant> {
        let regular = self.wall_clock_at.min(self.guard.next_timeout());
        Some(self.refresh_at.map_or(regular, |at| at.min(regular)))
    }

    fn handle_timeout(&mut self, context: &mut Context<'_, ServerCore>) {
        let guard_is_due = self.guard.next_timeout() <= context.now;
        if guard_is_due || self.refresh_at.is_some_and(|at| at <= context.now) {
            self.refresh_at = None;
            self.refresh(context);
            if let Some(rules) = self.guard.poll_status() {
                context.core.set_rules(rules);
            }
        }
        if self.wall_clock_at <= context.now {
            self.wall_clock_at = context.now + WALL_CLOCK_INTERVAL;
            context.core.set_wall_clock(context.now, since_epoch());
        }
    }

    fn after_turn(&mut self, context: &mut Context<'_, ServerCore>) {
        self.memory_releaser.update(context.stack.connections());
    }
}

impl ServerHost<'_> {
    /// Applies each configuration that the reloader's thread has read meanwhile, and answers the client that asked for
    /// the reload.
    fn apply_reloads(&mut self, context: &mut Context<'_, ServerCore>) {
        let Some(reloader) = &mut self.reload else {
            return;
        };
        while let Some((read, client)) = reloader.next() {
            let outcome = read.map_err(|error| reload::refuse(&error)).map(|new| {
                let changes = reloader.config.reload(new);
                let mut ctx = Ctx {
                    now: context.now,
                    stack: context.stack,
                    downstream: context.sockets,
                };
                context.core.reload(&mut ctx, &reloader.config);
                changes
            });
            reload::report(outcome, client);
        }
    }
}
