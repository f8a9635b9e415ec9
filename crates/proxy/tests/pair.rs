//! Box and server together, in virtual time.

use core::time::Duration;

use crate::world::downstream::{Content, SOCKET_ROOM};
use crate::world::{self, CONTENT, Setup, Side, World};
use braid_proxy::Notice;
use braid_proxy::app::ConnectFailure;
use braid_wire::Instant;

/// Returns bytes that reveal their position.
fn pattern(n: usize) -> Vec<u8> {
    (0..n as u32)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect()
}

#[test]
fn a_download_arrives_whole_and_ends() {
    let mut w = World::ready(2, Setup::default());
    let data = pattern(3_000_000);
    w.content(CONTENT, Content::Sends(data.clone(), true));
    let user = w.open(CONTENT, b"GET /", false);
    w.run_until(|w| w.user(user).got_end);
    assert!(w.user(user).got == data);
    w.boxed.downstream.send(user, &[], true);
    w.run_until(|w| w.user(user).closed);
    assert!(!w.user(user).reset);
    w.run_for(Duration::from_secs(2));
    let content = w.only_content();
    let stream = w.server_downstream().stream(content);
    assert_eq!(stream.got, b"GET /");
    assert!(stream.closed && !stream.reset);
    assert_eq!((w.core.connections(), w.server().connections()), (0, 0));
    let c = *w.core.counters();
    assert_eq!((c.accepted, c.connected, c.finished), (1, 1, 1));
    assert_eq!((c.bytes_up, c.bytes_down), (5, 3_000_000));
    assert_eq!(w.server().counters().finished, 1);
}

#[test]
fn an_upload_arrives_whole_and_the_answer_follows_the_half_close() {
    let mut w = World::ready(2, Setup::default());
    w.content(CONTENT, Content::Counts);
    let data = pattern(2_500_000);
    let user = w.open(CONTENT, &data, true);
    w.run_until(|w| w.user(user).closed);
    assert_eq!(w.user(user).got, b"2500000");
    let content = w.only_content();
    assert!(w.server_downstream().stream(content).got == data);
}

#[test]
fn an_end_at_the_edge_of_a_turn_is_no_reset() {
    const TURN: usize = 256 << 10;
    for size in [0, 1, TURN - 1, TURN, TURN + 1, 2 * TURN, 3 * TURN] {
        let mut w = World::ready(2, Setup::default());
        let data = pattern(size);
        w.content(CONTENT, Content::Sends(data.clone(), true));
        w.content("198.51.100.2:80", Content::Counts);
        let down = w.open(CONTENT, &[], true);
        let up = w.open("198.51.100.2:80", &data, true);
        w.run_until(|w| w.user(down).closed && w.user(up).closed);
        assert!(w.user(down).got == data && !w.user(down).reset, "{size}");
        assert_eq!(w.user(up).got, size.to_string().as_bytes());
        assert!(!w.user(up).reset, "{size}");
        w.run_for(Duration::from_secs(1));
        assert!(
            w.server_downstream()
                .streams
                .values()
                .all(|s| s.closed && !s.reset)
        );
        assert_eq!(w.server().counters().finished, 2);
    }
}

#[test]
fn both_ways_at_once() {
    let mut w = World::ready(2, Setup::default());
    w.content(CONTENT, Content::Echoes);
    let data = pattern(1_000_000);
    let users: Vec<_> = (0..20).map(|_| w.open(CONTENT, &data, true)).collect();
    w.run_until(|w| users.iter().all(|u| w.user(*u).closed));
    for user in users {
        assert!(w.user(user).got == data && !w.user(user).reset);
    }
}

#[test]
fn a_server_that_speaks_first_is_heard_after_two_round_trips() {
    let mut w = World::met(1, Setup::default());
    w.content(CONTENT, Content::Sends(b"220 ready".to_vec(), false));
    let before = w.now;
    let user = w.open(CONTENT, &[], false);
    w.run_until(|w| w.user(user).got == b"220 ready");
    // One round trip of 20 ms for the handshake, one for everything else.
    assert_eq!(w.now.saturating_since(before), Duration::from_millis(40));
}

