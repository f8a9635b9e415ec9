//! Networks that drop SYNs because of MP_CAPABLE or of TCP Fast Open and its payload, or that strip MP_CAPABLE.

use core::net::IpAddr;
use core::time::Duration;
use std::collections::BTreeMap;

use braid_wire::Instant;

use crate::PathId;

/// The time for which such a network is remembered at first. This time is short because a path that was down for a
/// moment looks the same. The time doubles whenever the behaviour is seen again, up to [`MAX_BLACKHOLE_TIME`].
/// Both values are guesses.
const MIN_BLACKHOLE_TIME: Duration = Duration::from_secs(60);
/// The maximum time for which such a network is remembered.
const MAX_BLACKHOLE_TIME: Duration = Duration::from_secs(3600);

/// An entry of the table. It stays after its time is over, so that the time doubles if the behaviour is seen again.
#[derive(Debug, Clone, Copy)]
struct Blackhole {
    /// The end of the time for which the network is remembered.
    until: Instant,
    /// The length of that time.
    duration: Duration,
}

/// A table of the paths on which the network drops SYNs with a certain option, or strips the option (RFC 8684
/// section 3.7, RFC 7413 section 4.1.3). Each behaviour has a table of its own. The key is the peer's address and the
/// local path.
#[derive(Debug, Default)]
pub(crate) struct Blackholes {
    entries: BTreeMap<(IpAddr, PathId), Blackhole>,
    max_len: usize,
}

impl Blackholes {
    /// Creates a table of at most `max_len` paths. If the table is full, a new entry replaces the one that
    /// expires first.
    pub fn new(max_len: usize) -> Self {
        Blackholes {
            max_len,
            ..Blackholes::default()
        }
    }

    /// Returns whether the path is in the table and its time is not over.
    pub fn contains(&self, now: Instant, peer: IpAddr, path: PathId) -> bool {
        let entry = self.entries.get(&(peer, path));
        entry.is_some_and(|hole| now < hole.until)
    }

    /// Notes that the behaviour was seen on the path.
    pub fn note(&mut self, now: Instant, peer: IpAddr, path: PathId) {
        let key = (peer, path);
        let known = self.entries.get(&key);
        let duration = known.map_or(MIN_BLACKHOLE_TIME, |hole| {
            (hole.duration * 2).min(MAX_BLACKHOLE_TIME)
        });
        if known.is_none() && self.entries.len() >= self.max_len {
            let first = self.entries.iter().min_by_key(|(_, hole)| hole.until);
            let Some(first) = first.map(|(key, _)| *key) else {
                return;
            };
            self.entries.remove(&first);
        }
        let until = now + duration;
        self.entries.insert(key, Blackhole { until, duration });
    }

    /// Removes a path on which the option arrived.
    pub fn clear(&mut self, peer: IpAddr, path: PathId) {
        self.entries.remove(&(peer, path));
    }

    /// Removes all entries of `path`. To be called when the path's link has changed to another network.
    pub fn forget_path(&mut self, path: PathId) {
        self.entries
            .retain(|(_, entry_path), _| *entry_path != path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: IpAddr = IpAddr::V4(core::net::Ipv4Addr::new(192, 0, 2, 1));

    #[test]
    fn the_time_doubles_until_the_entry_is_cleared() {
        let mut holes = Blackholes::new(2);
        let path = PathId(0);
        let start = Instant::from_millis(1);
        holes.note(start, PEER, path);
        assert!(holes.contains(start, PEER, path));
        assert!(!holes.contains(start, PEER, PathId(1)));
        assert!(!holes.contains(start + MIN_BLACKHOLE_TIME, PEER, path));
        holes.note(start + MIN_BLACKHOLE_TIME, PEER, path);
        assert!(holes.contains(start + MIN_BLACKHOLE_TIME * 2, PEER, path));
        holes.clear(PEER, path);
        assert!(!holes.contains(start + MIN_BLACKHOLE_TIME * 2, PEER, path));
    }

    #[test]
    fn the_table_is_bounded() {
        let mut holes = Blackholes::new(2);
        for n in 0..3 {
            holes.note(Instant::from_millis(u64::from(n)), PEER, PathId(n));
        }
        let kept: Vec<u8> = holes.entries.keys().map(|(_, path)| path.0).collect();
        assert_eq!(kept, [1, 2]);
        let mut none = Blackholes::new(0);
        none.note(Instant::ZERO, PEER, PathId(0));
        assert!(none.entries.is_empty());
    }
}
