//! Tests of a server against peers that are not boxes, or that attack it.

use core::time::Duration;

use crate::world::downstream::Content;
use crate::world::{CONTENT, Setup, World, box_key, server_key};
use braid_engine::{CloseReason, ConnId, Event};
use braid_proxy::socks::{Destination, request, sign_in};
use braid_secure::auth::password;

fn closed(w: &World, conn: ConnId) -> Option<CloseReason> {
    w.raw_events.iter().find_map(|e| match e {
        Event::Closed { conn: c, reason } if *c == conn => Some(*reason),
        _ => None,
    })
}

fn handshake(w: &World, destination: &Destination, nonce: u8) -> Vec<u8> {
    let (key, server) = (box_key(), server_key().public());
    let password = password(
        &key,
        server,
        &destination.to_bytes(),
        w.unix_ms(),
        [nonce; 16],
    );
    let user = key.public().to_string();
    [
        sign_in(user.as_bytes(), &password),
        request(None, destination),
    ]
    .concat()
}

fn content() -> Destination {
    Destination::Address(CONTENT.parse().unwrap())
}

#[test]
fn a_client_that_sends_single_bytes_is_served() {
    let mut w = World::ready(1, Setup::default());
    w.content(CONTENT, Content::Echoes);
    let conn = w.raw_connect();
    let bytes = handshake(&w, &content(), 1);
    for byte in &bytes {
        assert_eq!(w.raw.write(w.now, conn, &[*byte]), Ok(1));
        w.run_for(Duration::from_millis(20));
    }
    w.raw.write(w.now, conn, b"hello").unwrap();
    w.run_for(Duration::from_millis(50));
    let expected = [&[5, 2, 1, 0, 5, 0, 0, 1, 0, 0, 0, 0, 0, 0][..], b"hello"].concat();
    assert_eq!(w.raw_read(conn), expected);
}

/// A refused connection counts until its peer has closed it, or until the server's timeout.
#[test]
fn refused_connections_count_as_handshakes() {
    let setup = Setup {
        server: "limits.handshakes = 4",
        ..Setup::default()
    };
    let mut w = World::ready(1, setup);
    for _ in 0..2 {
        let conn = w.raw_connect();
        w.raw.write(w.now, conn, &[5, 1, 9]).unwrap();
        w.run_for(Duration::from_millis(50));
        assert_eq!(w.raw_read(conn), [5, 0xff]);
    }
    let third = w.raw_connect();
    assert_eq!(w.server().counters().over_source, 1);
    assert_eq!(closed(&w, third), Some(CloseReason::Reset));
    w.run_for(Duration::from_secs(6));
    let fourth = w.raw_connect();
    assert_eq!(w.server().counters().over_source, 1);
    assert_eq!(closed(&w, fourth), None);
}

#[test]
fn names_are_looked_up_and_every_address_is_judged() {
    let mut w = World::ready(1, Setup::default());
    w.content("198.51.100.9:80", Content::Sends(b"nine".to_vec(), true));
    w.content("127.0.0.1:80", Content::Sends(b"inside".to_vec(), true));
    let addr = |s: &str| s.parse().unwrap();
    let names = &mut w.server_downstream().names;
    names.insert(
        "mixed.example".into(),
        vec![
            addr("127.0.0.1:0"),
            addr("198.51.100.8:0"),
            addr("198.51.100.9:0"),
        ],
    );
    names.insert(
        "inside.example".into(),
        vec![
            addr("127.0.0.1:0"),
            addr("[::ffff:10.0.0.1]:0"),
            addr("[64:ff9b::7f00:1]:0"),
        ],
    );
    let ask = |w: &mut World, name: &str, nonce| {
        let conn = w.raw_connect();
        let bytes = handshake(w, &Destination::Name(name.into(), 80), nonce);
        w.raw.write(w.now, conn, &bytes).unwrap();
        w.run_for(Duration::from_millis(100));
        w.raw_read(conn)
    };
    let got = ask(&mut w, "mixed.example", 1);
    assert_eq!(
        &got[4..],
        [&[5, 0, 0, 1, 0, 0, 0, 0, 0, 0][..], b"nine"].concat()
    );
    assert_eq!(
        w.server_downstream().attempts,
        [addr("198.51.100.8:80"), addr("198.51.100.9:80")]
    );
    assert_eq!(ask(&mut w, "inside.example", 2)[5], 2);
    assert_eq!(ask(&mut w, "nowhere.example", 3)[5], 4);
    assert_eq!(w.server_downstream().attempts.len(), 2);
    let c = w.server().counters();
    assert_eq!((c.forbidden, c.not_resolved), (1, 1));
}

