//! BBR version 3 (draft-ietf-ccwg-bbr-06): sends at the rate at which the path delivers, and keeps in
//! flight what that takes, instead of filling the queue until it overflows. Names in brackets are the
//! draft's. The draft defines no ECN response, so BBR sends Not-ECT.

use core::time::Duration;

use braid_wire::{Instant, Rng};

use super::bbr_model::{
    BETA_PERCENT, Model, UNBOUNDED, in_flight_at_loss, is_too_much, rate_over, share,
};
use super::{AckSample, Algorithm, CongestionControl, Loss};

/// BBR version 3 (draft-ietf-ccwg-bbr-06).
pub const BBR: Algorithm = Algorithm {
    name: "bbr",
    make: |mss, initial_window| Box::new(Bbr::new(mss, initial_window)),
};

const STARTUP_PACING_GAIN: u64 = 277;
/// The percentage by which pacing stays below the estimated rate (`PacingMarginPercent`).
const PACING_MARGIN_PERCENT: u64 = 1;
/// The percentage of room left to others in cruising (`Headroom`).
const HEADROOM_PERCENT: u64 = 15;
/// The least window in segments (`MinPipeCwnd`).
const MIN_PIPE_SEGMENTS: u64 = 4;
const PROBE_RTT_DURATION: Duration = Duration::from_millis(200);
/// The acknowledgements of losses in a round that end Startup (`StartupFullLossCnt`).
const STARTUP_FULL_LOSSES: u32 = 6;
/// The most round trips between probes of the rate, so that Reno gets as much on small paths (section
/// 5.3.3.8).
const MAX_RENO_ROUNDS: u64 = 63;
/// The most rounds in Drain.
const MAX_DRAIN_ROUNDS: u64 = 3;
const MAX_QUANTUM_BYTES: u64 = 64 << 10;

/// The state of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Startup,
    Drain,
    Down,
    Cruise,
    Refill,
    Up,
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

    /// Returns the window as a percentage of the bandwidth-delay product.
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

/// The phase of the acknowledgements that report on the last probe of the rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AckPhase {
    Init,
    Refilling,
    Starting,
    Feedback,
    Stopping,
}

/// The state that is restored after a spurious recovery (section 5.5.11).
#[derive(Debug, Clone, Copy)]
struct Undo {
    /// The state that the losses ended.
    state: Option<State>,
    bw_shortterm: u64,
    inflight_shortterm: u64,
    inflight_longterm: u64,
}

/// The growth of the long-term bound in ProbeBW_UP (section 5.3.3.5).
#[derive(Debug, Clone, Copy)]
struct Slope {
    rounds: u32,
    acked: u64,
    /// The bytes acknowledged for each segment of growth.
    per_segment: u64,
}

/// The results of the last probes for bandwidth.
#[derive(Debug, Clone, Copy, Default)]
struct Probe {
    is_sample: bool,
    prev_too_high: bool,
    prev_precautionary: bool,
}

