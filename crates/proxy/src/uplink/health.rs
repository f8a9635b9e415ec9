//! What is known of one server over one link.

use core::time::Duration;

use braid_engine::{CloseReason, ConnId};
use braid_wire::Instant;

use super::trouble::{self, Finding, Trouble};
use crate::admin::status::milliseconds;
use crate::select::gauge::Gauge;
use crate::select::selection::Quality;

/// Whether a server is reached; the better, the less.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(super) enum Reach {
    /// The last handshake succeeded.
    Up,
    /// Not tried yet.
    #[default]
    Unknown,
    /// Two in a row failed, or the first one.
    Down,
}

/// What is known of one server over one link.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Cell {
    /// The link has an address family of the server. Where it has none, the server is never reached there.
    pub(super) fits: bool,
    pub(super) reach: Reach,
    /// Smoothed handshake round trip; before the first handshake, what was kept of an earlier run.
    pub(super) rtt: Option<Duration>,
    /// Failures since the last success.
    pub(super) failures: u32,
    /// When it was heard last; `None` where something failed since.
    pub(super) heard: Option<Instant>,
    /// When what succeeded before has led to [`Reach::Down`].
    pub(super) down_since: Option<Instant>,
    /// A probe was not answered since the last success.
    pub(super) was_silent: bool,
    /// When the newest of the probes began that failed.
    pub(super) asked_in_vain: Option<Instant>,
    /// Of these since then, those that were [witnessed](Self::witnesses).
    pub(super) proofs: u32,
    /// When the next probe is due.
    pub(super) next: Option<Instant>,
    /// The probe under way.
    pub(super) probe: Option<Probe>,
    /// One before it, whose answer is late and awaited all the same.
    pub(super) late: Option<Probe>,
    /// What was measured.
    pub(super) gauge: Gauge,
    /// What keeps users from being served there, or from Multipath TCP.
    pub(super) trouble: Option<Trouble>,
    /// Examinations in a row that found trouble, those without an answer left out.
    pub(super) found: u32,
    /// An examination found that SYNs with MP_CAPABLE are dropped, which is to be confirmed.
    pub(super) is_suspect: bool,
    /// When an examination found the server and nothing wrong; `None` where it is not known to be so.
    pub(super) sound_at: Option<Instant>,
    /// When the next examination is due.
    pub(super) examine_at: Option<Instant>,
    /// When the last one began.
    pub(super) examined_at: Option<Instant>,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Probe {
    conn: ConnId,
    began: Instant,
    /// From when on the answer is late.
    late_at: Instant,
    is_late: bool,
    deadline: Instant,
    /// It began after the server had been heard over another way.
    witnessed: bool,
}

/// An answer is late after this, or after this many round trips.
const LATE: Duration = Duration::from_secs(1);
const LATE_ROUND_TRIPS: u32 = 4;
/// Packets get lost: so many failures prove something.
const PROOFS: u32 = 2;
/// Users' connections give reason to examine a link again and again; it is done this seldom, since each
/// examination costs the server a handshake.
const MIN_EXAMINATION_INTERVAL: Duration = Duration::from_secs(3);
/// What was found sound is examined again after this: a portal may have come that answers probes.
const SOUND_FOR: Duration = Duration::from_secs(300);
/// A round trip that is longer than twice the usual by this tells that the way has changed.
const JUMP: Duration = Duration::from_millis(10);

impl Cell {
    /// A server of which nothing is known, on a link that `fits` it or not. It is asked at once where the link
    /// is `open`.
    pub(super) fn unknown(now: Instant, open: bool, fits: bool) -> Self {
        Cell {
            fits,
            next: (open && fits).then_some(now),
            reach: if fits { Reach::Unknown } else { Reach::Down },
            ..Cell::default()
        }
    }

