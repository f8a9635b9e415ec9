//! BBR version 3 (draft-ietf-ccwg-bbr-06): sends at the rate at which the path delivers, and keeps as many
//! bytes in flight as this rate needs, instead of filling the queue until it overflows. Names in brackets are
//! the draft's; sections are those of the draft, and all constants have the draft's values. The draft defines
//! no ECN response, so BBR sends Not-ECT.

use core::time::Duration;

use braid_wire::{Instant, Rng};

use super::bbr_model::{
    BETA_PERCENT, Model, UNBOUNDED, in_flight_at_loss, is_inflight_too_high, rate_over, share,
};
use super::{AckSample, Algorithm, CongestionControl, Loss};

/// BBR version 3 (draft-ietf-ccwg-bbr-06).
pub const BBR: Algorithm = Algorithm {
    name: "bbr",
    make: |mss, initial_window| Box::new(Bbr::new(mss, initial_window)),
};

/// The pacing rate in Startup, as a percentage of the estimated rate (`StartupPacingGain`): 4 ln 2, the lowest
/// gain at which the rate can double in each round.
const STARTUP_PACING_GAIN: u64 = 277;
/// The percentage by which pacing stays below the estimated rate, so that queues drain (`PacingMarginPercent`).
const PACING_MARGIN_PERCENT: u64 = 1;
/// The percentage of the long-term bound that Cruise leaves to other flows, so that they can grow (`Headroom`).
const HEADROOM_PERCENT: u64 = 15;
/// The minimum window in segments (`MinPipeCwnd`): with fewer in flight, a peer that acknowledges every second
/// segment would stall the flow.
const MIN_PIPE_SEGMENTS: u64 = 4;
/// The minimum time in ProbeRTT with little data in flight (`ProbeRTTDuration`). A queue that several flows share
/// empties only while all of them hold back; in this time their ProbeRTT phases can overlap.
const PROBE_RTT_DURATION: Duration = Duration::from_millis(200);
/// The minimum number of loss reports in one round for losses to end Startup (`StartupFullLossCnt`). The lost
/// bytes must also be more than a probe may lose.
const STARTUP_FULL_LOSSES: u32 = 6;
/// The maximum number of round trips between probes of the rate. If the bandwidth-delay product (BDP) is less than
/// this number of segments, the BDP in segments is the maximum instead. Reno needs a number of rounds in the order
/// of the BDP in segments to recover from a loss, so probes at this pace leave Reno a fair share (section 5.3.3.8).
const MAX_RENO_ROUNDS: u64 = 63;
/// The maximum number of rounds in Drain: other flows may keep the queue from emptying.
const MAX_DRAIN_ROUNDS: u64 = 3;
/// The maximum number of bytes of one burst (section 5.6.3): the largest packet that segmentation offload
/// takes.
const MAX_QUANTUM_BYTES: u64 = 64 << 10;

/// The state of the machine. `Down`, `Cruise`, `Refill` and `Up` are the phases of ProbeBW.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Doubles the rate in each round until the pipe is full.
    Startup,
    /// Drains the queue that Startup has built.
    Drain,
    /// Drains the queue that Up has built.
    Down,
    /// Sends at the estimated rate.
    Cruise,
    /// Fills the path before Up, and forgets the short-term bounds.
    Refill,
    /// Probes for a higher rate.
    Up,
    /// Holds back to measure the lowest round trip.
    ProbeRtt,
}

impl State {
    /// Returns the pacing rate as a percentage of the estimated rate (section 5.6.1).
    fn pacing_gain(self) -> u64 {
        match self {
            State::Startup => STARTUP_PACING_GAIN,
            State::Drain => 50,
            State::Down => 90,
            State::Cruise | State::Refill | State::ProbeRtt => 100,
            State::Up => 125,
        }
    }

    /// Returns the window as a percentage of the bandwidth-delay product (section 5.6.1). Twice the product
    /// keeps the flow sending while acknowledgements are delayed or aggregated.
    fn cwnd_gain(self) -> u64 {
        match self {
            State::Up => 225,
            State::ProbeRtt => 50,
            _ => 200,
        }
    }

    /// Returns whether this is a state of ProbeBW.
    fn is_probe_bw(self) -> bool {
        matches!(
            self,
            State::Down | State::Cruise | State::Refill | State::Up
        )
    }

    /// Returns whether the state probes for bandwidth (`IsProbingBW`).
    fn is_probing(self) -> bool {
        matches!(self, State::Startup | State::Refill | State::Up)
    }
}

