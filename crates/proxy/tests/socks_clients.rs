//! SOCKS clients of the box, and the hints in their user names.

use core::time::Duration;

use crate::world::downstream::Content;
use crate::world::{CONTENT, Setup, World};
use braid_engine::strategy::FlowSize;
use braid_proxy::app::{ConnectFailure, DownstreamId};
use braid_proxy::socks::{Destination, Reply, request};

/// Encodes greeting, user name and password.
fn sign_in(user: &[u8], password: &[u8]) -> Vec<u8> {
    let field = |text: &[u8]| [&[u8::try_from(text.len()).unwrap()], text].concat();
    [&[5, 2, 0, 2, 1], &field(user)[..], &field(password)].concat()
}

fn to(destination: &str) -> Destination {
    Destination::Address(destination.parse().unwrap())
}

/// Encodes all of a client's messages up to its request.
fn ask(user: &str, destination: &Destination) -> Vec<u8> {
    [sign_in(user.as_bytes(), b"x"), request(None, destination)].concat()
}

/// Returns the server's messages to a client that signs in and is connected.
fn welcome() -> Vec<u8> {
    [&[5, 2, 1, 0][..], &Reply::Succeeded.encode()].concat()
}

fn echoing() -> World {
    let mut w = World::ready(2, Setup::default());
    w.content(CONTENT, Content::Echoes);
    w.content("198.51.100.7:80", Content::Echoes);
    let downstream = w.server_downstream();
    let addresses = vec!["198.51.100.7:0".parse().unwrap()];
    downstream.names.insert("www.example".to_owned(), addresses);
    w
}

/// Sends `text` after the handshake, and expects it back.
fn talk(w: &mut World, program: DownstreamId, heard: &[u8], text: &[u8]) {
    w.run_until(|w| w.user(program).got.len() >= heard.len());
    assert_eq!(w.user(program).got, heard);
    w.boxed.downstream.send(program, text, true);
    w.run_until(|w| w.user(program).closed);
    assert!(!w.user(program).reset);
    assert_eq!(&w.user(program).got[heard.len()..], text);
    w.run_for(Duration::from_secs(1));
    assert_eq!((w.core.connections(), w.server().connections()), (0, 0));
}

#[test]
fn a_program_is_connected_to_an_address_or_a_name() {
    let destinations = [
        (to(CONTENT), CONTENT),
        (
            Destination::Name("www.example".to_owned(), 80),
            "198.51.100.7:80",
        ),
        // Some programs write an address as a name.
        (
            Destination::Name("198.51.100.7".to_owned(), 80),
            "198.51.100.7:80",
        ),
    ];
    for (destination, expected) in destinations {
        let mut w = echoing();
        let program = w.knock(&ask("", &destination));
        talk(&mut w, program, &welcome(), b"hello");
        assert_eq!(w.server_downstream().attempts, [expected.parse().unwrap()]);
        let c = *w.core.counters();
        assert_eq!((c.accepted, c.connected, c.finished), (1, 1, 1));
        assert_eq!((c.bytes_up, c.bytes_down), (5, 5));
        assert_eq!((c.bad_hints, c.socks_refused), (0, 0));
    }
}

#[test]
fn it_may_come_without_a_user_or_a_password() {
    let without_user = [&[5, 1, 0][..], &request(None, &to(CONTENT))].concat();
    let heard = [&[5, 0][..], &Reply::Succeeded.encode()].concat();
    let mut w = echoing();
    let program = w.knock(&without_user);
    talk(&mut w, program, &heard, b"hello");
    let without_password = [sign_in(b"size=1kB", b""), request(None, &to(CONTENT))].concat();
    let program = w.knock(&without_password);
    talk(&mut w, program, &welcome(), b"hello");
}

#[test]
fn it_may_send_byte_by_byte_and_gets_each_answer_in_its_time() {
    let mut w = echoing();
    let program = w.knock(&[]);
    let words = ask("urgency=1", &to(CONTENT));
    let mut heard = Vec::new();
    for byte in &words[..words.len() - 1] {
        w.boxed.downstream.send(program, &[*byte], false);
        w.run_for(Duration::from_millis(1));
        heard.push(w.user(program).got.len());
    }
    // The greeting has 4 bytes; user and password follow with their lengths.
    let expected = (1..words.len()).map(|n| match n {
        ..4 => 0,
        4..17 => 2,
        _ => 4,
    });
    assert_eq!(heard, expected.collect::<Vec<_>>());
    w.boxed
        .downstream
        .send(program, &words[words.len() - 1..], false);
    talk(&mut w, program, &welcome(), b"hello");
}

