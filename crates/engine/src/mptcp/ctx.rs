//! The context of a call: all that a connection borrows from its stack.

use std::collections::VecDeque;

use braid_wire::{Instant, Rng};
use foldhash::SharedSeed;
use foldhash::fast::SeedableRandomState;
use hashbrown::HashMap;

use super::keys::Keys;
use crate::buffer::Pool;
use crate::path::{Blackholes, Claims, FastOpens, Path, Records};
use crate::stats::{ConnStats, StackStats};
use crate::tcp::FourTuple;
use crate::tcp::numbers::Secret;
use crate::{Config, ConnId, Event, SubflowId};

/// Who a packet belongs to.
#[derive(Debug)]
pub(crate) struct Demux {
    pub tuples: HashMap<FourTuple, (ConnId, SubflowId), SeedableRandomState>,
    /// Tokens of established MPTCP connections (RFC 8684 section 3.2).
    pub tokens: HashMap<u32, ConnId, SeedableRandomState>,
}

impl Demux {
    /// Seeded, so that nobody outside can choose 4-tuples that collide.
    pub fn new(rng: &mut Rng) -> Self {
        let hasher = SeedableRandomState::with_seed(rng.u64(), SharedSeed::global_fixed());
        Demux {
            tuples: HashMap::with_hasher(hasher.clone()),
            tokens: HashMap::with_hasher(hasher),
        }
    }
}

/// What a connection borrows from its stack for the time of a call.
pub(crate) struct Ctx<'a> {
    pub now: Instant,
    pub config: &'a Config,
    pub paths: &'a [Path],
    pub records: &'a mut Records,
    pub claims: &'a mut Claims,
    /// Paths on which only SYNs without MP_CAPABLE are answered.
    pub blackholes: &'a mut Blackholes,
    /// Paths on which SYN/ACKs come without MP_CAPABLE.
    pub stripped: &'a mut Blackholes,
    pub fast_opens: &'a mut FastOpens,
    pub pool: &'a mut Pool,
    pub secret: &'a Secret,
    pub rng: &'a mut Rng,
    pub events: &'a mut VecDeque<Event>,
    pub reports: &'a mut VecDeque<ConnStats>,
    pub stats: &'a mut StackStats,
    pub demux: &'a mut Demux,
    /// Connections that wait for memory to write into.
    pub starved: &'a mut VecDeque<ConnId>,
    pub scratch: &'a mut [u8; 128],
}

impl Ctx<'_> {
    /// Keys whose token is not in use here (RFC 8684 section 3.1).
    // Conforms: 8684-3.1-9, 8684-3.1-10
    pub fn fresh_keys(&mut self) -> Keys {
        loop {
            let keys = Keys::generate(self.rng);
            if !self.demux.tokens.contains_key(&keys.token) {
                return keys;
            }
        }
    }
}
