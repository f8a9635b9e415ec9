//! Requests for a tunnel between a box and a server without a driver for datagrams.

use core::time::Duration;

use crate::world::{Setup, World, box_key};
use braid_proxy::app::{Core, TunnelChange, TunnelDown};
use braid_proxy::config::Datagrams;
use braid_secure::keys::PrivateKey;

/// Lets the box of a world have a tunnel, and runs for 3 s.
fn enabled(mut w: World) -> World {
    w.core.enable_tunnel();
    w.run_for(Duration::from_secs(3));
    w
}

fn state(w: &World) -> (String, Option<String>) {
    let status = w.box_status().tunnel.unwrap();
    (status.state, status.reason)
}

fn enable_server(w: &mut World) {
    let (_, core) = w.server.as_mut().unwrap();
    core.enable_tunnel();
}

#[test]
fn a_box_asks_once_its_driver_can_carry_datagrams() {
    let mut w = World::ready(2, Setup::default());
    enable_server(&mut w);
    w.run_for(Duration::from_secs(3));
    assert_eq!(state(&w).0, "off");
    assert_eq!(w.server_status().tunnel.unwrap().opened, 0);
    let w = enabled(w);
    let server = w.server_status().tunnel.unwrap();
    // No datagram crosses this world, so the box asks again and again for the same session.
    assert_eq!((server.sessions_total, server.opened), (1, 1));
    assert!(server.rekeyed > 0);
    let boxed = w.box_status().tunnel.unwrap();
    assert_eq!(boxed.sessions[0].v4, server.sessions[0].v4);
    assert_eq!(boxed.sessions[0].epoch, server.sessions[0].epoch);
    assert_eq!(boxed.server.as_deref(), Some("server1"));
    // The connections of the requests are gone, and count for nobody.
    assert_eq!(w.server().connections(), 0);
    assert_eq!(w.server().counters().garbage, 0);
    assert_eq!(w.server().counters().handshake_aborted, 0);
}

#[test]
fn without_an_answer_the_box_says_why_it_has_no_tunnel() {
    let mut w = World::ready(2, Setup::default());
    enable_server(&mut w);
    let mut w = enabled(w);
    w.run_for(Duration::from_secs(4));
    let reason = TunnelDown::Unanswered;
    assert_eq!(state(&w), ("down".to_owned(), Some(reason.to_string())));
    assert_eq!(
        w.core.poll_tunnel_change(),
        Some(TunnelChange::Down { reason })
    );
    assert_eq!(w.core.poll_tunnel_change(), None);
}

#[test]
fn a_server_whose_driver_cannot_carry_datagrams_refuses() {
    let w = enabled(World::ready(2, Setup::default()));
    let reason = TunnelDown::NotOffered.to_string();
    assert_eq!(state(&w).1, Some(reason));
    assert_eq!(w.server_status().tunnel.unwrap().state, "off");
}

#[test]
fn plaintext_offers_no_tunnel() {
    let setup = Setup {
        clear: true,
        ..Setup::default()
    };
    let mut w = World::ready(2, setup);
    enable_server(&mut w);
    let w = enabled(w);
    let reason = TunnelDown::NotOffered.to_string();
    assert_eq!(state(&w).1, Some(reason));
    assert_eq!(w.server_status().tunnel.unwrap().opened, 0);
}

#[test]
fn the_setting_at_either_end_leaves_the_tunnel_out() {
    let without = "datagrams = \"forward\"\n";
    let at_box = Setup {
        boxed: without,
        ..Setup::default()
    };
    let at_server = Setup {
        server: without,
        ..Setup::default()
    };
    for (setup, expected) in [(at_box, "off"), (at_server, "down")] {
        let mut w = World::ready(2, setup);
        enable_server(&mut w);
        let w = enabled(w);
        assert_eq!(state(&w).0, expected);
        assert_eq!(w.server_status().tunnel.unwrap().opened, 0);
    }
}

#[test]
fn the_setting_holds_from_the_next_start_on() {
    let mut w = World::ready(2, Setup::default());
    let (changes, _) = w.reload_box(|config| config.datagrams = Datagrams::Forward);
    assert_eq!(changes.restart, ["datagrams"]);
}

