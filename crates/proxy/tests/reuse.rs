//! Users who follow each other on one connection to the server.

mod world;

#[path = "world/tls.rs"]
mod tls;

use core::time::Duration;
use std::collections::BTreeSet;

use braid_engine::{CloseReason, Event};
use braid_proxy::app::DownstreamId;
use tls::{GREETING, HANDSHAKE, Program, REQUEST};
use world::downstream::{Content, SOCKET_ROOM};
use world::{CONTENT, Setup, World, box_key};

fn warm(setup: Setup<'_>) -> World {
    let mut w = World::met(2, Setup { warm: 2, ..setup });
    w.content(CONTENT, Content::Echoes);
    w
}

/// Sends `bytes` to an echo, and asserts that all come back in order.
fn echo(w: &mut World, bytes: &[u8], ends: bool) -> DownstreamId {
    let user = w.open(CONTENT, bytes, ends);
    w.run_until(|w| w.user(user).got.len() == bytes.len() && w.user(user).got_end == ends);
    assert!(w.user(user).got == bytes && !w.user(user).reset);
    user
}

fn pattern(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| (seed + i / 3 + i / 1_000) as u8).collect()
}

/// Users with sizes around the limits of records and frames, in any order; each gets their own bytes.
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

/// However busy it is, a connection uses the same keys for minutes only.
#[test]
fn none_is_kept_for_longer_than_ten_minutes() {
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

/// Either side may have no more to send, still receive, or end first.
#[test]
fn a_direction_may_end_long_before_the_other() {
    let mut w = warm(Setup::default());
    let other = "198.51.100.9:80";
    w.content(other, Content::Sends(pattern(3, 100_000), true));
    for n in 0..4 {
        let user = w.open(other, b"", false);
        w.run_until(|w| w.user(user).got_end);
        assert_eq!(w.user(user).got, pattern(3, 100_000));
        // The destination takes what the user sends later.
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

/// The hints about one user's connection do not apply to the next one.
#[test]
fn hints_are_of_one_user() {
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
fn who_is_reset_leaves_nothing_to_others() {
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

/// A user who leaves has sent everything to the box. The bytes under way are not lost with the pool, and do not
/// delay the next user.
#[test]
fn what_a_user_said_last_arrives_though_nobody_waits_for_it() {
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

/// The server has bytes that it cannot deliver, so the next user's would wait behind them.
#[test]
fn nobody_waits_behind_what_a_destination_does_not_take() {
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
    // Everything in one flight, and twice.
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
    // A record under the key before the last is refused.
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
fn a_handshake_that_is_over_is_over() {
    let mut w = World::ready(1, Setup::default());
    w.content(CONTENT, Content::Echoes);
    let mut program = Program::asking(&mut w, b"one");
    // The beginning of a message of 64 kB, which would have to be waited for.
    program.record(HANDSHAKE, &[11, 0, 0xff, 0xff]);
    program.go_on(&mut w);
    assert_eq!(w.server().counters().damaged, 1);
}

/// Records may be as small as a byte.
#[test]
fn records_of_a_byte_are_taken_too() {
    let mut w = World::ready(1, Setup::default());
    w.content(CONTENT, Content::Counts);
    let mut program = Program::asking(&mut w, &[]);
    (0..3_000).for_each(|n| program.data(&[n as u8]));
    program.end();
    program.go_on(&mut w);
    assert_eq!(program.got[12..], [&b"3000"[..], &[5, 0]].concat());
    assert_eq!(program.ends, [16]);
}

/// An orderly end after a user cuts nothing off.
#[test]
fn who_asks_for_no_more_may_end_it() {
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

/// A close without the end of the user's bytes is a reset for the destination, as is an end within a record.
#[test]
fn what_is_cut_off_is_a_reset() {
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

/// The end of a user's bytes is an error where no user's bytes have begun.
#[test]
fn an_end_of_what_was_not_begun_is_damage() {
    let mut w = World::ready(1, Setup::default());
    let mut program = Program::connect(&mut w);
    program.data(&GREETING);
    program.end();
    program.go_on(&mut w);
    assert_eq!(w.server().counters().damaged, 1);
    assert_eq!(w.server().waiting(), 0);
}

/// The limit on a user's connections applies as before, and idle ones do not count.
#[test]
fn who_waits_again_is_not_counted_among_the_users_connections() {
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

/// A user's connection counts until the box has taken all of it.
#[test]
fn what_has_not_arrived_still_counts() {
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

/// A key that is removed from the configuration is good for no further request.
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
