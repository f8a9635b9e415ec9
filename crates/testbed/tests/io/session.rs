//! The example of a session of several streams between two hosts, over two links.

use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};

use crate::engine::two_links;
use crate::support::wait_for;

#[expect(dead_code, reason = "a program of its own has a `main`")]
#[path = "../../../linux/examples/video.rs"]
mod video;

/// Time for which the example sends frames: 75 of them, 7 of which are I frames.
const SPAN: Duration = Duration::from_secs(3);

#[test]
#[ignore = "network"]
fn the_example_sends_three_streams_by_urgency_over_two_links() {
    let world = two_links();
    for n in [1, 2] {
        let tbf = "tbf rate 8mbit burst 16k limit 64k";
        world.sh("client", &format!("tc qdisc add dev wan{n} root {tbf}"));
    }
    let address: SocketAddr = ([198, 51, 100, 1], 7000).into();
    let (ready, listens) = mpsc::channel();
    let stop = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    let received = thread::scope(|scope| {
        let (world, stop) = (&world, stop.as_fd());
        let receiving = scope.spawn(move || {
            world.inside("server", || {
                let on_ready = || ready.send(()).unwrap();
                video::receive(address, stop, on_ready).map_err(|e| e.to_string())
            })
        });
        listens.recv().expect("the receiver listens");
        let sent = world.inside("client", || {
            video::send(address, &["wan1", "wan2"], stop, SPAN).map_err(|e| e.to_string())
        });
        sent.unwrap();
        receiving.join().unwrap().unwrap()
    });
    let frames = |stream: u32| received[&stream].delays.len();
    assert_eq!((frames(0), frames(1)), (7, 68));
    // The links carry 2 MB in this time beside the frames' 1.5 MB, each of them more than the other's share.
    assert!(frames(2) * 16_000 > 500_000, "{} of bulk", frames(2));
    for n in [1, 2] {
        let [_, sent] = world.carried("client", &format!("wan{n}"));
        assert!(sent > 500_000, "{sent} bytes over wan{n}");
    }
    let [important, _, bulk] = [0, 1, 2].map(|stream| received[&stream].mean());
    assert!(important < bulk, "I frames {important:?}, bulk {bulk:?}");
}

/// A signal makes a descriptor readable.
#[test]
#[ignore = "network"]
fn the_example_removes_its_device_and_rules_after_a_signal() {
    let world = two_links();
    let left = || world.sh("server", "nft list ruleset; ip rule; ip -6 rule; ip link");
    let before = left();
    let (ready, listens) = mpsc::channel();
    let stop = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    thread::scope(|scope| {
        let (world, stop) = (&world, stop.as_fd());
        let receiving = scope.spawn(move || {
            world.inside("server", || {
                let on_ready = || ready.send(()).unwrap();
                let address = ([198, 51, 100, 1], 7000).into();
                video::receive(address, stop, on_ready).map_err(|e| e.to_string())
            })
        });
        listens.recv().expect("the receiver listens");
        let meanwhile = left();
        assert!(meanwhile.contains("braid-listen") && meanwhile.contains("7000"));
        rustix::io::write(stop, &1u64.to_ne_bytes()).unwrap();
        assert!(receiving.join().unwrap().unwrap().is_empty());
    });
    let seen = || format!("{}\n{before}", left());
    wait_for("device and rules are gone", seen, || {
        (left() == before).then_some(())
    });
}
