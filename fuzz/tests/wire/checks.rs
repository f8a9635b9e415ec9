//! Properties that hold for any bytes from the network: parsing never panics, and what was parsed can be
//! written and read again without change.
//!
//! Each check takes arbitrary bytes and panics where its promise is broken.

use std::net::IpAddr;

use braid_wire::icmp::{self, TcpError};
use braid_wire::mptcp::MptcpOption;
use braid_wire::tcp::{self, MAX_OPTIONS_LEN, Options, raw_options};
use braid_wire::{ip, tcp::Repr};

/// Checks `bytes` as an IP packet and all that it may hold.
pub fn check_packet(bytes: &[u8]) {
    read_ip_view(bytes);
    let Ok((repr, payload)) = ip::Repr::parse(bytes) else {
        return;
    };
    assert_eq!(repr.payload_len, payload.len());
    assert_eq!(repr.src.is_ipv4(), repr.dst.is_ipv4());

    let mut again = vec![0; repr.header_len()];
    repr.emit(&mut again);
    again.extend(payload);
    assert_eq!(ip::Repr::parse(&again), Ok((repr, payload)));

    match repr.protocol {
        ip::PROTO_TCP => check_segment(repr.src, repr.dst, payload),
        ip::PROTO_ICMP => check_icmp(false, payload),
        ip::PROTO_ICMPV6 => {
            icmp::verify_v6_checksum(repr.src, repr.dst, payload);
            check_icmp(true, payload);
        }
        _ => {}
    }
}

/// Checks `bytes` as a TCP segment between `src` and `dst`.
pub fn check_segment(src: IpAddr, dst: IpAddr, bytes: &[u8]) {
    tcp::verify_checksum(src, dst, bytes);
    read_tcp_view(bytes);
    let Ok((repr, payload)) = Repr::parse(bytes) else {
        return;
    };
    check_options(&repr.options);
    // Options packed without padding may not fit once each starts on four bytes.
    if repr.options.len() > MAX_OPTIONS_LEN {
        return;
    }
    let mut again = vec![0; repr.header_len()];
    repr.emit(&mut again);
    tcp::fill_checksum(src, dst, &mut again, &[payload]);
    again.extend(payload);
    assert!(tcp::verify_checksum(src, dst, &again));
    assert_eq!(Repr::parse(&again), Ok((repr, payload)));
}

/// Checks `bytes` as the option bytes of a header, of a SYN or not.
pub fn check_option_bytes(syn: bool, bytes: &[u8]) {
    let listed = raw_options(bytes).filter_map(Result::ok);
    let total: usize = listed.map(|option| option.bytes().len()).sum();
    assert!(total <= bytes.len());
    if let Ok(options) = Options::parse(bytes, syn) {
        check_options(&options);
        let mut again = vec![0xee; options.len()];
        options.emit(&mut again);
        assert_eq!(Options::parse(&again, syn), Ok(options));
    }
}

/// Checks `bytes` as an ICMP message.
pub fn check_icmp(v6: bool, bytes: &[u8]) {
    if let Ok(error) = TcpError::parse(v6, bytes) {
        assert_eq!((error.src.is_ipv6(), error.dst.is_ipv6()), (v6, v6));
    }
}

/// Checks `bytes` as one MPTCP option.
pub fn check_mptcp(bytes: &[u8]) {
    if let Ok(option) = MptcpOption::parse(bytes) {
        // REMOVE_ADDR keeps no more than 16 address IDs; all else keeps its length.
        let shortened = matches!(option, MptcpOption::RemoveAddr(_)) && bytes.len() > 19;
        assert!(option.len() == bytes.len() || shortened);
        let mut options = Options::default();
        options.mptcp.push(option);
        check_options(&options);
    }
}

/// The length foretold is that written, each MPTCP option can be read on its own, and the helpers
/// that say what else fits speak the truth.
fn check_options(options: &Options) {
    let len = options.len();
    assert_eq!(len % 4, 0);
    let mut bytes = vec![0xee; len + 1];
    options.emit(&mut bytes);
    assert_eq!(bytes[len], 0xee);
    let written = raw_options(&bytes[..len]).map(|raw| raw.expect("a well-formed list"));
    let mptcp = written.filter(|raw| raw.kind() == tcp::kind::MPTCP);
    let parsed: Vec<_> = mptcp.map(|raw| MptcpOption::parse(raw.bytes())).collect();
    let expected: Vec<_> = options.mptcp.iter().map(|&option| Ok(option)).collect();
    assert_eq!(parsed, expected);

    let mut fuller = options.clone();
    for _ in 0..options.sack_room() {
        fuller.sack.push(Default::default());
    }
    assert!(fuller.len() <= MAX_OPTIONS_LEN.max(len));
}

/// Reads every field through the lazy view.
fn read_ip_view(bytes: &[u8]) {
    let Ok(view) = ip::Packet::new(bytes) else {
        return;
    };
    assert!(view.header_len() + view.payload().len() == view.total_len());
    assert!(view.total_len() <= bytes.len());
    assert_eq!(view.src().is_ipv6(), view.is_v6());
    assert_eq!(view.dst().is_ipv6(), view.is_v6());
    let _ = (view.next_header(), view.hop_limit(), view.traffic_class());
    let _ = (view.is_v4_fragment(), view.checksum_ok());
    if let Ok((_, payload)) = view.transport() {
        assert!(view.payload().ends_with(payload));
    }
}

fn read_tcp_view(bytes: &[u8]) {
    let Ok(view) = tcp::Packet::new(bytes) else {
        return;
    };
    let _ = (view.src_port(), view.dst_port(), view.seq(), view.ack());
    let _ = (view.flags(), view.window(), view.checksum());
    let header_len = tcp::HEADER_LEN + view.options().len();
    assert_eq!(header_len, view.header_len());
    assert_eq!(header_len + view.payload().len(), bytes.len());
}
