//! Ends of protected connections: in order, refused, cut off, tampered with, or missing.

use core::time::Duration;

use crate::world::downstream::{Content, SOCKET_ROOM};
use crate::world::tls::{GREETING, Program};
use crate::world::{CONTENT, Setup, World, payload};
use braid_engine::CloseReason;
use braid_engine::Event;
use braid_proxy::app::DownstreamId;
use rustls::CertificateError;

/// Connects a program to [`CONTENT`].
fn connected(w: &mut World) -> Program {
    let program = Program::asking(w, &[]);
    assert_eq!(program.got[..4], [5, 0, 5, 0], "it is let in and connected");
    program
}

/// Returns the destination's stream of the last connection.
fn content(w: &mut World) -> DownstreamId {
    *w.server_downstream().streams.last_key_value().unwrap().0
}

/// Starts a user who is sent `size` bytes, and `times` times reads what the socket has, then pauses.
fn who_takes_slowly(w: &mut World, size: usize, times: usize, pause: Duration) -> DownstreamId {
    w.content(CONTENT, Content::Sends(vec![7; size], true));
    let user = w.open(CONTENT, b"GET /", true);
    w.run_until(|w| !w.user(user).got.is_empty());
    for _ in 0..times {
        w.boxed.downstream.resume(user);
        w.boxed.downstream.streams.get_mut(&user).unwrap().stalled = true;
        w.run_for(pause);
    }
    user
}

/// Lets the user read the rest, and asserts that it is complete.
fn takes_the_rest(w: &mut World, user: DownstreamId, size: usize) {
    w.boxed.downstream.resume(user);
    w.run_until(|w| w.user(user).closed);
    assert_eq!(w.user(user).got.len(), size);
    assert!(!w.user(user).reset);
}

#[test]
fn who_never_ends_the_connection_counts_until_it_is_ended() {
    let setup = Setup {
        server: "expert.max_connections_per_user = 1\ntimeouts.half_closed = \"1min\"",
        ..Setup::default()
    };
    let mut w = World::ready(1, setup);
    w.content(CONTENT, Content::Sends(b"x".to_vec(), true));
    let mut program = connected(&mut w);
    // Ends the user's bytes and the channel, but not the connection below.
    program.end();
    program.close();
    program.go_on(&mut w);
    let stream = content(&mut w);
    assert!(
        w.server_downstream().stream(stream).closed,
        "both ends were said"
    );
    assert_eq!(w.server().connections(), 1);
    Program::asking(&mut w, &[]);
    assert_eq!(w.server().counters().over_limit, 1);
    w.run_for(Duration::from_secs(60));
    let counters = *w.server().counters();
    assert_eq!((counters.finished, counters.idle_timeout), (0, 1));
    assert_eq!(w.server().connections(), 0);
    assert!(!w.server_downstream().stream(stream).reset);
    let ended = w.raw_events.contains(&Event::Closed {
        conn: program.conn,
        reason: CloseReason::Reset,
    });
    assert!(ended, "the connection is no more");
}

/// A user who takes the rest slowly is not cut off.
#[test]
fn what_still_arrives_is_waited_for() {
    const SIZE: usize = 8 * SOCKET_ROOM;
    let setup = Setup {
        server: "timeouts.half_closed = \"1min\"",
        tweak: Some(|config| config.recv_buffer = SOCKET_ROOM),
        ..Setup::default()
    };
    let mut w = World::ready(1, setup);
    let user = who_takes_slowly(&mut w, SIZE, 8, Duration::from_secs(40));
    takes_the_rest(&mut w, user, SIZE);
}

/// The box has received everything, so the server waits for a further request in vain.
#[test]
fn what_the_box_has_still_to_pass_on_is_not_cut_off() {
    const SIZE: usize = 8 * SOCKET_ROOM;
    let setup = Setup {
        server: "timeouts.waiting = \"20s\"",
        boxed: "warm.age = \"10s\"",
        ..Setup::default()
    };
    let mut w = World::ready(1, setup);
    let user = who_takes_slowly(&mut w, SIZE, 4, Duration::from_secs(15));
    assert!(w.user(user).got.len() < SIZE, "not all of it was taken");
    takes_the_rest(&mut w, user, SIZE);
    // Both ends have finished with the connection.
    w.run_for(Duration::from_secs(1));
    let counters = *w.server().counters();
    let examined = w.core.counters().examinations;
    assert_eq!((counters.finished, counters.unused_sign_ins), (1, examined));
    let user = w.open(CONTENT, b"GET /", true);
    w.run_until(|w| w.user(user).closed);
    assert_eq!(w.user(user).got.len(), SIZE);
}

