//! The packets of one flow that wait to be sent, or were sent and may be needed again.

use core::time::Duration;
use std::collections::VecDeque;

use braid_engine::Urgency;
use braid_wire::Instant;

use crate::codel::CoDel;
use crate::config::{MAX_PATHS, Mode};
use crate::policy::FlowPolicy;
use crate::rate::RateMeter;
use crate::trial::Trial;
use crate::usage::Usage;

/// The state of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// The packet waits since the time at which it came.
    Waiting(Instant),
    /// The packet was sent.
    Sent {
        path: usize,
        at: Instant,
        again: bool,
    },
}

/// A packet of a flow.
#[derive(Debug)]
pub(crate) struct Entry {
    pub packet: Vec<u8>,
    pub state: State,
}

/// The use of a path by a flow.
#[derive(Debug, Clone, Copy, Default)]
struct Use {
    /// Packets below this number may not be sent on this path, because numbers rise on each path.
    next: u64,
    /// The time of the last packet or statement on the path.
    stated_at: Option<Instant>,
    /// The time of the last packet.
    sent_at: Option<Instant>,
}

/// One flow's packets, in order.
#[derive(Debug)]
pub(crate) struct SendFlow {
    /// The number of the first entry.
    first: u64,
    entries: VecDeque<Entry>,
    /// No entry below this number waits.
    first_waiting: u64,
    waiting: usize,
    waiting_bytes: usize,
    uses: [Use; MAX_PATHS],
    pub urgency: Urgency,
    pub mode: Mode,
    /// The policy that the caller wants for the flow.
    pub policy: FlowPolicy,
    /// The policy that the peer has stated for the other direction.
    pub stated: FlowPolicy,
    /// Bytes that the flow may still send in this round (RFC 8290 section 3.3).
    pub deficit: i64,
    /// The flow is in the queue's ring.
    pub queued: bool,
    pub codel: CoDel,
    pub rate: RateMeter,
    pub trial: Trial,
    pub usage: Usage,
    /// The time of the last packet that came.
    pub used_at: Instant,
    /// The times between the last three packets that came.
    gaps: [Duration; 2],
}

impl SendFlow {
    pub fn new() -> Self {
        SendFlow {
            first: 0,
            entries: VecDeque::new(),
            first_waiting: 0,
            waiting: 0,
            waiting_bytes: 0,
            uses: [Use::default(); MAX_PATHS],
            urgency: Urgency::default(),
            mode: Mode::default(),
            policy: FlowPolicy::default(),
            stated: FlowPolicy::default(),
            deficit: 0,
            queued: false,
            codel: CoDel::default(),
            rate: RateMeter::default(),
            trial: Trial::default(),
            usage: Usage::default(),
            used_at: Instant::ZERO,
            gaps: [Duration::ZERO; 2],
        }
    }

    /// Returns the number of the next packet to come.
    pub fn end(&self) -> u64 {
        self.first + self.entries.len() as u64
    }

    /// Returns the lowest number that waits, if any does.
    pub fn first_waiting(&self) -> u64 {
        self.first_waiting
    }

    /// Returns true if `path` may take the first packet that waits: numbers rise on each path.
    pub fn may_take_first(&self, path: usize) -> bool {
        self.uses[path].next <= self.first_waiting
    }

    /// Returns the length of the first packet that waits, in bytes.
    pub fn first_waiting_len(&self) -> usize {
        self.entry(self.first_waiting).map_or(0, |e| e.packet.len())
    }

    pub fn is_waiting(&self) -> bool {
        self.waiting > 0
    }

    pub fn waiting_bytes(&self) -> usize {
        self.waiting_bytes
    }

    /// Returns the longer of the times between the last three packets that came, if neither is more than twice the
    /// other.
    pub fn even_gap(&self) -> Option<Duration> {
        let [a, b] = self.gaps;
        (a.max(b) <= a.min(b) * 2).then(|| a.max(b))
    }

    /// Takes a packet that waits to be sent.
    pub fn push(&mut self, now: Instant, packet: Vec<u8>) {
        self.gaps = [self.gaps[1], now.saturating_since(self.used_at)];
        self.used_at = now;
        self.waiting += 1;
        self.waiting_bytes += packet.len();
        self.entries.push_back(Entry {
            packet,
            state: State::Waiting(now),
        });
    }

    pub fn entry(&self, number: u64) -> Option<&Entry> {
        let index = number.checked_sub(self.first)?;
        self.entries.get(usize::try_from(index).ok()?)
    }

    fn entry_mut(&mut self, number: u64) -> Option<&mut Entry> {
        let index = number.checked_sub(self.first)?;
        self.entries.get_mut(usize::try_from(index).ok()?)
    }

