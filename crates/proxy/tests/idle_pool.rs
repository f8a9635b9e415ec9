//! Idle connections: signed in before a user needs one.

use core::time::Duration;

use crate::world::downstream::Content;
use crate::world::{CONTENT, Setup, World};
use braid_proxy::app::DownstreamId;

const WARM: Setup<'_> = Setup {
    warm: 4,
    boxed: "",
    last_link: "",
    first_server: None,
    server: "",
    user: None,
    clear: false,
    versions: None,
    tweak: None,
};

fn echoing(setup: Setup<'_>) -> World {
    let mut w = World::ready(2, setup);
    w.content(CONTENT, Content::Echoes);
    w
}

/// Returns a world whose box has served a user, and so has two idle connections: the user's, and one opened
/// meanwhile.
fn warmed(setup: Setup<'_>) -> World {
    let mut w = echoing(setup);
    ask(&mut w, b"first");
    w.run_for(Duration::from_millis(1_100));
    w
}

/// Sends bytes to an echo; returns the time until they are back, and the user's stream.
fn ask(w: &mut World, text: &[u8]) -> (Duration, DownstreamId) {
    let before = w.now;
    let user = w.open(CONTENT, text, true);
    w.run_until(|w| w.user(user).got_end || w.user(user).closed);
    assert_eq!(w.user(user).got, text, "reset: {}", w.user(user).reset);
    (w.now.saturating_since(before), user)
}

/// The links have round-trip times of 20 and 50 ms.
#[test]
fn the_first_bytes_leave_at_once() {
    let mut w = warmed(WARM);
    assert_eq!(w.server().waiting(), 2);
    assert_eq!(ask(&mut w, b"hello").0, Duration::from_millis(20));
    let c = *w.core.counters();
    assert_eq!((c.idle_used, c.idle_failed, c.connected), (1, 0, 2));
    // The next idle connection is ready already.
    w.run_for(Duration::from_millis(100));
    assert_eq!(ask(&mut w, b"again").0, Duration::from_millis(20));
}

#[test]
fn they_wait_also_where_a_first_flight_does_not_fit_the_buffer() {
    let setup = Setup {
        boxed: "limits = { buffer = \"200B\" }",
        ..WARM
    };
    let mut w = warmed(setup);
    w.run_for(Duration::from_secs(1));
    assert_eq!(w.server().waiting(), 2);
    assert_eq!(w.core.counters().idle_opened, 1);
}

#[test]
fn they_are_joined_on_every_link() {
    let mut w = warmed(WARM);
    w.run_for(Duration::from_secs(1));
    let joined = |w: &World| w.boxed.stack.stats().join_syns;
    assert_eq!((joined(&w), w.server().waiting()), (2, 2));
    // The user's flow needs no further MP_JOIN.
    ask(&mut w, &[7; 100_000]);
    w.run_for(Duration::from_secs(1));
    assert_eq!(joined(&w), 2);
}

#[test]
fn there_are_as_many_as_users_lately_asked_for_at_once() {
    let mut w = warmed(WARM);
    let users: Vec<_> = (0..3).map(|_| w.open(CONTENT, b"x", true)).collect();
    w.run_until(|w| users.iter().all(|u| w.user(*u).closed));
    w.run_for(Duration::from_secs(1));
    let c = *w.core.counters();
    assert_eq!(
        (c.idle_used, c.idle_opened),
        (2, 4),
        "three are there for the next"
    );
    assert_eq!(w.server().waiting(), 3 + 3, "and those of the three");
    let users: Vec<_> = (0..20).map(|_| w.open(CONTENT, b"x", true)).collect();
    w.run_until(|w| users.iter().all(|u| w.user(*u).closed));
    w.run_for(Duration::from_secs(1));
    let c = *w.core.counters();
    assert_eq!(c.idle_opened, 4 + 4, "the setting bounds them");
    assert_eq!(w.server().waiting(), 4 * 4, "and what is kept");
    // The remembered demand halves in 30 s, and is forgotten when no user came for the configured time.
    w.run_for(Duration::from_secs(190));
    assert_eq!(w.server().waiting(), 1);
    w.run_for(Duration::from_secs(120));
    assert_eq!(w.server().waiting(), 0);
    assert_eq!(w.boxed.stack.connections(), 0);
    assert_eq!(w.core.counters().idle_lost, 0);
}