#[test]
fn a_silent_address_of_a_name_gives_way_to_the_next() {
    let mut w = World::ready(1, Setup::default());
    w.content("198.51.100.8:80", Content::Silent);
    w.content("198.51.100.9:80", Content::Sends(b"nine".to_vec(), true));
    let addresses = ["198.51.100.8:0", "198.51.100.9:0"].map(|a| a.parse().unwrap());
    w.server_downstream()
        .names
        .insert("a.example".into(), addresses.into());
    let conn = w.raw_connect();
    let bytes = handshake(&w, &Destination::Name("a.example".into(), 80), 1);
    w.raw.write(w.now, conn, &bytes).unwrap();
    w.run_for(Duration::from_secs(4));
    assert!(w.raw_read(conn).ends_with(b"nine"));
}

/// An attacker's name server gives another answer each time, and a reload changes the rules in between.
#[test]
fn an_address_is_judged_when_it_is_tried() {
    let mut w = World::ready(1, Setup::default());
    w.content("198.51.100.8:80", Content::Silent);
    w.content("198.51.100.9:80", Content::Sends(b"nine".to_vec(), true));
    w.content("10.0.0.1:80", Content::Sends(b"inside".to_vec(), true));
    let answers = [
        vec!["198.51.100.9:0"],
        vec!["10.0.0.1:0"],
        vec!["198.51.100.8:0", "198.51.100.9:0"],
    ];
    let mut said = Vec::new();
    for (nonce, answer) in (0..).zip(answers) {
        let addresses = answer.iter().map(|a| a.parse().unwrap()).collect();
        let names = &mut w.server_downstream().names;
        names.insert("rebound.example".into(), addresses);
        let conn = w.raw_connect();
        let bytes = handshake(&w, &Destination::Name("rebound.example".into(), 80), nonce);
        w.raw.write(w.now, conn, &bytes).unwrap();
        w.run_for(Duration::from_secs(1));
        // The last name's first address is silent, and the second one is forbidden by now.
        w.server_config.deny = vec!["198.51.100.9/32".parse().unwrap()];
        w.set_users(&[("box", box_key().public())]);
        w.run_for(Duration::from_secs(3));
        said.push(w.raw_read(conn)[5]);
        w.server_config.deny.clear();
        w.set_users(&[("box", box_key().public())]);
    }
    assert_eq!(said, [0, 2, 2], "connected, not allowed, not allowed");
    let attempts = ["198.51.100.9:80", "198.51.100.8:80"].map(|a| a.parse().unwrap());
    assert_eq!(w.server_downstream().attempts, attempts);
    assert_eq!(w.server().counters().forbidden, 2);
}

#[test]
fn a_replayed_handshake_is_refused() {
    let mut w = World::ready(1, Setup::default());
    w.content(CONTENT, Content::Echoes);
    let bytes = handshake(&w, &content(), 1);
    for expected in [&[5, 2, 1, 0][..], &[5, 2, 1, 1]] {
        let conn = w.raw_connect();
        w.raw.write(w.now, conn, &bytes).unwrap();
        w.run_for(Duration::from_millis(100));
        assert_eq!(&w.raw_read(conn)[..4], expected);
    }
    assert_eq!(w.server().counters().auth_replayed, 1);
    assert_eq!(w.server_downstream().attempts.len(), 1);
    // A restarted server does not know that the password was used, and refuses it because it is older than the
    // start.
    w.run_for(Duration::from_millis(10));
    w.kill_server();
    w.start_server();
    let conn = w.raw_connect();
    w.raw.write(w.now, conn, &bytes).unwrap();
    w.run_for(Duration::from_millis(100));
    assert_eq!(w.raw_read(conn), [5, 2, 1, 1]);
    assert_eq!(w.server().counters().auth_time, 1);
}

