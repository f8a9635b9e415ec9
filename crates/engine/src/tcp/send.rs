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

/// The maximum number of doublings of the retransmission timeout. The maximum timeout usually takes effect
/// earlier; this limit keeps the shift in [`Sender::rto`] within its type.
const MAX_BACKOFF: u32 = 10;

/// The state of loss recovery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Recovery {
    /// No data is known to be missing.
    Open,
    /// Fast recovery until `end` is acknowledged. `marked` is set if the recovery followed
    /// [`Marked`](Self::Marked): in that case the window was reduced for the mark already and is not reduced
    /// again.
    Fast { end: u64, prr: Prr, marked: bool },
    /// The window is reduced because of an ECN mark, and no data is missing. The state ends when data sent after
    /// the reduction is acknowledged, because the peer then knows of the reduction (RFC 3168 section 6.1.2), or
    /// when nothing is in flight.
    Marked { prr: Prr },
    /// Recovery from a timeout, until `end` is acknowledged or `proof` shows that the timeout was spurious.
    Timeout { end: u64, proof: Proof },
}

/// A reduction of the window.
#[derive(Debug, Clone, Copy, Default)]
struct Reduction {
    /// The value of [`Sender::nxt`] when the window was reduced.
    at: u64,
    /// True while the peer has not been notified by CWR.
    cwr_pending: bool,
}

/// The state of RACK (RFC 8985 section 5.2).
#[derive(Debug, Clone, Copy, Default)]
struct Rack {
    /// The send time of the newest record delivered (`RACK.xmit_ts`).
    sent_at: Instant,
    /// The end of this record (`RACK.end_seq`).
    end: u64,
    /// The round trip of this record (`RACK.rtt`).
    rtt: Duration,
    reordering_seen: bool,
    /// `RACK.reo_wnd_mult` less one: the number of quarters of a round trip that are added to the first quarter
    /// of the reordering window.
    reo_wnd_mult: u32,
    /// `RACK.reo_wnd_persist`: the number of further recoveries without a needless retransmission after which the
    /// reordering window is reset.
    reo_wnd_persist: u32,
    /// `RACK.dsack_round`: the end of the round in which the reordering window has grown already.
    dsack_round: u64,
    /// The end of the last range that the peer reported as a duplicate.
    dsack_end: u64,
    /// The last tail loss probe, until it is known whether the probe repaired a loss.
    probe: Option<TailProbe>,
}

/// A tail loss probe that is under way (RFC 8985 section 7.4.1).
#[derive(Debug, Clone, Copy)]
struct TailProbe {
    start: u64,
    end: u64,
    /// The value of [`Sender::nxt`] when the probe was sent (`TLP.end_seq`). `None` once another loss has reduced
    /// the window: a loss that the probe repaired needs no further reduction. The probe is kept, because a D-SACK
    /// for it must still be recognised.
    end_seq: Option<u64>,
    /// The send time of the original transmission, and the rate estimator's state at that time.
    original: (Instant, PacketState),
}

/// The echoed timestamp of an acknowledgement (RFC 7323).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Echo {
    /// The TSecr value.
    pub value: u32,
    /// An upper bound of the time since the timestamp was sent. The timestamp clock counts whole milliseconds.
    pub age: Duration,
}

/// The consequence of an expired timer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Expired {
    /// The retransmission timer expired: everything in flight is marked lost.
    Rto,
    /// The retransmission timer expired after it had been shortened for one early retransmission. This expiry does
    /// not count as a timeout.
    Early,
    /// A tail loss probe is to be sent.
    Probe,
    /// The reordering timer marked data as lost.
    Lost,
}

/// The number of segments that leave at once on a path without measurements: the initial window of RFC 3390, which
/// even the shortest queues hold.
const UNKNOWN_PATH_BURST_SEGMENTS: u64 = 4;

/// The timers of a sender, and the number of consecutive timeouts.
#[derive(Debug, Clone, Copy, Default)]
struct Timers {
    /// The number of consecutive timeouts, at most [`MAX_BACKOFF`].
    backoff: u32,
    /// The time of the first of the consecutive timeouts.
    stuck_since: Instant,
    rto_at: Option<Instant>,
    /// The time of the last expiry of the retransmission timer, which marked everything in flight as lost.
    expired_at: Instant,
    /// The regular expiry time of the retransmission timer while the timer is shortened for one early
    /// retransmission.
    regular_rto_at: Option<Instant>,
    probe_at: Option<Instant>,
    reorder_at: Option<Instant>,
    /// True after a tail loss probe until new data is acknowledged: only one probe is sent for each flight
    /// (RFC 8985 section 7.3).
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
    /// True if the window has limited the sender in this round trip.
    cwnd_limited: bool,
    /// The time at which the window was last seen full.
    full_at: Instant,
    /// The maximum number of bytes in flight in this round trip.
    max_flight: u64,
    /// The offset whose acknowledgement ends the round.
    end: u64,
}

