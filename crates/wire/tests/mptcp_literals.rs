//! Every form of every MPTCP option, compared byte by byte with the figures of RFC 8684. Where Linux sends a form,
//! the bytes are those of Linux. Sections are those of RFC 8684.

use braid_wire::checksum::{Sum, sum};
use braid_wire::mptcp::{
    AddAddr, Capable, CapableFlags, Dss, DssMapping, Join, MptcpOption, RemoveAddr, ResetReason,
    WireDsn, dss_checksum,
};
use braid_wire::tcp::Options;
use braid_wire::{Dsn64, Error};

const KEY_A: u64 = 0x0102_0304_0506_0708;
const KEY_B: u64 = 0xf1f2_f3f4_f5f6_f7f8;
const HEX_A: &str = "0102030405060708";
const HEX_B: &str = "f1f2f3f4f5f6f7f8";

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text
        .chars()
        .filter_map(|c| c.to_digit(16))
        .map(|d| d as u8)
        .collect();
    digits
        .chunks(2)
        .map(|pair| pair[0] << 4 | pair[1])
        .collect()
}

/// Checks that the bytes of `text` parse to `option`, and that `option` is emitted as these bytes and padding.
#[track_caller]
fn round_trip(text: &str, option: MptcpOption) {
    let bytes = hex(text);
    assert_eq!(MptcpOption::parse(&bytes), Ok(option));
    assert_eq!(option.len(), bytes.len());
    let mut options = Options::default();
    options.mptcp.push(option);
    let mut buf = [0xee; 40];
    options.emit(&mut buf);
    assert_eq!(buf[..bytes.len()], bytes);
    assert!(
        buf[bytes.len()..options.len()].iter().all(|&b| b == 1),
        "padded with NOPs"
    );
    assert!(
        buf[options.len()..].iter().all(|&b| b == 0xee),
        "no byte after the length changes"
    );
    assert_eq!(options.len(), bytes.len().div_ceil(4) * 4);
}

/// Checks that parsing the bytes of `text` fails with `error`.
#[track_caller]
fn refused(text: &str, error: Error) {
    assert_eq!(MptcpOption::parse(&hex(text)), Err(error));
}

fn flags(byte: u8) -> CapableFlags {
    CapableFlags::from(byte)
}

/// Section 3.1, figure 4; the first three are from a Linux 6.18 client and server.
#[test]
fn capable() {
    let h = CapableFlags::DEFAULT_OFFER;
    round_trip(
        "1e040101",
        MptcpOption::Capable(Capable::Syn {
            version: 1,
            flags: h,
        }),
    );
    round_trip(
        &format!("1e0c0101 {HEX_B}"),
        MptcpOption::Capable(Capable::SynAck {
            version: 1,
            flags: h,
            sender_key: KEY_B,
        }),
    );
    round_trip(
        &format!("1e140101 {HEX_A}{HEX_B}"),
        MptcpOption::Capable(Capable::Ack {
            flags: h,
            sender_key: KEY_A,
            receiver_key: KEY_B,
        }),
    );
    let data = |flags, checksum| {
        MptcpOption::Capable(Capable::Data {
            flags,
            sender_key: KEY_A,
            receiver_key: KEY_B,
            data_len: 0x0564,
            checksum,
        })
    };
    round_trip(&format!("1e160101 {HEX_A}{HEX_B} 0564"), data(h, None));
    round_trip(
        &format!("1e180181 {HEX_A}{HEX_B} 0564 beef"),
        data(flags(0x81), Some(0xbeef)),
    );
}

#[test]
fn capable_flags() {
    assert!(flags(0x80).checksum_required);
    assert!(flags(0x40).extensibility);
    assert!(flags(0x20).deny_join_initial);
    assert!(flags(0x01).hmac_sha256);
    assert_eq!(flags(0x1e), CapableFlags::default(), "D to G are ignored");
    assert_eq!(u8::from(flags(0xff)), 0xe1);
}

/// The SYN/ACK of version 0 (RFC 6824) parses, because it negotiates the version. The third ACK of version 0 does
/// not.
#[test]
fn capable_of_other_versions() {
    round_trip(
        &format!("1e0c0001 {HEX_A}"),
        MptcpOption::Capable(Capable::SynAck {
            version: 0,
            flags: flags(1),
            sender_key: KEY_A,
        }),
    );
    refused(&format!("1e140001 {HEX_A}{HEX_B}"), Error::Unsupported);
    refused(
        &format!("1e130101 {HEX_A}{}", &HEX_B[2..]),
        Error::BadOption,
    );
}