#[test]
fn what_it_sends_with_its_request_is_not_held_back() {
    let mut w = World::met(1, Setup::default());
    w.content(CONTENT, Content::Echoes);
    let before = w.now;
    let program = w.knock(&[&ask("", &to(CONTENT))[..], b"early"].concat());
    let heard = [&welcome()[..], b"early"].concat();
    w.run_until(|w| w.user(program).got == heard);
    // As for an intercepted user: two round trips of 20 ms.
    assert_eq!(w.now.saturating_since(before), Duration::from_millis(40));
}

#[test]
fn its_hints_reach_the_server() {
    let mut w = echoing();
    for (user, size) in [
        ("size=64KiB,urgency=1", FlowSize::Declared(65_536)),
        ("urgency=7", FlowSize::Unknown),
        ("size=0,strategy=redundant", FlowSize::Unknown),
    ] {
        let program = w.knock(&ask(user, &to(CONTENT)));
        w.run_until(|w| w.user(program).got == welcome());
        assert_eq!(w.sizes_at_server(), [size], "{user}");
        talk(&mut w, program, &welcome(), b"hello");
    }
}

#[test]
fn with_bad_hints_all_of_a_transfer_arrives() {
    // User names, and the number of their items that are not valid hints.
    let said = [
        ("size=0", 1),
        ("size=-1", 1),
        ("size=1", 0),
        ("size=9007199254740992", 0),
        ("size=99999999999999999999999999", 1),
        ("urgency=8", 1),
        ("urgency=-1", 1),
        ("deadline=0s", 1),
        ("deadline=1ns", 0),
        ("strategy=none", 1),
        ("size=,urgency=,deadline=,strategy=", 4),
        (
            "size=5,size=5000000,urgency=0,urgency=7,strategy=roundrobin",
            0,
        ),
        (",,,===,,,", 1),
        ("me", 1),
        ("\u{1f9f5}\u{0}", 1),
    ];
    let data: Vec<u8> = (0..200_000u32).map(|n| ((n * 31) >> 7) as u8).collect();
    let mut w = echoing();
    for (user, mistakes) in said {
        let before = w.core.counters().bad_hints;
        let program = w.knock(&ask(user, &to(CONTENT)));
        talk(&mut w, program, &welcome(), &data);
        let counted = w.core.counters().bad_hints - before;
        assert_eq!(counted, mistakes, "{user}");
    }
    let no_text = sign_in(&[0xff; 255], &[0; 255]);
    let program = w.knock(&[no_text, request(None, &to(CONTENT))].concat());
    talk(&mut w, program, &welcome(), &data);
    assert_eq!(w.core.counters().finished, said.len() as u64 + 1);
}

#[test]
fn a_destination_that_fails_is_told_and_the_stream_closed() {
    let failures = [
        (Some(ConnectFailure::Refused), Reply::ConnectionRefused),
        (
            Some(ConnectFailure::HostUnreachable),
            Reply::HostUnreachable,
        ),
        (
            Some(ConnectFailure::NetworkUnreachable),
            Reply::NetworkUnreachable,
        ),
        (
            Some(ConnectFailure::FamilyUnreachable),
            Reply::AddressTypeNotSupported,
        ),
        (Some(ConnectFailure::TimedOut), Reply::TtlExpired),
        (Some(ConnectFailure::NoResources), Reply::GeneralFailure),
    ];
    for (failure, reply) in failures {
        let mut w = World::ready(2, Setup::default());
        w.content(CONTENT, Content::Fails(failure.unwrap()));
        let program = w.knock(&ask("", &to(CONTENT)));
        w.run_until(|w| w.user(program).closed);
        assert_eq!(
            w.user(program).got,
            [&[5, 2, 1, 0][..], &reply.encode()].concat()
        );
        assert!(!w.user(program).reset, "it reads the answer");
        assert_eq!(w.core.connections(), 0);
    }
    let mut w = World::ready(2, Setup::default());
    let program = w.knock(&ask(
        "",
        &Destination::Name("nowhere.example".to_owned(), 80),
    ));
    w.run_until(|w| w.user(program).closed);
    assert!(
        w.user(program)
            .got
            .ends_with(&Reply::HostUnreachable.encode())
    );
    let program = w.knock(&ask("", &to("10.0.0.1:80")));
    w.run_until(|w| w.user(program).closed);
    assert!(w.user(program).got.ends_with(&Reply::NotAllowed.encode()));
}

