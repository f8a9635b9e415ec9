//! A configuration that was read again while connections go on.

use std::collections::BTreeMap;

use crate::app::Ctx;

use super::session::{Session, Stage};
use super::train::Allowance;
use super::{ServerCore, join_group};
use crate::config::ServerConfig;
use crate::relay::End;
use crate::relay::table::SessionId;

impl ServerCore {
    /// Goes on with `config`, which is what ran before but for what [`ServerConfig::reload`] takes over.
    ///
    /// A user is who has the same name and the same key as before: what such a user has goes on.
    /// Connections of all others end at once, and so do those whose user is not known yet but whose key
    /// is no user's any more.
    pub fn reload(&mut self, ctx: &mut Ctx<'_>, config: &ServerConfig) {
        self.timeouts = config.timeouts.clone();
        ctx.stack.set_user_timeout(self.timeouts.user_timeout);
        self.limits = config.limits.clone();
        self.destinations.set_rules(config.destination_rules());

        let users = config.users.iter();
        let places: BTreeMap<_, _> = users.map(|u| (u.key, &u.name)).zip(0..).collect();
        let mut moved = vec![None; self.user_names.len()];
        let before = self.verifier.users().iter().zip(&self.user_names);
        for (moved, (key, name)) in moved.iter_mut().zip(before) {
            *moved = places.get(&(*key, name)).copied();
        }
        self.tls.set_users(config.users.iter().map(|u| u.key));
        self.verifier
            .set_users(config.users.iter().map(|user| user.key));
        for id in self.sessions.ids() {
            if self.is_dismissed(id, &moved) {
                self.dismiss(ctx, id);
            }
        }
        self.move_users(ctx, config, &moved);
    }

    /// Whether a session is of nobody who stays.
    fn is_dismissed(&self, id: SessionId, moved: &[Option<usize>]) -> bool {
        let Some(session) = self.sessions.get(id) else {
            return false;
        };
        match (session.user, session.channel.peer()) {
            (Some(user), _) => moved[user].is_none(),
            (None, Some(key)) => self.verifier.user(key).is_none(),
            (None, None) => false,
        }
    }

    /// Ends a session whose user is no more.
    fn dismiss(&mut self, ctx: &mut Ctx<'_>, id: SessionId) {
        let Some(session) = self.forget(ctx.now, id) else {
            return;
        };
        match session.stage {
            Stage::Connecting { local, .. } => ctx.local.reset(local),
            Stage::Relaying(relay, _) => relay.end(ctx, &session.channel, End::Conn),
            _ => {}
        }
        session.channel.abort(ctx.now, ctx.stack);
        self.counters.user_removed += 1;
    }

    /// Users have other places than before.
    fn move_users(&mut self, ctx: &mut Ctx<'_>, config: &ServerConfig, moved: &[Option<usize>]) {
        for id in self.sessions.ids() {
            let Some(Session {
                channel,
                user,
                stage,
                ..
            }) = self.sessions.get_mut(id)
            else {
                continue;
            };
            let conn = channel.conn;
            let grant = match stage {
                Stage::Handshake(handshake) => handshake.grant.as_mut(),
                _ => None,
            };
            for user in user.iter_mut().chain(grant.map(|g| &mut g.user)) {
                // Sessions of those who have none are gone.
                *user = moved[*user].unwrap_or(*user);
            }
            if let Some(user) = *user {
                join_group(ctx, conn, user);
            }
        }
        let count = config.users.len();
        let none = Allowance::new(self.limits.trains);
        self.allowances = move_all(&self.allowances, moved, vec![none; count]);
        self.per_user = move_all(&self.per_user, moved, vec![0; count]);
        self.handshakes.waiting = move_all(&self.handshakes.waiting, moved, vec![0; count]);
        self.lookups.move_users(moved, count);
        self.user_names = config.users.iter().map(|u| u.name.clone()).collect();
    }
}

/// Puts what each user had into the user's new place in `all`.
pub(super) fn move_all<T: Copy>(old: &[T], moved: &[Option<usize>], mut all: Vec<T>) -> Vec<T> {
    for (had, place) in old.iter().zip(moved) {
        if let Some(place) = *place {
            all[place] = *had;
        }
    }
    all
}
