//! SIGTERM: box and server end in order, and nobody is kept waiting.

use std::time::{Duration, Instant};

use braid_testbed::Role;
use rustix::process::{Pid, Signal, kill_process};

use super::control::status;
use super::fixture::{Download, Fixture, Judge, render_changed};

/// The beginning of curl's error about a download that took too long.
const TIMED_OUT: &str = "curl: (28)";
/// Longest time that a user waits for the end of a connection that was cut off.
const END: Duration = Duration::from_secs(3);

fn terminate(bed: &mut Fixture, host: &str) {
    let pid = bed.testbed.pid(host).expect("it runs");
    let pid = Pid::from_raw(pid as i32).expect("a process id");
    kill_process(pid, Signal::TERM).expect("it runs");
}

/// Starts downloads that take longer than a stopping server permits.
fn begin(bed: &mut Fixture) -> Vec<Download> {
    bed.slow_down();
    let _ = bed.offer("large", 10_000_000);
    let downloads: Vec<_> = (0..10).map(|_| bed.curl("large")).collect();
    bed.wait_for("downloads to get going", |_| {
        downloads.iter().all(|d| d.bytes() > 20_000)
    });
    downloads
}

/// A server is stopped under load over links that lose packets: its users learn of it from the box.
fn server_stops(bed: &mut Fixture, judge: Judge) {
    let downloads = begin(bed);
    for link in ["link1", "link2"] {
        bed.set_link(link, "loss=30%");
    }
    terminate(bed, "server");
    let stopped = Instant::now();
    bed.wait_for("the server to end", |bed| {
        bed.testbed.pid("server").is_none()
    });
    let ended = stopped.elapsed();
    for download in downloads {
        let (well, said) = download.end();
        assert!(!well && !said.starts_with(TIMED_OUT), "{said}");
    }
    let heard = stopped.elapsed();
    if judge == Judge::Clock {
        // The grace period for transfers comes before.
        assert!(
            heard < END + Duration::from_secs(1),
            "heard after {heard:?}"
        );
        assert!(
            ended < END + Duration::from_secs(2),
            "ended after {ended:?}"
        );
    }
    for link in ["link1", "link2"] {
        bed.set_link(link, "loss=0%");
    }
    bed.release();
    bed.start("server");
    bed.wait_for_interception();
    bed.fetch(100_000);
}

#[test]
#[ignore = "network"]
fn users_hear_that_the_server_stops() {
    let mut bed = Fixture::up();
    server_stops(&mut bed, Judge::Service);
}

/// Users of downloads under way see a reset and no end that looks complete; nothing is left.
#[test]
#[ignore = "network"]
fn users_hear_that_the_box_stops() {
    let mut bed = Fixture::up();
    let downloads = begin(&mut bed);
    terminate(&mut bed, "box");
    bed.wait_for("the box to end", |bed| bed.testbed.pid("box").is_none());
    for download in downloads {
        let (well, said) = download.end();
        assert!(!well && !said.starts_with(TIMED_OUT), "{said}");
    }
    bed.wait_for("the server to have nothing of it", |bed| {
        status(bed, "server").connections_total == 0
    });
    let rules = bed.print("box", "nft", &["list", "ruleset"]);
    assert!(!rules.contains("braid"), "{rules}");
    bed.release();
    bed.start("box");
    bed.wait_for_interception();
    bed.expect_both_links();
}

/// Connections under way have the configured time, and a second signal ends that.
#[test]
#[ignore = "network"]
fn a_second_signal_ends_the_time_to_drain() {
    let patient = |text: String| format!("timeouts.drain = \"10min\"\n{text}");
    for (role, host) in [(Role::Box, "box"), (Role::Server, "server")] {
        let mut bed = Fixture::up_with(render_changed(role, patient));
        let downloads = begin(&mut bed);
        let before: u64 = downloads.iter().map(Download::bytes).sum();
        terminate(&mut bed, host);
        bed.wait_for("downloads to go on", |_| {
            downloads.iter().map(Download::bytes).sum::<u64>() > before + 1_000_000
        });
        terminate(&mut bed, host);
        bed.wait_for("the process to end", |bed| bed.testbed.pid(host).is_none());
        for download in downloads {
            let (well, said) = download.end();
            assert!(!well && !said.starts_with(TIMED_OUT), "{said}");
        }
    }
}

mod soak {
    use super::*;

    #[test]
    #[ignore = "soak"]
    fn a_server_is_restarted_twenty_times_under_load() {
        let mut bed = Fixture::up();
        for _ in 0..20 {
            server_stops(&mut bed, Judge::Clock);
        }
    }
}
