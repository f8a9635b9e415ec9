//! Passwords are bound to user, time, destination and server, and work once.

use core::net::SocketAddrV4;
use core::time::Duration;

use braid_secure::auth::{
    AuthError, PASSWORD_LEN, SIGN_IN_LEN, SignIn, SignedMetadata, Verifier, password, to_text,
};
use braid_secure::keys::{PrivateKey, PublicKey, SIGNATURE_LEN};

const NOW: u64 = 1_800_000_000_000;
const WINDOW: u64 = 120_000;

fn key(which: u8) -> PrivateKey {
    PrivateKey::from_seed([which; 32])
}

/// Returns the user field of a SOCKS password for a key.
fn user(which: u8) -> Vec<u8> {
    key(which).public().to_string().into_bytes()
}

const ALICE: u8 = 1;
const BOB: u8 = 2;
const CAROL: u8 = 3;

fn server() -> PublicKey {
    key(9).public()
}

/// Creates a verifier that knows Alice and Bob.
fn verifier(capacity: usize) -> Verifier {
    let users = [ALICE, BOB].map(|which| key(which).public());
    Verifier::new(server(), users, Duration::from_millis(WINDOW), capacity)
}

/// Encodes address and port as a SOCKS5 request does.
fn to(addr: &str) -> Vec<u8> {
    let addr: SocketAddrV4 = addr.parse().unwrap();
    [&[1][..], &addr.ip().octets(), &addr.port().to_be_bytes()].concat()
}

/// Encodes name and port as a SOCKS5 request does.
fn to_name(name: &str, port: u16) -> Vec<u8> {
    let len = u8::try_from(name.len()).unwrap();
    [&[3, len][..], name.as_bytes(), &port.to_be_bytes()].concat()
}

/// Makes a password of Alice.
fn make(time: u64, nonce: u8) -> [u8; PASSWORD_LEN] {
    password(
        &key(ALICE),
        server(),
        &to("192.0.2.1:80"),
        time,
        [nonce; 16],
    )
}

