//! A box that stood still, and resources that silent boxes occupy at a server.

use core::time::Duration;
use std::cell::Cell;
use std::collections::BTreeSet;
use std::rc::Rc;

use crate::world::downstream::Content;
use crate::world::{CONTENT, Setup, Side, World};
use braid_wire::ip;
use braid_wire::tcp::{self, Flags};

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

fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

fn echoing(setup: Setup<'_>) -> World {
    let mut w = World::ready(2, setup);
    w.content(CONTENT, Content::Echoes);
    w
}

/// Makes every NAT forget its mappings once the switch is on. From then on, only connections whose SYN it has seen
/// pass, and MP_JOINs only where `joins`.
fn forget_at_switch(w: &mut World, joins: bool) -> Rc<Cell<bool>> {
    let switch = Rc::new(Cell::new(false));
    let forgets = Rc::clone(&switch);
    let mut known = BTreeSet::new();
    w.tamper = Some(Box::new(move |to_server, packet| {
        let (header, segment) = ip::Repr::parse(&packet[..]).unwrap();
        let (segment, _) = tcp::Repr::parse(segment).unwrap();
        let inside = match to_server {
            true => (header.src, segment.src_port),
            false => (header.dst, segment.dst_port),
        };
        let refused = !joins && segment.options.join().is_some();
        if forgets.get() && to_server && segment.flags.contains(Flags::SYN) && !refused {
            known.insert(inside);
        }
        !forgets.get() || known.contains(&inside)
    }));
    switch
}

/// After a suspend of minutes, in which its clock stood still, the box finds out at once what peers and NATs have
/// forgotten: the open connection continues, and no user gets an idle connection from before.
#[test]
fn a_box_that_was_suspended_goes_on_at_once() {
    let mut w = echoing(WARM);
    let switch = forget_at_switch(&mut w, true);
    let other = w.open(CONTENT, b"other", true);
    let user = w.open(CONTENT, b"hello", false);
    w.run_until(|w| w.user(user).got == b"hello" && w.user(other).closed);
    w.run_for(secs(2));
    assert!(w.server().waiting() > 0);
    switch.set(true);
    w.stand_still(Side::Box, secs(180));
    let now = w.now;
    w.core.on_resumed(now, &mut w.boxed.stack);
    w.run_for(secs(5));
    w.boxed.downstream.send(user, b" again", false);
    w.run_until(|w| w.user(user).got == b"hello again");
    let took = w.now.saturating_since(now + secs(5));
    assert!(took < Duration::from_millis(200), "{took:?}");
    let fresh = w.open(CONTENT, b"fresh", true);
    let asked = w.now;
    w.run_until(|w| w.user(fresh).got == b"fresh");
    let took = w.now.saturating_since(asked);
    assert!(took < Duration::from_millis(200), "{took:?}");
    assert_eq!(w.core.counters().idle_failed, 0);
    assert!(!w.user(user).closed);
}

/// A server at its limit, partly because of boxes that are gone, serves those that are present.
#[test]
fn silent_boxes_make_room_at_the_server() {
    for server in ["limits = { connections = 3 }", "limits = { per_user = 3 }"] {
        let mut w = echoing(Setup {
            warm: 0,
            server,
            ..WARM
        });
        let switch = forget_at_switch(&mut w, false);
        let gone: Vec<_> = (0..3).map(|_| w.open(CONTENT, b"x", false)).collect();
        w.run_until(|w| gone.iter().all(|user| w.user(*user).got == b"x"));
        let full = w.open(CONTENT, b"x", false);
        w.run_until(|w| w.user(full).closed);
        // As if the box were another one: the destination sends, and nobody acknowledges.
        switch.set(true);
        let contents: Vec<_> = w.server_downstream().streams.keys().copied().collect();
        for content in contents {
            w.server_downstream().send(content, b"y", false);
        }
        w.run_for(secs(40));
        let one = w.open(CONTENT, b"one", false);
        w.run_until(|w| w.user(one).got == b"one" || w.user(one).closed);
        assert_eq!(w.user(one).got, b"one", "{server}");
    }
}
