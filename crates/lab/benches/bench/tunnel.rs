//! Datagrams from user to content host through the tunnel of box and server, and through wireguard-go in their place.
//! The variants alternate, so that other load of the machine falls on both alike.

use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use braid::failure::Failure;
use braid_testbed::fixture::Fixture;
use serde::Serialize;

use crate::Arguments;
use crate::cost::Cost;
use crate::fixture::{self, Gateways, WAIT_TIMEOUT};
use crate::flood::{Flood, PACKET};
use crate::speed::{Ratio, Spread};
use crate::wireguard::{self, WireGuard};

/// Datagrams that the user sends with one call: one, or as many as a QUIC sender does (`UDP_SEGMENT`).
const BURSTS: [usize; 2] = [1, 16];
/// Bounds of the tunnel to wireguard-go: the least rate, and the most processor time per Gbit.
const BARS: [f64; 2] = [1.0, 1.0];
/// The time in which the tunnel finds out what its links can carry, before the first run.
const WARM_UP: Duration = Duration::from_secs(1);

/// The comparison, for each way in which users send.
#[derive(Debug, Serialize)]
pub struct Tunnel {
    packet: usize,
    rows: Vec<Row>,
}

/// The comparison for one way in which users send.
#[derive(Debug, Serialize)]
struct Row {
    /// Datagrams that the user sends with one call.
    burst: usize,
    tunnel: Summary,
    #[serde(skip_serializing_if = "Option::is_none")]
    wireguard_go: Option<Summary>,
    #[serde(skip_serializing_if = "Option::is_none")]
    over_wireguard_go: Option<Over>,
}

/// Spreads over all runs.
#[derive(Debug, Clone, Copy, Serialize)]
struct Summary {
    gbit_s: Spread,
    /// Processor time of both ends' processes.
    cpu_s_per_gbit: Spread,
    /// Processor time of the whole machine, with user and content host: the kernel charges its work on packets to the
    /// process that it interrupts.
    machine_s_per_gbit: Spread,
    /// Share of the datagrams that did not arrive.
    lost: Spread,
}

/// Ratios pair by pair.
#[derive(Debug, Serialize)]
struct Over {
    gbit_s: Ratio,
    cpu_s_per_gbit: Ratio,
    /// Without a bound, as it has user and content host in it, which are the same for both.
    machine_s_per_gbit: Spread,
}

/// Figures of one run: rate, processor time of the processes and of the machine per Gbit, share lost.
type Run = [f64; 4];

/// Measures the tunnel, and wireguard-go if it is installed.
pub fn measure(arguments: &Arguments) -> Result<Tunnel, Failure> {
    let mut variants = vec![Variant::braid(arguments)?];
    match wireguard::program() {
        Some(program) => variants.push(Variant::wireguard(arguments, &program)?),
        None => eprintln!(
            "THE TUNNEL BESIDE WIREGUARD-GO SKIPPED (it is not built: install Go, then scripts/wireguard-go.sh)"
        ),
    }
    let datagrams = arguments.bytes / 8 / PACKET as u64;
    let mut rows = Vec::new();
    for burst in BURSTS {
        let mut runs = vec![Vec::new(); variants.len()];
        // The first round warms caches and grows tables, so it does not count.
        for round in 0..=arguments.pairs {
            for (variant, runs) in variants.iter_mut().zip(&mut runs) {
                let run = variant.run(datagrams, burst)?;
                eprintln!(
                    "bursts of {burst}, run {round}: {} {:.2} Gbit/s, {:.0} ms/Gbit, machine {:.0} ms/Gbit, \
                     {:.2} % lost",
                    variant.name,
                    run[0],
                    run[1] * 1e3,
                    run[2] * 1e3,
                    run[3] * 1e2
                );
                if round > 0 {
                    runs.push(run);
                }
            }
        }
        rows.push(Row::of(burst, &runs));
    }
    Ok(Tunnel {
        packet: PACKET,
        rows,
    })
}

impl Row {
    fn of(burst: usize, runs: &[Vec<Run>]) -> Row {
        let tunnel = runs.first().map_or(&[][..], Vec::as_slice);
        let other = runs.get(1);
        let over = |other: &Vec<Run>| {
            let ratio = |n: usize| Spread::of(tunnel.iter().zip(other).map(|(t, o)| t[n] / o[n]));
            let [rate, cpu] = BARS;
            Over {
                gbit_s: Ratio::at_least(ratio(0), rate),
                cpu_s_per_gbit: Ratio::at_most(ratio(1), cpu),
                machine_s_per_gbit: ratio(2),
            }
        };
        Row {
            burst,
            tunnel: Summary::of(tunnel),
            wireguard_go: other.map(|runs| Summary::of(runs)),
            over_wireguard_go: other.map(over),
        }
    }
}

