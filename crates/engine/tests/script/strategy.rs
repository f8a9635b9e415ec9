//! The strategy the tests use.

use braid_engine::strategy::{Decision, OpenView, PathView, SendView, Strategy};
use braid_wire::{Instant, Rng};

/// The fastest subflow that is ready, and no copies but of what is lost.
#[derive(Debug)]
struct Fastest {
    /// It joins no sooner.
    join_from: Instant,
}

impl Strategy for Fastest {
    fn name(&self) -> &'static str {
        "fastest"
    }

    fn join(&mut self, view: &OpenView<'_>, _: &PathView) -> Option<Instant> {
        Some(view.now.max(self.join_from))
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

/// It, boxed; it joins from 20 ms on, when most scripts have seen a DATA_ACK.
pub fn strategy() -> Box<dyn Strategy> {
    let join_from = Instant::from_millis(20);
    Box::new(Fastest { join_from })
}

/// The fastest subflow, and no further one of its own accord.
pub fn single() -> Box<dyn Strategy> {
    #[derive(Debug)]
    struct Single(Box<dyn Strategy>);

    impl Strategy for Single {
        fn name(&self) -> &'static str {
            "single"
        }

        fn join(&mut self, _: &OpenView<'_>, _: &PathView) -> Option<Instant> {
            None
        }

        fn next(&mut self, view: &SendView<'_>, rng: &mut Rng) -> Decision {
            self.0.next(view, rng)
        }
    }

    Box::new(Single(eager()))
}

/// It joins as soon as it may.
pub fn eager() -> Box<dyn Strategy> {
    let join_from = Instant::ZERO;
    Box::new(Fastest { join_from })
}
