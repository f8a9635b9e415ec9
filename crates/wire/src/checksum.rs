//! The Internet checksum (RFC 1071).

use core::net::IpAddr;

/// A one's complement sum that is not folded to 16 bits yet. It is the plain sum of the 16-bit big-endian words,
/// so the sums of a message's parts can be added.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sum(pub u64);

/// Bytes per round of the inner loop. They fill two vector registers of 128 bits, so that the compiler vectorises
/// the loop.
const STRIDE: usize = 32;
/// Independent sums ("lanes") of the inner loop; each adds one 32-bit word per round.
const LANES: usize = STRIDE / 4;
/// Bytes of an IPv4 header without options, the most frequent data.
const V4_HEADER_LEN: usize = 20;

/// Adds `data` to `start`. If the length of `data` is odd, a zero byte pads it, so only the last part of a message
/// may have an odd length.
pub fn sum(start: Sum, data: &[u8]) -> Sum {
    Sum(start.0 + u64::from(sum_words(data)))
}

/// Adds `data`, which begins at byte `offset` of the message. Because the offset is known, any part may have an
/// odd length.
///
/// At an odd offset, high and low bytes change places: the first byte of `data` is the low half of a word. The two
/// bytes of the sum of `data` are therefore swapped (RFC 1071 section 2(B)).
pub fn sum_at(start: Sum, offset: usize, data: &[u8]) -> Sum {
    let words = sum_words(data);
    let words = if offset % 2 == 1 {
        words.swap_bytes()
    } else {
        words
    };
    Sum(start.0 + u64::from(words))
}

/// Returns the sum of the TCP, UDP or ICMPv6 pseudo-header. `src` and `dst` must be of the same address family.
pub fn pseudo_header(src: IpAddr, dst: IpAddr, protocol: u8, len: u32) -> Sum {
    let rest = u64::from(protocol) + u64::from(len >> 16) + u64::from(len & 0xffff);
    Sum(address(src) + address(dst) + rest)
}

/// Folds a sum to 16 bits without complementing it. A sender with checksum offload folds the sum of the
/// pseudo-header, and writes the result to the checksum field (`VIRTIO_NET_HDR_F_NEEDS_CSUM`). A message with a
/// right checksum folds to 0xffff.
pub fn fold(sum: Sum) -> u16 {
    fold_native(sum.0)
}

/// Folds and complements a sum. Returns the value of the checksum field.
pub fn finish(sum: Sum) -> u16 {
    !fold(sum)
}

/// Returns the new value of the checksum field `field`, after the sum of a part of the message has changed from
/// `old` to `new` (RFC 1624, equation 3). The rest of the message need not be known. A wrong checksum stays wrong.
pub fn adjust(field: u16, old: Sum, new: Sum) -> u16 {
    let unchanged = u64::from(!field) + u64::from(!fold(old));
    finish(Sum(unchanged + u64::from(fold(new))))
}

/// Returns the folded sum of `data` as big-endian words.
///
/// One's complement addition commutes with swapping bytes (RFC 1071 section 2(B)), and words may be any multiple
/// of 16 bits wide (section 2(C)). The loop therefore adds 32-bit words in native byte order, and only the result
/// is converted. The 64-bit lanes cannot overflow before 2^32 rounds.
fn sum_words(data: &[u8]) -> u16 {
    // With a known length, the compiler unrolls the loop.
    if let Ok(header) = <&[u8; V4_HEADER_LEN]>::try_from(data) {
        let words = header.as_chunks::<4>().0.iter();
        let total = words.map(|word| u64::from(u32::from_ne_bytes(*word))).sum();
        return u16::from_be(fold_native(total));
    }
    let (strides, rest) = data.as_chunks::<STRIDE>();
    // Headers are often shorter than a stride. For them the wide loop is skipped.
    let mut total = match strides {
        [] => 0,
        _ => sum_strides(strides),
    };
    let (words, rest) = rest.as_chunks::<4>();
    for word in words {
        total += u64::from(u32::from_ne_bytes(*word));
    }
    let (pairs, rest) = rest.as_chunks::<2>();
    for pair in pairs {
        total += u64::from(u16::from_ne_bytes(*pair));
    }
    if let [last] = rest {
        total += u64::from(u16::from_ne_bytes([*last, 0]));
    }
    u16::from_be(fold_native(total))
}

