//! Handshakes: MP_CAPABLE, MP_JOIN and regular TCP, both roles (RFC 8684 sections 3.1, 3.2, 3.7).

use core::mem;
use core::net::SocketAddr;
use core::time::Duration;

use braid_wire::Instant;
use braid_wire::mptcp::{Capable, CapableFlags, Join, MptcpOption, ResetReason, VERSION};
use braid_wire::tcp::{self, Flags};

use super::connection::Connection;
use super::ctx::Ctx;
use super::ending::ResetKind;
use super::keys::{Keys, hmac160, join_hmac};
use super::mode::{Mode, Mptcp};
use super::opening::{JoinProof, SynData};
use super::scoreboard::Slot;
use super::signal::Signal;
use super::subflow::{Opens, Phase, Subflow};
use super::transport::{Life, Transport};
use crate::event::{CloseReason, SubflowCloseReason};
use crate::path::{PathRecord, Records, Target};
use crate::strategy::StrategyEvent;
use crate::tcp::FourTuple;
use crate::tcp::receive::Receiver;
use crate::tcp::rtt::RttEstimator;
use crate::{ApiError, Config, Event, FallbackCause, JoinAuth, PathId, SubflowId};

/// The maximum delay before a handshake segment is repeated. RFC 6298 section 2.5 allows a maximum only of 60 s
/// or more. This one is shorter, so that an opening continues soon after an outage. The value is a guess.
const MAX_SYN_RTO: Duration = Duration::from_secs(8);

/// Returns our MP_CAPABLE flags: HMAC-SHA256, `checksum` if checksums are required, and the C flag if the
/// peer must not join at the address that it connected to.
// Conforms: 8684-3.1-4, 8684-3.1-7
pub(crate) const fn flags(config: &Config, checksum: bool) -> CapableFlags {
    CapableFlags {
        checksum_required: checksum,
        deny_join_initial: config.deny_join_initial,
        ..CapableFlags::DEFAULT_OFFER
    }
}

/// Returns the smallest shift with which a window of `recv_buffer` fits in 16 bits. RFC 7323 section 2.3
/// allows at most 14.
pub(crate) fn window_shift(config: &Config) -> u8 {
    (0..14)
        .find(|shift| config.recv_buffer >> shift <= usize::from(u16::MAX))
        .unwrap_or(14)
}

/// Returns the time at which to repeat a handshake segment that was sent `tries` times. `rto` is the subflow's
/// timeout: 1 s as long as no round trip was measured (RFC 6298 section 2.1). The timeout doubles with each try
/// up to [`MAX_SYN_RTO`]; the bound of the exponent only prevents an overflow.
pub(crate) fn repeat_at(now: Instant, tries: u32, rto: Duration) -> Instant {
    now + (rto * (1 << tries.saturating_sub(1).min(5))).min(MAX_SYN_RTO)
}

/// The minimum time to wait for the answer to a third ACK: a peer on the same network may be slow because its
/// machine is busy. The value is a guess.
const MIN_THIRD_ACK_WAIT: Duration = Duration::from_millis(10);

/// Returns the time at which to repeat a third ACK that was sent `tries` times. The peer answers a third ACK
/// at once, without delaying its acknowledgement. So the first wait is only two round trips, as for a tail
/// loss probe (RFC 8985 section 7.2). If `record` shows that round trips on the path vary widely, the first
/// wait is `srtt + 4 * rttvar` of the record (RFC 6298 section 2.3), but never longer than the timeout. Later
/// repeats follow the schedule of a SYN.
fn third_ack_repeat_at(
    now: Instant,
    tries: u32,
    rtt: &RttEstimator,
    record: Option<PathRecord>,
) -> Instant {
    let recorded_max = record.map_or(Duration::ZERO, |path| path.srtt + path.rttvar * 4);
    match tries {
        ..=1 if !rtt.srtt().is_zero() => {
            let wait = (rtt.srtt() * 2).max(recorded_max).max(MIN_THIRD_ACK_WAIT);
            now + wait.min(rtt.rto())
        }
        _ => repeat_at(now, tries.saturating_sub(1), rtt.rto()),
    }
}

