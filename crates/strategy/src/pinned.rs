//! The strategy of a connection that examines one path.

use braid_engine::Protocol;
use braid_engine::strategy::{Decision, OpenView, Opening, PathView, SendView, Strategy};
use braid_wire::{Instant, Rng};

use crate::minrtt::MinRtt;

/// Stays on the path that the connection was opened on, so that what is learned of the connection is true
/// of that path.
#[derive(Debug, Clone, Copy, Default)]
pub struct Pinned(MinRtt);

impl Strategy for Pinned {
    fn name(&self) -> &'static str {
        "pinned"
    }

    fn open(&mut self, view: &OpenView<'_>) -> Option<Opening> {
        Some(Opening {
            path: view.requested?,
            protocol: Protocol::Mptcp,
        })
    }

    fn join(&mut self, _view: &OpenView<'_>, _path: &PathView) -> Option<Instant> {
        None
    }

    fn next(&mut self, view: &SendView<'_>, rng: &mut Rng) -> Decision {
        self.0.next(view, rng)
    }
}
