//! The evidence that losses and arrivals give about the packet size that the path forwards (RFC 4821, RFC 8899).
//! [`PathMtu`](crate::tcp::path_mtu::PathMtu) chooses the sizes.

use core::mem;
use core::ops::Range;

use braid_wire::Instant;

use super::{Recovery, Sender};
use crate::tcp::scoreboard::Sent;

/// The score at which retransmissions begin to use small packets, to see whether small packets arrive. The value
/// is a guess; two timeouts of large packets reach this score.
const BLACK_HOLE_SCORE: u32 = 4;

/// The evidence about packets by their size.
#[derive(Debug, Clone, Default)]
pub(super) struct Sizes {
    /// The maximum payload of a small packet, which the path surely forwards; `None` if there is no size below the
    /// current one.
    max_small_payload: Option<u64>,
    /// The score of the evidence that the path drops large packets. The timeout of a large packet adds 2, and a
    /// large retransmission that is lost while later data arrives adds 1. The arrival of a large packet resets the
    /// score.
    black_hole_score: u32,
    /// True if small packets arrived while the score was high. This shows that the path drops large packets, and
    /// is neither dead nor merely slow.
    drops_large: bool,
    /// The offsets of the probe of a larger packet size while the probe is in flight.
    probe: Option<Range<u64>>,
    /// The result of the last probe, until the result is taken: true if the probe arrived.
    probe_result: Option<bool>,
    /// The number of bytes of a probe that is being marked as lost.
    lost_probe_bytes: u64,
}

impl Sizes {
    /// Returns whether a packet with `bytes` of payload is large.
    fn is_large(&self, bytes: u64) -> bool {
        self.max_small_payload.is_some_and(|small| bytes > small)
    }

    /// Notes an arrival. The longest contiguous range that arrived has `largest` bytes.
    pub fn on_arrival(&mut self, largest: u64) {
        if self.is_large(largest) {
            self.black_hole_score = 0;
        } else {
            self.drops_large |= self.black_hole_score >= BLACK_HOLE_SCORE && largest > 0;
        }
    }

    /// Returns the maximum number of bytes of a retransmission.
    pub fn max_retransmission(&self) -> u64 {
        let small = self
            .max_small_payload
            .filter(|_| self.black_hole_score >= BLACK_HOLE_SCORE);
        small.unwrap_or(u64::MAX)
    }

    /// Notes a timeout: the first `bytes` in flight were lost, as was everything after them (RFC 4821
    /// section 7.7).
    pub fn on_timeout(&mut self, bytes: u64) {
        self.black_hole_score += 2 * u32::from(self.is_large(bytes));
        self.on_all_lost();
    }

    /// Notes that everything in flight counts as lost.
    pub fn on_all_lost(&mut self) {
        self.probe_result = self.probe.take().map(|_| false).or(self.probe_result);
    }

    /// Notes that the record `lost` was lost. Returns whether the record was the probe.
    pub fn on_lost(&mut self, lost: &Sent) -> bool {
        self.black_hole_score += u32::from(lost.retransmitted && self.is_large(lost.len()));
        let probe = self.probe.take_if(|probe| probe.start == lost.start);
        if let Some(probe) = &probe {
            self.probe_result = Some(false);
            self.lost_probe_bytes = probe.end - probe.start;
        }
        probe.is_some()
    }

    /// Returns whether all of the `lost` bytes just marked as lost belong to the probe. The probe was most likely
    /// too large, so the loss is no sign of congestion (RFC 4821 section 7.6.2, RFC 8899 section 3).
    pub fn excuse_probe_loss(&mut self, lost: u64) -> bool {
        lost <= mem::take(&mut self.lost_probe_bytes)
    }

    /// Returns the payload length of the packet sent at `start`: that of the probe, or `mss`.
    pub fn packet_at(&self, start: u64, mss: u64) -> u64 {
        let probe = self.probe.as_ref().filter(|probe| probe.start == start);
        probe.map_or(mss, |probe| probe.end - probe.start)
    }

    /// Notes that `range` has arrived.
    pub fn on_range(&mut self, range: &Range<u64>) {
        let within = |probe: &mut Range<u64>| range.start <= probe.start && probe.end <= range.end;
        if self.probe.take_if(within).is_some() {
            self.probe_result = Some(true);
        }
    }
}

impl Sender {
    /// Sets the maximum payload of a small packet; `None` if there is no size below the current one.
    pub fn set_small(&mut self, small: Option<u64>) {
        self.sizes.max_small_payload = small;
    }

    /// Returns whether the path drops large packets (RFC 8899 section 4.3), and resets the result.
    pub fn sees_black_hole(&mut self) -> bool {
        if self.sizes.drops_large {
            self.sizes.black_hole_score = 0;
        }
        mem::take(&mut self.sizes.drops_large)
    }

    /// Returns whether a new size may be probed: no loss is being recovered from (RFC 4821 section 7.4).
    pub fn may_probe_size(&self) -> bool {
        self.recovery == Recovery::Open && self.board.lost() == 0 && self.sizes.probe.is_none()
    }

    /// Makes the next `len` bytes of new data the probe. These bytes leave as one packet.
    pub fn send_size_probe(&mut self, len: u64) {
        self.sizes.probe = Some(self.nxt..self.nxt + len);
    }

    /// Handles an ICMP report that the probe is larger than the path MTU.
    pub fn on_size_probe_lost(&mut self) {
        let sizes = &mut self.sizes;
        if let Some(probe) = sizes.probe.take() {
            sizes.probe_result = Some(false);
            // The data after the probe causes duplicate acknowledgements. These duplicates report the loss of the
            // probe again, not another loss.
            if probe.contains(&self.una)
                && let Some(dup) = &mut self.dup_acks
            {
                dup.on_recovery(self.una);
            }
            let within = |r: &Sent| probe.start <= r.start && r.end <= probe.end;
            self.board
                .mark_lost((Instant::FAR_FUTURE, u64::MAX), within);
        }
    }

    /// Returns whether the `len` bytes at `seq` are the probe.
    pub fn is_size_probe(&self, seq: u64, len: u64) -> bool {
        self.sizes.probe == Some(seq..seq + len)
    }

    /// Returns whether the probe arrived, and forgets the result. `None` as long as there is no new result.
    pub fn take_size_probe_result(&mut self) -> Option<bool> {
        self.sizes.probe_result.take()
    }
}
