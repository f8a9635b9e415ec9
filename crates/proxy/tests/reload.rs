//! Reload of a server: users are added and removed while it runs.

use core::time::Duration;

use crate::world::downstream::Content;
use crate::world::tls::{GREETING, Program};
use crate::world::{CONTENT, Setup, World, box_key, server_key};
use braid_engine::{CloseReason, ConnId, Event};
use braid_proxy::app::DownstreamId;
use braid_proxy::config::{Changes, ServerConfig};
use braid_proxy::socks::{Destination, request, sign_in};
use braid_secure::auth::password;
use braid_secure::keys::{PrivateKey, PublicKey};

/// Returns the key of a user without a box.
fn laptop_key() -> PrivateKey {
    PrivateKey::from_seed([3; 32])
}

fn other_key() -> PublicKey {
    PrivateKey::from_seed([4; 32]).public()
}

fn boxed() -> (&'static str, PublicKey) {
    ("box", box_key().public())
}

fn laptop() -> (&'static str, PublicKey) {
    ("laptop", laptop_key().public())
}

/// Creates a server with both users.
fn of_both(warm: usize) -> World {
    let key = laptop_key().public();
    let setup = Setup {
        server: &format!("[[user]]\nname = \"laptop\"\nkey = \"{key}\""),
        warm,
        ..Setup::default()
    };
    World::met(2, setup)
}

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i / 7 + i / 1_000) as u8).collect()
}

/// The server's messages to a client that signs in.
const LET_IN: [u8; 4] = [5, 2, 1, 0];

/// Signs the laptop in and requests the content; returns its connection, and the first bytes received.
fn laptop_asks(w: &mut World, nonce: u8) -> (ConnId, Vec<u8>) {
    let destination = Destination::Address(CONTENT.parse().unwrap());
    let key = laptop_key();
    let server = server_key().public();
    let password = password(
        &key,
        server,
        &destination.to_bytes(),
        w.unix_ms(),
        [nonce; 16],
    );
    let conn = w.raw_connect();
    let said = [
        sign_in(key.public().to_string().as_bytes(), &password),
        request(None, &destination),
    ];
    w.raw.write(w.now, conn, &said.concat()).unwrap();
    let mut answer = Vec::new();
    w.run_until(|w| {
        answer.extend(w.raw_read(conn));
        answer.len() >= 4
    });
    (conn, answer)
}

fn ended(w: &World, conn: ConnId) -> Option<CloseReason> {
    w.raw_events.iter().find_map(|event| match event {
        Event::Closed { conn: c, reason } if *c == conn => Some(*reason),
        _ => None,
    })
}

/// Returns the users of the server's connections.
fn users_of(w: &World) -> Vec<String> {
    let connections = w.server_status().connections.into_iter();
    connections.filter_map(|c| c.user).collect()
}

/// Starts a download by a user of the box and one by the laptop, and runs into the middle of both.
fn both_under_way(w: &mut World) -> (DownstreamId, ConnId, Vec<u8>) {
    w.content(CONTENT, Content::Sends(bytes(3_000_000), true));
    let user = w.open(CONTENT, b"GET /", false);
    let (conn, came) = laptop_asks(w, 1);
    assert_eq!(came[..4], LET_IN);
    w.run_until(|w| w.user(user).got.len() > 500_000);
    assert!(!w.user(user).got_end && ended(w, conn).is_none());
    (user, conn, came)
}

#[test]
fn removed_users_are_cut_off_and_others_lose_no_byte() {
    let mut w = of_both(2);
    let (user, ..) = both_under_way(&mut w);
    assert!(w.server().waiting() > 0, "the box has warm connections");
    let connected = w.server().counters().connected;
    w.set_users(&[boxed()]);
    w.run_for(Duration::from_millis(100));
    let (_, answer) = laptop_asks(&mut w, 2);
    assert_ne!(answer[..4], LET_IN);
    w.run_until(|w| w.user(user).got_end);
    assert_eq!(w.user(user).got, bytes(3_000_000));
    let counters = *w.server().counters();
    assert_eq!((counters.user_removed, counters.auth_wrong), (1, 1));
    // The box's next user gets an idle connection from before.
    let lost = w.core.counters().idle_lost;
    w.content(CONTENT, Content::Echoes);
    let next = w.open(CONTENT, b"hello", false);
    w.run_until(|w| w.user(next).got == b"hello");
    assert_eq!(w.server().counters().connected, connected + 1);
    assert_eq!((lost, w.core.counters().idle_failed), (0, 0));
}

