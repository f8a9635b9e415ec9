//! Several users, one after another, on the same connection to the server.

use core::time::Duration;
use std::collections::BTreeSet;

use crate::world::downstream::{Content, SOCKET_ROOM};
use crate::world::tls::{GREETING, HANDSHAKE, Program, REQUEST};
use crate::world::{CONTENT, Setup, World, box_key};
use braid_engine::{CloseReason, Event};
use braid_proxy::app::DownstreamId;

fn warm(setup: Setup<'_>) -> World {
    let mut w = World::met(2, Setup { warm: 2, ..setup });
    w.content(CONTENT, Content::Echoes);
    w
}

/// Sends `bytes` to an echo server, and asserts that all of them return in order.
fn echo(w: &mut World, bytes: &[u8], ends: bool) -> DownstreamId {
    let user = w.open(CONTENT, bytes, ends);
    w.run_until(|w| w.user(user).got.len() == bytes.len() && w.user(user).got_end == ends);
    assert!(w.user(user).got == bytes && !w.user(user).reset);
    user
}

fn pattern(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| (seed + i / 3 + i / 1_000) as u8).collect()
}

/// The users send numbers of bytes around the limits of records and frames. Each user receives only their own
/// bytes.
#[test]
fn one_user_after_the_other_is_served_by_few_connections() {
    let mut w = warm(Setup::default());
    let sizes = [
        0, 1, 2, 1_000, 16_381, 16_384, 16_385, 65_534, 65_537, 300_000,
    ];
    for (n, size) in sizes.iter().cycle().take(40).enumerate() {
        echo(&mut w, &pattern(n, *size), true);
        w.run_for(Duration::from_millis(100));
    }
    let (boxed, server) = (*w.core.counters(), *w.server().counters());
    assert_eq!((boxed.idle_returned, boxed.finished), (41, 41));
    assert_eq!((server.connected, server.finished), (41, 41));
    assert!(boxed.idle_opened <= 2, "{}", boxed.idle_opened);
    assert_eq!((w.core.connections(), w.server().connections()), (0, 0));
    let left = w.server_downstream().streams.values().filter(|s| !s.closed);
    assert_eq!(left.count(), 0);
}

/// Even a busy connection is replaced after ten minutes, so that its keys are not used for longer.
#[test]
fn no_connection_is_kept_for_longer_than_ten_minutes() {
    let mut w = warm(Setup::default());
    let (mut opened, mut changes) = (BTreeSet::new(), 0);
    for _ in 0..31 {
        let before = w.now;
        while w.now < before + Duration::from_secs(60) {
            echo(&mut w, b"hello", true);
            w.run_for(Duration::from_secs(10));
        }
        let (node, _) = w.server.as_ref().unwrap();
        let now: BTreeSet<_> = node.stack.conn_bytes().map(|(conn, _)| conn).collect();
        changes += usize::from(opened.is_disjoint(&now));
        opened = now;
    }
    assert!((3..=5).contains(&changes), "{changes}");
    let c = *w.core.counters();
    assert_eq!((c.idle_lost, c.idle_failed, c.reset_by_server), (0, 0, 0));
}

/// Either side may end its direction first and still receive.
#[test]
fn a_direction_may_end_long_before_the_other() {
    let mut w = warm(Setup::default());
    let other = "198.51.100.9:80";
    w.content(other, Content::Sends(pattern(3, 100_000), true));
    for n in 0..4 {
        let user = w.open(other, b"", false);
        w.run_until(|w| w.user(user).got_end);
        assert_eq!(w.user(user).got, pattern(3, 100_000));
        // The destination still receives the bytes that the user sends after the end of the other direction.
        w.boxed.downstream.send(user, &pattern(n, 50_000), false);
        w.run_for(Duration::from_secs(1));
        w.boxed.downstream.send(user, b"", true);
        w.run_until(|w| w.user(user).closed);
        let last = w.server_downstream().streams.last_key_value().unwrap().1;
        assert_eq!(last.got, pattern(n, 50_000));
        w.run_for(Duration::from_millis(100));
    }
    let c = *w.core.counters();
    assert_eq!((c.idle_returned, c.reset_by_server), (5, 0));
}

