//! The delay after which an unanswered SYN is followed by a SYN on a second path.

use std::time::Duration;

use braid_engine::strategy::{OpenView, PathView};

/// Maximum wait for the answer to a SYN before another path is tried too: the Connection Attempt Delay of RFC 8305
/// section 8.
const MAX_ATTEMPT_DELAY: Duration = Duration::from_millis(250);
/// The time by which a round trip may exceed its recorded value without suspicion: scheduling and processing at
/// both ends. 20 ms is a guess.
pub const RTT_MARGIN: Duration = Duration::from_millis(20);

/// Returns how long to wait for the answer to the SYN on `path`, or `None` if there is no other path to open on,
/// backup paths aside. The wait is two recorded round trips and a margin, but at most 250 ms. The second round trip
/// allows for a queue.
pub fn attempt_delay(view: &OpenView<'_>, path: &PathView) -> Option<Duration> {
    let others = view.paths.iter().any(|p| p.id != path.id && !p.backup);
    let recorded = path.record.map(|r| r.base_rtt * 2 + RTT_MARGIN);
    others.then_some(recorded.unwrap_or(MAX_ATTEMPT_DELAY).min(MAX_ATTEMPT_DELAY))
}
