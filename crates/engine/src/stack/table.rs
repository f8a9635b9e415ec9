//! Slots of connections: stable ids, reused with a new generation.

use crate::ConnId;
use crate::mptcp::{Connection, Life};

#[derive(Debug, Default)]
struct Slot {
    generation: u32,
    conn: Option<Box<Connection>>,
    /// Counted as half open.
    half_open: bool,
}

/// All connections.
#[derive(Debug, Default)]
pub(super) struct Table {
    slots: Vec<Slot>,
    free: Vec<u32>,
    half_open: usize,
}

impl Table {
    /// Connections that exist.
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Accepted connections whose handshake is not complete.
    pub fn half_open(&self) -> usize {
        self.half_open
    }

    /// An id for a connection that is about to exist.
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

    /// Gives a reserved id back.
    pub fn release(&mut self, id: ConnId) {
        self.slots[id.slot as usize].generation = id.generation.wrapping_add(1);
        self.free.push(id.slot);
    }

    /// Fills a reserved slot.
    pub fn put(&mut self, conn: Connection) {
        let slot = &mut self.slots[conn.id.slot as usize];
        slot.half_open = conn.listener.is_some();
        self.half_open += usize::from(slot.half_open);
        slot.conn = Some(Box::new(conn));
    }

    /// Updates the count once a handshake is through.
    pub fn settle_half_open(&mut self, id: ConnId) {
        let slot = &mut self.slots[id.slot as usize];
        let open = slot
            .conn
            .as_ref()
            .is_some_and(|c| matches!(c.life, Life::Opening { .. }));
        if slot.half_open && !open {
            slot.half_open = false;
            self.half_open -= 1;
        }
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
        let slot = &mut self.slots[id.slot as usize];
        if slot.half_open {
            slot.half_open = false;
            self.half_open -= 1;
        }
        let conn = slot.conn.take();
        self.release(id);
        conn
    }

    /// The ids of all connections, in order of slot.
    pub fn ids(&self) -> Vec<ConnId> {
        self.iter().map(|c| c.id).collect()
    }

    /// All connections, in order of slot.
    pub fn iter(&self) -> impl Iterator<Item = &Connection> {
        self.slots.iter().filter_map(|s| s.conn.as_deref())
    }
}
