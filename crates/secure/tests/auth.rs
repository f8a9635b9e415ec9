//! Passwords are bound to user, time, destination and server, and are accepted once.

use core::net::SocketAddrV4;
use core::time::Duration;

use braid_secure::auth::{
    AuthError, PASSWORD_LEN, SIGN_IN_LEN, SignIn, SignedMetadata, Verifier, password, to_text,
};
use braid_secure::keys::{PrivateKey, PublicKey, SIGNATURE_LEN};

/// The server's time, milliseconds since 1970-01-01 UTC.
const NOW: u64 = 1_800_000_000_000;
/// The tolerated difference of the clocks, milliseconds.
const WINDOW: u64 = 120_000;

fn key(id: u8) -> PrivateKey {
    PrivateKey::from_seed([id; 32])
}

/// Returns the user field that belongs to a password of the key.
fn user(id: u8) -> Vec<u8> {
    key(id).public().to_string().into_bytes()
}

const ALICE: u8 = 1;
const BOB: u8 = 2;
const CAROL: u8 = 3;

fn server() -> PublicKey {
    key(9).public()
}

/// Creates a verifier that knows Alice and Bob.
fn verifier(capacity: usize) -> Verifier {
    let users = [ALICE, BOB].map(|id| key(id).public());
    Verifier::new(server(), users, Duration::from_millis(WINDOW), capacity)
}

/// Encodes address and port as a SOCKS5 request does: type 1 (IPv4), address, port.
fn to(addr: &str) -> Vec<u8> {
    let addr: SocketAddrV4 = addr.parse().unwrap();
    [&[1][..], &addr.ip().octets(), &addr.port().to_be_bytes()].concat()
}

/// Encodes name and port as a SOCKS5 request does: type 3 (name), length, name, port.
fn to_name(name: &str, port: u16) -> Vec<u8> {
    let len = u8::try_from(name.len()).unwrap();
    [&[3, len][..], name.as_bytes(), &port.to_be_bytes()].concat()
}

/// Creates a password of Alice for 192.0.2.1:80.
fn make(time: u64, nonce: u8) -> [u8; PASSWORD_LEN] {
    password(
        &key(ALICE),
        server(),
        &to("192.0.2.1:80"),
        time,
        [nonce; 16],
    )
}

/// The signatures cover the bytes that docs/protocol.md lists, so that other implementations interoperate. A
/// password has a head of 25 bytes (version 1, time 8, nonce 16) and one or two signatures of 64.
#[test]
fn signatures_cover_the_documented_bytes() {
    let (alice, server) = (key(ALICE), server());
    let head = |version| [&[version][..], &NOW.to_be_bytes(), &[7; 16]].concat();
    let parties = [&alice.public().as_bytes()[..], server.as_bytes()].concat();
    let signs = |label: &[u8], version, rest: &[u8], signature: &[u8]| {
        let message = [label, &parties, &head(version), rest].concat();
        alice.public().verify(&message, signature)
    };
    let destination = [1, 192, 0, 2, 1, 0, 80];
    let password = password(&alice, server, &to("192.0.2.1:80"), NOW, [7; 16]);
    assert_eq!(password[..25], head(4));
    assert!(signs(b"braid socks user 2", 4, &[], &password[25..89]));
    let label = b"braid socks destination 2";
    assert!(signs(label, 4, &destination, &password[89..]));

    let sign_in = SignIn::new(NOW, [7; 16]);
    let password = sign_in.password(&alice, server);
    assert_eq!((password.len(), &password[..25]), (89, &head(3)[..]));
    assert!(signs(b"braid socks user 2", 3, &[], &password[25..]));
    let code = sign_in.request(&alice, server, &to("192.0.2.1:80"), b"hints");
    let rest = [&destination[..], b"hints"].concat();
    assert!(signs(b"braid socks request 2", 3, &rest, &code));
    let code = sign_in.probe(&alice, server, b"fields");
    assert!(signs(b"braid socks probe 2", 3, b"fields", &code));
}

#[test]
fn a_password_is_valid_for_its_destination_only() {
    let mut v = verifier(10);
    let grant = v.check(&user(ALICE), &make(NOW, 1), NOW).unwrap();
    assert_eq!(grant.user, 0);
    assert!(v.check_request(&grant, &to("192.0.2.1:80"), None));
    assert!(!v.check_request(&grant, &to("192.0.2.1:81"), None));
    assert!(!v.check_request(&grant, &to("192.0.2.2:80"), None));
    assert!(!v.check_request(&grant, &to_name("192.0.2.1", 80), None));
}

