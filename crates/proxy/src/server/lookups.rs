//! Name look-ups. The number of simultaneous look-ups of a user is limited, and further look-ups wait.
//!
//! If the DNS servers of a name do not answer, its look-up occupies a thread of the resolver for many seconds,
//! even after the session has ended. Therefore the limit counts look-ups and not sessions.

use std::collections::{BTreeMap, BTreeSet};

use crate::app::{ConnectFailure, Ctx, DownstreamId};

use super::ServerCore;
use super::reload::move_all;
use super::session::{Refusal, Stage};
use crate::protocol::socks::Destination;
use crate::relay::table::SessionId;

/// The look-ups of all users.
#[derive(Debug)]
pub(super) struct Lookups {
    /// The user of each current look-up; `None` if the user was removed meanwhile.
    under_way: BTreeMap<DownstreamId, Option<usize>>,
    /// Number of current look-ups of each user.
    under_way_per_user: Vec<usize>,
    /// Users and their sessions that wait for another look-up of the same user to end. Identifiers grow, so that
    /// each user's oldest session comes first.
    waiting: BTreeSet<(usize, SessionId)>,
}

impl Lookups {
    pub(super) fn new(users: usize) -> Self {
        Lookups {
            under_way: BTreeMap::new(),
            under_way_per_user: vec![0; users],
            waiting: BTreeSet::new(),
        }
    }

    /// Removes a finished look-up; returns its user.
    fn end(&mut self, lookup: DownstreamId) -> Option<usize> {
        let user = self.under_way.remove(&lookup)??;
        self.under_way_per_user[user] -= 1;
        Some(user)
    }

    fn begin(&mut self, user: usize, lookup: DownstreamId) {
        self.under_way.insert(lookup, Some(user));
        self.under_way_per_user[user] += 1;
    }

    /// Removes and returns the oldest waiting session of `user`, if the user has fewer than `max_lookups` current
    /// look-ups.
    fn next(&mut self, user: usize, max_lookups: usize) -> Option<SessionId> {
        let mut from_user = self.waiting.range((user, SessionId::FIRST)..);
        let next = *from_user.next()?;
        // Without a waiting session of `user`, the range begins with the next user's.
        if next.0 != user || self.under_way_per_user[user] >= max_lookups {
            return None;
        }
        self.waiting.remove(&next);
        Some(next.1)
    }

    /// Removes a session of `user` from the waiting sessions, if the session waits.
    pub(super) fn forget(&mut self, user: Option<usize>, id: SessionId) {
        if let Some(user) = user {
            self.waiting.remove(&(user, id));
        }
    }

    /// Gives the users their new indices after a reload: `new_indices` has an entry for each old index, `None`
    /// for a removed user, and there are `count` users now. Sessions of removed users stop waiting.
    pub(super) fn move_users(&mut self, new_indices: &[Option<usize>], count: usize) {
        self.under_way_per_user = move_all(&self.under_way_per_user, new_indices, vec![0; count]);
        for user in self.under_way.values_mut() {
            *user = user.and_then(|user| new_indices[user]);
        }
        let waiting = core::mem::take(&mut self.waiting).into_iter();
        let waiting = waiting.filter_map(|(user, id)| Some((new_indices[user]?, id)));
        self.waiting = waiting.collect();
    }
}

impl ServerCore {
    /// Looks up the name of the session's destination as soon as its user may have another look-up. The deadline
    /// for the connection to the destination includes the wait.
    pub(super) fn look_up(&mut self, ctx: &mut Ctx<'_>, id: SessionId) {
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        let Some(user) = session.user else {
            debug_assert!(false, "a request without a user");
            return;
        };
        session.stage = Stage::Resolving;
        let deadline = session.deadline;
        self.sessions.arm(id, deadline);
        self.lookups.waiting.insert((user, id));
        self.look_up_next(ctx, user);
        let waits = self.lookups.waiting.contains(&(user, id));
        self.counters.lookups_waited += u64::from(waits);
    }

    /// Counts the end of a look-up, and starts the user's next look-up. The session of the ended look-up may be
    /// gone already.
    pub(super) fn on_looked_up(&mut self, ctx: &mut Ctx<'_>, lookup: DownstreamId) {
        if let Some(user) = self.lookups.end(lookup) {
            self.look_up_next(ctx, user);
        }
    }

    fn look_up_next(&mut self, ctx: &mut Ctx<'_>, user: usize) {
        while let Some(id) = self.lookups.next(user, self.limits.lookups) {
            let session = self.sessions.get(id);
            let Some(Destination::Name(name, port)) =
                session.and_then(|s| s.destination.as_deref())
            else {
                // Sessions that end leave the list, so this line is not reached. If it were, the next session
                // would have its turn.
                continue;
            };
            match ctx.downstream.resolve(name, *port) {
                Some(lookup) => {
                    self.lookups.begin(user, lookup);
                    self.sessions.bind_downstream(lookup, id);
                }
                None => self.refuse(ctx, id, Refusal::Failure(ConnectFailure::NoResources)),
            }
        }
    }
}
