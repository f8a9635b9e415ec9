//! Links, servers and settings that come and go while a box runs.

use core::time::Duration;

use crate::world::downstream::Content;
use crate::world::{self, CONTENT, Setup, World, box_key, link_address, server_key};
use braid_engine::strategy::FlowSize;
use braid_engine::{PathId, Urgency};
use braid_proxy::app::DownstreamId;
use braid_proxy::config::{BoxConfig, Changes, LinkConfig, ServerEntry};
use braid_proxy::{ConfigError, Notice};
use braid_secure::keys::PrivateKey;

const SIZE: usize = 4_000_000;

fn bytes() -> Vec<u8> {
    (0..SIZE).map(|i| (i / 7 + i / 1_000) as u8).collect()
}

/// Returns a world in the middle of a download.
fn downloading(links: usize, setup: Setup<'_>) -> (World, DownstreamId) {
    let mut w = World::met(links, setup);
    let user = under_way(&mut w);
    (w, user)
}

fn under_way(w: &mut World) -> DownstreamId {
    w.content(CONTENT, Content::Sends(bytes(), true));
    let user = w.open(CONTENT, b"GET /", false);
    w.run_until(|w| w.user(user).got.len() > SIZE / 8);
    user
}

fn finish(w: &mut World, user: DownstreamId) {
    w.run_until(|w| w.user(user).got_end || w.user(user).closed);
    assert!(
        w.user(user).got == bytes(),
        "{} bytes",
        w.user(user).got.len()
    );
    assert!(!w.user(user).reset);
}

/// Asserts that a new user is served.
fn serves(w: &mut World) {
    w.content("198.51.100.2:80", Content::Echoes);
    let user = w.open("198.51.100.2:80", b"hello", false);
    w.run_until(|w| w.user(user).got == b"hello" || w.user(user).closed);
    assert_eq!(w.user(user).got, b"hello");
}

fn another_link(of: &BoxConfig, name: &str) -> LinkConfig {
    LinkConfig {
        name: name.to_owned(),
        interface: name.to_owned(),
        ..of.links[0].clone()
    }
}

fn received(w: &World, link: &str) -> u64 {
    let status = w.box_status();
    let path = status.paths.iter().find(|path| path.name == link);
    path.unwrap_or_else(|| panic!("no link {link}"))
        .bytes_received
}

/// Returns the number of packets that left the box from its address on link `n`.
fn sent_over(w: &mut World, n: u8) -> usize {
    let wire = w.wire.take().unwrap_or_default();
    let from = link_address(n).octets();
    let sent = wire
        .iter()
        .filter(|(up, packet)| *up && packet[12..16] == from);
    sent.count()
}

#[test]
fn a_link_that_is_added_takes_part_in_a_download() {
    let (mut w, user) = downloading(1, Setup::default());
    let (changes, left) = w.reload_box(|c| c.links.push(another_link(c, "lte")));
    assert_eq!(changes.changed, ["link lte added"]);
    assert_eq!((changes.restart, left), (vec![], vec![]));
    let path = w.plug_in(1, Duration::from_millis(10), None);
    assert_eq!(path, PathId(1));
    finish(&mut w, user);
    assert!(received(&w, "lte") > 10_000, "{}", received(&w, "lte"));
    serves(&mut w);
}

/// Also where the link is the faster one, on which the connection was opened.
#[test]
fn a_download_goes_on_when_its_link_is_removed() {
    for keep in [1, 0] {
        let (mut w, user) = downloading(2, Setup::default());
        let (changes, left) = w.reload_box(|c| drop(c.links.remove(1 - keep)));
        assert_eq!(changes.changed, [format!("link wan{} removed", 1 - keep)]);
        assert_eq!(left, [PathId(1 - keep as u8)]);
        w.run_for(Duration::from_millis(300));
        // The link goes away for good.
        w.remove_path(left[0]);
        w.links[1 - keep].dark = true;
        w.wire = Some(Vec::new());
        finish(&mut w, user);
        assert_eq!(sent_over(&mut w, 1 - keep as u8), 0);
        let names: Vec<_> = w.box_status().paths.into_iter().map(|p| p.name).collect();
        assert_eq!(names, [format!("wan{keep}")]);
        serves(&mut w);
    }
}

/// A changed link is a new one, and takes over from its former self.
#[test]
fn a_download_goes_on_when_its_only_link_is_another() {
    let (mut w, user) = downloading(1, Setup::default());
    let (changes, left) = w.reload_box(|c| c.links[0].interface = "eth7".to_owned());
    assert_eq!(changes.changed, ["link wan0 changed"]);
    assert_eq!(left, [PathId(0)]);
    w.plug_in(0, Duration::from_millis(20), None);
    w.run_for(Duration::from_millis(300));
    w.remove_path(left[0]);
    w.links[0].dark = true;
    finish(&mut w, user);
    serves(&mut w);
}

