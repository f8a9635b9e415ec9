//! A subflow: a TCP connection that is a part of an MPTCP connection (RFC 8684 section 1.3). A connection that
//! runs as regular TCP has only one subflow after its handshake.

use core::net::IpAddr;
use core::time::Duration;

use braid_wire::tcp::{self, Flags, Options, Timestamps};
use braid_wire::{Instant, Seq32, ip};

use super::ending::{Ending, ResetKind};
use super::opening::{Handshake, SynData};
use super::scoreboard::Place;
use crate::event::SubflowCloseReason;
use crate::non_exhaustive::NonExhaustive;
use crate::path::{Claim, Load, Loads, Part, Records};
use crate::strategy::{Copies, SubflowView};
use crate::tcp::FourTuple;
use crate::tcp::closing::FinState;
use crate::tcp::ecn::EcnState;
use crate::tcp::path_mtu::Report;
use crate::tcp::receive::{AckDue, Receiver};
use crate::tcp::segment_size::SegmentSize;
use crate::tcp::send::Sender;
use crate::{Config, PathId, PathRecord, SubflowId};

/// The time without an acknowledgement of data after which a subflow is given up if the connection has others.
/// The value is a guess. Other subflows carry the data meanwhile, so this subflow can be kept through an outage
/// of seconds.
const MIN_STUCK_TIME: Duration = Duration::from_secs(20);
/// The time without an acknowledgement of data after which even a lone subflow is given up. RFC 9293 section
/// 3.8.3 asks for at least 100 s (R2).
const MAX_STUCK_TIME: Duration = Duration::from_secs(100);
/// The minimum share of lost bytes at which a path counts as lossy. The value is a guess: congestion rarely
/// loses so large a share, and the radio links in the tests lose up to 30 %.
const HEAVY_LOSS_SHARE: f32 = 0.15;
/// The minimum number of sent bytes at which the share of lost bytes counts. The value, about 14 segments, is a
/// guess.
const MIN_LOSS_SAMPLE_BYTES: u64 = 20_000;

/// The interval at which a subflow's measurements are recorded; they are also recorded at its start and end. The
/// interval bounds the age of the record that a new connection starts with.
const RECORD_INTERVAL: Duration = Duration::from_secs(1);

/// The phase of a subflow's handshake and life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// SYN sent.
    SynSent,
    /// SYN received and SYN/ACK sent.
    SynReceived,
    /// The third ACK of a join was sent. Data may follow only after the fourth ACK (RFC 8684 section 3.2).
    JoinAcked,
    /// Data flows.
    Established,
    /// A RST is to be sent.
    Resetting,
    /// A RST with MP_FASTCLOSE was sent. The RST may be lost, and a peer that still misses earlier data does not
    /// accept the RST. So MP_FASTCLOSE is repeated for a while, and any segment is answered by another RST until
    /// the connection is forgotten.
    Aborted,
    /// Nothing is left to do.
    Closed,
}

/// The purpose of a subflow's handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Opens {
    /// The handshake opens the connection, by MP_CAPABLE or as regular TCP.
    Connection,
    /// The handshake adds a subflow to the connection, by MP_JOIN.
    Join { local_nonce: u32, remote_nonce: u32 },
}

/// Parameters that both sides agreed on in the SYNs.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Negotiated {
    /// The shift of the windows in the peer's segments.
    pub peer_shift: u8,
    /// The shift of the windows in our segments; 0 if the peer does not scale windows.
    pub local_shift: u8,
    pub sack: bool,
    pub timestamps: bool,
}

/// The parts of a subflow in the tables that connections share.
#[derive(Debug, Clone, Copy, Default)]
struct Shares {
    /// The bytes sent and lost at the last record of the path.
    sent: u64,
    lost: u64,
    /// The time of the next record.
    next: Instant,
    /// The subflow's part of the load of its path.
    load: Part,
}

/// The priority of a subflow: backup or regular (RFC 8684 section 3.3.8).
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Priority {
    /// Set if this side wants the subflow to be a backup.
    pub own: bool,
    /// Set if the peer may not know the value of `own`. Either the value changed during the handshake, or the
    /// subflow opened the connection: MP_CAPABLE has no backup bit to announce it.
    pub unannounced: bool,
    /// Set if the peer wants the subflow to be a backup.
    pub peer: bool,
}

