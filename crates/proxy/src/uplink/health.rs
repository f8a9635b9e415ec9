//! The state of one server over one link.

use core::time::Duration;

use braid_engine::{CloseReason, ConnId};
use braid_wire::Instant;

use super::trouble::{self, Finding, Trouble};
use crate::admin::status::milliseconds;
use crate::select::gauge::Gauge;
use crate::select::selection::Quality;

/// The reachability of a server over one link. The order of the variants is from best to worst.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(super) enum Reach {
    /// A handshake succeeded, and at most one handshake has failed since.
    Up,
    /// No handshake was tried yet.
    #[default]
    Unknown,
    /// Two handshakes in a row failed, or the very first handshake failed.
    Down,
}

/// The state of one server over one link.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ServerHealth {
    /// True if link and server have an address family in common. Otherwise the server is unreachable over the
    /// link.
    pub(super) fits: bool,
    /// The reachability by recent handshakes.
    pub(super) reach: Reach,
    /// Smoothed round-trip time of handshakes; before the first handshake, the value saved by an earlier process.
    pub(super) rtt: Option<Duration>,
    /// Failures since the last success.
    pub(super) failures: u32,
    /// Time of the last success; `None` after a failure.
    pub(super) last_success: Option<Instant>,
    /// Time at which failures led to [`Reach::Down`].
    pub(super) down_since: Option<Instant>,
    /// True if a probe has failed since the last success.
    pub(super) has_failed_probe: bool,
    /// Start of the newest failed probe, or the time of a newer fatal finding.
    pub(super) last_unanswered_at: Option<Instant>,
    /// The number of failures since the last success that show a fault of the link: failed probes before which the
    /// server answered over another link ([`Probe::witnessed`]), and fatal findings. At most [`MIN_PROOFS`].
    pub(super) proofs: u32,
    /// Time of the next probe.
    pub(super) next_probe: Option<Instant>,
    /// The probe under way.
    pub(super) probe: Option<Probe>,
    /// A late probe to an unreachable server. Its answer may still come while the next probe is under way.
    pub(super) late_probe: Option<Probe>,
    /// Measurements of the path's bandwidth.
    pub(super) gauge: Gauge,
    /// The problem that keeps users from the server, or from Multipath TCP, over this link.
    pub(super) trouble: Option<Trouble>,
    /// The number of consecutive examinations that found a problem. Examinations without an answer do not count.
    pub(super) problem_count: u32,
    /// True after an examination found that SYNs with MP_CAPABLE are dropped, until a second examination confirms
    /// or refutes this finding.
    pub(super) is_blocking_suspected: bool,
    /// Time of the last examination that found no problem; `None` before the first such examination, and after a
    /// failure.
    pub(super) sound_at: Option<Instant>,
    /// Time of the next examination.
    pub(super) next_examination: Option<Instant>,
    /// Start of the last examination.
    pub(super) last_examination: Option<Instant>,
}

/// A probe under way.
#[derive(Debug, Clone, Copy)]
pub(super) struct Probe {
    conn: ConnId,
    began: Instant,
    /// The time at which the answer begins to count as late.
    late_at: Instant,
    is_late: bool,
    deadline: Instant,
    /// True if the server had answered over another link before the probe began, but after the server became
    /// unreachable over this link. If such a probe fails, the link is at fault, not the server.
    witnessed: bool,
}

