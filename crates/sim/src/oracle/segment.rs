//! The parts of a TCP segment that oracles check. They are parsed once, and independently of the engine.

use core::net::{IpAddr, SocketAddr};

use braid_wire::Seq32;
use braid_wire::ip::PROTO_TCP;
use braid_wire::mptcp::{Capable, Dss, Join, MptcpOption};
use braid_wire::tcp::{self, Flags, SackBlocks, kind};

/// The header of a segment.
#[derive(Debug, Clone)]
pub(super) struct Segment {
    pub src: SocketAddr,
    pub dst: SocketAddr,
    pub seq: Seq32,
    /// The acknowledgement number, if the ACK bit is set.
    pub ack: Option<Seq32>,
    pub flags: Flags,
    pub window: u16,
    /// Payload bytes.
    pub len: u64,
    /// The window scale of a SYN.
    pub scale: Option<u8>,
    /// True if a SYN permits SACK.
    pub permits_sack: bool,
    pub sack: SackBlocks,
    pub dss: Option<Dss>,
    pub capable: Option<Capable>,
    pub join: Option<Join>,
    /// True if the segment has an MPTCP option, unless this is a DSS without a mapping. The peer sends such a
    /// segment for the option's sake, so the segment is no duplicate acknowledgement.
    pub signals: bool,
}

impl Segment {
    /// Parses the segment of an IP packet. `header` holds at least the headers; `payload` is the length
    /// of the payload, or `None` if the payload follows in `header`.
    pub fn parse(header: &[u8], payload: Option<u64>) -> Option<Segment> {
        let (src, dst, at) = addresses(header)?;
        let view = tcp::Packet::new(header.get(at..)?).ok()?;
        let flags = view.flags();
        let mut segment = Segment {
            src: SocketAddr::new(src, view.src_port()),
            dst: SocketAddr::new(dst, view.dst_port()),
            seq: view.seq(),
            ack: flags.contains(Flags::ACK).then(|| view.ack()),
            flags,
            window: view.window(),
            len: payload.unwrap_or(view.payload().len() as u64),
            scale: None,
            permits_sack: false,
            sack: SackBlocks::new(),
            dss: None,
            capable: None,
            join: None,
            signals: false,
        };
        for option in tcp::raw_options(view.options()).flatten() {
            match option.kind() {
                // RFC 7323 section 2.3: a scale above 14 counts as 14.
                kind::WINDOW_SCALE => segment.scale = option.body().first().map(|s| (*s).min(14)),
                kind::SACK_PERMITTED => segment.permits_sack = true,
                kind::SACK => {
                    for block in option.body().chunks_exact(8).take(4) {
                        let number = |at| {
                            let bytes = [block[at], block[at + 1], block[at + 2], block[at + 3]];
                            Seq32(u32::from_be_bytes(bytes))
                        };
                        // The list has room for four blocks, which is the maximum in a TCP header.
                        segment.sack.push((number(0), number(4)));
                    }
                }
                kind::MPTCP => {
                    // Receivers ignore a malformed option, so oracles do too.
                    let Ok(option) = MptcpOption::parse(option.bytes()) else {
                        continue;
                    };
                    segment.signals |=
                        !matches!(&option, MptcpOption::Dss(dss) if dss.mapping.is_none());
                    match option {
                        MptcpOption::Dss(dss) => segment.dss = Some(dss),
                        MptcpOption::Capable(capable) => segment.capable = Some(capable),
                        MptcpOption::Join(join) => segment.join = Some(join),
                        _ => {}
                    }
                }
                _ => {}
            }
        }
        Some(segment)
    }

    pub fn has(&self, flag: Flags) -> bool {
        self.flags.contains(flag)
    }
}

/// Returns source, destination, and the offset at which the transport header starts.
fn addresses(header: &[u8]) -> Option<(IpAddr, IpAddr, usize)> {
    let v4 = |at: usize| {
        let octets: [u8; 4] = header.get(at..at + 4)?.try_into().ok()?;
        Some(IpAddr::from(octets))
    };
    let v6 = |at: usize| {
        let octets: [u8; 16] = header.get(at..at + 16)?.try_into().ok()?;
        Some(IpAddr::from(octets))
    };
    match header.first()? >> 4 {
        4 if *header.get(9)? == PROTO_TCP => {
            Some((v4(12)?, v4(16)?, usize::from(header[0] & 0xf) * 4))
        }
        6 if *header.get(6)? == PROTO_TCP => Some((v6(8)?, v6(24)?, 40)),
        _ => None,
    }
}
