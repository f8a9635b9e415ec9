//! Links that break during a transfer.

use braid_linux::testbed::Role;

use super::bed::{Bed, Download, render_changed};

const SIZE: usize = 40_000_000;

/// A large download of which some has come.
fn under_way(bed: &mut Bed) -> (Download, Vec<u8>) {
    bed.fetch(1_000);
    let expected = bed.offer("large", SIZE);
    let download = bed.curl("large");
    bed.wait_for("the download to get going", |_| {
        download.bytes() > 4_000_000
    });
    (download, expected)
}

#[test]
#[ignore = "network"]
fn a_dark_link_does_not_end_a_download() {
    for link in ["link1", "link2"] {
        let mut bed = Bed::up();
        let (download, expected) = under_way(&mut bed);
        bed.set_link(link, "down");
        download.expect_bytes(&expected);
        bed.set_link(link, "up");
        bed.expect_both_links();
    }
}

#[test]
#[ignore = "network"]
fn a_link_that_comes_back_is_used_by_the_same_download() {
    let mut bed = Bed::up();
    bed.set_link("link1", "rate=20mbit");
    bed.set_link("link2", "rate=20mbit");
    let (download, expected) = under_way(&mut bed);
    bed.set_link("link2", "down");
    let dark = download.bytes();
    bed.wait_for("the other link to carry on", |_| {
        download.bytes() > dark + 4_000_000
    });
    bed.set_link("link2", "up");
    let before = bed.carried()[1];
    bed.wait_for("the link to be used again", |bed| {
        bed.carried()[1] > before + 500_000
    });
    download.expect_bytes(&expected);
}

#[test]
#[ignore = "network"]
fn an_interface_that_goes_down_does_not_end_a_download() {
    let mut bed = Bed::up();
    let (download, expected) = under_way(&mut bed);
    bed.run("box", "ip", &["link", "set", "link1", "down"]);
    download.expect_bytes(&expected);
}

#[test]
#[ignore = "network"]
fn an_address_that_goes_away_does_not_end_a_download() {
    let mut bed = Bed::up();
    let (download, expected) = under_way(&mut bed);
    bed.run("box", "ip", &["address", "flush", "dev", "link2"]);
    download.expect_bytes(&expected);
}

/// What is not TCP goes out over one link, and over the other when that one is dark.
#[test]
#[ignore = "network"]
fn datagrams_find_the_link_that_works() {
    for link in ["link1", "link2"] {
        let often = |text| format!("{text}\n[probing]\nidle = \"2s\"\n");
        let mut bed = Bed::up_with(render_changed(Role::Box, often));
        let content = bed.v4("content").to_string();
        let pinged = |bed: &mut Bed| {
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
