//! The expected ends of a scenario's connections.

use braid_engine::{CloseReason, Protocol};
use braid_links::{Loss, Settings};
use braid_sim::transfer::PathSettings;

use super::draw::{HostScenario, Path};
use super::figures::Figures;
use super::scenario::{Flow, FlowEnd, Opener};

/// A function that returns the counter of the connections that one kind of fault has ended.
pub type Counter = fn(&mut Figures) -> &mut u64;

/// The states of the opener's end and of the server's end of a flow.
pub type Ends<'a> = [FlowEnd<'a>; 2];

/// Checks the end of every flow, and counts it. `ends` returns the ends of the flow with a number, or `None` if
/// the flow was not opened. `explain` is called for a flow that is incomplete or did not close in order. It
/// returns the counter of the fault that explains this, and fails if no fault may explain it.
///
/// # Errors
/// The first expectation that was not met.
pub fn check<'a>(
    flows: &[Flow],
    ends: impl Fn(usize) -> Option<Ends<'a>>,
    explain: impl Fn(&Flow, &Ends<'a>) -> Result<Option<Counter>, &'static str>,
) -> Result<Figures, String> {
    let mut figures = Figures::default();
    for (n, flow) in flows.iter().enumerate() {
        let Some(ends) = ends(n) else { continue };
        let [opener, server] = &ends;
        let fell_back = opener.stream.is_some_and(|s| s.fell_back.is_some());
        figures.connections += 1;
        figures.fallbacks += u64::from(flow.protocol == Protocol::Mptcp && fell_back);
        let is_as_planned = |end: &FlowEnd<'_>| end.is_complete() && end.is_finished();
        if is_as_planned(opener) && is_as_planned(server) {
            continue;
        }
        let states = format!("  opener: {opener}\n  server: {server}");
        let wrong = |what| format!("flow {n} {what}: {flow:?}\n{states}");
        let fault = explain(flow, &ends).map_err(wrong)?;
        let unexplained =
            "does not end in order, although its scenario has no fault that explains it";
        *match fault {
            _ if flow.abort.is_some() => &mut figures.aborted,
            Some(counter) => counter(&mut figures),
            None => return Err(wrong(unexplained)),
        } += 1;
    }
    Ok(figures)
}

/// Returns the counter of the fault of `scenario` that explains the end of `flow`, if there is one.
///
/// # Errors
/// No fault may explain the end.
pub fn explain(
    scenario: &HostScenario,
    flow: &Flow,
    [opener, server]: &Ends<'_>,
) -> Result<Option<Counter>, &'static str> {
    if opener.stream.is_none() {
        return Err("ended, but its opener got no event");
    }
    let is_misled = |end: &FlowEnd<'_>| end.is_finished() && !end.is_complete();
    if is_misled(opener) || is_misled(server) {
        return Err("closes in order at an end that has not read or written all bytes");
    }
    // The only path that the flow may take; `None` if it may take any.
    let only = match (flow.opener, flow.protocol) {
        (Opener::Neighbour(path), _) => Some(path),
        (Opener::Client, Protocol::Tcp) => flow.path.map(usize::from),
        (Opener::Client, Protocol::Mptcp) => None,
    };
    let any_path = |fault: fn(&Path) -> bool| {
        let mut paths = scenario.paths.iter().enumerate();
        paths.any(|(n, path)| only.is_none_or(|only| only == n) && fault(path))
    };
    if flow.protocol == Protocol::Mptcp && any_path(|path| path.breaks_mptcp) {
        return Ok(Some(|figures| &mut figures.broken));
    }
    // Loss may take every packet of a handshake until an end gives up. With TCP Fast Open, the server may
    // already have accepted the payload of the SYN. A burst of loss lasts for a number of packets, not for
    // a time. If a retransmission is sent only every ten seconds, one burst may take all retransmissions.
    let timed_out = |end: &FlowEnd<'_>| end.reason() == Some(CloseReason::TimedOut);
    let gave_up = timed_out(opener) || timed_out(server);
    let refused = server.stream.is_none() && opener.reason() == Some(CloseReason::Reset);
    let fast_open = scenario.client.fast_open && scenario.server.fast_open;
    let handshake_unfinished = server.stream.is_none() || (fast_open && timed_out(server));
    if (handshake_unfinished && (gave_up || refused) && any_path(loses))
        || (gave_up && any_path(bursts))
    {
        return Ok(Some(|figures| &mut figures.cut_off));
    }
    // The last acknowledgement may be lost, and its sender may be gone when the peer retransmits. The peer
    // then times out although all data has arrived.
    let complete = opener.is_complete() && server.is_complete();
    if complete && opener.is_finished() != server.is_finished() && any_path(loses) {
        return Ok(Some(|figures| &mut figures.late));
    }
    Ok(None)
}

/// Returns whether the path may lose packets in bursts.
fn bursts(path: &Path) -> bool {
    let in_bursts = |s: &Settings| matches!(s.loss, Loss::GilbertElliott { .. });
    let later = path.changes.iter().map(|(_, settings)| settings);
    let mut all = later.chain([&path.settings]);
    all.any(|link| in_bursts(&link.up) || in_bursts(&link.down))
}

/// Returns whether the path may lose packets other than by full queues.
fn loses(path: &Path) -> bool {
    !path.changes.is_empty() || is_lossy(&path.settings)
}

/// Returns whether a link drops or corrupts packets at random. Drops of full queues do not count.
pub fn is_lossy(link: &PathSettings) -> bool {
    let lossy = |s: &Settings| s.loss != Loss::None || s.corrupt > 0.0;
    lossy(&link.up) || lossy(&link.down)
}