/// Returns the sum of whole strides. The lanes are folded, so that their sum cannot overflow.
fn sum_strides(strides: &[[u8; STRIDE]]) -> u64 {
    let mut lanes = [0u64; LANES];
    for stride in strides {
        for (lane, word) in lanes.iter_mut().zip(stride.as_chunks::<4>().0) {
            *lane += u64::from(u32::from_ne_bytes(*word));
        }
    }
    lanes.iter().map(|&lane| u64::from(fold_native(lane))).sum()
}

/// Adds the four 16-bit words of `x` with end-around carry, in any byte order.
fn fold_native(x: u64) -> u16 {
    let x = (x >> 32) + (x & 0xffff_ffff);
    let x = (x >> 16 & 0xffff) + (x >> 32) + (x & 0xffff);
    let x = (x >> 16) + (x & 0xffff);
    // After the last two steps, the value is at most 0xffff and one carry. Adding this carry cannot produce a
    // further carry.
    ((x >> 16) + x) as u16
}

fn address(addr: IpAddr) -> u64 {
    match addr {
        IpAddr::V4(a) => u64::from(a.to_bits() >> 16) + u64::from(a.to_bits() & 0xffff),
        IpAddr::V6(a) => u64::from(sum_words(&a.octets())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Computes the sum word by word, as in RFC 1071 section 1.
    fn reference(data: &[u8]) -> u16 {
        let mut total = 0u32;
        for pair in data.chunks(2) {
            total += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
            total = (total & 0xffff) + (total >> 16);
        }
        total as u16
    }

    #[test]
    fn rfc_1071_section_3_example() {
        let data = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(fold(sum(Sum::default(), &data)), 0xddf2);
        assert_eq!(finish(sum(Sum::default(), &data)), !0xddf2);
    }

    #[test]
    fn every_length_agrees_with_the_reference() {
        let data: alloc::vec::Vec<u8> = (0..300u32).map(|i| (i * 151 + 7) as u8).collect();
        for len in 0..data.len() {
            assert_eq!(
                fold(sum(Sum::default(), &data[..len])),
                reference(&data[..len]),
                "{len}"
            );
        }
    }

    #[test]
    fn all_ones_do_not_overflow() {
        let data = alloc::vec![0xff; 1 << 16];
        assert_eq!(fold(sum(Sum::default(), &data)), 0xffff);
        assert_eq!(fold(Sum(u64::MAX)), 0xffff);
        assert_eq!(fold(Sum(0xffff_ffff_0000_0001)), 1);
    }

    #[test]
    fn parts_of_odd_length_add_up() {
        let data: alloc::vec::Vec<u8> = (0..97u32).map(|i| (i * 37 + 11) as u8).collect();
        for cut in 0..data.len() {
            let first = sum_at(Sum::default(), 0, &data[..cut]);
            let both = sum_at(first, cut, &data[cut..]);
            assert_eq!(fold(both), reference(&data), "cut at {cut}");
        }
    }

    #[test]
    fn rfc_1624_section_4_example() {
        assert_eq!(adjust(0xdd2f, Sum(0x5555), Sum(0x3285)), 0x0000);
    }

    #[test]
    fn an_adjusted_field_is_the_checksum_of_the_changed_message() {
        let mut data: alloc::vec::Vec<u8> = (0..64u32).map(|i| (i * 91 + 3) as u8).collect();
        for step in 0..200usize {
            let before = finish(sum(Sum::default(), &data));
            let part = 2 * (step % 20)..2 * (step % 20) + 8;
            let old = sum(Sum::default(), &data[part.clone()]);
            for byte in &mut data[part.clone()] {
                *byte = byte.wrapping_mul(5).wrapping_add(step as u8);
            }
            let new = sum(Sum::default(), &data[part]);
            let after = finish(sum(Sum::default(), &data));
            assert_eq!(adjust(before, old, new), after, "step {step}");
            // A wrong field stays wrong.
            assert_ne!(adjust(before ^ 0x10, old, new), after, "step {step}");
        }
    }

    #[test]
    fn pseudo_header_is_the_sum_of_its_fields() {
        let v4 = pseudo_header(
            "10.1.2.3".parse().unwrap(),
            "10.0.0.1".parse().unwrap(),
            6,
            20,
        );
        assert_eq!(v4.0, 0x0a01 + 0x0203 + 0x0a00 + 0x0001 + 6 + 20);
        let v6 = pseudo_header("::1".parse().unwrap(), "::2".parse().unwrap(), 58, 0x1_0002);
        assert_eq!(v6.0, 1 + 2 + 58 + 1 + 2);
    }
}
