//! Generators of random valid headers and options.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use braid_wire::mptcp::{
    AddAddr, Capable, CapableFlags, Dss, DssMapping, Join, MptcpOption, RemoveAddr, ResetReason,
    WireDsn,
};
use braid_wire::tcp::{self, Flags, MAX_OPTIONS_LEN, Options, Timestamps};
use braid_wire::{Dsn64, Seq32, ip};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

pub fn v4() -> impl Strategy<Value = IpAddr> {
    any::<u32>().prop_map(|bits| Ipv4Addr::from(bits).into())
}

pub fn v6() -> impl Strategy<Value = IpAddr> {
    any::<u128>().prop_map(|bits| Ipv6Addr::from(bits).into())
}

/// Generates two addresses of the same family.
pub fn addr_pair() -> impl Strategy<Value = (IpAddr, IpAddr)> {
    prop_oneof![(v4(), v4()), (v6(), v6())]
}

/// Generates an IP header of an upper-layer protocol.
pub fn ip_repr(payload_len: usize) -> impl Strategy<Value = ip::Repr> {
    let protocol = prop_oneof![
        Just(ip::PROTO_TCP),
        Just(ip::PROTO_UDP),
        Just(ip::PROTO_ICMP),
        Just(ip::PROTO_ICMPV6)
    ];
    (addr_pair(), protocol, any::<u8>(), any::<u8>()).prop_map(
        move |((src, dst), protocol, hop_limit, traffic_class)| ip::Repr {
            src,
            dst,
            protocol,
            payload_len,
            hop_limit,
            traffic_class,
        },
    )
}

fn capable_flags() -> impl Strategy<Value = CapableFlags> {
    any::<u8>().prop_map(CapableFlags::from)
}

fn capable() -> impl Strategy<Value = Capable> {
    (
        0..16u8,
        capable_flags(),
        any::<(u64, u64, u16)>(),
        any::<Option<u16>>(),
        0..4u8,
    )
        .prop_map(
            |(version, flags, (sender_key, receiver_key, data_len), checksum, form)| match form {
                0 => Capable::Syn { version, flags },
                1 => Capable::SynAck {
                    version,
                    flags,
                    sender_key,
                },
                2 => Capable::Ack {
                    flags,
                    sender_key,
                    receiver_key,
                },
                _ => Capable::Data {
                    flags,
                    sender_key,
                    receiver_key,
                    data_len,
                    checksum,
                },
            },
        )
}

fn join() -> impl Strategy<Value = Join> {
    prop_oneof![
        any::<(bool, u8, u32, u32)>().prop_map(|(backup, address_id, token, nonce)| Join::Syn {
            backup,
            address_id,
            token,
            nonce
        }),
        any::<(bool, u8, u64, u32)>().prop_map(|(backup, address_id, hmac, nonce)| Join::SynAck {
            backup,
            address_id,
            hmac,
            nonce
        }),
        any::<[u8; 20]>().prop_map(|hmac| Join::Ack { hmac }),
    ]
}

fn wire_dsn() -> impl Strategy<Value = WireDsn> {
    any::<(u64, bool)>().prop_map(|(dsn, eight)| WireDsn::new(Dsn64(dsn), eight))
}

fn dss() -> impl Strategy<Value = Dss> {
    let mapping = (wire_dsn(), any::<(u32, u16, Option<u16>)>()).prop_map(
        |(dsn, (subflow_seq, len, checksum))| DssMapping {
            dsn,
            subflow_seq,
            len,
            checksum,
        },
    );
    (option::of(wire_dsn()), option::of(mapping), any::<bool>()).prop_map(
        |(data_ack, mapping, data_fin)| Dss {
            data_ack,
            mapping,
            data_fin,
        },
    )
}

fn add_addr() -> impl Strategy<Value = AddAddr> {
    (
        any::<u8>(),
        prop_oneof![v4(), v6()],
        any::<Option<u16>>(),
        any::<Option<u64>>(),
    )
        .prop_map(|(address_id, addr, port, hmac)| AddAddr {
            address_id,
            addr,
            port,
            hmac,
        })
}