/// The relation of the arriving acknowledgements to the last probe of the rate. Acknowledgements lag a round trip
/// behind the state of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AckPhase {
    /// Acknowledgements do not report on a probe.
    Init,
    /// The state is Refill: no data of the next probe was sent yet.
    Refilling,
    /// The probe has begun; acknowledgements are still for data sent before the probe.
    Starting,
    /// Acknowledgements are for data of the probe.
    Feedback,
    /// The probe has ended; acknowledgements are still for data of the probe.
    Stopping,
}

/// The state that is restored after a spurious recovery (section 5.5.11).
#[derive(Debug, Clone, Copy)]
struct Undo {
    /// The state that the machine left because of the losses; `None` if the losses did not change the state.
    state: Option<State>,
    bw_shortterm: u64,
    inflight_shortterm: u64,
    inflight_longterm: u64,
}

/// The growth of the long-term bound in ProbeBW_UP (section 5.3.3.5).
#[derive(Debug, Clone, Copy)]
struct Slope {
    /// The number of rounds of growth so far. Each round doubles the slope.
    rounds: u32,
    /// The acknowledged bytes that have not led to growth yet.
    acked: u64,
    /// The number of bytes to be acknowledged for each segment of growth.
    per_segment: u64,
}

/// The results of the last probes for bandwidth.
#[derive(Debug, Clone, Copy, Default)]
struct Probe {
    /// True while data that is lost may be data of a probe (`bw_probe_samples`).
    is_sample: bool,
    /// True if the last probe lost too much.
    prev_too_high: bool,
    /// True if the last probe ended early as a precaution: the probe before had lost too much, and the data in
    /// flight reached the bound that these losses had set.
    prev_precautionary: bool,
}

/// The controller: the state machine, and the values that it derives from the model.
#[derive(Debug)]
struct Bbr {
    mss: u64,
    cwnd: u64,
    initial_cwnd: u64,
    /// The window to restore after recovery or ProbeRTT; zero as long as there was neither.
    prior_cwnd: u64,
    /// The pacing rate in bytes/s; zero before the first round trip.
    pacing_rate: u64,
    model: Model,
    state: State,
    ack_phase: AckPhase,
    /// The number of the round in which Drain began.
    drain_start: u64,
    /// The time at which ProbeBW_DOWN last began.
    cycle_start: Instant,
    /// The time from `cycle_start` to the next probe of the rate.
    probe_wait: Duration,
    rounds_since_probe: u64,
    slope: Slope,
    probe: Probe,
    /// The earliest end of ProbeRTT; `None` until the data in flight has shrunk to the window of ProbeRTT.
    probe_rtt_done: Option<Instant>,
    /// True once a round trip has passed since the data in flight shrank to that window.
    probe_rtt_round_done: bool,
    /// True from a pause to the next acknowledgement of data.
    idle_restart: bool,
    in_recovery: bool,
    undo: Option<Undo>,
    /// The initial window in segments; `None` once anything has changed the window. A new segment size scales only
    /// an unchanged initial window.
    initial_segments: Option<u32>,
}

impl Bbr {
    fn new(mss: u32, initial_window: u32) -> Self {
        let mss = u64::from(mss.max(1));
        let initial_cwnd = mss * u64::from(initial_window.max(1));
        Bbr {
            mss,
            cwnd: initial_cwnd,
            initial_cwnd,
            prior_cwnd: 0,
            pacing_rate: 0,
            model: Model::new(),
            state: State::Startup,
            ack_phase: AckPhase::Init,
            drain_start: 0,
            cycle_start: Instant::ZERO,
            probe_wait: Duration::ZERO,
            rounds_since_probe: 0,
            slope: Slope {
                rounds: 0,
                acked: 0,
                per_segment: UNBOUNDED,
            },
            probe: Probe::default(),
            probe_rtt_done: None,
            probe_rtt_round_done: false,
            idle_restart: false,
            in_recovery: false,
            undo: None,
            initial_segments: Some(initial_window.max(1)),
        }
    }

    fn min_pipe(&self) -> u64 {
        MIN_PIPE_SEGMENTS * self.mss
    }

    /// Returns `percent` of the estimated bandwidth-delay product (`BDPMultiple`), or the initial window before
    /// the first round trip.
    fn bdp(&self, percent: u64) -> u64 {
        self.model.bdp(percent).unwrap_or(self.initial_cwnd)
    }

    /// Returns `bytes`, or the minimum for data in flight if it is higher (`QuantizationBudget`).
    fn with_minimum(&self, bytes: u64) -> u64 {
        // A burst of 1 ms at the pacing rate, but at least two segments (section 5.6.3).
        let quantum = (self.pacing_rate / 1000)
            .min(MAX_QUANTUM_BYTES)
            .max(2 * self.mss);
        // Three bursts sustain the rate while sender and receiver merge segments (`BBR.offload_budget`).
        let bytes = bytes.max(3 * quantum).max(self.min_pipe());
        match self.state {
            // With a small bandwidth-delay product the minimum alone would leave no room to probe for more.
            State::Up => bytes + 2 * self.mss,
            _ => bytes,
        }
    }

