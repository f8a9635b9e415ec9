//! Modes of flows in the tunnel, which a rule of the box sets for both directions.

use core::time::Duration;
use std::collections::BTreeSet;

use braid_proxy::tunnel_status::TunnelStatus;
use braid_sim::NodeId;
use braid_sim::transfer::PathSettings;
use braid_wire::Instant;

use crate::support::{dark, link, millis, secs};
use crate::tunnel_load::{Net, Talker};

/// Returns two links whose one-way delays differ by 10 ms, so that a packet on the slower one comes 30 ms after the
/// packet before it on the faster one.
fn links() -> Vec<PathSettings> {
    vec![link(20, 30), link(10, 50)]
}

/// Returns a net with a call by this rule. Nothing in its packets is urgent.
fn calling(rule: &str) -> Net {
    let rule = format!("[[rule]]\nport = 7000\n{rule}");
    let mut net = Net::with_second_link(links(), &rule);
    net.world.advance(secs(2));
    net.talk(true, millis(70));
    net.world.advance(secs(3));
    net
}

/// Returns the numbers of packets that came at an end of the call, by the time of arrival. None may come twice.
fn arrivals(net: &Net, end: NodeId) -> Vec<Instant> {
    let talker: &Talker = net.world.node(end);
    let sent: BTreeSet<_> = talker.came.iter().map(|(sent_at, _)| *sent_at).collect();
    assert_eq!(sent.len(), talker.came.len(), "a packet came twice");
    talker.came.iter().map(|(at, way)| *at + *way).collect()
}

/// Runs for `time`. Returns the longest time in it without a packet, at the caller and at the other end.
fn longest_gaps(net: &mut Net, time: Duration) -> [Duration; 2] {
    let start = net.world.now();
    net.world.advance(time);
    let end = net.world.now();
    [net.caller, net.called].map(|of| {
        let times = arrivals(net, of);
        let last_before = times.iter().rposition(|at| *at < start).unwrap();
        let mut times = times[last_before..].to_vec();
        times.push(end);
        let gaps = times.windows(2).map(|w| w[1].saturating_since(w[0]));
        gaps.max().unwrap()
    })
}

/// Returns urgency and mode of the flow to a destination.
fn treatment(status: &TunnelStatus, destination: &str) -> (Option<u8>, Option<String>) {
    let mut flows = status.flows.iter();
    let flow = flows.find(|flow| flow.destination == destination).unwrap();
    (flow.urgency, flow.steering.clone())
}

#[test]
fn a_link_that_goes_dark_under_a_call_leaves_a_gap_by_the_mode() {
    for (mode, longest) in [("redundant", millis(40)), ("fastest", millis(250))] {
        for dying in 0..2 {
            let mut net = calling(&format!("urgency = 1\nmode = {mode:?}"));
            let (up, down) = net.links[dying];
            for works in [false, true] {
                let path = links().remove(dying);
                let path = if works { path } else { *dark(path) };
                net.world.set_link(up, path.up);
                net.world.set_link(down, path.down);
                let gaps = longest_gaps(&mut net, secs(3));
                assert!(
                    gaps.iter().all(|gap| *gap <= longest),
                    "{mode}, link {dying} works: {works}: {gaps:?}"
                );
            }
        }
    }
}

/// The server knows no rules. It sends the answers as the box says, although nothing in them is urgent.
#[test]
fn the_rule_of_the_box_holds_at_the_server_too() {
    let default = Some("aggregate".to_owned());
    for (rule, urgency, mode) in [
        ("urgency = 1\nmode = \"redundant\"", 1, "redundant"),
        ("urgency = 5\nmode = \"single\"", 5, "single"),
        ("mode = \"fastest\"", 3, "fastest"),
        // Copies are for urgent flows.
        ("mode = \"redundant\"", 3, "aggregate"),
        ("urgency = 6", 6, "aggregate"),
    ] {
        let mut net = calling(rule);
        for status in [net.at_box(), net.at_server()] {
            let call = treatment(&status, "198.51.100.1:7000");
            assert_eq!(call, (Some(urgency), Some(mode.to_owned())), "{rule}");
            // No rule is for DNS.
            let look_up = treatment(&status, "198.51.101.1:53");
            assert_eq!(look_up, (Some(1), default.clone()), "{rule}");
        }
    }
}

/// With copies each packet crosses both links, and with `single` all take the first one, in both directions.
#[test]
fn links_carry_what_the_mode_gives_them() {
    for (rule, least_share, most_share) in [
        ("urgency = 1\nmode = \"redundant\"", 0.45, 0.55),
        ("mode = \"single\"", 0.0, 0.0),
        ("mode = \"fastest\"", 0.0, 0.1),
    ] {
        let mut net = calling(rule);
        for (status, second) in [(net.at_box(), "link1"), (net.at_server(), "1")] {
            let to = "198.51.100.1:7000";
            let flow = status.flows.iter().find(|f| f.destination == to).unwrap();
            let path = flow.paths.iter().find(|path| path.name == second);
            let share = path.map_or(0.0, |path| path.share);
            assert!(
                (least_share..=most_share).contains(&share),
                "{rule}: {share} on {second}"
            );
        }
    }
}