#[test]
fn a_removed_box_is_cut_off_and_its_tickets_are_refused() {
    let mut w = of_both(2);
    let (user, conn, mut got) = both_under_way(&mut w);
    w.set_users(&[laptop()]);
    assert_eq!((w.server().connections(), w.server().waiting()), (1, 0));
    w.run_for(Duration::from_millis(200));
    assert!(w.user(user).closed && w.user(user).reset);
    assert!(w.user(user).got.len() < 3_000_000);
    // The laptop's download continues, at another index among the users.
    w.run_until(|w| {
        got.extend(w.raw_read(conn));
        w.raw.read_finished(conn)
    });
    let answers = LET_IN.len() + 10;
    assert!(got[answers..] == bytes(3_000_000));
    // The box presents its tickets. The first answer tells it that the server does not know its key any more.
    let attempts = w.server_downstream().attempts.len();
    for _ in 0..4 {
        let next = w.open(CONTENT, b"hello", false);
        w.run_for(Duration::from_secs(10));
        assert!(w.user(next).closed && w.user(next).got.is_empty());
    }
    assert_eq!(w.server_downstream().attempts.len(), attempts);
    assert!(w.server().counters().auth_wrong > 0);
    assert_eq!(users_of(&w), ["laptop"]);
    // A user who is added again is served.
    w.set_users(&[laptop(), boxed()]);
    w.run_for(Duration::from_secs(30));
    w.content(CONTENT, Content::Echoes);
    let back = w.open(CONTENT, b"hello", false);
    w.run_until(|w| w.user(back).got == b"hello");
}

#[test]
fn another_key_is_another_user() {
    let mut w = of_both(0);
    let (user, conn, _) = both_under_way(&mut w);
    w.set_users(&[("laptop", other_key()), boxed()]);
    w.run_for(Duration::from_millis(100));
    assert_eq!(ended(&w, conn), Some(CloseReason::Reset));
    w.run_until(|w| w.user(user).got_end);
    assert_eq!(w.user(user).got, bytes(3_000_000));
    assert_eq!(users_of(&w), ["box"]);
}

#[test]
fn added_users_are_served_at_once() {
    let setup = Setup {
        user: Some(other_key()),
        ..Setup::default()
    };
    let mut w = World::up(1, setup);
    w.content(CONTENT, Content::Echoes);
    let refused = w.open(CONTENT, b"hello", false);
    w.run_until(|w| w.user(refused).closed);
    assert!(w.user(refused).reset);
    w.set_users(&[("other", other_key()), boxed()]);
    let user = w.open(CONTENT, b"hello", false);
    w.run_until(|w| w.user(user).got == b"hello");
}

/// A probe does not count as a connection of the user, but it ends when the user is removed.
#[test]
fn a_probe_of_a_removed_user_ends_too() {
    let mut w = World::ready(1, Setup::default());
    let mut program = Program::connect(&mut w);
    // A probe that requests ten records, 40 ms apart.
    let probe = [0xb7, 0, 7, 1, 5, 10, 0, 0, 0x9c, 0x40];
    program.say(&mut w, &[&GREETING[..], &probe].concat());
    let probed = w.server_status().connections;
    assert!(probed.iter().any(|c| c.state == "probe"), "{probed:?}");
    w.set_users(&[laptop()]);
    assert_eq!(w.server().connections(), 0);
    assert_eq!(w.server().counters().user_removed, 1);
}

