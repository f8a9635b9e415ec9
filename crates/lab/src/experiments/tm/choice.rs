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
use crate::experiments::definition::Definition;
use crate::experiments::outcome::Table;
use crate::experiments::series::bars;
use crate::experiments::session::Session;
use crate::experiments::verdict::{Bound, Verdict};
use crate::plot::Point;
use crate::stats;

/// The choice among the servers of table 1, and the throughput of figure 4.
pub const TM_1: Definition = Definition {
    id: "tm-1",
    title: "Five servers and one behind a slow link: which is chosen, and what each gives",
    source: "T-MPTCP, table 1 and figure 4",
    setup: "A box with two links, five aggregation servers as in table 1 (delays as round-trip \
            times) and one of 35 and 25 Mb/s with 10 Mb/s to content; each (link, server) is a link \
            of its own behind the box's, as is each server's to the content server; queues of one \
            bandwidth-delay product. curl downloads from nginx by plain TCP over each path with the \
            proxy off, then through box and each server in turn. The box measures and chooses; once \
            more while others send over both paths to server 3.",
    reported: "Server 3 is chosen by bandwidth. Through the servers: 24.38, 28.45, 36.89, 13.03, \
               17.02 Mb/s.",
    must_hold: "By bandwidth 3, by delay 2, never 6; through each at least 90 % of min(b_1 + b_2, \
                b_s) by plain TCP; 20 Mb/s of others on each path to 3 move the choice.",
    backends: &[Backend::Sim, Backend::Links],
    cases: |backend| match backend.is_virtual() {
        true => 1,
        false => SINGLE_PATH_DOWNLOADS + 2 * SERVERS.len(),
    },
    runs: (1, 1),
    measure,
};

/// Number of servers in the paper's table.
const PUBLISHED_SERVERS: usize = 5;
/// Number of downloads by plain TCP over a single path.
const SINGLE_PATH_DOWNLOADS: usize = 2 * PUBLISHED_SERVERS;
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

/// Measured throughputs of a server and its paths, Mb/s.
#[derive(Debug, Clone, Copy, Default)]
struct ServerThroughput {
    /// By plain TCP over each path from the box.
    alone: [f64; 2],
    /// By plain TCP from the content server to the server.
    beyond: f64,
    /// Through box and server, over both paths.
    aggregated: f64,
}

