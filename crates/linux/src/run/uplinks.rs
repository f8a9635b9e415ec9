//! Uplink paths of a box or application: one path for each access link.

use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;

use braid_engine::Config;
use braid_proxy::LinkAddresses;
use braid_proxy::config::{Gateway, LinkConfig, MptcpHosts, Quic, TunConfig};
use braid_secure::Families;
use ipnet::IpNet;

use super::device::{Device, path_settings};
use super::guard::Guard;
use crate::net::Result;
use crate::net::link::{LinkSpec, LinkState, NextHop};
use crate::net::links::Links;
use crate::net::sysctl::Sysctl;
use crate::nft::{BoxRules, Rules};
use crate::tun::{PacketTun, Tun};

/// MTU in bytes of a link whose interface is missing and whose configuration has no MTU. It is the MTU of
/// Ethernet.
const DEFAULT_MTU: u16 = 1_500;

/// The settings of the uplinks.
#[derive(Debug)]
pub(super) struct Uplinks<'a> {
    pub tun: &'a TunConfig,
    /// The links, by place; `None` at a free place.
    pub links: &'a [Option<LinkConfig>],
    /// Interfaces of the local network. If there are none, nothing is intercepted or forwarded.
    pub lan: &'a [String],
    pub servers: Vec<SocketAddr>,
    /// Addresses of this host that only the local network may connect to.
    pub private: &'a [SocketAddr],
    /// True if packets to and from servers bypass the kernel's routing, where this is possible.
    pub shortcut: bool,
    /// True if the links also carry a tunnel.
    pub tunnel: bool,
}

/// Uplink paths that are set up.
#[derive(Debug)]
pub(super) struct UplinkPaths {
    pub tun: Tun,
    /// The packet device of the tunnel, or the reason why there is none; `None` if the links carry none.
    pub packet_device: Option<Result<PacketTun>>,
    // Fields are dropped in their order. So the shortcut in `links` is released before the device of the guard
    // removes the rules.
    pub links: Links,
    pub guard: Guard,
    /// The addresses that each link may have on the device.
    pub addresses: Vec<LinkAddresses>,
    /// Local ports that only the engine uses towards the servers; `None` without the shortcut.
    pub ports: Option<RangeInclusive<u16>>,
}

