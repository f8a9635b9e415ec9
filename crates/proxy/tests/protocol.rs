//! The metadata of a box's request: hints, and the code that protects them.

use core::time::Duration;

use crate::world::downstream::Content;
use crate::world::{self, CONTENT, Setup, World, box_key, server_key};
use braid_engine::strategy::FlowSize;
use braid_engine::{ConnId, Urgency};
use braid_proxy::FlowHints;
use braid_proxy::socks::{Destination, RequestMetadata, encode_early_hints, request, sign_in};
use braid_proxy::status::SizeFrom;
use braid_secure::auth::SignIn;
use proptest::prelude::*;

fn content() -> Destination {
    Destination::Address(CONTENT.parse().unwrap())
}

/// Returns the first messages of a box, and its sign-in for the request.
fn signs_in(w: &World, nonce: u8) -> (Vec<u8>, SignIn) {
    let sign = SignIn::new(w.unix_ms(), [nonce; 16]);
    (says(&sign), sign)
}

fn says(sign: &SignIn) -> Vec<u8> {
    let password = sign.password(&box_key(), server_key().public());
    sign_in(box_key().public().to_string().as_bytes(), &password)
}

/// Encodes the request for the content, with any bytes in place of hints.
fn asks(sign: &SignIn, hints: &[u8]) -> Vec<u8> {
    let code = sign.request(
        &box_key(),
        server_key().public(),
        &content().to_bytes(),
        hints,
    );
    let hints = hints.to_vec();
    let code = Some(code);
    request(Some(&RequestMetadata { code, hints }), &content())
}

/// Creates a server with a signed-in connection that waits for its request. The test itself acts as the box.
fn waiting(setup: Setup<'_>) -> (World, ConnId, SignIn) {
    let mut w = World::ready(1, setup);
    w.content(CONTENT, Content::Echoes);
    let conn = w.raw_connect();
    let (first, sign) = signs_in(&w, 1);
    w.raw.write(w.now, conn, &first).unwrap();
    w.run_for(Duration::from_millis(100));
    assert_eq!(w.raw_read(conn), [5, 2, 1, 0]);
    (w, conn, sign)
}

const GRANTED: [u8; 10] = [5, 0, 0, 1, 0, 0, 0, 0, 0, 0];

fn after(mut w: World, conn: ConnId, bytes: &[u8]) -> (World, Vec<u8>) {
    w.raw.write(w.now, conn, bytes).unwrap();
    w.run_for(Duration::from_millis(100));
    let got = w.raw_read(conn);
    (w, got)
}

#[test]
fn a_signed_in_box_may_wait_before_its_request() {
    let (mut w, conn, sign) = waiting(Setup::default());
    w.run_for(Duration::from_secs(100));
    assert_eq!((w.server().waiting(), w.server().connections()), (1, 0));
    let (w, got) = after(
        w,
        conn,
        &[&asks(&sign, &[])[..], &[0, 0], b"hello"].concat(),
    );
    assert_eq!(got, [&GRANTED[..], b"hello"].concat());
    assert_eq!((w.server().waiting(), w.server().connections()), (0, 1));
}

#[test]
fn but_not_for_ever_nor_in_the_middle_of_it() {
    let (mut w, ..) = waiting(Setup::default());
    w.run_for(Duration::from_secs(120));
    let examined = w.core.counters().examinations;
    assert_eq!(w.server().counters().unused_sign_ins, examined + 1);

    let (w, conn, sign) = waiting(Setup::default());
    let (mut w, _) = after(w, conn, &asks(&sign, &[])[..20]);
    assert_eq!((w.server().waiting(), w.server().connections()), (0, 1));
    w.run_for(Duration::from_secs(10));
    assert_eq!(w.server().counters().handshake_timeout, 1);
    assert_eq!(w.server().connections(), 0);
}

