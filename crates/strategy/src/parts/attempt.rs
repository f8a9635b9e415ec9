//! The delay before a second SYN leaves beside one that is not answered.

use std::time::Duration;

use braid_engine::strategy::{OpenView, PathView};

/// Longest wait for the answer to a SYN before another path is tried too: the Connection Attempt Delay of
/// RFC 8305 section 8. Where the round trip is known, twice that and [`RTT_MARGIN`] if it is less.
const MAX_ATTEMPT_DELAY: Duration = Duration::from_millis(250);
/// The margin by which a known round trip may be exceeded.
pub const RTT_MARGIN: Duration = Duration::from_millis(20);

/// Returns how long to wait for the SYN on `path`, if there is another path to open on.
pub fn attempt_delay(view: &OpenView<'_>, path: &PathView) -> Option<Duration> {
    let others = view.paths.iter().any(|p| p.id != path.id && !p.backup);
    let known = path.record.map(|r| r.base_rtt * 2 + RTT_MARGIN);
    others.then_some(known.unwrap_or(MAX_ATTEMPT_DELAY).min(MAX_ATTEMPT_DELAY))
}
