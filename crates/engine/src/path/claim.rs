//! The paths to peers that carry urgent data at present. Less urgent connections keep the queues of these paths
//! short.

use core::net::IpAddr;
use core::time::Duration;
use std::collections::BTreeMap;

use braid_wire::Instant;

use crate::{PathId, Urgency};

/// The time for which an urgency counts as present after its last data was sent. The value is a guess: most round
/// trips are shorter, and so are the pauses of interactive traffic such as calls.
const CLAIM_TIME: Duration = Duration::from_millis(300);
/// A full table forgets this part of its entries at once (1/16). Finding the oldest entries means reading the whole
/// table. This must be rare even if data goes to more peers in turn than the table holds. The value is a guess.
const FORGOTTEN_PART: usize = 16;

/// The time at which data of each urgency was last sent on a path.
type SentAt = [Option<Instant>; Urgency::COUNT];

/// The claims of a path.
#[derive(Debug, Default)]
struct Claimed {
    sent_at: SentAt,
    /// An urgency of which data may come, and the time from which it counts like data that was sent.
    held: Option<(Urgency, Instant)>,
}

/// The use of a path by the data of all connections.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Claim {
    /// The highest urgency of the data that is currently sent.
    pub most_urgent: Option<Urgency>,
    /// The time at which data more urgent than background data was last sent.
    pub foreground_at: Option<Instant>,
}

/// The time at which data of each urgency was last sent, by the peer's address and the local path.
#[derive(Debug, Default)]
pub(crate) struct Claims {
    claims: BTreeMap<(IpAddr, PathId), Claimed>,
    max_len: usize,
    /// The set of urgencies ever used, as bits. If all data has the same urgency, no connection has to give way,
    /// so nothing is recorded.
    urgencies: u8,
}

impl Claims {
    /// Creates a table for at most `max_len` paths to peers. If the table is full, further paths replace those with
    /// background data only, and then those whose last foreground data is oldest. Background data replaces nothing,
    /// because no data gives way to it.
    pub fn new(max_len: usize) -> Self {
        Claims {
            max_len,
            ..Claims::default()
        }
    }

    /// Notes that data of `urgency` is sent now.
    pub fn note(&mut self, now: Instant, key: (IpAddr, PathId), urgency: Urgency) {
        self.urgencies |= 1 << urgency.index();
        if self.urgencies.is_power_of_two() {
            return;
        }
        if self.claims.len() >= self.max_len && !self.claims.contains_key(&key) {
            if urgency == Urgency::LEAST_URGENT {
                return;
            }
            self.forget_oldest();
        }
        let sent_at = &mut self.claims.entry(key).or_default().sent_at[urgency.index()];
        *sent_at = (*sent_at).max(Some(now));
    }

    /// Notes that data of `urgency` may come. Only paths on which data was sent hold an urgency.
    pub fn hold(&mut self, now: Instant, key: (IpAddr, PathId), urgency: Urgency) {
        if let Some(claimed) = self.claims.get_mut(&key) {
            claimed.held = Some((urgency, now));
        }
    }

    /// Removes the oldest claims. Claims without foreground data come first: `None` is less than any time.
    fn forget_oldest(&mut self) {
        let claims = self.claims.iter();
        let mut by_age: Vec<_> = claims
            .map(|(key, claim)| {
                let sent_at = &claim.sent_at;
                (foreground_at(sent_at), sent_at.iter().flatten().max(), *key)
            })
            .collect();
        by_age.sort_unstable();
        let forgotten = (self.max_len / FORGOTTEN_PART).max(1);
        let keys: Vec<_> = by_age
            .iter()
            .take(forgotten)
            .map(|(.., key)| *key)
            .collect();
        for key in keys {
            self.claims.remove(&key);
        }
    }

    /// Returns the present use of the path `key`.
    pub fn of(&self, now: Instant, key: (IpAddr, PathId)) -> Claim {
        if self.claims.is_empty() {
            return Claim::default();
        }
        let Some(claim) = self.claims.get(&key) else {
            return Claim::default();
        };
        let is_present = |at: &Instant| *at + CLAIM_TIME > now;
        let mut sent_at = claim.sent_at.iter();
        let level = sent_at.position(|at| at.as_ref().is_some_and(is_present));
        let sent = level.and_then(|level| Urgency::new(level as u8));
        let held = claim.held.filter(|(_, at)| is_present(at));
        Claim {
            most_urgent: sent.into_iter().chain(held.map(|(held, _)| held)).min(),
            foreground_at: foreground_at(&claim.sent_at),
        }
    }
}

