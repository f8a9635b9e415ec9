//! A link that slows down without failing, under a long transfer by curl through box and server: a
//! download from nginx or an upload to a sink, each link in turn.

use std::fs::File;
use std::io::{self, Read};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use braid::failure::Failure;
use braid_lab::content;
use braid_testbed::LinkChange;
use braid_testbed::fixture::Fixture;
use serde::Serialize;

use crate::fixture::{self, Gateways};

/// Rates (Mbit/s) and one-way delays of the links; the round trips are 30 ms and 70 ms.
pub const RATES: [f64; 2] = [20.0, 10.0];
pub const DELAYS: [&str; 2] = ["15ms", "35ms"];
/// Queues of one bandwidth-delay product at full rate. They keep their bytes while the link is slow, as
/// a device's queue does.
const QUEUES: [&str; 2] = ["75kB", "87.5kB"];
/// Rate of the link while it is slow, both directions, Mbit/s.
const SLOW_RATE_MBIT_S: f64 = 0.1;
/// The seconds at which the link slows down, recovers, and the run ends.
const SLOW_FROM_S: usize = 3;
const SLOW_UNTIL_S: usize = 13;
const END_S: usize = 18;
/// Payload's share of a packet: the rest is IP and TCP (40 bytes), timestamps (12), and DSS (20).
const PAYLOAD_SHARE: f64 = 1_428.0 / 1_500.0;
/// Least share of the other link's rate in each second of the slow phase but the first.
const MIN_SHARE: f64 = 0.9;
/// Bytes of the file, more than both links carry until [`END_S`].
const FILE_BYTES: u64 = 100_000_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Direction {
    Download,
    Upload,
}

/// Figures of one transfer.
#[derive(Debug, Serialize)]
pub struct Slow {
    /// The number of the link that slows down, from 1.
    link: usize,
    #[serde(rename = "way")]
    direction: Direction,
    /// Payload that reached the receiving host in each second from curl's start, Mbit/s.
    mbit_s: Vec<f64>,
    /// Payload rate of the other link alone: its rate times the payload's share of a packet.
    alone_mbit_s: f64,
    /// Least rate of a second, from 1 s after the slow-down until the return, as a share of
    /// `alone_mbit_s`.
    least_share: f64,
    bar: f64,
    holds: bool,
    /// Least rate of a second, from 2 s after the return on, as a share of both links' payload rate.
    returned_share: f64,
    /// 99th percentile of the emulator's delivery lag, µs; above 1,000 the run is worth nothing.
    #[serde(rename = "lateness_p99_us")]
    delivery_lag_p99_us: f64,
}

/// Runs both directions with each link slow in turn.
pub fn measure() -> Result<Vec<Slow>, Failure> {
    let directions = [Direction::Download, Direction::Upload];
    let cases = [0, 1]
        .iter()
        .flat_map(|link| directions.map(|direction| (*link, direction)));
    cases
        .map(|(link, direction)| measure_one(link, direction))
        .collect()
}

fn measure_one(link: usize, direction: Direction) -> Result<Slow, Failure> {
    let rates = RATES.map(|rate| format!("{rate}mbit"));
    let links = [(&*rates[0], DELAYS[0]), (&*rates[1], DELAYS[1])];
    let mut fixture = fixture::up(Gateways::Braid, links, "")?;
    let slow = format!("rate={SLOW_RATE_MBIT_S}mbit queue={}", QUEUES[link]);
    let sound = format!("rate={}", rates[link]);
    fixture.testbed.reset_delivery_lag()?;
    let mut transfer = Transfer::start(&fixture, direction)?;
    let start = Instant::now();
    let mut mbit_s = Vec::new();
    let mut before = 0;
    for second in 0..END_S {
        match second {
            SLOW_FROM_S => set(&mut fixture, link, &slow)?,
            SLOW_UNTIL_S => set(&mut fixture, link, &sound)?,
            _ => {}
        }
        let end = Duration::from_secs(second as u64 + 1);
        fixture.sleep(end.saturating_sub(start.elapsed()))?;
        let arrived = transfer.arrived.load(Ordering::Relaxed);
        mbit_s.push((arrived - before) as f64 * 8.0 / 1e6);
        before = arrived;
    }
    if let Some(status) = transfer.curl.try_wait()? {
        return Err(Failure::Run(format!("curl ended too early: {status}")));
    }
    let delivery_lag_p99_us = fixture.testbed.delivery_lag()?.p99_us;
    drop(transfer);
    fixture.testbed.down()?;
    Ok(Slow::of(link, direction, mbit_s, delivery_lag_p99_us))
}

