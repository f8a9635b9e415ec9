//! The box's choice among several servers, and the throughput through each server.

use std::time::Duration;

use braid_engine::cc::CUBIC;
use braid_proxy::control::{Answer, Request};
use braid_sim::aggregation::{Aggregation, AggregationConfig, Load, content_addr, server_addr};
use braid_sim::udp::UdpFlow;
use braid_wire::Instant;
use serde_json::{Value, json};

use super::servers::{self, SERVERS, Server};
use super::simulated;
use crate::backend::gateways::Gateways;
use crate::backend::{Backend, Error, run_error};
use crate::experiments::entry;
use crate::experiments::outcome::{Table, row};
use crate::experiments::series::bars;
use crate::experiments::session::Session;
use crate::experiments::verdict::Verdict;
use crate::plot::{Figure, Point};
use crate::stats;

/// Number of servers in the paper's table.
const PUBLISHED_SERVERS: usize = 5;
/// Time that each download takes at the full rate, s. All downloads take the same time, so that slow start
/// has the same weight in every throughput.
const DOWNLOAD_S: f64 = 10.0;
/// Bytes of the file, enough for a download at 100 Mb/s. A slower download fetches only the first part.
const FILE_BYTES: f64 = 100e6 / 8.0 * DOWNLOAD_S;
/// Rate of the background traffic on each path, bit/s.
const CROSS_TRAFFIC_RATE: u64 = 20_000_000;
/// Number of the server, from 1, to which the background traffic goes.
const CROSS_TRAFFIC_SERVER: usize = 3;
/// Bytes of a download that only opens a connection. The connection shows the server that the box uses, or
/// makes the box measure. The size is a guess.
const SMALL_DOWNLOAD_BYTES: u64 = 100_000;
/// Number of measurements made before a choice is read. The box uses the median of its last three.
const MIN_ROUNDS: usize = 3;
/// Maximum number of measurements with background traffic until the choice must have changed. The median of
/// the last three changes after two; two more are a reserve.
const MAX_ROUNDS: usize = 4;

/// Maximum time between two measurements in the simulator. The box gets this setting, so that a run is
/// short.
const MAX_MEASUREMENT_GAP: Duration = Duration::from_secs(10);
/// Time for which users browse in the simulator before a choice is read: enough for [`MIN_ROUNDS`]
/// measurements.
const BROWSING_SPAN: Duration = Duration::from_secs(25);

/// Returns the bytes of a download at this rate, Mb/s.
fn size(mbit: f64) -> u64 {
    (mbit * 1e6 / 8.0 * DOWNLOAD_S) as u64
}

/// Measured throughputs of a server, Mb/s: by plain TCP over each path from the box, by plain TCP from the
/// content server, and through box and server over both paths. A throughput of 0 was not measured.
type Throughputs = [f64; 4];

/// Returns the upper bound on the throughput through the server, computed from the throughputs of plain
/// TCP.
fn upper_bound([one, two, beyond, _]: Throughputs) -> f64 {
    (one + two).min(beyond)
}

/// Returns the throughput through the server as a share of its upper bound, %.
fn share(throughputs: Throughputs) -> f64 {
    throughputs[3] / upper_bound(throughputs) * 100.0
}

/// The servers that a box chooses, and its measurements.
#[derive(Debug, Clone)]
struct Choice {
    /// Number of the server with the highest bandwidth, from 1; 0 for none.
    by_bandwidth: usize,
    /// Number of the server with the lowest delay, from 1; 0 for none.
    by_delay: usize,
    /// The box's status of its servers, as JSON.
    servers: Value,
}

impl Choice {
    /// Reads the choice from a box's status of its servers.
    fn from_status(servers: Value) -> Choice {
        let flagged = |flag: &str| {
            let mut all = servers.as_array().into_iter().flatten();
            all.position(|server| server[flag] == true)
                .map_or(0, |at| at + 1)
        };
        Choice {
            by_bandwidth: flagged("by_bandwidth"),
            by_delay: flagged("by_delay"),
            servers,
        }
    }
}

/// The box's choices at several moments of the experiment.
#[derive(Debug, Clone)]
struct Choices {
    /// The choice among the published servers, before any of them carried a download.
    five: Choice,
    /// The choice among all six servers, after each of them carried a download.
    six: Choice,
    /// The choices with background traffic to server 3: after `rounds` measurements, and after one more.
    others: [Choice; 2],
    /// Number of measurements until the background traffic changed the choice.
    rounds: usize,
}

