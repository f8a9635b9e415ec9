//! Restores the rules, routes, settings and device of an instance when another program removes them. Other
//! programs load firewalls by `flush ruleset`, restart network services and apply settings. Without the guard,
//! users would have no service until somebody noticed.
//!
//! Tables that only their owner may change (`NFT_TABLE_F_OWNER`) would need no guard, but the kernel removes them
//! with the owner's socket: if the process were killed, the local network would be cut off.

use std::fmt::Write as _;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use braid_proxy::status::RulesStatus;
use braid_secure::Families;
use braid_wire::Instant;
use ipnet::IpNet;

use super::device::Device;
use super::process::since_epoch;
use crate::net::links::{Links, Repairs};
use crate::net::sysctl::Sysctl;
use crate::net::{Result, SystemError};
use crate::nft::{BoxTunnel, Contents, Inspector, Monitor, Rules, Ruleset, ShortcutRules};

/// Maximum number of attempts to load rules if another program removes them at once after each attempt. Services
/// that load their own rules while the machine boots may remove them. The number is a guess.
const MAX_LOADS: usize = 3;
/// Maximum interval of refreshes. The kernel does not notify of changes to some settings, so a refresh is needed
/// even without notifications. The value is a guess: users lose service for at most this time.
const RULES_CHECK_INTERVAL: Duration = Duration::from_secs(10);
/// Minimum time between two changes of the rules for new routes. A routing daemon may change routes all the time,
/// and each change runs `nft`. The value is a guess.
const MIN_ROUTES_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of networks of the routing table in the rules: a box may have the routing table of the whole
/// Internet, which would take long to load. The value is a guess, far above the networks of a site.
const MAX_REACHED_NETWORKS: usize = 4_096;

/// The guard of an instance's rules, routes, settings and device.
#[derive(Debug)]
pub struct Guard {
    device: Device,
    monitor: Monitor,
    inspector: Inspector,
    /// The rules that the kernel has to have, and their contents in the kernel right after they were loaded.
    rules: Option<(Rules, Contents)>,
    /// The networks of the routing table that are in [`Self::rules`].
    reached: Vec<IpNet>,
    /// The address families whose connections are intercepted. Connections of the other family are refused.
    families: Families,
    /// The tunnel of a box, while it carries the packets of the local network.
    tunnel: Option<BoxTunnel>,
    /// The earliest time at which [`Self::reached`] may change again.
    next_routes_change: Instant,
    pace: RepairPace,
    /// Time of the next refresh without notifications.
    refresh_at: Instant,
    /// Number of restorations since the start.
    restoration_count: u64,
    /// True while something is missing that could not be restored.
    is_missing: bool,
    /// A new state that [`Self::poll_status`] has not returned yet.
    status: Option<RulesStatus>,
}

impl Guard {
    /// Starts to guard `device` and the rules of its instance. `reached` holds the networks that the routing
    /// table has routes to.
    ///
    /// # Errors
    /// Fails if the kernel refuses the netlink sockets.
    pub fn new(device: Device, reached: &[IpNet]) -> Result<Guard> {
        let cannot = || SystemError::cannot("watch the packet filter rules");
        let own = (Ruleset::FAMILY, device.instance_names().nft_table());
        let shortcut = ShortcutRules::TABLES.map(|(family, name)| (family, name.to_owned()));
        let tables = std::iter::once(own).chain(shortcut).collect();
        Ok(Guard {
            monitor: Monitor::open(tables).map_err(cannot())?,
            inspector: Inspector::open().map_err(cannot())?,
            device,
            rules: None,
            reached: limited(reached),
            families: Families::BOTH,
            tunnel: None,
            next_routes_change: Instant::ZERO,
            pace: RepairPace::default(),
            refresh_at: Instant::ZERO,
            restoration_count: 0,
            is_missing: false,
            status: None,
        })
    }

    /// Returns the device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Loads rules in place of earlier ones, in one transaction, and guards them from now on. A box's rules get
    /// the networks of the routing table at the last refresh.
    ///
    /// # Errors
    /// Fails if `nft` refuses the rules, or if another program removes them at once several times.
    pub fn apply_rules(&mut self, mut rules: Rules) -> Result<()> {
        if let Rules::Box(rules) = &mut rules {
            rules.reached.clone_from(&self.reached);
            rules.families = self.families;
            rules.tunnel.clone_from(&self.tunnel);
        }
        for _ in 0..MAX_LOADS {
            self.device.apply_rules(rules.clone())?;
            let loaded = self.read_table();
            if let Some(loaded) = loaded.map_err(SystemError::cannot("read the rules"))? {
                self.rules = Some((rules, loaded));
                return Ok(());
            }
        }
        let reason = "another program removed them at once several times; stop that program";
        Err(SystemError::other("load the rules", reason))
    }

