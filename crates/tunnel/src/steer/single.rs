//! The first path that works.

use braid_engine::Urgency;

use super::{Decision, Steer, View};
use crate::config::Mode;

/// All packets go on the first path that works.
#[derive(Debug)]
pub(crate) struct Single;

impl Steer for Single {
    fn decide(&self, view: &View) -> Decision {
        if view.paths.iter().position(Option::is_some) == Some(view.path) {
            Decision::Take { depth: 0 }
        } else {
            Decision::Leave
        }
    }

    fn mode(&self, _: Urgency, _: u64) -> Mode {
        Mode::Single
    }
}