/// Hints about the connection of one user do not apply to the next user.
#[test]
fn hints_apply_to_one_user_only() {
    let boxed = "[[rule]]\nport = 22\nurgency = 7\nsize = \"5kB\"\nstrategy = \"redundant\"\n";
    let mut w = warm(Setup {
        boxed,
        ..Setup::default()
    });
    let ssh = "198.51.100.1:22";
    w.content(ssh, Content::Echoes);
    for (to, expected) in [
        (ssh, (Some(5_000), 7, "redundant")),
        (CONTENT, (None, 3, "minrtt")),
        (ssh, (Some(5_000), 7, "redundant")),
    ] {
        let user = w.open(to, b"hello", false);
        w.run_until(|w| w.user(user).got == b"hello");
        let (node, core) = w.server.as_ref().unwrap();
        let status = core.status(w.now, &node.stack);
        let mut open = status.connections.iter().filter(|c| c.state == "open");
        let open = open.next().unwrap();
        assert_eq!((open.size, open.urgency, open.strategy.as_str()), expected);
        w.boxed.downstream.send(user, b"", true);
        w.run_until(|w| w.user(user).closed);
        w.run_for(Duration::from_millis(100));
    }
    assert!(w.core.counters().idle_returned > 2);
}

/// A reset ends both directions, and the connection with them.
#[test]
fn a_reset_ends_the_connection_for_all_users() {
    let mut w = warm(Setup::default());
    let user = w.open(CONTENT, &pattern(1, 200_000), false);
    w.run_until(|w| w.user(user).got.len() > 10_000);
    w.boxed.downstream.break_stream(user);
    w.run_for(Duration::from_secs(1));
    let last = w.server_downstream().streams.last_key_value().unwrap().1;
    assert!(last.reset && !last.got_end);
    assert_eq!(w.core.counters().idle_returned, 1, "the greeter's");
    echo(&mut w, &pattern(2, 200_000), true);
}

/// A user who leaves has sent all bytes to the box. Bytes in flight are not lost when the idle pool is closed,
/// and do not delay the next user.
#[test]
fn the_last_bytes_of_a_user_who_left_arrive() {
    for lost in [false, true] {
        let mut w = warm(Setup::default());
        // The destination sends no more, but keeps reading.
        w.content(CONTENT, Content::Sends(b"bye".to_vec(), true));
        let said = pattern(1, 60_000);
        let user = w.open(CONTENT, b"", false);
        w.run_until(|w| w.user(user).got_end);
        let opened = w.core.counters().idle_opened;
        if lost {
            w.links.iter_mut().for_each(|link| link.loss = 0.3);
        }
        w.boxed.downstream.send(user, &said, true);
        w.run_until(|w| w.user(user).closed);
        // Taking the link down closes idle connections at once.
        w.set_link(0, false);
        w.set_link(0, true);
        w.links.iter_mut().for_each(|link| link.loss = 0.0);
        w.run_for(Duration::from_secs(10));
        let last = w.server_downstream().streams.last_key_value().unwrap().1;
        assert!(last.got == said && last.got_end && !last.reset, "{lost}");
        assert!(w.core.counters().idle_opened <= opened + 2);
    }
}

/// If the server has bytes that it cannot deliver, the next user's bytes would wait behind them. So the
/// connection is not reused.
#[test]
fn no_user_waits_behind_undeliverable_bytes() {
    let mut w = warm(Setup::default());
    let stuck = "198.51.100.9:80";
    w.content(stuck, Content::Sends(b"bye".to_vec(), true));
    let user = w.open(stuck, b"", false);
    w.run_until(|w| w.user(user).got_end);
    let destination = *w.server_downstream().streams.last_key_value().unwrap().0;
    w.server_downstream()
        .streams
        .get_mut(&destination)
        .unwrap()
        .stalled = true;
    let said = pattern(1, SOCKET_ROOM + 30_000);
    w.boxed.downstream.send(user, &said, true);
    w.run_until(|w| w.user(user).closed);
    w.run_for(Duration::from_secs(1));
    for n in 0..6 {
        echo(&mut w, &pattern(n, 1_000), true);
    }
    w.run_for(Duration::from_secs(1));
    assert_eq!(w.core.connections(), 1, "it counts until it is done");
    w.server_downstream().resume(destination);
    w.run_for(Duration::from_secs(1));
    let destination = w.server_downstream().stream(destination);
    assert!(destination.got == said && destination.got_end && !destination.reset);
    assert_eq!(w.core.connections(), 0);
}

