//! The fields of inner packets by which both ends judge them.

use core::net::{IpAddr, SocketAddr};

use braid_engine::Urgency;
use braid_tunnel::FlowPolicy;
use braid_wire::ip;

use crate::protocol::hints::urgency_of_dscp;

/// The port of DNS.
const DNS: u16 = 53;
/// The urgency of DNS: a look-up delays everything that follows it.
const DNS_URGENCY: Urgency = Urgency::new(1).expect("a level");
/// The number of the fragment header of IPv6 (RFC 8200 section 4.5).
const FRAGMENT: u8 = 44;
/// The extension headers of IPv6 that may precede a transport header (RFC 7045 section 4): hop-by-hop options, routing,
/// fragment, destination options, mobility, HIP, Shim6. A routing header names another destination. Applications send
/// none of the others but fragment headers.
const EXTENSIONS: [u8; 7] = [0, 43, FRAGMENT, 60, 135, 139, 140];
/// The options of IPv4 that name other destinations: loose and strict source routes (RFC 791 section 3.1).
const SOURCE_ROUTES: [u8; 2] = [131, 137];

/// An inner packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Inner {
    pub(crate) src: IpAddr,
    pub(crate) dst: IpAddr,
    protocol: u8,
    /// Source and destination port of TCP and UDP; `None` for other protocols and for fragments.
    ports: Option<(u16, u16)>,
    dscp: u8,
}

impl Inner {
    /// Reads the headers of a packet. Returns `None` if the packet is malformed, or may be bound for another
    /// destination than its header names: it has a source route, or an extension header of IPv6 other than one fragment
    /// header.
    pub(crate) fn parse(packet: &[u8]) -> Option<Self> {
        let view = ip::Packet::new(packet).ok()?;
        let first = view.next_header();
        if view.is_v6() && first != FRAGMENT && EXTENSIONS.contains(&first) {
            return None;
        }
        if !view.is_v6() && has_source_route(packet.get(20..view.header_len())?) {
            return None;
        }
        let (protocol, ports) = match view.transport() {
            Ok((protocol, payload)) if [ip::PROTO_TCP, ip::PROTO_UDP].contains(&protocol) => {
                let [a, b, c, d] = *payload.first_chunk::<4>()?;
                let ports = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
                (protocol, Some(ports))
            }
            Ok((protocol, _)) => (protocol, None),
            Err(_) if !view.is_v6() => (first, None),
            Err(_) if first == FRAGMENT => (*view.payload().first()?, None),
            Err(_) => return None,
        };
        if view.is_v6() && EXTENSIONS.contains(&protocol) {
            return None;
        }
        Some(Inner {
            src: view.src(),
            dst: view.dst(),
            protocol,
            ports,
            dscp: view.traffic_class() >> 2,
        })
    }

    /// Returns the destination, with its port if it has one.
    pub(crate) fn destination(&self) -> SocketAddr {
        SocketAddr::new(self.dst, self.ports.map_or(0, |(_, to)| to))
    }

    /// Returns the destination by which rules on TCP connections judge the packet: other protocols have port 0. Returns
    /// `None` for a fragment of TCP, which does not show its port.
    pub(crate) fn judged_destination(&self) -> Option<SocketAddr> {
        match (self.protocol, self.ports) {
            (ip::PROTO_TCP, ports) => Some(SocketAddr::new(self.dst, ports?.1)),
            _ => Some(SocketAddr::new(self.dst, 0)),
        }
    }

    /// Returns the urgency by port and code point (RFC 2474). Packets alone tell no mode.
    pub(crate) fn policy(&self) -> FlowPolicy {
        let urgency = match self.ports {
            Some((DNS, _) | (_, DNS)) => Some(DNS_URGENCY),
            _ => urgency_of_dscp(self.dscp),
        };
        FlowPolicy {
            urgency,
            mode: None,
        }
    }
}

