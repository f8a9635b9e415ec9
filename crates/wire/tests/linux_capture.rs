//! Packets that a Linux 6.18 MPTCP server sent over a virtual link. They must parse to the expected fields, and
//! emitting those fields must give the same bytes. Because of checksum offload, their TCP checksum field contains
//! only the sum of the pseudo-header.

use braid_wire::checksum::{Sum, sum};
use braid_wire::ip;
use braid_wire::mptcp::{
    AddAddr, Capable, CapableFlags, Dss, DssMapping, Join, MptcpOption, RemoveAddr, WireDsn,
    dss_checksum,
};
use braid_wire::tcp::{self, Repr};
use braid_wire::{Dsn64, Seq32};

/// First data sequence number and DSS checksum of the 3000 bytes `y` that the server sent.
const DSN: u64 = 0x3aa3_f303_d766_05e3;
const CHECKSUM: u16 = 0x2592;
const DATA_LEN: usize = 3000;

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

/// Parses a packet with the headers `text` (hexadecimal) and the payload `payload`. Checks that the parsed header
/// is emitted as the same bytes, and returns it.
#[track_caller]
fn read(text: &str, payload: &[u8]) -> Repr {
    let packet = [hex(text), payload.to_vec()].concat();
    let (ip, segment) = ip::Repr::parse(&packet).unwrap();
    assert_eq!((ip.protocol, ip.hop_limit), (ip::PROTO_TCP, 64));
    let (repr, rest) = Repr::parse(segment).unwrap();
    assert_eq!(rest, payload);

    let mut emitted = vec![0; repr.header_len()];
    repr.emit(&mut emitted);
    tcp::fill_partial_checksum(ip.src, ip.dst, &mut emitted, payload.len());
    assert_eq!(emitted, segment[..repr.header_len()]);
    repr
}

/// Checks the MPTCP options of a packet without payload.
#[track_caller]
fn has_options(text: &str, expected: &[MptcpOption]) {
    assert_eq!(read(text, &[]).options.mptcp[..], *expected);
}

fn ack(data_ack: WireDsn) -> Dss {
    Dss {
        data_ack: Some(data_ack),
        ..Dss::default()
    }
}

#[test]
fn syn_ack() {
    let repr = read(
        "4500004800004000400623e80a6301020a6301010050dce2a4dfa773cc06cf67d012fe8817030000\
         020405b40402080ae0aaf0f1248deebd0103030a1e0c01818b49d20896228c89",
        &[],
    );
    assert_eq!((repr.src_port, repr.dst_port), (80, 56546));
    assert_eq!(
        (repr.seq, repr.ack),
        (Seq32(0xa4df_a773), Seq32(0xcc06_cf67))
    );
    assert_eq!(repr.flags, tcp::Flags::SYN | tcp::Flags::ACK);
    assert_eq!(
        (repr.options.mss, repr.options.window_scale),
        (Some(1460), Some(10))
    );
    assert!(repr.options.sack_permitted);
    let flags = CapableFlags {
        checksum_required: true,
        ..CapableFlags::DEFAULT_OFFER
    };
    let sender_key = 0x8b49_d208_9622_8c89;
    assert_eq!(
        repr.options.capable(),
        Some(&Capable::SynAck {
            version: 1,
            flags,
            sender_key
        })
    );
}

#[test]
fn join_syn_ack() {
    let join = Join::SynAck {
        backup: false,
        address_id: 0,
        hmac: 0xb905_eb24_99d1_c252,
        nonce: 0xd18b_f66f,
    };
    has_options(
        "4500004c00004000400623e40a6301020a630101270fba5b675186bf01ba289be012fe8817070000\
         020405b40402080a39ad762d246192b20103030a1e101000b905eb2499d1c252d18bf66f",
        &[MptcpOption::Join(join)],
    );
}

#[test]
fn add_addr_with_and_without_port() {
    let add = |address_id, addr: &str, port, hmac| {
        let addr = addr.parse().unwrap();
        MptcpOption::AddAddr(AddAddr {
            address_id,
            addr,
            port,
            hmac: Some(hmac),
        })
    };
    has_options(
        "450000483ab240004006e9350a6301020a6301010050dce2a4dfa774cc06cf67d010003f17030000\
         0101080ae0aaf0f1248deebd1e1230020a630102270f03750ec8cf3614340101",
        &[add(2, "10.99.1.2", Some(9999), 0x0375_0ec8_cf36_1434)],
    );
    has_options(
        "450000443ab340004006e9380a6301020a6301010050dce2a4dfa774cc06cf67c010003f16ff0000\
         0101080ae0aaf0f1248deebd1e1030010a630202aa4514183f20044d",
        &[add(1, "10.99.2.2", None, 0xaa45_1418_3f20_044d)],
    );
}

