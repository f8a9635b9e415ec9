//! The table of a core's sessions. A session can be looked up by its connection or by its downstream stream. Each
//! session has a timer, and a queue lists the sessions that need another turn.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use braid_engine::ConnId;
use braid_wire::Instant;

use super::{End, Turn};
use crate::app::DownstreamId;

/// The identifier of a session in a [`Table`]; never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct SessionId(u64);

impl SessionId {
    /// The lowest identifier.
    pub(crate) const FIRST: SessionId = SessionId(0);
}

/// The reason why a session is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Due {
    /// The session's timer expired and is no longer set.
    Timer,
    /// The session was queued for another turn.
    Turn,
}

/// A table of sessions. The hash tables are for look-ups only and never iterated, because their random order would
/// make simulations irreproducible.
#[derive(Debug)]
pub(crate) struct Table<S> {
    sessions: BTreeMap<SessionId, Entry<S>>,
    next_id: u64,
    by_conn: HashMap<ConnId, SessionId>,
    by_downstream: HashMap<DownstreamId, SessionId>,
    timers: BTreeSet<(Instant, SessionId)>,
    ready: VecDeque<SessionId>,
}

#[derive(Debug)]
struct Entry<S> {
    conn: Option<ConnId>,
    /// The downstream stream or look-up of the session.
    downstream: Option<DownstreamId>,
    /// The expiry of the session's timer, if it is set.
    timer: Option<Instant>,
    /// True while the session is in the queue.
    queued: bool,
    session: S,
}

impl<S> Default for Table<S> {
    fn default() -> Self {
        Table {
            sessions: BTreeMap::new(),
            next_id: 0,
            by_conn: HashMap::new(),
            by_downstream: HashMap::new(),
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
        let id = SessionId(self.next_id);
        self.next_id += 1;
        let entry = Entry {
            conn: None,
            downstream: None,
            timer: None,
            queued: false,
            session,
        };
        self.sessions.insert(id, entry);
        id
    }

    /// Returns the identifiers of all sessions, oldest first.
    pub(crate) fn ids(&self) -> Vec<SessionId> {
        self.sessions.keys().copied().collect()
    }

    pub(crate) fn get(&self, id: SessionId) -> Option<&S> {
        self.sessions.get(&id).map(|e| &e.session)
    }

    pub(crate) fn get_mut(&mut self, id: SessionId) -> Option<&mut S> {
        self.sessions.get_mut(&id).map(|e| &mut e.session)
    }

    /// Removes a session with its timer and bindings.
    pub(crate) fn remove(&mut self, id: SessionId) -> Option<S> {
        let entry = self.sessions.remove(&id)?;
        if let Some(at) = entry.timer {
            self.timers.remove(&(at, id));
        }
        entry.conn.map(|conn| self.by_conn.remove(&conn));
        entry
            .downstream
            .map(|downstream| self.by_downstream.remove(&downstream));
        Some(entry.session)
    }

    /// Binds a connection to the session, in place of an earlier connection.
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

    /// Binds a downstream stream or a look-up to the session, in place of an earlier stream or look-up.
    pub(crate) fn bind_downstream(&mut self, downstream: DownstreamId, id: SessionId) {
        self.unbind_downstream(id);
        if let Some(entry) = self.sessions.get_mut(&id) {
            entry.downstream = Some(downstream);
            self.by_downstream.insert(downstream, id);
        }
    }

    /// Unbinds the session's downstream stream or look-up.
    pub(crate) fn unbind_downstream(&mut self, id: SessionId) {
        let entry = self.sessions.get_mut(&id);
        if let Some(downstream) = entry.and_then(|e| e.downstream.take()) {
            self.by_downstream.remove(&downstream);
        }
    }

    pub(crate) fn by_downstream(&self, downstream: DownstreamId) -> Option<SessionId> {
        self.by_downstream.get(&downstream).copied()
    }

    /// Sets the timer of a session to `at`, in place of an earlier time.
    pub(crate) fn arm(&mut self, id: SessionId, at: Instant) {
        let Some(entry) = self.sessions.get_mut(&id) else {
            return;
        };
        if let Some(old) = entry.timer.replace(at) {
            self.timers.remove(&(old, id));
        }
        self.timers.insert((at, id));
    }

    /// Returns the next session that is due at `now`, and the reason. Timers come before the queue, so that a busy
    /// queue does not delay timeouts.
    pub(crate) fn pop_due(&mut self, now: Instant) -> Option<(SessionId, Due)> {
        if let Some((_, id)) = self.timers.first().filter(|(at, _)| *at <= now).copied() {
            self.timers.pop_first();
            if let Some(entry) = self.sessions.get_mut(&id) {
                entry.timer = None;
            }
            return Some((id, Due::Timer));
        }
        loop {
            let id = self.ready.pop_front()?;
            // The queue may name a removed session, because `remove` does not search the queue.
            if let Some(entry) = self.sessions.get_mut(&id) {
                entry.queued = false;
                return Some((id, Due::Turn));
            }
        }
    }

    /// Queues a session for another turn, unless it is in the queue already.
    pub(crate) fn queue(&mut self, id: SessionId) {
        if let Some(entry) = self.sessions.get_mut(&id)
            && !core::mem::replace(&mut entry.queued, true)
        {
            self.ready.push_back(id);
        }
    }

    /// Updates timer, bindings and queue after a turn of the session's relay. Returns the relay's end if the relay
    /// has ended; the caller has to handle the end. Movement does not set the timer. When the timer expires, the
    /// caller sets it to the relay's new time.
    pub(crate) fn after_turn(&mut self, id: SessionId, turn: &Turn, due: Instant) -> Option<End> {
        if turn.closing {
            self.arm(id, due);
        }
        if turn.downstream_closed {
            self.unbind_downstream(id);
        }
        if turn.again {
            self.queue(id);
        }
        turn.end
    }

    /// Returns the time at which the next session is due. That is at once if the queue is not empty.
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        if !self.ready.is_empty() {
            return Some(Instant::ZERO);
        }
        self.timers.first().map(|(at, _)| *at)
    }
}
