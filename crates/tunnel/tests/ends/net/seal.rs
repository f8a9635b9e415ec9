//! A second implementation of sealing, for datagrams that a tunnel never makes: those of a peer that has the keys and
//! means ill.

use braid_tunnel::frame::Frame;
use braid_tunnel::{Header, PathId};
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use ring::hkdf::{HKDF_SHA256, KeyType, Prk};

use super::SESSION;

struct Length(usize);

impl KeyType for Length {
    fn len(&self) -> usize {
        self.0
    }
}

fn expand(secret: &[u8], label: &[u8], out: &mut [u8]) {
    let secret = Prk::new_less_safe(HKDF_SHA256, secret);
    secret
        .expand(&[label], Length(out.len()))
        .and_then(|okm| okm.fill(out))
        .expect("a short output");
}

/// Returns the datagram `number` of a path with these frames, sealed by the secret of a direction in epoch 0.
pub fn seal(secret: &[u8; 32], path: PathId, number: u64, frames: &[Frame]) -> Vec<u8> {
    let (mut key, mut nonce) = ([0; 32], [0; 12]);
    expand(secret, b"braid tunnel key", &mut key);
    expand(secret, b"braid tunnel iv", &mut nonce);
    nonce[3] ^= path.0;
    for (byte, mask) in nonce[4..].iter_mut().zip(number.to_be_bytes()) {
        *byte ^= mask;
    }
    let header = Header {
        phase: 0,
        session: SESSION,
        path,
        number: (number & 0xff_ffff) as u32,
    };
    let mut bytes = Vec::new();
    frames.iter().for_each(|frame| frame.emit(&mut bytes));
    let key = LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &key).expect("32 bytes"));
    let nonce = Nonce::assume_unique_for_key(nonce);
    key.seal_in_place_append_tag(nonce, Aad::from(header.emit()), &mut bytes)
        .expect("a short datagram");
    [&header.emit(), &bytes[..]].concat()
}
