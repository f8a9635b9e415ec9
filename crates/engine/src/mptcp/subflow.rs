//! A TCP connection as part of an MPTCP connection (RFC 8684 section 1.3), or by itself as regular TCP.

use core::net::IpAddr;
use core::time::Duration;

use braid_wire::tcp::{self, Flags, Options, Timestamps};
use braid_wire::{Instant, Seq32, ip};

use super::ending::{Ending, ResetKind};
use super::opening::{Handshake, SynData};
use super::scoreboard::Place;
use crate::event::SubflowCloseReason;
use crate::non_exhaustive::NonExhaustive;
use crate::path::Records;
use crate::strategy::{Copies, SubflowView};
use crate::tcp::FourTuple;
use crate::tcp::closing::FinState;
use crate::tcp::ecn::EcnState;
use crate::tcp::path_mtu::Report;
use crate::tcp::receive::{AckDue, Receiver};
use crate::tcp::segment_size::SegmentSize;
use crate::tcp::send::Sender;
use crate::{Config, PathId, PathRecord, SubflowId, Urgency};

/// The least silence after which a subflow is given up as stuck.
const MIN_STUCK_TIME: Duration = Duration::from_secs(20);
/// The most time that a lone subflow may go without an acknowledgement of data.
const MAX_STUCK_TIME: Duration = Duration::from_secs(100);
/// The share of sent bytes whose loss makes a path lossy, and the bytes needed to judge.
const HEAVY_LOSS_SHARE: f32 = 0.15;
const MIN_LOSS_SAMPLE_BYTES: u64 = 20_000;

/// The interval at which a subflow's measurements are recorded, besides at its start and end.
const RECORD_INTERVAL: Duration = Duration::from_secs(1);

/// The phase of a subflow's handshake and life. Nonces live only as long as they are needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// SYN sent.
    SynSent,
    /// SYN received and SYN/ACK sent.
    SynReceived,
    /// Third ACK of a join sent; data only after the fourth ACK (RFC 8684 section 3.2).
    JoinAcked,
    /// Data flows.
    Established,
    /// A RST is to be sent.
    Resetting,
    /// RST with MP_FASTCLOSE was sent. It may be lost, and a peer with a hole before it does not accept it.
    /// So MP_FASTCLOSE is repeated for a while, and any segment is answered by another RST until the
    /// connection is forgotten.
    Aborted,
    /// Nothing is left to do.
    Closed,
}

/// The object that a handshake opens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Opens {
    /// The connection (or regular TCP).
    Connection,
    /// A further subflow.
    Join { local_nonce: u32, remote_nonce: u32 },
}

/// Parameters that both sides agreed on in the SYNs.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Negotiated {
    /// The shift of windows that the peer announces.
    pub peer_shift: u8,
    /// The shift of windows announced here; 0 if the peer does not scale.
    pub local_shift: u8,
    pub sack: bool,
    pub timestamps: bool,
}

/// The part of a subflow's measurements that has been recorded.
#[derive(Debug, Clone, Copy, Default)]
struct RecordedCounts {
    sent: u64,
    lost: u64,
    next: Instant,
}

/// The priority of a subflow: a backup or none (RFC 8684 section 3.3.8).
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Priority {
    /// Set if this side wants a backup.
    pub own: bool,
    /// Set if the peer may have been told another priority: it changed during the handshake, or the subflow
    /// opened the connection, and MP_CAPABLE has no backup bit.
    pub unannounced: bool,
    /// Set if the peer wants a backup.
    pub peer: bool,
}

/// Segments to be sent that wait for no data.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Owed {
    /// The offset up to which the last record has left, if the device takes no more at once.
    pub rest: Option<u64>,
    /// Set if a tail loss probe is to be sent.
    pub probe: bool,
    /// Set if a window or liveness probe is to be sent.
    pub keepalive: bool,
}

/// The ids of both addresses of a subflow (RFC 8684 section 3.2).
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct AddressIds {
    pub own: u8,
    pub peer: u8,
}

