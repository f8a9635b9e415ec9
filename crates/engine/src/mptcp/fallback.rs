//! Falling back to regular TCP, and what tells that it must be (RFC 8684 section 3.7).

use braid_wire::mptcp::{Dss, DssMapping, MptcpOption, ResetReason};

use super::connection::{Connection, Ctx, Farewell, Mode, SendFin};
use super::dss::carried;
use super::subflow::{Opens, ResetKind, Subflow};
use crate::event::SubflowCloseReason;
use crate::{Event, FallbackCause};

impl Connection {
    /// Reports that MPTCP is not in use, and goes on with regular TCP.
    pub fn fall_back(&mut self, ctx: &mut Ctx<'_>, cause: FallbackCause) {
        if let Mode::Mptcp(m) = &self.mode {
            ctx.demux.tokens.remove(&m.local.token);
            let told = cause != FallbackCause::PeerFellBack;
            self.farewell = self.subflows.first().filter(|_| told).map(|s| Farewell {
                idsn: m.local.idsn,
                wide: m.wide_dsn,
                until: s.snd.nxt,
            });
            self.snd.flight.clear();
            if self.snd.fin == SendFin::Sent {
                // The subflow's FIN takes the place of DATA_FIN.
                self.snd.fin = SendFin::Queued;
            }
            self.live.fin_at = None;
        }
        self.mode = Mode::Tcp;
        for subflow in self.subflows.iter_mut().filter(|s| s.is_early()) {
            subflow.close(SubflowCloseReason::Finished);
        }
        if cause != FallbackCause::NotRequested && !self.is_ended() {
            ctx.events.push_back(Event::FellBack {
                conn: self.id,
                cause,
            });
        }
    }

    /// The infinite mapping for a segment of subflow `i` whose byte `sub` is byte `data` of the
    /// stream, as long as it is to be told.
    pub(super) fn infinite_mapping(&self, i: usize, sub: u64, data: u64) -> Option<MptcpOption> {
        let farewell = self.farewell?;
        if self.subflows[i].snd.una > farewell.until {
            return None;
        }
        Some(MptcpOption::Dss(Dss {
            data_ack: None,
            mapping: Some(DssMapping {
                dsn: carried(farewell.idsn.add(1).add(data), farewell.wide),
                subflow_seq: sub as u32,
                len: 0,
                checksum: None,
            }),
            data_fin: false,
        }))
    }

    /// Whether both streams are those of subflow `i`, byte by byte, so that regular TCP can take
    /// over: there was never more than this one, nothing was sent twice, and it does not end before
    /// the stream.
    fn is_contiguous(&self, i: usize) -> bool {
        let subflow = &self.subflows[i];
        let sent = subflow.snd.nxt - u64::from(subflow.fin_sent);
        let mut others = self.subflows.iter().filter(|s| s.id != subflow.id);
        others.all(Subflow::is_early)
            && subflow.opens == Opens::Connection
            && (!subflow.fin_wanted || self.snd.fin == SendFin::Acked)
            && sent == self.snd.nxt + 1
            && subflow.rcv.nxt - u64::from(subflow.rcv.finished()) == self.rcv.buf.rcv_nxt() + 1
    }

    /// The peer fell back: byte `sub` of subflow `i` is byte `data` of its stream, and so on.
    pub(super) fn on_infinite_mapping(&mut self, ctx: &mut Ctx<'_>, i: usize, sub: u64, data: u64) {
        if sub == data + 1 && self.is_contiguous(i) {
            self.fall_back(ctx, FallbackCause::PeerFellBack);
            self.on_plain_ack(ctx, i);
        } else {
            self.give_up_subflow(i);
        }
    }

    /// A segment with `len` bytes from `seq` on came without any MPTCP option: a middlebox took
    /// them, or the peer fell back.
    pub(super) fn on_bare_segment(&mut self, ctx: &mut Ctx<'_>, i: usize, seq: u64, len: usize) {
        let subflow = &self.subflows[i];
        if self.mptcp().is_none() {
            return;
        }
        // Data before any mapping, or an acknowledgement of ours although none of it was ever
        // acknowledged at the data level. Later on, that is no reason any more.
        let data = len > 0 && seq == subflow.rcv.nxt && !subflow.dss_seen;
        let acked = subflow.snd.una > 1;
        let ack = acked && self.snd.una() == 0;
        let joined = subflow.opens != Opens::Connection;
        if (data || ack) && self.is_contiguous(i) {
            self.fall_back(ctx, FallbackCause::DataPlain);
            self.on_plain_ack(ctx, i);
        } else if (acked && joined && !subflow.dss_seen) || self.has_no_place(i, seq, len) {
            // What has no place can never be taken, however often it comes (section 3.3.1).
            self.give_up_subflow(i);
        }
    }

    /// Whether `len` bytes that are next on subflow `i` have no mapping.
    fn has_no_place(&self, i: usize, seq: u64, len: usize) -> bool {
        let rcv = &self.subflows[i].rcv;
        let next = len > 0 && seq == rcv.nxt && !rcv.finished();
        next && rcv.mapping_at(seq).is_none()
    }

    fn give_up_subflow(&mut self, i: usize) {
        self.subflows[i].begin_reset(
            ResetKind::Subflow(ResetReason::MiddleboxInterference),
            SubflowCloseReason::PeerMisbehaved,
        );
    }
}
