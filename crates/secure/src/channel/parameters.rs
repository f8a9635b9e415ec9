//! The parameters that box and server exchange in the handshake, encoded as QUIC transport parameters (RFC 9000
//! section 18). The box sends its parameters in the ClientHello, which anybody can read. The server sends its own
//! in the EncryptedExtensions, which only the box can read. The box relies on the server's parameters once the
//! handshake is complete.
//!
//! - The secret that authenticates subflows. The server draws the secret, and so knows it before a box can use it.
//!   The box's parameter is empty: an offer to use the server's secret.
//! - The address families in which the server reaches destinations.
//! - The versions of the protocol that the end speaks, and its features.

use braid_engine::JoinAuth;
use zeroize::Zeroizing;

use super::versions::Versions;
use crate::Families;

// The numbers count up from "brid" in ASCII (0x62726964), without the two bits that a four-byte integer of QUIC
// uses for its length. The numbers are large so that they do not collide with registered parameters.
/// The number of the parameter with the secret.
const JOIN_SECRET_ID: u32 = 0x2272_6964;
/// The number of the parameter with the families.
const FAMILIES_ID: u32 = 0x2272_6965;
/// The number of the parameter with the versions.
const VERSIONS_ID: u32 = 0x2272_6966;

/// The secret of one connection that authenticates its subflows.
pub(super) type JoinSecret = Zeroizing<[u8; 32]>;

/// Returns the parameters of a box that speaks `versions`. They offer to authenticate subflows by a secret.
pub(super) fn client_parameters(versions: Versions) -> Vec<u8> {
    let mut out = Vec::new();
    put(&mut out, JOIN_SECRET_ID, &[]);
    put_versions(&mut out, versions);
    out
}

/// Returns the parameters of a server. The server's parameters do not depend on the box's parameters, because
/// rustls needs those of the server before it reads the ClientHello. A box of an older release ignores parameters
/// that it does not know.
pub(super) fn server_parameters(
    secret: &JoinSecret,
    reached: Families,
    versions: Versions,
) -> Vec<u8> {
    // If the parameter is missing, a box assumes both families. So only a server that reaches fewer sends the
    // parameter.
    let mut out = Vec::new();
    put(&mut out, JOIN_SECRET_ID, &secret[..]);
    if reached != Families::BOTH {
        put(&mut out, FAMILIES_ID, &[reached.to_bits()]);
    }
    put_versions(&mut out, versions);
    out
}

/// Appends the versions of an end. An end that speaks version 1 alone announces nothing, as releases without the
/// announcement do.
fn put_versions(out: &mut Vec<u8>, versions: Versions) {
    if versions != Versions::UNANNOUNCED {
        put(out, VERSIONS_ID, &versions.encode());
    }
}

/// Returns the versions that the peer's `parameters` announce; `None` if they have an unknown form.
pub(super) fn versions(parameters: &[u8]) -> Option<Versions> {
    match find(parameters, VERSIONS_ID) {
        Some(value) => Versions::decode(value),
        None => Some(Versions::UNANNOUNCED),
    }
}

/// Returns the families in the server's `parameters`, or both families if the parameter is missing or malformed.
pub(super) fn families(parameters: &[u8]) -> Families {
    match find(parameters, FAMILIES_ID) {
        Some([bits]) => Families::from_bits(*bits),
        _ => Families::BOTH,
    }
}

/// Returns how MP_JOINs authenticate after the peer sent `parameters`. A server passes the secret that it drew as
/// `drawn`; a box passes `None`, and finds the secret in `parameters`. If an end has no secret, as with an older
/// release, the keys of MPTCP authenticate (RFC 8684 section 3.2).
pub(super) fn join_auth(drawn: Option<&JoinSecret>, parameters: &[u8]) -> JoinAuth {
    let secret = match (drawn, find(parameters, JOIN_SECRET_ID)) {
        (Some(drawn), Some(_)) => Some(**drawn),
        (None, Some(secret)) => secret.try_into().ok(),
        (_, None) => None,
    };
    secret.map_or(JoinAuth::Keys, JoinAuth::Secret)
}

/// Appends a parameter: its number in four bytes, its length in one, its value.
fn put(out: &mut Vec<u8>, id: u32, value: &[u8]) {
    /// The two leading bits of a four-byte integer (RFC 9000 section 16).
    const FOUR_BYTES: u32 = 0b10 << 30;
    // A one-byte integer has 6 bits for the value (RFC 9000 section 16).
    debug_assert!(value.len() < 64, "the length of {id:#x} has one byte");
    out.extend_from_slice(&(FOUR_BYTES | id).to_be_bytes());
    out.push(value.len() as u8);
    out.extend_from_slice(value);
}

/// Returns the value of the parameter `wanted`, and skips other parameters. Returns `None` if it is missing or
/// malformed.
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

