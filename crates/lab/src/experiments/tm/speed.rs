//! Throughput over two links: through box and server, and by plain TCP without them.

use std::time::Duration;

use braid_engine::cc::CUBIC;
use braid_sim::aggregation::{Aggregation, AggregationConfig};
use braid_testbed::fixture::{self, Fixture};
use braid_wire::Rng;
use serde_json::json;

use super::simulated::{self, Link};
use crate::backend::gateways::Gateways;
use crate::backend::{Backend, Error, run_error};
use crate::experiments::definition::Definition;
use crate::experiments::outcome::Table;
use crate::experiments::series::{estimate, over_time, plus_minus};
use crate::experiments::session::Session;
use crate::experiments::verdict::{Bound, Verdict};
use crate::plot::{Axis, Body, Figure, Format, Point, Scale, Series};
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
    backends: &[Backend::Sim, Backend::Links],
    cases: |_| VARIANTS.len(),
    runs: (5, 2),
    measure: over_phases,
};

/// Throughput by size.
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
    backends: &[Backend::Sim, Backend::Links],
    cases: |_| 3 * SIZES.len(),
    runs: (5, 2),
    measure: over_sizes,
};

/// Rates and one-way delays of the links. Full packets have 1448 bytes of payload in 1500 bytes. With such
/// packets these rates give the paper's 3.7 and 1.8 MB/s of payload.
pub const PATHS: [(&str, &str); 2] = [("30.66mbit", "25ms"), ("14.92mbit", "35ms")];
/// The same links for the simulator, with rates in Mb/s and round-trip times in ms.
pub const SIMULATED_LINKS: [Link; 2] = [(30.66, 50.0), (14.92, 70.0)];
const LINKS: [&str; 2] = ["link1", "link2"];
/// Throughput of each link alone in the paper, MB/s.
const LINK_RATES_MB_S: [f64; 2] = [3.7, 1.8];
/// Time that a phase's download takes at the full rate of its links, s. A guess: long against slow start.
const PHASE_S: f64 = 12.0;
/// Sizes of the files of [`TM_5B`], MB.
const SIZES: [u64; 5] = [1, 5, 10, 50, 100];
const MB: u64 = 1_000_000;
/// Interval at which the links' counters are read, for figures of one value a second.
const POLL_INTERVAL: Duration = Duration::from_millis(250);
/// Minimum pause between two downloads, so that the queues run empty.
const MIN_PAUSE: Duration = Duration::from_millis(300);
/// Maximum random time that is added to a pause, so that runs do not start in step with periodic work.
const PAUSE_JITTER: Duration = Duration::from_millis(100);

/// The measurement of a download.
#[derive(Debug)]
struct Phase {
    /// Bytes of the file.
    bytes: u64,
    /// Time of the download.
    seconds: f64,
    /// IP bytes that each link carried during the download.
    carried: [u64; 2],
    /// The state at several times: the time in s, the received bytes of the file, and the IP bytes of each
    /// link.
    samples: Vec<(f64, [u64; 3])>,
}

impl Phase {
    /// Returns the mean throughput of the file, MB/s.
    fn rate(&self) -> f64 {
        self.bytes as f64 / self.seconds / 1e6
    }

    /// Returns the mean rate of a link, including headers, MB/s.
    fn link_rate(&self, link: usize) -> f64 {
        self.carried[link] as f64 / self.seconds / 1e6
    }

    /// Returns the rate in each complete second, MB/s: of the file (`counter` 0), or of a link (1 or 2).
    /// Bytes between two samples are interpolated.
    fn by_second(&self, counter: usize) -> Vec<f64> {
        let bytes_at = |second: f64| {
            let later = self.samples.iter().position(|(t, _)| *t >= second)?;
            let (t1, b1) = self.samples[later];
            let (t0, b0) = later
                .checked_sub(1)
                .map_or((0.0, [0; 3]), |n| self.samples[n]);
            // The bound avoids a division by 0 at time 0, where both samples are the same.
            let share = (second - t0) / (t1 - t0).max(1e-9);
            Some(b0[counter] as f64 + share * (b1[counter] as f64 - b0[counter] as f64))
        };
        let in_second = |n: u32| Some(bytes_at(f64::from(n) + 1.0)? - bytes_at(f64::from(n))?);
        (0..)
            .map_while(in_second)
            .map(|bytes| bytes / 1e6)
            .collect()
    }
}