#[test]
fn the_request_travels_with_the_socks_flight() {
    let mut w = World::met(1, Setup::default());
    w.content(CONTENT, Content::Echoes);
    let before = w.now;
    let user = w.open(CONTENT, b"hello", false);
    w.run_until(|w| w.user(user).got == b"hello");
    assert_eq!(w.now.saturating_since(before), Duration::from_millis(40));
}

#[test]
fn failures_of_the_destination_reset_the_user() {
    let failures = [
        (ConnectFailure::Refused, "destination_refused", "refused"),
        (
            ConnectFailure::HostUnreachable,
            "destination_unreachable",
            "unreachable",
        ),
        (
            ConnectFailure::NetworkUnreachable,
            "destination_unreachable",
            "unreachable",
        ),
        (
            ConnectFailure::TimedOut,
            "destination_timeout",
            "connect_timeout",
        ),
        (ConnectFailure::NoResources, "server_failed", "over_limit"),
    ];
    for (failure, at_box, at_server) in failures {
        let mut w = World::ready(2, Setup::default());
        w.content(CONTENT, Content::Fails(failure));
        let user = w.open(CONTENT, b"hello", false);
        w.run_until(|w| w.user(user).closed);
        assert!(
            w.user(user).reset && w.user(user).got.is_empty(),
            "{failure:?}"
        );
        w.run_for(Duration::from_secs(10));
        assert_eq!(w.server().connections(), 0, "{failure:?}");
        let count = |mut c: Box<dyn Iterator<Item = (&'static str, u64)>>, name| {
            c.find(|(n, _)| *n == name).unwrap().1
        };
        assert_eq!(count(Box::new(w.core.counters().iter()), at_box), 1);
        assert_eq!(count(Box::new(w.server().counters().iter()), at_server), 1);
    }
}

#[test]
fn a_destination_that_never_answers_ends_in_a_reset() {
    let mut w = World::ready(1, Setup::default());
    w.content(CONTENT, Content::Silent);
    let user = w.open(CONTENT, b"hello", false);
    w.run_for(Duration::from_secs(29));
    assert!(!w.user(user).closed);
    w.run_until(|w| w.user(user).closed);
    assert!(w.user(user).reset);
    assert_eq!(w.core.counters().destination_timeout, 1);
    assert_eq!(w.server().counters().connect_timeout, 1);
}

#[test]
fn the_servers_own_network_is_refused() {
    let mut w = World::ready(
        1,
        Setup {
            server: "allow = [\"10.9.0.0/16\"]",
            ..Setup::default()
        },
    );
    for addr in [
        "127.0.0.1:22",
        "10.0.0.1:80",
        "203.0.113.7:1080",
        "10.9.0.1:80",
    ] {
        w.content(addr, Content::Sends(b"inside".to_vec(), true));
    }
    let refused =
        ["127.0.0.1:22", "10.0.0.1:80", "203.0.113.7:1080"].map(|a| w.open(a, &[], false));
    let allowed = w.open("10.9.0.1:80", &[], false);
    w.run_for(Duration::from_secs(1));
    for user in refused {
        assert!(w.user(user).reset && w.user(user).got.is_empty());
    }
    assert_eq!(w.user(allowed).got, b"inside");
    assert_eq!(
        w.server_downstream().attempts,
        ["10.9.0.1:80".parse().unwrap()]
    );
    assert_eq!(w.core.counters().destination_forbidden, 3);
    assert_eq!(w.server().counters().forbidden, 3);
}

#[test]
fn mail_servers_are_refused_unless_the_configuration_says_otherwise() {
    for (server, refused) in [("", 1), ("refuse_ports = []", 0), ("refuse_ports = 80", 0)] {
        let mut w = World::ready(
            1,
            Setup {
                server,
                ..Setup::default()
            },
        );
        w.content("198.51.100.1:25", Content::Sends(b"220".to_vec(), true));
        let user = w.open("198.51.100.1:25", &[], false);
        w.run_for(Duration::from_secs(1));
        assert_eq!(w.user(user).reset, refused == 1, "{server:?}");
        assert_eq!(w.user(user).got.is_empty(), refused == 1, "{server:?}");
        assert_eq!(w.server().counters().forbidden, refused, "{server:?}");
    }
}