#[test]
fn another_gateway_is_the_same_link() {
    let (mut w, user) = downloading(1, Setup::default());
    let gateway = braid_proxy::config::Gateway::Fixed {
        v4: Some([192, 168, 7, 1].into()),
        v6: None,
    };
    let (changes, left) = w.reload_box(|c| c.links[0].gateway = gateway);
    assert_eq!(changes.changed, ["link wan0 changed"]);
    assert_eq!(left, []);
    finish(&mut w, user);
    assert_eq!(w.core.counters().idle_failed, 0);
}

/// A path number is reused, but the counters and records there belonged to another link.
#[test]
fn a_new_link_in_the_place_of_an_old_one_starts_anew() {
    let (mut w, user) = downloading(2, Setup::default());
    finish(&mut w, user);
    let before = received(&w, "wan1");
    assert!(before > 0);
    let (_, left) = w.reload_box(|c| drop(c.links.remove(1)));
    w.run_for(Duration::from_secs(3));
    w.remove_path(left[0]);
    w.reload_box(|c| c.links.insert(0, another_link(c, "lte")));
    let path = w.plug_in(0, Duration::from_millis(5), Some(left[0]));
    assert_eq!(path, left[0]);
    assert_eq!(received(&w, "lte"), 0);
    // In the order of the file.
    let names: Vec<_> = w.box_status().paths.into_iter().map(|p| p.name).collect();
    assert_eq!(names, ["lte", "wan0"]);
    let user = under_way(&mut w);
    finish(&mut w, user);
    assert!((1..=SIZE as u64 + 1_000_000).contains(&received(&w, "lte")));
}

/// Changes of `backup` and `metered` apply to existing connections.
#[test]
fn what_a_link_is_for_changes_at_once() {
    let (mut w, user) = downloading(2, Setup::default());
    let (changes, left) = w.reload_box(|c| (c.links[1].backup, c.links[0].metered) = (true, true));
    assert_eq!(changes.changed, ["link wan0 changed", "link wan1 changed"]);
    assert_eq!(left, []);
    finish(&mut w, user);
    let paths = w.box_status().paths;
    assert!(!paths[0].backup && paths[1].backup);
}

fn dead_server(of: &BoxConfig, name: &str) -> ServerEntry {
    ServerEntry {
        name: name.to_owned(),
        v4: Some([203, 0, 113, 99].into()),
        ..of.servers[0].clone()
    }
}

/// A server is identified by its address and key, not by its index.
#[test]
fn servers_come_and_go_beside_the_one_in_use() {
    let setup = Setup {
        warm: 2,
        ..Setup::default()
    };
    let (mut w, user) = downloading(2, setup);
    let (lost, failed) = (w.core.counters().idle_lost, w.core.counters().idle_failed);
    let (changes, _) = w.reload_box(|c| c.servers.insert(0, dead_server(c, "spare")));
    assert_eq!(changes.changed, ["server spare added"]);
    w.run_for(Duration::from_millis(200));
    serves(&mut w);
    let (changes, _) = w.reload_box(|c| drop(c.servers.remove(0)));
    assert_eq!(changes.changed, ["server spare removed"]);
    serves(&mut w);
    let (changes, _) = w.reload_box(|c| c.servers[0].name = "home".to_owned());
    assert_eq!(
        changes.changed,
        ["server home added", "server server1 removed"]
    );
    serves(&mut w);
    finish(&mut w, user);
    let counters = w.core.counters();
    assert_eq!((counters.idle_lost, counters.idle_failed), (lost, failed));
}

/// Connections to a removed server end there; new ones go to another server.
#[test]
fn a_download_goes_on_when_its_server_is_removed() {
    let (mut w, user) = downloading(2, Setup::default());
    w.reload_box(|c| c.servers = vec![dead_server(c, "other")]);
    finish(&mut w, user);
    w.run_for(Duration::from_secs(10));
    assert!(
        !w.core.wants_interception(),
        "the other one does not answer"
    );
    w.reload_box(|c| {
        let mut back = dead_server(c, "home");
        back.v4 = Some(world::SERVER);
        c.servers.push(back);
    });
    w.run_until(|w| w.core.wants_interception());
    serves(&mut w);
}

