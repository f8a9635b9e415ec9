//! Requests to box and server, with their answers, and the box's switches.

use core::net::IpAddr;
use core::time::Duration;

use crate::world::downstream::Content;
use crate::world::{self, CONTENT, SERVER, Setup, World};
use braid_engine::ConnId;
use braid_proxy::Notice;
use braid_proxy::app::DownstreamId;
use braid_proxy::control::{Answer, Controlled as _, Request};
use braid_proxy::status::{Class, PathState, ProxyStatus, SizeFrom, Status, SubflowState};

fn ask_box(w: &mut World, request: Request) -> Answer {
    w.core.control(w.now, &mut w.boxed.stack, request)
}

fn order(w: &mut World, request: Request) {
    assert_eq!(ask_box(w, request), Answer::Done);
}

fn switch_link(w: &mut World, name: &str, on: bool) {
    let name = name.to_owned();
    order(w, Request::Link { name, on });
}

fn set_backup(w: &mut World, name: &str, on: bool) {
    let name = name.to_owned();
    order(w, Request::Backup { name, on });
}

fn box_status(w: &mut World) -> Status {
    match ask_box(w, Request::Status) {
        Answer::Status(status) => *status,
        other => panic!("{other:?}"),
    }
}

/// Starts a download and runs until half a megabyte has come.
fn under_way(w: &mut World) -> DownstreamId {
    w.content(CONTENT, Content::Sends(vec![7; 30_000_000], true));
    let user = w.open(CONTENT, b"GET /", false);
    w.run_until(|w| w.user(user).got.len() > 500_000);
    user
}

#[test]
fn a_box_shows_what_is_not_protected() {
    let setup = Setup {
        clear: true,
        ..Setup::default()
    };
    let mut w = World::ready(1, setup);
    let [server] = &box_status(&mut w).servers[..] else {
        panic!("one server")
    };
    assert!(server.reached && !server.protected);
}

#[test]
fn a_box_shows_its_links_and_connections() {
    let mut w = World::ready(2, Setup::default());
    let idle = box_status(&mut w);
    assert_eq!((idle.version, idle.name.as_str()), (2, "box"));
    assert_eq!(
        (idle.strategy.as_str(), idle.congestion.as_str()),
        ("adaptive", "bbr")
    );
    assert!(idle.connections.is_empty());
    let rtts: Vec<_> = idle
        .paths
        .iter()
        .map(|p| p.rtt_ms.unwrap().round())
        .collect();
    assert_eq!(rtts, [20.0, 50.0], "known from probes");
    // The weight of the round-trip time is half, as a share of the longest; nothing was lost.
    let scores: Vec<_> = idle.paths.iter().map(|p| p.score.unwrap()).collect();
    assert_eq!(scores, [0.2, 0.5]);
    let [server] = &idle.servers[..] else {
        panic!("one server")
    };
    assert_eq!(server.addresses, [(SERVER, 1080).into()]);
    assert!(server.reached && server.current && server.protected);

    under_way(&mut w);
    let status = box_status(&mut w);
    assert_eq!(
        (status.connections_total, status.counters["accepted"]),
        (1, 1)
    );
    let [conn] = &status.connections[..] else {
        panic!("one connection")
    };
    assert_eq!(conn.destination.as_deref(), Some(CONTENT));
    assert_eq!(
        (conn.state.as_str(), conn.mptcp, conn.urgency),
        ("open", true, 3)
    );
    assert_eq!((conn.size, conn.size_from), (None, SizeFrom::Unknown));
    assert!(
        conn.bytes_down > 500_000 && conn.bytes_up < 1_500,
        "{conn:?}"
    );
    // The class by the bytes that have come so far.
    assert_eq!(conn.class, Class::Mouse);
    assert!(conn.alpha > 0.0 && conn.alpha < 0.6, "{conn:?}");
    let names: Vec<_> = conn.paths.iter().map(|p| p.path.as_str()).collect();
    assert_eq!(names, ["wan0", "wan1"]);
    for (of_conn, path) in conn.paths.iter().zip(&status.paths) {
        assert_eq!((path.state, path.subflows), (PathState::Up, 1));
        assert_eq!(of_conn.state, SubflowState::Up);
        // Examinations move some bytes too.
        let others = path.bytes_received - of_conn.bytes_received;
        assert!(others < 2_000, "{others}");
        assert!(path.bytes_received > 10_000);
    }
}

