//! Which subflows count at all.

use braid_engine::sched::{SendView, SubflowView};

/// The subflows that data may be sent on, with room now or not: those that have not potentially
/// failed, and backup ones only if there is no other (RFC 8684 sections 3.2 and 3.3.8).
///
/// A regular subflow whose window is full still keeps the backup ones quiet: it will have room
/// again, and a backup link may cost money.
pub(crate) fn usable<'a>(view: &SendView<'a>) -> impl Iterator<Item = &'a SubflowView> + Clone {
    let subflows = view.subflows;
    let regular = subflows.iter().any(|s| !s.stale && !s.backup);
    subflows
        .iter()
        .filter(move |s| !s.stale && s.backup != regular)
}
