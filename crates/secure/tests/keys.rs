//! Keys, signatures and encodings equal the test vectors of the RFCs, and texts that are no keys are refused.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use braid_secure::keys::{KeyError, PrivateKey, PublicKey};

fn hex<const N: usize>(digits: &str) -> [u8; N] {
    let digits: Vec<char> = digits.split_whitespace().flat_map(str::chars).collect();
    assert_eq!(digits.len(), 2 * N);
    core::array::from_fn(|i| {
        let digit = |at: usize| digits[at].to_digit(16).unwrap() as u8;
        digit(2 * i) << 4 | digit(2 * i + 1)
    })
}

/// Tests 1 to 3 of RFC 8032 section 7.1: seed, public key, message, signature.
const SIGNED: [(&str, &str, &[u8], &str); 3] = [
    (
        "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
        "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
        &[],
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46b
         d25bf5f0595bbe24655141438e7a100b",
    ),
    (
        "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
        "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
        &[0x72],
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f3613d0f11d8c
         387b2eaeb4302aeeb00d291612bb0c00",
    ),
    (
        "c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7",
        "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
        &[0xaf, 0x82],
        "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac18ff9b538d16f290ae67f760984dc659
         4a7c15e9716ed28dc027beceea1ec40a",
    ),
];

#[test]
fn signatures_are_those_of_rfc_8032() {
    for (seed, public, message, signature) in SIGNED {
        let key = PrivateKey::from_seed(hex(seed));
        assert_eq!(key.public(), PublicKey::from_bytes(hex(public)));
        let signature: [u8; 64] = hex(signature);
        assert_eq!(key.sign(message), signature);
        assert_eq!(key.clone().sign(message), signature);
        assert!(key.public().verify(message, &signature));
        assert!(!key.public().verify(b"another", &signature));
        for short in [0, 63] {
            assert!(!key.public().verify(message, &signature[..short]));
        }
        for bit in 0..512 {
            let mut wrong = signature;
            wrong[bit / 8] ^= 1 << (bit % 8);
            assert!(!key.public().verify(message, &wrong), "bit {bit}");
        }
    }
    let [(first, ..), (second, ..), _] = SIGNED;
    let signature = PrivateKey::from_seed(hex(first)).sign(b"text");
    let other = PrivateKey::from_seed(hex(second)).public();
    assert!(!other.verify(b"text", &signature));
}

/// The private key is that of RFC 8410 section 10.3, the public key that of section 10.1.
#[test]
fn encodings_are_those_of_rfc_8410() {
    let seed = "d4ee72dbf913584ad5b6d8f1f769f8ad3afe7c28cbf1d4fbe097a88f44755842";
    let key = PrivateKey::from_seed(hex(seed));
    let pkcs8 = "302e020100300506032b657004220420";
    assert_eq!(*key.to_pkcs8(), hex::<48>(&format!("{pkcs8}{seed}")));
    let public = "19bf44096984cdfe8541bac167dc3b96c85086aa30b6b6cb0c5c38ad703166e1";
    let spki = hex::<44>(&format!("302a300506032b6570032100{public}"));
    assert_eq!(key.public().to_spki(), spki);
    assert_eq!(PublicKey::from_spki(&spki), Some(key.public()));
    assert_eq!(PublicKey::from_spki(&spki[..43]), None);
    assert_eq!(PublicKey::from_spki(&[&spki[..], &[0]].concat()), None);
    assert_eq!(PublicKey::from_spki(&[]), None);
    // Byte 8 is the last of the algorithm's object identifier. 0x6e is X25519 (1.3.101.110), which cannot sign.
    let mut other = spki;
    other[8] = 0x6e;
    assert_eq!(PublicKey::from_spki(&other), None);
}

const PUBLIC: &str = "Gb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=";
const PRIVATE: &str = "1O5y2/kTWErVttjx92n4rTr+fCjL8dT74Jeoj0R1WEI=";