/// Returns whether MPTCP is possible with a peer whose SYN or SYN/ACK has an MP_CAPABLE of this version and
/// with these flags.
// Conforms: 8684-3.1-1, 8684-3.1-5, 8684-3.1-8
pub(crate) fn usable(version: u8, flags: CapableFlags) -> bool {
    version == VERSION && flags.hmac_sha256 && !flags.extensibility
}

/// Returns the MP_CAPABLE of a segment.
pub(crate) fn capable(tcp: &tcp::Repr) -> Option<Capable> {
    tcp.options.mptcp.iter().find_map(|o| match o {
        MptcpOption::Capable(c) => Some(*c),
        _ => None,
    })
}

/// Returns whether a segment with `len` bytes of payload has a DSS option without a mapping, and no
/// MP_CAPABLE. Linux 6.18 starts its stream with such a segment if the server did not accept the payload of
/// the SYN (TCP Fast Open): Linux repeats the payload without a mapping, and sends the keys only with the data
/// that follows. The payload then has no data sequence numbers, so the connection falls back, as after a first
/// packet without MPTCP options (RFC 8684 section 3.7).
pub(crate) fn is_plain_data(tcp: &tcp::Repr, len: usize) -> bool {
    let unmapped = tcp.options.dss().is_some_and(|dss| dss.mapping.is_none());
    len > 0 && unmapped && capable(tcp).is_none()
}

/// Returns the MP_JOIN of a segment.
pub(crate) fn join(tcp: &tcp::Repr) -> Option<Join> {
    tcp.options.mptcp.iter().find_map(|o| match o {
        MptcpOption::Join(j) => Some(*j),
        _ => None,
    })
}

impl Connection {
    /// Opens the initial subflow on `path`.
    pub fn open_initial(&mut self, ctx: &mut Ctx<'_>, path: PathId) -> Result<(), ApiError> {
        let config = ctx.shared.path(path).map(|path| &path.config);
        let (local, remote) = self.paths.ends(config.ok_or(ApiError::NoUsablePath)?)?;
        let tuple = ctx.shared.free_tuple(local, remote)?;
        self.paths.set_initial_local(tuple.local);
        let mut subflow = self.new_subflow(ctx, path, tuple, Opens::Connection);
        let (peer, path) = subflow.link();
        subflow.handshake.omits_capable = ctx.shared.blackholes.contains(ctx.now, peer, path);
        self.transport.add_subflow(ctx, subflow);
        Ok(())
    }

    /// Opens a further subflow by MP_JOIN.
    pub fn open_join(&mut self, ctx: &mut Ctx<'_>, target: Target) -> Result<(), ApiError> {
        let (path, remote) = target;
        let config = ctx.shared.path(path).map(|path| &path.config);
        let local = config.and_then(|config| config.towards([remote]));
        let (local, _) = local.ok_or(ApiError::NoUsablePath)?;
        let tuple = ctx.shared.free_tuple(SocketAddr::new(local, 0), remote)?;
        let keys = self
            .transport
            .mode
            .mptcp()
            .map(|m| (m.local.key, m.remote.key));
        let keys = keys.ok_or(ApiError::NoUsablePath)?;
        let opens = Opens::Join {
            local_nonce: self.transport.joins.next_nonce(keys, &mut ctx.shared.rng),
            remote_nonce: 0,
        };
        let mut subflow = self.new_subflow(ctx, path, tuple, opens);
        if self.transport.joins.is_pending() {
            subflow.handshake.proof = JoinProof::OpenedEarly;
        }
        self.transport.add_subflow(ctx, subflow);
        Ok(())
    }

