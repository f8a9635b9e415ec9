//! Firewalls that hide sequence numbers.

use core::net::{IpAddr, SocketAddr};

use braid_wire::tcp::{Flags, HEADER_LEN, kind};
use braid_wire::{Instant, Rng, Seq32};

use super::segment::{self, Segment};
use super::{Direction, Middlebox, Output, Packet};

/// A firewall that shifts the sequence numbers of each connection, so that nobody can guess them from
/// earlier ones.
///
/// Each direction has an amount of its own. Acknowledgements and SACK blocks are shifted back. The
/// amounts follow from the addresses and a key, so that the box keeps no state.
#[derive(Debug, Clone)]
pub struct SequenceShift {
    key: u64,
    forgets_sack: bool,
}

impl SequenceShift {
    /// Makes a firewall with this key.
    pub fn new(key: u64) -> Self {
        SequenceShift {
            key,
            forgets_sack: false,
        }
    }

    /// Leaves SACK blocks as they are, as some firewalls did: the blocks then name data that was never
    /// sent.
    #[must_use]
    pub fn forgetting_sack(mut self) -> Self {
        self.forgets_sack = true;
        self
    }

    /// Returns the amounts added to sequence numbers on the way out and on the way in.
    fn shifts(&self, inside: SocketAddr, outside: SocketAddr) -> (u32, u32) {
        let mut rng = Rng::for_component(self.key, fingerprint(inside, outside));
        (rng.u32(), rng.u32())
    }

    fn apply(&self, direction: Direction, packet: &mut [u8], segment: &Segment) {
        let (along, against) = match direction {
            Direction::Outbound => self.shifts(segment.src, segment.dst),
            Direction::Inbound => {
                let (out, back) = self.shifts(segment.dst, segment.src);
                (back, out)
            }
        };
        let acknowledges = segment.flags.contains(Flags::ACK);
        let shifts_sack = acknowledges && !self.forgets_sack;
        segment::edit_header(packet, segment, |header| {
            shift(&mut header[4..8], along);
            if acknowledges {
                shift(&mut header[8..12], against.wrapping_neg());
            }
            let (_, options) = header.split_at_mut(HEADER_LEN);
            let found: Vec<_> = segment::options(options).collect();
            for range in found.into_iter().filter(|_| shifts_sack) {
                if options[range.start] == kind::SACK {
                    for edge in options[range].split_at_mut(2).1.chunks_exact_mut(4) {
                        shift(edge, against.wrapping_neg());
                    }
                }
            }
        });
    }
}

impl Middlebox for SequenceShift {
    fn process(
        &mut self,
        _now: Instant,
        direction: Direction,
        mut packet: Packet,
        out: &mut Output,
    ) {
        if let Some(segment) = Segment::find(&mut packet.bytes) {
            self.apply(direction, &mut packet.bytes, &segment);
        }
        out.push_back((direction, packet));
    }
}

/// Adds `by` to the sequence number that `field` holds.
fn shift(field: &mut [u8], by: u32) {
    if let Some(field) = field.first_chunk_mut() {
        *field = Seq32(u32::from_be_bytes(*field)).add(by).0.to_be_bytes();
    }
}

/// Returns the FNV-1a hash of the addresses; unlike std's hash, it is the same in every build, so runs
/// repeat.
fn fingerprint(inside: SocketAddr, outside: SocketAddr) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325;
    let mut mix = |bytes: &[u8]| {
        for byte in bytes {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    };
    for addr in [inside, outside] {
        match addr.ip() {
            IpAddr::V4(ip) => mix(&ip.octets()),
            IpAddr::V6(ip) => mix(&ip.octets()),
        }
        mix(&addr.port().to_be_bytes());
    }
    hash
}
