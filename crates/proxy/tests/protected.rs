//! Protection between box and server, and what an attacker on the path can do.

use core::time::Duration;
use std::collections::BTreeSet;

use crate::world::downstream::Content;
use crate::world::tls::{GREETING, Program};
use crate::world::{CONTENT, Setup, World, box_key, payload};
use braid_engine::ConnId;
use braid_secure::keys::PrivateKey;

/// A word that occurs only in the user's bytes.
const WORD: &[u8] = b"xylophone-in-the-attic";
const NAME: &str = "198.51.100.1";

fn holds(packet: &[u8], what: &[u8]) -> bool {
    packet.windows(what.len()).any(|window| window == what)
}

/// Returns the packets on the wire during a user's connection, in the order of sending.
fn watched(w: &mut World, says: &[u8]) -> Vec<(bool, Vec<u8>)> {
    w.wire = Some(Vec::new());
    let user = w.open(CONTENT, says, false);
    w.run_until(|w| w.user(user).got == says);
    // The server sends its tickets once the handshake has ended.
    w.run_for(Duration::from_millis(100));
    w.boxed.downstream.break_stream(user);
    w.run_for(Duration::from_millis(200));
    w.wire.take().unwrap()
}

#[test]
fn nothing_that_a_user_says_or_asks_for_is_on_the_wire() {
    let destination = [&[5, 1, 0, 1][..], &[198, 51, 100, 1]].concat();
    for clear in [false, true] {
        let mut w = World::met(
            2,
            Setup {
                clear,
                warm: 1,
                ..Setup::default()
            },
        );
        w.content(CONTENT, Content::Echoes);
        // The second connection has a ticket, the third one is an idle connection.
        let packets = [0; 3].map(|_| watched(&mut w, WORD)).concat();
        assert!(packets.len() > 10);
        // A check of the test itself: without protection it finds the words.
        for what in [WORD, NAME.as_bytes(), &destination] {
            let seen = packets.iter().any(|(_, packet)| holds(packet, what));
            let expected = clear && what != NAME.as_bytes();
            assert_eq!(seen, expected, "{:?}", String::from_utf8_lossy(what));
        }
    }
}

fn say(w: &mut World, words: &[u8]) -> ConnId {
    let conn = w.raw_connect();
    w.raw.write(w.now, conn, words).unwrap();
    w.run_for(Duration::from_millis(200));
    conn
}

#[test]
fn a_first_flight_is_taken_once() {
    let mut w = World::met(1, Setup::default());
    w.content(CONTENT, Content::Echoes);
    let flight = w.hold_first_flight(WORD);
    assert!(!holds(&flight, WORD));
    let before = *w.server().counters();
    // A copy that comes first is served, but its sender can neither send more nor read the answer.
    say(&mut w, &flight);
    assert_eq!(
        w.server_downstream().attempts.len(),
        2,
        "the greeter's and the user's"
    );
    // Replays on other connections.
    for n in 1..3 {
        let conn = say(&mut w, &flight);
        assert!(!w.raw_read(conn).is_empty(), "a handshake is offered");
        assert_eq!(
            w.server().counters().unknown_tickets,
            before.unknown_tickets + n
        );
    }
    // A replay after a restart, which forgets all tickets.
    w.kill_server();
    w.start_server();
    say(&mut w, &flight);
    assert_eq!(w.server().counters().unknown_tickets, 1);
    assert_eq!(
        w.server_downstream().attempts,
        [],
        "nobody was connected to"
    );
    assert_eq!(w.server().counters().connected, 0);
    // A peer whose handshake does not proceed is disconnected.
    w.run_for(Duration::from_secs(20));
    assert_eq!(w.server().connections(), 0);
    assert_eq!(w.server().counters().handshake_timeout, 1);
}

