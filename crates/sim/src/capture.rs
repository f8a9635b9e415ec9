//! Captures of what passes in a world, for Wireshark.

use std::fmt;
use std::io::{self, BufWriter, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use braid_wire::Instant;

use crate::node::Packet;
use crate::pcapng::{Direction, InterfaceId, Writer};
use crate::tap::{Tap, What};
use crate::world::{LinkId, NodeId, World};

/// A pcapng file that is written while the world runs. It holds what is captured from the moment a
/// node or link is added, which is to be before the first packet is sent: the world computes
/// checksums only from then on.
///
/// A file is best of one node: what a link takes away can be seen in the difference of those at its
/// ends, and Wireshark takes packets that it meets twice for retransmissions.
#[derive(Debug, Clone)]
pub struct Capture(Arc<Mutex<File>>);

struct File {
    writer: Writer<BufWriter<Box<dyn Write + Send>>>,
    /// The first error; nothing is written after it.
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
    /// Those of `out`; later ones are kept for [`finish`](Self::finish).
    pub fn new(out: Box<dyn Write + Send>) -> io::Result<Self> {
        Ok(Capture(Arc::new(Mutex::new(File {
            writer: Writer::new(BufWriter::new(out))?,
            error: None,
        }))))
    }

    /// Adds the interfaces that `node` has, as `name.0`, `name.1` and so on: what it hands to its
    /// links and what arrives by them, as a capture on that machine shows it.
    pub fn node(&self, world: &mut World, node: NodeId, name: &str) {
        for (n, (out, back)) in world.interfaces(node).into_iter().enumerate() {
            let interface = self.interface(&format!("{name}.{n}"));
            self.tap(world, out, interface, Direction::Outbound);
            self.tap(world, back, interface, Direction::Inbound);
        }
    }

    /// Adds one direction of a link as the interface `name`: what is handed to it, dropped or not.
    pub fn link(&self, world: &mut World, link: LinkId, name: &str) {
        let interface = self.interface(name);
        self.tap(world, link, interface, Direction::Outbound);
    }

    /// Completes the file as far as it has come.
    ///
    /// # Errors
    /// The first that the output had.
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
    fn on_packet(&mut self, at: Instant, _: LinkId, what: What, packet: &Packet) {
        let here = match self.direction {
            Direction::Outbound => what == What::Sent,
            Direction::Inbound => matches!(what, What::Delivered { .. }),
        };
        if here {
            let (interface, direction) = (self.interface, self.direction);
            self.capture
                .file()
                .attempt(|writer| writer.packet(interface, at, direction, &packet.bytes));
        }
    }
}
