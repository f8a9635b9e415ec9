//! Keeps everything that an instance has set up in force. Other programs load firewalls by `flush ruleset`,
//! restart network services and apply settings; users would then lose service until somebody restores what is
//! missing.
//!
//! Tables that only their owner may change (`NFT_TABLE_F_OWNER`) would need no guard, but they vanish with
//! the owner's socket: if the process were killed, the local network would be cut off.

use std::fmt::Write as _;
use std::io::ErrorKind;
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
use crate::nft::{Contents, Inspector, Monitor, Rules, Ruleset, ShortcutRules};

/// Times that rules are loaded if another program removes them at once, as services do that load their own
/// rules while the machine boots.
const MAX_LOADS: usize = 3;
/// Interval of looks without news, since some kernel settings change without an event.
const RULES_CHECK_INTERVAL: Duration = Duration::from_secs(10);
/// Shortest time between two changes of the rules for new routes, if routes change all the time.
const MIN_ROUTES_INTERVAL: Duration = Duration::from_secs(1);
/// Most networks of the routing table in the rules: a box may hold the routing table of the whole Internet.
const MAX_REACHED_NETWORKS: usize = 4_096;

/// The guard of an instance's rules, routes, settings and device.
#[derive(Debug)]
pub struct Guard {
    device: Device,
    monitor: Monitor,
    inspector: Inspector,
    /// The rules that have to be in force, and their contents in the kernel right after they were loaded.
    rules: Option<(Rules, Contents)>,
    /// The networks in [`Self::rules`] that the routing table reaches.
    reached: Vec<IpNet>,
    /// The address families of destinations whose connections are intercepted; those of the other are
    /// refused.
    families: Families,
    /// The earliest time at which [`Self::reached`] may change again.
    reached_at: Instant,
    pace: RepairPace,
    /// Time of the next look without news.
    look_at: Instant,
    /// Count of restorations.
    restored: u64,
    /// Something is missing and could not be restored yet.
    missing: bool,
    status: Option<RulesStatus>,
}