    /// Creates a subflow whose first segment is due now.
    pub fn new_subflow(
        &mut self,
        ctx: &mut Ctx<'_>,
        path: PathId,
        tuple: FourTuple,
        opens: Opens,
    ) -> Subflow {
        let id = SubflowId(self.transport.subflows.next);
        self.transport.subflows.next += 1;
        let shared = &*ctx.shared;
        let config = &shared.paths[usize::from(path.0)].config;
        let numbers = shared.secret.first_numbers(ctx.now, &tuple);
        let mtu = u32::from(config.mtu);
        let mut subflow = Subflow::new(id, path, tuple, mtu, numbers, &shared.config);
        subflow.place.slot = Slot::free(self.transport.subflows.iter().map(|s| s.place.slot));
        subflow.priority.own = config.backup;
        // MP_CAPABLE has no backup bit, so MP_PRIO announces a backup once the subflow is established.
        subflow.priority.unannounced = config.backup && matches!(opens, Opens::Connection);
        subflow.opens = opens;
        subflow.ids.own = self.paths.own_id(path, tuple.local.ip());
        subflow.handshake.opened_at = ctx.now;
        subflow.handshake.at = Some(ctx.now);
        // `Subflow::new` has set up the congestion control of `Config::congestion`.
        let congestion = self.profile.algorithm(&shared.config);
        if congestion.name() != shared.config.congestion.name() {
            subflow.snd.set_congestion(congestion);
        }
        if let Some(record) = subflow.record(&shared.records) {
            subflow.snd.seed_from(&record);
        }
        subflow
    }

    /// Handles the answer to our SYN.
    pub(super) fn on_syn_sent(&mut self, ctx: &mut Ctx<'_>, i: usize, tcp: &tcp::Repr) {
        let subflow = &mut self.transport.subflows[i];
        if !tcp.flags.contains(Flags::ACK) {
            return;
        }
        if tcp.flags.contains(Flags::RST) {
            self.on_refused(ctx, i, tcp);
            return;
        }
        if !tcp.flags.contains(Flags::SYN) {
            return;
        }
        // Our SYN already announced a window. A new receiver does not know it, so it is carried over.
        let advertised_end = subflow.rcv.advertised_end;
        subflow.rcv = Receiver::new(tcp.seq, ctx.shared.config.delayed_ack);
        subflow.rcv.advertised_end = advertised_end;
        subflow.on_syn_options(&tcp.options, window_shift(&ctx.shared.config));
        let tries = subflow.handshake.tries;
        let ecn = ctx.shared.config.ecn;
        subflow.ecn.on_syn_ack(ecn, tcp.flags, tries);
        let rtt = subflow.handshake_rtt(ctx.now, tcp);
        let in_syn = self.on_offer_answered(ctx, i, tcp);
        let window = u64::from(tcp.window);
        let subflow = &mut self.transport.subflows[i];
        subflow.snd.established(ctx.now, rtt, window, in_syn);
        match subflow.opens {
            Opens::Connection => self.on_syn_ack(ctx, i, tcp),
            Opens::Join { local_nonce, .. } => {
                self.transport.on_join_syn_ack(ctx, i, tcp, local_nonce)
            }
        }
    }

    /// Handles a RST in answer to a SYN.
    // Conforms: 9293-3.10.7.3-2
    fn on_refused(&mut self, ctx: &mut Ctx<'_>, i: usize, tcp: &tcp::Repr) {
        let subflow = &mut self.transport.subflows[i];
        subflow.ending.note_reset(tcp);
        subflow.close(SubflowCloseReason::Reset);
        let others = self.transport.subflows.iter().any(|s| s.is_alive());
        match self.transport.subflows[i].opens {
            // Another SYN, on another path, may still be answered.
            Opens::Connection if others => {}
            Opens::Connection => self.fail(ctx, CloseReason::Refused),
            // A middlebox on this path may have refused the join. If joins are refused on every path, the
            // peer does not know the token, and the path manager ends the connection.
            Opens::Join { .. } => {}
        }
    }