impl Uplinks<'_> {
    /// Sets up device, settings, routing and shortcut, and adapts the engine's settings to the device. The other
    /// packet filter rules are left to the caller.
    pub fn set_up(&self, engine: &mut Config) -> Result<UplinkPaths> {
        let (mut tun, mut device) = Device::open(self.tun)?;
        let specs = self.link_specs(device.has_v6());
        let mut links = Links::new(device.instance_names(), specs)?;
        let packet_device = self.tunnel.then(|| device.try_open_tunnel(0, &[]));
        if let Some(Ok(_)) = packet_device {
            links.carry_tunnel();
        }
        let settings = self.settings(device.has_v6());
        device.apply_settings(&settings, true)?;

        let addresses = self.path_addresses(device.has_v6(), &links);
        let min_mtu = addresses.iter().map(|a| a.mtu).min();
        let min_mtu = min_mtu.unwrap_or(DEFAULT_MTU);
        // The test comes before `Links::install`, since the rules of `install` would route the test packet out
        // of a link.
        device.adapt_engine(engine, &mut tun, self.tun, min_mtu);
        links.install(self.lan)?;
        let ports = self.install_shortcut(&mut links, addresses.iter().map(|a| a.mtu).collect());
        if let Some(ports) = &ports {
            engine.ports = ports.clone();
        }
        Ok(UplinkPaths {
            tun,
            packet_device,
            guard: Guard::new(device, links.reached())?,
            links,
            addresses,
            ports,
        })
    }

    /// Installs the shortcut if it is wanted and possible. Returns the local ports of the engine's packets on
    /// the shortcut.
    fn install_shortcut(&self, links: &mut Links, mtus: Vec<u16>) -> Option<RangeInclusive<u16>> {
        if !self.shortcut {
            return None;
        }
        match links.install_shortcut(&self.tun.name, &self.servers, mtus) {
            Ok(ports) => Some(ports),
            Err(error) => {
                tracing::warn!(%error, "cannot set up the shortcut: the kernel routes all packets, which costs \
                                        more processor time");
                None
            }
        }
    }

    /// Returns the routing settings of each place. `v6` tells whether the device has IPv6.
    pub fn link_specs(&self, v6: bool) -> Vec<LinkSpec> {
        let targets: Vec<IpAddr> = self.servers.iter().map(SocketAddr::ip).collect();
        let spec = |(link, n): (&Option<LinkConfig>, u8)| {
            let Some(link) = link else {
                return unused_spec();
            };
            let (fixed_v4, fixed_v6) = match link.gateway {
                Gateway::Auto => (NextHop::Auto, NextHop::Auto),
                Gateway::Fixed { v4, v6 } => (
                    v4.map_or(NextHop::None, |a| NextHop::Gateway(a.into())),
                    v6.map_or(NextHop::None, |a| NextHop::Gateway(a.into())),
                ),
            };
            let mut sources = vec![IpAddr::from(self.tun.path_v4(n))];
            if v6 {
                sources.push(self.tun.path_v6(n).into());
            }
            LinkSpec {
                interface: link.interface.clone(),
                v4: if link.v4 { fixed_v4 } else { NextHop::None },
                v6: if link.v6 && v6 {
                    fixed_v6
                } else {
                    NextHop::None
                },
                sources,
                targets: targets.clone(),
                exclusive: true,
            }
        };
        self.links.iter().zip(0..).map(spec).collect()
    }

    /// Returns the addresses that each link may have on the device.
    fn path_addresses(&self, device_v6: bool, links: &Links) -> Vec<LinkAddresses> {
        let all = self.links.iter().flatten().zip(links.states()).zip(0..);
        let addresses = all.map(|((link, state), n)| self.addresses_of(n, link, state, device_v6));
        addresses.collect()
    }

    /// Returns the addresses that the link at place `n` may have on the device.
    pub fn addresses_of(
        &self,
        n: u8,
        link: &LinkConfig,
        state: &LinkState,
        device_v6: bool,
    ) -> LinkAddresses {
        LinkAddresses {
            v4: link.v4.then(|| self.tun.path_v4(n)),
            v6: (link.v6 && device_v6).then(|| self.tun.path_v6(n)),
            mtu: mtu_of(link, state),
        }
    }

    /// Returns the kernel settings that links and local network need.
    pub fn settings(&self, v6: bool) -> Vec<Sysctl> {
        let mut settings = Vec::new();
        if v6 {
            settings.push(Sysctl::new("net/ipv6/conf/all/forwarding", 1));
        }
        for interface in self.lan {
            let key = format!("net/ipv4/conf/{interface}/forwarding");
            settings.push(Sysctl::new(key, 1));
        }
        for link in self.links.iter().flatten() {
            settings.extend(path_settings(&link.interface, v6));
        }
        // All subflows of a connection share one receive window (RFC 8684 section 3.3.1). So the packets of a
        // subflow may be outside the window that connection tracking expects. Without this setting, connection
        // tracking would call such packets invalid.
        let key = "net/netfilter/nf_conntrack_tcp_be_liberal";
        settings.push(Sysctl::new(key, 1));
        settings
    }

    /// Returns the packet filter rules. `intercept_port` is the port of the listeners for intercepted
    /// connections, and only the engine uses the local ports `ports` towards the servers.
    pub fn rules(
        &self,
        v6: bool,
        intercept_port: u16,
        ports: Option<RangeInclusive<u16>>,
        bypass: Vec<IpNet>,
        (quic, mptcp_hosts): (Quic, MptcpHosts),
    ) -> Rules {
        let interface = |link: &Option<LinkConfig>| link.as_ref().map(|l| l.interface.clone());
        let interfaces = self.links.iter().map(|l| interface(l).unwrap_or_default());
        Rules::Box(BoxRules {
            lan: self.lan.to_vec(),
            links: interfaces.collect(),
            tun: self.tun.name.clone(),
            intercept_port,
            intercept_v6: v6,
            families: Families::BOTH,
            bypass,
            reached: Vec::new(),
            servers: self.servers.clone(),
            ports,
            private: self.private.to_vec(),
            quic,
            mptcp_hosts,
            tunnel: None,
        })
    }
}

/// Returns the routing of a free place: it has no interface and no sources.
fn unused_spec() -> LinkSpec {
    LinkSpec {
        interface: String::new(),
        v4: NextHop::None,
        v6: NextHop::None,
        sources: Vec::new(),
        targets: Vec::new(),
        exclusive: true,
    }
}

/// Returns those addresses of link `index` in whose family the link can send now. If the link can send in
/// neither family, returns all its addresses. An IPv6 address without a route is common, and the core would try
/// to reach a server's IPv6 address from it in vain.
pub(super) fn in_use(addresses: LinkAddresses, links: &Links, index: usize) -> LinkAddresses {
    match links.families_of(index) {
        (false, false) => addresses,
        (v4, v6) => LinkAddresses {
            v4: addresses.v4.filter(|_| v4),
            v6: addresses.v6.filter(|_| v6),
            ..addresses
        },
    }
}

/// Returns the MTU of a link: the configured MTU, otherwise the MTU of its interface.
fn mtu_of(link: &LinkConfig, state: &LinkState) -> u16 {
    let found = match state.mtu {
        0 => DEFAULT_MTU,
        mtu => u16::try_from(mtu).unwrap_or(u16::MAX),
    };
    link.mtu.unwrap_or(found)
}
