//! States of links and servers: how the box learns them, and the effect on users.

use core::time::Duration;

use crate::world::downstream::Content;
use crate::world::{CONTENT, Setup, World, box_key};
use braid_proxy::Notice;
use braid_proxy::app::DownstreamId;
use braid_proxy::status::Status;
use braid_proxy::verdict::{Condition, Health};
use braid_secure::keys::{PrivateKey, PublicKey};

const HTTP: &[u8] = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n<html>log in</html>";

fn status(w: &World) -> Status {
    w.core.status(w.now, &w.boxed.stack)
}

fn links(w: &World) -> Vec<Option<Condition>> {
    status(w).paths.iter().map(|link| link.condition).collect()
}

fn codes(w: &World) -> Vec<String> {
    let reasons = status(w).verdict.reasons;
    reasons.into_iter().map(|reason| reason.code).collect()
}

/// Sends bytes to an echo; returns whether they came back within 3 s.
fn is_served(w: &mut World, text: &[u8]) -> bool {
    let user: DownstreamId = w.open(CONTENT, text, true);
    let end = w.now + Duration::from_secs(3);
    w.run_until(|w| w.user(user).got_end || w.user(user).closed || w.now >= end);
    w.user(user).got == text
}

fn served(w: &mut World, users: usize) -> usize {
    let all = 0..users;
    all.filter(|_| {
        let served = is_served(w, b"hello");
        w.run_for(Duration::from_millis(100));
        served
    })
    .count()
}

fn ready() -> World {
    let mut w = World::ready(2, Setup::default());
    w.content(CONTENT, Content::Echoes);
    w.run_for(Duration::from_secs(1));
    w
}

#[test]
fn a_sound_box_is_working() {
    let mut w = ready();
    assert_eq!(status(&w).verdict.health, Health::Working);
    assert_eq!(links(&w), [Some(Condition::Working); 2]);
    assert_eq!(served(&mut w, 3), 3);
    let c = *w.core.counters();
    assert_eq!((c.examinations, c.examinations_failed), (2, 0));
}

/// A box that starts behind a captive portal, on its faster link; the portal answers, or only accepts.
#[test]
fn a_portal_keeps_nobody_from_the_other_link() {
    for says in [Some(HTTP), None] {
        let mut w = World::new(2, Setup::default());
        w.content(CONTENT, Content::Echoes);
        w.put_portal(0, says);
        w.set_link(0, true);
        w.set_link(1, true);
        w.run_for(Duration::from_secs(3));
        assert_eq!(served(&mut w, 20), 20, "{says:?}");
        // A silent portal is found only when an examination times out.
        w.run_for(Duration::from_secs(7));
        let expected = [Some(Condition::CaptivePortal), Some(Condition::Working)];
        assert_eq!(links(&w), expected, "{says:?}");
        assert_eq!(status(&w).verdict.health, Health::Degraded);
        assert_eq!(codes(&w), ["captive-portal"]);
        assert!(w.portal.as_ref().is_some_and(|p| p.heard > 0));
        // The user logs in at the portal.
        w.portal = None;
        w.run_for(Duration::from_secs(31));
        assert_eq!(links(&w), [Some(Condition::Working); 2], "{says:?}");
        assert_eq!(codes(&w), [""; 0]);
    }
}

/// The portal comes while the box runs: an early user may meet it, later ones do not.
#[test]
fn a_portal_that_comes_later_is_found() {
    let mut w = ready();
    assert_eq!(served(&mut w, 2), 2);
    w.put_portal(0, Some(HTTP));
    // Users of the first three seconds.
    let end = w.now + Duration::from_secs(3);
    while w.now < end {
        is_served(&mut w, b"early");
        w.run_for(Duration::from_millis(100));
    }
    assert_eq!(served(&mut w, 20), 20);
    assert_eq!(links(&w)[0], Some(Condition::CaptivePortal));
}

