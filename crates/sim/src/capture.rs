//! Captures of a world's packets as pcapng files for Wireshark.

use std::io::{self, BufWriter, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use braid_wire::Instant;

use crate::node::Packet;
use crate::pcapng::{Direction, InterfaceId, Writer};
use crate::tap::{PacketEvent, Tap};
use crate::world::{LinkId, NodeId, World};

/// A pcapng file that is written while the world runs.
///
/// The file has the packets of a node from the moment at which the node is added. Add it before the first packet
/// is sent: adding makes the world compute checksums, and hosts then drop packets that were sent without one.
///
/// Write one file for each node. With both ends of a link in one file, Wireshark would take the second appearance
/// of a packet for a retransmission. To find packets that a link drops, compare the files of the link's ends.
#[derive(Clone)]
pub struct Capture(Arc<Mutex<File>>);

type File = Writer<BufWriter<Box<dyn Write + Send>>>;

impl Capture {
    /// Writes the header of a file to `out`.
    pub fn new(out: Box<dyn Write + Send>) -> Self {
        Capture(Arc::new(Mutex::new(Writer::new(BufWriter::new(out)))))
    }

    /// Adds the interfaces of `node` with the names `name.0`, `name.1` and so on. Like a capture on a real
    /// machine, the file has the packets that the node sends and those that arrive.
    pub fn node(&self, world: &mut World, node: NodeId, name: &str) {
        // Wireshark would mark packets without a checksum as wrong.
        world.use_checksums();
        for (n, (outgoing, incoming)) in world.interfaces(node).into_iter().enumerate() {
            let interface = self.file().interface(&format!("{name}.{n}"));
            let taps = [
                (outgoing, Direction::Outbound),
                (incoming, Direction::Inbound),
            ];
            for (link, direction) in taps {
                let tap = InterfaceTap {
                    capture: self.clone(),
                    interface,
                    direction,
                };
                world.tap(link, Box::new(tap));
            }
        }
    }

    /// Flushes the file.
    ///
    /// # Errors
    /// Fails with the first error of the output.
    pub fn finish(&self) -> io::Result<()> {
        self.file().finish()
    }

    fn file(&self) -> MutexGuard<'_, File> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A tap that writes the packets of one direction of an interface.
struct InterfaceTap {
    capture: Capture,
    interface: InterfaceId,
    direction: Direction,
}

impl Tap for InterfaceTap {
    fn on_packet(&mut self, at: Instant, _: LinkId, event: PacketEvent, packet: &Packet) {
        let at_interface = match self.direction {
            Direction::Outbound => event == PacketEvent::Sent,
            Direction::Inbound => matches!(event, PacketEvent::Delivered { .. }),
        };
        if at_interface {
            let mut file = self.capture.file();
            file.packet(self.interface, at, self.direction, &packet.bytes);
        }
    }
}