#[derive(Debug)]
pub(crate) struct Subflow {
    pub id: SubflowId,
    pub path: PathId,
    pub tuple: FourTuple,
    pub phase: Phase,
    pub opens: Opens,
    /// Set if the subflow was opened from here.
    pub active: bool,
    pub handshake: Handshake,
    /// The payload of its SYNs.
    pub syn_data: SynData,
    pub ids: AddressIds,
    pub snd: Sender,
    pub rcv: Receiver,
    /// The number of stream bytes that arrived here although they were known already.
    pub duplicate: u64,
    pub agreed: Negotiated,
    pub ecn: EcnState,
    pub priority: Priority,
    /// Set once a mapping or a DATA_ACK has arrived on the subflow.
    pub dss_seen: bool,
    /// Signs of life of the peer.
    pub signs: SignsOfLife,
    pub owed: Owed,
    pub closing: FinState,
    pub ending: Ending,
    /// The subflow's place in the connection's scoreboard, and its progress in the search for copies.
    pub place: Place,
    /// The end of the last penalty (at most one a round trip).
    pub penalised_until: Instant,
    /// The measurements recorded last, and the time of the next record.
    recorded: RecordedCounts,
    /// The offset of our timestamps from the millisecond clock.
    ts_base: u32,
    pub size: SegmentSize,
}

/// Signs of life of the peer on a subflow, and the probes for them.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct SignsOfLife {
    /// Set if the subflow has potentially failed: it timed out, or its link is down.
    pub stale: bool,
    /// The time at which anything last came in.
    pub received_at: Instant,
    /// The time of the last probe; `probes` counts the probes since the last sign of life.
    pub probed_at: Instant,
    pub probes: u32,
    /// The number of timeouts and unanswered probes since anything came in.
    pub silent: u32,
    /// Set if another subflow keeps this idle connection alive, and this one was silent for so long that a
    /// NAT may have forgotten it.
    pub resting: bool,
}

impl Subflow {
    pub fn new(
        id: SubflowId,
        path: PathId,
        tuple: FourTuple,
        pmtu: u32,
        (iss, ts_base): (Seq32, u32),
        config: &Config,
    ) -> Self {
        let size = SegmentSize::new(pmtu, &tuple);
        Subflow {
            id,
            path,
            tuple,
            phase: Phase::SynSent,
            opens: Opens::Connection,
            active: true,
            handshake: Handshake::default(),
            syn_data: SynData::default(),
            ids: AddressIds::default(),
            snd: Sender::new(iss, size.mss(), config),
            rcv: Receiver::new(Seq32(0), config.delayed_ack),
            duplicate: 0,
            agreed: Negotiated::default(),
            ecn: EcnState::default(),
            priority: Priority::default(),
            dss_seen: false,
            signs: SignsOfLife::default(),
            owed: Owed::default(),
            closing: FinState::default(),
            ending: Ending::default(),
            place: Place::default(),
            penalised_until: Instant::ZERO,
            recorded: RecordedCounts::default(),
            ts_base,
            size,
        }
    }

    /// Adopts the options of the peer's SYN.
    // Conforms: 7323-2.2-1, 7323-2.3-1
    pub fn on_syn_options(&mut self, options: &Options, local_shift: u8) {
        self.size.on_peer_mss(options.mss);
        self.agreed = Negotiated {
            // RFC 7323 section 2.3: a shift above 14 counts as 14.
            peer_shift: options.window_scale.unwrap_or(0).min(14),
            local_shift: if options.window_scale.is_some() {
                local_shift
            } else {
                0
            },
            sack: options.sack_permitted,
            timestamps: options.timestamps.is_some(),
        };
        if !self.agreed.sack {
            self.snd.count_dup_acks();
        }
        if let Some(ts) = options.timestamps {
            self.rcv.ts_recent = ts.value;
        }
        self.refresh_mss();
    }

    /// Sets the length of the options of a data segment, which decides the segment size.
    pub fn set_data_options(&mut self, len: usize) {
        self.size.set_options(len);
        self.refresh_mss();
    }

    fn refresh_mss(&mut self) {
        self.snd.set_mss(self.size.mss());
        let small = self.size.mtu.smaller();
        let small = small.map(|size| self.size.data_of(size));
        // If the peer accepts no larger segments anyway, none counts as large.
        self.snd
            .set_small(small.filter(|small| *small < u64::from(self.snd.mss())));
    }

    /// Handles a report of the network that packets over `mtu` bytes do not pass (RFC 1191, RFC 8201).
    pub fn on_packet_too_big(&mut self, now: Instant, mtu: u32) {
        match self.size.mtu.on_report(now, mtu) {
            Report::Smaller => {
                self.refresh_mss();
                self.snd.revive(now);
            }
            Report::TooLarge => self.snd.on_size_probe_lost(),
            Report::NoNews => return,
        }
        self.judge_sizes(now);
    }

