//! Predictions of a flow's size, from earlier flows to the same place.

use core::net::IpAddr;
use core::time::Duration;
use std::collections::HashMap;

use braid_engine::strategy::FlowSize;
use braid_wire::Instant;

/// The destination of a flow, by name or by address.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Place {
    /// An address and a port.
    Address(IpAddr, u16),
    /// A host name in lower case and a port.
    Name(String, u16),
}

/// Sizes of past flows by their places: the last 32 of each, for a bounded number of places.
///
/// A prediction is the median of a place whose sizes lie close together: the guess that is too large as
/// often as it is too small. Too small a guess costs copies that a large flow has no use for, too large a
/// one the copies that save a small flow from a timeout. Where sizes lie far apart no single guess is
/// good; the flow is then better treated as unknown, by the bytes it has shown so far.
#[derive(Debug)]
pub struct Predictor {
    capacity: usize,
    /// The index of each entry; looked up in and never iterated over, so that runs stay deterministic.
    index: HashMap<Place, usize>,
    entries: Vec<Entry>,
    /// The index at which the search for an entry to evict begins (CLOCK).
    hand: usize,
}

#[derive(Debug)]
struct Entry {
    place: Place,
    history: History,
    /// The entry was asked for or added to since the hand passed last.
    used: bool,
}

impl Predictor {
    /// Makes a predictor of up to `capacity` places, at least one. A place takes about 400 bytes.
    pub fn new(capacity: usize) -> Self {
        Predictor {
            capacity: capacity.max(1),
            index: HashMap::new(),
            entries: Vec::new(),
            hand: 0,
        }
    }

    /// Returns the number of remembered places.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns whether no place is remembered.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Predicts the size of a flow that begins at `now`, by the first of `places` with enough history.
    /// Name the most specific place first.
    pub fn predict(&mut self, now: Instant, places: &[Place]) -> FlowSize {
        let predicted = places.iter().find_map(|place| {
            let entry = &mut self.entries[*self.index.get(place)?];
            entry.used = true;
            entry.history.predict(now)
        });
        predicted.map_or(FlowSize::Unknown, FlowSize::Predicted)
    }

    /// Records that a flow to all these `places` ended at `now` after `bytes`.
    pub fn record(&mut self, now: Instant, places: &[Place], bytes: u64) {
        for place in places {
            match self.index.get(place) {
                Some(&at) => {
                    self.entries[at].used = true;
                    self.entries[at].history.add(now, bytes);
                }
                None => self.insert(place, History::new(now, bytes)),
            }
        }
    }

    fn insert(&mut self, place: &Place, history: History) {
        // A new place is the first to be evicted, so that many places seen once leave the others alone.
        let entry = Entry {
            place: place.clone(),
            history,
            used: false,
        };
        let at = if self.entries.len() < self.capacity {
            self.entries.push(entry);
            self.entries.len() - 1
        } else {
            let at = self.make_room();
            self.index.remove(&self.entries[at].place);
            self.entries[at] = entry;
            at
        };
        self.index.insert(place.clone(), at);
    }

    /// Returns an entry that was not used for long.
    ///
    /// The loop ends because the hand clears the mark of each entry that it passes.
    fn make_room(&mut self) -> usize {
        loop {
            let at = self.hand;
            self.hand = (at + 1) % self.entries.len();
            if !core::mem::take(&mut self.entries[at].used) {
                return at;
            }
        }
    }
}

/// The sizes of the last flows to one place.
#[derive(Debug)]
struct History {
    sizes: [u64; History::MAX_FLOWS],
    /// Flows since the history began.
    flows: usize,
    /// The end of the last flow.
    ended: Instant,
}

impl History {
    /// Flows that are remembered; older ones say less.
    const MAX_FLOWS: usize = 32;
    /// Fewest flows for a prediction; fewer may be chance.
    const MIN_FLOWS: usize = 8;
    /// The largest ratio of the sizes' upper to lower quartile at which one size can stand for all.
    const MAX_QUARTILE_RATIO: u64 = 8;
    /// The age after which a place may have become another one.
    const MAX_AGE: Duration = Duration::from_secs(7 * 86_400);

    fn new(now: Instant, bytes: u64) -> Self {
        let mut history = History {
            sizes: [0; History::MAX_FLOWS],
            flows: 0,
            ended: now,
        };
        history.add(now, bytes);
        history
    }

    fn is_old(&self, now: Instant) -> bool {
        now.saturating_since(self.ended) > History::MAX_AGE
    }

    fn add(&mut self, now: Instant, bytes: u64) {
        if self.is_old(now) {
            self.flows = 0;
        }
        self.sizes[self.flows % History::MAX_FLOWS] = bytes;
        self.flows += 1;
        self.ended = now;
    }

    fn predict(&self, now: Instant) -> Option<u64> {
        if self.flows < History::MIN_FLOWS || self.is_old(now) {
            return None;
        }
        let n = self.flows.min(History::MAX_FLOWS);
        let mut sizes = self.sizes;
        let sizes = &mut sizes[..n];
        sizes.sort_unstable();
        let (low, high) = (sizes[n / 4], sizes[n - 1 - n / 4]);
        let median = sizes[(n - 1) / 2].midpoint(sizes[n / 2]);
        let close = high <= low.saturating_mul(History::MAX_QUARTILE_RATIO);
        Some(median).filter(|median| close && *median > 0)
    }
}