#[test]
fn connections_open_where_multipath_tcp_passes() {
    // The network of the faster link strips options.
    let mut w = World::new(2, Setup::default());
    w.content(CONTENT, Content::Echoes);
    w.strips = vec![0];
    w.set_link(0, true);
    w.set_link(1, true);
    w.run_for(Duration::from_secs(1));
    let expected = [Some(Condition::MptcpStripped), Some(Condition::Working)];
    assert_eq!(links(&w), expected);
    assert_eq!(codes(&w), ["mptcp-stripped"]);
    assert_eq!(served(&mut w, 5), 5);
    let user = w.open(CONTENT, b"stays", false);
    w.run_for(Duration::from_millis(500));
    let conns = status(&w).connections;
    assert_eq!(conns.len(), 1);
    assert!(conns[0].mptcp, "it opened on the link that does not strip");
    w.boxed.downstream.break_stream(user);
    // The other link is dark: a link that strips is better than none.
    w.links[1].dark = true;
    w.run_for(Duration::from_secs(3));
    assert_eq!(served(&mut w, 5), 5);
    // Options pass again.
    w.strips = Vec::new();
    w.links[1].dark = false;
    w.run_for(Duration::from_secs(31));
    assert_eq!(links(&w), [Some(Condition::Working); 2]);
}

#[test]
fn where_every_link_strips_connections_take_turns() {
    let mut w = World::new(2, Setup::default());
    w.content(CONTENT, Content::Echoes);
    w.strips = vec![0, 1];
    w.set_link(0, true);
    w.set_link(1, true);
    w.run_for(Duration::from_secs(1));
    assert_eq!(links(&w), [Some(Condition::MptcpStripped); 2]);
    assert_eq!(status(&w).verdict.health, Health::Degraded);
    for _ in 0..4 {
        w.open(CONTENT, b"stays", false);
        w.run_for(Duration::from_millis(200));
    }
    let conns = status(&w).connections;
    let on = |link: &str| {
        let there = |p: &&braid_proxy::status::ConnPathStatus| p.path == link && p.bytes_sent > 0;
        conns
            .iter()
            .filter(|c| c.paths.iter().any(|p| there(&p)))
            .count()
    };
    assert_eq!((on("wan0"), on("wan1")), (2, 2));
    assert!(conns.iter().all(|c| !c.mptcp));
}

/// The preferred server refuses the box.
#[test]
fn a_server_that_cannot_be_used_is_left_for_the_next() {
    let mut w = ready();
    assert_eq!(served(&mut w, 1), 1);
    w.set_users(&[("box", stranger())]);
    w.run_for(Duration::from_secs(3));
    is_served(&mut w, b"finds out");
    w.run_for(Duration::from_secs(3));
    assert_eq!(
        status(&w).servers[0].condition,
        Condition::KeyRefused,
        "{:?} {:?}",
        w.core.counters(),
        w.server().counters()
    );
    assert_eq!(status(&w).verdict.health, Health::Down);
    assert!(
        codes(&w).contains(&"key-refused".to_owned()),
        "{:?}",
        codes(&w)
    );
    assert!(!w.core.wants_interception(), "users are forwarded");
    // The refusal is no fault of the links.
    assert_eq!(links(&w), [Some(Condition::Working); 2]);
    w.set_users(&[("box", box_key().public())]);
    w.run_until(|w| w.core.wants_interception());
    // A finding on one link makes the other be examined soon: examinations are 3 s apart.
    w.run_for(Duration::from_secs(4));
    let reached = |w: &World| status(w).servers[0].measured.paths.clone();
    assert!(reached(&w).iter().all(|path| path.delay_ms.is_some()));
    assert_eq!(status(&w).verdict.health, Health::Working);
    assert_eq!(served(&mut w, 3), 3);
    let left = |(_, n): &(_, Notice)| matches!(n, Notice::Reached(_, false));
    let left = w.notices.iter().find(|n| left(n));
    assert_eq!(left, None, "what is forwarded stays on its link");
}

/// Returns a key that the box does not know.
fn stranger() -> PublicKey {
    PrivateKey::from_seed([9; 32]).public()
}

/// Returns a box that knows that its only server refuses it.
fn refused() -> World {
    let mut w = ready();
    w.set_users(&[("box", stranger())]);
    w.run_for(Duration::from_secs(3));
    is_served(&mut w, b"finds out");
    w.run_for(Duration::from_secs(3));
    assert!(!w.core.wants_interception(), "users are forwarded");
    w
}