/// The key is removed while its owner is authenticating.
#[test]
fn a_user_removed_during_the_handshake_is_refused() {
    for after in 1..60 {
        let mut w = World::ready(1, Setup::default());
        w.content(CONTENT, Content::Echoes);
        let user = w.open(CONTENT, b"hello", false);
        w.run_for(Duration::from_millis(after));
        w.set_users(&[laptop()]);
        let before = w.server_downstream().attempts.len();
        w.run_for(Duration::from_secs(20));
        let name = format!("after {after} ms");
        assert_eq!(w.server_downstream().attempts.len(), before, "{name}");
        assert!(w.user(user).closed && w.user(user).reset, "{name}");
        assert_eq!(w.server().connections(), 0, "{name}");
    }
}

fn config(text: &str) -> ServerConfig {
    ServerConfig::with_key("server.toml", text, server_key()).unwrap()
}

fn with(users: &[(&str, PublicKey)], settings: &str) -> ServerConfig {
    let users = users
        .iter()
        .map(|(name, key)| format!("[[user]]\nname = \"{name}\"\nkey = \"{key}\"\n"));
    let users: String = users.collect();
    config(&format!("{settings}\n{users}"))
}

const LISTEN: &str = "listen = \"203.0.113.7\"";

#[test]
fn a_reload_of_the_same_file_changes_nothing() {
    let mut running = with(&[boxed(), laptop()], LISTEN);
    let changes = running.reload(with(&[laptop(), boxed()], LISTEN));
    assert_eq!(changes, Changes::default());
    assert_eq!(changes.to_string(), "nothing has changed");
}

#[test]
fn the_report_lists_changes_and_settings_that_need_a_restart() {
    let mut running = with(&[boxed(), laptop(), ("old", other_key())], LISTEN);
    let key = |n| PrivateKey::from_seed([n; 32]).public();
    let users = [
        boxed(),
        ("laptop", other_key()),
        ("new", key(5)),
        ("newer", key(6)),
    ];
    let settings = "listen = \"203.0.113.8\"\nport = 443\ndeny = \"192.0.2.0/24\"\n\
                    expert = { max_connections_per_user = 5, max_connections = 9 }\ntimeouts = { user_timeout = \"1h\" }";
    let changes = running.reload(with(&users, settings));
    assert_eq!(
        changes.to_string(),
        "users: 2 added, 1 removed, 1 with another key; \
         changed: deny, timeouts, expert.max_connections_per_user; \
         not before a restart: listen, port, expert.max_connections"
    );
    assert_eq!(running.users.len(), 4);
    assert_eq!(running.limits.per_user(), 5);
    assert_eq!(running.timeouts.user_timeout, Duration::from_secs(3_600));
    assert_eq!((running.port, running.limits.connections()), (1080, 32_768));
    // Further reloads report the same settings until the restart.
    let again = running.reload(with(&users, settings));
    let waiting = "not before a restart: listen, port, expert.max_connections";
    assert_eq!(again.to_string(), waiting);
}

