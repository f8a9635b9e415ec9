//! The sending half of a subflow: windows, transmissions, and the processing of acknowledgements.

mod recovery;
mod sizes;
mod undo;

use core::ops::Range;
use core::time::Duration;

use braid_wire::{Instant, Seq32};

use self::sizes::Sizes;
use self::undo::Proof;
use super::dup_acks::DupAcks;
use super::pacing::Pacer;
use super::prr::Prr;
use super::rate::{PacketState, RateEstimator};
use super::rtt::RttEstimator;
use super::scoreboard::{Delivered, Mapping, Scoreboard, Sent};
use crate::cc::{AckSample, Algorithm, CongestionControl, RateSample, Sibling};
use crate::stats::{LossRecovery, Traffic};
use crate::{Config, PathRecord};

/// The most doublings of the retransmission timeout.
const MAX_BACKOFF: u32 = 10;

/// The state of loss recovery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Recovery {
    Open,
    /// Fast recovery until `end` is acknowledged. `marked` is set if the window was reduced for an ECN mark
    /// just before: then it is not reduced again.
    Fast {
        end: u64,
        prr: Prr,
        marked: bool,
    },
    /// The window is reduced because of an ECN mark, and nothing is missing. The state ends when data sent
    /// since is acknowledged, so that the peer knows of the reduction (RFC 3168 section 6.1.2), or nothing
    /// is in flight.
    Marked {
        prr: Prr,
    },
    /// After a timeout, until `end` is acknowledged or the timeout is shown to be spurious.
    Timeout {
        end: u64,
        proof: Proof,
    },
}

/// A reduction of the window.
#[derive(Debug, Clone, Copy, Default)]
struct Reduction {
    /// The next offset at that time.
    at: u64,
    /// Set while the peer has not been notified by CWR.
    cwr_pending: bool,
}

/// The state of RACK (RFC 8985 section 5.2).
#[derive(Debug, Clone, Copy, Default)]
struct Rack {
    sent_at: Instant,
    end: u64,
    rtt: Duration,
    reordering_seen: bool,
    /// `RACK.reo_wnd_mult` less one: the quarters of a round trip by which the reordering window exceeds the
    /// first quarter.
    reo_wnd_mult: u32,
    /// `RACK.reo_wnd_persist`: the recoveries without a needless retransmission after which the window is reset.
    reo_wnd_persist: u32,
    /// `RACK.dsack_round`: the end of the round in which the window has grown already.
    dsack_round: u64,
    /// The end of the last range that the peer reported as a duplicate.
    dsack_end: u64,
    /// The last tail loss probe, as long as it may have repaired a loss.
    probed: Option<TailProbe>,
}

/// A tail loss probe that is under way (RFC 8985 section 7.4.1).
#[derive(Debug, Clone, Copy)]
struct TailProbe {
    start: u64,
    end: u64,
    /// The next offset when the probe was sent (`TLP.end_seq`); `None` once a loss was found otherwise,
    /// since then only a duplicate caused by the probe matters.
    high: Option<u64>,
    /// The send time of the original, and the estimator's state at that time.
    original: (Instant, PacketState),
}

/// The echoed timestamp of an acknowledgement (RFC 7323).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Echo {
    /// The TSecr value.
    pub value: u32,
    /// The age of the timestamp, rounded up.
    pub age: Duration,
}

/// The consequence of an expired timer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Expired {
    /// The retransmission timer expired: everything in flight is marked lost.
    Rto,
    /// The retransmission timer was cut short for one early try, which counts as no timeout.
    Early,
    /// A tail loss probe is to be sent.
    Probe,
    /// The reordering timer marked data lost.
    Lost,
}

/// The segments that leave at once on an unknown path (the initial window of RFC 3390).
const UNKNOWN_PATH_BURST_SEGMENTS: u64 = 4;

/// The timers of a sender, and the timeouts in a row.
#[derive(Debug, Clone, Copy, Default)]
struct Timers {
    backoff: u32,
    /// The time of the first of the timeouts in a row.
    stuck_since: Instant,
    rto_at: Option<Instant>,
    /// The time of the last expiry, when everything in flight was sent again.
    expired_at: Instant,
    /// The expiry time that was cut short for one early try.
    cut_short: Option<Instant>,
    probe_at: Option<Instant>,
    reorder_at: Option<Instant>,
    /// Set once a probe was sent: one a flight (RFC 8985 section 7.3).
    probe_out: bool,
}

