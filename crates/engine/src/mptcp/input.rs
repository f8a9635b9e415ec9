//! Processing of the segments that arrive on the subflows of a connection.

use core::iter;
use core::ops::Range;
use core::time::Duration;

use arrayvec::ArrayVec;
use braid_wire::Instant;
use braid_wire::mptcp::{Capable, Dss, DssMapping, MptcpOption, ResetReason};
use braid_wire::tcp::{self, Flags};

use super::connection::Connection;
use super::ctx::Ctx;
use super::ending::ResetKind;
use super::mode::Mode;
use super::subflow::{Opens, Phase, Subflow};
use super::subflows::Subflows;
use super::transport::{Transport, retransmittable};
use crate::buffer::Payload;
use crate::cc::{MAX_SIBLINGS, Sibling};
use crate::event::{CloseReason, SubflowCloseReason};
use crate::stack::Outside;
use crate::strategy::StrategyEvent;
use crate::tcp::receive::AckDue;
use crate::tcp::scoreboard::Mapping;
use crate::tcp::send::{Echo, Sender};
use crate::{JoinAuth, SubflowId};

impl Connection {
    /// Handles a segment for subflow `id`. Returns whether the caller has to answer the segment by a RST, because
    /// it comes during the handshake and acknowledges numbers that this side never sent. Such a segment belongs to
    /// an earlier connection with the same 4-tuple (RFC 9293 sections 3.10.7.3 and 3.10.7.4).
    #[must_use]
    // Conforms: 9293-3.10.7.3-1, 9293-3.10.7.4-3
    pub fn on_segment(
        &mut self,
        ctx: &mut Ctx<'_>,
        id: SubflowId,
        tcp: &tcp::Repr,
        payload: &mut Payload<'_>,
        outside: Outside,
    ) -> bool {
        let Some(i) = self.transport.subflows.index_of(id) else {
            return false;
        };
        let subflow = &self.transport.subflows[i];
        let in_handshake = matches!(subflow.phase, Phase::SynSent | Phase::SynReceived);
        if in_handshake && tcp.flags.contains(Flags::ACK) && !subflow.has_offered(tcp.ack) {
            if !tcp.flags.contains(Flags::RST) {
                return true;
            }
            // In SYN-SENT a RST counts only if it acknowledges our SYN. In SYN-RECEIVED its sequence number is
            // checked later, so its acknowledgement number does not matter.
            if subflow.phase == Phase::SynSent {
                return false;
            }
        }
        match subflow.phase {
            Phase::SynSent => self.on_syn_sent(ctx, i, tcp),
            Phase::SynReceived => {
                if self.on_third_ack(ctx, i, tcp, payload.len()) {
                    self.on_synchronised(ctx, i, tcp, payload, outside);
                }
            }
            Phase::JoinAcked | Phase::Established => {
                self.on_synchronised(ctx, i, tcp, payload, outside);
            }
            Phase::Aborted => self.transport.on_aborted(i, tcp),
            Phase::Resetting | Phase::Closed => {}
        }
        self.reconcile(ctx);
        false
    }

