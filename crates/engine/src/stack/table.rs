//! The slots of connections: stable ids, reused with a new generation.

use crate::ConnId;
use crate::mptcp::Connection;

#[derive(Debug, Default)]
struct Slot {
    generation: u32,
    conn: Option<Box<Connection>>,
    handshake: Handshake,
}

/// The progress of an accepted connection's handshake, as far as it is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Handshake {
    /// The handshake is complete, or there was none: nothing is counted.
    #[default]
    Complete,
    HalfOpen,
    /// As `HalfOpen`, and the application has the connection: its SYN carried payload.
    FastOpen,
}

/// All connections.
#[derive(Debug, Default)]
pub(super) struct Table {
    slots: Vec<Slot>,
    free: Vec<u32>,
    half_open: usize,
    fast_open: usize,
}

impl Table {
    /// Returns the number of connections.
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Returns the number of accepted connections whose handshake is not complete.
    pub fn half_open(&self) -> usize {
        self.half_open
    }

    /// Returns the number of half-open connections that the application has already.
    pub fn fast_open(&self) -> usize {
        self.fast_open
    }

    /// Reserves an id for a connection that is about to exist.
    pub fn reserve(&mut self) -> ConnId {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            self.slots.len() as u32 - 1
        });
        ConnId {
            slot,
            generation: self.slots[slot as usize].generation,
        }
    }

    /// Returns a reserved id to the free ones.
    pub fn release(&mut self, id: ConnId) {
        self.slots[id.slot as usize].generation = id.generation.wrapping_add(1);
        self.free.push(id.slot);
    }

    /// Fills a reserved slot.
    pub fn put(&mut self, conn: Connection) {
        let slot = conn.transport.id.slot as usize;
        let accepted = conn.transport.listener.is_some();
        self.slots[slot].conn = Some(Box::new(conn));
        if accepted {
            self.count(slot, Handshake::HalfOpen);
        }
    }

    /// Updates the counts when a handshake has progressed. Returns whether a handshake with payload in its
    /// SYN ended before it was complete.
    pub fn recount_half_open(&mut self, id: ConnId) -> bool {
        let at = id.slot as usize;
        let slot = &self.slots[at];
        let Some(conn) = &slot.conn else {
            return false;
        };
        if slot.handshake == Handshake::Complete {
            return false;
        }
        let now = match conn.transport.is_half_open() {
            false => Handshake::Complete,
            true if conn.transport.is_open() => Handshake::FastOpen,
            true => Handshake::HalfOpen,
        };
        let ended = conn.transport.is_ended();
        let before = self.count(at, now);
        before == Handshake::FastOpen && now == Handshake::Complete && ended
    }

    /// Counts the connection in a slot as `handshake`, and returns its former state.
    fn count(&mut self, slot: usize, handshake: Handshake) -> Handshake {
        let before = core::mem::replace(&mut self.slots[slot].handshake, handshake);
        let counts = |h| {
            (
                usize::from(h != Handshake::Complete),
                usize::from(h == Handshake::FastOpen),
            )
        };
        let (old, new) = (counts(before), counts(handshake));
        self.half_open = self.half_open + new.0 - old.0;
        self.fast_open = self.fast_open + new.1 - old.1;
        before
    }

    pub fn get(&self, id: ConnId) -> Option<&Connection> {
        let slot = self.slots.get(id.slot as usize)?;
        slot.conn
            .as_deref()
            .filter(|_| slot.generation == id.generation)
    }

    pub fn get_mut(&mut self, id: ConnId) -> Option<&mut Connection> {
        let slot = self.slots.get_mut(id.slot as usize)?;
        let generation = slot.generation;
        slot.conn
            .as_deref_mut()
            .filter(|_| generation == id.generation)
    }

    pub fn remove(&mut self, id: ConnId) -> Option<Box<Connection>> {
        self.get(id)?;
        self.count(id.slot as usize, Handshake::Complete);
        let conn = self.slots[id.slot as usize].conn.take();
        self.release(id);
        conn
    }

    /// Returns the ids of all connections, in order of slot.
    pub fn ids(&self) -> Vec<ConnId> {
        self.iter().map(|c| c.transport.id).collect()
    }

    /// Returns all connections, in order of slot.
    pub fn iter(&self) -> impl Iterator<Item = &Connection> {
        self.slots.iter().filter_map(|s| s.conn.as_deref())
    }
}