impl Timers {
    /// Returns the time at which the first timer expires.
    fn next(&self) -> Option<Instant> {
        // A probe replaces the retransmission timer (RFC 8985 section 7.2).
        let tail = self.probe_at.or(self.rto_at);
        Instant::earliest([tail, self.reorder_at])
    }
}

/// The state of one round trip.
#[derive(Debug, Clone, Copy, Default)]
struct Round {
    cwnd_limited: bool,
    /// The time at which the window was last seen full.
    full_at: Instant,
    max_flight: u64,
    /// The offset whose acknowledgement ends the round.
    end: u64,
}

/// The windows that the peer offered.
#[derive(Debug, Clone, Copy, Default)]
struct Offered {
    last: u64,
    largest: u64,
}

/// The reductions of the window, and the evidence that may undo them.
#[derive(Debug, Clone, Copy, Default)]
struct Reductions {
    last: Reduction,
    /// The reduction before, which is restored if the last one is undone.
    before: Reduction,
    /// The highest acknowledgement that reported an ECN mark.
    marked_at: u64,
    /// The bytes retransmitted in this recovery and not reported as duplicates.
    undo_retrans: u64,
}

/// Losses by episode.
#[derive(Debug, Clone, Copy, Default)]
struct Losses {
    /// The bytes delivered since the last loss, and between the two losses before it.
    intervals: [u64; 2],
    /// The bytes of non-congestive loss: lost while the queue was short.
    non_congestive_loss: u64,
    /// Set if the queue was short when this episode began; the losses themselves shorten it.
    queue_was_short: bool,
}

impl Losses {
    /// Begins an episode: the first loss or mark after a while.
    fn begin_episode(&mut self, queue_is_short: bool) {
        self.intervals = [0, self.intervals[0]];
        self.queue_was_short = queue_is_short;
    }

    fn count_non_congestive(&mut self, lost: u64) {
        if self.queue_was_short {
            self.non_congestive_loss += lost;
        }
    }
}

/// The times at which the path was used.
#[derive(Debug, Clone, Copy, Default)]
struct Pauses {
    last_sent: Instant,
    restarted_at: Instant,
    /// The time at which everything sent will have passed the bottleneck.
    drained_at: Instant,
}

/// The limits of windows, and of the peer's delay.
#[derive(Debug, Clone, Copy)]
struct Limits {
    initial_window: u32,
    /// The limit in segments.
    max_cwnd: u32,
    /// The time for which the peer may delay the acknowledgement of a lone segment (RFC 8985 section 7.2).
    peer_ack_delay: Duration,
}

#[derive(Debug)]
pub(crate) struct Sender {
    pub iss: Seq32,
    pub board: Scoreboard,
    pub rtt: RttEstimator,
    rate: RateEstimator,
    pub cc: Box<dyn CongestionControl>,
    pub pacer: Pacer,
    pub traffic: Traffic,
    /// The first offset that no SYN carried.
    first: u64,
    /// The oldest unacknowledged offset.
    pub una: u64,
    /// The next offset to send.
    pub nxt: u64,
    /// The first offset past the peer's window.
    pub wnd_end: u64,
    offered: Offered,
    mss: u32,
    recovery: Recovery,
    rack: Rack,
    timers: Timers,
    /// The NewReno state; `None` if the peer sends SACK.
    dup_acks: Option<DupAcks>,
    /// The number of duplicate acknowledgements in a row that had no room for SACK.
    dup_acks_without_sack: u32,
    sizes: Sizes,
    reductions: Reductions,
    losses: Losses,
    round: Round,
    pauses: Pauses,
    limits: Limits,
    /// The measurements of earlier subflows on the path.
    found: PathRecord,
}