impl Summary {
    fn of(runs: &[Run]) -> Summary {
        let spread = |n: usize| Spread::of(runs.iter().map(|run| run[n]));
        Summary {
            gbit_s: spread(0),
            cpu_s_per_gbit: spread(1),
            machine_s_per_gbit: spread(2),
            lost: spread(3),
        }
    }
}

/// The processes between user and content host.
enum Ends {
    BoxAndServer,
    WireGuard(WireGuard),
}

/// A testbed of its own, with the programs of one variant running in it.
struct Variant {
    name: &'static str,
    // Before the fixture, whose namespaces its processes are in.
    ends: Ends,
    flood: Flood,
    fixture: Fixture,
}

impl Variant {
    fn braid(arguments: &Arguments) -> Result<Variant, Failure> {
        let mut fixture = fixture::unshaped(Gateways::Braid, &arguments.congestion)?;
        fixture.start("server", WAIT_TIMEOUT)?;
        fixture.start("box", WAIT_TIMEOUT)?;
        fixture.wait_for_interception(WAIT_TIMEOUT)?;
        Variant::of(Gateways::Braid, fixture, |_, _| Ok(Ends::BoxAndServer))
    }

    fn wireguard(arguments: &Arguments, program: &Path) -> Result<Variant, Failure> {
        let fixture = fixture::unshaped(Gateways::WireGuard, &arguments.congestion)?;
        Variant::of(Gateways::WireGuard, fixture, |fixture, content| {
            Ok(Ends::WireGuard(WireGuard::start(
                program, fixture, content,
            )?))
        })
    }

    /// Waits until datagrams go through the ends that `start` has started.
    fn of(
        gateways: Gateways,
        mut fixture: Fixture,
        start: impl FnOnce(&mut Fixture, IpAddr) -> Result<Ends, Failure>,
    ) -> Result<Variant, Failure> {
        let content = fixture.address("content")?;
        let ends = start(&mut fixture, content)?;
        let namespace = |host| -> Result<String, Failure> {
            Ok(fixture.testbed.layout().host(host)?.namespace.clone())
        };
        let flood = Flood::open(&namespace("user")?, (&namespace("content")?, content))?;
        let server = fixture.address("server")?;
        let what = format!("datagrams to go through the tunnel ({})", gateways.name());
        fixture.wait_for(&what, WAIT_TIMEOUT, |_| {
            Ok(flood.seen_by().is_ok_and(|by| by == Some(server)))
        })?;
        fixture.sleep(WARM_UP)?;
        Ok(Variant {
            name: gateways.name(),
            ends,
            flood,
            fixture,
        })
    }

    fn run(&mut self, datagrams: u64, burst: usize) -> Result<Run, Failure> {
        let pids = self.pids()?;
        let before = Cost::now(&pids)?;
        let flooded = self.flood.run(datagrams, burst)?;
        let cost = Cost::now(&pids)?.since(&before);
        Ok([
            flooded.gbit / flooded.seconds,
            cost.processes / flooded.gbit,
            cost.machine / flooded.gbit,
            flooded.lost,
        ])
    }

    fn pids(&mut self) -> Result<Vec<u32>, Failure> {
        if let Ends::WireGuard(ends) = &self.ends {
            return Ok(ends.pids());
        }
        fixture::pids(&mut self.fixture)
    }
}

impl Tunnel {
    /// Prints the results as text.
    pub fn print(&self) {
        println!(
            "The tunnel, from user to content host: UDP in packets of {} bytes; median (least to most)",
            self.packet
        );
        for row in &self.rows {
            println!("  the user sends {} at a time", row.burst);
            let braid = Some(("Braid", row.tunnel));
            let other = row.wireguard_go.map(|summary| ("wireguard-go", summary));
            for (name, summary) in braid.into_iter().chain(other) {
                println!(
                    "    {name:<14}{} Gbit/s; {} ms/Gbit, the two processes; {} ms/Gbit, machine; {} % lost",
                    summary.gbit_s.text(),
                    summary.cpu_s_per_gbit.times(1e3).text(),
                    summary.machine_s_per_gbit.times(1e3).text(),
                    summary.lost.times(1e2).text()
                );
            }
            if let Some(over) = &row.over_wireguard_go {
                let name = "    Braid / wireguard-go,";
                println!("{name} Gbit/s: {}", over.gbit_s.text(">="));
                println!(
                    "{name} the two processes' time for a Gbit: {}",
                    over.cpu_s_per_gbit.text("<=")
                );
                println!(
                    "{name} the machine's time for a Gbit: {}",
                    over.machine_s_per_gbit.text()
                );
            }
        }
    }
}
