//! Downloads through box and server when nothing breaks.

use braid_testbed::Role;

use super::fixture::{Fixture, bulk, render_changed};

/// Returns sizes from 1 kB to 5 MB, evenly on a logarithmic scale.
fn sizes(count: u32) -> impl Iterator<Item = usize> {
    (0..count).map(move |i| {
        let exponent = f64::from(i) / f64::from(count - 1);
        (1e3 * 5000f64.powf(exponent)) as usize
    })
}

fn has_shortcut(bed: &Fixture) -> bool {
    let tables = bed.print("box", "nft", &["list", "tables", "netdev"]);
    tables.contains("shortcut")
}

#[test]
#[ignore = "network"]
fn one_download_uses_both_links() {
    let mut bed = Fixture::up();
    assert!(has_shortcut(&bed));
    bed.narrow();
    bed.fetch(1_000);
    let before = bed.carried();
    bed.fetch(bulk());
    bed.expect_carried(before, bulk() as u64 * 15 / 100);
}

#[test]
#[ignore = "network"]
fn a_box_that_is_to_route_its_packets_does() {
    let mut bed = Fixture::up_with(render_changed(Role::Box, |text| {
        format!("shortcut = false\n{text}")
    }));
    assert!(!has_shortcut(&bed));
    bed.narrow();
    let expected = bed.offer("routed", 10_000_000);
    for content in [bed.v4("content"), bed.v6("content")] {
        let before = bed.carried();
        bed.curl_from(content, "routed").expect_bytes(&expected);
        bed.expect_carried(before, 1_000_000);
    }
}

#[test]
#[ignore = "network"]
fn two_hundred_downloads_at_once() {
    let bed = Fixture::up();
    let offered: Vec<_> = sizes(20)
        .enumerate()
        .map(|(i, size)| (format!("file{i}"), bed.offer(&format!("file{i}"), size)))
        .collect();
    let downloads: Vec<_> = (0..200)
        .map(|i| (bed.curl(&offered[i % 20].0), &offered[i % 20].1))
        .collect();
    for (download, expected) in downloads {
        download.expect_bytes(expected);
    }
}

#[test]
#[ignore = "network"]
fn version_six_is_joined_too() {
    let mut bed = Fixture::up();
    bed.narrow();
    let expected = bed.offer("six", 10_000_000);
    let before = bed.carried();
    bed.curl_from(bed.v6("content"), "six")
        .expect_bytes(&expected);
    bed.expect_carried(before, 1_000_000);
}

#[test]
#[ignore = "network"]
fn half_close_is_kept_and_both_directions_are_exact() {
    let bed = Fixture::up();
    let address = format!("{}:7002", bed.v4("content"));
    let there = [
        "--send", "8000000", "--seed", "1", "--verify", "2", "--expect", "3000000",
    ];
    let here = [
        "--send", "3000000", "--seed", "2", "--verify", "1", "--expect", "8000000",
    ];
    let listen = ["listen", &address, "--transport", "tcp"];
    let mut listening = bed.kernel_peer("content", &[&listen[..], &there[..]].concat());
    let connect = ["connect", &address, "--transport", "tcp"];
    // The smaller direction ends long before the other.
    let mut connected = bed.kernel_peer("user", &[&connect[..], &here[..]].concat());
    for peer in [&mut connected, &mut listening] {
        let output = peer.wait();
        let report = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{report}");
    }
}
