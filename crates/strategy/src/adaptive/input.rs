//! The input of a decision: the subflows with their estimates, and the data that remains.

use arrayvec::ArrayVec;
use braid_engine::strategy::{InFlight, SendView, SubflowView, Writer};
use braid_engine::{PathRecord, SubflowId, Urgency};
use braid_wire::Instant;

use crate::parts::estimate::Estimate;
use crate::parts::table::PerSubflow;
use crate::parts::urgency;
use crate::parts::usable::{keeps_waiting, usable};

/// Maximum number of subflows that a decision compares, so that it does not allocate. A connection seldom has more
/// than 8 subflows. Those beyond the maximum get no data.
const MAX_SUBFLOWS: usize = 16;

/// The assumed probability of loss on a path without measurements, and the number of measured packets that the
/// assumption counts for. Both are guesses.
pub(super) const PRIOR_LOSS: f64 = 0.005;
pub(super) const PRIOR_PACKETS: f64 = 20.0;
/// Maximum number of packets for which a path's record counts, so that new losses soon outweigh old ones. 200 is a
/// guess.
const RECORDED_PACKETS: f64 = 200.0;

/// A subflow that a decision compares with others.
#[derive(Debug, Clone, Copy)]
pub(super) struct Candidate<'a> {
    pub subflow: &'a SubflowView,
    pub estimate: Estimate,
    /// The probability that a packet is lost on the path; see [`loss`].
    pub loss: f64,
    /// True if the subflow has room for data, does not yield to more urgent data, and is not overshooting.
    pub ready: bool,
}

impl<'a> Candidate<'a> {
    /// Returns a subflow that is not ready.
    fn waiting(
        now: Instant,
        subflow: &'a SubflowView,
        records: &PerSubflow<Option<PathRecord>>,
    ) -> Self {
        let record = records.get(subflow.id).and_then(Option::as_ref);
        Candidate {
            subflow,
            estimate: Estimate::new(now, subflow, record),
            loss: loss(subflow, record),
            ready: false,
        }
    }
}

/// The input of one decision.
#[derive(Debug)]
pub(super) struct DecisionInput<'a> {
    pub view: &'a SendView<'a>,
    records: &'a PerSubflow<Option<PathRecord>>,
    pub subflows: ArrayVec<Candidate<'a>, MAX_SUBFLOWS>,
    /// The urgency of the data that is sent next; `None` if there is none.
    pub next_urgency: Option<Urgency>,
    /// True while important data may be in flight.
    pub important_in_flight: bool,
    /// Bytes still to be sent for the first time; see [`remaining`].
    pub remaining: f64,
}

impl<'a> DecisionInput<'a> {
    /// Returns an input without subflows, which [`add_subflows`](Self::add_subflows) adds. The list of subflows is
    /// expensive to move, so it is filled in place.
    #[inline]
    pub fn new(
        view: &'a SendView<'a>,
        records: &'a PerSubflow<Option<PathRecord>>,
        last_important: Option<u64>,
    ) -> Self {
        DecisionInput {
            view,
            records,
            subflows: ArrayVec::new(),
            next_urgency: urgency::next_urgency(view),
            // The last important data lies within the unacknowledged bytes before `sent`.
            important_in_flight: last_important
                .is_some_and(|start| start + view.outstanding >= view.sent),
            remaining: remaining(view) as f64,
        }
    }

    /// Adds the usable subflows.
    pub fn add_subflows(&mut self) {
        let view = self.view;
        // If every path has a long queue, all of them stay candidates.
        let all_slow = usable(view).all(keeps_waiting);
        let usable = usable(view).filter(|s| all_slow || !keeps_waiting(s));
        for subflow in usable.take(MAX_SUBFLOWS) {
            self.subflows.push(Candidate {
                ready: subflow.ready && !urgency::yields_path(view, self.next_urgency, subflow),
                ..Candidate::waiting(view.now, subflow, self.records)
            });
        }
    }

    fn sum(&self, property: fn(&Estimate) -> f64) -> f64 {
        self.subflows.iter().map(|c| property(&c.estimate)).sum()
    }

    /// Returns the sum of the subflows' rates, bytes/s; at least 1, because callers divide by it.
    pub fn speed(&self) -> f64 {
        self.sum(Estimate::speed).max(1.0)
    }

    /// Returns when the data that was never sent has arrived if nothing is lost; 0 if there is none.
    pub fn sent_by(&self) -> f64 {
        if self.remaining == 0.0 {
            return 0.0;
        }
        let one_way = self.subflows.iter().map(|c| c.estimate.one_way);
        (self.remaining + self.sum(|e| e.own_queue)) / self.speed()
            + one_way.fold(f64::INFINITY, f64::min)
    }

    /// Returns the subflow that sent `data` last, also if it is no candidate because its queue is long; `None` if it
    /// is gone.
    pub fn last_sender(&self, data: &InFlight) -> Option<Candidate<'a>> {
        let view = self.view;
        let waiting = |s| Candidate::waiting(view.now, s, self.records);
        let candidate = self.candidate(data.last_sender).copied();
        candidate.or_else(|| view.subflow(data.last_sender).map(waiting))
    }

    pub fn candidate(&self, id: SubflowId) -> Option<&Candidate<'a>> {
        self.subflows.iter().find(|c| c.subflow.id == id)
    }
}

/// Returns the number of bytes still to be sent for the first time.
///
/// The announced size of the flow counts only while the application waits for room to write. Otherwise the
/// announced size may be that of the other direction, and only the bytes in the send buffer are certain. A flow of
/// unknown size whose application waits is assumed to be half finished.
fn remaining(view: &SendView<'_>) -> u64 {
    let announced = view.flow_size.bytes().filter(|size| *size > view.sent);
    let size = match view.writer {
        Writer::Waiting => announced.unwrap_or(2 * view.sent),
        Writer::Open | Writer::Done => 0,
    };
    size.saturating_sub(view.sent).max(view.unsent)
}

/// Returns the probability that a packet is lost on `subflow`: the subflow's share of non-congestive losses,
/// combined with the path's record and the prior.
fn loss(subflow: &SubflowView, record: Option<&PathRecord>) -> f64 {
    let packet = f64::from(subflow.mss);
    let prior = PRIOR_PACKETS * packet;
    let (mut lost, mut sent) = (PRIOR_LOSS * prior, prior);
    if let Some(record) = record.filter(|r| r.bytes_sent > 0) {
        let recorded = record.bytes_sent as f64;
        let weight = recorded.min(RECORDED_PACKETS * packet);
        lost += record.bytes_lost as f64 * weight / recorded;
        sent += weight;
    }
    // The quotient may exceed 1: bytes that are lost, retransmitted and lost again count twice as lost, but once
    // as sent.
    ((lost + subflow.non_congestive_loss as f64) / (sent + subflow.sent as f64)).min(1.0)
}