/// Returns the time at which data more urgent than background data was last sent.
fn foreground_at(sent_at: &SentAt) -> Option<Instant> {
    let foreground = &sent_at[..Urgency::LEAST_URGENT.index()];
    foreground.iter().flatten().max().copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: (IpAddr, PathId) = (
        IpAddr::V4(core::net::Ipv4Addr::new(192, 0, 2, 1)),
        PathId(0),
    );

    #[test]
    fn a_claim_lasts_and_the_most_urgent_counts() {
        let mut claims = Claims::new(8);
        let at = Instant::from_millis;
        claims.note(at(0), KEY, Urgency::default());
        // A single urgency claims nothing.
        assert_eq!(claims.of(at(0), KEY).most_urgent, None);
        claims.note(at(100), KEY, Urgency::MOST_URGENT);
        claims.note(at(200), KEY, Urgency::default());
        assert_eq!(
            claims.of(at(399), KEY).most_urgent,
            Some(Urgency::MOST_URGENT)
        );
        assert_eq!(
            claims.of(at(400), KEY).most_urgent,
            Some(Urgency::default())
        );
        assert_eq!(claims.of(at(500), KEY).most_urgent, None);
        assert_eq!(claims.of(at(500), KEY).foreground_at, Some(at(200)));
        claims.note(at(600), KEY, Urgency::LEAST_URGENT);
        assert_eq!(claims.of(at(600), KEY).foreground_at, Some(at(200)));
    }

    #[test]
    fn a_held_urgency_counts_but_was_not_sent() {
        let mut claims = Claims::new(8);
        let at = Instant::from_millis;
        claims.hold(at(0), KEY, Urgency::MOST_URGENT);
        assert_eq!(claims.of(at(0), KEY), Claim::default());
        claims.note(at(0), KEY, Urgency::default());
        claims.note(at(0), KEY, Urgency::MOST_URGENT);
        claims.hold(at(2_000), KEY, Urgency::MOST_URGENT);
        // A note of the past does not undo a later one.
        claims.note(at(1_000), KEY, Urgency::default());
        claims.note(at(500), KEY, Urgency::default());
        let claim = |most_urgent| Claim {
            most_urgent,
            foreground_at: Some(at(1_000)),
        };
        let held = claim(Some(Urgency::MOST_URGENT));
        assert_eq!(claims.of(at(2_299), KEY), held);
        assert_eq!(claims.of(at(2_300), KEY), claim(None));
    }

    /// A path's foreground mark counts for longer than its claim, so it outlives the claim in a full table too.
    #[test]
    fn a_full_table_forgets_background_first_and_then_the_oldest_foreground() {
        let mut claims = Claims::new(3);
        let at = Instant::from_millis;
        let key = |path| (KEY.0, PathId(path));
        let marks = |claims: &Claims, now| {
            [0, 1, 2, 3, 4].map(|path| claims.of(at(now), key(path)).foreground_at)
        };
        claims.note(at(0), key(0), Urgency::MOST_URGENT);
        claims.note(at(1), key(0), Urgency::default());
        claims.note(at(2), key(1), Urgency::MOST_URGENT);
        claims.note(at(3), key(2), Urgency::LEAST_URGENT);
        // Background data on a further path claims nothing, so it displaces nothing.
        claims.note(at(1_000), key(3), Urgency::LEAST_URGENT);
        assert_eq!(claims.of(at(1_000), key(3)), Claim::default());
        // The latest mark is the background data's, and it still goes first.
        claims.note(at(1_001), key(2), Urgency::LEAST_URGENT);
        claims.note(at(1_002), key(3), Urgency::default());
        assert_eq!(claims.of(at(1_002), key(2)), Claim::default());
        let foreground = [Some(at(1)), Some(at(2)), None, Some(at(1_002)), None];
        assert_eq!(marks(&claims, 1_002), foreground);
        claims.note(at(1_003), key(4), Urgency::MOST_URGENT);
        let foreground = [None, Some(at(2)), None, Some(at(1_002)), Some(at(1_003))];
        assert_eq!(marks(&claims, 1_003), foreground);
        assert_eq!(claims.claims.len(), 3);
    }

    #[test]
    fn the_search_for_the_oldest_claims_makes_room_for_several() {
        let mut claims = Claims::new(32);
        let key = |path| (KEY.0, PathId(path));
        claims.note(Instant::ZERO, key(0), Urgency::LEAST_URGENT);
        for path in 0..=32 {
            let now = Instant::from_millis(path.into());
            claims.note(now, key(path), Urgency::MOST_URGENT);
        }
        let remembered: Vec<_> = claims.claims.keys().copied().collect();
        assert_eq!(remembered, (2..=32).map(key).collect::<Vec<_>>());
    }
}
