//! What a peer is to be told beside the data, and when. None of it is acknowledged by TCP, so each is
//! repeated.

use core::net::SocketAddr;
use core::time::Duration;

use arrayvec::ArrayVec;
use braid_wire::Instant;
use braid_wire::mptcp::{AddAddr, RemoveAddr};

use crate::SubflowId;
use crate::stats::AddressSignals;

/// Most that a peer can be told at once; what goes beyond is not said.
const MAX_SIGNALS: usize = 32;
/// Acknowledgements that bear nothing but an option, in a row (RFC 8684 section 3).
const MAX_IN_A_ROW: u8 = 2;
/// A doubt is repeated at multiples of this, those of idle connections that were asked together in one go.
const DOUBT_STEP: Duration = Duration::from_millis(50);
/// Between repetitions, at most.
pub(super) const MAX_PAUSE: Duration = Duration::from_secs(8);

/// Something to be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Signal {
    /// ADD_ADDR, until it is echoed.
    Announce { id: u8, addr: SocketAddr },
    /// The echo of the peer's ADD_ADDR.
    Echo(AddAddr),
    /// REMOVE_ADDR.
    Withdraw(u8),
    /// MP_PRIO, with what holds when it leaves.
    Priority(SubflowId),
    /// Is the peer still there, although it withdrew the address, was silent for long, or ours may be
    /// another one?
    Doubt(SubflowId),
}

impl Signal {
    /// How often it is said at most.
    pub fn tries(&self) -> u8 {
        match self {
            Signal::Announce { .. } => 5,
            Signal::Doubt(_) => 4,
            // The peer does not say that it heard.
            Signal::Withdraw(_) | Signal::Priority(_) => 2,
            // Asked for once more it is said once more.
            Signal::Echo(_) => 1,
        }
    }

    /// The only subflow on which it can be said; `None` where any will do.
    pub fn subflow(&self) -> Option<SubflowId> {
        match self {
            Signal::Priority(id) | Signal::Doubt(id) => Some(*id),
            Signal::Announce { .. } | Signal::Echo(_) | Signal::Withdraw(_) => None,
        }
    }
}

#[derive(Debug, Clone, Copy)]
struct Pending {
    signal: Signal,
    due: Instant,
    /// How often it was said.
    said: u8,
}

/// What is to be told, and when.
#[derive(Debug, Default)]
pub(crate) struct Signals {
    pending: Vec<Pending>,
    /// How many were sent since the peer was heard or a pause was made.
    in_a_row: u8,
    /// When that pause is over.
    rested: Instant,
    /// What was said and heard of addresses.
    pub told: AddressSignals,
}

impl Signals {
    /// To be said from `due` on, and from the start where it is being said already.
    pub fn add(&mut self, due: Instant, signal: Signal) {
        self.cancel(|s| *s == signal);
        if self.pending.len() < MAX_SIGNALS {
            self.pending.push(Pending {
                signal,
                due,
                said: 0,
            });
        }
    }

    /// Returns whether it is to be said.
    pub fn has(&self, signal: &Signal) -> bool {
        self.pending.iter().any(|pending| pending.signal == *signal)
    }

    pub fn cancel(&mut self, which: impl Fn(&Signal) -> bool) {
        self.pending.retain(|pending| !which(&pending.signal));
    }

    /// When it may be said. A doubt is put by a probe, not by an option.
    // Conforms: 8684-3-2
    fn at(&self, pending: &Pending) -> Instant {
        let free = self.in_a_row < MAX_IN_A_ROW || matches!(pending.signal, Signal::Doubt(_));
        match free {
            true => pending.due,
            false => pending.due.max(self.rested),
        }
    }

    /// When the next one is to be said of those that can be.
    pub fn next_at(&self, can_be: impl Fn(&Signal) -> bool) -> Option<Instant> {
        let pending = self.pending.iter().filter(|p| can_be(&p.signal));
        pending.map(|pending| self.at(pending)).min()
    }

    /// The peer was heard on a subflow.
    // Conforms: 8684-3.4.2-2
    pub fn on_heard(&mut self, subflow: SubflowId) {
        self.in_a_row = 0;
        if !self.pending.is_empty() {
            self.cancel(|s| *s == Signal::Doubt(subflow));
        }
    }

    /// The one that is due of those that can be said, and how often it was said.
    pub fn due(&self, now: Instant, can_be: impl Fn(&Signal) -> bool) -> Option<(Signal, u8)> {
        let mut pending = self.pending.iter().filter(|p| can_be(&p.signal));
        let due = pending.find(|pending| self.at(pending) <= now);
        due.map(|pending| (pending.signal, pending.said))
    }

    /// It leaves. `pause` is how long the first repetition waits; others go first then.
    // Conforms: 8684-3.4.1-4
    pub fn on_said(&mut self, now: Instant, signal: Signal, pause: Duration) {
        let Some(at) = self.pending.iter().position(|p| p.signal == signal) else {
            return;
        };
        let mut pending = self.pending.remove(at);
        pending.due = now + (pause * (1 << pending.said.min(5))).min(MAX_PAUSE);
        if matches!(signal, Signal::Doubt(_)) {
            pending.due = pending.due.next_multiple_of(DOUBT_STEP);
        }
        pending.said += 1;
        self.pending.push(pending);
        if now >= self.rested {
            self.in_a_row = 0;
        }
        if !matches!(signal, Signal::Doubt(_)) {
            self.in_a_row += 1;
            self.rested = now + pause;
        }
    }

    /// All ids to be withdrawn now beside `first`, counted as said.
    pub fn take_withdrawn(
        &mut self,
        now: Instant,
        first: u8,
        pause: Duration,
    ) -> Option<RemoveAddr> {
        let mut ids: ArrayVec<u8, { RemoveAddr::MAX_IDS }> = ArrayVec::new();
        ids.push(first);
        for pending in &mut self.pending {
            if let Signal::Withdraw(id) = pending.signal
                && pending.due <= now
                && pending.said < pending.signal.tries()
                && ids.try_push(id).is_ok()
            {
                pending.said += 1;
                pending.due = now + pause;
            }
        }
        ids.sort_unstable();
        RemoveAddr::new(&ids)
    }
}
