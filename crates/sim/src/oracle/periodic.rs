//! The periodic checks: timers, ends, bounds.

use core::time::Duration;

use braid_engine::stats::ConnStats;
use braid_wire::Instant;

use super::conn::Conn;
use super::violation::{Checker, Rule, ViolationLog};

/// The interval between checks of all connections.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);
/// The time after its end for which the engine may still report a connection: 10 s, and a last timer.
pub(super) const MAX_LINGER: Duration = Duration::from_secs(15);
/// The time by which the engine may give up later than its settings say: its longest timer, and a sweep.
const GIVE_UP_MARGIN: Duration = Duration::from_secs(15);
/// The longest handshake of the accepting side: five SYN/ACKs, the last after 23 s.
const MAX_ACCEPT_TIME: Duration = Duration::from_secs(35);
/// The longest life of a connection whose peer answers but acknowledges nothing new, if the user timeout
/// is shorter. It has a margin over the engine's bound of 100 s for a subflow (R2 of RFC 9293 section
/// 3.8.3).
const MAX_STALL_TIME: Duration = Duration::from_secs(180);
/// Timers in a row that may pass without a packet or an event: the engine keeps up to 4 stale timers a
/// connection and 64 more.
const MAX_IDLE_TIMERS: u32 = 200;
const IDLE_TIMERS_PER_CONN: u32 = 8;
/// Timers without effect come at longer intervals than this.
const MIN_IDLE_INTERVAL: Duration = Duration::from_millis(1);

/// The check of timers.
#[derive(Debug, Default)]
pub(super) struct TimerCheck {
    progressed: bool,
    /// The time that the engine asked for last.
    next: Option<Instant>,
    /// The number of timers in a row without effect, and the time of the first.
    idle: u32,
    idle_since: Instant,
    swept_at: Instant,
}

impl TimerCheck {
    /// Notes that a packet came or left, or an event was reported.
    pub fn progressed(&mut self) {
        self.progressed = true;
    }

    /// Checks the timers after a turn: the engine wants the next at `next`, and has `connections`.
    pub fn check(
        &mut self,
        now: Instant,
        (next, connections): (Option<Instant>, usize),
        log: &mut ViolationLog,
    ) {
        let served = self.next.is_some_and(|at| at <= now);
        self.next = next;
        if let Some(at) = self.next {
            log.check(at > now, Rule::Timer, (now, None), || {
                format!("a timer at {at} is due and was not served")
            });
        }
        if core::mem::take(&mut self.progressed) {
            self.idle = 0;
            return;
        }
        if !served {
            return;
        }
        if self.idle == 0 {
            self.idle_since = now;
        }
        self.idle += 1;
        let most = MAX_IDLE_TIMERS.saturating_add(IDLE_TIMERS_PER_CONN * connections as u32);
        let since = self.idle_since;
        if self.idle > most {
            let slow = now.saturating_since(since) > MIN_IDLE_INTERVAL * most;
            log.check(slow, Rule::Timer, (now, None), || {
                format!("{most} timers since {since} led to nothing")
            });
            self.idle = 0;
        }
    }

    pub fn sweep_due(&mut self, now: Instant) -> bool {
        let due = now.saturating_since(self.swept_at) >= SWEEP_INTERVAL;
        if due {
            self.swept_at = now;
        }
        due
    }
}

pub(super) fn check_bounds(
    config: &braid_engine::Config,
    stats: &ConnStats,
    subflows: usize,
    checker: &mut Checker<'_>,
) {
    let unacknowledged = stats.snd_end - stats.snd_una;
    let unread = stats.rcv_nxt - stats.rcv_read + stats.out_of_order;
    checker.check(
        unacknowledged <= config.send_buffer as u64
            && unread <= config.recv_buffer as u64
            && subflows <= config.max_subflows,
        Rule::Bound,
        || format!("{subflows} subflows: {stats:?}"),
    );
}

/// Checks that a connection opens, makes progress or is given up in time.
pub(super) fn check_life(
    config: &braid_engine::Config,
    conn: &mut Conn,
    stats: &ConnStats,
    checker: &mut Checker<'_>,
) {
    let now = checker.at;
    let late =
        |since: Instant, limit: Duration| now.saturating_since(since) > limit + GIVE_UP_MARGIN;
    let opening = config.connect_timeout.max(MAX_ACCEPT_TIME);
    checker.check(
        conn.open || !late(conn.opened_at, opening),
        Rule::Liveness,
        || format!("opening since {}", conn.opened_at),
    );
    let writable = stats.snd_nxt < stats.snd_end && stats.peer_window > 0;
    let waiting = stats.snd_una < stats.snd_nxt || writable;
    if !waiting || stats.snd_una > conn.moved.1 {
        conn.moved = (now, stats.snd_una);
        return;
    }
    let (moved, heard) = (conn.moved.0, conn.last_heard);
    let stall = MAX_STALL_TIME.max(config.user_timeout);
    checker.check(
        !late(moved.max(heard), config.user_timeout) && !late(moved, stall),
        Rule::Liveness,
        || format!("nothing moved since {moved}, nothing was heard since {heard}: {stats:?}"),
    );
}
