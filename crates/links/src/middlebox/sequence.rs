//! Firewalls that randomise sequence numbers.

use core::net::{IpAddr, SocketAddr};

use braid_wire::tcp::{Flags, HEADER_LEN, kind};
use braid_wire::{Instant, Rng, Seq32};

use super::segment::{self, Segment};
use super::{Direction, Middlebox, Output, Packet};

/// A firewall that adds a random amount to the sequence numbers of each connection, so that nobody can predict
/// sequence numbers from those of earlier connections.
///
/// Each direction has its own amount. Acknowledgement numbers and SACK blocks are shifted back by the amount of
/// the opposite direction. The amounts follow from a key and from the addresses and ports, so that the firewall
/// needs no state. So a later connection with the same addresses and ports gets the same amounts.
#[derive(Debug, Clone)]
pub struct SequenceShift {
    key: u64,
    /// True if SACK blocks are not shifted.
    forgets_sack: bool,
}

impl SequenceShift {
    /// Creates a firewall with this key.
    pub fn new(key: u64) -> Self {
        SequenceShift {
            key,
            forgets_sack: false,
        }
    }

    /// Leaves SACK blocks unchanged, as some firewalls did. The host that sent the data then receives blocks with
    /// sequence numbers that it has not sent.
    #[must_use]
    pub fn forgetting_sack(mut self) -> Self {
        self.forgets_sack = true;
        self
    }

    /// Returns the amounts that are added to outbound and to inbound sequence numbers.
    fn shifts(&self, inside: SocketAddr, outside: SocketAddr) -> (u32, u32) {
        let mut rng = Rng::for_component(self.key, fingerprint(inside, outside));
        (rng.u32(), rng.u32())
    }

    fn apply(&self, direction: Direction, packet: &mut [u8], segment: &Segment) {
        // `seq_shift` is the amount of this segment's direction. `ack_shift` is the amount of the opposite
        // direction: the segment acknowledges sequence numbers of that direction.
        let (seq_shift, ack_shift) = match direction {
            Direction::Outbound => self.shifts(segment.src, segment.dst),
            Direction::Inbound => {
                let (outbound, inbound) = self.shifts(segment.dst, segment.src);
                (inbound, outbound)
            }
        };
        let acknowledges = segment.flags.contains(Flags::ACK);
        let shifts_sack = acknowledges && !self.forgets_sack;
        // This function adjusts the TCP checksum to the change, so that a wrong checksum stays wrong.
        segment::edit_header(packet, segment, |header| {
            shift(&mut header[4..8], seq_shift);
            if acknowledges {
                shift(&mut header[8..12], ack_shift.wrapping_neg());
            }
            let (_, options) = header.split_at_mut(HEADER_LEN);
            let shifted = |option: &&mut [u8]| shifts_sack && option[0] == kind::SACK;
            for option in segment::options_mut(options).filter(shifted) {
                // The edges follow the bytes of kind and length. `options_mut` guarantees these two bytes. If the
                // length is malformed, the last bytes form no edge and are not changed.
                for edge in option[2..].chunks_exact_mut(4) {
                    shift(edge, ack_shift.wrapping_neg());
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

/// Adds `amount` to the sequence number in `field`, which has four bytes.
fn shift(field: &mut [u8], amount: u32) {
    if let Some(field) = field.first_chunk_mut() {
        let shifted = Seq32(u32::from_be_bytes(*field)).add(amount);
        *field = shifted.0.to_be_bytes();
    }
}

/// Returns the FNV-1a hash of the addresses. Unlike the standard library's hash, this hash is the same in every
/// build, so that runs are repeatable.
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