/// The emulated network in which downloads are measured.
struct Downloads {
    net: Gateways,
    rng: Rng,
}

impl Downloads {
    /// Builds the network with a file of `largest` bytes. Box and server are not started yet.
    fn new(session: &Session<'_>, largest: u64) -> Result<Downloads, Error> {
        Ok(Downloads {
            net: Gateways::build(
                |name| fixture::description(name, PATHS),
                Some(CUBIC.name()),
                largest,
            )?,
            rng: Rng::for_component(session.seed(), 0),
        })
    }

    /// Downloads by plain TCP over one link.
    fn plain(&mut self, link: &str, bytes: u64) -> Result<Phase, Error> {
        self.net.fixture.forward_over(link).map_err(run_error)?;
        let phase = self.download(bytes)?;
        self.net.fixture.stop_forwarding().map_err(run_error)?;
        Ok(phase)
    }

    /// Downloads over the current routes, after a pause.
    fn download(&mut self, bytes: u64) -> Result<Phase, Error> {
        let pause = MIN_PAUSE + PAUSE_JITTER.mul_f64(self.rng.unit());
        self.net.fixture.sleep(pause).map_err(run_error)?;
        let (mut samples, mut before) = (Vec::new(), [0; 2]);
        let mut last = Duration::ZERO;
        let seconds = self.net.download("user", bytes, |fixture, at, received| {
            // A download that is repeated because the links were late starts again at time 0.
            if at.is_zero() {
                samples.clear();
                before = carried(fixture);
            } else if at - last < POLL_INTERVAL {
                return;
            }
            last = at;
            let [one, two] = since(carried(fixture), before);
            samples.push((at.as_secs_f64(), [received, one, two]));
        })?;
        let carried = since(carried(&self.net.fixture), before);
        let [one, two] = carried;
        samples.push((seconds, [bytes, one, two]));
        Ok(Phase {
            bytes,
            seconds,
            carried,
            samples,
        })
    }
}

/// Returns the IP bytes that the links have carried towards the user; 0 for a link that cannot be read.
fn carried(fixture: &Fixture) -> [u64; 2] {
    let bytes = fixture.delivered_in_reverse(&LINKS).unwrap_or_default();
    [0, 1].map(|link| bytes.get(link).copied().unwrap_or_default())
}

/// Returns the increase of both counters.
fn since(now: [u64; 2], before: [u64; 2]) -> [u64; 2] {
    [0, 1].map(|link| now[link].saturating_sub(before[link]))
}

/// Returns the bytes of a phase's download at this rate.
fn bytes_of_phase(megabytes_a_second: f64) -> u64 {
    (megabytes_a_second * PHASE_S * 1e6) as u64
}

/// The variants of tm-5a. Functions below use these indices.
const VARIANTS: [&str; 5] = [
    "both links, through box and server",
    "link 1 alone, through box and server",
    "link 2 alone, through box and server",
    "link 1 alone, plain TCP",
    "link 2 alone, plain TCP",
];

