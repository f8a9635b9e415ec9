//! The state of joins that are authenticated by a secret of the application.
//!
//! The secret is part of the key of every HMAC (`keys`). In addition, the nonce of a SYN proves that its
//! sender has the secret. A listener has few places for subflows of a connection, and without this proof
//! anyone who knows the token could occupy all of them by SYNs alone.
//!
//! Each end numbers its joins from 0. The nonce of a join consists of the 8 low bits of its number, and the
//! first 24 bits of an HMAC of the full number. The receiver accepts each number once, so an observed SYN
//! cannot be replayed.
//!
//! RFC 8684 section 3.2 wants a random nonce, so that no observed third ACK can be replayed. This nonce serves
//! that purpose: the number never repeats within a connection, and only the holders of the secret can predict
//! the HMAC. 24 bits are enough although one guess in 2^24 succeeds: a guess wins a half-open subflow only,
//! because data needs the third ACK, whose HMAC has 160 bits.

use braid_wire::Rng;
use braid_wire::mptcp::AddAddr;

use super::keys::join_number_hmac;
use crate::{JoinAuth, SubflowId};

/// The maximum number of announcements kept until the application provides the secret. Further ones are
/// dropped, and come again, because a peer repeats ADD_ADDR until it is echoed. The value is a guess: the
/// default maximum of subflows, since no more addresses could be used at once.
const MAX_HELD_ADD_ADDRS: usize = 8;
/// The number of join numbers below the next one that are still accepted. Older numbers have to be accepted,
/// because SYNs on different links overtake each other. [`SeenNumbers`] keeps one bit of a word for each number.
const JOIN_NUMBER_WINDOW: u64 = u64::BITS as u64;

/// The state of the joins of one connection, in both directions.
#[derive(Debug, Default)]
pub(crate) struct Joins {
    pub auth: JoinAuth,
    /// The number of our next join.
    next: u64,
    /// The numbers of the peer's joins.
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

    /// Returns whether the peer's nonce `received` proves the secret and was not accepted before; `keys` are
    /// the peer's and ours.
    pub fn take_nonce(&mut self, keys: (u64, u64), received: u32) -> bool {
        let JoinAuth::Secret(secret) = &self.auth else {
            return false;
        };
        let number = self.seen.number((received >> 24) as u8);
        nonce(keys, secret, number) == received && self.seen.note(number)
    }

    /// Keeps an announcement until it can be verified.
    pub fn hold(&mut self, subflow: SubflowId, add: AddAddr) {
        let held = (subflow, add);
        if self.held.len() < MAX_HELD_ADD_ADDRS && !self.held.contains(&held) {
            self.held.push(held);
        }
    }

    /// Returns the kept announcements, which can be verified now.
    pub fn take_held(&mut self) -> Vec<(SubflowId, AddAddr)> {
        core::mem::take(&mut self.held)
    }
}

/// Returns the nonce of the join `number`; `keys` are the keys of the sender and of the receiver of its SYN.
fn nonce(keys: (u64, u64), secret: &[u8; 32], number: u64) -> u32 {
    let [a, b, c, ..] = join_number_hmac(keys, secret, number);
    u32::from_be_bytes([number as u8, a, b, c])
}

/// The accepted numbers, in a sliding window like the anti-replay window of IPsec (RFC 4303 section 3.4.3).
#[derive(Debug, Default)]
struct SeenNumbers {
    /// One more than the highest accepted number.
    next: u64,
    /// Bit n is set if the number `next - 1 - n` was accepted.
    accepted: u64,
}

impl SeenNumbers {
    /// Returns the only number with these low 8 bits that may be accepted. A nonce has only 8 bits of its
    /// number, so 256 consecutive numbers can be told apart: the last [`JOIN_NUMBER_WINDOW`] (64), in case SYNs
    /// were overtaken, and the next 192, in case SYNs were lost.
    fn number(&self, low: u8) -> u64 {
        let first = self.next.saturating_sub(JOIN_NUMBER_WINDOW);
        first + u64::from(low.wrapping_sub(first as u8))
    }

    /// Accepts a number that [`number`](Self::number) returned. Returns whether it was not accepted before.
    fn note(&mut self, number: u64) -> bool {
        if number >= self.next {
            let advance = number - self.next + 1;
            let shifted = u32::try_from(advance).ok();
            // A shift by 64 or more leaves no earlier number in the window.
            let shifted = shifted.and_then(|advance| self.accepted.checked_shl(advance));
            self.accepted = shifted.unwrap_or(0) | 1;
            self.next = number + 1;
            return true;
        }
        let bit = 1 << (self.next - 1 - number);
        let is_new = self.accepted & bit == 0;
        self.accepted |= bit;
        is_new
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
        // Number 63 was accepted, so numbers up to 63 + 192 are acceptable: 191 in a row may be lost.
        assert!(theirs.take_nonce(KEYS, all[63 + 192]));
        // Of the last 64 numbers, the highest is accepted and the lowest is 63 below it.
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
