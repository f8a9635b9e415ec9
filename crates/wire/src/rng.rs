//! The seeded random generator that all components use.

use rand_chacha::ChaCha8Rng;
use rand_core::{Rng as _, SeedableRng};

/// A deterministic, cryptographically strong stream of random numbers.
///
/// The stream is strong because the engine draws MPTCP keys and nonces from it. These must be hard to guess (RFC
/// 8684 section 3.1). ChaCha with 8 rounds is the fastest variant without a known attack. The stream is seeded so
/// that simulated runs are repeatable. A driver on a real network takes the seed from the operating system. The
/// simulator derives the seed from the seed of the run and the id of the component.
///
/// ```
/// use braid_wire::Rng;
///
/// let mut rng = Rng::from_seed([7; 32]);
/// let die = 1 + rng.below(6);
/// assert!((1..=6).contains(&die));
/// // The same seed repeats the run.
/// assert_eq!(1 + Rng::from_seed([7; 32]).below(6), die);
/// ```
#[derive(Debug, Clone)]
pub struct Rng(ChaCha8Rng);

impl Rng {
    /// Creates a generator with the stream of `seed`.
    pub fn from_seed(seed: [u8; 32]) -> Self {
        Rng(ChaCha8Rng::from_seed(seed))
    }

    /// Creates the generator of the component `id` in a run with the seed `seed`. Streams of different ids are
    /// independent.
    pub fn for_component(seed: u64, id: u64) -> Self {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&seed.to_le_bytes());
        bytes[8..16].copy_from_slice(&id.to_le_bytes());
        Rng::from_seed(bytes)
    }

    /// Returns 32 random bits.
    pub fn u32(&mut self) -> u32 {
        self.0.next_u32()
    }

    /// Returns 64 random bits.
    pub fn u64(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Returns a uniform number in `[0, 1)`.
    pub fn unit(&mut self) -> f64 {
        // The mantissa of an `f64` holds 53 bits.
        (self.u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Returns a uniform number in `0..n`, or 0 if `n` is 0.
    pub fn below(&mut self, n: u64) -> u64 {
        // The high half of the product is below n, with a bias of less than n / 2^64. Rejection sampling would
        // avoid the bias, but would take a varying number of draws; with one draw per call, later draws do not
        // depend on `n`.
        ((u128::from(self.u64()) * u128::from(n)) >> 64) as u64
    }

    /// Returns true with probability `p`. Makes no draw if `p` is 0 or below, so that a disabled feature does not
    /// change the later numbers of a run.
    pub fn chance(&mut self, p: f64) -> bool {
        p > 0.0 && self.unit() < p
    }

    /// Fills `out` with random bytes.
    pub fn fill(&mut self, out: &mut [u8]) {
        self.0.fill_bytes(out);
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    fn draws(rng: &mut Rng) -> Vec<u64> {
        (0..100).map(|_| rng.u64()).collect()
    }

    /// A seed found in an old log must still replay the run, so these numbers must never change.
    #[test]
    fn the_stream_of_a_seed_never_changes() {
        let mut rng = Rng::for_component(1, 2);
        assert_eq!(
            [rng.u64(), rng.u64()],
            [6082804599785255738, 5100844500663306037]
        );
        assert_eq!(rng.u32(), 2946921500);
    }

    #[test]
    fn streams_are_repeatable_and_differ_by_seed_and_component() {
        let stream = |seed, id| draws(&mut Rng::for_component(seed, id));
        assert_eq!(stream(1, 2), stream(1, 2));
        assert_ne!(stream(1, 2), stream(2, 1));
        assert_ne!(stream(1, 2), stream(1, 3));
        let mut forked = Rng::for_component(1, 2);
        assert_eq!(draws(&mut forked.clone()), draws(&mut forked));
    }

    #[test]
    fn draws_are_in_range_and_spread() {
        let mut rng = Rng::for_component(7, 7);
        let units: Vec<f64> = (0..4000).map(|_| rng.unit()).collect();
        assert!(units.iter().all(|u| (0.0..1.0).contains(u)));
        // The mean of 4000 uniform draws has a standard deviation of 0.0046; the bound is 5 of them.
        let mean = units.iter().sum::<f64>() / 4000.0;
        assert!((mean - 0.5).abs() < 0.025, "{mean}");
        let mut counts = [0; 10];
        for _ in 0..4000 {
            counts[rng.below(10) as usize] += 1;
        }
        // 400 on average with a standard deviation of 19 (the root of 4000 * 0.1 * 0.9); the bounds are 5 of them
        // away.
        assert!(counts.iter().all(|c| (300..500).contains(c)), "{counts:?}");
        assert_eq!(rng.below(0), 0);
        assert_eq!(rng.below(1), 0);
    }

    #[test]
    fn chance_without_a_chance_draws_nothing() {
        let mut rng = Rng::for_component(3, 3);
        let before = rng.clone();
        assert!(!rng.chance(0.0) && !rng.chance(-1.0));
        assert_eq!(draws(&mut rng.clone()), draws(&mut before.clone()));
        assert!(rng.chance(1.0));
        let hits = (0..4000).filter(|_| rng.chance(0.25)).count();
        // 1000 on average with a standard deviation of 27; the bounds are 5.5 of them away.
        assert!((850..1150).contains(&hits), "{hits}");
    }

    #[test]
    fn fill_takes_bytes_of_the_stream() {
        let (mut a, mut b) = (Rng::for_component(4, 4), Rng::for_component(4, 4));
        let mut filled = [0; 8];
        a.fill(&mut filled);
        assert_eq!(u64::from_le_bytes(filled), b.u64());
    }
}
