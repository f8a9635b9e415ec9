//! The sessions of a core: found by connection and by local stream, with a timer each and a queue
//! of those that have more to do.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use braid_engine::ConnId;
use braid_wire::Instant;

use super::{End, Turn};
use crate::app::LocalId;

/// A session of a [`Table`]; never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct SessionId(u64);

impl SessionId {
    /// No session's is lower.
    pub(crate) const FIRST: SessionId = SessionId(0);
}

/// Why a session has something to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Due {
    /// Its timer expired, and is off now.
    Timer,
    /// It was queued for another turn.
    Turn,
}

/// Sessions. The hash tables are looked up in, never walked.
#[derive(Debug)]
pub(crate) struct Table<S> {
    sessions: BTreeMap<SessionId, Entry<S>>,
    next: u64,
    by_conn: HashMap<ConnId, SessionId>,
    by_local: HashMap<LocalId, SessionId>,
    timers: BTreeSet<(Instant, SessionId)>,
    ready: VecDeque<SessionId>,
}

#[derive(Debug)]
struct Entry<S> {
    conn: Option<ConnId>,
    local: Option<LocalId>,
    armed: Option<Instant>,
    queued: bool,
    session: S,
}

impl<S> Default for Table<S> {
    fn default() -> Self {
        Table {
            sessions: BTreeMap::new(),
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
            conn: None,
            local: None,
            armed: None,
            queued: false,
            session,
        };
        self.sessions.insert(id, entry);
        id
    }

    /// All of them, the oldest first.
    pub(crate) fn ids(&self) -> Vec<SessionId> {
        self.sessions.keys().copied().collect()
    }

    pub(crate) fn get(&self, id: SessionId) -> Option<&S> {
        self.sessions.get(&id).map(|e| &e.session)
    }

    pub(crate) fn get_mut(&mut self, id: SessionId) -> Option<&mut S> {
        self.sessions.get_mut(&id).map(|e| &mut e.session)
    }

    /// Takes a session out.
    pub(crate) fn remove(&mut self, id: SessionId) -> Option<S> {
        let entry = self.sessions.remove(&id)?;
        if let Some(at) = entry.armed {
            self.timers.remove(&(at, id));
        }
        entry.conn.map(|conn| self.by_conn.remove(&conn));
        entry.local.map(|local| self.by_local.remove(&local));
        Some(entry.session)
    }

    /// Says which connection is the session's, in place of the one before.
    pub(crate) fn bind_conn(&mut self, conn: ConnId, id: SessionId) {
        if let Some(entry) = self.sessions.get_mut(&id) {
            if let Some(old) = entry.conn.replace(conn) {
                self.by_conn.remove(&old);
            }
            self.by_conn.insert(conn, id);
        }
    }

    pub(crate) fn by_conn(&self, conn: ConnId) -> Option<SessionId> {
        self.by_conn.get(&conn).copied()
    }

    /// Says which stream or look-up is the session's, in place of the one before.
    pub(crate) fn bind_local(&mut self, local: LocalId, id: SessionId) {
        self.unbind_local(id);
        if let Some(entry) = self.sessions.get_mut(&id) {
            entry.local = Some(local);
            self.by_local.insert(local, id);
        }
    }

    /// Nothing of the local side is the session's any more.
    pub(crate) fn unbind_local(&mut self, id: SessionId) {
        let entry = self.sessions.get_mut(&id);
        if let Some(local) = entry.and_then(|e| e.local.take()) {
            self.by_local.remove(&local);
        }
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

    /// The next session with something to do at `now`, and what: timers first.
    pub(crate) fn pop_due(&mut self, now: Instant) -> Option<(SessionId, Due)> {
        if let Some((_, id)) = self.timers.first().filter(|(at, _)| *at <= now).copied() {
            self.timers.pop_first();
            if let Some(entry) = self.sessions.get_mut(&id) {
                entry.armed = None;
            }
            return Some((id, Due::Timer));
        }
        loop {
            let id = self.ready.pop_front()?;
            if let Some(entry) = self.sessions.get_mut(&id) {
                entry.queued = false;
                return Some((id, Due::Turn));
            }
        }
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
        if turn.parted {
            self.unbind_local(id);
        }
        if turn.again {
            self.queue(id);
        }
        turn.end
    }

    /// When there is something to do: at once where the queue is not empty.
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        if !self.ready.is_empty() {
            return Some(Instant::ZERO);
        }
        self.timers.first().map(|(at, _)| *at)
    }
}
