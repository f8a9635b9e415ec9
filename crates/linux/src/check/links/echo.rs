//! Probes a link to a server: packet sizes by ICMP echo requests, and UDP by the ICMP error for a port at which
//! no program listens.

use std::io;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use braid_wire::checksum::{self, Sum};
use braid_wire::{ip, udp};

use super::raw::{Raw, Received};

/// Time to wait for answers before unanswered probes are sent again. The value is a guess: longer than nearly
/// any round trip.
const ROUND_TIME: Duration = Duration::from_millis(1_200);
/// Maximum number of times that each probe is sent, so that a single lost packet does not decide the result.
const ROUNDS: u32 = 2;
/// Packet sizes in bytes that are probed if they are below the MTU. They are the sizes of common links, such as
/// PPPoE (1,492), tunnels and mobile networks, and the minimum of IPv6 (1,280, RFC 8200 section 5).
const SIZES: [u16; 12] = [
    1_492, 1_480, 1_472, 1_464, 1_454, 1_440, 1_430, 1_420, 1_400, 1_380, 1_350, 1_280,
];
/// Size in bytes of the smallest probe, which passes every link. It shows whether pings are answered at all.
const SMALL_SIZE: u16 = 100;
/// The port of the UDP probe. No program listens there, so the server's machine answers by an ICMP error. It is the first
/// port of traceroute, whose probes many firewalls pass. At its own port a server answers only to boxes that it knows.
const UDP_PORT: u16 = 33_434;
// Length in bytes of the header of an ICMP echo message (RFC 792, RFC 4443).
const HEADER_LEN: usize = 8;

/// The answers to the probes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Echoes {
    /// Size in bytes of the largest packet that passed in both directions; `None` if no packet did.
    pub largest: Option<u16>,
    /// True if a router or the server reported that a packet was too large.
    pub size_reported: bool,
    /// True if the server's machine answered that no program listens at the UDP port.
    pub udp: bool,
}

/// Sends probes of up to `mtu` bytes to the server and collects the answers. `ends` are the local and the remote
/// address, and `id` is the identifier of the echo requests.
///
/// # Errors
/// Fails if the sockets cannot receive. A probe that the interface refuses counts as lost.
pub(super) fn ask(
    raw: &mut Raw,
    ends: (IpAddr, IpAddr),
    id: u16,
    mtu: u16,
    stop: BorrowedFd<'_>,
) -> io::Result<Echoes> {
    let mut sizes: Vec<u16> = [mtu, SMALL_SIZE]
        .into_iter()
        .chain(SIZES.into_iter().filter(|size| *size < mtu))
        .collect();
    sizes.sort_unstable();
    let mut echoes = Echoes::default();
    for _ in 0..ROUNDS {
        let is_unanswered = |size: &&u16| echoes.largest.is_none_or(|largest| **size > largest);
        for size in sizes.iter().filter(is_unanswered) {
            // If the interface refuses the size (EMSGSIZE), the probe gets no answer, as if it were lost.
            let _ = raw.send(&echo_request(ends, id, *size));
        }
        if !echoes.udp {
            let _ = raw.send(&datagram(ends, UDP_PORT));
        }
        let round_end = Instant::now() + ROUND_TIME;
        while echoes.largest != Some(mtu) || !echoes.udp {
            match raw.receive(round_end, stop)? {
                Received::Packet(packet) => on_packet(packet, ends, (UDP_PORT, id), &mut echoes),
                Received::Nothing => break,
                Received::Stop => return Ok(echoes),
            }
        }
        if echoes.largest == Some(mtu) {
            break;
        }
    }
    Ok(echoes)
}

/// Returns the IP header of a probe.
fn header((src, dst): (IpAddr, IpAddr), protocol: u8, payload_len: usize) -> ip::Repr {
    ip::Repr {
        src,
        dst,
        protocol,
        payload_len,
        hop_limit: 64,
        traffic_class: 0,
    }
}

/// Builds an echo request in a packet of `size` bytes.
fn echo_request(ends: (IpAddr, IpAddr), id: u16, size: u16) -> Vec<u8> {
    let v6 = ends.0.is_ipv6();
    let protocol = if v6 { ip::PROTO_ICMPV6 } else { ip::PROTO_ICMP };
    let start = header(ends, protocol, 0).header_len();
    let length = usize::from(size).max(start + HEADER_LEN) - start;
    let mut packet = vec![0; start + length];
    header(ends, protocol, length).emit(&mut packet);
    let message = &mut packet[start..];
    // The type of an echo request.
    message[0] = if v6 { 128 } else { 8 };
    message[4..6].copy_from_slice(&id.to_be_bytes());
    // The field of the sequence number holds the size, so that the answer shows the size even if the answer was
    // cut off.
    message[6..8].copy_from_slice(&size.to_be_bytes());
    let pseudo = match v6 {
        true => checksum::pseudo_header(ends.0, ends.1, protocol, length as u32),
        false => Sum::default(),
    };
    let value = checksum::finish(checksum::sum(pseudo, message));
    message[2..4].copy_from_slice(&value.to_be_bytes());
    packet
}

