//! The password of the SOCKS handshake: proof of a shared secret, good for one connection to one
//! destination at one time.
//!
//! The password field (RFC 1929) is
//!
//! | bytes | content |
//! | --- | --- |
//! | 1 | version: 1, or 2 without the last code |
//! | 8 | milliseconds since 1970-01-01 UTC, big endian |
//! | 16 | nonce |
//! | 32 | HMAC-SHA256 over version, user, time and nonce |
//! | 32 | version 1: HMAC-SHA256 over the same and the destination |
//!
//! Two codes, because a client may wait for the answer to its password before it sends the
//! request: the first is checked by then, the second with the request. So the password neither
//! serves another time, nor another destination, nor tells the secret.
//!
//! A box signs in by version 2, before it knows the destination, and sends the second code (over
//! destination and hints) in a [note](crate::socks::Note) with the request. That code is bound to
//! the password by its nonce, and the password was good for one connection: the same holds.
//!
//! A program that takes nothing but text for a password has version 1 in hexadecimal.

use core::fmt;
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use braid_wire::Instant;

use crate::config::{Secret, UserConfig};
use crate::socks::{Destination, Note};

/// Bytes of a code.
pub const CODE_LEN: usize = 32;
/// Bytes of a password that is bound to no destination.
pub const SIGN_IN_LEN: usize = HEAD_LEN + CODE_LEN;
/// Bytes of a password for one destination.
pub const PASSWORD_LEN: usize = SIGN_IN_LEN + CODE_LEN;

/// Version, time and nonce.
const HEAD_LEN: usize = 1 + 8 + 16;
const VERSION_PASSWORD: u8 = 1;
const VERSION_SIGN_IN: u8 = 2;
const LABEL_USER: &[u8] = b"braid socks user 1";
const LABEL_DESTINATION: &[u8] = b"braid socks destination 1";
const LABEL_REQUEST: &[u8] = b"braid socks request 1";
const LABEL_PROBE: &[u8] = b"braid socks probe 1";

/// The system's clock is read a little after the instant that it is said to be of.
const STEADY: Duration = Duration::from_millis(100);

/// Wall time, handed in by the driver and carried on by [`Instant`]s.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct WallClock {
    at: Instant,
    since_epoch: Duration,
}

impl WallClock {
    /// One that differs by less than [`STEADY`] changes nothing, so that the same instant has the
    /// same time whenever it is asked for.
    pub(crate) fn set(&mut self, now: Instant, since_epoch: Duration) {
        if self.since_epoch(now).abs_diff(since_epoch) >= STEADY {
            *self = WallClock {
                at: now,
                since_epoch,
            };
        }
    }

    /// Milliseconds since 1970-01-01 UTC at `at`, which may be long ago.
    pub(crate) fn unix_ms(&self, at: Instant) -> u64 {
        u64::try_from(self.since_epoch(at).as_millis()).unwrap_or(u64::MAX)
    }

    fn since_epoch(&self, at: Instant) -> Duration {
        let later = at.saturating_since(self.at);
        let earlier = self.at.saturating_since(at);
        self.since_epoch
            .saturating_add(later)
            .saturating_sub(earlier)
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
    let head = head(VERSION_PASSWORD, unix_ms, nonce);
    let of_user = user_code(secret, user, &head).finalize().into_bytes();
    let of_destination = destination_code(secret, user, &head, destination);
    let of_destination = of_destination.finalize().into_bytes();
    let mut bytes = head.into_iter().chain(of_user).chain(of_destination);
    core::array::from_fn(|_| bytes.next().unwrap_or(0))
}

/// A password that is bound to no destination, of which the request's code is part.
#[derive(Debug, Clone, Copy)]
pub struct SignIn {
    head: [u8; HEAD_LEN],
}

impl SignIn {
    /// For one connection at `unix_ms`. A `nonce` must never be used twice under one secret.
    pub fn new(unix_ms: u64, nonce: [u8; 16]) -> Self {
        let head = head(VERSION_SIGN_IN, unix_ms, nonce);
        SignIn { head }
    }

    /// The password of `user`.
    pub fn password(&self, secret: &Secret, user: &[u8]) -> [u8; SIGN_IN_LEN] {
        let code = user_code(secret, user, &self.head).finalize().into_bytes();
        let mut bytes = self.head.into_iter().chain(code);
        core::array::from_fn(|_| bytes.next().unwrap_or(0))
    }

    /// The code of the one request that may follow it, with what its note says in `hints`.
    pub fn request(
        &self,
        secret: &Secret,
        user: &[u8],
        destination: &Destination,
        hints: &[u8],
    ) -> [u8; CODE_LEN] {
        let code = request_code(secret, user, &self.head, destination, hints);
        code.finalize().into_bytes().into()
    }