    /// Handles a segment in a synchronised state (RFC 9293 section 3.10.7.4).
    // Conforms: 8684-3-3, 8684-3.4.2-4, 9293-3.10.7.4-2, 7323-4.3-1, 7323-4.3-2, 7323-4.3-3
    // Conforms: 7323-5.2-1, 7323-5.3-1, 7323-5.3-2
    fn on_synchronised(
        &mut self,
        ctx: &mut Ctx<'_>,
        i: usize,
        tcp: &tcp::Repr,
        payload: &mut Payload<'_>,
        outside: Outside,
    ) {
        let subflow = &mut self.transport.subflows[i];
        let Some(seq) = subflow.rcv.offset(tcp.seq) else {
            subflow.rcv.challenge(ctx.now);
            return;
        };
        if tcp.flags.contains(Flags::RST) {
            self.on_reset(ctx, i, seq, tcp);
            return;
        }
        if subflow.handshake.unverified_hmac.is_some() {
            // As long as the SYN/ACK of a join is not verified, its sender may be an attacker.
            return;
        }
        // The window advertised on this subflow is no bound: all subflows share the window, and this side may
        // have advertised more room on another subflow since. The receive buffer enforces the real limit. This
        // check only discards numbers that a correct peer cannot use. The minimum of 1 MiB is a guess.
        let max_seq = subflow.rcv.nxt + ctx.shared.config.recv_buffer.max(1 << 20) as u64;
        // RFC 5961 section 4 covers SYNs here, and RFC 7323 section 5.3 covers PAWS.
        // Conforms: 5961-4.2-1
        if tcp.flags.contains(Flags::SYN) || seq > max_seq || subflow.is_old(&tcp.options) {
            subflow.rcv.challenge(ctx.now);
            if subflow.phase == Phase::JoinAcked {
                // The peer repeats its SYN/ACK, so our third ACK was lost: repeat it now.
                subflow.handshake.at = Some(ctx.now);
            }
            return;
        }
        if self
            .transport
            .answer_old(ctx, i, tcp, seq..seq + payload.len() as u64)
        {
            return;
        }
        let subflow = &mut self.transport.subflows[i];
        if !tcp.flags.contains(Flags::ACK) {
            return;
        }
        // RFC 7323 section 4.3: a segment behind a hole must not update TS.Recent, so that the peer's
        // round-trip sample includes the time until the hole was filled.
        if let Some(ts) = tcp.options.timestamps
            && seq <= subflow.rcv.ack_sent
        {
            subflow.rcv.ts_recent = ts.value;
        }
        self.transport.note_received(ctx.now, i);
        if !payload.is_empty() {
            let ecn = &mut self.transport.subflows[i].ecn;
            ecn.on_data(tcp.flags, outside.marked);
        }
        match self.transport.subflows[i].phase {
            // Any segment that gets here counts as the fourth ACK (RFC 8684 section 3.2).
            Phase::JoinAcked => self.establish(ctx, i),
            // The peer has our third ACK, which need not be repeated any more.
            _ => self.transport.subflows[i].handshake.at = None,
        }
        if !self.on_ack(ctx, i, tcp, payload.is_empty()) {
            return;
        }
        self.on_options(ctx, i, tcp, seq, payload.len());
        self.transport.on_sign_of_life(ctx, i);
        let range = seq..seq + payload.len() as u64;
        if !payload.is_empty() {
            self.on_payload(ctx, i, range.clone(), payload, outside);
        }
        if tcp.flags.contains(Flags::FIN) {
            self.transport.subflows[i].rcv.on_fin(range.end);
        }
        self.on_subflow_fin(ctx, i);
    }

    /// Handles a RST (RFC 5961 section 3), which may carry MP_FASTCLOSE, MP_FAIL or MP_TCPRST.
    // Conforms: 8684-3.5-2, 8684-3.5-3
    fn on_reset(&mut self, ctx: &mut Ctx<'_>, i: usize, seq: u64, tcp: &tcp::Repr) {
        let fast_close = self.transport.mode.is_fast_close(tcp);
        let subflow = &mut self.transport.subflows[i];
        // A peer that aborts numbers its RST after all data that it has sent. If a hole is left in this data, the
        // number is not `rcv.nxt` but the end of the data received. A RST with MP_FASTCLOSE is accepted there too,
        // because the option has our key, which proves the sender.
        let at_received_end = fast_close && subflow.rcv.is_end(seq);
        // Conforms: 5961-3.2-1, 5961-3.2-2, 5961-3.2-3
        if seq != subflow.rcv.nxt && !at_received_end {
            if (subflow.rcv.nxt..subflow.rcv.advertised_end).contains(&seq) {
                subflow.rcv.challenge(ctx.now);
            }
            return;
        }
        if fast_close {
            self.transport.subflows[i].close(SubflowCloseReason::Reset);
            self.fail(ctx, CloseReason::Reset);
            return;
        }
        subflow.ending.note_reset(tcp);
        let mut options = tcp.options.mptcp.iter();
        let corrupted_from = options.find_map(|option| match option {
            MptcpOption::Fail { dsn } => Some(*dsn),
            _ => None,
        });
        if let Some(dsn) = corrupted_from {
            self.transport.on_corrupted(i, dsn);
        }
        self.transport.subflows[i].close(match corrupted_from {
            Some(_) => SubflowCloseReason::BadChecksum,
            None => SubflowCloseReason::Reset,
        });
        // Before the connection is fully established, the peer may have no state of the connection, so no join
        // can replace the initial subflow.
        let is_initial = self.transport.subflows[i].opens == Opens::Connection;
        let is_irreplaceable = is_initial || !self.transport.subflows.iter().any(Subflow::is_alive);
        if is_irreplaceable
            && self
                .transport
                .mode
                .mptcp()
                .is_some_and(|m| !m.fully_established)
        {
            self.fail(ctx, CloseReason::Reset);
        }
        if matches!(self.transport.mode, Mode::Tcp) && !self.transport.is_ended() {
            // If the peer's FIN is here and only our own FIN is outstanding, the RST means that the peer has
            // already forgotten the closed connection. So the RST acknowledges our FIN (RFC 9293 section
            // 3.10.7.4, LAST-ACK).
            let subflow = &self.transport.subflows[i];
            let fully_closed =
                subflow.closing.is_fin_sent() && subflow.snd.una + 1 >= subflow.snd.nxt;
            match fully_closed && self.transport.rcv.complete() {
                // Received data can still be read: `reconcile` ends the connection after the last read.
                true => self.transport.closing.on_acked(),
                false => self.fail(ctx, CloseReason::Reset),
            }
        }
    }