/// A program may send its next request before it has read the last answer, and needs only the request.
#[test]
fn the_next_request_may_come_at_once() {
    let mut w = World::ready(1, Setup::default());
    w.content(CONTENT, Content::Echoes);
    let mut program = Program::asking(&mut w, b"one");
    program.end();
    program.go_on(&mut w);
    // The answer ends with the message that the server is ready for more.
    let answer = |word: &[u8]| [&[5, 0, 0, 1, 0, 0, 0, 0, 0, 0], word, &[5, 0]].concat();
    assert_eq!(program.got[2..], answer(b"one"));
    assert_eq!(program.ends, [2 + 10 + 3]);
    // Both requests, each with the user's bytes and their end, are sent together.
    for word in [&b"two"[..], b"three"] {
        program.data(&[&REQUEST, word].concat());
        program.end();
    }
    program.go_on(&mut w);
    let all = [answer(b"one"), answer(b"two"), answer(b"three")].concat();
    assert_eq!(program.got[2..], all);
    assert_eq!(program.ends, [15, 15 + 15, 30 + 17]);
    let c = *w.server().counters();
    assert_eq!((c.connected, c.finished), (3, 3));
    assert_eq!((w.server().connections(), w.server().waiting()), (0, 1));
    // Anything but a request ends the connection.
    program.say(&mut w, b"nonsense");
    assert_eq!(w.server().counters().garbage, 1);
    w.run_for(Duration::from_secs(10));
    assert_eq!((w.server().connections(), w.server().waiting()), (0, 0));
}

/// Each end may rekey at any time; bytes from before and after are understood.
#[test]
fn a_key_may_be_replaced_at_any_time() {
    let mut w = World::ready(1, Setup::default());
    w.content(CONTENT, Content::Echoes);
    let mut program = Program::asking(&mut w, &[]);
    let many = |program: &mut Program| (0..1024).for_each(|_| program.data(b"x"));
    for _ in 0..2 {
        many(&mut program);
        program.renew();
    }
    program.say(&mut w, b"yes");
    let said = [&[b'x'; 2048][..], b"yes"].concat();
    assert_eq!(program.got[12..], said);
    // The server has followed, so that no earlier secret is left in its direction either.
    assert_eq!(program.followed, 2);
    // A record that arrives under a key after its replacement is refused.
    many(&mut program);
    program.data(b"no");
    let stale = program.out.split_off(program.out.len() - 24);
    program.renew();
    program.out.extend(stale);
    program.go_on(&mut w);
    assert_eq!(w.server().counters().damaged, 1);
}

/// An authenticated client sends no further handshake messages of TLS.
#[test]
fn handshake_messages_after_the_handshake_are_refused() {
    let mut w = World::ready(1, Setup::default());
    w.content(CONTENT, Content::Echoes);
    let mut program = Program::asking(&mut w, b"one");
    // The first bytes of a handshake message of 64 kB: a server that accepts it would wait for the rest.
    program.record(HANDSHAKE, &[11, 0, 0xff, 0xff]);
    program.go_on(&mut w);
    assert_eq!(w.server().counters().damaged, 1);
}

/// A record may have a single byte of content.
#[test]
fn records_of_one_byte_are_accepted() {
    let mut w = World::ready(1, Setup::default());
    w.content(CONTENT, Content::Counts);
    let mut program = Program::asking(&mut w, &[]);
    (0..3_000).for_each(|n| program.data(&[n as u8]));
    program.end();
    program.go_on(&mut w);
    assert_eq!(program.got[12..], [&b"3000"[..], &[5, 0]].concat());
    assert_eq!(program.ends, [16]);
}

/// A box that closes the connection in order after a user loses no bytes.
#[test]
fn a_box_may_close_the_connection_after_a_user() {
    let mut w = World::ready(1, Setup::default());
    w.content(CONTENT, Content::Echoes);
    let mut program = Program::asking(&mut w, b"one");
    program.end();
    program.go_on(&mut w);
    assert_eq!(w.server().waiting(), 1);
    program.close();
    program.go_on(&mut w);
    w.raw.shutdown(w.now, program.conn).unwrap();
    program.go_on(&mut w);
    let ended = w.raw_events.contains(&Event::Closed {
        conn: program.conn,
        reason: CloseReason::Finished,
    });
    assert!(ended, "{:?}", w.raw_events);
    assert_eq!((w.server().connections(), w.server().waiting()), (0, 0));
}

