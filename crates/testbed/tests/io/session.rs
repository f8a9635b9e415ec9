//! The example of a session of several streams between two hosts, over two links.

use std::collections::BTreeMap;
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

/// Time for which the example sends frames.
const SPAN: Duration = Duration::from_secs(3);
/// Number of I frames, and of P and B frames, that it sends in this time.
const FRAMES: (usize, usize) = (7, 68);

/// Runs sender and receiver of the example. Returns the frames that arrived by stream, and the bytes that the sender
/// sent over each link, which carries 8 Mb/s.
fn run() -> (BTreeMap<u32, video::Frames>, [u64; 2]) {
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
    let sent = [1, 2].map(|n| world.carried("client", &format!("wan{n}"))[1]);
    (received, sent)
}

/// Every frame arrives, in its place: the receiver finds each by the length of the one before. Bulk data and both
/// links take part.
#[test]
#[ignore = "network"]
fn the_example_sends_three_streams_over_two_links() {
    let (received, sent) = run();
    let frames = |stream: u32| received[&stream].delays.len();
    assert_eq!((frames(0), frames(1)), FRAMES);
    assert!(frames(2) > 0, "no bulk");
    // More than the handshakes of a subflow and of the session.
    assert!(sent.iter().all(|bytes| *bytes > 20_000), "{sent:?}");
}

mod soak {
    use super::*;

    #[test]
    #[ignore = "soak"]
    fn bulk_data_takes_what_the_frames_leave_and_they_are_earlier() {
        let (received, sent) = run();
        let frames = |stream: u32| received[&stream].delays.len();
        assert_eq!((frames(0), frames(1)), FRAMES);
        // The links carry 6 MB in this time, of which the frames have 1.5 MB.
        assert!(frames(2) * 16_000 > 500_000, "{} of bulk", frames(2));
        assert!(sent.iter().all(|bytes| *bytes > 500_000), "{sent:?}");
        let [important, _, bulk] = [0, 1, 2].map(|stream| received[&stream].mean());
        assert!(important < bulk, "I frames {important:?}, bulk {bulk:?}");
    }
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
