//! Numbers that an attacker cannot guess and that need no stored state: keyed hashes of a subflow's 4-tuple.

use core::net::IpAddr;

use braid_wire::{Instant, Rng, Seq32};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use super::FourTuple;

/// The time in nanoseconds after which initial sequence numbers grow by one (RFC 9293 section 3.4.1).
const ISN_TICK_NANOS: u64 = 4000;

/// The key of the hashes.
#[derive(Debug)]
pub(crate) struct Secret([u8; 32]);

impl Secret {
    /// Creates a random key.
    pub fn new(rng: &mut Rng) -> Self {
        let mut secret = [0; 32];
        rng.fill(&mut secret);
        Secret(secret)
    }

    /// Returns the hash of `tuple` and `suffix`.
    pub fn hash(&self, tuple: &FourTuple, suffix: &[u8]) -> [u32; 8] {
        // A key of the block length of SHA-256 needs no conversion, which could fail.
        let mut block = [0; 64];
        block[..32].copy_from_slice(&self.0);
        let mut mac = Hmac::<Sha256>::new(&block.into());
        for end in [tuple.local, tuple.remote] {
            match end.ip() {
                IpAddr::V4(a) => mac.update(&a.to_ipv6_mapped().octets()),
                IpAddr::V6(a) => mac.update(&a.octets()),
            }
            mac.update(&end.port().to_be_bytes());
        }
        mac.update(suffix);
        let hash: [u8; 32] = mac.finalize().into_bytes().into();
        core::array::from_fn(|n| u32::from_be_bytes([0, 1, 2, 3].map(|at| hash[4 * n + at])))
    }

    /// Returns the initial sequence number (RFC 6528 section 3) and the first timestamp (RFC 7323 section 7.1) of
    /// a subflow. If a subflow follows another with the same 4-tuple, delayed segments of the earlier subflow have
    /// lower sequence numbers, unless that subflow sent faster than the numbers grow (250 kB/s). The timestamps of
    /// these segments are lower at any speed, so that the segments are never accepted (PAWS, RFC 7323 section
    /// 5.2).
    // Conforms: 8684-3-4, 9293-3.4.1-1
    pub fn first_numbers(&self, now: Instant, tuple: &FourTuple) -> (Seq32, u32) {
        let [iss, timestamp, ..] = self.hash(tuple, &[]);
        (
            Seq32(iss).add((now.as_nanos() / ISN_TICK_NANOS) as u32),
            timestamp,
        )
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::*;

    /// Checks the initial sequence numbers of RFC 6528 section 3.
    // Conforms: 8684-3-4, 9293-3.4.1-1
    #[test]
    fn numbers_grow_by_the_clock_and_differ_between_subflows() {
        let tuple = |port| FourTuple {
            local: ([10, 0, 0, 1], port).into(),
            remote: ([10, 9, 0, 1], 443).into(),
        };
        let now = Instant::from_millis(5);
        let secret = Secret::new(&mut Rng::for_component(1, 1));
        let (iss, timestamp) = secret.first_numbers(now, &tuple(5000));
        let later = secret.first_numbers(now + Duration::from_secs(1), &tuple(5000));
        assert_eq!(later, (iss.add(250_000), timestamp));
        let (elsewhere, other) = secret.first_numbers(now, &tuple(5001));
        assert!(elsewhere != iss && other != timestamp);
        let secret = Secret::new(&mut Rng::for_component(1, 2));
        assert_ne!(secret.first_numbers(now, &tuple(5000)).0, iss);
    }
}
