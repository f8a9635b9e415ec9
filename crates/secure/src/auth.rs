//! The password of the plaintext SOCKS handshake. The password proves that its sender holds a user's private key.
//! A password is valid for one connection, at one server, to one destination, within minutes of the time that it
//! contains.
//!
//! The user field (RFC 1929) is the user's public key in text. The password field is
//!
//! | bytes | content |
//! | --- | --- |
//! | 1 | version: 4, or 3 without the second signature |
//! | 8 | milliseconds since 1970-01-01 UTC, big endian |
//! | 16 | nonce |
//! | 64 | signature (Ed25519) over both public keys (user, server), version, time and nonce |
//! | 64 | version 4: signature over the same fields and the destination |
//!
//! There are two signatures because a client may wait for the answer to its password before it sends a request.
//! The server checks the first signature when the password arrives, and the second when the request names the
//! destination.
//!
//! A box signs in with version 3, before it knows the destination. The box sends the second signature, over
//! destination and hints, in the [request metadata](SignedMetadata). The second signature also covers the
//! password's nonce. The server accepts a nonce once, so the second signature is valid on no other connection.
//!
//! Programs that accept only text as a password use version 4 in base64.
//!
//! A protected connection needs no password: TLS proves the user's key (see [`channel`](crate::channel)).

use core::fmt;
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use braid_wire::Instant;

use crate::keys::{PrivateKey, PublicKey, SIGNATURE_LEN};

/// Bytes of a password that is bound to no destination.
pub const SIGN_IN_LEN: usize = PASSWORD_HEAD_LEN + SIGNATURE_LEN;
/// Bytes of a password for one destination.
pub const PASSWORD_LEN: usize = SIGN_IN_LEN + SIGNATURE_LEN;

/// Characters of a password for one destination as text; RFC 1929 allows 255.
const PASSWORD_TEXT_LEN: usize = PASSWORD_LEN / 3 * 4;

/// Bytes of the fields before the signatures: version, time and nonce.
const PASSWORD_HEAD_LEN: usize = 1 + 8 + 16;
// Versions 1 and 2, with labels that ended in 1, proved a shared secret instead of a key.
const VERSION_SIGN_IN: u8 = 3;
const VERSION_PASSWORD: u8 = 4;
// Each purpose has its label, so that a signature for one purpose is invalid for every other.
const LABEL_USER: &[u8] = b"braid socks user 2";
const LABEL_DESTINATION: &[u8] = b"braid socks destination 2";
const LABEL_REQUEST: &[u8] = b"braid socks request 2";
const LABEL_PROBE: &[u8] = b"braid socks probe 2";

/// The minimum step of the system clock that [`WallClock::set`] follows. The caller pairs an instant with a clock
/// time that it reads a little later, so two pairs differ slightly although nobody set the clock. 100 ms is a
/// guess: far above this delay, far below the minutes that passwords tolerate.
const MAX_CLOCK_STEP_IGNORED: Duration = Duration::from_millis(100);

/// Wall-clock time. The driver sets it from time to time, and [`Instant`]s extrapolate it in between.
#[derive(Debug, Clone, Copy, Default)]
pub struct WallClock {
    /// The instant at which the wall clock showed [`since_epoch`](Self::since_epoch).
    at: Instant,
    since_epoch: Duration,
}

impl WallClock {
    /// Pairs `now` with a wall-clock time. Ignores a step of less than 100 ms, so that an instant keeps its
    /// wall-clock time while nobody sets the clock.
    pub fn set(&mut self, now: Instant, since_epoch: Duration) {
        if self.since_epoch(now).abs_diff(since_epoch) >= MAX_CLOCK_STEP_IGNORED {
            *self = WallClock {
                at: now,
                since_epoch,
            };
        }
    }