#[test]
fn without_a_server_it_is_told_so() {
    let mut w = World::new(1, Setup::default());
    let program = w.knock(&ask("", &to(CONTENT)));
    w.run_until(|w| w.user(program).closed);
    assert!(
        w.user(program)
            .got
            .ends_with(&Reply::NetworkUnreachable.encode())
    );
    assert!(!w.user(program).reset);
    assert_eq!((w.core.connections(), w.core.counters().no_server), (0, 1));
}

#[test]
fn what_is_no_request_is_sent_away() {
    let sorry = |reply: Reply| [&[5, 0][..], &reply.encode()].concat();
    let cases: [(&[u8], Vec<u8>, bool); 6] = [
        (b"GET / HTTP/1.1\r\n\r\n", Vec::new(), true),
        (&[4, 1, 0, 80], Vec::new(), true),
        (&[5, 1, 1], vec![5, 0xff], false),
        // BIND, an unknown address type, an invalid name.
        (
            &[5, 1, 0, 5, 2, 0, 1, 1, 2, 3, 4, 0, 80],
            sorry(Reply::CommandNotSupported),
            false,
        ),
        (
            &[5, 1, 0, 5, 1, 0, 9, 1, 2, 3, 4, 0, 80],
            sorry(Reply::AddressTypeNotSupported),
            false,
        ),
        (
            &[5, 1, 0, 5, 1, 0, 3, 1, b'/', 0, 80],
            sorry(Reply::GeneralFailure),
            false,
        ),
    ];
    for (words, answer, reset) in cases {
        let mut w = echoing();
        let program = w.knock(words);
        w.run_until(|w| w.user(program).closed);
        assert_eq!(w.user(program).got, answer, "{words:?}");
        assert_eq!(w.user(program).reset, reset, "{words:?}");
        assert_eq!(
            (w.core.connections(), w.core.counters().socks_refused),
            (0, 1)
        );
        assert!(w.server_downstream().attempts.is_empty());
    }
}

#[test]
fn one_that_says_nothing_breaks_off_or_ends_is_forgotten() {
    let mut w = echoing();
    let words = ask("", &to(CONTENT));
    let (silent, broken, ended) = (w.knock(&[]), w.knock(&words[..7]), w.knock(&words[..9]));
    w.run_for(Duration::from_secs(44));
    assert_eq!(w.core.connections(), 3);
    w.boxed.downstream.break_stream(broken);
    w.boxed.downstream.send(ended, &[], true);
    w.run_for(Duration::from_millis(100));
    assert!(w.user(broken).closed && w.user(ended).closed && !w.user(silent).closed);
    w.run_for(Duration::from_secs(1));
    assert!(w.user(silent).reset);
    assert_eq!(
        (w.core.connections(), w.core.counters().socks_refused),
        (0, 3)
    );
}

#[test]
fn they_are_bounded_with_all_others() {
    let boxed = "expert.max_connections_per_host = 3\nlimits.handshakes = 2";
    let mut w = World::ready(
        1,
        Setup {
            boxed,
            ..Setup::default()
        },
    );
    w.content(CONTENT, Content::Echoes);
    let waiting = [w.knock(&[]), w.knock(&[])];
    w.run_for(Duration::from_millis(1));
    let refused = w.knock(&[]);
    let user = w.open(CONTENT, b"hello", false);
    w.run_for(Duration::from_millis(1));
    assert!(
        w.user(refused).reset && w.user(user).reset,
        "two handshakes"
    );
    let words = ask("", &to(CONTENT));
    for program in waiting {
        w.boxed.downstream.send(program, &words, false);
        w.run_until(|w| w.user(program).got == welcome());
    }
    let third = w.open(CONTENT, b"hello", false);
    w.run_until(|w| w.user(third).got == b"hello");
    let fourth = w.knock(&[]);
    w.run_for(Duration::from_millis(1));
    assert!(w.user(fourth).reset, "three of one host");
    assert_eq!(w.core.counters().over_limit, 3);
    w.boxed.downstream.send(waiting[0], &[], true);
    w.run_until(|w| w.user(waiting[0]).closed);
    // The connection to the server ends a moment later.
    w.run_for(Duration::from_millis(100));
    let next = w.knock(&words);
    w.run_until(|w| w.user(next).got == welcome());
}