/// Segments that are to be sent now, apart from new data and acknowledgements.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Owed {
    /// The offset up to which the last record of the scoreboard was sent, if the device could not take all
    /// of it at once.
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
    /// Set if this side opened the subflow.
    pub active: bool,
    pub handshake: Handshake,
    /// The payload of the subflow's SYNs.
    pub syn_data: SynData,
    pub ids: AddressIds,
    pub snd: Sender,
    pub rcv: Receiver,
    /// The number of stream bytes that arrived on this subflow although the connection had them already.
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
    /// The subflow's place in the connection's scoreboard, and the progress of its search for data to copy.
    pub place: Place,
    /// The time until which a further penalty by a strategy has no effect: one round trip after the last
    /// penalty.
    pub penalised_until: Instant,
    /// The subflow's parts in the records and loads of its path.
    shares: Shares,
    /// The offset of our timestamps from the millisecond clock. A hash with a secret gives each 4-tuple its own
    /// offset. So a peer can neither read the clock nor relate connections to each other (RFC 7323 section
    /// 5.4).
    ts_base: u32,
    pub size: SegmentSize,
}

/// Signs of life of the peer on a subflow, and the probes for them.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct SignsOfLife {
    /// Set if the subflow has potentially failed: it timed out, its probes were not answered, or its link is
    /// down.
    pub stale: bool,
    /// The time at which a segment was last received.
    pub received_at: Instant,
    /// The time of the last probe; `probes` counts the probes since the last sign of life.
    pub probed_at: Instant,
    pub probes: u32,
    /// The number of timeouts and unanswered probes since a segment was last received.
    pub silent: u32,
    /// Set if another subflow keeps this idle connection alive, and this subflow was silent for so long that
    /// a NAT may have forgotten it.
    pub resting: bool,
}

impl Subflow {
    /// Creates a subflow that this side opens; `Transport::accept_subflow` turns it into one that the peer opened.
    /// `iss` and `ts_base` are a pair, because both come from one hash of the 4-tuple.
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
            shares: Shares::default(),
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
            // Windows are scaled only if both SYNs have the option (RFC 7323 section 2.2).
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

    /// Tells the sender the segment size, and the segment size at the next lower path MTU. If only segments above
    /// the lower size are lost, the path drops large packets.
    fn refresh_mss(&mut self) {
        self.snd.set_mss(self.size.mss());
        let fallback_size = self.size.mtu.smaller();
        let small = fallback_size.map(|size| self.size.data_of(size));
        // If no segment is larger than the fallback size, losses cannot depend on the size.
        self.snd
            .set_small(small.filter(|small| *small < u64::from(self.snd.mss())));
    }

    /// Handles an ICMP report that packets larger than `mtu` bytes do not pass (RFC 1191, RFC 8201).
    pub fn on_packet_too_big(&mut self, now: Instant, mtu: u32) {
        match self.size.mtu.on_report(now, mtu) {
            Report::Smaller => {
                self.refresh_mss();
                // The path drops packets of the old size, so the data in flight is retransmitted at once in
                // smaller ones.
                self.snd.revive(now);
            }
            Report::TooLarge => self.snd.on_size_probe_lost(),
            Report::NoNews => return,
        }
        // Either report may have ended a probe, whose result is processed now.
        self.judge_sizes(now);
    }

    /// Updates the path MTU by the fate of its last probe. Lowers the path MTU if only large segments are lost
    /// (RFC 8899).
    pub fn judge_sizes(&mut self, now: Instant) {
        let probe_result = self.snd.take_size_probe_result();
        if let Some(arrived) = probe_result {
            self.size.mtu.on_result(now, arrived);
        }
        let was_lowered = self.snd.sees_black_hole() && self.size.mtu.on_black_hole(now);
        if probe_result.is_some() || was_lowered {
            self.refresh_mss();
        }
    }

    /// Returns the number of payload bytes of a packet that is to probe for a larger path MTU now; `None` if
    /// no probe is due or the congestion window has no room for it.
    pub fn mtu_probe_payload(&self, now: Instant) -> Option<u64> {
        let size = self
            .size
            .mtu
            .due(now)
            .filter(|_| self.snd.may_probe_size())?;
        let payload = self.size.data_of(size);
        (payload > u64::from(self.snd.mss()) && payload <= self.snd.cwnd_room()).then_some(payload)
    }

