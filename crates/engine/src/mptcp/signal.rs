//! The signals to a peer that travel as options of acknowledgements, and the times at which they are sent. TCP
//! does not acknowledge an acknowledgement, so signals are repeated.

use core::net::SocketAddr;
use core::time::Duration;

use arrayvec::ArrayVec;
use braid_wire::Instant;
use braid_wire::mptcp::{AddAddr, RemoveAddr};

use crate::SubflowId;
use crate::stats::AddressSignals;

/// The maximum number of pending signals; further ones are dropped. The peer's ADD_ADDRs cause echoes, so the
/// list needs a bound. The value is a guess: a few signals for each of the 8 subflows of a connection.
const MAX_SIGNALS: usize = 32;
/// The maximum number of acknowledgements in a row that are sent only for their option. A middlebox may take a
/// longer row of duplicate acknowledgements for a sign of congestion (RFC 8684 section 3).
const MAX_BARE_ACKS_IN_A_ROW: u8 = 2;
/// The times of repeated probes are rounded up to multiples of this step. So idle connections that were probed
/// together are probed again together, by one wake-up of the process. The value is a guess, a small part of 200
/// ms, the minimum pause between probes.
const PROBE_TIME_STEP: Duration = Duration::from_millis(50);
/// The maximum pause between repeats of a signal. The value is a guess, the same as for handshake segments.
pub(super) const MAX_SIGNAL_PAUSE: Duration = Duration::from_secs(8);

/// A signal to the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Signal {
    /// ADD_ADDR, repeated until it is echoed.
    Announce { id: u8, addr: SocketAddr },
    /// The echo of the peer's ADD_ADDR.
    Echo(AddAddr),
    /// REMOVE_ADDR.
    Withdraw(u8),
    /// MP_PRIO, with the priority in force when the option leaves.
    Priority(SubflowId),
    /// A probe for a sign of life on a subflow, because the peer withdrew the address or was silent for long,
    /// or because our own address may have changed.
    Validate(SubflowId),
}

impl Signal {
    /// Returns the maximum number of times that the signal is sent. The numbers are guesses. The first pause
    /// between two tries is a timeout of 200 ms or more, and the pause doubles with each try.
    pub fn tries(&self) -> u8 {
        match self {
            // The echo ends the repeats, so a high maximum costs little.
            Signal::Announce { .. } => 5,
            // The subflow is reset after the last try, so a few lost probes must not suffice.
            Signal::Validate(_) => 4,
            // The peer confirms neither of these, so every repeat is sent. One repeat makes up for a single loss.
            Signal::Withdraw(_) | Signal::Priority(_) => 2,
            // If an echo is lost, the peer repeats its ADD_ADDR, which is then echoed again.
            Signal::Echo(_) => 1,
        }
    }

    /// Returns the subflow on which the signal has to be sent; `None` if it can be sent on any subflow.
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
    /// The number of acknowledgements sent only for an option, since the peer was last heard or `pause_ends`
    /// last passed.
    in_a_row: u8,
    /// The time from which signals may be sent again after [`MAX_BARE_ACKS_IN_A_ROW`].
    pause_ends: Instant,
    /// The counts of address signals sent and received.
    pub counts: AddressSignals,
}

impl Signals {
    /// Schedules a signal for `due`. A signal that is pending already starts anew.
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

    /// Cancels the pending signals that satisfy `matches`.
    pub fn cancel(&mut self, matches: impl Fn(&Signal) -> bool) {
        self.pending.retain(|pending| !matches(&pending.signal));
    }

    /// Returns the time at which a signal may be sent. A probe carries no option, so the bound on
    /// acknowledgements in a row does not hold it back.
    // Conforms: 8684-3-2
    fn at(&self, pending: &Pending) -> Instant {
        let is_unbound =
            self.in_a_row < MAX_BARE_ACKS_IN_A_ROW || matches!(pending.signal, Signal::Validate(_));
        match is_unbound {
            true => pending.due,
            false => pending.due.max(self.pause_ends),
        }
    }

    /// Returns the time of the next signal among those that satisfy `is_sendable`.
    pub fn next_at(&self, is_sendable: impl Fn(&Signal) -> bool) -> Option<Instant> {
        let pending = self.pending.iter().filter(|p| is_sendable(&p.signal));
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

    /// Returns a due signal that satisfies `is_sendable`, and the number of times that this signal was sent.
    pub fn due(&self, now: Instant, is_sendable: impl Fn(&Signal) -> bool) -> Option<(Signal, u8)> {
        let mut pending = self.pending.iter().filter(|p| is_sendable(&p.signal));
        let due = pending.find(|pending| self.at(pending) <= now);
        due.map(|pending| (pending.signal, pending.sent))
    }

    /// Notes that a signal is sent. The signal is repeated after `pause`, and the pause doubles with each
    /// repeat. The signal moves behind the other pending signals.
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
        if now >= self.pause_ends {
            self.in_a_row = 0;
        }
        if !matches!(signal, Signal::Validate(_)) {
            self.in_a_row += 1;
            self.pause_ends = now + pause;
        }
    }

    /// Returns a REMOVE_ADDR of the address id `first` and all other ids whose withdrawal is due, and counts the
    /// withdrawals of the other ids as sent. The caller counts that of `first`.
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
