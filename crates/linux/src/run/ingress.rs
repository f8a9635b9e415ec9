//! Ingress paths of a server: one path for each listening address.

use std::net::{IpAddr, SocketAddr};

use braid_engine::{Config, PathConfig, PathId, Stack};
use braid_proxy::app::TUNNEL_MTU;
use braid_proxy::config::{TunConfig, TunnelPools};
use braid_wire::Instant;

use super::device::{Device, path_settings};
use super::guard::Guard;
use crate::net::link::{LinkSpec, NextHop};
use crate::net::links::Links;
use crate::net::netlink::Netlink;
use crate::net::routes::{Address, Interface};
use crate::net::sysctl::Sysctl;
use crate::net::{InstanceNames, Result, SystemError};
use crate::nft::{Mapping, Rules, ServerRules, ServerTunnel};
use crate::tun::{PacketTun, Tun};
use crate::tunnel::TunnelIo;

/// MTU in bytes of a path whose address no interface has. It is the MTU of Ethernet.
const DEFAULT_MTU: u16 = 1_500;

/// The settings of ingress.
#[derive(Debug)]
pub(super) struct Ingress<'a> {
    pub tun: &'a TunConfig,
    pub listen: &'a [IpAddr],
    pub port: u16,
    /// True if peers may reach an address by any interface, so that the main table routes the answers.
    pub anywhere: bool,
    /// True if peers are told of the addresses that they did not connect to.
    pub announce: bool,
    /// The addresses of boxes in the tunnel, if the server offers one.
    pub tunnel: Option<TunnelPools>,
}

/// Ingress paths that are set up.
#[derive(Debug)]
pub(super) struct IngressPaths {
    pub tun: Tun,
    /// The packet device of the tunnel, or the reason why there is none; `None` if the server offers no tunnel.
    pub packet_device: Option<Result<PacketTun>>,
    /// The interfaces that pass packets of the tunnel, if the server offers one.
    pub forwarding: Option<Forwarding>,
    // Fields are dropped in their order. The guard comes after the links, since its device removes all rules
    // when it is dropped.
    pub links: Links,
    pub guard: Guard,
    paths: Vec<PathConfig>,
    /// Public addresses of the paths, if peers are told of them; otherwise empty.
    announced: Vec<SocketAddr>,
}