/// Reads choices with background traffic until the box does not choose the server with the traffic, but at most
/// [`MAX_ROUNDS`] choices. Then reads one more: a single changed choice may be noise, and the next must confirm it.
/// Returns the last two choices, and the number of choices before the last. `next` makes the box measure, and
/// returns its choice.
fn choices_beside_others(
    mut next: impl FnMut() -> Result<Choice, Error>,
) -> Result<([Choice; 2], usize), Error> {
    let mut rounds = 1;
    let mut choice = next()?;
    while choice.by_bandwidth == CROSS_TRAFFIC_SERVER && rounds < MAX_ROUNDS {
        choice = next()?;
        rounds += 1;
    }
    Ok(([choice, next()?], rounds))
}

/// Returns the number of cases.
pub fn cases(backend: Backend) -> usize {
    match backend.is_virtual() {
        true => 1,
        // By plain TCP over each path of the published servers, to each server, and through each.
        false => 2 * PUBLISHED_SERVERS + 2 * SERVERS.len(),
    }
}

/// Measures the choice among the servers of table 1, and the throughput of figure 4.
pub fn measure(session: &mut Session<'_>) -> Result<(), Error> {
    let lengths = format!(
        "{DOWNLOAD_S} s at the full rate: over a path, to a server, through box and server"
    );
    session.parameter("downloads", lengths);
    let others = CROSS_TRAFFIC_RATE / 1_000_000;
    session.parameter(
        "others",
        format!("{others} Mb/s of UDP on each path to server 3"),
    );
    let (runs, choices) = match session.backend().is_virtual() {
        true => {
            simulated::parameters(session);
            let runs = session.each(session.runs(), |_, seed| simulated_throughputs(seed))?;
            (runs, simulated_choices(session.seed())?)
        }
        false => emulated(session)?,
    };
    let Choices {
        five, six, others, ..
    } = &choices;
    for (name, choice) in [
        ("five", five),
        ("six", six),
        ("others", &others[0]),
        ("others-again", &others[1]),
    ] {
        session.record(format!("measured-{name}"), choice.servers.clone());
    }
    let record = |[one, two, beyond, aggregated]: &Throughputs| json!({ "b": [one, two], "b_s": beyond, "joined": aggregated });
    let records = runs
        .iter()
        .map(|run| run.iter().map(record).collect::<Value>());
    session.record("mbit_s".to_owned(), records.collect());
    let means: Vec<Throughputs> = (0..SERVERS.len())
        .map(|server| mean(&runs, server))
        .collect();
    for (when, choice) in [
        ("What the box measures at first", five),
        ("Once each was used, and the sixth is there", six),
        ("While others send to server 3", &others[1]),
    ] {
        session.table(measurements(when, choice));
    }
    session.table(throughputs(&means));
    session.table(policies(&means, five));
    session.figure("throughput-by-server", figure(&means));
    session.verdicts(verdicts(&runs, &choices));
    Ok(())
}

/// Measures over emulated links.
fn emulated(session: &mut Session<'_>) -> Result<(Vec<Vec<Throughputs>>, Choices), Error> {
    let mut net = Gateways::build(servers::description, Some(CUBIC.name()), FILE_BYTES as u64)?;
    let mut runs = Vec::new();
    for _ in 0..session.runs() {
        runs.push(plain_throughputs(session, &mut net)?);
    }
    for n in 1..=PUBLISHED_SERVERS {
        net.start_server(&servers::name(n))?;
    }
    net.start_box()?;
    let choices = emulated_choices(session, &mut net, &mut runs)?;
    simulated::both_ends(session);
    session.parameter(
        "measurements of each server before a choice is looked at",
        MIN_ROUNDS,
    );
    session.parameter(
        "measurements until background traffic changed the choice",
        choices.rounds,
    );
    session.parameter(
        "downloads and measurements made again because links were late",
        net.repeated(),
    );
    Ok((runs, choices))
}

