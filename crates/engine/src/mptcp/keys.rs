//! Keys, and the tokens and HMACs derived from them (RFC 8684 sections 3.1, 3.2 and 3.4.1).

use core::net::IpAddr;

use braid_wire::mptcp::AddAddr;
use braid_wire::{Dsn64, Rng};
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

/// A key and the values derived from it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Keys {
    pub key: u64,
    /// The most significant 32 bits of SHA-256 of the key.
    pub token: u32,
    /// The initial data sequence number: the least significant 64 bits of the same hash.
    pub idsn: Dsn64,
}

impl core::fmt::Debug for Keys {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        // The key authenticates subflows, so it stays out of logs.
        write!(f, "Keys(token {:08x})", self.token)
    }
}

impl Keys {
    // Conforms: 8684-3.1-11
    pub fn from_key(key: u64) -> Self {
        let hash: [u8; 32] = Sha256::digest(key.to_be_bytes()).into();
        let mut token = [0; 4];
        let mut idsn = [0; 8];
        token.copy_from_slice(&hash[..4]);
        idsn.copy_from_slice(&hash[24..]);
        Keys {
            key,
            token: u32::from_be_bytes(token),
            idsn: Dsn64(u64::from_be_bytes(idsn)),
        }
    }

    pub fn generate(rng: &mut Rng) -> Self {
        Keys::from_key(rng.u64())
    }
}

/// Returns the start of an HMAC-SHA256. Its key consists of both keys, the sender's first, and of the
/// application's secret, if there is one.
fn keyed(sender: u64, receiver: u64, secret: Option<&[u8; 32]>) -> Hmac<Sha256> {
    // HMAC pads a key shorter than the 64 bytes of a block with zeros (RFC 2104). So without a secret this is
    // the HMAC of RFC 8684, whose key has 16 bytes.
    let mut key = [0; 64];
    key[..8].copy_from_slice(&sender.to_be_bytes());
    key[8..16].copy_from_slice(&receiver.to_be_bytes());
    if let Some(secret) = secret {
        key[16..48].copy_from_slice(secret);
    }
    Hmac::<Sha256>::new(&key.into())
}

/// Returns the HMAC of MP_JOIN. `sender` and `receiver` are the key and the nonce of each end. The message
/// consists of both nonces, the sender's first.
// Conforms: 8684-3.2-15
pub(crate) fn join_hmac(
    sender: (u64, u32),
    receiver: (u64, u32),
    secret: Option<&[u8; 32]>,
) -> [u8; 32] {
    let mut mac = keyed(sender.0, receiver.0, secret);
    mac.update(&sender.1.to_be_bytes());
    mac.update(&receiver.1.to_be_bytes());
    mac.finalize().into_bytes().into()
}

/// Returns the rightmost 64 bits of the HMAC of ADD_ADDR. The message consists of id, address and port; the
/// port is 0 if the option has none (RFC 8684 section 3.4.1). `keys` are the sender's and the receiver's.
// Conforms: 8684-3.4.1-7
pub(crate) fn announcement_hmac(keys: (u64, u64), secret: Option<&[u8; 32]>, add: &AddAddr) -> u64 {
    let mut mac = keyed(keys.0, keys.1, secret);
    mac.update(&[add.address_id]);
    match add.addr {
        IpAddr::V4(addr) => mac.update(&addr.octets()),
        IpAddr::V6(addr) => mac.update(&addr.octets()),
    }
    mac.update(&add.port.unwrap_or(0).to_be_bytes());
    let hmac: [u8; 32] = mac.finalize().into_bytes().into();
    let mut tail = [0; 8];
    tail.copy_from_slice(&hmac[24..]);
    u64::from_be_bytes(tail)
}

/// Returns the HMAC of the number of a join, from which the nonce of its SYN is made. The message is 16 bytes
/// long. All other messages under these keys have another length: 8 bytes for MP_JOIN, 7 or 19 for ADD_ADDR. So
/// no HMAC seen on the wire for one purpose serves another.
pub(crate) fn join_number_hmac(keys: (u64, u64), secret: &[u8; 32], number: u64) -> [u8; 32] {
    let mut mac = keyed(keys.0, keys.1, Some(secret));
    mac.update(b"join SYN");
    mac.update(&number.to_be_bytes());
    mac.finalize().into_bytes().into()
}

/// Returns the leftmost 64 bits of an HMAC, which the SYN/ACK of a join carries (RFC 8684 section 3.2).
pub(crate) fn hmac64(hmac: &[u8; 32]) -> u64 {
    let mut head = [0; 8];
    head.copy_from_slice(&hmac[..8]);
    u64::from_be_bytes(head)
}

/// Returns the leftmost 160 bits of an HMAC, which the third ACK of a join carries (RFC 8684 section 3.2).
pub(crate) fn hmac160(hmac: &[u8; 32]) -> [u8; 20] {
    let mut head = [0; 20];
    head.copy_from_slice(&hmac[..20]);
    head
}

#[cfg(test)]
mod tests {
    use super::*;

    // Conforms: 8684-3.1-11
    #[test]
    fn token_and_idsn_are_the_ends_of_the_hash() {
        // printf '\0\0\0\0\0\0\0\1' | sha256sum
        let keys = Keys::from_key(1);
        assert_eq!(keys.token, 0xcd26_6215);
        assert_eq!(keys.idsn, Dsn64(0x19ec_5090_83d0_0a50));
    }

    // Conforms: 8684-3.2-15
    #[test]
    fn join_hmac_depends_on_the_order() {
        let (a, b) = ((1, 2), (3, 4));
        assert_ne!(join_hmac(a, b, None), join_hmac(b, a, None));
    }

    #[test]
    fn a_secret_is_a_part_of_the_key() {
        // printf '\0\0\0\2\0\0\0\4' | openssl dgst -sha256 -mac HMAC -macopt hexkey:KEY, where KEY is
        // 0000000000000001, 0000000000000003 and 32 times 07.
        let hmac = join_hmac((1, 2), (3, 4), Some(&[7; 32]));
        assert_eq!(hmac64(&hmac), 0x513b_6bdd_a085_912e);
        assert_ne!(hmac, join_hmac((1, 2), (3, 4), None));
        assert_ne!(hmac, join_hmac((1, 2), (3, 4), Some(&[8; 32])));
    }
}
