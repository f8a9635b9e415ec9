//! What is known of one server over one link.

use core::time::Duration;

use braid_engine::{CloseReason, ConnId};
use braid_wire::Instant;

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
    pub(super) reach: Reach,
    /// Smoothed handshake round trip.
    pub(super) rtt: Option<Duration>,
    /// Failures since the last success.
    pub(super) failures: u32,
    /// When the next probe is due.
    pub(super) next: Option<Instant>,
    /// The probe under way.
    pub(super) probe: Option<Probe>,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Probe {
    pub(super) conn: ConnId,
    deadline: Instant,
}

impl Cell {
    /// When there is something to do.
    pub(super) fn due(&self) -> Option<Instant> {
        self.probe.map(|p| p.deadline).or(self.next)
    }

    /// The round trip in nanoseconds; unknown ones rank last.
    pub(super) fn rank_rtt(&self) -> u64 {
        self.rtt
            .and_then(|d| u64::try_from(d.as_nanos()).ok())
            .unwrap_or(u64::MAX)
    }

    pub(super) fn probe_started(&mut self, conn: ConnId, deadline: Instant) {
        self.next = None;
        self.probe = Some(Probe { conn, deadline });
    }

    pub(super) fn succeeded(&mut self, rtt: Duration) {
        self.reach = Reach::Up;
        self.failures = 0;
        // After a repeated SYN it is not known; a link that loses packets must not look the best.
        if !rtt.is_zero() {
            self.rtt = Some(self.rtt.map_or(rtt, |old| (old * 3 + rtt) / 4));
        }
    }

    pub(super) fn probe_succeeded(&mut self, rtt: Duration) {
        self.probe = None;
        self.succeeded(rtt);
    }

    pub(super) fn failed(&mut self) {
        self.failures = self.failures.saturating_add(1);
        if self.reach != Reach::Up || self.failures >= 2 {
            self.reach = Reach::Down;
            self.rtt = None;
        }
    }

    pub(super) fn probe_failed(&mut self, reason: CloseReason) {
        self.probe = None;
        self.failed();
        // An answer that says no is no lost packet.
        if reason == CloseReason::Refused {
            self.reach = Reach::Down;
            self.rtt = None;
        }
    }

    /// Ends a probe that is overdue and returns its connection; `None` where there is none.
    pub(super) fn give_up(&mut self) -> Option<ConnId> {
        let probe = self.probe.take()?;
        self.failed();
        Some(probe.conn)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_round_trip_is_not_the_shortest() {
        let mut cell = Cell::default();
        cell.succeeded(Duration::ZERO);
        assert_eq!((cell.reach, cell.rank_rtt()), (Reach::Up, u64::MAX));
        cell.succeeded(Duration::from_millis(40));
        cell.succeeded(Duration::ZERO);
        assert_eq!(cell.rtt, Some(Duration::from_millis(40)));
    }
}