fn over_phases(session: &mut Session<'_>) -> Result<(), Error> {
    let bytes = [
        LINK_RATES_MB_S[0],
        LINK_RATES_MB_S[1],
        LINK_RATES_MB_S[0] + LINK_RATES_MB_S[1],
    ]
    .map(bytes_of_phase);
    let phases = match session.backend().is_virtual() {
        true => simulated_phases(session, bytes)?,
        false => emulated_phases(session, bytes)?,
    };
    session.parameter("length of a phase at the full rate", format!("{PHASE_S} s"));
    let record = |phase: &Phase| json!({ "mb_s": phase.rate(), "links_mb_s": [phase.link_rate(0), phase.link_rate(1)] });
    for (variant, phases) in VARIANTS.iter().zip(&phases) {
        let name = variant.replace(", ", "-").replace(' ', "-");
        session.record(name, phases.iter().map(record).collect());
    }
    session.table(rates(&phases));
    session.figure("throughput", phases_figure(&phases));
    let rates = phases.map(|phases| phases.iter().map(Phase::rate).collect::<Vec<_>>());
    session.verdict(share_of_sum(&rates[0], [&rates[3], &rates[4]]));
    Ok(())
}

/// The runs of each of [`VARIANTS`].
type Phases = [Vec<Phase>; VARIANTS.len()];

/// Runs each variant in a simulated network that has only the links of the variant.
fn simulated_phases(
    session: &mut Session<'_>,
    [one, two, both]: [u64; 3],
) -> Result<Phases, Error> {
    simulated::parameters(session);
    let mut phases = Phases::default();
    let [first, second] = SIMULATED_LINKS;
    let variants: [(AggregationConfig, u64, &[usize]); VARIANTS.len()] = [
        (simulated::aggregated(&SIMULATED_LINKS)?, both, &[0, 1]),
        (simulated::aggregated(&[first])?, one, &[0]),
        (simulated::aggregated(&[second])?, two, &[1]),
        (simulated::plain(first, None)?, one, &[0]),
        (simulated::plain(second, None)?, two, &[1]),
    ];
    for ((config, bytes, links), phases) in variants.iter().zip(&mut phases) {
        let download = |_, seed| simulated_phase(seed, config, *bytes, links);
        *phases = session.each(session.runs(), download)?;
    }
    Ok(phases)
}

/// Downloads in a simulated network. `links` are the indices of its links among [`SIMULATED_LINKS`].
fn simulated_phase(
    seed: u64,
    config: &AggregationConfig,
    bytes: u64,
    links: &[usize],
) -> Result<Phase, Error> {
    let mut net = simulated::start(seed, config)?;
    let carried = |net: &Aggregation| {
        let mut carried = [0; 2];
        for (link, (_, down)) in links.iter().zip(&net.access) {
            carried[*link] = net.world.counters(*down).delivered.bytes;
        }
        carried
    };
    let (before, mut samples) = (carried(&net), Vec::new());
    let seconds = simulated::download(&mut net, bytes, |net, at, received| {
        let [one, two] = since(carried(net), before);
        samples.push((at.as_secs_f64(), [received, one, two]));
    })?;
    let carried = since(carried(&net), before);
    samples.push((seconds, [bytes, carried[0], carried[1]]));
    Ok(Phase {
        bytes,
        seconds,
        carried,
        samples,
    })
}

/// Runs each variant over emulated links: plain TCP first, while the box does not run.
fn emulated_phases(session: &mut Session<'_>, [one, two, both]: [u64; 3]) -> Result<Phases, Error> {
    let mut downloads = Downloads::new(session, both)?;
    let mut phases = Phases::default();
    for _ in 0..session.runs() {
        for (n, bytes) in [one, two].into_iter().enumerate() {
            phases[3 + n].push(downloads.plain(LINKS[n], bytes)?);
            session.finished();
        }
    }
    downloads.net.start_server("server")?;
    downloads.net.start_box()?;
    for _ in 0..session.runs() {
        phases[0].push(downloads.download(both)?);
        session.finished();
        for (n, bytes) in [one, two].into_iter().enumerate() {
            let other = LINKS[1 - n];
            downloads.net.ask(&["link", other, "off"])?;
            phases[1 + n].push(downloads.download(bytes)?);
            downloads.net.ask(&["link", other, "on"])?;
            session.finished();
        }
    }
    parameters(session, &downloads.net);
    Ok(phases)
}