/// Measures the throughput of plain TCP over each path of each server, without the box's proxy.
fn plain_throughputs(session: &Session<'_>, net: &mut Gateways) -> Result<Vec<Throughputs>, Error> {
    let mut all = Vec::new();
    for (n, server) in (1..).zip(&SERVERS) {
        let mut throughputs = Throughputs::default();
        // The claim on the last server is only that the box does not choose it, so the paths from the box to
        // it are not measured.
        let measured = if n > PUBLISHED_SERVERS { 0 } else { 2 };
        for (at, (mbit, _)) in server.paths[..measured].iter().enumerate() {
            servers::route_through(net, n, at + 1)?;
            throughputs[at] = rate(net, "user", size(mbit.min(server.beyond.0)))?;
            net.fixture.stop_forwarding().map_err(run_error)?;
            session.finished();
        }
        throughputs[2] = rate(net, &servers::name(n), size(server.beyond.0))?;
        session.finished();
        all.push(throughputs);
    }
    Ok(all)
}

/// Reads the box's choices over emulated links. Between the first and the second choice, measures the
/// throughput through each server in turn, and stores the throughputs in `runs`.
fn emulated_choices(
    session: &Session<'_>,
    net: &mut Gateways,
    runs: &mut [Vec<Throughputs>],
) -> Result<Choices, Error> {
    let five = choice_after(net, MIN_ROUNDS)?;
    for (at, throughputs) in runs.iter_mut().enumerate() {
        for (n, throughputs) in (1..).zip(throughputs) {
            // The sixth server must not take part in the first choice.
            if n > PUBLISHED_SERVERS && at == 0 {
                net.start_server(&servers::name(n))?;
            }
            throughputs[3] = through(net, n)?;
            session.finished();
        }
    }
    net.ask(&["server", "auto"])?;
    let six = choice_after(net, MIN_ROUNDS)?;
    let start_traffic = |link: String| net.fixture.cross_traffic(&link, CROSS_TRAFFIC_RATE);
    let [one, two] = servers::links(CROSS_TRAFFIC_SERVER).map(start_traffic);
    let traffic = [one.map_err(run_error)?, two.map_err(run_error)?];
    let (others, rounds) = choices_beside_others(|| choice_after(net, 1))?;
    // Dropping `traffic` stops the background traffic.
    drop(traffic);
    Ok(Choices {
        five,
        six,
        others,
        rounds,
    })
}

/// Makes the box use server `n`, and returns the throughput through box and server, Mb/s.
fn through(net: &mut Gateways, n: usize) -> Result<f64, Error> {
    let name = servers::name(n);
    net.ask(&["server", &name])?;
    net.wait_for(&format!("connections to go to {name}"), |net| {
        // The pool still holds connections to the previous server, and the box uses these first. Small
        // downloads take them, until one download goes to the new server.
        let before = carried(net, n)?;
        net.download_once("user", SMALL_DOWNLOAD_BYTES, |_, _, _| ())?;
        Ok(carried(net, n)? - before >= SMALL_DOWNLOAD_BYTES)
    })?;
    net.wait_for_pool()?;
    rate(net, "user", size(SERVERS[n - 1].rate()))
}

/// Returns the IP bytes that server `n` has sent to the box.
fn carried(net: &Gateways, n: usize) -> Result<u64, Error> {
    let links = servers::links(n);
    let carried = net
        .fixture
        .delivered_in_reverse(&links.each_ref().map(String::as_str));
    Ok(carried.map_err(run_error)?.iter().sum())
}

/// Returns the throughput of a download, Mb/s.
fn rate(net: &mut Gateways, host: &str, bytes: u64) -> Result<f64, Error> {
    let seconds = net.download(host, bytes, |_, _, _| ())?;
    Ok(bytes as f64 * 8.0 / seconds / 1e6)
}

/// Makes the box measure every server `rounds` times, and returns its choice after that.
fn choice_after(net: &mut Gateways, rounds: usize) -> Result<Choice, Error> {
    let mut servers = Value::Null;
    for _ in 0..rounds {
        servers = net.retry_while_late(|net| {
            // The box measures only while users send.
            net.download_once("user", SMALL_DOWNLOAD_BYTES, |_, _, _| ())?;
            net.ask(&["servers", "--probe"])
        })?;
    }
    Ok(Choice::from_status(servers))
}