/// An answer is late after this time or [`LATE_ROUND_TRIPS`], whichever is longer. Both are guesses. They decide
/// how soon users leave a silent server: the goal is at most 3 s.
const MIN_LATE_AFTER: Duration = Duration::from_secs(1);
/// The number of round trips after which an answer is late; see [`MIN_LATE_AFTER`].
const LATE_ROUND_TRIPS: u32 = 4;
/// The number of failures that prove a fault of the link. A single failure may be a lost packet.
const MIN_PROOFS: u32 = 2;
/// The minimum time between two examinations of a server over a link. Users' connections can give reason for many
/// examinations, and each examination costs the server a TLS handshake. The value is a guess.
const MIN_EXAMINATION_INTERVAL: Duration = Duration::from_secs(3);
/// The time after which a successful examination is repeated. A captive portal may have appeared meanwhile, and
/// portals answer probes. The value is a guess.
const SOUND_LIFETIME: Duration = Duration::from_secs(300);
/// A round-trip time of more than twice the smoothed one plus this time shows that the path has changed. The value
/// is a guess; without it, jitter of a few milliseconds would look like a change on a short path.
const MIN_RTT_JUMP: Duration = Duration::from_millis(10);

impl ServerHealth {
    /// Creates the state of an unknown server over a link. `fits` is true if the link has an address family of the
    /// server. A probe is due at once if the link is also `open`.
    pub(super) fn unknown(now: Instant, open: bool, fits: bool) -> Self {
        ServerHealth {
            fits,
            next_probe: (open && fits).then_some(now),
            reach: if fits { Reach::Unknown } else { Reach::Down },
            ..ServerHealth::default()
        }
    }

    /// Returns the time at which the next probe is due, or a probe under way becomes late or ends.
    pub(super) fn due(&self) -> Option<Instant> {
        let due = |p: Probe| if p.is_late { p.deadline } else { p.late_at };
        let probe = self.probe.map(due).or(self.next_probe);
        let late = self.late_probe.map(|p| p.deadline);
        probe.into_iter().chain(late).min()
    }

    /// Returns the connections of probes under way.
    pub(super) fn probes(&self) -> impl Iterator<Item = ConnId> + use<> {
        self.probe
            .into_iter()
            .chain(self.late_probe)
            .map(|p| p.conn)
    }

    /// Returns whether the server answered over this link after it became unreachable over the link of `other`.
    pub(super) fn witnesses(&self, other: &ServerHealth) -> bool {
        other.down_since.is_some() && other.down_since <= self.last_success
    }

    /// Returns whether the failures over the link of `other` are proved to be the link's fault, not the server's.
    /// Two conditions must be true: the other link has [`MIN_PROOFS`] [`proofs`](Self::proofs), and the server's
    /// last answer over this link is newer than its last failure over the other link, and newer than the time at
    /// which it became unreachable there.
    pub(super) fn disproves(&self, other: &ServerHealth) -> bool {
        other.proofs >= MIN_PROOFS
            && self.witnesses(other)
            && other.last_unanswered_at <= self.last_success
    }

    /// Returns whether a success of a probe over this link could prove a fault of the link of `other`
    /// ([`disproves`](Self::disproves)).
    pub(super) fn may_disprove(&self, other: &ServerHealth) -> bool {
        let can_probe = self.reach == Reach::Up && self.failures == 0 && self.probe.is_none();
        can_probe && self.last_success < other.down_since.max(other.last_unanswered_at)
    }

    /// Returns whether a probe is under way or planned.
    pub(super) fn is_planned(&self) -> bool {
        self.probe.is_some() || self.next_probe.is_some()
    }

    /// Returns whether a probe is under way and not late.
    pub(super) fn is_probing(&self) -> bool {
        self.probe.is_some_and(|p| !p.is_late)
    }

    /// Returns whether a handshake has failed or is late, and none has succeeded since.
    pub(super) fn has_unresolved_failure(&self) -> bool {
        let is_late = self.probe.is_some_and(|p| p.is_late);
        is_late || self.reach == Reach::Down || self.failures > 0
    }

    /// Returns whether a probe has failed since the last success. The next success then shows that the path has
    /// come back.
    pub(super) fn is_returning(&self) -> bool {
        self.has_failed_probe
    }

