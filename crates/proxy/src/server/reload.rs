//! Reload of the configuration without an interruption of connections.

use std::collections::BTreeMap;

use crate::app::Ctx;

use super::egress::PrefixTable;
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
    /// continue. Connections of removed users end at once, and so do connections that are not signed in yet but
    /// whose key belongs to no user any more.
    pub fn reload(&mut self, ctx: &mut Ctx<'_>, config: &ServerConfig) {
        self.timeouts = config.timeouts.clone();
        ctx.stack.set_user_timeout(self.timeouts.user_timeout);
        self.limits = config.limits.clone();
        self.destinations.set_rules(config.destination_rules());

        let users = config.users.iter();
        let indices: BTreeMap<_, _> = users.map(|u| (u.key, &u.name)).zip(0..).collect();
        // The new index of each user, by the index before the reload; `None` for a removed user.
        let mut new_indices = vec![None; self.user_names.len()];
        let before = self.verifier.users().iter().zip(&self.user_names);
        for (new_index, (key, name)) in new_indices.iter_mut().zip(before) {
            *new_index = indices.get(&(*key, name)).copied();
        }
        self.tls.set_users(config.users.iter().map(|u| u.key));
        self.verifier
            .set_users(config.users.iter().map(|user| user.key));
        for id in self.sessions.ids() {
            if self.is_user_removed(id, &new_indices) {
                self.end_removed(ctx, id);
            }
        }
        self.move_users(ctx, config, &new_indices);
    }

    /// Returns whether the session's user was removed.
    fn is_user_removed(&self, id: SessionId, new_indices: &[Option<usize>]) -> bool {
        let Some(session) = self.sessions.get(id) else {
            return false;
        };
        match (session.user, session.channel.peer()) {
            (Some(user), _) => new_indices[user].is_none(),
            // A handshake before the first message, a probe, or a refused session.
            (None, Some(key)) => self.verifier.user(key).is_none(),
            (None, None) => false,
        }
    }

    /// Ends a session whose user was removed.
    fn end_removed(&mut self, ctx: &mut Ctx<'_>, id: SessionId) {
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

    /// Gives all users their new indices, in each place that keeps an index.
    fn move_users(
        &mut self,
        ctx: &mut Ctx<'_>,
        config: &ServerConfig,
        new_indices: &[Option<usize>],
    ) {
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
                *user = new_indices[*user].unwrap_or(*user);
            }
            // The engine's memory group has the number of the user's index.
            if let Some(user) = *user {
                join_group(ctx, conn, user);
            }
        }
        let count = config.users.len();
        let unused = Allowance::new(self.limits.trains);
        self.allowances = move_all(&self.allowances, new_indices, vec![unused; count]);
        self.per_user = move_all(&self.per_user, new_indices, vec![0; count]);
        self.handshakes.waiting = move_all(&self.handshakes.waiting, new_indices, vec![0; count]);
        self.lookups.move_users(new_indices, count);
        if let Some(sessions) = &mut self.tunnel.sessions {
            sessions.move_users(new_indices);
        }
        let unused = vec![PrefixTable::default(); count];
        self.egress.users = move_all(&self.egress.users, new_indices, unused);
        self.user_names = config.users.iter().map(|u| u.name.clone()).collect();
    }
}

/// Copies each user's entry from `old` to the user's new index in `entries`, and returns `entries`. The caller has
/// filled `entries` with the entries of new users.
pub(super) fn move_all<T: Clone>(
    old: &[T],
    new_indices: &[Option<usize>],
    mut entries: Vec<T>,
) -> Vec<T> {
    for (entry, new_index) in old.iter().zip(new_indices) {
        if let Some(new_index) = *new_index {
            entries[new_index] = entry.clone();
        }
    }
    entries
}
