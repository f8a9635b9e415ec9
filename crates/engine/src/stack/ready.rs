//! The queue of connections that may have something to send, by urgency.

use std::collections::VecDeque;

use crate::{ConnId, Urgency};

/// The number of turns from one guarded turn to the next while several levels wait. A guarded turn goes to a level
/// other than the most urgent one. These other levels get guarded turns one after the other, so that none starves.
/// The value is a guess: one turn in eight costs urgent data little.
const TURNS_PER_GUARDED_TURN: u32 = 8;

/// The number of levels: one for segments without data (acknowledgements, handshake segments, FINs, RSTs), and
/// one for each urgency.
const LEVEL_COUNT: usize = 1 + Urgency::COUNT;

/// The connections that may have something to send. The most urgent level is served first, and the connections
/// of one level take turns.
///
/// To prevent starvation, every eighth turn goes to a less urgent level. So each of the eight other levels gets
/// at least one turn in 64, even if the most urgent level always has data. All operations take constant time.
#[derive(Debug, Default)]
pub(super) struct Ready {
    /// The slots of waiting connections, by level. The entry of a connection that became more urgent stays in
    /// its old level, where it is skipped when its turn comes: a removal would not take constant time.
    levels: [VecDeque<u32>; LEVEL_COUNT],
    /// The set of levels that are not empty, as bits.
    waiting: u16,
    /// The place of each connection, by slot.
    places: Vec<Place>,
    /// The number of turns that the most urgent level had since the last guarded turn, while other levels
    /// waited.
    turns_since_guarded: u32,
    /// The level that had the last guarded turn.
    last_guarded: u32,
}

/// The place of the connection in a slot.
#[derive(Debug, Clone, Copy, Default)]
struct Place {
    /// The connection, if it waits.
    conn: Option<ConnId>,
    /// The level at which the connection waits.
    level: u8,
    /// The set of levels whose queue has an entry of the slot, valid or outdated, as bits.
    entries: u16,
}

impl Ready {
    /// Adds `conn` with data of `urgency` to send; with `None`, a segment without data is due, which goes before
    /// all data. If the connection waits already, it moves up if `urgency` is more urgent, and otherwise stays.
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
            // An entry at another level than the connection's is outdated.
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
        self.turns_since_guarded = if others > 0 {
            self.turns_since_guarded + 1
        } else {
            0
        };
        if self.turns_since_guarded < TURNS_PER_GUARDED_TURN {
            return first as usize;
        }
        self.turns_since_guarded = 0;
        // Guarded turns go round: to the next level below the last one, or else to the first of the others.
        let below = others & u16::MAX << (self.last_guarded + 1);
        let next = if below > 0 { below } else { others };
        self.last_guarded = next.trailing_zeros();
        self.last_guarded as usize
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
    fn a_connection_moves_up_if_it_becomes_more_urgent_and_never_down() {
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

    /// A connection that moves up again and again gets one turn for each time that it was added, and its
    /// outdated entries do not accumulate.
    #[test]
    fn old_places_do_not_pile_up() {
        let mut ready = Ready::default();
        ready.push(conn(1), Urgency::new(7));
        for _ in 0..100 {
            ready.push(conn(0), Urgency::new(7));
            ready.push(conn(0), None);
            assert_eq!(ready.pop(), Some(conn(0)));
            // At most one entry of 1, and a valid and an outdated entry of 0.
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

    /// Each level has at least one turn in 64, although all levels above it always have something to send.
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
        // With two levels the lower one gets every eighth turn.
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