#[test]
fn text_is_one_line_of_base64() {
    let key = PrivateKey::from_text(&format!(" {PRIVATE}\r\n")).unwrap();
    assert_eq!(*key.to_text(), PRIVATE);
    assert_eq!(key.public().to_string(), PUBLIC);
    assert_eq!(PUBLIC.parse(), Ok(key.public()));
    assert!(PUBLIC.parse::<PublicKey>().unwrap() < PublicKey::from_bytes([0xff; 32]));
    for n in 0..=255 {
        let key = PrivateKey::from_seed([n; 32]);
        assert_eq!(key.public().to_string().parse(), Ok(key.public()));
        let read = PrivateKey::from_text(&key.to_text()).unwrap();
        assert_eq!(read.public(), key.public());
    }
}

#[test]
fn the_error_says_why_a_text_is_no_key() {
    let cases = [
        (String::new(), KeyError::Length(0)),
        ("hunter2".into(), KeyError::Length(7)),
        (PUBLIC[..43].into(), KeyError::Length(43)),
        (format!("{PUBLIC}\n"), KeyError::Length(45)),
        (PUBLIC.repeat(2), KeyError::Length(88)),
        (PUBLIC.replace('G', "-"), KeyError::NotBase64),
        (PUBLIC.replace('G', "ß"), KeyError::NotBase64),
        (PUBLIC.replace('=', "A"), KeyError::NotBase64),
        (PUBLIC.replace("E=", "=="), KeyError::NotBase64),
        // The same 256 bits, but the two unused bits are not 0.
        (PUBLIC.replace("E=", "F="), KeyError::NotBase64),
    ];
    for (text, error) in cases {
        assert_eq!(text.parse::<PublicKey>(), Err(error), "{text}");
        // A private key may have blanks around it.
        if text.trim() == text {
            assert_eq!(PrivateKey::from_text(&text).unwrap_err(), error);
        }
    }
    let message = KeyError::Length(7).to_string();
    assert_eq!(message, "it has 7 characters, but a key has 44");
}

#[test]
fn a_private_key_is_not_shown() {
    let key = PrivateKey::from_text(PRIVATE).unwrap();
    assert_eq!(format!("{key:?}"), "PrivateKey(..)");
    assert_eq!(
        format!("{:?}", key.public()),
        format!("PublicKey({PUBLIC})")
    );
}

/// A temporary directory, removed on drop.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Self {
        let name = format!("braid-keys-{}-{name}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).unwrap();
        Directory(path)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_key_file_is_created_once_and_for_its_owner() {
    let directory = Directory::new("made");
    let path = directory.0.join("box.key");
    let key = PrivateKey::from_seed([7; 32]);
    key.create(&path).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode(), 0o100_600);
    assert_eq!(PrivateKey::read(&path).unwrap().public(), key.public());
    let error = PrivateKey::from_seed([8; 32]).create(&path).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::AlreadyExists);
    assert_eq!(PrivateKey::read(&path).unwrap().public(), key.public());
    let text = fs::read_to_string(&path).unwrap();
    assert_eq!(text, format!("{}\n", *key.to_text()));
}

#[test]
fn the_error_names_the_file_but_not_its_content() {
    let directory = Directory::new("bad");
    let path = directory.0.join("box.key");
    let read = || PrivateKey::read(&path).unwrap_err();
    let name = path.display();
    assert!(read().starts_with(&format!("cannot read the private key in {name}: ")));
    for text in [
        "hunter2".to_owned(),
        PRIVATE.replace('=', "A"),
        PRIVATE.repeat(2000),
    ] {
        fs::write(&path, &text).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        let error = read();
        assert!(
            error.starts_with(&format!("{name} holds no private key: it")),
            "{error}"
        );
        assert!(
            !error.contains("hunter2") && !error.contains(&PRIVATE[..20]),
            "{error}"
        );
    }
}