#[test]
fn a_reset_of_the_far_side_reaches_the_user_and_the_other_way_round() {
    let mut w = World::ready(2, Setup::default());
    w.content(CONTENT, Content::Echoes);
    let user = w.open(CONTENT, b"hello", false);
    w.run_until(|w| w.user(user).got == b"hello");
    let content = w.only_content();
    w.server_downstream().break_stream(content);
    w.run_until(|w| w.user(user).closed);
    assert!(w.user(user).reset);
    assert_eq!(w.core.counters().reset_by_server, 1);
    assert_eq!(w.server().counters().reset_by_destination, 1);

    let mut w = World::ready(2, Setup::default());
    w.content(CONTENT, Content::Echoes);
    let user = w.open(CONTENT, b"hello", false);
    w.run_until(|w| w.user(user).got == b"hello");
    w.boxed.downstream.break_stream(user);
    let content = w.only_content();
    w.run_until(|w| w.server_downstream().stream(content).closed);
    assert!(w.server_downstream().stream(content).reset);
    assert_eq!(w.core.counters().reset_by_user, 1);
    assert_eq!(w.server().counters().reset_by_box, 1);
}

#[test]
fn a_user_who_does_not_read_stops_the_content_server() {
    fn small(config: &mut braid_engine::Config) {
        config.send_buffer = 256 << 10;
        config.recv_buffer = 256 << 10;
    }
    let mut w = World::ready(
        2,
        Setup {
            tweak: Some(small),
            ..Setup::default()
        },
    );
    let data = pattern(5_000_000);
    w.content(CONTENT, Content::Sends(data.clone(), true));
    let user = w.open(CONTENT, b"GET", false);
    w.boxed.downstream.streams.get_mut(&user).unwrap().stalled = true;
    w.run_for(Duration::from_secs(20));
    assert_eq!(w.user(user).got.len(), SOCKET_ROOM);
    let content = w.only_content();
    let read = w.server_downstream().stream(content).sent;
    // Two buffers, the user's socket, and a block of slack at each end.
    assert!(
        read <= (256 << 10) * 2 + SOCKET_ROOM + (128 << 10),
        "{read} bytes buffered"
    );
    w.boxed.downstream.resume(user);
    w.run_until(|w| w.user(user).got_end);
    assert!(w.user(user).got == data);
    // Bytes that had to wait come several records at a time.
    assert!(w.user(user).most > 16 << 10);
}

#[test]
fn a_content_server_that_does_not_read_stops_the_user() {
    fn small(config: &mut braid_engine::Config) {
        config.send_buffer = 256 << 10;
        config.recv_buffer = 256 << 10;
    }
    let mut w = World::ready(
        2,
        Setup {
            tweak: Some(small),
            ..Setup::default()
        },
    );
    w.content(CONTENT, Content::Sends(Vec::new(), false));
    let data = pattern(5_000_000);
    let user = w.open(CONTENT, &[], false);
    w.run_until(|w| w.server().counters().connected == 1);
    let content = w.only_content();
    w.server_downstream()
        .streams
        .get_mut(&content)
        .unwrap()
        .stalled = true;
    w.boxed.downstream.send(user, &data, true);
    w.run_for(Duration::from_secs(20));
    assert_eq!(w.server_downstream().stream(content).got.len(), SOCKET_ROOM);
    let read = w.user(user).sent;
    assert!(
        read <= (256 << 10) * 2 + SOCKET_ROOM + (128 << 10),
        "{read} bytes buffered"
    );
    w.server_downstream().resume(content);
    w.run_until(|w| w.server_downstream().stream(content).got_end);
    assert!(w.server_downstream().stream(content).got == data);
}