    /// Replaces the kernel settings, and the rules as [`apply_rules`](Self::apply_rules) does.
    ///
    /// # Errors
    /// Fails if the rules cannot be loaded. Settings and record are then as before.
    pub fn change(&mut self, settings: &[Sysctl], rules: Rules) -> Result<()> {
        // The values before the change go into the record first, which is loaded together with the rules.
        let before = self.device.record(settings);
        if let Err(error) = self.apply_rules(rules) {
            self.device.set_record(before);
            return Err(error);
        }
        self.device.change_settings(settings);
        Ok(())
    }

    /// Replaces the kernel settings as [`change`](Self::change) does, and leaves the rules as they are.
    ///
    /// # Errors
    /// Fails if the rules, which record the earlier values, cannot be loaded. Settings and record are then as before.
    pub fn change_settings(&mut self, settings: &[Sysctl]) -> Result<()> {
        match self.rules.clone() {
            Some((rules, _)) => self.change(settings, rules),
            None => Ok(()),
        }
    }

    /// Makes the rules of a box intercept connections of these address families, and refuse connections of the
    /// other family.
    ///
    /// # Errors
    /// Fails if the rules cannot be loaded. They are then as before.
    pub fn set_intercepted_families(&mut self, families: Families) -> Result<()> {
        self.change_rules(|guard| &mut guard.families, families)
    }

    /// Changes a part that the rules of a box are made of, and applies them.
    ///
    /// # Errors
    /// Fails if the rules cannot be loaded. Rules and part are then as before.
    fn change_rules<T>(&mut self, part: fn(&mut Self) -> &mut T, value: T) -> Result<()> {
        let before = std::mem::replace(part(self), value);
        let Some((rules @ Rules::Box(_), _)) = self.rules.clone() else {
            return Ok(());
        };
        let applied = self.apply_rules(rules);
        if applied.is_err() {
            *part(self) = before;
        }
        applied
    }

    /// Sends the packets of the local network that are not intercepted into the tunnel. Its packet device gets this MTU
    /// (bytes) and these addresses. Packets of a family without an address are refused.
    ///
    /// # Errors
    /// Fails if the kernel refuses an address or the rules. The packets are then forwarded.
    pub fn open_tunnel(
        &mut self,
        links: &mut Links,
        mtu: u16,
        addresses: &[(IpAddr, u8)],
    ) -> Result<()> {
        // A kernel without IPv6 takes no such address.
        let mut addresses = addresses.to_vec();
        addresses.retain(|(addr, _)| addr.is_ipv4() || self.device.has_v6());
        let opened = self.device.change_tunnel(mtu, &addresses);
        let (v4, v6) = self.device.tunnel_families();
        let device = self.device.instance_names().tunnel_device();
        let opened = opened.and_then(|changed| {
            if !v4 && !v6 {
                return Err(SystemError::other(
                    "open the tunnel",
                    "its device has no address",
                ));
            }
            self.set_tunnel(Some(BoxTunnel { device, v4, v6 }))?;
            Ok(changed)
        });
        match opened {
            // Only now, as the packets need the addresses and the rules.
            Ok(changed) => links.set_tunnel((v4, v6), changed),
            Err(_) => drop(self.close_tunnel(links)),
        }
        opened.map(drop)
    }

    /// Forwards the packets of the local network that are not intercepted over `links`.
    ///
    /// # Errors
    /// Fails if the kernel refuses the rules. The packets are forwarded even so.
    pub fn close_tunnel(&mut self, links: &mut Links) -> Result<()> {
        links.set_tunnel((false, false), false);
        self.set_tunnel(None)
    }

    /// Closes the tunnel as [`Self::close_tunnel`] does, and takes the addresses off its packet device, which keeps `mtu`
    /// (bytes).
    ///
    /// # Errors
    /// Fails if the kernel refuses. The packets are forwarded even so.
    pub fn withdraw_tunnel(&mut self, links: &mut Links, mtu: u16) -> Result<()> {
        self.close_tunnel(links)?;
        self.device.change_tunnel(mtu, &[]).map(drop)
    }

    fn set_tunnel(&mut self, tunnel: Option<BoxTunnel>) -> Result<()> {
        if self.tunnel == tunnel {
            return Ok(());
        }
        self.change_rules(|guard| &mut guard.tunnel, tunnel)
    }

