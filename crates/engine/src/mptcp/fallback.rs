//! Fallback to regular TCP, and the detection of its causes (RFC 8684 section 3.7).

use braid_wire::Dsn64;
use braid_wire::mptcp::{DssMapping, ResetReason};

use super::connection::Connection;
use super::ctx::Ctx;
use super::ending::ResetKind;
use super::mode::Mode;
use super::subflow::{Opens, Subflow};
use super::transport::Transport;
use crate::event::SubflowCloseReason;
use crate::{Event, FallbackCause};

impl Connection {
    /// Falls back to regular TCP on subflow `i`.
    fn fall_back_on(&mut self, ctx: &mut Ctx<'_>, i: usize, cause: FallbackCause) {
        self.transport.fall_back(ctx, cause);
        self.on_plain_ack(ctx, i);
        self.deliver_verified_on(ctx, i);
    }

    /// Handles MP_FAIL on an acknowledgement of subflow `i`: the peer found a wrong checksum. If subflow
    /// `i` carries the whole stream in order, the connection falls back, and the answer is MP_FAIL and the
    /// infinite mapping; otherwise the subflow is reset (section 3.7). After a fallback of this side, MP_FAIL
    /// shows that the peer knows of it.
    // Conforms: 8684-3.7-10, 8684-3.7-11
    pub(super) fn on_mp_fail(&mut self, ctx: &mut Ctx<'_>, i: usize, failed: Dsn64) {
        let received = self.transport.rcv.buf.rcv_nxt();
        let Some(mptcp) = self.transport.mode.mptcp() else {
            self.transport.fallback_notice.on_peer_knows();
            return;
        };
        // Without checksums no peer can have found a wrong one.
        if !mptcp.checksum {
            return;
        }
        let dsn = mptcp.remote_dsn(received);
        if self.transport.is_contiguous(i) {
            self.fall_back_on(ctx, i, FallbackCause::PeerBadChecksum);
            self.transport
                .fallback_notice
                .send_mp_fail(&mut self.transport.subflows[i], dsn);
        } else {
            self.transport.on_corrupted(i, failed);
            self.transport.subflows[i].fail(dsn);
        }
    }

    /// Handles the infinite mapping `map` on subflow `i`: the peer fell back, and the rest of its stream
    /// follows in order on this subflow.
    // Conforms: 8684-3.7-14
    pub(super) fn on_infinite_mapping(&mut self, ctx: &mut Ctx<'_>, i: usize, map: &DssMapping) {
        let received = self.transport.rcv.buf.rcv_nxt();
        let Some(mptcp) = self.transport.mode.mptcp() else {
            self.transport.fallback_notice.on_peer_knows();
            return;
        };
        let sub = self.transport.subflows[i].mapped_from(map.subflow_seq);
        let (Some(sub), Some(data)) = (sub, mptcp.data_offset(map.dsn, received)) else {
            return;
        };
        // Regular TCP needs stream offsets that are subflow offsets minus one, for the SYN.
        if sub == data + 1 && self.transport.is_contiguous(i) {
            self.fall_back_on(ctx, i, FallbackCause::PeerFellBack);
        } else {
            self.transport.subflows[i].reset_for_interference();
        }
    }

    /// Handles a segment with `len` bytes from `seq` on without any MPTCP option: a middlebox stripped the
    /// options, or the peer fell back.
    // Conforms: 8684-3.3.1-3, 8684-3.3.2-4, 8684-3.7-2, 8684-3.7-3
    pub(super) fn on_bare_segment(&mut self, ctx: &mut Ctx<'_>, i: usize, seq: u64, len: usize) {
        let subflow = &self.transport.subflows[i];
        let Some(mptcp) = self.transport.mode.mptcp() else {
            return;
        };
        // There are two signs of a fallback. One is data before any DSS. The other is an acknowledgement of
        // our data at the subflow level, if no data was ever acknowledged at the data level. If we have sent no
        // data since the SYN, any answer to a stall probe is the second sign, because the probe has the keys.
        let has_plain_data = len > 0 && seq == subflow.rcv.nxt && !subflow.dss_seen;
        let acks_data = subflow.snd.una > 1 + subflow.syn_data.sent;
        let answers_probe =
            subflow.active && !mptcp.fully_established && self.transport.live.stall_tries > 0;
        let has_plain_ack =
            (acks_data || answers_probe) && self.transport.snd.una() == subflow.syn_data.sent;
        let is_join = subflow.opens != Opens::Connection;
        if (has_plain_data || has_plain_ack) && self.transport.is_contiguous(i) {
            self.fall_back_on(ctx, i, FallbackCause::DataPlain);
        } else if (acks_data && is_join && !subflow.dss_seen)
            || self.transport.subflows[i].lacks_mapping(seq, len)
        {
            // Bytes without a mapping can never be accepted, even if they are repeated (section 3.3.1).
            self.transport.subflows[i].reset_for_interference();
        }
    }
}

