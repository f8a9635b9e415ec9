//! Sends all data on every subflow.

use braid_engine::strategy::{Decision, SendView, Strategy};
use braid_wire::Rng;

use crate::parts::usable::{by_rtt, usable};

/// Sends all data on every subflow, as fast as each subflow's window allows. Each subflow sends data that only
/// other subflows have sent; if there is none, it sends new data.
#[derive(Debug, Clone, Copy, Default)]
pub struct Redundant;

impl Strategy for Redundant {
    fn name(&self) -> &'static str {
        "redundant"
    }

    fn next(&mut self, view: &SendView<'_>, _rng: &mut Rng) -> Decision {
        let ready = usable(view).filter(|s| s.ready);
        ready
            .filter_map(|s| {
                let new = view.may_send_new.then_some(Decision::new_on(s.id));
                let copy = s.copies.any.map(|data| Decision::copy_on(s.id, data));
                Some((s, copy.or(new)?))
            })
            .min_by_key(|(s, _)| by_rtt(s))
            .map_or(Decision::WAIT, |(_, decision)| decision)
    }
}
