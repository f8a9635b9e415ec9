//! Reading the TCP packets of a capture.

use braid_sim::pcapng;
use braid_wire::tcp::Flags;

use crate::backend::Error;
use crate::experiments::outcome::Table;
use crate::experiments::segment::Segment;

/// The packets of a capture, in the order of the file.
#[derive(Debug)]
pub struct CapturedPackets(Vec<Packet>);

#[derive(Debug)]
struct Packet {
    /// Time after the first packet of the file, ms.
    at_ms: f64,
    path: u32,
    /// True if the captured host sent the packet.
    sent: bool,
    segment: Segment,
}

impl CapturedPackets {
    /// Reads a pcapng file.
    pub fn read(file: &[u8]) -> Result<CapturedPackets, Error> {
        let unreadable = |why: &str| Error::Run(format!("a capture cannot be read: {why}"));
        let mut packets = Vec::new();
        let mut first = None;
        for captured in pcapng::read(file) {
            let captured = captured.ok_or_else(|| unreadable("it is cut short"))?;
            let segment = Segment::parse(captured.bytes);
            let at_ms = captured.at.as_nanos() as f64 / 1e6;
            packets.push(Packet {
                at_ms: at_ms - *first.get_or_insert(at_ms),
                path: captured.interface,
                sent: captured.direction == pcapng::Direction::Outbound,
                segment: segment.ok_or_else(|| unreadable("a packet is no TCP segment"))?,
            });
        }
        Ok(CapturedPackets(packets))
    }

    /// Returns the number of SYNs with MP_JOIN that the captured host sent.
    pub fn joins(&self) -> f64 {
        let is_join = |p: &&Packet| p.segment.join && p.segment.flags.contains(Flags::SYN);
        self.0.iter().filter(|p| p.sent).filter(is_join).count() as f64
    }

    /// Returns the numbers of packets that the captured host sent and received.
    pub fn packets(&self) -> (usize, usize) {
        let sent = self.0.iter().filter(|p| p.sent).count();
        (sent, self.0.len() - sent)
    }

    /// Returns a table of all packets.
    pub fn table(&self, title: &str) -> Table {
        let row = |p: &Packet| {
            let option = match (p.segment.capable, p.segment.join) {
                (true, _) => "MP_CAPABLE",
                (_, true) => "MP_JOIN",
                _ => "",
            };
            vec![
                format!("{:.1}", p.at_ms),
                if p.sent { "sent" } else { "received" }.to_owned(),
                p.path.to_string(),
                format!("{} {option}", p.segment.flags)
                    .trim_end()
                    .to_owned(),
                p.segment.payload.to_string(),
            ]
        };
        Table::new(
            title,
            &["ms", "", "path", "packet", "payload, bytes"],
            self.0.iter().map(row).collect(),
        )
    }
}