/// Measures the throughputs of each server in the simulator, each in a network of its own.
fn simulated_throughputs(seed: u64) -> Result<Vec<Throughputs>, Error> {
    let rate = |config: AggregationConfig, mbit: f64| {
        let mut net = simulated::start(seed, &config)?;
        let bytes = size(mbit);
        let seconds = simulated::download(&mut net, bytes, |_, _, _| ())?;
        Ok::<_, Error>(bytes as f64 * 8.0 / seconds / 1e6)
    };
    let throughputs = |server: &Server| {
        let Server { paths, beyond, .. } = *server;
        let alone = |path: simulated::Link| {
            rate(simulated::plain(path, Some(beyond))?, path.0.min(beyond.0))
        };
        Ok([
            alone(paths[0])?,
            alone(paths[1])?,
            rate(simulated::plain(beyond, None)?, beyond.0)?,
            rate(network(&[*server])?, server.rate())?,
        ])
    };
    SERVERS.iter().map(throughputs).collect()
}

/// Returns a network of a box with these servers. The box's own links, of 1 Gb/s and 0.5 ms, are no
/// bottleneck.
fn network(servers: &[Server]) -> Result<AggregationConfig, Error> {
    let mut config = simulated::aggregated(&[(1000.0, 0.5); 2])?;
    config.set_servers(servers.len()).map_err(run_error)?;
    for (settings, server) in config.servers.iter_mut().zip(servers) {
        settings.from_access = server.paths.map(simulated::path).to_vec();
        settings.to_content = simulated::path(server.beyond);
        // The server measures its delay to this target. Nothing listens on port 9 (discard), so the content
        // host answers at once with a reset.
        settings.config.targets = vec![(content_addr(0), 9).into()];
    }
    Ok(config)
}

/// Returns the choices of a box in the simulator while users browse. The first choice is among five
/// servers. The second is among six: a download through the sixth server has then measured its path to
/// content. The other choices are made with background traffic.
fn simulated_choices(seed: u64) -> Result<Choices, Error> {
    let start = |mut config: AggregationConfig| {
        config.boxed.measuring.most = MAX_MEASUREMENT_GAP;
        let mut net = simulated::start_cold(seed, &config)?;
        let choice = browsed_choice(&mut net, BROWSING_SPAN)?;
        Ok::<_, Error>((net, choice))
    };
    let config = network(&SERVERS)?;
    let last = config.boxed.servers[PUBLISHED_SERVERS].name.clone();
    let (mut net, _) = start(config)?;
    // The box learns the rate from a server to content only from a connection that this rate limits.
    simulated::use_server(&mut net, &last)?;
    simulated::browse(&mut net, MAX_MEASUREMENT_GAP)?;
    let bytes = size(SERVERS[PUBLISHED_SERVERS].beyond.0);
    net.open(0, 0, Load::Down(bytes)).map_err(run_error)?;
    simulated::browse(&mut net, MAX_MEASUREMENT_GAP)?;
    simulated::use_server(&mut net, "auto")?;
    let six = browsed_choice(&mut net, 2 * MAX_MEASUREMENT_GAP)?;
    let mut config = network(&SERVERS[..PUBLISHED_SERVERS])?;
    let flow = |port| UdpFlow {
        start: Instant::ZERO + BROWSING_SPAN + MAX_MEASUREMENT_GAP,
        // 2,000 packets of 1250 bytes a second are 20 Mb/s.
        ..UdpFlow::constant(
            (server_addr(CROSS_TRAFFIC_SERVER - 1), port).into(),
            ([10, 0, 0, 1], port).into(),
            CROSS_TRAFFIC_RATE,
            1_250,
        )
    };
    config.servers[CROSS_TRAFFIC_SERVER - 1].cross = vec![flow(7_001), flow(7_002)];
    let (mut net, five) = start(config)?;
    simulated::browse(&mut net, MAX_MEASUREMENT_GAP)?;
    let next = || browsed_choice(&mut net, MAX_MEASUREMENT_GAP);
    let (others, rounds) = choices_beside_others(next)?;
    Ok(Choices {
        five,
        six,
        others,
        rounds,
    })
}

/// Returns the choice of a box in the simulator after users have browsed for `time`.
fn browsed_choice(net: &mut Aggregation, time: Duration) -> Result<Choice, Error> {
    simulated::browse(net, time)?;
    let Some(Answer::Status(status)) = net.ask(Request::Status) else {
        return Err(Error::Run("the box does not answer".to_owned()));
    };
    let servers = serde_json::to_value(status.servers).map_err(run_error)?;
    Ok(Choice::from_status(servers))
}

