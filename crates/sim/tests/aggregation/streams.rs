//! The two directions of a connection.

use braid_engine::CloseReason;
use braid_sim::aggregation::{Aggregation, Load};

use crate::support::{ending, millis, secs, start, two_links};

#[test]
fn the_end_of_one_direction_leaves_the_other_open() {
    let mut net = start(&two_links());
    let load = Load::Post {
        sends: 300_000,
        answer: 2_000_000,
    };
    let id = net.open(0, 0, load).unwrap();
    assert!(net.finish(secs(30)));
    let (user, content) = (net.at_user(id), net.at_content(id).unwrap());
    println!(
        "{user:?}\n{content:?}\n{:?}\n{:?}",
        crate::support::box_counters(&net),
        crate::support::server_counters(&net)
    );
    assert_eq!((content.received, user.received), (300_000, 2_000_000));
    // The content host answers only once it has seen the end.
    assert!(user.first_byte_at > content.complete_at);
    for end in [user, content] {
        assert_eq!(end.closed.unwrap().1, CloseReason::Finished);
    }
}

/// Returns the bytes buffered by the machines in between: (box, server).
fn buffered(net: &Aggregation) -> (usize, usize) {
    let (boxed, server) = (net.box_node(), net.server_node(0));
    let box_downstream = boxed.downstream().unwrap().stack().buffered();
    let server_downstream = server.downstream().unwrap().stack().buffered();
    let of_box = boxed.stack().unwrap().buffered() + box_downstream;
    (
        of_box,
        server.stack().unwrap().buffered() + server_downstream,
    )
}

#[test]
fn a_user_who_does_not_read_stops_the_sender_and_costs_little() {
    let mut net = start(&two_links());
    let size = 30_000_000;
    let id = net.open(0, 0, Load::Down(size)).unwrap();
    net.pause(id, true);
    let beside = net.open(0, 0, Load::Down(1_000_000)).unwrap();
    net.run_for(secs(20));
    assert!(net.duration(beside).is_some(), "others are not held up");
    let (sent, at_rest) = (net.at_content(id).unwrap().sent, buffered(&net));
    net.run_for(secs(20));
    assert_eq!(net.at_content(id).unwrap().sent, sent, "it has stopped");
    assert_eq!(buffered(&net), at_rest);
    // Each hop fills its windows, which grow with a reader: the first hop's most.
    assert!(at_rest.0 < 3 << 20, "{at_rest:?}");
    assert!(at_rest.1 < 5 << 20, "{at_rest:?}");
    assert!(sent < 12 << 20, "{sent} bytes are on the way");
    net.pause(id, false);
    assert!(net.finish(secs(60)));
    assert_eq!(net.at_user(id).received, size);
    // The last bytes are acknowledged.
    net.run_for(secs(1));
    assert_eq!(buffered(&net), (0, 0));
}

#[test]
fn a_user_who_resets_is_gone_everywhere() {
    let mut net = start(&two_links());
    let id = net.open(0, 0, Load::Down(30_000_000)).unwrap();
    net.run_for(secs(2));
    net.abort(id);
    net.run_for(millis(200));
    let (_, reason) = ending(&net, id).unwrap();
    assert_eq!(reason, CloseReason::Aborted);
    let content = net.at_content(id).unwrap();
    assert_eq!(content.closed.unwrap().1, CloseReason::Reset);
    assert_eq!(buffered(&net), (0, 0));
}