impl ServerThroughput {
    /// Returns the upper bound on the throughput through the server, computed from the throughputs of plain
    /// TCP.
    fn upper_bound(&self) -> f64 {
        (self.alone[0] + self.alone[1]).min(self.beyond)
    }
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
            let all = servers.as_array().map_or(&[][..], |all| &all[..]);
            all.iter()
                .position(|server| server[flag] == true)
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

impl Choices {
    /// Reads the box's choices over emulated links. Between the first and the second choice, measures the
    /// throughput through each server in turn, and stores the throughputs in `runs`.
    fn measure(
        session: &Session<'_>,
        net: &mut Gateways,
        runs: &mut [Vec<ServerThroughput>],
    ) -> Result<Choices, Error> {
        let five = choice_after(net, MIN_ROUNDS)?;
        for (at, throughput) in runs.iter_mut().enumerate() {
            for (n, throughput) in (1..).zip(throughput) {
                // The sixth server must not take part in the first choice.
                if n > PUBLISHED_SERVERS && at == 0 {
                    net.start_server(&servers::name(n))?;
                }
                throughput.aggregated = through(net, n)?;
                session.finished();
            }
        }
        net.ask(&["server", "auto"])?;
        let six = choice_after(net, MIN_ROUNDS)?;
        let start_traffic = |link: String| {
            net.fixture
                .cross_traffic(&link, CROSS_TRAFFIC_RATE)
                .map_err(run_error)
        };
        let traffic = servers::links(CROSS_TRAFFIC_SERVER).map(start_traffic);
        let traffic = traffic.into_iter().collect::<Result<Vec<_>, _>>()?;
        let mut rounds = 1;
        let mut others = choice_after(net, 1)?;
        while others.by_bandwidth == CROSS_TRAFFIC_SERVER && rounds < MAX_ROUNDS {
            others = choice_after(net, 1)?;
            rounds += 1;
        }
        // A single changed choice may be noise, so another measurement must confirm it.
        let others = [others, choice_after(net, 1)?];
        // Dropping `traffic` stops the background traffic.
        drop(traffic);
        Ok(Choices {
            five,
            six,
            others,
            rounds,
        })
    }
}

fn measure(session: &mut Session<'_>) -> Result<(), Error> {
    let lengths = format!(
        "{DOWNLOAD_S} s at the full rate: over a path, to a server, through box and server"
    );
    session.parameter("downloads", lengths);
    let others = format!(
        "{} Mb/s of UDP on each path to server 3",
        CROSS_TRAFFIC_RATE / 1_000_000
    );
    session.parameter("others", others);
    let (runs, choices) = match session.backend().is_virtual() {
        true => {
            simulated::parameters(session);
            let runs = session.each(session.runs(), |_, seed| simulated_throughputs(seed))?;
            (runs, simulated_choices(session.seed())?)
        }
        false => emulated(session)?,
    };
    for (name, choice) in [
        ("five", &choices.five),
        ("six", &choices.six),
        ("others", &choices.others[0]),
        ("others-again", &choices.others[1]),
    ] {
        session.record(format!("measured-{name}"), choice.servers.clone());
    }
    let record = |throughput: &ServerThroughput| {
        json!({
            "b": throughput.alone,
            "b_s": throughput.beyond,
            "joined": throughput.aggregated,
        })
    };
    let records = runs
        .iter()
        .map(|run| run.iter().map(record).collect::<Vec<_>>());
    session.record("mbit_s".to_owned(), records.collect());
    let means = means(&runs);
    session.table(measurements(
        "What the box measures at first",
        &choices.five,
    ));
    session.table(measurements(
        "Once each was used, and the sixth is there",
        &choices.six,
    ));
    session.table(measurements(
        "While others send to server 3",
        &choices.others[1],
    ));
    session.table(throughputs(&means));
    session.table(policies(&means, &choices.five));
    session.figure("throughput-by-server", figure(&means));
    for verdict in verdicts(&runs, &choices) {
        session.verdict(verdict);
    }
    Ok(())
}

/// Measures over emulated links.
fn emulated(session: &mut Session<'_>) -> Result<(Vec<Vec<ServerThroughput>>, Choices), Error> {
    let mut net = Gateways::build(servers::description, Some(CUBIC.name()), FILE_BYTES as u64)?;
    let mut runs = Vec::new();
    for _ in 0..session.runs() {
        runs.push(plain_throughputs(session, &mut net)?);
    }
    for n in 1..=PUBLISHED_SERVERS {
        net.start_server(&servers::name(n))?;
    }
    net.start_box()?;
    let choices = Choices::measure(session, &mut net, &mut runs)?;
    parameters(session, &net, choices.rounds);
    Ok((runs, choices))
}

/// Measures the throughputs of each server in the simulator, each in a network of its own.
fn simulated_throughputs(seed: u64) -> Result<Vec<ServerThroughput>, Error> {
    let rate = |config: &AggregationConfig, mbit: f64| {
        let mut net = simulated::start(seed, config)?;
        let bytes = size(mbit);
        let seconds = simulated::download(&mut net, bytes, |_, _, _| ())?;
        Ok::<_, Error>(bytes as f64 * 8.0 / seconds / 1e6)
    };
    let throughput = |server: &Server| {
        let Server { paths, beyond, .. } = *server;
        let [one, two] = paths.map(|path| {
            let config = simulated::plain(path, Some(beyond))?;
            rate(&config, path.0.min(beyond.0))
        });
        let upper_bound = (paths[0].0 + paths[1].0).min(beyond.0);
        Ok(ServerThroughput {
            alone: [one?, two?],
            beyond: rate(&simulated::plain(beyond, None)?, beyond.0)?,
            aggregated: rate(&network(&[*server])?, upper_bound)?,
        })
    };
    SERVERS.iter().map(throughput).collect()
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
    let choice_after = |net: &mut Aggregation, time| {
        simulated::browse(net, time)?;
        let Some(Answer::Status(status)) = net.ask(Request::Status) else {
            return Err(Error::Run("the box does not answer".to_owned()));
        };
        Ok::<_, Error>(Choice::from_status(
            serde_json::to_value(status.servers).map_err(run_error)?,
        ))
    };
    let mut config = network(&SERVERS)?;
    config.boxed.measuring.most = MAX_MEASUREMENT_GAP;
    let mut net = simulated::start_cold(seed, &config)?;
    choice_after(&mut net, BROWSING_SPAN)?;
    // The box learns the rate from a server to content only from a connection that this rate limits.
    let last = &config.boxed.servers[PUBLISHED_SERVERS].name;
    simulated::use_server(&mut net, last)?;
    simulated::browse(&mut net, MAX_MEASUREMENT_GAP)?;
    let bytes = size(SERVERS[PUBLISHED_SERVERS].beyond.0);
    net.open(0, 0, Load::Down(bytes)).map_err(run_error)?;
    simulated::browse(&mut net, MAX_MEASUREMENT_GAP)?;
    simulated::use_server(&mut net, "auto")?;
    let six = choice_after(&mut net, 2 * MAX_MEASUREMENT_GAP)?;
    let mut config = network(&SERVERS[..PUBLISHED_SERVERS])?;
    config.boxed.measuring.most = MAX_MEASUREMENT_GAP;
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
    let mut net = simulated::start_cold(seed, &config)?;
    let five = choice_after(&mut net, BROWSING_SPAN)?;
    let mut rounds = 1;
    let mut others = choice_after(&mut net, 2 * MAX_MEASUREMENT_GAP)?;
    while others.by_bandwidth == CROSS_TRAFFIC_SERVER && rounds < MAX_ROUNDS {
        others = choice_after(&mut net, MAX_MEASUREMENT_GAP)?;
        rounds += 1;
    }
    let others = [others, choice_after(&mut net, MAX_MEASUREMENT_GAP)?];
    Ok(Choices {
        five,
        six,
        others,
        rounds,
    })
}

/// Measures the throughput of plain TCP over each path of each server, without the box's proxy.
fn plain_throughputs(
    session: &Session<'_>,
    net: &mut Gateways,
) -> Result<Vec<ServerThroughput>, Error> {
    let mut all = Vec::new();
    for (n, server) in (1..).zip(&SERVERS) {
        let mut throughput = ServerThroughput::default();
        // The claim on the last server is only that the box does not choose it, so the paths from the box to
        // it are not measured.
        for (at, (mbit, _)) in server
            .paths
            .iter()
            .enumerate()
            .filter(|_| n <= PUBLISHED_SERVERS)
        {
            servers::route_through(net, n, at + 1)?;
            throughput.alone[at] = rate(net, "user", size(mbit.min(server.beyond.0)))?;
            net.fixture.stop_forwarding().map_err(run_error)?;
            session.finished();
        }
        throughput.beyond = rate(net, &servers::name(n), size(server.beyond.0))?;
        session.finished();
        all.push(throughput);
    }
    Ok(all)
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
    let server = &SERVERS[n - 1];
    let [(one, _), (two, _)] = server.paths;
    rate(net, "user", size((one + two).min(server.beyond.0)))
}

/// Returns the IP bytes that server `n` has sent to the box.
fn carried(net: &Gateways, n: usize) -> Result<u64, Error> {
    let links = servers::links(n);
    let links = links.each_ref().map(String::as_str);
    let carried = net
        .fixture
        .delivered_in_reverse(&links)
        .map_err(run_error)?;
    Ok(carried.iter().sum())
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

fn parameters(session: &mut Session<'_>, net: &Gateways, rounds: usize) {
    session.parameter("congestion control", CUBIC.name());
    session.parameter("strategy", "adaptive");
    session.parameter(
        "measurements of each server before a choice is looked at",
        MIN_ROUNDS,
    );
    session.parameter("measurements until those with others moved it", rounds);
    session.parameter(
        "downloads and measurements made again because links were late",
        net.repeated(),
    );
}

/// Returns the mean throughputs of each server over all runs.
fn means(runs: &[Vec<ServerThroughput>]) -> Vec<ServerThroughput> {
    let mean_of = |server: usize, value: fn(&ServerThroughput) -> f64| {
        let values: Vec<f64> = runs.iter().map(|run| value(&run[server])).collect();
        stats::mean(&values).unwrap_or(f64::NAN)
    };
    let mean = |server| ServerThroughput {
        alone: [
            mean_of(server, |g| g.alone[0]),
            mean_of(server, |g| g.alone[1]),
        ],
        beyond: mean_of(server, |g| g.beyond),
        aggregated: mean_of(server, |g| g.aggregated),
    };
    (0..SERVERS.len()).map(mean).collect()
}

/// Returns a table of the box's measurements beside the settings of the paths.
fn measurements(when: &str, choice: &Choice) -> Table {
    let cell = |value: &Value, unit: f64, decimals: usize, setting: f64| {
        let value = value
            .as_f64()
            .map(|value| format!("{:.decimals$}", value / unit));
        format!("{} ({setting})", value.unwrap_or_else(|| "-".to_owned()))
    };
    let row = |(n, server): (usize, &Server)| {
        let measured = &choice.servers[n - 1]["measured"];
        let mut row = vec![n.to_string()];
        let [one, two] = server.paths;
        let paths = [
            (&measured["paths"][0], one),
            (&measured["paths"][1], two),
            (&measured["beyond"], server.beyond),
        ];
        for (path, (mbit, ms)) in paths {
            row.push(cell(&path["bandwidth"], 1e6, 1, mbit));
            row.push(cell(&path["delay_ms"], 1.0, 1, ms));
        }
        let chosen = [
            ("bandwidth", choice.by_bandwidth),
            ("delay", choice.by_delay),
        ];
        let chosen = chosen.iter().filter(|(_, chosen)| *chosen == n);
        row.push(chosen.map(|(by, _)| *by).collect::<Vec<_>>().join(", "));
        row
    };
    let columns = [
        "server",
        "B_1",
        "D_1",
        "B_2",
        "D_2",
        "B_s",
        "D_s",
        "chosen by",
    ];
    Table::new(
        format!(
            "{when} (and what there is), Mb/s and ms; B_s is known once a connection waited for it"
        ),
        &columns,
        (1..).zip(&SERVERS).map(row).collect(),
    )
}

/// Returns a table of the mean throughputs of each server.
fn throughputs(means: &[ServerThroughput]) -> Table {
    // A throughput of 0 was not measured.
    let shown = |value: f64| match value > 0.0 {
        true => format!("{value:.2}"),
        false => "-".to_owned(),
    };
    let row = |((n, server), throughput): ((usize, &Server), &ServerThroughput)| {
        let share = throughput.aggregated / throughput.upper_bound() * 100.0;
        vec![
            n.to_string(),
            shown(throughput.alone[0]),
            shown(throughput.alone[1]),
            shown(throughput.beyond),
            shown(throughput.aggregated),
            if share.is_finite() {
                format!("{share:.0} %")
            } else {
                "-".to_owned()
            },
            server
                .reported
                .map_or("-".to_owned(), |mbit| format!("{mbit:.2}")),
        ]
    };
    let columns = [
        "server",
        "b_1",
        "b_2",
        "b_s",
        "through box and server",
        "of min(b_1 + b_2, b_s)",
        "reported",
    ];
    Table::new(
        "Throughput by plain TCP over each path and to each server, and through box and server, \
                Mb/s",
        &columns,
        (1..).zip(&SERVERS).zip(means).map(row).collect(),
    )
}

/// Returns a table of the throughput that each rule of choice would have reached.
fn policies(means: &[ServerThroughput], choice: &Choice) -> Table {
    // Servers count from 1. The number 0, for no server, has no throughput.
    let aggregated = |n: usize| {
        means
            .get(n.wrapping_sub(1))
            .map_or(f64::NAN, |throughput| throughput.aggregated)
    };
    let all: Vec<f64> = means[..PUBLISHED_SERVERS]
        .iter()
        .map(|throughput| throughput.aggregated)
        .collect();
    let rtt = |server: &Server| server.paths[0].1.min(server.paths[1].1);
    let nearest = (1..=PUBLISHED_SERVERS).min_by(|a, b| {
        let [a, b] = [a, b].map(|n| rtt(&SERVERS[n - 1]));
        a.total_cmp(&b)
    });
    let nearest = nearest.unwrap_or(0);
    let row =
        |rule: &str, which: String, mbit: f64| vec![rule.to_owned(), which, format!("{mbit:.2}")];
    Table::new(
        "Throughput by what one of the five servers is chosen, Mb/s",
        &["choice", "server", "throughput"],
        vec![
            row(
                "largest min(B_1 + B_2, B_s), as measured",
                choice.by_bandwidth.to_string(),
                aggregated(choice.by_bandwidth),
            ),
            row(
                "lowest delay to content, as measured",
                choice.by_delay.to_string(),
                aggregated(choice.by_delay),
            ),
            row(
                "lowest round trip to the server",
                nearest.to_string(),
                aggregated(nearest),
            ),
            row(
                "at random",
                "mean of 1 to 5".to_owned(),
                stats::mean(&all).unwrap_or(f64::NAN),
            ),
        ],
    )
}

fn figure(means: &[ServerThroughput]) -> crate::plot::Figure {
    let points = |value: &dyn Fn(usize) -> f64| -> Vec<Point> {
        (0..PUBLISHED_SERVERS)
            .map(|n| Point::new(n as f64, value(n)))
            .collect()
    };
    let groups = ["server 1", "server 2", "server 3", "server 4", "server 5"];
    bars(
        "Throughput over each path alone and through box and server",
        "Table 1 of T-MPTCP as emulated links; CUBIC; plain TCP over the single paths",
        "Mb/s",
        (
            &groups,
            vec![
                ("path 1 alone", points(&|n| means[n].alone[0])),
                ("path 2 alone", points(&|n| means[n].alone[1])),
                ("through box and server", points(&|n| means[n].aggregated)),
                (
                    "reported",
                    points(&|n| SERVERS[n].reported.unwrap_or(f64::NAN)),
                ),
            ],
        ),
    )
}

fn verdicts(runs: &[Vec<ServerThroughput>], choices: &Choices) -> Vec<Verdict> {
    let Choices {
        five, six, others, ..
    } = choices;
    let number =
        |claim: &str, bound, n: usize| Verdict::new(claim, bound, "", [("server", n as f64)]);
    let shares = runs.iter().enumerate().flat_map(|(run, throughput)| {
        let published = (1..=PUBLISHED_SERVERS).zip(throughput);
        published.map(move |(n, throughput)| {
            (
                format!("server {n}, run {run}"),
                throughput.aggregated / throughput.upper_bound() * 100.0,
            )
        })
    });
    vec![
        number(
            "chosen by bandwidth",
            Bound::Within(3.0, 3.0),
            five.by_bandwidth,
        )
        .reported("3"),
        number("chosen by delay", Bound::Within(2.0, 2.0), five.by_delay).unless(
            "the ways through 2, 3 and 4 lie within 1.3 ms of each other, which is about as well as \
             a handshake on a busy machine is timed",
        ),
        number(
            "chosen by bandwidth beside one of 60 Mb/s with 10 Mb/s to content",
            Bound::Within(3.0, 3.0),
            six.by_bandwidth,
        ),
        Verdict::new(
            "through box and server, of min(b_1 + b_2, b_s)",
            Bound::AtLeast(90.0),
            "%",
            shares,
        )
        .reported("69 to 95 % of the raw sum"),
        Verdict::new(
            "chosen by bandwidth while others send to server 3: one of the next best",
            Bound::Within(1.0, 2.0),
            "",
            [("server", &others[0]), ("server, once more", &others[1])]
                .map(|(when, choice)| (when, choice.by_bandwidth as f64)),
        ),
    ]
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
    fn run(share: f64) -> Vec<ServerThroughput> {
        let throughput = |server: &Server| {
            let [(one, _), (two, _)] = server.paths;
            let upper_bound = (one + two).min(server.beyond.0);
            ServerThroughput {
                alone: [one, two],
                beyond: server.beyond.0,
                aggregated: share * upper_bound,
            }
        };
        SERVERS.iter().map(throughput).collect()
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
        all.iter().map(|verdict| verdict.holds).collect()
    }

    #[test]
    fn the_choice_is_judged_by_number_and_each_server_by_its_own_paths() {
        let good = choices(choice(3, 2), 3, [2, 1]);
        assert_eq!(holding(0.91, &good), [true; 5]);
        assert_eq!(holding(0.89, &good), [true, true, true, false, true]);
        let fooled = choices(choice(1, 4), 6, [3, 3]);
        assert_eq!(holding(0.91, &fooled), [false, false, false, true, false]);
        let undecided = choices(choice(3, 2), 3, [2, 3]);
        assert_eq!(holding(0.91, &undecided), [true, true, true, true, false]);
        let nothing = verdicts(&[], &choices(choice(0, 0), 0, [0, 0]));
        assert!(nothing.iter().all(|verdict| !verdict.holds));
    }

    #[test]
    fn the_upper_bound_is_set_by_the_bottleneck() {
        let upper_bound: Vec<f64> = run(1.0).iter().map(ServerThroughput::upper_bound).collect();
        // The sums of both paths, except for the last server, whose path to content has 10 Mb/s.
        let expected = [35.34, 38.01, 47.32, 15.29, 18.0, 10.0];
        let near = |(a, b): (&f64, f64)| (a - b).abs() < 1e-9;
        assert!(
            upper_bound.iter().zip(expected).all(near),
            "{upper_bound:?}"
        );
        assert_eq!([47.32, 13.0].map(size), [59_150_000, 16_250_000]);
        let beyond = SERVERS.map(|server| size(server.beyond.0));
        assert!(
            beyond.iter().all(|size| *size <= FILE_BYTES as u64),
            "{beyond:?}"
        );
    }
}