    /// Handles the acknowledgement number and the window of a segment at the subflow level; `is_bare` is set for
    /// a segment without payload. Returns whether the segment is acceptable.
    fn on_ack(&mut self, ctx: &mut Ctx<'_>, i: usize, tcp: &tcp::Repr, is_bare: bool) -> bool {
        let siblings = self.transport.subflows.siblings(i);
        let subflow = &mut self.transport.subflows[i];
        let clock = subflow.ts_now(ctx.now);
        let timestamps = tcp.options.timestamps.filter(|_| subflow.agreed.timestamps);
        let echo = timestamps.map(|ts| Echo {
            value: ts.echo,
            // The clock counts whole milliseconds, so the echo may be up to 1 ms older than it looks.
            age: Duration::from_millis(u64::from(clock.wrapping_sub(ts.echo)) + 1),
        });
        // The age of an echo that comes with payload includes the wait in the queue that the peer's data builds in
        // front of its link. A segment without payload may have found this queue empty.
        if let Some(echo) = echo.filter(|_| !is_bare) {
            subflow.rcv.arriving.on_echo(ctx.now, echo);
        }
        let snd = &mut subflow.snd;
        let ack = tcp.ack.offset_near(snd.iss, snd.una);
        let Some(ack) = ack.filter(|ack| snd.is_acceptable(*ack)) else {
            subflow.rcv.challenge(ctx.now);
            return false;
        };
        let sacks = take_blocks(ctx.now, snd, ack, tcp);
        let advanced = ack > snd.una;
        // DATA_FIN takes one data sequence number.
        let data_una = self.transport.snd.una() + u64::from(self.transport.closing.is_acked());
        let mptcp = self.transport.mode.mptcp();
        let moves_data_ack = mptcp.is_some_and(|m| m.moves_data_ack(tcp, data_una));
        let subflow = &mut self.transport.subflows[i];
        let snd = &mut subflow.snd;
        let lost_before = snd.traffic.bytes_lost;
        if subflow.ecn.sends_ect() && tcp.flags.contains(Flags::ECE) {
            snd.on_mark(ack);
        }
        if snd.on_ack(ctx.now, ack, &sacks, echo, &siblings) {
            subflow.signs.stale = false;
            subflow.judge_sizes(ctx.now);
        }
        let snd = &mut subflow.snd;
        let window = u64::from(tcp.window) << subflow.agreed.peer_shift;
        if is_bare && !advanced && !moves_data_ack && snd.is_duplicate(ack, window) {
            if is_pure_ack(tcp) {
                snd.on_dup_ack(ctx.now);
            } else if may_lack_sack(tcp) {
                snd.on_dup_ack_without_sack(ctx.now);
            }
            subflow.judge_sizes(ctx.now);
        }
        let snd = &mut subflow.snd;
        if ack >= snd.una {
            // With MPTCP only the right edge of the window counts, and it never moves back (RFC 8684 section
            // 3.3.1): an acknowledgement that later ones overtook must not close the window. Regular TCP has
            // no such rule, so there the peer may shrink its window.
            let is_mptcp = matches!(self.transport.mode, Mode::Mptcp(_));
            let min_edge = if is_mptcp { snd.wnd_end } else { 0 };
            snd.offer(min_edge.max(ack + window), window);
        }
        if advanced && subflow.closing.is_fin_sent() && snd.board.is_empty() {
            subflow.closing.on_fin_acked();
        }
        self.note_arrivals(i);
        self.report_loss(i, lost_before);
        let subflow = &mut self.transport.subflows[i];
        if advanced && subflow.is_record_due(ctx.now) {
            subflow.remember(ctx.now, &mut ctx.shared.records);
        }
        if matches!(self.transport.mode, Mode::Tcp) {
            self.on_plain_ack(ctx, i);
        }
        true
    }

