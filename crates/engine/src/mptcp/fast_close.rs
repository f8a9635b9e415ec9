//! The abort of a connection, repeated until the peer learns of it (RFC 8684 section 3.5).
//!
//! The first MP_FASTCLOSE goes out on a RST on every subflow and ends the peer's side at once. A RST is
//! never answered, so its loss would go unnoticed, and a peer that only receives would wait for its
//! keepalive. Therefore MP_FASTCLOSE is repeated on ACKs, which a peer answers by RST in any case: because
//! of the option if it still has the connection, and otherwise because it knows no matching connection (RFC
//! 9293 section 3.10.7.1).

use core::time::Duration;

use braid_wire::Instant;
use braid_wire::mptcp::MptcpOption;
use braid_wire::tcp::{self, Flags, Options};

use super::ctx::Ctx;
use super::output::{Body, Outgoing};
use super::subflow::{Phase, Subflow};
use super::transport::{Life, Transport};
use crate::event::SubflowCloseReason;

/// The time for which MP_FASTCLOSE is repeated. RFC 8684 section 3.5 recommends three repeats and leaves
/// the limit to implementations. With the least timeout of 200 ms there are nine: a peer with a hole may
/// first have to show where it expects the segment, and up to 30 % of packets may be lost.
pub(super) const FAST_CLOSE_REPEAT_TIME: Duration = Duration::from_secs(2);

impl Subflow {
    /// Plans the first repeat one retransmission timeout after the RST.
    pub(super) fn arm_fast_close(&mut self, now: Instant) {
        if self.ending.repeats_abort && self.ending.repeats.at.is_none() {
            self.ending.repeats.at = Some(now + self.snd.rtt.rto());
        }
    }
}

impl Transport {
    /// Repeats MP_FASTCLOSE while the peer has not answered. After [`FAST_CLOSE_REPEAT_TIME`] a last RST clears
    /// the state of middleboxes, and the subflow is closed.
    // Conforms: 8684-3.5-5, 8684-3.5-6, 8684-3.5-7
    pub(super) fn poll_fast_close(&mut self, ctx: &mut Ctx<'_>, i: usize) -> Option<Outgoing> {
        let Life::Ended { at, .. } = self.life else {
            return None;
        };
        let until = at + FAST_CLOSE_REPEAT_TIME;
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
        // The repeats are few, so they need no backoff.
        subflow.ending.repeats.at = Some((ctx.now + subflow.snd.rtt.rto()).min(until));
        let mut options = Options {
            timestamps: subflow.timestamps(ctx.now),
            ..Options::default()
        };
        options.mptcp.push(MptcpOption::FastClose { receiver_key });
        // A peer that accepts MP_FASTCLOSE only at the expected sequence number (RFC 5961) may or may not
        // have a hole behind the last byte that it acknowledged, so the repeats alternate between both
        // offsets.
        let expected = match subflow.ending.repeats.times % 2 {
            1 => subflow.snd.una,
            _ => subflow.snd.nxt,
        };
        let seq = subflow.ending.reset_at.unwrap_or(expected);
        Some(self.emit(ctx, i, seq, Flags::ACK, options, Body::None))
    }

    /// Handles a segment of an aborted subflow. RST or SYN shows that the peer no longer has the subflow.
    /// Any other segment shows that it did not accept the RST: another RST goes where the peer expects it
    /// (RFC 8684 section 3.5, RFC 9293 section 3.10.7.1).
    pub(super) fn on_aborted(&mut self, i: usize, tcp: &tcp::Repr) {
        if self.mode.is_fast_close(tcp) {
            // The peer aborted the whole connection too, so no subflow needs further repeats.
            let aborted = |s: &&mut Subflow| s.phase == Phase::Aborted;
            for subflow in self.subflows.iter_mut().filter(aborted) {
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