    /// Returns the bytes to keep in flight: the bandwidth-delay product, or the window if it is smaller
    /// (`TargetInflight`).
    fn target(&self) -> u64 {
        self.bdp(100).min(self.cwnd)
    }

    /// Returns the long-term bound less the headroom, which is at least a segment (`InflightWithHeadroom`).
    fn with_headroom(&self) -> u64 {
        match self.model.inflight_longterm {
            UNBOUNDED => UNBOUNDED,
            bound => (bound - share(bound, HEADROOM_PERCENT).max(self.mss).min(bound))
                .max(self.min_pipe()),
        }
    }

    /// Ends Startup if the pipe is full or losses are high (`CheckStartupHighLoss` and `CheckStartupDone`).
    fn check_startup(&mut self, ack: &AckSample<'_>) {
        if self.state != State::Startup {
            return;
        }
        let tx = self.model.sample.map(|sample| sample.tx);
        let is_loss_high = self.model.rounds.loss_start
            && ack.in_recovery
            && self.model.rounds.losses >= STARTUP_FULL_LOSSES
            && tx.is_some_and(|tx| is_inflight_too_high(tx.lost, tx.in_flight));
        if is_loss_high && !self.model.full.reached {
            self.model.full.reached = true;
            self.model.inflight_longterm = self.bdp(100).max(self.model.inflight_latest());
            self.note_undo(State::Startup);
        }
        if self.model.full.reached {
            self.state = State::Drain;
            self.drain_start = self.model.rounds.count;
        }
    }

    /// Notes that the machine leaves `state` because of losses, to return to it if they were spurious.
    fn note_undo(&mut self, state: State) {
        if let Some(undo) = &mut self.undo {
            undo.state = Some(state);
        }
    }

    /// Ends Drain when the data in flight has shrunk to the bandwidth-delay product, so that the queue is empty,
    /// or after [`MAX_DRAIN_ROUNDS`] rounds (`CheckDrainDone`).
    fn check_drain(&mut self, ack: &AckSample<'_>) {
        let drained = ack.in_flight <= self.with_minimum(self.bdp(100))
            || self.model.rounds.count > self.drain_start + MAX_DRAIN_ROUNDS;
        if self.state == State::Drain && drained {
            self.start_down(ack.now);
        }
    }

    /// Enters ProbeBW_DOWN, which drains the queue that a probe has built (`StartProbeBW_DOWN`).
    fn start_down(&mut self, now: Instant) {
        self.model.forget_signals();
        self.slope.per_segment = UNBOUNDED;
        self.pick_wait(now);
        self.cycle_start = now;
        self.ack_phase = AckPhase::Stopping;
        self.model.start_round();
        self.state = State::Down;
    }

    /// Picks a random time for the next probe, two to three seconds from now (`PickProbeWait`), so that flows on
    /// one link do not probe together. For the same reason the count of rounds begins at 0 or 1. The seed is made
    /// of the time and the number of bytes delivered: it differs between flows, and a repeated simulation draws
    /// the same numbers.
    fn pick_wait(&mut self, now: Instant) {
        let mut rng = Rng::for_component(now.as_nanos(), self.model.delivered());
        self.rounds_since_probe = rng.below(2);
        self.probe_wait = Duration::from_secs(2) + Duration::from_nanos(rng.below(1_000_000_000));
    }

    /// Enters ProbeBW_REFILL (`StartProbeBW_REFILL`). For a round, the flow sends at the estimated rate. This
    /// fills the path, without a queue, before the rate is probed.
    fn start_refill(&mut self) {
        self.model.forget_shortterm();
        self.slope.rounds = 0;
        self.slope.acked = 0;
        self.probe.prev_precautionary = false;
        self.ack_phase = AckPhase::Refilling;
        self.model.start_round();
        self.state = State::Refill;
    }

    /// Enters ProbeBW_UP, which sends faster than the estimated rate (`StartProbeBW_UP`).
    fn start_up(&mut self) {
        self.probe.is_sample = true;
        self.ack_phase = AckPhase::Starting;
        self.model.start_round();
        let rate = self.model.sample.map_or(0, |sample| sample.rate());
        self.model.full.restart(rate);
        self.state = State::Up;
        self.raise_slope();
    }

    /// Doubles the slope of the long-term bound (`RaiseInflightLongtermSlope`).
    fn raise_slope(&mut self) {
        let growth = 1 << self.slope.rounds;
        // The draft's limit keeps the shift above within 64 bits.
        self.slope.rounds = (self.slope.rounds + 1).min(30);
        self.slope.per_segment = (self.cwnd / growth).max(self.mss);
    }

