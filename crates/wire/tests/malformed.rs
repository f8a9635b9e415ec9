//! Damaged input is refused or parsed as something else, but causes no panic.

mod strategies;

use core::net::IpAddr;

use braid_wire::icmp::{self, Kind, TcpError};
use braid_wire::mptcp::MptcpOption;
use braid_wire::tcp::Options;
use braid_wire::{Error, ip, tcp, udp};
use proptest::collection::vec;
use proptest::prelude::*;
use strategies::{mptcp_option, packet, tcp_repr};

/// Calls every parser of bytes from the network.
fn parse_all(bytes: &[u8]) {
    if let Ok((ip, payload)) = ip::Repr::parse(bytes) {
        let _ = tcp::verify_checksum(ip.src, ip.dst, payload);
        let _ = tcp::Repr::parse(payload);
    }
    let _ = tcp::Repr::parse(bytes);
    let _ = udp::Repr::parse(bytes);
    let _ = tcp::complete_checksum(&mut bytes.to_vec());
    for from in [IpAddr::from([192, 0, 2, 1]), IpAddr::from([0x2001; 8])] {
        let _ = icmp::emit(Kind::TimeExceeded, from, bytes, &mut [0; icmp::MAX_LEN]);
    }
    let _ = Options::parse(bytes, true);
    let _ = MptcpOption::parse(bytes);
    for v6 in [false, true] {
        let _ = TcpError::parse(v6, bytes);
    }
}

proptest! {
    /// A packet that is cut short is refused, because its header gives a greater length.
    #[test]
    fn every_truncation_of_a_packet(packet in packet()) {
        for len in 0..packet.len() {
            prop_assert_eq!(ip::Repr::parse(&packet[..len]), Err(Error::Truncated), "at {}", len);
        }
    }

    /// A segment that is cut within its header is refused.
    #[test]
    fn every_truncation_of_a_header(repr in tcp_repr()) {
        let mut header = vec![0; repr.header_len()];
        repr.emit(&mut header);
        for len in 0..header.len() {
            prop_assert_eq!(tcp::Repr::parse(&header[..len]), Err(Error::Truncated), "at {}", len);
        }
    }

    /// An MPTCP option that is cut short is refused. If its length byte is changed to the shorter length, it may
    /// parse as another form of the option, which must have that length.
    #[test]
    fn every_truncation_of_an_mptcp_option(option in mptcp_option()) {
        let mut options = Options::default();
        options.mptcp.push(option);
        let mut buf = [0; 40];
        options.emit(&mut buf);
        for len in 0..option.len() {
            prop_assert!(MptcpOption::parse(&buf[..len]).is_err());
            let mut cut = buf[..len].to_vec();
            if len >= 2 {
                cut[1] = len as u8;
            }
            if let Ok(other) = MptcpOption::parse(&cut) {
                prop_assert_eq!(other.len(), len);
                prop_assert_ne!(other, option);
            }
        }
    }

    /// Random changes of a valid packet cause no panic.
    #[test]
    fn a_few_damaged_bytes(
        packet in packet(),
        damage in vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let mut packet = packet;
        for (at, value) in damage {
            let at = at.index(packet.len());
            packet[at] = value;
        }
        parse_all(&packet);
        let header = if packet[0] >> 4 == 4 { 20 } else { 40 };
        parse_all(&packet[header..]);
    }

    /// A random value in each byte of the options, among them the lengths, causes no panic.
    #[test]
    fn changed_option_bytes(repr in tcp_repr(), len in any::<u8>()) {
        let mut header = vec![0; repr.header_len()];
        repr.emit(&mut header);
        for at in tcp::HEADER_LEN..header.len() {
            let original = std::mem::replace(&mut header[at], len);
            let _ = tcp::Repr::parse(&header);
            header[at] = original;
        }
    }

    /// Random bytes cause no panic.
    #[test]
    fn noise(bytes in vec(any::<u8>(), 0..128)) {
        parse_all(&bytes);
    }
}