    /// Marks the probe as late if its answer is late by now; returns whether this call has marked it.
    pub(super) fn note_late(&mut self, now: Instant) -> bool {
        let probe = self.probe.as_mut();
        let late = probe.filter(|p| !p.is_late && now >= p.late_at && now < p.deadline);
        let newly_late = late.map(|p| p.is_late = true).is_some();
        if newly_late {
            self.gauge.alarm();
        }
        newly_late
    }

    /// Replaces a late probe to an unreachable server by a new probe, which starts `interval` after the start of
    /// the late probe. A new probe is needed, because the SYNs of one probe come at ever longer intervals while
    /// users wait for the server's return. The first late probe stays under way
    /// ([`late_probe`](Self::late_probe)), because the path's round-trip time may have grown. If an earlier late
    /// probe is still under way, the newer late probe fails. Then returns the connection of the failed probe, to
    /// be aborted.
    pub(super) fn replace_late_probe(
        &mut self,
        now: Instant,
        interval: Duration,
    ) -> Option<ConnId> {
        let probe = self.probe.take_if(|_| self.reach == Reach::Down)?;
        self.next_probe = Some(probe.began + interval);
        if self.late_probe.is_some() {
            self.on_unanswered(now, probe);
            return Some(probe.conn);
        }
        self.late_probe = Some(probe);
        None
    }

    /// Returns the round-trip time in nanoseconds for ranking, so that an unknown one ranks last.
    pub(super) fn rank_rtt(&self) -> u64 {
        self.rtt
            .and_then(|d| u64::try_from(d.as_nanos()).ok())
            .unwrap_or(u64::MAX)
    }

    /// Records the start of a probe.
    pub(super) fn probe_started(
        &mut self,
        now: Instant,
        conn: ConnId,
        timeout: Duration,
        witnessed: bool,
    ) {
        // The probe ends at `timeout`, so it becomes late at that time or earlier.
        let late_after = MIN_LATE_AFTER.max(LATE_ROUND_TRIPS * self.rtt.unwrap_or_default());
        self.next_probe = None;
        self.probe = Some(Probe {
            conn,
            began: now,
            late_at: now + late_after.min(timeout),
            is_late: false,
            deadline: now + timeout,
            witnessed,
        });
    }

    /// Returns the free bandwidth and the round-trip time over this link.
    pub(super) fn quality(&self) -> Quality {
        Quality {
            bandwidth: self.gauge.available(),
            delay_ms: self.rtt.and_then(milliseconds),
        }
    }

    /// Plans an examination of the server over this link, at the earliest time allowed.
    pub(super) fn plan_examination(&mut self, now: Instant) {
        let earliest = self
            .last_examination
            .map(|at| at + MIN_EXAMINATION_INTERVAL);
        let at = earliest.map_or(now, |at| at.max(now));
        self.next_examination = Some(self.next_examination.map_or(at, |planned| planned.min(at)));
    }

    /// Plans a new examination after a change of configuration or network, if a problem is known that the change may
    /// have solved, or if the server answers and no examination has shown that there is no problem.
    pub(super) fn reloaded(mut self, now: Instant) -> Self {
        if self.trouble.is_some() || self.sound_at.is_none() && self.reach == Reach::Up {
            self.next_examination = Some(now);
        }
        self
    }

    /// Returns whether a problem keeps all users from the server over this link. Then probes are useless, because
    /// anything may answer them.
    pub(super) fn is_fatal(&self) -> bool {
        self.trouble.is_some_and(Trouble::is_fatal)
    }

    /// Returns whether the server answers over this link, but refuses this box, or has another key, version or
    /// protocol.
    pub(super) fn is_refused_by_server(&self) -> bool {
        self.trouble.is_some_and(Trouble::is_of_server)
    }

    /// Returns whether the last examination with an answer found a problem, and later ones had no answer. The next
    /// answer then leads to an examination before users rely on it.
    fn is_distrusted(&self) -> bool {
        self.problem_count > 0 && self.trouble.is_none()
    }

    /// Returns whether connections over this link are regular TCP.
    pub(super) fn is_plain(&self) -> bool {
        self.trouble.is_some_and(|trouble| !trouble.is_fatal())
    }