    /// Advances the cycle of ProbeBW (`UpdateProbeBWCyclePhase`).
    fn advance_cycle(&mut self, ack: &AckSample<'_>) {
        if !self.model.full.reached || self.adapt_long_term(ack) {
            return;
        }
        match self.state {
            State::Down | State::Cruise if self.is_time_to_probe(ack.now) => self.start_refill(),
            State::Down if self.is_time_to_cruise(ack) => self.state = State::Cruise,
            State::Refill if self.model.rounds.start => self.start_up(),
            State::Up => self.check_up(ack),
            _ => {}
        }
    }

    /// Returns whether a probe of the rate is due (`IsTimeToProbeBW`).
    fn is_time_to_probe(&self, now: Instant) -> bool {
        let reno_rounds = (self.target() / self.mss).min(MAX_RENO_ROUNDS);
        now > self.cycle_start + self.probe_wait || self.rounds_since_probe >= reno_rounds
    }

    /// Returns whether ProbeBW_DOWN has drained the queue and left headroom (`IsTimeToCruise`).
    fn is_time_to_cruise(&self, ack: &AckSample<'_>) -> bool {
        ack.in_flight <= self.with_headroom() && ack.in_flight <= self.with_minimum(self.bdp(100))
    }

    /// Ends ProbeBW_UP if the rate no longer grows, or if more data in flight risks losses (`IsTimeToGoDown`).
    fn check_up(&mut self, ack: &AckSample<'_>) {
        if self.probe.prev_too_high && ack.in_flight >= self.model.inflight_longterm {
            // The last probe lost too much with this much data in flight. Stop here, and see whether the present
            // data is lost too.
            self.probe.prev_precautionary = true;
        } else if ack.cwnd_limited && self.cwnd >= self.model.inflight_longterm {
            // The bound limits the rate, so a rate that does not grow says nothing about the path.
            let rate = self.model.sample.map_or(0, |sample| sample.rate());
            self.model.full.restart(rate);
            return;
        } else if !self.model.full.now {
            return;
        }
        self.probe.prev_too_high = false;
        self.start_down(ack.now);
    }

    /// Updates the long-term bound (`AdaptLongTermModel`). Returns whether the update changed the state.
    fn adapt_long_term(&mut self, ack: &AckSample<'_>) -> bool {
        let round = self.model.rounds.start;
        if self.ack_phase == AckPhase::Starting && round {
            self.ack_phase = AckPhase::Feedback;
        }
        if self.ack_phase == AckPhase::Stopping && round {
            self.probe.is_sample = false;
            self.ack_phase = AckPhase::Init;
            let shows_path_rate = self.model.sample.is_some_and(|s| !s.tx.app_limited);
            if self.state.is_probe_bw() && shows_path_rate {
                self.model.advance_max_bw();
            }
            // The probe stopped at the bound as a precaution, but lost little: the bound is lower than the
            // path allows, so probe beyond it at once instead of two to three seconds later.
            let bound_was_safe = self.probe.prev_precautionary && !self.probe.prev_too_high;
            if self.state.is_probe_bw() && bound_was_safe {
                self.start_refill();
                return true;
            }
        }
        let Some(tx) = self.model.sample.map(|sample| sample.tx) else {
            return false;
        };
        let bound = &mut self.model.inflight_longterm;
        if is_inflight_too_high(tx.lost, tx.in_flight) || *bound == UNBOUNDED {
            return false;
        }
        // With `tx.in_flight` bytes in flight, little was lost, so the path holds this number of bytes.
        *bound = (*bound).max(tx.in_flight);
        if self.state == State::Up {
            self.probe_upward(ack);
        }
        false
    }

    /// Raises the long-term bound during a probe if the bound limits the flow (`ProbeInflightLongtermUpward`).
    fn probe_upward(&mut self, ack: &AckSample<'_>) {
        if !ack.cwnd_limited || self.cwnd < self.model.inflight_longterm {
            return;
        }
        self.slope.acked += ack.delivered;
        let segments = self.slope.acked / self.slope.per_segment;
        self.slope.acked -= segments * self.slope.per_segment;
        self.model.inflight_longterm += segments * self.mss;
        if self.model.rounds.start {
            self.raise_slope();
        }
    }