    /// Draws conclusions about the path MTU from arrivals and losses by size (RFC 8899).
    pub fn judge_sizes(&mut self, now: Instant) {
        let verdict = self.snd.take_size_probe_result();
        if let Some(arrived) = verdict {
            self.size.mtu.on_result(now, arrived);
        }
        let vanish = self.snd.sees_black_hole() && self.size.mtu.on_black_hole(now);
        if verdict.is_some() || vanish {
            self.refresh_mss();
        }
    }

    /// Returns the payload of a packet that is to probe now for a larger path MTU.
    pub fn mtu_probe_payload(&self, now: Instant) -> Option<u64> {
        let size = self
            .size
            .mtu
            .due(now)
            .filter(|_| self.snd.may_probe_size())?;
        let payload = self.size.data_of(size);
        (payload > u64::from(self.snd.mss()) && payload <= self.snd.cwnd_room()).then_some(payload)
    }

    /// Makes the next `len` bytes of payload a probe of the path MTU, if they are enough to tell and not
    /// too many.
    pub fn begin_mtu_probe(&mut self, now: Instant, len: u64) {
        let tells = u64::from(self.snd.mss()) < len;
        if self
            .mtu_probe_payload(now)
            .is_some_and(|most| tells && len <= most)
        {
            let packet = self.size.packet_of(len);
            self.size.mtu.on_probe_sent(packet);
            self.snd.send_size_probe(len);
        }
    }

    /// Returns our timestamp clock in milliseconds.
    pub fn ts_now(&self, now: Instant) -> u32 {
        self.ts_base
            .wrapping_add((now.as_nanos() / 1_000_000) as u32)
    }

    /// Returns the round-trip time of the handshake that `answer` ends. If a SYN was repeated, only a
    /// timestamp tells which one was answered (RFC 7323 section 4).
    pub fn handshake_rtt(&self, now: Instant, answer: &tcp::Repr) -> Option<Duration> {
        let most = now.saturating_since(self.handshake.opened_at);
        if self.handshake.tries == 1 {
            return Some(most);
        }
        let echo = answer.options.timestamps?.echo;
        let age = Duration::from_millis(u64::from(self.ts_now(now).wrapping_sub(echo)));
        let granularity = Duration::from_millis(1);
        (self.agreed.timestamps && age <= most).then_some(most.min(age + granularity))
    }

    /// Returns the ECN flags of a segment at offset `seq`, with payload or not, and the ECN bits of its
    /// packet. Only payload that is sent for the first time may be marked (RFC 3168 section 6.1.5).
    // Conforms: 3168-6.1.4-1, 3168-6.1.5-1, 3168-6.1.2-3
    pub fn ecn_bits(&mut self, seq: u64, flags: Flags, payload: bool) -> (Flags, u8) {
        let plain = flags.contains(Flags::ACK) && !flags.intersects(Flags::SYN | Flags::RST);
        if !plain {
            return (Flags::EMPTY, ip::NOT_ECT);
        }
        let mut further = self.ecn.of_ack();
        if !payload || !self.ecn.sends_ect() || !self.snd.is_sent_once(seq) {
            return (further, ip::NOT_ECT);
        }
        if self.snd.take_cwr() {
            further |= Flags::CWR;
        }
        match self.snd.cc.responds_to_ecn() {
            true => (further, ip::ECT),
            false => (further, ip::NOT_ECT),
        }
    }

    /// Returns whether the next payload has to tell the peer that the window was reduced (CWR).
    pub fn owes_cwr(&self) -> bool {
        self.ecn.sends_ect() && self.snd.owes_cwr()
    }

    pub fn timestamps(&self, now: Instant) -> Option<Timestamps> {
        self.agreed.timestamps.then(|| Timestamps {
            value: self.ts_now(now),
            echo: self.rcv.echo_once.unwrap_or(self.rcv.ts_recent),
        })
    }

    /// Returns the nonces of a join: ours, and the peer's.
    pub(super) fn nonces(&self) -> Option<(u32, u32)> {
        match self.opens {
            Opens::Connection => None,
            Opens::Join {
                local_nonce,
                remote_nonce,
            } => Some((local_nonce, remote_nonce)),
        }
    }

    /// Returns whether a segment with these options is older than one already here (PAWS, RFC 7323 section
    /// 5).
    pub(super) fn is_old(&self, options: &Options) -> bool {
        let timestamps = options.timestamps.filter(|_| self.agreed.timestamps);
        timestamps.is_some_and(|ts| Seq32(ts.value).before(Seq32(self.rcv.ts_recent)))
    }

