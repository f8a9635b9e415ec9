//! Throughput over two links, through box and server and without them.

use std::time::Duration;

use braid_testbed::bed::{self, Bed};
use serde_json::json;

use crate::arm::gateways::Gateways;
use crate::arm::{Arm, Error};
use crate::experiments::definition::Definition;
use crate::experiments::outcome::Table;
use crate::experiments::series::{by_second, estimate, line, over_time, plus_minus};
use crate::experiments::session::Session;
use crate::experiments::verdict::{Bound, Verdict};
use crate::plot::{Axis, Body, Figure, Point, Scale, Format};
use crate::stats;

/// Throughput over time.
pub const TM_5A: Definition = Definition {
    id: "tm-5a",
    title: "Throughput over both links and over each alone",
    source: "T-MPTCP, figure 5(a)",
    setup: "curl behind a box downloads from nginx over two links that alone give 3.7 and 1.8 MB/s, \
            round trips of 50 and 70 ms, queues of one bandwidth-delay product. Through box and \
            server in three phases: both links, the first alone, the second alone. With the proxy \
            off by plain TCP over each link.",
    reported: "Both: 4.8 MB/s, which is 87 % of the sum; alone 3.7 and 1.8 MB/s. Of both the mobile \
               one carries 3.1 MB/s.",
    must_hold: "Both at least 95 % of the sum of plain TCP over each link alone.",
    arms: &[Arm::Links],
    cells: |_| WAYS.len(),
    runs: (1, 2),
    measure: over_phases,
};

/// Throughput against size.
pub const TM_5B: Definition = Definition {
    id: "tm-5b",
    title: "Mean throughput against size",
    source: "T-MPTCP, figure 5(b)",
    setup: "As tm-5a: files of 1 to 100 MB through box and server, which a connection waits for, \
            joined and signed in, and by plain TCP over each link.",
    reported: "More than either link alone at every size; up to 40 % more than one and 180 % more \
               than the other.",
    must_hold: "More than the better link at every size; at 100 MB at least 40 % more than that one \
                and 180 % more than the other.",
    arms: &[Arm::Links],
    cells: |_| 3 * SIZES.len(),
    runs: (1, 2),
    measure: over_sizes,
};

/// Rates and one-way delays: by full packets of 1448 bytes in 1500, 3.7 and 1.8 MB/s.
pub const PATHS: [(&str, &str); 2] = [("30.66mbit", "25ms"), ("14.92mbit", "35ms")];
const LINKS: [&str; 2] = ["link1", "link2"];
/// What they give, MB/s.
const ALONE: [f64; 2] = [3.7, 1.8];
/// A phase carries what takes so long at the links' full rates, s.
const PHASE_S: f64 = 12.0;
/// Of the larger experiment, MB.
const SIZES: [u64; 5] = [1, 5, 10, 50, 100];
const MB: u64 = 1_000_000;
/// How often the links are asked what they have carried.
const LOOK: Duration = Duration::from_millis(250);