/// Without room for its record, the end is sent later.
#[test]
fn an_end_that_finds_no_room_is_said_all_the_same() {
    const ROOM: usize = 4 << 10;
    // Other unacknowledged bytes take a part of the room.
    for size in (ROOM - 1_000..ROOM).step_by(8) {
        let setup = Setup {
            tweak: Some(|config| config.send_buffer = ROOM),
            ..Setup::default()
        };
        let mut w = World::met(1, setup);
        w.content(CONTENT, Content::Echoes);
        let data = vec![7; size];
        let user = w.open(CONTENT, &data, true);
        w.run_until(|w| w.user(user).closed);
        assert!(w.user(user).got == data && !w.user(user).reset, "{size}");
        w.run_for(Duration::from_secs(1));
        assert_eq!(w.server().counters().finished, 2, "{size}");
        assert_eq!(w.server().connections(), 0, "{size}");
    }
}

/// An end of the TCP connection alone is a truncation, also where the destination takes nothing meanwhile.
#[test]
fn what_was_cut_off_is_a_reset_once_the_destination_has_what_came() {
    let mut w = World::ready(1, Setup::default());
    w.content(CONTENT, Content::Sends(b"x".to_vec(), true));
    let mut program = connected(&mut w);
    let stream = content(&mut w);
    let streams = &mut w.server_downstream().streams;
    streams.get_mut(&stream).unwrap().stalled = true;
    for _ in 0..2 {
        program.say(&mut w, &[1; SOCKET_ROOM / 2]);
    }
    program.say(&mut w, &[2; 5_000]);
    w.raw.shutdown(w.now, program.conn).unwrap();
    program.go_on(&mut w);
    assert_eq!(w.server().connections(), 1, "there is more to deliver");
    w.server_downstream().resume(stream);
    w.run_for(Duration::from_millis(100));
    let stream = w.server_downstream().stream(stream);
    assert_eq!(stream.got.len(), SOCKET_ROOM + 5_000);
    assert!(stream.reset && !stream.got_end);
    assert_eq!(w.server().connections(), 0);
    assert_eq!(w.server().counters().damaged, 1);
}

#[test]
fn a_record_that_was_changed_is_a_reset_that_is_counted_as_what_it_is() {
    for to_server in [true, false] {
        let mut w = World::met(1, Setup::default());
        w.content(CONTENT, Content::Echoes);
        let user = w.open(CONTENT, &vec![7; 1_000_000], false);
        w.run_until(|w| w.user(user).got.len() > 100_000);
        w.tamper = Some(Box::new(move |up, packet| {
            if up == to_server && !payload(packet).is_empty() {
                *packet.last_mut().unwrap() ^= 1;
            }
            true
        }));
        w.run_until(|w| w.user(user).closed);
        assert!(w.user(user).reset);
        let got = &w.user(user).got;
        assert!(got.len() < 1_000_000 && got.iter().all(|b| *b == 7));
        w.run_for(Duration::from_secs(1));
        let content = content(&mut w);
        let content = w.server_downstream().stream(content);
        assert!(content.reset && content.got.iter().all(|b| *b == 7));
        let found = (w.server().counters().damaged, w.core.counters().unprotected);
        assert_eq!(found, if to_server { (1, 0) } else { (0, 1) });
    }
}

/// Each cause has its own counter.
#[test]
fn who_finds_the_server_wrong_is_not_called_damaged() {
    let mut w = World::ready(1, Setup::default());
    Program::connect_as(&mut w, b"braid/0", None);
    assert_eq!(w.server().counters().incompatible, 1);
    let wrong_key = CertificateError::ApplicationVerificationFailure;
    Program::connect_as(&mut w, b"braid/4", Some(wrong_key));
    assert_eq!(w.server().counters().refused_by_box, 1);
    Program::connect_as(&mut w, b"braid/4", Some(CertificateError::BadSignature));
    assert_eq!(w.server().counters().damaged_at_box, 1);
    assert_eq!(w.server().counters().damaged, 0);
}

#[test]
fn who_says_a_record_bit_by_bit_waits_no_longer() {
    let setup = Setup {
        server: "timeouts.waiting = \"20s\"",
        ..Setup::default()
    };
    let mut w = World::ready(1, setup);
    let before = w.server().counters().unused_sign_ins;
    let mut program = Program::connect(&mut w);
    program.say(&mut w, &GREETING);
    program.data(&[0; 100]);
    let record = core::mem::take(&mut program.out);
    for bit in record.chunks(10).take(4) {
        assert_eq!(w.server().waiting(), 1);
        w.run_for(Duration::from_secs(4));
        program.out.extend(bit);
        program.go_on(&mut w);
    }
    w.run_for(Duration::from_secs(5));
    assert_eq!(w.server().waiting(), 0);
    assert_eq!(w.server().counters().unused_sign_ins, before + 1);
}

/// A rekey costs more than reading a record, so it is refused if it comes too often.
#[test]
fn a_key_has_to_be_used_before_it_is_replaced() {
    for (records, damaged) in [(1023, 1), (1024, 0)] {
        let mut w = World::ready(1, Setup::default());
        w.content(CONTENT, Content::Echoes);
        let mut program = Program::asking(&mut w, &[]);
        // Greeting and request were one record, and the KeyUpdate is one.
        (1..records).for_each(|_| program.data(b"x"));
        program.renew();
        program.say(&mut w, b"y");
        assert_eq!(w.server().counters().damaged, damaged, "{records}");
    }
}
