//! Look-ups of names: each user has a few at a time, and the others wait for these.
//!
//! A name whose servers are silent holds a thread of the resolver for many seconds, also when nobody
//! waits for its addresses any more. So it is the look-up that counts, not who asked for it.

use std::collections::{BTreeMap, BTreeSet};

use crate::app::{ConnectFailure, Ctx, LocalId};

use super::ServerCore;
use super::reload::move_all;
use super::session::{Refusal, Stage};
use crate::protocol::socks::Destination;
use crate::relay::table::SessionId;

/// The look-ups of all users.
#[derive(Debug)]
pub(super) struct Lookups {
    /// Whose each of those under way is; nobody's whose user is no more.
    under_way: BTreeMap<LocalId, Option<usize>>,
    /// How many each user has under way.
    of_user: Vec<usize>,
    /// Sessions that wait for one of their user's to end, the oldest of each user first.
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

    /// A look-up has ended; returns whose it was.
    fn end(&mut self, lookup: LocalId) -> Option<usize> {
        let user = self.under_way.remove(&lookup)??;
        self.of_user[user] -= 1;
        Some(user)
    }

    fn begin(&mut self, user: usize, lookup: LocalId) {
        self.under_way.insert(lookup, Some(user));
        self.of_user[user] += 1;
    }

    /// The session of `user` that is next, where not `most` are under way.
    fn next(&mut self, user: usize, most: usize) -> Option<SessionId> {
        let mut own = self.waiting.range((user, SessionId::FIRST)..);
        let next = *own.next()?;
        if next.0 != user || self.of_user[user] >= most {
            return None;
        }
        self.waiting.remove(&next);
        Some(next.1)
    }

    /// A session of `user` waits no more, if it did.
    pub(super) fn forget(&mut self, user: Option<usize>, id: SessionId) {
        if let Some(user) = user {
            self.waiting.remove(&(user, id));
        }
    }

    /// Users have other places than before, of `count`. Of those who have none no session waits.
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
    /// Looks up the name that a session wants to go to, as soon as its user may have one more looked
    /// up. The session's timer runs meanwhile.
    pub(super) fn look_up(&mut self, ctx: &mut Ctx<'_>, id: SessionId) {
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        let Some(user) = session.user else {
            debug_assert!(false, "a request of nobody");
            return;
        };
        session.stage = Stage::Resolving;
        let deadline = session.time;
        self.sessions.arm(id, deadline);
        self.lookups.waiting.insert((user, id));
        self.look_up_next(ctx, user);
        let waits = self.lookups.waiting.contains(&(user, id));
        self.counters.lookups_waited += u64::from(waits);
    }

    /// A look-up has ended, whether or not anybody still wants to know.
    pub(super) fn on_looked_up(&mut self, ctx: &mut Ctx<'_>, lookup: LocalId) {
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
            match ctx.local.resolve(name, *port) {
                Some(lookup) => {
                    self.lookups.begin(user, lookup);
                    self.sessions.bind_local(lookup, id);
                }
                None => self.refuse(ctx, id, Refusal::Failure(ConnectFailure::NoResources)),
            }
        }
    }
}