    /// Handles the SYN/ACK of the subflow that opens the connection: decides between MPTCP and a fallback, and
    /// reports the connection to the application.
    // Conforms: 8684-3.1-3
    fn on_syn_ack(&mut self, ctx: &mut Ctx<'_>, i: usize, tcp: &tcp::Repr) {
        self.paths
            .set_initial_local(self.transport.subflows[i].tuple.local);
        self.transport.subflows.close_other_openings(i);
        if let Mode::Opening { local, checksum } = self.transport.mode {
            match capable(tcp) {
                Some(Capable::SynAck {
                    version,
                    flags,
                    sender_key,
                }) if usable(version, flags) => {
                    // Either side may require checksums (section 3.1).
                    let ours = self::flags(&ctx.shared.config, checksum || flags.checksum_required);
                    let (peer, path) = self.transport.subflows[i].link();
                    ctx.shared.blackholes.clear(peer, path);
                    ctx.shared.stripped.clear(peer, path);
                    let mptcp = Mptcp::new(local, Keys::from_key(sender_key), ours);
                    self.begin_mptcp(ctx, mptcp, flags.deny_join_initial);
                }
                _ => self.on_plain_syn_ack(ctx, i),
            }
        }
        self.transport.subflows[i].rcv.ack_now();
        self.establish(ctx, i);
        if self.transport.mode.mptcp().is_some() {
            // So far `tries` has counted SYNs; from here on it counts third ACKs.
            self.transport.subflows[i].handshake.tries = 0;
            self.transport.subflows[i].note_third_ack(ctx.now, &ctx.shared.records);
        }
        self.transport.life = Life::Open;
        self.transport
            .snd
            .open_window(&self.transport.subflows[i], tcp.window);
        ctx.shared.events.push_back(Event::Connected {
            conn: self.transport.id,
        });
    }

    /// Handles a SYN/ACK without a usable MP_CAPABLE. The SYN itself may have omitted MP_CAPABLE because earlier
    /// SYNs with MP_CAPABLE were not answered. Then the network on this path is assumed to drop SYNs with
    /// MP_CAPABLE (RFC 8684 section 3.7).
    // Conforms: 8684-3.1-12
    fn on_plain_syn_ack(&mut self, ctx: &mut Ctx<'_>, i: usize) {
        let subflow = &self.transport.subflows[i];
        let (peer, path) = subflow.link();
        if !subflow.handshake.omits_capable {
            ctx.shared.stripped.note(ctx.now, peer, path);
            self.transport
                .fall_back(ctx, FallbackCause::PeerSynAckPlain);
            return;
        }
        if self.paths.was_offered(path) {
            ctx.shared.blackholes.note(ctx.now, peer, path);
        }
        self.transport.fall_back(ctx, FallbackCause::SynsDropped);
    }

    /// Switches to MPTCP, now that both keys are known, and registers the token, so that the peer can join.
    fn begin_mptcp(&mut self, ctx: &mut Ctx<'_>, mut mptcp: Mptcp, deny_join: bool) {
        // At most one subflow had payload in its SYN.
        let mut in_syn = self.transport.subflows.iter().map(|s| s.syn_data);
        mptcp.syn_data = in_syn
            .find(|syn_data| *syn_data != SynData::default())
            .unwrap_or_default();
        ctx.shared
            .demux
            .tokens
            .insert(mptcp.local.token, self.transport.id);
        if deny_join {
            self.paths.deny_initial();
        }
        self.transport.mode = Mode::Mptcp(mptcp);
    }

