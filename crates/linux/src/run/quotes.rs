//! ICMP errors about translated packets.
//!
//! Stateless translation rewrites the addresses of packets, but not those in the packets that
//! ICMP errors quote, by which the engine tells what they are about. Without this, path MTU
//! discovery towards boxes would not work (RFC 1191, RFC 8201).

use std::net::IpAddr;

use braid_wire::checksum::{self, Sum};
use braid_wire::ip;

use crate::nft::Mapping;

/// Length of an ICMP error's header, before the quoted packet (RFC 792, RFC 4443).
const ICMP_HEADER_LEN: usize = 8;

/// Where `packet` is an ICMP error that quotes a packet from a public address, puts the address
/// behind the device in its place.
pub(super) fn translate(packet: &mut [u8], mappings: &[Mapping]) {
    match packet.first().map(|first| first >> 4) {
        Some(4) if packet.get(9) == Some(&ip::PROTO_ICMP) => {
            let header_len = usize::from(packet[0] & 0xf) * 4;
            translate_v4(&mut packet[..], header_len, mappings);
        }
        Some(6) if packet.get(6) == Some(&ip::PROTO_ICMPV6) => translate_v6(packet, mappings),
        _ => {}
    }
}

fn translate_v4(packet: &mut [u8], header_len: usize, mappings: &[Mapping]) {
    let Some(message) = packet.get_mut(header_len..) else {
        return;
    };
    let Some(source) = quoted_source::<4>(message, 12) else {
        return;
    };
    let public = IpAddr::from(*source);
    let Some(IpAddr::V4(inner)) = inner_of(public, mappings) else {
        return;
    };
    *source = inner.octets();
    message[2..4].fill(0);
    let sum = checksum::sum(Sum::default(), message);
    message[2..4].copy_from_slice(&checksum::finish(sum).to_be_bytes());
}

fn translate_v6(packet: &mut [u8], mappings: &[Mapping]) {
    let Some((header, message)) = packet.split_first_chunk_mut::<40>() else {
        return;
    };
    let Some(source) = quoted_source::<16>(message, 8) else {
        return;
    };
    let public = IpAddr::from(*source);
    let Some(IpAddr::V6(inner)) = inner_of(public, mappings) else {
        return;
    };
    *source = inner.octets();
    message[2..4].fill(0);
    let pseudo = checksum::sum(Sum::default(), &header[8..]);
    let len = message.len() as u64;
    let pseudo = Sum(pseudo.0 + len + u64::from(ip::PROTO_ICMPV6));
    let sum = checksum::sum(pseudo, message);
    message[2..4].copy_from_slice(&checksum::finish(sum).to_be_bytes());
}

/// The source address of the packet quoted by `message`, `offset` bytes into that packet.
fn quoted_source<const N: usize>(message: &mut [u8], offset: usize) -> Option<&mut [u8; N]> {
    let quoted = message.get_mut(ICMP_HEADER_LEN + offset..)?;
    quoted.first_chunk_mut::<N>()
}

fn inner_of(public: IpAddr, mappings: &[Mapping]) -> Option<IpAddr> {
    let found = mappings.iter().find(|m| m.public.ip() == public);
    found.map(|m| m.inner)
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use braid_wire::icmp::{Kind, TcpError, verify_v6_checksum};
    use braid_wire::{Seq32, tcp};

    use super::*;

    const PEER: &str = "203.0.113.5";

    fn quoted(src: IpAddr, dst: IpAddr) -> Vec<u8> {
        let packet = ip::Repr {
            src,
            dst,
            protocol: ip::PROTO_TCP,
            payload_len: tcp::HEADER_LEN,
            hop_limit: 60,
            traffic_class: 0,
        };
        let segment = tcp::Repr {
            src_port: 1080,
            dst_port: 40_000,
            seq: Seq32(77),
            ack: Seq32(1),
            flags: tcp::Flags::ACK,
            window: 1,
            options: tcp::Options::default(),
        };
        let ip_len = packet.header_len();
        let mut bytes = vec![0; ip_len + tcp::HEADER_LEN];
        packet.emit(&mut bytes);
        segment.emit(&mut bytes[ip_len..]);
        bytes
    }

    /// An error about a packet from `public` to a peer, which came to `inner`.
    fn error(public: IpAddr, inner: IpAddr, peer: IpAddr) -> Vec<u8> {
        let v6 = public.is_ipv6();
        let (protocol, kind): (u8, [u8; 8]) = if v6 {
            (ip::PROTO_ICMPV6, [2, 0, 0, 0, 0, 0, 5, 0])
        } else {
            (ip::PROTO_ICMP, [3, 4, 0, 0, 0, 0, 5, 0])
        };
        let mut message = kind.to_vec();
        message.extend(quoted(public, peer));
        let header = ip::Repr {
            src: peer,
            dst: inner,
            protocol,
            payload_len: message.len(),
            hop_limit: 60,
            traffic_class: 0,
        };
        let mut packet = vec![0; header.header_len()];
        header.emit(&mut packet);
        packet.extend(message);
        packet
    }

    fn check(public: IpAddr, inner: IpAddr, peer: IpAddr) {
        let mappings = [Mapping {
            public: (public, 1080).into(),
            inner,
        }];
        let mut packet = error(public, inner, peer);
        translate(&mut packet, &mappings);
        let (header, message) = ip::Repr::parse(&packet).unwrap();
        let parsed = TcpError::parse(public.is_ipv6(), message).unwrap();
        assert_eq!(parsed.src, inner);
        assert_eq!(parsed.dst, peer);
        assert_eq!(parsed.kind, Kind::PacketTooBig { mtu: 1_280 });
        assert!(!public.is_ipv6() || verify_v6_checksum(header.src, header.dst, message));
    }

    #[test]
    fn quoted_sources_are_translated_and_checksums_hold() {
        check(
            Ipv4Addr::new(192, 0, 2, 1).into(),
            Ipv4Addr::new(10, 215, 78, 2).into(),
            PEER.parse().unwrap(),
        );
        check(
            "2001:db8::1".parse::<Ipv6Addr>().unwrap().into(),
            "fdb7:a1d0:78::2".parse::<Ipv6Addr>().unwrap().into(),
            "2001:db8:5::5".parse().unwrap(),
        );
    }

    #[test]
    fn whatever_else_comes_is_left_alone() {
        let public: IpAddr = Ipv4Addr::new(192, 0, 2, 1).into();
        let inner: IpAddr = Ipv4Addr::new(10, 215, 78, 2).into();
        let mappings = [Mapping {
            public: (public, 1080).into(),
            inner,
        }];
        let whole = error(
            Ipv4Addr::new(192, 0, 2, 9).into(),
            inner,
            PEER.parse().unwrap(),
        );
        let mut packet = whole.clone();
        translate(&mut packet, &mappings);
        assert_eq!(packet, whole);
        let ours = error(public, inner, PEER.parse().unwrap());
        for len in 0..ours.len() {
            // Cut anywhere: never a panic.
            translate(&mut ours[..len].to_vec(), &mappings);
        }
    }
}