    /// Makes the next `len` bytes of payload a probe of the path MTU, which leaves as one packet. Does nothing
    /// unless a probe is due, `len` is more than a segment, and the packet is not larger than the size to be
    /// probed.
    pub fn begin_mtu_probe(&mut self, now: Instant, len: u64) {
        let exceeds_mss = u64::from(self.snd.mss()) < len;
        if self
            .mtu_probe_payload(now)
            .is_some_and(|max| exceeds_mss && len <= max)
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

    /// Returns the round-trip time of the handshake that `answer` completes. If our SYN or SYN/ACK was
    /// repeated, only a timestamp tells which copy was answered (RFC 7323 section 4); without timestamps the
    /// result is `None`.
    pub fn handshake_rtt(&self, now: Instant, answer: &tcp::Repr) -> Option<Duration> {
        let since_opened = now.saturating_since(self.handshake.opened_at);
        if self.handshake.tries == 1 {
            return Some(since_opened);
        }
        let echo = answer.options.timestamps?.echo;
        let age = Duration::from_millis(u64::from(self.ts_now(now).wrapping_sub(echo)));
        // The timestamp counts whole milliseconds, so the echo may be up to 1 ms older than it looks.
        let granularity = Duration::from_millis(1);
        // An echo from before the handshake cannot be of our SYN or SYN/ACK: the peer or a middlebox made it up.
        let is_plausible = age <= since_opened;
        (self.agreed.timestamps && is_plausible).then_some(since_opened.min(age + granularity))
    }

    /// Returns the ECN flags of a segment at offset `seq`, and the ECN bits of its IP packet. Only payload
    /// that is sent for the first time may be ECN-capable (RFC 3168 section 6.1.5).
    // Conforms: 3168-6.1.4-1, 3168-6.1.5-1, 3168-6.1.2-3
    pub fn ecn_bits(&mut self, seq: u64, flags: Flags, has_payload: bool) -> (Flags, u8) {
        // In SYNs the two flags negotiate ECN, and a RST needs neither of them.
        let may_echo = flags.contains(Flags::ACK) && !flags.intersects(Flags::SYN | Flags::RST);
        if !may_echo {
            return (Flags::EMPTY, ip::NOT_ECT);
        }
        let mut ecn_flags = self.ecn.of_ack();
        if !has_payload || !self.ecn.sends_ect() || !self.snd.is_sent_once(seq) {
            return (ecn_flags, ip::NOT_ECT);
        }
        if self.snd.take_cwr() {
            ecn_flags |= Flags::CWR;
        }
        // Routers mark ECN-capable packets instead of dropping them. So a controller that ignores marks would
        // gain an unfair share from such packets.
        match self.snd.cc.responds_to_ecn() {
            true => (ecn_flags, ip::ECT),
            false => (ecn_flags, ip::NOT_ECT),
        }
    }

    /// Returns whether the next payload has to tell the peer that the window was reduced (CWR).
    pub fn owes_cwr(&self) -> bool {
        self.ecn.sends_ect() && self.snd.owes_cwr()
    }

    /// Returns the timestamps of a segment, if both sides agreed on them. The answer to a retransmission of data
    /// that has arrived already echoes the timestamp of that retransmission (`echo_once`). This deviates from RFC
    /// 7323 section 5.3 (R2), by which the answer echoes TS.Recent. TS.Recent may be from before an outage, and
    /// the peer would then take the outage for the round trip.
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

    /// Returns whether the timestamp in these options is older than TS.Recent, so that the segment is an old
    /// duplicate (PAWS, RFC 7323 section 5).
    pub(super) fn is_old(&self, options: &Options) -> bool {
        let timestamps = options.timestamps.filter(|_| self.agreed.timestamps);
        timestamps.is_some_and(|ts| Seq32(ts.value).before(Seq32(self.rcv.ts_recent)))
    }

    /// Returns whether `ack` acknowledges our SYN, and nothing beyond the payload that the SYN carried.
    pub(super) fn has_offered(&self, ack: Seq32) -> bool {
        let offered = self.handshake.offer.map_or(0, |offer| offer.len);
        let ahead = ack.diff(self.snd.iss.add(1));
        u64::try_from(ahead).is_ok_and(|ahead| ahead <= offered)
    }

    /// Returns the subflow offset at which a mapping of the peer starts; `seq` is its subflow sequence number.
    // Conforms: 8684-B.2-2
    pub(super) fn mapped_from(&self, seq: u32) -> Option<u64> {
        // Sequence numbers of mappings do not count the payload of the SYN.
        let in_syn = self.syn_data.received;
        let sub = Seq32(seq).offset_near(Seq32(0), self.rcv.nxt - in_syn)?;
        Some(sub + in_syn)
    }

    /// Continues a handshake whose SYN/ACK was sent without state (SYN cookie). That SYN/ACK had the initial
    /// sequence number `iss`, timestamps with the offset `ts_base`, and a window up to offset `advertised_end`.
    /// Its time was not kept. So `tries` is set to 2, as if the SYN/ACK was repeated: then only a timestamp gives
    /// the round-trip time ([`handshake_rtt`](Self::handshake_rtt)). `opened_at` is the earliest time, so that
    /// any age of the echo is plausible.
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
        let has_ended = matches!(
            self.phase,
            Phase::Resetting | Phase::Aborted | Phase::Closed
        );
        !has_ended && !self.closing.is_closed_here()
    }

