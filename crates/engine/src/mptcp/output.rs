//! Output of a connection, one packet at a time.

use core::ops::Range;

use arrayvec::ArrayVec;
use braid_wire::ip;
use braid_wire::mptcp::{Capable, MptcpOption, ResetReason};
use braid_wire::tcp::{self, Flags, Options};
use braid_wire::{Instant, Seq32};

use super::checksum::MAX_CHECKED_MAPPING_LEN;
use super::connection::Connection;
use super::ctx::Ctx;
use super::ending::ResetKind;
use super::handshake::{repeat_at, window_shift};
use super::mode::Mode;
use super::subflow::{Opens, Phase, Subflow};
use super::subflows::Subflows;
use super::transport::Transport;
use crate::event::SubflowCloseReason;
use crate::tcp::FourTuple;
use crate::tcp::ecn::EcnState;
use crate::tcp::receive::AckDue;
use crate::tcp::scoreboard::{Mapping, Sent};
use crate::{PathId, SegmentKind, SubflowId};

/// The maximum number of payload bytes of one mapping: the length field has 16 bits, and a DATA_FIN counts as
/// one byte in it.
const MAX_MAPPING_LEN: u64 = u16::MAX as u64 - 1;
/// The number of unanswered SYNs with MP_CAPABLE after which further SYNs omit MP_CAPABLE (RFC 8684 section
/// 3.7). Two is a guess: the loss of a single packet must not cost MPTCP, and each further SYN with MP_CAPABLE
/// costs seconds on a path that drops such SYNs.
const MAX_CAPABLE_SYNS: u32 = 2;
/// The hop limit of all packets (the default that IANA's IP parameters recommend).
const HOP_LIMIT: u8 = 64;
/// The maximum number of subflows shown to a strategy at once. It bounds the memory of their `SubflowView`s, which
/// are on the call stack. The value is twice the default of `Config::max_subflows`, so it matters only if that
/// setting is raised.
pub(super) const MAX_VIEWS: usize = 16;

/// The payload of an outgoing packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Body {
    None,
    /// A range of the connection's stream.
    Data(Range<u64>),
}

/// A packet whose header is in the scratch buffer.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub path: PathId,
    pub subflow: SubflowId,
    pub kind: SegmentKind,
    pub tuple: FourTuple,
    /// The offset of the segment from the subflow's initial sequence number; the SYN has offset 0.
    pub seq: u64,
    /// The length of the IP header in bytes.
    pub ip_len: usize,
    /// The length of the TCP header with its options, in bytes.
    pub header_len: usize,
    pub body: Body,
    /// The GSO size: the payload bytes of each segment into which the device divides the packet; 0 if the packet
    /// is a single segment.
    pub gso_size: u16,
    /// The arrival that the strategy expects; see [`Strategy::expected_arrival`](crate::strategy::Strategy).
    pub expected_arrival: Option<Instant>,
}

impl Connection {
    /// Returns the next packet, if any. Handshakes and retransmissions go first, because other segments wait for
    /// them. Signals, such as MP_PRIO, go before new data, so that a steady stream of data does not delay them.
    /// Acknowledgements go after data, because a data segment may carry them. FINs also go after data, because
    /// data is more urgent than the end of a subflow.
    pub fn poll_transmit(&mut self, ctx: &mut Ctx<'_>) -> Option<Outgoing> {
        let has_due_segment = |s: &Subflow| s.owes(ctx.now) || s.snd.board.lost() > 0;
        // Most calls find no subflow with a due segment. The passes below skip the subflows before the first one
        // that has a due segment.
        let first = self.transport.subflows.iter().position(has_due_segment);
        let owing = first.unwrap_or(self.transport.subflows.len())..self.transport.subflows.len();
        for i in owing.clone() {
            if let Some(packet) = self.poll_subflow(ctx, i) {
                return Some(packet);
            }
        }
        if let Some(packet) = self.transport.poll_signal(ctx) {
            return Some(packet);
        }
        if self.transport.is_open() {
            let data = self
                .poll_data(ctx)
                .or_else(|| self.transport.poll_data_fin(ctx));
            if data.is_some() {
                return data;
            }
        }
        // After a timeout, F-RTO (RFC 5682) sends new data first. There was no new data, so the subflow
        // retransmits now. The recursion ends, because a subflow that resumes no longer waits for new data.
        for i in owing.clone() {
            if self.transport.subflows[i]
                .snd
                .resume_without_new_data(ctx.now)
            {
                return self.poll_transmit(ctx);
            }
        }
        owing.into_iter().find_map(|i| {
            self.transport
                .poll_fin(ctx, i)
                .or_else(|| self.transport.poll_ack(ctx, i))
        })
    }