    /// Enters, continues or ends ProbeRTT (`CheckProbeRTT`); `expired` is set if the measurement of the lowest
    /// round trip is too old.
    fn check_probe_rtt(&mut self, ack: &AckSample<'_>, expired: bool) {
        // After a pause the queue is empty, so the next round trips are the lowest ones and no probe is needed.
        if self.state != State::ProbeRtt && expired && !self.idle_restart {
            self.save_cwnd();
            self.state = State::ProbeRtt;
            self.probe_rtt_done = None;
            self.ack_phase = AckPhase::Stopping;
            self.model.start_round();
        }
        if self.state == State::ProbeRtt {
            self.model.hold_back(ack.in_flight);
            match self.probe_rtt_done {
                None if ack.in_flight <= self.probe_rtt_cwnd() => {
                    self.probe_rtt_done = Some(ack.now + PROBE_RTT_DURATION);
                    self.probe_rtt_round_done = false;
                    self.model.start_round();
                }
                None => {}
                Some(_) => {
                    self.probe_rtt_round_done |= self.model.rounds.start;
                    if self.probe_rtt_round_done {
                        self.check_probe_rtt_done(ack.now);
                    }
                }
            }
        }
        if ack.delivered > 0 {
            self.idle_restart = false;
        }
    }

    /// Ends ProbeRTT if its time is over (`CheckProbeRTTDone`).
    fn check_probe_rtt_done(&mut self, now: Instant) {
        if self.probe_rtt_done.is_none_or(|done| now <= done) {
            return;
        }
        self.model.note_probed(now);
        self.restore_cwnd();
        self.model.forget_shortterm();
        if self.model.full.reached {
            // As in the draft, DOWN begins a cycle, and CRUISE follows at once because the queue is empty.
            self.start_down(now);
            self.state = State::Cruise;
        } else {
            self.state = State::Startup;
        }
    }

    fn probe_rtt_cwnd(&self) -> u64 {
        self.bdp(State::ProbeRtt.cwnd_gain()).max(self.min_pipe())
    }

    /// Saves the window to restore (`SaveCwnd`). Recovery or ProbeRTT may have lowered the window already. In that
    /// case the saved window remains, unless the present window is higher.
    fn save_cwnd(&mut self) {
        self.prior_cwnd = match self.in_recovery || self.state == State::ProbeRtt {
            true => self.prior_cwnd.max(self.cwnd),
            false => self.cwnd,
        };
    }

    fn restore_cwnd(&mut self) {
        self.cwnd = self.cwnd.max(self.prior_cwnd);
    }

    /// Sets the pacing rate to `gain` percent of the estimated rate (`SetPacingRateWithGain`). Until the pipe is
    /// full the pacing rate only grows, because early estimates are too low.
    fn set_pacing_rate(&mut self, gain: u64) {
        let rate = share(share(self.model.bw(), gain), 100 - PACING_MARGIN_PERCENT);
        if self.model.full.reached || rate > self.pacing_rate {
            self.pacing_rate = rate;
        }
    }

    /// Sets the window (`SetCwnd`).
    fn set_cwnd(&mut self, ack: &AckSample<'_>) {
        let bound = self.bdp(self.state.cwnd_gain());
        let bound = self.with_minimum(bound.saturating_add(self.model.extra_acked()));
        if self.model.full.reached {
            self.cwnd = (self.cwnd + ack.delivered).min(bound);
        } else if self.cwnd < bound || self.model.delivered() < self.initial_cwnd {
            // Until an initial window is delivered, the estimate rests on few packets and does not limit the
            // window.
            self.cwnd += ack.delivered;
        }
        self.cwnd = self.cwnd.max(self.min_pipe());
        if self.state == State::ProbeRtt {
            self.cwnd = self.cwnd.min(self.probe_rtt_cwnd());
        }
        let cap = match self.state {
            State::Down | State::Refill | State::Up => self.model.inflight_longterm,
            State::Cruise | State::ProbeRtt => self.with_headroom(),
            State::Startup | State::Drain => UNBOUNDED,
        };
        let cap = cap.min(self.model.inflight_shortterm).max(self.min_pipe());
        self.cwnd = self.cwnd.min(cap);
    }

    /// Notes a loss (`NoteLoss`). The first loss of a round saves the state, which is restored if the loss turns
    /// out to be spurious.
    fn note_loss(&mut self) {
        if self.model.note_loss() {
            self.save_cwnd();
            self.undo = Some(Undo {
                state: None,
                bw_shortterm: self.model.bw_shortterm,
                inflight_shortterm: self.model.inflight_shortterm,
                inflight_longterm: self.model.inflight_longterm,
            });
        }
    }
}

impl CongestionControl for Bbr {
    fn cwnd(&self) -> u64 {
        self.cwnd
    }

    /// Returns a threshold by which callers see Startup as slow start.
    fn ssthresh(&self) -> u64 {
        match self.model.full.reached {
            true => self.cwnd,
            false => u64::MAX,
        }
    }