#[test]
fn they_are_replaced_before_the_server_gives_them_up() {
    let mut w = warmed(Setup {
        server: "timeouts = { waiting = \"61s\" }",
        ..WARM
    });
    for n in 0..10 {
        w.run_for(Duration::from_secs(20));
        // The user's own connection is not replaced: one idle connection suffices.
        assert_eq!(w.server().waiting(), if n < 2 { 2 } else { 1 });
    }
    let c = w.core.counters();
    assert_eq!((c.idle_lost, c.idle_opened), (0, 4));
}

#[test]
fn one_that_the_server_gives_up_is_replaced() {
    let mut w = warmed(Setup {
        server: "timeouts = { waiting = \"10s\" }",
        ..WARM
    });
    w.run_for(Duration::from_secs(25));
    let c = *w.core.counters();
    assert!((2..4).contains(&c.idle_lost), "{}", c.idle_lost);
    let in_vain = c.idle_lost + c.examinations;
    assert_eq!(w.server().counters().unused_sign_ins, in_vain);
    w.run_for(Duration::from_secs(3));
    assert_eq!(ask(&mut w, b"hello").0, Duration::from_millis(20));
}

/// The box does not learn of the server's death before a user's bytes have gone into the connection.
#[test]
fn one_that_dies_at_its_first_use_is_not_noticed() {
    let mut w = warmed(WARM);
    w.kill_server();
    w.start_server();
    // More bytes than are kept for a second attempt.
    let (_, user) = ask(&mut w, &[5; 70_000]);
    assert!(!w.user(user).reset);
    let c = *w.core.counters();
    assert_eq!((c.idle_used, c.idle_failed, c.server_failed), (1, 1, 0));
    assert_eq!(w.server().counters().connected, 1);

    let mut w = warmed(WARM);
    w.kill_server();
    w.start_server();
    // One round trip to find out, and three for a new connection: the ticket was of the server before its restart.
    assert_eq!(ask(&mut w, b"hello").0, Duration::from_millis(80));
}

/// A browser opens connections before it has anything to send, and sends at any time.
#[test]
fn one_that_dies_is_not_noticed_by_a_user_who_speaks_later() {
    for later in (0..60).step_by(5) {
        let mut w = warmed(WARM);
        w.kill_server();
        w.start_server();
        let user = w.open(CONTENT, b"", false);
        w.run_for(Duration::from_millis(later));
        w.boxed.downstream.send(user, b"hello", true);
        w.run_until(|w| w.user(user).got_end || w.user(user).closed);
        assert_eq!(w.user(user).got, b"hello", "{later} ms");
    }
}

#[test]
fn so_does_one_whose_server_keeps_silent() {
    let mut w = warmed(WARM);
    w.kill_server();
    let user = w.open(CONTENT, b"hello", true);
    w.run_for(Duration::from_secs(1));
    w.start_server();
    w.run_until(|w| w.user(user).got_end || w.user(user).closed);
    assert_eq!(w.user(user).got, b"hello");
}

/// The server may have acted on bytes that it acknowledged, so they are not sent again.
#[test]
fn what_the_server_acknowledged_is_not_repeated() {
    let mut w = warmed(WARM);
    w.content("198.51.100.7:80", Content::Silent);
    let user = w.open("198.51.100.7:80", b"order", false);
    w.run_for(Duration::from_millis(200));
    assert_eq!(w.core.counters().idle_used, 1);
    w.kill_server();
    w.start_server();
    w.run_until(|w| w.user(user).closed);
    assert!(w.user(user).reset);
    let c = w.core.counters();
    assert_eq!((c.idle_failed, c.server_failed), (0, 1));
    assert!(w.server_downstream().attempts.is_empty());
}

