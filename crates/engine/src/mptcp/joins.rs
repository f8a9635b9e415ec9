//! The state of joins that are authenticated by a secret of the application.
//!
//! The secret is part of the key of every HMAC (`keys`). In addition, the nonce of a SYN proves that its
//! sender has the secret: a listener has few places for subflows, and otherwise anyone who knows the token
//! could occupy all of them by SYNs alone. A nonce consists of 8 bits of the number of the join and 24 bits
//! of an HMAC of the whole number. Each number counts once, so a SYN observed on a link cannot be replayed.

use braid_wire::Rng;
use braid_wire::mptcp::AddAddr;

use super::keys::join_number_hmac;
use crate::{JoinAuth, SubflowId};

/// The most announcements that wait until the application provides the secret; the peer repeats the rest.
const MAX_HELD_ADD_ADDRS: usize = 8;
/// The number of recent join numbers that are still accepted, as SYNs on different links overtake each
/// other.
const JOIN_NUMBER_WINDOW: u64 = u64::BITS as u64;

/// The state of the joins of one connection, in both directions.
#[derive(Debug, Default)]
pub(crate) struct Joins {
    pub auth: JoinAuth,
    /// The number of our next join.
    next: u64,
    seen: SeenNumbers,
    /// ADD_ADDRs of the peer that cannot be verified yet, with the subflows that brought them.
    held: Vec<(SubflowId, AddAddr)>,
}

impl Joins {
    pub fn is_pending(&self) -> bool {
        self.auth == JoinAuth::Pending
    }

    pub fn secret(&self) -> Option<&[u8; 32]> {
        match &self.auth {
            JoinAuth::Secret(secret) => Some(secret),
            JoinAuth::Keys | JoinAuth::Pending => None,
        }
    }

    /// Returns the nonce of our next SYN; `keys` are ours and the peer's.
    pub fn next_nonce(&mut self, keys: (u64, u64), rng: &mut Rng) -> u32 {
        let JoinAuth::Secret(secret) = &self.auth else {
            return rng.u32();
        };
        let number = self.next;
        self.next += 1;
        nonce(keys, secret, number)
    }

    /// Returns whether the peer's nonce `received` proves the secret and was not seen before; `keys` are
    /// the peer's and ours.
    pub fn take_nonce(&mut self, keys: (u64, u64), received: u32) -> bool {
        let JoinAuth::Secret(secret) = &self.auth else {
            return false;
        };
        let number = self.seen.number((received >> 24) as u8);
        nonce(keys, secret, number) == received && self.seen.note(number)
    }

    /// Keeps an announcement that cannot be verified yet.
    pub fn hold(&mut self, subflow: SubflowId, add: AddAddr) {
        let held = (subflow, add);
        if self.held.len() < MAX_HELD_ADD_ADDRS && !self.held.contains(&held) {
            self.held.push(held);
        }
    }

    pub fn take_held(&mut self) -> Vec<(SubflowId, AddAddr)> {
        core::mem::take(&mut self.held)
    }
}

fn nonce(keys: (u64, u64), secret: &[u8; 32], number: u64) -> u32 {
    let [a, b, c, ..] = join_number_hmac(keys, secret, number);
    u32::from_be_bytes([number as u8, a, b, c])
}

/// The numbers that were seen: a sliding window (RFC 4303 section 3.4.3).
#[derive(Debug, Default)]
struct SeenNumbers {
    /// One more than the highest.
    next: u64,
    /// Bit n is set where `next - 1 - n` was seen.
    before: u64,
}

impl SeenNumbers {
    /// Returns the only acceptable number with these low 8 bits.
    fn number(&self, low: u8) -> u64 {
        let first = self.next.saturating_sub(JOIN_NUMBER_WINDOW);
        first + u64::from(low.wrapping_sub(first as u8))
    }

    /// Notes a number returned by [`number`](Self::number). Returns whether it is seen for the first time.
    fn note(&mut self, number: u64) -> bool {
        if number >= self.next {
            let by = number - self.next + 1;
            let moved = u32::try_from(by).ok();
            let moved = moved.and_then(|by| self.before.checked_shl(by));
            self.before = moved.unwrap_or(0) | 1;
            self.next = number + 1;
            return true;
        }
        let bit = 1 << (self.next - 1 - number);
        let fresh = self.before & bit == 0;
        self.before |= bit;
        fresh
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEYS: (u64, u64) = (1, 2);

    fn with(secret: u8) -> Joins {
        Joins {
            auth: JoinAuth::Secret([secret; 32]),
            ..Joins::default()
        }
    }

    fn nonces(joins: &mut Joins, count: usize) -> Vec<u32> {
        let mut rng = Rng::for_component(1, 1);
        let nonces = (0..count).map(|_| joins.next_nonce(KEYS, &mut rng));
        nonces.collect()
    }

    #[test]
    fn a_nonce_counts_once() {
        let (mut ours, mut theirs) = (with(7), with(7));
        for nonce in nonces(&mut ours, 2_000) {
            assert!(theirs.take_nonce(KEYS, nonce));
            assert!(!theirs.take_nonce(KEYS, nonce));
        }
    }

    #[test]
    fn nonces_may_overtake_each_other_and_be_lost() {
        let all = nonces(&mut with(7), 700);
        let mut theirs = with(7);
        let overtaken: Vec<u32> = all[..64].iter().rev().copied().collect();
        assert!(overtaken.iter().all(|n| theirs.take_nonce(KEYS, *n)));
        assert!(!overtaken.iter().any(|n| theirs.take_nonce(KEYS, *n)));
        // As many nonces as may be lost in a row.
        assert!(theirs.take_nonce(KEYS, all[63 + 192]));
        assert!(!theirs.take_nonce(KEYS, all[63 + 192 - 64]), "too old");
        assert!(theirs.take_nonce(KEYS, all[63 + 192 - 63]));
    }

    #[test]
    fn a_nonce_of_another_secret_or_direction_does_not_count() {
        let all = nonces(&mut with(7), 200);
        let (mut other, mut back) = (with(8), with(7));
        let counted = all.iter().filter(|n| other.take_nonce(KEYS, **n)).count();
        assert_eq!(counted, 0);
        let reflected = all.iter().filter(|n| back.take_nonce((2, 1), **n)).count();
        assert_eq!(reflected, 0);
    }
}
