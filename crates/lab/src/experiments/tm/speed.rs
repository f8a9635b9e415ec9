//! Throughput over two links: through box and server, and by plain TCP without them.

use std::ops::RangeInclusive;
use std::time::Duration;

use braid_engine::cc::CUBIC;
use braid_sim::aggregation::Aggregation;
use braid_testbed::fixture::{self, Fixture};
use braid_wire::Rng;
use serde_json::json;

use super::simulated::{self, Link};
use crate::backend::gateways::Gateways;
use crate::backend::{Backend, Error, run_error};
use crate::experiments::entry;
use crate::experiments::outcome::row;
use crate::experiments::series::{estimate, gains, over_time, plane, plus_minus, values};
use crate::experiments::session::Session;
use crate::experiments::verdict::Verdict;
use crate::plot::{Axis, Figure, Point, Scale, Series};
use crate::stats;

/// Rates and one-way delays of the links. Full packets have 1448 bytes of payload in 1500 bytes. With such
/// packets these rates give the paper's 3.7 and 1.8 MB/s of payload.
const PATHS: [(&str, &str); 2] = [("30.66mbit", "25ms"), ("14.92mbit", "35ms")];
/// The same links for the simulator, with rates in Mb/s and round-trip times in ms.
pub const SIMULATED_LINKS: [Link; 2] = [(30.66, 50.0), (14.92, 70.0)];
const LINKS: [&str; 2] = ["link1", "link2"];
/// Throughput of each link alone in the paper, MB/s.
const LINK_RATES_MB_S: [f64; 2] = [3.7, 1.8];
/// Time that a phase's download takes at the full rate of its links, s. A guess: long against slow start.
const PHASE_S: f64 = 12.0;
/// Sizes of the files of tm-5b, MB.
const SIZES: [u64; 5] = [1, 5, 10, 50, 100];
const MB: u64 = 1_000_000;
/// Interval at which the links' counters are read, for figures of one value a second.
const POLL_INTERVAL: Duration = Duration::from_millis(250);
/// Minimum pause between two downloads, so that the queues run empty.
const MIN_PAUSE: Duration = Duration::from_millis(300);
/// Maximum random time that is added to a pause, so that runs do not start in step with periodic work.
const PAUSE_JITTER: Duration = Duration::from_millis(100);

/// The way of a download to the user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Route {
    /// Through box and server over both links.
    Both,
    /// Through box and server over one link, numbered from 0.
    Alone(usize),
    /// By plain TCP over one link.
    Plain(usize),
}

impl Route {
    fn links(self) -> Vec<usize> {
        match self {
            Route::Both => vec![0, 1],
            Route::Alone(link) | Route::Plain(link) => vec![link],
        }
    }
}

/// The state of a download at several times: the time in s, the received bytes of the file, and the IP bytes
/// that each link has carried since the start.
#[derive(Debug, Default)]
struct Download {
    /// The IP bytes that each link had carried before.
    before: [u64; 2],
    samples: Vec<(f64, [u64; 3])>,
}

impl Download {
    /// Adds a sample if [`POLL_INTERVAL`] has passed since the last. `carried` reads the counters of the
    /// links.
    fn observe(&mut self, at: Duration, received: u64, carried: impl Fn() -> [u64; 2]) {
        // A download that is repeated because the links were late starts again at time 0.
        if at.is_zero() {
            self.before = carried();
            self.samples.clear();
        }
        let last = self.samples.last().map(|(last, _)| *last);
        if last.is_none_or(|last| at.as_secs_f64() >= last + POLL_INTERVAL.as_secs_f64()) {
            self.add(at.as_secs_f64(), received, carried());
        }
    }

    fn add(&mut self, seconds: f64, received: u64, carried: [u64; 2]) {
        let [one, two] = [0, 1].map(|link| carried[link].saturating_sub(self.before[link]));
        self.samples.push((seconds, [received, one, two]));
    }

    /// Returns the mean rate, MB/s: of the file (`counter` 0), or of a link with headers (1 or 2).
    fn rate(&self, counter: usize) -> f64 {
        let end = self.samples.last();
        end.map_or(f64::NAN, |(seconds, bytes)| {
            bytes[counter] as f64 / seconds / 1e6
        })
    }