impl Sender {
    pub fn new(iss: Seq32, mss: u32, config: &Config) -> Self {
        Sender {
            iss,
            board: Scoreboard::default(),
            rtt: RttEstimator::new(config),
            rate: RateEstimator::new(),
            cc: config.congestion.build(mss, config.initial_window),
            pacer: Pacer::default(),
            traffic: Traffic::default(),
            first: 1,
            una: 0,
            nxt: 1,
            wnd_end: 1,
            offered: Offered::default(),
            mss,
            recovery: Recovery::Open,
            rack: Rack::default(),
            timers: Timers::default(),
            dup_acks: None,
            dup_acks_without_sack: 0,
            sizes: Sizes::default(),
            reductions: Reductions::default(),
            losses: Losses::default(),
            round: Round::default(),
            pauses: Pauses::default(),
            limits: Limits {
                initial_window: config.initial_window,
                max_cwnd: config.max_cwnd.map_or(u32::MAX, |most| most.max(1)),
                // `TLP.max_ack_delay` of RFC 8985 section 7.2: our own delay, with half as much to spare.
                peer_ack_delay: config.delayed_ack.timeout * 3 / 2,
            },
            found: PathRecord::default(),
        }
    }

    /// Replaces the congestion controller by a new one with an initial window.
    pub fn set_congestion(&mut self, congestion: Algorithm) {
        self.cc = congestion.build(self.mss, self.limits.initial_window);
        self.update_pacing();
    }

    /// Counts duplicate acknowledgements, because the peer sends no SACK.
    pub fn count_dup_acks(&mut self) {
        self.dup_acks = Some(DupAcks::default());
    }

    /// Notes that the SYN was acknowledged, with `in_syn` bytes that it carried; `rtt` is the handshake's
    /// round trip if it is unambiguous.
    pub fn established(&mut self, now: Instant, rtt: Option<Duration>, window: u64, in_syn: u64) {
        self.first = 1 + in_syn;
        (self.una, self.nxt) = (self.first, self.first);
        self.offer(self.una + window, window);
        self.pauses.last_sent = now;
        if let Some(rtt) = rtt {
            self.rtt.sample(now, rtt);
        }
        self.use_recorded_rate();
        self.restart(now);
    }

    pub fn mss(&self) -> u32 {
        self.mss
    }

    pub fn set_mss(&mut self, mss: u32) {
        if mss != self.mss {
            self.mss = mss;
            self.cc.set_mss(mss);
        }
    }

    /// Returns the bytes in flight, without those that duplicate acknowledgements show to have arrived.
    pub fn in_flight(&self) -> u64 {
        let arrived = self.dup_acks.map_or(0, |dup| dup.arrived());
        self.board.in_flight().saturating_sub(arrived)
    }

    /// Returns whether `seq` belongs to the newest payload, and that was sent only once.
    pub fn is_sent_once(&self, seq: u64) -> bool {
        let newest = self.board.iter().next_back();
        newest.is_some_and(|last| last.start <= seq && !last.retransmitted)
    }

    /// Returns whether the peer is still to be told that the window was reduced (CWR).
    pub fn owes_cwr(&self) -> bool {
        self.reductions.last.cwr_pending
    }

    /// Returns whether the peer is still to be told of a reduction, and counts it as told.
    pub fn take_cwr(&mut self) -> bool {
        core::mem::take(&mut self.reductions.last.cwr_pending)
    }

    /// Returns whether nothing is known to be missing.
    fn is_whole(&self) -> bool {
        matches!(self.recovery, Recovery::Open | Recovery::Marked { .. })
    }

    /// Returns whether the sender recovers from a retransmission timeout.
    pub fn in_timeout(&self) -> bool {
        matches!(self.recovery, Recovery::Timeout { .. })
    }

    /// Returns the time since the first of the timeouts in a row without an acknowledgement of new data.
    pub fn stuck_for(&self, now: Instant) -> Duration {
        match self.timers.backoff {
            0 => Duration::ZERO,
            _ => now.saturating_since(self.timers.stuck_since),
        }
    }

    /// Returns the congestion window in bytes; during a reduction, the window on its way to the
    /// controller's.
    pub fn cwnd(&self) -> u64 {
        let most = u64::from(self.limits.max_cwnd) * u64::from(self.mss);
        let cwnd = match &self.recovery {
            Recovery::Fast { prr, .. } | Recovery::Marked { prr } => self.in_flight() + prr.room(),
            _ => self.cc.cwnd(),
        };
        cwnd.min(most)
    }

    /// Returns the delivery rate in bytes/s; 0 before the first sample.
    pub fn delivery_rate(&self) -> u64 {
        self.rate.rate()
    }

    /// Returns the bytes of non-congestive loss: lost though the path's queue was short.
    pub fn non_congestive_loss(&self) -> u64 {
        self.losses.non_congestive_loss
    }

