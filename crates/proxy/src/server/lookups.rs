//! Name look-ups, of which each user may have a few at a time; further ones wait.
//!
//! A name whose servers are silent occupies a thread of the resolver for many seconds, even after the session has
//! ended. Therefore look-ups are counted, not sessions.

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
    /// The user of each look-up under way; `None` where the user was removed.
    under_way: BTreeMap<DownstreamId, Option<usize>>,
    /// Number of look-ups under way for each user.
    of_user: Vec<usize>,
    /// Sessions that wait for a look-up of their user to end, the oldest of each user first.
    waiting: BTreeSet<(usize, SessionId)>,
}

impl Lookups {
    pub(super) fn new(users: usize) -> Self {
        Lookups {
            under_way: BTreeMap::new(),
            of_user: vec![0; users],
            waiting: BTreeSet::new(),
        }
    }

    /// Removes a finished look-up; returns its user.
    fn end(&mut self, lookup: DownstreamId) -> Option<usize> {
        let user = self.under_way.remove(&lookup)??;
        self.of_user[user] -= 1;
        Some(user)
    }

    fn begin(&mut self, user: usize, lookup: DownstreamId) {
        self.under_way.insert(lookup, Some(user));
        self.of_user[user] += 1;
    }

    /// Returns the next session of `user`, if fewer than `most` look-ups are under way.
    fn next(&mut self, user: usize, most: usize) -> Option<SessionId> {
        let mut own = self.waiting.range((user, SessionId::FIRST)..);
        let next = *own.next()?;
        if next.0 != user || self.of_user[user] >= most {
            return None;
        }
        self.waiting.remove(&next);
        Some(next.1)
    }

    /// Removes a session of `user` that may be waiting.
    pub(super) fn forget(&mut self, user: Option<usize>, id: SessionId) {
        if let Some(user) = user {
            self.waiting.remove(&(user, id));
        }
    }

    /// Applies new indices of `count` users. Sessions of removed users stop waiting.
    pub(super) fn move_users(&mut self, moved: &[Option<usize>], count: usize) {
        self.of_user = move_all(&self.of_user, moved, vec![0; count]);
        for user in self.under_way.values_mut() {
            *user = user.and_then(|user| moved[user]);
        }
        let waiting = core::mem::take(&mut self.waiting).into_iter();
        let waiting = waiting.filter_map(|(user, id)| Some((moved[user]?, id)));
        self.waiting = waiting.collect();
    }
}

impl ServerCore {
    /// Looks up the destination's name as soon as the user may have another look-up. The session's timer runs
    /// meanwhile.
    pub(super) fn look_up(&mut self, ctx: &mut Ctx<'_>, id: SessionId) {
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        let Some(user) = session.user else {
            debug_assert!(false, "a request of nobody");
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

    /// Notes the end of a look-up, also of one whose session has ended, and starts the next one.
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
