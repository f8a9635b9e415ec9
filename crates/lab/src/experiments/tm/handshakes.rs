//! Handshakes in captured packets.

use std::net::{IpAddr, SocketAddr};
use std::time::SystemTime;

use braid_testbed::Captured;
use braid_wire::{ip, tcp};

/// What was captured at box and server.
pub type Captures = [(&'static str, Vec<Captured>); 2];

/// Addresses of the hosts; of the box, those on its links.
pub struct Ends {
    pub user: Vec<IpAddr>,
    pub boxed: Vec<IpAddr>,
    pub server: Vec<IpAddr>,
    pub content: Vec<IpAddr>,
}

/// A TCP connection or subflow, as it was seen.
#[derive(Debug, Clone, PartialEq)]
pub struct Flow {
    /// Who opened it.
    from: SocketAddr,
    /// When its SYN was seen, ms since 1970; not where it was opened before.
    pub began: Option<f64>,
    /// When the third packet of the handshake was seen, ms.
    pub done: Option<f64>,
    /// The SYN has MP_CAPABLE.
    pub capable: bool,
    /// The SYN has MP_JOIN.
    pub join: bool,
    /// Payload that came to whoever opened it, retransmissions included, bytes.
    pub received: usize,
}

/// TCP between `from`, who opens, and `to`, in the order of its first packets.
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
        let known = flows.iter().position(|flow| flow.from == opener);
        let at = known.unwrap_or_else(|| {
            flows.push(Flow::new(opener));
            flows.len() - 1
        });
        let time = packet
            .at
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        flows[at].note(time.as_secs_f64() * 1e3, &seen);
    }
    flows
}

impl Flow {
    fn new(from: SocketAddr) -> Flow {
        Flow {
            from,
            began: None,
            done: None,
            capable: false,
            join: false,
            received: 0,
        }
    }

    fn note(&mut self, ms: f64, seen: &Segment) {
        let opens = seen.src == self.from;
        match seen.syn {
            true if opens && self.began.is_none() => {
                self.began = Some(ms);
                self.capable = seen.capable;
                self.join = seen.join;
            }
            false if opens && self.began.is_some() => {
                self.done.get_or_insert(ms);
            }
            false if !opens => self.received += seen.payload,
            _ => {}
        }
    }
}

/// What matters of a TCP segment.
struct Segment {
    src: SocketAddr,
    dst: SocketAddr,
    syn: bool,
    capable: bool,
    join: bool,
    payload: usize,
}

impl Segment {
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
