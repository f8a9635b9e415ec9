//! The path with the smallest delay.

use braid_engine::Urgency;

use super::{Decision, Steer, View};
use crate::config::Mode;

/// All packets go on the path with the smallest delay.
#[derive(Debug)]
pub(crate) struct Fastest;

impl Steer for Fastest {
    fn decide(&self, view: &View) -> Decision {
        if view.path == view.best {
            Decision::Take { depth: 0 }
        } else {
            Decision::Leave
        }
    }

    fn mode(&self, _: Urgency, _: u64) -> Mode {
        Mode::Fastest
    }
}
