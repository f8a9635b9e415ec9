//! The policy on destinations that the server connects to.

use core::cell::Cell;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use ipnet::IpNet;

/// Ranges that a server refuses unless its configuration allows them: the ranges that IANA's special-purpose
/// address registries (RFC 6890) list as not globally reachable, multicast, and addresses of cloud platforms'
/// services for their own hosts.
const LOCAL: [&str; 32] = [
    // Unspecified, private (RFC 1918), shared (RFC 6598), loopback, link-local, private.
    "0.0.0.0/8",
    "10.0.0.0/8",
    "100.64.0.0/10",
    "127.0.0.0/8",
    "169.254.0.0/16",
    "172.16.0.0/12",
    // Protocol assignments (RFC 6890), documentation (RFC 5737), deprecated 6to4 relays (RFC 7526),
    // private, benchmarking (RFC 2544), documentation.
    "192.0.0.0/24",
    "192.0.2.0/24",
    "192.88.99.0/24",
    "192.168.0.0/16",
    "198.18.0.0/15",
    "198.51.100.0/24",
    "203.0.113.0/24",
    // Multicast, reserved and broadcast.
    "224.0.0.0/4",
    "240.0.0.0/4",
    // A public address at which Azure's hosts reach their platform: DNS, DHCP, health probes and the agent's
    // secrets. Other clouds use link-local or private addresses for these services.
    "168.63.129.16/32",
    // Unspecified, loopback and the deprecated IPv4-compatible range; IPv4-translated (RFC 7915).
    "::/96",
    "::ffff:0:0:0/96",
    // Ranges whose packets a translator or tunnel near the server sends to an IPv4 address: NAT64 (RFC 6052),
    // local-use translation (RFC 8215), 6to4 (RFC 3056).
    "64:ff9b::/96",
    "64:ff9b:1::/48",
    "2002::/16",
    // Discard (RFC 6666), dummy (RFC 9780).
    "100::/64",
    "100:0:0:1::/64",
    // Protocol assignments (RFC 2928), which include Teredo, benchmarking and ORCHID; documentation.
    "2001::/23",
    "2001:db8::/32",
    "3fff::/20",
    // Segment routing (RFC 9602), private (RFC 4193), link-local, the deprecated site-local range,
    // multicast.
    "5f00::/16",
    "fc00::/7",
    "fe80::/10",
    "fec0::/10",
    "ff00::/8",
    // The first experimental network (RFC 3701), returned and never assigned again.
    "3ffe::/16",
];

/// Rules on destinations from a configuration.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DestinationRules {
    /// Prefixes that are allowed although they lie in a range refused by default.
    pub allow: Vec<IpNet>,
    /// Prefixes that are refused, even if `allow` contains them.
    pub deny: Vec<IpNet>,
    /// TCP ports that are refused at every address.
    pub refuse_ports: Vec<u16>,
}

/// The policy on destinations. `deny` takes precedence over `allow`, and `allow` over the ranges that are refused
/// by default: the server's own addresses and all local ranges. A prefix in `allow` opens such a range only if it
/// equals the range or lies within it. A wider prefix, such as `0.0.0.0/0`, opens no such range, so that an
/// operator cannot open the server's own network by accident. Refused ports are refused at every address.
#[derive(Debug)]
pub struct DestinationPolicy {
    rules: DestinationRules,
    own: Vec<IpNet>,
    local: [IpNet; LOCAL.len()],
    /// The destination that was permitted last: packets in the tunnel come many in a row for the same one.
    last_permitted: Cell<Option<SocketAddr>>,
}

impl DestinationPolicy {
    /// Creates the policy of these rules.
    pub fn new(rules: DestinationRules) -> Self {
        DestinationPolicy {
            local: LOCAL.map(|range| range.parse().expect("a range")),
            own: Vec::new(),
            rules,
            last_permitted: Cell::new(None),
        }
    }

    /// Replaces the rules.
    pub fn set_rules(&mut self, rules: DestinationRules) {
        self.rules = rules;
        self.last_permitted.set(None);
    }

    /// Replaces the server's own ranges.
    pub fn set_own(&mut self, own: Vec<IpNet>) {
        self.own = own;
        self.last_permitted.set(None);
    }

    /// Returns whether the server may connect to `to`. An IPv4-mapped address counts as the IPv4 address. An IPv6
    /// address that a translator or tunnel maps to IPv4 must be permitted itself, and so must the IPv4 address.
    pub fn permits(&self, to: SocketAddr) -> bool {
        if self.last_permitted.get() == Some(to) {
            return true;
        }
        let addr = to.ip().to_canonical();
        let mut reached = [Some(addr)].into_iter().chain(embedded_v4(addr)).flatten();
        let is_permitted = !self.rules.refuse_ports.contains(&to.port())
            && reached.all(|addr| !contains(&self.rules.deny, addr) && self.is_open(addr));
        if is_permitted {
            self.last_permitted.set(Some(to));
        }
        is_permitted
    }

    /// Returns whether `net` lies in a range that every server refuses by default.
    pub(crate) fn refuses_within(net: &IpNet) -> bool {
        let ranges = LOCAL.iter().filter_map(|range| range.parse().ok());
        ranges.into_iter().any(|range: IpNet| range.contains(net))
    }

    /// Returns whether the configuration opens every refused range that contains `addr`.
    fn is_open(&self, addr: IpAddr) -> bool {
        let refused = self.own.iter().chain(&self.local);
        refused.filter(|range| range.contains(&addr)).all(|range| {
            let allow = self.rules.allow.iter();
            contains(allow.filter(|prefix| range.contains(*prefix)), addr)
        })
    }
}

fn contains<'a>(prefixes: impl IntoIterator<Item = &'a IpNet>, addr: IpAddr) -> bool {
    prefixes.into_iter().any(|prefix| prefix.contains(&addr))
}

/// Returns the IPv4 addresses to which a translator or tunnel sends packets for `addr`; up to two for Teredo and
/// for 6to4 with ISATAP.
fn embedded_v4(addr: IpAddr) -> [Option<IpAddr>; 2] {
    let IpAddr::V6(addr) = addr else {
        return [None, None];
    };
    match addr.segments() {
        // NAT64 (RFC 6052 section 2.1), IPv4-translated (RFC 7915).
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] | [0, 0, 0, 0, 0xffff, 0, high, low] => {
            [Some(join(high, low)), None]
        }
        [0x2002, high, low, ..] => [Some(join(high, low)), isatap(addr)],
        // Teredo (RFC 4380 section 4): its server, and its client with all bits inverted.
        [0x2001, 0, high, low, _, _, client_high, client_low] => {
            [Some(join(high, low)), Some(join(!client_high, !client_low))]
        }
        _ => [isatap(addr), None],
    }
}

/// Returns the IPv4 address in an ISATAP interface identifier (RFC 5214 section 6.1). Such an identifier can
/// follow any prefix. The identifier's bit 0x0200 tells whether the IPv4 address is globally unique.
fn isatap(addr: Ipv6Addr) -> Option<IpAddr> {
    match addr.segments() {
        [_, _, _, _, 0 | 0x0200, 0x5efe, high, low] => Some(join(high, low)),
        _ => None,
    }
}

fn join(high: u16, low: u16) -> IpAddr {
    IpAddr::V4(Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low)))
}
