//! The strategy of a connection that measures one path.

use braid_engine::Protocol;
use braid_engine::strategy::{Decision, OpenView, Opening, PathView, SendView, Strategy};
use braid_wire::{Instant, Rng};

use crate::minrtt::MinRtt;

/// Uses only the path on which the connection was opened, so that measurements of the connection are measurements
/// of that path. Sends as [`MinRtt`] does.
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