/// The controller: the state machine, and the values that it derives from the model.
#[derive(Debug)]
struct Bbr {
    mss: u64,
    cwnd: u64,
    initial_cwnd: u64,
    /// The last window outside of recovery and ProbeRTT; zero if there is none to return to.
    prior_cwnd: u64,
    /// The pacing rate in bytes/s; zero before the first round trip.
    pacing_rate: u64,
    model: Model,
    state: State,
    ack_phase: AckPhase,
    drain_start: u64,
    cycle_start: Instant,
    probe_wait: Duration,
    rounds_since_probe: u64,
    slope: Slope,
    probe: Probe,
    probe_rtt_done: Option<Instant>,
    probe_rtt_round_done: bool,
    idle_restart: bool,
    in_recovery: bool,
    undo: Option<Undo>,
    /// The initial window in segments, as long as nothing has changed the window.
    untouched: Option<u32>,
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
            untouched: Some(initial_window.max(1)),
        }
    }

    fn min_pipe(&self) -> u64 {
        MIN_PIPE_SEGMENTS * self.mss
    }

    /// Returns `percent` of the estimated bandwidth-delay product (`BDPMultiple`).
    fn held(&self, percent: u64) -> u64 {
        self.model.held(percent).unwrap_or(self.initial_cwnd)
    }

    /// Returns `bytes` raised to the allowed minimum (`Inflight` and `UpdateMaxInflight`).
    fn quantised(&self, bytes: u64) -> u64 {
        let quantum = (self.pacing_rate / 1000)
            .min(MAX_QUANTUM_BYTES)
            .max(2 * self.mss);
        let bytes = bytes.max(3 * quantum).max(self.min_pipe());
        match self.state {
            State::Up => bytes + 2 * self.mss,
            _ => bytes,
        }
    }

    /// Returns the inflight target (`TargetInflight`).
    fn target(&self) -> u64 {
        self.held(100).min(self.cwnd)
    }

    /// Returns the long-term bound less the headroom (`InflightWithHeadroom`).
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
        let lossy = self.model.rounds.loss_start
            && ack.in_recovery
            && self.model.rounds.losses >= STARTUP_FULL_LOSSES
            && tx.is_some_and(|f| is_too_much(f.lost, f.in_flight));
        if lossy && !self.model.full.reached {
            self.model.full.reached = true;
            self.model.inflight_longterm = self.held(100).max(self.model.inflight_latest());
            self.note_undo(State::Startup);
        }
        if self.model.full.reached {
            self.state = State::Drain;
            self.drain_start = self.model.rounds.count;
        }
    }

    fn note_undo(&mut self, state: State) {
        if let Some(undo) = &mut self.undo {
            undo.state = Some(state);
        }
    }

    /// Ends Drain when the queue is empty (`CheckDrainDone`).
    fn check_drain(&mut self, ack: &AckSample<'_>) {
        let drained = ack.in_flight <= self.quantised(self.held(100))
            || self.model.rounds.count > self.drain_start + MAX_DRAIN_ROUNDS;
        if self.state == State::Drain && drained {
            self.start_down(ack.now);
        }
    }

    fn start_down(&mut self, now: Instant) {
        self.model.forget_signals();
        self.slope.per_segment = UNBOUNDED;
        self.pick_wait(now);
        self.cycle_start = now;
        self.ack_phase = AckPhase::Stopping;
        self.model.start_round();
        self.state = State::Down;
    }

    /// Picks the time of the next probe (`PickProbeWait`). The random seed is the time and the bytes
    /// delivered, which differ between flows that share a link; the same run draws the same numbers.
    fn pick_wait(&mut self, now: Instant) {
        let mut rng = Rng::for_component(now.as_nanos(), self.model.delivered());
        self.rounds_since_probe = rng.below(2);
        self.probe_wait = Duration::from_secs(2) + Duration::from_nanos(rng.below(1_000_000_000));
    }

    fn start_refill(&mut self) {
        self.model.forget_shortterm();
        self.slope.rounds = 0;
        self.slope.acked = 0;
        self.probe.prev_precautionary = false;
        self.ack_phase = AckPhase::Refilling;
        self.model.start_round();
        self.state = State::Refill;
    }

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
        self.slope.rounds = (self.slope.rounds + 1).min(30);
        self.slope.per_segment = (self.cwnd / growth).max(self.mss);
    }

    /// Advances the cycle of ProbeBW (`UpdateProbeBWCyclePhase`).
    fn cycle(&mut self, ack: &AckSample<'_>) {
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

    /// Returns whether the queue is drained for cruising (`IsTimeToCruise`).
    fn is_time_to_cruise(&self, ack: &AckSample<'_>) -> bool {
        ack.in_flight <= self.with_headroom() && ack.in_flight <= self.quantised(self.held(100))
    }

    /// Ends ProbeBW_UP if it is time (`IsTimeToGoDown`).
    fn check_up(&mut self, ack: &AckSample<'_>) {
        if self.probe.prev_too_high && ack.in_flight >= self.model.inflight_longterm {
            self.probe.prev_precautionary = true;
        } else if ack.cwnd_limited && self.cwnd >= self.model.inflight_longterm {
            let rate = self.model.sample.map_or(0, |sample| sample.rate());
            self.model.full.restart(rate);
            return;
        } else if !self.model.full.now {
            return;
        }
        self.probe.prev_too_high = false;
        self.start_down(ack.now);
    }

    /// Updates the long-term bound (`AdaptLongTermModel`). Returns whether that changed the state.
    fn adapt_long_term(&mut self, ack: &AckSample<'_>) -> bool {
        let round = self.model.rounds.start;
        if self.ack_phase == AckPhase::Starting && round {
            self.ack_phase = AckPhase::Feedback;
        }
        if self.ack_phase == AckPhase::Stopping && round {
            self.probe.is_sample = false;
            self.ack_phase = AckPhase::Init;
            let whole = self.model.sample.is_some_and(|s| !s.tx.app_limited);
            if self.state.is_probe_bw() && whole {
                self.model.advance_max_bw();
            }
            let safe = self.probe.prev_precautionary && !self.probe.prev_too_high;
            if self.state.is_probe_bw() && safe {
                self.start_refill();
                return true;
            }
        }
        let Some(tx) = self.model.sample.map(|sample| sample.tx) else {
            return false;
        };
        let bound = &mut self.model.inflight_longterm;
        if is_too_much(tx.lost, tx.in_flight) || *bound == UNBOUNDED {
            return false;
        }
        *bound = (*bound).max(tx.in_flight);
        if self.state == State::Up {
            self.probe_upward(ack);
        }
        false
    }

    /// Raises the long-term bound while probing (`ProbeInflightLongtermUpward`).
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

    /// Enters, continues or ends ProbeRTT (`CheckProbeRTT`); `expired` is set if the lowest round trip is
    /// too old.
    fn check_probe_rtt(&mut self, ack: &AckSample<'_>, expired: bool) {
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

    fn check_probe_rtt_done(&mut self, now: Instant) {
        if self.probe_rtt_done.is_none_or(|done| now <= done) {
            return;
        }
        self.model.note_probed(now);
        self.restore_cwnd();
        self.model.forget_shortterm();
        if self.model.full.reached {
            self.start_down(now);
            self.state = State::Cruise;
        } else {
            self.state = State::Startup;
        }
    }

    fn probe_rtt_cwnd(&self) -> u64 {
        self.held(State::ProbeRtt.cwnd_gain()).max(self.min_pipe())
    }

    fn save_cwnd(&mut self) {
        self.prior_cwnd = match self.in_recovery || self.state == State::ProbeRtt {
            true => self.prior_cwnd.max(self.cwnd),
            false => self.cwnd,
        };
    }

    fn restore_cwnd(&mut self) {
        self.cwnd = self.cwnd.max(self.prior_cwnd);
    }

    /// Sets the pacing rate (`SetPacingRateWithGain`): while the pipe is not full the rate only grows.
    fn set_pacing_rate(&mut self, gain: u64) {
        let rate = share(share(self.model.bw(), gain), 100 - PACING_MARGIN_PERCENT);
        if self.model.full.reached || rate > self.pacing_rate {
            self.pacing_rate = rate;
        }
    }

    /// Sets the window (`SetCwnd`).
    fn set_cwnd(&mut self, ack: &AckSample<'_>) {
        let bound = self.held(self.state.cwnd_gain());
        let bound = self.quantised(bound.saturating_add(self.model.extra_acked()));
        if self.model.full.reached {
            self.cwnd = (self.cwnd + ack.delivered).min(bound);
        } else if self.cwnd < bound || self.model.delivered() < self.initial_cwnd {
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

    /// Notes a loss, and saves the state to restore if it is spurious (`NoteLoss`).
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

    /// Startup takes the place of slow start.
    fn ssthresh(&self) -> u64 {
        match self.model.full.reached {
            true => self.cwnd,
            false => u64::MAX,
        }
    }

    /// Handles the second part of a restart from idle (`HandleRestartFromIdle`).
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
        self.untouched = None;
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
        self.cycle(ack);
        let expired = self.model.on_rtt(ack, self.mss);
        self.check_probe_rtt(ack, expired);
        self.model.advance();
        self.set_pacing_rate(self.state.pacing_gain());
        self.set_cwnd(ack);
    }

    /// Handles a loss (`HandleLostPacket` and `HandleInflightTooHigh`).
    fn on_lost(&mut self, loss: &Loss) {
        self.untouched = None;
        self.note_loss();
        self.in_recovery = true;
        let tx = loss.tx;
        if !self.probe.is_sample || !is_too_much(tx.lost, tx.in_flight) {
            return;
        }
        self.probe.prev_too_high = true;
        // One reaction for each probe.
        self.probe.is_sample = false;
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
        self.untouched = None;
        self.note_loss();
        self.in_recovery = true;
        self.cwnd = self.mss;
    }

    /// Restores the state before a spurious loss (`HandleSpuriousLossDetection`).
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

    /// Handles the start and pauses (`HandleRestartFromIdle`): the window stays, because data is paced at
    /// the former rate. In Startup the window grows to the known capacity of the path, and the rate with
    /// it.
    fn on_idle(&mut self, first: u64) {
        if self.model.delivered() == 0 {
            if first > self.cwnd {
                self.untouched = None;
            }
            self.cwnd = first.max(self.mss);
            return;
        }
        self.idle_restart = true;
        if self.state == State::Startup {
            self.cwnd = self.cwnd.max(first);
            let rate = self.model.rate_of(self.cwnd).unwrap_or(0);
            self.pacing_rate = self.pacing_rate.max(share(rate, STARTUP_PACING_GAIN));
        }
        if self.state.is_probe_bw() {
            self.set_pacing_rate(100);
        }
    }

    fn penalise(&mut self) {
        self.untouched = None;
        self.cwnd = (self.cwnd / 2).max(self.mss);
        if !self.state.is_probing() {
            self.model.inflight_shortterm = self.cwnd;
        }
    }

    fn set_mss(&mut self, mss: u32) {
        self.mss = u64::from(mss.max(1));
        self.cwnd = match self.untouched {
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
    /// The rate of the path in bytes/s, and the bytes of a round trip at this rate.
    const RATE: u64 = 400_000;
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
        // 277 % of the rate, less one.
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
        // A path that becomes faster is followed while its rate grows.
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
        flow.cc.on_lost(&loss(1000));
        assert_eq!(flow.cc.state, State::Up);
        flow.cc.on_lost(&loss(3000));
        assert_eq!(flow.cc.state, State::Down);
        assert_eq!(flow.cc.model.inflight_longterm, 48_000);
        // The loss was spurious: the probe begins anew.
        flow.cc.on_spurious(flow.now);
        assert_eq!(flow.cc.state, State::Refill);
        assert_eq!(flow.cc.model.inflight_longterm, UNBOUNDED);
        flow.until(State::Up);
        flow.cc.on_lost(&loss(3000));
        // In cruising 15 % are left to others.
        flow.until(State::Cruise);
        assert_eq!(flow.cc.cwnd(), 40_800);
    }

    /// Section 5.3.4: half of the pipe for 200 ms and a round, every five seconds in which the queue was
    /// never empty.
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

    /// Section 5.3.4.4: rates measured during ProbeRTT say nothing about the path. A flow that its
    /// application held back for five seconds continues with Startup afterwards.
    #[test]
    fn startup_goes_on_after_a_probe_of_the_round_trip() {
        let mut flow = Flow::new();
        flow.round(100_000, 10_000);
        // Two segments take 20 ms at this rate.
        flow.rtt = RTT + RTT / 4;
        let probed = (0..100).any(|_| flow.round_of(100_000, 10_000, true) == State::ProbeRtt);
        assert!(probed);
        let rounds = (0..10).position(|_| flow.round(50_000, 5_000) != State::ProbeRtt);
        assert_eq!((rounds, flow.cc.state), (Some(3), State::Startup));
        // Data in flight at the end of ProbeRTT still belongs to it.
        for rate in [50_000, 90_000, 90_000, 90_000] {
            assert_eq!(flow.round(rate, PIPE), State::Startup, "{rate}");
        }
        assert_eq!(flow.round(90_000, PIPE), State::Drain);
    }

    /// Section 5.4: the model outlasts a pause. A timeout leaves one segment, and the former window returns
    /// with the end of recovery.
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