    /// Returns the recent peak rate of acknowledgements in bytes/s.
    pub fn peak_rate(&self) -> u64 {
        self.rate.peak()
    }

    /// Adopts the measurements of earlier subflows on the path.
    pub fn seed_from(&mut self, record: &PathRecord) {
        self.rtt.seed_from(record.srtt, record.rttvar);
        self.found = *record;
        self.use_recorded_rate();
    }

    /// Uses the recorded rate, as long as the round trip does not show that the path is another one.
    fn use_recorded_rate(&mut self) {
        let base = self.rtt.base();
        let same = base.is_zero() || self.found.fits(base);
        let rate = if same { self.found.delivery_rate } else { 0 };
        self.rate.seed_from(rate);
    }

    /// Returns the time at which everything sent will have passed the bottleneck, at its known rate.
    pub fn drained_at(&self) -> Instant {
        self.pauses.drained_at
    }

    /// Returns this subflow as coupled congestion control of its siblings sees it.
    pub fn sibling(&self) -> Sibling {
        Sibling {
            cwnd: self.cc.cwnd(),
            srtt: self.rtt.srtt(),
            loss_interval: self.losses.intervals[0].max(self.losses.intervals[1]),
        }
    }

    /// Returns the number of timeouts in a row without an acknowledgement of new data.
    pub fn backoff(&self) -> u32 {
        self.timers.backoff
    }

    /// Returns the retransmission timeout with its backoff (RFC 6298 section 5.5).
    // Conforms: 9293-3.8.2-1
    pub fn rto(&self) -> Duration {
        match self.timers.backoff {
            0 => self.rtt.rto(),
            backoff => (self.rtt.rto() * (1 << backoff)).min(self.rtt.max_rto()),
        }
    }

    /// Returns the state of loss recovery.
    pub fn recovery(&self) -> LossRecovery {
        match self.recovery {
            Recovery::Open | Recovery::Marked { .. } => LossRecovery::Open,
            Recovery::Fast { .. } => LossRecovery::Fast,
            Recovery::Timeout { .. } => LossRecovery::Timeout,
        }
    }

    /// Returns the congestion window left, in bytes: at least a segment, or none.
    pub fn cwnd_room(&self) -> u64 {
        let room = self.cwnd().saturating_sub(self.in_flight());
        if room >= u64::from(self.mss) || self.in_flight() == 0 {
            room.max(u64::from(self.mss))
        } else {
            0
        }
    }

    /// Adopts the peer's window of `window` bytes, which ends at offset `end`.
    pub fn offer(&mut self, end: u64, window: u64) {
        self.wnd_end = end;
        self.offered.last = window;
        self.offered.largest = self.offered.largest.max(window);
    }

    /// Returns whether a segment that carries only `ack` and `window` is a duplicate acknowledgement (RFC
    /// 5681 section 2).
    pub fn is_duplicate(&self, ack: u64, window: u64) -> bool {
        ack == self.una && window == self.offered.last && !self.board.is_empty()
    }

    /// Returns whether this peer can have sent an acknowledgement of `ack` (RFC 5961 section 5.2).
    // Conforms: 5961-5.2-1
    pub fn is_acceptable(&self, ack: u64) -> bool {
        ack <= self.nxt && ack + self.offered.largest >= self.una
    }

    /// Returns the peer's subflow-level window left, in bytes.
    // Conforms: 9293-3.8.6-2
    pub fn peer_room(&self) -> u64 {
        self.wnd_end.saturating_sub(self.nxt)
    }

    /// Opens the window for a first flight, after another subflow reported that the shared window opened.
    /// The acknowledgement of that flight reports the rest.
    pub fn open_window(&mut self) {
        let flight = self.initial_flight();
        self.wnd_end = self
            .wnd_end
            .max(self.nxt + flight.saturating_sub(self.in_flight()));
    }

    /// Returns the most payload bytes of one burst: 1 ms at the pacing rate, but at least two segments.
    pub fn burst(&self) -> u64 {
        self.pacer.burst().max(2 * u64::from(self.mss))
    }

