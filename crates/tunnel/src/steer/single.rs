//! The first path that works.

use braid_engine::Urgency;

use super::{Decision, PathView, Steer, View};
use crate::config::{MAX_PATHS, Mode};

/// All packets go on the path with the lowest id that works. Both ends know the ids, but not the order in which the
/// other one has added the paths.
#[derive(Debug)]
pub(crate) struct Single;

impl Steer for Single {
    fn decide(&self, view: &View) -> Decision {
        if view.path == self.home(view.paths, view.best) {
            Decision::Take { depth: 0 }
        } else {
            Decision::Leave
        }
    }

    fn home(&self, paths: &[Option<PathView>; MAX_PATHS], best: usize) -> usize {
        let usable = paths.iter().zip(0..);
        let first = usable.filter_map(|(path, i)| Some((path.as_ref()?.id, i)));
        first.min().map_or(best, |(_, i)| i)
    }

    fn mode(&self, _: Urgency, _: u64) -> Mode {
        Mode::Single
    }
}