impl Transport {
    /// Continues as regular TCP, and reports the fallback to the application.
    // Conforms: 8684-3.7-15
    pub fn fall_back(&mut self, ctx: &mut Ctx<'_>, cause: FallbackCause) {
        if let Mode::Mptcp(m) = &self.mode {
            ctx.shared.demux.tokens.remove(&m.local.token);
            // A peer that fell back first already knows.
            let needs_notice = cause != FallbackCause::PeerFellBack;
            if let Some(subflow) = self.subflows.first().filter(|_| needs_notice) {
                self.fallback_notice.begin(m, subflow);
            }
            self.snd.scoreboard.clear();
            // The subflow's FIN replaces DATA_FIN.
            self.closing.repeat();
            if !self.rcv.complete() {
                // In regular TCP the peer's FIN marks the end of its stream. A DATA_FIN that was seen earlier
                // does not count: a middlebox that rewrites payload may have changed the length of the stream.
                self.rcv.fin = None;
            }
        }
        self.mode = Mode::Tcp;
        for subflow in self.subflows.iter_mut().filter(|s| s.is_unaccepted_join()) {
            subflow.close(SubflowCloseReason::Finished);
        }
        if cause != FallbackCause::NotRequested && !self.is_ended() {
            ctx.shared.events.push_back(Event::FellBack {
                conn: self.id,
                cause,
            });
        }
    }

    /// Returns whether regular TCP can take over on subflow `i`, as far as this side knows: the subflow carried
    /// all data of both streams in order, and is not closed before the end of our stream.
    pub(super) fn is_contiguous(&self, i: usize) -> bool {
        let subflow = &self.subflows[i];
        let sent = subflow.snd.nxt - u64::from(subflow.closing.is_fin_sent());
        let mut others = self.subflows.iter().filter(|s| s.id != subflow.id);
        others.all(Subflow::is_unaccepted_join)
            && subflow.opens == Opens::Connection
            && (!subflow.closing.is_closed_here() || self.closing.is_acked())
            && sent == self.snd.nxt + 1
            && subflow.snd.board.is_aligned()
            && subflow.rcv.placed() == self.rcv.buf.rcv_nxt() + 1
            && subflow.rcv.is_aligned()
    }

    /// Marks the data that subflow `i` carried from data sequence number `failed` on as corrupted, so that
    /// another subflow sends it again.
    // Conforms: 8684-3.7-16
    pub(super) fn on_corrupted(&mut self, i: usize, failed: Dsn64) {
        let una = self.snd.una();
        let mptcp = self.mode.mptcp().filter(|m| m.checksum);
        let offset = mptcp.and_then(|m| una.checked_add_signed(failed.diff(m.dsn(una))));
        if let Some(offset) = offset {
            self.snd
                .scoreboard
                .on_corrupted(offset, self.subflows[i].place.slot);
        }
    }
}

impl Subflow {
    /// Resets the subflow with MP_FAIL (section 3.7), because a middlebox on its path changes payload. `dsn` is
    /// the data sequence number of the first byte that is not intact.
    pub(super) fn fail(&mut self, dsn: Dsn64) {
        self.begin_reset(ResetKind::Fail(dsn), SubflowCloseReason::BadChecksum);
    }

    /// Returns whether the `len` bytes at `seq` are the next bytes expected on this subflow, and have no
    /// mapping. Later bytes do not count, because their mapping may still arrive.
    pub(super) fn lacks_mapping(&self, seq: u64, len: usize) -> bool {
        let rcv = &self.rcv;
        let is_next = len > 0 && seq == rcv.nxt && !rcv.finished();
        is_next && rcv.mapping_at(seq).is_none()
    }

    /// Resets the subflow, because a middlebox on its path drops or changes options.
    // Conforms: 8684-3.7-4, 8684-3.7-6
    pub(super) fn reset_for_interference(&mut self) {
        self.begin_reset(
            ResetKind::Subflow(ResetReason::MiddleboxInterference),
            SubflowCloseReason::PeerMisbehaved,
        );
    }
}

impl Mode {
    /// Notes that the peer may send on a further subflow from now on.
    pub(super) fn note_join(&mut self) {
        if let Some(mptcp) = self.mptcp_mut() {
            mptcp.joined = true;
        }
    }
}