    /// Returns the next segment of one subflow, if the segment has to leave before new data: a handshake segment,
    /// a reset, an acknowledgement that reports gaps in the received data, a retransmission or a probe.
    fn poll_subflow(&mut self, ctx: &mut Ctx<'_>, i: usize) -> Option<Outgoing> {
        let subflow = &mut self.transport.subflows[i];
        match subflow.phase {
            Phase::Closed => None,
            Phase::Aborted => self.transport.poll_fast_close(ctx, i),
            Phase::Resetting => self.transport.send_reset(ctx, i),
            Phase::SynSent | Phase::SynReceived | Phase::JoinAcked => self.poll_handshake(ctx, i),
            Phase::Established => {
                // Only the opener's third ACK can be due here. It carries the keys, and is repeated until the peer
                // answers it or data carries the keys too.
                if subflow.handshake.at.is_some_and(|at| at <= ctx.now) {
                    return self.poll_handshake(ctx, i);
                }
                // The peer's loss recovery waits for the SACK blocks. Only a segment without data has room for
                // them, so the acknowledgement is sent before data.
                if subflow.rcv.due == AckDue::Now && subflow.rcv.has_gaps() {
                    return self.transport.send_ack(ctx, i);
                }
                if self.transport.is_ended() && self.transport.subflows[i].repeats_data() {
                    return self.transport.end_unrepeated(ctx, i);
                }
                if !self.transport.is_ended()
                    && let Some(rest) = self.transport.poll_rest(ctx, i)
                {
                    return Some(rest);
                }
                let subflow = &mut self.transport.subflows[i];
                if subflow.owed.probe {
                    subflow.owed.probe = false;
                    if let Some(sent) = subflow.snd.probe(ctx.now) {
                        return Some(self.transport.send_record(
                            ctx,
                            i,
                            &sent,
                            SegmentKind::Retransmission,
                        ));
                    }
                }
                if self.transport.subflows[i].owed.keepalive {
                    self.transport.subflows[i].owed.keepalive = false;
                    return Some(self.transport.send_probe(ctx, i));
                }
                self.transport.poll_retransmit(ctx, i)
            }
        }
    }

    /// Returns the due SYN, SYN/ACK or third ACK.
    // Conforms: 8684-3.2-12, 8684-3.9.3-1
    fn poll_handshake(&mut self, ctx: &mut Ctx<'_>, i: usize) -> Option<Outgoing> {
        let subflow = &mut self.transport.subflows[i];
        if subflow.handshake.at.is_none_or(|at| at > ctx.now) {
            return None;
        }
        if matches!(subflow.phase, Phase::JoinAcked | Phase::Established) {
            subflow.note_third_ack(ctx.now, &ctx.shared.records);
            // The third ACK of a join allows the peer to send on the subflow.
            if subflow.phase == Phase::JoinAcked {
                self.transport.mode.note_join();
            }
            return self.transport.send_ack(ctx, i);
        }
        // `tries` counts every SYN or SYN/ACK. `unanswered` is lowered when the link is back (`repeat_opening`,
        // `repeat_join`), or when the SYN moves away from a path whose link is down (`try_next_path`): silence
        // while the link is down does not show that the network drops MP_CAPABLE.
        subflow.handshake.omits_capable |= subflow.handshake.unanswered >= MAX_CAPABLE_SYNS;
        subflow.handshake.tries += 1;
        subflow.handshake.unanswered += 1;
        let rto = subflow.snd.rtt.rto();
        subflow.handshake.at = Some(repeat_at(ctx.now, subflow.handshake.unanswered, rto));
        let phase = subflow.phase;
        Some(self.send_syn(ctx, i, phase))
    }

