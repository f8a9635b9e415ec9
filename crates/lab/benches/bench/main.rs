//! Benchmarks: speed and memory against the kernel's Multipath TCP and relays on it, the cost of
//! protection, a link that slows down, and the simulator's speed. They print bounds and results, and
//! leave the judgement to the reader; only a failed measurement ends them with an error.
//!
//! `make bench` runs them. All but the simulator's need what the network tests need: root or a user
//! namespace, `ip`, `nft`.

mod backends;
mod cost;
mod fct;
mod fixture;
mod flood;
mod idle;
mod peers;
mod sim;
mod slow;
mod speed;
mod tunnel;
mod veth;
mod whole;
mod wireguard;

use std::process::ExitCode;

use braid::failure::Failure;
use clap::Parser;
use serde::Serialize;

/// Speed against the kernel's MPTCP and, from user to content host, against relays on it; the tunnel
/// against wireguard-go; memory of idle connections, a link that slows down, and the simulator's speed.
#[derive(Debug, Parser)]
pub struct Arguments {
    /// Pairs of runs (kernel, engine) for each direction.
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pairs: u32,
    /// Bytes of one transfer.
    #[arg(long, default_value_t = 4_000_000_000, value_parser = clap::value_parser!(u64).range(1_000_000..))]
    bytes: u64,
    /// Congestion control of both sides.
    #[arg(long, default_value = "cubic")]
    congestion: String,
    /// Idle connections whose memory is measured.
    #[arg(long, default_value_t = 2_000, value_parser = clap::value_parser!(u32).range(1..=8_000))]
    idle: u32,
    /// Runs of each case on each backend, and downloads of each size.
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    runs: u64,
    /// Only this part.
    #[arg(long, value_enum)]
    only: Option<Part>,
    /// One JSON object instead of text.
    #[arg(long)]
    json: bool,
    /// The flag that cargo passes to every benchmark.
    #[arg(long, hide = true)]
    bench: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    /// Sending and receiving over two veth links.
    Speed,
    /// From user to content host, through box and server or through relays on the kernel's
    /// Multipath TCP.
    Whole,
    /// Datagrams from user to content host, through the tunnel or through wireguard-go.
    Tunnel,
    /// Small downloads with and without protection.
    Fct,
    /// Memory of idle proxied connections.
    Idle,
    /// Transfers over two emulated links, one of which slows down for a while.
    Slow,
    /// Speed of the simulator.
    Sim,
    /// The simulator against emulated links.
    #[value(name = "arms")]
    Backends,
}

/// All results.
#[derive(Debug, Default, Serialize)]
struct Results {
    #[serde(skip_serializing_if = "Option::is_none")]
    speed: Option<speed::Speed>,
    #[serde(skip_serializing_if = "Option::is_none")]
    whole: Option<whole::Whole>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tunnel: Option<tunnel::Tunnel>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fct: Option<Vec<fct::Fct>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    idle: Option<Vec<idle::Idle>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    slow: Option<Vec<slow::Slow>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sim: Option<sim::Sim>,
    #[serde(rename = "arms", skip_serializing_if = "Option::is_none")]
    backends: Option<Vec<backends::Agreement>>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if arguments.only != Some(Part::Sim)
        && let Err(reason) = braid_testbed::netns::ensure_capable()
    {
        reason.announce("benchmark");
        // The exit code of a skipped test in automake.
        return ExitCode::from(77);
    }
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("bench: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<(), Failure> {
    let wanted = |part| arguments.only.is_none_or(|only| only == part);
    let mut results = Results::default();
    if wanted(Part::Speed) {
        let speed = speed::measure(arguments)?;
        if !arguments.json {
            speed.print();
        }
        results.speed = Some(speed);
    }
    if wanted(Part::Whole) {
        results.whole = whole::measure(arguments)?;
        if let Some(whole) = results.whole.as_ref().filter(|_| !arguments.json) {
            whole.print();
        }
    }
    if wanted(Part::Tunnel) {
        let tunnel = tunnel::measure(arguments)?;
        if !arguments.json {
            tunnel.print();
        }
        results.tunnel = Some(tunnel);
    }
    if wanted(Part::Fct) {
        let rows = fct::measure(arguments.runs)?;
        if !arguments.json {
            fct::print(&rows);
        }
        results.fct = Some(rows);
    }
    if wanted(Part::Idle) {
        let idle = idle::measure(arguments)?;
        if !arguments.json {
            idle.iter().for_each(idle::Idle::print);
        }
        results.idle = Some(idle);
    }
    if wanted(Part::Slow) {
        let rows = slow::measure()?;
        if !arguments.json {
            slow::print(&rows);
        }
        results.slow = Some(rows);
    }
    if wanted(Part::Sim) {
        let sim = sim::measure()?;
        if !arguments.json {
            sim.print();
        }
        results.sim = Some(sim);
    }
    if wanted(Part::Backends) {
        let rows = backends::measure(arguments.runs)?;
        if !arguments.json {
            backends::print(&rows);
        }
        results.backends = Some(rows);
    }
    if arguments.json {
        braid_lab::kernel_peer::print_line(&results)?;
    }
    Ok(())
}