/// Section 3.2, figures 5 to 7.
// Conforms: 8684-3.2-14
#[test]
fn join() {
    round_trip(
        "1e0c1005 deadbeef 01020304",
        MptcpOption::Join(Join::Syn {
            backup: false,
            address_id: 5,
            token: 0xdead_beef,
            nonce: 0x0102_0304,
        }),
    );
    round_trip(
        &format!("1e101102 {HEX_A} 0a0b0c0d"),
        MptcpOption::Join(Join::SynAck {
            backup: true,
            address_id: 2,
            hmac: KEY_A,
            nonce: 0x0a0b_0c0d,
        }),
    );
    let hmac = core::array::from_fn(|i| i as u8 + 1);
    round_trip(
        "1e181000 0102030405060708090a0b0c0d0e0f1011121314",
        MptcpOption::Join(Join::Ack { hmac }),
    );
    refused("1e081005 deadbeef", Error::BadOption);
}

fn mapping(dsn: WireDsn, checksum: Option<u16>) -> Option<DssMapping> {
    Some(DssMapping {
        dsn,
        subflow_seq: 0x1122_3344,
        len: 0x5566,
        checksum,
    })
}

/// Section 3.3, figure 9: both widths of both fields, with and without checksum.
// Conforms: 8684-3.3-1
#[test]
fn dss() {
    let four = WireDsn::Four(0x0506_0708);
    let eight = WireDsn::Eight(KEY_A);
    let wide_ack = Some(WireDsn::Eight(KEY_B));
    let cases = [
        ("1e042000", None, None, false),
        ("1e082001 05060708", Some(four), None, false),
        ("1e0c2003 0102030405060708", Some(eight), None, false),
        (
            "1e0e2004 05060708 11223344 5566",
            None,
            mapping(four, None),
            false,
        ),
        (
            "1e102004 05060708 11223344 5566 7788",
            None,
            mapping(four, Some(0x7788)),
            false,
        ),
        (
            "1e12200c 0102030405060708 11223344 5566",
            None,
            mapping(eight, None),
            false,
        ),
        (
            "1e14201c 0102030405060708 11223344 5566 7788",
            None,
            mapping(eight, Some(0x7788)),
            true,
        ),
        (
            "1e122005 05060708 05060708 11223344 5566",
            Some(four),
            mapping(four, None),
            false,
        ),
        (
            "1e1a201f f1f2f3f4f5f6f7f8 0102030405060708 11223344 5566",
            wide_ack,
            mapping(eight, None),
            true,
        ),
        (
            "1e1c200f f1f2f3f4f5f6f7f8 0102030405060708 11223344 5566 7788",
            wide_ack,
            mapping(eight, Some(0x7788)),
            false,
        ),
    ];
    for (text, data_ack, mapping, data_fin) in cases {
        round_trip(
            text,
            MptcpOption::Dss(Dss {
                data_ack,
                mapping,
                data_fin,
            }),
        );
    }
}

#[test]
fn dss_of_wrong_length() {
    // In order: a cut acknowledgement, trailing bytes, half a checksum, trailing bytes.
    refused("1e062001 0506", Error::Truncated);
    refused("1e0a2001 05060708 0000", Error::BadOption);
    refused("1e0f2004 05060708 11223344 5566 77", Error::Truncated);
    refused("1e112004 05060708 11223344 5566 7788 99", Error::BadOption);
    // The flags for the widths have no effect without their fields (m without M, a without A).
    let empty = Dss::default();
    assert_eq!(
        MptcpOption::parse(&hex("1e04200a")),
        Ok(MptcpOption::Dss(empty))
    );
}

/// Section 3.4.1, figure 12.
// Conforms: 8684-3.4.1-10
#[test]
fn add_addr() {
    let v4 = "192.0.2.7".parse().unwrap();
    let v6 = "2001:db8::7".parse().unwrap();
    let hmac = Some(KEY_B);
    let port = Some(0x1f90);
    let hex_v6 = "20010db8000000000000000000000007";
    let cases = [
        (format!("1e103009 c0000207 {HEX_B}"), v4, None, hmac),
        (format!("1e123009 c0000207 1f90 {HEX_B}"), v4, port, hmac),
        ("1e083109 c0000207".to_owned(), v4, None, None),
        ("1e0a3109 c0000207 1f90".to_owned(), v4, port, None),
        (format!("1e1c3009 {hex_v6} {HEX_B}"), v6, None, hmac),
        (format!("1e1e3009 {hex_v6} 1f90 {HEX_B}"), v6, port, hmac),
        (format!("1e143109 {hex_v6}"), v6, None, None),
        (format!("1e163109 {hex_v6} 1f90"), v6, port, None),
    ];
    for (text, addr, port, hmac) in cases {
        let add = AddAddr {
            address_id: 9,
            addr,
            port,
            hmac,
        };
        round_trip(&text, MptcpOption::AddAddr(add));
        assert_eq!(add.echo(), AddAddr { hmac: None, ..add });
    }
    // An echo has no HMAC; an announcement must have one. Version 0 had neither the E flag nor the HMAC.
    refused(&format!("1e103109 c0000207 {HEX_B}"), Error::BadOption);
    refused("1e083009 c0000207", Error::BadOption);
    refused("1e043009", Error::BadOption);
}

