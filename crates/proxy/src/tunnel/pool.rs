//! The addresses of boxes in the tunnel of a server.

use std::collections::{BTreeMap, VecDeque};

use braid_secure::keys::PublicKey;

use crate::config::TunnelPools;
use crate::protocol::tunnel::{BoxId, hash};

/// Maximum number of boxes whose place is kept while they have no session. A guess: far more than the boxes of a
/// server.
const MAX_KEPT: usize = 8_192;

/// The owner of a place: a box of a user.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Owner {
    /// The user's key.
    pub key: PublicKey,
    /// The user's box.
    pub boxed: BoxId,
}

/// The places of a pool, each with an IPv4 and an IPv6 address. A box gets the same place each time: a hash of the
/// owner says which, also after a restart of the server, and the next free one where another box has that place
/// already.
#[derive(Debug)]
pub(super) struct Places {
    count: u32,
    by_owner: BTreeMap<Owner, u32>,
    by_place: BTreeMap<u32, Owner>,
    /// Owners without a session whose place is kept, the longest without one first.
    kept: VecDeque<Owner>,
}

impl Places {
    pub(super) fn new(pools: &TunnelPools) -> Self {
        Places {
            count: pools.places(),
            by_owner: BTreeMap::new(),
            by_place: BTreeMap::new(),
            kept: VecDeque::new(),
        }
    }

    /// Takes the place of an owner for a session. Returns `None` if sessions have all places.
    pub(super) fn take(&mut self, owner: Owner) -> Option<u32> {
        self.kept.retain(|kept| *kept != owner);
        if let Some(place) = self.by_owner.get(&owner) {
            return Some(*place);
        }
        if self.by_place.len() >= self.count as usize {
            self.forget_oldest()?;
        }
        let preferred = self.preferred(&owner);
        let all = (preferred..self.count).chain(0..preferred);
        let place = all.into_iter().find(|n| !self.by_place.contains_key(n))?;
        self.by_owner.insert(owner, place);
        self.by_place.insert(place, owner);
        Some(place)
    }

    /// Notes that the session of an owner has ended. Its place is kept as long as there is room.
    pub(super) fn release(&mut self, owner: Owner) {
        if !self.by_owner.contains_key(&owner) || self.kept.contains(&owner) {
            return;
        }
        self.kept.push_back(owner);
        if self.kept.len() > MAX_KEPT {
            self.forget_oldest();
        }
    }

    fn forget_oldest(&mut self) -> Option<()> {
        let oldest = self.kept.pop_front()?;
        let place = self.by_owner.remove(&oldest)?;
        self.by_place.remove(&place);
        Some(())
    }

    fn preferred(&self, owner: &Owner) -> u32 {
        let mut bytes = owner.key.as_bytes().to_vec();
        bytes.extend(owner.boxed.0);
        (hash(&bytes) % u64::from(self.count)) as u32
    }
}

#[cfg(test)]
mod tests {
    use braid_secure::keys::PrivateKey;

    use super::*;

    fn owner(n: u8) -> Owner {
        Owner {
            key: PrivateKey::from_seed([n; 32]).public(),
            boxed: BoxId([n; 8]),
        }
    }

    fn places() -> Places {
        Places::new(&TunnelPools {
            v4: "10.215.128.0/24".parse().unwrap(),
            v6: "fdb7:a1d0:80::/64".parse().unwrap(),
        })
    }

    #[test]
    fn a_box_has_the_same_place_each_time_and_no_two_have_one() {
        let (mut first, mut second) = (places(), places());
        let taken: Vec<_> = (0..=252).map(|n| first.take(owner(n)).unwrap()).collect();
        let mut distinct = taken.clone();
        distinct.sort_unstable();
        assert_eq!(distinct, (0..253).collect::<Vec<_>>());
        assert_eq!(first.take(owner(253)), None, "all have sessions");
        assert_eq!(first.take(owner(7)), Some(taken[7]), "a further session");
        assert_eq!(second.take(owner(0)), Some(taken[0]), "after a restart");
        // A place without a session is kept until another box needs it.
        first.release(owner(7));
        assert_eq!(first.take(owner(7)), Some(taken[7]));
        first.release(owner(9));
        first.release(owner(7));
        assert_eq!(first.take(owner(253)), Some(taken[9]), "the oldest");
        assert_eq!(first.take(owner(7)), Some(taken[7]));
    }
}
