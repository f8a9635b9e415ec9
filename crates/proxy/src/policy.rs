//! Which destinations the server goes to.

use core::net::{IpAddr, Ipv4Addr};

use ipnet::IpNet;

/// What is local to a server, whatever its network.
const LOCAL: [&str; 21] = [
    // Unspecified, private (RFC 1918), shared (RFC 6598), loopback, link-local, protocol
    // assignments, multicast, reserved.
    "0.0.0.0/8",
    "10.0.0.0/8",
    "100.64.0.0/10",
    "127.0.0.0/8",
    "169.254.0.0/16",
    "172.16.0.0/12",
    "192.0.0.0/24",
    "192.168.0.0/16",
    "224.0.0.0/4",
    "240.0.0.0/4",
    // Unspecified, loopback and the deprecated IPv4-compatible range.
    "::/96",
    // What a translator or tunnel near the server makes of it is for that to say: NAT64 (RFC 6052),
    // local-use translation (RFC 8215), Teredo, 6to4.
    "64:ff9b::/96",
    "64:ff9b:1::/48",
    "2001::/32",
    "2002::/16",
    // Discard (RFC 6666), segment routing (RFC 9602), private (RFC 4193), link-local, the deprecated
    // site-local range, multicast.
    "100::/64",
    "5f00::/16",
    "fc00::/7",
    "fe80::/10",
    "fec0::/10",
    "ff00::/8",
];

/// Rules on destinations. `deny` is stronger than `allow`, `allow` stronger than what is refused
/// by itself: the server's own addresses and everything local to its network. Of that a prefix opens
/// what it names, which is all of a range or a part of it: one that has the range within it, such as
/// `0.0.0.0/0`, was not meant for it.
#[derive(Debug)]
pub struct DestinationPolicy {
    allow: Vec<IpNet>,
    deny: Vec<IpNet>,
    own: Vec<IpNet>,
    local: [IpNet; LOCAL.len()],
}

impl DestinationPolicy {
    /// The policy of these lists.
    pub fn new(allow: Vec<IpNet>, deny: Vec<IpNet>) -> Self {
        DestinationPolicy {
            local: LOCAL.map(|range| range.parse().expect("a range")),
            own: Vec::new(),
            allow,
            deny,
        }
    }

    /// Replaces the lists.
    pub fn set_rules(&mut self, allow: Vec<IpNet>, deny: Vec<IpNet>) {
        self.allow = allow;
        self.deny = deny;
    }

    /// Replaces the server's own ranges.
    pub fn set_own(&mut self, own: Vec<IpNet>) {
        self.own = own;
    }

    /// Whether `addr` may be connected to. An IPv6 address that stands for an IPv4 one (mapped,
    /// RFC 6052 translation, 6to4) is judged as both.
    pub fn permits(&self, addr: IpAddr) -> bool {
        let mut judged = [Some(addr), embedded_v4(addr)].into_iter().flatten();
        judged.all(|addr| !contains(&self.deny, addr) && self.is_open(addr))
    }

    /// Returns whether `net` lies in a range that every server refuses by itself.
    pub(crate) fn refuses_within(net: &IpNet) -> bool {
        let ranges = LOCAL.iter().filter_map(|range| range.parse().ok());
        ranges.into_iter().any(|range: IpNet| range.contains(net))
    }

    /// Whether each range that is refused by itself, and has `addr`, was opened there.
    fn is_open(&self, addr: IpAddr) -> bool {
        let refused = self.own.iter().chain(&self.local);
        refused.filter(|range| range.contains(&addr)).all(|range| {
            let opened = self.allow.iter().filter(|prefix| range.contains(*prefix));
            contains(opened, addr)
        })
    }
}

fn contains<'a>(prefixes: impl IntoIterator<Item = &'a IpNet>, addr: IpAddr) -> bool {
    prefixes.into_iter().any(|prefix| prefix.contains(&addr))
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
