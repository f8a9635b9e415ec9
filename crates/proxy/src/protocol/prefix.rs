//! Prefixes of destinations, by which a server measures its egress.

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The prefix of an address: /24 of IPv4, /48 of IPv6. Prefixes in BGP usually have at most these lengths, so
/// addresses with the same prefix share a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Prefix {
    V4([u8; 3]),
    V6([u8; 6]),
}

impl Prefix {
    /// Returns the bytes of the prefix, by which it is encoded.
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Prefix::V4(bytes) => bytes,
            Prefix::V6(bytes) => bytes,
        }
    }

    /// Decodes a prefix. The number of bytes tells the family; `None` for any other number.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Prefix> {
        let v4 = bytes.try_into().map(Prefix::V4);
        v4.or_else(|_| bytes.try_into().map(Prefix::V6)).ok()
    }
}

impl From<IpAddr> for Prefix {
    fn from(addr: IpAddr) -> Self {
        match addr {
            IpAddr::V4(addr) => {
                let [a, b, c, _] = addr.octets();
                Prefix::V4([a, b, c])
            }
            IpAddr::V6(addr) => {
                let [a, b, c, d, e, f, ..] = addr.octets();
                Prefix::V6([a, b, c, d, e, f])
            }
        }
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Prefix::V4([a, b, c]) => write!(f, "{}/24", Ipv4Addr::new(a, b, c, 0)),
            Prefix::V6(bytes) => {
                let mut octets = [0; 16];
                octets[..bytes.len()].copy_from_slice(&bytes);
                write!(f, "{}/48", Ipv6Addr::from(octets))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_is_told_by_its_bytes() {
        for (addr, text, bytes) in [
            ("198.51.100.7", "198.51.100.0/24", &[198, 51, 100][..]),
            (
                "2001:db8:7:1::2",
                "2001:db8:7::/48",
                &[32, 1, 13, 184, 0, 7],
            ),
        ] {
            let prefix = Prefix::from(addr.parse::<IpAddr>().unwrap());
            assert_eq!(prefix.to_string(), text);
            assert_eq!(prefix.bytes(), bytes);
            assert_eq!(Prefix::decode(bytes), Some(prefix));
        }
        assert_eq!(Prefix::decode(&[1, 2, 3, 4]), None);
        assert_eq!(Prefix::decode(&[]), None);
    }
}