/// Applies `change` to both directions of a link.
fn set(fixture: &mut Fixture, link: usize, change: &str) -> Result<(), Failure> {
    let change = LinkChange::parse(change.split(' '))?;
    let name = format!("link{}", link + 1);
    Ok(fixture.testbed.set(&name, None, &change)?)
}

/// A transfer that goes on until it is dropped.
struct Transfer {
    curl: Child,
    /// Bytes that reached the receiving host.
    arrived: Arc<AtomicU64>,
}

impl Transfer {
    fn start(fixture: &Fixture, direction: Direction) -> Result<Transfer, Failure> {
        let file = fixture.testbed.state_dir().join("content/www/long");
        File::create(&file)?.set_len(FILE_BYTES)?;
        let sink = content::listen(fixture)?;
        let to = sink.local_addr()?;
        let mut curl = fixture.exec("user", "curl")?;
        curl.args(["-q", "-sS", "--fail", "--no-buffer", "--noproxy", "*"]);
        match direction {
            Direction::Download => curl.arg(format!("http://{}/long", to.ip())),
            // The sink sends no answer, so curl must not wait for "100 Continue".
            Direction::Upload => curl
                .args(["-H", "Expect:", "-T"])
                .arg(&file)
                .arg(format!("http://{to}")),
        };
        let mut curl = curl.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let arrived = Arc::new(AtomicU64::new(0));
        let (counter, stdout) = (Arc::clone(&arrived), curl.stdout.take());
        thread::spawn(move || match (direction, stdout) {
            (Direction::Download, Some(stdout)) => count(stdout, &counter),
            _ => count(sink.accept()?.0, &counter),
        });
        Ok(Transfer { curl, arrived })
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        // curl may have ended by itself.
        let _ = self.curl.kill();
        let _ = self.curl.wait();
    }
}

/// Reads to the end, and counts the bytes as they arrive.
fn count(mut from: impl Read, arrived: &AtomicU64) -> io::Result<()> {
    let mut chunk = [0; 65_536];
    loop {
        match from.read(&mut chunk)? {
            0 => return Ok(()),
            n => arrived.fetch_add(n as u64, Ordering::Relaxed),
        };
    }
}

impl Slow {
    fn of(link: usize, direction: Direction, mbit_s: Vec<f64>, delivery_lag_p99_us: f64) -> Slow {
        let alone_mbit_s = RATES[1 - link] * PAYLOAD_SHARE;
        let both = RATES.iter().sum::<f64>() * PAYLOAD_SHARE;
        let least = |seconds: &[f64]| seconds.iter().copied().fold(f64::INFINITY, f64::min);
        let least_share = least(&mbit_s[SLOW_FROM_S + 1..SLOW_UNTIL_S]) / alone_mbit_s;
        Slow {
            link: link + 1,
            direction,
            alone_mbit_s,
            least_share,
            bar: MIN_SHARE,
            holds: least_share >= MIN_SHARE,
            returned_share: least(&mbit_s[SLOW_UNTIL_S + 2..]) / both,
            mbit_s,
            delivery_lag_p99_us,
        }
    }
}

/// Prints the rows as text.
pub fn print(rows: &[Slow]) {
    println!(
        "A link at {SLOW_RATE_MBIT_S} Mbit/s for {} s: payload at the receiving host, Mbit/s, second by \
         second (link1 {} Mbit/s, link2 {} Mbit/s; alone: rate x 1,428/1,500)",
        SLOW_UNTIL_S - SLOW_FROM_S,
        RATES[0],
        RATES[1]
    );
    for row in rows {
        let seconds: Vec<_> = row.mbit_s.iter().map(|rate| format!("{rate:.1}")).collect();
        let (before, rest) = seconds.split_at(SLOW_FROM_S);
        let (during, after) = rest.split_at(SLOW_UNTIL_S - SLOW_FROM_S);
        let direction = format!("{:?}", row.direction).to_lowercase();
        println!(
            "  link{} {direction:<9}{} | {} | {}",
            row.link,
            before.join(" "),
            during.join(" "),
            after.join(" ")
        );
        println!(
            "    from 1 s on {:.2} of the other link's {:.2}, wanted >= {}: {}; from 2 s after the \
             return on {:.2} of both; links late by {:.0} µs (p99)",
            row.least_share,
            row.alone_mbit_s,
            row.bar,
            if row.holds { "holds" } else { "MISSED" },
            row.returned_share,
            row.delivery_lag_p99_us
        );
    }
}