#[test]
fn a_stolen_password_does_not_serve_another_destination() {
    let mut w = World::ready(1, Setup::default());
    w.content("198.51.100.2:80", Content::Echoes);
    let conn = w.raw_connect();
    let mut bytes = handshake(&w, &content(), 1);
    let at = bytes.len() - 3;
    bytes[at] = 2;
    w.raw.write(w.now, conn, &bytes).unwrap();
    w.run_for(Duration::from_millis(100));
    assert_eq!(w.raw_read(conn)[5], 2);
    assert_eq!(w.server().counters().auth_destination, 1);
    assert!(w.server_downstream().attempts.is_empty());
}

#[test]
fn garbage_is_counted_and_closed() {
    let mut w = World::ready(1, Setup::default());
    for (i, garbage) in [
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        &[0; 5000],
        &[5, 1, 2, 9, 9, 9],
    ]
    .into_iter()
    .enumerate()
    {
        let conn = w.raw_connect();
        w.raw.write(w.now, conn, garbage).unwrap();
        w.run_for(Duration::from_millis(100));
        assert_eq!(closed(&w, conn), Some(CloseReason::Reset));
        assert_eq!(w.server().counters().garbage, i as u64 + 1);
        assert_eq!(w.server().connections(), 0);
    }
}

#[test]
fn a_slow_handshake_is_ended_in_time() {
    let mut w = World::ready(1, Setup::default());
    let conn = w.raw_connect();
    let bytes = handshake(&w, &content(), 1);
    for byte in bytes.iter().take(12) {
        if closed(&w, conn).is_none() {
            let _ = w.raw.write(w.now, conn, &[*byte]);
        }
        w.run_for(Duration::from_secs(1));
    }
    assert_eq!(closed(&w, conn), Some(CloseReason::Reset));
    assert_eq!(w.server().counters().handshake_timeout, 1);
    assert_eq!(w.server().connections(), 0);
}

/// One source cannot take all handshakes.
#[test]
fn handshakes_under_way_are_bounded() {
    let mut w = World::ready(
        1,
        Setup {
            server: "limits = { handshakes = 8 }",
            ..Setup::default()
        },
    );
    w.content(CONTENT, Content::Echoes);
    let conns: Vec<ConnId> = (0..6).map(|_| w.raw_connect()).collect();
    assert_eq!(w.server().connections(), 4);
    let reset = conns.iter().filter(|c| closed(&w, **c).is_some()).count();
    assert_eq!((reset, w.server().counters().over_source), (2, 2));
    let user = w.open(CONTENT, b"hello", false);
    w.run_for(Duration::from_secs(1));
    assert_eq!(w.user(user).got, b"hello");
    w.run_for(Duration::from_secs(11));
    assert_eq!(w.server().counters().handshake_timeout, 4);
    let conn = w.raw_connect();
    assert_eq!(closed(&w, conn), None);
}

/// All sources together cannot exceed the limit, although each stays within its own.
#[test]
fn handshakes_of_all_sources_are_bounded() {
    let setup = Setup {
        server: "limits = { handshakes = 1 }",
        ..Setup::default()
    };
    let mut w = World::ready(1, setup);
    let conns = [w.raw_connect(), w.raw_connect()];
    assert_eq!(
        conns.map(|c| closed(&w, c)),
        [None, Some(CloseReason::Reset)]
    );
    assert_eq!(w.server().counters().over_limit, 1);
}