    /// Returns the wall-clock time at the instant `at`, in milliseconds since 1970-01-01 UTC. The instant may lie
    /// in the past.
    pub fn unix_ms(&self, at: Instant) -> u64 {
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

/// Makes the password of the user with `key` at the server with the key `server`, for `destination` at `unix_ms`.
/// The destination has the encoding of a SOCKS5 request (RFC 1928 section 4: ATYP, DST.ADDR, DST.PORT), which
/// contains its own length. The `nonce` must be random: the server refuses a second password with the same time
/// and nonce as a replay.
pub fn password(
    key: &PrivateKey,
    server: PublicKey,
    destination: &[u8],
    unix_ms: u64,
    nonce: [u8; 16],
) -> [u8; PASSWORD_LEN] {
    let head = head(VERSION_PASSWORD, unix_ms, nonce);
    let parties = Parties::new(key, server);
    let user_signature = key.sign(&parties.user_message(&head));
    let destination_signature = key.sign(&parties.destination_message(&head, destination));
    let signatures = user_signature.into_iter().chain(destination_signature);
    let mut bytes = head.into_iter().chain(signatures);
    core::array::from_fn(|_| bytes.next().unwrap_or(0))
}

/// Encodes a password as 204 characters, for programs that accept only text.
pub fn to_text(password: &[u8; PASSWORD_LEN]) -> String {
    STANDARD.encode(password)
}

/// Decodes the text of [`to_text`]; `None` where it is malformed.
fn from_text(text: &[u8]) -> Option<[u8; PASSWORD_LEN]> {
    let mut password = [0; PASSWORD_LEN];
    let decoded = STANDARD.decode_slice(
        Some(text).filter(|t| t.len() == PASSWORD_TEXT_LEN)?,
        &mut password,
    );
    (decoded == Ok(PASSWORD_LEN)).then_some(password)
}

/// A password that is bound to no destination. The signature in the request's metadata adds the destination.
#[derive(Debug, Clone, Copy)]
pub struct SignIn {
    head: [u8; PASSWORD_HEAD_LEN],
}

impl SignIn {
    /// Creates a password for one connection at `unix_ms`. The `nonce` must be random: the server refuses a second
    /// password with the same time and nonce, and a signature for the first connection would be valid for the
    /// second.
    pub fn new(unix_ms: u64, nonce: [u8; 16]) -> Self {
        let head = head(VERSION_SIGN_IN, unix_ms, nonce);
        SignIn { head }
    }

    /// Returns the password of the user with `key` at `server`.
    pub fn password(&self, key: &PrivateKey, server: PublicKey) -> [u8; SIGN_IN_LEN] {
        let signature = key.sign(&Parties::new(key, server).user_message(&self.head));
        let mut bytes = self.head.into_iter().chain(signature);
        core::array::from_fn(|_| bytes.next().unwrap_or(0))
    }

    /// Returns the signature for the request. It covers the destination and the metadata's `hints`. A connection
    /// may have one request or one probe, not both.
    pub fn request(
        &self,
        key: &PrivateKey,
        server: PublicKey,
        destination: &[u8],
        hints: &[u8],
    ) -> [u8; SIGNATURE_LEN] {
        key.sign(&Parties::new(key, server).request_message(&self.head, destination, hints))
    }

    /// Returns the signature for a probe with these fields. The probe takes the place of the request.
    pub fn probe(&self, key: &PrivateKey, server: PublicKey, fields: &[u8]) -> [u8; SIGNATURE_LEN] {
        key.sign(&Parties::new(key, server).probe_message(&self.head, fields))
    }
}

fn head(version: u8, unix_ms: u64, nonce: [u8; 16]) -> [u8; PASSWORD_HEAD_LEN] {
    let mut head = [version; PASSWORD_HEAD_LEN];
    head[1..9].copy_from_slice(&unix_ms.to_be_bytes());
    head[9..].copy_from_slice(&nonce);
    head
}

/// The user and the server of a password. Builds the messages that the user signs.
///
/// Messages with different content differ in their bytes: no label is a prefix of another, and every field but the
/// last has a fixed length or contains its own length.
#[derive(Clone, Copy)]
struct Parties {
    user: PublicKey,
    server: PublicKey,
}

impl Parties {
    fn new(key: &PrivateKey, server: PublicKey) -> Self {
        let user = key.public();
        Parties { user, server }
    }

    fn user_message(self, head: &[u8; PASSWORD_HEAD_LEN]) -> Vec<u8> {
        self.message(LABEL_USER, head)
    }

    fn destination_message(self, head: &[u8; PASSWORD_HEAD_LEN], destination: &[u8]) -> Vec<u8> {
        let mut message = self.message(LABEL_DESTINATION, head);
        message.extend_from_slice(destination);
        message
    }

    fn request_message(
        self,
        head: &[u8; PASSWORD_HEAD_LEN],
        destination: &[u8],
        hints: &[u8],
    ) -> Vec<u8> {
        let mut message = self.message(LABEL_REQUEST, head);
        message.extend_from_slice(destination);
        message.extend_from_slice(hints);
        message
    }

    fn probe_message(self, head: &[u8; PASSWORD_HEAD_LEN], fields: &[u8]) -> Vec<u8> {
        let mut message = self.message(LABEL_PROBE, head);
        message.extend_from_slice(fields);
        message
    }

    fn message(self, label: &[u8], head: &[u8; PASSWORD_HEAD_LEN]) -> Vec<u8> {
        [label, self.user.as_bytes(), self.server.as_bytes(), head].concat()
    }
}

/// The reason why a password is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AuthError {
    /// The password does not have the form of a Braid password: the client is no Braid client, or a Braid client
    /// of another version.
    Malformed,
    /// No user has this key.
    UnknownUser,
    /// The signature is not by the user's private key, or is for another server.
    WrongSignature,
    /// The signature is valid, but the time in the password differs too much from the server's. The value is the
    /// client's clock minus the server's, in milliseconds.
    ClockSkew(i64),
    /// The password was made before this server started, or before the limit that the server has set since its
    /// clock was set back. The server does not know whether such a password was used.
    BeforeStart,
    /// The password was used before.
    Replayed,
    /// The replay cache is full: within the time window there were more sign-ins than the cache has entries.
    ReplayCacheFull,
}

impl fmt::Display for AuthError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AuthError::Malformed => {
                f.write_str("the password does not have the form of a Braid password")
            }
            AuthError::UnknownUser => f.write_str("no user has this key"),
            AuthError::WrongSignature => {
                f.write_str("this key did not sign the password, or signed it for another server")
            }
            AuthError::ClockSkew(ms) => {
                let side = if *ms < 0 { "behind" } else { "ahead of" };
                let s = ms.unsigned_abs() as f64 / 1e3;
                write!(
                    f,
                    "the box's clock is {s:.1} s {side} this server's; correct the clock that is wrong"
                )
            }
            AuthError::BeforeStart => f.write_str("the password is older than this server's start"),
            AuthError::Replayed => f.write_str("the password was used before"),
            AuthError::ReplayCacheFull => f.write_str("too many passwords in the time window"),
        }
    }
}