    /// Returns whether new data may be put on the subflow if there is room.
    // Conforms: 8684-3.2-13
    pub fn can_carry(&self) -> bool {
        self.is_established() && !self.closing.is_closed_here()
    }

    /// Returns whether a segment is due that does not depend on new data: an acknowledgement, a probe, a
    /// handshake segment, the rest of a record, FIN or RST. Lost data does not count, because congestion window
    /// and pacer decide when it is retransmitted.
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

    /// Returns whether the subflow is a join that its listener cannot have accepted yet, because the third ACK has
    /// not left or has not arrived. Such a subflow has never carried data.
    pub fn is_unaccepted_join(&self) -> bool {
        let is_unaccepted = match self.phase {
            Phase::SynSent | Phase::SynReceived => true,
            // In this phase `tries` counts third ACKs. The first one, by which the listener accepts the join, has
            // not left.
            Phase::JoinAcked => self.handshake.tries == 0,
            _ => false,
        };
        is_unaccepted && self.opens != Opens::Connection
    }

    /// Ends the subflow by a RST. The handshake's timers are stopped, because the subflow remains until the RST is
    /// sent.
    pub fn begin_reset(&mut self, kind: ResetKind, reason: SubflowCloseReason) {
        if self.phase == Phase::Closed {
            return;
        }
        self.ending.reset = Some(kind);
        self.ending.reason = reason;
        self.phase = Phase::Resetting;
        self.handshake.stop();
    }

    /// Ends the subflow silently. Its timers are not stopped, because a closed subflow is removed.
    pub fn close(&mut self, reason: SubflowCloseReason) {
        self.ending.reason = reason;
        self.phase = Phase::Closed;
    }

    /// Returns whether the subflow is to be given up if the connection has others, because no data was
    /// acknowledged on it for [`MIN_STUCK_TIME`]. A peer that answers but acknowledges no data is no better than
    /// a silent one. Three timeouts in a row are required as well, so that a few losses on a path with a long
    /// timeout do not suffice.
    pub fn is_stuck(&self, now: Instant) -> bool {
        self.snd.backoff() >= 3 && self.snd.stuck_for(now) > MIN_STUCK_TIME
    }

    /// Returns whether the path is known to lose much of its traffic.
    pub fn is_lossy(&self) -> bool {
        let traffic = &self.snd.traffic;
        traffic.bytes_sent >= MIN_LOSS_SAMPLE_BYTES && traffic.loss() >= HEAVY_LOSS_SHARE
    }

    /// Returns whether the subflow is not worth keeping even as the only one (R2 of RFC 9293 section 3.8.3).
    pub fn is_hopeless(&self, now: Instant) -> bool {
        self.snd.stuck_for(now) > MAX_STUCK_TIME
    }

    /// Notes that a segment was received. After two timeouts without any segment the path was probably down
    /// and is back now, so data is retransmitted early. After a single timeout the backed-off timer stays as
    /// it is (RFC 6298 section 5.5), because the timeout may be due to congestion.
    pub fn wake(&mut self, now: Instant) {
        if core::mem::take(&mut self.signs.silent) >= 2 {
            self.snd.retry_early(now);
        }
    }

    /// Returns remote address and path: the key of all records that outlive a connection.
    pub fn link(&self) -> (IpAddr, PathId) {
        (self.tuple.remote.ip(), self.path)
    }

    /// Returns whether the subflow opens the connection, and its SYN is not answered yet.
    pub fn is_opening(&self) -> bool {
        self.phase == Phase::SynSent && self.opens == Opens::Connection
    }

    /// Returns the record of the subflow's path.
    pub fn record(&self, records: &Records) -> Option<PathRecord> {
        records.get(self.tuple.remote.ip(), self.path)
    }

