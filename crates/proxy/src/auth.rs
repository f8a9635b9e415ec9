//! The password of the SOCKS handshake: proof of a shared secret, good for one connection to one
//! destination at one time.
//!
//! The password field (RFC 1929, 89 bytes) is
//!
//! | bytes | content |
//! | --- | --- |
//! | 1 | version, 1 |
//! | 8 | milliseconds since 1970-01-01 UTC, big endian |
//! | 16 | nonce |
//! | 32 | HMAC-SHA256 over user, time and nonce |
//! | 32 | HMAC-SHA256 over user, time, nonce and destination |
//!
//! Two codes, because a client may wait for the answer to its password before it sends the
//! request: the first is checked by then, the second with the request. So the password neither
//! serves another time, nor another destination, nor tells the secret.

use core::fmt;
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use braid_wire::Instant;

use crate::config::{Secret, UserConfig};
use crate::socks::Destination;

/// Bytes of a password.
pub const PASSWORD_LEN: usize = 1 + 8 + 16 + 32 + 32;

const VERSION: u8 = 1;
const LABEL_USER: &[u8] = b"braid socks user 1";
const LABEL_DESTINATION: &[u8] = b"braid socks destination 1";

/// Wall time, handed in by the driver and carried on by [`Instant`]s.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct WallClock {
    at: Instant,
    since_epoch: Duration,
}

impl WallClock {
    pub(crate) fn set(&mut self, now: Instant, since_epoch: Duration) {
        *self = WallClock {
            at: now,
            since_epoch,
        };
    }

    /// Milliseconds since 1970-01-01 UTC at `now`.
    pub(crate) fn unix_ms(&self, now: Instant) -> u64 {
        let since = self
            .since_epoch
            .saturating_add(now.saturating_since(self.at));
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }
}

/// Makes the password of `user` for `destination` at `unix_ms`. A `nonce` must never be used
/// twice under one secret.
pub fn password(
    secret: &Secret,
    user: &[u8],
    destination: &Destination,
    unix_ms: u64,
    nonce: [u8; 16],
) -> [u8; PASSWORD_LEN] {
    let mut out = [0; PASSWORD_LEN];
    out[0] = VERSION;
    out[1..9].copy_from_slice(&unix_ms.to_be_bytes());
    out[9..25].copy_from_slice(&nonce);
    let head: [u8; 25] = core::array::from_fn(|i| out[i]);
    let code = user_code(secret, user, &head).finalize().into_bytes();
    out[25..57].copy_from_slice(&code);
    let code = destination_code(secret, user, &head, destination);
    out[57..].copy_from_slice(&code.finalize().into_bytes());
    out
}

fn user_code(secret: &Secret, user: &[u8], head: &[u8; 25]) -> Hmac<Sha256> {
    code(secret.as_bytes(), LABEL_USER, user, head)
}

fn destination_code(
    secret: &Secret,
    user: &[u8],
    head: &[u8; 25],
    destination: &Destination,
) -> Hmac<Sha256> {
    let mut mac = code(secret.as_bytes(), LABEL_DESTINATION, user, head);
    let mut encoded = Vec::with_capacity(32);
    destination.encode(&mut encoded);
    mac.update(&encoded);
    mac
}

/// Every field but the last is of fixed length or preceded by it, so no two inputs look alike.
fn code(key: &[u8], label: &[u8], user: &[u8], head: &[u8; 25]) -> Hmac<Sha256> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes keys of any length");
    mac.update(label);
    mac.update(&[u8::try_from(user.len()).unwrap_or(u8::MAX)]);
    mac.update(user);
    mac.update(head);
    mac
}

/// Why a password is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AuthError {
    /// Not of this form: another kind of client, or another version.
    Malformed,
    /// No such user.
    UnknownUser,
    /// Wrong secret.
    WrongSecret,
    /// The secret is right, the time is not: the box's clock is ahead by this many milliseconds
    /// (behind where negative).
    ClockSkew(i64),
    /// Made before this server started, which therefore cannot know whether it was used.
    BeforeStart,
    /// Used before.
    Replayed,
    /// So many passwords were used lately that another cannot be remembered.
    ReplayCacheFull,
}

impl fmt::Display for AuthError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AuthError::Malformed => f.write_str("the password is not of Braid's form"),
            AuthError::UnknownUser => f.write_str("there is no such user"),
            AuthError::WrongSecret => f.write_str("the secret is wrong"),
            AuthError::ClockSkew(ms) => {
                let side = if *ms < 0 { "behind" } else { "ahead of" };
                let s = ms.unsigned_abs() as f64 / 1e3;
                write!(
                    f,
                    "the box's clock is {s:.1} s {side} this server's; set it right"
                )
            }
            AuthError::BeforeStart => f.write_str("the password is older than this server's start"),
            AuthError::Replayed => f.write_str("the password was used before"),
            AuthError::ReplayCacheFull => f.write_str("too many passwords in the time window"),
        }
    }
}