    /// Sends a SYN, or a SYN/ACK if `phase` is [`Phase::SynReceived`].
    fn send_syn(&mut self, ctx: &mut Ctx<'_>, i: usize, phase: Phase) -> Outgoing {
        let subflow = &self.transport.subflows[i];
        let is_syn_ack = phase == Phase::SynReceived;
        let mut options = Options {
            mss: Some(subflow.size.announced_mss()),
            ..Options::default()
        };
        // A SYN/ACK may carry only options that the SYN had (RFC 2018, RFC 7323). If both shifts are 0, the SYN
        // had no window scale option, or the option would change nothing.
        options.sack_permitted = !is_syn_ack || subflow.agreed.sack;
        if !is_syn_ack || subflow.agreed.local_shift > 0 || subflow.agreed.peer_shift > 0 {
            options.window_scale = Some(window_shift(&ctx.shared.config));
        }
        if !is_syn_ack || subflow.agreed.timestamps {
            options.timestamps = Some(tcp::Timestamps {
                value: subflow.ts_now(ctx.now),
                echo: if is_syn_ack { subflow.rcv.ts_recent } else { 0 },
            });
        }
        let mptcp = match (subflow.opens, is_syn_ack) {
            (Opens::Connection, _) => {
                let mode = &self.transport.mode;
                mode.capable_option(&ctx.shared.config, subflow)
            }
            (Opens::Join { .. }, false) => self.transport.mode.join_syn(subflow),
            (Opens::Join { .. }, true) => {
                let mptcp = self.transport.mode.mptcp();
                mptcp.and_then(|m| m.join_syn_ack(subflow, self.transport.joins.secret()))
            }
        };
        // A SYN/ACK without MP_CAPABLE can be a sign that the network drops SYNs with MP_CAPABLE, but only if such a
        // SYN left on the path before.
        if !is_syn_ack && matches!(mptcp, Some(MptcpOption::Capable(_))) {
            self.paths.on_offer(subflow.path);
        }
        options.mptcp.extend(mptcp);
        let joins = subflow.opens != Opens::Connection;
        // Only the handshake that opens a connection uses TCP Fast Open (module `syn_data`). Its SYN may carry
        // payload, and its SYN/ACK may grant a cookie.
        let body = match (joins, is_syn_ack) {
            (true, _) => Body::None,
            (false, true) => self.transport.subflows[i].grant_cookie(&mut options),
            (false, false) => self.transport.open_fast(ctx, i, &mut options),
        };
        let subflow = &self.transport.subflows[i];
        // Only the first SYN offers ECN. If it is not answered, the network may drop SYNs that offer ECN (RFC 3168
        // section 6.1.1.1).
        let flags = match is_syn_ack {
            true => Flags::SYN | Flags::ACK | subflow.ecn.of_syn_ack(),
            false => Flags::SYN | EcnState::of_syn(ctx.shared.config.ecn, subflow.handshake.tries),
        };
        let mut out = self.transport.emit(ctx, i, 0, flags, options, body);
        if joins && !is_syn_ack {
            out.kind = SegmentKind::JoinSyn;
            self.transport.subflows[i].snd.traffic.join_syns += 1;
        }
        out
    }
}

impl Transport {
    /// Resets a subflow that would have to retransmit data after the end of the connection; the peer has
    /// received that data on another subflow. The reset waits until the peer has closed the subflow too,
    /// because until then the peer may need acknowledgements from it.
    // Conforms: 8684-3.3.3-7
    fn end_unrepeated(&mut self, ctx: &mut Ctx<'_>, i: usize) -> Option<Outgoing> {
        let subflow = &mut self.subflows[i];
        if !subflow.rcv.finished() {
            return None;
        }
        // The peer has received the data elsewhere: the case for which RFC 8684 section 3.6 defines this reason.
        let kind = ResetKind::Subflow(ResetReason::TooMuchOutstanding);
        subflow.begin_reset(kind, SubflowCloseReason::Finished);
        self.send_reset(ctx, i)
    }