/// Forwarded connections stay on their link, whatever a server tells the box over either link.
#[test]
fn a_server_that_refuses_the_box_moves_nothing_that_is_forwarded() {
    let mut w = refused();
    w.set_users(&[("box", box_key().public())]);
    w.run_for(Duration::from_secs(31));
    assert!(w.core.wants_interception());
    let left = |notice: &Notice| matches!(notice, Notice::Reached(_, false));
    let moved = w.notices.iter().filter(|(_, notice)| left(notice)).count();
    assert_eq!(moved, 0, "{:?}", w.notices);
    let best = |notice: &Notice| matches!(notice, Notice::BestPath(_));
    let chosen = w.notices.iter().filter(|(_, notice)| best(notice)).count();
    assert_eq!(chosen, 1, "{:?}", w.notices);
}

/// A server that refuses the box does so again after its restart: no user has to find out.
#[test]
fn a_server_that_refuses_the_box_after_a_restart_is_not_tried_by_users() {
    let mut w = refused();
    w.kill_server();
    w.run_for(Duration::from_secs(60));
    assert_eq!(status(&w).servers[0].condition, Condition::NoAnswers);
    w.notices.clear();
    w.start_server();
    w.run_for(Duration::from_secs(30));
    assert_eq!(status(&w).servers[0].condition, Condition::KeyRefused);
    let taken_in = |(_, n): &(_, Notice)| *n == Notice::Intercept(true);
    assert!(!w.notices.iter().any(taken_in), "{:?}", w.notices);
    // The server is used as soon as it accepts the box.
    w.kill_server();
    w.run_for(Duration::from_secs(60));
    w.server_config.users[0].key = box_key().public();
    w.start_server();
    w.run_for(Duration::from_secs(5));
    assert_eq!(status(&w).servers[0].condition, Condition::Working);
    assert!(w.core.wants_interception());
}

/// Forwarded traffic moves to a working link soon after the driver reports that the other one is silent.
#[test]
fn where_the_server_refuses_the_box_a_dark_link_is_left() {
    let mut w = refused();
    // Wait until examinations have reached their longest interval.
    w.run_for(Duration::from_secs(100));
    assert_eq!(w.core.best_path(), Some(w.paths[0]));
    w.links[0].dark = true;
    for _ in 0..14 {
        w.core.revalidate_link(w.now, w.paths[0]);
        w.run_for(Duration::from_secs(1));
    }
    assert_eq!(w.core.best_path(), Some(w.paths[1]));
    let expected = [Some(Condition::NoAnswers), Some(Condition::Working)];
    assert_eq!(links(&w), expected);
}

/// The server refuses a box that it knows from a ticket, after the user's first bytes have left. They are sent
/// again, since the server has not acted on them.
#[test]
fn a_user_whom_a_ticket_did_not_help_is_asked_for_again() {
    let mut w = World::met(2, Setup::default());
    w.content(CONTENT, Content::Echoes);
    w.set_users(&[("box", stranger())]);
    let user = w.open(CONTENT, b"hello", true);
    w.run_until(|w| w.server().counters().auth_wrong > 0);
    w.set_users(&[("box", box_key().public())]);
    w.run_until(|w| w.user(user).closed);
    assert_eq!(w.user(user).got, b"hello");
    assert!(!w.user(user).reset);
    let c = *w.core.counters();
    assert_eq!((c.retries, c.auth_refused), (1, 0));
}

/// The server closes a connection that it has not served, before the user has sent anything.
#[test]
fn a_user_who_has_said_nothing_is_asked_for_again() {
    let mut w = World::met(2, Setup::default());
    w.content(CONTENT, Content::Silent);
    let user = w.open(CONTENT, &[], false);
    w.run_until(|w| w.server().connections() > 0);
    w.run_for(Duration::from_millis(200));
    w.content(CONTENT, Content::Sends(b"220 ready".to_vec(), true));
    w.set_users(&[("box", stranger())]);
    w.set_users(&[("box", box_key().public())]);
    w.run_until(|w| w.user(user).got_end || w.user(user).reset);
    assert_eq!(w.user(user).got, b"220 ready");
}

#[test]
fn links_that_carry_nothing_are_said_so() {
    let mut w = ready();
    w.links[1].dark = true;
    w.run_for(Duration::from_secs(40));
    assert_eq!(codes(&w), ["no-answers"]);
    w.links[0].dark = true;
    w.run_for(Duration::from_secs(40));
    assert_eq!(status(&w).verdict.health, Health::Down);
    assert_eq!(codes(&w)[0], "no-server");
    w.set_link(0, false);
    w.set_link(1, false);
    w.run_for(Duration::from_secs(1));
    assert_eq!(codes(&w)[0], "no-link");
}