/// A connection being opened to the removed server is opened to another one.
#[test]
fn a_connection_under_way_to_a_server_that_is_removed_goes_to_another() {
    let setup = Setup {
        first_server: Some("203.0.113.99"),
        ..Setup::default()
    };
    let mut w = World::ready(2, setup);
    w.content(CONTENT, Content::Echoes);
    // Probes of both servers were answered just now.
    let user = w.open(CONTENT, b"hello", false);
    w.run_for(Duration::from_millis(1));
    w.reload_box(|c| drop(c.servers.remove(0)));
    let start = w.now;
    w.run_until(|w| w.user(user).got == b"hello");
    assert!(
        w.now.saturating_since(start) < Duration::from_secs(1),
        "at {}",
        w.now
    );
}

#[test]
fn another_key_of_the_server_holds_for_new_connections() {
    let (mut w, user) = downloading(
        1,
        Setup {
            warm: 2,
            ..Setup::default()
        },
    );
    let wrong = PrivateKey::from_seed([9; 32]).public();
    let (changes, _) = w.reload_box(|c| c.servers[0].key = wrong);
    assert_eq!(changes.changed, ["server server1 changed"]);
    finish(&mut w, user);
    let refused = w.open(CONTENT, b"hello", false);
    w.run_until(|w| w.user(refused).closed);
    assert!(w.user(refused).got.is_empty());
    w.reload_box(|c| c.servers[0].key = server_key().public());
    w.run_for(Duration::from_secs(2));
    serves(&mut w);
}

#[test]
fn limits_and_rules_hold_for_what_begins() {
    let (mut w, user) = downloading(1, Setup::default());
    let rule = "[[rule]]\nport = 80\nsize = \"1MB\"\nurgency = 6\n";
    let rules = config(rule).unwrap().rules;
    let (changes, _) = w.reload_box(|c| (c.limits.per_host, c.rules) = (Some(1), rules));
    assert_eq!(changes.changed, ["expert.max_connections_per_host", "rule"]);
    let refused = w.open(CONTENT, b"hello", false);
    w.run_for(Duration::from_millis(100));
    assert!(w.user(refused).reset);
    assert_eq!(w.core.counters().over_limit, 1);
    finish(&mut w, user);
    // The user is gone, so that there is room for the next.
    w.boxed.downstream.break_stream(user);
    w.run_for(Duration::from_secs(1));
    let rated = w.open(CONTENT, b"GET /", false);
    w.run_until(|w| w.user(rated).got.len() > 10_000);
    let sizes = w.sizes_at_server();
    assert!(sizes.contains(&FlowSize::Predicted(1_000_000)), "{sizes:?}");
    assert_eq!(
        w.box_status().connections[0].urgency,
        Urgency::new(6).unwrap().level()
    );
}

/// A switch set by hand stays, unless the file's value has changed.
#[test]
fn switches_stay_where_they_are() {
    use braid_proxy::control::{Controlled as _, Request};
    let mut w = World::met(2, Setup::default());
    let order = |w: &mut World, request| w.core.control(w.now, &mut w.boxed.stack, request);
    for request in [
        Request::Link {
            name: "wan1".to_owned(),
            on: false,
        },
        Request::Backup {
            name: "wan0".to_owned(),
            on: true,
        },
    ] {
        order(&mut w, request);
    }
    w.notices.clear();
    let (changes, _) = w.reload_box(|c| c.limits.per_host = Some(7));
    assert_eq!(
        changes.to_string(),
        "changed: expert.max_connections_per_host"
    );
    w.run_for(Duration::from_secs(1));
    assert!(w.core.is_off(PathId(1)) && w.box_status().paths[0].backup);
    assert!(
        !w.notices
            .iter()
            .any(|(_, n)| matches!(n, Notice::Intercept(_)))
    );
    let (changes, _) = w.reload_box(|_| {});
    assert_eq!(changes.to_string(), "nothing has changed");
}

/// Reads a configuration with one link and one server, and the lines `more`.
fn config(more: &str) -> Result<BoxConfig, ConfigError> {
    let key = server_key().public();
    let text = format!(
        "lan = \"lan0\"\n{}\n[[link]]\ninterface = \"wan0\"\n[server]\naddress = \"203.0.113.7\"\n\
         key = \"{key}\"\n{}",
        if more.starts_with('[') { "" } else { more },
        if more.starts_with('[') { more } else { "" },
    );
    BoxConfig::with_key("box.toml", &text, box_key())
}