/// Returns the mean throughputs of a server over all runs.
fn mean(runs: &[Vec<Throughputs>], server: usize) -> Throughputs {
    [0, 1, 2, 3].map(|value| {
        let values: Vec<f64> = runs.iter().map(|run| run[server][value]).collect();
        stats::mean(&values).unwrap_or(f64::NAN)
    })
}

/// Returns a table of the box's measurements beside the settings of the paths.
fn measurements(when: &str, choice: &Choice) -> Table {
    let cell = |value: &Value, unit: f64, setting: f64| match value.as_f64() {
        Some(value) => format!("{:.1} ({setting})", value / unit),
        None => format!("- ({setting})"),
    };
    let cells = |(n, server): (usize, &Server)| {
        let measured = &choice.servers[n - 1]["measured"];
        let mut row = vec![n.to_string()];
        let [one, two] = server.paths;
        for (path, (mbit, ms)) in [
            (&measured["paths"][0], one),
            (&measured["paths"][1], two),
            (&measured["beyond"], server.beyond),
        ] {
            row.push(cell(&path["bandwidth"], 1e6, mbit));
            row.push(cell(&path["delay_ms"], 1.0, ms));
        }
        let chosen = [
            ("bandwidth", choice.by_bandwidth),
            ("delay", choice.by_delay),
        ];
        let chosen_by = chosen.iter().filter(|(_, chosen)| *chosen == n);
        row.push(chosen_by.map(|(by, _)| *by).collect::<Vec<_>>().join(", "));
        row
    };
    let rows = (1..).zip(&SERVERS).map(cells).collect();
    let table = entry::table("tm-1", "measurements", rows);
    Table {
        title: format!("{when} {}", table.title),
        ..table
    }
}

/// Returns a table of the mean throughputs of each server.
fn throughputs(means: &[Throughputs]) -> Table {
    let cells = |((n, server), mean): ((usize, &Server), &Throughputs)| {
        let mut row = vec![n.to_string()];
        let shown = |value: &f64| match *value > 0.0 {
            true => format!("{value:.2}"),
            false => "-".to_owned(),
        };
        row.extend(mean.iter().map(shown));
        let share = Some(share(*mean)).filter(|share| share.is_finite());
        row.push(share.map_or("-".to_owned(), |share| format!("{share:.0} %")));
        row.push(shown(&server.reported));
        row
    };
    let rows = (1..).zip(&SERVERS).zip(means).map(cells);
    entry::table("tm-1", "throughputs", rows.collect())
}

/// Returns a table of the throughput that each rule of choice would have reached.
fn policies(means: &[Throughputs], choice: &Choice) -> Table {
    let aggregated: Vec<f64> = means.iter().map(|mean| mean[3]).collect();
    let rtt = |n: &usize| {
        let [(_, one), (_, two)] = SERVERS[n - 1].paths;
        one.min(two)
    };
    let nearest = (1..=PUBLISHED_SERVERS).min_by(|a, b| rtt(a).total_cmp(&rtt(b)));
    let random = stats::mean(&aggregated[..PUBLISHED_SERVERS]).unwrap_or(f64::NAN);
    let chosen = |rule: &str, n: usize| {
        // Servers count from 1. The number 0, for no server, has no throughput.
        let mbit = n.checked_sub(1).map_or(f64::NAN, |at| aggregated[at]);
        row(&[&rule, &n, &format!("{mbit:.2}")])
    };
    let by_bandwidth = "largest min(B_1 + B_2, B_s), as measured";
    let rows = vec![
        chosen(by_bandwidth, choice.by_bandwidth),
        chosen("lowest delay to content, as measured", choice.by_delay),
        chosen("lowest round trip to the server", nearest.unwrap_or(0)),
        row(&[&"at random", &"mean of 1 to 5", &format!("{random:.2}")]),
    ];
    entry::table("tm-1", "policies", rows)
}

