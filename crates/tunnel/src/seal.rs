//! Keys, epochs, and the sealing and opening of datagrams.

use core::time::Duration;

use arrayvec::ArrayVec;
use braid_engine::PathId;
use braid_wire::Instant;
use ring::aead::{self, AES_256_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use ring::hkdf::{HKDF_SHA256, KeyType, Prk};
use zeroize::{Zeroize, Zeroizing};

use crate::header::Header;
use crate::{DatagramError, Role, Suite};

/// Bytes that sealing adds to the frames of a datagram.
pub(crate) const TAG_LEN: usize = 16;
/// Datagrams after which a key seals no more. RFC 9001 appendix B.1.1 allows AES-GCM 2^28 packets of up to 2^11
/// bytes, and jumbo frames have four times as many.
const SEAL_LIMIT: u64 = 1 << 26;
/// Datagrams that may fail to open under one epoch. RFC 9001 section 6.6 allows ChaCha20-Poly1305 2^36.
const FORGERY_LIMIT: u64 = 1 << 36;

impl Suite {
    fn algorithm(self) -> &'static aead::Algorithm {
        match self {
            Suite::Aes256Gcm => &AES_256_GCM,
            Suite::ChaCha20Poly1305 => &CHACHA20_POLY1305,
        }
    }
}

/// The secrets of one epoch, one a direction. Box and server export them from a connection that is theirs alone
/// (RFC 8446 section 7.5). Their memory is overwritten when they are dropped.
#[derive(Clone)]
pub struct Secrets {
    /// The secret for datagrams of the box.
    pub of_box: [u8; 32],
    /// The secret for datagrams of the server.
    pub of_server: [u8; 32],
}

impl Drop for Secrets {
    fn drop(&mut self) {
        self.of_box.zeroize();
        self.of_server.zeroize();
    }
}

impl core::fmt::Debug for Secrets {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Secrets")
    }
}

/// The length of an output of HKDF.
#[derive(Debug, Clone, Copy)]
struct Length(usize);

impl KeyType for Length {
    fn len(&self) -> usize {
        self.0
    }
}

/// The key of one direction in one epoch.
#[derive(Debug)]
struct DirectionKey {
    key: LessSafeKey,
    iv: [u8; 12],
}

impl DirectionKey {
    fn new(suite: Suite, secret: &[u8; 32]) -> Self {
        let secret = Prk::new_less_safe(HKDF_SHA256, secret);
        let mut key = Zeroizing::new([0; 32]);
        expand(&secret, b"braid tunnel key", &mut key[..]);
        let mut iv = [0; 12];
        expand(&secret, b"braid tunnel iv", &mut iv);
        let key = UnboundKey::new(suite.algorithm(), &key[..]).expect("both ciphers take 32 bytes");
        DirectionKey {
            key: LessSafeKey::new(key),
            iv,
        }
    }

    /// Returns the nonce of a datagram: path and number, so that no two datagrams have the same one
    /// (draft-ietf-quic-multipath section 2.4).
    fn nonce(&self, path: PathId, number: u64) -> Nonce {
        let mut nonce = self.iv;
        nonce[3] ^= path.0;
        for (byte, mask) in nonce[4..].iter_mut().zip(number.to_be_bytes()) {
            *byte ^= mask;
        }
        Nonce::assume_unique_for_key(nonce)
    }
}

fn expand(secret: &Prk, label: &[u8], out: &mut [u8]) {
    secret
        .expand(&[label], Length(out.len()))
        .and_then(|okm| okm.fill(out))
        .expect("the length is far below the limit of HKDF");
}

/// The keys of one epoch.
#[derive(Debug)]
struct Epoch {
    number: u64,
    seal: DirectionKey,
    open: DirectionKey,
    sealed: u64,
    forged: u64,
    /// True once a packet went under the epoch.
    is_used: bool,
    /// The end of the epoch, once it has carried a packet, or the peer uses the next one.
    expires: Option<Instant>,
}

impl Epoch {
    /// Ends the epoch at `at`, unless it ends earlier.
    fn end_at(&mut self, at: Instant) {
        self.expires = Some(self.expires.map_or(at, |expires| expires.min(at)));
    }

    /// Returns the bits by which datagrams tell epochs apart.
    fn phase(&self) -> u64 {
        self.number & 3
    }
}

/// The keys of a session. At most three epochs are kept: the previous one for datagrams under way, the one in use, and
/// later ones that the peer does not use yet.
#[derive(Debug)]
pub(crate) struct Keys {
    role: Role,
    suite: Suite,
    /// The time for which an epoch opens datagrams after the first one under the next epoch.
    lifetime: Duration,
    /// The time after its first packet at which an epoch ends.
    max_use: Duration,
    /// By number.
    epochs: ArrayVec<Epoch, 3>,
    /// The highest epoch under which a datagram was opened.
    confirmed: Option<u64>,
    /// The highest epoch that was installed.
    highest: Option<u64>,
}

impl Keys {
    pub fn new(role: Role, suite: Suite, (lifetime, max_use): (Duration, Duration)) -> Self {
        Keys {
            role,
            suite,
            lifetime,
            max_use,
            epochs: ArrayVec::new(),
            confirmed: None,
            highest: None,
        }
    }

    /// Returns a number for the next epoch: higher than all before, with other lowest bits than those of the epoch that
    /// the peer uses.
    pub fn next_number(&self) -> u64 {
        let next = self.highest.map_or(1, |highest| highest.saturating_add(1));
        match self.confirmed {
            Some(confirmed) if confirmed & 3 == next & 3 => next.saturating_add(1),
            _ => next,
        }
    }

