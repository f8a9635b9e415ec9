//! The signals to a peer beside the data, and their times. TCP acknowledges none of them, so each is
//! repeated.

use core::net::SocketAddr;
use core::time::Duration;

use arrayvec::ArrayVec;
use braid_wire::Instant;
use braid_wire::mptcp::{AddAddr, RemoveAddr};

use crate::SubflowId;
use crate::stats::AddressSignals;

/// The most signals pending at once; further ones are dropped.
const MAX_SIGNALS: usize = 32;
/// The most acknowledgements in a row that carry nothing but an option (RFC 8684 section 3).
const MAX_BARE_ACKS_IN_A_ROW: u8 = 2;
/// The multiple of time at which probes are repeated, so that idle connections probed together are probed
/// again in one go.
const PROBE_TIME_STEP: Duration = Duration::from_millis(50);
/// The longest pause between repeats.
pub(super) const MAX_SIGNAL_PAUSE: Duration = Duration::from_secs(8);

/// A signal to the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Signal {
    /// ADD_ADDR, until it is echoed.
    Announce { id: u8, addr: SocketAddr },
    /// The echo of the peer's ADD_ADDR.
    Echo(AddAddr),
    /// REMOVE_ADDR.
    Withdraw(u8),
    /// MP_PRIO, with the priority in force when it leaves.
    Priority(SubflowId),
    /// A probe for a sign of life: the peer withdrew the address, was silent for long, or our own address
    /// may have changed.
    Validate(SubflowId),
}

impl Signal {
    /// Returns the most times that the signal is sent.
    pub fn tries(&self) -> u8 {
        match self {
            Signal::Announce { .. } => 5,
            Signal::Validate(_) => 4,
            // The peer does not confirm these.
            Signal::Withdraw(_) | Signal::Priority(_) => 2,
            // A repeated request is echoed again, so one echo each is enough.
            Signal::Echo(_) => 1,
        }
    }

    /// Returns the only subflow on which the signal can be sent; `None` if any will do.
    pub fn subflow(&self) -> Option<SubflowId> {
        match self {
            Signal::Priority(id) | Signal::Validate(id) => Some(*id),
            Signal::Announce { .. } | Signal::Echo(_) | Signal::Withdraw(_) => None,
        }
    }
}

#[derive(Debug, Clone, Copy)]
struct Pending {
    signal: Signal,
    due: Instant,
    /// The number of times that the signal was sent.
    sent: u8,
}

/// The pending signals of a connection.
#[derive(Debug, Default)]
pub(crate) struct Signals {
    pending: Vec<Pending>,
    /// The number of signals sent since the peer was heard or a pause was made.
    in_a_row: u8,
    /// The time at which that pause is over.
    rested: Instant,
    /// The counts of address signals sent and received.
    pub counts: AddressSignals,
}

impl Signals {
    /// Schedules a signal from `due` on, and restarts it if it is pending already.
    pub fn add(&mut self, due: Instant, signal: Signal) {
        self.cancel(|s| *s == signal);
        if self.pending.len() < MAX_SIGNALS {
            self.pending.push(Pending {
                signal,
                due,
                sent: 0,
            });
        }
    }

    /// Returns whether the signal is pending.
    pub fn has(&self, signal: &Signal) -> bool {
        self.pending.iter().any(|pending| pending.signal == *signal)
    }

    pub fn cancel(&mut self, which: impl Fn(&Signal) -> bool) {
        self.pending.retain(|pending| !which(&pending.signal));
    }

    /// Returns the time at which a signal may be sent. A probe carries no option, so it is not held back.
    // Conforms: 8684-3-2
    fn at(&self, pending: &Pending) -> Instant {
        let free =
            self.in_a_row < MAX_BARE_ACKS_IN_A_ROW || matches!(pending.signal, Signal::Validate(_));
        match free {
            true => pending.due,
            false => pending.due.max(self.rested),
        }
    }

    /// Returns the time of the next signal among those that `can_be` sent.
    pub fn next_at(&self, can_be: impl Fn(&Signal) -> bool) -> Option<Instant> {
        let pending = self.pending.iter().filter(|p| can_be(&p.signal));
        pending.map(|pending| self.at(pending)).min()
    }

    /// Notes that the peer was heard on a subflow.
    // Conforms: 8684-3.4.2-2
    pub fn on_received(&mut self, subflow: SubflowId) {
        self.in_a_row = 0;
        if !self.pending.is_empty() {
            self.cancel(|s| *s == Signal::Validate(subflow));
        }
    }

    /// Returns a due signal among those that `can_be` sent, and the number of times that it was sent.
    pub fn due(&self, now: Instant, can_be: impl Fn(&Signal) -> bool) -> Option<(Signal, u8)> {
        let mut pending = self.pending.iter().filter(|p| can_be(&p.signal));
        let due = pending.find(|pending| self.at(pending) <= now);
        due.map(|pending| (pending.signal, pending.sent))
    }

    /// Notes that a signal leaves. The first repeat waits for `pause`, and other signals go first
    /// meanwhile.
    // Conforms: 8684-3.4.1-4
    pub fn on_signal_sent(&mut self, now: Instant, signal: Signal, pause: Duration) {
        let Some(at) = self.pending.iter().position(|p| p.signal == signal) else {
            return;
        };
        let mut pending = self.pending.remove(at);
        pending.due = now + (pause * (1 << pending.sent.min(5))).min(MAX_SIGNAL_PAUSE);
        if matches!(signal, Signal::Validate(_)) {
            pending.due = pending.due.next_multiple_of(PROBE_TIME_STEP);
        }
        pending.sent += 1;
        self.pending.push(pending);
        if now >= self.rested {
            self.in_a_row = 0;
        }
        if !matches!(signal, Signal::Validate(_)) {
            self.in_a_row += 1;
            self.rested = now + pause;
        }
    }

    /// Returns all address ids to be withdrawn now beside `first`, and counts them as sent.
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
                && pending.sent < pending.signal.tries()
                && ids.try_push(id).is_ok()
            {
                pending.sent += 1;
                pending.due = now + pause;
            }
        }
        ids.sort_unstable();
        RemoveAddr::new(&ids)
    }
}