    /// Returns the rate of a counter in each complete second, MB/s. Bytes between two samples are
    /// interpolated.
    fn by_second(&self, counter: usize) -> Vec<f64> {
        let bytes_at = |second: f64| {
            let later = self.samples.iter().position(|(t, _)| *t >= second)?;
            let (t1, b1) = self.samples[later];
            let earlier = later.checked_sub(1).map(|n| self.samples[n]);
            let (t0, b0) = earlier.unwrap_or_default();
            // The bound avoids a division by 0 at time 0, where both samples are the same.
            let share = (second - t0) / (t1 - t0).max(1e-9);
            Some(b0[counter] as f64 + share * (b1[counter] as f64 - b0[counter] as f64))
        };
        let in_second = |n: u32| Some(bytes_at(f64::from(n) + 1.0)? - bytes_at(f64::from(n))?);
        let bytes = (0..).map_while(in_second);
        bytes.map(|bytes| bytes / 1e6).collect()
    }
}

/// Returns the runs of each download, which has a route and a size in bytes. `pooled` is true if box and
/// server have connections in the pool before each download.
fn downloads(
    session: &mut Session<'_>,
    wanted: &[(Route, u64)],
    pooled: bool,
) -> Result<Vec<Vec<Download>>, Error> {
    if !session.backend().is_virtual() {
        return emulated(session, wanted, pooled);
    }
    simulated::parameters(session);
    let runs = |(route, bytes): &(Route, u64)| {
        session.each(session.runs(), |_, seed| simulated(seed, *route, *bytes))
    };
    wanted.iter().map(runs).collect()
}

/// Downloads in a simulated network that has only the links of the route.
fn simulated(seed: u64, route: Route, bytes: u64) -> Result<Download, Error> {
    let links = route.links();
    let settings: Vec<Link> = links.iter().map(|link| SIMULATED_LINKS[*link]).collect();
    let config = match route {
        Route::Plain(_) => simulated::plain(settings[0], None)?,
        Route::Both | Route::Alone(_) => simulated::aggregated(&settings)?,
    };
    let carried = |net: &Aggregation| {
        let mut carried = [0; 2];
        for (link, (_, down)) in links.iter().zip(&net.access) {
            carried[*link] = net.world.counters(*down).delivered.bytes;
        }
        carried
    };
    let mut net = simulated::start(seed, &config)?;
    let mut download = Download::default();
    let seconds = simulated::download(&mut net, bytes, |net, at, received| {
        download.observe(at, received, || carried(net));
    })?;
    download.add(seconds, bytes, carried(&net));
    Ok(download)
}

/// Downloads over emulated links: by plain TCP first, while the box does not run.
fn emulated(
    session: &mut Session<'_>,
    wanted: &[(Route, u64)],
    pooled: bool,
) -> Result<Vec<Vec<Download>>, Error> {
    let largest = wanted.iter().map(|(_, bytes)| *bytes).max();
    let mut net = gateways(largest.unwrap_or_default())?;
    let mut rng = Rng::for_component(session.seed(), 0);
    let mut downloads: Vec<Vec<Download>> = wanted.iter().map(|_| Vec::new()).collect();
    for _ in 0..session.runs() {
        for ((route, bytes), runs) in wanted.iter().zip(&mut downloads) {
            let Route::Plain(link) = route else { continue };
            net.fixture.forward_over(LINKS[*link]).map_err(run_error)?;
            runs.push(over_links(&mut net, &mut rng, *bytes)?);
            net.fixture.stop_forwarding().map_err(run_error)?;
            session.finished();
        }
    }
    net.start_server("server")?;
    net.start_box()?;
    if pooled {
        // The first download after a start waits until a connection between box and server opens. It is not
        // measured; the claim is about connections that wait in the pool.
        over_links(&mut net, &mut rng, MB)?;
    }
    for _ in 0..session.runs() {
        for ((route, bytes), runs) in wanted.iter().zip(&mut downloads) {
            let unused = match route {
                Route::Plain(_) => continue,
                Route::Alone(link) => Some(LINKS[1 - link]),
                Route::Both => None,
            };
            if pooled {
                net.wait_for_pool()?;
            }
            if let Some(link) = unused {
                net.ask(&["link", link, "off"])?;
            }
            runs.push(over_links(&mut net, &mut rng, *bytes)?);
            if let Some(link) = unused {
                net.ask(&["link", link, "on"])?;
            }
            session.finished();
        }
    }
    let paths = PATHS.map(|(rate, delay)| format!("{rate} and {delay} one way"));
    session.parameter("links", paths.join(", "));
    session.parameter("between server and content server", "unlimited, no delay");
    simulated::both_ends(session);
    let repeated = net.repeated();
    session.parameter("downloads made again because links were late", repeated);
    Ok(downloads)
}

