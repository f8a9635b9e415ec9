//! What of `server.toml` changes while a server runs, and what both files have in common.

use core::fmt;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::server_config::{ServerConfig, ServerLimits, UserConfig};

/// What a configuration that was read again changes. A box has no users: it counts none.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Changes {
    /// How many users are new.
    pub added: usize,
    /// How many are no more.
    pub removed: usize,
    /// How many have another key.
    pub rekeyed: usize,
    /// Other settings that have changed, and hold for what begins from now on.
    pub changed: Vec<String>,
    /// Settings that have changed in the file, and hold only after a restart.
    pub restart: Vec<String>,
}

impl fmt::Display for Changes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let users = [
            (self.added, "added"),
            (self.removed, "removed"),
            (self.rekeyed, "with another key"),
        ];
        let users = users.into_iter().filter(|(n, _)| *n > 0);
        let users: Vec<_> = users.map(|(n, what)| format!("{n} {what}")).collect();
        let lists = [
            ("users", &users),
            ("changed", &self.changed),
            ("not before a restart", &self.restart),
        ];
        let lists = lists.into_iter().filter(|(_, list)| !list.is_empty());
        let said: Vec<_> = lists
            .map(|(what, list)| format!("{what}: {}", list.join(", ")))
            .collect();
        match said.is_empty() {
            true => f.write_str("nothing has changed"),
            false => f.write_str(&said.join("; ")),
        }
    }
}

impl ServerConfig {
    /// Takes from `new`, which is the same file as it is now, what can change while a server runs, and
    /// says what that is. Everything else stays as it was, and is named.
    pub fn reload(&mut self, new: ServerConfig) -> Changes {
        let mut changes = Changes::of_users(&self.users, &new.users);
        changes.restart = self.fixed_but_other_in(&new);
        self.users = new.users;
        let (own, limits) = (&mut self.limits, new.limits);
        let live = [
            replace("allow", &mut self.allow, new.allow),
            replace("deny", &mut self.deny, new.deny),
            replace("refuse_ports", &mut self.refuse_ports, new.refuse_ports),
            replace("timeouts", &mut self.timeouts, new.timeouts),
            replace("limits.per_user", &mut own.per_user, limits.per_user),
            replace("limits.handshakes", &mut own.handshakes, limits.handshakes),
            replace("limits.failures", &mut own.failures, limits.failures),
            replace("limits.waiting", &mut own.waiting, limits.waiting),
            replace("limits.lookups", &mut own.lookups, limits.lookups),
            replace("limits.trains", &mut own.trains, limits.trains),
        ];
        changes.changed = live.into_iter().flatten().collect();
        changes
    }

    /// Names of the settings that are others in `new`, and cannot change while a server runs.
    fn fixed_but_other_in(&self, new: &ServerConfig) -> Vec<String> {
        // Whatever comes to be a setting has to be put on one side.
        let ServerConfig {
            name,
            key,
            // The key counts, wherever it is.
            key_file: _,
            listen,
            port,
            announce,
            deny_join_initial: denies,
            unprotected,
            users: _,
            allow: _,
            deny: _,
            refuse_ports: _,
            targets,
            strategy,
            congestion,
            checksum,
            ecn,
            time_window,
            control,
            tun,
            timeouts: _,
            limits,
            versions: _,
        } = new;
        let ServerLimits {
            connections,
            per_user: _,
            handshakes: _,
            failures: _,
            waiting: _,
            lookups: _,
            trains: _,
            replay,
            buffer,
            memory,
        } = limits;
        let own = &self.limits;
        let fixed = [
            ("name", *name != self.name),
            ("key_file", key.public() != self.key.public()),
            ("listen", *listen != self.listen),
            ("port", *port != self.port),
            ("announce", *announce != self.announce),
            ("deny_join_initial", *denies != self.deny_join_initial),
            ("unprotected", *unprotected != self.unprotected),
            ("targets", *targets != self.targets),
            ("strategy", *strategy != self.strategy),
            ("congestion", congestion.name() != self.congestion.name()),
            ("checksum", *checksum != self.checksum),
            ("ecn", *ecn != self.ecn),
            ("time_window", *time_window != self.time_window),
            ("control", *control != self.control),
            ("tun", *tun != self.tun),
            ("limits.connections", *connections != own.connections),
            ("limits.replay", *replay != own.replay),
            ("limits.buffer", *buffer != own.buffer),
            ("limits.memory", *memory != own.memory),
        ];
        let differing = fixed.into_iter().filter(|(_, differs)| *differs);
        differing.map(|(name, _)| name.to_owned()).collect()
    }
}

impl Changes {
    fn of_users(old: &[UserConfig], new: &[UserConfig]) -> Self {
        let key_of: BTreeMap<_, _> = old.iter().map(|user| (&user.name, user.key)).collect();
        let known = new.iter().filter_map(|user| {
            let key = key_of.get(&user.name)?;
            Some(*key != user.key)
        });
        let known: Vec<bool> = known.collect();
        Changes {
            added: new.len() - known.len(),
            removed: old.len() - known.len(),
            rekeyed: known.iter().filter(|rekeyed| **rekeyed).count(),
            ..Changes::default()
        }
    }
}

/// The setting's name, where `new` is another value.
pub(super) fn replace<T: PartialEq>(name: &str, old: &mut T, new: T) -> Option<String> {
    let differs = *old != new;
    *old = new;
    differs.then(|| name.to_owned())
}
