//! The default strategy. The strategy estimates when data that is sent on each subflow arrives. By these estimates
//! it decides where new data goes, and which data is worth sending twice.

mod copies;
mod input;
mod opening;
mod overshoot;
mod placement;

use std::time::Duration;

use braid_engine::strategy::{
    Decision, FlowSize, InFlight, OpenView, Opening, PathView, Payload, SendView, Strategy,
    StrategyEvent, first_in_order,
};
use braid_engine::{PathRecord, Protocol};
use braid_wire::{Instant, Rng};

use self::copies::is_affordable;
use self::input::DecisionInput;
use self::opening::opening_cost;
use crate::parts::again;
use crate::parts::attempt;
use crate::parts::flow::size;
use crate::parts::table::PerSubflow;
use crate::parts::urgency;

/// Sends new data on the subflow on which it arrives first. Waits if faster subflows without room will deliver all
/// new data sooner.
///
/// Sends a copy if the copy is likely to end the flow earlier and new data does not need the room. A flow that
/// fits one initial window stays on one subflow if its size is known. A connection opens on the path on which, by
/// the paths' records, its first data will arrive earliest.
#[derive(Debug, Clone, Default)]
pub struct Adaptive {
    records: PerSubflow<Option<PathRecord>>,
    /// The offset in the stream at which the important data that was sent last begins.
    last_important: Option<u64>,
    /// The arrival that the latest decision expects.
    expected_arrival: Option<Instant>,
}

impl Strategy for Adaptive {
    fn name(&self) -> &'static str {
        "adaptive"
    }

    fn open(&mut self, view: &OpenView<'_>) -> Option<Opening> {
        // A path whose SYN is unanswered is no candidate while there are other paths.
        let may_open = |p: &&PathView| Some(p.id) != view.unanswered && !p.backup;
        let candidates = view.paths.iter().filter(may_open);
        // The other paths join when the flow exceeds the initial window, so only so much depends on the first one.
        let known = view.flow_size.bytes().unwrap_or(view.initial_window);
        let bytes = known.max(view.unsent).min(view.initial_window) as f64;
        let cost = |p: &PathView| {
            let record = p.record.as_ref()?;
            // Connections that open now on the path will share its rate. They are assumed to be like this one.
            let together = bytes * f64::from(p.openings + 1);
            Some((opening_cost(record, together), p.id))
        };
        let costs = candidates.filter_map(cost);
        match costs.min_by(|a, b| a.0.total_cmp(&b.0)) {
            Some((_, path)) => Some(Opening {
                path,
                protocol: Protocol::Mptcp,
            }),
            None => first_in_order(view),
        }
    }

    fn attempt_delay(&self, view: &OpenView<'_>, path: &PathView) -> Option<Duration> {
        attempt::attempt_delay(view, path)
    }

    fn join(&mut self, view: &OpenView<'_>, _path: &PathView) -> Option<Instant> {
        // A flow of unknown size that has filled an initial window probably goes on.
        let is_full =
            view.flow_size == FlowSize::Unknown && 10 * view.seen >= 9 * view.initial_window;
        if is_full || size(view.flow_size, view.seen) > view.initial_window {
            return Some(view.now);
        }
        // A flow of one initial window needs one round trip after the handshake. A flow that is not over half a
        // round trip later has probably lost a packet, and a second subflow helps.
        let first = view.first?;
        Some(first.since + first.rtt * 3 / 2 + attempt::RTT_MARGIN)
    }

    fn next(&mut self, view: &SendView<'_>, _rng: &mut Rng) -> Decision {
        self.expected_arrival = None;
        let decision = again::lost(view).unwrap_or_else(|| {
            let mut input = DecisionInput::new(view, &self.records, self.last_important);
            input.add_subflows();
            input.hold_back();
            let decision = input.decide();
            self.expected_arrival = input.expected_arrival(&decision);
            decision
        });
        let is_new = matches!(
            decision,
            Decision::Send {
                data: Payload::New,
                ..
            }
        );
        if is_new && urgency::next_urgency(view).is_some_and(urgency::is_important) {
            self.last_important = Some(view.sent);
        }
        decision
    }

    fn expected_arrival(&self) -> Option<Instant> {
        self.expected_arrival
    }

    fn on_event(&mut self, event: &StrategyEvent) {
        if let StrategyEvent::SubflowUp { subflow, record } = event {
            *self.records.of(*subflow) = *record;
        }
        self.records.on_event(event);
    }
}

impl DecisionInput<'_> {
    fn decide(&self) -> Decision {
        let view = self.view;
        let excused = || {
            let until = view.oldest.and_then(|data| self.excused_until(&data));
            until.filter(|at| *at > view.now)
        };
        let wait = || Decision::Wait {
            until: Instant::earliest([again::late_at(view), self.next_copy_at(), excused()]),
        };
        // The peer cannot read past late data, so a copy that overtakes the late data precedes new data.
        let late = again::late(view).filter(|late| match late {
            Decision::Send {
                data: Payload::Copy { data, .. },
                ..
            } => self.overtakes(late) && !self.is_excused(data),
            _ => false,
        });
        if let Some(late) = late {
            return late;
        }
        let affordable = |data: &InFlight| is_affordable(view, data);
        if self.important_in_flight
            && let Some(copy) = urgency::unblock(view, affordable)
        {
            return copy;
        }
        if !view.may_send_new {
            let blocking = again::blocking(view).filter(|copy| self.overtakes(copy));
            let again = blocking.or_else(|| again::trial(view));
            return again.or_else(|| self.copy()).unwrap_or_else(wait);
        }
        let again = || again::trial(view).or_else(|| self.copy());
        self.new_data().or_else(again).unwrap_or_else(wait)
    }

    /// Returns when the first packet that `decision` sends is expected to arrive.
    fn expected_arrival(&self, decision: &Decision) -> Option<Instant> {
        let Decision::Send { subflow, data, .. } = decision else {
            return None;
        };
        let c = self.candidate(*subflow)?;
        let len = match data {
            Payload::New => self.remaining,
            Payload::Copy { data, .. } => (data.end - data.start) as f64,
        };
        let packet = f64::from(c.subflow.mss).min(len);
        Some(self.view.now + Duration::from_secs_f64(c.estimate.arrival(packet)))
    }
}
