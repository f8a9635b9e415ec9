//! The evidence of losses and arrivals about the packet size that the path passes (RFC 4821, RFC 8899).
//! [`PathMtu`](crate::tcp::path_mtu::PathMtu) has the sizes themselves.

use core::mem;
use core::ops::Range;

use braid_wire::Instant;

use super::{Recovery, Sender};
use crate::tcp::scoreboard::Sent;

/// The score from which on a small packet is sent in place of a large one, to see whether it arrives.
const BLACK_HOLE_SCORE: u32 = 4;

/// The evidence about packets by their size.
#[derive(Debug, Clone, Default)]
pub(super) struct Sizes {
    /// The most payload of a small packet; `None` if all packets are small.
    small: Option<u64>,
    /// The evidence that large packets vanish: 2 for a timeout, 1 for a retransmission that later data
    /// overtook. The arrival of a large packet clears it.
    black_hole_score: u32,
    /// Set if small packets arrived while the score was high: the path is neither dead nor just slow.
    large_vanish: bool,
    /// The probe of a larger packet size, while it is in flight.
    probe: Option<Range<u64>>,
    /// The result of the probe: set if it arrived.
    verdict: Option<bool>,
    /// The bytes of a probe that was lost just now.
    excused: u64,
}

impl Sizes {
    fn is_large(&self, bytes: u64) -> bool {
        self.small.is_some_and(|small| bytes > small)
    }

    /// Notes the arrival of contiguous bytes, `largest` at most.
    pub fn on_arrival(&mut self, largest: u64) {
        if self.is_large(largest) {
            self.black_hole_score = 0;
        } else {
            self.large_vanish |= self.black_hole_score >= BLACK_HOLE_SCORE && largest > 0;
        }
    }

    /// Returns the most bytes of a retransmission.
    pub fn bound(&self) -> u64 {
        let small = self
            .small
            .filter(|_| self.black_hole_score >= BLACK_HOLE_SCORE);
        small.unwrap_or(u64::MAX)
    }

    /// Notes a timeout: the first `bytes` in flight were lost, as was everything after them (RFC 4821
    /// section 7.7).
    pub fn on_timeout(&mut self, bytes: u64) {
        self.black_hole_score += 2 * u32::from(self.is_large(bytes));
        self.on_all_lost();
    }

    /// Notes that everything in flight was lost, or counts as lost.
    pub fn on_all_lost(&mut self) {
        self.verdict = self.probe.take().map(|_| false).or(self.verdict);
    }

    /// Notes that `lost` was lost. Returns whether it was the probe.
    pub fn on_lost(&mut self, lost: &Sent) -> bool {
        self.black_hole_score += u32::from(lost.retransmitted && self.is_large(lost.len()));
        let probe = self.probe.take_if(|probe| probe.start == lost.start);
        if let Some(probe) = &probe {
            self.verdict = Some(false);
            self.excused = probe.end - probe.start;
        }
        probe.is_some()
    }

    /// Returns whether the `lost` bytes just lost are the probe's: it was most likely too large, which is
    /// no sign of congestion (RFC 4821 section 7.6.2, RFC 8899 section 3).
    pub fn excuse_probe_loss(&mut self, lost: u64) -> bool {
        lost <= mem::take(&mut self.excused)
    }

    /// Returns the number of bytes at `start` that were one packet, if segments have `mss` bytes.
    pub fn packet_at(&self, start: u64, mss: u64) -> u64 {
        let probe = self.probe.as_ref().filter(|probe| probe.start == start);
        probe.map_or(mss, |probe| probe.end - probe.start)
    }

    /// Notes that `range` has arrived.
    pub fn on_range(&mut self, range: &Range<u64>) {
        let within = |probe: &mut Range<u64>| range.start <= probe.start && probe.end <= range.end;
        if self.probe.take_if(within).is_some() {
            self.verdict = Some(true);
        }
    }
}

impl Sender {
    /// Sets the most payload of a small packet; `None` if the path has no smaller size.
    pub fn set_small(&mut self, small: Option<u64>) {
        self.sizes.small = small;
    }

    /// Returns, once, whether large packets vanish (RFC 8899 section 4.3).
    pub fn sees_black_hole(&mut self) -> bool {
        if self.sizes.large_vanish {
            self.sizes.black_hole_score = 0;
        }
        mem::take(&mut self.sizes.large_vanish)
    }

    /// Returns whether a new size may be probed: no loss is being recovered from (RFC 4821 section 7.4).
    pub fn may_probe_size(&self) -> bool {
        self.recovery == Recovery::Open && self.board.lost() == 0 && self.sizes.probe.is_none()
    }

    /// Makes the next `len` bytes the probe: they leave as one packet.
    pub fn send_size_probe(&mut self, len: u64) {
        self.sizes.probe = Some(self.nxt..self.nxt + len);
    }

    /// Handles a report of the network that the probe did not pass.
    pub fn on_size_probe_lost(&mut self) {
        let sizes = &mut self.sizes;
        if let Some(probe) = sizes.probe.take() {
            sizes.verdict = Some(false);
            // Duplicates caused by data behind the probe report this loss again, and no other.
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

    /// Returns, once, whether the probe arrived, when that is known.
    pub fn take_size_probe_result(&mut self) -> Option<bool> {
        self.sizes.verdict.take()
    }
}