/// The ends learn the wall clock from their systems, at different times.
#[test]
fn a_ticket_is_good_between_two_looks_at_the_clock() {
    let mut w = World::met(1, Setup::default());
    w.content(CONTENT, Content::Echoes);
    w.run_for(Duration::from_secs(90));
    let wall = Duration::from_millis(w.unix_ms());
    w.core.set_wall_clock(w.now, wall);
    let before = w.now;
    let user = w.open(CONTENT, WORD, false);
    w.run_until(|w| w.user(user).got == WORD);
    let took = w.now.saturating_since(before);
    assert_eq!(
        took,
        Duration::from_millis(40),
        "without another round trip"
    );
}

/// Returns the end offsets of the records.
fn ends_of_records(mut flight: &[u8]) -> Vec<usize> {
    let (len, mut ends) = (flight.len(), Vec::new());
    while let [_, _, _, a, b, rest @ ..] = flight {
        flight = &rest[usize::from(u16::from_be_bytes([*a, *b]))..];
        ends.push(len - flight.len());
    }
    ends
}

/// Sends a first flight with a valid ticket after `change` has modified it. Returns the bytes that the destination
/// got, or `None` where no destination was connected.
fn got_of(w: &mut World, says: &[u8], change: impl FnOnce(&mut Vec<u8>)) -> Option<Vec<u8>> {
    // A served connection gets two tickets for the one it used.
    watched(w, WORD);
    let before = w.server_downstream().attempts.len();
    let mut flight = w.hold_first_flight(says);
    change(&mut flight);
    let conn = say(w, &flight);
    let streams = &w.server_downstream().streams;
    let got = streams.last_key_value().unwrap().1.got.clone();
    let served = w.server_downstream().attempts.len() - before;
    w.raw.abort(w.now, conn);
    w.run_for(Duration::from_millis(100));
    assert_eq!(w.server().connections(), 0);
    (served > 0).then_some(got)
}

#[test]
fn what_was_changed_on_the_way_is_no_users_byte() {
    let mut w = World::met(1, Setup::default());
    w.content(CONTENT, Content::Echoes);
    let says = [7; 2_000];
    let flight = w.hold_first_flight(&says);
    // ClientHello, greeting, request, early hints, and the user's bytes.
    let ends = ends_of_records(&flight);
    let [.., _, request, _, last] = ends[..] else {
        panic!("{ends:?}");
    };
    assert_eq!((ends.len(), last), (5, flight.len()));
    assert_eq!(got_of(&mut w, &says, |_| {}).unwrap(), says, "as it was");
    let others = ends.iter().flat_map(|end| [end - 1, end + 4]);
    let places: Vec<usize> = (0..last).step_by(97).chain(others).collect();
    for at in places.into_iter().filter(|at| *at < last) {
        let got = got_of(&mut w, &says, |flight| flight[at] ^= 0x20);
        // Records before the modified one are the user's.
        assert!(
            got.is_none_or(|got| at >= request && got.is_empty()),
            "{at}"
        );
    }
    for len in [1, 4, 5, 6, 100, 300, request - 1, request, last - 1] {
        let got = got_of(&mut w, &says, |flight| flight.truncate(len));
        assert_eq!(got, (len >= request).then(Vec::new), "{len}");
    }
    // The refusals were not due to unknown tickets.
    let unknown = w.server().counters().unknown_tickets;
    assert!(unknown < ends[0] as u64 / 97, "{unknown}");
    // The box is served as before.
    assert_eq!(got_of(&mut w, &says, |_| {}).unwrap(), says);
}

#[test]
fn garbage_that_looks_like_a_hello_is_counted() {
    let mut w = World::met(1, Setup::default());
    let junk = [&[22, 3, 3, 0, 200][..], &[9; 200]].concat();
    say(&mut w, &junk);
    assert_eq!(w.server().counters().damaged, 1);
    // A record that announces more bytes than a record may have.
    say(&mut w, &[22, 3, 3, 0xff, 0xff, 1, 2, 3]);
    assert_eq!(w.server().counters().damaged, 2);
    w.run_for(Duration::from_secs(20));
    assert_eq!(w.server().connections(), 0);
}

