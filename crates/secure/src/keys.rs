//! The keys of boxes, servers and clients: Ed25519 (RFC 8032). Their text has the form of WireGuard keys: one line
//! of base64, 44 characters.
//!
//! A public key is the identity of its owner, and need not be secret. The private key proves this identity. TLS
//! with raw public keys (RFC 7250) uses the encodings of RFC 8410.

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

/// Bytes of a public key, and of a private key's seed.
pub const KEY_LEN: usize = 32;
/// Characters of a key in text.
pub const KEY_TEXT_LEN: usize = 44;
/// Bytes of a signature.
pub const SIGNATURE_LEN: usize = 64;

/// Maximum number of bytes that are read from a key file. A key has one line; the rest allows for blanks. The
/// bound keeps a wrong path (a device, a large file) from filling memory.
const MAX_KEY_FILE_LEN: u64 = 1024;

/// The DER encoding before the seed in PKCS#8, version 1 (RFC 8410 section 7).
const PKCS8_HEAD: [u8; 16] = [
    0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20,
];
/// The DER encoding before the key in a SubjectPublicKeyInfo (RFC 8410 section 4).
const SPKI_HEAD: [u8; 12] = [
    0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00,
];

/// A private key. No output shows it, and its memory is overwritten on drop.
///
/// The copies in libraries are not overwritten: `ring` has the expanded key while it signs, and rustls keeps a
/// copy as long as a box or server protects connections.
#[derive(Clone)]
pub struct PrivateKey {
    seed: Zeroizing<[u8; KEY_LEN]>,
    /// The public key. It is stored because every password names it, and computing it costs about as much as a
    /// signature: one multiplication on the curve.
    public: PublicKey,
}

impl PrivateKey {
    /// Creates the key of a seed (RFC 8032 section 5.1.5). The seed must be random.
    pub fn from_seed(seed: [u8; KEY_LEN]) -> Self {
        let seed = Zeroizing::new(seed);
        let public = pair(&seed).public_key().as_ref().try_into();
        let public = PublicKey(public.expect("a public key has 32 bytes"));
        PrivateKey { seed, public }
    }

    /// Creates a key from a random `seed`. Skips seeds that [look public](Self::looks_public), so that the program
    /// can recognize this private key where a public key belongs. The skipped sixteenth of all seeds costs 0.1 bit
    /// of entropy (log2 of 16/15).
    pub fn generate(mut seed: [u8; KEY_LEN]) -> Self {
        // One seed in sixteen looks public, so a few tries suffice. The bound only excludes an endless loop.
        for _ in 0..=u8::MAX {
            if !point::is_public(&seed) {
                break;
            }
            seed[0] = seed[0].wrapping_add(1);
        }
        PrivateKey::from_seed(seed)
    }

    /// Returns whether the text of this key could be that of a public key. If so, the user may have swapped the
    /// two keys. One random private key in sixteen looks public, but no key from [`generate`](Self::generate)
    /// does.
    pub fn looks_public(&self) -> bool {
        point::is_public(&self.seed)
    }

    /// Returns whether this key has the same text as `public`. If so, the user has entered one key in both places.
    pub fn has_text_of(&self, public: &PublicKey) -> bool {
        *self.seed == public.0
    }

    /// Reads the text of a key, ignoring blanks around it.
    ///
    /// # Errors
    /// The text is not that of a key.
    pub fn from_text(text: &str) -> Result<Self, KeyError> {
        decode(text.trim()).map(|seed| PrivateKey::from_seed(*seed))
    }

    /// Reads the key in the file at `path`. Warns if every user of the machine may read the file, because any
    /// reader can impersonate the key's owner. Wide permissions are no error: some file systems (FAT) have no
    /// owners.
    ///
    /// # Errors
    /// The file cannot be read, or contains no key. The text names the file and the problem.
    pub fn read(path: &Path) -> Result<Self, String> {
        let name = path.display();
        let mut text = Zeroizing::new(String::with_capacity(MAX_KEY_FILE_LEN as usize));
        let mode = fs::File::open(path).and_then(|file| {
            let mode = file.metadata()?.mode();
            file.take(MAX_KEY_FILE_LEN).read_to_string(&mut text)?;
            Ok(mode)
        });
        let mode = mode.map_err(|e| format!("cannot read the private key in {name}: {e}"))?;
        let key = PrivateKey::from_text(&text);
        let key = key.map_err(|e| format!("{name} holds no private key: {e}"))?;
        if mode & 0o007 != 0 {
            tracing::warn!(file = %name, "every user of this machine may read the key; run `chmod 600` on the file");
        }
        Ok(key)
    }

