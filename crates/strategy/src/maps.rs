//! MAPS: ranks paths by a quality score of their round-trip time and their loss.

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

/// Round trips between two measurements of a path without new data. Four is a guess: the strategy soon notices a
/// path that has become fast again, and measurements take at most a quarter of the path's window per round trip.
const PROBE_ROUNDS: u32 = 4;
/// Maximum number of segments in one measurement. 10 is a guess: the size of an initial window (RFC 6928).
const PROBE_SEGMENTS: u64 = 10;

/// The MAPS scheduler (Zeng et al., "Multi-attribute Aware Path Selection Approach for Efficient
/// MPTCP-based Data Delivery", JISIS 7(1), 2017).
///
/// New data goes on the subflow with the lowest score. While that subflow is full, data goes on the one with the
/// next score, unless `single` is set.
#[derive(Debug, Clone)]
pub struct Maps {
    /// True if the loss of a path is measured, false if it is modelled from the window.
    measured: bool,
    /// True if only the best path carries new data.
    single: bool,
    /// The weight of the old value in the smoothed round-trip time (the paper's epsilon).
    eps: f64,
    weights: Weights,
    paths: PerSubflow<PathState>,
    /// The highest round-trip time and loss of any path, by which scores are normalised.
    highest: Highest,
}

/// The state of a subflow.
#[derive(Debug, Clone, Default)]
struct PathState {
    /// The attributes for the score. The round-trip time is 0 before the first sample.
    attributes: Attributes,
    /// True if the subflow has a round-trip time sample that `attributes` does not include yet.
    has_new_sample: bool,
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
            // The paper's value, which RFC 6298 uses too.
            eps: settings.share("eps", 0.875)?,
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

    /// Returns how long to wait for the answer to the first SYN. The paper assumes established subflows. Here the
    /// first SYN may be lost. The connection should not wait a second for the SYN's retransmission while another
    /// path works.
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
                state.has_new_sample = true;
                state.loss.on_delivered(bytes);
            }
            StrategyEvent::Lost { subflow, bytes } => self.paths.of(subflow).loss.on_lost(bytes),
            _ => self.paths.on_event(event),
        }
    }
}

impl Maps {
    /// Updates the attributes of the active paths from new measurements, and computes the paths' scores.
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
            // A path without a sample ranks last.
            state.score = match state.attributes.rtt > 0.0 {
                true => score(self.weights, state.attributes, highest),
                false => f64::INFINITY,
            };
        }
    }

    /// Returns the sort key of a subflow: lower scores first. Scores are not negative, so their bits, read as
    /// integers, have the same order as the scores.
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
    /// If only the best path carries new data, the others would never be measured again. Every few round trips
    /// they therefore carry a window of copies. A single packet would suffice to measure the round-trip time. But
    /// the loss is modelled from the window, and the window grows only while it is used.
    fn probe(&mut self, view: &SendView<'_>) -> Option<Decision> {
        if !self.single {
            return None;
        }
        let best = usable(view).map(|s| self.order(s)).min()?;
        let others = usable(view).filter(|s| s.ready);
        let mut others = others.filter_map(|s| Some((s, s.copies.single?)));
        others.find_map(|(target, data)| {
            if self.order(target) <= best {
                return None;
            }
            let mss = u64::from(target.mss);
            let probe = &mut self.paths.of(target.id).probe;
            if view.now >= probe.next_at {
                probe.next_at = view.now + PROBE_ROUNDS * target.srtt;
                probe.end = target.sent + target.cwnd.min(PROBE_SEGMENTS * mss);
            }
            let left = probe
                .end
                .checked_sub(target.sent)
                .filter(|left| *left > 0)?;
            Some(Decision::Send {
                subflow: target.id,
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
    /// Adds a new sample to the smoothed round-trip time. The first value is the engine's smoothed round-trip
    /// time.
    fn measure(&mut self, subflow: &SubflowView, eps: f64) {
        let has_new_sample = std::mem::take(&mut self.has_new_sample);
        let rtt = &mut self.attributes.rtt;
        if *rtt == 0.0 {
            *rtt = subflow.srtt.as_secs_f64();
        } else if has_new_sample {
            *rtt += (1.0 - eps) * (subflow.latest_rtt.as_secs_f64() - *rtt);
        }
    }
}
