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

    /// Returns the highest urgency of the data that is currently sent on the path `key`.
    pub fn most_urgent(&self, now: Instant, key: (IpAddr, PathId)) -> Option<Urgency> {
        if self.claims.is_empty() {
            return None;
        }
        let claim = self.claims.get(&key)?;
        let level = claim
            .iter()
            .position(|at| at.is_some_and(|at| at + CLAIM_TIME > now))?;
        Urgency::new(level as u8)
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
        assert_eq!(claims.most_urgent(at(0), KEY), None);
        claims.note(at(100), KEY, Urgency::MOST_URGENT);
        claims.note(at(200), KEY, Urgency::default());
        assert_eq!(claims.most_urgent(at(399), KEY), Some(Urgency::MOST_URGENT));
        assert_eq!(claims.most_urgent(at(400), KEY), Some(Urgency::default()));
        assert_eq!(claims.most_urgent(at(500), KEY), None);
    }

    #[test]
    fn expired_claims_are_replaced() {
        let mut claims = Claims::new(1);
        let other = (KEY.0, PathId(1));
        let at = Instant::from_millis;
        claims.note(at(0), KEY, Urgency::LEAST_URGENT);
        claims.note(at(1), KEY, Urgency::MOST_URGENT);
        claims.note(at(2), other, Urgency::MOST_URGENT);
        assert_eq!(claims.most_urgent(at(2), other), None);
        claims.note(at(1_100), other, Urgency::MOST_URGENT);
        assert_eq!(
            claims.most_urgent(at(1_100), other),
            Some(Urgency::MOST_URGENT)
        );
        assert_eq!(claims.most_urgent(at(1_100), KEY), None);
    }
}
