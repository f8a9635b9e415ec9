//! The settings of the tunnel, which carries everything that is not a TCP connection.

use core::net::{Ipv4Addr, Ipv6Addr};

use braid_secure::channel::Versions;
use braid_units::ConfigError;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use serde::Deserializer;
use toml::Spanned;

use super::common::{Source, TunConfig};
use super::types::{self, OneOrMany, Prefix};

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

/// Checks `tunnel_pool`, which has a range of each family, or of one while the other has its default. `tun` has other
/// ranges of this machine.
pub(super) fn pools(
    src: &Source<'_>,
    given: Option<Spanned<OneOrMany<Prefix>>>,
    tun: &TunConfig,
) -> Result<TunnelPools, ConfigError> {
    let hint = format!(
        "a range of each family: [{:?}, {:?}]",
        DEFAULT_POOLS.0, DEFAULT_POOLS.1
    );
    let error = |message: String| match &given {
        Some(at) => src.error(at, message, &hint),
        None => src.whole(message, format!("tunnel_pool = {hint}")),
    };
    let (mut v4, mut v6) = (None, None);
    for Prefix(net) in given.iter().flat_map(|at| &at.get_ref().0) {
        let (lengths, is_duplicate) = match *net {
            IpNet::V4(net) => (8..=24, v4.replace(net).is_some()),
            IpNet::V6(net) => (48..=120, v6.replace(net).is_some()),
        };
        if is_duplicate {
            return Err(error("two ranges of one family".to_owned()));
        }
        if !lengths.contains(&net.prefix_len()) {
            let (min, max) = lengths.into_inner();
            return Err(error(format!(
                "the range {net} is not between /{min} and /{max}"
            )));
        }
    }
    let pools = TunnelPools {
        v4: v4.unwrap_or_else(|| DEFAULT_POOLS.0.parse().expect("a range")),
        v6: v6.unwrap_or_else(|| DEFAULT_POOLS.1.parse().expect("a range")),
    };
    let overlap = |pool: &IpNet, net: &IpNet| pool.contains(net) || net.contains(pool);
    for pool in pools.ranges() {
        if let Some(other) = tun.ranges().into_iter().find(|net| overlap(&pool, net)) {
            return Err(error(format!(
                "the pool {pool} overlaps the range {other} of [tun]"
            )));
        }
    }
    Ok(pools)
}

#[cfg(test)]
mod tests {
    use braid_secure::keys::PrivateKey;

    use super::*;
    use crate::ServerConfig;

    fn read(line: &str) -> Result<Option<TunnelPools>, String> {
        let key = PrivateKey::from_seed([1; 32]);
        let text = format!(
            "listen = \"203.0.113.7\"\n{line}\n[[user]]\nname = \"a\"\nkey = \"{}\"\n",
            key.public()
        );
        let config = ServerConfig::with_key("server.toml", &text, key);
        config.map(|config| config.tunnel).map_err(|e| e.message)
    }

    #[test]
    fn pools_have_a_range_of_each_family() {
        let default = read("").unwrap().unwrap();
        assert_eq!(default.device_v4(), Ipv4Addr::new(10, 215, 128, 1));
        assert_eq!(default.places(), (1 << 15) - 3);
        let (v4, v6) = default.place(0);
        assert_eq!(v4, Ipv4Addr::new(10, 215, 128, 2));
        assert_eq!(v6, "fdb7:a1d0:80::2".parse::<Ipv6Addr>().unwrap());
        let one = read("tunnel_pool = \"10.9.0.0/24\"").unwrap().unwrap();
        assert_eq!(
            (one.v4.to_string(), one.v6),
            ("10.9.0.0/24".to_owned(), default.v6)
        );
        assert_eq!(one.places(), 253);
        assert_eq!(read("datagrams = \"forward\""), Ok(None));
        for (line, message) in [
            (
                "[\"10.9.0.0/24\", \"10.8.0.0/24\"]",
                "two ranges of one family",
            ),
            (
                "\"10.9.0.0/25\"",
                "the range 10.9.0.0/25 is not between /8 and /24",
            ),
            (
                "\"fd00::/121\"",
                "the range fd00::/121 is not between /48 and /120",
            ),
            (
                "\"10.215.0.0/16\"",
                "the pool 10.215.0.0/16 overlaps the range 10.215.78.0/24 of [tun]",
            ),
        ] {
            assert_eq!(
                read(&format!("tunnel_pool = {line}")),
                Err(message.to_owned())
            );
        }
    }
}
