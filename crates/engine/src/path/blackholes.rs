//! Networks that drop SYNs for their content (MP_CAPABLE, or TCP Fast Open with its payload), or that strip
//! MP_CAPABLE.

use core::net::IpAddr;
use core::time::Duration;
use std::collections::BTreeMap;

use braid_wire::Instant;

use crate::PathId;

/// The time for which such a network is first remembered: a path that was dark for a moment looks the same.
/// It doubles each time the behaviour is seen again, up to [`MAX_BLACKHOLE_TIME`].
const MIN_BLACKHOLE_TIME: Duration = Duration::from_secs(60);
/// The longest time for which such a network is remembered.
const MAX_BLACKHOLE_TIME: Duration = Duration::from_secs(3600);

#[derive(Debug, Clone, Copy)]
struct Blackhole {
    until: Instant,
    lasts: Duration,
}

/// The paths on which only SYNs without the option get through, or answers come without it, by the peer's
/// address and the local path (RFC 8684 section 3.7: a path that drops SYNs with unknown options, or strips
/// the options; RFC 7413 section 4.1.3).
#[derive(Debug, Default)]
pub(crate) struct Blackholes {
    known: BTreeMap<(IpAddr, PathId), Blackhole>,
    max_len: usize,
}

impl Blackholes {
    /// Creates a table of at most `max_len` paths; the entry that expires first gives way to a new one.
    pub fn new(max_len: usize) -> Self {
        Blackholes {
            max_len,
            ..Blackholes::default()
        }
    }

    /// Returns whether the path is still taken to behave this way.
    pub fn contains(&self, now: Instant, peer: IpAddr, path: PathId) -> bool {
        let known = self.known.get(&(peer, path));
        known.is_some_and(|hole| now < hole.until)
    }

    /// Notes that the path was seen to behave this way.
    pub fn note(&mut self, now: Instant, peer: IpAddr, path: PathId) {
        let key = (peer, path);
        let known = self.known.get(&key);
        let lasts = known.map_or(MIN_BLACKHOLE_TIME, |hole| {
            (hole.lasts * 2).min(MAX_BLACKHOLE_TIME)
        });
        if known.is_none() && self.known.len() >= self.max_len {
            let over = self.known.iter().min_by_key(|(_, hole)| hole.until);
            let Some(over) = over.map(|(key, _)| *key) else {
                return;
            };
            self.known.remove(&over);
        }
        let until = now + lasts;
        self.known.insert(key, Blackhole { until, lasts });
    }

    /// Forgets a path on which the option got through.
    pub fn clear(&mut self, peer: IpAddr, path: PathId) {
        self.known.remove(&(peer, path));
    }

    /// Forgets the observations on `path`, whose link leads to another network now.
    pub fn forget_path(&mut self, path: PathId) {
        self.known.retain(|(_, on), _| *on != path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: IpAddr = IpAddr::V4(core::net::Ipv4Addr::new(192, 0, 2, 1));

    #[test]
    fn one_lasts_longer_each_time_until_it_is_over() {
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
        let kept: Vec<u8> = holes.known.keys().map(|(_, path)| path.0).collect();
        assert_eq!(kept, [1, 2]);
        let mut none = Blackholes::new(0);
        none.note(Instant::ZERO, PEER, PathId(0));
        assert!(none.known.is_empty());
    }
}
