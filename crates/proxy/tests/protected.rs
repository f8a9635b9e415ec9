//! What is protected between box and server, and what an attacker on the way gets.

mod world;

use core::time::Duration;

use braid_engine::ConnId;
use braid_wire::{ip, tcp};
use world::local::Content;
use world::{CONTENT, Setup, World};

/// A word that is nowhere but in what a user says or gets.
const WORD: &[u8] = b"xylophone-in-the-attic";
const NAME: &str = "198.51.100.1";

fn holds(packet: &[u8], what: &[u8]) -> bool {
    packet.windows(what.len()).any(|window| window == what)
}

/// TCP payload of a packet.
fn payload(packet: &[u8]) -> &[u8] {
    let (_, segment) = ip::Repr::parse(packet).unwrap();
    let segment = tcp::Packet::new(segment).unwrap();
    let len = segment.payload().len();
    &packet[packet.len() - len..]
}

/// A user's connection while the wire is watched: what was on it, in the order of sending.
fn watched(w: &mut World, says: &[u8]) -> Vec<(bool, Vec<u8>)> {
    w.wire = Some(Vec::new());
    let user = w.open(CONTENT, says, false);
    w.run_until(|w| w.user(user).got == says);
    w.boxed.local.break_stream(user);
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
        // The second has a ticket, the third one is warm.
        let packets = [0; 3].map(|_| watched(&mut w, WORD)).concat();
        assert!(packets.len() > 10);
        // The test sees what there is to see: without protection it is there.
        for what in [WORD, NAME.as_bytes(), &destination] {
            let seen = packets.iter().any(|(_, packet)| holds(packet, what));
            let expected = clear && what != NAME.as_bytes();
            assert_eq!(seen, expected, "{:?}", String::from_utf8_lossy(what));
        }
    }
}

/// What a box sent on its connection up to the server's first answer: its whole first flight.
fn first_flight(w: &mut World, says: &[u8]) -> Vec<u8> {
    let packets = watched(w, says);
    let spoken = |p: &&(bool, Vec<u8>)| !payload(&p.1).is_empty();
    let first = packets.iter().filter(spoken).take_while(|p| p.0);
    first
        .flat_map(|(_, packet)| payload(packet).to_vec())
        .collect()
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
    let flight = first_flight(&mut w, WORD);
    assert!(!holds(&flight, WORD));
    let before = *w.server().counters();
    assert_eq!(
        w.server_local().attempts.len(),
        2,
        "the greeter's and the user's"
    );
    // On another connection, and again.
    for n in 1..3 {
        let conn = say(&mut w, &flight);
        assert!(!w.raw_read(conn).is_empty(), "a handshake is offered");
        assert_eq!(
            w.server().counters().unknown_tickets,
            before.unknown_tickets + n
        );
    }
    // After a restart, which forgets all tickets.
    w.kill_server();
    w.start_server();
    say(&mut w, &flight);
    assert_eq!(w.server().counters().unknown_tickets, 1);
    assert_eq!(w.server_local().attempts, [], "nobody was connected to");
    assert_eq!(w.server().counters().connected, 0);
    // Whoever does not get further is thrown out.
    w.run_for(Duration::from_secs(20));
    assert_eq!(w.server().connections(), 0);
    assert_eq!(w.server().counters().handshake_timeout, 1);
}

#[test]
fn what_was_changed_on_the_way_is_no_users_byte() {
    let mut w = World::met(1, Setup::default());
    w.content(CONTENT, Content::Echoes);
    let flight = first_flight(&mut w, &[7; 2_000]);
    // The tickets that the box has got meanwhile are its own; what is sent here is in vain, and never
    // more than a handshake.
    for at in (0..flight.len()).step_by(97) {
        let mut changed = flight.clone();
        changed[at] ^= 0x20;
        say(&mut w, &changed);
    }
    for len in [1, 4, 5, 6, 100, 300, flight.len() - 1] {
        say(&mut w, &flight[..len]);
    }
    let served = w.server_local().attempts.len();
    assert_eq!(served, 2, "the greeter's and the user's");
    w.run_for(Duration::from_secs(20));
    assert_eq!(w.server().connections(), 0);
    // And the box is served as before.
    watched(&mut w, WORD);
}

#[test]
fn garbage_that_looks_like_tls_is_counted() {
    let mut w = World::met(1, Setup::default());
    let junk = [&[22, 3, 1, 0, 5][..], &[9; 200]].concat();
    say(&mut w, &junk);
    assert_eq!(w.server().counters().damaged, 1);
    // A record that announces more than a record may have.
    say(&mut w, &[22, 3, 1, 0xff, 0xff, 1, 2, 3]);
    assert_eq!(w.server().counters().damaged, 2);
    w.run_for(Duration::from_secs(20));
    assert_eq!(w.server().connections(), 0);
}

#[test]
fn a_server_may_insist_on_protection() {
    let setup = Setup {
        clear: true,
        server: "unprotected = false",
        ..Setup::default()
    };
    let mut w = World::ready(1, setup);
    w.content(CONTENT, Content::Echoes);
    let user = w.open(CONTENT, WORD, false);
    w.run_until(|w| w.user(user).closed);
    assert!(w.user(user).reset);
    assert_eq!(w.server().counters().clear, 1);
}