    /// Returns whether `ack` acknowledges no more than our SYN offered.
    pub(super) fn has_offered(&self, ack: Seq32) -> bool {
        let offered = self.handshake.offer.map_or(0, |offer| offer.len);
        let ahead = ack.diff(self.snd.iss.add(1));
        u64::try_from(ahead).is_ok_and(|ahead| ahead <= offered)
    }

    /// Returns the offset of the subflow sequence number of a mapping.
    // Conforms: 8684-B.2-2
    pub(super) fn mapped_from(&self, seq: u32) -> Option<u64> {
        let in_syn = self.syn_data.received;
        let sub = Seq32(seq).offset_near(Seq32(0), self.rcv.nxt - in_syn)?;
        Some(sub + in_syn)
    }

    /// Adopts the numbers of a SYN/ACK that was sent without state (SYN cookie). Only a timestamp tells how
    /// long ago that was, hence `tries` is 2. The peer was told a window up to the offset `advertised_end`.
    pub fn resume(&mut self, iss: Seq32, ts_base: u32, advertised_end: u64) {
        self.snd.iss = iss;
        self.ts_base = ts_base;
        self.handshake.opened_at = Instant::ZERO;
        self.handshake.tries = 2;
        self.rcv.advertised_end = advertised_end;
    }

    /// Returns whether the handshake is complete and the connection may rely on the subflow.
    pub fn is_established(&self) -> bool {
        self.phase == Phase::Established
    }

    /// Returns whether the subflow may still carry data, now or later.
    pub fn is_alive(&self) -> bool {
        let over = matches!(
            self.phase,
            Phase::Resetting | Phase::Aborted | Phase::Closed
        );
        !over && !self.closing.is_closed_here()
    }

    /// Returns whether new data may be put on the subflow at all.
    // Conforms: 8684-3.2-13
    pub fn can_carry(&self) -> bool {
        self.is_established() && !self.closing.is_closed_here()
    }

    /// Returns whether a segment is to be sent that waits for no data: an acknowledgement, a probe, a
    /// handshake segment, FIN or RST.
    pub fn owes(&self, now: Instant) -> bool {
        self.rcv.due == AckDue::Now
            || self.handshake.is_due(now)
            || self.ending.repeats.at.is_some_and(|at| at <= now)
            || self.phase == Phase::Resetting
            || self.owed.rest.is_some()
            || self.owed.probe
            || self.owed.keepalive
            || self.closing.owes_fin()
    }

    /// Returns whether this is a join that the listener has not accepted yet, so that it never carried
    /// anything.
    pub fn is_unaccepted_join(&self) -> bool {
        let unknown = match self.phase {
            Phase::SynSent | Phase::SynReceived => true,
            Phase::JoinAcked => self.handshake.tries == 0,
            _ => false,
        };
        unknown && self.opens != Opens::Connection
    }

    /// Ends the subflow by a RST.
    pub fn begin_reset(&mut self, kind: ResetKind, reason: SubflowCloseReason) {
        if self.phase == Phase::Closed {
            return;
        }
        self.ending.reset = Some(kind);
        self.ending.reason = reason;
        self.phase = Phase::Resetting;
        self.handshake.stop();
    }

    /// Ends the subflow silently.
    pub fn close(&mut self, reason: SubflowCloseReason) {
        self.ending.reason = reason;
        self.phase = Phase::Closed;
    }

    /// Returns whether nothing was acknowledged for so long that the subflow is not worth keeping beside
    /// others. A peer that answers but accepts nothing is no better than a silent one.
    pub fn is_stuck(&self, now: Instant) -> bool {
        self.snd.backoff() >= 3 && self.snd.stuck_for(now) > MIN_STUCK_TIME
    }

    /// Returns whether the path is known to lose much of its traffic.
    pub fn is_lossy(&self) -> bool {
        let traffic = &self.snd.traffic;
        traffic.bytes_sent >= MIN_LOSS_SAMPLE_BYTES && traffic.loss() >= HEAVY_LOSS_SHARE
    }

    /// Returns whether the subflow is not worth keeping even alone (R2 of RFC 9293 section 3.8.3).
    pub fn is_hopeless(&self, now: Instant) -> bool {
        self.snd.stuck_for(now) > MAX_STUCK_TIME
    }

    /// Notes that something came in. After a silence of two timeouts the path may be back, so data is
    /// retransmitted early. A peer heard between timeouts tells nothing (RFC 6298 section 5.5).
    pub fn wake(&mut self, now: Instant) {
        if core::mem::take(&mut self.signs.silent) >= 2 {
            self.snd.retry_early(now);
        }
    }