/// Returns true if options of IPv4 have a source route, or are malformed.
fn has_source_route(mut options: &[u8]) -> bool {
    loop {
        options = match *options {
            // The end of the list.
            [] | [0, ..] => return false,
            // No operation.
            [1, ref rest @ ..] => rest,
            [kind, len, ..] if len >= 2 && !SOURCE_ROUTES.contains(&kind) => {
                match options.get(usize::from(len)..) {
                    Some(rest) => rest,
                    None => return true,
                }
            }
            _ => return true,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes an IPv4 packet from 10.0.0.1 to 192.0.2.7 with 8 bytes of payload, which begin with two ports.
    fn v4(protocol: u8, flags: [u8; 2], class: u8, ports: [u16; 2]) -> Vec<u8> {
        let [from, to] = ports.map(u16::to_be_bytes);
        [
            &[
                0x45, class, 0, 28, 0, 0, flags[0], flags[1], 64, protocol, 0, 0,
            ][..],
            &[10, 0, 0, 1, 192, 0, 2, 7],
            &from,
            &to,
            &[0; 4],
        ]
        .concat()
    }

    /// Makes an IPv6 packet with this payload.
    fn v6(next: u8, payload: &[u8]) -> Vec<u8> {
        let head = [0x60, 0, 0, 0, 0, payload.len() as u8, next, 64];
        [&head[..], &[0xfd; 16], &[0x20; 16], payload].concat()
    }

    #[test]
    fn rules_see_ports_of_tcp_alone() {
        let judged = |packet: &[u8]| Inner::parse(packet).unwrap().judged_destination();
        let to = |port: u16| Some(SocketAddr::from(([192, 0, 2, 7], port)));
        assert_eq!(judged(&v4(6, [0, 0], 0, [5, 25])), to(25));
        assert_eq!(judged(&v4(17, [0, 0], 0, [5, 25])), to(0));
        assert_eq!(judged(&v4(50, [0, 0], 0, [0, 0])), to(0));
        // First and later fragments.
        assert_eq!(judged(&v4(6, [0x20, 0], 0, [5, 25])), None);
        assert_eq!(judged(&v4(6, [0, 9], 0, [0, 0])), None);
        assert_eq!(judged(&v4(17, [0, 9], 0, [0, 0])), to(0));
        let fragment = |of: u8| v6(FRAGMENT, &[of, 0, 0, 1, 0, 0, 0, 9, 0, 5, 0, 25]);
        assert_eq!(judged(&fragment(6)), None);
        assert!(judged(&fragment(17)).is_some());
        // Options behind a fragment header may hide TCP.
        assert_eq!(Inner::parse(&fragment(60)), None);
        let options_first = v6(60, &[FRAGMENT, 0, 1, 4, 0, 0, 0, 0, 6, 0, 0, 1, 0, 0, 0, 9]);
        assert_eq!(Inner::parse(&options_first), None);
    }

    #[test]
    fn headers_that_name_other_destinations_are_none() {
        let udp = [0, 5, 0, 25, 0, 8, 0, 0];
        assert!(Inner::parse(&v6(17, &udp)).is_some());
        // Options of 6 bytes of padding; for a routing header, type 4 with nothing left.
        for next in [0, 43, 60, 135, 139, 140] {
            let body = [&[17, 0, 1, 4, 0, 0, 0, 0][..], &udp].concat();
            assert_eq!(Inner::parse(&v6(next, &body)), None, "{next}");
            let fragment = [&[next, 0, 0, 1, 0, 0, 0, 9][..], &body].concat();
            assert_eq!(Inner::parse(&v6(FRAGMENT, &fragment)), None, "{next}");
        }
        let with_options = |options: &[u8]| {
            let mut packet = v4(17, [0, 0], 0, [5, 25]);
            packet[0] += options.len() as u8 / 4;
            packet[3] += options.len() as u8;
            packet.splice(20..20, options.iter().copied());
            Inner::parse(&packet)
        };
        let route = [131, 7, 4, 10, 0, 0, 9];
        for (name, options, passes) in [
            ("no operation, end", &[1, 1, 1, 0][..], true),
            ("router alert", &[148, 4, 0, 0], true),
            ("loose route", &[&route[..], &[0]].concat(), false),
            ("strict route", &[137, 7, 4, 10, 0, 0, 9, 0], false),
            (
                "a route behind others",
                &[&[1, 148, 4, 0, 0][..], &route].concat(),
                false,
            ),
            ("bytes of a route behind the end", &[0, 131, 3, 4], true),
            ("too long", &[148, 5, 0, 0], false),
            ("too short", &[148, 1, 0, 0], false),
            ("no length", &[1, 1, 1, 148], false),
        ] {
            let parsed = with_options(options);
            assert_eq!(parsed.is_some(), passes, "{name}");
            // The ports are behind the options.
            assert!(
                parsed.is_none_or(|inner| inner.destination().port() == 25),
                "{name}"
            );
        }
    }

    #[test]
    fn cut_packets_are_none() {
        let whole = v4(17, [0, 0], 0, [5, 53]);
        for len in 0..whole.len() {
            assert_eq!(Inner::parse(&whole[..len]), None, "{len}");
        }
        assert!(Inner::parse(&whole).is_some());
    }

    #[test]
    fn dns_and_code_points_are_urgent() {
        let level = |packet: &[u8]| {
            let policy = Inner::parse(packet).unwrap().policy();
            policy.urgency.map(Urgency::level)
        };
        assert_eq!(level(&v4(17, [0, 0], 0, [5, 53])), Some(1));
        assert_eq!(level(&v4(17, [0, 0], 0, [53, 5])), Some(1));
        assert_eq!(level(&v4(17, [0, 0], 46 << 2, [5, 6])), Some(1));
        assert_eq!(level(&v4(17, [0, 0], 8 << 2, [5, 6])), Some(7));
        assert_eq!(level(&v4(17, [0, 0], 0, [5, 6])), None);
    }
}