/// Generates any MPTCP option.
pub fn mptcp_option() -> impl Strategy<Value = MptcpOption> {
    prop_oneof![
        capable().prop_map(MptcpOption::Capable),
        join().prop_map(MptcpOption::Join),
        dss().prop_map(MptcpOption::Dss),
        add_addr().prop_map(MptcpOption::AddAddr),
        vec(any::<u8>(), 1..=16)
            .prop_map(|ids| MptcpOption::RemoveAddr(RemoveAddr::new(&ids).unwrap())),
        any::<bool>().prop_map(|backup| MptcpOption::Prio { backup }),
        any::<u64>().prop_map(|dsn| MptcpOption::Fail { dsn: Dsn64(dsn) }),
        any::<u64>().prop_map(|receiver_key| MptcpOption::FastClose { receiver_key }),
        any::<(bool, u8)>().prop_map(|(transient, code)| MptcpOption::Reset {
            transient,
            reason: ResetReason::from(code)
        }),
    ]
}

/// Generates options that fit a header. Options that belong on a SYN are generated only if `syn` is true.
fn options(syn: bool) -> impl Strategy<Value = Options> {
    let cookie = prop_oneof![Just(0usize), (2..=8usize).prop_map(|pairs| 2 * pairs)]
        .prop_flat_map(|len| vec(any::<u8>(), len));
    let of_syn = (
        any::<Option<u16>>(),
        option::of(0..=14u8),
        any::<bool>(),
        option::of(cookie),
    );
    let of_all = (
        any::<Option<(u32, u32)>>(),
        vec(any::<(u32, u32)>(), 0..=4),
        vec(mptcp_option(), 0..=4),
    );
    (of_syn, of_all).prop_map(
        move |((mss, window_scale, sack_permitted, cookie), (timestamps, sack, mptcp))| {
            let mut options = Options::default();
            if syn {
                options.mss = mss;
                options.window_scale = window_scale;
                options.sack_permitted = sack_permitted;
            }
            options.timestamps = timestamps.map(|(value, echo)| Timestamps { value, echo });
            if let Some(cookie) = cookie.filter(|c| syn && c.len() + 3 <= options.room()) {
                options.fast_open = Some(cookie[..].try_into().unwrap());
            }
            for option in mptcp {
                if options.fits(&option) {
                    options.mptcp.push(option);
                }
            }
            let blocks = options.sack_room();
            let sack = sack.into_iter().take(blocks);
            options.sack = sack
                .map(|(left, right)| (Seq32(left), Seq32(right)))
                .collect();
            assert!(options.len() <= MAX_OPTIONS_LEN);
            options
        },
    )
}

/// Generates any TCP header.
pub fn tcp_repr() -> impl Strategy<Value = tcp::Repr> {
    (
        any::<u8>(),
        1..=u16::MAX,
        1..=u16::MAX,
        any::<(u32, u32, u16)>(),
    )
        .prop_flat_map(|(flags, src_port, dst_port, (seq, ack, window))| {
            let flags = Flags(flags);
            options(flags.contains(Flags::SYN)).prop_map(move |options| tcp::Repr {
                seq: Seq32(seq),
                ack: Seq32(ack),
                window,
                options,
                ..tcp::Repr::new(src_port, dst_port, flags)
            })
        })
}

/// Generates a whole IP packet with a TCP segment and correct checksums.
pub fn packet() -> impl Strategy<Value = Vec<u8>> {
    (tcp_repr(), ip_repr(0), vec(any::<u8>(), 0..64)).prop_map(|(tcp, ip, payload)| {
        let ip = ip::Repr {
            protocol: ip::PROTO_TCP,
            payload_len: tcp.header_len() + payload.len(),
            ..ip
        };
        let mut packet = vec![0; ip.header_len() + tcp.header_len()];
        let (ip_header, tcp_header) = packet.split_at_mut(ip.header_len());
        ip.emit(ip_header);
        tcp.emit(tcp_header);
        tcp::fill_checksum(ip.src, ip.dst, tcp_header, &[&payload]);
        packet.extend(payload);
        packet
    })
}
