//! Transfers in the world: done, the same every time, at the rate the links allow.

mod common;

use braid_links::{Loss, Settings};
use common::{finish, link, pair};

#[test]
fn a_download_uses_both_links() {
    let size = 5_000_000;
    let (mut world, client, _) = pair(1, &[link(5, 20), link(5, 50)], size);
    let took = finish(&mut world, client);
    assert_eq!(world.host(client).finished()[0].received, size);
    let rate = size as f64 * 8.0 / took.as_secs_f64();
    assert!(rate > 8.5e6, "{rate} bit/s of 10 Mbit/s");
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let run = |seed| {
        let lossy = Settings {
            loss: Loss::Uniform(0.02),
            ..link(5, 20)
        };
        let (mut world, client, _) = pair(seed, &[lossy, lossy], 500_000);
        finish(&mut world, client)
    };
    assert_eq!(run(7), run(7));
    assert_ne!(run(7), run(8));
}
