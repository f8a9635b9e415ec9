//! The strategy of a connection that waits in a pool for its user.

use braid_engine::strategy::{Decision, OpenView, PathView, SendView, Strategy};
use braid_wire::{Instant, Rng};

use crate::minrtt::MinRtt;
use crate::parts::attempt;

/// Sends like [`MinRtt`], and joins every other path once the connection has waited a little.
///
/// A connection that is used before that is one of many that users ask for at a time. Most of these end
/// in a moment, and a second subflow would cost them as much as the first.
#[derive(Debug, Clone, Copy, Default)]
pub struct Waiting(MinRtt);

impl Strategy for Waiting {
    fn name(&self) -> &'static str {
        "waiting"
    }

    fn join(&mut self, view: &OpenView<'_>, _path: &PathView) -> Option<Instant> {
        Some(view.first?.since + attempt::RTT_MARGIN)
    }

    fn next(&mut self, view: &SendView<'_>, rng: &mut Rng) -> Decision {
        self.0.next(view, rng)
    }
}