/// Builds the emulated network with a file of `bytes` bytes. Box and server are not started yet.
pub fn gateways(bytes: u64) -> Result<Gateways, Error> {
    let describe = |name: &str| fixture::description(name, PATHS);
    Gateways::build(describe, Some(CUBIC.name()), bytes)
}

/// Downloads over the current routes, after a pause.
fn over_links(net: &mut Gateways, rng: &mut Rng, bytes: u64) -> Result<Download, Error> {
    let pause = MIN_PAUSE + PAUSE_JITTER.mul_f64(rng.unit());
    net.fixture.sleep(pause).map_err(run_error)?;
    let mut download = Download::default();
    let seconds = net.download("user", bytes, |fixture, at, received| {
        download.observe(at, received, || carried(fixture));
    })?;
    download.add(seconds, bytes, carried(&net.fixture));
    Ok(download)
}

/// Returns the IP bytes that the links have carried towards the user; 0 for a link that cannot be read.
fn carried(fixture: &Fixture) -> [u64; 2] {
    let bytes = fixture.delivered_in_reverse(&LINKS).unwrap_or_default();
    [0, 1].map(|link| bytes.get(link).copied().unwrap_or_default())
}

/// The variants of tm-5a: a name, the route, and the throughput that the paper reports, MB/s. Functions
/// below use these indices.
const VARIANTS: [(&str, Route, &str); 5] = [
    ("both links, through box and server", Route::Both, "4.8"),
    ("link 1 alone, through box and server", Route::Alone(0), ""),
    ("link 2 alone, through box and server", Route::Alone(1), ""),
    ("link 1 alone, plain TCP", Route::Plain(0), "3.7"),
    ("link 2 alone, plain TCP", Route::Plain(1), "1.8"),
];

/// Returns the number of cases of tm-5a.
pub fn phase_cases(_: Backend) -> usize {
    VARIANTS.len()
}

/// Measures throughput over time.
pub fn over_phases(session: &mut Session<'_>) -> Result<(), Error> {
    let wanted = VARIANTS.map(|(_, route, _)| {
        let rates = route.links().into_iter().map(|link| LINK_RATES_MB_S[link]);
        (route, (rates.sum::<f64>() * PHASE_S * 1e6) as u64)
    });
    let phases = downloads(session, &wanted, false)?;
    session.parameter("length of a phase at the full rate", format!("{PHASE_S} s"));
    let record =
        |run: &Download| json!({ "mb_s": run.rate(0), "links_mb_s": [run.rate(1), run.rate(2)] });
    let mut rows = Vec::new();
    for ((variant, _, reported), runs) in VARIANTS.iter().zip(&phases) {
        let name = variant.replace(", ", "-").replace(' ', "-");
        session.record(name, runs.iter().map(record).collect());
        let [file, one, two] =
            [0, 1, 2].map(|counter| plus_minus(estimate(&rates(runs, counter)), 2));
        rows.push(row(&[variant, &file, reported, &one, &two]));
    }
    session.table(entry::table("tm-5a", "rates", rows));
    session.figure("throughput", phases_figure(&phases));
    let [both, one, two] = [0, 3, 4].map(|variant: usize| rates(&phases[variant], 0));
    session.verdicts(share_of_sum(&both, [&one, &two]));
    Ok(())
}

/// Returns the mean rate of a counter in each run.
fn rates(runs: &[Download], counter: usize) -> Vec<f64> {
    values(runs, |run| run.rate(counter))
}

