//! Predictions of a flow's size from the sizes of earlier flows to the same destination ("place").

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

/// The sizes of past flows by place: those of the last 32 flows to each place, for a bounded number of places.
///
/// The prediction for a place is the median of its sizes, because the median is too large as often as too small,
/// and both errors cost something. If the prediction is too small, a large flow gets copies in vain. If it is too
/// large, a small flow lacks the copies that would save it from a timeout.
///
/// There is no prediction if the sizes of a place lie far apart, because no single size represents them. A
/// strategy then classifies the flow by the bytes that it has sent so far.
#[derive(Debug)]
pub struct Predictor {
    capacity: usize,
    /// The index of each place in `entries`. Nothing iterates over the hash table, so that runs stay
    /// deterministic.
    index: HashMap<Place, usize>,
    entries: Vec<Entry>,
    /// The index at which the search for an entry to evict begins: the hand of the CLOCK algorithm, an
    /// approximation of "least recently used".
    hand: usize,
}

#[derive(Debug)]
struct Entry {
    place: Place,
    history: History,
    /// True if the entry was read or updated since the hand last passed it.
    used: bool,
}

impl Predictor {
    /// Creates a predictor for up to `capacity` places, at least one. A place takes about 400 bytes of memory.
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

    /// Predicts the size of a flow that begins at `now`. The first of `places` with a prediction decides. The most
    /// specific place should be first: the name before the address.
    pub fn predict(&mut self, now: Instant, places: &[Place]) -> FlowSize {
        let predicted = places.iter().find_map(|place| {
            let entry = &mut self.entries[*self.index.get(place)?];
            entry.used = true;
            entry.history.predict(now)
        });
        predicted.map_or(FlowSize::Unknown, FlowSize::Predicted)
    }

    /// Records that a flow of `bytes` ended at `now`. `places` are all names and addresses of its destination.
    pub fn record(&mut self, now: Instant, places: &[Place], bytes: u64) {
        for place in places {
            match self.index.get(place) {
                Some(&index) => {
                    self.entries[index].used = true;
                    self.entries[index].history.add(now, bytes);
                }
                None => self.insert(place, History::new(now, bytes)),
            }
        }
    }

    fn insert(&mut self, place: &Place, history: History) {
        // A new place is not marked as used, so places that are seen once are evicted before the others.
        let entry = Entry {
            place: place.clone(),
            history,
            used: false,
        };
        let index = if self.entries.len() < self.capacity {
            self.entries.push(entry);
            self.entries.len() - 1
        } else {
            let index = self.find_evictable();
            self.index.remove(&self.entries[index].place);
            self.entries[index] = entry;
            index
        };
        self.index.insert(place.clone(), index);
    }

    /// Returns the index of an entry that was not used since the hand last passed it.
    ///
    /// The loop ends within two rounds, because the hand clears the mark of each entry that it passes.
    fn find_evictable(&mut self) -> usize {
        loop {
            let index = self.hand;
            self.hand = (index + 1) % self.entries.len();
            if !core::mem::take(&mut self.entries[index].used) {
                return index;
            }
        }
    }
}

/// The sizes of the last flows to one place.
#[derive(Debug)]
struct History {
    /// A ring of sizes: the size of flow number n is at index n modulo `MAX_FLOWS`.
    sizes: [u64; History::MAX_FLOWS],
    /// The number of flows since the history began.
    flows: usize,
    /// The end of the last flow.
    ended_at: Instant,
}

impl History {
    // All four values are guesses.
    /// Number of flows that are remembered. Older flows are less likely to resemble the next one.
    const MAX_FLOWS: usize = 32;
    /// Minimum number of flows for a prediction. With fewer, similar sizes may be coincidence.
    const MIN_FLOWS: usize = 8;
    /// Maximum ratio of the upper to the lower quartile of the sizes for a prediction. At a larger ratio no single
    /// size represents them.
    const MAX_QUARTILE_RATIO: u64 = 8;
    /// The time without flows after which the history of a place is discarded, because the place may offer another
    /// service by now.
    const MAX_AGE: Duration = Duration::from_secs(7 * 86_400);

    fn new(now: Instant, bytes: u64) -> Self {
        let mut history = History {
            sizes: [0; History::MAX_FLOWS],
            flows: 0,
            ended_at: now,
        };
        history.add(now, bytes);
        history
    }

    fn is_old(&self, now: Instant) -> bool {
        now.saturating_since(self.ended_at) > History::MAX_AGE
    }

    fn add(&mut self, now: Instant, bytes: u64) {
        if self.is_old(now) {
            self.flows = 0;
        }
        self.sizes[self.flows % History::MAX_FLOWS] = bytes;
        self.flows += 1;
        self.ended_at = now;
    }

    fn predict(&self, now: Instant) -> Option<u64> {
        if self.flows < History::MIN_FLOWS || self.is_old(now) {
            return None;
        }
        let n = self.flows.min(History::MAX_FLOWS);
        let mut sizes = self.sizes;
        let sizes = &mut sizes[..n];
        sizes.sort_unstable();
        let (lower_quartile, upper_quartile) = (sizes[n / 4], sizes[n - 1 - n / 4]);
        let median = sizes[(n - 1) / 2].midpoint(sizes[n / 2]);
        let is_narrow =
            upper_quartile <= lower_quartile.saturating_mul(History::MAX_QUARTILE_RATIO);
        // A predicted size of 0 would say nothing about the flow.
        Some(median).filter(|median| is_narrow && *median > 0)
    }
}
