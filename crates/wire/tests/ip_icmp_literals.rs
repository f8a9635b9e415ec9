//! IP headers and ICMP errors, compared byte by byte with literals.

use core::net::IpAddr;

use braid_wire::checksum::{self, Sum};
use braid_wire::icmp::{self, Kind, TcpError};
use braid_wire::{Error, Seq32, ip};

fn addr(text: &str) -> IpAddr {
    text.parse().unwrap()
}

const V4_SRC: [u8; 4] = [192, 0, 2, 1];
const V4_DST: [u8; 4] = [198, 51, 100, 2];
/// The first 8 bytes of a TCP header: ports 40000 and 443, sequence number 0x01020304.
const TCP_START: [u8; 8] = [0x9c, 0x40, 0x01, 0xbb, 1, 2, 3, 4];

/// Returns an IPv4 header for `payload_len` bytes of TCP; `change` is applied before the checksum.
fn v4_header(payload_len: u8, change: impl Fn(&mut [u8])) -> Vec<u8> {
    let mut header = vec![0x45, 0, 0, 20 + payload_len, 0, 0, 0x40, 0, 64, 6, 0, 0];
    header.extend(V4_SRC);
    header.extend(V4_DST);
    change(&mut header);
    let sum = checksum::finish(checksum::sum(Sum::default(), &header));
    header[10..12].copy_from_slice(&sum.to_be_bytes());
    header
}

fn v6_header(next_header: u8, payload_len: u8) -> Vec<u8> {
    let mut header = vec![0x60, 0, 0, 0, 0, payload_len, next_header, 64];
    for addr in ["2001:db8::1", "2001:db8::2"] {
        header.extend(addr.parse::<core::net::Ipv6Addr>().unwrap().octets());
    }
    header
}

#[test]
fn v4() {
    let header = v4_header(8, |h| h[1] = 0xb9);
    let packet = [&header[..], &TCP_START, &[0xff; 3]].concat();
    let repr = ip::Repr {
        src: addr("192.0.2.1"),
        dst: addr("198.51.100.2"),
        protocol: ip::PROTO_TCP,
        payload_len: 8,
        hop_limit: 64,
        traffic_class: 0xb9,
    };
    assert_eq!(
        ip::Repr::parse(&packet),
        Ok((repr, &TCP_START[..])),
        "the payload ends where the header says"
    );
    let mut buf = [0xa5; 20];
    repr.emit(&mut buf);
    assert_eq!(buf, header[..], "DF set, identification 0");
}

#[test]
fn v4_with_options() {
    // Record route (option 7), 4 bytes: the header has 6 words.
    let mut packet = v4_header(12, |_| {});
    packet.extend([7, 4, 4, 0]);
    packet[0] = 0x46;
    packet[10..12].fill(0);
    let sum = checksum::finish(checksum::sum(Sum::default(), &packet));
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    packet.extend(TCP_START);
    assert_eq!(ip::Repr::parse(&packet).unwrap().1, TCP_START);
}

#[test]
fn v4_refused() {
    // Byte 0 is version and header length, 3 the total length (28), 6 and 7 flags and fragment offset.
    let parse = |change: &dyn Fn(&mut [u8])| {
        let packet = [v4_header(8, change), TCP_START.to_vec()].concat();
        ip::Repr::parse(&packet).map(|_| ())
    };
    assert_eq!(parse(&|_| {}), Ok(()));
    assert_eq!(parse(&|h| h[0] = 0x55), Err(Error::BadVersion));
    assert_eq!(parse(&|h| h[0] = 0x44), Err(Error::BadLength));
    assert_eq!(parse(&|h| h[3] = 19), Err(Error::BadLength));
    assert_eq!(parse(&|h| h[3] = 29), Err(Error::Truncated));
    assert_eq!(
        parse(&|h| h[6] = 0x20),
        Err(Error::Unsupported),
        "first fragment"
    );
    assert_eq!(
        parse(&|h| h[7] = 1),
        Err(Error::Unsupported),
        "later fragment"
    );
    assert_eq!(
        parse(&|h| h[6] = 0xc0),
        Ok(()),
        "the reserved bit is ignored"
    );
    let mut packet = [v4_header(8, |_| {}), TCP_START.to_vec()].concat();
    packet[8] -= 1;
    assert_eq!(ip::Repr::parse(&packet), Err(Error::BadChecksum));
    assert_eq!(ip::Repr::parse(&[]), Err(Error::Truncated));
}

#[test]
fn v6() {
    let mut packet = [v6_header(6, 8), TCP_START.to_vec(), vec![0xff; 2]].concat();
    packet[0] = 0x6b;
    packet[1] = 0x91;
    let repr = ip::Repr {
        src: addr("2001:db8::1"),
        dst: addr("2001:db8::2"),
        protocol: ip::PROTO_TCP,
        payload_len: 8,
        hop_limit: 64,
        traffic_class: 0xb9,
    };
    assert_eq!(ip::Repr::parse(&packet), Ok((repr, &TCP_START[..])));
    let mut buf = [0xa5; 40];
    repr.emit(&mut buf);
    packet[1] = 0x90;
    assert_eq!(buf, packet[..40], "the flow label is 0");
}