#[test]
fn a_server_shows_whose_connection_it_is_and_what_it_sends_where() {
    let mut w = World::ready(2, Setup::default());
    under_way(&mut w);
    let status = w.server_status();
    assert_eq!(status.proxy, None);
    let [path] = &status.paths[..] else {
        panic!("one address")
    };
    assert_eq!((path.name.clone(), path.subflows), (SERVER.to_string(), 2));
    assert!(path.bytes_sent > 500_000 && path.delivery_rate > Some(1e6));
    let [conn] = &status.connections[..] else {
        panic!("one connection")
    };
    assert_eq!(conn.user.as_deref(), Some("box"));
    assert_eq!(conn.destination.as_deref(), Some(CONTENT));
    assert!(
        conn.bytes_down > 200_000 && conn.bytes_up < 1_500,
        "{conn:?}"
    );
    let (node, _) = w.server.as_ref().unwrap();
    let shown = |(c, _): &(ConnId, u64)| c.as_u64() == conn.id;
    let stats = node.stack.conn_bytes().find(shown);
    let stats = stats.and_then(|(id, _)| node.stack.conn_stats(id));
    let stats = stats.expect("a connection of the stack's");
    assert_eq!((conn.congestion.as_str(), stats.congestion), ("bbr", "bbr"));
    let stream = &conn.stream;
    assert!(
        stream.busy_s > 0.1 && stream.busy_s < conn.age_s + 0.1,
        "{conn:?}"
    );
    assert_eq!(stream.busy_s, stats.busy.as_secs_f64());
    assert_eq!(stream.window_limited_s, stats.window_limited.as_secs_f64());
    let remotes: Vec<_> = conn.paths.iter().map(|p| p.remote).collect();
    assert_eq!(remotes, [0, 1].map(|n| IpAddr::V4(world::link_address(n))));
    assert!(
        conn.paths
            .iter()
            .all(|p| p.loss == Some(0.0) && p.rtt_ms.is_some())
    );
    let (node, core) = w.server.as_mut().unwrap();
    let answer = core.control(w.now, &mut node.stack, Request::Proxy { on: false });
    assert!(matches!(answer, Answer::Wrong(_)), "{answer:?}");
}

/// The connections with the most bytes are shown, the others only counted.
#[test]
fn what_is_shown_is_bounded() {
    let mut w = World::ready(1, Setup::default());
    w.content(CONTENT, Content::Echoes);
    for i in 0..300 {
        w.open(CONTENT, &vec![7; i], false);
    }
    w.run_for(Duration::from_secs(3));
    let status = box_status(&mut w);
    assert_eq!(
        (status.connections_total, status.connections.len()),
        (300, 256)
    );
    let moved = status.connections.iter().map(|c| c.bytes_up + c.bytes_down);
    assert!(moved.is_sorted_by(|a, b| a >= b));
}

#[test]
fn a_box_that_is_switched_off_serves_what_it_has_and_takes_nothing_new() {
    let mut w = World::ready(2, Setup::default());
    let user = under_way(&mut w);
    w.notices.clear();
    order(&mut w, Request::Proxy { on: false });
    w.run_until(|w| w.user(user).got_end);
    let proxy = ProxyStatus {
        on: false,
        intercepting: false,
    };
    assert_eq!(box_status(&mut w).proxy, Some(proxy));
    assert_eq!(
        w.core.counters().interception_stopped,
        0,
        "no server's fault"
    );
    order(&mut w, Request::Proxy { on: true });
    w.run_for(Duration::from_millis(1));
    let notices: Vec<_> = w.notices.iter().map(|(_, n)| *n).collect();
    assert_eq!(notices, [Notice::Intercept(false), Notice::Intercept(true)]);
}

