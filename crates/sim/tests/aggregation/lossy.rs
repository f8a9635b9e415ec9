//! Links with heavy loss.

use core::time::Duration;

use braid_links::Loss;
use braid_sim::aggregation::{Aggregation, AggregationConfig, Load, TransferId};

use crate::support::{link, millis, secs, start_with_seed};

/// Returns two links that lose 30 % of their packets in either direction.
fn lossy_links() -> AggregationConfig {
    let mut access = vec![link(20, 30), link(10, 70)];
    for path in &mut access {
        for direction in [&mut path.up, &mut path.down] {
            direction.loss = Loss::Uniform(0.3);
        }
    }
    AggregationConfig::new(access).unwrap()
}

fn received(net: &Aggregation, id: TransferId, load: Load) -> u64 {
    match load {
        Load::Up(_) => net.at_content(id).map_or(0, |s| s.received),
        _ => net.at_user(id).received,
    }
}

/// Returns the longest time without data after the first byte, in half a minute.
fn longest_pause(seed: u64, load: Load) -> Duration {
    let config = lossy_links();
    let mut net = start_with_seed(seed, &config);
    let id = net.open(0, 0, load).unwrap();
    let (mut before, mut pause, mut longest) = (0, secs(0), secs(0));
    let glance = millis(50);
    for _ in 0..600 {
        net.run_for(glance);
        let now = received(&net, id, load);
        pause = match now > before {
            true => secs(0),
            false => pause + glance,
        };
        if before > 0 {
            longest = longest.max(pause);
        }
        before = now;
    }
    longest
}

/// Neither direction stands still for long.
#[test]
fn heavy_loss_on_all_links_stops_no_direction_for_long() {
    for load in [Load::Down(100_000_000), Load::Up(100_000_000)] {
        let pauses = (0..16).map(|seed| longest_pause(seed, load));
        let pauses: Vec<_> = pauses.collect();
        // If the first SYNs with MP_CAPABLE are lost, the connection is regular TCP on one link, whose
        // timer backs off.
        let long = pauses.iter().filter(|pause| **pause > secs(4));
        assert!(long.count() <= 1, "{load:?}: {pauses:?}");
        assert!(
            pauses.iter().all(|pause| *pause <= secs(6)),
            "{load:?}: {pauses:?}"
        );
    }
}