    /// Marks the data that the peer newly acknowledged on subflow `i` as arrived, so that no other subflow
    /// copies it any more.
    fn note_arrivals(&mut self, i: usize) {
        let multipath = matches!(self.transport.mode, Mode::Mptcp(_));
        let subflow = &mut self.transport.subflows[i];
        let id = subflow.id;
        let mut bytes = 0;
        for range in subflow.snd.board.take_arrived() {
            bytes += range.end - range.start;
            if multipath {
                self.transport.snd.scoreboard.on_arrived(range);
            }
        }
        if bytes > 0 {
            let event = StrategyEvent::Acknowledged { subflow: id, bytes };
            self.strategy.on_event(&event);
        }
    }

    /// Tells the strategy how many bytes subflow `i` has lost since its count of lost bytes was
    /// `lost_before`.
    pub(super) fn report_loss(&mut self, i: usize, lost_before: u64) {
        let subflow = &self.transport.subflows[i];
        let bytes = subflow.snd.traffic.bytes_lost - lost_before;
        if bytes > 0 {
            self.strategy.on_event(&StrategyEvent::Lost {
                subflow: subflow.id,
                bytes,
            });
        }
    }

    /// Applies the acknowledgement and the window of the only subflow of regular TCP to the connection. A
    /// subflow offset is the stream offset plus one, because the SYN takes subflow offset 0.
    // Conforms: 8684-3.7-13
    pub(super) fn on_plain_ack(&mut self, ctx: &mut Ctx<'_>, i: usize) {
        let snd = &self.transport.subflows[i].snd;
        let una = (snd.una - 1).min(self.transport.snd.nxt);
        let wnd_end = snd.wnd_end - 1;
        self.transport.snd.wnd_end = wnd_end;
        self.acknowledge(ctx, una);
        if self.transport.subflows[i].closing.is_fin_acked() {
            self.transport.closing.on_acked();
        }
    }

    /// Handles the acknowledgement of all bytes below `una` at the data level.
    pub(super) fn acknowledge(&mut self, ctx: &mut Ctx<'_>, una: u64) {
        if una > self.transport.snd.una() {
            let subflows = &self.transport.subflows;
            let retained = || retransmittable(subflows, una);
            let buf = &mut self.transport.snd.buf;
            buf.release_to(una, retained, &mut ctx.shared.pool);
            self.transport.snd.scoreboard.release_to(una);
            self.transport.live.stall_at = None;
            self.transport.live.stall_tries = 0;
            self.transport.live.last_payload = ctx.now;
            self.transport.signal_writable(ctx);
            self.signal_delivered(ctx);
        }
    }