    /// Returns whether a connection should use another link if it can: the server is unreachable over this link, or
    /// has a problem.
    pub(super) fn is_unsound(&self) -> bool {
        self.reach == Reach::Down || self.trouble.is_some()
    }

    /// Applies the result of an examination.
    pub(super) fn on_finding(&mut self, now: Instant, finding: Finding) {
        match finding {
            Finding::SignedIn {
                rtt,
                plain: Some(Trouble::Blocked),
            } if self.trouble != Some(Trouble::Blocked) && !self.is_blocking_suspected => {
                // The engine first sends SYNs with MP_CAPABLE, and then SYNs without it. If the link was down only
                // during the SYNs with MP_CAPABLE, the result looks the same as if they were dropped. So examine
                // once more.
                self.is_blocking_suspected = true;
                (self.trouble, self.problem_count) = (None, 0);
                self.sound_at = None;
                self.next_examination = Some(now + trouble::pause(1));
                self.succeeded(now, rtt);
            }
            Finding::SignedIn { rtt, plain } => {
                self.is_blocking_suspected = false;
                self.trouble = plain;
                self.problem_count = plain.map_or(0, |_| self.problem_count.saturating_add(1));
                self.sound_at = Some(now).filter(|_| plain.is_none());
                self.next_examination = plain.map(|_| now + trouble::pause(self.problem_count));
                self.succeeded(now, rtt);
            }
            Finding::Trouble(trouble) => {
                self.trouble = Some(trouble);
                self.problem_count = self.problem_count.saturating_add(1);
                self.sound_at = None;
                self.next_examination = Some(now + trouble::pause(self.problem_count));
                if trouble.is_fatal() {
                    // Only examinations can show the end of the problem, because something may answer probes all
                    // the time.
                    self.next_probe = None;
                    self.last_unanswered_at = Some(now);
                    // A portal is the link's fault for certain. The other problems can be the server's fault: a
                    // server without resources ends handshakes too. So a single case proves nothing.
                    self.proofs = match trouble {
                        Trouble::Portal => MIN_PROOFS,
                        _ => MIN_PROOFS.min(self.proofs + 1),
                    };
                    let rtt = self.rtt.filter(|_| trouble.is_of_server());
                    self.failed(now);
                    self.set_down(now);
                    // `set_down` has cleared `rtt`. If the server itself answered, the time is still valid.
                    self.rtt = rtt;
                }
            }
            // Probes will show whether the link is the cause.
            Finding::NoAnswer => {
                // The previous problem only limited connections to regular TCP, and did not keep users from the
                // server. So users may rely on the next answer without an examination.
                if self.is_plain() {
                    self.problem_count = 0;
                }
                self.trouble = None;
                self.sound_at = None;
                self.failed(now);
            }
            Finding::Nothing => self.next_examination = Some(now + MIN_EXAMINATION_INTERVAL),
        }
    }

    /// Records a handshake with this round-trip time; zero if it is unknown.
    pub(super) fn succeeded(&mut self, now: Instant, rtt: Duration) {
        if self.is_fatal() || self.is_distrusted() {
            // The answer may come from something in the server's place, or from a server that refuses users.
            return self.plan_examination(now);
        }
        let sound = self
            .sound_at
            .is_some_and(|at| now.saturating_since(at) < SOUND_LIFETIME);
        if !sound && self.trouble.is_none() {
            self.plan_examination(now);
        }
        self.gauge.reached();
        // The time that an earlier process saved is not averaged with new ones, because it may be outdated.
        let before = self.rtt.filter(|_| self.reach == Reach::Up);
        let slower = before.is_some_and(|old| rtt > old * 2 + MIN_RTT_JUMP);
        if self.has_unresolved_failure() || slower {
            self.gauge.alarm();
        }
        self.last_success = Some(now);
        self.down_since = None;
        self.has_failed_probe = false;
        self.proofs = 0;
        self.reach = Reach::Up;
        self.failures = 0;
        // A repeated SYN leaves the round-trip time unknown (zero), and must not make a lossy link look the
        // fastest. The weight 1/4 of a new value is a guess: after a change the average follows within about ten
        // probes.
        if !rtt.is_zero() {
            self.rtt = Some(before.map_or(rtt, |old| (old * 3 + rtt) / 4));
        }
    }