    /// When there is something to do.
    pub(super) fn due(&self) -> Option<Instant> {
        let due = |p: Probe| if p.is_late { p.deadline } else { p.late_at };
        let asks = self.probe.map(due).or(self.next);
        let late = self.late.map(|p| p.deadline);
        asks.into_iter().chain(late).min()
    }

    /// The connections of probes under way.
    pub(super) fn probes(&self) -> impl Iterator<Item = ConnId> + use<> {
        self.probe.into_iter().chain(self.late).map(|p| p.conn)
    }

    /// Whether the server has been heard here since it cannot be over the way of `other`.
    pub(super) fn witnesses(&self, other: &Cell) -> bool {
        other.down_since.is_some() && other.down_since <= self.heard
    }

    /// Whether it is proved that the way of `other` is to blame for what fails there, and not the
    /// server: that was heard here both before and after it was asked there in vain.
    pub(super) fn disproves(&self, other: &Cell) -> bool {
        other.proofs >= PROOFS && self.witnesses(other) && other.asked_in_vain <= self.heard
    }

    /// Whether to ask here tells more of that.
    pub(super) fn may_disprove(&self, other: &Cell) -> bool {
        let idle = self.reach == Reach::Up && self.failures == 0 && self.probe.is_none();
        idle && self.heard < other.down_since.max(other.asked_in_vain)
    }

    /// It is asked, or will be.
    pub(super) fn is_planned(&self) -> bool {
        self.probe.is_some() || self.next.is_some()
    }

    /// The answer to a probe is awaited, and not late.
    pub(super) fn is_asked(&self) -> bool {
        self.probe.is_some_and(|p| !p.is_late)
    }

    /// Something failed there, or is late, and nothing has succeeded since.
    pub(super) fn is_doubtful(&self) -> bool {
        let late = self.probe.is_some_and(|p| p.is_late);
        late || self.reach == Reach::Down || self.failures > 0
    }

    /// Returns whether packets did not pass here lately, so that a success shows that they do again.
    pub(super) fn is_returning(&self) -> bool {
        self.was_silent
    }

    /// Takes note that the answer to a probe is late by now; whether that is news.
    pub(super) fn note_late(&mut self, now: Instant) -> bool {
        let probe = self.probe.as_mut();
        let late = probe.filter(|p| !p.is_late && now >= p.late_at && now < p.deadline);
        let news = late.map(|p| p.is_late = true).is_some();
        if news {
            self.gauge.alarm();
        }
        news
    }

    /// Where a server is away and its answer late, it is asked anew, `interval` after it was asked last:
    /// the SYNs of one probe come at ever longer intervals, and users wait for a server that is back. A
    /// first late answer is awaited beside that, since the way there may have become long; returns the
    /// probe that is not.
    pub(super) fn ask_beside(&mut self, now: Instant, interval: Duration) -> Option<ConnId> {
        let probe = self.probe.take_if(|_| self.reach == Reach::Down)?;
        self.next = Some(probe.began + interval);
        if self.late.is_some() {
            self.in_vain(now, probe);
            return Some(probe.conn);
        }
        self.late = Some(probe);
        None
    }

    /// The round trip in nanoseconds; unknown ones rank last.
    pub(super) fn rank_rtt(&self) -> u64 {
        self.rtt
            .and_then(|d| u64::try_from(d.as_nanos()).ok())
            .unwrap_or(u64::MAX)
    }

    pub(super) fn probe_started(
        &mut self,
        now: Instant,
        conn: ConnId,
        timeout: Duration,
        witnessed: bool,
    ) {
        let patience = LATE.max(LATE_ROUND_TRIPS * self.rtt.unwrap_or_default());
        self.next = None;
        self.probe = Some(Probe {
            conn,
            began: now,
            late_at: now + patience.min(timeout),
            is_late: false,
            deadline: now + timeout,
            witnessed,
        });
    }

    /// What is free there, and how long it takes.
    pub(super) fn quality(&self) -> Quality {
        Quality {
            bandwidth: self.gauge.available(),
            delay_ms: self.rtt.and_then(milliseconds),
        }
    }

