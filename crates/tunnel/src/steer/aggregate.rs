//! Earliest arrival.

use braid_engine::Urgency;

use super::{Decision, Steer, View};
use crate::config::Mode;

/// Each packet goes where it arrives first.
///
/// A slower path skips as many waiting bytes as the faster paths deliver in the time by which it is slower, and takes
/// the packet after them. While that packet is on its way, the faster paths send what waits before it. So packets
/// arrive nearly in order, and a flow whose window is too small to fill the difference stays on the fastest path.
#[derive(Debug)]
pub(crate) struct Aggregate;

impl Steer for Aggregate {
    fn decide(&self, view: &View) -> Decision {
        if view.path == view.best {
            return Decision::Take { depth: 0 };
        }
        let Some(own) = view.paths[view.path].and_then(|p| p.delay) else {
            return Decision::Leave;
        };
        let ahead: u64 = view
            .paths
            .iter()
            .flatten()
            .filter_map(|other| {
                let lead = own.checked_sub(other.delay?)?.max(0) as u64;
                Some(u128::from(other.rate) * u128::from(lead) / 1_000_000)
            })
            // The bound, far above any queue, keeps the sum in range.
            .fold(0, |sum, bytes| sum + bytes.min(1 << 40) as u64);
        let depth = (ahead / view.sharers.max(1)) as usize;
        if view.waiting > depth {
            Decision::Take { depth }
        } else {
            Decision::Leave
        }
    }

    fn mode(&self, _: Urgency, _: u64) -> Mode {
        Mode::Aggregate
    }
}