fn figure(means: &[Throughputs]) -> Figure {
    let groups = ["server 1", "server 2", "server 3", "server 4", "server 5"];
    let series = |name, value: &dyn Fn(usize) -> f64| {
        let point = |n| Point::new(n as f64, value(n));
        (name, (0..PUBLISHED_SERVERS).map(point).collect())
    };
    let series = vec![
        series("path 1 alone", &|n| means[n][0]),
        series("path 2 alone", &|n| means[n][1]),
        series("through box and server", &|n| means[n][3]),
        series("reported", &|n| SERVERS[n].reported),
    ];
    bars(
        "Throughput over each path alone and through box and server",
        "Table 1 of T-MPTCP as emulated links; CUBIC; plain TCP over the single paths",
        "Mb/s",
        (&groups, series),
    )
}

fn verdicts(runs: &[Vec<Throughputs>], choices: &Choices) -> [Verdict; 6] {
    let Choices {
        five, six, others, ..
    } = choices;
    let server = |label: &str, n: usize| (label.to_owned(), n as f64);
    let shares: Vec<(String, f64)> = runs
        .iter()
        .enumerate()
        .flat_map(|(run, servers)| {
            let published = (1..=PUBLISHED_SERVERS).zip(servers);
            published.map(move |(n, server)| (format!("server {n}, run {run}"), share(*server)))
        })
        .collect();
    // A box that chooses no server (0) has not chosen another.
    let moved = |choice: &Choice| !matches!(choice.by_bandwidth, 0 | CROSS_TRAFFIC_SERVER);
    let stayed = others.iter().filter(|choice| !moved(choice)).count();
    entry::judge(
        "tm-1",
        [
            vec![server("server", five.by_bandwidth)],
            vec![server("server", five.by_delay)],
            vec![server("server", six.by_bandwidth)],
            shares.clone(),
            shares,
            vec![(String::new(), stayed as f64)],
        ],
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choice(by_bandwidth: usize, by_delay: usize) -> Choice {
        Choice {
            by_bandwidth,
            by_delay,
            servers: Value::Null,
        }
    }

    /// Returns a run in which every server reaches `share` of its upper bound.
    fn run(share: f64) -> Vec<Throughputs> {
        let throughputs = |server: &Server| {
            let [(one, _), (two, _)] = server.paths;
            [one, two, server.beyond.0, share * server.rate()]
        };
        SERVERS.iter().map(throughputs).collect()
    }

    fn choices(five: Choice, six: usize, others: [usize; 2]) -> Choices {
        Choices {
            five,
            six: choice(six, 0),
            others: others.map(|n| choice(n, 0)),
            rounds: 1,
        }
    }

    fn holding(share: f64, choices: &Choices) -> Vec<bool> {
        let all = verdicts(&[run(share)], choices);
        all.iter().map(|verdict| verdict.holds()).collect()
    }

    #[test]
    fn the_choice_is_judged_by_number_and_each_server_by_its_own_paths() {
        let good = choices(choice(3, 2), 3, [2, 1]);
        let (y, n) = (true, false);
        assert_eq!(holding(0.91, &good), [y; 6]);
        assert_eq!(holding(0.89, &good), [y, y, y, y, n, y]);
        assert_eq!(holding(0.68, &good), [y, y, y, n, n, y]);
        let fooled = choices(choice(1, 4), 6, [3, 3]);
        assert_eq!(holding(0.91, &fooled), [n, n, n, y, y, n]);
        let undecided = choices(choice(3, 2), 3, [2, 3]);
        assert_eq!(holding(0.91, &undecided), [y, y, y, y, y, n]);
        let nothing = verdicts(&[], &choices(choice(0, 0), 0, [0, 0]));
        assert!(nothing.iter().all(|verdict| !verdict.holds()));
    }

    #[test]
    fn the_upper_bound_is_set_by_the_bottleneck() {
        let bounds: Vec<f64> = run(1.0).into_iter().map(upper_bound).collect();
        // The sums of both paths, except for the last server, whose path to content has 10 Mb/s.
        let expected = [35.34, 38.01, 47.32, 15.29, 18.0, 10.0];
        let near = |(a, b): (&f64, f64)| (a - b).abs() < 1e-9;
        assert!(bounds.iter().zip(expected).all(near), "{bounds:?}");
        assert_eq!([47.32, 13.0].map(size), [59_150_000, 16_250_000]);
        let beyond = SERVERS.map(|server| size(server.beyond.0));
        assert!(
            beyond.iter().all(|size| *size <= FILE_BYTES as u64),
            "{beyond:?}"
        );
    }
}