/// Takes an integer of variable length (RFC 9000 section 16) from the front of `bytes`. Returns `None` if the
/// integer is cut off.
fn take_number(bytes: &mut &[u8]) -> Option<u64> {
    let (first, _) = bytes.split_first()?;
    // The two highest bits are the logarithm of the length: 1, 2, 4 or 8 bytes. They are no part of the value.
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
        // All but the last are from RFC 9000 appendix A.1.
        let numbers: [(&[u8], u64); 6] = [
            (
                &[0xc2, 0x19, 0x7c, 0x5e, 0xff, 0x14, 0xe8, 0x8c],
                151_288_809_941_952_652,
            ),
            (&[0x9d, 0x7f, 0x3e, 0x7d], 494_878_333),
            (&[0x7b, 0xbd], 15_293),
            (&[0x25], 37),
            (&[0x40, 0x25], 37),
            (&[0xa2, 0x72, 0x69, 0x64], JOIN_SECRET_ID.into()),
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
        let expected = JoinAuth::Secret([7; 32]);
        assert_eq!(
            join_auth(Some(&secret), &client_parameters(Versions::OURS)),
            expected
        );
        let answer = server_parameters(&secret, Families::BOTH, Versions::OURS);
        assert_eq!(join_auth(None, &answer), expected);
        // Parameters with other numbers (1 and 3) may precede and follow the secret.
        let among = [&[1, 2, 0, 0][..], &answer, &[3, 0]].concat();
        assert_eq!(join_auth(None, &among), expected);
    }

    #[test]
    fn without_a_secret_on_either_end_the_keys_authenticate() {
        let secret = Zeroizing::new([7; 32]);
        assert_eq!(join_auth(Some(&secret), &[]), JoinAuth::Keys);
        let answer = server_parameters(&secret, Families::BOTH, Versions::OURS);
        // No parameter, another one, an empty secret, and a secret that is cut off (36 of 37 bytes).
        for parameters in [
            &[][..],
            &[1, 1, 0],
            &client_parameters(Versions::OURS),
            &answer[..36],
        ] {
            assert_eq!(join_auth(None, parameters), JoinAuth::Keys);
        }
    }

    #[test]
    fn a_server_says_which_families_it_reaches() {
        let secret = Zeroizing::new([7; 32]);
        let v4_only = Families {
            v4: true,
            v6: false,
        };
        let parameters = server_parameters(&secret, v4_only, Versions::OURS);
        // The secret takes 4 bytes for its number, 1 for its length and 32 for its value.
        assert_eq!(parameters[37..43], [0xa2, 0x72, 0x69, 0x65, 1, 0b01]);
        assert_eq!(families(&parameters), v4_only);
        let both = server_parameters(&secret, Families::BOTH, Versions::OURS);
        assert_eq!(
            (find(&both, FAMILIES_ID), families(&both)),
            (None, Families::BOTH)
        );
        // A later release may put another parameter first, and give further bits a meaning.
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
        assert_eq!(join_auth(None, &parameters), JoinAuth::Secret([7; 32]));
    }

    #[test]
    fn a_server_that_announces_no_valid_families_reaches_both() {
        // Two bytes instead of one; a length of one without the byte.
        let malformed = [0xa2, 0x72, 0x69, 0x65, 2, 0, 0];
        let cut = [0xa2, 0x72, 0x69, 0x65, 1];
        for parameters in [&[][..], &[1, 1, 0], &malformed, &cut] {
            assert_eq!(families(parameters), Families::BOTH);
        }
    }

    #[test]
    fn each_end_says_the_versions_that_it_speaks() {
        let speaks = Versions::new(2, 5, 0x8000_0001).unwrap();
        let out = [0xa2, 0x72, 0x69, 0x66, 8, 0, 5, 0, 2, 0x80, 0, 0, 1];
        assert_eq!(client_parameters(speaks)[5..], out);
        let parameters = server_parameters(&Zeroizing::new([7; 32]), Families::BOTH, speaks);
        assert_eq!(parameters[37..], out);
        assert_eq!(versions(&parameters), Some(speaks));
        // A later release may append further fields.
        let later = [&[0xa2, 0x72, 0x69, 0x66, 10][..], &out[5..], &[9, 9]].concat();
        assert_eq!(versions(&later), Some(speaks));
        // Releases before version 2 announce nothing.
        assert_eq!(
            client_parameters(Versions::UNANNOUNCED),
            [0xa2, 0x72, 0x69, 0x64, 0]
        );
        assert_eq!(
            versions(&client_parameters(Versions::UNANNOUNCED)),
            Some(Versions::UNANNOUNCED)
        );
        // Empty, a byte too short, oldest (5) above newest (2), and version 0.
        for malformed in [
            &[][..],
            &[0, 5, 0, 2, 0, 0, 0],
            &[0, 2, 0, 5, 0, 0, 0, 0],
            &[0; 8],
        ] {
            let mut parameters = Vec::new();
            put(&mut parameters, VERSIONS_ID, malformed);
            assert_eq!(versions(&parameters), None, "{malformed:?}");
        }
    }
}
