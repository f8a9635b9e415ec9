//! What a peer is to be told beside the data, and when. None of it is acknowledged by TCP, so each is
//! repeated.

use core::net::SocketAddr;
use core::time::Duration;

use arrayvec::ArrayVec;
use braid_wire::Instant;
use braid_wire::mptcp::{AddAddr, RemoveAddr};

use crate::SubflowId;

/// Most that a peer can be told at once; what goes beyond is not said.
const MAX_SIGNALS: usize = 32;
/// Between repetitions, at most.
pub(super) const MAX_PAUSE: Duration = Duration::from_secs(8);

/// Something to be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Signal {
    /// ADD_ADDR, until it is echoed. The port is 0 where it is that of the connection.
    Announce { id: u8, addr: SocketAddr },
    /// The echo of the peer's ADD_ADDR.
    Echo(AddAddr),
    /// REMOVE_ADDR.
    Withdraw(u8),
    /// MP_PRIO, with what holds when it leaves.
    Priority(SubflowId),
    /// Is the peer still there, although it withdrew the address?
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
pub(crate) struct Signals(Vec<Pending>);

impl Signals {
    /// To be said at once, and from the start where it is being said already.
    pub fn add(&mut self, now: Instant, signal: Signal) {
        self.cancel(|s| *s == signal);
        if self.0.len() < MAX_SIGNALS {
            self.0.push(Pending {
                signal,
                due: now,
                said: 0,
            });
        }
    }

    pub fn cancel(&mut self, which: impl Fn(&Signal) -> bool) {
        self.0.retain(|pending| !which(&pending.signal));
    }

    /// When the next one is to be said.
    pub fn next_at(&self) -> Option<Instant> {
        self.0.iter().map(|pending| pending.due).min()
    }

    pub fn are_due(&self, now: Instant) -> bool {
        self.0.iter().any(|pending| pending.due <= now)
    }

    /// The peer was heard on a subflow.
    // Conforms: 8684-3.4.2-2
    pub fn on_heard(&mut self, subflow: SubflowId) {
        if !self.0.is_empty() {
            self.cancel(|s| *s == Signal::Doubt(subflow));
        }
    }

    /// The one that is due, counted as said, and how often it had been said before: as often as may
    /// be, and it is not said any more. `pause` is how long the first repetition waits.
    // Conforms: 8684-3.4.1-4
    pub fn take_due(&mut self, now: Instant, pause: Duration) -> Option<(Signal, u8)> {
        let at = self.0.iter().position(|pending| pending.due <= now)?;
        let pending = &mut self.0[at];
        let (signal, said) = (pending.signal, pending.said);
        if said >= signal.tries() {
            self.0.remove(at);
        } else {
            pending.said += 1;
            pending.due = now + (pause * (1 << said.min(5))).min(MAX_PAUSE);
        }
        Some((signal, said))
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
        for pending in &mut self.0 {
            if let Signal::Withdraw(id) = pending.signal
                && pending.due <= now
                && pending.said < pending.signal.tries()
                && ids.try_push(id).is_ok()
            {
                pending.said += 1;
                pending.due = now + pause;
            }
        }
        RemoveAddr::new(&ids)
    }
}
