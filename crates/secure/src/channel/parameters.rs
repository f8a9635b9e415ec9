//! The parameters that box and server exchange in the handshake, encoded as QUIC transport parameters (RFC 9000
//! section 18). The box sends its own in the ClientHello, which anybody can read; the server sends its own in the
//! EncryptedExtensions, which only the box can read. The box relies on them once the handshake is complete.
//!
//! - The secret that authenticates subflows. The server draws it, so the server has it before the box and is never
//!   asked for a proof that it cannot check.
//! - The address families in which the server reaches destinations.
//! - The versions of the protocol that the end speaks, and its features.

use braid_engine::JoinAuth;
use zeroize::Zeroizing;

use super::versions::Versions;
use crate::Families;

// The numbers begin at "brid" in ASCII, as much of it as the 30 bits of a four-byte integer hold.
/// The number of the parameter with the secret.
const SECRET: u32 = 0x2272_6964;
/// The number of the parameter with the families.
const FAMILIES: u32 = 0x2272_6965;
/// The number of the parameter with the versions.
const VERSIONS: u32 = 0x2272_6966;

/// The secret of one connection that authenticates its subflows.
pub(super) type JoinSecret = Zeroizing<[u8; 32]>;

/// Returns the parameters of a box: it can authenticate subflows, and speaks `versions`.
pub(super) fn offer(versions: Versions) -> Vec<u8> {
    let mut said = Vec::new();
    put(&mut said, SECRET, &[]);
    put_versions(&mut said, versions);
    said
}

/// Returns the parameters of a server. A box that made no offer ignores them. The families are left out where the
/// server reaches both.
pub(super) fn answer(secret: &JoinSecret, reached: Families, versions: Versions) -> Vec<u8> {
    // A box of an older release takes missing families for both, so only a restriction needs a word.
    let mut said = Vec::new();
    put(&mut said, SECRET, &secret[..]);
    if reached != Families::BOTH {
        put(&mut said, FAMILIES, &[reached.to_bits()]);
    }
    put_versions(&mut said, versions);
    said
}

/// Appends the versions of an end. An end that speaks version 1 alone announces nothing.
fn put_versions(said: &mut Vec<u8>, versions: Versions) {
    if versions != Versions::UNSAID {
        put(said, VERSIONS, &versions.encode());
    }
}

/// Returns the versions that the peer's parameters `told` announce; `None` if they have an unknown form.
pub(super) fn versions(told: &[u8]) -> Option<Versions> {
    match find(told, VERSIONS) {
        Some(said) => Versions::decode(said),
        None => Some(Versions::UNSAID),
    }
}

/// Returns the families in the server's parameters `told`; both where they are missing or malformed.
pub(super) fn families(told: &[u8]) -> Families {
    match find(told, FAMILIES) {
        Some([bits]) => Families::from_bits(*bits),
        _ => Families::BOTH,
    }
}

/// Returns how MP_JOINs authenticate after the peer sent `told`; `own` is the secret of a server.
pub(super) fn agreed(own: Option<&JoinSecret>, told: &[u8]) -> JoinAuth {
    let secret = match (own, find(told, SECRET)) {
        (Some(own), Some(_)) => Some(**own),
        (None, Some(secret)) => secret.try_into().ok(),
        (_, None) => None,
    };
    secret.map_or(JoinAuth::Keys, JoinAuth::Secret)
}

/// Appends a parameter: its number in four bytes, its length in one, its value.
fn put(said: &mut Vec<u8>, id: u32, value: &[u8]) {
    /// The two leading bits of a four-byte integer (RFC 9000 section 16).
    const FOUR_BYTES: u32 = 0b10 << 30;
    debug_assert!(value.len() < 64, "the length of {id:#x} has one byte");
    said.extend_from_slice(&(FOUR_BYTES | id).to_be_bytes());
    said.push(value.len() as u8);
    said.extend_from_slice(value);
}

/// Returns the value of the parameter `wanted`; skips others. `None` where it is missing or malformed.
fn find(mut parameters: &[u8], wanted: u32) -> Option<&[u8]> {
    loop {
        let id = take_number(&mut parameters)?;
        let len = take_number(&mut parameters)?;
        let (value, rest) = parameters.split_at_checked(usize::try_from(len).ok()?)?;
        if id == u64::from(wanted) {
            return Some(value);
        }
        parameters = rest;
    }
}