#[test]
fn a_request_without_its_own_code_is_refused() {
    let other = SignIn::new(world::EPOCH.as_millis() as u64, [2; 16]);
    type Case<'a> = &'a dyn Fn(&SignIn) -> Vec<u8>;
    let cases: [Case<'_>; 4] = [
        &|_| request(None, &content()),
        &|_| asks(&other, &[]),
        &|sign| {
            let mut bytes = asks(sign, &[]);
            let port = bytes.len() - 1;
            bytes[port] ^= 1;
            bytes
        },
        &|sign| {
            let mut bytes = asks(sign, &[2, 1, 3]);
            // Changes the urgency.
            bytes[3 + 64 + 2] = 0;
            bytes
        },
    ];
    for case in cases {
        let (w, conn, sign) = waiting(Setup::default());
        let (mut w, got) = after(w, conn, &case(&sign));
        assert_eq!(got[1], 2, "not allowed");
        assert_eq!(w.server().counters().auth_destination, 1);
        assert!(w.server_downstream().attempts.is_empty());
    }
}

#[test]
fn a_sign_in_serves_one_connection() {
    let (mut w, _, sign) = waiting(Setup::default());
    let again = w.raw_connect();
    let (first, _) = signs_in(&w, 1);
    assert_ne!(first, says(&sign), "time has passed");
    let (w, got) = after(w, again, &says(&sign));
    assert_eq!(got, [5, 2, 1, 1]);
    assert_eq!(w.server().counters().auth_replayed, 1);
}

/// Returns the server's view of the only connection: size, source of the size, urgency, strategy.
fn told(w: &World) -> (Option<u64>, SizeFrom, u8, String) {
    let (node, core) = w.server.as_ref().unwrap();
    let status = core.status(w.now, &node.stack);
    let [c] = &status.connections[..] else {
        panic!("{:?}", status.connections);
    };
    (c.size, c.size_from, c.urgency, c.strategy.clone())
}

fn full() -> FlowHints {
    FlowHints {
        size: FlowSize::Declared(1_000),
        urgency: Urgency::new(6),
        deadline: Some(Duration::from_millis(250)),
        strategy: Some("redundant".into()),
    }
}

#[test]
fn hints_are_what_the_document_says() {
    let expected = [
        &[1, 9, 3, 0, 0, 0, 0, 0, 0, 3, 0xe8][..],
        &[2, 1, 6],
        &[3, 4, 0, 0, 0, 250],
        &[4, 9],
        b"redundant",
    ];
    assert_eq!(full().encode(), expected.concat());
    assert_eq!(FlowHints::decode(&expected.concat()), (full(), 0));
    assert_eq!(FlowHints::default().encode(), []);
}

#[test]
fn the_server_schedules_by_the_hints() {
    let (w, conn, sign) = waiting(Setup::default());
    let (w, got) = after(w, conn, &asks(&sign, &full().encode()));
    assert_eq!(got, GRANTED);
    let expected = (Some(1_000), SizeFrom::Declared, 6, "redundant".to_owned());
    assert_eq!(told(&w), expected);
    assert_eq!(w.server().counters().bad_hints, 0);
}

/// Early hints may come in any fragments. The user's bytes follow them.
#[test]
fn hints_may_come_between_the_request_and_the_first_byte() {
    let hints = full().encode();
    let late = [&[0, 31][..], &hints, b"hello"].concat();
    assert_eq!(late[..33], encode_early_hints(&hints));
    for pieces in [1, 32, 33, 38] {
        let (w, conn, sign) = waiting(Setup::default());
        let (mut w, got) = after(w, conn, &asks(&sign, &[2, 1, 2]));
        assert_eq!(got, GRANTED, "nothing waits for it");
        let before = (None, SizeFrom::Unknown, 2, told(&w).3);
        assert_eq!(told(&w), before);
        let mut answer = Vec::new();
        for piece in late.chunks(pieces) {
            let (then, got) = after(w, conn, piece);
            w = then;
            answer.extend(got);
        }
        assert_eq!(answer, b"hello", "{pieces}");
        let expected = (Some(1_000), SizeFrom::Declared, 6, "redundant".to_owned());
        assert_eq!(told(&w), expected, "{pieces}");
    }
}

#[test]
fn hints_that_are_too_long_to_be_any_end_the_connection() {
    let (w, conn, sign) = waiting(Setup::default());
    let (mut w, _) = after(w, conn, &[&asks(&sign, &[]), &[4, 1][..]].concat());
    assert_eq!(w.server().counters().garbage, 1);
    assert_eq!(w.server().connections(), 0);
    assert!(w.server_downstream().attempts.len() == 1 && w.raw_read(conn).len() <= GRANTED.len());
}