    /// Handles a segment with `len` bytes of payload on a subflow that waits for its third ACK. Returns
    /// whether the segment completed the handshake and has to be processed further.
    // Conforms: 8684-3.2-11
    pub(super) fn on_third_ack(
        &mut self,
        ctx: &mut Ctx<'_>,
        i: usize,
        tcp: &tcp::Repr,
        len: usize,
    ) -> bool {
        let subflow = &mut self.transport.subflows[i];
        if tcp.flags.contains(Flags::RST) {
            if tcp.seq == subflow.rcv.expected() {
                subflow.close(SubflowCloseReason::Reset);
                // A join must not end the connection before its sender has proved to be the peer. If joins are
                // authenticated by the keys alone, MP_FASTCLOSE is proof enough, because it carries our key.
                let is_initial = subflow.opens == Opens::Connection;
                let keys_suffice = self.transport.joins.auth == JoinAuth::Keys;
                if is_initial || keys_suffice && self.transport.mode.is_fast_close(tcp) {
                    self.fail(ctx, CloseReason::Reset);
                }
            }
            return false;
        }
        if tcp.flags.contains(Flags::SYN) {
            if tcp.seq == subflow.rcv.irs {
                // The peer repeats its SYN, so our SYN/ACK was lost: repeat it now.
                subflow.handshake.at = Some(ctx.now);
                subflow.ecn.on_syn_again(tcp.flags);
            }
            return false;
        }
        if !tcp.flags.contains(Flags::ACK) || !is_third_ack(subflow, tcp) {
            return false;
        }
        let done = match subflow.opens {
            Opens::Connection => {
                // Only the segment at the expected sequence number shows how the stream starts; a later one
                // may have overtaken it.
                let is_in_order = tcp.seq == subflow.rcv.expected();
                self.confirm_capable(ctx, tcp, is_in_order && is_plain_data(tcp, len))
            }
            Opens::Join {
                local_nonce,
                remote_nonce,
            } => self
                .transport
                .confirm_join(ctx, i, tcp, (local_nonce, remote_nonce)),
        };
        if !done {
            return false;
        }
        let subflow = &mut self.transport.subflows[i];
        let mut rtt = subflow.handshake_rtt(ctx.now, tcp);
        let record = subflow.record(&ctx.shared.records);
        if let (Opens::Join { .. }, Some(record)) = (subflow.opens, record) {
            // The joiner may hold its third ACK back until it has its first DATA_ACK. That wait is no part of
            // the round trip. A sample above twice the recorded round trip is taken to include such a wait.
            rtt = rtt.map(|rtt| match rtt > record.srtt * 2 {
                true => record.srtt,
                false => rtt,
            });
        }
        let window = u64::from(tcp.window) << subflow.agreed.peer_shift;
        subflow.snd.established(ctx.now, rtt, window, 0);
        if !matches!(self.transport.mode, Mode::Tcp) {
            // This acknowledgement must not be delayed: Linux joins only after its first DATA_ACK, and a
            // joiner may send data only after the fourth ACK.
            subflow.rcv.ack_now();
        }
        self.establish(ctx, i);
        if self.transport.subflows[i].opens == Opens::Connection && !self.transport.is_ended() {
            self.transport
                .snd
                .open_window(&self.transport.subflows[i], tcp.window);
            self.report_accepted(ctx);
            self.announce_addresses(ctx);
        }
        true
    }

    /// Confirms MPTCP if the opener echoes our key; otherwise the connection falls back. `is_plain` is set
    /// if the stream begins with [plain data](is_plain_data). Returns whether the handshake is complete.
    // Conforms: 8684-3.1-3, 8684-3.1-14, 8684-3.1-17
    fn confirm_capable(&mut self, ctx: &mut Ctx<'_>, tcp: &tcp::Repr, is_plain: bool) -> bool {
        let Mode::Accepting { local, checksum } = self.transport.mode else {
            return true;
        };
        match capable(tcp) {
            Some(
                Capable::Ack {
                    flags,
                    sender_key,
                    receiver_key,
                }
                | Capable::Data {
                    flags,
                    sender_key,
                    receiver_key,
                    ..
                },
            ) if receiver_key == local.key => {
                let ours = self::flags(&ctx.shared.config, checksum || flags.checksum_required);
                let mptcp = Mptcp {
                    fully_established: true,
                    ..Mptcp::new(local, Keys::from_key(sender_key), ours)
                };
                self.begin_mptcp(ctx, mptcp, flags.deny_join_initial);
                true
            }
            // The segment with the keys is missing: this later segment overtook it, or it was lost and the
            // peer will repeat it.
            None if !tcp.options.mptcp.is_empty() && !is_plain => false,
            _ => {
                self.transport.fall_back(ctx, FallbackCause::ThirdAckPlain);
                true
            }
        }
    }