    /// Sends a RST, with the MPTCP option of its kind if MPTCP is in use. The result is always `Some`, which is
    /// the type that the callers return.
    pub(super) fn send_reset(&mut self, ctx: &mut Ctx<'_>, i: usize) -> Option<Outgoing> {
        let subflow = &mut self.subflows[i];
        subflow.phase = Phase::Closed;
        let kind = subflow
            .ending
            .reset
            .unwrap_or(ResetKind::Subflow(ResetReason::Unspecified));
        let mut options = Options {
            timestamps: subflow.timestamps(ctx.now),
            ..Options::default()
        };
        // A peer that misses earlier data expects a lower number than `nxt`, and accepts a RST only at the number
        // that it expects (RFC 5961 section 3.2).
        let seq = subflow.ending.reset_at.unwrap_or(subflow.snd.nxt);
        if let Mode::Mptcp(mptcp) = &self.mode {
            options.mptcp.push(match kind {
                ResetKind::FastClose => {
                    // A RST is never acknowledged, so this one may have to be repeated.
                    subflow.phase = Phase::Aborted;
                    subflow.arm_fast_close(ctx.now);
                    MptcpOption::FastClose {
                        receiver_key: mptcp.remote.key,
                    }
                }
                ResetKind::Subflow(reason) => MptcpOption::Reset {
                    // These causes may be temporary, so the peer may open the subflow again later (RFC 8684
                    // section 3.6).
                    transient: matches!(
                        reason,
                        ResetReason::UnacceptablePerformance
                            | ResetReason::TooMuchOutstanding
                            | ResetReason::LackOfResources
                    ),
                    reason,
                },
                ResetKind::Fail(dsn) => MptcpOption::Fail { dsn },
            });
        }
        Some(self.emit(ctx, i, seq, Flags::RST | Flags::ACK, options, Body::None))
    }

    /// Returns the next retransmission of lost data, if congestion window and pacer allow it.
    // Conforms: 8684-3.3.6-1
    fn poll_retransmit(&mut self, ctx: &mut Ctx<'_>, i: usize) -> Option<Outgoing> {
        let subflow = &mut self.subflows[i];
        let snd = &mut subflow.snd;
        if snd.board.lost() == 0 || snd.pacer.blocked_until(ctx.now).is_some() {
            return None;
        }
        let room = snd.cwnd_room();
        if room == 0 {
            return None;
        }
        // A retransmission is bounded by one burst, as new data is, so that the pacer spreads a long lost range.
        let max = room.min(snd.burst()).min(max_payload_total(subflow, ctx));
        let sent = self.subflows[i].snd.retransmit(ctx.now, max)?;
        Some(self.send_record(ctx, i, &sent, SegmentKind::Retransmission))
    }

    /// Sends DATA_FIN without payload if it is due and no unsent data is left that could carry it (RFC 8684
    /// section 3.3.3). The first segments carry MP_CAPABLE in place of DSS, so DATA_FIN waits until the connection
    /// is fully established.
    // Conforms: 8684-3.3.3-2
    fn poll_data_fin(&mut self, ctx: &mut Ctx<'_>) -> Option<Outgoing> {
        let due = self.closing.is_due() && self.snd.unsent() == 0;
        let fully_established = self.mode.mptcp()?.fully_established;
        if !due || !fully_established {
            return None;
        }
        let i = self.subflows.subflow_for_signal(self.closing.tries())?;
        self.note_data_fin(ctx.now, i);
        // A DATA_FIN without payload has subflow sequence number 0 (RFC 8684 section 3.3.3).
        let mut map = Mapping {
            data: self.snd.buf.end(),
            sub: 0,
            len: 0,
            fin: true,
            checksum: None,
        };
        // The payload of the SYN matters neither for the checksum nor for the option, because a mapping without
        // payload has subflow sequence number 0 in any case.
        let (buf, in_syn) = (&self.snd.buf, self.subflows[i].syn_data.sent);
        let mptcp = self.mode.mptcp();
        map.checksum = mptcp.and_then(|m| m.checksum_of(buf, &map, in_syn));
        let mut options = Options {
            timestamps: self.subflows[i].timestamps(ctx.now),
            ..Options::default()
        };
        options.mptcp.extend(
            self.mode
                .mptcp()
                .map(|m| MptcpOption::Dss(m.mapped_dss(self.rcv.data_ack(), &map, 0))),
        );
        let seq = self.subflows[i].snd.nxt;
        Some(self.emit(ctx, i, seq, Flags::ACK, options, Body::None))
    }

