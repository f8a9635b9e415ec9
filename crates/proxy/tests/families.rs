//! Servers that reach a single address family: what a box learns, and the effect on users.

use core::time::Duration;

use crate::world::downstream::{Content, Downstream};
use crate::world::{CONTENT, PREFERRED, Setup, World};
use braid_proxy::app::DownstreamId;
use braid_proxy::socks::{Destination, request, sign_in};
use braid_proxy::verdict::Health;
use braid_proxy::{Notice, Routes};
use braid_secure::Families;

const CONTENT_V6: &str = "[2a00:1450::1]:80";
const V4_ONLY: Families = Families {
    v4: true,
    v6: false,
};

fn with_contents(mut w: World) -> World {
    w.content(CONTENT, Content::Echoes);
    w.content(CONTENT_V6, Content::Echoes);
    w
}

/// Sends bytes to an echo; returns whether they came back.
fn is_served(w: &mut World, destination: &str) -> bool {
    let user: DownstreamId = w.open(destination, b"hello", true);
    w.run_until(|w| w.user(user).got_end || w.user(user).closed);
    w.run_for(Duration::from_millis(200));
    w.user(user).got == b"hello"
}

/// Returns the families in the notices to the driver, in order.
fn told(w: &World) -> Vec<Families> {
    let notices = w.notices.iter().filter_map(|(_, notice)| match notice {
        Notice::Families(families) => Some(*families),
        _ => None,
    });
    notices.collect()
}

fn codes(w: &World) -> Vec<String> {
    let reasons = w.box_status().verdict.reasons;
    reasons.into_iter().map(|reason| reason.code).collect()
}

/// Removes or restores the server's route to IPv6 destinations; its driver reports the routes if it has noticed.
fn set_v6(w: &mut World, there: bool, noticed: Option<Routes>) {
    let (node, core) = w.server.as_mut().unwrap();
    node.downstream.no_v6 = !there;
    if let Some(routes) = noticed {
        core.set_routes(true, routes);
    }
}

fn attempts(downstream: &Downstream, destination: &str) -> usize {
    let destination = destination.parse().unwrap();
    downstream
        .attempts
        .iter()
        .filter(|a| **a == destination)
        .count()
}

#[test]
fn a_box_is_told_in_the_handshake() {
    let mut w = with_contents(World::up(2, Setup::default()));
    set_v6(&mut w, false, Some(Routes::Nowhere));
    w.run_for(Duration::from_secs(1));
    assert_eq!(told(&w), [V4_ONLY], "before any user has failed");
    assert!(is_served(&mut w, CONTENT));
    let status = w.box_status();
    assert_eq!(status.servers[0].families, V4_ONLY);
    // Programs can use IPv4, so the health does not suffer.
    assert_eq!(status.verdict.health, Health::Working);
    assert_eq!(codes(&w), ["no-ipv6"]);
    assert_eq!(w.core.counters().destination_unreachable, 0);
}

#[test]
fn a_box_with_warm_connections_is_told_by_a_reply() {
    let setup = Setup {
        warm: 2,
        ..Setup::default()
    };
    let mut w = with_contents(World::met(2, setup));
    assert!(is_served(&mut w, CONTENT) && is_served(&mut w, CONTENT_V6));
    set_v6(&mut w, false, None);
    let opened = w.core.counters().idle_used;
    let user = w.open(CONTENT_V6, b"hello", true);
    w.run_until(|w| w.user(user).closed);
    assert!(
        w.core.counters().idle_used > opened,
        "over a warm connection"
    );
    // The notice came before another connection's handshake.
    assert_eq!(told(&w), [V4_ONLY]);
    assert_eq!(attempts(w.server_downstream(), CONTENT_V6), 2);
    assert!(is_served(&mut w, CONTENT));
    // The route is back, but nobody asks for IPv6, because it is refused.
    set_v6(&mut w, true, Some(Routes::Internet));
    w.run_for(Duration::from_secs(62));
    assert_eq!(told(&w), [V4_ONLY, Families::BOTH]);
    assert!(is_served(&mut w, CONTENT_V6));
    assert_eq!(codes(&w), [""; 0]);
}

/// A destination without a route proves nothing about others that are reached.
#[test]
fn a_family_of_which_some_are_reached_is_not_given_up() {
    let mut w = with_contents(World::met(1, Setup::default()));
    set_v6(&mut w, true, Some(Routes::Networks));
    assert!(is_served(&mut w, CONTENT_V6));
    set_v6(&mut w, false, None);
    assert!(!is_served(&mut w, CONTENT_V6));
    assert_eq!(told(&w), []);
    set_v6(&mut w, true, None);
    assert!(is_served(&mut w, CONTENT_V6));
}

