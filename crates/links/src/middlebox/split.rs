//! Middleboxes that split segments.

use braid_wire::tcp::{self, Flags};
use braid_wire::{Instant, Seq32};

use super::segment::{self, Segment};
use super::{Direction, Middlebox, Output, Packet};

/// A middlebox that splits segments into smaller ones, like a network card with TSO. Each part has the options of
/// the original.
#[derive(Debug, Clone)]
pub struct Split {
    mss: usize,
    /// The number of segments that were split so far.
    cut: u64,
}

impl Split {
    /// Creates a middlebox that splits segments with more than `mss` bytes of payload; 0 counts as 1.
    pub fn new(mss: u16) -> Self {
        Split {
            mss: usize::from(mss).max(1),
            cut: 0,
        }
    }

    /// Returns the number of segments that were split so far.
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
            let flags = flags(segment.flags, n == 0, n == last);
            finish(&mut bytes, &segment, seq, flags);
            out.push_back((direction, Packet { bytes, ..packet }));
        }
    }
}

/// Returns the flags of a part. Only the last part has FIN and PSH, and only the first has CWR (RFC 3168 section
/// 6.1.2).
fn flags(original: Flags, first: bool, last: bool) -> Flags {
    let not_last = if last {
        Flags::EMPTY
    } else {
        Flags::FIN | Flags::PSH
    };
    let not_first = if first { Flags::EMPTY } else { Flags::CWR };
    original.without(not_last | not_first)
}

/// Completes the packet `bytes`, which has the headers of `segment` and a new payload: sets lengths, sequence
/// number, flags and checksums.
pub(super) fn finish(bytes: &mut [u8], segment: &Segment, seq: Seq32, flags: Flags) {
    segment::set_length(bytes, segment.ip_len);
    if let Ok(mut view) = tcp::Packet::new(&mut bytes[segment.ip_len..]) {
        view.set_seq(seq);
        view.set_flags(flags);
        let (header, payload) = view.split_mut();
        tcp::fill_checksum(segment.src.ip(), segment.dst.ip(), header, &[payload]);
    }
}