/// A user whose first bytes come while the box has no memory left waits for some.
#[test]
fn first_bytes_wait_for_memory() {
    fn small(config: &mut braid_engine::Config) {
        config.memory = 1 << 20;
    }
    let mut w = World::ready(
        2,
        Setup {
            tweak: Some(small),
            ..Setup::default()
        },
    );
    let stalls = "198.51.100.2:80";
    w.content(stalls, Content::Sends(Vec::new(), false));
    w.content(CONTENT, Content::Echoes);
    let user = w.open(CONTENT, &[], false);
    // More connections than there are shares of memory for.
    let greedy: Vec<_> = (0..10).map(|_| w.open(stalls, &[], false)).collect();
    w.run_until(|w| w.core.counters().connected == 11);
    for content in w.server_downstream().streams.values_mut() {
        content.stalled = true;
    }
    for id in &greedy {
        w.boxed.downstream.send(*id, &pattern(1_000_000), true);
    }
    w.run_for(Duration::from_secs(5));
    let free = (1 << 20) - w.boxed.stack.buffered();
    assert!(free <= (1 << 20) / 8, "{free} bytes are left");
    w.boxed.downstream.send(user, b"hello", false);
    w.run_for(Duration::from_secs(1));
    assert!(!w.user(user).closed && w.user(user).got.is_empty());
    for id in greedy {
        w.boxed.downstream.break_stream(id);
    }
    w.run_until(|w| w.user(user).got == b"hello");
}

#[test]
fn a_box_of_another_key_is_refused_and_counted() {
    let other = world::server_key().public();
    let mut w = World::up(
        1,
        Setup {
            user: Some(other),
            ..Setup::default()
        },
    );
    w.content(CONTENT, Content::Echoes);
    let user = w.open(CONTENT, b"hello", false);
    w.run_until(|w| w.user(user).closed);
    assert!(w.user(user).reset);
    assert_eq!(w.core.counters().auth_refused, 1);
    w.run_for(Duration::from_secs(1));
    assert!(!w.core.wants_interception());
    let c = *w.core.counters();
    assert_eq!(w.server().counters().auth_wrong, 1 + c.examinations_failed);
    assert!(w.server_downstream().attempts.is_empty());
}

#[test]
fn a_box_whose_clock_is_off_is_refused() {
    let mut w = World::ready(
        1,
        Setup {
            clear: true,
            ..Setup::default()
        },
    );
    w.content(CONTENT, Content::Echoes);
    let now = w.now;
    w.core
        .set_wall_clock(now, world::EPOCH + Duration::from_secs(3600));
    let user = w.open(CONTENT, b"hello", false);
    w.run_until(|w| w.user(user).closed);
    assert_eq!(w.server().counters().auth_time, 1);
    w.core.set_wall_clock(now, world::EPOCH);
    let user = w.open(CONTENT, b"hello", false);
    w.run_until(|w| w.user(user).got == b"hello");
}

#[test]
fn limits_of_the_box_hold_and_are_given_back() {
    let mut w = World::ready(
        1,
        Setup {
            boxed: "expert.max_connections_per_host = 3",
            ..Setup::default()
        },
    );
    w.content(CONTENT, Content::Counts);
    let users: Vec<_> = (0..5).map(|_| w.open(CONTENT, b"x", false)).collect();
    w.run_for(Duration::from_secs(1));
    let reset = users.iter().filter(|u| w.user(**u).reset).count();
    assert_eq!((reset, w.core.counters().over_limit), (2, 2));
    for user in &users[..3] {
        w.boxed.downstream.send(*user, &[], true);
    }
    w.run_until(|w| users.iter().all(|u| w.user(*u).closed));
    // The connections to the server end a moment later.
    w.run_for(Duration::from_millis(100));
    let user = w.open(CONTENT, b"xy", true);
    w.run_until(|w| w.user(user).closed);
    assert_eq!(w.user(user).got, b"2");
}

#[test]
fn an_idle_connection_ends_after_the_idle_timeout_only() {
    let mut w = World::ready(
        1,
        Setup {
            boxed: "expert.idle_timeout = \"10min\"\ntimeouts.half_closed = \"1min\"",
            ..Setup::default()
        },
    );
    w.content(CONTENT, Content::Echoes);
    let user = w.open(CONTENT, b"a", false);
    w.run_for(Duration::from_secs(590));
    w.boxed.downstream.send(user, b"b", false);
    w.run_for(Duration::from_secs(590));
    assert!(!w.user(user).closed);
    assert_eq!(w.user(user).got, b"ab");
    w.run_for(Duration::from_secs(12));
    assert!(w.user(user).reset);
    assert_eq!(w.core.counters().idle_timeout, 1);
    w.run_for(Duration::from_secs(1));
    assert_eq!(w.server().connections(), 0);
}

