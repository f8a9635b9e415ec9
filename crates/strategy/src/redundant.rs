//! Everything on every subflow.

use braid_engine::strategy::{Decision, SendView, Strategy};
use braid_wire::Rng;

use crate::parts::usable::{by_rtt, usable};

/// Sends everything on every subflow, each at the pace of its own window: first data in flight that the
/// subflow has not carried yet, then data that was never sent.
#[derive(Debug, Clone, Copy, Default)]
pub struct Redundant;

impl Strategy for Redundant {
    fn name(&self) -> &'static str {
        "redundant"
    }

    fn next(&mut self, view: &SendView<'_>, _rng: &mut Rng) -> Decision {
        let walking = usable(view).filter(|s| s.ready);
        walking
            .filter_map(|s| {
                let new = view.may_send_new.then_some(Decision::new_on(s.id));
                let copy = s.copies.any.map(|data| Decision::copy_on(s.id, data));
                Some((s, copy.or(new)?))
            })
            .min_by_key(|(s, _)| by_rtt(s))
            .map_or(Decision::WAIT, |(_, decision)| decision)
    }
}
