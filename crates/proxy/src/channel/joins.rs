//! Agreement on the secret by which subflows prove themselves: the server draws it and gives it to the box in
//! its EncryptedExtensions, as a transport parameter (RFC 9000 section 18). Nobody but the box can read it
//! there, and a box believes it once the handshake is complete. So the server has it before the box, and is
//! never asked for a proof that it cannot judge.

use braid_engine::JoinAuth;
use zeroize::Zeroizing;

/// The number of the parameter, as QUIC writes it in four bytes.
const PARAMETER: [u8; 4] = [0xa2, 0x72, 0x69, 0x64];
/// The same as QUIC reads it.
const PARAMETER_ID: u64 = 0x2272_6964;

/// The secret of one connection.
pub(super) type JoinSecret = Zeroizing<[u8; 32]>;

/// What a box says in its ClientHello: it can prove its subflows.
pub(super) fn offer() -> Vec<u8> {
    [&PARAMETER[..], &[0]].concat()
}

/// What a server says in its EncryptedExtensions; a box that made no offer reads past it.
pub(super) fn answer(secret: &JoinSecret) -> Vec<u8> {
    [&PARAMETER[..], &[secret.len() as u8], &secret[..]].concat()
}

/// Returns how joins prove themselves after the other end has said `told`; `own` is the secret of a server.
pub(super) fn agreed(own: Option<&JoinSecret>, told: &[u8]) -> JoinAuth {
    let secret = match (own, find(told)) {
        (Some(own), Some(_)) => Some(**own),
        (None, Some(secret)) => secret.try_into().ok(),
        (_, None) => None,
    };
    secret.map_or(JoinAuth::Keys, JoinAuth::Secret)
}

/// The value of the parameter.
fn find(mut parameters: &[u8]) -> Option<&[u8]> {
    loop {
        let id = take_number(&mut parameters)?;
        let len = take_number(&mut parameters)?;
        let (value, rest) = parameters.split_at_checked(usize::try_from(len).ok()?)?;
        if id == PARAMETER_ID {
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
        let numbers: [(&[u8], u64); 6] = [
            (
                &[0xc2, 0x19, 0x7c, 0x5e, 0xff, 0x14, 0xe8, 0x8c],
                151_288_809_941_952_652,
            ),
            (&[0x9d, 0x7f, 0x3e, 0x7d], 494_878_333),
            (&[0x7b, 0xbd], 15_293),
            (&[0x25], 37),
            (&[0x40, 0x25], 37),
            (&PARAMETER, PARAMETER_ID),
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
        assert_eq!(agreed(None, &answer(&secret)), agreed_on);
        // Others may stand before it and behind it.
        let among = [&[1, 2, 0, 0][..], &answer(&secret), &[3, 0]].concat();
        assert_eq!(agreed(None, &among), agreed_on);
    }

    #[test]
    fn without_it_on_either_end_the_keys_decide() {
        let secret = Zeroizing::new([7; 32]);
        assert_eq!(agreed(Some(&secret), &[]), JoinAuth::Keys);
        for told in [&[][..], &[1, 1, 0], &offer(), &answer(&secret)[..36]] {
            assert_eq!(agreed(None, told), JoinAuth::Keys);
        }
    }
}
