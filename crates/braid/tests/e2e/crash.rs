//! SIGKILL of box and server.

use std::time::{Duration, Instant};

use super::bed::{Bed, Download};

/// How long users' connections may hang after a crash.
const HANG: Duration = Duration::from_secs(60);

/// Fifty downloads, each with bytes on its way.
fn fifty_under_way(bed: &mut Bed) -> Vec<Download> {
    bed.offer("large", 5_000_000);
    let downloads: Vec<_> = (0..50).map(|_| bed.curl("large")).collect();
    bed.wait_for("every download to begin", |_| {
        downloads.iter().all(|d| d.bytes() > 0)
    });
    downloads
}

/// All end, well or not, before users lose patience.
fn expect_ends(downloads: Vec<Download>) {
    let killed = Instant::now();
    let ends: Vec<_> = downloads.into_iter().map(Download::end).collect();
    assert!(
        killed.elapsed() < HANG,
        "the last download hung for {:?}",
        killed.elapsed()
    );
    let failed = ends.iter().filter(|(well, _)| !well).count();
    assert!(failed > 0, "no download was under way when it happened");
}

#[test]
#[ignore = "network"]
fn a_killed_box_fails_open_and_serves_again() {
    let mut bed = Bed::up();
    let downloads = fifty_under_way(&mut bed);
    bed.testbed.kill("box").expect("it ran");
    expect_ends(downloads);

    // Unjoined: the box's kernel forwards over one link.
    let before = bed.carried();
    bed.fetch(5_000_000);
    let after = bed.carried();
    let used = (0..2)
        .filter(|link| after[*link] - before[*link] > 1_000_000)
        .count();
    assert_eq!(used, 1, "links used while the box is dead");

    bed.start("box");
    bed.expect_both_links();
}

#[test]
#[ignore = "network"]
fn a_killed_server_ends_its_connections_and_serves_again() {
    let mut bed = Bed::up();
    let downloads = fifty_under_way(&mut bed);
    bed.testbed.kill("server").expect("it ran");
    expect_ends(downloads);

    bed.start("server");
    // Until the box has found the server again it forwards unjoined.
    bed.wait_for_intake();
    bed.expect_both_links();
}
