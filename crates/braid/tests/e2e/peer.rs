//! A user's view of a server or a destination that refuses, and of connections that the box does not aggregate.

use std::time::{Duration, Instant};

use braid_proxy::verdict::Health;
use braid_testbed::Role;

use super::control::status;
use super::fixture::{Fixture, render_changed};

#[test]
#[ignore = "network"]
fn a_wrong_key_serves_nobody_and_breaks_nothing() {
    let render = render_changed(Role::Server, |text| {
        let wrong = "key = \"Gb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=\"";
        let lines = text.lines().map(|line| {
            if line.starts_with("key = ") {
                wrong
            } else {
                line
            }
        });
        lines.collect::<Vec<_>>().join("\n")
    });
    let mut bed = Fixture::up_idle(render);
    bed.start("server");
    bed.start("box");
    // The box finds out by itself, and reports it; users are forwarded.
    bed.wait_for("the verdict that no server can be used", |bed| {
        let verdict = status(bed, "box").verdict;
        verdict.reasons.iter().any(|r| r.code == "key-refused") && verdict.health == Health::Down
    });
    for _ in 0..3 {
        bed.fetch(1_000);
    }
    assert_eq!(status(&bed, "server").counters["connected"], 0);
    for host in ["box", "server"] {
        assert!(
            bed.testbed.pid(host).is_some(),
            "{host} ended:\n{}",
            bed.log(host)
        );
    }
}

/// Fails unless a destination that refuses is seen as a reset. Returns the time that took.
fn expect_reset() -> Duration {
    let bed = Fixture::up();
    bed.fetch(1_000);
    let start = Instant::now();
    let address = format!("{}:9", bed.v4("content"));
    let mut peer = bed.kernel_peer(
        "user",
        &["connect", &address, "--transport", "tcp", "--expect", "1"],
    );
    let output = peer.wait();
    let report = String::from_utf8_lossy(&output.stdout);
    let said = format!("{report}{}", String::from_utf8_lossy(&output.stderr));
    assert!(!output.status.success());
    assert!(said.contains("reset") || said.contains("refused"), "{said}");
    start.elapsed()
}

#[test]
#[ignore = "network"]
fn a_refused_destination_is_reset() {
    expect_reset();
}

/// Lets a host with kernel Multipath TCP send and receive; returns whether each end fell back.
fn exchange_by_multipath(bed: &Fixture) -> [bool; 2] {
    let address = format!("{}:7003", bed.v4("content"));
    let there = [
        "--verify", "1", "--expect", "100000", "--send", "10000000", "--seed", "2",
    ];
    let here = [
        "--send", "100000", "--seed", "1", "--verify", "2", "--expect", "10000000",
    ];
    let mut listening = bed.kernel_peer("content", &[&["listen", &address], &there[..]].concat());
    let mut connected = bed.kernel_peer("user", &[&["connect", &address], &here[..]].concat());
    [&mut connected, &mut listening].map(|peer| {
        let output = peer.wait();
        let report = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{report}");
        report.contains("\"fallback\":true")
    })
}

#[test]
#[ignore = "network"]
fn connections_that_are_multipath_already_are_only_forwarded() {
    let bed = Fixture::up();
    assert_eq!(exchange_by_multipath(&bed), [false, false], "it was joined");
    assert_eq!(status(&bed, "box").counters["accepted"], 0);
}

#[test]
#[ignore = "network"]
fn or_joined_where_the_box_is_told_so() {
    let proxy = |text| format!("mptcp_hosts = \"proxy\"\n{text}");
    let mut bed = Fixture::up_with(render_changed(Role::Box, proxy));
    bed.narrow();
    let before = bed.carried();
    assert_eq!(
        exchange_by_multipath(&bed),
        [true, true],
        "it was forwarded"
    );
    bed.expect_carried(before, 1_000_000);
    assert_eq!(status(&bed, "box").counters["accepted"], 1);
}

mod soak {
    use super::*;

    #[test]
    #[ignore = "soak"]
    fn a_refused_destination_is_reset_at_once() {
        let took = expect_reset();
        assert!(took < Duration::from_secs(5), "it took {took:?}");
    }
}