#[test]
fn a_link_that_is_switched_off_carries_nothing_more() {
    let mut w = World::ready(2, Setup::default());
    let user = under_way(&mut w);
    w.notices.clear();
    switch_link(&mut w, "wan0", false);
    // Packets under way there still arrive.
    w.run_for(Duration::from_millis(300));
    let before = box_status(&mut w);
    let states: Vec<_> = before.paths.iter().map(|p| (p.state, p.subflows)).collect();
    assert_eq!(states, [(PathState::Off, 0), (PathState::Up, 1)]);
    assert_eq!(before.connections[0].paths[0].state, SubflowState::Gone);
    let others = [
        Notice::BestPath(Some(w.paths[1])),
        Notice::Reached(w.paths[0], false),
    ];
    assert_eq!(
        w.notices.iter().map(|(_, n)| *n).collect::<Vec<_>>(),
        others
    );

    let second = w.open(CONTENT, b"GET /", false);
    w.run_until(|w| w.user(second).got.len() > 100_000);
    let after = box_status(&mut w);
    let moved = |s: &Status, i: usize| s.paths[i].bytes_received + s.paths[i].bytes_sent;
    assert_eq!(moved(&after, 0), moved(&before, 0));
    assert!(moved(&after, 1) > moved(&before, 1));

    switch_link(&mut w, "wan0", true);
    w.run_until(|w| w.user(user).got_end);
    let third = w.open(CONTENT, b"GET /", false);
    w.run_until(|w| w.user(third).got.len() > 1_000_000);
    let again = box_status(&mut w);
    assert!(
        moved(&again, 0) > moved(&after, 0) + 100_000,
        "it is used again"
    );
    assert!(again.paths[0].default);
}

#[test]
fn with_all_links_off_nothing_is_taken_in() {
    let mut w = World::ready(2, Setup::default());
    for name in ["wan0", "wan1"] {
        switch_link(&mut w, name, false);
    }
    w.run_for(Duration::from_millis(1));
    assert!(!w.core.wants_interception());
    assert_eq!(w.core.best_path(), None);
    // A link that is unplugged and comes back stays switched off.
    w.set_link(0, false);
    w.set_link(0, true);
    w.run_for(Duration::from_secs(1));
    assert!(!w.core.wants_interception());
    switch_link(&mut w, "wan1", true);
    w.run_for(Duration::from_secs(1));
    assert!(w.core.wants_interception());
    assert_eq!(w.core.best_path(), Some(w.paths[1]));
}

/// Both ends know the state, for the existing connection and a later one.
#[test]
fn a_link_is_a_backup_until_it_is_regular_again() {
    let mut w = World::ready(2, Setup::default());
    under_way(&mut w);
    // The better link, on which users' connections open and which other traffic uses.
    set_backup(&mut w, "wan0", true);
    let second = w.open(CONTENT, b"GET /", false);
    w.run_until(|w| w.user(second).got.len() > 500_000);
    let states = |w: &mut World| {
        let far = w.server_status();
        let address = IpAddr::V4(world::link_address(0));
        let at_server = far.connections.iter().filter(|c| c.state == "open");
        let at_server = at_server.flat_map(|c| c.paths.iter().filter(|p| p.remote == address));
        let near = box_status(w);
        let at_box = near.connections.iter().map(|c| &c.paths);
        let at_box = at_box.flat_map(|paths| paths.iter().filter(|p| p.path == "wan0"));
        let states: Vec<_> = at_box.chain(at_server).map(|p| p.state).collect();
        let shown: Vec<_> = near.paths.iter().map(|p| p.backup).collect();
        (states, shown, w.core.best_path())
    };
    let expected = |state, backup, best| (vec![state; 4], vec![backup, false], Some(best));
    let other = expected(SubflowState::Backup, true, w.paths[1]);
    assert_eq!(states(&mut w), other);

    set_backup(&mut w, "wan0", false);
    w.run_for(Duration::from_millis(300));
    let both = expected(SubflowState::Up, false, w.paths[0]);
    assert_eq!(states(&mut w), both);
}

#[test]
fn an_unknown_link_is_answered_with_those_there_are() {
    let mut w = World::ready(2, Setup::default());
    let name = || "dsl".to_owned();
    let why = "there is no link \"dsl\"; the links are wan0, wan1";
    let orders = [
        Request::Link {
            name: name(),
            on: false,
        },
        Request::Backup {
            name: name(),
            on: true,
        },
    ];
    for order in orders {
        assert_eq!(ask_box(&mut w, order), Answer::Wrong(why.to_owned()));
    }
}