    /// Notes that DATA_FIN is sent on subflow `i`. The timeout of this subflow determines when DATA_FIN is
    /// repeated.
    // Conforms: 8684-3.3.3-4
    fn note_data_fin(&mut self, now: Instant, i: usize) {
        self.closing.on_sent(now, self.subflows[i].snd.rtt.rto());
        self.live.waiting_since.get_or_insert(now);
    }

    /// Returns the FIN of subflow `i`, if it is due.
    fn poll_fin(&mut self, ctx: &mut Ctx<'_>, i: usize) -> Option<Outgoing> {
        let subflow = &mut self.subflows[i];
        if !subflow.closing.owes_fin() || !subflow.is_established() {
            return None;
        }
        subflow.closing.on_fin_sent();
        // The FIN of a subflow is no part of the stream, so its mapping is empty.
        let empty = Mapping {
            data: 0,
            sub: 0,
            len: 0,
            fin: false,
            checksum: None,
        };
        let seq = subflow.snd.nxt;
        subflow.snd.on_new(ctx.now, empty, true);
        Some(self.send_fin(ctx, i, seq))
    }

    /// Sends the FIN at offset `seq`. The FIN may be the first segment since a fallback that reaches the peer, so
    /// it carries the infinite mapping. MP_FAIL, the other part of the fallback notice, goes only on
    /// acknowledgements.
    fn send_fin(&mut self, ctx: &mut Ctx<'_>, i: usize, seq: u64) -> Outgoing {
        let mut options = self.ack_options(ctx, i);
        let fallback_notice =
            self.fallback_notice
                .infinite_mapping(&self.subflows[i], seq, self.snd.buf.end());
        options.mptcp.extend(fallback_notice);
        self.emit(ctx, i, seq, Flags::FIN | Flags::ACK, options, Body::None)
    }

    /// Returns the acknowledgement of subflow `i`, if it is due.
    fn poll_ack(&mut self, ctx: &mut Ctx<'_>, i: usize) -> Option<Outgoing> {
        let subflow = &self.subflows[i];
        if subflow.rcv.due != AckDue::Now || !subflow.is_established() {
            return None;
        }
        self.send_ack(ctx, i)
    }

    /// Sends an acknowledgement, with as many SACK blocks as the other options leave room for. The result is
    /// always `Some`, which is the type that the callers return.
    fn send_ack(&mut self, ctx: &mut Ctx<'_>, i: usize) -> Option<Outgoing> {
        let mut options = self.ack_options(ctx, i);
        options.mptcp.extend(self.fallback_notice.take_mp_fail());
        let subflow = &mut self.subflows[i];
        if subflow.agreed.sack {
            // A SACK option has 2 bytes of kind and length, padded to 4, and 8 bytes for each block.
            let max_blocks = (tcp::MAX_OPTIONS_LEN - options.len()).saturating_sub(4) / 8;
            options.sack = subflow.rcv.sack_blocks(max_blocks);
            subflow.rcv.on_sack_sent();
        }
        let seq = subflow.snd.nxt;
        Some(self.emit(ctx, i, seq, Flags::ACK, options, Body::None))
    }

    /// Returns the options of a segment without data.
    // Conforms: 8684-3.1-20
    fn ack_options(&self, ctx: &Ctx<'_>, i: usize) -> Options {
        let subflow = &self.subflows[i];
        let mut options = Options {
            timestamps: subflow.timestamps(ctx.now),
            ..Options::default()
        };
        let option = match &self.mode {
            Mode::Mptcp(m) if subflow.phase == Phase::JoinAcked => {
                let secret = self.joins.secret();
                let nonces = subflow.nonces();
                nonces.map(|nonces| m.join_ack(nonces, secret))
            }
            // Every acknowledgement carries the keys until the peer is known to have received them.
            Mode::Mptcp(m) if !m.fully_established && subflow.opens == Opens::Connection => {
                Some(MptcpOption::Capable(Capable::Ack {
                    flags: m.flags,
                    sender_key: m.local.key,
                    receiver_key: m.remote.key,
                }))
            }
            Mode::Mptcp(m) => Some(MptcpOption::Dss(m.dss(self.rcv.data_ack()))),
            _ => None,
        };
        options.mptcp.extend(option);
        options
    }

