//! Aborting a connection so that the peer learns of it (RFC 8684 section 3.5).
//!
//! The first MP_FASTCLOSE stands on a RST on every subflow, which ends the peer's side at once. Nobody
//! answers a RST, so a lost one would go unnoticed: a peer that only receives would wait for its
//! keepalive. Therefore MP_FASTCLOSE is repeated on ACKs, which a peer answers by RST in any case: one that
//! has the connection because of the option, one that has forgotten it because it knows no such connection
//! (RFC 9293 section 3.10.7.1).

use core::time::Duration;

use braid_wire::Instant;
use braid_wire::mptcp::MptcpOption;
use braid_wire::tcp::{self, Flags, Options};

use super::ctx::Ctx;
use super::output::{Body, Outgoing};
use super::subflow::{Phase, Subflow};
use super::transport::{Life, Transport};
use crate::event::SubflowCloseReason;

/// How long MP_FASTCLOSE is repeated. RFC 8684 section 3.5 recommends three repeats and leaves the limit to
/// implementations: with the least timeout of 200 ms it is nine, since a peer with a hole may have to say
/// first where it is, and 30 % of all packets may be lost.
pub(super) const FAST_CLOSE_TIME: Duration = Duration::from_secs(2);

impl Subflow {
    /// Plans the first repeat one retransmission timeout after the RST.
    pub(super) fn arm_fast_close(&mut self, now: Instant) {
        if self.ending.insists && self.ending.repeats.at.is_none() {
            self.ending.repeats.at = Some(now + self.snd.rtt.rto());
        }
    }
}

impl Transport {
    /// Repeats MP_FASTCLOSE where the peer has not answered. When the time for that is over, a RST goes
    /// out for middleboxes that still have the subflow, and nothing of it is kept.
    // Conforms: 8684-3.5-5, 8684-3.5-6, 8684-3.5-7
    pub(super) fn poll_fast_close(&mut self, ctx: &mut Ctx<'_>, i: usize) -> Option<Outgoing> {
        let Life::Ended { at, .. } = self.life else {
            return None;
        };
        let until = at + FAST_CLOSE_TIME;
        let receiver_key = self.mode.mptcp()?.remote.key;
        let subflow = &mut self.subflows[i];
        subflow.ending.repeats.at.take_if(|at| *at <= ctx.now)?;
        if ctx.shared.is_down(subflow.path) {
            subflow.close(SubflowCloseReason::Finished);
            return None;
        }
        if ctx.now >= until {
            let last = self.send_reset(ctx, i);
            self.subflows[i].close(SubflowCloseReason::Finished);
            return last;
        }
        subflow.ending.repeats.times += 1;
        // There are few in all, so they need not back off.
        subflow.ending.repeats.at = Some((ctx.now + subflow.snd.rtt.rto()).min(until));
        let mut options = Options {
            timestamps: subflow.timestamps(ctx.now),
            ..Options::default()
        };
        options.mptcp.push(MptcpOption::FastClose { receiver_key });
        // A peer that takes it only where it expects it (RFC 5961) may have a hole behind the last byte
        // that it acknowledged, or none.
        let expected = match subflow.ending.repeats.times % 2 {
            1 => subflow.snd.una,
            _ => subflow.snd.nxt,
        };
        let seq = subflow.ending.reset_at.unwrap_or(expected);
        Some(self.emit(ctx, i, seq, Flags::ACK, options, Body::None))
    }

    /// Takes in a segment of a subflow that was aborted. RST says that the peer has no part in it any
    /// more. Anything else says that it did not take the RST: it gets another one where it expects it
    /// (RFC 8684 section 3.5, RFC 9293 section 3.10.7.1).
    pub(super) fn on_aborted(&mut self, i: usize, tcp: &tcp::Repr) {
        if self.mode.is_fast_close(tcp) {
            // The peer has closed the whole connection, whichever end was first.
            let aborted = |s: &&mut Subflow| s.phase == Phase::Aborted;
            for subflow in self.subflows.iter_mut().filter(aborted) {
                subflow.ending.settle();
                subflow.close(SubflowCloseReason::Finished);
            }
        }
        let subflow = &mut self.subflows[i];
        if tcp.flags.intersects(Flags::RST | Flags::SYN) {
            subflow.close(SubflowCloseReason::Finished);
            return;
        }
        let snd = &subflow.snd;
        let expected = tcp.ack.offset_near(snd.iss, snd.una);
        if let Some(at) = expected.filter(|at| snd.is_acceptable(*at)) {
            subflow.ending.reset_at = Some(at);
            subflow.phase = Phase::Resetting;
        }
    }
}
