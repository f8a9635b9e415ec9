//! Reload of `server.toml` while a server runs, and the parts that the reload of `box.toml` uses too.

use core::fmt;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::server_config::{ServerConfig, ServerLimits, UserConfig};

/// The effect of a reload. The numbers of users are 0 at a box, which has none.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Changes {
    /// Number of added users.
    pub added: usize,
    /// Number of removed users.
    pub removed: usize,
    /// Number of users whose name remains but whose key has changed.
    pub rekeyed: usize,
    /// Names of other settings that have changed and apply from now on.
    pub changed: Vec<String>,
    /// Names of settings that have changed in the file but apply only after a restart.
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
        let parts: Vec<_> = lists
            .map(|(what, list)| format!("{what}: {}", list.join(", ")))
            .collect();
        match parts.is_empty() {
            true => f.write_str("nothing has changed"),
            false => f.write_str(&parts.join("; ")),
        }
    }
}

impl ServerConfig {
    /// Takes over from `new`, the current content of the file, every setting that can change while a server runs.
    /// Returns the changes, and the names of settings that need a restart and stay as they were.
    pub fn reload(&mut self, new: ServerConfig) -> Changes {
        let mut changes = Changes::of_users(&self.users, &new.users);
        changes.restart = self.changed_but_fixed(&new);
        self.users = new.users;
        self.deprecated = new.deprecated;
        let before = self.limits.clone();
        let (times, own, limits) = (&mut self.timeouts, &mut self.limits, new.limits);
        (own.per_user, own.handshakes) = (limits.per_user, limits.handshakes);
        let now = own.clone();
        let limit = |name: &str, written, in_force| {
            limit_changes((&before, &now), written, in_force).then(|| name.to_owned())
        };
        // Each current setting is replaced before its table, so that the table is named only if other values in it
        // have changed.
        let live = [
            replace("allow", &mut self.allow, new.allow),
            replace("deny", &mut self.deny, new.deny),
            replace("refuse_ports", &mut self.refuse_ports, new.refuse_ports),
            replace(
                "expert.idle_timeout",
                &mut times.relay.idle,
                new.timeouts.relay.idle,
            ),
            replace("timeouts", times, new.timeouts),
            limit(
                "expert.max_connections_per_user",
                |l| l.per_user,
                ServerLimits::per_user,
            ),
            limit(
                "limits.handshakes",
                |l| l.handshakes,
                ServerLimits::handshakes,
            ),
            replace("limits.failures", &mut own.failures, limits.failures),
            replace("limits.waiting", &mut own.waiting, limits.waiting),
            replace("limits.lookups", &mut own.lookups, limits.lookups),
            replace("limits.trains", &mut own.trains, limits.trains),
        ];
        changes.changed = live.into_iter().flatten().collect();
        changes
    }

    /// Returns the names of settings that differ in `new` and cannot change while a server runs: sockets, the
    /// device and the engine were set up by these settings.
    fn changed_but_fixed(&self, new: &ServerConfig) -> Vec<String> {
        // The exhaustive pattern forces a decision on each new setting.
        let ServerConfig {
            name,
            key,
            // The key itself is compared below, so its file does not matter.
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
            tunnel,
            timeouts: _,
            limits,
            versions: _,
            deprecated: _,
        } = new;
        let fixed = [
            ("name", *name != self.name),
            ("key_file", key.public() != self.key.public()),
            ("listen", *listen != self.listen),
            ("port", *port != self.port),
            ("expert.announce", *announce != self.announce),
            (
                "expert.deny_join_initial",
                *denies != self.deny_join_initial,
            ),
            ("unprotected", *unprotected != self.unprotected),
            ("targets", *targets != self.targets),
            ("strategy", *strategy != self.strategy),
            ("congestion", congestion.name() != self.congestion.name()),
            ("expert.checksum", *checksum != self.checksum),
            ("expert.ecn", *ecn != self.ecn),
            ("expert.time_window", *time_window != self.time_window),
            ("control", *control != self.control),
            ("tun", *tun != self.tun),
            ("datagrams", tunnel.is_some() != self.tunnel.is_some()),
            (
                "tunnel_pool",
                tunnel.zip(self.tunnel).is_some_and(|(new, old)| new != old),
            ),
        ];
        let all = fixed.into_iter().chain(fixed_limits(&self.limits, limits));
        let differing = all.filter(|(_, differs)| *differs);
        differing.map(|(name, _)| name.to_owned()).collect()
    }
}

/// Returns the names of limits that cannot change while a server runs, each with whether it differs in `new`.
fn fixed_limits(current: &ServerLimits, new: &ServerLimits) -> [(&'static str, bool); 4] {
    // The exhaustive pattern forces a decision on each new limit.
    let ServerLimits {
        connections: _,
        per_user: _,
        handshakes: _,
        failures: _,
        waiting: _,
        lookups: _,
        trains: _,
        replay,
        buffer: _,
        memory,
    } = new;
    let limit = |written, in_force| limit_changes((current, new), written, in_force);
    let connections = limit(|l| l.connections, ServerLimits::connections);
    let buffer = limit(|l| l.buffer, ServerLimits::buffer);
    [
        ("expert.max_connections", connections),
        ("limits.replay", *replay != current.replay),
        ("expert.connection_buffer", buffer),
        ("limits.memory", *memory != current.memory),
    ]
}

impl Changes {
    /// Compares the users by their names.
    fn of_users(old: &[UserConfig], new: &[UserConfig]) -> Self {
        let key_of: BTreeMap<_, _> = old.iter().map(|user| (&user.name, user.key)).collect();
        // For each name in both lists: true if the key has changed.
        let in_both = new.iter().filter_map(|user| {
            let key = key_of.get(&user.name)?;
            Some(*key != user.key)
        });
        let in_both: Vec<bool> = in_both.collect();
        Changes {
            added: new.len() - in_both.len(),
            removed: old.len() - in_both.len(),
            rekeyed: in_both.iter().filter(|rekeyed| **rekeyed).count(),
            ..Changes::default()
        }
    }
}

/// Replaces a setting. Returns its name if the value has changed.
pub(super) fn replace<T: PartialEq>(name: &str, old: &mut T, new: T) -> Option<String> {
    let differs = *old != new;
    *old = new;
    differs.then(|| name.to_owned())
}

/// Returns whether a limit changes from the `old` limits to the `new` ones. `written` returns its value in the
/// file, and `in_force` the value that holds, which may be derived. A limit does not change if the file names the
/// value that holds already, or if only the value from which it is derived changes.
pub(super) fn limit_changes<L>(
    (old, new): (&L, &L),
    written: fn(&L) -> Option<usize>,
    in_force: fn(&L) -> usize,
) -> bool {
    written(old) != written(new) && in_force(old) != in_force(new)
}
