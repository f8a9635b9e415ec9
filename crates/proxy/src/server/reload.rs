//! Reload of the configuration while connections continue.

use std::collections::BTreeMap;

use crate::app::Ctx;

use super::session::{Session, Stage};
use super::train::Allowance;
use super::{ServerCore, join_group};
use crate::config::ServerConfig;
use crate::relay::End;
use crate::relay::table::SessionId;

impl ServerCore {
    /// Applies `config`: the running configuration with the settings that [`ServerConfig::reload`] has taken over.
    ///
    /// A user is identified by name and key; changing either creates a new user. Connections of remaining users
    /// continue. All others end at once, including those that are not signed in yet but whose key belongs to no
    /// user any more.
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

    /// Returns whether the session's user was removed.
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

    /// Ends a session whose user was removed.
    fn dismiss(&mut self, ctx: &mut Ctx<'_>, id: SessionId) {
        let Some(session) = self.forget(ctx.now, id) else {
            return;
        };
        match session.stage {
            Stage::Connecting { downstream, .. } => ctx.downstream.reset(downstream),
            Stage::Relaying(relay, _) => relay.end(ctx, &session.channel, End::Conn),
            _ => {}
        }
        session.channel.abort(ctx.now, ctx.stack);
        self.counters.user_removed += 1;
    }

    /// Applies the users' new indices.
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
                // Sessions of removed users have ended already.
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

/// Moves each user's entry to the user's new index in `all`.
pub(super) fn move_all<T: Copy>(old: &[T], moved: &[Option<usize>], mut all: Vec<T>) -> Vec<T> {
    for (had, place) in old.iter().zip(moved) {
        if let Some(place) = *place {
            all[place] = *had;
        }
    }
    all
}
