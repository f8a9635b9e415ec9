//! This host's route to the Internet.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

/// Addresses of the DNS root server A. Their networks are in every table of the whole Internet, so they also
/// serve hosts without a default route. Nothing is sent to them.
const ON_INTERNET_V4: Ipv4Addr = Ipv4Addr::new(198, 41, 0, 4);
const ON_INTERNET_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0x503, 0xba3e, 0, 0, 0, 2, 0x30);
/// Any port serves, since nothing is sent.
const ROUTE_PROBE_PORT: u16 = 53;

/// Returns the source address that the kernel chooses towards the Internet of IPv6 (`v6`) or IPv4, if it has
/// a route. Connecting a UDP socket, which sends nothing, consults all routing rules and tables of the host.
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
        // Hosts beyond the link cannot answer to link-local addresses.
        IpAddr::V4(source) => !source.is_link_local(),
        IpAddr::V6(source) => !source.is_unicast_link_local(),
    })
}