    /// Handles the MPTCP options of a segment on subflow `i`, or their absence; `len` bytes of payload start
    /// at offset `seq`.
    // Conforms: 8684-3.1-16, 8684-3.3.8-2, 8684-3.5-1, 8684-3.5-3
    fn on_options(&mut self, ctx: &mut Ctx<'_>, i: usize, tcp: &tcp::Repr, seq: u64, len: usize) {
        for option in &tcp.options.mptcp {
            match option {
                MptcpOption::Dss(dss) => {
                    let takes_numbers = len > 0 || tcp.flags.contains(Flags::FIN);
                    // A mapping of length 0 with DATA_FIN is no infinite mapping.
                    let is_infinite = |m: DssMapping| m.is_infinite() && !dss.data_fin;
                    self.on_dss(ctx, i, dss, tcp.window);
                    match dss.mapping {
                        Some(map) if !is_infinite(map) => {
                            self.on_mapping(ctx, i, &map, dss.data_fin)
                        }
                        // An infinite mapping starts with the payload or FIN of its segment, so a bare
                        // acknowledgement cannot start one.
                        Some(map) if takes_numbers => self.on_infinite_mapping(ctx, i, &map),
                        _ => {}
                    }
                }
                &MptcpOption::Capable(Capable::Data {
                    data_len, checksum, ..
                }) if !self.transport.subflows[i].active => {
                    // This option maps the first payload behind the handshake. Payload of the SYN lies before
                    // that payload, and the SYN itself takes subflow offset 0.
                    let in_syn = self.transport.subflows[i].syn_data.received;
                    let map = Mapping {
                        data: in_syn,
                        sub: 1 + in_syn,
                        len: u32::from(data_len),
                        fin: false,
                        checksum,
                    };
                    if self.transport.mode.mptcp().is_some() {
                        self.transport.subflows[i].dss_seen = true;
                        self.transport.take_mapping(i, map);
                    }
                }
                &MptcpOption::Fail { dsn } => self.on_mp_fail(ctx, i, dsn),
                // The peer repeats its third ACK, so our first DATA_ACK was lost: send another one.
                MptcpOption::Capable(Capable::Ack { .. }) => {
                    self.transport.subflows[i].rcv.ack_now();
                    // Linux retransmits the payload of its SYN in a third ACK. That payload has no mapping.
                    if len > 0 {
                        self.on_bare_segment(ctx, i, seq, len);
                    }
                }
                // The peer repeats its third ACK of a join, so our fourth ACK was lost: send another one.
                MptcpOption::Join(_) => self.transport.subflows[i].rcv.ack_now(),
                &MptcpOption::Prio { backup } => self.transport.subflows[i].priority.peer = backup,
                MptcpOption::AddAddr(add) => self.on_add_addr(ctx, i, add),
                MptcpOption::RemoveAddr(remove) => self.on_remove_addr(ctx, remove),
                MptcpOption::FastClose { .. } if self.transport.mode.is_fast_close(tcp) => {
                    // With a secret, the keys alone do not prove the peer, so the sequence number has to be
                    // exact, as for a RST (RFC 5961 section 3). A genuine peer tries two numbers in turn (see
                    // `poll_fast_close`), or learns the right one from our ACK.
                    let rcv = &mut self.transport.subflows[i].rcv;
                    match rcv.is_end(seq) || self.transport.joins.auth == JoinAuth::Keys {
                        true => self.fail(ctx, CloseReason::Reset),
                        false => rcv.ack_now(),
                    }
                }
                _ => {}
            }
        }
        if tcp.options.mptcp.is_empty() {
            self.on_bare_segment(ctx, i, seq, len);
        }
    }

    /// Handles the DATA_ACK of a DSS, and the window of its segment.
    // Conforms: 8684-3.3.2-7, 8684-3.3.5-1, 8684-3.3.5-2, 8684-4-1
    fn on_dss(&mut self, ctx: &mut Ctx<'_>, i: usize, dss: &Dss, window: u16) {
        let una = self.transport.snd.una();
        // A DATA_FIN that was sent once counts as sent even while its repeat is due: the peer may acknowledge the
        // first one before the repeat leaves.
        let fin_sent = self.transport.closing.is_out();
        let sent_end = self.transport.snd.nxt + u64::from(self.transport.closing.tries() > 0);
        let fin_end = self.transport.snd.buf.end() + 1;
        let Mode::Mptcp(mptcp) = &mut self.transport.mode else {
            return;
        };
        self.transport.subflows[i].dss_seen = true;
        let ack = dss.data_ack.and_then(|a| mptcp.ack_offset(a, una));
        // A DATA_ACK of data never sent is bogus and is ignored, with the window beside it.
        if let Some(ack) = ack.filter(|a| *a <= sent_end) {
            if self.transport.snd.outstanding() == 0 && self.transport.closing.tries() == 0 {
                // The peer has acknowledged everything and is alive, so a DATA_ACK that stands still is no sign of
                // a failure: the peer may keep its window closed for as long as its reader pauses.
                self.transport.live.behind = None;
            }
            let shift = self.transport.subflows[i].agreed.peer_shift;
            let wnd_end = ack + (u64::from(window) << shift);
            if wnd_end > self.transport.snd.wnd_end {
                self.transport.snd.wnd_end = wnd_end;
                self.transport.live.stall_tries = 0;
                for subflow in self.transport.subflows.iter_mut() {
                    subflow.snd.open_window();
                }
            }
            if fin_sent && ack == fin_end {
                self.transport.closing.on_acked();
            }
            self.acknowledge(ctx, ack.min(self.transport.snd.nxt));
            self.transport.set_fully_established(ctx.now);
        }
    }