    /// Returns whether the sender was idle for longer than a timeout (RFC 5681 section 4.1), and was not
    /// [restarted](Self::restart) since: while other subflows send, the question comes up for each packet.
    pub fn is_idle(&self, now: Instant) -> bool {
        let since = self.pauses.last_sent.max(self.pauses.restarted_at);
        self.board.is_empty() && now.saturating_since(since) > self.rtt.rto()
    }

    /// Starts, or restarts after a pause, with the known capacity of the path. An initial window of it
    /// leaves at once: data after a pause is most often small, and pacing over half a round trip would
    /// delay it by that much. On an unknown path only as much leaves at once as the shortest queues hold,
    /// since a loss would end slow start before it has begun.
    pub fn restart(&mut self, now: Instant) {
        self.pauses.restarted_at = now;
        let is_known = self.nxt > self.first || self.rate.peak() > 0;
        let at_once = match is_known {
            true => self.initial_flight(),
            false => self
                .initial_flight()
                .min(UNKNOWN_PATH_BURST_SEGMENTS * u64::from(self.mss)),
        };
        self.cc.on_idle(self.first_flight());
        self.pacer.restart(at_once);
        self.update_pacing();
    }

    /// Returns an initial window, in bytes.
    pub fn initial_flight(&self) -> u64 {
        u64::from(self.limits.initial_window) * u64::from(self.mss)
    }

    /// Returns an initial window, or half of the path's known capacity if that is more: the jump of Careful
    /// Resume (draft-ietf-tsvwg-careful-resume section 3.3).
    fn first_flight(&self) -> u64 {
        let base = match self.found.base_rtt {
            Duration::ZERO => self.rtt.base(),
            found => found.min(self.rtt.base()),
        };
        self.initial_flight().max(self.bytes_drained_in(base) / 2)
    }

    /// Returns the bytes that leave the path's bottleneck in `time`; 0 if its rate is not known.
    fn bytes_drained_in(&self, time: Duration) -> u64 {
        let bytes = u128::from(self.rate.peak()) * time.as_nanos() / 1_000_000_000;
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }

    /// Records new payload `map` (or, if `fin`, the FIN) as sent at `nxt`.
    pub fn on_new(&mut self, now: Instant, map: Mapping, fin: bool) -> Sent {
        let len = if fin { 1 } else { u64::from(map.len) };
        let sent = Sent {
            start: self.nxt,
            end: self.nxt + len,
            map,
            sent_at: now,
            packet: self.packet_state(now),
            retransmitted: false,
            sacked: false,
            lost: false,
            fin,
        };
        self.board.push(sent);
        self.nxt += len;
        self.on_sent(now, len);
        self.arm_probe(now);
        sent
    }

    fn packet_state(&mut self, now: Instant) -> PacketState {
        let (in_flight, empty) = (self.in_flight(), self.board.is_empty());
        // With more in flight than the path holds, the delivery rate is that of the path, pause or not.
        // With only a few packets in flight it may be the application's.
        let held = self
            .bytes_drained_in(self.rtt.base())
            .max(2 * self.initial_flight());
        let full = self.rate.peak() > 0 && in_flight > held;
        let paused = !full && self.pacer.has_paused(now, self.round.full_at);
        self.rate.on_send(now, in_flight, empty, paused)
    }

    /// Returns the next lost record to retransmit now, at most `max` bytes of it.
    pub fn retransmit(&mut self, now: Instant, max: u64) -> Option<Sent> {
        if self.pauses_retransmissions() {
            return None;
        }
        let packet = self.packet_state(now);
        let max = max.min(self.sizes.bound());
        let sent = self.board.take_lost(now, packet, max)?;
        self.reductions.undo_retrans += sent.len();
        self.on_sent(now, sent.len());
        Some(sent)
    }

    /// Returns the tail loss probe.
    pub fn probe(&mut self, now: Instant) -> Option<Sent> {
        let packet = self.packet_state(now);
        let last = self.board.iter().rfind(|r| !r.sacked)?;
        let original = (last.sent_at, last.packet);
        let sent = self.board.take_last(now, packet, u64::from(self.mss))?;
        self.rack.probed = Some(TailProbe {
            start: sent.start,
            end: sent.end,
            high: Some(self.nxt),
            original,
        });
        self.on_sent(now, sent.len());
        Some(sent)
    }

