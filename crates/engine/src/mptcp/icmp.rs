//! ICMP errors about segments (RFC 1122 section 4.2.3.9, RFC 5927).

use braid_wire::Seq32;
use braid_wire::icmp::Kind;

use super::connection::Connection;
use super::ctx::Ctx;
use super::subflow::{Opens, Phase};
use crate::SubflowId;
use crate::event::{CloseReason, SubflowCloseReason};

/// The number of SYNs at which a report of unreachability no longer moves the opening to another path, so that
/// an unreachable server is not tried over all paths in turn for ever. The value is a guess.
const MAX_UNREACHABLE_SYNS: u32 = 4;

impl Connection {
    /// Handles an ICMP error about a segment of subflow `id` that started at `seq`.
    pub fn on_icmp(&mut self, ctx: &mut Ctx<'_>, id: SubflowId, kind: Kind, seq: Seq32) {
        let Some(i) = self.transport.subflows.index_of(id) else {
            return;
        };
        let snd = &self.transport.subflows[i].snd;
        // Only a report on a segment in flight is believed (RFC 5927 section 4.1), because an off-path
        // attacker would have to guess its sequence number. If nothing is in flight, a report on sequence
        // number `una` is believed too: an acknowledgement without data has that number.
        let is_in_flight = seq
            .offset_near(snd.iss, snd.una)
            .is_some_and(|at| (snd.una..snd.nxt.max(snd.una + 1)).contains(&at));
        if !is_in_flight {
            return;
        }
        match kind {
            Kind::PacketTooBig { mtu } => {
                self.transport.subflows[i].on_packet_too_big(ctx.now, mtu)
            }
            Kind::Unreachable(_) if self.transport.subflows[i].phase == Phase::SynSent => {
                self.on_syn_unreachable(ctx, i);
            }
            Kind::Unreachable(_) => self.on_path_unreachable(ctx, i),
            // A routing loop may be temporary, so the report is ignored. If the loop lasts, segments time out.
            Kind::TimeExceeded => {}
        }
        self.reconcile(ctx);
    }

    /// Handles a report that the destination of the SYN on subflow `i` is unreachable: moves the opening to
    /// another path, or ends the connection if no SYN is under way any more.
    fn on_syn_unreachable(&mut self, ctx: &mut Ctx<'_>, i: usize) {
        let subflow = &mut self.transport.subflows[i];
        if subflow.opens != Opens::Connection {
            subflow.close(SubflowCloseReason::TimedOut);
            return;
        }
        if subflow.handshake.tries < MAX_UNREACHABLE_SYNS {
            self.try_next_path(ctx, i);
        }
        let has_other_syn = self
            .transport
            .subflows
            .iter()
            .any(|s| s.id != self.transport.subflows[i].id && s.is_alive());
        if !has_other_syn {
            self.fail(ctx, CloseReason::Unreachable);
        }
    }

    /// Treats a report of unreachability on an established subflow as its failure if other subflows work, so
    /// that its data moves there at once. Without others the report is ignored, because it is a soft error
    /// (RFC 9293 section 3.9.2.2).
    // Conforms: 9293-3.9.2.2-1
    fn on_path_unreachable(&mut self, ctx: &mut Ctx<'_>, i: usize) {
        let others = self
            .transport
            .subflows
            .iter()
            .enumerate()
            .any(|(n, s)| n != i && s.can_carry() && !s.signs.stale);
        if others
            && self.transport.subflows[i].is_established()
            && !self.transport.subflows[i].signs.stale
        {
            self.declare_dead(ctx, i);
        }
    }
}
