//! Packets made from real ones: every number near one that is right, every checksum right.

use std::net::IpAddr;

use bolero::{TypeGenerator, produce};
use braid_wire::icmp::{self, Kind};
use braid_wire::mptcp::{AddAddr, Capable, Dss, DssMapping, MptcpOption, RemoveAddr, WireDsn};
use braid_wire::tcp::{self, Flags, MAX_OPTIONS_LEN, Options, Timestamps};
use braid_wire::{Dsn64, ip};

use crate::world::{End, Packet};

/// A distance: small, or a power of two more or less far away.
#[derive(Debug, Clone, Copy, TypeGenerator)]
pub struct Near {
    by: i8,
    #[generator(0..32)]
    shift: u8,
}

impl Near {
    fn of(self, n: u32) -> u32 {
        n.wrapping_add_signed(i32::from(self.by).wrapping_shl(self.shift.into()))
    }

    fn of_dsn(self, dsn: WireDsn) -> WireDsn {
        match dsn {
            WireDsn::Four(n) => WireDsn::Four(self.of(n)),
            WireDsn::Eight(n) => {
                let by = i64::from(self.by) << (self.shift * 2 % 57);
                WireDsn::Eight(n.wrapping_add_signed(by))
            }
        }
    }
}

/// What is changed of a packet.
#[derive(Debug, Clone, TypeGenerator)]
pub enum Change {
    Seq(Near),
    Ack(Near),
    /// These are turned over.
    Flags(u8),
    Window(u16),
    Time(Near),
    Echo(Near),
    Mss(u16),
    WindowScale(u8),
    Sack(#[generator(produce::<Vec<(Near, Near)>>().with().len(0..=4))] Vec<(Near, Near)>),
    /// Cut, or filled up with other bytes.
    Payload(#[generator(0..3000)] u16),
    /// A port of the sender's.
    Port(u16),
    SuperSegment(u16),
    Mptcp(Mptcp),
    /// The data sequence signal, which is added where there is none.
    Dss(DssChange),
}

/// MPTCP options.
#[derive(Debug, Clone, TypeGenerator)]
pub enum Mptcp {
    None,
    /// Those of a packet seen before, instead.
    Seen(u8),
    Prio(bool),
    Remove([u8; 3]),
    Add { id: u8, port: Option<u16>, hmac: Option<u64>, to: [u8; 4] },
    Fail(u64),
    /// By the key of a packet seen before, if it has one.
    FastClose(u8),
    Reset(bool, u8),
}

#[derive(Debug, Clone, TypeGenerator)]
pub enum DssChange {
    Ack(Near),
    Dsn(Near),
    SubflowSeq(Near),
    Len(u16),
    Longer(i8),
    Fin,
    FinOnly,
    Checksum(u16),
    NoMapping,
    NoAck,
}

/// Headers and payload of a packet that is one.
pub fn parse(packet: &[u8]) -> Option<(ip::Repr, tcp::Repr, &[u8])> {
    let (ip, segment) = ip::Repr::parse(packet).ok()?;
    let (tcp, payload) = tcp::Repr::parse(segment).ok()?;
    Some((ip, tcp, payload))
}

/// `packet` with these changes, on the way to `end`.
pub fn change(packet: &Packet, changes: &[Change], end: &End) -> Packet {
    let mut gso_size = packet.gso_size;
    let Some((mut ip, mut tcp, payload)) = parse(&packet.bytes) else {
        return packet.clone();
    };
    let mut payload = payload.to_vec();
    for change in changes {
        let ack = tcp.ack;
        let time = tcp.options.timestamps.unwrap_or(Timestamps { value: 0, echo: 0 });
        match change {
            Change::Seq(near) => tcp.seq.0 = near.of(tcp.seq.0),
            Change::Ack(near) => tcp.ack.0 = near.of(ack.0),
            Change::Flags(bits) => tcp.flags = Flags(tcp.flags.0 ^ bits),
            Change::Window(window) => tcp.window = *window,
            Change::Time(near) => {
                let value = near.of(time.value);
                tcp.options.timestamps = Some(Timestamps { value, ..time });
            }
            Change::Echo(near) => {
                let echo = near.of(time.echo);
                tcp.options.timestamps = Some(Timestamps { echo, ..time });
            }
            Change::Mss(mss) => tcp.options.mss = Some(*mss),
            Change::WindowScale(scale) => tcp.options.window_scale = Some(scale % 16),
            Change::Sack(blocks) => {
                let near = |near: Near| braid_wire::Seq32(near.of(ack.0));
                tcp.options.sack = blocks.iter().map(|b| (near(b.0), near(b.1))).collect();
            }
            Change::Payload(len) => payload.resize(usize::from(*len), 0xee),
            Change::Port(port) => tcp.src_port = port | 1,
            Change::SuperSegment(size) => gso_size = *size,
            Change::Mptcp(change) => change_options(&mut tcp.options, change, end),
            Change::Dss(change) => change_dss(&mut tcp.options, change),
        }
    }
    while tcp.options.len() > MAX_OPTIONS_LEN {
        tcp.options.sack.clear();
        tcp.options.mptcp.pop();
    }
    ip.payload_len = tcp.header_len() + payload.len();
    let mut segment = vec![0; tcp.header_len()];
    tcp.emit(&mut segment);
    tcp::fill_checksum(ip.src, ip.dst, &mut segment, &[&payload]);
    let mut bytes = vec![0; ip.header_len()];
    ip.emit(&mut bytes);
    bytes.extend(segment);
    bytes.extend(payload);
    Packet { bytes, gso_size }
}

fn change_options(options: &mut Options, change: &Mptcp, end: &End) {
    let seen = |n: u8| {
        let packet = &end.seen[usize::from(n) % end.seen.len()];
        parse(&packet.bytes).map(|(_, tcp, _)| tcp.options.mptcp)
    };
    let key = |option: &MptcpOption| match option {
        MptcpOption::Capable(Capable::Ack { receiver_key, .. }) => Some(*receiver_key),
        MptcpOption::Capable(Capable::Data { receiver_key, .. }) => Some(*receiver_key),
        _ => None,
    };
    let added = match *change {
        Mptcp::None => return options.mptcp.clear(),
        Mptcp::Seen(n) => return options.mptcp = seen(n).unwrap_or_default(),
        Mptcp::Prio(backup) => MptcpOption::Prio { backup },
        Mptcp::Remove(ids) => MptcpOption::RemoveAddr(RemoveAddr::new(&ids).expect("three")),
        Mptcp::Add { id, port, hmac, to } => MptcpOption::AddAddr(AddAddr {
            address_id: id,
            addr: IpAddr::from(to),
            port,
            hmac,
        }),
        Mptcp::Fail(dsn) => MptcpOption::Fail { dsn: Dsn64(dsn) },
        Mptcp::FastClose(n) => MptcpOption::FastClose {
            receiver_key: seen(n).iter().flatten().find_map(key).unwrap_or_default(),
        },
        Mptcp::Reset(transient, reason) => MptcpOption::Reset {
            transient,
            reason: reason.into(),
        },
    };
    // One too many is left out.
    let _ = options.mptcp.try_push(added);
}

fn change_dss(options: &mut Options, change: &DssChange) {
    let found = options.mptcp.iter().position(|o| matches!(o, MptcpOption::Dss(_)));
    let at = found.unwrap_or_else(|| {
        options.mptcp.truncate(options.mptcp.capacity() - 1);
        options.mptcp.push(MptcpOption::Dss(Dss::default()));
        options.mptcp.len() - 1
    });
    let MptcpOption::Dss(dss) = &mut options.mptcp[at] else {
        unreachable!("it was found or put there");
    };
    let ack = dss.data_ack.unwrap_or(WireDsn::Four(0));
    let nothing = DssMapping {
        dsn: ack,
        subflow_seq: 0,
        len: 1,
        checksum: None,
    };
    let mut map = dss.mapping.unwrap_or(nothing);
    match *change {
        DssChange::Ack(near) => return dss.data_ack = Some(near.of_dsn(ack)),
        DssChange::NoMapping => return dss.mapping = None,
        DssChange::NoAck => return dss.data_ack = None,
        DssChange::Dsn(near) => map.dsn = near.of_dsn(map.dsn),
        DssChange::SubflowSeq(near) => map.subflow_seq = near.of(map.subflow_seq),
        DssChange::Len(len) => map.len = len,
        DssChange::Longer(by) => map.len = map.len.wrapping_add_signed(by.into()),
        DssChange::Fin => dss.data_fin ^= true,
        DssChange::FinOnly => {
            dss.data_fin = true;
            (map.subflow_seq, map.len) = (0, 1);
        }
        DssChange::Checksum(sum) => map.checksum = Some(sum),
    }
    dss.mapping = Some(map);
}

/// An ICMP error about `packet`.
#[derive(Debug, Clone, TypeGenerator)]
pub enum Error {
    Unreachable(#[generator(0..16)] u8),
    TooBig(u16),
    TimeExceeded,
}

impl Error {
    /// It, if the packet may be reported.
    pub fn about(&self, packet: &Packet) -> Option<Packet> {
        let kind = match *self {
            Error::Unreachable(code) => Kind::Unreachable(code),
            Error::TooBig(mtu) => Kind::PacketTooBig { mtu: mtu.into() },
            Error::TimeExceeded => Kind::TimeExceeded,
        };
        let router = match ip::Repr::parse(&packet.bytes).ok()?.0.dst {
            IpAddr::V4(_) => IpAddr::from([10, 9, 9, 9]),
            IpAddr::V6(_) => "fd00::9".parse().expect("an address"),
        };
        let mut buf = [0; icmp::MAX_LEN];
        let len = icmp::emit(kind, router, &packet.bytes, &mut buf).ok()?;
        Some(Packet {
            bytes: buf[..len].to_vec(),
            gso_size: 0,
        })
    }
}
