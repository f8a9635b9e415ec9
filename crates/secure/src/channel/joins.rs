//! Agreement on the secret by which subflows prove themselves: the server draws it and gives it to the box in
//! its EncryptedExtensions, as a transport parameter (RFC 9000 section 18). Nobody but the box can read it
//! there, and a box believes it once the handshake is complete. So the server has it before the box, and is
//! never asked for a proof that it cannot judge.
//!
//! A further parameter beside it has the address families in which the server reaches destinations.

use braid_engine::JoinAuth;
use zeroize::Zeroizing;

use crate::Families;

/// The number of the parameter, as QUIC writes it in four bytes.
const PARAMETER: [u8; 4] = [0xa2, 0x72, 0x69, 0x64];
/// The same as QUIC reads it.
const PARAMETER_ID: u64 = 0x2272_6964;
/// The number of the parameter with the families.
const FAMILIES: [u8; 4] = [0xa2, 0x72, 0x69, 0x65];
const FAMILIES_ID: u64 = 0x2272_6965;

/// The secret of one connection.
pub(super) type JoinSecret = Zeroizing<[u8; 32]>;

/// What a box says in its ClientHello: it can prove its subflows.
pub(super) fn offer() -> Vec<u8> {
    [&PARAMETER[..], &[0]].concat()
}

/// Returns what a server says in its EncryptedExtensions; a box that made no offer reads past it. Nothing is
/// said of families where both are reached.
pub(super) fn answer(secret: &JoinSecret, reached: Families) -> Vec<u8> {
    let mut said = [&PARAMETER[..], &[secret.len() as u8], &secret[..]].concat();
    if reached != Families::BOTH {
        said.extend_from_slice(&FAMILIES);
        said.extend_from_slice(&[1, reached.to_bits()]);
    }
    said
}

/// Returns the families in which the server reaches destinations that has said `told`; both where it says
/// nothing of them.
pub(super) fn families(told: &[u8]) -> Families {
    match find(told, FAMILIES_ID) {
        Some([bits]) => Families::from_bits(*bits),
        _ => Families::BOTH,
    }
}

/// Returns how joins prove themselves after the other end has said `told`; `own` is the secret of a server.
pub(super) fn agreed(own: Option<&JoinSecret>, told: &[u8]) -> JoinAuth {
    let secret = match (own, find(told, PARAMETER_ID)) {
        (Some(own), Some(_)) => Some(**own),
        (None, Some(secret)) => secret.try_into().ok(),
        (_, None) => None,
    };
    secret.map_or(JoinAuth::Keys, JoinAuth::Secret)
}

/// The value of the parameter with this number; others are skipped.
fn find(mut parameters: &[u8], wanted: u64) -> Option<&[u8]> {
    loop {
        let id = take_number(&mut parameters)?;
        let len = take_number(&mut parameters)?;
        let (value, rest) = parameters.split_at_checked(usize::try_from(len).ok()?)?;
        if id == wanted {
            return Some(value);
        }
        parameters = rest;
    }
}

/// An integer of variable length (RFC 9000 section 16).
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
        let numbers: [(&[u8], u64); 7] = [
            (
                &[0xc2, 0x19, 0x7c, 0x5e, 0xff, 0x14, 0xe8, 0x8c],
                151_288_809_941_952_652,
            ),
            (&[0x9d, 0x7f, 0x3e, 0x7d], 494_878_333),
            (&[0x7b, 0xbd], 15_293),
            (&[0x25], 37),
            (&[0x40, 0x25], 37),
            (&PARAMETER, PARAMETER_ID),
            (&FAMILIES, FAMILIES_ID),
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
        assert_eq!(agreed(Some(&secret), &offer()), agreed_on);
        let answer = answer(&secret, Families::BOTH);
        assert_eq!(agreed(None, &answer), agreed_on);
        // Others may stand before it and behind it.
        let among = [&[1, 2, 0, 0][..], &answer, &[3, 0]].concat();
        assert_eq!(agreed(None, &among), agreed_on);
    }

    #[test]
    fn without_it_on_either_end_the_keys_decide() {
        let secret = Zeroizing::new([7; 32]);
        assert_eq!(agreed(Some(&secret), &[]), JoinAuth::Keys);
        let answer = answer(&secret, Families::BOTH);
        for told in [&[][..], &[1, 1, 0], &offer(), &answer[..36]] {
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
        let told = answer(&secret, v4_only);
        assert_eq!(told[37..], [0xa2, 0x72, 0x69, 0x65, 1, 0b01]);
        assert_eq!(families(&told), v4_only);
        let both = answer(&secret, Families::BOTH);
        assert_eq!((both.len(), families(&both)), (37, Families::BOTH));
        // A parameter of a later release stands before it, and further bits have a meaning there.
        let later = [&[0x40, 0x25, 1, 9][..], &FAMILIES, &[1, 0b1110]].concat();
        let v6_only = Families {
            v4: false,
            v6: true,
        };
        assert_eq!(families(&later), v6_only);
        // A box of the release before has no word for it, and finds its secret.
        assert_eq!(agreed(None, &told), JoinAuth::Secret([7; 32]));
    }

    #[test]
    fn a_server_that_says_nothing_of_families_reaches_both() {
        let malformed = [&FAMILIES[..], &[2, 0, 0]].concat();
        let cut = [&FAMILIES[..], &[1]].concat();
        for told in [&[][..], &[1, 1, 0], &malformed, &cut] {
            assert_eq!(families(told), Families::BOTH);
        }
    }
}