impl Ingress<'_> {
    /// Sets up device, settings and routing, and adapts the engine's settings to the device. The packet filter
    /// rules are left to the caller. Without the packet device of the tunnel there is no tunnel.
    pub fn set_up(&mut self, engine: &mut Config) -> Result<IngressPaths> {
        let (mut tun, mut device) = Device::open(self.tun)?;
        let packet_device = self.tunnel.map(|pools| {
            let addresses = [
                (pools.device_v4().into(), pools.v4.prefix_len()),
                (pools.device_v6().into(), pools.v6.prefix_len()),
            ];
            device.try_open_tunnel(TUNNEL_MTU, &addresses)
        });
        self.tunnel = self.tunnel.filter(|_| matches!(packet_device, Some(Ok(_))));
        let specs = self.link_specs()?;
        let (settings, names) = self.settings(&specs, device.has_v6())?;
        device.apply_settings(&settings, self.tunnel.is_some())?;
        let forwarding = self.tunnel.map(|_| Forwarding {
            own: device.instance_names().devices(),
            v6: device.has_v6(),
            names,
            settings,
        });
        let mut links = Links::new(device.instance_names(), specs)?;
        if self.tunnel.is_some() {
            links.carry_tunnel();
        }

        let paths = self.paths(&links);
        let min_mtu = paths.iter().map(|path| path.mtu).min();
        let min_mtu = min_mtu.unwrap_or(DEFAULT_MTU);
        // The test comes before `Links::install`, since the rules of `install` would route the test packet out
        // of a link.
        device.adapt_engine(engine, &mut tun, self.tun, min_mtu);
        links.install(&[])?;
        let announced = match self.announce {
            true => self.mappings().into_iter().map(|m| m.public).collect(),
            false => Vec::new(),
        };
        Ok(IngressPaths {
            tun,
            packet_device,
            forwarding,
            guard: Guard::new(device, links.reached())?,
            links,
            paths,
            announced,
        })
    }

    /// Returns the engine's address behind the device. It replaces the listening address number `n`.
    fn inner(&self, n: u8, listen: IpAddr) -> IpAddr {
        match listen {
            IpAddr::V4(_) => self.tun.path_v4(n).into(),
            IpAddr::V6(_) => self.tun.path_v6(n).into(),
        }
    }

    /// Returns the listening addresses with their numbers.
    fn numbered_addresses(&self) -> impl Iterator<Item = (u8, IpAddr)> + '_ {
        (0..).zip(self.listen.iter().copied())
    }

    /// Returns the links that route the answers: an answer leaves by the interface that has its source address.
    /// If a loopback interface or no interface has the address, the main table routes the answer.
    fn link_specs(&self) -> Result<Vec<LinkSpec>> {
        let cannot = || SystemError::cannot("read this machine's addresses");
        let mut netlink = Netlink::open().map_err(cannot())?;
        let addresses = netlink.addresses().map_err(cannot())?;
        let mut interfaces = netlink.interfaces().map_err(cannot())?;
        interfaces.retain(|i| !i.loopback);
        let spec = |(n, listen): (u8, IpAddr)| {
            let found_address = addresses.iter().find(|a| a.addr == listen);
            if found_address.is_none() {
                tracing::warn!(address = %listen, "no interface of this machine has this address of `listen`: \
                                                   no box can connect there until one has");
            }
            let found_address = found_address.filter(|_| !self.anywhere);
            let found =
                found_address.and_then(|a| interfaces.iter().find(|i| i.index == a.interface));
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
                sources: vec![self.inner(n, listen)],
                targets: Vec::new(),
                exclusive: false,
            }
        };
        Ok(self.numbered_addresses().map(spec).collect())
    }

    /// Returns the kernel settings that the interfaces of the listening addresses need, and those by which answers to
    /// packets of the tunnel come in. Returns the names of these interfaces too.
    fn settings(&self, specs: &[LinkSpec], v6: bool) -> Result<(Vec<Sysctl>, Vec<String>)> {
        let mut settings = Vec::new();
        if v6 && (self.tunnel.is_some() || self.listen.iter().any(IpAddr::is_ipv6)) {
            settings.push(Sysctl::new("net/ipv6/conf/all/forwarding", 1));
        }
        let mut names: Vec<String> = specs.iter().map(|s| s.interface.clone()).collect();
        // Packets to an address that no interface has, or that a loopback interface has, may come in by any interface.
        let by_any = names.iter().any(String::is_empty);
        if by_any || self.tunnel.is_some() {
            let cannot = || SystemError::cannot("read this machine's interfaces");
            let mut netlink = Netlink::open().map_err(cannot())?;
            let all = netlink.interfaces().map_err(cannot())?;
            let addresses = netlink.addresses().map_err(cannot())?;
            let own = InstanceNames::of_tun(&self.tun.name).devices();
            let mut others = with_addresses(&all, &addresses, &own);
            if by_any {
                let others_too = all.iter().filter(|i| !i.loopback && !own.contains(&i.name));
                others.extend(others_too.map(|i| i.name.clone()));
            }
            names.extend(others);
        }
        names.retain(|name| !name.is_empty());
        names.sort();
        names.dedup();
        for name in &names {
            settings.extend(path_settings(name, v6));
        }
        Ok((settings, names))
    }

    /// Returns the engine's path for each listening address.
    fn paths(&self, links: &Links) -> Vec<PathConfig> {
        let all = self.numbered_addresses().zip(links.states());
        let paths = all.map(|((n, listen), state)| {
            let (v4, v6) = match self.inner(n, listen) {
                IpAddr::V4(a) => (Some(a), None),
                IpAddr::V6(a) => (None, Some(a)),
            };
            let mtu = match state.mtu {
                0 => DEFAULT_MTU,
                mtu => u16::try_from(mtu).unwrap_or(u16::MAX),
            };
            PathConfig {
                v4,
                v6,
                mtu,
                ..PathConfig::default()
            }
        });
        paths.collect()
    }

    /// Returns the public addresses, each with the engine's address behind the device.
    fn mappings(&self) -> Vec<Mapping> {
        let mapping = |(n, listen): (u8, IpAddr)| Mapping {
            public: (listen, self.port).into(),
            inner: self.inner(n, listen),
        };
        self.numbered_addresses().map(mapping).collect()
    }

    /// Opens the sockets of the tunnel, one for each listening address.
    pub fn open_sockets(&self, tunnel: &mut TunnelIo) -> Result<()> {
        let instance_names = InstanceNames::of_tun(&self.tun.name);
        for (n, listen) in self.numbered_addresses() {
            let addr = SocketAddr::new(listen, self.port);
            tunnel.listen(PathId(n), addr, instance_names.socket_mark(n))?;
        }
        Ok(())
    }

    /// Returns the packet filter rules of the server.
    pub fn rules(&self) -> Rules {
        Rules::Server(ServerRules {
            tun: self.tun.name.clone(),
            mappings: self.mappings(),
            tunnel: self.tunnel.map(|pools| ServerTunnel {
                device: InstanceNames::of_tun(&self.tun.name).tunnel_device(),
                v4: pools.v4,
                v6: pools.v6,
            }),
        })
    }
}

