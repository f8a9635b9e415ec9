//! Networks as written in a testbed file.

use std::net::{Ipv4Addr, Ipv6Addr};

use serde::Deserialize;
use serde::de::{Deserializer, Error as _};

/// An IPv4 network with room for at least two hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Subnet4 {
    /// First address of the network.
    pub network: Ipv4Addr,
    /// Prefix length, 8 to 30.
    pub prefix: u8,
}

/// An IPv6 network with room for at least two hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Subnet6 {
    /// First address of the network.
    pub network: Ipv6Addr,
    /// Prefix length, 16 to 120.
    pub prefix: u8,
}

impl Subnet4 {
    /// The `n`th address, from 1; `None` past the end of the network.
    pub fn host(self, n: u32) -> Option<Ipv4Addr> {
        let room = (1u32 << (32 - u32::from(self.prefix))) - 2;
        (1..=room)
            .contains(&n)
            .then(|| Ipv4Addr::from_bits(self.network.to_bits() + n))
    }

    /// Whether the two have an address in common.
    pub fn overlaps(self, other: Subnet4) -> bool {
        let mask = u32::MAX << (32 - u32::from(self.prefix.min(other.prefix)));
        self.network.to_bits() & mask == other.network.to_bits() & mask
    }

    fn parse(text: &str) -> Result<Subnet4, String> {
        let help = || format!("`{text}` is no IPv4 network; write one such as \"192.168.1.0/24\"");
        let (network, prefix) = text.split_once('/').ok_or_else(help)?;
        let network: Ipv4Addr = network.parse().map_err(|_| help())?;
        let prefix: u8 = prefix.parse().map_err(|_| help())?;
        if !(8..=30).contains(&prefix) {
            return Err(format!("`{text}`: the prefix length must be 8 to 30"));
        }
        let first = network.to_bits() & (u32::MAX << (32 - u32::from(prefix)));
        if first != network.to_bits() {
            let first = Ipv4Addr::from_bits(first);
            return Err(format!(
                "`{text}` is an address; its network is \"{first}/{prefix}\""
            ));
        }
        Ok(Subnet4 { network, prefix })
    }
}

impl Subnet6 {
    /// The `n`th address, from 1.
    pub fn host(self, n: u32) -> Option<Ipv6Addr> {
        let room = 1u128 << (128 - u32::from(self.prefix));
        (n > 0 && u128::from(n) < room)
            .then(|| Ipv6Addr::from_bits(self.network.to_bits() + u128::from(n)))
    }

    /// Whether the two have an address in common.
    pub fn overlaps(self, other: Subnet6) -> bool {
        let mask = u128::MAX << (128 - u32::from(self.prefix.min(other.prefix)));
        self.network.to_bits() & mask == other.network.to_bits() & mask
    }

    fn parse(text: &str) -> Result<Subnet6, String> {
        let help = || format!("`{text}` is no IPv6 network; write one such as \"fd00:1::/64\"");
        let (network, prefix) = text.split_once('/').ok_or_else(help)?;
        let network: Ipv6Addr = network.parse().map_err(|_| help())?;
        let prefix: u8 = prefix.parse().map_err(|_| help())?;
        if !(16..=120).contains(&prefix) {
            return Err(format!("`{text}`: the prefix length must be 16 to 120"));
        }
        let first = network.to_bits() & (u128::MAX << (128 - u32::from(prefix)));
        if first != network.to_bits() {
            let first = Ipv6Addr::from_bits(first);
            return Err(format!(
                "`{text}` is an address; its network is \"{first}/{prefix}\""
            ));
        }
        Ok(Subnet6 { network, prefix })
    }
}

impl<'de> Deserialize<'de> for Subnet4 {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        Subnet4::parse(&String::deserialize(d)?).map_err(D::Error::custom)
    }
}

impl<'de> Deserialize<'de> for Subnet6 {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        Subnet6::parse(&String::deserialize(d)?).map_err(D::Error::custom)
    }
}
