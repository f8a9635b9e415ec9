//! The abort of a connection, repeated until the peer learns of it (RFC 8684 section 3.5).
//!
//! First, a RST with MP_FASTCLOSE is sent on every subflow. If it arrives, the peer's side ends at once. But a
//! RST is never answered, so its loss would go unnoticed, and a peer that only receives would not notice the end
//! before its next keepalive. Therefore MP_FASTCLOSE is repeated on ACKs, which the peer answers by RST in any
//! case: because of the option if it still has the connection, and otherwise because the ACK belongs to no
//! connection (RFC 9293 section 3.10.7.1).

use core::time::Duration;

use braid_wire::Instant;
use braid_wire::mptcp::MptcpOption;
use braid_wire::tcp::{self, Flags, Options};

use super::ctx::Ctx;
use super::output::{Body, Outgoing};
use super::subflow::{Phase, Subflow};
use super::transport::{Life, Transport};
use crate::event::SubflowCloseReason;

/// The time for which MP_FASTCLOSE is repeated. RFC 8684 section 3.5 recommends three repeats and leaves the
/// limit to implementations. With the minimum timeout of 200 ms there are nine repeats within 2 s. Three would
/// be too few, because a peer that misses data may first have to show which sequence number it expects, and
/// because up to 30 % of packets may be lost.
pub(super) const FAST_CLOSE_REPEAT_TIME: Duration = Duration::from_secs(2);

impl Subflow {
    /// Plans the first repeat for one retransmission timeout after the RST, if the abort is to be repeated.
    pub(super) fn arm_fast_close(&mut self, now: Instant) {
        if self.ending.repeats_abort && self.ending.repeats.at.is_none() {
            self.ending.repeats.at = Some(now + self.snd.rtt.rto());
        }
    }
}

impl Transport {
    /// Repeats MP_FASTCLOSE, if a repeat is due. After [`FAST_CLOSE_REPEAT_TIME`] a last RST is sent, which
    /// clears the state of middleboxes, and the subflow is closed.
    // Conforms: 8684-3.5-5, 8684-3.5-6, 8684-3.5-7
    pub(super) fn poll_fast_close(&mut self, ctx: &mut Ctx<'_>, i: usize) -> Option<Outgoing> {
        let Life::Ended { at, .. } = self.life else {
            return None;
        };
        let until = at + FAST_CLOSE_REPEAT_TIME;
        let receiver_key = self.mode.mptcp()?.remote.key;
        let subflow = &mut self.subflows[i];
        subflow.ending.repeats.at.take_if(|at| *at <= ctx.now)?;
        // Nothing would arrive over a link that is down, and the connection is not kept for its return.
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
        // The repeats are few, so they need no backoff.
        subflow.ending.repeats.at = Some((ctx.now + subflow.snd.rtt.rto()).min(until));
        let mut options = Options {
            timestamps: subflow.timestamps(ctx.now),
            ..Options::default()
        };
        options.mptcp.push(MptcpOption::FastClose { receiver_key });
        // A peer may accept MP_FASTCLOSE only at the sequence number that it expects (RFC 5961). A peer that
        // misses data expects the last acknowledged number, and otherwise the peer expects the next number to be
        // sent. So the repeats alternate between these two numbers, until the peer shows which one it expects
        // (`reset_at`).
        let expected = match subflow.ending.repeats.times % 2 {
            1 => subflow.snd.una,
            _ => subflow.snd.nxt,
        };
        let seq = subflow.ending.reset_at.unwrap_or(expected);
        Some(self.emit(ctx, i, seq, Flags::ACK, options, Body::None))
    }

    /// Handles a segment on an aborted subflow. A RST or SYN shows that the peer no longer has the subflow.
    /// Any other segment shows that the peer did not accept our RST, and is answered by another RST with the
    /// sequence number that the peer expects (RFC 8684 section 3.5, RFC 9293 section 3.10.7.1).
    pub(super) fn on_aborted(&mut self, i: usize, tcp: &tcp::Repr) {
        if self.mode.is_fast_close(tcp) {
            // The peer aborted the whole connection too, so no subflow needs further repeats.
            let is_aborted = |s: &&mut Subflow| s.phase == Phase::Aborted;
            for subflow in self.subflows.iter_mut().filter(is_aborted) {
                subflow.ending.stop_repeats();
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
