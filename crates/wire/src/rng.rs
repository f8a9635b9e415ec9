//! The seeded generator every component draws from.

use rand_chacha::ChaCha8Rng;
use rand_core::{Rng as _, SeedableRng};

/// A deterministic, cryptographically strong stream of random numbers.
///
/// Strong because the engine draws MPTCP keys and nonces from it (RFC 8684 section 3.1 wants keys
/// hard to guess); seeded because a run must be repeatable. A driver on a real network seeds it
/// from the operating system, the simulator from (seed, component id).
#[derive(Debug, Clone)]
pub struct Rng(ChaCha8Rng);

impl Rng {
    /// The stream of `seed`.
    pub fn from_seed(seed: [u8; 32]) -> Self {
        Rng(ChaCha8Rng::from_seed(seed))
    }

    /// The stream of component `id` under `seed`; streams of different ids are independent.
    pub fn for_component(seed: u64, id: u64) -> Self {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&seed.to_le_bytes());
        bytes[8..16].copy_from_slice(&id.to_le_bytes());
        Rng::from_seed(bytes)
    }

    /// 32 random bits.
    pub fn u32(&mut self) -> u32 {
        self.0.next_u32()
    }

    /// 64 random bits.
    pub fn u64(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Uniform in `[0, 1)`.
    pub fn unit(&mut self) -> f64 {
        (self.u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Uniform in `0..n`; 0 if `n` is 0.
    pub fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.u64()) * u128::from(n)) >> 64) as u64
    }

    /// True with probability `p`; no draw is made where `p` is 0 or below.
    pub fn chance(&mut self, p: f64) -> bool {
        p > 0.0 && self.unit() < p
    }

    /// Fills `out` with random bytes.
    pub fn fill(&mut self, out: &mut [u8]) {
        self.0.fill_bytes(out);
    }
}