    /// Writes the key to a new file at `path`, which only its owner may read.
    ///
    /// # Errors
    /// [`io::ErrorKind::AlreadyExists`] if there is a file at `path`; that file stays as it is. Otherwise the
    /// error with which the system refused to create or write the file.
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
            // A partial file would make the next attempt fail, because `create` writes new files only. A failure
            // to remove the file is not reported, because the caller gets the error of the write.
            let _ = fs::remove_file(path);
        })
    }

    /// Returns the key as one line of text, without a newline.
    pub fn to_text(&self) -> Zeroizing<String> {
        Zeroizing::new(STANDARD.encode(&self.seed[..]))
    }

    /// Returns the public key.
    pub fn public(&self) -> PublicKey {
        self.public
    }

    /// Signs a message. Ed25519 is deterministic: equal messages have equal signatures.
    pub fn sign(&self, message: &[u8]) -> [u8; SIGNATURE_LEN] {
        let signature = pair(&self.seed).sign(message);
        let signature = signature.as_ref().try_into();
        signature.expect("a signature has 64 bytes")
    }

    /// Encodes the key as PKCS#8, version 1 (RFC 8410 section 7), 48 bytes.
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

/// A public key. Its text is one line of 44 characters.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PublicKey([u8; KEY_LEN]);

impl PublicKey {
    /// Creates a key from any bytes (RFC 8032 section 5.1.2). If the bytes are not a point of the curve, every
    /// signature check with this key fails.
    pub fn from_bytes(bytes: [u8; KEY_LEN]) -> Self {
        PublicKey(bytes)
    }

    /// Returns whether a private key for this public key exists. The check detects a private key that was entered
    /// as a public key: every key from [`PrivateKey::generate`], and fifteen in sixteen other private keys.
    pub fn is_valid(&self) -> bool {
        point::is_public(&self.0)
    }

    /// Returns the key's bytes.
    pub fn as_bytes(&self) -> &[u8; KEY_LEN] {
        &self.0
    }

    /// Returns whether `signature` is this key's signature of `message`.
    pub fn verify(&self, message: &[u8], signature: &[u8]) -> bool {
        let key = UnparsedPublicKey::new(&ED25519, &self.0);
        key.verify(message, signature).is_ok()
    }

    /// Encodes the key as a SubjectPublicKeyInfo (RFC 8410 section 4), 44 bytes.
    pub fn to_spki(&self) -> Vec<u8> {
        [&SPKI_HEAD[..], &self.0].concat()
    }

    /// Decodes a SubjectPublicKeyInfo. Returns `None` if it is malformed or of another algorithm.
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

/// Decodes a key strictly. 43 base64 characters hold 258 bits; the two bits after the key's 256 must be 0, so that
/// each key has one text only.
fn decode(text: &str) -> Result<Zeroizing<[u8; KEY_LEN]>, KeyError> {
    let characters = text.chars().count();
    if characters != KEY_TEXT_LEN {
        return Err(KeyError::Length(characters));
    }
    let mut key = Zeroizing::new([0; KEY_LEN]);
    match STANDARD.decode_slice(text, &mut key[..]) {
        Ok(KEY_LEN) => Ok(key),
        _ => Err(KeyError::NotBase64),
    }
}

/// The reason why a text is not a key. Public and private keys have the same form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyError {
    /// The text has this number of characters instead of [`KEY_TEXT_LEN`].
    Length(usize),
    /// The text has the right length, but is not base64 of 32 bytes.
    NotBase64,
}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KeyError::Length(n) => write!(f, "it has {n} characters, but a key has {KEY_TEXT_LEN}"),
            KeyError::NotBase64 => write!(
                f,
                "its {KEY_TEXT_LEN} characters are not 43 of A-Z, a-z, 0-9, + and /, and one ="
            ),
        }
    }
}

impl std::error::Error for KeyError {}
