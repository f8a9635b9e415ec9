//! Which destinations the server goes to.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

/// What is local to a server, whatever its network: unspecified, private (RFC 1918, 4193),
/// shared (RFC 6598), loopback, link-local, protocol assignments, multicast, reserved.
const LOCAL_V4: &[(Ipv4Addr, u8)] = &[
    (Ipv4Addr::new(0, 0, 0, 0), 8),
    (Ipv4Addr::new(10, 0, 0, 0), 8),
    (Ipv4Addr::new(100, 64, 0, 0), 10),
    (Ipv4Addr::new(127, 0, 0, 0), 8),
    (Ipv4Addr::new(169, 254, 0, 0), 16),
    (Ipv4Addr::new(172, 16, 0, 0), 12),
    (Ipv4Addr::new(192, 0, 0, 0), 24),
    (Ipv4Addr::new(192, 168, 0, 0), 16),
    (Ipv4Addr::new(224, 0, 0, 0), 4),
    (Ipv4Addr::new(240, 0, 0, 0), 4),
];

/// The same of IPv6, with the local-use translation prefix (RFC 8215), Teredo and the deprecated
/// site-local range.
const LOCAL_V6: &[(Ipv6Addr, u8)] = &[
    // Unspecified, loopback and the deprecated IPv4-compatible range.
    (Ipv6Addr::UNSPECIFIED, 96),
    (Ipv6Addr::new(0x64, 0xff9b, 1, 0, 0, 0, 0, 0), 48),
    (Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0), 32),
    (Ipv6Addr::new(0xfc00, 0, 0, 0, 0, 0, 0, 0), 7),
    (Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0), 10),
    (Ipv6Addr::new(0xfec0, 0, 0, 0, 0, 0, 0, 0), 10),
    (Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0), 8),
];

/// Rules on destinations. `deny` is stronger than `allow`, `allow` stronger than what is refused
/// by itself: the server's own addresses and everything local to its network.
#[derive(Debug)]
pub struct DestinationPolicy {
    allow: Vec<IpNet>,
    deny: Vec<IpNet>,
    own: Vec<IpNet>,
    local: Vec<IpNet>,
}

impl DestinationPolicy {
    /// The policy of these lists.
    pub fn new(allow: Vec<IpNet>, deny: Vec<IpNet>) -> Self {
        let v4 = LOCAL_V4
            .iter()
            .filter_map(|(a, p)| IpNet::new((*a).into(), *p).ok());
        let v6 = LOCAL_V6
            .iter()
            .filter_map(|(a, p)| IpNet::new((*a).into(), *p).ok());
        DestinationPolicy {
            local: v4.chain(v6).collect(),
            own: Vec::new(),
            allow,
            deny,
        }
    }

    /// Replaces the server's own ranges.
    pub fn set_own(&mut self, own: Vec<IpNet>) {
        self.own = own;
    }

    /// Whether `addr` may be connected to. An IPv6 address that stands for an IPv4 one (mapped,
    /// RFC 6052 translation, 6to4) is judged as both.
    pub fn permits(&self, addr: IpAddr) -> bool {
        let embedded = embedded_v4(addr);
        let in_list = |list: &[IpNet]| {
            list.iter()
                .any(|c| c.contains(&addr) || embedded.is_some_and(|e| c.contains(&e)))
        };
        if in_list(&self.deny) {
            return false;
        }
        in_list(&self.allow) || !in_list(&self.own) && !in_list(&self.local)
    }
}

/// The IPv4 address a translator or tunnel would make of `addr`.
fn embedded_v4(addr: IpAddr) -> Option<IpAddr> {
    let IpAddr::V6(addr) = addr else {
        return None;
    };
    let s = addr.segments();
    let join = |high: u16, low: u16| {
        let bits = u32::from(high) << 16 | u32::from(low);
        Some(IpAddr::V4(Ipv4Addr::from_bits(bits)))
    };
    match s {
        [0, 0, 0, 0, 0, 0xffff, high, low] | [0x64, 0xff9b, 0, 0, 0, 0, high, low] => {
            join(high, low)
        }
        [0x2002, high, low, ..] => join(high, low),
        _ => None,
    }
}
