//! Ingress paths: one for each listening address.

use std::net::{IpAddr, SocketAddr};

use braid_engine::{Config, PathConfig, Stack};
use braid_proxy::config::TunConfig;
use braid_wire::Instant;

use super::device::{Device, path_settings};
use super::guard::Guard;
use crate::net::link::{LinkSpec, NextHop};
use crate::net::links::Links;
use crate::net::netlink::Netlink;
use crate::net::sysctl::Sysctl;
use crate::net::{Result, SystemError};
use crate::nft::{Mapping, Rules, ServerRules};
use crate::tun::Tun;

/// MTU towards peers if no interface has the address, in bytes.
const DEFAULT_MTU: u16 = 1_500;

/// The settings of ingress.
#[derive(Debug)]
pub(super) struct Ingress<'a> {
    pub tun: &'a TunConfig,
    pub listen: &'a [IpAddr],
    pub port: u16,
    /// Peers come in by any interface, and the main table routes the answers.
    pub anywhere: bool,
    /// Peers are told of the addresses that they did not connect to.
    pub announce: bool,
}

/// Ingress paths that are set up.
#[derive(Debug)]
pub(super) struct IngressPaths {
    pub tun: Tun,
    // Dropped before the guard, whose device removes what is no longer in use.
    pub links: Links,
    pub guard: Guard,
    paths: Vec<PathConfig>,
    /// Public addresses of the paths, if peers are to be told of them.
    announced: Vec<SocketAddr>,
}

impl Ingress<'_> {
    /// Sets up everything but the rules, and adapts the engine's settings to the device.
    pub fn set_up(&self, engine: &mut Config) -> Result<IngressPaths> {
        let (mut tun, mut device) = Device::open(self.tun)?;
        let specs = self.link_specs()?;
        let settings = self.settings(&specs, device.has_v6())?;
        device.apply_settings(&settings, false)?;
        let mut links = Links::new(device.instance_names(), specs)?;

        let paths = self.paths(&links);
        let smallest = paths.iter().map(|path| path.mtu).min();
        let smallest = smallest.unwrap_or(DEFAULT_MTU);
        device.adapt_engine(engine, &mut tun, self.tun, smallest);
        links.install(&[])?;
        let announced = match self.announce {
            true => self.mappings().into_iter().map(|m| m.public).collect(),
            false => Vec::new(),
        };
        Ok(IngressPaths {
            tun,
            guard: Guard::new(device, links.reached())?,
            links,
            paths,
            announced,
        })
    }

    /// Returns the address behind the device that replaces the listening address number `n`.
    fn inner(&self, n: u8, listen: IpAddr) -> IpAddr {
        match listen {
            IpAddr::V4(_) => self.tun.path_v4(n).into(),
            IpAddr::V6(_) => self.tun.path_v6(n).into(),
        }
    }

    fn numbered(&self) -> impl Iterator<Item = (u8, IpAddr)> + '_ {
        (0..).zip(self.listen.iter().copied())
    }

    /// Returns the routing of answers: they leave by the interface that has their source address. If that is
    /// a loopback interface, or none, the main table routes them.
    fn link_specs(&self) -> Result<Vec<LinkSpec>> {
        let cannot = || SystemError::cannot("read this machine's addresses");
        let mut netlink = Netlink::open().map_err(cannot())?;
        let addresses = netlink.addresses().map_err(cannot())?;
        let mut interfaces = netlink.interfaces().map_err(cannot())?;
        interfaces.retain(|i| !i.loopback);
        let spec = |(n, listen): (u8, IpAddr)| {
            let carrier = addresses.iter().find(|a| a.addr == listen);
            if carrier.is_none() {
                tracing::warn!(address = %listen, "no interface of this machine has this address of `listen`: \
                                                   no box can connect there until one has");
            }
            let carrier = carrier.filter(|_| !self.anywhere);
            let found = carrier.and_then(|a| interfaces.iter().find(|i| i.index == a.interface));
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
        Ok(self.numbered().map(spec).collect())
    }

    fn settings(&self, specs: &[LinkSpec], v6: bool) -> Result<Vec<Sysctl>> {
        let mut settings = Vec::new();
        if v6 && self.listen.iter().any(IpAddr::is_ipv6) {
            settings.push(Sysctl::new("net/ipv6/conf/all/forwarding", 1));
        }
        let mut names: Vec<String> = specs.iter().map(|s| s.interface.clone()).collect();
        if names.iter().any(String::is_empty) {
            // An address of no interface may be reached by any.
            let cannot = || SystemError::cannot("read this machine's interfaces");
            let mut netlink = Netlink::open().map_err(cannot())?;
            let all = netlink.interfaces().map_err(cannot())?;
            let others = all
                .into_iter()
                .filter(|i| !i.loopback && i.name != self.tun.name);
            names = others.map(|i| i.name).collect();
        }
        names.sort();
        names.dedup();
        for name in names {
            settings.extend(path_settings(&name, v6));
        }
        Ok(settings)
    }

    fn paths(&self, links: &Links) -> Vec<PathConfig> {
        let all = self.numbered().zip(links.states());
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

    /// Returns the pairs of public address and address behind the device.
    fn mappings(&self) -> Vec<Mapping> {
        let mapping = |(n, listen): (u8, IpAddr)| Mapping {
            public: (listen, self.port).into(),
            inner: self.inner(n, listen),
        };
        self.numbered().map(mapping).collect()
    }

    /// Returns the rules.
    pub fn rules(&self) -> Rules {
        Rules::Server(ServerRules {
            tun: self.tun.name.clone(),
            mappings: self.mappings(),
        })
    }
}

impl IngressPaths {
    /// Makes the stack listen on every path.
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