/// Returns the interfaces with addresses, except loopback and `own`: packets of other hosts come in by them.
fn with_addresses(
    interfaces: &[Interface],
    addresses: &[Address],
    own: &[String; 2],
) -> Vec<String> {
    let others = interfaces
        .iter()
        .filter(|i| !i.loopback && !own.contains(&i.name));
    let others = others.filter(|i| addresses.iter().any(|a| a.interface == i.index));
    others.map(|i| i.name.clone()).collect()
}

/// The interfaces of a server that pass packets of the tunnel and the answers to them, and their settings. An interface
/// may get its first address long after the start, for example by DHCP.
#[derive(Debug)]
pub(super) struct Forwarding {
    /// The devices of this instance.
    own: [String; 2],
    v6: bool,
    names: Vec<String>,
    settings: Vec<Sysctl>,
}

impl Forwarding {
    /// Adds interfaces that have got an address. Returns all settings if there are new ones.
    pub fn extend(&mut self, interfaces: &[Interface], addresses: &[Address]) -> Option<&[Sysctl]> {
        let mut new = with_addresses(interfaces, addresses, &self.own);
        new.retain(|name| !self.names.contains(name));
        if new.is_empty() {
            return None;
        }
        for name in new {
            self.settings.extend(path_settings(&name, self.v6));
            self.names.push(name);
        }
        Some(&self.settings)
    }
}

impl IngressPaths {
    /// Adds the paths to the stack. Makes the stack listen on each path and announce the public addresses.
    pub fn listen(&self, port: u16, stack: &mut Stack) -> Result<()> {
        let mut announced = self.announced.iter();
        for config in &self.paths {
            let path = stack.add_path(*config);
            let path = path.map_err(|e| SystemError::other("add an address", e.to_string()))?;
            stack.set_path_up(Instant::ZERO, path, true);
            let addr = config.v4.map(IpAddr::from).or(config.v6.map(IpAddr::from));
            let Some(addr) = addr.map(|ip| SocketAddr::new(ip, port)) else {
                continue;
            };
            stack
                .listen(addr)
                .map_err(|e| SystemError::other(format!("listen on {addr}"), e.to_string()))?;
            if let Some(public) = announced.next() {
                let action = || format!("announce {public}");
                stack
                    .announce(path, *public)
                    .map_err(|e| SystemError::other(action(), e.to_string()))?;
            }
        }
        Ok(())
    }
}
