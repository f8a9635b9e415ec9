//! The keys of boxes, servers and clients: Ed25519 (RFC 8032), in the text that people know from
//! WireGuard: one line of base64, of 44 characters.
//!
//! Whoever has a private key is who its public key says; a public key may be known to all. The
//! encodings of RFC 8410 are those of certificates and of TLS with raw public keys (RFC 7250).

mod point;

use core::fmt;
use core::str::FromStr;
use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ring::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};
use zeroize::Zeroizing;

/// Bytes of a public key, and of the seed that a private key is.
pub const KEY_LEN: usize = 32;
/// Characters of either in text.
pub const TEXT_LEN: usize = 44;
/// Bytes of a signature.
pub const SIGNATURE_LEN: usize = 64;

/// Most bytes of a file that are looked at for a key: its line, and what blanks there may be.
const MAX_FILE: u64 = 1024;

/// What stands before the seed in PKCS#8, version 1 (RFC 8410 section 7).
const PKCS8_HEAD: [u8; 16] = [
    0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20,
];
/// What stands before the key in a SubjectPublicKeyInfo (RFC 8410 section 4).
const SPKI_HEAD: [u8; 12] = [
    0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00,
];

/// Proves who one is. It is never shown, and its memory is overwritten when it goes. What libraries make
/// of it is not: the expanded key is in memory while something is signed, and, where a box or server
/// protects connections, for as long as the process lives.
#[derive(Clone)]
pub struct PrivateKey {
    seed: Zeroizing<[u8; KEY_LEN]>,
    /// Follows from the seed by more work than is to be done for each signature.
    public: PublicKey,
}

impl PrivateKey {
    /// The key of a seed (RFC 8032 section 5.1.5), which must be random.
    pub fn from_seed(seed: [u8; KEY_LEN]) -> Self {
        let seed = Zeroizing::new(seed);
        let public = pair(&seed).public_key().as_ref().try_into();
        let public = PublicKey(public.expect("a public key has 32 bytes"));
        PrivateKey { seed, public }
    }

    /// A new key from `seed`, which must be random. One that [looks public](Self::looks_public) is passed
    /// over, so that a key in the wrong place can be told: that takes 0.1 bit of what is random.
    pub fn generate(mut seed: [u8; KEY_LEN]) -> Self {
        for _ in 0..=u8::MAX {
            if !point::is_public(&seed) {
                break;
            }
            seed[0] = seed[0].wrapping_add(1);
        }
        PrivateKey::from_seed(seed)
    }

    /// Returns whether the text of this key may be that of a public one, put where a private key belongs. One
    /// in sixteen private keys looks so, but none that [`generate`](Self::generate) made.
    pub fn looks_public(&self) -> bool {
        point::is_public(&self.seed)
    }

    /// Returns whether the text of this key is that of `public`: one of the two stands in the place of the
    /// other.
    pub fn has_text_of(&self, public: &PublicKey) -> bool {
        *self.seed == public.0
    }

    /// Reads what [`to_text`](Self::to_text) wrote; blanks around it are dropped.
    ///
    /// # Errors
    /// The text is none of a key.
    pub fn from_text(text: &str) -> Result<Self, KeyError> {
        decode(text.trim()).map(|seed| PrivateKey::from_seed(*seed))
    }

    /// Reads the key in the file at `path`. Who can read it can be who its public key says: warns
    /// where every user of the machine may. That is no error, for the file may be on a system
    /// without owners.
    ///
    /// # Errors
    /// Which file, and what is wrong: it cannot be read, or holds no key.
    pub fn read(path: &Path) -> Result<Self, String> {
        let name = path.display();
        let mut text = Zeroizing::new(String::with_capacity(MAX_FILE as usize));
        let mode = fs::File::open(path).and_then(|file| {
            let mode = file.metadata()?.mode();
            file.take(MAX_FILE).read_to_string(&mut text)?;
            Ok(mode)
        });
        let mode = mode.map_err(|e| format!("cannot read the private key in {name}: {e}"))?;
        let key = PrivateKey::from_text(&text);
        let key = key.map_err(|e| format!("{name} holds no private key: {e}"))?;
        if mode & 0o007 != 0 {
            tracing::warn!(file = %name, "every user of this machine may read the key: chmod 600 it");
        }
        Ok(key)
    }

