//! What protection costs a small download: the same ones through box and server with it and without, in
//! pairs, over the links of [`slow`](crate::slow). Once by connections that wait for users, and once by
//! such as are opened then: a ticket is to make the handshake of TLS free of round trips.

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use braid::failure::Failure;
use braid_testbed::bed::Bed;
use braid_testbed::netns;
use serde::Serialize;

use crate::bed::{self, Gateways};
use crate::content::{self, fetch};
use crate::slow;
use crate::speed::Spread;

const SIZES: [u64; 3] = [4_000, 16_000, 64_000];
/// Between two pairs: queues run empty, and new connections wait, joined on both links.
const PAUSE: Duration = Duration::from_millis(300);
/// Box and server are started anew so often: what they learn of the links in the first seconds decides how
/// they serve what comes then.
const STARTS: u64 = 5;
/// Downloads before those that count: the first user of a box has no ticket.
const FIRST: usize = 3;
/// What protection may add: this much, and this share of what it takes in clear.
const BAR_MS: f64 = 1.0;
const BAR_SHARE: f64 = 0.05;

/// Downloads of one size.
#[derive(Debug, Serialize)]
pub struct Fct {
    /// Connections to the server wait for users.
    warm: bool,
    bytes: u64,
    /// Of each run, ms from before the user's SYN to the last byte.
    protected_ms: Vec<f64>,
    clear_ms: Vec<f64>,
    median: Comparison,
    mean: Comparison,
    /// How late the links delivered, 99th percentile; over 1,000 the runs are worth nothing.
    lateness_p99_us: f64,
}

/// Of all runs, ms.
#[derive(Debug, Serialize)]
struct Comparison {
    protected: f64,
    clear: f64,
    bar: f64,
    holds: bool,
}

/// All sizes, `runs` pairs of each.
pub fn measure(runs: u64) -> Result<Vec<Fct>, Failure> {
    let mut rows = Vec::new();
    for warm in [true, false] {
        let mut cells = SIZES.map(|bytes| Fct::new(warm, bytes));
        for start in 0..STARTS.min(runs) {
            // Those of this start.
            let runs = (start..runs).step_by(STARTS as usize);
            one_start(&mut cells, warm, runs)?;
        }
        rows.extend(cells.map(Fct::judged));
    }
    Ok(rows)
}

/// Box and server of both ways anew, and these runs of each size.
fn one_start(
    cells: &mut [Fct],
    warm: bool,
    runs: impl Iterator<Item = u64> + Clone,
) -> Result<(), Failure> {
    let mut ways = [
        Way::up(Gateways::Braid, warm)?,
        Way::up(Gateways::Clear, warm)?,
    ];
    for way in &ways {
        (0..FIRST).try_for_each(|_| way.fetch(SIZES[0]).map(drop))?;
    }
    for cell in cells {
        for run in runs.clone() {
            thread::sleep(PAUSE);
            // In turn the other one first.
            let [first, second] = [run % 2, 1 - run % 2].map(|way| way as usize);
            for way in [first, second] {
                let ms = ways[way].fetch(cell.bytes)?;
                match way {
                    0 => cell.protected_ms.push(ms),
                    _ => cell.clear_ms.push(ms),
                }
            }
        }
        for way in &mut ways {
            cell.lateness_p99_us = cell.lateness_p99_us.max(way.lateness()?);
        }
    }
    Ok(())
}

/// A testbed of its own, with or without protection.
struct Way {
    bed: Bed,
    user: String,
    content: SocketAddr,
}

impl Way {
    fn up(gateways: Gateways, warm: bool) -> Result<Way, Failure> {
        let settings = if warm { "" } else { "\n[warm]\nmax = 0\n" };
        let rates = slow::RATES.map(|rate| format!("{rate}mbit"));
        let links = [0, 1].map(|link| (&*rates[link], slow::DELAYS[link]));
        let bed = bed::up(gateways, links, settings)?;
        Ok(Way {
            user: bed.testbed.layout().host("user")?.namespace.clone(),
            content: content::offer(&bed)?,
            bed,
        })
    }

    /// How long a download takes, ms.
    fn fetch(&self, bytes: u64) -> Result<f64, Failure> {
        let content = self.content;
        let took = netns::run_inside(&self.user, || fetch(content, bytes))?;
        Ok(took.as_secs_f64() * 1e3)
    }

    /// Since it was last asked for.
    fn lateness(&mut self) -> Result<f64, Failure> {
        let late = self.bed.testbed.lateness()?.p99_us;
        self.bed.testbed.reset_lateness()?;
        Ok(late)
    }
}

impl Fct {
    fn new(warm: bool, bytes: u64) -> Fct {
        Fct {
            warm,
            bytes,
            protected_ms: Vec::new(),
            clear_ms: Vec::new(),
            median: Comparison::of([f64::NAN; 2]),
            mean: Comparison::of([f64::NAN; 2]),
            lateness_p99_us: 0.0,
        }
    }

    /// Once all runs are there.
    fn judged(self) -> Fct {
        let both = [&self.protected_ms, &self.clear_ms];
        let median = both.map(|ms| Spread::of(ms.iter().copied()).median());
        let mean = both.map(|ms| ms.iter().sum::<f64>() / ms.len() as f64);
        Fct {
            median: Comparison::of(median),
            mean: Comparison::of(mean),
            ..self
        }
    }
}

impl Comparison {
    fn of([protected, clear]: [f64; 2]) -> Comparison {
        let bar = clear * (1.0 + BAR_SHARE) + BAR_MS;
        Comparison {
            protected,
            clear,
            bar,
            holds: protected <= bar,
        }
    }
}

/// For people.
pub fn print(rows: &[Fct]) {
    println!(
        "Small downloads with protection and without, over {:?} Mbit/s, one way {:?}: ms from SYN to last \
         byte, from the second connection on; wanted <= in clear + {BAR_MS} ms + {:.0} %",
        slow::RATES,
        slow::DELAYS,
        BAR_SHARE * 100.0
    );
    for row in rows {
        let text = |of: &Comparison| {
            format!(
                "{:.1}, in clear {:.1}, wanted <= {:.1}: {}",
                of.protected,
                of.clear,
                of.bar,
                if of.holds { "holds" } else { "MISSED" }
            )
        };
        let extremes = |ms: &[f64]| {
            let most = ms.iter().copied().fold(0.0, f64::max);
            let least = ms.iter().copied().fold(most, f64::min);
            format!("{least:.1} to {most:.1}")
        };
        println!(
            "  {:<5}{:>7} bytes, {} runs: median {}; mean {}; {}, in clear {}; links late by {:.0} µs (p99)",
            if row.warm { "warm" } else { "cold" },
            row.bytes,
            row.protected_ms.len(),
            text(&row.median),
            text(&row.mean),
            extremes(&row.protected_ms),
            extremes(&row.clear_ms),
            row.lateness_p99_us
        );
    }
}