    /// Returns remote address and path, which subflows between the same addresses share.
    pub fn link(&self) -> (IpAddr, PathId) {
        (self.tuple.remote.ip(), self.path)
    }

    /// Returns the record of the subflow's path.
    pub fn record(&self, records: &Records) -> Option<PathRecord> {
        records.get(self.tuple.remote.ip(), self.path)
    }

    /// Restarts the sender after a pause, with what the path's record has learnt meanwhile.
    pub fn before_send(&mut self, now: Instant, records: &Records) {
        if self.snd.is_idle(now) {
            if let Some(record) = self.record(records) {
                self.snd.seed_from(&record);
            }
            self.snd.restart(now);
        }
    }

    /// Returns whether a new record is due (see [`remember`](Self::remember)).
    pub fn is_record_due(&self, now: Instant) -> bool {
        now >= self.recorded.next
    }

    /// Adds the measurements since the last call to the record of the path.
    pub fn remember(&mut self, now: Instant, records: &mut Records) {
        let (rtt, traffic) = (&self.snd.rtt, &self.snd.traffic);
        if rtt.srtt().is_zero() {
            return;
        }
        let sent = traffic.bytes_sent + traffic.bytes_retransmitted;
        let lost = self.snd.non_congestive_loss();
        let seen = PathRecord {
            at: now,
            srtt: rtt.srtt(),
            rttvar: rtt.rttvar(),
            base_rtt: rtt.base(),
            delivery_rate: self.snd.peak_rate(),
            bytes_sent: sent - self.recorded.sent,
            bytes_lost: lost - self.recorded.lost,
        };
        records.add(self.tuple.remote.ip(), self.path, seen);
        self.recorded = RecordedCounts {
            sent,
            lost,
            next: now + RECORD_INTERVAL,
        };
    }

    /// Returns the payload bytes that may be sent now; 0 if window, pacer or peer forbid it.
    pub fn room(&self, now: Instant) -> u64 {
        let new = self.snd.new_room();
        if new == 0 || self.snd.pacer.blocked_until(now).is_some() {
            return 0;
        }
        new.min(self.snd.cwnd_room()).min(self.snd.peer_room())
    }

    /// Returns the view of the subflow that a strategy gets.
    // Conforms: 8684-3.3.8-1
    pub fn view(&self, ready: bool, copies: Copies, most_urgent: Option<Urgency>) -> SubflowView {
        SubflowView {
            id: self.id,
            path: self.path,
            srtt: self.snd.rtt.srtt(),
            rttvar: self.snd.rtt.rttvar(),
            latest_rtt: self.snd.rtt.latest(),
            base_rtt: self.snd.rtt.base(),
            rto: self.snd.rto(),
            timeouts: self.snd.backoff(),
            cwnd: self.snd.cwnd(),
            ssthresh: self.snd.cc.ssthresh(),
            in_flight: self.snd.in_flight(),
            queued: self.snd.nxt - self.snd.una,
            sent: self.snd.traffic.bytes_sent,
            oldest_sent: self.snd.board.oldest_sent(),
            mss: self.snd.mss(),
            pacing_rate: self.snd.pacer.rate(),
            delivery_rate: self.snd.delivery_rate(),
            peak_rate: self.snd.peak_rate(),
            drained_at: self.snd.drained_at(),
            loss: self.snd.traffic.loss(),
            non_congestive_loss: self.snd.non_congestive_loss(),
            backup: self.is_backup(),
            stale: self.is_stale(),
            ready,
            most_urgent,
            copies,
            _non_exhaustive: NonExhaustive::MARK,
        }
    }

    /// Returns the time at which [`super::Connection::handle_timeout`] has something to do for this
    /// subflow. `pending` is set if the connection has data for a subflow with room.
    pub fn next_timeout(&self, pending: bool, now: Instant) -> Option<Instant> {
        let sendable = self.snd.board.lost() > 0 || (pending && self.snd.peer_room() > 0);
        // Without room in the window, the next acknowledgement wakes the sender, not the pacer.
        let paced = self.snd.pacer.blocked_until(now);
        let pacing = paced.filter(|_| sendable && self.snd.cwnd_room() > 0);
        let ack = match self.rcv.due {
            AckDue::At(at) => Some(at),
            _ => None,
        };
        let send = if self.is_established() {
            self.snd.next_timeout()
        } else {
            None
        };
        let (handshake, repeat) = (self.handshake.at, self.ending.repeats.at);
        Instant::earliest([
            handshake,
            self.handshake.second_syn_at,
            repeat,
            pacing,
            ack,
            send,
        ])
    }
}