    /// Returns the number of the first waiting packet of at most `largest` bytes that may be sent on `path` and has
    /// `depth` bytes of waiting packets before it.
    pub fn waiting_at(&self, path: usize, depth: usize, largest: usize) -> Option<u64> {
        if self.waiting_bytes <= depth {
            return None;
        }
        let least = self.uses[path].next;
        let mut ahead = 0;
        let skip = self.first_waiting.saturating_sub(self.first) as usize;
        for (entry, number) in self.entries.iter().skip(skip).zip(self.first_waiting..) {
            if let State::Waiting(_) = entry.state {
                let fits = entry.packet.len() <= largest;
                if ahead >= depth && number >= least && fits {
                    return Some(number);
                }
                ahead += entry.packet.len();
            }
        }
        None
    }

    /// Marks a waiting packet as sent on `path`, and returns the time at which it came.
    pub fn mark_sent(&mut self, now: Instant, number: u64, path: usize) -> Option<Instant> {
        let entry = self.entry_mut(number)?;
        let State::Waiting(since) = entry.state else {
            return None;
        };
        entry.state = State::Sent {
            path,
            at: now,
            again: false,
        };
        let len = entry.packet.len();
        self.waiting -= 1;
        self.waiting_bytes -= len;
        self.uses[path] = Use {
            next: self.uses[path].next.max(number + 1),
            stated_at: Some(now),
            sent_at: Some(now),
        };
        while let Some(State::Sent { .. }) = self.entry(self.first_waiting).map(|e| e.state) {
            self.first_waiting += 1;
        }
        Some(since)
    }

    /// Marks a packet that was sent once, and not again since, as sent again on `path`. Returns false if there is no
    /// such packet.
    pub fn mark_again(&mut self, now: Instant, number: u64, path: usize) -> bool {
        match self.entry_mut(number).map(|e| &mut e.state) {
            Some(state @ State::Sent { again: false, .. }) => {
                *state = State::Sent {
                    path,
                    at: now,
                    again: true,
                };
                true
            }
            _ => false,
        }
    }

    /// Returns true if all packets since `horizon` were sent on `path`.
    pub fn is_sole(&self, path: usize, horizon: Instant) -> bool {
        self.uses
            .iter()
            .enumerate()
            .all(|(other, u)| other == path || u.sent_at.is_none_or(|at| at < horizon))
    }

    /// Returns true if more than one path has packets since `horizon`.
    pub fn is_spread(&self, horizon: Instant) -> bool {
        let recent = |u: &&Use| u.sent_at.is_some_and(|at| at >= horizon);
        self.uses.iter().filter(recent).count() > 1
    }

    /// Returns the number to state on `path` if nothing was stated since `since` by packet or statement.
    pub fn statement(&mut self, now: Instant, path: usize, since: Instant) -> Option<u64> {
        let uses = &mut self.uses[path];
        if uses.stated_at.is_some_and(|at| at > since) {
            return None;
        }
        uses.stated_at = Some(now);
        uses.next = uses.next.max(self.first_waiting);
        Some(self.first_waiting)
    }

    /// Lets every path take every waiting packet. Packets may then arrive out of order on a path, and the peer may
    /// count some as lost.
    pub fn forget_order(&mut self) {
        for uses in &mut self.uses {
            uses.next = 0;
        }
    }

    /// Forgets the use of a path, which is new.
    pub fn forget_path(&mut self, path: usize) {
        self.uses[path] = Use::default();
    }

    /// Returns the numbers of packets that were sent on `path` since `since`, and not again.
    pub fn sent_since(&self, path: usize, since: Instant) -> impl Iterator<Item = u64> {
        self.entries
            .iter()
            .zip(self.first..)
            .filter(move |(entry, _)| match entry.state {
                State::Sent {
                    path: on,
                    at,
                    again,
                } => on == path && at >= since && !again,
                State::Waiting(_) => false,
            })
            .map(|(_, number)| number)
    }

    /// Removes the first packet if it was sent before `horizon`.
    pub fn pop_sent(&mut self, horizon: Instant) -> Option<Vec<u8>> {
        match self.entries.front()?.state {
            State::Sent { at, .. } if at < horizon => {
                self.first += 1;
                Some(self.entries.pop_front()?.packet)
            }
            _ => None,
        }
    }

    pub fn invariants(&self) {
        let waiting = |e: &&Entry| matches!(e.state, State::Waiting(_));
        assert_eq!(self.waiting, self.entries.iter().filter(waiting).count());
        let bytes: usize = self
            .entries
            .iter()
            .filter(waiting)
            .map(|e| e.packet.len())
            .sum();
        assert_eq!(self.waiting_bytes, bytes);
        assert!(self.first_waiting >= self.first && self.first_waiting <= self.end());
    }
}
