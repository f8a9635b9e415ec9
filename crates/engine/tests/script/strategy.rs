//! The strategy the tests use.

use braid_engine::strategy::{Decision, SendView, Strategy};
use braid_wire::Rng;

/// The fastest subflow that is ready, and no copies but of what is lost.
#[derive(Debug)]
struct Fastest;

impl Strategy for Fastest {
    fn name(&self) -> &'static str {
        "fastest"
    }

    fn next(&mut self, view: &SendView<'_>, _: &mut Rng) -> Decision {
        let ready = view.subflows.iter().filter(|s| s.ready && !s.stale);
        let again = ready.clone().filter_map(|s| Some((s, s.copies.lost?)));
        if let Some((s, data)) = again.min_by_key(|(s, _)| s.srtt) {
            return Decision::copy_on(s.id, data);
        }
        match ready.min_by_key(|s| s.srtt) {
            Some(s) if view.may_send_new => Decision::new_on(s.id),
            _ => Decision::WAIT,
        }
    }
}

/// It, boxed.
pub fn strategy() -> Box<dyn Strategy> {
    Box::new(Fastest)
}