#[test]
fn the_bytes_arrive_with_any_hints() {
    let sizes = [0, 1, u64::MAX].map(FlowSize::Declared);
    let mut cases: Vec<(Vec<u8>, u64)> = sizes
        .map(|size| (FlowHints { size, ..full() }.encode(), 0))
        .into();
    cases.extend([
        // An unknown kind, which a box of a later version may send.
        (vec![99, 3, 1, 2, 3], 0),
        // Too long, too short, out of range, unknown, cut off.
        (vec![1, 10, 3, 0, 0, 0, 0, 0, 0, 0, 0, 9], 1),
        (vec![1, 0, 2, 0, 3, 0, 4, 0], 4),
        (vec![1, 9, 4, 0, 0, 0, 0, 0, 0, 0, 9], 1),
        (vec![2, 1, 8], 1),
        ([&[4, 7][..], b"fastest"].concat(), 1),
        ([&[4, 2][..], &[0xff, 0xfe]].concat(), 1),
        (vec![2, 1, 5, 1, 200, 3], 1),
        (vec![7], 1),
    ]);
    for (hints, bad) in cases {
        let (w, conn, sign) = waiting(Setup::default());
        let data = [b"hello".as_slice(); 2_000].concat();
        let whole = [&asks(&sign, &hints)[..], &[0, 0], &data[..]].concat();
        let (mut w, mut got) = after(w, conn, &whole);
        w.run_for(Duration::from_secs(1));
        got.extend(w.raw_read(conn));
        assert_eq!(got[10..], data, "{hints:?}");
        assert_eq!(w.server().counters().bad_hints, bad, "{hints:?}");
    }
    let (mut w, conn, sign) = waiting(Setup::default());
    let long = vec![9; RequestMetadata::MAX_HINTS];
    w.content(CONTENT, Content::Sends(b"text".to_vec(), false));
    let (w, got) = after(w, conn, &asks(&sign, &long));
    assert_eq!(got, [&GRANTED[..], b"text"].concat());
    assert_eq!(w.server().connections(), 1);
}

#[test]
fn the_server_reads_the_length_of_a_plaintext_response() {
    let head = "HTTP/1.1 200 OK\r\nContent-Length: 70000\r\n\r\n";
    let body = vec![7; 30_000];
    let response = [head.as_bytes(), &body].concat();
    let size = Some(70_000 + head.len() as u64);
    let cases = [
        (FlowSize::Unknown, (size, SizeFrom::Read)),
        (FlowSize::Predicted(5), (size, SizeFrom::Read)),
        (FlowSize::Declared(5), (Some(5), SizeFrom::Declared)),
    ];
    for (declared, (bytes, from)) in cases {
        let (mut w, conn, sign) = waiting(Setup::default());
        w.content(CONTENT, Content::Sends(response.clone(), false));
        let hints = FlowHints {
            size: declared,
            ..FlowHints::default()
        };
        let (mut w, mut got) = after(w, conn, &asks(&sign, &hints.encode()));
        w.run_for(Duration::from_secs(1));
        got.extend(w.raw_read(conn));
        assert_eq!(got[10..], response);
        let (told_bytes, told_from, ..) = told(&w);
        assert_eq!((told_bytes, told_from), (bytes, from), "{declared:?}");
    }
}

proptest! {
    #[test]
    fn any_hints_survive(
        kind in 0u8..4,
        bytes: u64,
        level in prop::option::of(0u8..8),
        ms in prop::option::of(any::<u32>()),
        strategy in prop::option::of("[!-~]{1,64}"),
    ) {
        let size = match kind {
            0 => FlowSize::Unknown,
            1 => FlowSize::Predicted(bytes),
            2 => FlowSize::Read(bytes),
            _ => FlowSize::Declared(bytes),
        };
        let hints = FlowHints {
            size,
            urgency: level.and_then(Urgency::new),
            deadline: ms.map(|ms| Duration::from_millis(ms.into())),
            strategy,
        };
        let encoded = hints.encode();
        prop_assert!(encoded.len() <= 86);
        prop_assert_eq!(FlowHints::decode(&encoded), (hints, 0));
    }

    #[test]
    fn any_bytes_are_read(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let (hints, bad) = FlowHints::decode(&bytes);
        prop_assert!(bad <= bytes.len() as u64);
        prop_assert_eq!(FlowHints::decode(&hints.encode()), (hints, 0));
    }
}
