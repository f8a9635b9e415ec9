//! Passwords: who, when, where, once.

use core::time::Duration;

use braid_proxy::auth::{AuthError, PASSWORD_LEN, Verifier, password};
use braid_proxy::config::{Secret, UserConfig};
use braid_proxy::socks::Destination;

const NOW: u64 = 1_800_000_000_000;
const WINDOW: u64 = 120_000;

fn secret(which: u8) -> Secret {
    Secret::new(&format!(
        "{which}9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c1"
    ))
    .unwrap()
}

fn verifier(capacity: usize) -> Verifier {
    let users: Vec<UserConfig> = [("alice", 1), ("bob", 2)]
        .map(|(name, s)| UserConfig {
            name: name.into(),
            secret: secret(s),
        })
        .into();
    Verifier::new(&users, Duration::from_millis(WINDOW), capacity)
}

fn to(addr: &str) -> Destination {
    Destination::Address(addr.parse().unwrap())
}

fn make(time: u64, nonce: u8) -> [u8; PASSWORD_LEN] {
    password(&secret(1), b"alice", &to("192.0.2.1:80"), time, [nonce; 16])
}

#[test]
fn the_right_password_serves_its_destination_only() {
    let mut v = verifier(10);
    let grant = v.check(b"alice", &make(NOW, 1), NOW).unwrap();
    assert_eq!(grant.user, 0);
    assert!(v.check_request(&grant, &to("192.0.2.1:80"), None));
    assert!(!v.check_request(&grant, &to("192.0.2.1:81"), None));
    assert!(!v.check_request(&grant, &to("192.0.2.2:80"), None));
    assert!(!v.check_request(&grant, &Destination::Name("192.0.2.1".into(), 80), None));
}

/// A password in hexadecimal digits, as programs can be given one.
fn text(password: &[u8]) -> String {
    password.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn a_password_may_come_as_text_and_is_the_same_one() {
    let mut v = verifier(10);
    let password = make(NOW, 1);
    let digits = text(&password);
    let grant = v.check(b"alice", digits.as_bytes(), NOW).unwrap();
    assert!(v.check_request(&grant, &to("192.0.2.1:80"), None));
    assert!(!v.check_request(&grant, &to("192.0.2.1:81"), None));
    for again in [
        &password[..],
        digits.as_bytes(),
        digits.to_uppercase().as_bytes(),
    ] {
        let error = v.check(b"alice", again, NOW).unwrap_err();
        assert_eq!(error, AuthError::Replayed);
    }
    let mut other = password;
    other[30] ^= 1;
    for (bad, error) in [
        (text(&other).into_bytes(), AuthError::WrongSecret),
        (digits.as_bytes()[1..].to_vec(), AuthError::Malformed),
        (digits.replacen("0", "+", 1).into(), AuthError::Malformed),
        (text(&password[..57]).into(), AuthError::Malformed),
    ] {
        assert_eq!(v.check(b"alice", &bad, NOW).unwrap_err(), error);
    }
}

#[test]
fn user_and_secret_must_fit() {
    let mut v = verifier(10);
    assert_eq!(
        v.check(b"bob", &make(NOW, 1), NOW).unwrap_err(),
        AuthError::WrongSecret
    );
    assert_eq!(
        v.check(b"carol", &make(NOW, 1), NOW).unwrap_err(),
        AuthError::UnknownUser
    );
    assert_eq!(
        v.check(b"alice", b"hunter2", NOW).unwrap_err(),
        AuthError::Malformed
    );
    let mut other_version = make(NOW, 1);
    other_version[0] = 2;
    assert_eq!(
        v.check(b"alice", &other_version, NOW).unwrap_err(),
        AuthError::Malformed
    );
    assert_eq!(
        v.remembered(),
        0,
        "nobody without the secret fills the memory"
    );
}

#[test]
fn every_bit_counts() {
    for bit in 8..PASSWORD_LEN * 8 {
        let mut v = verifier(10);
        let mut p = make(NOW, 1);
        p[bit / 8] ^= 1 << (bit % 8);
        let accepted = v
            .check(b"alice", &p, NOW)
            .is_ok_and(|g| v.check_request(&g, &to("192.0.2.1:80"), None));
        assert!(!accepted, "bit {bit}");
    }
}

#[test]
fn a_password_serves_once() {
    let mut v = verifier(10);
    assert!(v.check(b"alice", &make(NOW, 1), NOW).is_ok());
    assert_eq!(
        v.check(b"alice", &make(NOW, 1), NOW).unwrap_err(),
        AuthError::Replayed
    );
    let last = NOW + WINDOW;
    assert_eq!(
        v.check(b"alice", &make(NOW, 1), last).unwrap_err(),
        AuthError::Replayed
    );
    let late = v.check(b"alice", &make(NOW, 1), last + 1).unwrap_err();
    assert_eq!(late, AuthError::ClockSkew(-121_000 + 999));
}

#[test]
fn the_skew_is_told() {
    let mut v = verifier(10);
    let early = v.check(b"alice", &make(NOW - 300_000, 1), NOW).unwrap_err();
    assert_eq!(
        early.to_string(),
        "the box's clock is 300.0 s behind this server's; set it right"
    );
    let late = v
        .check(b"alice", &make(NOW + 7_200_000, 1), NOW)
        .unwrap_err();
    assert_eq!(
        late.to_string(),
        "the box's clock is 7200.0 s ahead of this server's; set it right"
    );
    assert!(v.check(b"alice", &make(u64::MAX, 1), NOW).is_err());
    assert!(v.check(b"alice", &make(NOW - WINDOW, 2), NOW).is_ok());
    assert!(v.check(b"alice", &make(NOW + WINDOW, 3), NOW).is_ok());
}

#[test]
fn a_restarted_server_refuses_what_it_may_have_seen() {
    let mut v = verifier(10);
    v.forget_before(NOW);
    assert_eq!(
        v.check(b"alice", &make(NOW - 1, 1), NOW).unwrap_err(),
        AuthError::BeforeStart
    );
    assert!(v.check(b"alice", &make(NOW, 1), NOW).is_ok());
}

#[test]
fn a_full_memory_refuses_rather_than_forgets() {
    let mut v = verifier(3);
    for nonce in 0..3 {
        assert!(v.check(b"alice", &make(NOW, nonce), NOW).is_ok());
    }
    assert_eq!(
        v.check(b"alice", &make(NOW, 3), NOW).unwrap_err(),
        AuthError::ReplayCacheFull
    );
    assert_eq!(
        v.check(b"alice", &make(NOW, 0), NOW).unwrap_err(),
        AuthError::Replayed
    );
    let later = NOW + WINDOW + 1;
    assert!(v.check(b"alice", &make(later, 4), later).is_ok());
    assert_eq!(v.remembered(), 1);
}
