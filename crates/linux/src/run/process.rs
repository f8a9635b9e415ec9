//! What box, server and applications take from the process they run in.

use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use braid_engine::{Config, Stack, StrategyFactory};
use braid_proxy::Drain;
use braid_wire::Rng;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::signals::take_signal;
use crate::control::ControlSocket;
use crate::driver::{Driver, Host};
use crate::net::{Identity, Result, SystemError};
use crate::random;
use crate::tun::Tun;

/// A jump of the wall clock is noticed after this long.
pub(super) const WALL_CLOCK_INTERVAL: Duration = Duration::from_secs(30);
/// One change of the network comes as many messages.
pub(super) const SETTLING_TIME: Duration = Duration::from_millis(5);

/// How long far ends may take to answer that everything ends: as long as the engine repeats it, and a little.
const CLOSING_TIME: Duration = Duration::from_millis(2_100);

/// Sources of hosts: changes of links and addresses.
pub(super) const LINKS: u32 = 0;
/// Requests on the control socket.
pub(super) const CONTROL: u32 = 1;
/// The signal that asks for the configuration to be read again.
pub(super) const HANGUP: u32 = 2;
/// A configuration that was read again.
pub(super) const RELOADED: u32 = 3;

/// The control socket of an instance, at `path` or where it belongs. Without one, box and server
/// serve all the same.
pub(super) fn open_control(
    path: Option<&Path>,
    role: &str,
    identity: &Identity,
) -> Option<ControlSocket> {
    let path = path.map_or_else(|| identity.control_socket(role), Path::to_owned);
    match ControlSocket::open(&path) {
        Ok(socket) => Some(socket),
        Err(error) => {
            let path = path.display();
            tracing::warn!(%path, %error, "no control socket: nobody can ask this {role}");
            None
        }
    }
}

/// The directory of a file, as the file was named.
pub(super) fn directory_of(file: &Path) -> PathBuf {
    let directory = file.parent().filter(|d| !d.as_os_str().is_empty());
    directory.unwrap_or(Path::new(".")).to_owned()
}

/// Runs until `stop` is readable, ends in order, and logs what went through.
pub(super) fn serve<C: Drain, H: Host<C>>(
    driver: &mut Driver<Tun, C, H>,
    name: &str,
    stop: BorrowedFd<'_>,
) -> Result<()> {
    let outcome = driver.run(stop, |_| false);
    let outcome = outcome.and_then(|()| end(driver, name, stop));
    let (packets, streams) = (driver.counters(), driver.sockets.counters());
    tracing::info!(name, ?packets, ?streams, "ends");
    outcome
}

/// Lets what is nearly over end, for a time that is bounded and that further input at `stop` ends; then
/// ends the rest, and sees to it that the far ends learn of that.
fn end<C: Drain, H: Host<C>>(
    driver: &mut Driver<Tun, C, H>,
    name: &str,
    stop: BorrowedFd<'_>,
) -> Result<()> {
    // The signal that came is not the second one.
    take_signal(stop);
    let now = driver.clock().now();
    let (core, mut ctx) = driver.core(now);
    core.drain(&mut ctx);
    let until = now + core.drain_time();
    driver.sockets.listen_only(&[])?;
    let under_way = driver.stack.connections();
    tracing::info!(name, under_way, "stopping: takes nothing in any more");
    driver.run_for(stop, Some(until), |driver| driver.core.is_drained())?;
    let now = driver.clock().now();
    driver.stack.close(now);
    let left = driver.stack.connections();
    driver.run_until(Some(now + CLOSING_TIME), |driver| {
        driver.stack.connections() == 0
    })?;
    let unanswered = driver.stack.connections();
    tracing::info!(name, cut_off = left, unanswered, "stopped");
    Ok(())
}

/// An engine whose accepted connections use `strategy`.
pub(super) fn new_stack(engine: Config, strategy: &str) -> Result<Stack> {
    Ok(Stack::new(
        engine,
        system_rng()?,
        strategy_factory(strategy)?,
    ))
}

/// Makes the strategy of each connection.
pub(super) fn strategy_factory(strategy: &str) -> Result<StrategyFactory> {
    braid_strategy::factory(strategy)
        .map_err(|e| SystemError::other(format!("use the strategy {strategy:?}"), e.to_string()))
}

/// A generator seeded by the operating system.
pub(super) fn system_rng() -> Result<Rng> {
    let seed = random().map_err(SystemError::doing("ask for randomness"))?;
    Ok(Rng::from_seed(seed))
}

pub(super) fn since_epoch() -> Duration {
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default()
}

/// Lets this process open as many descriptors as `streams` need.
pub(super) fn raise_descriptor_limit(streams: usize) {
    let wanted = streams as u64 + 256;
    let now = getrlimit(Resource::Nofile);
    if now.current.is_none_or(|current| current >= wanted) {
        return;
    }
    let raised = |maximum| Rlimit {
        current: Some(wanted),
        maximum,
    };
    let enough = now.maximum.is_none_or(|maximum| maximum >= wanted);
    let done = if enough {
        setrlimit(Resource::Nofile, raised(now.maximum))
    } else {
        setrlimit(Resource::Nofile, raised(Some(wanted))).or_else(|_| {
            let most = Rlimit {
                current: now.maximum,
                maximum: now.maximum,
            };
            setrlimit(Resource::Nofile, most)
        })
    };
    if let Err(error) = done {
        tracing::warn!(%error, "cannot raise the limit of open files");
    }
}