/// The first DATA_ACK of a subflow has 4 bytes, as Linux sends it; later ones have 8.
#[test]
fn data_acks() {
    has_options(
        "4500003c994b400040068aa80a6301020a630101270fba5b675186c001ba289ba010003f16f70000\
         0101080a39ad762d246192b21e082001c6869568",
        &[MptcpOption::Dss(ack(WireDsn::Four(0xc686_9568)))],
    );
    has_options(
        "450000403ab440004006e93b0a6301020a6301010050dce2a4dfa774cc06cf6cb010003f16fb0000\
         0101080ae0aaf0f1248deebd1e0c200354dac2fdc686956d",
        &[MptcpOption::Dss(ack(WireDsn::Eight(0x54da_c2fd_c686_956d)))],
    );
}

#[test]
fn data_with_checksum() {
    let data = [b'y'; DATA_LEN];
    let repr = read(
        "45000c083ab540004006dd720a6301020a6301010050dce2a4dfa774cc06cf6cf018003f22c30000\
         0101080ae0aaf0f2248deebd1e1c200f54dac2fdc686956d3aa3f303d76605e3000000010bb82592",
        &data,
    );
    let mapping = DssMapping {
        dsn: WireDsn::Eight(DSN),
        subflow_seq: 1,
        len: DATA_LEN as u16,
        checksum: Some(CHECKSUM),
    };
    let data_ack = Some(WireDsn::Eight(0x54da_c2fd_c686_956d));
    assert_eq!(
        repr.options.dss(),
        Some(&Dss {
            data_ack,
            mapping: Some(mapping),
            data_fin: false
        })
    );
    let data_sum = sum(Sum::default(), &data);
    assert_eq!(
        dss_checksum(Dsn64(DSN), 1, DATA_LEN as u16, data_sum),
        CHECKSUM
    );
}

#[test]
fn data_ack_and_remove_addr() {
    has_options(
        "450000443ab840004006e9330a6301020a6301010050dce2a4dfb32ccc06cf6cc010003f16ff0000\
         0101080ae0aaf0f2248deebe1e0c200354dac2fdc686956d1e044001",
        &[
            MptcpOption::Dss(ack(WireDsn::Eight(0x54da_c2fd_c686_956d))),
            MptcpOption::RemoveAddr(RemoveAddr::new(&[1]).unwrap()),
        ],
    );
}

/// DATA_FIN without data is a mapping of length 1 at subflow sequence number 0.
#[test]
fn data_fin_with_and_without_checksum() {
    let fin = |data_ack, dsn, checksum| {
        let dsn = WireDsn::Eight(dsn);
        MptcpOption::Dss(Dss {
            data_ack: Some(WireDsn::Eight(data_ack)),
            mapping: Some(DssMapping {
                dsn,
                subflow_seq: 0,
                len: 1,
                checksum,
            }),
            data_fin: true,
        })
    };
    let end = DSN + DATA_LEN as u64;
    has_options(
        "450000503aba40004006e9250a6301020a6301010050dce2a4dfb32ccc06cf6ef010003f170b0000\
         0101080ae0aaf47e248df24a1e1c201f54dac2fdc68695703aa3f303d766119b000000000001e955",
        &[fin(0x54da_c2fd_c686_9570, end, Some(0xe955))],
    );
    assert_eq!(dss_checksum(Dsn64(end), 0, 1, Sum::default()), 0xe955);
    has_options(
        "45000050723440004006b1ab0a6301020a6301010050c29671d199eecbe1c701f010003f170b0000\
         0101080a73dde3fb8774d5bf1e1a201fd8fcac97fef17c85651b21dfd9dd1d070000000000010101",
        &[fin(0xd8fc_ac97_fef1_7c85, 0x651b_21df_d9dd_1d07, None)],
    );
}

/// Linux sends a reset without offload, so its checksum is complete.
#[test]
fn reset() {
    let packet =
        hex("4500002800004000400622080a6302020a6302010050dabb00000000cda967dc5014000086760000");
    let (ip, segment) = ip::Repr::parse(&packet).unwrap();
    assert!(tcp::verify_checksum(ip.src, ip.dst, segment));
    let (repr, _) = Repr::parse(segment).unwrap();
    assert_eq!(repr.flags, tcp::Flags::RST | tcp::Flags::ACK);
    let mut emitted = [0; tcp::HEADER_LEN];
    repr.emit(&mut emitted);
    tcp::fill_checksum(ip.src, ip.dst, &mut emitted, &[]);
    assert_eq!(emitted, segment);
}