    fn on_sent(&mut self, now: Instant, bytes: u64) {
        self.pauses.last_sent = now;
        if let Some(ns) = (bytes * 1_000_000_000).checked_div(self.rate.peak()) {
            self.pauses.drained_at = self.pauses.drained_at.max(now) + Duration::from_nanos(ns);
        }
        self.pacer.on_sent(now, bytes);
        self.cc.on_sent(now, bytes, self.board.in_flight());
        self.round.max_flight = self.round.max_flight.max(self.in_flight());
        if let Recovery::Fast { prr, .. } | Recovery::Marked { prr } = &mut self.recovery {
            prr.on_sent(bytes);
        }
        if self.in_flight() + u64::from(self.mss) > self.cwnd() {
            self.round.cwnd_limited = true;
        }
        if self.timers.rto_at.is_none() {
            self.arm_rto(now);
        }
    }

    /// Processes an acknowledgement up to `ack` (an offset) with `sacks`; `echo` is its echoed timestamp,
    /// and `siblings` is for coupled congestion control. Returns whether anything was newly delivered.
    // Conforms: 6582-3.2-3
    pub fn on_ack(
        &mut self,
        now: Instant,
        ack: u64,
        sacks: &[Range<u64>],
        echo: Option<Echo>,
        siblings: &[Sibling],
    ) -> bool {
        self.note_full(now);
        let prior_in_flight = self.in_flight();
        let advanced = ack > self.una;
        let delivered = self.take_in(ack, sacks);
        if delivered.bytes == 0 && !advanced {
            self.answer_mark(now, 0);
            return false;
        }
        self.dup_acks_without_sack = 0;
        let (rtt, rate) = self.measure(now, &delivered, echo, advanced);
        let spurious = self.judge_timeout(now, sacks, &delivered, advanced, echo);
        if advanced {
            self.timers.backoff = 0;
            self.timers.probe_out = false;
            self.judge_probe(now);
        }
        self.advance_rack(now, &delivered, spurious);
        self.leave_recovery();
        let marked = self.answer_mark(now, delivered.bytes);
        let new_bytes = self.newly_delivered(delivered.bytes);
        self.losses.intervals[0] += delivered.bytes;
        let further_loss = match self.dup_acks {
            Some(_) => self.on_partial_ack(now),
            None => self.detect_losses(now, delivered.bytes),
        };
        let round_start = self.una >= self.round.end;
        let slow_start = self.cc.cwnd() < self.cc.ssthresh();
        self.cc.on_ack(&AckSample {
            now,
            delivered: delivered.bytes,
            rtt,
            rate,
            min_rtt: self.rtt.min(),
            srtt: self.rtt.srtt(),
            prior_in_flight,
            in_flight: self.in_flight(),
            cwnd_limited: self.round.cwnd_limited
                || (slow_start && self.cc.cwnd() < 2 * self.round.max_flight),
            round_start,
            // An acknowledgement that reports a mark must not grow the window (RFC 3168 section 6.1.2).
            in_recovery: marked || self.recovery != Recovery::Open,
            siblings,
        });
        let (in_flight, target) = (self.in_flight(), self.cc.cwnd());
        if let Recovery::Fast { prr, .. } | Recovery::Marked { prr } = &mut self.recovery {
            let safe = advanced && !further_loss;
            prr.on_ack(new_bytes, in_flight, target, self.mss, safe);
        }
        if round_start {
            self.round.end = self.nxt;
            self.round.cwnd_limited = false;
            self.round.max_flight = self.in_flight();
        }
        self.update_pacing();
        // Only the first partial acknowledgement of a recovery restarts the timer (RFC 6582 section 3.2,
        // step 3): a timeout repairs many losses sooner.
        if !self.dup_acks.is_some_and(DupAcks::is_impatient) {
            self.arm_rto(now);
        }
        self.arm_probe(now);
        true
    }

    /// Updates the scoreboard with the data that an acknowledgement reports.
    fn take_in(&mut self, ack: u64, sacks: &[Range<u64>]) -> Delivered {
        let progress = ack.saturating_sub(self.una);
        let mut delivered = Delivered::default();
        if progress > 0 {
            self.una = ack;
            self.board.ack_to(ack, &mut delivered);
        }
        // A block that includes unsent data is invalid as a whole.
        for block in sacks.iter().filter(|block| block.end <= self.nxt) {
            self.board.sack(block.start, block.end, &mut delivered);
            self.sizes.on_range(block);
        }
        self.sizes.on_range(&(0..ack));
        self.sizes.on_arrival(delivered.largest.max(progress));
        delivered
    }