    /// Sends a segment with a sequence number below the window, which the peer must acknowledge (RFC 9293
    /// section 3.8.4). The segment has no payload, although one garbage byte would be allowed. Our last mapping
    /// might cover that byte. A peer that acknowledged the mapped data on the subflow, but dropped the data later,
    /// would take the garbage for a part of the stream.
    pub(super) fn send_probe(&mut self, ctx: &mut Ctx<'_>, i: usize) -> Outgoing {
        let options = self.ack_options(ctx, i);
        let seq = self.subflows[i].snd.una.saturating_sub(1);
        self.emit(ctx, i, seq, Flags::ACK, options, Body::None)
    }

    /// Sends the bytes `range` of the stream as the next bytes of subflow `i`, under a mapping of their own.
    pub(super) fn send_data(
        &mut self,
        ctx: &mut Ctx<'_>,
        i: usize,
        range: Range<u64>,
        kind: SegmentKind,
    ) -> Outgoing {
        let with_keys = self.mode.keys_may_lack();
        // MP_CAPABLE with data has no DATA_FIN bit.
        let may_carry_fin =
            range.end == self.snd.buf.end() && self.mode.mptcp().is_some() && !with_keys;
        let is_fin_due = self.closing.is_due();
        // Once one segment with the last byte has carried DATA_FIN, all later ones have to (see `fin_rides`).
        self.snd.fin_rides |= may_carry_fin && is_fin_due && kind == SegmentKind::New;
        let fin = may_carry_fin && self.snd.fin_rides;
        if fin && is_fin_due {
            self.note_data_fin(ctx.now, i);
        }
        // The rate may have grown since the last mapping, and 4-byte DSNs may be too short for the new rate.
        self.widen_dsn();
        self.live.waiting_since.get_or_insert(ctx.now);
        self.live.last_payload = ctx.now;
        self.subflows[i].begin_mtu_probe(ctx.now, range.end - range.start);
        let mut map = Mapping {
            data: range.start,
            sub: self.subflows[i].snd.nxt,
            len: (range.end - range.start) as u32,
            fin,
            checksum: None,
        };
        let (buf, in_syn) = (&self.snd.buf, self.subflows[i].syn_data.sent);
        let mptcp = self.mode.mptcp();
        map.checksum = mptcp.and_then(|m| m.checksum_of(buf, &map, in_syn));
        let sent = self.subflows[i].snd.on_new(ctx.now, map, false);
        // In regular TCP one subflow carries everything, so its own scoreboard suffices.
        if self.mode.mptcp().is_some() {
            let subflow = &self.subflows[i];
            let scoreboard = &mut self.snd.scoreboard;
            scoreboard.on_sent(ctx.now, range, subflow.id, subflow.place.slot);
        }
        // The first mapping carries the keys and takes the whole initial window (`first_flight`), so it may be
        // larger than one packet of the device. Later ranges are never larger (`chunk`).
        match with_keys {
            true => self.send_in_parts(ctx, i, sent),
            false => self.send_record(ctx, i, &sent, kind),
        }
    }

    /// Sends as much of a new record of the scoreboard as the device takes at once; [`Self::poll_rest`]
    /// sends the rest.
    fn send_in_parts(&mut self, ctx: &mut Ctx<'_>, i: usize, sent: Sent) -> Outgoing {
        let subflow = &mut self.subflows[i];
        let end = sent.end.min(sent.start + max_payload_total(subflow, ctx));
        subflow.owed.rest = (end < sent.end).then_some(end);
        self.send_record(ctx, i, &Sent { end, ..sent }, SegmentKind::New)
    }

    /// Sends the rest of a record, unless the peer has acknowledged it.
    fn poll_rest(&mut self, ctx: &mut Ctx<'_>, i: usize) -> Option<Outgoing> {
        let start = self.subflows[i].owed.rest.take()?;
        let board = &self.subflows[i].snd.board;
        let record = board.iter().find(|sent| start < sent.end).copied();
        let rest = record.filter(|sent| sent.start <= start)?;
        Some(self.send_in_parts(ctx, i, Sent { start, ..rest }))
    }