    /// Returns the descriptor that is readable when a process may have changed the rules.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.monitor.fd()
    }

    /// Returns whether a process may have changed the rules, so that the caller has to call [`Self::refresh`].
    /// One change causes many notifications, so callers wait a few milliseconds between the two calls.
    pub fn has_news(&mut self) -> bool {
        self.monitor.has_news()
    }

    /// Returns the time at which [`Self::refresh`] has to be called even without notifications.
    pub fn next_timeout(&self) -> Instant {
        self.refresh_at
    }

    /// Returns the new state of the rules for the status of box or server, if it changed since the last call.
    pub fn poll_status(&mut self) -> Option<RulesStatus> {
        self.status.take()
    }

    /// [Refreshes](Links::refresh) the links, and restores rules, settings and device. Returns the links that
    /// changed, as [`Links::refresh`] does.
    ///
    /// # Errors
    /// Fails if the state of the links cannot be read.
    pub fn refresh(&mut self, now: Instant, links: &mut Links) -> Result<Vec<(usize, bool)>> {
        self.refresh_at = now + RULES_CHECK_INTERVAL;
        let restores = self.pace.allows(now);
        let changed = links.refresh(restores)?;
        let mut damage = Damage {
            routing: links.repairs(),
            device: !self.device.is_sound(links.interfaces(), links.addresses()),
            settings: self.device.changed_settings(),
            rules: self.is_damaged(),
        };
        if !changed.is_empty() {
            // An interface that has come back has the kernel's default settings. So if a link changed, settings
            // that differ are not ascribed to another program.
            let settings = std::mem::take(&mut damage.settings);
            if let Err(error) = apply_settings(&settings) {
                tracing::warn!(%error, "cannot change a kernel setting; the process runs without it");
            }
        }
        if damage.is_none() {
            if std::mem::take(&mut self.is_missing) {
                self.status = Some(RulesStatus::Sound);
            }
        } else if restores {
            self.pace.note_damage(now);
            self.restore(now, &damage);
        } else {
            self.pace.note_damage(now);
            // `RepairPace` delays the restoration. If the last one failed, the status keeps the reason.
            if !std::mem::replace(&mut self.is_missing, true) {
                let why = format!("another program keeps removing {damage}");
                self.status = Some(RulesStatus::Missing { why });
            }
        }
        self.follow_routes(now, links.reached());
        if !self.pace.allows(now) {
            self.refresh_at = self.refresh_at.min(self.pace.not_before);
        }
        Ok(changed)
    }

    /// Returns whether the rules in the kernel differ from those that were loaded. Rules that cannot be read count
    /// as equal, since loading them again would probably fail too.
    fn is_damaged(&mut self) -> bool {
        let contents = match self.read_table() {
            Ok(contents) => contents,
            Err(error) => {
                tracing::warn!(%error, "cannot read the rules; the next attempt follows");
                return false;
            }
        };
        let loaded = self.rules.as_ref();
        loaded.is_some_and(|(_, loaded)| contents.as_ref() != Some(loaded))
    }

    /// Reads the instance's table from the kernel.
    fn read_table(&mut self) -> std::io::Result<Option<Contents>> {
        let table = self.device.instance_names().nft_table();
        self.inspector.look(Ruleset::FAMILY, &table)
    }

    /// Restores the missing parts, and writes log and status.
    fn restore(&mut self, now: Instant, damage: &Damage) {
        match self.try_restore(damage) {
            Ok(()) => {
                self.is_missing = false;
                self.restoration_count += 1;
                let by = damage.by_packet_filter().then(|| self.monitor.last());
                let by = by.flatten().map(ToString::to_string);
                tracing::warn!(by, "restored {damage} after another program removed them");
                self.status = Some(RulesStatus::Restored {
                    what: damage.to_string(),
                    by: by.clone(),
                    times: self.restoration_count,
                    at: since_epoch().as_secs(),
                });
                if self.pace.note_repair(now) {
                    let times = RepairPace::FREE_REPAIRS;
                    tracing::error!(
                        by,
                        "another program keeps removing {damage}: restored {times} times in a row. From now on \
                         they are restored after increasing pauses, in which users have no service; stop that \
                         program or change its configuration"
                    );
                }
            }
            Err(error) => {
                if !self.is_missing {
                    tracing::error!(
                        %error,
                        "cannot restore {damage}, which another program removed: users have no service. The \
                         next attempt follows"
                    );
                }
                self.is_missing = true;
                self.pace.note_failure(now);
                let why =
                    format!("another program removed {damage}, which cannot be restored: {error}");
                self.status = Some(RulesStatus::Missing { why });
            }
        }
    }

    /// Restores rules, device and settings. Routes and routing rules were restored by the refresh of the links.
    fn try_restore(&mut self, damage: &Damage) -> Result<()> {
        // What cannot be restored does not keep the rest away. Without the rules no connection of a user works, so
        // they come first.
        let rules = match (damage.rules, self.rules.clone()) {
            (true, Some((rules, _))) => self.apply_rules(rules),
            _ => Ok(()),
        };
        let device = match damage.device {
            true => self.device.restore(),
            false => Ok(()),
        };
        let settings = apply_settings(&damage.settings);
        rules.and(device).and(settings)?;
        match damage.routing.pending {
            true => Err(SystemError::other(
                "add routes and rules",
                "see the log for the cause",
            )),
            false => Ok(()),
        }
    }

    /// Loads the rules again if the networks of the routing table have changed.
    fn follow_routes(&mut self, now: Instant, reached: &[IpNet]) {
        let reached = limited(reached);
        if reached == self.reached {
            return;
        }
        if now < self.next_routes_change {
            self.refresh_at = self.refresh_at.min(self.next_routes_change);
            return;
        }
        self.next_routes_change = now + MIN_ROUTES_INTERVAL;
        if let Err(error) = self.change_rules(|guard| &mut guard.reached, reached) {
            tracing::warn!(%error, "cannot load the rules for the new routes; the next attempt follows");
            self.refresh_at = self.next_routes_change;
        }
    }
}