/// The windows that the peer offered.
#[derive(Debug, Clone, Copy, Default)]
struct Offered {
    last: u64,
    /// The largest window, which bounds how old an acceptable acknowledgement may be (RFC 5961).
    largest: u64,
}

/// The last reductions of the window, and the evidence that may undo them.
#[derive(Debug, Clone, Copy, Default)]
struct Reductions {
    last: Reduction,
    /// The reduction before the last one. It becomes the last one again if the last reduction is undone.
    before: Reduction,
    /// The highest acknowledgement that reported an ECN mark.
    marked_at: u64,
    /// The bytes retransmitted in this recovery that the peer has not reported as duplicates.
    undo_retrans: u64,
}

/// Losses by episode.
#[derive(Debug, Clone, Copy, Default)]
struct Losses {
    /// The bytes delivered since the last episode began, and the bytes delivered between the beginnings of the
    /// last two episodes.
    intervals: [u64; 2],
    /// The bytes of non-congestive loss: bytes lost although the queue was short.
    non_congestive_loss: u64,
    /// True if the queue was short when this episode began. The queue is not checked again during an episode,
    /// because the losses themselves shorten it.
    queue_was_short: bool,
}

impl Losses {
    /// Begins an episode: a loss or a mark outside of a recovery.
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

/// The times that tell whether the path is idle.
#[derive(Debug, Clone, Copy, Default)]
struct Pauses {
    last_sent: Instant,
    /// The time of the last [`Sender::restart`].
    restarted_at: Instant,
    /// The time at which all data sent will have passed the bottleneck.
    drained_at: Instant,
}

/// The limits that the configuration sets.
#[derive(Debug, Clone, Copy)]
struct Limits {
    /// The initial window in segments.
    initial_window: u32,
    /// The maximum window in segments.
    max_cwnd: u32,
    /// The time for which the peer may delay the acknowledgement of a lone segment (RFC 8985 section 7.2).
    peer_ack_delay: Duration,
}

/// The sending half of a subflow. Offsets count bytes from the SYN, which has offset 0.
#[derive(Debug)]
pub(crate) struct Sender {
    pub iss: Seq32,
    pub board: Scoreboard,
    pub rtt: RttEstimator,
    rate: RateEstimator,
    pub cc: Box<dyn CongestionControl>,
    pub pacer: Pacer,
    pub traffic: Traffic,
    /// The first offset that the SYN did not carry.
    data_start: u64,
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
    /// The count of duplicate acknowledgements for NewReno; `None` if the peer sends SACK.
    dup_acks: Option<DupAcks>,
    /// The number of consecutive duplicate acknowledgements without room for SACK blocks.
    dup_acks_without_sack: u32,
    sizes: Sizes,
    reductions: Reductions,
    losses: Losses,
    round: Round,
    pauses: Pauses,
    limits: Limits,
    /// The measurements of earlier subflows on the path.
    recorded_path: PathRecord,
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
            data_start: 1,
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
                max_cwnd: config.max_cwnd.map_or(u32::MAX, |segments| segments.max(1)),
                // `TLP.max_ack_delay` of RFC 8985 section 7.2. The peer's delay is unknown. A guess: our own
                // delay, and half of our delay more as a margin.
                peer_ack_delay: config.delayed_ack.timeout * 3 / 2,
            },
            recorded_path: PathRecord::default(),
        }
    }

    /// Replaces the congestion controller by one of the given algorithm, with an initial window.
    pub fn set_congestion(&mut self, congestion: Algorithm) {
        self.cc = congestion.build(self.mss, self.limits.initial_window);
        self.update_pacing();
    }

    /// Counts duplicate acknowledgements, because the peer sends no SACK.
    pub fn count_dup_acks(&mut self) {
        self.dup_acks = Some(DupAcks::default());
    }

    /// Notes that the SYN was acknowledged, with `in_syn` bytes of its payload. `rtt` is the round trip of the
    /// handshake; `None` if the SYN was retransmitted, because the acknowledgement may be for either copy.
    pub fn established(&mut self, now: Instant, rtt: Option<Duration>, window: u64, in_syn: u64) {
        self.data_start = 1 + in_syn;
        (self.una, self.nxt) = (self.data_start, self.data_start);
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

    /// Returns the number of bytes in flight, without the bytes that have arrived according to duplicate
    /// acknowledgements.
    pub fn in_flight(&self) -> u64 {
        let arrived = self.dup_acks.map_or(0, |dup| dup.arrived());
        self.board.in_flight().saturating_sub(arrived)
    }

    /// Returns whether `seq` belongs to the newest record, and this record was sent only once.
    pub fn is_sent_once(&self, seq: u64) -> bool {
        let newest = self.board.iter().next_back();
        newest.is_some_and(|last| last.start <= seq && !last.retransmitted)
    }

    /// Returns whether the peer must still be notified, by CWR, of the last reduction of the window.
    pub fn owes_cwr(&self) -> bool {
        self.reductions.last.cwr_pending
    }

    /// Returns whether the peer must still be notified of the last reduction, and counts the peer as notified.
    pub fn take_cwr(&mut self) -> bool {
        core::mem::take(&mut self.reductions.last.cwr_pending)
    }

    /// Returns whether no data is known to be missing.
    fn has_no_loss(&self) -> bool {
        matches!(self.recovery, Recovery::Open | Recovery::Marked { .. })
    }

    /// Returns whether the sender recovers from a retransmission timeout.
    pub fn in_timeout(&self) -> bool {
        matches!(self.recovery, Recovery::Timeout { .. })
    }

    /// Returns the time since the first of the consecutive timeouts without an acknowledgement of new data; zero
    /// without a timeout.
    pub fn stuck_for(&self, now: Instant) -> Duration {
        match self.timers.backoff {
            0 => Duration::ZERO,
            _ => now.saturating_since(self.timers.stuck_since),
        }
    }

    /// Returns the congestion window in bytes. During fast recovery it is the data in flight plus the bytes that
    /// PRR allows. PRR leads this sum to the controller's window.
    pub fn cwnd(&self) -> u64 {
        let max_cwnd = u64::from(self.limits.max_cwnd) * u64::from(self.mss);
        let cwnd = match &self.recovery {
            Recovery::Fast { prr, .. } | Recovery::Marked { prr } => self.in_flight() + prr.room(),
            _ => self.cc.cwnd(),
        };
        cwnd.min(max_cwnd)
    }

    /// Returns the delivery rate in bytes/s; 0 before the first sample.
    pub fn delivery_rate(&self) -> u64 {
        self.rate.rate()
    }

    /// Returns the number of bytes of non-congestive loss: bytes lost although the queue of the path was short.
    pub fn non_congestive_loss(&self) -> u64 {
        self.losses.non_congestive_loss
    }

    /// Returns the recent peak rate of acknowledgements in bytes/s.
    pub fn peak_rate(&self) -> u64 {
        self.rate.peak()
    }

    /// Returns whether the path may be faster than [`peak_rate`](Self::peak_rate): the subflow has measured no peak
    /// itself, or the sender limits the rate, because slow start has never ended and the newest round trip shows no
    /// queue. A queueing delay below an eighth of the base round trip counts as no queue; the value is a guess.
    pub fn limits_rate(&self) -> bool {
        let queueing = self.rtt.latest().saturating_sub(self.rtt.base());
        let is_free = self.cc.ssthresh() == u64::MAX && queueing * 8 < self.rtt.base();
        is_free || !self.rate.has_peak()
    }

    /// Adopts the measurements of earlier subflows on the path.
    pub fn seed_from(&mut self, record: &PathRecord) {
        self.rtt.seed_from(record.srtt, record.rttvar);
        self.recorded_path = *record;
        self.use_recorded_rate();
    }

    /// Uses the recorded rate, unless the round trip shows that the record is of a different path.
    fn use_recorded_rate(&mut self) {
        let base = self.rtt.base();
        let is_same_path = base.is_zero() || self.recorded_path.fits(base);
        let rate = if is_same_path {
            self.recorded_path.delivery_rate
        } else {
            0
        };
        self.rate.seed_from(rate);
    }

    /// Returns the time at which all data sent will have passed the bottleneck, at the known rate.
    pub fn drained_at(&self) -> Instant {
        self.pauses.drained_at
    }

    /// Returns the values of this subflow that the coupled controllers of its siblings use.
    pub fn sibling(&self) -> Sibling {
        Sibling {
            cwnd: self.cc.cwnd(),
            srtt: self.rtt.srtt(),
            loss_interval: self.losses.intervals[0].max(self.losses.intervals[1]),
        }
    }

    /// Returns the number of consecutive timeouts without an acknowledgement of new data.
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

    /// Returns the free part of the congestion window in bytes: at least a segment, or zero. A smaller part is not
    /// used, to avoid small segments.
    pub fn cwnd_room(&self) -> u64 {
        let room = self.cwnd().saturating_sub(self.in_flight());
        // With nothing in flight a segment may always leave, since no acknowledgement would open the window.
        if room >= u64::from(self.mss) || self.in_flight() == 0 {
            room.max(u64::from(self.mss))
        } else {
            0
        }
    }

    /// Stores the peer's window of `window` bytes, which ends at offset `end`.
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

    /// Returns whether an acknowledgement of `ack` can come from the peer: it covers no unsent data and is not too
    /// old (RFC 5961 section 5.2).
    // Conforms: 5961-5.2-1
    pub fn is_acceptable(&self, ack: u64) -> bool {
        ack <= self.nxt && ack + self.offered.largest >= self.una
    }

    /// Returns the free part of the peer's subflow-level window in bytes.
    // Conforms: 9293-3.8.6-2
    pub fn peer_room(&self) -> u64 {
        self.wnd_end.saturating_sub(self.nxt)
    }

    /// Opens the peer's window as far as an initial window in flight needs. All subflows share the window of the
    /// connection, and another subflow reported that this window has opened. The peer reports the full window on
    /// this subflow when it acknowledges the data sent now.
    pub fn open_window(&mut self) {
        let flight = self.initial_flight();
        self.wnd_end = self
            .wnd_end
            .max(self.nxt + flight.saturating_sub(self.in_flight()));
    }

    /// Returns the maximum number of payload bytes of one burst: those of 1 ms at the pacing rate, but at least
    /// two segments, so that a peer that acknowledges every second segment answers each burst.
    pub fn burst(&self) -> u64 {
        self.pacer.burst().max(2 * u64::from(self.mss))
    }

    /// Returns whether the sender has been idle for longer than a timeout (RFC 5681 section 4.1) since it last
    /// sent or was last [restarted](Self::restart). Restarts count, so that an idle subflow on which the scheduler
    /// sends nothing is not restarted before each packet of other subflows.
    pub fn is_idle(&self, now: Instant) -> bool {
        let since = self.pauses.last_sent.max(self.pauses.restarted_at);
        self.board.is_empty() && now.saturating_since(since) > self.rtt.rto()
    }

    /// Starts, or restarts after a pause, with the known capacity of the path. An initial window leaves unpaced:
    /// after a pause there is mostly little data, and pacing would delay its last bytes by up to half a round
    /// trip. On a path without measurements only as many segments leave unpaced as the shortest queues hold,
    /// because a loss would end slow start at once.
    pub fn restart(&mut self, now: Instant) {
        self.pauses.restarted_at = now;
        let is_known = self.nxt > self.data_start || self.rate.peak() > 0;
        let unpaced = match is_known {
            true => self.initial_flight(),
            false => self
                .initial_flight()
                .min(UNKNOWN_PATH_BURST_SEGMENTS * u64::from(self.mss)),
        };
        self.cc.on_idle(self.restart_window());
        self.pacer.restart(unpaced);
        self.update_pacing();
    }

    /// Returns the initial window in bytes.
    pub fn initial_flight(&self) -> u64 {
        u64::from(self.limits.initial_window) * u64::from(self.mss)
    }

    /// Returns the window to start with: the initial window, or half of the path's known capacity if that is more.
    /// Careful Resume starts with half of the capacity too (draft-ietf-tsvwg-careful-resume section 3.3).
    fn restart_window(&self) -> u64 {
        // The round trips of this subflow may include a queue, so a recorded round trip counts if it is lower.
        let base = match self.recorded_path.base_rtt {
            Duration::ZERO => self.rtt.base(),
            recorded => recorded.min(self.rtt.base()),
        };
        self.initial_flight().max(self.bytes_drained_in(base) / 2)
    }

    /// Returns the number of bytes that pass the bottleneck in `time`; 0 if the rate of the bottleneck is not
    /// known.
    fn bytes_drained_in(&self, time: Duration) -> u64 {
        let bytes = u128::from(self.rate.peak()) * time.as_nanos() / 1_000_000_000;
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }

    /// Records that new payload with the mapping `map` was sent at the next offset, or the FIN if `fin` is set.
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

    /// Returns the rate estimator's state for a record that is sent now.
    fn packet_state(&mut self, now: Instant) -> PacketState {
        let (in_flight, empty) = (self.in_flight(), self.board.is_empty());
        // If more is in flight than the bandwidth-delay product, the bottleneck is busy. The delivery rate is then
        // the rate of the path, even if the sender pauses. If only a few packets are in flight, the rate may be
        // the application's. So the pipe counts as full only above two initial windows, which is a guess.
        let full_pipe = self
            .bytes_drained_in(self.rtt.base())
            .max(2 * self.initial_flight());
        let is_pipe_full = self.rate.peak() > 0 && in_flight > full_pipe;
        let paused = !is_pipe_full && self.pacer.has_paused(now, self.round.full_at);
        self.rate.on_send(now, in_flight, empty, paused)
    }

    /// Returns the next lost record to retransmit now, or its first `max` bytes.
    pub fn retransmit(&mut self, now: Instant, max: u64) -> Option<Sent> {
        if self.pauses_retransmissions() {
            return None;
        }
        let packet = self.packet_state(now);
        let max = max.min(self.sizes.max_retransmission());
        let sent = self.board.take_lost(now, packet, max)?;
        self.reductions.undo_retrans += sent.len();
        self.on_sent(now, sent.len());
        Some(sent)
    }

    /// Returns the tail loss probe to send now: the last segment in flight.
    pub fn probe(&mut self, now: Instant) -> Option<Sent> {
        let packet = self.packet_state(now);
        let last = self.board.iter().rfind(|r| !r.sacked)?;
        let original = (last.sent_at, last.packet);
        let sent = self.board.take_last(now, packet, u64::from(self.mss))?;
        self.rack.probe = Some(TailProbe {
            start: sent.start,
            end: sent.end,
            end_seq: Some(self.nxt),
            original,
        });
        self.on_sent(now, sent.len());
        Some(sent)
    }

    /// Updates windows, pacing and timers after `bytes` were sent.
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

    /// Processes an acknowledgement up to the offset `ack` with the SACK blocks `sacks`; `echo` is its echoed
    /// timestamp, and `siblings` is for coupled congestion control. Returns whether the acknowledgement reported
    /// new deliveries.
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
        let delivered = self.update_board(ack, sacks);
        if delivered.bytes == 0 && !advanced {
            self.respond_to_mark(now, 0);
            return false;
        }
        self.dup_acks_without_sack = 0;
        let (rtt, rate) = self.measure(now, &delivered, echo, advanced);
        let spurious = self.check_spurious_timeout(now, sacks, &delivered, advanced, echo);
        if advanced {
            self.timers.backoff = 0;
            self.timers.probe_out = false;
            self.check_probe_repair(now);
        }
        self.advance_rack(now, &delivered, spurious);
        // A recovery that is over ends first, because a mark reduces the window only outside of a recovery.
        self.leave_recovery();
        let marked = self.respond_to_mark(now, delivered.bytes);
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
            // As in Linux, slow start may grow a window of which more than half was used.
            cwnd_limited: self.round.cwnd_limited
                || (slow_start && self.cc.cwnd() < 2 * self.round.max_flight),
            round_start,
            // An acknowledgement that reports a mark must not grow the window (RFC 3168 section 6.1.2).
            in_recovery: marked || self.recovery != Recovery::Open,
            siblings,
        });
        let (in_flight, target) = (self.in_flight(), self.cc.cwnd());
        if let Recovery::Fast { prr, .. } | Recovery::Marked { prr } = &mut self.recovery {
            let is_safe = advanced && !further_loss;
            prr.on_ack(new_bytes, in_flight, target, self.mss, is_safe);
        }
        if round_start {
            self.round.end = self.nxt;
            self.round.cwnd_limited = false;
            self.round.max_flight = self.in_flight();
        }
        self.update_pacing();
        // Only the first partial acknowledgement of a recovery restarts the timer (RFC 6582 section 3.2, step 3).
        // NewReno repairs one loss in each round trip, so that a timeout repairs many losses sooner.
        if !self.dup_acks.is_some_and(DupAcks::is_impatient) {
            self.arm_rto(now);
        }
        self.arm_probe(now);
        true
    }

    /// Updates the scoreboard with the data that an acknowledgement reports.
    fn update_board(&mut self, ack: u64, sacks: &[Range<u64>]) -> Delivered {
        let progress = ack.saturating_sub(self.una);
        let mut delivered = Delivered::default();
        // Segments of a peer that sends data report nothing most of the time.
        if progress == 0 && sacks.is_empty() {
            return delivered;
        }
        if progress > 0 {
            self.una = ack;
            self.board.ack_to(ack, &mut delivered);
        }
        // A block that includes data not sent yet is invalid and is ignored.
        for block in sacks.iter().filter(|block| block.end <= self.nxt) {
            self.board.sack(block.start, block.end, &mut delivered);
            self.sizes.on_range(block);
        }
        self.sizes.on_range(&(0..ack));
        self.sizes.on_arrival(delivered.largest.max(progress));
        delivered
    }

    /// Returns the round trip and the delivery rate that an acknowledgement shows.
    // Conforms: 7323-4.1-1, 6298-3-1
    fn measure(
        &mut self,
        now: Instant,
        delivered: &Delivered,
        echo: Option<Echo>,
        advanced: bool,
    ) -> (Option<Duration>, Option<RateSample>) {
        // After an outage the acknowledgement of a retransmission covers data that had arrived long before.
        // The echoed timestamp gives the round trip of the retransmission, unless the peer echoes the timestamp of
        // the earlier data, as Linux does. In that case the sample may include the outage, so it is capped at the
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
        // If only retransmissions are acknowledged, only a timestamp gives the round trip (RFC 7323 section 4).
        // A sample is needed even so, because a queue may have built up or drained meanwhile.
        let echoed = echo.filter(|_| advanced).map(|_| bound);
        if let Some(rtt) = rtt.or(echoed) {
            self.rtt.sample(now, rtt);
        }
        let rate = delivered.newest.and_then(|newest| {
            let min_rtt = self.rtt.min();
            let (bytes, sent_at) = (delivered.bytes, newest.sent_at);
            let known_rate = self.rate.peak();
            let rate = (self.rate).on_ack(now, bytes, sent_at, &newest.packet, min_rtt, rto);
            // A factor of two is a guess: smaller changes are frequent and matter little.
            if known_rate > 0 && self.rate.peak() / known_rate >= 2 {
                self.advance_drained_at(now);
            }
            rate
        });
        (rtt, rate)
    }

    /// Sets an earlier `drained_at` after the bottleneck turned out to be far faster than it was known to be.
    fn advance_drained_at(&mut self, now: Instant) {
        let ns = self.in_flight() * 1_000_000_000 / self.rate.peak();
        self.pauses.drained_at = self.pauses.drained_at.min(now + Duration::from_nanos(ns));
    }

    /// Stores the time if the window is full. Must be called before an acknowledgement or a loss makes room in the
    /// window.
    fn note_full(&mut self, now: Instant) {
        if self.cwnd_room() == 0 {
            self.round.full_at = now;
        }
    }

    /// Updates the pacing rate with the factors of Linux: twice the window in each round trip in slow start,
    /// because the window doubles, and 1.2 times the window afterwards. As in Linux, the lower factor applies as
    /// soon as the window reaches half of the slow-start threshold.
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
        // After heavy losses the window in fast recovery is only a few segments. With a rate derived from such a
        // window few segments leave, so few acknowledgements return, and the rate stays low. So at least an
        // initial window is sent in each round trip.
        let window = match self.recovery {
            Recovery::Fast { .. } | Recovery::Marked { .. } => {
                self.cwnd().max(self.initial_flight())
            }
            _ => self.cwnd(),
        };
        let per_second = u128::from(window) * 10_000_000 * percent;
        // Before the first round trip is known, sending is unpaced. The minimum of 1000 bytes/s keeps the rate
        // from being 0, which would turn pacing off.
        if let Some(rate) = per_second.checked_div(self.rtt.srtt().as_nanos()) {
            self.pacer
                .set_rate(u64::try_from(rate).unwrap_or(u64::MAX).max(1000));
        }
    }

    /// Asserts the invariants of the sender.
    pub fn invariants(&self) {
        debug_assert!(self.una <= self.nxt, "{} > {}", self.una, self.nxt);
        self.board.invariants(self.una, self.nxt);
        // A retransmission timer runs while anything is in flight.
        debug_assert!(self.board.is_empty() || self.timers.rto_at.is_some());
        debug_assert!(self.timers.backoff <= MAX_BACKOFF);
        // The state Marked ends when nothing is in flight.
        debug_assert!(!self.board.is_empty() || !matches!(self.recovery, Recovery::Marked { .. }));
    }
}

#[cfg(test)]
mod tests;
