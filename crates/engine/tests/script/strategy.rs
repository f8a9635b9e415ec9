//! The strategies of the tests.

use braid_engine::strategy::{Decision, OpenView, PathView, SendView, Strategy};
use braid_wire::{Instant, Rng};

/// Chooses the fastest ready subflow, and copies only lost data.
#[derive(Debug)]
struct Fastest {
    /// The time before which it does not join.
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

/// Returns this strategy, boxed; it joins from 20 ms on, when most scripts have seen a DATA_ACK.
pub fn strategy() -> Box<dyn Strategy> {
    let join_from = Instant::from_millis(20);
    Box::new(Fastest { join_from })
}

/// Returns a strategy of the fastest subflow that opens no further one.
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

/// Returns a strategy that joins as soon as it may.
pub fn eager() -> Box<dyn Strategy> {
    let join_from = Instant::ZERO;
    Box::new(Fastest { join_from })
}
