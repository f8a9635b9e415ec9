//! CoDel (RFC 8289) for one flow of the tunnel's queue.
//!
//! Packets have their sequence numbers before they are sent, and a hole in a sequence looks like a loss. So a drop
//! that is due hits the next packet that arrives, before it gets a number, and not the one at the head. This delays
//! the signal by the time that the queue holds a packet, which is about the target.

use core::time::Duration;

use braid_wire::Instant;

/// The limits against which the delay is measured.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// The acceptable standing delay.
    pub target: Duration,
    /// The time after which a standing delay is acted on: about a round trip of the flow.
    pub interval: Duration,
}

/// The state of RFC 8289 section 5, with the names of its pseudocode.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct CoDel {
    first_above_time: Option<Instant>,
    drop_next: Instant,
    count: u32,
    lastcount: u32,
    dropping: bool,
    /// Drops that are due and have not hit a packet.
    due: u32,
}

/// Maximum number of drops that wait for a packet, so that a flow that returns from a pause does not lose a burst. The
/// value is a guess.
const MAX_DUE: u32 = 4;

impl CoDel {
    /// Notes that a packet left the queue at `now` after `delay`. `last` says that the queue is empty now.
    pub fn on_dequeue(&mut self, now: Instant, delay: Duration, last: bool, limits: Limits) {
        if delay < limits.target || last {
            self.first_above_time = None;
            self.dropping = false;
            self.due = 0;
            return;
        }
        let Some(first_above) = self.first_above_time else {
            self.first_above_time = Some(now + limits.interval);
            return;
        };
        if now < first_above {
            return;
        }
        if !self.dropping {
            self.dropping = true;
            self.due += 1;
            let delta = self.count.saturating_sub(self.lastcount);
            let recent = now.saturating_since(self.drop_next) < limits.interval * 16;
            self.count = if delta > 1 && recent { delta } else { 1 };
            self.lastcount = self.count;
            self.drop_next = control_law(now, limits.interval, self.count);
        } else if now >= self.drop_next {
            self.count = self.count.saturating_add(1);
            self.due = (self.due + 1).min(MAX_DUE);
            self.drop_next = control_law(self.drop_next, limits.interval, self.count);
        }
    }

    /// Returns true if the packet that arrives is to be dropped or marked.
    pub fn takes(&mut self) -> bool {
        let due = self.due > 0;
        self.due = self.due.saturating_sub(1);
        due
    }
}

fn control_law(at: Instant, interval: Duration, count: u32) -> Instant {
    at + interval.div_f64(f64::from(count).sqrt())
}
