//! The sessions of a core: found by connection and by local stream, with a timer each and a queue
//! of those that have more to do.

use std::collections::{BTreeSet, HashMap, VecDeque};

use braid_engine::ConnId;
use braid_engine::app::LocalId;
use braid_wire::Instant;

use crate::relay::{End, Turn};

/// A session of a [`Table`]; never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct SessionId(u64);

/// Sessions. The maps are looked up in, never iterated over.
#[derive(Debug)]
pub(crate) struct Table<S> {
    sessions: HashMap<SessionId, Entry<S>>,
    next: u64,
    by_conn: HashMap<ConnId, SessionId>,
    by_local: HashMap<LocalId, SessionId>,
    timers: BTreeSet<(Instant, SessionId)>,
    ready: VecDeque<SessionId>,
}

#[derive(Debug)]
struct Entry<S> {
    armed: Option<Instant>,
    queued: bool,
    session: S,
}

impl<S> Default for Table<S> {
    fn default() -> Self {
        Table {
            sessions: HashMap::new(),
            next: 0,
            by_conn: HashMap::new(),
            by_local: HashMap::new(),
            timers: BTreeSet::new(),
            ready: VecDeque::new(),
        }
    }
}

impl<S> Table<S> {
    pub(crate) fn len(&self) -> usize {
        self.sessions.len()
    }

    pub(crate) fn insert(&mut self, session: S) -> SessionId {
        let id = SessionId(self.next);
        self.next += 1;
        let entry = Entry {
            armed: None,
            queued: false,
            session,
        };
        self.sessions.insert(id, entry);
        id
    }

    pub(crate) fn get_mut(&mut self, id: SessionId) -> Option<&mut S> {
        self.sessions.get_mut(&id).map(|e| &mut e.session)
    }

    /// Takes a session out. Its connection and stream are to be unbound by the caller.
    pub(crate) fn remove(&mut self, id: SessionId) -> Option<S> {
        let entry = self.sessions.remove(&id)?;
        if let Some(at) = entry.armed {
            self.timers.remove(&(at, id));
        }
        Some(entry.session)
    }

    pub(crate) fn bind_conn(&mut self, conn: ConnId, id: SessionId) {
        self.by_conn.insert(conn, id);
    }

    pub(crate) fn unbind_conn(&mut self, conn: ConnId) {
        self.by_conn.remove(&conn);
    }

    pub(crate) fn by_conn(&self, conn: ConnId) -> Option<SessionId> {
        self.by_conn.get(&conn).copied()
    }

    pub(crate) fn bind_local(&mut self, local: LocalId, id: SessionId) {
        self.by_local.insert(local, id);
    }

    pub(crate) fn unbind_local(&mut self, local: LocalId) {
        self.by_local.remove(&local);
    }

    pub(crate) fn by_local(&self, local: LocalId) -> Option<SessionId> {
        self.by_local.get(&local).copied()
    }

    /// Sets the one timer of a session.
    pub(crate) fn arm(&mut self, id: SessionId, at: Instant) {
        let Some(entry) = self.sessions.get_mut(&id) else {
            return;
        };
        if let Some(old) = entry.armed.replace(at) {
            self.timers.remove(&(old, id));
        }
        self.timers.insert((at, id));
    }

    /// A session whose timer expired; the timer is off then.
    pub(crate) fn pop_expired(&mut self, now: Instant) -> Option<SessionId> {
        let (at, id) = *self.timers.first()?;
        if at > now {
            return None;
        }
        self.timers.pop_first();
        if let Some(entry) = self.sessions.get_mut(&id) {
            entry.armed = None;
        }
        Some(id)
    }

    /// Queues a session for another turn, once.
    pub(crate) fn queue(&mut self, id: SessionId) {
        if let Some(entry) = self.sessions.get_mut(&id)
            && !core::mem::replace(&mut entry.queued, true)
        {
            self.ready.push_back(id);
        }
    }

    /// Sees to what follows from a turn of a session's relay, but its end, which is returned.
    pub(crate) fn follow(&mut self, id: SessionId, turn: &Turn, due: Instant) -> Option<End> {
        if turn.closing {
            self.arm(id, due);
        }
        if turn.again {
            self.queue(id);
        }
        turn.end
    }

    /// The next session in the queue.
    pub(crate) fn pop_ready(&mut self) -> Option<SessionId> {
        loop {
            let id = self.ready.pop_front()?;
            if let Some(entry) = self.sessions.get_mut(&id) {
                entry.queued = false;
                return Some(id);
            }
        }
    }

    /// When there is something to do: at once where the queue is not empty.
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        if !self.ready.is_empty() {
            return Some(Instant::ZERO);
        }
        self.timers.first().map(|(at, _)| *at)
    }
}
