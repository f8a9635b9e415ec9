//! How large a flow will be, from the flows to the same place before it.

use core::net::IpAddr;
use core::time::Duration;
use std::collections::HashMap;

use braid_engine::strategy::FlowSize;
use braid_wire::Instant;

/// Where flows go, by what is known of it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Place {
    /// An address and a port.
    Address(IpAddr, u16),
    /// A host name in lower case and a port.
    Name(String, u16),
}

/// Sizes of past flows by their places: of each the last 32, of a bounded number of places.
///
/// A prediction is the median of a place whose sizes lie close together. It is the guess that is
/// too large as often as it is too small: too small a guess costs copies that a large flow has no
/// use for, too large a one the copies that save a small flow from a timeout. Where sizes lie far
/// apart no single guess is good, and a flow of unknown size that is taken for what it shows of
/// itself does better.
#[derive(Debug)]
pub struct Predictor {
    capacity: usize,
    /// Looked up in, never iterated over.
    index: HashMap<Place, usize>,
    entries: Vec<Entry>,
    /// Where to look first for an entry to give up (CLOCK).
    hand: usize,
}

#[derive(Debug)]
struct Entry {
    place: Place,
    history: History,
    /// Asked for or added to since the hand passed last.
    used: bool,
}

impl Predictor {
    /// Remembers up to `capacity` places, at least one. One takes about 400 bytes.
    pub fn new(capacity: usize) -> Self {
        Predictor {
            capacity: capacity.max(1),
            index: HashMap::new(),
            entries: Vec::new(),
            hand: 0,
        }
    }

    /// How many places are remembered.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether no place is remembered.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The size of a flow that begins at `now`: by the first of `places` of which enough is known.
    /// The one that says most of the flow comes first.
    pub fn predict(&mut self, now: Instant, places: &[Place]) -> FlowSize {
        let predicted = places.iter().find_map(|place| {
            let entry = &mut self.entries[*self.index.get(place)?];
            entry.used = true;
            entry.history.predict(now)
        });
        predicted.map_or(FlowSize::Unknown, FlowSize::Predicted)
    }

    /// A flow to all these `places` ended at `now` after `bytes`.
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
        // A place seen once is the first to go, so that many of them leave the others alone.
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

    /// The entry that was not used for longest, roughly. Ends, because the hand forgets the use of
    /// all that it passes.
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
    sizes: [u64; History::LEN],
    /// Flows since the history began.
    flows: usize,
    /// When the last one ended.
    ended: Instant,
}

impl History {
    /// Flows that are remembered: what is older says less.
    const LEN: usize = 32;
    /// Fewer are an accident.
    const LEAST: usize = 8;
    /// The middle half of the sizes lies within this factor, where one size can stand for all.
    const WIDEST: u64 = 8;
    /// A place may have become another one after this.
    const MAX_AGE: Duration = Duration::from_secs(7 * 86_400);

    fn new(now: Instant, bytes: u64) -> Self {
        let mut history = History {
            sizes: [0; History::LEN],
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
        self.sizes[self.flows % History::LEN] = bytes;
        self.flows += 1;
        self.ended = now;
    }

    fn predict(&self, now: Instant) -> Option<u64> {
        if self.flows < History::LEAST || self.is_old(now) {
            return None;
        }
        let n = self.flows.min(History::LEN);
        let mut sizes = self.sizes;
        let sizes = &mut sizes[..n];
        sizes.sort_unstable();
        let (low, high) = (sizes[n / 4], sizes[n - 1 - n / 4]);
        let median = sizes[(n - 1) / 2].midpoint(sizes[n / 2]);
        let close = high <= low.saturating_mul(History::WIDEST);
        Some(median).filter(|median| close && *median > 0)
    }
}
