//! Reload of `box.toml` while a box runs.

use super::box_config::{BoxConfig, BoxLimits, LinkConfig, ServerEntry};
use super::reload::{Changes, limit_changes, replace};

impl BoxConfig {
    /// Takes over from `new`, the current content of the file, every setting that can change while a box runs.
    /// Returns the names of settings that changed, and of settings that need a restart and stay as they were.
    pub fn reload(&mut self, new: BoxConfig) -> Changes {
        let restart = self.changed_but_fixed(&new);
        let mut changed = differing("link", (&self.links[..], &new.links[..]), |l| &l.name);
        let servers = (&self.servers[..], &new.servers[..]);
        changed.extend(differing("server", servers, |s| &s.name));
        let key_changes = self.key.public() != new.key.public();
        changed.extend(key_changes.then(|| "key_file".to_owned()));
        let congestion_changes = self.congestion.name() != new.congestion.name();
        changed.extend(congestion_changes.then(|| "congestion".to_owned()));
        changed.extend(self.reload_numbers(&new));
        (self.key, self.key_file) = (new.key, new.key_file);
        (self.links, self.servers) = (new.links, new.servers);
        self.congestion = new.congestion;
        self.deprecated = new.deprecated;
        let live = [
            replace("name", &mut self.name, new.name),
            replace("lan", &mut self.lan, new.lan),
            replace("select", &mut self.select, new.select),
            replace("strategy", &mut self.strategy, new.strategy),
            replace("expert.checksum", &mut self.checksum, new.checksum),
            replace("expert.ecn", &mut self.ecn, new.ecn),
            replace("bypass", &mut self.bypass, new.bypass),
            replace("rule", &mut self.rules, new.rules),
            replace("socks", &mut self.socks, new.socks),
            replace("quic", &mut self.quic, new.quic),
            replace("mptcp_hosts", &mut self.mptcp_hosts, new.mptcp_hosts),
        ];
        changed.extend(live.into_iter().flatten());
        Changes {
            changed,
            restart,
            ..Changes::default()
        }
    }

    /// Takes over times, counts and shares from `new`, and returns the names of settings that changed. The name of
    /// a table stands for those of its values that have no setting of their own. Therefore each setting is
    /// replaced first, and its table afterwards.
    fn reload_numbers(&mut self, new: &BoxConfig) -> Vec<String> {
        let (times, limits) = (&mut self.timeouts, &mut self.limits);
        let (probing, warm) = (&mut self.probing, &mut self.warm);
        let measuring = &mut self.measuring;
        let before = limits.clone();
        // The other limits need a restart.
        *limits = BoxLimits {
            buffer: before.buffer,
            memory: before.memory,
            ..new.limits.clone()
        };
        let limit = |name: &str, written, in_force| {
            limit_changes((&before, &*limits), written, in_force).then(|| name.to_owned())
        };
        let live = [
            replace(
                "expert.idle_timeout",
                &mut times.relay.idle,
                new.timeouts.relay.idle,
            ),
            replace("timeouts", times, new.timeouts.clone()),
            limit(
                "expert.max_connections",
                |l| l.connections,
                BoxLimits::connections,
            ),
            limit(
                "expert.max_connections_per_host",
                |l| l.per_host,
                BoxLimits::per_host,
            ),
            limit("limits.handshakes", |l| l.handshakes, BoxLimits::handshakes),
            replace(
                "expert.idle_probe_interval",
                &mut probing.idle,
                new.probing.idle,
            ),
            replace("probing", probing, new.probing.clone()),
            replace(
                "expert.max_measurement_interval",
                &mut measuring.most,
                new.measuring.most,
            ),
            replace(
                "expert.server_change_gain",
                &mut measuring.gain,
                new.measuring.gain,
            ),
            replace(
                "expert.measurement_quiet_hours",
                &mut measuring.quiet,
                new.measuring.quiet.clone(),
            ),
            replace("measuring", measuring, new.measuring.clone()),
            replace("expert.idle_pool_size", &mut warm.max, new.warm.max),
            replace(
                "expert.idle_pool_metered",
                &mut warm.metered,
                new.warm.metered,
            ),
            replace("warm", warm, new.warm.clone()),
        ];
        live.into_iter().flatten().collect()
    }