impl Guard {
    /// Guards what `device` and its instance set up from now on. `reached` has the networks that the routing
    /// table reaches.
    ///
    /// # Errors
    /// Fails if the system refuses.
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
            reached: bounded(reached),
            families: Families::BOTH,
            reached_at: Instant::ZERO,
            pace: RepairPace::default(),
            look_at: Instant::ZERO,
            restored: 0,
            missing: false,
            status: None,
        })
    }

    /// Returns the device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Puts rules in force, in place of earlier ones in one step, and keeps them there. A box's rules get the
    /// networks that the routing table reached at the last look.
    ///
    /// # Errors
    /// Fails if the system refuses.
    pub fn apply_rules(&mut self, mut rules: Rules) -> Result<()> {
        if let Rules::Box(rules) = &mut rules {
            rules.reached.clone_from(&self.reached);
            rules.families = self.families;
        }
        for _ in 0..MAX_LOADS {
            self.device.apply_rules(rules.clone())?;
            let loaded = self.look();
            if let Some(loaded) = loaded.map_err(SystemError::cannot("read the rules"))? {
                self.rules = Some((rules, loaded));
                return Ok(());
            }
        }
        let why = "another program removed them at once several times; stop that program";
        Err(SystemError::other("load the rules", why))
    }

    /// Puts kernel settings in force in place of earlier ones, and rules as
    /// [`apply_rules`](Self::apply_rules) does.
    ///
    /// # Errors
    /// Fails if the system refuses the rules; nothing changed then.
    pub fn change(&mut self, settings: &[Sysctl], rules: Rules) -> Result<()> {
        let before = self.device.record(settings);
        if let Err(error) = self.apply_rules(rules) {
            self.device.set_record(before);
            return Err(error);
        }
        self.device.change_settings(settings);
        Ok(())
    }

    /// Makes the rules of a box intercept connections of these address families, and refuse those of the
    /// other.
    ///
    /// # Errors
    /// Fails if the system refuses; nothing changed then.
    pub fn set_intercepted_families(&mut self, families: Families) -> Result<()> {
        let before = std::mem::replace(&mut self.families, families);
        let Some((rules @ Rules::Box(_), _)) = self.rules.clone() else {
            return Ok(());
        };
        let applied = self.apply_rules(rules);
        if applied.is_err() {
            self.families = before;
        }
        applied
    }

    /// Returns the descriptor that is readable when some process may have changed the rules.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.monitor.fd()
    }

    /// Returns whether some process changed the rules; then [`Self::refresh`] is due. One change comes as
    /// many messages, so callers wait a few milliseconds in between.
    pub fn has_news(&mut self) -> bool {
        self.monitor.has_news()
    }

    /// Returns the time at which [`Self::refresh`] is due even without news.
    pub fn next_timeout(&self) -> Instant {
        self.look_at
    }

    /// Returns the rules' new state, if it changed, for the status of box or server.
    pub fn poll_status(&mut self) -> Option<RulesStatus> {
        self.status.take()
    }

    /// [Refreshes](Links::refresh) the links, and restores whatever else is missing.
    ///
    /// # Errors
    /// Fails if the state of the links cannot be read.
    pub fn refresh(&mut self, now: Instant, links: &mut Links) -> Result<Vec<(usize, bool)>> {
        self.look_at = now + RULES_CHECK_INTERVAL;
        let restores = self.pace.allows(now);
        let changed = links.refresh(restores)?;
        let mut damage = Damage {
            routing: links.repairs(),
            device: !self.device.is_sound(links.interfaces(), links.addresses()),
            settings: self.device.changed_settings(),
            rules: self.is_damaged(),
        };
        if !changed.is_empty() {
            // Settings of an interface that has come back are the kernel's defaults: that is no damage by
            // another program.
            let settings = std::mem::take(&mut damage.settings);
            if let Err(error) = apply(&settings) {
                tracing::warn!(%error, "cannot change a kernel setting; the process runs without it");
            }
        }
        if damage.is_none() {
            if std::mem::take(&mut self.missing) {
                self.status = Some(RulesStatus::Sound);
            }
        } else if restores {
            self.pace.noticed(now);
            self.restore(now, &damage);
        } else {
            self.pace.noticed(now);
            self.missing = true;
            let why = format!("another program keeps removing {damage}");
            self.status = Some(RulesStatus::Missing { why });
        }
        self.follow_routes(now, links.reached());
        if !self.pace.allows(now) {
            self.look_at = self.look_at.min(self.pace.not_before);
        }
        Ok(changed)
    }

    /// Returns whether the rules differ from what was loaded.
    fn is_damaged(&mut self) -> bool {
        let there = match self.look() {
            Ok(there) => there,
            Err(error) => {
                tracing::warn!(%error, "cannot read the rules; the next attempt follows");
                return false;
            }
        };
        let loaded = self.rules.as_ref();
        loaded.is_some_and(|(_, loaded)| there.as_ref() != Some(loaded))
    }

    fn look(&mut self) -> std::io::Result<Option<Contents>> {
        let table = self.device.instance_names().nft_table();
        self.inspector.look(Ruleset::FAMILY, &table)
    }

    /// Restores what is missing.
    fn restore(&mut self, now: Instant, damage: &Damage) {
        match self.try_restore(damage) {
            Ok(()) => {
                self.missing = false;
                self.restored += 1;
                let by = damage.by_packet_filter().then(|| self.monitor.last());
                let by = by.flatten().map(ToString::to_string);
                tracing::warn!(by, "restored {damage} after another program removed them");
                self.status = Some(RulesStatus::Restored {
                    what: damage.to_string(),
                    by: by.clone(),
                    times: self.restored,
                    at: since_epoch().as_secs(),
                });
                if self.pace.repaired(now) {
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
                if !self.missing {
                    tracing::error!(
                        %error,
                        "cannot restore {damage}, which another program removed: users have no service. The \
                         next attempt follows"
                    );
                }
                self.missing = true;
                self.pace.failed(now);
                let why =
                    format!("another program removed {damage}, which cannot be restored: {error}");
                self.status = Some(RulesStatus::Missing { why });
            }
        }
    }

    fn try_restore(&mut self, damage: &Damage) -> Result<()> {
        // Users' connections need the rules most, so these come first.
        if damage.rules
            && let Some((rules, _)) = self.rules.clone()
        {
            self.apply_rules(rules)?;
        }
        if damage.device {
            self.device.restore()?;
        }
        apply(&damage.settings)?;
        match damage.routing.pending {
            true => Err(SystemError::other(
                "add routes and rules",
                "see the log for the cause",
            )),
            false => Ok(()),
        }
    }

    /// Reconciles the rules with the networks that the routing table reaches.
    fn follow_routes(&mut self, now: Instant, reached: &[IpNet]) {
        let reached = bounded(reached);
        if reached == self.reached {
            return;
        }
        if now < self.reached_at {
            self.look_at = self.look_at.min(self.reached_at);
            return;
        }
        self.reached_at = now + MIN_ROUTES_INTERVAL;
        let before = std::mem::replace(&mut self.reached, reached);
        let Some((rules @ Rules::Box(_), _)) = self.rules.clone() else {
            return;
        };
        if let Err(error) = self.apply_rules(rules) {
            tracing::warn!(%error, "cannot load the rules for the new routes; the next attempt follows");
            self.reached = before;
            self.look_at = self.reached_at;
        }
    }
}

/// Returns the networks for the rules: if there are too many, those with the most addresses.
fn bounded(networks: &[IpNet]) -> Vec<IpNet> {
    let mut networks = networks.to_vec();
    if networks.len() > MAX_REACHED_NETWORKS {
        networks.sort_by_key(IpNet::prefix_len);
        networks.truncate(MAX_REACHED_NETWORKS);
    }
    networks
}