    /// Handles a mapping that is not infinite; `data_fin` is set if the stream ends with it.
    // Conforms: 8684-3.3.2-5, 8684-3.7-8
    fn on_mapping(&mut self, ctx: &mut Ctx<'_>, i: usize, mapping: &DssMapping, data_fin: bool) {
        let rcv_nxt = self.transport.rcv.buf.rcv_nxt();
        let Some(mptcp) = self.transport.mode.mptcp_mut() else {
            return;
        };
        let widened = mapping.dsn.is_eight() && !mptcp.wide_ack;
        mptcp.wide_ack |= widened;
        let Some(data) = mptcp.data_offset(mapping.dsn, rcv_nxt) else {
            return;
        };
        if widened {
            // An 8-byte DATA_ACK leaves less room for payload.
            self.transport.size_segments();
        }
        let len = u32::from(mapping.len).saturating_sub(u32::from(data_fin));
        let sub = self.transport.subflows[i].mapped_from(mapping.subflow_seq);
        let map = Mapping {
            data,
            // A DATA_FIN without data maps no subflow byte (RFC 8684 section 3.3.3).
            sub: if len == 0 { 0 } else { sub.unwrap_or(0) },
            len,
            fin: data_fin,
            checksum: mapping.checksum,
        };
        let end = data + u64::from(len);
        if !self.transport.mode.is_checkable(&map) {
            self.transport.subflows[i].break_off();
            return;
        }
        // DATA_FIN is the last byte of its mapping (RFC 8684 section 3.3.3). If the mapping has payload and a
        // checksum, DATA_FIN counts only once `deliver_verified_on` has verified the checksum.
        let awaits_checksum = len > 0 && map.checksum.is_some();
        if !awaits_checksum && !self.check_stream_end(ctx, i, end, data_fin) {
            return;
        }
        match len {
            0 => {}
            _ if sub.is_none() => self.transport.subflows[i].break_off(),
            _ => self.transport.take_mapping(i, map),
        }
    }

    /// Stores payload that has a mapping. Payload that cannot be stored is not even acknowledged at the
    /// subflow level, so the peer retransmits it.
    fn on_payload(
        &mut self,
        ctx: &mut Ctx<'_>,
        i: usize,
        range: Range<u64>,
        payload: &mut Payload<'_>,
        outside: Outside,
    ) {
        if self.transport.subflows[i].phase != Phase::Established {
            return;
        }
        let rcv = &mut self.transport.subflows[i].rcv;
        if rcv.has(&range) {
            rcv.on_duplicate(range);
            return;
        }
        if !rcv.can_note(&range) {
            rcv.ack_now();
            return;
        }
        self.transport.rcv.size_window(ctx.shared);
        // A group over its quota may not hold more out-of-order data. Data in order is taken, because the
        // reader can free it at once.
        let is_out_of_order = range.start > self.transport.subflows[i].rcv.nxt;
        if self
            .transport
            .share
            .is_used_up(&ctx.shared.pool, self.transport.rcv.buf.readable())
            || is_out_of_order && ctx.shared.pool.is_over_quota(self.transport.share.group)
        {
            self.transport.subflows[i].rcv.ack_now();
            return;
        }
        let rcv_nxt_before = self.transport.rcv.buf.rcv_nxt();
        let stored = self.store(ctx, i, range.clone(), payload);
        let rcv = &mut self.transport.subflows[i].rcv;
        if stored.end > stored.start {
            let mss = match outside.gso_size {
                0 => payload.len() as u64,
                size => u64::from(size),
            };
            rcv.on_payload(ctx.now, stored, mss);
            self.transport.live.last_payload = ctx.now;
        } else {
            rcv.ack_now();
        }
        if self.transport.rcv.buf.rcv_nxt() > rcv_nxt_before {
            self.transport.signal_readable(ctx);
            // The peer's stream is complete, so no further data will trigger the acknowledgement. It is sent
            // now.
            if self.transport.rcv.complete() && is_not_due(&self.transport.subflows[i].rcv.due) {
                self.transport.subflows[i].rcv.ack_now();
            }
        }
    }

