//! CoDel ("controlled delay", RFC 8289), an active queue management.

use core::time::Duration;

use braid_wire::Instant;

use crate::queue::{Queue, QueuedPacket};

/// Parameters of CoDel, by default those of RFC 8289 section 4.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CoDel {
    /// The acceptable standing queue delay.
    pub target: Duration,
    /// The time for which the delay has to stay above the target before packets are dropped. It should be about
    /// the longest round-trip time of the traffic, because senders need a round trip to react.
    pub interval: Duration,
    /// True to mark packets of an ECN-capable transport instead of dropping them (RFC 3168). Requires that the
    /// driver has set [a function that marks](crate::Link::mark_by).
    pub marks: bool,
}

impl Default for CoDel {
    fn default() -> Self {
        CoDel {
            target: Duration::from_millis(5),
            interval: Duration::from_millis(100),
            marks: false,
        }
    }
}

/// The state of RFC 8289 section 5. The names are those of its pseudocode.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct State {
    first_above_time: Option<Instant>,
    drop_next: Instant,
    count: u32,
    lastcount: u32,
    dropping: bool,
}

impl State {
    /// Returns the packet of `queue` that is sent next at `now` (section 5, `deque`). Passes the packets that
    /// CoDel drops before this packet to `drop`. A packet that `mark` can mark is sent instead of dropped.
    pub fn dequeue<P>(
        &mut self,
        codel: CoDel,
        now: Instant,
        queue: &mut Queue<P>,
        mut mark: impl FnMut(&mut QueuedPacket<P>) -> bool,
        mut drop: impl FnMut(QueuedPacket<P>),
    ) -> Option<QueuedPacket<P>> {
        let (mut packet, mut ok_to_drop) = self.take(codel, now, queue);
        if self.dropping {
            self.dropping = ok_to_drop;
            while self.dropping && now >= self.drop_next {
                self.count = self.count.saturating_add(1);
                if packet.as_mut().is_some_and(&mut mark) {
                    self.drop_next = control_law(codel, self.drop_next, self.count);
                    break;
                }
                packet.into_iter().for_each(&mut drop);
                (packet, ok_to_drop) = self.take(codel, now, queue);
                self.dropping = ok_to_drop;
                if ok_to_drop {
                    self.drop_next = control_law(codel, self.drop_next, self.count);
                }
            }
        } else if ok_to_drop {
            if !packet.as_mut().is_some_and(&mut mark) {
                packet.into_iter().for_each(&mut drop);
                (packet, _) = self.take(codel, now, queue);
            }
            self.enter(codel, now);
        }
        packet
    }

    /// Takes the next packet from the queue. Returns the packet, and true if the delay has been above the target
    /// long enough to drop the packet (section 5.6, `dodequeue`).
    fn take<P>(
        &mut self,
        codel: CoDel,
        now: Instant,
        queue: &mut Queue<P>,
    ) -> (Option<QueuedPacket<P>>, bool) {
        let Some(packet) = queue.pop() else {
            self.first_above_time = None;
            return (None, false);
        };
        let sojourn = now.saturating_since(packet.entered);
        // With at most one packet left after this one, a drop could leave the line idle. The RFC compares the
        // queue with the maximum packet size. Here the length of the longest packet so far takes the place of this
        // size.
        if sojourn < codel.target || queue.now().bytes <= queue.largest().into() {
            self.first_above_time = None;
            return (Some(packet), false);
        }
        // As in the RFC, `first_above_time` is the time at which dropping may begin, not the time at which the
        // delay rose.
        let drop_from = *self.first_above_time.get_or_insert(now + codel.interval);
        (Some(packet), now >= drop_from)
    }

    /// Enters the dropping state. If the previous dropping state ended within the last 16 intervals, begins with
    /// the drop rate of that state (section 5.4).
    fn enter(&mut self, codel: CoDel, now: Instant) {
        let delta = self.count.saturating_sub(self.lastcount);
        let recent = now.saturating_since(self.drop_next) < codel.interval.saturating_mul(16);
        self.count = if delta > 1 && recent { delta } else { 1 };
        self.drop_next = control_law(codel, now, self.count);
        self.lastcount = self.count;
        self.dropping = true;
    }
}

/// Returns the time of the next drop. The time between drops is the interval divided by the square root of the
/// number of drops, so that the throughput of TCP falls linearly (section 5).
fn control_law(codel: CoDel, from: Instant, count: u32) -> Instant {
    from + codel.interval.div_f64(f64::from(count.max(1)).sqrt())
}
