//! Graceful stop of box and server while users are served.

use core::time::Duration;

use crate::world::downstream::Content;
use crate::world::{CONTENT, Setup, World};
use braid_proxy::app::DownstreamId;
use braid_proxy::control::{Answer, Controlled as _, Request, STOPPING};
use braid_proxy::{Drain as _, Notice};

const LARGE: usize = 20_000_000;

fn downloads(w: &mut World, n: usize) -> Vec<DownstreamId> {
    w.content(CONTENT, Content::Sends(vec![7; LARGE], true));
    let users: Vec<_> = (0..n).map(|_| w.open(CONTENT, b"GET /", false)).collect();
    w.run_until(|w| users.iter().all(|user| w.user(*user).got.len() > 50_000));
    users
}

fn warm(links: usize) -> World {
    let setup = Setup {
        warm: 4,
        ..Setup::default()
    };
    World::met(links, setup)
}

/// Stops the server as its driver does; returns the time taken.
fn stop_server(w: &mut World) -> Duration {
    let start = w.now;
    w.drain_server();
    let until = w.now + w.server().drain_time();
    w.run_until(|w| w.now >= until || w.server().is_drained());
    w.close_server();
    let until = w.now + Duration::from_millis(2_100);
    w.run_until(|w| w.now >= until || w.server_conns() == 0);
    w.kill_server();
    w.now.saturating_since(start)
}

/// Users learn of a stop at once, even if many packets that tell them are lost: in 20 tries each connection ends
/// within 2 s after the drain time, or by the last RST, which is sent then and arrives a little later.
#[test]
fn users_hear_of_a_stop_though_packets_are_lost() {
    for (links, loss, try_) in (0..20).flat_map(|n| [(1, 0.3, n), (2, 0.3, n)]) {
        let mut w = warm(links);
        let users = downloads(&mut w, 5);
        w.run_for(Duration::from_millis(7 * try_));
        w.links.iter_mut().for_each(|link| link.loss = loss);
        let until = w.now + w.server().drain_time();
        w.drain_server();
        w.run_until(|w| w.now >= until);
        w.close_server();
        let closed = w.now;
        w.run_until(|w| users.iter().all(|user| w.user(*user).closed));
        let took = w.now.saturating_since(closed);
        assert!(
            took < Duration::from_millis(2_100),
            "{links} links, try {try_}: {took:?}"
        );
        assert!(
            users.iter().all(|user| w.user(*user).reset),
            "none looks whole"
        );
    }
}

/// Without loss a stop takes a round trip after the drain time.
#[test]
fn a_stop_takes_as_long_as_the_drain() {
    let mut w = warm(2);
    let users = downloads(&mut w, 5);
    let took = stop_server(&mut w);
    assert!(users.iter().all(|user| w.user(*user).closed));
    let drain = Duration::from_secs(1);
    assert!(
        (drain..drain + Duration::from_millis(500)).contains(&took),
        "{took:?}"
    );
    // Without users there is nothing to wait for.
    let mut idle = warm(2);
    let took = stop_server(&mut idle);
    assert!(took < Duration::from_millis(500), "{took:?}");
}

/// A transfer that ends within the drain time is complete.
#[test]
fn a_short_transfer_ends_before_the_server_does() {
    let mut w = warm(2);
    w.content(CONTENT, Content::Sends(vec![7; 400_000], true));
    let user = w.open(CONTENT, b"GET /", true);
    w.run_until(|w| w.user(user).got.len() > 10_000);
    let took = stop_server(&mut w);
    assert!(w.user(user).got.len() == 400_000 && !w.user(user).reset);
    assert!(took < Duration::from_millis(950), "{took:?}");
}

/// A stopping server refuses the box, and closes its idle connections: the next user's connection is not opened
/// there. Without another server, connections are forwarded.
#[test]
fn new_connections_do_not_go_to_a_server_that_stops() {
    let mut w = warm(2);
    let users = downloads(&mut w, 1);
    assert!(w.server().waiting() > 0, "nothing waits");
    w.notices.clear();
    w.drain_server();
    w.run_for(Duration::from_millis(300));
    assert_eq!(w.server().waiting(), 0);
    let attempts = w.server_downstream().attempts.len();
    let start = w.now;
    let user = w.open("198.51.100.9:80", b"hello", false);
    w.run_until(|w| w.user(user).closed);
    assert!(w.now.saturating_since(start) < Duration::from_secs(1));
    assert_eq!(w.server_downstream().attempts.len(), attempts);
    let stops = |w: &World| {
        w.notices
            .iter()
            .any(|(_, n)| *n == Notice::Intercept(false))
    };
    w.run_until(|w| stops(w));
    assert!(!w.user(users[0]).closed, "it has time to end");
}

/// Short transfers of a stopping box complete, and others are reset. The server learns of it despite packet loss,
/// so that destinations are not kept waiting.
#[test]
fn a_box_that_is_stopped_ends_what_it_has() {
    for try_ in 0..20 {
        let mut w = warm(2);
        let users = downloads(&mut w, 3);
        w.content("198.51.100.2:80", Content::Sends(vec![7; 100_000], true));
        let short = w.open("198.51.100.2:80", b"GET /", false);
        w.run_until(|w| w.user(short).got.len() > 1_000);
        w.drain_box();
        let until = w.now + w.core.drain_time();
        let on = Request::Proxy { on: true };
        let answer = w.core.control(w.now, &mut w.boxed.stack, on);
        assert_eq!(answer, Answer::Wrong(STOPPING.to_owned()));
        w.run_until(|w| w.now >= until || w.core.is_drained());
        assert!(!w.core.wants_interception());
        assert_eq!(w.user(short).got.len(), 100_000);
        w.run_for(Duration::from_millis(7 * try_));
        w.links.iter_mut().for_each(|link| link.loss = 0.3);
        w.close_box();
        let closed = w.now;
        w.run_for(Duration::ZERO);
        assert!(users.iter().all(|user| w.user(*user).reset));
        w.run_until(|w| w.server().connections() == 0);
        let took = w.now.saturating_since(closed);
        assert!(took < Duration::from_secs(2), "try {try_}: {took:?}");
    }
}