/// The signed bytes are those in docs/protocol.md, so that other implementations interoperate.
#[test]
fn signatures_are_over_what_the_document_says() {
    let (alice, server) = (key(ALICE), server());
    let head = |version| [&[version][..], &NOW.to_be_bytes(), &[7; 16]].concat();
    let ends = [&alice.public().as_bytes()[..], server.as_bytes()].concat();
    let signs = |label: &[u8], version, rest: &[u8], signature: &[u8]| {
        let message = [label, &ends, &head(version), rest].concat();
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
fn the_right_password_serves_its_destination_only() {
    let mut v = verifier(10);
    let grant = v.check(&user(ALICE), &make(NOW, 1), NOW).unwrap();
    assert_eq!(grant.user, 0);
    assert!(v.check_request(&grant, &to("192.0.2.1:80"), None));
    assert!(!v.check_request(&grant, &to("192.0.2.1:81"), None));
    assert!(!v.check_request(&grant, &to("192.0.2.2:80"), None));
    assert!(!v.check_request(&grant, &to_name("192.0.2.1", 80), None));
}

#[test]
fn a_password_may_come_as_text_and_is_the_same_one() {
    let mut v = verifier(10);
    let password = make(NOW, 1);
    let text = to_text(&password);
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
fn user_and_key_must_fit() {
    let mut v = verifier(10);
    let mut refusal = |user: &[u8], password: &[u8]| v.check(user, password, NOW).unwrap_err();
    assert_eq!(
        refusal(&user(BOB), &make(NOW, 1)),
        AuthError::WrongSignature
    );
    let carols = password(&key(CAROL), server(), &to("192.0.2.1:80"), NOW, [1; 16]);
    assert_eq!(refusal(&user(ALICE), &carols), AuthError::WrongSignature);
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
    for version in [1, 2, 3, 5] {
        let mut other_version = make(NOW, 1);
        other_version[0] = version;
        assert_eq!(refusal(&user(ALICE), &other_version), AuthError::Malformed);
    }
    assert_eq!(v.remembered(), 0, "nobody without a key fills the memory");
}

/// A server cannot use a box's messages at another server.
#[test]
fn a_password_serves_at_its_server_only() {
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
    for (server, well) in [(elsewhere, false), (server(), true)] {
        let code = sign_in.request(&alice, server, &to("192.0.2.1:80"), &[]);
        let note = SignedMetadata {
            code: Some(&code),
            bytes: &[],
        };
        let allowed = v.check_request(&grant, &to("192.0.2.1:80"), Some(note));
        assert_eq!(allowed, well);
        let code = sign_in.probe(&alice, server, &[]);
        let note = SignedMetadata {
            code: Some(&code),
            bytes: &[],
        };
        assert_eq!(v.check_probe(&grant, note), well);
    }
}

/// A code covers destination, hints, connection and kind.
#[test]
fn a_sign_in_is_followed_by_its_own_codes_only() {
    let mut v = verifier(10);
    let (alice, server) = (key(ALICE), server());
    let sign_in = SignIn::new(NOW, [1; 16]);
    let password: [u8; SIGN_IN_LEN] = sign_in.password(&alice, server);
    let grant = v.check(&user(ALICE), &password, NOW).unwrap();
    assert!(grant.is_sign_in());
    let there = to("192.0.2.1:80");
    fn note<'a>(code: &'a [u8; SIGNATURE_LEN], bytes: &'a [u8]) -> SignedMetadata<'a> {
        let code = Some(code);
        SignedMetadata { code, bytes }
    }
    let request = sign_in.request(&alice, server, &there, b"hints");
    assert!(v.check_request(&grant, &there, Some(note(&request, b"hints"))));
    assert!(!v.check_request(&grant, &there, Some(note(&request, b"hint"))));
    assert!(!v.check_request(&grant, &to("192.0.2.1:81"), Some(note(&request, b"hints"))));
    assert!(!v.check_request(&grant, &there, None));
    assert!(!v.check_probe(&grant, note(&request, b"hints")));
    let probe = sign_in.probe(&alice, server, b"hints");
    assert!(v.check_probe(&grant, note(&probe, b"hints")));
    assert!(!v.check_probe(&grant, note(&probe, b"hint")));
    assert!(!v.check_request(&grant, &there, Some(note(&probe, b"hints"))));
    let bobs = sign_in.request(&key(BOB), server, &there, b"hints");
    assert!(!v.check_request(&grant, &there, Some(note(&bobs, b"hints"))));
    let other = SignIn::new(NOW, [2; 16]).request(&alice, server, &there, b"hints");
    assert!(!v.check_request(&grant, &there, Some(note(&other, b"hints"))));
}

#[test]
fn every_bit_counts() {
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
fn a_password_serves_once() {
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
    assert_eq!(late, AuthError::ClockSkew(-121_000 + 999));
}

#[test]
fn the_skew_is_told() {
    let mut v = verifier(10);
    let early = v
        .check(&user(ALICE), &make(NOW - 300_000, 1), NOW)
        .unwrap_err();
    assert_eq!(
        early.to_string(),
        "the box's clock is 300.0 s behind this server's; set it right"
    );
    let late = v
        .check(&user(ALICE), &make(NOW + 7_200_000, 1), NOW)
        .unwrap_err();
    assert_eq!(
        late.to_string(),
        "the box's clock is 7200.0 s ahead of this server's; set it right"
    );
    assert!(v.check(&user(ALICE), &make(u64::MAX, 1), NOW).is_err());
    assert!(v.check(&user(ALICE), &make(NOW - WINDOW, 2), NOW).is_ok());
    assert!(v.check(&user(ALICE), &make(NOW + WINDOW, 3), NOW).is_ok());
}

#[test]
fn a_restarted_server_refuses_what_it_may_have_seen() {
    let mut v = verifier(10);
    v.forget_before(NOW);
    assert_eq!(
        v.check(&user(ALICE), &make(NOW - 1, 1), NOW).unwrap_err(),
        AuthError::BeforeStart
    );
    assert!(v.check(&user(ALICE), &make(NOW, 1), NOW).is_ok());
}

#[test]
fn a_full_memory_refuses_rather_than_forgets() {
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
    let later = NOW + WINDOW + 1;
    assert!(v.check(&user(ALICE), &make(later, 4), later).is_ok());
    assert_eq!(v.remembered(), 1);
}