#[test]
fn a_password_as_text_equals_the_binary_one() {
    let mut v = verifier(10);
    let password = make(NOW, 1);
    let text = to_text(&password);
    // 153 bytes in base64.
    assert_eq!(text.len(), 204);
    let grant = v.check(&user(ALICE), text.as_bytes(), NOW).unwrap();
    assert!(v.check_request(&grant, &to("192.0.2.1:80"), None));
    assert!(!v.check_request(&grant, &to("192.0.2.1:81"), None));
    for again in [&password[..], text.as_bytes()] {
        let error = v.check(&user(ALICE), again, NOW).unwrap_err();
        assert_eq!(error, AuthError::Replayed);
    }
    let mut other = password;
    other[30] ^= 1;
    for (bad, error) in [
        (to_text(&other), AuthError::WrongSignature),
        (text[1..].to_owned(), AuthError::Malformed),
        (text.replacen('A', "-", 1), AuthError::Malformed),
        (format!("{}\n", &text[..203]), AuthError::Malformed),
        (format!("{}====", &text[..200]), AuthError::Malformed),
    ] {
        assert_eq!(
            v.check(&user(ALICE), bad.as_bytes(), NOW).unwrap_err(),
            error
        );
    }
}

#[test]
fn the_user_must_own_the_key() {
    let mut v = verifier(10);
    let mut refusal = |user: &[u8], password: &[u8]| v.check(user, password, NOW).unwrap_err();
    assert_eq!(
        refusal(&user(BOB), &make(NOW, 1)),
        AuthError::WrongSignature
    );
    let carols = password(&key(CAROL), server(), &to("192.0.2.1:80"), NOW, [1; 16]);
    assert_eq!(refusal(&user(ALICE), &carols), AuthError::WrongSignature);
    // A user field must be the exact text of a known key.
    let text = String::from_utf8(user(ALICE)).unwrap();
    let lower = text.to_lowercase().into_bytes();
    let padded = format!("{text} ").into_bytes();
    for unknown in [
        &user(CAROL)[..],
        &lower,
        &padded,
        b"alice",
        &[0xff; 44],
        &[],
    ] {
        assert_eq!(refusal(unknown, &make(NOW, 1)), AuthError::UnknownUser);
    }
    assert_eq!(refusal(&user(ALICE), b"hunter2"), AuthError::Malformed);
    // Version 3 has one signature only, so it does not suit a password of this length.
    for version in [1, 2, 3, 5] {
        let mut other_version = make(NOW, 1);
        other_version[0] = version;
        assert_eq!(refusal(&user(ALICE), &other_version), AuthError::Malformed);
    }
    assert_eq!(
        v.remembered(),
        0,
        "refused passwords take no entry in the replay cache"
    );
}

/// A malicious server cannot use a box's messages to sign in at another server.
#[test]
fn a_password_is_valid_at_its_server_only() {
    let mut v = verifier(10);
    let (alice, elsewhere) = (key(ALICE), key(8).public());
    let there = password(&alice, elsewhere, &to("192.0.2.1:80"), NOW, [1; 16]);
    let refusal = v.check(&user(ALICE), &there, NOW).unwrap_err();
    assert_eq!(refusal, AuthError::WrongSignature);
    let sign_in = SignIn::new(NOW, [1; 16]);
    let there = sign_in.password(&alice, elsewhere);
    let refusal = v.check(&user(ALICE), &there, NOW).unwrap_err();
    assert_eq!(refusal, AuthError::WrongSignature);
    let here = sign_in.password(&alice, server());
    let grant = v.check(&user(ALICE), &here, NOW).unwrap();
    for (server, accepted) in [(elsewhere, false), (server(), true)] {
        let code = sign_in.request(&alice, server, &to("192.0.2.1:80"), &[]);
        let metadata = SignedMetadata {
            code: Some(&code),
            bytes: &[],
        };
        let allowed = v.check_request(&grant, &to("192.0.2.1:80"), Some(metadata));
        assert_eq!(allowed, accepted);
        let code = sign_in.probe(&alice, server, &[]);
        let metadata = SignedMetadata {
            code: Some(&code),
            bytes: &[],
        };
        assert_eq!(v.check_probe(&grant, metadata), accepted);
    }
}