/// Judges the mean over the runs of the throughput over both links as a share of the sum of the throughputs of the
/// single links.
fn share_of_sum(both: &[f64], alone: [&[f64]; 2]) -> [Verdict; 2] {
    let sums = alone[0].iter().zip(alone[1]).map(|(one, two)| one + two);
    let shares = both.iter().zip(sums).map(|(both, sum)| both / sum * 100.0);
    let shares = vec![(String::new(), estimate(&shares.collect::<Vec<_>>()))];
    entry::judge("tm-5a", [shares.clone(), shares])
}

/// Returns the figure of the first run. It has three time slots: both links, the first link alone, the
/// second link alone. Plain TCP has no run over both links, so its line begins in the second slot.
fn phases_figure(phases: &[Vec<Download>]) -> Figure {
    let first: Vec<&Download> = phases.iter().filter_map(|runs| runs.first()).collect();
    let seconds = first.iter().filter_map(|run| run.samples.last());
    let longest = seconds.fold(0.0, |longest, (seconds, _)| seconds.max(longest));
    let longest = longest.ceil();
    let line = |name: &str, variants: &[usize], counter: usize| {
        let mut points = Vec::new();
        for (n, variant) in variants.iter().enumerate() {
            // A line of two phases leaves the first of the three slots empty.
            let begin = (n + 3 - variants.len()) as f64 * longest;
            let rates = first.get(*variant).map(|run| run.by_second(counter));
            let point = |(s, rate): (usize, f64)| Point::new(begin + s as f64 + 0.5, rate);
            points.extend(rates.unwrap_or_default().into_iter().enumerate().map(point));
        }
        Series::line(name, points)
    };
    over_time(
        "Throughput over both links, then over each alone",
        "3.7 and 1.8 MB/s, 50 and 70 ms; CUBIC; the first run, over 1 s each; of links with headers",
        "MB/s",
        vec![
            line("through box and server", &[0, 1, 2], 0),
            line("link 1 of it", &[0, 1, 2], 1),
            line("link 2 of it", &[0, 1, 2], 2),
            line("plain TCP over the one link", &[3, 4], 0),
        ],
    )
}

/// The routes of tm-5b, each with the key of its record and its name in the figure.
const ROUTES: [(Route, &str, &str); 3] = [
    (Route::Both, "box_mb_s", "through box and server"),
    (Route::Plain(0), "link1_mb_s", "link 1, plain TCP"),
    (Route::Plain(1), "link2_mb_s", "link 2, plain TCP"),
];

/// The throughputs of all runs at one size over each of [`ROUTES`], MB/s.
type Rates = [Vec<f64>; ROUTES.len()];

/// Returns the number of cases of tm-5b.
pub fn size_cases(_: Backend) -> usize {
    ROUTES.len() * SIZES.len()
}

/// Measures throughput by size.
pub fn over_sizes(session: &mut Session<'_>) -> Result<(), Error> {
    let wanted = SIZES.map(|size| ROUTES.map(|(route, ..)| (route, size * MB)));
    let downloads = downloads(session, wanted.as_flattened(), true)?;
    let of_size = downloads.chunks_exact(ROUTES.len());
    let all: Vec<Rates> = of_size
        .map(|runs| [0, 1, 2].map(|n: usize| rates(&runs[n], 0)))
        .collect();
    let mut rows = Vec::new();
    for (size, rates) in SIZES.iter().zip(&all) {
        let pairs = ROUTES.iter().zip(rates);
        let record = pairs.map(|((_, key, _), rates)| (*key, json!(rates)));
        session.record(format!("{size}MB"), record.collect());
        let mut row = vec![format!("{size} MB")];
        row.extend(rates.iter().map(|rates| plus_minus(estimate(rates), 2)));
        row.extend(gains_of(rates).map(|(gain, _)| format!("{gain:+.0} %")));
        rows.push(row);
    }
    session.table(entry::table("tm-5b", "rates", rows));
    session.figure("throughput-by-size", sizes_figure(&all));
    session.verdicts(gain_verdicts(&all));
    Ok(())
}