/// Takes an integer of variable length (RFC 9000 section 16); `None` where it is cut off.
fn take_number(bytes: &mut &[u8]) -> Option<u64> {
    let (first, _) = bytes.split_first()?;
    let (number, rest) = bytes.split_at_checked(1 << (first >> 6))?;
    *bytes = rest;
    let value = number.iter().fold(0, |n, byte| n << 8 | u64::from(*byte));
    Some(value & (u64::MAX >> (66 - 8 * number.len())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_as_in_the_rfc() {
        // RFC 9000 appendix A.1.
        let numbers: [(&[u8], u64); 6] = [
            (
                &[0xc2, 0x19, 0x7c, 0x5e, 0xff, 0x14, 0xe8, 0x8c],
                151_288_809_941_952_652,
            ),
            (&[0x9d, 0x7f, 0x3e, 0x7d], 494_878_333),
            (&[0x7b, 0xbd], 15_293),
            (&[0x25], 37),
            (&[0x40, 0x25], 37),
            (&[0xa2, 0x72, 0x69, 0x64], SECRET.into()),
        ];
        for (bytes, number) in numbers {
            let mut rest = bytes;
            assert_eq!(take_number(&mut rest), Some(number));
            assert!(rest.is_empty());
            assert_eq!(take_number(&mut &bytes[..bytes.len() - 1]), None);
        }
    }

    #[test]
    fn both_ends_agree_on_the_secret_of_the_server() {
        let secret = Zeroizing::new([7; 32]);
        let agreed_on = JoinAuth::Secret([7; 32]);
        assert_eq!(agreed(Some(&secret), &offer(Versions::OURS)), agreed_on);
        let answer = answer(&secret, Families::BOTH, Versions::OURS);
        assert_eq!(agreed(None, &answer), agreed_on);
        // Other parameters may stand around it.
        let among = [&[1, 2, 0, 0][..], &answer, &[3, 0]].concat();
        assert_eq!(agreed(None, &among), agreed_on);
    }

    #[test]
    fn without_it_on_either_end_the_keys_decide() {
        let secret = Zeroizing::new([7; 32]);
        assert_eq!(agreed(Some(&secret), &[]), JoinAuth::Keys);
        let answer = answer(&secret, Families::BOTH, Versions::OURS);
        for told in [&[][..], &[1, 1, 0], &offer(Versions::OURS), &answer[..36]] {
            assert_eq!(agreed(None, told), JoinAuth::Keys);
        }
    }

    #[test]
    fn a_server_says_which_families_it_reaches() {
        let secret = Zeroizing::new([7; 32]);
        let v4_only = Families {
            v4: true,
            v6: false,
        };
        let told = answer(&secret, v4_only, Versions::OURS);
        assert_eq!(told[37..43], [0xa2, 0x72, 0x69, 0x65, 1, 0b01]);
        assert_eq!(families(&told), v4_only);
        let both = answer(&secret, Families::BOTH, Versions::OURS);
        assert_eq!(
            (find(&both, FAMILIES), families(&both)),
            (None, Families::BOTH)
        );
        // A parameter of a later release stands before it, and further bits have a meaning there.
        let later = [
            &[0x40, 0x25, 1, 9][..],
            &[0xa2, 0x72, 0x69, 0x65, 1, 0b1110],
        ]
        .concat();
        let v6_only = Families {
            v4: false,
            v6: true,
        };
        assert_eq!(families(&later), v6_only);
        // A box of an older release ignores the families and still finds the secret.
        assert_eq!(agreed(None, &told), JoinAuth::Secret([7; 32]));
    }

    #[test]
    fn a_server_that_says_nothing_of_families_reaches_both() {
        let malformed = [0xa2, 0x72, 0x69, 0x65, 2, 0, 0];
        let cut = [0xa2, 0x72, 0x69, 0x65, 1];
        for told in [&[][..], &[1, 1, 0], &malformed, &cut] {
            assert_eq!(families(told), Families::BOTH);
        }
    }

    #[test]
    fn each_end_says_the_versions_that_it_speaks() {
        let speaks = Versions::new(2, 5, 0x8000_0001).unwrap();
        let said = [0xa2, 0x72, 0x69, 0x66, 8, 0, 5, 0, 2, 0x80, 0, 0, 1];
        assert_eq!(offer(speaks)[5..], said);
        let told = answer(&Zeroizing::new([7; 32]), Families::BOTH, speaks);
        assert_eq!(told[37..], said);
        assert_eq!(versions(&told), Some(speaks));
        // A later release may append further fields.
        let later = [&[0xa2, 0x72, 0x69, 0x66, 10][..], &said[5..], &[9, 9]].concat();
        assert_eq!(versions(&later), Some(speaks));
        // Releases before version 2 announce nothing.
        assert_eq!(offer(Versions::UNSAID), [0xa2, 0x72, 0x69, 0x64, 0]);
        assert_eq!(versions(&offer(Versions::UNSAID)), Some(Versions::UNSAID));
        for malformed in [
            &[][..],
            &[0, 5, 0, 2, 0, 0, 0],
            &[0, 2, 0, 5, 0, 0, 0, 0],
            &[0; 8],
        ] {
            let mut told = Vec::new();
            put(&mut told, VERSIONS, malformed);
            assert_eq!(versions(&told), None, "{malformed:?}");
        }
    }
}
