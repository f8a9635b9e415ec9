//! No copies but those the engine makes of a failed subflow's data.

use braid_engine::SubflowId;
use braid_engine::sched::{Reinject, Reinjector, SendView};

/// Never copies.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoReinjection;

impl Reinjector for NoReinjection {
    fn name(&self) -> &'static str {
        "none"
    }

    fn next(&mut self, _view: &SendView<'_>, _holder: SubflowId) -> Option<Reinject> {
        None
    }
}
