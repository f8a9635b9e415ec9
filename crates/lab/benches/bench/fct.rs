//! The cost of protection for small downloads: the same downloads through box and server with it and
//! without, in pairs, over the links of [`slow`](crate::slow). They are measured once over pooled
//! connections, and once over connections opened on demand, where a session ticket should spare the
//! round trips of the TLS handshake.

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use braid::failure::Failure;
use braid_lab::content::{self, fetch};
use braid_testbed::fixture::Fixture;
use braid_testbed::netns;
use serde::Serialize;

use crate::fixture::{self, Gateways};
use crate::slow;
use crate::speed::Spread;

const SIZES: [u64; 3] = [4_000, 16_000, 64_000];
/// Pause before a pair: queues run empty, and new pooled connections open their subflows on both links.
const PAUSE: Duration = Duration::from_millis(300);
/// Times that box and server are started anew. Their measurements of the links in the first seconds
/// decide how they serve later downloads, so one start would be a single sample.
const STARTS: u64 = 5;
/// Uncounted downloads after a start: the first connection of a box has no session ticket.
const WARM_UP_DOWNLOADS: usize = 3;
/// Most that protection may add: a constant, and a share of the plaintext time.
const BAR_MS: f64 = 1.0;
const BAR_SHARE: f64 = 0.05;

/// All downloads of one size.
#[derive(Debug, Serialize)]
pub struct Fct {
    /// True if connections to the server wait in the pool for users.
    warm: bool,
    bytes: u64,
    /// Time of each run from before the user's SYN to the last byte, ms.
    protected_ms: Vec<f64>,
    #[serde(rename = "clear_ms")]
    plaintext_ms: Vec<f64>,
    median: Comparison,
    mean: Comparison,
    /// 99th percentile of the emulator's delivery lag, µs; above 1,000 the runs are worth nothing.
    #[serde(rename = "lateness_p99_us")]
    delivery_lag_p99_us: f64,
}

/// One statistic over all runs, ms.
#[derive(Debug, Serialize)]
struct Comparison {
    protected: f64,
    #[serde(rename = "clear")]
    plaintext: f64,
    bar: f64,
    holds: bool,
}

/// Measures all sizes with `runs` pairs of each.
pub fn measure(runs: u64) -> Result<Vec<Fct>, Failure> {
    let mut rows = Vec::new();
    for warm in [true, false] {
        let mut cases = SIZES.map(|bytes| Fct::new(warm, bytes));
        for start in 0..STARTS.min(runs) {
            // Every start takes an equal share of the runs.
            let runs = (start..runs).step_by(STARTS as usize);
            one_start(&mut cases, warm, runs)?;
        }
        rows.extend(cases.map(Fct::judged));
    }
    Ok(rows)
}

/// Starts box and server of both variants anew, and makes these runs of each size.
fn one_start(
    cases: &mut [Fct],
    warm: bool,
    runs: impl Iterator<Item = u64> + Clone,
) -> Result<(), Failure> {
    let mut variants = [
        Variant::up(Gateways::Braid, warm)?,
        Variant::up(Gateways::Plaintext, warm)?,
    ];
    for variant in &variants {
        (0..WARM_UP_DOWNLOADS).try_for_each(|_| variant.fetch(SIZES[0]).map(drop))?;
    }
    for case in cases {
        for run in runs.clone() {
            thread::sleep(PAUSE);
            // The variants take turns in going first, so that the order favours neither.
            let [first, second] = [run % 2, 1 - run % 2].map(|variant| variant as usize);
            for variant in [first, second] {
                let ms = variants[variant].fetch(case.bytes)?;
                match variant {
                    0 => case.protected_ms.push(ms),
                    _ => case.plaintext_ms.push(ms),
                }
            }
        }
        for variant in &mut variants {
            case.delivery_lag_p99_us = case.delivery_lag_p99_us.max(variant.delivery_lag()?);
        }
    }
    Ok(())
}

/// A testbed of its own, with or without protection.
struct Variant {
    fixture: Fixture,
    user: String,
    content: SocketAddr,
}

impl Variant {
    fn up(gateways: Gateways, warm: bool) -> Result<Variant, Failure> {
        let settings = if warm {
            ""
        } else {
            "\n[expert]\nidle_pool_size = 0\n"
        };
        let rates = slow::RATES.map(|rate| format!("{rate}mbit"));
        let links = [0, 1].map(|link| (&*rates[link], slow::DELAYS[link]));
        let fixture = fixture::up(gateways, links, settings)?;
        Ok(Variant {
            user: fixture.testbed.layout().host("user")?.namespace.clone(),
            content: content::offer(&fixture)?,
            fixture,
        })
    }

    /// Downloads `bytes` bytes. Returns the time, ms.
    fn fetch(&self, bytes: u64) -> Result<f64, Failure> {
        let content = self.content;
        let took = netns::run_inside(&self.user, || fetch(content, bytes))?;
        Ok(took.as_secs_f64() * 1e3)
    }

    /// Returns the emulator's delivery lag since the last call, 99th percentile in µs.
    fn delivery_lag(&mut self) -> Result<f64, Failure> {
        let late = self.fixture.testbed.delivery_lag()?.p99_us;
        self.fixture.testbed.reset_delivery_lag()?;
        Ok(late)
    }
}

impl Fct {
    fn new(warm: bool, bytes: u64) -> Fct {
        Fct {
            warm,
            bytes,
            protected_ms: Vec::new(),
            plaintext_ms: Vec::new(),
            median: Comparison::of([f64::NAN; 2]),
            mean: Comparison::of([f64::NAN; 2]),
            delivery_lag_p99_us: 0.0,
        }
    }

    /// Computes the comparisons once all runs are there.
    fn judged(self) -> Fct {
        let both = [&self.protected_ms, &self.plaintext_ms];
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
    fn of([protected, plaintext]: [f64; 2]) -> Comparison {
        let bar = plaintext * (1.0 + BAR_SHARE) + BAR_MS;
        Comparison {
            protected,
            plaintext,
            bar,
            holds: protected <= bar,
        }
    }
}

/// Prints the rows as text.
pub fn print(rows: &[Fct]) {
    println!(
        "Small downloads with protection and without, over {:?} Mbit/s, one way {:?}: ms from SYN to last \
         byte, from the second connection on; wanted <= in plaintext + {BAR_MS} ms + {:.0} %",
        slow::RATES,
        slow::DELAYS,
        BAR_SHARE * 100.0
    );
    for row in rows {
        let text = |of: &Comparison| {
            format!(
                "{:.1}, in clear {:.1}, wanted <= {:.1}: {}",
                of.protected,
                of.plaintext,
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
            extremes(&row.plaintext_ms),
            row.delivery_lag_p99_us
        );
    }
}