impl std::error::Error for AuthError {}

/// A right password whose destination is not known yet.
#[derive(Debug)]
pub struct Grant {
    /// Position of the user in the configuration.
    pub user: usize,
    head: [u8; 25],
    destination_code: [u8; 32],
}

/// Checks passwords.
#[derive(Debug)]
pub struct Verifier {
    users: Vec<UserConfig>,
    by_name: BTreeMap<Vec<u8>, usize>,
    window_ms: u64,
    /// Passwords made before this are refused, milliseconds since 1970.
    oldest_ms: Option<u64>,
    replay: ReplayCache,
}

impl Verifier {
    /// Checks passwords of `users` whose clocks may be off by `window` either way, and remembers
    /// at most `capacity` of them.
    pub fn new(users: &[UserConfig], window: Duration, capacity: usize) -> Self {
        let names = users.iter().enumerate();
        Verifier {
            by_name: names
                .map(|(i, u)| (u.name.as_bytes().to_vec(), i))
                .collect(),
            users: users.to_vec(),
            window_ms: u64::try_from(window.as_millis()).unwrap_or(u64::MAX),
            oldest_ms: None,
            replay: ReplayCache::new(capacity),
        }
    }

    /// Refuses passwords made before `unix_ms`: at the start.
    pub fn forget_before(&mut self, unix_ms: u64) {
        self.oldest_ms = Some(unix_ms);
    }

    /// The clock was set back to `now_ms`. Passwords made before `forgotten_ms` had expired by
    /// the time that was wrong and are not remembered: they are refused from now on. So that a
    /// leap of a day does not shut everybody out for a day, `now_ms` is the latest limit.
    pub fn clock_set_back(&mut self, forgotten_ms: u64, now_ms: u64) {
        let oldest = self.oldest_ms.unwrap_or(0).max(forgotten_ms);
        self.oldest_ms = Some(oldest.min(now_ms));
    }

    /// Checks a password at `now_ms` (milliseconds since 1970) and remembers it. The time is
    /// judged only after the code, so that only a box that has the secret causes a report on its
    /// clock.
    pub fn check(&mut self, user: &[u8], password: &[u8], now_ms: u64) -> Result<Grant, AuthError> {
        let password: &[u8; PASSWORD_LEN] =
            password.try_into().map_err(|_| AuthError::Malformed)?;
        if password[0] != VERSION {
            return Err(AuthError::Malformed);
        }
        let head: [u8; 25] = core::array::from_fn(|i| password[i]);
        let index = *self.by_name.get(user).ok_or(AuthError::UnknownUser)?;
        // Compares in constant time.
        user_code(&self.users[index].secret, user, &head)
            .verify_slice(&password[25..57])
            .map_err(|_| AuthError::WrongSecret)?;
        let time = u64::from_be_bytes(core::array::from_fn(|i| head[1 + i]));
        if time.abs_diff(now_ms) > self.window_ms {
            let skew = i64::try_from(time.abs_diff(now_ms)).unwrap_or(i64::MAX);
            return Err(AuthError::ClockSkew(if time < now_ms {
                -skew
            } else {
                skew
            }));
        }
        if self.oldest_ms.is_some_and(|oldest| time < oldest) {
            return Err(AuthError::BeforeStart);
        }
        let nonce = core::array::from_fn(|i| head[9 + i]);
        let expires = time.saturating_add(self.window_ms);
        self.replay.insert(expires, nonce, now_ms)?;
        Ok(Grant {
            user: index,
            head,
            destination_code: core::array::from_fn(|i| password[57 + i]),
        })
    }

    /// Whether the password behind `grant` was made for `destination`.
    pub fn check_destination(&self, grant: &Grant, destination: &Destination) -> bool {
        let Some(user) = self.users.get(grant.user) else {
            return false;
        };
        destination_code(&user.secret, user.name.as_bytes(), &grant.head, destination)
            .verify_slice(&grant.destination_code)
            .is_ok()
    }

    /// Passwords remembered now.
    pub fn remembered(&self) -> usize {
        self.replay.len()
    }
}

/// Nonces that were used and could still be accepted, in order of expiry. Bounded: when it is
/// full, the newcomer is refused; forgetting another instead would let that one be used again.
#[derive(Debug)]
struct ReplayCache {
    used: BTreeSet<(u64, [u8; 16])>,
    capacity: usize,
}

impl ReplayCache {
    fn new(capacity: usize) -> Self {
        ReplayCache {
            used: BTreeSet::new(),
            capacity,
        }
    }

    /// Remembers `nonce` until `expires_ms`. The time of a password is under its code, so a
    /// second use comes with the same expiry.
    fn insert(&mut self, expires_ms: u64, nonce: [u8; 16], now_ms: u64) -> Result<(), AuthError> {
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

    fn len(&self) -> usize {
        self.used.len()
    }
}
