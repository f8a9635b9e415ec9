//! Links that break during a transfer.

use braid_testbed::Role;

use super::fixture::{Download, Fixture, bulk, render_changed};

/// Starts a large download over slow links, and waits for 1 MB of it. It does not end before [`Fixture::release`].
pub fn under_way(bed: &mut Fixture) -> (Download, Vec<u8>) {
    bed.fetch(1_000);
    bed.slow_down();
    let expected = bed.offer("large", bulk());
    let download = bed.curl("large");
    bed.wait_for("the download to get going", |_| {
        download.bytes() > 1_000_000
    });
    (download, expected)
}

/// Waits until the download has 1 MB more: it has survived the last step.
pub fn expect_progress(bed: &mut Fixture, download: &Download) {
    let before = download.bytes();
    bed.wait_for("the download to go on", |_| {
        download.bytes() > before + 1_000_000
    });
}

#[test]
#[ignore = "network"]
fn a_dark_link_does_not_end_a_download() {
    for link in ["link1", "link2"] {
        let mut bed = Fixture::up();
        let (download, expected) = under_way(&mut bed);
        bed.set_link(link, "down");
        expect_progress(&mut bed, &download);
        bed.release();
        download.expect_bytes(&expected);
        bed.set_link(link, "up");
        bed.expect_both_links();
    }
}

#[test]
#[ignore = "network"]
fn a_link_that_comes_back_is_used_by_the_same_download() {
    let mut bed = Fixture::up();
    let (download, expected) = under_way(&mut bed);
    bed.set_link("link2", "down");
    expect_progress(&mut bed, &download);
    bed.set_link("link2", "up");
    let before = bed.carried()[1];
    bed.wait_for("the link to be used again", |bed| {
        bed.carried()[1] > before + 500_000
    });
    bed.release();
    download.expect_bytes(&expected);
}

#[test]
#[ignore = "network"]
fn an_interface_that_goes_down_does_not_end_a_download() {
    let mut bed = Fixture::up();
    let (download, expected) = under_way(&mut bed);
    bed.run("box", "ip", &["link", "set", "link1", "down"]);
    expect_progress(&mut bed, &download);
    bed.release();
    download.expect_bytes(&expected);
}

#[test]
#[ignore = "network"]
fn an_address_that_goes_away_does_not_end_a_download() {
    let mut bed = Fixture::up();
    let (download, expected) = under_way(&mut bed);
    bed.run("box", "ip", &["address", "flush", "dev", "link2"]);
    expect_progress(&mut bed, &download);
    bed.release();
    download.expect_bytes(&expected);
}

/// Packets other than TCP leave over one link, and over the other when that one is dark. A missing answer is
/// noticed without waiting for the next probe.
#[test]
#[ignore = "network"]
fn datagrams_find_the_link_that_works() {
    for link in ["link1", "link2"] {
        let seldom = |text| format!("{text}\n[expert]\nidle_probe_interval = \"1h\"\n");
        let mut bed = Fixture::up_with(render_changed(Role::Box, seldom));
        let content = bed.v4("content").to_string();
        let pinged = |bed: &mut Fixture| {
            let mut ping = bed.exec("user", "ping");
            let ping = ping.args(["-n", "-c", "1", "-W", "1", &content]);
            ping.output().expect("ping runs").status.success()
        };
        bed.wait_for("a ping through", pinged);
        bed.set_link(link, "down");
        bed.wait_for("a ping round the dark link", pinged);
        bed.set_link(link, "up");
    }
}

/// A connection that is only forwarded stays on its link when new ones take another.
#[test]
#[ignore = "network"]
fn forwarded_connections_stay_on_their_link() {
    let forward_all = |text| {
        format!("bypass = [\"0.0.0.0/0\"]\n{text}\n[expert]\nidle_probe_interval = \"1s\"\n")
    };
    let mut bed = Fixture::up_with(render_changed(Role::Box, forward_all));
    let (download, expected) = under_way(&mut bed);
    assert!(bed.carried()[0] > 1_000_000, "the better link is link1");
    bed.set_link("link1", "delay=60ms");
    let small = bed.offer("small", 500_000);
    let mut moved = 0;
    bed.wait_for("new connections to take the other link", |bed| {
        let [_, before] = bed.carried();
        bed.curl("small").expect_bytes(&small);
        moved = bed.carried()[1];
        moved > before + 500_000
    });
    expect_progress(&mut bed, &download);
    bed.release();
    download.expect_bytes(&expected);
    assert!(bed.carried()[1] < moved + 1_000_000, "the old one moved");
}

/// A backup or metered link carries nothing of a download until no other works, and then all of it.
#[test]
#[ignore = "network"]
fn backup_and_metered_links_wait_until_they_are_needed() {
    for setting in ["backup = true", "metered = true"] {
        let hold_back = move |text: String| {
            let link2 = "interface = \"link2\"\n";
            text.replace(link2, &format!("{link2}{setting}\n"))
        };
        let mut bed = Fixture::up_with(render_changed(Role::Box, hold_back));
        bed.expect_spared(1, 4_000_000);
        let (download, expected) = under_way(&mut bed);
        bed.set_link("link1", "down");
        expect_progress(&mut bed, &download);
        bed.release();
        download.expect_bytes(&expected);
        let [_, needed] = bed.carried();
        assert!(
            needed > bulk() as u64 / 4,
            "{setting}: link2 carried {needed} bytes"
        );
    }
}
