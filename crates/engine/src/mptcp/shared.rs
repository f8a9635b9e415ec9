//! The state that all connections of a stack share.

use core::net::SocketAddr;
use std::collections::{BTreeMap, VecDeque};

use braid_wire::Rng;
use foldhash::SharedSeed;
use foldhash::fast::SeedableRandomState;
use hashbrown::HashMap;

use super::keys::Keys;
use super::share::Share;
use crate::buffer::Pool;
use crate::path::{Blackholes, Claims, FastOpens, Loads, Path, Records};
use crate::stats::{ConnStats, StackStats};
use crate::tcp::FourTuple;
use crate::tcp::numbers::Secret;
use crate::{ApiError, Config, ConnId, Event, PathId, SubflowId};

/// The tables that map packets to connections.
#[derive(Debug)]
pub(crate) struct Demux {
    pub tuples: HashMap<FourTuple, (ConnId, SubflowId), SeedableRandomState>,
    /// The tokens of established MPTCP connections (RFC 8684 section 3.2).
    pub tokens: HashMap<u32, ConnId, SeedableRandomState>,
}

impl Demux {
    /// Creates the tables with a seeded `hasher`, so that no peer can choose 4-tuples or tokens that collide.
    fn new(hasher: SeedableRandomState) -> Self {
        Demux {
            tuples: HashMap::with_hasher(hasher.clone()),
            tokens: HashMap::with_hasher(hasher),
        }
    }
}

/// The state that all connections of a stack share; each call into a connection borrows it.
pub(crate) struct Shared {
    pub config: Config,
    pub paths: Vec<Path>,
    pub records: Records,
    pub claims: Claims,
    pub loads: Loads,
    /// The paths on which only SYNs without MP_CAPABLE are answered.
    pub blackholes: Blackholes,
    /// The paths on which SYN/ACKs have no MP_CAPABLE.
    pub stripped: Blackholes,
    pub fast_opens: FastOpens,
    pub pool: Pool,
    pub secret: Secret,
    pub rng: Rng,
    pub events: VecDeque<Event>,
    /// A report for each [`Event::Closed`] in `events`, in the same order.
    pub reports: VecDeque<ConnStats>,
    pub stats: StackStats,
    pub demux: Demux,
    /// The connections whose writes found the pool exhausted, first come first served.
    pub waiting_for_pool: VecDeque<ConnId>,
    /// The connections whose writes found the quota of their group exhausted. The key is the group and the
    /// place in its queue; lower places are served first.
    pub waiting_for_quota: BTreeMap<(u32, u64), ConnId>,
    /// The place of the next connection in `waiting_for_quota`, for all groups.
    next_quota_place: u64,
    /// The headers of the packet that is being sent: at most 40 bytes of IPv6 and 60 of TCP.
    pub scratch: [u8; 128],
}

impl Shared {
    pub fn new(config: Config, mut rng: Rng) -> Self {
        let hasher = SeedableRandomState::with_seed(rng.u64(), SharedSeed::global_fixed());
        Shared {
            pool: Pool::new(config.memory),
            records: Records::new(config.max_records),
            claims: Claims::new(config.max_records),
            blackholes: Blackholes::new(config.max_records),
            stripped: Blackholes::new(config.max_records),
            fast_opens: FastOpens::new(config.max_records),
            config,
            paths: Vec::new(),
            demux: Demux::new(hasher.clone()),
            loads: Loads::new(hasher),
            secret: Secret::new(&mut rng),
            rng,
            events: VecDeque::new(),
            reports: VecDeque::new(),
            stats: StackStats::default(),
            waiting_for_pool: VecDeque::new(),
            waiting_for_quota: BTreeMap::new(),
            next_quota_place: 0,
            scratch: [0; 128],
        }
    }

    pub fn path(&self, id: PathId) -> Option<&Path> {
        self.paths.get(usize::from(id.0))
    }

    /// Returns whether the link of path `id` is down, or the path does not exist.
    pub fn is_down(&self, id: PathId) -> bool {
        self.path(id).is_none_or(|path| !path.up)
    }

    /// Returns keys whose token is not in use here (RFC 8684 section 3.1).
    // Conforms: 8684-3.1-9, 8684-3.1-10
    pub fn fresh_keys(&mut self) -> Keys {
        loop {
            let keys = Keys::generate(&mut self.rng);
            if !self.demux.tokens.contains_key(&keys.token) {
                return keys;
            }
        }
    }

    /// Returns a 4-tuple that is not in use, with a random port if `local` names none.
    pub fn free_tuple(
        &mut self,
        local: SocketAddr,
        remote: SocketAddr,
    ) -> Result<FourTuple, ApiError> {
        if local.port() != 0 {
            let tuple = FourTuple { local, remote };
            return match self.demux.tuples.contains_key(&tuple) {
                true => Err(ApiError::AddressInUse),
                false => Ok(tuple),
            };
        }
        let (first, last) = (*self.config.ports.start(), *self.config.ports.end());
        let count = u64::from(last.saturating_sub(first)) + 1;
        // The random choice makes ports hard to guess (RFC 6056). 64 tries are a guess: even with nine of ten
        // ports taken, all of them fail only once in a thousand.
        (0..64)
            .map(|_| FourTuple {
                local: SocketAddr::new(local.ip(), first + self.rng.below(count) as u16),
                remote,
            })
            .find(|t| !self.demux.tuples.contains_key(t))
            .ok_or(ApiError::LimitReached)
    }

    /// Queues connection `id` for memory, unless it is queued already. It waits for the quota of its group if
    /// the group is over its quota, and otherwise for the pool.
    pub fn wait_for_memory(&mut self, id: ConnId, share: &mut Share) {
        if share.waiting_for_pool || share.waiting_for_quota.is_some() {
            return;
        }
        match share.group.filter(|_| share.is_over_quota(&self.pool)) {
            Some(group) => {
                self.waiting_for_quota
                    .insert((group, self.next_quota_place), id);
                share.waiting_for_quota = Some(self.next_quota_place);
                self.next_quota_place += 1;
            }
            None => {
                share.waiting_for_pool = true;
                self.waiting_for_pool.push_back(id);
            }
        }
    }

    /// Takes connection `id` out of the queue for the pool, if it is there.
    pub fn leave_pool_queue(&mut self, id: ConnId, share: &mut Share) {
        if core::mem::take(&mut share.waiting_for_pool) {
            self.waiting_for_pool.retain(|waiting| *waiting != id);
        }
    }

    /// Takes the connection of `share` out of the queue for its group's quota, if it is there.
    pub fn leave_quota_queue(&mut self, share: &mut Share) {
        if let (Some(group), Some(place)) = (share.group, share.waiting_for_quota.take()) {
            self.waiting_for_quota.remove(&(group, place));
        }
    }
}