/// Section 3.4.2, figure 13.
#[test]
fn remove_addr() {
    round_trip(
        "1e044007",
        MptcpOption::RemoveAddr(RemoveAddr::new(&[7]).unwrap()),
    );
    round_trip(
        "1e06400007ff",
        MptcpOption::RemoveAddr(RemoveAddr::new(&[0, 7, 255]).unwrap()),
    );
    refused("1e0340", Error::BadOption);
    assert_eq!(RemoveAddr::new(&[]), None);
    let many: Vec<u8> = (0..20).collect();
    assert_eq!(RemoveAddr::new(&many).unwrap().ids(), &many[..16]);
}

/// Sections 3.3.8, 3.7, 3.5 and 3.6. Linux 6.18 sent the first MP_TCPRST after a bad HMAC.
// Conforms: 8684-3.6-1
#[test]
fn prio_fail_fastclose_tcprst() {
    round_trip("1e0350", MptcpOption::Prio { backup: false });
    round_trip("1e0351", MptcpOption::Prio { backup: true });
    // In version 0 the option may name another subflow by an address ID. It must not be taken for one about this
    // subflow.
    refused("1e045102", Error::BadOption);
    round_trip(
        &format!("1e0c6000 {HEX_A}"),
        MptcpOption::Fail { dsn: Dsn64(KEY_A) },
    );
    round_trip(
        &format!("1e0c7000 {HEX_B}"),
        MptcpOption::FastClose {
            receiver_key: KEY_B,
        },
    );
    round_trip(
        "1e048001",
        MptcpOption::Reset {
            transient: false,
            reason: ResetReason::MptcpSpecific,
        },
    );
    round_trip(
        "1e048106",
        MptcpOption::Reset {
            transient: true,
            reason: ResetReason::MiddleboxInterference,
        },
    );
}

#[test]
fn reset_reasons_are_their_codes() {
    for code in 0..=255 {
        assert_eq!(u8::from(ResetReason::from(code)), code);
    }
    assert_eq!(ResetReason::from(4), ResetReason::TooMuchOutstanding);
    assert_eq!(ResetReason::from(7), ResetReason::Other(7));
}

#[test]
fn options_that_are_not_of_rfc_8684() {
    // Two undefined subtypes, another option kind, a wrong length byte, and an option without a subtype.
    refused("1e0490ff", Error::Unsupported);
    refused("1e04f000", Error::Unsupported);
    refused("1d040101", Error::BadOption);
    refused("1e050101", Error::BadLength);
    refused("1e02", Error::Truncated);
}

/// The checksum covers DSN, subflow sequence number, length, two zero bytes, and the data (section 3.3.1).
// Conforms: 8684-3.3.1-8
#[test]
fn dss_checksum_covers_its_pseudo_header() {
    let words = [
        0x0102u32, 0x0304, 0x0506, 0x0708, 0x0000, 0x0001, 0x0003, 0x0000,
    ];
    let data = [0xaa, 0xbb, 0xcc];
    let total = words.iter().sum::<u32>() + 0xaabb + 0xcc00;
    let expected = !(((total >> 16) + (total & 0xffff)) as u16);
    assert_eq!(
        dss_checksum(Dsn64(KEY_A), 1, 3, sum(Sum::default(), &data)),
        expected
    );
}

#[test]
fn wire_dsn_expands_to_the_nearest() {
    let near = Dsn64(0x7_ffff_fff0);
    assert_eq!(WireDsn::Four(0x10).expand(near), Dsn64(0x8_0000_0010));
    assert_eq!(
        WireDsn::Four(0xffff_ff00).expand(near),
        Dsn64(0x7_ffff_ff00)
    );
    assert_eq!(WireDsn::Eight(5).expand(near), Dsn64(5));
    assert_eq!(WireDsn::new(near, false), WireDsn::Four(0xffff_fff0));
    assert_eq!(WireDsn::new(near, true), WireDsn::Eight(near.0));
}