    /// Sends a record of the scoreboard, for the first time or again, always under its original mapping.
    // Conforms: 8684-3.1-15, 8684-3.3.1-1, 8684-3.3.1-13, 8684-3.7-1
    fn send_record(
        &mut self,
        ctx: &mut Ctx<'_>,
        i: usize,
        sent: &Sent,
        kind: SegmentKind,
    ) -> Outgoing {
        if sent.fin {
            return self.send_fin(ctx, i, sent.start);
        }
        let mut options = Options {
            timestamps: self.subflows[i].timestamps(ctx.now),
            ..Options::default()
        };
        if let Mode::Mptcp(m) = &self.mode {
            let in_syn = self.subflows[i].syn_data.sent;
            // The first mapping starts directly after the payload of the SYN, at the data level and at the subflow
            // level. Its segments carry the keys until the peer is known to have them (RFC 8684 section 3.1).
            let start = (m.syn_data.sent, 1 + in_syn);
            let is_first = !m.fully_established && (sent.map.data, sent.map.sub) == start;
            options.mptcp.push(match is_first {
                true => m.capable_data(&sent.map),
                false => MptcpOption::Dss(m.mapped_dss(self.rcv.data_ack(), &sent.map, in_syn)),
            });
        }
        let data = sent.data();
        let fallback_notice =
            self.fallback_notice
                .infinite_mapping(&self.subflows[i], sent.start, data.start);
        options.mptcp.extend(fallback_notice);
        let push = data.end == self.snd.buf.end();
        let flags = if push {
            Flags::ACK | Flags::PSH
        } else {
            Flags::ACK
        };
        let mut out = self.emit(ctx, i, sent.start, flags, options, Body::Data(data));
        out.kind = kind;
        let has_unsent = self.snd.unsent() > 0;
        self.subflows[i].count(&out, sent.len(), has_unsent);
        out
    }

    /// Writes the headers of a segment into the scratch buffer, and returns the description of the packet.
    pub(super) fn emit(
        &mut self,
        ctx: &mut Ctx<'_>,
        i: usize,
        seq: u64,
        flags: Flags,
        options: Options,
        body: Body,
    ) -> Outgoing {
        // Every segment announces a window, so the window follows the current share of the memory.
        self.rcv.size_window(ctx.shared);
        let window = self.window_field(i, flags);
        let options_len = options.len();
        let subflow = &mut self.subflows[i];
        let mss = subflow.size.max_payload(options_len);
        let (ecn_flags, traffic_class) = subflow.ecn_bits(seq, flags, body != Body::None);
        let repr = tcp::Repr {
            src_port: subflow.tuple.local.port(),
            dst_port: subflow.tuple.remote.port(),
            seq: subflow.snd.iss.add(seq as u32),
            ack: if flags.contains(Flags::ACK) {
                // `expected` is 0 before the peer's SYN.
                subflow.rcv.expected()
            } else {
                Seq32(0)
            },
            flags: flags | ecn_flags,
            window,
            options,
        };
        let payload_len = match &body {
            Body::None => 0,
            Body::Data(range) => (range.end - range.start) as usize,
        };
        // A probe of the path MTU is larger than a segment, and has to leave as one packet.
        let is_size_probe = subflow.snd.is_size_probe(seq, payload_len as u64);
        let is_single = payload_len <= mss as usize || is_size_probe;
        let header_len = tcp::HEADER_LEN + options_len;
        let ip = ip::Repr {
            src: subflow.tuple.local.ip(),
            dst: subflow.tuple.remote.ip(),
            protocol: ip::PROTO_TCP,
            payload_len: header_len + payload_len,
            hop_limit: HOP_LIMIT,
            traffic_class,
        };
        let ip_len = ip.header_len();
        ip.emit(&mut ctx.shared.scratch[..ip_len]);
        repr.emit(&mut ctx.shared.scratch[ip_len..ip_len + header_len]);
        if flags.contains(Flags::ACK) {
            subflow.rcv.on_ack_sent();
        }
        Outgoing {
            path: subflow.path,
            subflow: subflow.id,
            kind: SegmentKind::Control,
            tuple: subflow.tuple,
            seq,
            ip_len,
            header_len,
            body,
            gso_size: if is_single { 0 } else { mss as u16 },
            expected_arrival: None,
        }
    }