#[test]
fn packets_are_forwarded_at_once_if_the_server_of_the_session_is_removed() {
    let mut w = World::ready(2, Setup::default());
    enable_server(&mut w);
    let mut w = enabled(w);
    assert_eq!(w.box_status().tunnel.unwrap().sessions_total, 1);
    assert_eq!(w.core.poll_tunnel_change(), None);
    let another = "203.0.113.99".parse().unwrap();
    w.reload_box(|config| config.servers[0].v4 = Some(another));
    let reason = TunnelDown::NoServer;
    assert_eq!(
        w.core.poll_tunnel_change(),
        Some(TunnelChange::Down { reason })
    );
    assert_eq!(w.box_status().tunnel.unwrap().sessions_total, 0);
}

#[test]
fn a_box_that_stops_asks_no_more_and_still_notices_silence() {
    let mut w = World::ready(2, Setup::default());
    enable_server(&mut w);
    let mut w = enabled(w);
    let before = w.server_status().tunnel.unwrap().rekeyed;
    assert_eq!(w.core.poll_tunnel_change(), None);
    w.drain_box();
    w.run_for(Duration::from_secs(20));
    assert_eq!(w.server_status().tunnel.unwrap().rekeyed, before);
    let reason = TunnelDown::Unanswered;
    assert_eq!(
        w.core.poll_tunnel_change(),
        Some(TunnelChange::Down { reason })
    );
}

#[test]
fn a_restarted_server_gives_the_same_addresses() {
    let mut w = World::ready(2, Setup::default());
    enable_server(&mut w);
    let mut w = enabled(w);
    let before = w.server_status().tunnel.unwrap().sessions[0].clone();
    w.kill_server();
    w.start_server();
    enable_server(&mut w);
    w.run_for(Duration::from_secs(10));
    let after = w.server_status().tunnel.unwrap();
    assert_eq!(after.opened, 1, "the server knows no session");
    assert_eq!(after.sessions[0].v4, before.v4);
}

#[test]
fn a_box_with_another_key_is_another_user() {
    let mut w = World::ready(2, Setup::default());
    enable_server(&mut w);
    let mut w = enabled(w);
    let before = w.server_status().tunnel.unwrap().sessions[0].clone();
    let key = PrivateKey::from_seed([77; 32]);
    let first = before.user.unwrap();
    w.set_users(&[(&first, box_key().public()), ("second", key.public())]);
    let (_, left) = w.reload_box(|config| config.key = key);
    assert_eq!(left, []);
    assert_eq!(w.box_status().tunnel.unwrap().sessions_total, 0);
    w.run_for(Duration::from_secs(10));
    let server = w.server_status().tunnel.unwrap();
    let of_user = |name: &str| {
        let mut sessions = server.sessions.iter();
        let found = sessions.find(|s| s.user.as_deref() == Some(name)).unwrap();
        found.v4
    };
    // The session of the former user ends with its silence; its address is for that user.
    assert_eq!((server.sessions_total, server.opened), (2, 2));
    assert_eq!(of_user(&first), before.v4);
    assert_ne!(of_user("second"), before.v4);
    let boxed = w.box_status().tunnel.unwrap();
    assert_eq!(boxed.sessions[0].v4, of_user("second"));
}

#[test]
fn a_session_that_is_replaced_while_in_use_is_counted() {
    let mut w = World::ready(2, Setup::default());
    enable_server(&mut w);
    let mut w = enabled(w);
    assert_eq!(w.server_status().tunnel.unwrap().contended, 0);
    // The box forgets its session, and opens another one as the same user.
    w.reload_box(|config| config.key = PrivateKey::from_seed([77; 32]));
    w.reload_box(|config| config.key = box_key());
    w.run_for(Duration::from_secs(5));
    let server = w.server_status().tunnel.unwrap();
    assert_eq!((server.sessions_total, server.opened), (1, 2));
    assert_eq!(server.contended, 1);
}
