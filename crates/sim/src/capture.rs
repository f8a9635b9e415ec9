//! Captures of a world's packets as pcapng files for Wireshark.

use std::fmt;
use std::io::{self, BufWriter, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use braid_wire::Instant;

use crate::node::Packet;
use crate::pcapng::{Direction, InterfaceId, Writer};
use crate::tap::{PacketEvent, Tap};
use crate::world::{LinkId, NodeId, World};

/// A pcapng file that is written while the world runs.
///
/// The file has the packets of a node or link from the moment at which the node or link is added. Add it before
/// the first packet is sent: adding makes the world compute checksums, and hosts then drop packets that were sent
/// without one.
///
/// Write one file for each node. With both ends of a link in one file, Wireshark would take the second appearance
/// of a packet for a retransmission. To find packets that a link drops, compare the files of the link's ends.
#[derive(Debug, Clone)]
pub struct Capture(Arc<Mutex<File>>);

struct File {
    writer: Writer<BufWriter<Box<dyn Write + Send>>>,
    /// The first error. After an error no packet is written.
    error: Option<io::Error>,
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("File")
            .field("error", &self.error)
            .finish_non_exhaustive()
    }
}

impl Capture {
    /// Writes the header of a file to `out`.
    ///
    /// # Errors
    /// Fails with the error of `out`. [`finish`](Self::finish) returns later errors.
    pub fn new(out: Box<dyn Write + Send>) -> io::Result<Self> {
        Ok(Capture(Arc::new(Mutex::new(File {
            writer: Writer::new(BufWriter::new(out))?,
            error: None,
        }))))
    }

    /// Adds the interfaces of `node` with the names `name.0`, `name.1` and so on. Like a capture on a real
    /// machine, the file has the packets that the node sends and those that arrive.
    pub fn node(&self, world: &mut World, node: NodeId, name: &str) {
        for (n, (outgoing, incoming)) in world.interfaces(node).into_iter().enumerate() {
            let interface = self.interface(&format!("{name}.{n}"));
            self.tap(world, outgoing, interface, Direction::Outbound);
            self.tap(world, incoming, interface, Direction::Inbound);
        }
    }

    /// Adds one direction of a link as the interface `name`. The file has every packet that a node hands to the
    /// link, even if the link drops it.
    pub fn link(&self, world: &mut World, link: LinkId, name: &str) {
        let interface = self.interface(name);
        self.tap(world, link, interface, Direction::Outbound);
    }

    /// Flushes the file.
    ///
    /// # Errors
    /// Fails with the first error of the output.
    pub fn finish(&self) -> io::Result<()> {
        let mut file = self.file();
        match file.error.take() {
            Some(error) => Err(error),
            None => file.writer.flush(),
        }
    }

    fn interface(&self, name: &str) -> Option<InterfaceId> {
        self.file().attempt(|writer| writer.interface(name))
    }

    fn tap(
        &self,
        world: &mut World,
        link: LinkId,
        interface: Option<InterfaceId>,
        direction: Direction,
    ) {
        // The file has failed; `finish` reports it.
        let Some(interface) = interface else { return };
        // Wireshark would mark packets without a checksum as wrong.
        world.use_checksums();
        let tap = InterfaceTap {
            capture: self.clone(),
            interface,
            direction,
        };
        world.tap(link, Box::new(tap));
    }

    fn file(&self) -> MutexGuard<'_, File> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl File {
    /// Calls `write` and keeps its error. Returns `None` if this call or an earlier one failed.
    fn attempt<R>(
        &mut self,
        write: impl FnOnce(&mut Writer<BufWriter<Box<dyn Write + Send>>>) -> io::Result<R>,
    ) -> Option<R> {
        if self.error.is_some() {
            return None;
        }
        write(&mut self.writer)
            .map_err(|error| self.error = Some(error))
            .ok()
    }
}

/// A tap that writes the packets of one direction of an interface.
#[derive(Debug)]
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
            let (interface, direction) = (self.interface, self.direction);
            self.capture
                .file()
                .attempt(|writer| writer.packet(interface, at, direction, &packet.bytes));
        }
    }
}