#[test]
fn a_server_is_asked_for_by_name() {
    let mut w = World::ready(
        2,
        Setup {
            first_server: Some("203.0.113.9"),
            ..Setup::default()
        },
    );
    let current = |w: &mut World| {
        let status = box_status(w);
        let current = status.servers.into_iter().find(|s| s.current).unwrap().name;
        (current, status.select.unwrap().wanted)
    };
    // The first server does not exist.
    w.run_for(Duration::from_secs(10));
    assert_eq!(current(&mut w), ("server2".to_owned(), None));
    let name = "server1".to_owned();
    order(&mut w, Request::Server { name });
    let wanted = Some("server1".to_owned());
    assert_eq!(
        current(&mut w),
        ("server2".to_owned(), wanted),
        "it does not answer"
    );
    order(
        &mut w,
        Request::Server {
            name: "auto".to_owned(),
        },
    );
    assert_eq!(current(&mut w), ("server2".to_owned(), None));
    let name = "london".to_owned();
    let why = "there is no server \"london\"; the servers are server1, server2, or auto";
    assert_eq!(
        ask_box(&mut w, Request::Server { name }),
        Answer::Wrong(why.to_owned())
    );
}

#[test]
fn servers_are_measured_when_somebody_asks() {
    let mut w = World::ready(2, Setup::default());
    let measured = |w: &mut World| {
        let mut status = box_status(w);
        (
            status.servers.remove(0).measured,
            status.select.unwrap().measuring,
        )
    };
    w.run_for(Duration::from_secs(5));
    let (before, measuring) = measured(&mut w);
    assert!(
        !measuring && before.bandwidth().is_none(),
        "there is no choice to make"
    );
    order(&mut w, Request::Measure);
    assert!(measured(&mut w).1);
    w.run_for(Duration::from_secs(5));
    let (after, measuring) = measured(&mut w);
    assert!(!measuring);
    // These links are too fast for trains to measure: three bursts each, and no paced train.
    assert_eq!(after.bandwidth(), Some(f64::INFINITY));
    assert_eq!(after.delay_ms(false).map(f64::round), Some(20.0));
    assert_eq!(w.server().counters().trains, 6);
    assert_eq!(w.boxed.stack.connections(), 0);
}

#[test]
fn a_link_that_goes_while_it_is_measured_is_as_fast_as_it_was() {
    let mut w = World::ready(2, Setup::default());
    order(&mut w, Request::Measure);
    w.run_for(Duration::from_secs(5));
    let free = |w: &mut World| box_status(w).servers.remove(0).measured.bandwidth();
    let before = free(&mut w);
    order(&mut w, Request::Measure);
    w.run_for(Duration::from_millis(15));
    assert_eq!(w.boxed.stack.connections(), 1, "a train is awaited");
    for up in [false, true] {
        (0..2).for_each(|link| w.set_link(link, up));
    }
    w.run_for(Duration::from_secs(30));
    assert_eq!(free(&mut w), before);
    let kept = w.core.saved_state(w.now, &w.boxed.stack).measurements;
    assert!(kept.iter().all(|k| k.quality.bandwidth != Some(0.0)));
}

/// The server is of an older version, or limits trains.
#[test]
fn a_server_that_sends_no_trains_is_used_all_the_same() {
    let mut w = World::ready(
        2,
        Setup {
            server: "limits = { trains = 1 }",
            ..Setup::default()
        },
    );
    for _ in 0..10 {
        order(&mut w, Request::Measure);
        w.run_for(Duration::from_millis(500));
    }
    w.run_for(Duration::from_secs(30));
    let c = *w.server().counters();
    assert!(
        c.trains_refused > 0 && c.trains < 40,
        "{} {}",
        c.trains,
        c.trains_refused
    );
    assert!(box_status(&mut w).servers[0].reached);
    w.content(CONTENT, Content::Echoes);
    let user = w.open(CONTENT, b"hello", true);
    w.run_until(|w| w.user(user).closed);
    assert_eq!(w.user(user).got, b"hello");
}
