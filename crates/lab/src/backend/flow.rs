//! The flow of a case, the same for all backends: its engines, its time limit and its result.

use std::net::IpAddr;
use std::time::Duration;

use braid_engine::cc::Algorithm;
use braid_engine::stats::Traffic;
use braid_engine::{Config, ConnId, PathId, Stack};
use braid_sim::traffic::Stream;
use braid_sim::transfer::{Direction, client_addr};
use braid_wire::Instant;

use super::error::Error;
use crate::case::{Case, RunResult};

/// Maximum time that a warm start waits for its subflows to be established. It is the time that [`limit`]
/// allows for handshakes and timeouts, which is a guess.
pub(super) const WARM_UP: Duration = Duration::from_secs(120);

/// Returns the settings of the engines at both ends.
///
/// # Errors
/// [`Error::Usage`] if the engine lacks the strategy or the congestion control that `case` names.
pub(super) fn engine(case: &Case) -> Result<Config, Error> {
    braid_strategy::by_name(&case.strategy).map_err(|e| Error::Usage(e.to_string()))?;
    let congestion: Algorithm = case.cc.parse().map_err(Error::Usage)?;
    Ok(Config {
        initial_window: case.initial_window,
        congestion,
        ..Config::default()
    })
}

/// Returns the time after which a run counts as not completed: two minutes for handshakes and timeouts,
/// plus a hundred times the transmission time over the slowest path. Both are guesses; only a flow that
/// stalls takes so long.
pub(super) fn limit(case: &Case) -> Duration {
    let rates = case
        .paths
        .specs()
        .iter()
        .filter_map(|path| path.rate.mean());
    let slowest = rates.fold(f64::INFINITY, f64::min);
    let bytes = case.size.bytes() as f64 * f64::from(case.flows);
    let seconds = bytes * 8.0 / slowest;
    // Without the bound, `from_secs_f64` would panic on a rate near 0.
    Duration::from_secs(120) + Duration::from_secs_f64((seconds * 100.0).min(1e6))
}

/// Returns the sender and the receiver of the flow, given client and server.
pub(super) fn sender_first<T>(direction: Direction, [client, server]: [T; 2]) -> [T; 2] {
    match direction {
        Direction::Down => [server, client],
        Direction::Up => [client, server],
    }
}

/// Returns the result of a run. `receivers` are the receiver's streams of connections that have ended.
/// `traffic` is the senders' traffic on each path. Times count from `started`.
pub(super) fn result<'a>(
    case: &Case,
    started: Instant,
    receivers: impl IntoIterator<Item = &'a Stream>,
    traffic: &[Traffic],
) -> RunResult {
    let by_path = |count: fn(&Traffic) -> u64| traffic.iter().map(count).collect();
    let mut result = RunResult {
        bytes_by_path: by_path(|path| path.bytes_sent),
        copy_bytes_by_path: by_path(|path| path.bytes_copied),
        packets_by_path: by_path(|path| path.packets_while_unsent),
        copies_by_path: by_path(|path| path.copies_while_unsent),
        retransmissions: traffic.iter().map(|path| path.packets_retransmitted).sum(),
        rtos: traffic.iter().map(|path| path.rtos).sum(),
        ..RunResult::default()
    };
    let mut data = Duration::ZERO;
    let complete = receivers.into_iter();
    for stream in complete.filter(|s| s.received == case.size.bytes()) {
        let last = stream.last_byte_at.unwrap_or(started);
        result.flow_fcts.push(last.saturating_since(started));
        // With warm subflows, an upload sends its first byte before the transfer starts, so that subflows
        // open. Time counts from the start of the transfer, not from that byte.
        let first = stream.first_byte_at.unwrap_or(last).max(started);
        data += last.saturating_since(first);
    }
    result.flow_fcts.sort_unstable();
    if result.flow_fcts.len() == case.flows as usize {
        result.completed = true;
        result.fct = result.flow_fcts.iter().sum::<Duration>() / case.flows;
        result.fct_data = data / case.flows;
    }
    result
}

/// Returns the result of a run of the engine. `ended` are the streams of client and server whose connections
/// have ended. `client` is the client's stack.
pub(super) fn engine_result<'a, S>(
    case: &Case,
    started: Instant,
    ended: [S; 2],
    client: &Stack,
) -> RunResult
where
    S: IntoIterator<Item = &'a Stream>,
{
    let [senders, receivers] = sender_first(case.direction, ended);
    RunResult {
        join_syns: client.stats().join_syns,
        ..result(case, started, receivers, &traffic(case, senders))
    }
}

/// Returns the traffic on each path of the sender, whose `streams` are those of connections that have ended.
pub(super) fn traffic<'a>(
    case: &Case,
    streams: impl IntoIterator<Item = &'a Stream>,
) -> Vec<Traffic> {
    let mut traffic = vec![Traffic::default(); case.paths.specs().len()];
    let reports = streams.into_iter().filter_map(|s| s.report.as_ref());
    for stats in reports.flat_map(|report| &report.paths) {
        let mut paths = traffic.iter_mut().enumerate();
        if let Some((_, on_path)) = paths.find(|(n, _)| is_on(case, *n, stats.path, stats.remote)) {
            on_path.add(&stats.moved.traffic);
        }
    }
    traffic
}

/// Returns the sender's retransmission timeout for the path of the outage; zero if no subflow uses the
/// path.
pub(super) fn outage_rto(case: &Case, stack: &Stack, conn: ConnId) -> Duration {
    let subflows = stack.subflows(conn).into_iter();
    let mut on_path = subflows.filter(|subflow| {
        let is_on = |n| is_on(case, n, subflow.path, subflow.remote.ip());
        case.outage.is_some_and(|outage| is_on(outage.path))
    });
    on_path.next().map_or(Duration::ZERO, |subflow| subflow.rto)
}

/// Returns whether a connection has an established subflow on every path of `case`. A connection that fell
/// back to TCP has a single subflow, which is then enough.
pub(super) fn is_warm(case: &Case, stack: &Stack, conn: ConnId) -> bool {
    let subflows = stack.subflows(conn).into_iter().filter(|s| s.established);
    // A connection without an initial data sequence number does not speak MPTCP.
    let fell_back = stack.conn_stats(conn).is_some_and(|s| s.idsn.is_none());
    subflows.count()
        >= if fell_back {
            1
        } else {
            case.paths.specs().len()
        }
}

/// Returns whether a subflow of the sender between `path` and `remote` is on path `n` of `case`.
fn is_on(case: &Case, n: usize, path: PathId, remote: IpAddr) -> bool {
    match case.direction {
        // The server has one address, so it tells paths apart by the client's address.
        Direction::Down => remote == IpAddr::V4(client_addr(n)),
        Direction::Up => path == PathId(n as u8),
    }
}