impl std::error::Error for AuthError {}

/// The signed part of the metadata with a request or a probe.
#[derive(Debug, Clone, Copy)]
pub struct SignedMetadata<'a> {
    /// The signature; `None` on a protected connection, where TLS authenticates every byte.
    pub code: Option<&'a [u8; SIGNATURE_LEN]>,
    /// The hints of a request, or the fields of a probe.
    pub bytes: &'a [u8],
}

/// An authenticated user whose destination is not known yet.
#[derive(Debug)]
pub struct Grant {
    /// Index of the user in the configuration. After [`Verifier::set_users`] the caller has to update the index in
    /// each grant that the caller still holds.
    pub user: usize,
    /// The password's version, time and nonce; `None` on a protected connection, which has no password.
    head: Option<[u8; PASSWORD_HEAD_LEN]>,
    /// The second signature of a password of version 4; `None` otherwise.
    destination_signature: Option<[u8; SIGNATURE_LEN]>,
}

impl Grant {
    /// Creates the grant of a protected connection, on which TLS has proved the user's key.
    pub fn proven(user: usize) -> Self {
        Grant {
            user,
            head: None,
            destination_signature: None,
        }
    }

    /// Returns whether the request must come with metadata. After a password of version 3 the metadata contains
    /// the second signature. On a protected connection the client is a box, which always sends metadata.
    pub fn is_sign_in(&self) -> bool {
        self.destination_signature.is_none()
    }
}