    /// Opens subflow `i` for data.
    pub(super) fn establish(&mut self, ctx: &mut Ctx<'_>, i: usize) {
        let fully_established = self
            .transport
            .mode
            .mptcp()
            .is_some_and(|m| m.fully_established);
        let subflow = &mut self.transport.subflows[i];
        // The path was taken out of use during the handshake. The handshake had to be completed before the
        // subflow could be closed.
        if fully_established && mem::take(&mut subflow.handshake.left) {
            subflow.closing.close();
        }
        subflow.phase = Phase::Established;
        subflow.handshake.established_at = ctx.now;
        subflow.handshake.stop();
        subflow.signs.received_at = ctx.now;
        self.transport.live.last_received = ctx.now;
        self.transport.live.last_payload = ctx.now;
        self.transport.check_mappings(ctx, i);
        self.transport.size_segments();
        if self.transport.is_ended() {
            // The connection ended while the join was in progress, so there is nothing to report.
            return;
        }
        let subflow = &mut self.transport.subflows[i];
        self.strategy.on_event(&StrategyEvent::SubflowUp {
            subflow: subflow.id,
            record: subflow.record(&ctx.shared.records),
        });
        subflow.remember(ctx.now, &mut ctx.shared.records);
        if mem::take(&mut subflow.priority.unannounced) {
            self.transport
                .signals
                .add(ctx.now, Signal::Priority(subflow.id));
        }
        self.transport.subflows.replace_unresponsive(i);
        let subflow = &self.transport.subflows[i];
        ctx.shared.events.push_back(Event::SubflowEstablished {
            conn: self.transport.id,
            subflow: subflow.id,
            path: subflow.path,
            rtt: subflow.snd.rtt.srtt(),
        });
    }
}

impl Transport {
    /// Adds `subflow`, which the peer opened by the SYN `tcp`.
    pub fn accept_subflow(&mut self, ctx: &mut Ctx<'_>, mut subflow: Subflow, tcp: &tcp::Repr) {
        subflow.active = false;
        subflow.phase = Phase::SynReceived;
        subflow.rcv = Receiver::new(tcp.seq, ctx.shared.config.delayed_ack);
        subflow.on_syn_options(&tcp.options, window_shift(&ctx.shared.config));
        subflow.ecn.on_syn(ctx.shared.config.ecn, tcp.flags);
        self.add_subflow(ctx, subflow);
    }

    /// Handles the SYN/ACK of a join. Its HMAC is verified now, or later if the secret is not known yet.
    // Conforms: 8684-3.2-7, 8684-3.2-10
    fn on_join_syn_ack(&mut self, ctx: &mut Ctx<'_>, i: usize, tcp: &tcp::Repr, local_nonce: u32) {
        let subflow = &mut self.subflows[i];
        if !matches!(self.mode, Mode::Mptcp(_)) {
            subflow.close(SubflowCloseReason::Finished);
            return;
        }
        let Some(Join::SynAck {
            backup,
            address_id,
            hmac,
            nonce,
        }) = join(tcp)
        else {
            // The SYN/ACK has no MP_JOIN: a middlebox stripped the option.
            subflow.begin_reset(
                ResetKind::Subflow(ResetReason::MptcpSpecific),
                SubflowCloseReason::PeerMisbehaved,
            );
            return;
        };
        subflow.priority.peer = backup;
        subflow.ids.peer = address_id;
        subflow.opens = Opens::Join {
            local_nonce,
            remote_nonce: nonce,
        };
        subflow.handshake.unverified_hmac = Some(hmac);
        subflow.phase = Phase::JoinAcked;
        (subflow.handshake.at, subflow.handshake.tries) = (None, 0);
        self.check_syn_ack(ctx, i);
    }

