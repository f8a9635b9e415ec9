//! Programs that use the box as a SOCKS5 proxy, with hints about their connections in the user name.

use braid_proxy::status::{ConnStatus, SizeFrom};
use braid_testbed::Role;

use super::control::status;
use super::fixture::{Download, Fixture, bulk, render_changed, stderr};

/// A box that listens on all its addresses.
fn up() -> Fixture {
    let render = render_changed(Role::Box, |text| {
        format!("socks = \"0.0.0.0:1080\"\n{text}")
    });
    Fixture::up_with(render)
}

/// Returns the box's address as a proxy for a program with these hints.
fn proxy(bed: &Fixture, hints: &str) -> String {
    format!("socks5h://{hints}:x@{}:1080/", bed.v4("box"))
}

fn fetch(bed: &Fixture, hints: &str, url: &str) -> Download {
    bed.curl_by(&["--proxy", &proxy(bed, hints)], url)
}

/// Returns the only connection of box or server that is not idle.
fn only(bed: &Fixture, role: &str) -> ConnStatus {
    let mut connections = status(bed, role).connections;
    connections.retain(|conn| conn.destination.is_some());
    assert_eq!(connections.len(), 1, "{connections:?}");
    connections.remove(0)
}

#[test]
#[ignore = "network"]
fn curl_says_what_it_fetches_and_both_ends_know() {
    let mut bed = up();
    bed.slow_down();
    let expected = bed.offer("large", bulk());
    let url = format!("http://{}/large", bed.v4("content"));
    let size = bulk() as u64;
    let hints = format!("size={size},urgency=1,deadline=10s,strategy=redundant");
    let download = fetch(&bed, &hints, &url);
    bed.wait_for("the download to get going", |_| {
        download.bytes() > 2_000_000
    });
    for role in ["box", "server"] {
        let conn = only(&bed, role);
        let known = (conn.size, conn.size_from);
        assert_eq!(known, (Some(size), SizeFrom::Declared), "{role}");
        assert_eq!((conn.urgency, &*conn.strategy), (1, "redundant"), "{role}");
        let to = format!("{}:80", bed.v4("content"));
        assert_eq!(conn.destination, Some(to), "{role}");
    }
    bed.release();
    download.expect_bytes(&expected);
}

#[test]
#[ignore = "network"]
fn whatever_hints_say_all_bytes_arrive() {
    let bed = up();
    let expected = bed.offer("some", 300_000);
    let url = format!("http://{}/some", bed.v4("content"));
    let bad = [
        "size=0",
        "size=-1",
        "size=1",
        "size=99999999999999999999",
        "urgency=8",
        "urgency=-1",
        "deadline=soon",
        "strategy=none",
        "size=,,=,urgency",
        "me",
    ];
    for hints in bad {
        fetch(&bed, hints, &url).expect_bytes(&expected);
    }
    let boxed = status(&bed, "box");
    // All but a size of 1, which only costs time; three in the last but one.
    assert_eq!(boxed.counters["bad_hints"], 8 + 3);
    assert_eq!(boxed.counters["connected"], bad.len() as u64);
}

#[test]
#[ignore = "network"]
fn curl_hears_why_a_name_is_not_connected() {
    let bed = up();
    // The server looks the name up, and its rules forbid the address.
    let (well, said) = fetch(&bed, "urgency=1", "http://localhost/some").end();
    assert!(!well && said.contains("(2)"), "{said}");
    assert_eq!(status(&bed, "box").counters["destination_forbidden"], 1);
}

#[test]
#[ignore = "network"]
fn nobody_outside_is_served() {
    let bed = up();
    bed.offer("some", 1_000);
    let url = format!("http://{}/some", bed.v4("content"));
    let link = bed.v4_of("box", 1);
    let proxy = format!("socks5h://{link}:1080/");
    let stranger = bed
        .exec("internet", "curl")
        .args(["-q", "-sS", "--max-time", "2", "--proxy", &proxy, &url])
        .output()
        .expect("curl runs");
    // The host gets no answer at all.
    assert_eq!(stranger.status.code(), Some(28), "{}", stderr(&stranger));
    assert_eq!(status(&bed, "box").counters["accepted"], 0);
}
