//! Rules that hold for every packet a host sends.

use core::net::SocketAddr;

use braid_engine::stats::SubflowStats;
use braid_wire::mptcp::{Dss, MptcpOption, WireDsn};
use braid_wire::tcp::{self, Flags};
use braid_wire::{Seq32, ip};

/// One subflow, from the sender's side.
#[derive(Debug)]
struct Sent {
    tuple: (SocketAddr, SocketAddr),
    /// One past the last payload byte sent.
    end: Seq32,
    /// Shift of the windows the peer announces here.
    shift: Option<u8>,
}

/// What one host sent and was told. Streams are shorter than 2^31 bytes here, so the low halves of
/// data sequence numbers tell them apart.
#[derive(Debug, Default)]
pub struct Oracle {
    subflows: Vec<Sent>,
    /// Right edge of the peer's window at the data level.
    edge: Option<Seq32>,
    data_fin: Option<Seq32>,
    /// Off where packets are forged: then nothing is known of what a host was told.
    pub off: bool,
}

fn low(dsn: WireDsn) -> Seq32 {
    Seq32(match dsn {
        WireDsn::Four(low) => low,
        WireDsn::Eight(full) => full as u32,
    })
}

fn dss(tcp: &tcp::Repr) -> Option<Dss> {
    tcp.options.mptcp.iter().find_map(|o| match o {
        MptcpOption::Dss(dss) => Some(*dss),
        _ => None,
    })
}

impl Oracle {
    fn subflow(&mut self, tuple: (SocketAddr, SocketAddr), seq: Seq32) -> &mut Sent {
        let known = self.subflows.iter().position(|s| s.tuple == tuple);
        let i = known.unwrap_or_else(|| {
            self.subflows.push(Sent {
                tuple,
                end: seq,
                shift: None,
            });
            self.subflows.len() - 1
        });
        &mut self.subflows[i]
    }

    /// The host sent `packet` (a super-segment is one), and its subflows are as given now.
    pub fn on_sent(&mut self, packet: &[u8], stats: &[SubflowStats]) {
        if self.off {
            return;
        }
        let (ip, segment) = ip::Repr::parse(packet).unwrap();
        let (tcp, payload) = tcp::Repr::parse(segment).unwrap();
        let tuple = (
            SocketAddr::new(ip.src, tcp.src_port),
            SocketAddr::new(ip.dst, tcp.dst_port),
        );
        let edge = self.edge;
        let subflow = self.subflow(tuple, tcp.seq);
        if tcp.flags.contains(Flags::SYN) {
            subflow.end = tcp.seq.add(1);
        }
        let end = tcp.seq.add(payload.len() as u32);
        let new = !payload.is_empty() && subflow.end.before(end);
        if new {
            assert!(!subflow.end.before(tcp.seq), "a gap in what was sent");
            subflow.end = end;
        }
        let stats = stats.iter().find(|s| (s.local, s.remote) == tuple);
        if let Some(s) = stats.filter(|_| new) {
            // A single segment goes even through a smaller window.
            let most = s.cwnd.max(payload.len() as u64).max(1500);
            assert!(
                s.in_flight <= most,
                "sent past the congestion window: {s:?}"
            );
        }
        let Some(dss) = dss(&tcp) else { return };
        let Some(map) = dss.mapping else { return };
        let last = low(map.dsn).add(u32::from(map.len) - u32::from(dss.data_fin));
        if new && let Some(edge) = edge {
            assert!(!edge.before(last), "sent past the peer's window");
        }
        if dss.data_fin {
            let fin = *self.data_fin.get_or_insert(last);
            assert_eq!(fin, last, "DATA_FIN moved");
        }
        if let Some(fin) = self.data_fin {
            assert!(!fin.before(last), "data past DATA_FIN");
        }
    }

    /// The host receives `packet`.
    pub fn on_received(&mut self, packet: &[u8]) {
        if self.off {
            return;
        }
        let (ip, segment) = ip::Repr::parse(packet).unwrap();
        let (tcp, _) = tcp::Repr::parse(segment).unwrap();
        let tuple = (
            SocketAddr::new(ip.dst, tcp.dst_port),
            SocketAddr::new(ip.src, tcp.src_port),
        );
        let subflow = self.subflow(tuple, tcp.ack);
        if tcp.flags.contains(Flags::SYN) {
            subflow.shift = tcp.options.window_scale;
            return;
        }
        let shift = subflow.shift.unwrap_or(0);
        if let Some(ack) = dss(&tcp).and_then(|d| d.data_ack) {
            let edge = low(ack).add(u32::from(tcp.window) << shift);
            let old = self.edge.unwrap_or(edge);
            self.edge = Some(if old.before(edge) { edge } else { old });
        }
    }
}
