//! Finding TCP handshakes in captured packets.

use std::net::{IpAddr, SocketAddr};
use std::time::SystemTime;

use braid_testbed::Captured;
use braid_wire::{ip, tcp};

/// The captures at the box and at the server, each with the host's name.
pub type Captures = [(&'static str, Vec<Captured>); 2];

/// Addresses of the hosts. For the box they are only its addresses on the links, from which it connects to
/// the server.
pub struct Ends {
    pub user: Vec<IpAddr>,
    pub boxed: Vec<IpAddr>,
    pub server: Vec<IpAddr>,
    pub content: Vec<IpAddr>,
}

/// A TCP connection or subflow as captured.
#[derive(Debug, Clone, PartialEq)]
pub struct Flow {
    /// The end that opened the flow.
    opener: SocketAddr,
    /// Time of the SYN, ms since 1970; `None` if the capture began later.
    pub began: Option<f64>,
    /// Time of the opener's first packet after the SYN, which is the third packet of the handshake, ms since
    /// 1970.
    pub done: Option<f64>,
    /// True if the SYN has MP_CAPABLE.
    pub capable: bool,
    /// True if the SYN has MP_JOIN.
    pub join: bool,
    /// Payload that the opener received, retransmissions included, bytes.
    pub received: usize,
}

/// Returns the TCP flows that any address of `from` opened to any address of `to`, in the order of their
/// first packets.
pub fn flows(packets: &[Captured], from: &[IpAddr], to: &[IpAddr]) -> Vec<Flow> {
    let mut flows: Vec<Flow> = Vec::new();
    for packet in packets {
        let Some(seen) = Segment::parse(&packet.bytes) else {
            continue;
        };
        let [src, dst] = [seen.src, seen.dst].map(|end| end.ip());
        let opener = match () {
            () if from.contains(&src) && to.contains(&dst) => seen.src,
            () if from.contains(&dst) && to.contains(&src) => seen.dst,
            () => continue,
        };
        let known = flows.iter().position(|flow| flow.opener == opener);
        let at = known.unwrap_or_else(|| {
            flows.push(Flow::new(opener));
            flows.len() - 1
        });
        let time = packet
            .at
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        flows[at].add(time.as_secs_f64() * 1e3, &seen);
    }
    flows
}

impl Flow {
    fn new(opener: SocketAddr) -> Flow {
        Flow {
            opener,
            began: None,
            done: None,
            capable: false,
            join: false,
            received: 0,
        }
    }

    /// Adds a segment of the flow, captured at `ms`.
    fn add(&mut self, ms: f64, seen: &Segment) {
        let from_opener = seen.src == self.opener;
        match seen.syn {
            true if from_opener && self.began.is_none() => {
                self.began = Some(ms);
                self.capable = seen.capable;
                self.join = seen.join;
            }
            false if from_opener && self.began.is_some() => {
                self.done.get_or_insert(ms);
            }
            false if !from_opener => self.received += seen.payload,
            _ => {}
        }
    }
}

/// The fields of a TCP segment that the search for handshakes needs.
struct Segment {
    src: SocketAddr,
    dst: SocketAddr,
    syn: bool,
    capable: bool,
    join: bool,
    payload: usize,
}

impl Segment {
    /// Reads an IP packet; `None` if it is no TCP segment.
    fn parse(bytes: &[u8]) -> Option<Segment> {
        let (header, segment) = ip::Repr::parse(bytes).ok()?;
        if header.protocol != ip::PROTO_TCP {
            return None;
        }
        let packet = tcp::Packet::new(segment).ok()?;
        let syn = packet.flags().contains(tcp::Flags::SYN);
        let options = tcp::Options::parse(packet.options(), syn).ok()?;
        Some(Segment {
            src: (header.src, packet.src_port()).into(),
            dst: (header.dst, packet.dst_port()).into(),
            syn,
            capable: options.capable().is_some(),
            join: options.join().is_some(),
            payload: packet.payload().len(),
        })
    }
}