/// Builds an empty UDP datagram to `port`.
fn datagram(ends: (IpAddr, IpAddr), port: u16) -> Vec<u8> {
    let start = header(ends, ip::PROTO_UDP, 0).header_len();
    let mut packet = vec![0; start + udp::HEADER_LEN];
    header(ends, ip::PROTO_UDP, udp::HEADER_LEN).emit(&mut packet);
    let repr = udp::Repr {
        src_port: port,
        dst_port: port,
        payload_len: 0,
    };
    repr.emit(&mut packet[start..]);
    udp::fill_checksum(ends.0, ends.1, &mut packet[start..]);
    packet
}

/// Updates `echoes` by a received packet.
fn on_packet(packet: &[u8], ends: (IpAddr, IpAddr), (port, id): (u16, u16), echoes: &mut Echoes) {
    let Ok((about, message)) = ip::Repr::parse(packet) else {
        return;
    };
    let v6 = about.src.is_ipv6();
    let protocol = if v6 { ip::PROTO_ICMPV6 } else { ip::PROTO_ICMP };
    let Some((icmp_header, rest)) = message.split_first_chunk::<HEADER_LEN>() else {
        return;
    };
    if about.protocol != protocol || about.dst != ends.0 {
        return;
    }
    let word = |at: usize| u16::from_be_bytes([icmp_header[at], icmp_header[at + 1]]);
    // ICMP types and codes of RFC 792 and RFC 4443.
    match (v6, icmp_header[0], icmp_header[1]) {
        (false, 0, 0) | (true, 129, 0) if about.src == ends.1 && word(4) == id => {
            echoes.largest = echoes.largest.max(Some(word(6)));
        }
        // "Fragmentation needed" or "packet too big", about any packet to the server.
        (false, 3, 4) | (true, 2, 0) => echoes.size_reported |= is_about(rest, ends),
        (false, 3, 3) | (true, 1, 4) if about.src == ends.1 => {
            // The error may quote nothing but the headers of the packet, so only protocol and destination port
            // are compared.
            let (kind, start) = match rest.first() {
                Some(first) if !v6 => (rest.get(9), 4 * usize::from(first & 0xf)),
                _ => (rest.get(6), 40),
            };
            let to = rest.get(start + 2..start + 4);
            echoes.udp |= kind == Some(&ip::PROTO_UDP) && to == Some(&port.to_be_bytes());
        }
        _ => {}
    }
}

/// Returns whether the quoted packet was sent to the server.
fn is_about(quoted: &[u8], ends: (IpAddr, IpAddr)) -> bool {
    match ends.1 {
        IpAddr::V4(dst) => quoted.get(16..20) == Some(&dst.octets()[..]),
        IpAddr::V6(dst) => quoted.get(24..40) == Some(&dst.octets()[..]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(v6: bool) -> (IpAddr, IpAddr) {
        let ends = match v6 {
            false => ["192.0.2.1", "198.51.100.7"],
            true => ["2001:db8::1", "2001:db8::7"],
        };
        let [a, b] = ends.map(|text| text.parse().unwrap());
        (a, b)
    }

    /// Returns the answer to an echo request: the request with ends and type changed.
    fn answer(v6: bool, size: u16) -> Vec<u8> {
        let (a, b) = ends(v6);
        let mut packet = echo_request((b, a), 7, size);
        let start = if v6 { 40 } else { 20 };
        packet[start] = if v6 { 129 } else { 0 };
        packet
    }

    #[test]
    fn the_largest_answer_counts() {
        for v6 in [false, true] {
            let mut echoes = Echoes::default();
            for size in [1_400, 1_492, 100] {
                assert_eq!(echo_request(ends(v6), 7, size).len(), usize::from(size));
                on_packet(&answer(v6, size), ends(v6), (1_080, 7), &mut echoes);
            }
            on_packet(&answer(v6, 1_500), ends(v6), (1_080, 8), &mut echoes);
            assert_eq!(echoes.largest, Some(1_492));
            assert!(!echoes.size_reported && !echoes.udp);
        }
    }

    #[test]
    fn errors_tell_of_sizes_and_of_udp() {
        use braid_wire::icmp::{Kind, MAX_LEN, emit};
        for v6 in [false, true] {
            let (_, server) = ends(v6);
            let error = |kind, about: &[u8]| {
                let mut buffer = [0; MAX_LEN];
                let length = emit(kind, server, about, &mut buffer).unwrap();
                buffer[..length].to_vec()
            };
            let mut echoes = Echoes::default();
            let sent = datagram(ends(v6), 1_080);
            on_packet(
                &error(Kind::Unreachable(3), &sent),
                ends(v6),
                (1_081, 7),
                &mut echoes,
            );
            assert!(!echoes.udp, "of another port");
            on_packet(
                &error(Kind::Unreachable(3), &sent),
                ends(v6),
                (1_080, 7),
                &mut echoes,
            );
            assert!(echoes.udp && !echoes.size_reported);
            let sent = echo_request(ends(v6), 7, 1_500);
            let too_big = error(Kind::PacketTooBig { mtu: 1_400 }, &sent);
            on_packet(&too_big, ends(v6), (1_080, 7), &mut echoes);
            assert_eq!((echoes.size_reported, echoes.largest), (true, None));
        }
    }
}