#[test]
fn refusals_of_the_destination_reach_the_user_through_them() {
    let mut w = warmed(WARM);
    let user = w.open("198.51.100.99:80", b"hello", false);
    w.run_until(|w| w.user(user).closed);
    assert!(w.user(user).reset);
    let c = w.core.counters();
    assert_eq!((c.idle_used, c.destination_unreachable), (1, 1));
}

#[test]
fn a_server_that_takes_no_more_of_them_closes_them() {
    let mut w = warmed(Setup {
        server: "limits = { waiting = 1 }",
        ..WARM
    });
    let users: Vec<_> = (0..4).map(|_| w.open(CONTENT, b"x", true)).collect();
    w.run_until(|w| users.iter().all(|u| w.user(*u).closed));
    w.run_for(Duration::from_secs(1));
    // Connections that had a user wait; those that never had one end as slow handshakes.
    assert_eq!((w.server().waiting(), w.server().connections()), (1, 4));
    w.run_for(Duration::from_secs(10));
    assert_eq!(w.server().counters().handshake_timeout, 4);
    // The idle connections that may wait are usable.
    assert_eq!(ask(&mut w, b"hello").0, Duration::from_millis(20));
}

#[test]
fn a_metered_link_carries_none_but_where_that_is_said() {
    for (boxed, waiting) in [("", 0), ("expert.idle_pool_metered = true", 2)] {
        let mut w = World::ready(
            2,
            Setup {
                boxed,
                last_link: "metered = true",
                ..WARM
            },
        );
        w.content(CONTENT, Content::Echoes);
        ask(&mut w, b"hello");
        w.run_for(Duration::from_secs(1));
        assert_eq!(w.server().waiting(), 2);
        assert_eq!(w.boxed.stack.stats().join_syns, 0);
        w.set_link(0, false);
        w.run_for(Duration::from_secs(2));
        ask(&mut w, b"hello");
        w.run_for(Duration::from_secs(2));
        let used = w.core.counters().idle_used;
        assert_eq!(w.server().waiting(), waiting, "{boxed:?}, {used} used");
    }
}

/// The hints about a user's connection go with its request, and the server's engine applies them.
#[test]
fn hints_go_with_the_first_bytes() {
    let mut w = warmed(Setup {
        boxed: "[[rule]]\nport = 80\nurgency = 6\nsize = \"5kB\"\nstrategy = \"redundant\"\n",
        ..WARM
    });
    let user = w.open(CONTENT, b"hello", false);
    w.run_until(|w| w.user(user).got == b"hello");
    assert_eq!(w.core.counters().idle_used, 1);
    let (node, core) = w.server.as_ref().unwrap();
    // At the box as well, where the idle connection had another strategy.
    for status in [
        core.status(w.now, &node.stack),
        w.core.status(w.now, &w.boxed.stack),
    ] {
        let open = status.connections.iter().filter(|c| c.state == "open");
        let told: Vec<_> = open
            .map(|c| (c.size, c.urgency, c.strategy.as_str()))
            .collect();
        assert_eq!(told, [(Some(5_000), 6, "redundant")]);
    }
}

/// The request does not wait for the user's first bytes, which a rule for a domain needs. The server, which sends
/// most of the data, gets the hints with them.
#[test]
fn hints_that_the_first_bytes_give_reach_the_server_with_them() {
    let mut w = warmed(Setup {
        boxed: "[[rule]]\ndomain = \"example\"\nurgency = 6\nsize = \"5kB\"\n",
        ..WARM
    });
    let user = w.open(CONTENT, b"", false);
    w.run_for(Duration::from_millis(500));
    let told = |w: &World| {
        let (node, core) = w.server.as_ref().unwrap();
        let status = core.status(w.now, &node.stack);
        let mut open = status.connections.iter().filter(|c| c.state == "open");
        open.next().map(|c| (c.size, c.urgency))
    };
    assert_eq!(told(&w), Some((None, 3)), "connected, and nothing known");
    let hello = b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n";
    w.boxed.downstream.send(user, hello, false);
    w.run_until(|w| w.user(user).got == hello);
    assert_eq!(told(&w), Some((Some(5_000), 6)));
    assert_eq!(w.core.counters().idle_used, 1);
}
