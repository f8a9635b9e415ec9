//! MAPS: ranks paths by their quality, round-trip time and loss together.

use std::time::Duration;

use braid_engine::strategy::{
    Decision, OpenView, PathView, Payload, SendView, Strategy, StrategyEvent, SubflowView,
};
use braid_wire::{Instant, Rng};

use crate::parts::again;
use crate::parts::attempt;
use crate::parts::quality::{Attributes, Highest, MeasuredLoss, Weights, modelled_loss, score};
use crate::parts::rank::first_with_room;
use crate::parts::table::PerSubflow;
use crate::parts::usable::{progressing, usable};
use crate::settings::{Settings, StrategyError};

/// Round trips between two measurements of a path without new data. Four, so that a path that is fast
/// again is noticed soon, and measuring takes at most a quarter of the path's window.
const PROBE_ROUNDS: u32 = 4;
/// Most segments of one such measurement.
const PROBE_SEGMENTS: u64 = 10;

/// The MAPS scheduler (Zeng et al., "Multi-attribute Aware Path Selection Approach for Efficient
/// MPTCP-based Data Delivery", JISIS 7(1), 2017).
///
/// New data goes on the subflow of the lowest score, and on the next one while that is full.
#[derive(Debug, Clone)]
pub struct Maps {
    measured: bool,
    single: bool,
    /// The weight of a new sample in the smoothed round-trip time.
    eps: f64,
    weights: Weights,
    paths: PerSubflow<PathState>,
    highest: Highest,
}

/// The state of a subflow.
#[derive(Debug, Clone, Default)]
struct PathState {
    /// The round-trip time is 0 before the first sample.
    attributes: Attributes,
    /// There is a sample that the smoothed round-trip time does not have yet.
    fresh: bool,
    loss: MeasuredLoss,
    score: f64,
    probe: Probe,
}

/// A measurement of a path that carries no new data.
#[derive(Debug, Clone, Copy, Default)]
struct Probe {
    /// The time of the next measurement.
    next_at: Instant,
    /// The end of the measurement in progress, by bytes sent on the subflow.
    end: u64,
}

impl Maps {
    pub(crate) fn read(settings: &mut Settings<'_>) -> Result<Maps, StrategyError> {
        let plr = [("model", false), ("measured", true)];
        Ok(Maps {
            measured: settings.one_of("plr", false, &plr)?,
            single: settings.flag("single")?,
            eps: settings.share("eps", 0.125)?,
            weights: Weights {
                rtt: settings.share("alpha", 0.5)?,
                loss: settings.share("beta", 0.5)?,
            },
            paths: PerSubflow::default(),
            highest: Highest::default(),
        })
    }
}

impl Strategy for Maps {
    fn name(&self) -> &'static str {
        "maps"
    }

    /// Returns how long to wait for the first SYN. The paper starts with paths that are open; here a path
    /// that loses the first SYN must not cost a second while the other works.
    fn attempt_delay(&self, view: &OpenView<'_>, path: &PathView) -> Option<Duration> {
        attempt::attempt_delay(view, path)
    }

    fn next(&mut self, view: &SendView<'_>, _rng: &mut Rng) -> Decision {
        self.score_paths(view);
        again::lost(view)
            .or_else(|| self.new_data(view))
            .or_else(|| self.probe(view))
            .unwrap_or(Decision::WAIT)
    }

    fn on_event(&mut self, event: &StrategyEvent) {
        match *event {
            StrategyEvent::Acknowledged { subflow, bytes } => {
                let state = self.paths.of(subflow);
                state.fresh = true;
                state.loss.on_delivered(bytes);
            }
            StrategyEvent::Lost { subflow, bytes } => self.paths.of(subflow).loss.on_lost(bytes),
            _ => self.paths.on_event(event),
        }
    }
}

impl Maps {
    /// Takes in new measurements and scores the active paths.
    fn score_paths(&mut self, view: &SendView<'_>) {
        for subflow in usable(view) {
            let state = self.paths.of(subflow.id);
            state.measure(subflow, self.eps);
            state.attributes.loss = match self.measured {
                true => state.loss.share(view.now),
                false => modelled_loss(state.attributes.rtt, subflow.base_rtt, subflow.cwnd),
            };
        }
        let active = usable(view).filter_map(|s| self.paths.get(s.id));
        let highest = self
            .highest
            .with(view.now, active.map(|state| state.attributes));
        for subflow in usable(view) {
            let state = self.paths.of(subflow.id);
            state.score = match state.attributes.rtt > 0.0 {
                true => score(self.weights, state.attributes, highest),
                false => f64::INFINITY,
            };
        }
    }

    /// Ranks lower scores first. Scores are not negative, so their bits have the same order.
    fn order(&self, subflow: &SubflowView) -> u64 {
        let state = self.paths.get(subflow.id);
        state.map_or(u64::MAX, |state| state.score.to_bits())
    }

    fn new_data(&self, view: &SendView<'_>) -> Option<Decision> {
        if !self.single {
            return first_with_room(view, view.unsent, |s| self.order(s), |_| true);
        }
        let best = progressing(view).min_by_key(|s| self.order(s))?;
        (best.ready && view.may_send_new).then(|| Decision::new_on(best.id))
    }

    /// Returns a copy that measures a path without new data.
    ///
    /// With one path at a time the others would never be measured again. Now and then they carry a
    /// windowful of copies: a single packet would show the round-trip time, but the window, from which
    /// the loss is modelled, grows only where it is used.
    fn probe(&mut self, view: &SendView<'_>) -> Option<Decision> {
        if !self.single {
            return None;
        }
        let best = usable(view).map(|s| self.order(s)).min()?;
        let others = usable(view).filter(|s| s.ready);
        let mut others = others.filter_map(|s| Some((s, s.copies.single?)));
        others.find_map(|(on, data)| {
            if self.order(on) <= best {
                return None;
            }
            let mss = u64::from(on.mss);
            let probe = &mut self.paths.of(on.id).probe;
            if view.now >= probe.next_at {
                probe.next_at = view.now + PROBE_ROUNDS * on.srtt;
                probe.end = on.sent + on.cwnd.min(PROBE_SEGMENTS * mss);
            }
            let left = probe.end.checked_sub(on.sent).filter(|left| *left > 0)?;
            Some(Decision::Send {
                subflow: on.id,
                data: Payload::Copy {
                    data,
                    penalise: false,
                },
                max_bytes: u32::try_from(left.max(mss)).unwrap_or(u32::MAX),
            })
        })
    }
}

impl PathState {
    /// Smooths the round-trip time.
    fn measure(&mut self, subflow: &SubflowView, eps: f64) {
        let fresh = std::mem::take(&mut self.fresh);
        let rtt = &mut self.attributes.rtt;
        if *rtt == 0.0 {
            *rtt = subflow.srtt.as_secs_f64();
        } else if fresh {
            *rtt += eps * (subflow.latest_rtt.as_secs_f64() - *rtt);
        }
    }
}
