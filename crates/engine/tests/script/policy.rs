//! The scheduler the tests use.

use braid_engine::SubflowId;
use braid_engine::strategy::{Decision, Payload, Policy, Reinject, Reinjector, Scheduler, SendView};
use braid_wire::Rng;

/// The fastest subflow that is ready, and no copies.
#[derive(Debug)]
struct Fastest;

impl Scheduler for Fastest {
    fn name(&self) -> &'static str {
        "fastest"
    }

    fn next(&mut self, view: &SendView<'_>, _: &mut Rng) -> Decision {
        let ready = view.subflows.iter().filter(|s| s.ready && !s.stale);
        match ready.min_by_key(|s| s.srtt) {
            Some(s) => Decision::Send {
                subflow: s.id,
                data: Payload::New,
                max_bytes: u32::MAX,
            },
            None => Decision::Wait,
        }
    }
}

impl Reinjector for Fastest {
    fn name(&self) -> &'static str {
        "none"
    }

    fn next(&mut self, _: &SendView<'_>, _: SubflowId) -> Option<Reinject> {
        None
    }
}

/// It, twice.
pub fn strategy() -> Box<dyn Strategy> {
    Policy {
        scheduler: Box::new(Fastest),
        reinjector: Box::new(Fastest),
    }
}