/// Judges, run by run, the throughput over both links against the sum of the throughputs of the single
/// links.
fn share_of_sum(both: &[f64], alone: [&[f64]; 2]) -> Verdict {
    let sums = alone[0].iter().zip(alone[1]).map(|(one, two)| one + two);
    let shares = both.iter().zip(sums).map(|(both, sum)| both / sum * 100.0);
    Verdict::new(
        "both links, of the sum of plain TCP over each alone",
        Bound::AtLeast(95.0),
        "%",
        shares
            .enumerate()
            .map(|(run, share)| (format!("run {run}"), share)),
    )
    .reported("87 %")
}

fn parameters(session: &mut Session<'_>, net: &Gateways) {
    let paths = PATHS.map(|(rate, delay)| format!("{rate} and {delay} one way"));
    session.parameter("links", paths.join(", "));
    session.parameter("between server and content server", "unlimited, no delay");
    session.parameter("congestion control", CUBIC.name());
    session.parameter("strategy", "adaptive");
    session.parameter(
        "downloads made again because links were late",
        net.repeated(),
    );
}

fn rates(phases: &Phases) -> Table {
    let reported = ["4.8", "", "", "3.7", "1.8"];
    let row = |((variant, phases), reported): ((&&str, &Vec<Phase>), &str)| {
        let mean = |value: &dyn Fn(&Phase) -> f64| {
            let values: Vec<f64> = phases.iter().map(value).collect();
            plus_minus(estimate(&values), 2)
        };
        vec![
            (*variant).to_owned(),
            mean(&Phase::rate),
            reported.to_owned(),
            mean(&|phase| phase.link_rate(0)),
            mean(&|phase| phase.link_rate(1)),
        ]
    };
    let rows = VARIANTS.iter().zip(phases).zip(reported).map(row).collect();
    let columns = [
        "",
        "MB/s",
        "reported",
        "link 1 carries, with headers",
        "link 2 carries",
    ];
    Table::new(
        "Mean throughput and half width of its 95 % interval, MB/s",
        &columns,
        rows,
    )
}

/// Returns the figure of the first run. It has three time slots: both links, the first link alone, the
/// second link alone. Plain TCP has no run over both links, so its line begins in the second slot.
fn phases_figure(phases: &Phases) -> Figure {
    let first: Vec<&Phase> = phases.iter().filter_map(|runs| runs.first()).collect();
    let longest = first
        .iter()
        .map(|phase| phase.seconds)
        .fold(0.0, f64::max)
        .ceil();
    let line = |variants: &[usize], counter: usize| {
        let mut points = Vec::new();
        for (n, variant) in variants.iter().enumerate() {
            // A line of two phases leaves the first of the three slots empty.
            let begin = (n + 3 - variants.len()) as f64 * longest;
            let rates = first
                .get(*variant)
                .map(|phase| phase.by_second(counter))
                .unwrap_or_default();
            let point = |(s, rate): (usize, f64)| Point::new(begin + s as f64 + 0.5, rate);
            points.extend(rates.into_iter().enumerate().map(point));
        }
        points
    };
    over_time(
        "Throughput over both links, then over each alone",
        "3.7 and 1.8 MB/s, 50 and 70 ms; CUBIC; the first run, over 1 s each; of links with headers",
        "MB/s",
        vec![
            Series::line("through box and server", line(&[0, 1, 2], 0)),
            Series::line("link 1 of it", line(&[0, 1, 2], 1)),
            Series::line("link 2 of it", line(&[0, 1, 2], 2)),
            Series::line("plain TCP over the one link", line(&[3, 4], 0)),
        ],
    )
}

/// The throughputs of all runs at one size, MB/s: through box and server, and by plain TCP over each link.
type Rates = [Vec<f64>; 3];