    /// Returns the names of settings that differ in `new` and cannot change while a box runs.
    fn changed_but_fixed(&self, new: &BoxConfig) -> Vec<String> {
        // The exhaustive pattern forces a decision on each new setting.
        let BoxConfig {
            name: _,
            key: _,
            key_file: _,
            lan: _,
            links: _,
            servers: _,
            select: _,
            strategy: _,
            congestion: _,
            checksum: _,
            ecn: _,
            bypass: _,
            rules: _,
            socks: _,
            quic: _,
            datagrams,
            mptcp_hosts: _,
            shortcut,
            control,
            state,
            tun,
            timeouts: _,
            limits,
            probing: _,
            measuring: _,
            warm: _,
            versions: _,
            deprecated: _,
        } = new;
        let BoxLimits {
            connections: _,
            per_host: _,
            handshakes: _,
            buffer: _,
            memory,
        } = limits;
        let current = &self.limits;
        let buffers = limit_changes((current, limits), |l| l.buffer, BoxLimits::buffer);
        let fixed = [
            // With the shortcut, the engine chooses ports from another range, and existing connections keep their
            // ports.
            ("shortcut", *shortcut != self.shortcut),
            ("control", *control != self.control),
            // The process has given up the right to write to other directories.
            ("state", *state != self.state),
            ("tun", *tun != self.tun),
            // The packet device and the sockets were opened, or not.
            ("datagrams", *datagrams != self.datagrams),
            // The engine has announced receive windows to peers according to these sizes.
            ("expert.connection_buffer", buffers),
            ("limits.memory", *memory != current.memory),
        ];
        let differing = fixed.into_iter().filter(|(_, differs)| *differs);
        differing.map(|(name, _)| name.to_owned()).collect()
    }
}

impl LinkConfig {
    /// Returns whether connections can stay on the link if its settings change to `new`. That is so if name,
    /// interface, address families and MTU are equal. The gateway may differ, because it does not change the
    /// packets.
    pub fn goes_on_as(&self, new: &LinkConfig) -> bool {
        let of_packets = |l: &LinkConfig| (l.v4, l.v6, l.mtu);
        self.name == new.name
            && self.interface == new.interface
            && of_packets(self) == of_packets(new)
    }
}

impl ServerEntry {
    /// Returns whether `new` is the same server: only the name may differ.
    pub fn goes_on_as(&self, new: &ServerEntry) -> bool {
        let renamed = ServerEntry {
            name: self.name.clone(),
            ..new.clone()
        };
        *self == renamed
    }
}

/// Describes the entries of a list that were added, removed or changed, and a changed order. The texts call an
/// entry `kind`, followed by its name.
fn differing<T: PartialEq>(
    kind: &str,
    (old, new): (&[T], &[T]),
    name: fn(&T) -> &String,
) -> Vec<String> {
    let find = |list: &[T], wanted: &T| list.iter().position(|one| name(one) == name(wanted));
    let describe = |one: &T, what: &str| format!("{kind} {} {what}", name(one));
    let mut all = Vec::new();
    for one in new {
        match find(old, one) {
            None => all.push(describe(one, "added")),
            Some(before) if old[before] != *one => all.push(describe(one, "changed")),
            Some(_) => {}
        }
    }
    let gone = old.iter().filter(|one| find(new, one).is_none());
    all.extend(gone.map(|one| describe(one, "removed")));
    // The old positions of the entries that are in both lists, in the new order.
    let order: Vec<usize> = new.iter().filter_map(|one| find(old, one)).collect();
    if !order.is_sorted() {
        all.push(format!("order of {kind}s"));
    }
    all
}
