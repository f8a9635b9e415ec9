//! Memory of used passwords.

use std::collections::BTreeSet;

use super::AuthError;

/// Nonces that were used and could still be accepted, in order of expiry. Bounded: when it is
/// full, the newcomer is refused; forgetting another instead would let that one be used again.
#[derive(Debug)]
pub(super) struct ReplayCache {
    used: BTreeSet<(u64, [u8; 16])>,
    capacity: usize,
}

impl ReplayCache {
    pub(super) fn new(capacity: usize) -> Self {
        ReplayCache {
            used: BTreeSet::new(),
            capacity,
        }
    }

    /// Remembers `nonce` until `expires_ms`. The time of a password is under its code, so a
    /// second use comes with the same expiry.
    pub(super) fn insert(
        &mut self,
        expires_ms: u64,
        nonce: [u8; 16],
        now_ms: u64,
    ) -> Result<(), AuthError> {
        while self.used.first().is_some_and(|(e, _)| *e < now_ms) {
            self.used.pop_first();
        }
        if self.used.contains(&(expires_ms, nonce)) {
            return Err(AuthError::Replayed);
        }
        if self.used.len() >= self.capacity {
            return Err(AuthError::ReplayCacheFull);
        }
        self.used.insert((expires_ms, nonce));
        Ok(())
    }

    pub(super) fn len(&self) -> usize {
        self.used.len()
    }
}
