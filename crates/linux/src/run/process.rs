//! Services of the process for box, server and applications.

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
use crate::net::{InstanceNames, Result, SystemError};
use crate::random;
use crate::tun::Tun;

/// Interval at which the wall clock is read, after which a jump of it is noticed at the latest.
pub(super) const WALL_CLOCK_INTERVAL: Duration = Duration::from_secs(30);
/// Time to wait after a notification, since one change of the network comes as many messages.
pub(super) const DEBOUNCE_TIME: Duration = Duration::from_millis(5);

/// Time for peers to acknowledge the end of everything: as long as the engine repeats it, and a little more.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(2_100);

/// Number of a host's source: changes of links and addresses.
pub(super) const LINKS_TOKEN: u32 = 0;
/// Number of the source: requests on the control socket.
pub(super) const CONTROL_TOKEN: u32 = 1;
/// Number of the source: the signal to read the configuration again.
pub(super) const HANGUP_TOKEN: u32 = 2;
/// Number of the source: a configuration that was read again.
pub(super) const RELOADED_TOKEN: u32 = 3;

/// Opens the control socket of an instance, at `path` or at its usual place. Without one, box and server
/// still serve users.
pub(super) fn open_control(
    path: Option<&Path>,
    role: &str,
    instance_names: &InstanceNames,
) -> Option<ControlSocket> {
    let path = path.map_or_else(|| instance_names.control_socket(role), Path::to_owned);
    match ControlSocket::open(&path) {
        Ok(socket) => Some(socket),
        Err(error) => {
            let path = path.display();
            tracing::warn!(%path, %error, "cannot open the control socket: `braid {role} status` and the other \
                                           commands do not reach this process");
            None
        }
    }
}

/// Returns the directory of a file, as the file was named.
pub(super) fn directory_of(file: &Path) -> PathBuf {
    let directory = file.parent().filter(|d| !d.as_os_str().is_empty());
    directory.unwrap_or(Path::new(".")).to_owned()
}

/// Runs until `stop` is readable, ends in order, and logs the counters.
pub(super) fn serve<C: Drain, H: Host<C>>(
    driver: &mut Driver<Tun, C, H>,
    name: &str,
    stop: BorrowedFd<'_>,
) -> Result<()> {
    let outcome = driver.run(stop, |_| false);
    let outcome = outcome.and_then(|()| end(driver, name, stop));
    let (packets, streams) = (driver.counters(), driver.sockets.counters());
    tracing::info!(name, ?packets, ?streams, "the process ends");
    outcome
}

/// Lets connections end by themselves until a timeout or further input at `stop`; then closes the rest, and
/// makes sure that their peers learn of it.
fn end<C: Drain, H: Host<C>>(
    driver: &mut Driver<Tun, C, H>,
    name: &str,
    stop: BorrowedFd<'_>,
) -> Result<()> {
    // Takes the signal that came, so that only a second one is further input.
    take_signal(stop);
    let now = driver.clock().now();
    let (core, mut ctx) = driver.core(now);
    core.drain(&mut ctx);
    let until = now + core.drain_time();
    driver.sockets.listen_only(&[])?;
    let under_way = driver.stack.connections();
    tracing::info!(
        name,
        under_way,
        "stopping: new connections are refused, existing ones may end until the \
                                     timeout"
    );
    driver.run_for(stop, Some(until), |driver| driver.core.is_drained())?;
    let now = driver.clock().now();
    driver.stack.close(now);
    let left = driver.stack.connections();
    driver.run_until(Some(now + CLOSE_TIMEOUT), |driver| {
        driver.stack.connections() == 0
    })?;
    let unanswered = driver.stack.connections();
    tracing::info!(name, cut_off = left, unanswered, "stopped");
    Ok(())
}

/// Returns an engine whose accepted connections use `strategy`.
pub(super) fn new_stack(engine: Config, strategy: &str) -> Result<Stack> {
    Ok(Stack::new(
        engine,
        system_rng()?,
        strategy_factory(strategy)?,
    ))
}

/// Returns the factory of each connection's strategy.
pub(super) fn strategy_factory(strategy: &str) -> Result<StrategyFactory> {
    braid_strategy::factory(strategy)
        .map_err(|e| SystemError::other(format!("use the strategy {strategy:?}"), e.to_string()))
}

/// Returns a generator seeded by the operating system.
pub(super) fn system_rng() -> Result<Rng> {
    let seed = random().map_err(SystemError::cannot("get random bytes from the kernel"))?;
    Ok(Rng::from_seed(seed))
}

pub(super) fn since_epoch() -> Duration {
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default()
}

/// Descriptors beside those of users' connections: devices, timers, netlink, clients of the control socket,
/// files that are read again, and sockets of name look-ups.
const OTHER_DESCRIPTORS: u64 = 256;

/// Raises the limit of open files to the needs of `streams` connections, the hard limit too if that is
/// permitted. Returns how many connections fit, and logs a warning if they are fewer than `streams`.
pub(super) fn raise_descriptor_limit(streams: usize) -> usize {
    let wanted = streams as u64 + OTHER_DESCRIPTORS;
    let before = getrlimit(Resource::Nofile);
    if before.current.is_some_and(|current| current < wanted) {
        let hard = before.maximum.map(|maximum| maximum.max(wanted));
        let raised = |most: u64, maximum| Rlimit {
            current: Some(most),
            maximum,
        };
        // Only a privileged process may raise the hard limit; others raise the soft limit up to it.
        let most = before.maximum.map_or(wanted, |maximum| maximum.min(wanted));
        let done = setrlimit(Resource::Nofile, raised(wanted, hard))
            .or_else(|_| setrlimit(Resource::Nofile, raised(most, before.maximum)));
        if let Err(error) = done {
            tracing::warn!(%error, "cannot raise the limit of open files");
        }
    }
    let now = getrlimit(Resource::Nofile).current;
    let fit = streams_within(now, streams);
    if fit < streams {
        tracing::warn!(
            open_files = now,
            wanted,
            configured = streams,
            connections = fit,
            "the limit of open files is too low for max_connections: connections of users beyond it will be \
             refused; raise it (LimitNOFILE in a systemd unit, ulimit -n) or lower max_connections in [expert]"
        );
    }
    fit
}

/// Returns how many of `streams` connections fit within a limit of open files.
fn streams_within(limit: Option<u64>, streams: usize) -> usize {
    let room = limit.map(|limit| limit.saturating_sub(OTHER_DESCRIPTORS));
    let room = room.and_then(|room| usize::try_from(room).ok());
    room.map_or(streams, |room| room.min(streams))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_fit_into_the_limit_of_open_files() {
        assert_eq!(streams_within(Some(1_024), 32_768), 768);
        assert_eq!(streams_within(Some(33_024), 32_768), 32_768);
        assert_eq!(streams_within(Some(100), 32_768), 0);
        assert_eq!(streams_within(None, 32_768), 32_768);
    }

    /// The soft limit of a login session (1,024) is raised without privileges.
    #[test]
    fn the_soft_limit_is_raised_as_far_as_the_hard_one() {
        let before = getrlimit(Resource::Nofile);
        let low = Rlimit {
            current: Some(512),
            ..before
        };
        setrlimit(Resource::Nofile, low).unwrap();
        let fit = raise_descriptor_limit(700);
        let raised = getrlimit(Resource::Nofile).current;
        // Other tests of this process may need more descriptors.
        setrlimit(Resource::Nofile, before).unwrap();
        assert_eq!(fit, 700);
        assert!(raised.is_none_or(|raised| raised >= 956), "{raised:?}");
    }
}