fn simulated_sizes(session: &mut Session<'_>) -> Result<[Rates; SIZES.len()], Error> {
    simulated::parameters(session);
    let [first, second] = SIMULATED_LINKS;
    let variants = [
        simulated::aggregated(&SIMULATED_LINKS)?,
        simulated::plain(first, None)?,
        simulated::plain(second, None)?,
    ];
    let mut rates: [Rates; SIZES.len()] = Default::default();
    for (rates, size) in rates.iter_mut().zip(SIZES) {
        for (rates, config) in rates.iter_mut().zip(&variants) {
            let download = |_, seed| Ok(simulated_phase(seed, config, size * MB, &[])?.rate());
            *rates = session.each(session.runs(), download)?;
        }
    }
    Ok(rates)
}

fn emulated_sizes(session: &mut Session<'_>) -> Result<[Rates; SIZES.len()], Error> {
    let largest = SIZES[SIZES.len() - 1] * MB;
    let mut downloads = Downloads::new(session, largest)?;
    let mut rates: [Rates; SIZES.len()] = Default::default();
    for _ in 0..session.runs() {
        for (rates, size) in rates.iter_mut().zip(SIZES) {
            for (n, link) in LINKS.into_iter().enumerate() {
                rates[1 + n].push(downloads.plain(link, size * MB)?.rate());
                session.finished();
            }
        }
    }
    downloads.net.start_server("server")?;
    downloads.net.start_box()?;
    // The first download after a start waits until a connection between box and server opens. It is not
    // measured; the claim is about connections that wait in the pool.
    downloads.download(MB)?;
    for _ in 0..session.runs() {
        for (rates, size) in rates.iter_mut().zip(SIZES) {
            downloads.net.wait_for_pool()?;
            rates[0].push(downloads.download(size * MB)?.rate());
            session.finished();
        }
    }
    parameters(session, &downloads.net);
    Ok(rates)
}

fn over_sizes(session: &mut Session<'_>) -> Result<(), Error> {
    let rates = match session.backend().is_virtual() {
        true => simulated_sizes(session)?,
        false => emulated_sizes(session)?,
    };
    for (size, rates) in SIZES.iter().zip(&rates) {
        let [boxed, one, two] = rates;
        let record = json!({ "box_mb_s": boxed, "link1_mb_s": one, "link2_mb_s": two });
        session.record(format!("{size}MB"), record);
    }
    let table = SIZES.iter().zip(&rates).map(|(size, rates)| {
        let mut row = vec![format!("{size} MB")];
        row.extend(rates.iter().map(|rates| plus_minus(estimate(rates), 2)));
        row.extend(gains_of(rates).map(|gain| format!("{gain:+.0} %")));
        row
    });
    let columns = [
        "",
        "box and server",
        "link 1",
        "link 2",
        "over the better",
        "over the other",
    ];
    session.table(Table::new(
        "Mean throughput and half width of its 95 % interval, MB/s, and what is gained",
        &columns,
        table.collect(),
    ));
    session.figure("throughput-by-size", sizes_figure(&rates));
    gain_verdicts(&rates)
        .into_iter()
        .for_each(|verdict| session.verdict(verdict));
    Ok(())
}

/// Returns the gain of box and server over the better link, and over the other link, %.
fn gains_of([boxed, one, two]: &Rates) -> [f64; 2] {
    let mean = |rates: &[f64]| stats::mean(rates).unwrap_or(f64::NAN);
    let (one, two) = (mean(one), mean(two));
    [one.max(two), one.min(two)].map(|alone| (mean(boxed) / alone - 1.0) * 100.0)
}