/// Returns the estimate of the gain of box and server over the better link, and over the other link, %.
fn gains_of([boxed, one, two]: &Rates) -> [(f64, f64); 2] {
    let mean = |rates: &[f64]| stats::mean(rates).unwrap_or(f64::NAN);
    let (better, other) = if mean(one) > mean(two) {
        (one, two)
    } else {
        (two, one)
    };
    [better, other].map(|alone| estimate(&gains(boxed, alone)))
}

fn gain_verdicts(rates: &[Rates]) -> [Verdict; 4] {
    let gains: Vec<[(f64, f64); 2]> = rates.iter().map(gains_of).collect();
    let over = |link: usize, sizes: RangeInclusive<usize>| {
        let value = |n: usize| (format!("{} MB", SIZES[n]), gains[n][link]);
        sizes.map(value).collect()
    };
    let last = SIZES.len() - 1;
    let (better, other) = (0, 1);
    entry::judge(
        "tm-5b",
        [
            over(better, 1..=last),
            over(better, 0..=0),
            over(better, last..=last),
            over(other, last..=last),
        ],
    )
}

fn sizes_figure(rates: &[Rates]) -> Figure {
    let series = ROUTES.iter().enumerate().map(|(n, (_, _, name))| {
        let points = SIZES.iter().zip(rates).map(|(size, rates)| {
            let (mean, half) = estimate(&rates[n]);
            Point::with_error(*size as f64, mean, half)
        });
        Series::line(*name, points)
    });
    let sizes = Axis {
        scale: Scale::Log,
        ..Axis::linear("size (MB)")
    };
    plane(
        "Mean throughput against the size of the file",
        "3.7 and 1.8 MB/s, 50 and 70 ms; CUBIC; means with 95 % intervals",
        [sizes, Axis::linear("throughput (MB/s)")],
        series.collect(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holding(rates: &[Rates]) -> Vec<bool> {
        gain_verdicts(rates).iter().map(Verdict::holds).collect()
    }

    #[test]
    fn both_links_are_judged_by_the_sum_of_their_own_run() {
        // 95 % of 3.7 + 1.8 is 5.225, and 95 % of 3.6 + 1.8 is 5.13.
        let judge = |both: &[f64]| {
            let verdicts = share_of_sum(both, [&[3.7, 3.6], &[1.8, 1.8]]);
            [verdicts[0].holds(), verdicts[1].holds()]
        };
        assert_eq!(judge(&[5.23, 5.14]), [true, true]);
        assert_eq!(judge(&[5.22, 5.12]), [true, false]);
        // The paper's own result, 4.8 MB/s, is 87 % of the sum.
        assert_eq!(judge(&[4.8, 4.75]), [true, false]);
        assert_eq!(judge(&[4.7, 4.6]), [false, false]);
        assert_eq!(judge(&[]), [false, false]);
    }

    #[test]
    fn gains_are_over_the_better_link_and_over_the_other() {
        let each = |boxed: f64| [vec![boxed], vec![3.7], vec![1.8]];
        assert_eq!(holding(&[3.8, 4.5, 4.9, 5.2, 5.3].map(each)), [true; 4]);
        // The paper's own result, 4.8 MB/s, is a gain of 30 % over the better link and of 167 % over the
        // other link.
        let reported = [3.6, 4.5, 4.8, 4.8, 4.8].map(each);
        assert_eq!(holding(&reported), [true, false, false, false]);
        assert_eq!(
            gains_of(&reported[4]).map(|(gain, _)| gain.round()),
            [30.0, 167.0]
        );
        assert_eq!(holding(&<[Rates; SIZES.len()]>::default()), [false; 4]);
    }

    #[test]
    fn rates_are_interpolated_between_samples() {
        let download = Download {
            before: [0; 2],
            samples: vec![
                (0.0, [0; 3]),
                (0.5, [1_000_000, 0, 0]),
                (1.5, [3_000_000, 0, 0]),
                (2.5, [6_000_000, 0, 0]),
            ],
        };
        // 2 MB at 1 s, and 4.5 MB at 2 s; the last half second is not complete.
        assert_eq!(download.by_second(0), [2.0, 2.5]);
        assert_eq!(download.by_second(1), [0.0, 0.0]);
        assert_eq!(download.rate(0), 2.4);
    }
}
