//! How fast the world runs: one greedy transfer over two links of 5 Mbit/s, payload checked byte by
//! byte. Prints simulated seconds per second.

#[path = "../tests/common/mod.rs"]
mod common;

use std::time::Instant;

use common::{finish, link, pair};

fn main() {
    let mut rates: Vec<f64> = (0..5)
        .map(|seed| {
            let (mut world, client, _) = pair(seed, &[link(5, 20), link(5, 50)], 100_000_000);
            let start = Instant::now();
            let simulated = finish(&mut world, client);
            simulated.as_secs_f64() / start.elapsed().as_secs_f64()
        })
        .collect();
    rates.sort_by(f64::total_cmp);
    println!(
        "simulated seconds per second: median {:.0}, {:.0} to {:.0}",
        rates[2], rates[0], rates[4]
    );
}