/// Returns the networks for the rules. If there are too many, the largest networks are kept.
fn limited(networks: &[IpNet]) -> Vec<IpNet> {
    let mut networks = networks.to_vec();
    if networks.len() > MAX_REACHED_NETWORKS {
        networks.sort_by_key(IpNet::prefix_len);
        networks.truncate(MAX_REACHED_NETWORKS);
    }
    networks
}

/// Applies settings, each given as a pair of the current and the wanted value.
fn apply_settings(changed: &[(Sysctl, Sysctl)]) -> Result<()> {
    for (_, setting) in changed {
        match setting.apply() {
            // The interface was removed meanwhile.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            result => result?,
        }
    }
    Ok(())
}

/// The parts of an instance's set-up that are missing or changed.
#[derive(Debug, Default)]
struct Damage {
    /// True if the instance's table is missing or changed.
    rules: bool,
    routing: Repairs,
    /// True if the device is down or lacks an address.
    device: bool,
    /// Settings as pairs of the current and the wanted value.
    settings: Vec<(Sysctl, Sysctl)>,
}

impl Damage {
    fn is_none(&self) -> bool {
        let others = self.rules || self.device || !self.settings.is_empty();
        !others && self.routing == Repairs::default()
    }

    /// Returns whether packet filter rules are missing. Only for these does the kernel name the process that
    /// removed them.
    fn by_packet_filter(&self) -> bool {
        self.rules || self.routing.shortcut
    }
}

impl std::fmt::Display for Damage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut parts = Vec::new();
        if self.by_packet_filter() {
            parts.push("the packet filter rules".to_owned());
        }
        let count_of = |n: usize, what: &str| match n {
            1 => format!("1 {what}"),
            n => format!("{n} {what}s"),
        };
        if self.routing.rules > 0 {
            parts.push(count_of(self.routing.rules, "routing rule"));
        }
        if self.routing.routes > 0 {
            parts.push(count_of(self.routing.routes, "route"));
        }
        if self.routing.pending && parts.is_empty() {
            parts.push("routes or routing rules".to_owned());
        }
        if self.device {
            parts.push("the TUN device, its state or its addresses".to_owned());
        }
        if !self.settings.is_empty() {
            let mut settings = "kernel settings".to_owned();
            for (old, new) in &self.settings {
                write!(settings, " {}={} (was {})", new.key, new.value, old.value)?;
            }
            parts.push(settings);
        }
        f.write_str(&parts.join(", "))
    }
}

/// Limits the rate of repairs that another program undoes again and again.
#[derive(Debug, Default)]
struct RepairPace {
    /// Number of repairs in a row, each of which was undone soon.
    repairs_in_row: u32,
    /// The time of the last repair.
    repaired_at: Instant,
    /// The time at which the last repair was found undone.
    undone_at: Option<Instant>,
    /// The earliest time of the next repair.
    not_before: Instant,
}

impl RepairPace {
    /// Number of repairs in a row without a pause. Several programs load their rules while a machine boots, and
    /// each may undo some repairs. The number is a guess.
    const FREE_REPAIRS: u32 = 10;
    // The pause after the last free repair. It doubles with each further repair, up to the maximum. Both values
    // are a guess between the processor time of repairs and the time without service.
    const MIN_REPAIR_PAUSE: Duration = Duration::from_secs(1);
    const MAX_REPAIR_PAUSE: Duration = Duration::from_secs(30);
    /// Minimum time for which a repair has to last to end the row. A program that undoes a repair later than
    /// this does not react to the repair, so an immediate next repair does no harm. The value is a guess.
    const STABLE_TIME: Duration = Duration::from_secs(10);