/// A box of an earlier release gets the refusal in the form of its own records.
#[test]
fn an_older_box_is_told_so() {
    let mut w = World::met(1, Setup::default());
    let conn = say(&mut w, &[&[1, 0, 200, 1, 0][..], &[9; 198]].concat());
    // An alert in plaintext: no_application_protocol.
    assert_eq!(w.raw_read(conn), [6, 0, 1, 120]);
    assert_eq!(w.server().counters().incompatible, 1);
    // Before `braid/3`, boxes had the records of TLS, as they have now.
    let program = Program::connect_as(&mut w, b"braid/2", None);
    assert_eq!(program.alerts, [120]);
    assert_eq!(w.server().counters().incompatible, 2);
    assert_eq!(w.server().counters().damaged, 0);
}

/// A server of an earlier release answers by an alert of TLS, so that the user waits for nothing more.
#[test]
fn an_older_server_is_found_out_at_once() {
    let mut w = World::ready(1, Setup::default());
    w.content(CONTENT, Content::Echoes);
    // The answer of a `braid/3` server to records of TLS, in place of the ServerHello.
    let alert = [21, 3, 3, 0, 2, 2, 120];
    w.tamper = Some(Box::new(move |up, packet| {
        let len = payload(packet).len();
        if !up && len >= alert.len() {
            let at = packet.len() - len;
            packet[at..at + alert.len()].copy_from_slice(&alert);
        }
        true
    }));
    let (user, asked) = (w.open(CONTENT, WORD, false), w.now);
    w.run_until(|w| w.user(user).closed);
    assert!(w.user(user).reset);
    assert_eq!(w.core.counters().unprotected, 1);
    assert!(w.now.saturating_since(asked) < Duration::from_secs(1));
}

/// An attacker copies a ClientHello from the wire, but does not know the secret of its ticket.
#[test]
fn a_ticket_is_not_used_up_by_who_cannot_use_it() {
    let mut w = World::met(1, Setup::default());
    w.content(CONTENT, Content::Echoes);
    let flight = w.hold_first_flight(WORD);
    // The last bytes of the ClientHello are the proof (its binder).
    let hello = ends_of_records(&flight)[0];
    for _ in 0..3 {
        let mut spoofed = flight.clone();
        spoofed[hello - 1] ^= 1;
        say(&mut w, &spoofed);
        // A changed random number invalidates the proof too.
        let mut spoofed = flight.clone();
        spoofed[20] ^= 1;
        say(&mut w, &spoofed);
    }
    assert_eq!(w.server().counters().damaged, 6);
    assert_eq!(w.server().counters().unknown_tickets, 0);
    assert_eq!(w.server_downstream().attempts.len(), 1, "the greeter's");
    say(&mut w, &flight);
    assert_eq!(
        w.server_downstream().attempts.len(),
        2,
        "the owner is served"
    );
    // The owner's flight is good only once.
    say(&mut w, &flight);
    assert_eq!(w.server_downstream().attempts.len(), 2);
    assert_eq!(w.server().counters().unknown_tickets, 1);
}

/// An attacker presents a public key, but cannot sign by it.
#[test]
fn nobody_learns_whether_a_guessed_key_is_a_users() {
    let mut w = World::met(1, Setup::default());
    let [stranger, other] = [7, 8].map(|n| PrivateKey::from_seed([n; 32]));
    let shown = [box_key().public(), stranger.public()];
    let heard = shown.map(|shown| Program::pretending(&mut w, shown, &other).alerts);
    // access_denied (49), as for a peer that has a key of no user.
    assert_eq!(heard, [[49], [49]]);
    let own = Program::pretending(&mut w, stranger.public(), &stranger);
    assert_eq!(own.alerts, [49]);
    assert!(Program::connect(&mut w).alerts.is_empty());
}