    /// Has the server examined over this link soon.
    pub(super) fn want_examination(&mut self, now: Instant) {
        let earliest = self.examined_at.map(|at| at + MIN_EXAMINATION_INTERVAL);
        let at = earliest.map_or(now, |at| at.max(now));
        self.examine_at = Some(self.examine_at.map_or(at, |planned| planned.min(at)));
    }

    /// The same under a new configuration or in another network, which may have put an end to what was
    /// wrong.
    pub(super) fn reloaded(mut self, now: Instant) -> Self {
        if self.trouble.is_some() || self.sound_at.is_none() && self.reach == Reach::Up {
            self.examine_at = Some(now);
        }
        self
    }

    /// Returns whether users can be served there as far as is known: probes tell only that something
    /// answers.
    pub(super) fn is_fatal(&self) -> bool {
        self.trouble.is_some_and(Trouble::is_fatal)
    }

    /// Returns whether the server answers there, and refuses this box or is another one.
    pub(super) fn is_refused_by_server(&self) -> bool {
        self.trouble.is_some_and(Trouble::is_of_server)
    }

    /// Returns whether what answered last was of no use to users, and nothing has answered since: an
    /// examination is to find out whether what answers next is, and no user.
    fn is_distrusted(&self) -> bool {
        self.found > 0 && self.trouble.is_none()
    }

    /// Returns whether connections there are regular TCP.
    pub(super) fn is_plain(&self) -> bool {
        self.trouble.is_some_and(|trouble| !trouble.is_fatal())
    }

    /// Returns whether a connection had better go over another link.
    pub(super) fn is_unsound(&self) -> bool {
        self.reach == Reach::Down || self.trouble.is_some()
    }

    /// Takes in what an examination found.
    pub(super) fn on_finding(&mut self, now: Instant, finding: Finding) {
        match finding {
            Finding::SignedIn {
                rtt,
                plain: Some(Trouble::Blocked),
            } if self.trouble != Some(Trouble::Blocked) && !self.is_suspect => {
                // A link that was dark when the first SYNs left looks the same: once more.
                self.is_suspect = true;
                (self.trouble, self.found) = (None, 0);
                self.sound_at = None;
                self.examine_at = Some(now + trouble::pause(1));
                self.succeeded(now, rtt);
            }
            Finding::SignedIn { rtt, plain } => {
                self.is_suspect = false;
                self.trouble = plain;
                self.found = plain.map_or(0, |_| self.found.saturating_add(1));
                self.sound_at = Some(now).filter(|_| plain.is_none());
                self.examine_at = plain.map(|_| now + trouble::pause(self.found));
                self.succeeded(now, rtt);
            }
            Finding::Trouble(trouble) => {
                self.trouble = Some(trouble);
                self.found = self.found.saturating_add(1);
                self.sound_at = None;
                self.examine_at = Some(now + trouble::pause(self.found));
                if trouble.is_fatal() {
                    // A probe would be answered.
                    self.next = None;
                    self.asked_in_vain = Some(now);
                    // A server without room for another handshake ends one too: once proves nothing.
                    self.proofs = match trouble {
                        Trouble::Portal => PROOFS,
                        _ => PROOFS.min(self.proofs + 1),
                    };
                    let rtt = self.rtt.filter(|_| trouble.is_of_server());
                    self.failed(now);
                    self.set_down(now);
                    // That of the link stays as it is.
                    self.rtt = rtt;
                }
            }
            // Probes find out whether that is the link.
            Finding::NoAnswer => {
                if self.is_plain() {
                    self.found = 0;
                }
                self.trouble = None;
                self.sound_at = None;
                self.failed(now);
            }
            Finding::Nothing => self.examine_at = Some(now + MIN_EXAMINATION_INTERVAL),
        }
    }