    /// Records an answer to a probe. The answer settles all probes under way.
    pub(super) fn probe_succeeded(&mut self, now: Instant, rtt: Duration) {
        (self.probe, self.late_probe, self.next_probe) = (None, None, None);
        self.succeeded(now, rtt);
    }

    /// Records a failed handshake. A reachable server stays reachable after the first failure, which may be a lost
    /// packet.
    pub(super) fn failed(&mut self, now: Instant) {
        self.failures = self.failures.saturating_add(1);
        self.last_success = None;
        if self.reach != Reach::Up || self.failures >= 2 {
            self.set_down(now);
        }
    }

    /// Marks the server as unreachable over this link. Its round-trip time is forgotten, because the path may come
    /// back with another round-trip time.
    fn set_down(&mut self, now: Instant) {
        self.reach = Reach::Down;
        self.rtt = None;
        self.sound_at = None;
        self.down_since.get_or_insert(now);
    }

    /// Records that `probe` had no answer.
    fn on_unanswered(&mut self, now: Instant, probe: Probe) {
        self.last_unanswered_at = self.last_unanswered_at.max(Some(probe.began));
        self.has_failed_probe = true;
        self.proofs += u32::from(probe.witnessed && self.proofs < MIN_PROOFS);
        self.failed(now);
    }

    /// Records that the probe on connection `conn` ended without success.
    pub(super) fn probe_failed(&mut self, now: Instant, conn: ConnId, reason: CloseReason) {
        let of = |probe: &mut Option<Probe>| probe.take_if(|p| p.conn == conn);
        let Some(probe) = of(&mut self.probe).or_else(|| of(&mut self.late_probe)) else {
            return;
        };
        self.on_unanswered(now, probe);
        // A reset is an answer, so no second failure has to rule out a lost packet.
        if reason == CloseReason::Refused {
            self.set_down(now);
        }
    }

    /// Fails an overdue probe and returns its connection, to be aborted; `None` if no probe is overdue.
    pub(super) fn give_up(&mut self, now: Instant) -> Option<ConnId> {
        let is_overdue = |p: &mut Probe| p.deadline <= now;
        let late = self.late_probe.take_if(is_overdue);
        let probe = late.or_else(|| self.probe.take_if(is_overdue))?;
        self.on_unanswered(now, probe);
        Some(probe.conn)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_unanswered_handshake_proves_no_fault_of_a_link() {
        let mut other = ServerHealth::default();
        let mut found = |trouble, times| {
            let mut health = ServerHealth::default();
            for _ in 0..times {
                health.on_finding(Instant::ZERO, Finding::Trouble(trouble));
            }
            other.succeeded(Instant::ZERO, Duration::from_millis(40));
            other.disproves(&health)
        };
        assert!(!found(Trouble::Unanswered, 1));
        assert!(found(Trouble::Unanswered, 2));
        assert!(found(Trouble::Portal, 1), "a portal is never the server");
    }

    #[test]
    fn an_unknown_round_trip_is_not_the_shortest() {
        let mut health = ServerHealth::default();
        health.succeeded(Instant::ZERO, Duration::ZERO);
        assert_eq!((health.reach, health.rank_rtt()), (Reach::Up, u64::MAX));
        health.succeeded(Instant::ZERO, Duration::from_millis(40));
        health.succeeded(Instant::ZERO, Duration::ZERO);
        assert_eq!(health.rtt, Some(Duration::from_millis(40)));
    }
}
