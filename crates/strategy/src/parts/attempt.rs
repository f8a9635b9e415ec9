//! When a second SYN leaves beside one that is not answered.

use std::time::Duration;

use braid_engine::strategy::{OpenView, PathView};

/// A SYN that is not answered within this is tried on another path too (Connection Attempt Delay of
/// RFC 8305 section 8); where the round trip is known, within twice that and a little if it is less.
const ATTEMPT: Duration = Duration::from_millis(250);
/// What is waited beyond round trips that are known.
pub const A_LITTLE: Duration = Duration::from_millis(20);

/// How long the SYN on `path` is waited for, if there is another path to open on.
pub fn patience(view: &OpenView<'_>, path: &PathView) -> Option<Duration> {
    let others = view.paths.iter().any(|p| p.id != path.id && !p.backup);
    let known = path.record.map(|r| r.base_rtt * 2 + A_LITTLE);
    others.then_some(known.unwrap_or(ATTEMPT).min(ATTEMPT))
}
