//! Which connection sends next.

use std::collections::VecDeque;

use crate::{ConnId, Urgency};

/// One turn in so many goes to a level that is not the first, to each such in turn.
const GUARD: u32 = 8;

/// What is no data (acknowledgements, handshakes, ends), and one level for each urgency below it.
const LEVELS: usize = 1 + Urgency::COUNT;

/// Connections that may have something to send: the most urgent ones first, and those of one level
/// in turn.
///
/// So that nobody starves, every eighth turn is that of a less urgent level: however much there is
/// to send above it, each of the other eight gets one turn in 64 at least. All operations take
/// constant time.
#[derive(Debug, Default)]
pub(super) struct Ready {
    /// Slots of connections. One that became more urgent is in a level that it left, too, until its
    /// turn there comes and is skipped.
    levels: [VecDeque<u32>; LEVELS],
    /// By slot.
    places: Vec<Place>,
    turns: u32,
    /// The level that had the last turn out of order.
    guarded: usize,
}

/// Where a connection waits.
#[derive(Debug, Clone, Copy, Default)]
struct Place {
    conn: Option<ConnId>,
    level: u8,
    /// In which levels its slot is.
    entries: u16,
}

impl Ready {
    /// Adds `conn` with data of `urgency` to send, or, with `None`, what is no data and never waits
    /// for any. One that waits already moves up where that is more urgent, and stays otherwise.
    pub fn push(&mut self, conn: ConnId, urgency: Option<Urgency>) {
        let level = urgency.map_or(0, |u| 1 + u.index());
        let slot = conn.slot as usize;
        if self.places.len() <= slot {
            self.places.resize(slot + 1, Place::default());
        }
        let place = &mut self.places[slot];
        if place.conn == Some(conn) && usize::from(place.level) <= level {
            return;
        }
        place.conn = Some(conn);
        place.level = level as u8;
        if place.entries & 1 << level == 0 {
            place.entries |= 1 << level;
            self.levels[level].push_back(conn.slot);
        }
    }

    /// Takes the connection whose turn it is out.
    pub fn pop(&mut self) -> Option<ConnId> {
        loop {
            let level = self.next_level()?;
            let slot = self.levels[level].pop_front()?;
            let place = &mut self.places[slot as usize];
            place.entries &= !(1 << level);
            if usize::from(place.level) == level
                && let Some(conn) = place.conn.take()
            {
                self.turns = self.turns.wrapping_add(1);
                return Some(conn);
            }
        }
    }

    fn next_level(&mut self) -> Option<usize> {
        let waits = |level: &usize| !self.levels[*level].is_empty();
        let first = (0..LEVELS).find(waits)?;
        if self.turns % GUARD != GUARD - 1 {
            return Some(first);
        }
        let others = (1..=LEVELS).map(|n| (self.guarded + n) % LEVELS);
        let other = others.filter(|level| *level != first).find(waits);
        self.guarded = other.unwrap_or(self.guarded);
        other.or(Some(first))
    }
}