    /// Places the mapped prefix of `payload` in the receive buffer, and returns the range of subflow offsets
    /// that was placed.
    // Conforms: 8684-3.3.1-10, 8684-3.3.1-15, 8684-3.3.4-2
    fn store(
        &mut self,
        ctx: &mut Ctx<'_>,
        i: usize,
        range: Range<u64>,
        payload: &mut Payload<'_>,
    ) -> Range<u64> {
        let start = range
            .start
            .max(self.transport.subflows[i].rcv.nxt.min(range.end));
        let mut at = start;
        while at < range.end {
            let (data, len) = match &self.transport.mode {
                // Subflow offset 0 is the SYN, so stream offsets are one less.
                Mode::Tcp => (at - 1, range.end - at),
                _ => match self.transport.subflows[i].rcv.mapping_at(at) {
                    Some(map) => (
                        map.data + (at - map.sub),
                        (map.sub + u64::from(map.len)).min(range.end) - at,
                    ),
                    None => break,
                },
            };
            if self.transport.is_ended() {
                // The application reads no more. Acknowledge and discard the data, so that the peer does not keep
                // retransmitting it before the peer learns of the end.
                at += len;
                continue;
            }
            // The end of the stream is checked here, except for payload under a checksum: that payload is
            // checked once its checksum is verified.
            let awaits_checksum = self.transport.subflows[i].rcv.checks();
            if !awaits_checksum && !self.check_stream_end(ctx, i, data + len, false) {
                break;
            }
            // The slice ends with its block, because the buffer takes one block at a time.
            let slice = payload.slice((at - range.start) as usize, len as usize);
            let len = slice.len() as u64;
            let subflow = &mut self.transport.subflows[i];
            let refused = match &mut subflow.rcv.held {
                None => self
                    .transport
                    .rcv
                    .insert(data, slice, &mut ctx.shared.pool)
                    .map(|done| {
                        subflow.duplicate += done.duplicate;
                        done.refused
                    }),
                Some(held) => {
                    // `held` counts subflow offsets and does not know the window of the connection, so the payload
                    // is cut at the window here.
                    let room = self
                        .transport
                        .rcv
                        .buf
                        .max_offset()
                        .saturating_sub(data)
                        .min(len);
                    let done = held.insert(at, slice.first(room as usize), &mut ctx.shared.pool);
                    done.map(|done| done.refused + (len - room) as usize)
                }
            };
            let Ok(refused) = refused else {
                // Without memory for its next bytes the subflow may never go on, and a reset frees what it holds.
                if at == self.transport.subflows[i].rcv.nxt && ctx.shared.pool.available() == 0 {
                    self.transport.reset_if_memory_stuck(i);
                }
                break;
            };
            at += len - refused as u64;
            if refused > 0 {
                break;
            }
        }
        self.transport.note_placed();
        self.deliver_verified_on(ctx, i);
        start..at
    }
}

impl Transport {
    /// Notes a sign of life on subflow `i`. The wait for the next sign of life begins now if data is in flight
    /// or not acknowledged at the data level; otherwise the peer owes no answer.
    // Conforms: 9293-3.8.6.1-4
    pub(super) fn on_sign_of_life(&mut self, ctx: &mut Ctx<'_>, i: usize) {
        self.subflows.wake(ctx.now, i);
        let subflow = &mut self.subflows[i];
        // While data is in flight, only an acknowledgement of that data shows that the subflow works both ways.
        if subflow.snd.board.is_empty() {
            subflow.signs.stale = false;
        }
        let in_flight = self.subflows.iter().any(|s| !s.snd.board.is_empty());
        let awaits_answer = in_flight || self.snd.outstanding() > 0;
        self.live.waiting_since = awaits_answer.then_some(ctx.now);
        self.signal_writable(ctx);
    }
}

impl Transport {
    /// Answers a segment that lies entirely below the last acknowledgement number sent, and ignores its content
    /// (RFC 9293 section 3.10.7.4). Such an old segment is a keepalive, a probe, a retransmission after a lost
    /// acknowledgement, or a forgery. Returns whether the segment is old. A segment that arrives late but above
    /// the last acknowledgement number sent is not old.
    // Conforms: 9293-3.10.7.4-1
    fn answer_old(&mut self, ctx: &Ctx<'_>, i: usize, tcp: &tcp::Repr, range: Range<u64>) -> bool {
        let subflow = &mut self.subflows[i];
        let fin = tcp.flags.contains(Flags::FIN);
        if range.end + u64::from(fin) >= subflow.rcv.ack_sent {
            return false;
        }
        let snd = &subflow.snd;
        let ack = tcp.ack.offset_near(snd.iss, snd.una);
        if tcp.flags.contains(Flags::ACK) && ack.is_some_and(|ack| snd.is_acceptable(ack)) {
            // A keepalive of the peer shows that the peer is alive, as its answer to our keepalive would.
            self.note_received(ctx.now, i);
        }
        self.subflows.wake(ctx.now, i);
        let rcv = &mut self.subflows[i].rcv;
        if !range.is_empty() {
            // The answer echoes the timestamp of this retransmission, not TS.Recent (see `Subflow::timestamps`).
            rcv.echo_once = tcp.options.timestamps.map(|ts| ts.value);
            rcv.on_duplicate(range);
        } else if fin {
            rcv.ack_now();
        } else {
            rcv.challenge(ctx.now);
        }
        true
    }