/// Puts settings in force, each given as a pair of present and wanted.
fn apply(changed: &[(Sysctl, Sysctl)]) -> Result<()> {
    for (_, setting) in changed {
        match setting.apply() {
            // The interface has just gone.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            result => result?,
        }
    }
    Ok(())
}

/// The parts of an instance's set-up that are missing or changed.
#[derive(Debug, Default)]
struct Damage {
    rules: bool,
    routing: Repairs,
    device: bool,
    /// Settings as pairs of present and wanted.
    settings: Vec<(Sysctl, Sysctl)>,
}

impl Damage {
    fn is_none(&self) -> bool {
        let whole = !self.rules && !self.device && self.settings.is_empty();
        whole && self.routing == Repairs::default()
    }

    /// Returns whether packet filter rules are missing: the kernel names the process that removed such rules.
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
        let counted = |n: usize, what: &str| match n {
            1 => format!("1 {what}"),
            n => format!("{n} {what}s"),
        };
        if self.routing.rules > 0 {
            parts.push(counted(self.routing.rules, "routing rule"));
        }
        if self.routing.routes > 0 {
            parts.push(counted(self.routing.routes, "route"));
        }
        if self.routing.pending && parts.is_empty() {
            parts.push("routes or routing rules".to_owned());
        }
        if self.device {
            parts.push("the TUN device's state and addresses".to_owned());
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

/// Limits the rate of repairs that another program keeps undoing.
#[derive(Debug, Default)]
struct RepairPace {
    /// Repairs in a row, each undone soon.
    repairs: u32,
    /// The time of the last repair.
    last: Instant,
    /// The time at which this repair was found undone.
    undone: Option<Instant>,
    not_before: Instant,
}

impl RepairPace {
    /// Repairs in a row without a pause: several programs load their rules while a machine boots.
    const FREE_REPAIRS: u32 = 10;
    // Doubled for each further repair, up to the maximum.
    const MIN_REPAIR_PAUSE: Duration = Duration::from_secs(1);
    const MAX_REPAIR_PAUSE: Duration = Duration::from_secs(30);
    /// A repair that lasted this long starts a new row: the program that undid it does not react to repairs,
    /// but has its own occasions.
    const STABLE_TIME: Duration = Duration::from_secs(10);

    fn allows(&self, now: Instant) -> bool {
        now >= self.not_before
    }

    /// Notes that something is missing.
    fn noticed(&mut self, now: Instant) {
        self.undone.get_or_insert(now);
    }

    /// Notes a repair, and returns whether repairs in a row become too many just now.
    fn repaired(&mut self, now: Instant) -> bool {
        let lasted = self.undone.take().unwrap_or(now);
        if lasted.saturating_since(self.last) > Self::STABLE_TIME {
            self.repairs = 0;
        }
        self.repairs = self.repairs.saturating_add(1);
        self.last = now;
        if self.repairs >= Self::FREE_REPAIRS {
            self.pause(now, self.repairs - Self::FREE_REPAIRS);
        }
        self.repairs == Self::FREE_REPAIRS
    }

    /// Notes that a repair failed.
    fn failed(&mut self, now: Instant) {
        self.repairs = self.repairs.saturating_add(1);
        self.last = now;
        self.pause(now, self.repairs - 1);
    }

    fn pause(&mut self, now: Instant, doublings: u32) {
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

    /// Repairs something that is missing from second `s` on; returns whether repairs become too many.
    fn repair(pace: &mut RepairPace, s: u64) -> bool {
        pace.noticed(at(s));
        let mut now = s;
        while !pace.allows(at(now)) {
            now += 1;
        }
        pace.repaired(at(now))
    }

    #[test]
    fn repairs_in_a_row_are_slowed_down() {
        let mut pace = RepairPace::default();
        let fights: Vec<bool> = (0..RepairPace::FREE_REPAIRS)
            .map(|_| {
                assert!(pace.allows(at(100)));
                repair(&mut pace, 100)
            })
            .collect();
        assert_eq!(fights.iter().filter(|fights| **fights).count(), 1);
        assert!(fights.ends_with(&[true]));
        let mut now = 100;
        let mut pauses = Vec::new();
        for _ in 0..7 {
            let begin = now;
            pace.noticed(at(begin));
            while !pace.allows(at(now)) {
                now += 1;
            }
            pauses.push(now - begin);
            assert!(!pace.repaired(at(now)), "said once");
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 30, 30]);
        repair(&mut pace, now + 41);
        assert!(pace.allows(at(now + 41)), "a new row");
    }

    /// A program that loads its own rules every 20 seconds does not react to ours.
    #[test]
    fn repairs_that_last_need_no_pause() {
        let mut pace = RepairPace::default();
        for n in 1..100 {
            assert!(!repair(&mut pace, n * 20));
            assert!(pace.allows(at(n * 20)));
        }
    }

    #[test]
    fn a_repair_that_fails_is_tried_again_after_a_while() {
        let mut pace = RepairPace::default();
        pace.failed(at(100));
        assert!(!pace.allows(at(100)) && pace.allows(at(101)));
        pace.failed(at(101));
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