#[test]
fn a_server_that_is_not_protected_is_tried_again() {
    let setup = Setup {
        clear: true,
        ..Setup::default()
    };
    let mut w = with_contents(World::ready(1, setup));
    set_v6(&mut w, false, None);
    assert!(!is_served(&mut w, CONTENT_V6));
    assert_eq!(told(&w), [V4_ONLY]);
    assert!(is_served(&mut w, CONTENT));
    assert_eq!(told(&w), [V4_ONLY], "that says nothing of IPv6");
    set_v6(&mut w, true, None);
    w.run_for(Duration::from_secs(62));
    assert_eq!(told(&w), [V4_ONLY, Families::BOTH]);
    assert!(is_served(&mut w, CONTENT_V6));
}

/// Creates a world with two servers, of which the preferred one has no IPv6.
fn with_two(warm: usize) -> World {
    let preferred = PREFERRED.to_string();
    let setup = Setup {
        first_server: Some(&preferred),
        warm,
        boxed: "select = \"order\"",
        ..Setup::default()
    };
    let mut w = World::new(2, setup);
    w.start_preferred();
    w = with_contents(w);
    w.preferred.as_mut().unwrap().0.downstream.no_v6 = true;
    w
}

fn attempts_of_both(w: &World, destination: &str) -> [usize; 2] {
    let servers = [&w.preferred, &w.server].map(|s| &s.as_ref().unwrap().0.downstream);
    servers.map(|downstream| attempts(downstream, destination))
}

#[test]
fn connections_go_to_a_server_that_reaches_their_family() {
    let mut w = with_two(2);
    let core = &mut w.preferred.as_mut().unwrap().1;
    core.set_routes(true, Routes::Nowhere);
    for link in 0..2 {
        w.set_link(link, true);
    }
    w.run_for(Duration::from_secs(1));
    for _ in 0..5 {
        assert!(is_served(&mut w, CONTENT_V6) && is_served(&mut w, CONTENT));
    }
    assert_eq!(attempts_of_both(&w, CONTENT_V6), [0, 5]);
    assert_eq!(attempts_of_both(&w, CONTENT), [5, 0]);
    assert_eq!(told(&w), [], "nothing is refused");
    assert_eq!(codes(&w), [""; 0]);
    // The other server goes, so that none reaches IPv6.
    w.kill_server();
    w.run_for(Duration::from_secs(60));
    assert_eq!(told(&w), [V4_ONLY]);
    assert!(is_served(&mut w, CONTENT));
    w.start_server();
    w.content(CONTENT_V6, Content::Echoes);
    w.run_for(Duration::from_secs(60));
    assert_eq!(told(&w), [V4_ONLY, Families::BOTH]);
    assert!(is_served(&mut w, CONTENT_V6));
}

/// A user whom the preferred server cannot serve is served by the other one.
#[test]
fn a_user_whom_one_server_cannot_serve_is_served_by_another() {
    let mut w = with_two(2);
    for link in 0..2 {
        w.set_link(link, true);
    }
    w.run_for(Duration::from_secs(1));
    assert!(is_served(&mut w, CONTENT));
    w.run_for(Duration::from_secs(2));
    assert!(is_served(&mut w, CONTENT_V6));
    assert_eq!(attempts_of_both(&w, CONTENT_V6), [1, 1]);
    assert!(is_served(&mut w, CONTENT_V6));
    assert_eq!(attempts_of_both(&w, CONTENT_V6), [1, 2]);
    assert_eq!(told(&w), []);
}

/// Each change reloads the packet filter rules, so changes are limited.
#[test]
fn a_server_that_changes_its_mind_is_followed_slowly() {
    let mut w = with_contents(World::up(1, Setup::default()));
    w.run_for(Duration::from_secs(1));
    let begin = w.now;
    for n in 0..50 {
        let routes = [Routes::Nowhere, Routes::Internet][n % 2];
        set_v6(&mut w, true, Some(routes));
        is_served(&mut w, CONTENT);
    }
    let seconds = w.now.saturating_since(begin).as_secs() as usize;
    let most = 2 * (seconds / 5 + 1);
    assert!((2..=most).contains(&told(&w).len()), "{:?}", told(&w));
    set_v6(&mut w, true, Some(Routes::Internet));
    is_served(&mut w, CONTENT);
    w.run_for(Duration::from_secs(6));
    assert_eq!(told(&w).last(), Some(&Families::BOTH));
}

#[test]
fn addresses_of_a_name_are_tried_by_what_is_reached() {
    let mut w = with_contents(World::ready(1, Setup::default()));
    set_v6(&mut w, false, None);
    let name = "both.example";
    let both = [CONTENT_V6, CONTENT].map(|a| a.parse().unwrap());
    let names = &mut w.server_downstream().names;
    names.insert(name.to_owned(), both.to_vec());
    for attempts_v6 in [1, 1] {
        let destination = Destination::Name(name.to_owned(), 80);
        let asks = [sign_in(b"x", b"x"), request(None, &destination)].concat();
        let program = w.knock(&asks);
        w.run_until(|w| w.user(program).got.len() > 4);
        assert_eq!(attempts(w.server_downstream(), CONTENT_V6), attempts_v6);
        w.boxed.downstream.break_stream(program);
        w.run_for(Duration::from_millis(200));
    }
    assert_eq!(attempts(w.server_downstream(), CONTENT), 2);
}