    /// Handles the first packet after a pause (second part of `HandleRestartFromIdle`).
    fn on_sent(&mut self, now: Instant, bytes: u64, in_flight: u64) {
        if self.idle_restart && in_flight <= bytes {
            self.model.restart(now);
            if self.state == State::ProbeRtt {
                self.check_probe_rtt_done(now);
            }
        }
    }

    /// Updates model and state (`UpdateOnACK`).
    fn on_ack(&mut self, ack: &AckSample<'_>) {
        self.initial_segments = None;
        // Without an estimate of the rate, the flow begins with the rate of one window in each round trip.
        if self.pacing_rate == 0
            && let Some(rate) = rate_over(self.cwnd, ack.srtt)
        {
            self.pacing_rate = share(rate, STARTUP_PACING_GAIN);
        }
        if self.in_recovery && !ack.in_recovery {
            self.in_recovery = false;
            self.restore_cwnd();
        }
        self.model.on_ack(ack, self.cwnd, self.state.is_probing());
        self.rounds_since_probe += u64::from(self.model.rounds.start);
        self.check_startup(ack);
        self.check_drain(ack);
        self.advance_cycle(ack);
        let expired = self.model.on_rtt(ack, self.mss);
        self.check_probe_rtt(ack, expired);
        self.model.advance();
        self.set_pacing_rate(self.state.pacing_gain());
        self.set_cwnd(ack);
    }

    /// Handles a loss (`HandleLostPacket` and `HandleInflightTooHigh`).
    fn on_lost(&mut self, loss: &Loss) {
        self.initial_segments = None;
        self.note_loss();
        self.in_recovery = true;
        let tx = loss.tx;
        if !self.probe.is_sample || !is_inflight_too_high(tx.lost, tx.in_flight) {
            return;
        }
        self.probe.prev_too_high = true;
        // Each probe causes at most one reaction to losses.
        self.probe.is_sample = false;
        // The data in flight of an application-limited flow shows how much the application sent, not how much the
        // path holds.
        if !tx.app_limited {
            let at_loss = in_flight_at_loss(tx.in_flight, tx.lost, loss.bytes);
            self.model.inflight_longterm = at_loss.max(share(self.target(), BETA_PERCENT));
        }
        if self.state == State::Up {
            self.note_undo(State::Up);
            self.start_down(loss.now);
        }
    }

    fn responds_to_ecn(&self) -> bool {
        false
    }

    /// Handles a retransmission timeout (`OnEnterRTO`).
    fn on_rto(&mut self, _now: Instant, _in_flight: u64) {
        self.initial_segments = None;
        self.note_loss();
        self.in_recovery = true;
        self.cwnd = self.mss;
    }

    /// Restores the state that a spurious loss has changed (`HandleSpuriousLossDetection`).
    fn on_spurious(&mut self, _now: Instant) {
        let Some(undo) = self.undo.take() else {
            return;
        };
        self.restore_cwnd();
        let model = &mut self.model;
        model.rounds.is_loss_in_round = false;
        model.full.restart(0);
        model.bw_shortterm = model.bw_shortterm.max(undo.bw_shortterm);
        model.inflight_shortterm = model.inflight_shortterm.max(undo.inflight_shortterm);
        model.inflight_longterm = model.inflight_longterm.max(undo.inflight_longterm);
        if undo.state == Some(State::Startup) && self.state != State::Startup {
            self.model.full.reached = false;
            if self.state != State::ProbeRtt {
                self.state = State::Startup;
            }
        } else if undo.state == Some(State::Up) && self.state.is_probe_bw() {
            self.start_refill();
        }
    }

    /// Handles the start of the flow and the end of a pause (`HandleRestartFromIdle`). After a pause the window
    /// stays as it is, because data is paced at the estimated rate. In Startup the window grows to
    /// `restart_window`, and the pacing rate grows with the window: `restart_window` reflects the capacity that
    /// earlier subflows measured.
    fn on_idle(&mut self, restart_window: u64) {
        if self.model.delivered() == 0 {
            if restart_window > self.cwnd {
                // A measured capacity is a number of bytes, which a new segment size does not change.
                self.initial_segments = None;
            }
            self.cwnd = restart_window.max(self.mss);
            return;
        }
        self.idle_restart = true;
        if self.state == State::Startup {
            self.cwnd = self.cwnd.max(restart_window);
            let rate = self.model.rate_of(self.cwnd).unwrap_or(0);
            self.pacing_rate = self.pacing_rate.max(share(rate, STARTUP_PACING_GAIN));
        }
        // The first packets after a pause meet no queue and probe nothing, so every phase of ProbeBW sends them at
        // the estimated rate.
        if self.state.is_probe_bw() {
            self.set_pacing_rate(100);
        }
    }

