//! The expected ends of a scenario's connections.

use braid_engine::{CloseReason, Protocol};
use braid_links::Loss;
use braid_sim::traffic::Stream;

use super::draw::{Flow, HostScenario, Opener, Path};
use super::figures::Figures;
use super::hosts::{ScenarioRun, expected_bytes};

/// Checks the end of every connection against the scenario.
///
/// # Errors
/// The first expectation that was not met.
pub fn check(scenario: &HostScenario, run: &ScenarioRun<'_>) -> Result<Figures, String> {
    let mut figures = Figures::default();
    for (n, flow) in scenario.flows.iter().enumerate() {
        if run.opened(n) {
            check_flow(scenario, run, n, flow, &mut figures).map_err(|what| {
                let (opener, server) = run.ends(n);
                let ends = [("opener", opener), ("server", server)].map(describe_end);
                format!("flow {n} {what}: {flow:?}\n{}\n{}", ends[0], ends[1])
            })?;
        }
    }
    match run.buffered() {
        0 => Ok(figures),
        bytes => Err(format!(
            "{bytes} bytes are left in buffers after the last connection"
        )),
    }
}

/// Checks the end of one flow, and counts it in `figures`.
fn check_flow(
    scenario: &HostScenario,
    run: &ScenarioRun<'_>,
    n: usize,
    flow: &Flow,
    figures: &mut Figures,
) -> Result<(), String> {
    let (opener, server) = run.ends(n);
    let opener = opener.ok_or("ended, but its opener got no event")?;
    figures.connections += 1;
    let asked_for_mptcp = flow.protocol == Protocol::Mptcp;
    figures.fallbacks += u64::from(asked_for_mptcp && opener.fell_back.is_some());
    let is_complete = |end: Option<&Stream>, (received, sent): (u64, u64)| {
        // An end that has paused reading does not see the end of the peer's stream. Only the close of the
        // connection tells it that the stream has ended.
        let saw_end =
            |e: &Stream| e.complete_at.is_some() || reason(Some(e)) == Some(CloseReason::Finished);
        end.is_some_and(|e| e.received == received && e.sent == sent && saw_end(e))
    };
    let expected = expected_bytes(flow);
    let complete = is_complete(Some(opener), expected[0]) && is_complete(server, expected[1]);
    let finished = |end: Option<&Stream>| reason(end) == Some(CloseReason::Finished);
    let orderly_closes = usize::from(finished(Some(opener))) + usize::from(finished(server));
    if complete && orderly_closes == 2 {
        return Ok(());
    }
    for (end, expected) in [(Some(opener), expected[0]), (server, expected[1])] {
        if finished(end) && !is_complete(end, expected) {
            return Err(
                "closes in order at an end that has not read or written all bytes".to_owned(),
            );
        }
    }
    if flow.abort.is_some() {
        figures.aborted += 1;
        return Ok(());
    }
    if asked_for_mptcp && paths_of(scenario, flow).any(breaks) {
        figures.broken += 1;
        return Ok(());
    }
    // Loss may take every packet of a handshake until an end gives up. With TCP Fast Open, the server may
    // already have accepted the payload of the SYN. A burst of loss lasts for a number of packets, not for
    // a time. If a retransmission is sent only every ten seconds, one burst may take all retransmissions.
    let reasons = [reason(Some(opener)), reason(server)];
    let gave_up = reasons.contains(&Some(CloseReason::TimedOut));
    let refused = server.is_none() && reasons[0] == Some(CloseReason::Reset);
    let fast_open = scenario.client.fast_open && scenario.server.fast_open;
    let handshake_unfinished =
        server.is_none() || (fast_open && reasons[1] == Some(CloseReason::TimedOut));
    if (handshake_unfinished && (gave_up || refused) && paths_of(scenario, flow).any(loses))
        || (gave_up && paths_of(scenario, flow).any(bursts))
    {
        figures.cut_off += 1;
        return Ok(());
    }
    // The last acknowledgement may be lost, and its sender may be gone when the peer retransmits. The peer
    // then times out although all data has arrived.
    if complete && orderly_closes == 1 && paths_of(scenario, flow).any(loses) {
        figures.late += 1;
        return Ok(());
    }
    Err("does not end in order, although its scenario has no fault that explains it".to_owned())
}

/// Describes the state of one end in a line.
pub fn describe_end((name, end): (&str, Option<&Stream>)) -> String {
    match end {
        None => format!("  {name}: no connection"),
        Some(s) => format!(
            "  {name}: wrote {}, read {}, saw the end: {}, fell back: {:?}, closed: {:?}",
            s.sent,
            s.received,
            s.complete_at.is_some(),
            s.fell_back,
            s.closed
        ),
    }
}

fn reason(end: Option<&Stream>) -> Option<CloseReason> {
    end.and_then(|stream| stream.closed)
        .map(|(_, reason)| reason)
}

/// Returns the paths that a flow may take.
fn paths_of<'a>(scenario: &'a HostScenario, flow: &Flow) -> impl Iterator<Item = &'a Path> {
    let only = match (flow.opener, flow.protocol) {
        (Opener::Neighbour(path), _) => Some(path),
        (Opener::Client, Protocol::Tcp) => flow.path.map(usize::from),
        (Opener::Client, Protocol::Mptcp) => None,
    };
    let paths = scenario.paths.iter().enumerate();
    paths
        .filter(move |(n, _)| only.is_none_or(|only| only == *n))
        .map(|(_, path)| path)
}

/// Returns whether a middlebox on the path may break MPTCP connections.
fn breaks(path: &Path) -> bool {
    path.middleboxes.iter().any(|m| m.breaks_mptcp())
}

/// Returns whether the path may lose packets in bursts.
fn bursts(path: &Path) -> bool {
    let changes = path.changes.iter().flat_map(|(_, up, down)| [up, down]);
    let mut all = [&path.up, &path.down].into_iter().chain(changes);
    all.any(|s| matches!(s.loss, Loss::GilbertElliott { .. }))
}

/// Returns whether the path may lose packets other than by full queues.
fn loses(path: &Path) -> bool {
    let lossy = |s: &braid_links::Settings| s.loss != Loss::None || s.corrupt > 0.0;
    !path.changes.is_empty() || lossy(&path.up) || lossy(&path.down)
}