    /// Restarts the sender if it was idle. It starts with the measurements in the record of the path, which other
    /// subflows may have updated meanwhile.
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
        now >= self.shares.next
    }

    /// Updates the record of the path with the measurements of the subflow since its last record.
    pub fn remember(&mut self, now: Instant, records: &mut Records) {
        let (rtt, traffic) = (&self.snd.rtt, &self.snd.traffic);
        // Without a round-trip sample nothing was measured.
        if rtt.srtt().is_zero() {
            return;
        }
        let sent = traffic.bytes_sent + traffic.bytes_retransmitted;
        // Loss by congestion depends on the load, not on the path alone, so it is not recorded.
        let lost = self.snd.non_congestive_loss();
        let (link, rate) = ((self.tuple.remote.ip(), self.path), self.snd.peak_rate());
        let measured = PathRecord {
            at: now,
            srtt: rtt.srtt(),
            rttvar: rtt.rttvar(),
            base_rtt: rtt.base(),
            delivery_rate: rate,
            is_lower_bound: self.snd.limits_rate() || records.is_shared(now, link, rate),
            arrival_rate: self.rcv.arriving.peak_rate(),
            bytes_sent: sent - self.shares.sent,
            bytes_lost: lost - self.shares.lost,
        };
        records.add(link.0, link.1, measured);
        self.shares = Shares {
            sent,
            lost,
            next: now + RECORD_INTERVAL,
            ..self.shares
        };
    }

    /// Updates the subflow's part of the load of its path.
    #[inline]
    pub fn count_load(&mut self, loads: &mut Loads) {
        let load = self.load();
        // Every packet counts the loads of all subflows, and usually changes one of them.
        if load != self.shares.load.load() {
            loads.replace(self.link(), &mut self.shares.load, load);
        }
    }

    fn load(&self) -> Load {
        let in_flight = self.snd.in_flight();
        if self.is_opening() {
            Load {
                subflows: 1,
                openings: 1,
                ..Load::default()
            }
        } else if in_flight == 0 || !self.is_alive() {
            Load::default()
        } else {
            Load {
                in_flight,
                delivery_rate: self.snd.delivery_rate(),
                subflows: 1,
                openings: 0,
            }
        }
    }

    /// Removes the subflow's part from the load of its path.
    pub fn drop_load(&mut self, loads: &mut Loads) {
        loads.replace(self.link(), &mut self.shares.load, Load::default());
    }

    /// Returns the load of the subflow's path by all other subflows.
    pub fn load_of_others(&self, loads: &Loads) -> Load {
        loads.of_others(self.link(), &self.shares.load)
    }

    /// Returns the number of new payload bytes that may be sent now; 0 if loss recovery, pacer, congestion
    /// window or the peer's window forbid it.
    pub fn room(&self, now: Instant) -> u64 {
        let new_room = self.snd.new_room();
        if new_room == 0 || self.snd.pacer.blocked_until(now).is_some() {
            return 0;
        }
        new_room.min(self.snd.cwnd_room()).min(self.snd.peer_room())
    }

    /// Returns the view of the subflow for a strategy. `claim` describes the data that this host sends between the
    /// same addresses on any connection, and `others` is the load of other subflows there.
    // Conforms: 8684-3.3.8-1
    pub fn view(&self, ready: bool, copies: Copies, claim: Claim, others: Load) -> SubflowView {
        SubflowView {
            id: self.id,
            path: self.path,
            srtt: self.snd.rtt.srtt(),
            rttvar: self.snd.rtt.rttvar(),
            latest_rtt: self.snd.rtt.latest(),
            base_rtt: self.snd.rtt.base(),
            // This timeout includes the backoff of the `timeouts`.
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
            most_urgent: claim.most_urgent,
            foreground_at: claim.foreground_at,
            others_in_flight: others.in_flight,
            others_rate: others.delivery_rate,
            copies,
            _non_exhaustive: NonExhaustive::MARK,
        }
    }

    /// Returns the time at which [`super::Connection::handle_timeout`] has something to do for this
    /// subflow. `has_data` is set if the connection has data for any subflow with room.
    pub fn next_timeout(&self, has_data: bool, now: Instant) -> Option<Instant> {
        let sendable = self.snd.board.lost() > 0 || (has_data && self.snd.peer_room() > 0);
        // Without room in the congestion window, nothing can be sent when the pacer allows it. Then the next
        // acknowledgement makes room, and is an event of its own.
        let paced = self.snd.pacer.blocked_until(now);
        let pacing = paced.filter(|_| sendable && self.snd.cwnd_room() > 0);
        let ack = match self.rcv.due {
            AckDue::At(at) => Some(at),
            _ => None,
        };
        // In the other phases, the sender's timers do not count: the handshake and the end have their own timers.
        let send = if self.is_established() {
            self.snd.next_timeout()
        } else {
            None
        };
        let (handshake, repeat) = (self.handshake.at, self.ending.repeats.at);
        Instant::earliest([
            handshake,
            // At this time a second SYN leaves on another path, unless this subflow's SYN was answered.
            self.handshake.second_syn_at,
            repeat,
            pacing,
            ack,
            send,
        ])
    }
}