/// A failure counts with any user name, and even if the peer sends nothing.
#[test]
fn a_source_that_fails_too_often_is_refused_and_others_are_not() {
    let setup = Setup {
        server: "limits = { failures = 1 }",
        ..Setup::default()
    };
    let mut w = World::ready(1, setup);
    w.content(CONTENT, Content::Echoes);
    let mut said = 0;
    while w.server().counters().over_failures == 0 {
        let conn = w.raw_connect();
        let _ = w.raw.write(w.now, conn, &[5, 1, 9]);
        said += 1;
        assert!(said < 30, "{:?}", w.server().counters());
    }
    assert_eq!(w.server().counters().no_method, said - 1);
    let user = w.open(CONTENT, b"hello", false);
    w.run_for(Duration::from_secs(1));
    assert_eq!(w.user(user).got, b"hello");
    // The failures have expired, so the source is admitted again.
    w.run_for(Duration::from_secs(5));
    let conn = w.raw_connect();
    let bytes = handshake(&w, &content(), 1);
    w.raw.write(w.now, conn, &bytes).unwrap();
    w.run_for(Duration::from_millis(100));
    assert_eq!(w.raw_read(conn)[..4], [5, 2, 1, 0]);
}

/// Hosts behind one address may probe the server, or give up early.
#[test]
fn neither_probes_nor_users_count_as_failures_of_their_source() {
    let setup = Setup {
        server: "limits = { failures = 1 }",
        ..Setup::default()
    };
    let mut w = World::ready(1, setup);
    w.content(CONTENT, Content::Echoes);
    for n in 0..100 {
        let conn = w.raw_connect();
        if n % 2 == 0 {
            let bytes = handshake(&w, &content(), n);
            w.raw.write(w.now, conn, &bytes).unwrap();
            w.run_for(Duration::from_millis(20));
        }
        w.raw.abort(w.now, conn);
        w.run_for(Duration::from_millis(20));
    }
    let c = w.server().counters();
    assert_eq!((c.connected, c.over_failures, c.over_source), (50, 0, 0));
}

/// The users of a box, or of all boxes behind an address, come back together after an outage. The server was
/// restarted, so none of them has a valid ticket.
#[test]
fn a_burst_of_thousands_from_one_address_is_served() {
    const BURST: usize = 1_500;
    let setup = Setup {
        tweak: Some(|config| config.memory = 1 << 30),
        ..Setup::default()
    };
    let mut w = World::met(1, setup);
    w.content(CONTENT, Content::Echoes);
    w.links[0].one_way = Duration::from_millis(150);
    w.kill_server();
    w.start_server();
    w.run_for(Duration::from_secs(20));
    let users: Vec<_> = (0..BURST)
        .map(|_| {
            w.run_for(Duration::from_micros(600));
            w.open(CONTENT, b"hello", false)
        })
        .collect();
    w.run_for(Duration::from_secs(3));
    let served = users.iter().filter(|id| w.user(**id).got == b"hello");
    assert_eq!(served.count(), BURST, "{:?}", w.server().counters());
}

#[test]
fn a_client_that_leaves_early_leaves_nothing_behind() {
    let mut w = World::ready(1, Setup::default());
    w.content(CONTENT, Content::Silent);
    let len = handshake(&w, &content(), 0).len();
    for n in [0, 1, 3, 50, len - 1, len] {
        let conn = w.raw_connect();
        let bytes = handshake(&w, &content(), n as u8);
        w.raw.write(w.now, conn, &bytes[..n]).unwrap();
        w.run_for(Duration::from_millis(100));
        w.raw.abort(w.now, conn);
        w.run_for(Duration::from_millis(100));
        assert_eq!(w.server().connections(), 0, "{n} bytes");
    }
    let streams = &w.server_downstream().streams;
    assert!(streams.len() == 1 && streams.values().all(|s| s.closed));
    assert_eq!(w.server().counters().handshake_aborted, 4);
}
