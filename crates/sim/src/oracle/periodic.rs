//! Checks that no single packet triggers: timers, bounds, and the lives of connections.

use core::time::Duration;

use braid_engine::stats::ConnStats;
use braid_wire::Instant;

use super::conn::Conn;
use super::violation::{Checker, Rule};

/// The interval between checks of all connections.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);
/// The maximum time for which the engine may keep a connection after it has reported the close. The engine keeps
/// such a connection for 10 s, and removes it when the next timer expires.
pub(super) const MAX_LINGER: Duration = Duration::from_secs(15);
/// The maximum delay between a timeout in the settings and the engine's reaction. It covers the engine's longest
/// timer and one sweep.
const GIVE_UP_MARGIN: Duration = Duration::from_secs(15);
/// The maximum time of a handshake at the accepting end: five SYN/ACKs, the last one after 23 s, and the timeout
/// of the last one.
const MAX_ACCEPT_TIME: Duration = Duration::from_secs(35);
/// The maximum time for which a peer may answer without acknowledging new data, if the user timeout is shorter. It
/// exceeds the engine's bound of 100 s for a subflow (R2 of RFC 9293 section 3.8.3), because a connection may
/// continue on another subflow.
const MAX_STALL_TIME: Duration = Duration::from_secs(180);
/// The maximum number of consecutive timers without a packet or an event: a fixed part, and a part for each
/// connection. The engine keeps up to 64 stale timers, and 4 more for each connection; the limits are at least
/// twice as large.
const MAX_IDLE_TIMERS: u32 = 200;
const IDLE_TIMERS_PER_CONN: u32 = 8;
/// The mean interval above which timers without effect are no fault, because virtual time advances enough.
const MIN_IDLE_INTERVAL: Duration = Duration::from_millis(1);

/// The check of timers.
#[derive(Debug, Default)]
pub(super) struct TimerCheck {
    /// True if a packet arrived or left, or an event was reported, since the last check.
    pub progressed: bool,
    /// The engine's next timer at the last check.
    next: Option<Instant>,
    /// The number of consecutive timers without effect, and the time of the first one.
    idle: u32,
    idle_since: Instant,
    swept_at: Instant,
}

impl TimerCheck {
    /// Checks the timers after a turn. `next` is the engine's next timer, `connections` its number of connections.
    pub fn check(&mut self, next: Option<Instant>, connections: usize, checker: &mut Checker<'_>) {
        let now = checker.at;
        let served = self.next.is_some_and(|at| at <= now);
        self.next = next;
        if let Some(at) = self.next {
            checker.check(at > now, Rule::Timer, || {
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
        let limit = MAX_IDLE_TIMERS.saturating_add(IDLE_TIMERS_PER_CONN * connections as u32);
        let since = self.idle_since;
        if self.idle > limit {
            let slow = now.saturating_since(since) > MIN_IDLE_INTERVAL * limit;
            checker.check(slow, Rule::Timer, || {
                format!("{limit} timers since {since} led to nothing")
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

/// Checks that a connection opens, makes progress, or is given up in time.
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
