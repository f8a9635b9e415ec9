//! The table of connections. A connection keeps its slot for its life. The next connection in the slot has a
//! new generation, so an old id never names it.

use crate::ConnId;
use crate::mptcp::Connection;

/// The place of one connection.
#[derive(Debug, Default)]
struct Slot {
    /// The generation of the current connection, or of the next one if the slot is free.
    generation: u32,
    conn: Option<Box<Connection>>,
    /// The state in which the connection is counted.
    handshake: Handshake,
}

/// The state of a connection's handshake, by which the table counts it. The limits against a flood of SYNs
/// differ between the states, so each state has a count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Handshake {
    /// The handshake is complete, or this end opened the connection: it is not counted.
    #[default]
    Complete,
    /// The SYN/ACK was sent and not acknowledged. With `Config::max_half_open` or more incomplete handshakes,
    /// SYNs are answered without state.
    HalfOpen,
    /// As `HalfOpen`, but the application has the connection already, because its SYN carried payload. With
    /// `Config::max_fast_open` or more such connections, payload of SYNs is not accepted.
    FastOpen,
}

/// All connections.
#[derive(Debug, Default)]
pub(super) struct Table {
    slots: Vec<Slot>,
    /// The indices of free slots.
    free: Vec<u32>,
    /// The number of connections in the states `HalfOpen` and `FastOpen`.
    half_open: usize,
    /// The number of connections in the state `FastOpen`.
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

    /// Reserves an id for a connection that is about to be created. [`put`](Self::put) or
    /// [`release`](Self::release) has to follow.
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

    /// Frees the slot of an id, so that the id becomes invalid.
    pub fn release(&mut self, id: ConnId) {
        self.slots[id.slot as usize].generation = id.generation.wrapping_add(1);
        self.free.push(id.slot);
    }

    /// Puts a connection into its reserved slot.
    pub fn put(&mut self, conn: Connection) {
        let slot = conn.transport.id.slot as usize;
        let accepted = conn.transport.listener.is_some();
        self.slots[slot].conn = Some(Box::new(conn));
        if accepted {
            self.set_handshake(slot, Handshake::HalfOpen);
        }
    }

    /// Updates the counts after a change of connection `id`. Returns whether the connection ended before its
    /// handshake was complete although its SYN carried payload. Such connections count for a while longer
    /// (`EndedEarly`).
    pub fn recount_half_open(&mut self, id: ConnId) -> bool {
        let index = id.slot as usize;
        let slot = &self.slots[index];
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
        let before = self.set_handshake(index, now);
        before == Handshake::FastOpen && now == Handshake::Complete && ended
    }

    /// Sets the state in which the connection of a slot is counted, and returns its former state.
    fn set_handshake(&mut self, slot: usize, handshake: Handshake) -> Handshake {
        let before = core::mem::replace(&mut self.slots[slot].handshake, handshake);
        let half_open_and_fast_open = |h| {
            (
                usize::from(h != Handshake::Complete),
                usize::from(h == Handshake::FastOpen),
            )
        };
        let old = half_open_and_fast_open(before);
        let new = half_open_and_fast_open(handshake);
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

    /// Removes connection `id` from the table, and frees its slot.
    pub fn remove(&mut self, id: ConnId) -> Option<Box<Connection>> {
        // An outdated id must not remove the slot's current connection.
        self.get(id)?;
        self.set_handshake(id.slot as usize, Handshake::Complete);
        let conn = self.slots[id.slot as usize].conn.take();
        self.release(id);
        conn
    }

    /// Returns the ids of all connections in order of slot, as a copy, so that the caller can change and
    /// remove connections meanwhile.
    pub fn ids(&self) -> Vec<ConnId> {
        self.iter().map(|c| c.transport.id).collect()
    }

    /// Returns all connections, in order of slot.
    pub fn iter(&self) -> impl Iterator<Item = &Connection> {
        self.slots.iter().filter_map(|s| s.conn.as_deref())
    }
}