    /// Notes that the peer has received our third ACK with its options, so that the connection is fully
    /// established (RFC 8684 section 3.1).
    pub(super) fn set_fully_established(&mut self, now: Instant) {
        let mptcp = self.mode.mptcp_mut();
        if mptcp.is_none_or(|m| mem::replace(&mut m.fully_established, true)) {
            return;
        }
        self.size_segments();
        for subflow in self.subflows.iter_mut() {
            if mem::take(&mut subflow.handshake.left) {
                subflow.closing.close();
            }
            // The third ACKs of joins waited for full establishment (see `check_syn_ack`).
            if subflow.phase == Phase::JoinAcked && subflow.handshake.unverified_hmac.is_none() {
                subflow.handshake.at = Some(now);
            }
        }
    }

    /// Completes the join on subflow `i` if the HMAC of the third ACK is right, and resets the subflow if it
    /// is wrong. Returns whether the join is complete.
    // Conforms: 8684-3.2-8, 8684-3.2-9, 8684-3.2-10
    fn confirm_join(
        &mut self,
        ctx: &mut Ctx<'_>,
        i: usize,
        tcp: &tcp::Repr,
        (local_nonce, remote_nonce): (u32, u32),
    ) -> bool {
        let Mode::Mptcp(mptcp) = &self.mode else {
            return false;
        };
        if self.joins.is_pending() {
            // The joiner repeats its third ACK until the secret is known here.
            return false;
        }
        let expected = join_hmac(
            (mptcp.remote.key, remote_nonce),
            (mptcp.local.key, local_nonce),
            self.joins.secret(),
        );
        match join(tcp) {
            Some(Join::Ack { hmac }) if hmac == hmac160(&expected) => {
                self.mode.note_join();
                true
            }
            // This segment overtook the third ACK, or the third ACK was lost and the peer will repeat it.
            None if !tcp.options.mptcp.is_empty() => false,
            _ => {
                self.refuse_join(ctx, i);
                false
            }
        }
    }
}

impl Mode {
    /// Returns the MP_CAPABLE of the SYN or SYN/ACK of `subflow`.
    // Conforms: 8684-3.1-19
    pub(super) fn capable_option(&self, config: &Config, subflow: &Subflow) -> Option<MptcpOption> {
        let capable = match (self, subflow.phase) {
            (Mode::Opening { checksum, .. }, Phase::SynSent)
                if !subflow.handshake.omits_capable =>
            {
                Capable::Syn {
                    version: VERSION,
                    flags: flags(config, *checksum),
                }
            }
            (Mode::Accepting { local, checksum }, Phase::SynReceived) => Capable::SynAck {
                version: VERSION,
                flags: flags(config, *checksum),
                sender_key: local.key,
            },
            _ => return None,
        };
        Some(MptcpOption::Capable(capable))
    }

    /// Returns the MP_JOIN of our SYN.
    pub(super) fn join_syn(&self, subflow: &Subflow) -> Option<MptcpOption> {
        let mptcp = self.mptcp()?;
        let Opens::Join { local_nonce, .. } = subflow.opens else {
            return None;
        };
        Some(MptcpOption::Join(Join::Syn {
            backup: subflow.priority.own,
            address_id: subflow.ids.own,
            token: mptcp.remote.token,
            nonce: local_nonce,
        }))
    }
}

impl Subflow {
    /// Counts a third ACK, which leaves now or with the next segment, and plans its repeat.
    pub(super) fn note_third_ack(&mut self, now: Instant, records: &Records) {
        self.handshake.tries += 1;
        // If a path carried no payload, its record has only round trips of handshakes. These say little about
        // the longest round trips under load.
        let record = self.record(records).filter(|path| path.bytes_sent > 0);
        let at = third_ack_repeat_at(now, self.handshake.tries, &self.snd.rtt, record);
        self.handshake.at = Some(at);
    }
}

/// Returns whether a segment acknowledges our SYN/ACK, and starts at most 1 MiB behind the peer's SYN. The
/// segment need not follow the SYN directly, because it may have overtaken other segments. The 1 MiB are a
/// guess, far more than an initial window.
fn is_third_ack(subflow: &Subflow, tcp: &tcp::Repr) -> bool {
    let ahead = tcp.seq.diff(subflow.rcv.expected());
    tcp.ack == subflow.snd.iss.add(1) && (0..1 << 20).contains(&ahead)
}