    /// Returns the window field: the room beyond the DATA_ACK, scaled except on a SYN.
    // Conforms: 7323-2.2-2
    fn window_field(&mut self, i: usize, flags: Flags) -> u16 {
        let window = self.rcv.buf.max_offset() - self.rcv.buf.rcv_nxt();
        let shift = match flags.contains(Flags::SYN) {
            true => 0,
            false => self.subflows[i].agreed.local_shift,
        };
        let field = (window >> shift).min(u64::from(u16::MAX));
        let edge = self.rcv.buf.rcv_nxt() + (field << shift);
        self.rcv.edge = self.rcv.edge.max(edge);
        // All subflows share the window of the connection. So `advertised_end` is only the largest offset that the
        // peer may use on this subflow: data on other subflows may use up the window earlier.
        let rcv = &mut self.subflows[i].rcv;
        rcv.advertised_end = rcv.advertised_end.max(rcv.nxt + (field << shift));
        field as u16
    }
}

impl Subflow {
    /// Returns whether the next retransmission repeats data, not a FIN.
    pub(super) fn repeats_data(&self) -> bool {
        let mut sent = self.snd.board.iter();
        // A tail loss probe repeats the last record, and a retransmission repeats the first lost record.
        let next = match self.owed.probe {
            true => sent.rfind(|sent| !sent.sacked),
            false => sent.find(|sent| sent.lost),
        };
        next.is_some_and(|sent| !sent.fin)
    }
}

impl Subflows {
    /// Returns the subflow for the next try of a signal, after `tries` tries without an answer. The first two
    /// tries use the fastest subflow, the next two the second fastest, and so on in turn, because a path may
    /// carry segments but drop their options. Each subflow gets two tries, because one segment may be lost by
    /// chance.
    pub(super) fn subflow_for_signal(&self, tries: u32) -> Option<usize> {
        let stale = |i: &usize| self[*i].is_stale();
        let usable = (0..self.len()).filter(|i| self[*i].can_carry());
        let mut usable: ArrayVec<usize, MAX_VIEWS> = usable.take(MAX_VIEWS).collect();
        usable.sort_by_key(|i| (stale(i), self[*i].snd.rtt.srtt()));
        let working = usable.iter().filter(|i| !stale(i)).count();
        let among = if working > 0 { working } else { usable.len() };
        let turn = tries as usize / 2;
        usable.get(turn.checked_rem(among)?).copied()
    }
}

impl Subflow {
    /// Counts a packet with `len` bytes of payload; `has_unsent` is set if the connection has data that was
    /// never sent.
    fn count(&mut self, out: &Outgoing, len: u64, has_unsent: bool) {
        let packets = match out.gso_size {
            0 => 1,
            size => len.div_ceil(u64::from(size)),
        };
        let is_copy = out.kind == SegmentKind::Copy;
        // New data is unsent until its packet leaves, so a packet of new data was always sent while data was
        // unsent.
        let while_unsent = !is_copy || has_unsent;
        let traffic = &mut self.snd.traffic;
        if out.kind == SegmentKind::Retransmission {
            traffic.bytes_retransmitted += len;
            traffic.packets_retransmitted += packets;
            return;
        }
        traffic.bytes_sent += len;
        traffic.packets_sent += packets;
        traffic.packets_while_unsent += if while_unsent { packets } else { 0 };
        if is_copy {
            traffic.bytes_copied += len;
            traffic.copies_while_unsent += if while_unsent { packets } else { 0 };
        }
    }
}

/// Returns the maximum number of payload bytes of one packet handed to the device: a multiple of the segment
/// size, or a single segment if the device has no segmentation offload (GSO).
pub(super) fn max_payload_total(subflow: &Subflow, ctx: &Ctx<'_>) -> u64 {
    let mss = u64::from(subflow.snd.mss());
    let mtu = usize::from(ctx.shared.paths[usize::from(subflow.path.0)].config.mtu);
    if ctx.shared.config.max_transmit <= mtu {
        return mss;
    }
    // The fixed headers of IPv6 and TCP; IPv4's is shorter.
    let headers = 40 + 20 + tcp::MAX_OPTIONS_LEN as u64;
    let room = (ctx.shared.config.max_transmit as u64)
        .saturating_sub(headers)
        .min(max_mapping_len(subflow));
    (room - room % mss).max(mss)
}

/// Returns the maximum number of payload bytes of one mapping.
pub(super) fn max_mapping_len(subflow: &Subflow) -> u64 {
    match subflow.rcv.checks() {
        true => MAX_CHECKED_MAPPING_LEN,
        false => MAX_MAPPING_LEN,
    }
}