    /// Writes the key to a new file at `path`, which only its owner may read.
    ///
    /// # Errors
    /// [`io::ErrorKind::AlreadyExists`] where there is a file, which is left as it is; what the
    /// system says otherwise.
    pub fn create(&self, path: &Path) -> io::Result<()> {
        let mut options = OpenOptions::new();
        let mut file = options
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)?;
        let line = Zeroizing::new(format!("{}\n", *self.to_text()));
        let written = file.write_all(line.as_bytes());
        written.and_then(|()| file.sync_all()).inspect_err(|_| {
            // Half a key would be in the way of the next try; that this fails too changes nothing.
            let _ = fs::remove_file(path);
        })
    }

    /// One line of text, without its end.
    pub fn to_text(&self) -> Zeroizing<String> {
        Zeroizing::new(STANDARD.encode(&self.seed[..]))
    }

    /// The key that others know this one by.
    pub fn public(&self) -> PublicKey {
        self.public
    }

    /// Signs a message; the same message has the same signature.
    pub fn sign(&self, message: &[u8]) -> [u8; SIGNATURE_LEN] {
        let signature = pair(&self.seed).sign(message);
        let signature = signature.as_ref().try_into();
        signature.expect("a signature has 64 bytes")
    }

    /// PKCS#8 in its first version (RFC 8410 section 7), 48 bytes.
    pub fn to_pkcs8(&self) -> Zeroizing<Vec<u8>> {
        Zeroizing::new([&PKCS8_HEAD[..], &self.seed[..]].concat())
    }
}

fn pair(seed: &[u8; KEY_LEN]) -> Ed25519KeyPair {
    Ed25519KeyPair::from_seed_unchecked(seed).expect("a seed has 32 bytes")
}

impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PrivateKey(..)")
    }
}

/// Whom one expects. Written, and read, as one line of 44 characters.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PublicKey([u8; KEY_LEN]);

impl PublicKey {
    /// The key of these bytes (RFC 8032 section 5.1.2). Any are taken; those that are no point of the
    /// curve verify nothing.
    pub fn from_bytes(bytes: [u8; KEY_LEN]) -> Self {
        PublicKey(bytes)
    }

    /// Returns whether some private key has this public key. Of private keys, put where a public one
    /// belongs, fifteen in sixteen are found by that, and all that [`PrivateKey::generate`] made.
    pub fn is_valid(&self) -> bool {
        point::is_public(&self.0)
    }

    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8; KEY_LEN] {
        &self.0
    }

    /// Returns whether `signature` is that of `message` by the private key.
    pub fn verify(&self, message: &[u8], signature: &[u8]) -> bool {
        let key = UnparsedPublicKey::new(&ED25519, &self.0);
        key.verify(message, signature).is_ok()
    }

    /// The SubjectPublicKeyInfo (RFC 8410 section 4), 44 bytes.
    pub fn to_spki(&self) -> Vec<u8> {
        [&SPKI_HEAD[..], &self.0].concat()
    }

    /// Reads what [`to_spki`](Self::to_spki) wrote; `None` where it is malformed, or of another
    /// algorithm.
    pub fn from_spki(spki: &[u8]) -> Option<Self> {
        let key = spki.strip_prefix(&SPKI_HEAD)?;
        key.try_into().ok().map(PublicKey)
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&STANDARD.encode(self.0))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PublicKey({self})")
    }
}

impl FromStr for PublicKey {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        decode(text).map(|key| PublicKey(*key))
    }
}

/// Each key has one text only: what follows its 256 bits has to be 0.
fn decode(text: &str) -> Result<Zeroizing<[u8; KEY_LEN]>, KeyError> {
    let characters = text.chars().count();
    if characters != TEXT_LEN {
        return Err(KeyError::Length(characters));
    }
    let mut key = Zeroizing::new([0; KEY_LEN]);
    match STANDARD.decode_slice(text, &mut key[..]) {
        Ok(KEY_LEN) => Ok(key),
        _ => Err(KeyError::NotBase64),
    }
}

/// Why a text is none of a key. Public and private ones look alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyError {
    /// So many characters.
    Length(usize),
    /// The right length, but not base64 of 32 bytes.
    NotBase64,
}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KeyError::Length(n) => write!(f, "it has {n} characters, a key {TEXT_LEN}"),
            KeyError::NotBase64 => write!(
                f,
                "its {TEXT_LEN} characters are not 43 of A-Z, a-z, 0-9, + and /, and one ="
            ),
        }
    }
}

impl std::error::Error for KeyError {}
