//! The settings of the tunnel, which carries everything that is not a TCP connection.

use core::net::{Ipv4Addr, Ipv6Addr};

use braid_secure::channel::Versions;
use braid_units::ConfigError;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use serde::{Deserialize, Deserializer};
use toml::Spanned;

use super::common::{Source, TunConfig};
use super::types::{self, Prefix};

/// The default pools: arbitrary private ranges (RFC 1918, RFC 4193) beside those of the TUN devices of box and server.
const DEFAULT_POOLS: (&str, &str) = ("10.215.128.0/17", "fdb7:a1d0:80::/64");

/// The treatment of packets that belong to no intercepted TCP connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Datagrams {
    /// Carried by the tunnel between box and server.
    #[default]
    Tunnel,
    /// Forwarded over the best link at a box. A server offers no tunnel.
    Forward,
}

impl Datagrams {
    /// Returns the versions of this release, with the feature only if there is a tunnel.
    pub(super) fn versions(self) -> Versions {
        match self {
            Datagrams::Tunnel => Versions::OURS,
            Datagrams::Forward => Versions::OURS.without(Versions::TUNNEL),
        }
    }
}

pub(super) fn datagrams<'de, D: Deserializer<'de>>(d: D) -> Result<Datagrams, D::Error> {
    let words = [
        ("tunnel", Datagrams::Tunnel),
        ("forward", Datagrams::Forward),
    ];
    types::word(d, "way to treat datagrams", &words)
}

/// The addresses of a server's tunnel. The first host address of each pool is the server's own on its packet device;
/// boxes have the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TunnelPools {
    /// The IPv4 pool.
    pub v4: Ipv4Net,
    /// The IPv6 pool.
    pub v6: Ipv6Net,
}

impl TunnelPools {
    /// Returns both pools.
    pub fn ranges(&self) -> [IpNet; 2] {
        [self.v4.into(), self.v6.into()]
    }

    /// Returns the IPv4 address of the server's packet device.
    pub fn device_v4(&self) -> Ipv4Addr {
        self.v4_at(1)
    }

    /// Returns the IPv6 address of the server's packet device.
    pub fn device_v6(&self) -> Ipv6Addr {
        self.v6_at(1)
    }

    /// Returns the number of boxes that have addresses at a time.
    pub(crate) fn places(&self) -> u32 {
        // Without the network, the device, and the broadcast address of IPv4. The IPv6 pool has as many places at least:
        // /120 has 256, and the smallest IPv4 pool is as large.
        let hosts = |bits: u8, prefix: u8| 1u64 << u32::from(bits - prefix).min(24);
        let all = hosts(32, self.v4.prefix_len()).min(hosts(128, self.v6.prefix_len()));
        u32::try_from(all - 3).unwrap_or(u32::MAX)
    }

    /// Returns the addresses of place `n`, counted from 0.
    pub(crate) fn place(&self, n: u32) -> (Ipv4Addr, Ipv6Addr) {
        (self.v4_at(n + 2), self.v6_at(n + 2))
    }

    fn v4_at(&self, n: u32) -> Ipv4Addr {
        Ipv4Addr::from_bits(self.v4.network().to_bits() + n)
    }

    fn v6_at(&self, n: u32) -> Ipv6Addr {
        Ipv6Addr::from_bits(self.v6.network().to_bits() + u128::from(n))
    }
}

/// The table `[tunnel]` as written in the file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawTunnel {
    v4: Option<Spanned<Prefix>>,
    v6: Option<Spanned<Prefix>>,
}

impl RawTunnel {
    /// Checks the table. `tun` has other ranges of this machine.
    pub(super) fn check(
        raw: Option<RawTunnel>,
        src: &Source<'_>,
        tun: &TunConfig,
    ) -> Result<TunnelPools, ConfigError> {
        let (v4, v6) = raw.map_or((None, None), |raw| (raw.v4, raw.v6));
        let is_v4 = |net| match net {
            IpNet::V4(net) => Some(net),
            IpNet::V6(_) => None,
        };
        let is_v6 = |net| match net {
            IpNet::V4(_) => None,
            IpNet::V6(net) => Some(net),
        };
        let places = [
            v4.as_ref().map(Spanned::span),
            v6.as_ref().map(Spanned::span),
        ];
        let pools = TunnelPools {
            v4: src.range(v4, DEFAULT_POOLS.0, 8..=24, is_v4)?,
            v6: src.range(v6, DEFAULT_POOLS.1, 48..=120, is_v6)?,
        };
        let overlap = |pool: &IpNet, net: &IpNet| pool.contains(net) || net.contains(pool);
        for (pool, span) in pools.ranges().iter().zip(places) {
            let Some(other) = tun.ranges().into_iter().find(|net| overlap(pool, net)) else {
                continue;
            };
            let message = format!("the pool {pool} overlaps the range {other} of [tun]");
            let hint = "another range here or there";
            return Err(match span {
                Some(span) => src.error(&Spanned::new(span, ()), message, hint),
                None => src.whole(message, hint),
            });
        }
        Ok(pools)
    }
}