    /// Installs an epoch, which must be higher than all before. Returns false if it is not, or if its lowest bits are
    /// those of the epoch that the box uses.
    pub fn install(&mut self, number: u64, secrets: &Secrets) -> bool {
        if self.highest.is_some_and(|highest| highest >= number) {
            return false;
        }
        let in_use = self.confirmed.filter(|_| self.role == Role::Server);
        if in_use.is_some_and(|in_use| in_use & 3 == number & 3) {
            return false;
        }
        let (seal, open) = match self.role {
            Role::Box => (&secrets.of_box, &secrets.of_server),
            Role::Server => (&secrets.of_server, &secrets.of_box),
        };
        let [seal, open] = [seal, open].map(|secret| DirectionKey::new(self.suite, secret));
        // Two epochs with the same lowest bits could not be told apart.
        self.epochs.retain(|e| e.phase() != number & 3);
        if self.epochs.is_full() {
            self.epochs.remove(self.dispensable());
        }
        self.highest = Some(number);
        self.epochs.push(Epoch {
            number,
            seal,
            open,
            sealed: 0,
            forged: 0,
            is_used: false,
            expires: None,
        });
        true
    }

    /// Returns the index of the epoch that makes room: one before the epoch in use, else the oldest one that the peer
    /// has not used. The peer keeps sealing under the epoch in use until it gets the next keys, however many answers
    /// with keys are lost.
    fn dispensable(&self) -> usize {
        let is_in_use = |e: &Epoch| Some(e.number) == self.confirmed;
        usize::from(self.epochs.first().is_some_and(is_in_use))
    }

    /// Notes a packet at `now`, in either direction. The first packet starts the lifetime of the epoch that seals.
    /// Earlier epochs end with it at the latest, so that they are not used again.
    pub fn on_use(&mut self, now: Instant) {
        let Some(epoch) = self.sealing().filter(|e| !e.is_used) else {
            return;
        };
        epoch.is_used = true;
        let number = epoch.number;
        let end = now + self.max_use;
        for epoch in self.epochs.iter_mut().filter(|e| e.number <= number) {
            epoch.end_at(end);
        }
    }

    /// Drops epochs whose time is over.
    pub fn expire(&mut self, now: Instant) {
        self.epochs
            .retain(|e| e.expires.is_none_or(|expires| now < expires));
    }

    /// Returns the time of the next expiry.
    pub fn next_timeout(&self) -> Option<Instant> {
        Instant::earliest(self.epochs.iter().map(|e| e.expires))
    }

    /// Returns the epoch that seals. The box uses the newest one; the server the newest one that the box has
    /// used, so that the box can open what it receives.
    fn sealing(&mut self) -> Option<&mut Epoch> {
        let confirmed = self.confirmed;
        let wanted = |e: &&mut Epoch| match self.role {
            Role::Box => true,
            Role::Server => confirmed.is_none_or(|number| e.number <= number),
        };
        self.epochs.iter_mut().rev().find(wanted)
    }

    /// Returns true if there is a key that may seal.
    pub fn can_seal(&mut self) -> bool {
        self.sealing().is_some_and(|e| e.sealed < SEAL_LIMIT)
    }

    /// Returns true if a new epoch is due, because half of what a key may seal is used up.
    pub fn wants_epoch(&self) -> bool {
        self.epochs
            .last()
            .is_none_or(|e| e.sealed >= SEAL_LIMIT / 2)
    }

    /// Seals the frames in `datagram`, which follow room for the header and precede room for the tag. Returns false
    /// if no key may seal.
    pub fn seal(&mut self, header: Header, number: u64, datagram: &mut [u8]) -> bool {
        let Some(epoch) = self.sealing().filter(|e| e.sealed < SEAL_LIMIT) else {
            return false;
        };
        let header = Header {
            phase: epoch.phase() as u8,
            ..header
        };
        let nonce = epoch.seal.nonce(header.path, number);
        let header = header.emit();
        let (head, rest) = datagram.split_at_mut(Header::LEN);
        head.copy_from_slice(&header);
        let (frames, tag) = rest.split_at_mut(rest.len() - TAG_LEN);
        let sealed = epoch
            .seal
            .key
            .seal_in_place_separate_tag(nonce, Aad::from(&header), frames)
            .expect("a datagram is far below the limit of the cipher");
        tag.copy_from_slice(sealed.as_ref());
        epoch.sealed += 1;
        true
    }

    /// Opens a datagram in place and returns its frames.
    ///
    /// # Errors
    ///
    /// [`DatagramError::Forged`] if no epoch with these lowest bits opens it. Its bytes are then undefined.
    pub fn open<'a>(
        &mut self,
        now: Instant,
        header: &Header,
        number: u64,
        datagram: &'a mut [u8],
    ) -> Result<&'a [u8], DatagramError> {
        let (head, sealed) = datagram.split_at_mut(Header::LEN);
        let epoch = self
            .epochs
            .iter_mut()
            .find(|e| e.phase() as u8 == header.phase && e.forged < FORGERY_LIMIT)
            .filter(|e| e.expires.is_none_or(|expires| now < expires))
            .ok_or(DatagramError::Forged)?;
        let nonce = epoch.open.nonce(header.path, number);
        let Ok(frames) = epoch.open.key.open_in_place(nonce, Aad::from(head), sealed) else {
            epoch.forged += 1;
            return Err(DatagramError::Forged);
        };
        let opened = epoch.number;
        if self.confirmed.is_none_or(|confirmed| confirmed < opened) {
            self.confirmed = Some(opened);
            let expires = now + self.lifetime;
            for old in self.epochs.iter_mut().filter(|e| e.number < opened) {
                old.end_at(expires);
            }
        }
        Ok(frames)
    }
}