    fn penalise(&mut self) {
        self.initial_segments = None;
        self.cwnd = (self.cwnd / 2).max(self.mss);
        // Without a bound the next acknowledgement would restore the window. During a probe no bound is set: the
        // probe goes on, as after a loss.
        if !self.state.is_probing() {
            self.model.inflight_shortterm = self.cwnd;
        }
    }

    fn set_mss(&mut self, mss: u32) {
        self.mss = u64::from(mss.max(1));
        self.cwnd = match self.initial_segments {
            Some(segments) => self.mss * u64::from(segments),
            None => self.cwnd.max(self.mss),
        };
    }

    fn pacing_rate(&self) -> Option<u64> {
        (self.pacing_rate > 0).then_some(self.pacing_rate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cc::{RateSample, TxState};

    const MSS: u32 = 1000;
    const RTT: Duration = Duration::from_millis(100);
    /// The rate of the path in bytes/s.
    const RATE: u64 = 400_000;
    /// The bandwidth-delay product: 400,000 bytes/s times 100 ms.
    const PIPE: u64 = 40_000;

    struct Flow {
        cc: Bbr,
        now: Instant,
        rtt: Duration,
    }

    impl Flow {
        fn new() -> Self {
            Flow {
                cc: Bbr::new(MSS, 10),
                now: Instant::from_millis(1000),
                rtt: RTT,
            }
        }

        /// Runs a round trip at `rate` with a single acknowledgement, which leaves `in_flight` bytes in
        /// flight.
        fn round(&mut self, rate: u64, in_flight: u64) -> State {
            self.round_of(rate, in_flight, false)
        }

        fn round_of(&mut self, rate: u64, in_flight: u64, app_limited: bool) -> State {
            self.now += RTT;
            let sample = RateSample {
                delivered: rate / 10,
                interval: RTT,
                tx: TxState {
                    in_flight,
                    app_limited,
                    ..TxState::default()
                },
            };
            self.cc.on_ack(&AckSample {
                now: self.now,
                delivered: rate / 10,
                rtt: Some(self.rtt),
                rate: Some(sample),
                srtt: RTT,
                min_rtt: RTT,
                in_flight,
                round_start: true,
                ..AckSample::default()
            });
            self.cc.state
        }

        /// Runs round trips until the machine is in `state`.
        fn until(&mut self, state: State) -> &mut Self {
            for _ in 0..100 {
                if self.cc.state == state {
                    return self;
                }
                self.round(RATE, PIPE.min(self.cc.cwnd()));
            }
            panic!("never {state:?}");
        }
    }

    /// Sections 5.3.1 and 5.3.2: three rounds without growth end Startup, an empty queue ends Drain.
    #[test]
    fn startup_ends_when_the_rate_no_longer_grows() {
        let mut flow = Flow::new();
        for rate in [100_000, 200_000, RATE, RATE, RATE] {
            assert_eq!(flow.round(rate, 2 * PIPE), State::Startup);
        }
        // 277 % of the rate, less the margin of 1 %.
        assert_eq!(flow.cc.pacing_rate(), Some(1_096_920));
        assert_eq!(flow.cc.ssthresh(), u64::MAX);
        assert_eq!(flow.round(RATE, 2 * PIPE), State::Drain);
        assert_eq!(flow.cc.pacing_rate(), Some(198_000));
        assert_eq!(flow.round(RATE, PIPE + 1), State::Drain);
        assert_eq!(flow.round(RATE, PIPE), State::Cruise);
        assert_eq!(flow.cc.pacing_rate(), Some(396_000));
    }

    #[test]
    fn a_queue_that_does_not_empty_ends_drain_after_three_rounds() {
        let mut flow = Flow::new();
        (0..4).for_each(|_| _ = flow.round(RATE, 3 * PIPE));
        assert_eq!(flow.cc.state, State::Drain);
        let rounds = (0..10).position(|_| flow.round(RATE, 3 * PIPE) != State::Drain);
        assert_eq!(rounds, Some(3));
    }

    /// Section 5.3.3: there is a probe every two to three seconds, with a round of refilling before it, and
    /// three rounds without growth end it.
    #[test]
    fn the_rate_is_probed_every_two_to_three_seconds() {
        let mut flow = Flow::new();
        let begun = flow.until(State::Cruise).now;
        let waited = flow.until(State::Refill).now.saturating_since(begun);
        assert!((2000..=3100).contains(&waited.as_millis()), "{waited:?}");
        assert_eq!(flow.round(RATE, PIPE), State::Up);
        assert_eq!(flow.cc.pacing_rate(), Some(495_000));
        for _ in 0..2 {
            assert_eq!(flow.round(RATE, PIPE), State::Up);
        }
        assert_ne!(flow.round(RATE, PIPE), State::Up);
        // As long as the rate of the path grows, the probe goes on.
        flow.until(State::Up);
        for n in 1..6 {
            assert_eq!(flow.round(RATE << n, PIPE), State::Up);
        }
    }

    /// Section 5.5.10.2: losing more than 2 % of a probe bounds the data in flight.
    #[test]
    fn losses_of_a_probe_bound_what_is_in_flight() {
        let mut flow = Flow::new();
        flow.until(State::Up);
        let loss = |lost| Loss {
            now: Instant::from_millis(9000),
            bytes: 2000,
            in_flight: 50_000,
            first: true,
            tx: TxState {
                in_flight: 50_000,
                lost,
                app_limited: false,
            },
        };
        // 1000 of 50,000 bytes are 2 %, which is the maximum that a probe may lose.
        flow.cc.on_lost(&loss(1000));
        assert_eq!(flow.cc.state, State::Up);
        flow.cc.on_lost(&loss(3000));
        assert_eq!(flow.cc.state, State::Down);
        // Before the last 2000 bytes, 48,000 were in flight and 1000 of these were lost. This is more than 2 %. So
        // none of the last 2000 bytes fits: the bound is 48,000.
        assert_eq!(flow.cc.model.inflight_longterm, 48_000);
        // The loss was spurious: the probe begins anew.
        flow.cc.on_spurious(flow.now);
        assert_eq!(flow.cc.state, State::Refill);
        assert_eq!(flow.cc.model.inflight_longterm, UNBOUNDED);
        flow.until(State::Up);
        flow.cc.on_lost(&loss(3000));
        // Cruise leaves 15 % of 48,000 bytes to others.
        flow.until(State::Cruise);
        assert_eq!(flow.cc.cwnd(), 40_800);
    }

    /// Section 5.3.4: every five seconds ProbeRTT keeps half of the bandwidth-delay product in flight, for 200 ms
    /// and at least a round. There is no ProbeRTT if the queue has emptied by itself in these five seconds.
    #[test]
    fn the_round_trip_is_probed_every_five_seconds() {
        let mut flow = Flow::new();
        for _ in 0..100 {
            assert_ne!(flow.round(RATE, PIPE), State::ProbeRtt);
        }
        flow.rtt = RTT + RTT / 10;
        let begun = flow.now;
        let waited = flow.until(State::ProbeRtt).now.saturating_since(begun);
        assert_eq!(waited, Duration::from_millis(5100));
        assert_eq!(flow.cc.cwnd(), PIPE / 2);
        flow.round(RATE, PIPE / 2);
        let left = (1..10).find(|_| flow.round(RATE, PIPE / 2) != State::ProbeRtt);
        assert_eq!((left, flow.cc.state), (Some(3), State::Cruise));
        assert!(flow.cc.cwnd() >= 2 * PIPE);
    }

    /// Section 5.3.4.4: rates measured during ProbeRTT say nothing about the path. If the application has held
    /// back a flow for five seconds, the flow continues with Startup after ProbeRTT.
    #[test]
    fn startup_goes_on_after_a_probe_of_the_round_trip() {
        let mut flow = Flow::new();
        flow.round(100_000, 10_000);
        // The round trip is 25 ms longer. If it were at most 20 ms longer, the time of two segments at 100 kB/s,
        // it would count as equally low.
        flow.rtt = RTT + RTT / 4;
        let probed = (0..100).any(|_| flow.round_of(100_000, 10_000, true) == State::ProbeRtt);
        assert!(probed);
        let rounds = (0..10).position(|_| flow.round(50_000, 5_000) != State::ProbeRtt);
        assert_eq!((rounds, flow.cc.state), (Some(3), State::Startup));
        // The first sample is of data sent in ProbeRTT and does not count. Later there are three rounds without
        // growth.
        for rate in [50_000, 90_000, 90_000, 90_000] {
            assert_eq!(flow.round(rate, PIPE), State::Startup, "{rate}");
        }
        assert_eq!(flow.round(90_000, PIPE), State::Drain);
    }

    /// Section 5.4: a pause does not change the model. A timeout reduces the window to one segment until the end
    /// of recovery, which restores the window.
    #[test]
    fn pauses_and_timeouts_leave_the_model() {
        let mut flow = Flow::new();
        let window = flow.until(State::Cruise).cc.cwnd();
        flow.cc.on_idle(10_000);
        assert_eq!(flow.cc.cwnd(), window);
        assert_eq!(flow.cc.pacing_rate(), Some(396_000));
        flow.cc.on_rto(flow.now, PIPE);
        assert_eq!(flow.cc.cwnd(), 1000);
        flow.round(RATE, 0);
        assert!(flow.cc.cwnd() > PIPE);
    }
}
