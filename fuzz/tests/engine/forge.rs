//! Packets made from real ones: every number near one that is right, every checksum right.

use std::net::IpAddr;

use bolero::TypeGenerator;
use braid_wire::icmp::{self, Kind};
use braid_wire::mptcp::{AddAddr, Capable, Dss, DssMapping, MptcpOption, RemoveAddr, WireDsn};
use braid_wire::tcp::{self, Flags, MAX_OPTIONS_LEN, Options, Timestamps};
use braid_wire::{Dsn64, Seq32, ip};

/// A packet, or several that were merged.
#[derive(Debug, Clone)]
pub struct Packet {
    pub bytes: Vec<u8>,
    pub gso_size: u16,
}

/// A distance: small, or a small number times a power of two.
#[derive(Debug, Clone, Copy, TypeGenerator)]
pub struct Near {
    by: i8,
    #[generator(0..32)]
    shift: u8,
}

impl Near {
    fn of(self, n: u32) -> u32 {
        n.wrapping_add_signed(i32::from(self.by) << self.shift)
    }

    fn of_dsn(self, dsn: WireDsn) -> WireDsn {
        match dsn {
            WireDsn::Four(n) => WireDsn::Four(self.of(n)),
            WireDsn::Eight(n) => {
                WireDsn::Eight(n.wrapping_add_signed(i64::from(self.by) << (self.shift * 2)))
            }
        }
    }
}

