//! This host's route to the Internet.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

/// Addresses of the DNS root server A. Every full Internet routing table contains their networks, so even a host
/// that has such a table instead of a default route has a route to them. Nothing is sent to them.
const ON_INTERNET_V4: Ipv4Addr = Ipv4Addr::new(198, 41, 0, 4);
const ON_INTERNET_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0x503, 0xba3e, 0, 0, 0, 2, 0x30);
/// Port of the probe; any value does, since nothing is sent.
const ROUTE_PROBE_PORT: u16 = 53;

/// Returns the source address that the kernel chooses for packets to the Internet, by IPv6 if `v6` is true,
/// otherwise by IPv4. Returns `None` if the kernel has no route. Connecting a UDP socket sends nothing, but
/// makes the kernel consult all its routing rules and tables.
pub fn source_towards(v6: bool) -> Option<IpAddr> {
    let (own, to): (IpAddr, IpAddr) = match v6 {
        false => (Ipv4Addr::UNSPECIFIED.into(), ON_INTERNET_V4.into()),
        true => (Ipv6Addr::UNSPECIFIED.into(), ON_INTERNET_V6.into()),
    };
    let source = UdpSocket::bind(SocketAddr::new(own, 0)).and_then(|socket| {
        socket.connect(SocketAddr::new(to, ROUTE_PROBE_PORT))?;
        socket.local_addr()
    });
    source.ok().map(|source| source.ip()).filter(|ip| match ip {
        // Hosts in other networks cannot send answers to a link-local address.
        IpAddr::V4(source) => !source.is_link_local(),
        IpAddr::V6(source) => !source.is_unicast_link_local(),
    })
}
