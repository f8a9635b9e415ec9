//! The strategy of a connection in the idle pool, which was opened before a user needs it.

use braid_engine::strategy::{Decision, OpenView, PathView, SendView, Strategy};
use braid_wire::{Instant, Rng};

use crate::minrtt::MinRtt;
use crate::parts::attempt;

/// Sends as [`MinRtt`] does, and joins every other path after a short delay.
///
/// If a user takes the connection before the delay is over, users are opening many connections at once. Most such
/// connections are short, and the handshakes of further subflows would not pay for them.
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