/// Checks passwords.
#[derive(Debug)]
pub struct Verifier {
    server: PublicKey,
    users: Vec<PublicKey>,
    by_key: BTreeMap<PublicKey, usize>,
    /// Maximum difference between a password's time and the server's, in either direction.
    max_skew_ms: u64,
    /// Passwords made before this time are refused; in milliseconds since 1970-01-01 UTC.
    oldest_ms: Option<u64>,
    replay: ReplayCache,
}

impl Verifier {
    /// Creates a verifier for `server` and the users with the keys `users`. Their clocks may be up to `window`
    /// ahead of the server's or behind it. The verifier remembers at most `capacity` passwords.
    ///
    /// The `users` must have different keys, which the configuration checks.
    pub fn new(
        server: PublicKey,
        users: impl IntoIterator<Item = PublicKey>,
        window: Duration,
        capacity: usize,
    ) -> Self {
        let mut verifier = Verifier {
            server,
            by_key: BTreeMap::new(),
            users: Vec::new(),
            max_skew_ms: u64::try_from(window.as_millis()).unwrap_or(u64::MAX),
            oldest_ms: None,
            replay: ReplayCache::new(capacity),
        };
        verifier.set_users(users);
        verifier
    }

    /// Replaces the users. Passwords that were used before stay refused.
    pub fn set_users(&mut self, users: impl IntoIterator<Item = PublicKey>) {
        self.users = users.into_iter().collect();
        self.by_key = self.users.iter().copied().zip(0..).collect();
    }

    /// Returns the index of the user with this key.
    pub fn user(&self, key: PublicKey) -> Option<usize> {
        self.by_key.get(&key).copied()
    }

    /// Returns the keys of all users, by index.
    pub fn users(&self) -> &[PublicKey] {
        &self.users
    }

    /// Refuses passwords made before `unix_ms`. Call this when the server starts: a restarted server does not know
    /// which passwords were used before.
    pub fn forget_before(&mut self, unix_ms: u64) {
        self.oldest_ms = Some(unix_ms);
    }

    /// Handles a clock that was set back to `now_ms`. By the old time, passwords made before `expired_before_ms`
    /// have expired, and the replay cache may have dropped those that were used. By the new time they would be
    /// valid again, so the verifier refuses passwords made before `expired_before_ms` from now on.
    ///
    /// The limit never exceeds `now_ms`. Otherwise the correction of a clock that was a day ahead would make the
    /// server refuse every new password for a day.
    pub fn clock_set_back(&mut self, expired_before_ms: u64, now_ms: u64) {
        let oldest = self.oldest_ms.unwrap_or(0).max(expired_before_ms);
        self.oldest_ms = Some(oldest.min(now_ms));
    }

