//! What an instance calls the things it creates.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::{Result, SystemError};

/// Longest name of an instance, bytes, so that the TUN's name fits `IFNAMSIZ`.
pub const MAX_NAME_LEN: usize = 11;

/// The names and numbers of everything that an instance creates in the kernel.
///
/// They follow from the instance's name alone, so that an instance finds and removes what an
/// earlier one of its name left behind when it was killed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    name: String,
    hash: u16,
}

impl Identity {
    /// The identity of instance `name`: 1 to [`MAX_NAME_LEN`] of `a-z`, `0-9`, `-` and `_`.
    ///
    /// # Errors
    /// Where the name is anything else.
    pub fn new(name: &str) -> Result<Identity> {
        let valid = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'_';
        if name.is_empty() || name.len() > MAX_NAME_LEN || !name.bytes().all(valid) {
            return Err(SystemError::other(
                format!("use the instance name {name:?}"),
                format!("it must be 1 to {MAX_NAME_LEN} of a-z, 0-9, - and _"),
            ));
        }
        Ok(Identity {
            name: name.to_owned(),
            hash: fold16(fnv1a(name.as_bytes())),
        })
    }

    /// The instance's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Name of the TUN device.
    pub fn tun(&self) -> String {
        format!("brd-{}", self.name)
    }

    /// Name of the nftables table, of family `inet`.
    pub fn nft_table(&self) -> String {
        format!("braid_{}", self.name.replace('-', "_"))
    }

    /// Routing table of link `index`.
    pub fn link_table(&self, index: u8) -> u32 {
        self.table_base() | u32::from(index)
    }

    /// Routing table for everything that is only forwarded.
    pub fn forward_table(&self) -> u32 {
        self.table_base() | 0x1fe
    }

    /// Routing table that delivers intercepted packets to this host.
    pub fn intercept_table(&self) -> u32 {
        self.table_base() | 0x1ff
    }

    /// Whether a routing table is this instance's.
    pub fn owns_table(&self, table: u32) -> bool {
        table & !0x1ff == self.table_base()
    }

    /// Packet mark of intercepted packets.
    pub fn mark(&self) -> u32 {
        0xb000_0000 | u32::from(self.hash)
    }

    /// Priority of the routing rules that come before the main table.
    pub fn rule_priority(&self) -> u32 {
        10_000 + u32::from(self.hash) % 10_000
    }

    /// Priority of the routing rule that comes after the main table (32,766).
    pub fn fallback_rule_priority(&self) -> u32 {
        40_000 + u32::from(self.hash) % 10_000
    }

    /// IPv4 address `index` behind the TUN. From the block for benchmarks of network devices
    /// (RFC 2544), which is routed nowhere.
    pub fn tun_v4(&self, index: u8) -> Ipv4Addr {
        let [_, h] = self.hash.to_be_bytes();
        Ipv4Addr::new(198, 19, h, index)
    }

    /// IPv6 address `index` behind the TUN (a unique local address, RFC 4193).
    pub fn tun_v6(&self, index: u8) -> Ipv6Addr {
        Ipv6Addr::new(
            0xfd42,
            0x7261,
            0x6964,
            self.hash,
            0,
            0,
            0,
            u16::from(index),
        )
    }

    fn table_base(&self) -> u32 {
        0x4000_0000 | u32::from(self.hash) << 9
    }
}

fn fnv1a(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash, b| {
        (hash ^ u32::from(*b)).wrapping_mul(0x0100_0193)
    })
}

fn fold16(hash: u32) -> u16 {
    ((hash >> 16) ^ (hash & 0xffff)) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_follow_from_the_name() {
        let a = Identity::new("home-box").unwrap();
        assert_eq!(a, Identity::new("home-box").unwrap());
        assert_eq!(a.tun(), "brd-home-box");
        assert_eq!(a.nft_table(), "braid_home_box");
        for table in [a.link_table(0), a.link_table(255), a.forward_table(), a.intercept_table()] {
            assert!(a.owns_table(table));
            assert!(!Identity::new("other").unwrap().owns_table(table));
        }
        assert!(!a.owns_table(254));
    }

    #[test]
    fn unusable_names_are_refused() {
        for name in ["", "twelve-chars", "Box", "a b", "a;b", "ä"] {
            assert!(Identity::new(name).is_err(), "{name:?}");
        }
    }
}