/// Three extension headers (RFC 8200 section 4): hop-by-hop options (8 bytes), destination options (16 bytes), and
/// a routing header without segments left (8 bytes).
#[test]
fn v6_extension_headers_are_skipped() {
    let chain = [
        &[60, 0, 1, 4, 0, 0, 0, 0][..],
        &[43, 1, 1, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        &[6, 0, 4, 0, 0, 0, 0, 0],
        &TCP_START,
    ]
    .concat();
    let packet = [v6_header(0, 40), chain].concat();
    let (repr, payload) = ip::Repr::parse(&packet).unwrap();
    assert_eq!((repr.protocol, repr.payload_len), (6, 8));
    assert_eq!(payload, TCP_START);

    for cut in 1..33 {
        let mut shorter = packet.clone();
        shorter[5] -= 8 + cut;
        assert_eq!(
            ip::Repr::parse(&shorter),
            Err(Error::Truncated),
            "less {cut}"
        );
    }
    // The routing header has a segment left, so the destination is an intermediate node.
    let mut intermediate = packet.clone();
    intermediate[40 + 8 + 16 + 3] = 1;
    assert_eq!(ip::Repr::parse(&intermediate), Err(Error::Unsupported));
    let fragment = [
        v6_header(44, 16),
        vec![6, 0, 0, 1, 0, 0, 0, 9],
        TCP_START.to_vec(),
    ]
    .concat();
    assert_eq!(ip::Repr::parse(&fragment), Err(Error::Unsupported));
}

/// Returns an ICMPv4 error that quotes `quoted`.
fn icmp_v4(kind: u8, code: u8, rest: [u8; 4], quoted: &[u8]) -> Vec<u8> {
    let mut message = [&[kind, code, 0, 0][..], &rest, quoted].concat();
    let sum = checksum::finish(checksum::sum(Sum::default(), &message));
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    message
}

fn about_tcp(kind: Kind, src: &str, dst: &str) -> Result<TcpError, Error> {
    Ok(TcpError {
        kind,
        src: addr(src),
        dst: addr(dst),
        src_port: 40000,
        dst_port: 443,
        seq: Seq32(0x0102_0304),
    })
}

/// ICMPv4 errors (RFC 792, RFC 1191). Only the first 28 bytes of the packet are quoted.
#[test]
fn icmp_v4_errors() {
    let quoted = [v4_header(200, |_| {}), TCP_START.to_vec()].concat();
    let cases = [
        (
            (3, 4, [0, 0, 0x05, 0x78]),
            Some(Kind::PacketTooBig { mtu: 1400 }),
        ),
        ((3, 4, [0, 0, 0, 0]), Some(Kind::PacketTooBig { mtu: 0 })),
        ((3, 0, [0; 4]), Some(Kind::Unreachable(0))),
        ((3, 13, [0; 4]), Some(Kind::Unreachable(13))),
        ((11, 0, [0; 4]), Some(Kind::TimeExceeded)),
        ((11, 1, [0; 4]), None),
        ((4, 0, [0; 4]), None),
        ((0, 0, [0; 4]), None),
    ];
    for ((kind, code, rest), meaning) in cases {
        let parsed = TcpError::parse(false, &icmp_v4(kind, code, rest, &quoted));
        let expected = meaning.map_or(Err(Error::Unsupported), |kind| {
            about_tcp(kind, "192.0.2.1", "198.51.100.2")
        });
        assert_eq!(parsed, expected, "type {kind} code {code}");
    }
}

#[test]
fn icmp_v4_refused() {
    let parse = |quoted: &[u8]| TcpError::parse(false, &icmp_v4(3, 1, [0; 4], quoted)).map(|_| ());
    let quoted = |change: &dyn Fn(&mut [u8])| [v4_header(8, change), TCP_START.to_vec()].concat();
    assert_eq!(parse(&quoted(&|_| {})), Ok(()));
    assert_eq!(
        parse(&quoted(&|h| h[9] = 17)),
        Err(Error::Unsupported),
        "about UDP"
    );
    assert_eq!(
        parse(&quoted(&|h| h[7] = 1)),
        Err(Error::Unsupported),
        "about a later fragment"
    );
    assert_eq!(parse(&quoted(&|h| h[0] = 0x65)), Err(Error::BadVersion));
    assert_eq!(parse(&quoted(&|h| h[0] = 0x44)), Err(Error::BadLength));
    assert_eq!(
        parse(&quoted(&|h| h[0] = 0x4f)),
        Err(Error::Truncated),
        "options not quoted"
    );
    let whole = quoted(&|_| {});
    for len in 0..whole.len() {
        assert_eq!(
            parse(&whole[..len]),
            Err(Error::Truncated),
            "{len} bytes quoted"
        );
    }
    let mut damaged = icmp_v4(3, 1, [0; 4], &whole);
    damaged[1] = 3;
    assert_eq!(TcpError::parse(false, &damaged), Err(Error::BadChecksum));
}

/// ICMPv6 errors (RFC 4443 section 3).
#[test]
fn icmp_v6_errors() {
    let quoted = [v6_header(6, 200), TCP_START.to_vec()].concat();
    let cases = [
        ((1, 0), Some(Kind::Unreachable(0))),
        ((1, 1), Some(Kind::Unreachable(13))),
        ((1, 2), Some(Kind::Unreachable(0))),
        ((1, 3), Some(Kind::Unreachable(1))),
        ((1, 4), Some(Kind::Unreachable(3))),
        ((1, 5), Some(Kind::Unreachable(13))),
        ((2, 0), Some(Kind::PacketTooBig { mtu: 0x1_0500 })),
        ((3, 0), Some(Kind::TimeExceeded)),
        ((3, 1), None),
        ((4, 0), None),
        ((128, 0), None),
    ];
    for ((kind, code), meaning) in cases {
        let message = [&[kind, code, 0, 0, 0, 1, 5, 0][..], &quoted].concat();
        let expected = meaning.map_or(Err(Error::Unsupported), |kind| {
            about_tcp(kind, "2001:db8::1", "2001:db8::2")
        });
        assert_eq!(
            TcpError::parse(true, &message),
            expected,
            "type {kind} code {code}"
        );
        for len in 0..message.len() {
            assert!(
                TcpError::parse(true, &message[..len]).is_err(),
                "{len} bytes"
            );
        }
    }
}

#[test]
fn icmp_v6_checksum() {
    let (src, dst) = (addr("2001:db8::9"), addr("2001:db8::1"));
    let mut message = vec![1, 4, 0, 0, 0, 0, 0, 0, 9];
    let pseudo = checksum::pseudo_header(src, dst, ip::PROTO_ICMPV6, message.len() as u32);
    let sum = checksum::finish(checksum::sum(pseudo, &message));
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    assert!(icmp::verify_v6_checksum(src, dst, &message));
    message[8] ^= 1;
    assert!(!icmp::verify_v6_checksum(src, dst, &message));
}

#[test]
fn emitted_errors_parse_to_the_same_kind() {
    let v4 = [&v4_header(8, |_| {})[..], &TCP_START].concat();
    let v6 = [&v6_header(6, 8)[..], &TCP_START].concat();
    let mut buf = [0; icmp::MAX_LEN];
    let kinds = [
        (Kind::Unreachable(1), [3, 1], [1, 3]),
        (Kind::Unreachable(3), [3, 3], [1, 4]),
        (Kind::Unreachable(13), [3, 13], [1, 1]),
        (Kind::PacketTooBig { mtu: 1400 }, [3, 4], [2, 0]),
        (Kind::TimeExceeded, [11, 0], [3, 0]),
    ];
    for (packet, router) in [(&v4, "203.0.113.7"), (&v6, "2001:db8::7")] {
        for (kind, fields_v4, fields_v6) in kinds {
            let len = icmp::emit(kind, addr(router), packet, &mut buf).unwrap();
            let (ip, message) = ip::Repr::parse(&buf[..len]).unwrap();
            let sent = ip::Packet::new(packet).unwrap();
            assert_eq!((ip.src, ip.dst), (addr(router), sent.src()));
            let v6 = sent.is_v6();
            assert_eq!(message[..2], if v6 { fields_v6 } else { fields_v4 });
            assert!(!v6 || icmp::verify_v6_checksum(ip.src, ip.dst, message));
            let error = TcpError::parse(v6, message).unwrap();
            assert_eq!(
                (error.kind, error.src, error.dst),
                (kind, sent.src(), sent.dst())
            );
            assert_eq!((error.src_port, error.dst_port), (0x9c40, 443));
            assert_eq!(error.seq, Seq32(0x0102_0304));
            let emitted = buf[..len].to_vec();
            let second = icmp::emit(kind, addr(router), &emitted, &mut buf);
            assert_eq!(second, Err(Error::Unsupported), "an error about an error");
        }
    }
    let other = icmp::emit(Kind::TimeExceeded, addr("::1"), &v4, &mut buf);
    assert_eq!(other, Err(Error::Unsupported));
}

#[test]
fn a_long_packet_is_quoted_in_part() {
    let mut packet = vec![0; 1500];
    let repr = ip::Repr {
        src: addr("192.0.2.1"),
        dst: addr("198.51.100.2"),
        protocol: ip::PROTO_TCP,
        payload_len: 1480,
        hop_limit: 64,
        traffic_class: 0,
    };
    repr.emit(&mut packet);
    let mut buf = [0; icmp::MAX_LEN];
    let kind = Kind::PacketTooBig { mtu: 1400 };
    let len = icmp::emit(kind, addr("203.0.113.7"), &packet, &mut buf);
    // 576 bytes less the headers of IP (20) and ICMP (8) leave 548 for the quotation.
    assert_eq!(len, Ok(576));
    let (_, message) = ip::Repr::parse(&buf[..576]).unwrap();
    assert_eq!(message[8..], packet[..548]);
    assert_eq!(TcpError::parse(false, message).unwrap().kind, kind);
}