    /// Checks a password at `now_ms` (milliseconds since 1970-01-01 UTC) and remembers it. The signature is
    /// checked before the time, so that nobody without the private key causes a report about the user's clock.
    pub fn check(&mut self, user: &[u8], password: &[u8], now_ms: u64) -> Result<Grant, AuthError> {
        let binary = from_text(password);
        let (head, signatures) = binary
            .as_ref()
            .map_or(password, |binary| &binary[..])
            .split_first_chunk::<PASSWORD_HEAD_LEN>()
            .ok_or(AuthError::Malformed)?;
        let (user_signature, rest) = signatures
            .split_first_chunk::<SIGNATURE_LEN>()
            .ok_or(AuthError::Malformed)?;
        let destination_signature = match (head[0], rest) {
            (VERSION_SIGN_IN, []) => None,
            (VERSION_PASSWORD, rest) => Some(rest.try_into().map_err(|_| AuthError::Malformed)?),
            _ => return Err(AuthError::Malformed),
        };
        // A client with an unknown key gets the same answer as one with a wrong signature, but without a signature
        // check. The time until the answer may therefore reveal that a key is a user's. A plaintext handshake
        // shows users' keys anyway.
        let key = core::str::from_utf8(user).ok().and_then(|u| u.parse().ok());
        let known = key.and_then(|key: PublicKey| self.by_key.get(&key));
        let index = *known.ok_or(AuthError::UnknownUser)?;
        let parties = self.parties(index).ok_or(AuthError::UnknownUser)?;
        if !parties
            .user
            .verify(&parties.user_message(head), user_signature)
        {
            return Err(AuthError::WrongSignature);
        }
        let time = u64::from_be_bytes(core::array::from_fn(|i| head[1 + i]));
        if time.abs_diff(now_ms) > self.max_skew_ms {
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
        let expires = time.saturating_add(self.max_skew_ms);
        self.replay.insert(expires, nonce, now_ms)?;
        Ok(Grant {
            user: index,
            head: Some(*head),
            destination_signature,
        })
    }

    /// Returns whether the holder of `grant` may request `destination`. The second signature decides. It is in the
    /// password or, after a [`SignIn`], in `metadata`; a signature in `metadata` also covers the hints.
    pub fn check_request(
        &self,
        grant: &Grant,
        destination: &[u8],
        metadata: Option<SignedMetadata<'_>>,
    ) -> bool {
        let Some(head) = &grant.head else {
            // On a protected connection TLS authenticates the request, so there is no signature to verify.
            return metadata.is_some();
        };
        let Some(parties) = self.parties(grant.user) else {
            return false;
        };
        let (message, signature) = match (&grant.destination_signature, metadata) {
            (Some(signature), None) => {
                let message = parties.destination_message(head, destination);
                (message, Some(signature))
            }
            (None, Some(metadata)) => {
                let message = parties.request_message(head, destination, metadata.bytes);
                (message, metadata.code)
            }
            _ => return false,
        };
        signature.is_some_and(|signature| parties.user.verify(&message, signature))
    }

    /// Returns whether the holder of `grant` may send the probe with the fields in `metadata`. A client with a
    /// password of version 4 may send no probe, because such a client is no box.
    pub fn check_probe(&self, grant: &Grant, metadata: SignedMetadata<'_>) -> bool {
        let Some(head) = &grant.head else {
            // As in `check_request`, TLS authenticates the probe.
            return true;
        };
        let parties = self.parties(grant.user).filter(|_| grant.is_sign_in());
        parties.zip(metadata.code).is_some_and(|(parties, code)| {
            let message = parties.probe_message(head, metadata.bytes);
            parties.user.verify(&message, code)
        })
    }

    fn parties(&self, user: usize) -> Option<Parties> {
        let (server, user) = (self.server, *self.users.get(user)?);
        Some(Parties { user, server })
    }

    /// Returns the number of remembered passwords.
    pub fn remembered(&self) -> usize {
        self.replay.len()
    }
}

/// Nonces of the used passwords whose time is still accepted.
///
/// A full cache refuses new passwords: if it evicted an entry, the password of that entry could be replayed. All
/// users share the capacity, so one user who signs in fast enough can keep others out of plaintext connections.
/// The default capacity allows a thousand sign-ins a second. Only passwords with a valid signature take an entry.
///
/// An entry does not contain the user, because random nonces of 16 bytes do not collide between users either.
#[derive(Debug)]
struct ReplayCache {
    /// Each entry is the expiry, in milliseconds since 1970-01-01 UTC, and the nonce. The earliest expiry is
    /// first.
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

    /// Remembers `nonce` until `expires_ms`. The expiry follows from the password's time, which the signature
    /// covers, so a replayed password has the same expiry and finds the entry.
    fn insert(&mut self, expires_ms: u64, nonce: [u8; 16], now_ms: u64) -> Result<(), AuthError> {
        while self
            .used
            .first()
            .is_some_and(|(expiry, _)| *expiry < now_ms)
        {
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