#[test]
fn the_box_takes_in_only_while_a_server_answers() {
    let mut w = World::new(2, Setup::default());
    w.kill_server();
    w.set_link(0, true);
    w.set_link(1, true);
    w.run_for(Duration::from_secs(10));
    assert!(!w.core.wants_interception());
    assert_eq!(
        w.core.best_path(),
        Some(w.paths[0]),
        "the rest is forwarded all the same"
    );
    w.start_server();
    w.run_for(Duration::from_secs(5));
    assert!(w.core.wants_interception());
    w.kill_server();
    w.run_for(Duration::from_secs(45));
    assert!(!w.core.wants_interception());
    let intercepting: Vec<bool> = w
        .notices
        .iter()
        .filter_map(|(_, n)| match n {
            Notice::Intercept(on) => Some(*on),
            Notice::BestPath(_) | Notice::Reached(..) | Notice::Families(_) => None,
        })
        .collect();
    assert_eq!(intercepting, [true, false]);
    w.start_server();
    w.content(CONTENT, Content::Echoes);
    w.run_for(Duration::from_secs(5));
    assert!(w.core.wants_interception());
    for away in 1..20 {
        w.kill_server();
        w.run_for(Duration::from_millis(700 * away));
        w.start_server();
        w.run_for(Duration::from_millis(1_100 * away));
    }
    let left = |(_, n): &(Instant, Notice)| matches!(n, Notice::Reached(_, false));
    let left = w.notices.iter().find(|n| left(n));
    assert_eq!(left, None, "what is forwarded stays on its link");
    let user = w.open(CONTENT, b"hello", false);
    w.run_until(|w| w.user(user).got == b"hello");
}

#[test]
fn the_best_link_follows_what_works() {
    let mut w = World::ready(2, Setup::default());
    assert_eq!(w.core.best_path(), Some(w.paths[0]));
    w.set_link(0, false);
    assert_eq!(
        w.core.best_path(),
        Some(w.paths[1]),
        "at once, when it is known"
    );
    w.set_link(0, true);
    w.run_for(Duration::from_secs(1));
    assert_eq!(w.core.best_path(), Some(w.paths[0]));
    w.content(CONTENT, Content::Echoes);
    w.notices.clear();
    w.links[0].dark = true;
    for _ in 0..200 {
        w.open(CONTENT, b"hello", true);
        w.run_for(Duration::from_millis(200));
    }
    assert_eq!(
        w.core.best_path(),
        Some(w.paths[1]),
        "by the probes, when it is not"
    );
    assert!(w.core.wants_interception());
    w.links[0].dark = false;
    w.run_for(Duration::from_secs(5));
    assert_eq!(w.core.best_path(), Some(w.paths[0]));
    let notices: Vec<_> = w.notices.iter().map(|(_, n)| *n).collect();
    let [there, other] = [w.paths[0], w.paths[1]];
    assert_eq!(
        notices,
        [
            Notice::BestPath(Some(other)),
            Notice::Reached(there, false),
            Notice::BestPath(Some(there)),
            Notice::Reached(there, true),
        ]
    );
    // The other link is probed to find out whether the link or the server failed.
    let waited = w.notices[1].0.saturating_since(w.notices[0].0);
    assert!(waited < Duration::from_secs(6), "{waited:?}");
}

#[test]
fn a_new_connection_finds_its_way_round_a_dark_link() {
    let mut w = World::ready(2, Setup::default());
    w.content(CONTENT, Content::Echoes);
    w.links[0].dark = true;
    let before = w.now;
    let user = w.open(CONTENT, b"hello", false);
    w.run_until(|w| w.user(user).got == b"hello");
    assert!(w.now.saturating_since(before) < Duration::from_millis(2_500));
    assert_eq!(w.core.counters().no_server, 0);
}

#[test]
fn a_connection_that_no_server_takes_ends_in_a_reset() {
    let mut w = World::ready(2, Setup::default());
    w.links[0].dark = true;
    w.links[1].dark = true;
    let before = w.now;
    let user = w.open(CONTENT, b"hello", false);
    w.run_until(|w| w.user(user).closed);
    assert!(w.user(user).reset);
    assert!(w.now.saturating_since(before) <= Duration::from_secs(15));
    let c = w.core.counters();
    assert_eq!((c.no_server, c.retries), (1, 1));
    assert_eq!(w.core.connections(), 0);
}