/// Settings, each with what a reload of it names as changed, and as waiting for a restart.
const RELOADS: &[(&str, &str, &str)] = &[
    ("name = \"attic\"", "name", ""),
    ("select = \"delay\"", "select", ""),
    ("strategy = \"minrtt\"", "strategy", ""),
    ("congestion = \"cubic\"", "congestion", ""),
    ("expert.checksum = true", "expert.checksum", ""),
    ("expert.ecn = \"ask\"", "expert.ecn", ""),
    ("bypass = \"198.51.100.0/24\"", "bypass", ""),
    ("socks = \"192.168.1.1:1080\"", "socks", ""),
    ("quic = \"reject\"", "quic", ""),
    ("mptcp_hosts = \"proxy\"", "mptcp_hosts", ""),
    ("timeouts.drain = \"5s\"", "timeouts", ""),
    ("expert.idle_timeout = \"1h\"", "expert.idle_timeout", ""),
    ("expert.max_connections = 9", "expert.max_connections", ""),
    (
        "expert.max_connections_per_host = 9",
        "expert.max_connections_per_host",
        "",
    ),
    (
        "expert.idle_probe_interval = \"9s\"",
        "expert.idle_probe_interval",
        "",
    ),
    (
        "expert.max_measurement_interval = \"9s\"",
        "expert.max_measurement_interval",
        "",
    ),
    (
        "expert.server_change_gain = \"20%\"",
        "expert.server_change_gain",
        "",
    ),
    (
        "expert.measurement_quiet_hours = \"22:00-06:00\"",
        "expert.measurement_quiet_hours",
        "",
    ),
    ("expert.idle_pool_size = 3", "expert.idle_pool_size", ""),
    (
        "expert.idle_pool_metered = true",
        "expert.idle_pool_metered",
        "",
    ),
    ("timeouts.idle = \"1h\"", "expert.idle_timeout", ""),
    ("warm.max = 3", "expert.idle_pool_size", ""),
    ("limits.handshakes = 9", "limits.handshakes", ""),
    ("probing.busy = \"9s\"", "probing", ""),
    ("measuring.least = \"9s\"", "measuring", ""),
    ("warm.age = \"9s\"", "warm", ""),
    ("shortcut = false", "", "shortcut"),
    ("control = \"box.sock\"", "", "control"),
    ("state = \"state\"", "", "state"),
    ("tun.name = \"braid7\"", "", "tun"),
    (
        "expert.connection_buffer = \"1MB\"",
        "",
        "expert.connection_buffer",
    ),
    ("limits.memory = \"99MB\"", "", "limits.memory"),
];

/// Every setting either changes at once or needs a restart.
#[test]
fn what_changes_at_once_and_what_waits_is_named() {
    for &(line, changed, restart) in RELOADS {
        let new = config(line).unwrap_or_else(|e| panic!("{e}"));
        let mut runs = config("").unwrap();
        let changes = runs.reload(new.clone());
        let list = |name: &str| Vec::from_iter((!name.is_empty()).then(|| name.to_owned()));
        assert_eq!(changes.changed, list(changed), "{line}");
        assert_eq!(changes.restart, list(restart), "{line}");
        // A setting that waits for the restart is named again; one that has changed is not.
        let again = runs.reload(new);
        assert_eq!(
            (again.changed, again.restart),
            (vec![], list(restart)),
            "{line}"
        );
    }
    let mut runs = config("").unwrap();
    let mut new = config("tun.name = \"braid7\"").unwrap();
    new.key = PrivateKey::from_seed([8; 32]);
    new.lan.push("lan1".to_owned());
    let changes = runs.reload(new);
    let said = "changed: key_file, lan; not before a restart: tun";
    assert_eq!(changes.to_string(), said);
    assert_eq!((runs.tun.name.as_str(), runs.lan.len()), ("braid0", 2));
}

#[test]
fn the_value_that_holds_already_is_no_change() {
    let mut runs = config("").unwrap();
    for line in [
        "shortcut = true",
        "timeouts.user_timeout = \"15min\"",
        "expert.max_connections = 16384",
        "expert.max_connections_per_host = 4096",
        "limits.handshakes = 4096",
        "expert.connection_buffer = \"8MiB\"",
        "limits.memory = \"256MiB\"",
    ] {
        let written = runs.reload(config(line).unwrap());
        assert_eq!(written, Changes::default(), "{line} is the default");
        let removed = runs.reload(config("").unwrap());
        assert_eq!(removed, Changes::default(), "{line} was the default");
    }
    // What follows from a limit is not named beside it.
    let more = runs.reload(config("limits.memory = \"1GiB\"").unwrap());
    assert_eq!(more.to_string(), "not before a restart: limits.memory");
}
