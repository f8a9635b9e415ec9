//! The first path that works.

use super::{Decision, Steer, View};

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
}
