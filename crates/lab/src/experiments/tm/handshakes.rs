//! Finding TCP handshakes in captured packets.

use std::net::{IpAddr, SocketAddr};
use std::time::SystemTime;

use braid_testbed::Captured;
use braid_wire::tcp::Flags;

use crate::experiments::segment::Segment;

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
#[derive(Debug, Default)]
pub struct Flow {
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
    // Each flow with the address and port that opened it.
    let mut flows: Vec<(SocketAddr, Flow)> = Vec::new();
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
        let known = flows.iter().position(|(end, _)| *end == opener);
        let at = known.unwrap_or(flows.len());
        if known.is_none() {
            flows.push((opener, Flow::default()));
        }
        let time = packet.at.duration_since(SystemTime::UNIX_EPOCH);
        let ms = time.unwrap_or_default().as_secs_f64() * 1e3;
        flows[at].1.add(ms, &seen, seen.src == opener);
    }
    flows.into_iter().map(|(_, flow)| flow).collect()
}

impl Flow {
    /// Adds a segment of the flow, captured at `ms`.
    fn add(&mut self, ms: f64, seen: &Segment, from_opener: bool) {
        match seen.flags.contains(Flags::SYN) {
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