    /// Adds a mapping of payload on subflow `i`. The subflow is reset if the mapping contradicts an earlier
    /// one, or has no checksum although the connection uses checksums.
    fn take_mapping(&mut self, i: usize, map: Mapping) {
        if !self.mode.is_checkable(&map) || !self.subflows[i].rcv.add_mapping(map) {
            self.subflows[i].break_off();
        }
    }
}

impl Subflow {
    /// Resets the subflow because the peer broke the protocol of MPTCP on it.
    // Conforms: 8684-3.3-4
    pub(super) fn break_off(&mut self) {
        self.begin_reset(
            ResetKind::Subflow(ResetReason::MptcpSpecific),
            SubflowCloseReason::PeerMisbehaved,
        );
    }
}

impl Mode {
    /// Returns whether the segment carries MP_FASTCLOSE with our key (RFC 8684 section 3.5).
    pub(super) fn is_fast_close(&self, tcp: &tcp::Repr) -> bool {
        let ours = self.mptcp().map(|mptcp| mptcp.local.key);
        tcp.options.mptcp.iter().any(|option| {
            matches!(option, MptcpOption::FastClose { receiver_key } if Some(*receiver_key) == ours)
        })
    }
}

impl Subflows {
    /// Returns the established subflows as coupled congestion control sees them: first subflow `i`, then the
    /// others. The list is empty if the congestion control of subflow `i` is not coupled.
    pub(super) fn siblings(&self, i: usize) -> ArrayVec<Sibling, MAX_SIBLINGS> {
        let own = &self[i].snd;
        if !own.cc.is_coupled() {
            return ArrayVec::new();
        }
        let others = self.iter().enumerate();
        let others = others.filter(|(n, s)| *n != i && s.is_established());
        let senders = iter::once(own).chain(others.map(|(_, s)| &s.snd));
        senders.take(MAX_SIBLINGS).map(Sender::sibling).collect()
    }
}

/// Returns whether a segment without payload carries nothing but acknowledgement and window. A segment with
/// MPTCP signals must not count as a duplicate acknowledgement, which is a sign of congestion (RFC 8684 section
/// 3). SACK blocks name the data that arrived, so a segment with SACK blocks is not counted either.
// Conforms: 8684-3-1
fn is_pure_ack(tcp: &tcp::Repr) -> bool {
    let signals =
        |option: &MptcpOption| !matches!(option, MptcpOption::Dss(dss) if dss.mapping.is_none());
    !tcp.flags.contains(Flags::FIN)
        && tcp.options.sack.is_empty()
        && !tcp.options.mptcp.iter().any(signals)
}

/// Returns the SACK blocks above `ack`, and reports blocks below `ack` to `snd` as duplicates (D-SACK). A block
/// that contains the byte at `ack` contradicts `ack` and is ignored. A segment has room for at most four blocks
/// (RFC 2018 section 3).
fn take_blocks(
    now: Instant,
    snd: &mut Sender,
    ack: u64,
    tcp: &tcp::Repr,
) -> ArrayVec<Range<u64>, 4> {
    let mut sacks = ArrayVec::new();
    for (left, right) in &tcp.options.sack {
        let left = left.offset_near(snd.iss, snd.una);
        let right = right.offset_near(snd.iss, snd.una);
        let (Some(left), Some(right)) = (left, right) else {
            continue;
        };
        if left >= right {
            continue;
        } else if right <= ack {
            snd.on_duplicate(now, left..right);
        } else if left > ack {
            sacks.push(left..right);
        }
    }
    sacks
}

/// Returns whether an acknowledgement may lack SACK blocks only because a lone DATA_FIN takes their room. Linux
/// puts DATA_FIN on every acknowledgement until its peer acknowledges the DATA_FIN. A SACK option with one block
/// takes 10 bytes: two for kind and length, and eight for the edges.
fn may_lack_sack(tcp: &tcp::Repr) -> bool {
    let data_fin = |option: &MptcpOption| {
        matches!(option, MptcpOption::Dss(dss)
            if dss.data_fin && dss.mapping.is_some_and(|map| map.len == 1))
    };
    !tcp.flags.contains(Flags::FIN)
        && tcp.options.sack.is_empty()
        && tcp.options.room() < 10
        && tcp.options.mptcp.iter().all(data_fin)
}

/// Returns whether no acknowledgement is due at once.
fn is_not_due(due: &AckDue) -> bool {
    *due != AckDue::Now
}