/// The second signature covers destination, hints, connection (by the nonce) and purpose (request or probe).
#[test]
fn the_second_signature_is_valid_for_its_sign_in_only() {
    let mut v = verifier(10);
    let (alice, server) = (key(ALICE), server());
    let sign_in = SignIn::new(NOW, [1; 16]);
    let password: [u8; SIGN_IN_LEN] = sign_in.password(&alice, server);
    let grant = v.check(&user(ALICE), &password, NOW).unwrap();
    assert!(grant.is_sign_in());
    let there = to("192.0.2.1:80");
    fn signed<'a>(code: &'a [u8; SIGNATURE_LEN], bytes: &'a [u8]) -> SignedMetadata<'a> {
        let code = Some(code);
        SignedMetadata { code, bytes }
    }
    let request = sign_in.request(&alice, server, &there, b"hints");
    assert!(v.check_request(&grant, &there, Some(signed(&request, b"hints"))));
    assert!(!v.check_request(&grant, &there, Some(signed(&request, b"hint"))));
    assert!(!v.check_request(
        &grant,
        &to("192.0.2.1:81"),
        Some(signed(&request, b"hints"))
    ));
    assert!(!v.check_request(&grant, &there, None));
    assert!(!v.check_probe(&grant, signed(&request, b"hints")));
    let probe = sign_in.probe(&alice, server, b"hints");
    assert!(v.check_probe(&grant, signed(&probe, b"hints")));
    assert!(!v.check_probe(&grant, signed(&probe, b"hint")));
    assert!(!v.check_request(&grant, &there, Some(signed(&probe, b"hints"))));
    let bobs = sign_in.request(&key(BOB), server, &there, b"hints");
    assert!(!v.check_request(&grant, &there, Some(signed(&bobs, b"hints"))));
    let other = SignIn::new(NOW, [2; 16]).request(&alice, server, &there, b"hints");
    assert!(!v.check_request(&grant, &there, Some(signed(&other, b"hints"))));
}

#[test]
fn every_changed_bit_is_refused() {
    // The version, the first byte, is in `the_user_must_own_the_key`.
    for bit in 8..PASSWORD_LEN * 8 {
        let mut v = verifier(10);
        let mut p = make(NOW, 1);
        p[bit / 8] ^= 1 << (bit % 8);
        let accepted = v
            .check(&user(ALICE), &p, NOW)
            .is_ok_and(|g| v.check_request(&g, &to("192.0.2.1:80"), None));
        assert!(!accepted, "bit {bit}");
    }
}

#[test]
fn a_password_is_accepted_once() {
    let mut v = verifier(10);
    assert!(v.check(&user(ALICE), &make(NOW, 1), NOW).is_ok());
    assert_eq!(
        v.check(&user(ALICE), &make(NOW, 1), NOW).unwrap_err(),
        AuthError::Replayed
    );
    let last = NOW + WINDOW;
    assert_eq!(
        v.check(&user(ALICE), &make(NOW, 1), last).unwrap_err(),
        AuthError::Replayed
    );
    let late = v.check(&user(ALICE), &make(NOW, 1), last + 1).unwrap_err();
    // One millisecond more than the window.
    assert_eq!(late, AuthError::ClockSkew(-120_001));
}

#[test]
fn the_error_names_the_clock_skew() {
    let mut v = verifier(10);
    let early = v
        .check(&user(ALICE), &make(NOW - 300_000, 1), NOW)
        .unwrap_err();
    assert_eq!(
        early.to_string(),
        "the box's clock is 300.0 s behind this server's; correct the clock that is wrong"
    );
    let late = v
        .check(&user(ALICE), &make(NOW + 7_200_000, 1), NOW)
        .unwrap_err();
    assert_eq!(
        late.to_string(),
        "the box's clock is 7200.0 s ahead of this server's; correct the clock that is wrong"
    );
    assert!(v.check(&user(ALICE), &make(u64::MAX, 1), NOW).is_err());
    assert!(v.check(&user(ALICE), &make(NOW - WINDOW, 2), NOW).is_ok());
    assert!(v.check(&user(ALICE), &make(NOW + WINDOW, 3), NOW).is_ok());
}

#[test]
fn a_restarted_server_refuses_older_passwords() {
    let mut v = verifier(10);
    v.forget_before(NOW);
    assert_eq!(
        v.check(&user(ALICE), &make(NOW - 1, 1), NOW).unwrap_err(),
        AuthError::BeforeStart
    );
    assert!(v.check(&user(ALICE), &make(NOW, 1), NOW).is_ok());
}

#[test]
fn a_full_replay_cache_refuses_instead_of_evicting() {
    let mut v = verifier(3);
    for nonce in 0..3 {
        assert!(v.check(&user(ALICE), &make(NOW, nonce), NOW).is_ok());
    }
    assert_eq!(
        v.check(&user(ALICE), &make(NOW, 3), NOW).unwrap_err(),
        AuthError::ReplayCacheFull
    );
    assert_eq!(
        v.check(&user(ALICE), &make(NOW, 0), NOW).unwrap_err(),
        AuthError::Replayed
    );
    // The three entries have expired by then.
    let later = NOW + WINDOW + 1;
    assert!(v.check(&user(ALICE), &make(later, 4), later).is_ok());
    assert_eq!(v.remembered(), 1);
}
