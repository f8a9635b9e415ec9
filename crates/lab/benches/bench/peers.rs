//! One transfer between two peers, and what the peers report.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};

use braid::failure::Failure;
use serde::Deserialize;

use crate::cost;
use crate::veth::{LINKS, Network, far_address};

const BRAID_LAB: &str = env!("CARGO_BIN_EXE_braid-lab");
const PORT: u16 = 7005;
/// Attempts at a transfer. The kernel's join sometimes fails or comes late, also several times in a
/// row; these failures are not what is measured.
pub const ATTEMPTS: u32 = 8;
/// Bytes below which a link counts as unused in a transfer.
pub const MIN_CARRIED_BYTES: u64 = 1_000_000;

/// The stack that opens the connection and is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stack {
    /// Kernel sockets.
    Kernel,
    /// Braid's engine.
    Engine,
}

/// The direction of the data, seen from the compared stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// The compared stack sends.
    Send,
    /// The compared stack receives.
    Receive,
}

/// Figures of one transfer.
#[derive(Debug, Clone, Copy)]
pub struct Run {
    /// Rate of the payload at the receiver, from the connection's start to the last byte.
    pub gbit_s: f64,
    /// Processor seconds of the compared stack's process in user space, per Gbit of payload.
    pub user_per_gbit: f64,
    /// The same in the kernel on behalf of that process.
    pub system_per_gbit: f64,
    /// The same of the whole machine: both ends, and the kernel's work on arriving packets.
    pub machine_per_gbit: f64,
    /// Share of the bytes that went over the less used link.
    pub lesser_share: f64,
}

#[derive(Debug, Deserialize)]
struct Report {
    ok: bool,
    error: Option<String>,
    congestion: String,
    fallback: bool,
    subflows: u8,
    received: Received,
}

#[derive(Debug, Deserialize)]
struct Received {
    bytes: u64,
    seconds: f64,
}

#[derive(Debug, Deserialize)]
struct Cost {
    user_seconds: f64,
    system_seconds: f64,
}

/// Transfers `bytes` bytes and checks congestion control, fallback and use of both links. The kernel's
/// transfers are repeated where a link was hardly used.
pub fn transfer(
    network: &Network,
    stack: Stack,
    direction: Direction,
    bytes: u64,
    congestion: &str,
) -> Result<Run, Failure> {
    let again = match stack {
        Stack::Kernel => ATTEMPTS - 1,
        Stack::Engine => 0,
    };
    for _ in 0..again {
        if let Some(run) = attempt(network, stack, direction, bytes, congestion)? {
            return Ok(run);
        }
        eprintln!("{stack:?} {direction:?}: one of {LINKS} links was not in use; again");
    }
    let run = attempt(network, stack, direction, bytes, congestion)?;
    run.ok_or_else(|| Failure::Run(format!("{stack:?} {direction:?}: a link was hardly used")))
}

/// Makes one transfer. Returns `None` where a link was hardly used.
fn attempt(
    network: &Network,
    stack: Stack,
    direction: Direction,
    bytes: u64,
    congestion: &str,
) -> Result<Option<Run>, Failure> {
    let before = network.carried()?;
    let machine = cost::Cost::now(&[])?;
    let bytes_text = bytes.to_string();
    let (near_does, far_does) = match direction {
        Direction::Send => ("--send", "--expect"),
        Direction::Receive => ("--expect", "--send"),
    };
    let address = format!("{}:{PORT}", far_address(1));
    let common = ["--fast", "--congestion", congestion];
    let mut far = network.far(BRAID_LAB)?;
    far.args(["kernel-peer", "listen", &address, far_does, &bytes_text])
        .args(common);
    let mut far = Peer::start(far)?;
    // The peer's first line says that it listens.
    far.wait_for_line()?;
    let mut near = network.near(BRAID_LAB)?;
    match stack {
        Stack::Kernel => near.args(["kernel-peer", "connect"]),
        Stack::Engine => near
            .args(["engine-peer", "connect", "-c"])
            .arg(network.config()),
    };
    near.args([&address, near_does, &bytes_text]).args(common);
    let (near, cost) = Peer::start(near)?.finish()?;
    let (far, _) = far.finish()?;
    let machine = cost::Cost::now(&[])?.since(&machine).machine;
    for (end, report) in [("near", &near), ("far", &far)] {
        check(report, congestion).map_err(|wrong| {
            Failure::Run(format!("{stack:?} {direction:?}, {end} end: {wrong}"))
        })?;
    }
    let after = network.carried()?;
    let carried = [0, 1].map(|link| after[link] - before[link]);
    let least = carried.into_iter().min().unwrap_or(0);
    if usize::from(near.subflows.max(far.subflows)) < LINKS || least < MIN_CARRIED_BYTES {
        return Ok(None);
    }
    let received = match direction {
        Direction::Send => far.received,
        Direction::Receive => near.received,
    };
    let gbit = received.bytes as f64 * 8.0 / 1e9;
    Ok(Some(Run {
        gbit_s: gbit / received.seconds,
        user_per_gbit: cost.user_seconds / gbit,
        system_per_gbit: cost.system_seconds / gbit,
        machine_per_gbit: machine / gbit,
        lesser_share: least as f64 / carried.iter().sum::<u64>() as f64,
    }))
}

fn check(report: &Report, congestion: &str) -> Result<(), String> {
    let wrong = if let Some(error) = &report.error {
        error.clone()
    } else if !report.ok || report.fallback {
        "the connection fell back to TCP".to_owned()
    } else if report.congestion != congestion {
        format!("congestion control {}", report.congestion)
    } else {
        return Ok(());
    };
    Err(wrong)
}

/// A peer process, killed when dropped.
struct Peer {
    child: Child,
    stdout: BufReader<std::process::ChildStdout>,
}

impl Peer {
    fn start(mut command: Command) -> Result<Peer, Failure> {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()?;
        let stdout = child
            .stdout
            .take()
            .ok_or_else(|| Failure::Run("no pipe to a peer".to_owned()))?;
        let stdout = BufReader::new(stdout);
        Ok(Peer { child, stdout })
    }

    fn wait_for_line(&mut self) -> Result<(), Failure> {
        match self.stdout.read_line(&mut String::new())? {
            0 => Err(Failure::Run("a peer ended at once".to_owned())),
            _ => Ok(()),
        }
    }

    fn finish(mut self) -> Result<(Report, Cost), Failure> {
        let mut printed = String::new();
        self.stdout.read_to_string(&mut printed)?;
        self.child.wait()?;
        let unreadable = |e| Failure::run("what a peer reported", e);
        let line = |key: &str| printed.lines().find(|line| line.contains(key));
        let missing = || Failure::Run(format!("a peer reported nothing: {printed:?}"));
        let report = line("\"role\"").ok_or_else(missing)?;
        let cost = line("\"cpu_seconds\"").ok_or_else(missing)?;
        Ok((
            serde_json::from_str(report).map_err(unreadable)?,
            serde_json::from_str(cost).map_err(unreadable)?,
        ))
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // The peer may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