/// A server tells a user about destinations only what it measured on connections of this user.
#[test]
fn nobody_learns_where_others_go_from_the_egress_metrics() {
    let other = PrivateKey::from_seed([7; 32]);
    let user = format!("[[user]]\nname = \"other\"\nkey = \"{}\"\n", other.public());
    let setup = Setup {
        server: &user,
        ..Setup::default()
    };
    let mut w = World::ready(1, setup);
    w.content(CONTENT, Content::Echoes);
    let user = w.open(CONTENT, b"hello", false);
    w.run_until(|w| w.user(user).got == b"hello");
    // Probes for no records, and for the metrics of 198.51.100.0/24 and 198.51.101.0/24.
    let train = [0xb7, 0, 17, 1, 5, 0, 0, 0, 0, 0];
    let probe = [
        &GREETING[..],
        &train,
        &[4, 3, 198, 51, 100, 4, 3, 198, 51, 101],
    ]
    .concat();
    let told = [&box_key(), &other].map(|key| {
        let mut program = Program::pretending(&mut w, key.public(), key);
        program.say(&mut w, &probe);
        // The answer begins with the number of records.
        assert!(holds(&program.got, &[1, 2, 0, 0]), "{:?}", program.got);
        [100, 101].map(|prefix| holds(&program.got, &[4, 7, 198, 51, prefix]))
    });
    assert_eq!(told, [[true, false], [false, false]]);
}

/// The size of a record reveals neither its content nor the length of a destination's name.
#[test]
fn messages_and_ends_have_the_size_of_each_other() {
    let mut w = World::met(1, Setup::default());
    w.content(CONTENT, Content::Echoes);
    let flight = w.hold_first_flight(b"GET /");
    let ends = ends_of_records(&flight);
    let sizes: Vec<usize> = ends.windows(2).map(|ends| ends[1] - ends[0]).collect();
    // Greeting, request, early hints and the user's bytes.
    assert_eq!(sizes, [5 + 128 + 16; 4]);
    assert!(
        ends.iter()
            .rev()
            .skip(1)
            .all(|end| flight[*end..].starts_with(&[23, 3, 3]))
    );
    // The other records of a short connection have the same sizes, from the answer to the ends.
    w.wire = Some(Vec::new());
    let user = w.open(CONTENT, b"hello", true);
    w.run_until(|w| w.user(user).got_end);
    w.run_for(Duration::from_secs(1));
    let packets = w.wire.take().unwrap();
    for to_server in [false, true] {
        let of = packets.iter().filter(|(up, _)| *up == to_server);
        let stream: Vec<u8> = of
            .flat_map(|(_, packet)| payload(packet).to_vec())
            .collect();
        let mut rest = &stream[..];
        let mut short = BTreeSet::new();
        while let [kind, _, _, a, b, after @ ..] = rest {
            let len = usize::from(u16::from_be_bytes([*a, *b]));
            if *kind == 23 && len < 1024 + 16 {
                short.insert(len - 16);
            }
            rest = &after[len..];
        }
        // Except the handshake, whose sizes are those of TLS.
        let few = short
            .iter()
            .filter(|len| ![128, 256, 512, 1024].contains(*len));
        assert!(few.count() <= 2, "{short:?}");
    }
}

/// A server keeps few bytes of a peer that is not authenticated.
#[test]
fn a_hello_without_end_is_not_waited_for() {
    let mut w = World::met(1, Setup::default());
    // The first half of a ClientHello of 64 kB.
    let mut hello = vec![1, 0, 0xff, 0xff];
    hello.resize(32 << 10, 0);
    let records = hello.chunks(4 << 10);
    let records: Vec<u8> = records
        .flat_map(|part| [&[22, 3, 3, 0x10, 0][..], part].concat())
        .collect();
    say(&mut w, &records);
    assert_eq!(w.server().counters().damaged, 1);
}

#[test]
fn a_server_may_insist_on_protection() {
    let setup = Setup {
        clear: true,
        server: "unprotected = false",
        ..Setup::default()
    };
    let mut w = World::up(1, setup);
    w.content(CONTENT, Content::Echoes);
    let user = w.open(CONTENT, WORD, false);
    w.run_until(|w| w.user(user).closed);
    assert!(w.user(user).reset);
    assert!(w.server().counters().plaintext_refused >= 1);
}
