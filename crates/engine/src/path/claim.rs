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
    claims: BTreeMap<(IpAddr, PathId), [Option<Instant>; Urgency::COUNT]>,
    max_len: usize,
    /// The set of urgencies ever used, as bits. If all data has the same urgency, no connection has to give way,
    /// so nothing is recorded.
    urgencies: u8,
}

impl Claims {
    /// Creates a table for at most `max_len` paths to peers. If the table is full of present claims, urgent data
    /// on further paths is not recorded.
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
            let last_sent =
                |claim: &[Option<Instant>; Urgency::COUNT]| claim.iter().flatten().max().copied();
            self.claims
                .retain(|_, c| last_sent(c).is_some_and(|at| at + CLAIM_TIME > now));
            if self.claims.len() >= self.max_len {
                return;
            }
        }
        self.claims.entry(key).or_default()[urgency.index()] = Some(now);
    }

    /// Returns what is known of the data that is sent on the path `key`.
    pub fn of(&self, now: Instant, key: (IpAddr, PathId)) -> Claim {
        if self.claims.is_empty() {
            return Claim::default();
        }
        let Some(claim) = self.claims.get(&key) else {
            return Claim::default();
        };
        let is_present = |at: &Option<Instant>| at.is_some_and(|at| at + CLAIM_TIME > now);
        let level = claim.iter().position(is_present);
        let foreground = &claim[..Urgency::LEAST_URGENT.index()];
        Claim {
            most_urgent: level.and_then(|level| Urgency::new(level as u8)),
            foreground_at: foreground.iter().flatten().max().copied(),
        }
    }
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
    fn expired_claims_are_replaced() {
        let mut claims = Claims::new(1);
        let other = (KEY.0, PathId(1));
        let at = Instant::from_millis;
        claims.note(at(0), KEY, Urgency::LEAST_URGENT);
        claims.note(at(1), KEY, Urgency::MOST_URGENT);
        claims.note(at(2), other, Urgency::MOST_URGENT);
        assert_eq!(claims.of(at(2), other).most_urgent, None);
        claims.note(at(1_100), other, Urgency::MOST_URGENT);
        assert_eq!(
            claims.of(at(1_100), other).most_urgent,
            Some(Urgency::MOST_URGENT)
        );
        assert_eq!(claims.of(at(1_100), KEY).most_urgent, None);
    }
}