/// If the connection closes before the user's bytes have ended, or within a record, the destination gets a reset
/// and not an end.
#[test]
fn a_cut_is_a_reset_for_the_destination() {
    for (len, closes) in [(0, true), (1, true), (300, true), (300, false)] {
        let mut w = World::ready(1, Setup::default());
        w.content(CONTENT, Content::Echoes);
        let mut program = Program::asking(&mut w, &vec![7; len]);
        match closes {
            true => program.close(),
            false => {
                program.data(&[8; 100]);
                program.out.truncate(50);
            }
        }
        program.go_on(&mut w);
        if !closes {
            w.raw.shutdown(w.now, program.conn).unwrap();
            program.go_on(&mut w);
        }
        let (stream, waiting) = (w.only_content(), w.server().waiting());
        let stream = w.server_downstream().stream(stream);
        assert!(stream.reset && !stream.got_end, "{len}");
        assert_eq!(stream.got.len(), len);
        assert_eq!((w.server().counters().damaged, waiting), (1, 0));
    }
}

/// The end of a user's bytes is an error if no user's bytes have begun.
#[test]
fn an_end_without_a_user_is_damage() {
    let mut w = World::ready(1, Setup::default());
    let mut program = Program::connect(&mut w);
    program.data(&GREETING);
    program.end();
    program.go_on(&mut w);
    assert_eq!(w.server().counters().damaged, 1);
    assert_eq!(w.server().waiting(), 0);
}

/// The limit on a user's connections does not count idle ones, and applies when they get a request.
#[test]
fn idle_connections_do_not_count_towards_the_users_limit() {
    let setup = Setup {
        server: "expert.max_connections_per_user = 1",
        ..Setup::default()
    };
    let mut w = World::ready(1, setup);
    w.content(CONTENT, Content::Echoes);
    let mut first = Program::asking(&mut w, b"x");
    assert_eq!(w.server().connections(), 1);
    first.end();
    first.go_on(&mut w);
    assert_eq!((w.server().connections(), w.server().waiting()), (0, 1));
    Program::asking(&mut w, b"x");
    assert_eq!(w.server().connections(), 1);
    first.say(&mut w, &[&REQUEST[..], b"x"].concat());
    assert_eq!(w.server().counters().over_limit, 1);
}

/// A connection counts towards its user until the box has acknowledged all bytes.
#[test]
fn a_connection_counts_until_the_box_has_all_bytes() {
    const SIZE: usize = 4 * SOCKET_ROOM;
    let setup = Setup {
        server: "timeouts.half_closed = \"1min\"",
        tweak: Some(|config| config.recv_buffer = SOCKET_ROOM),
        ..Setup::default()
    };
    let mut w = World::ready(1, setup);
    w.content(CONTENT, Content::Sends(vec![7; SIZE], true));
    let mut program = Program::connect(&mut w);
    program.data(&[&GREETING[..], &REQUEST].concat());
    program.end();
    let out = core::mem::take(&mut program.out);
    w.raw.write(w.now, program.conn, &out).unwrap();
    // The program reads nothing of the answer.
    w.run_for(Duration::from_secs(50));
    assert_eq!((w.server().connections(), w.server().waiting()), (1, 0));
    program.go_on(&mut w);
    for _ in 0..20 {
        program.go_on(&mut w);
    }
    assert!(program.got.len() > SIZE);
    assert_eq!((w.server().connections(), w.server().waiting()), (0, 1));
}

/// After a key is removed from the configuration, no further request is served on connections of that user.
#[test]
fn a_user_who_is_removed_is_not_served_again() {
    let mut w = warm(Setup::default());
    echo(&mut w, b"hello", true);
    w.run_for(Duration::from_secs(1));
    let waiting = w.server().waiting();
    assert!(waiting > 0);
    let other = braid_secure::keys::PrivateKey::from_seed([9; 32]).public();
    w.set_users(&[("other", other)]);
    w.run_for(Duration::from_secs(1));
    assert_eq!(w.server().waiting(), 0);
    assert_eq!(w.server().counters().user_removed, waiting as u64);
    w.set_users(&[("box", box_key().public())]);
    echo(&mut w, b"again", true);
}