/// Changes each setting of the file separately.
#[test]
fn every_setting_is_on_one_side() {
    let live = [
        ("allow", "allow = \"10.0.0.0/8\""),
        ("deny", "deny = \"10.0.0.0/8\""),
        ("refuse_ports", "refuse_ports = [25, 465]"),
        ("timeouts", "timeouts.drain = \"9s\""),
        ("timeouts", "timeouts.connect = \"9s\""),
        ("expert.idle_timeout", "expert.idle_timeout = \"1h\""),
        (
            "expert.max_connections_per_user",
            "expert.max_connections_per_user = 2",
        ),
        ("expert.max_connections_per_user", "limits.per_user = 2"),
        ("limits.handshakes", "limits.handshakes = 2"),
        ("limits.failures", "limits.failures = 2"),
        ("limits.waiting", "limits.waiting = 2"),
        ("limits.lookups", "limits.lookups = 2"),
        ("limits.trains", "limits.trains = 2"),
    ];
    let fixed = [
        ("name", "name = \"another\""),
        ("port", "port = 443"),
        ("expert.announce", "expert.announce = true"),
        ("expert.announce", "announce = true"),
        ("unprotected", "unprotected = true"),
        ("targets", "targets = \"198.51.100.1:443\""),
        ("strategy", "strategy = \"minrtt\""),
        ("congestion", "congestion = \"cubic\""),
        ("expert.checksum", "expert.checksum = true"),
        ("expert.ecn", "expert.ecn = \"off\""),
        ("expert.time_window", "expert.time_window = \"1min\""),
        ("expert.time_window", "time_window = \"1min\""),
        ("control", "control = \"server.sock\""),
        ("tun", "tun.name = \"braid9\""),
        ("expert.max_connections", "expert.max_connections = 2"),
        ("limits.replay", "limits.replay = 2"),
        (
            "expert.connection_buffer",
            "expert.connection_buffer = \"1MB\"",
        ),
        ("limits.memory", "limits.memory = \"1MB\""),
    ];
    let changes = |setting: &str| {
        let mut running = with(&[boxed()], LISTEN);
        running.reload(with(&[boxed()], &format!("{LISTEN}\n{setting}")))
    };
    for (name, setting) in live {
        let changed = vec![name.to_owned()];
        let expected = Changes {
            changed,
            ..Changes::default()
        };
        assert_eq!(changes(setting), expected);
    }
    for (name, setting) in fixed {
        let restart = vec![name.to_owned()];
        let expected = Changes {
            restart,
            ..Changes::default()
        };
        assert_eq!(changes(setting), expected);
    }
    let mut running = with(&[boxed()], LISTEN);
    let mut other = with(&[boxed()], LISTEN);
    other.key = laptop_key();
    assert_eq!(running.reload(other).restart, ["key_file"]);
    assert_eq!(running.key.public(), server_key().public());
}

#[test]
fn the_value_that_holds_already_is_no_change() {
    for default in [
        "refuse_ports = 25",
        "expert.max_connections = 32768",
        "expert.max_connections_per_user = 16384",
        "limits.handshakes = 4096",
        "limits.replay = 262144",
        "expert.connection_buffer = \"8MiB\"",
        "expert.time_window = \"2min\"",
        "limits.memory = \"1GiB\"",
    ] {
        let mut running = with(&[boxed()], LISTEN);
        let changes = running.reload(with(&[boxed()], &format!("{LISTEN}\n{default}")));
        assert_eq!(changes, Changes::default(), "{default}");
    }
}

#[test]
fn limits_that_were_read_again_hold_for_what_comes() {
    let mut w = World::ready(2, Setup::default());
    w.content(CONTENT, Content::Echoes);
    let first = w.open(CONTENT, b"one", false);
    w.run_until(|w| w.user(first).got == b"one");
    w.server_config.limits.per_user = Some(1);
    w.set_users(&[boxed()]);
    let second = w.open(CONTENT, b"two", false);
    w.run_until(|w| w.user(second).closed);
    assert!(w.user(second).reset && !w.user(first).closed);
    assert_eq!(w.server().counters().over_limit, 1);
}

/// The process can open fewer descriptors than the limits allow, and one user asks for all of them.
#[test]
fn one_user_leaves_connections_to_the_others() {
    let mut w = of_both(0);
    w.content(CONTENT, Content::Echoes);
    w.server.as_mut().unwrap().1.set_max_streams(8);
    let users: Vec<_> = (0..8).map(|_| w.open(CONTENT, b"hello", false)).collect();
    w.run_for(Duration::from_secs(1));
    let served = users.iter().filter(|u| w.user(**u).got == b"hello").count();
    assert_eq!((served, w.server().counters().over_limit), (7, 1));
    let (_, answer) = laptop_asks(&mut w, 1);
    assert!(answer.starts_with(&LET_IN), "{answer:?}");
    w.run_for(Duration::from_secs(1));
    assert_eq!(w.server().counters().over_limit, 1);
}
