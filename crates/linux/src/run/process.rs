//! Functions that box, server and applications share: control socket, random numbers, limits, and the end of a
//! run.

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

/// Interval at which the wall clock is read, so that a jump of this clock is noticed. The value is a guess.
pub(super) const WALL_CLOCK_INTERVAL: Duration = Duration::from_secs(30);
/// Time to wait after a notification, since one change of the network causes many notifications. The value is a
/// guess: the kernel sends all of them within a few milliseconds.
pub(super) const DEBOUNCE_TIME: Duration = Duration::from_millis(5);

/// Maximum time for peers to acknowledge the end of all connections. It is 0.1 s more than the time for which
/// the engine retransmits the end.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(2_100);

// The numbers that a host gives to its descriptors (`Host::sources`).
/// Notifications about links, addresses and rules.
pub(super) const LINKS_TOKEN: u32 = 0;
/// Requests on the control socket.
pub(super) const CONTROL_TOKEN: u32 = 1;
/// The signal to read the configuration again.
pub(super) const HANGUP_TOKEN: u32 = 2;
/// A configuration that was read again.
pub(super) const RELOADED_TOKEN: u32 = 3;

/// Opens the control socket of an instance, at `path` or at its default path. A failure is only logged, since
/// box and server can serve users without the socket.
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

/// Returns the directory in the path of a file, without following symbolic links.
pub(super) fn directory_of(file: &Path) -> PathBuf {
    let directory = file.parent().filter(|d| !d.as_os_str().is_empty());
    directory.unwrap_or(Path::new(".")).to_owned()
}

/// Runs the driver until `stop` is readable, closes the connections in order, and logs the counters.
pub(super) fn serve<C: Drain, H: Host<C>>(
    driver: &mut Driver<Tun, C, H>,
    name: &str,
    stop: BorrowedFd<'_>,
) -> Result<()> {
    let outcome = driver.run(stop, |_| false);
    let outcome = outcome.and_then(|()| end(driver, name, stop));
    let (packets, streams) = (driver.counters(), driver.sockets.counters());
    let tunnel = driver.tunnel.counters();
    tracing::info!(name, ?packets, ?streams, ?tunnel, "the process ends");
    outcome
}

/// Waits for the ends of connections, until a timeout or further input at `stop`. Then closes the remaining
/// connections, and waits until their peers have acknowledged this.
fn end<C: Drain, H: Host<C>>(
    driver: &mut Driver<Tun, C, H>,
    name: &str,
    stop: BorrowedFd<'_>,
) -> Result<()> {
    // Reads the signal that ended the run, so that only a second signal is further input.
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

/// Returns an engine. The connections that it accepts use `strategy`.
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

/// Returns a random number generator with a seed from the kernel.
pub(super) fn system_rng() -> Result<Rng> {
    let seed = random().map_err(SystemError::cannot("get random bytes from the kernel"))?;
    Ok(Rng::from_seed(seed))
}

/// Returns the wall clock's time since 1970; zero if the clock shows an earlier time.
pub(super) fn since_epoch() -> Duration {
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default()
}

/// Number of descriptors that are needed besides the descriptors of users' connections: for devices, netlink
/// sockets, clients of the control socket, files that are read again, and sockets of name look-ups. The number
/// is a guess: more than all of these need.
const OTHER_DESCRIPTORS: u64 = 256;

/// Raises the limit of open files so that it suffices for `streams` connections. Raises the hard limit too, if
/// this is permitted. Returns the number of connections that the limit allows. Logs a warning if this number is
/// less than `streams`.
pub(super) fn raise_descriptor_limit(streams: usize) -> usize {
    let wanted = streams as u64 + OTHER_DESCRIPTORS;
    let limit_before = getrlimit(Resource::Nofile);
    if limit_before.current.is_some_and(|current| current < wanted) {
        let raised_maximum = limit_before.maximum.map(|maximum| maximum.max(wanted));
        let raised = |soft: u64, maximum| Rlimit {
            current: Some(soft),
            maximum,
        };
        // Only a privileged process may raise the hard limit; other processes raise only the soft limit, up to
        // the hard limit.
        let soft = limit_before
            .maximum
            .map_or(wanted, |maximum| maximum.min(wanted));
        let outcome = setrlimit(Resource::Nofile, raised(wanted, raised_maximum))
            .or_else(|_| setrlimit(Resource::Nofile, raised(soft, limit_before.maximum)));
        if let Err(error) = outcome {
            tracing::warn!(%error, "cannot raise the limit of open files");
        }
    }
    let current = getrlimit(Resource::Nofile).current;
    let capacity = connections_within(current, streams);
    if capacity < streams {
        tracing::warn!(
            open_files = current,
            wanted,
            configured = streams,
            connections = capacity,
            "the limit of open files is too low for max_connections: connections of users beyond it will be \
             refused; raise it (LimitNOFILE in a systemd unit, ulimit -n) or lower max_connections in [expert]"
        );
    }
    capacity
}

/// Returns how many of `streams` connections a limit of open files allows.
fn connections_within(limit: Option<u64>, streams: usize) -> usize {
    let room = limit.map(|limit| limit.saturating_sub(OTHER_DESCRIPTORS));
    let room = room.and_then(|room| usize::try_from(room).ok());
    room.map_or(streams, |room| room.min(streams))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_descriptors_for_other_uses() {
        // 256 descriptors are left for other uses: 1,024 - 256 = 768 and 33,024 - 256 = 32,768.
        assert_eq!(connections_within(Some(1_024), 32_768), 768);
        assert_eq!(connections_within(Some(33_024), 32_768), 32_768);
        assert_eq!(connections_within(Some(100), 32_768), 0);
        assert_eq!(connections_within(None, 32_768), 32_768);
    }

    /// The soft limit of a login session (1,024) can be raised without privileges.
    #[test]
    fn the_soft_limit_is_raised_as_far_as_the_hard_one() {
        let limit_before = getrlimit(Resource::Nofile);
        let low = Rlimit {
            current: Some(512),
            ..limit_before
        };
        setrlimit(Resource::Nofile, low).unwrap();
        let capacity = raise_descriptor_limit(700);
        let raised = getrlimit(Resource::Nofile).current;
        // Other tests of this process may need more descriptors.
        setrlimit(Resource::Nofile, limit_before).unwrap();
        assert_eq!(capacity, 700);
        // 700 connections and 256 other descriptors.
        assert!(raised.is_none_or(|raised| raised >= 956), "{raised:?}");
    }
}