#[test]
fn a_second_server_serves_where_the_first_is_dead() {
    let mut w = World::ready(
        2,
        Setup {
            first_server: Some("203.0.113.8"),
            ..Setup::default()
        },
    );
    w.content(CONTENT, Content::Echoes);
    let before = w.now;
    let user = w.open(CONTENT, b"hello", false);
    w.run_until(|w| w.user(user).got == b"hello");
    assert!(w.now.saturating_since(before) < Duration::from_millis(2_500));
    assert_eq!(w.core.counters().retries, 1);
    // Once the probes have found out, no user has to wait.
    w.run_for(Duration::from_secs(5));
    let before = w.now;
    let user = w.open(CONTENT, b"hello", false);
    w.run_until(|w| w.user(user).got == b"hello");
    assert_eq!(w.now.saturating_since(before), Duration::from_millis(40));
}

#[test]
fn a_metered_link_is_used_only_when_the_others_are_not_there() {
    let mut w = World::ready(
        2,
        Setup {
            last_link: "metered = true",
            ..Setup::default()
        },
    );
    w.run_for(Duration::from_secs(60));
    let probes = w.core.counters().probes;
    assert!(
        probes <= 4,
        "{probes} probes: the metered link must not be probed"
    );
    w.content(CONTENT, Content::Echoes);
    w.set_link(0, false);
    w.run_for(Duration::from_secs(1));
    assert_eq!(w.core.best_path(), Some(w.paths[1]));
    assert!(w.core.wants_interception());
    let user = w.open(CONTENT, b"hello", false);
    w.run_until(|w| w.user(user).got == b"hello");
}

#[test]
fn a_killed_and_restarted_server_ends_connections_and_serves_again() {
    let mut w = World::ready(2, Setup::default());
    w.content(CONTENT, Content::Sends(pattern(100), false));
    w.content("198.51.100.2:80", Content::Echoes);
    let idle = w.open(CONTENT, b"x", false);
    let busy = w.open("198.51.100.2:80", b"y", false);
    w.run_until(|w| w.user(busy).got == b"y" && w.user(idle).got.len() == 100);
    w.kill_server();
    w.boxed.downstream.send(busy, b"more", false);
    w.run_for(Duration::from_secs(3));
    w.start_server();
    w.run_until(|w| w.user(busy).closed);
    assert!(w.user(busy).reset);
    let user = w.open("198.51.100.2:80", b"again", false);
    w.run_until(|w| w.user(user).got == b"again");
}

/// Asserts that nothing is lost when a process stands still: open connections continue or end with an error, and
/// connections opened two seconds after the end of the standstill are served at once.
fn stands_still(side: Side, seconds: u64) {
    let setup = Setup {
        warm: 4,
        ..Setup::default()
    };
    let mut w = World::ready(2, setup);
    let large = pattern(4_000_000);
    w.content(CONTENT, Content::Sends(large.clone(), true));
    w.content("198.51.100.2:80", Content::Echoes);
    let users: Vec<_> = (0..10).map(|_| w.open(CONTENT, b"GET", true)).collect();
    w.run_until(|w| users.iter().all(|id| !w.user(*id).got.is_empty()));
    assert!(users.iter().all(|id| w.user(*id).got.len() < large.len()));
    w.stand_still(side, Duration::from_secs(seconds));
    w.run_for(Duration::from_secs(2));
    let before = w.server().counters().connected;
    let late = w.open("198.51.100.2:80", b"hello", false);
    w.run_for(Duration::from_millis(500));
    assert_eq!(w.user(late).got, b"hello", "{side:?}");
    assert_eq!(w.server().counters().connected, before + 1, "{side:?}");
    w.run_for(Duration::from_secs(57));
    for id in users {
        let user = w.user(id);
        assert!(user.closed, "{side:?}: a download hangs");
        assert!(
            user.reset || user.got == large,
            "{side:?}: {} bytes",
            user.got.len()
        );
    }
}

#[test]
fn a_box_that_stands_still_goes_on() {
    for seconds in [1, 3, 10, 30] {
        stands_still(Side::Box, seconds);
    }
}

#[test]
fn a_server_that_stands_still_goes_on() {
    for seconds in [1, 3, 10, 30] {
        stands_still(Side::Server, seconds);
    }
}
