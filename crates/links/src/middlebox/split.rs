//! Middleboxes that cut segments.

use braid_wire::tcp::{self, Flags};
use braid_wire::{Instant, Seq32};

use super::segment::{self, Segment};
use super::{Direction, Middlebox, Output, Packet};

/// A box that cuts segments into smaller ones, each with the options of the original, like a network card
/// with TSO.
#[derive(Debug, Clone)]
pub struct Split {
    mss: usize,
    cut: u64,
}

impl Split {
    /// Makes a box that lets at most `mss` bytes of payload into a segment; 0 counts as 1.
    pub fn new(mss: u16) -> Self {
        Split {
            mss: usize::from(mss).max(1),
            cut: 0,
        }
    }

    /// Returns the number of segments cut so far.
    pub fn cut(&self) -> u64 {
        self.cut
    }
}

impl Middlebox for Split {
    fn process(
        &mut self,
        _now: Instant,
        direction: Direction,
        mut packet: Packet,
        out: &mut Output,
    ) {
        let segment = Segment::find(&mut packet.bytes).filter(|segment| {
            segment.is_plain_data()
                && segment.payload_len > self.mss
                && segment.is_intact(&packet.bytes)
        });
        let Some(segment) = segment else {
            out.push_back((direction, packet));
            return;
        };
        self.cut += 1;
        let (header, payload) = packet.bytes.split_at(segment.header_end());
        let last = (payload.len() - 1) / self.mss;
        for (n, part) in payload.chunks(self.mss).enumerate() {
            let mut bytes = [header, part].concat();
            let seq = segment.seq.add((n * self.mss) as u32);
            finish(
                &mut bytes,
                &segment,
                seq,
                flags(segment.flags, n == 0, n == last),
            );
            out.push_back((direction, Packet { bytes, ..packet }));
        }
    }
}

/// Returns the flags of a part: FIN and PSH belong to the last part only, CWR to the first (RFC 3168
/// section 6.1.2).
fn flags(original: Flags, first: bool, last: bool) -> Flags {
    let not_last = if last {
        Flags::EMPTY
    } else {
        Flags::FIN | Flags::PSH
    };
    let not_first = if first { Flags::EMPTY } else { Flags::CWR };
    original.without(not_last | not_first)
}

/// Completes the packet `bytes`, whose headers come from `segment` and whose payload is new.
pub(super) fn finish(bytes: &mut [u8], segment: &Segment, seq: Seq32, flags: Flags) {
    segment::set_length(bytes, segment.ip_len);
    if let Ok(mut view) = tcp::Packet::new(&mut bytes[segment.ip_len..]) {
        view.set_seq(seq);
        view.set_flags(flags);
        let (header, payload) = view.split_mut();
        tcp::fill_checksum(segment.src.ip(), segment.dst.ip(), header, &[payload]);
    }
}
