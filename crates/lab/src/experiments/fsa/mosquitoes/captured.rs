//! Reading the TCP packets of a capture.

use braid_sim::pcapng;
use braid_wire::{ip, tcp};

use crate::backend::Error;
use crate::experiments::outcome::Table;

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
    flags: tcp::Flags,
    /// True if the packet has MP_JOIN.
    join: bool,
    /// True if the packet has MP_CAPABLE.
    capable: bool,
    payload: usize,
}

impl CapturedPackets {
    /// Reads a pcapng file.
    pub fn read(file: &[u8]) -> Result<CapturedPackets, Error> {
        let unreadable = |why: &str| Error::Run(format!("a capture cannot be read: {why}"));
        let mut packets = Vec::new();
        let mut first = None;
        for captured in pcapng::read(file) {
            let captured = captured.ok_or_else(|| unreadable("it is cut short"))?;
            let (_, segment) =
                ip::Repr::parse(captured.bytes).map_err(|_| unreadable("a packet is not IP"))?;
            let packet =
                tcp::Packet::new(segment).map_err(|_| unreadable("a packet is not TCP"))?;
            let flags = packet.flags();
            let options = tcp::Options::parse(packet.options(), flags.contains(tcp::Flags::SYN));
            let options = options.map_err(|_| unreadable("TCP options are malformed"))?;
            let at_ms = captured.at.as_nanos() as f64 / 1e6;
            packets.push(Packet {
                at_ms: at_ms - *first.get_or_insert(at_ms),
                path: captured.interface,
                sent: captured.direction == pcapng::Direction::Outbound,
                flags,
                join: options.join().is_some(),
                capable: options.capable().is_some(),
                payload: packet.payload().len(),
            });
        }
        Ok(CapturedPackets(packets))
    }

    /// Returns the number of SYNs with MP_JOIN that the captured host sent.
    pub fn joins(&self) -> f64 {
        let syns = self
            .0
            .iter()
            .filter(|p| p.sent && p.flags.contains(tcp::Flags::SYN));
        syns.filter(|p| p.join).count() as f64
    }

    /// Returns the numbers of packets that the captured host sent and received.
    pub fn packets(&self) -> (usize, usize) {
        let sent = self.0.iter().filter(|p| p.sent).count();
        (sent, self.0.len() - sent)
    }

    /// Returns a table of all packets.
    pub fn table(&self, title: &str) -> Table {
        let row = |p: &Packet| {
            let option = match (p.capable, p.join) {
                (true, _) => "MP_CAPABLE",
                (_, true) => "MP_JOIN",
                _ => "",
            };
            vec![
                format!("{:.1}", p.at_ms),
                if p.sent { "sent" } else { "received" }.to_owned(),
                p.path.to_string(),
                format!("{} {option}", p.flags).trim_end().to_owned(),
                p.payload.to_string(),
            ]
        };
        Table::new(
            title,
            &["ms", "", "path", "packet", "payload, bytes"],
            self.0.iter().map(row).collect(),
        )
    }
}