/// A change to a packet.
#[derive(Debug, Clone, TypeGenerator)]
pub enum Change {
    Seq(Near),
    Ack(Near),
    /// Bits that are turned over.
    Flags(u8),
    Window(u16),
    /// Timestamp and echo.
    Times(Near, Near),
    Sack([(Near, Near); 3]),
    /// Cut, or filled up with other bytes.
    Payload(#[generator(0..3000)] u16),
    /// The port of the sender.
    Port(u16),
    /// ECN bits of the packet.
    Ecn(#[generator(0..4)] u8),
    SuperSegment(u16),
    /// All options are those of a packet seen before.
    Options(u8),
    Dss(DssChange),
    Prio(bool),
    /// With the key of a packet seen before, if it has one.
    FastClose(u8),
    /// Near what the packet acknowledges of the data.
    Fail(Near),
    /// ADD_ADDR of the address that the packet comes from, under another id and port: valid as an echo only.
    AddAddr(u8, Option<u16>, Option<u64>),
    RemoveAddr([u8; 2]),
    /// Anything at all behind the ports.
    Byte(#[generator(4..60)] u8, u8),
}

/// A data sequence signal near the one of the packet, if it has one.
#[derive(Debug, Clone, TypeGenerator)]
pub struct DssChange {
    ack: Option<Near>,
    mapping: Option<MappingChange>,
    fin: bool,
}

#[derive(Debug, Clone, TypeGenerator)]
struct MappingChange {
    dsn: Near,
    subflow_seq: Option<Near>,
    /// 1 (the end by itself), any other, or that of the packet.
    #[generator(0..4)]
    len_kind: u8,
    len: u16,
}

/// Headers and payload of a packet that is one.
pub fn parse(packet: &[u8]) -> Option<(ip::Repr, tcp::Repr, &[u8])> {
    let (ip, segment) = ip::Repr::parse(packet).ok()?;
    let (tcp, payload) = tcp::Repr::parse(segment).ok()?;
    Some((ip, tcp, payload))
}

/// A SYN or SYN/ACK without timestamps, or without word of SACK; any other packet as it is.
pub fn without(packet: Packet, timestamps: bool, sack: bool) -> Packet {
    let Some((ip, mut tcp, payload)) = parse(&packet.bytes) else {
        return packet;
    };
    if !tcp.flags.contains(Flags::SYN) || !(timestamps || sack) {
        return packet;
    }
    if timestamps {
        tcp.options.timestamps = None;
    }
    tcp.options.sack_permitted &= !sack;
    let mut header = vec![0; tcp.header_len()];
    tcp.emit(&mut header);
    put_together(ip, header, payload, packet.gso_size)
}

/// `packet` with these changes; others were `seen` before. As it is where it is no packet any more.
pub fn change(packet: &Packet, changes: &[Change], seen: &[Packet]) -> Packet {
    let Some((mut ip, mut tcp, payload)) = parse(&packet.bytes) else {
        return packet.clone();
    };
    let (mut payload, mut gso_size) = (payload.to_vec(), packet.gso_size);
    let options = |n: u8| {
        let other = seen.get(usize::from(n) % seen.len().max(1));
        let other = other.and_then(|p| parse(&p.bytes));
        other.map_or(Options::new(), |(_, tcp, _)| tcp.options)
    };
    for change in changes {
        match change {
            Change::Seq(near) => tcp.seq.0 = near.of(tcp.seq.0),
            Change::Ack(near) => tcp.ack.0 = near.of(tcp.ack.0),
            Change::Flags(bits) => tcp.flags = Flags(tcp.flags.0 ^ bits),
            Change::Window(window) => tcp.window = *window,
            Change::Times(value, echo) => {
                tcp.options.timestamps = tcp.options.timestamps.map(|times| Timestamps {
                    value: value.of(times.value),
                    echo: echo.of(times.echo),
                });
            }
            Change::Sack(blocks) => {
                let near = |near: Near| Seq32(near.of(tcp.ack.0));
                tcp.options.sack = blocks.iter().map(|b| (near(b.0), near(b.1))).collect();
            }
            Change::Payload(len) => payload.resize(usize::from(*len), 0xee),
            Change::Port(port) => tcp.src_port = port | 1,
            Change::Ecn(bits) => ip.traffic_class = ip.traffic_class & !ip::CE | bits,
            Change::SuperSegment(size) => gso_size = *size,
            Change::Options(n) => tcp.options = options(*n),
            Change::Dss(change) => change_dss(&mut tcp.options, change),
            Change::Prio(backup) => add(&mut tcp.options, MptcpOption::Prio { backup: *backup }),
            Change::FastClose(n) => {
                if let Some(
                    Capable::Ack { receiver_key, .. } | Capable::Data { receiver_key, .. },
                ) = options(*n).capable().copied()
                {
                    add(&mut tcp.options, MptcpOption::FastClose { receiver_key });
                }
            }
            Change::Fail(_) | Change::AddAddr(..) | Change::RemoveAddr(_) => {
                signal(change, ip.src, &mut tcp.options);
            }
            Change::Byte(..) => {}
        }
    }
    while tcp.options.len() > MAX_OPTIONS_LEN {
        tcp.options.sack.clear();
        tcp.options.mptcp.pop();
    }
    let mut header = vec![0; tcp.header_len()];
    tcp.emit(&mut header);
    for change in changes {
        if let Change::Byte(at, bits) = change
            && let Some(byte) = header.get_mut(usize::from(*at))
        {
            *byte ^= bits;
        }
    }
    put_together(ip, header, &payload, gso_size)
}

fn put_together(mut ip: ip::Repr, mut header: Vec<u8>, payload: &[u8], gso_size: u16) -> Packet {
    tcp::fill_checksum(ip.src, ip.dst, &mut header, &[payload]);
    ip.payload_len = header.len() + payload.len();
    let mut bytes = vec![0; ip.header_len()];
    ip.emit(&mut bytes);
    bytes.extend([&header, payload].concat());
    Packet { bytes, gso_size }
}

/// Adds an option that says nothing of data, on a packet from `src`.
fn signal(change: &Change, src: IpAddr, options: &mut Options) {
    let option = match change {
        Change::Fail(near) => {
            let ack = options.dss().and_then(|dss| dss.data_ack);
            ack.map(|ack| MptcpOption::Fail {
                dsn: match near.of_dsn(ack) {
                    WireDsn::Four(dsn) => Dsn64(dsn.into()),
                    WireDsn::Eight(dsn) => Dsn64(dsn),
                },
            })
        }
        Change::AddAddr(address_id, port, hmac) => Some(MptcpOption::AddAddr(AddAddr {
            address_id: *address_id,
            addr: src,
            port: *port,
            hmac: *hmac,
        })),
        Change::RemoveAddr(ids) => RemoveAddr::new(ids).map(MptcpOption::RemoveAddr),
        _ => None,
    };
    option.into_iter().for_each(|option| add(options, option));
}

/// Adds an option if there is a place in the list.
fn add(options: &mut Options, option: MptcpOption) {
    let _ = options.mptcp.try_push(option);
}

fn change_dss(options: &mut Options, change: &DssChange) {
    let old = options.dss().copied().unwrap_or_default();
    let ack = old.data_ack.unwrap_or(WireDsn::Four(0));
    let mapping = old.mapping.unwrap_or(DssMapping {
        dsn: ack,
        subflow_seq: 0,
        len: 1,
        checksum: None,
    });
    let new = Dss {
        data_ack: change.ack.map(|near| near.of_dsn(ack)),
        mapping: change.mapping.as_ref().map(|change| DssMapping {
            dsn: change.dsn.of_dsn(mapping.dsn),
            subflow_seq: change.subflow_seq.map_or(0, |n| n.of(mapping.subflow_seq)),
            len: [1, change.len, mapping.len, mapping.len][usize::from(change.len_kind)],
            checksum: mapping.checksum,
        }),
        data_fin: change.fin,
    };
    options.mptcp.retain(|o| !matches!(o, MptcpOption::Dss(_)));
    add(options, MptcpOption::Dss(new));
}

/// The ICMP error number `n` about `packet`, if it may be reported.
pub fn icmp_error(n: u8, mtu: u16, packet: &Packet) -> Option<Packet> {
    let kind = match n % 16 {
        14 => Kind::PacketTooBig { mtu: mtu.into() },
        15 => Kind::TimeExceeded,
        code => Kind::Unreachable(code),
    };
    let router = match ip::Repr::parse(&packet.bytes).ok()?.0.dst {
        IpAddr::V4(_) => IpAddr::from([10, 9, 9, 9]),
        IpAddr::V6(_) => IpAddr::from([0xfd00, 9, 0, 0, 0, 0, 0, 9]),
    };
    let mut buf = [0; icmp::MAX_LEN];
    let len = icmp::emit(kind, router, &packet.bytes, &mut buf).ok()?;
    let bytes = buf[..len].to_vec();
    Some(Packet { bytes, gso_size: 0 })
}