    /// Returns whether a repair may be made now.
    fn allows(&self, now: Instant) -> bool {
        now >= self.not_before
    }

    /// Notes that something is missing.
    fn note_damage(&mut self, now: Instant) {
        self.undone_at.get_or_insert(now);
    }

    /// Notes a repair, and returns whether the number of repairs in a row has just become
    /// [`Self::FREE_REPAIRS`].
    fn note_repair(&mut self, now: Instant) -> bool {
        let undone_at = self.undone_at.take().unwrap_or(now);
        if undone_at.saturating_since(self.repaired_at) > Self::STABLE_TIME {
            self.repairs_in_row = 0;
        }
        self.repairs_in_row = self.repairs_in_row.saturating_add(1);
        self.repaired_at = now;
        if self.repairs_in_row >= Self::FREE_REPAIRS {
            self.pause(now, self.repairs_in_row - Self::FREE_REPAIRS);
        }
        self.repairs_in_row == Self::FREE_REPAIRS
    }

    /// Notes that a repair failed.
    fn note_failure(&mut self, now: Instant) {
        self.repairs_in_row = self.repairs_in_row.saturating_add(1);
        self.repaired_at = now;
        self.pause(now, self.repairs_in_row - 1);
    }

    fn pause(&mut self, now: Instant, doublings: u32) {
        // With five doublings the pause already exceeds its maximum, so the bound changes nothing but avoids an
        // overflow.
        let pause = Self::MIN_REPAIR_PAUSE * (1 << doublings.min(5));
        self.not_before = now + pause.min(Self::MAX_REPAIR_PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(s: u64) -> Instant {
        Instant::from_millis(s * 1_000)
    }

    /// Repairs something that is missing from second `s` on, at the first allowed second. Returns the result of
    /// `note_repair`.
    fn repair(pace: &mut RepairPace, s: u64) -> bool {
        pace.note_damage(at(s));
        let mut now = s;
        while !pace.allows(at(now)) {
            now += 1;
        }
        pace.note_repair(at(now))
    }

    #[test]
    fn repairs_in_a_row_are_slowed_down() {
        let mut pace = RepairPace::default();
        let too_many: Vec<bool> = (0..RepairPace::FREE_REPAIRS)
            .map(|_| {
                assert!(pace.allows(at(100)));
                repair(&mut pace, 100)
            })
            .collect();
        assert_eq!(too_many.iter().filter(|too_many| **too_many).count(), 1);
        assert!(too_many.ends_with(&[true]));
        let mut now = 100;
        let mut pauses = Vec::new();
        for _ in 0..7 {
            let begin = now;
            pace.note_damage(at(begin));
            while !pace.allows(at(now)) {
                now += 1;
            }
            pauses.push(now - begin);
            assert!(!pace.note_repair(at(now)), "reported once");
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 30, 30]);
        // The last pause ends 30 s after the last repair. 11 s more are longer than STABLE_TIME.
        repair(&mut pace, now + 41);
        assert!(pace.allows(at(now + 41)), "a new row");
    }

    /// A program that loads its own rules every 20 seconds does not react to repairs: the time is longer than
    /// `STABLE_TIME`.
    #[test]
    fn repairs_that_last_need_no_pause() {
        let mut pace = RepairPace::default();
        for n in 1..100 {
            assert!(!repair(&mut pace, n * 20));
            assert!(pace.allows(at(n * 20)));
        }
    }

    #[test]
    fn a_failed_repair_is_tried_again_after_a_pause_that_doubles() {
        let mut pace = RepairPace::default();
        pace.note_failure(at(100));
        assert!(!pace.allows(at(100)) && pace.allows(at(101)));
        pace.note_failure(at(101));
        assert!(!pace.allows(at(102)) && pace.allows(at(103)));
    }

    #[test]
    fn damage_is_named() {
        let damage = Damage {
            rules: true,
            routing: Repairs {
                rules: 1,
                routes: 2,
                ..Repairs::default()
            },
            device: false,
            settings: vec![(Sysctl::new("net/a", 0), Sysctl::new("net/a", 1))],
        };
        let text =
            "the packet filter rules, 1 routing rule, 2 routes, kernel settings net/a=1 (was 0)";
        assert_eq!(damage.to_string(), text);
        assert!(Damage::default().is_none() && !damage.is_none());
    }
}
