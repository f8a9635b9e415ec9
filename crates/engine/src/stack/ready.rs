//! The order in which connections send.

use std::collections::VecDeque;

use crate::{ConnId, Urgency};

/// The number of turns of which one goes to a level other than the first, while others wait; those levels
/// take it in turn.
const TURNS_PER_GUARDED_TURN: u32 = 8;

/// The number of levels: one for segments without data (acknowledgements, handshakes, ends), and one for
/// each urgency.
const LEVEL_COUNT: usize = 1 + Urgency::COUNT;

/// The connections that may have something to send: the most urgent first, and those of one level in turn.
///
/// To prevent starvation, every eighth turn goes to a less urgent level: however much there is to send
/// above it, each of the other eight gets at least one turn in 64. All operations take constant time.
#[derive(Debug, Default)]
pub(super) struct Ready {
    /// The slots of waiting connections. A connection that became more urgent stays in its old level as
    /// well, until its turn there comes and is skipped.
    levels: [VecDeque<u32>; LEVEL_COUNT],
    /// The set of levels that are not empty, as bits.
    waiting: u16,
    /// The place of each connection, by slot.
    places: Vec<Place>,
    /// The number of turns of the first level since another level had one, while another one waited.
    passed: u32,
    /// The level that had the last turn out of order.
    guarded: u32,
}

/// The level at which a connection waits.
#[derive(Debug, Clone, Copy, Default)]
struct Place {
    conn: Option<ConnId>,
    level: u8,
    /// The set of levels whose queue has its slot, as bits.
    entries: u16,
}

impl Ready {
    /// Adds `conn` with data of `urgency` to send, or with segments that wait for no data if `None`. A
    /// connection that waits already moves up if this is more urgent, and stays otherwise.
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
        let entry = 1 << level;
        if place.entries & entry == 0 {
            place.entries |= entry;
            self.levels[level].push_back(conn.slot);
            self.waiting |= entry;
        }
    }

    /// Removes and returns the connection whose turn it is.
    pub fn pop(&mut self) -> Option<ConnId> {
        while self.waiting > 0 {
            let level = self.next_level();
            let queue = &mut self.levels[level];
            let slot = queue.pop_front()?;
            if queue.is_empty() {
                self.waiting &= !(1 << level);
            }
            let place = &mut self.places[slot as usize];
            place.entries &= !(1 << level);
            if usize::from(place.level) == level
                && let Some(conn) = place.conn.take()
            {
                return Some(conn);
            }
        }
        None
    }

    /// Returns the level whose turn it is, among those that are not empty.
    fn next_level(&mut self) -> usize {
        let first = self.waiting.trailing_zeros();
        let others = self.waiting & !(1 << first);
        self.passed = if others > 0 { self.passed + 1 } else { 0 };
        if self.passed < TURNS_PER_GUARDED_TURN {
            return first as usize;
        }
        self.passed = 0;
        let behind = others & u16::MAX << (self.guarded + 1);
        let next = if behind > 0 { behind } else { others };
        self.guarded = next.trailing_zeros();
        self.guarded as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conn(slot: u32) -> ConnId {
        ConnId {
            slot,
            generation: 0,
        }
    }

    fn drain(ready: &mut Ready) -> Vec<u32> {
        std::iter::from_fn(|| ready.pop())
            .map(|id| id.slot)
            .collect()
    }

    #[test]
    fn the_most_urgent_goes_first_and_equals_in_turn() {
        let mut ready = Ready::default();
        let urgencies = [
            Urgency::new(3),
            None,
            Urgency::new(0),
            Urgency::new(3),
            None,
        ];
        for (slot, urgency) in urgencies.into_iter().enumerate() {
            ready.push(conn(slot as u32), urgency);
        }
        assert_eq!(drain(&mut ready), [1, 4, 2, 0, 3]);
        assert_eq!(ready.pop(), None);
    }

    #[test]
    fn what_becomes_more_urgent_moves_up_and_nothing_moves_down() {
        let mut ready = Ready::default();
        for slot in 0..3 {
            ready.push(conn(slot), Urgency::new(5));
        }
        ready.push(conn(2), Urgency::new(1));
        ready.push(conn(2), Urgency::new(7));
        ready.push(conn(1), None);
        ready.push(conn(1), None);
        assert_eq!(drain(&mut ready), [1, 2, 0]);
    }

    /// However often a connection moves up, it has one turn for one push, and its old places do not pile
    /// up.
    #[test]
    fn old_places_do_not_pile_up() {
        let mut ready = Ready::default();
        ready.push(conn(1), Urgency::new(7));
        for _ in 0..100 {
            ready.push(conn(0), Urgency::new(7));
            ready.push(conn(0), None);
            assert_eq!(ready.pop(), Some(conn(0)));
            assert!(ready.levels.iter().map(VecDeque::len).sum::<usize>() <= 3);
            let served = ready.pop();
            assert_eq!(served, Some(conn(1)));
            ready.push(conn(1), Urgency::new(7));
        }
        assert_eq!(drain(&mut ready), [1]);
    }

    #[test]
    fn a_connection_that_took_the_slot_of_another_is_the_one_served() {
        let mut ready = Ready::default();
        ready.push(conn(0), Urgency::new(2));
        let next = ConnId {
            slot: 0,
            generation: 1,
        };
        ready.push(next, Urgency::new(4));
        assert_eq!(ready.pop(), Some(next));
        assert_eq!(ready.pop(), None);
    }

    /// Each level has at least one turn in 64, however much there is to send above it.
    #[test]
    fn no_level_starves() {
        let mut ready = Ready::default();
        let urgency = |slot: u32| (slot.checked_sub(1)).and_then(|u| Urgency::new(u as u8));
        for slot in 0..LEVEL_COUNT as u32 {
            ready.push(conn(slot), urgency(slot));
        }
        let mut last = [0; LEVEL_COUNT];
        for turn in 1..=1000 {
            let slot = ready.pop().unwrap().slot;
            ready.push(conn(slot), urgency(slot));
            last[slot as usize] = turn;
            assert!(last.iter().all(|at| turn - at < 64), "{last:?} at {turn}");
        }
        // With two levels the lower one has an eighth.
        let mut ready = Ready::default();
        let mut turns = [0; 2];
        for _ in 0..800 {
            ready.push(conn(0), Urgency::new(0));
            ready.push(conn(1), Urgency::new(7));
            turns[ready.pop().unwrap().slot as usize] += 1;
        }
        assert_eq!(turns, [700, 100]);
    }
}