    pub(super) fn succeeded(&mut self, now: Instant, rtt: Duration) {
        if self.is_fatal() || self.is_distrusted() {
            // Whatever answers there, it is not the server, or refuses users.
            return self.want_examination(now);
        }
        let sound = self
            .sound_at
            .is_some_and(|at| now.saturating_since(at) < SOUND_FOR);
        if !sound && self.trouble.is_none() {
            self.want_examination(now);
        }
        self.gauge.reached();
        let before = self.rtt.filter(|_| self.reach == Reach::Up);
        let slower = before.is_some_and(|old| rtt > old * 2 + JUMP);
        if self.is_doubtful() || slower {
            self.gauge.alarm();
        }
        self.heard = Some(now);
        self.down_since = None;
        self.was_silent = false;
        self.proofs = 0;
        self.reach = Reach::Up;
        self.failures = 0;
        // After a repeated SYN it is not known; a link that loses packets must not look the best.
        if !rtt.is_zero() {
            self.rtt = Some(before.map_or(rtt, |old| (old * 3 + rtt) / 4));
        }
    }

    pub(super) fn probe_succeeded(&mut self, now: Instant, rtt: Duration) {
        (self.probe, self.late, self.next) = (None, None, None);
        self.succeeded(now, rtt);
    }

    pub(super) fn failed(&mut self, now: Instant) {
        self.failures = self.failures.saturating_add(1);
        self.heard = None;
        if self.reach != Reach::Up || self.failures >= 2 {
            self.set_down(now);
        }
    }

    fn set_down(&mut self, now: Instant) {
        self.reach = Reach::Down;
        self.rtt = None;
        self.sound_at = None;
        self.down_since.get_or_insert(now);
    }

    fn in_vain(&mut self, now: Instant, probe: Probe) {
        self.asked_in_vain = self.asked_in_vain.max(Some(probe.began));
        self.was_silent = true;
        self.proofs += u32::from(probe.witnessed && self.proofs < PROOFS);
        self.failed(now);
    }

    pub(super) fn probe_failed(&mut self, now: Instant, conn: ConnId, reason: CloseReason) {
        let of = |probe: &mut Option<Probe>| probe.take_if(|p| p.conn == conn);
        let Some(probe) = of(&mut self.probe).or_else(|| of(&mut self.late)) else {
            return;
        };
        self.in_vain(now, probe);
        // An answer that says no is no lost packet.
        if reason == CloseReason::Refused {
            self.set_down(now);
        }
    }

    /// Ends a probe that is overdue and returns its connection; `None` where there is none.
    pub(super) fn give_up(&mut self, now: Instant) -> Option<ConnId> {
        let is_overdue = |p: &mut Probe| p.deadline <= now;
        let late = self.late.take_if(is_overdue);
        let probe = late.or_else(|| self.probe.take_if(is_overdue))?;
        self.in_vain(now, probe);
        Some(probe.conn)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_handshake_that_is_not_answered_proves_nothing_against_a_link() {
        let mut other = Cell::default();
        let mut found = |trouble, times| {
            let mut cell = Cell::default();
            for _ in 0..times {
                cell.on_finding(Instant::ZERO, Finding::Trouble(trouble));
            }
            other.succeeded(Instant::ZERO, Duration::from_millis(40));
            other.disproves(&cell)
        };
        assert!(!found(Trouble::Unanswered, 1));
        assert!(found(Trouble::Unanswered, 2));
        assert!(found(Trouble::Portal, 1), "whatever it is, not the server");
    }

    #[test]
    fn an_unknown_round_trip_is_not_the_shortest() {
        let mut cell = Cell::default();
        cell.succeeded(Instant::ZERO, Duration::ZERO);
        assert_eq!((cell.reach, cell.rank_rtt()), (Reach::Up, u64::MAX));
        cell.succeeded(Instant::ZERO, Duration::from_millis(40));
        cell.succeeded(Instant::ZERO, Duration::ZERO);
        assert_eq!(cell.rtt, Some(Duration::from_millis(40)));
    }
}