    /// The code of the one probe that may follow it in place of a request, with these fields.
    pub fn probe(&self, secret: &Secret, user: &[u8], fields: &[u8]) -> [u8; CODE_LEN] {
        let code = probe_code(secret, user, &self.head, fields);
        code.finalize().into_bytes().into()
    }
}

/// Reads a password in hexadecimal; `None` where it is none.
fn from_text(text: &[u8]) -> Option<[u8; PASSWORD_LEN]> {
    let digit = |c: u8| char::from(c).to_digit(16).map(|d| d as u8);
    let pair = |pair: &[u8]| Some(digit(pair[0])? << 4 | digit(*pair.get(1)?)?);
    let bytes: Vec<u8> = text.chunks(2).map(pair).collect::<Option<_>>()?;
    bytes.try_into().ok()
}

fn head(version: u8, unix_ms: u64, nonce: [u8; 16]) -> [u8; HEAD_LEN] {
    let mut head = [version; HEAD_LEN];
    head[1..9].copy_from_slice(&unix_ms.to_be_bytes());
    head[9..].copy_from_slice(&nonce);
    head
}

fn user_code(secret: &Secret, user: &[u8], head: &[u8; HEAD_LEN]) -> Hmac<Sha256> {
    code(secret, LABEL_USER, user, head)
}

fn destination_code(
    secret: &Secret,
    user: &[u8],
    head: &[u8; HEAD_LEN],
    destination: &Destination,
) -> Hmac<Sha256> {
    let mut mac = code(secret, LABEL_DESTINATION, user, head);
    update_destination(&mut mac, destination);
    mac
}

fn request_code(
    secret: &Secret,
    user: &[u8],
    head: &[u8; HEAD_LEN],
    destination: &Destination,
    hints: &[u8],
) -> Hmac<Sha256> {
    let mut mac = code(secret, LABEL_REQUEST, user, head);
    update_destination(&mut mac, destination);
    mac.update(hints);
    mac
}

fn probe_code(secret: &Secret, user: &[u8], head: &[u8; HEAD_LEN], fields: &[u8]) -> Hmac<Sha256> {
    let mut mac = code(secret, LABEL_PROBE, user, head);
    mac.update(fields);
    mac
}

/// The encoding tells its own end.
fn update_destination(mac: &mut Hmac<Sha256>, destination: &Destination) {
    let mut encoded = Vec::with_capacity(32);
    destination.encode(&mut encoded);
    mac.update(&encoded);
}

/// Every field but the last is of fixed length or preceded by it, so no two inputs look alike.
fn code(secret: &Secret, label: &[u8], user: &[u8], head: &[u8; HEAD_LEN]) -> Hmac<Sha256> {
    let mut mac =
        Hmac::<Sha256>::new_from_slice(secret.as_bytes()).expect("HMAC takes keys of any length");
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
    head: [u8; HEAD_LEN],
    /// Of a password that is bound to one.
    destination_code: Option<[u8; CODE_LEN]>,
}

impl Grant {
    /// Whether the request comes with a code of its own, whenever it does.
    pub fn is_sign_in(&self) -> bool {
        self.destination_code.is_none()
    }
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
        let binary = from_text(password);
        let (head, codes) = binary
            .as_ref()
            .map_or(password, |binary| &binary[..])
            .split_first_chunk::<HEAD_LEN>()
            .ok_or(AuthError::Malformed)?;
        let (of_user, destination_code) = match (head[0], codes.split_first_chunk()) {
            (VERSION_SIGN_IN, Some((code, []))) => (code, None),
            (VERSION_PASSWORD, Some((code, rest))) => {
                let of_destination = rest.try_into().map_err(|_| AuthError::Malformed)?;
                (code, Some(of_destination))
            }
            _ => return Err(AuthError::Malformed),
        };
        let of_user: &[u8; CODE_LEN] = of_user;
        let index = *self.by_name.get(user).ok_or(AuthError::UnknownUser)?;
        // Compares in constant time.
        user_code(&self.users[index].secret, user, head)
            .verify_slice(of_user)
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
            head: *head,
            destination_code,
        })
    }

    /// Whether whoever was given `grant` asks for `destination`: by the password, or, where that is
    /// bound to no destination, by the code of the request's `note`, which vouches for its hints too.
    pub fn check_request(
        &self,
        grant: &Grant,
        destination: &Destination,
        note: Option<&Note>,
    ) -> bool {
        let Some(user) = self.users.get(grant.user) else {
            return false;
        };
        let (secret, name, head) = (&user.secret, user.name.as_bytes(), &grant.head);
        let (expected, code) = match (&grant.destination_code, note) {
            (Some(code), None) => (destination_code(secret, name, head, destination), code),
            (None, Some(note)) => {
                let expected = request_code(secret, name, head, destination, &note.hints);
                (expected, &note.code)
            }
            _ => return false,
        };
        expected.verify_slice(code).is_ok()
    }

    /// Whether whoever was given `grant` asks for the probe of `note`.
    pub fn check_probe(&self, grant: &Grant, note: &Note) -> bool {
        let Some(user) = self.users.get(grant.user).filter(|_| grant.is_sign_in()) else {
            return false;
        };
        let (secret, name) = (&user.secret, user.name.as_bytes());
        let expected = probe_code(secret, name, &grant.head, &note.hints);
        expected.verify_slice(&note.code).is_ok()
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