    /// Measures round trip and delivery rate by an acknowledgement.
    // Conforms: 7323-4.1-1, 6298-3-1
    fn measure(
        &mut self,
        now: Instant,
        delivered: &Delivered,
        echo: Option<Echo>,
        advanced: bool,
    ) -> (Option<Duration>, Option<RateSample>) {
        // After an outage the acknowledgement of a retransmission covers data that had arrived long before.
        // Its timestamp gives the round trip, unless the peer echoes the timestamp of the earlier data, as
        // Linux does. Then data or acknowledgements may have been late, and the sample is capped at the
        // timeout. If the path really is slow, the next samples show it.
        let bound = match self.recovery {
            Recovery::Timeout { proof, .. } if !proof.is_of_retransmission(echo) => self.rtt.rto(),
            _ => Duration::MAX,
        };
        let bound = echo.map_or(bound, |echo| echo.age.min(bound));
        let rto = self.rtt.rto();
        let rtt = delivered
            .rtt_from
            .map(|at| now.saturating_since(at).min(bound));
        // If only retransmissions are acknowledged, nothing but a timestamp gives the round trip (RFC 7323
        // section 4), and a queue may have come or gone meanwhile.
        let echoed = echo.filter(|_| advanced).map(|_| bound);
        if let Some(rtt) = rtt.or(echoed) {
            self.rtt.sample(now, rtt);
        }
        let rate = delivered.newest.and_then(|newest| {
            let min_rtt = self.rtt.min();
            let (bytes, sent_at) = (delivered.bytes, newest.sent_at);
            let known = self.rate.peak();
            let rate = (self.rate).on_ack(now, bytes, sent_at, &newest.packet, min_rtt, rto);
            if known > 0 && self.rate.peak() / known >= 2 {
                self.advance_drained_at(now);
            }
            rate
        });
        (rtt, rate)
    }

    /// Moves `drained_at` forward after the rate of the bottleneck turned out to be far higher than known.
    fn advance_drained_at(&mut self, now: Instant) {
        let ns = self.in_flight() * 1_000_000_000 / self.rate.peak();
        self.pauses.drained_at = self.pauses.drained_at.min(now + Duration::from_nanos(ns));
    }

    /// Notes whether the window is full. To be called before anything makes room in it.
    fn note_full(&mut self, now: Instant) {
        if self.cwnd_room() == 0 {
            self.round.full_at = now;
        }
    }

    /// Updates the pacing rate, with Linux's factors: twice the window a round trip in slow start, 1.2
    /// times afterwards.
    fn update_pacing(&mut self) {
        if let Some(rate) = self.cc.pacing_rate() {
            self.pacer.set_rate(rate);
            return;
        }
        let percent = if self.cc.cwnd() < self.cc.ssthresh() / 2 {
            200
        } else {
            120
        };
        // In fast recovery the window is hardly more than may be sent now. Paced by that alone, hardly any
        // acknowledgements return after heavy losses, and the rate stays low. Hence at least an initial
        // window a round trip.
        let window = match self.recovery {
            Recovery::Fast { .. } | Recovery::Marked { .. } => {
                self.cwnd().max(self.initial_flight())
            }
            _ => self.cwnd(),
        };
        let per_second = u128::from(window) * 10_000_000 * percent;
        // Sending is unpaced before the first round trip is known.
        if let Some(rate) = per_second.checked_div(self.rtt.srtt().as_nanos()) {
            self.pacer
                .set_rate(u64::try_from(rate).unwrap_or(u64::MAX).max(1000));
        }
    }

    /// Asserts the invariants of the sender.
    pub fn invariants(&self) {
        debug_assert!(self.una <= self.nxt, "{} > {}", self.una, self.nxt);
        self.board.invariants(self.una, self.nxt);
        // A timer watches over everything in flight.
        debug_assert!(self.board.is_empty() || self.timers.rto_at.is_some());
        debug_assert!(self.timers.backoff <= MAX_BACKOFF);
        // A marked window implies a flight to shrink.
        debug_assert!(!self.board.is_empty() || !matches!(self.recovery, Recovery::Marked { .. }));
    }
}

#[cfg(test)]
mod tests;
