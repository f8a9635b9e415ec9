//! What losses and arrivals say of the size of packets that the path takes (RFC 4821, 8899). The sizes
//! themselves are those of [`PathMtu`](crate::tcp::path_mtu::PathMtu).

use core::mem;
use core::ops::Range;

use braid_wire::Instant;

use super::{Recovery, Sender};
use crate::tcp::scoreboard::Sent;

/// Doubt from which on a small packet is sent in place of a large one, to see whether that arrives.
const BLACK_HOLE: u32 = 4;

/// What is known of packets by their size.
#[derive(Debug, Clone, Default)]
pub(super) struct Sizes {
    /// Most payload of a packet that counts as small; `None` where all do.
    small: Option<u64>,
    /// Doubt that large packets arrive: 2 for a timeout, 1 for a retransmission that was overtaken by
    /// what did arrive. An arrival of a large one ends it.
    doubt: u32,
    /// Small ones arrived in spite of it: the path is not dead, nor just slow.
    vanish: bool,
    /// A packet that is larger than others, to see whether it arrives.
    probe: Option<Range<u64>>,
    /// Whether it did.
    verdict: Option<bool>,
    /// Bytes of one that was lost just now.
    excused: u64,
}

impl Sizes {
    fn is_large(&self, bytes: u64) -> bool {
        self.small.is_some_and(|small| bytes > small)
    }

    /// Bytes next to each other arrived, `largest` at most.
    pub fn on_arrival(&mut self, largest: u64) {
        if self.is_large(largest) {
            self.doubt = 0;
        } else {
            self.vanish |= self.doubt >= BLACK_HOLE && largest > 0;
        }
    }

    /// Most bytes of a packet that is sent again.
    pub fn bound(&self) -> u64 {
        let small = self.small.filter(|_| self.doubt >= BLACK_HOLE);
        small.unwrap_or(u64::MAX)
    }

    /// The first `bytes` in flight were lost, as were all after them (RFC 4821 section 7.7).
    pub fn on_timeout(&mut self, bytes: u64) {
        self.doubt += 2 * u32::from(self.is_large(bytes));
        self.on_all_lost();
    }

    /// Everything in flight was lost, or counts as lost.
    pub fn on_all_lost(&mut self) {
        self.verdict = self.probe.take().map(|_| false).or(self.verdict);
    }

    /// `lost` was lost. Returns whether that was the probe.
    pub fn on_lost(&mut self, lost: &Sent) -> bool {
        self.doubt += u32::from(lost.retransmitted && self.is_large(lost.len()));
        let probe = self.probe.take_if(|probe| probe.start == lost.start);
        if let Some(probe) = &probe {
            self.verdict = Some(false);
            self.excused = probe.end - probe.start;
        }
        probe.is_some()
    }

    /// Whether the `lost` bytes that were lost just now are the probe's: too large, most likely, and
    /// no sign of congestion (RFC 4821 section 7.6.2, RFC 8899 section 3).
    pub fn excuse(&mut self, lost: u64) -> bool {
        lost <= mem::take(&mut self.excused)
    }

    /// Bytes at `start` that were one packet, where segments are of `mss` bytes.
    pub fn packet_at(&self, start: u64, mss: u64) -> u64 {
        let probe = self.probe.as_ref().filter(|probe| probe.start == start);
        probe.map_or(mss, |probe| probe.end - probe.start)
    }

    /// What `range` says has arrived.
    pub fn on_range(&mut self, range: &Range<u64>) {
        let within = |probe: &mut Range<u64>| range.start <= probe.start && probe.end <= range.end;
        if self.probe.take_if(within).is_some() {
            self.verdict = Some(true);
        }
    }
}

impl Sender {
    /// Packets with no more payload than `small` are small; `None` where the path takes no smaller ones.
    pub fn set_small(&mut self, small: Option<u64>) {
        self.sizes.small = small;
    }

    /// Whether large packets vanish (RFC 8899 section 4.3). Said once.
    pub fn sees_black_hole(&mut self) -> bool {
        if self.sizes.vanish {
            self.sizes.doubt = 0;
        }
        mem::take(&mut self.sizes.vanish)
    }

    /// Whether a packet of a new size may be tried: nothing else is the matter (RFC 4821 section 7.4).
    pub fn may_try_size(&self) -> bool {
        self.recovery == Recovery::Open && self.board.lost() == 0 && self.sizes.probe.is_none()
    }

    /// The next `len` bytes go out as one packet of a size that is tried.
    pub fn try_size(&mut self, len: u64) {
        self.sizes.probe = Some(self.nxt..self.nxt + len);
    }

    /// The network says that this packet did not pass.
    pub fn lose_try(&mut self) {
        let sizes = &mut self.sizes;
        if let Some(probe) = sizes.probe.take() {
            sizes.verdict = Some(false);
            // Duplicates of what was sent behind it tell of it again, and of nothing else.
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

    /// Whether the `len` bytes at `seq` are that packet.
    pub fn tries_size(&self, seq: u64, len: u64) -> bool {
        self.sizes.probe == Some(seq..seq + len)
    }

    /// Whether that packet arrived, once that is known. Said once.
    pub fn size_verdict(&mut self) -> Option<bool> {
        self.sizes.verdict.take()
    }
}