fn gain_verdicts(rates: &[Rates; SIZES.len()]) -> Vec<Verdict> {
    let gains = rates.each_ref().map(gains_of);
    let of_size = |n: usize| (format!("{} MB", SIZES[n]), gains[n][0]);
    let last = SIZES.len() - 1;
    let claim =
        |text: &str, bound, values: Vec<(String, f64)>| Verdict::new(text, bound, "%", values);
    vec![
        claim(
            "from 5 MB on, gain over the better link",
            Bound::Above(0.0),
            (1..=last).map(of_size).collect(),
        )
        .reported("more at every size"),
        claim(
            "at 1 MB, by a connection that waited, gain over the better link",
            Bound::Above(0.0),
            vec![of_size(0)],
        )
        .reported("more at every size"),
        claim(
            "at 100 MB, gain over the better link",
            Bound::AtLeast(40.0),
            vec![of_size(last)],
        )
        .reported("up to 40 %"),
        claim(
            "at 100 MB, gain over the other link",
            Bound::AtLeast(180.0),
            vec![(format!("{} MB", SIZES[last]), gains[last][1])],
        )
        .reported("up to 180 %"),
    ]
}

fn sizes_figure(rates: &[Rates; SIZES.len()]) -> Figure {
    let series = |(n, name): (usize, &str)| {
        let points = SIZES.iter().zip(rates).map(|(size, rates)| {
            let (mean, half) = estimate(&rates[n]);
            Point::with_error(*size as f64, mean, half)
        });
        Series::line(name, points)
    };
    let names = [
        "through box and server",
        "link 1, plain TCP",
        "link 2, plain TCP",
    ];
    Figure {
        title: "Mean throughput against the size of the file".to_owned(),
        note: "3.7 and 1.8 MB/s, 50 and 70 ms; CUBIC; means with 95 % intervals".to_owned(),
        x: Axis {
            label: "size (MB)".to_owned(),
            scale: Scale::Log,
            format: Format::Number,
        },
        y: Axis::linear("throughput (MB/s)"),
        body: Body::Plane(names.into_iter().enumerate().map(series).collect()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holding(verdicts: &[Verdict]) -> Vec<bool> {
        verdicts.iter().map(|verdict| verdict.holds).collect()
    }

    #[test]
    fn both_links_are_judged_by_the_sum_of_their_own_run() {
        // 95 % of 3.7 + 1.8 is 5.225, and 95 % of 3.6 + 1.8 is 5.13.
        let judge = |both: &[f64]| share_of_sum(both, [&[3.7, 3.6], &[1.8, 1.8]]).holds;
        assert!(judge(&[5.23, 5.13]));
        assert!(!judge(&[5.23, 5.12]));
        assert!(!judge(&[]));
    }

    #[test]
    fn gains_are_over_the_better_link_and_over_the_other() {
        let each = |boxed: f64| [vec![boxed], vec![3.7], vec![1.8]];
        let rates = [3.8, 4.5, 4.9, 5.2, 5.3].map(each);
        assert_eq!(holding(&gain_verdicts(&rates)), [true; 4]);
        // The paper's own result, 4.8 MB/s, is a gain of 30 % over the better link and of 167 % over the
        // other link.
        let reported = [3.6, 4.5, 4.8, 4.8, 4.8].map(each);
        assert_eq!(
            holding(&gain_verdicts(&reported)),
            [true, false, false, false]
        );
        assert_eq!(gains_of(&reported[4]).map(f64::round), [30.0, 167.0]);
        assert_eq!(holding(&gain_verdicts(&Default::default())), [false; 4]);
    }

    #[test]
    fn rates_are_interpolated_between_samples() {
        let phase = Phase {
            bytes: 6_000_000,
            seconds: 2.5,
            carried: [0; 2],
            samples: vec![
                (0.0, [0; 3]),
                (0.5, [1_000_000, 0, 0]),
                (1.5, [3_000_000, 0, 0]),
                (2.5, [6_000_000, 0, 0]),
            ],
        };
        // 2 MB at 1 s, and 4.5 MB at 2 s; the last half second is not complete.
        assert_eq!(phase.by_second(0), [2.0, 2.5]);
        assert_eq!(phase.by_second(1), [0.0, 0.0]);
        assert_eq!(phase.rate(), 2.4);
    }
}
