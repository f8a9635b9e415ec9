//! The example of a session of several streams between two hosts, over two links.

use std::net::SocketAddr;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use crate::engine::two_links;

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
    let received = thread::scope(|scope| {
        let world = &world;
        let receiving = scope.spawn(move || {
            world.inside("server", || {
                let on_ready = || ready.send(()).unwrap();
                video::receive(address, on_ready).map_err(|e| e.to_string())
            })
        });
        listens.recv().expect("the receiver listens");
        let sent = world.inside("client", || {
            video::send(address, &["wan1", "wan2"], SPAN).map_err(|e| e.to_string())
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
