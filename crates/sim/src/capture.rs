//! Captures of a world's packets, for Wireshark.

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
/// The file has the packets from the moment at which a node or link is added. Add it before the first
/// packet is sent: the world computes checksums only from then on.
///
/// Capture one node in a file. Wireshark takes packets that it meets twice for retransmissions; the
/// packets that a link drops are the difference of the files of its ends.
#[derive(Debug, Clone)]
pub struct Capture(Arc<Mutex<File>>);

struct File {
    writer: Writer<BufWriter<Box<dyn Write + Send>>>,
    /// The first error; later packets are not written.
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
    /// Begins a file.
    ///
    /// # Errors
    /// Fails with the error of `out`; later errors are kept for [`finish`](Self::finish).
    pub fn new(out: Box<dyn Write + Send>) -> io::Result<Self> {
        Ok(Capture(Arc::new(Mutex::new(File {
            writer: Writer::new(BufWriter::new(out))?,
            error: None,
        }))))
    }

    /// Adds the interfaces of `node`, as `name.0`, `name.1` and so on. They show what the node hands to
    /// its links and what arrives by them, like a capture on that machine.
    pub fn node(&self, world: &mut World, node: NodeId, name: &str) {
        for (n, (out, back)) in world.interfaces(node).into_iter().enumerate() {
            let interface = self.interface(&format!("{name}.{n}"));
            self.tap(world, out, interface, Direction::Outbound);
            self.tap(world, back, interface, Direction::Inbound);
        }
    }

    /// Adds one direction of a link as the interface `name`. It shows every packet handed to the link,
    /// dropped or not.
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
        let Some(interface) = interface else { return };
        world.use_checksums();
        let point = Point {
            capture: self.clone(),
            interface,
            direction,
        };
        world.tap(link, Box::new(point));
    }

    fn file(&self) -> MutexGuard<'_, File> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl File {
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

/// One end of a link.
#[derive(Debug)]
struct Point {
    capture: Capture,
    interface: InterfaceId,
    direction: Direction,
}

impl Tap for Point {
    fn on_packet(&mut self, at: Instant, _: LinkId, what: PacketEvent, packet: &Packet) {
        let here = match self.direction {
            Direction::Outbound => what == PacketEvent::Sent,
            Direction::Inbound => matches!(what, PacketEvent::Delivered { .. }),
        };
        if here {
            let (interface, direction) = (self.interface, self.direction);
            self.capture
                .file()
                .attempt(|writer| writer.packet(interface, at, direction, &packet.bytes));
        }
    }
}
