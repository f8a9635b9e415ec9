//! The arithmetic on the curve of Ed25519 (RFC 8032 section 5.1) that distinguishes a public key from other bytes.
//! `ring` offers no check of a public key alone.
//!
//! The running time depends on the bytes. This is acceptable although the bytes may be a private key: the program
//! checks a key once, when it reads or generates the key, and nobody on the network can time or repeat the check.

/// The prime order L of the base point (RFC 8032 section 5.1), little endian.
const GROUP_ORDER: [u8; 32] = [
    0xed, 0xd3, 0xf5, 0x5c, 0x1a, 0x63, 0x12, 0x58, 0xd6, 0x9c, 0xf7, 0xa2, 0xde, 0xf9, 0xde, 0x14,
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x10,
];
// Exponents modulo p = 2^255 - 19, little endian. All bits between the first and the last byte are 1.
/// The exponent p - 2, which gives the inverse (Fermat's little theorem).
const INVERSE_EXPONENT: [u8; 32] = exponent(0xeb, 0x7f);
/// The exponent (p - 5) / 8 of the square root (RFC 8032 section 5.1.3).
const SQUARE_ROOT_EXPONENT: [u8; 32] = exponent(0xfd, 0x0f);
/// The exponent (p - 1) / 4, with which 2 gives a square root of -1 (RFC 8032 section 5.1.3).
const MINUS_ONE_ROOT_EXPONENT: [u8; 32] = exponent(0xfb, 0x1f);
/// Bits in a limb: 5 limbs hold 255 bits, and products of limbs fit 128 bits.
const LIMB_BITS: u32 = 51;
const LIMB_MASK: u64 = (1 << LIMB_BITS) - 1;

/// Returns whether `bytes` encode a public key, that is, a point in the prime-order subgroup. One in sixteen
/// random strings does: half of all strings decode to a point, and one point in eight is in the subgroup (cofactor
/// 8).
pub(super) fn is_public(bytes: &[u8; 32]) -> bool {
    Point::decode(bytes).is_some_and(|point| point.times(&GROUP_ORDER).is_neutral())
}

const fn exponent(first: u8, last: u8) -> [u8; 32] {
    let mut bytes = [0xff; 32];
    bytes[0] = first;
    bytes[31] = last;
    bytes
}

/// A number modulo p, in five limbs of 51 bits. Between carries a limb may exceed 51 bits a little.
#[derive(Clone, Copy)]
struct Number([u64; 5]);

impl Number {
    const ZERO: Number = Number([0; 5]);
    const ONE: Number = Number::small(1);

    const fn small(value: u64) -> Number {
        Number([value, 0, 0, 0, 0])
    }

    /// Reads the low 255 bits, little endian.
    fn decode(bytes: &[u8; 32]) -> Number {
        let mut limbs = [0; 5];
        for (at, byte) in bytes.iter().enumerate() {
            let bit = 8 * at as u32;
            let (limb, shift) = ((bit / LIMB_BITS) as usize, bit % LIMB_BITS);
            limbs[limb] |= u64::from(*byte) << shift & LIMB_MASK;
            if shift + 8 > LIMB_BITS && limb < 4 {
                limbs[limb + 1] |= u64::from(*byte) >> (LIMB_BITS - shift);
            }
        }
        Number(limbs)
    }

    /// Encodes the unique representative below p.
    fn encode(self) -> [u8; 32] {
        // One pass may leave the lowest limb above 51 bits, as it adds the wrapped carry there last.
        let mut limbs = self.carried().carried().0;
        // Subtract p if the number is at least p, that is, if adding 19 carries into bit 255. To subtract p, the
        // code adds 19 and drops bit 255; the last limb's mask drops the bit.
        let mut carry = 19;
        for limb in limbs {
            carry = (limb + carry) >> LIMB_BITS;
        }
        limbs[0] += 19 * carry;
        let mut bytes = [0; 32];
        let (mut pending, mut bits, mut at) = (0_u128, 0, 0);
        let mut carry = 0;
        for limb in limbs {
            let value = limb + carry;
            carry = value >> LIMB_BITS;
            pending |= u128::from(value & LIMB_MASK) << bits;
            bits += LIMB_BITS;
            while bits >= 8 {
                bytes[at] = pending as u8;
                (pending, bits, at) = (pending >> 8, bits - 8, at + 1);
            }
        }
        bytes[31] = pending as u8;
        bytes
    }

    /// Moves the excess of each limb to the next one. The excess of the last limb wraps around, times 19: 2^255 is
    /// 19 modulo p.
    fn carried(self) -> Number {
        let mut limbs = self.0;
        let mut carry = 0;
        for limb in &mut limbs {
            *limb += carry;
            carry = *limb >> LIMB_BITS;
            *limb &= LIMB_MASK;
        }
        limbs[0] += 19 * carry;
        Number(limbs)
    }

    fn plus(self, other: Number) -> Number {
        let sum = |at: usize| self.0[at] + other.0[at];
        Number(core::array::from_fn(sum)).carried()
    }

    fn minus(self, other: Number) -> Number {
        // A limb of `other` may exceed 51 bits. Adding 4 p keeps the difference from underflowing.
        let four_p = |at: usize| {
            if at == 0 {
                4 * (LIMB_MASK - 18)
            } else {
                4 * LIMB_MASK
            }
        };
        let difference = |at: usize| self.0[at] + four_p(at) - other.0[at];
        Number(core::array::from_fn(difference)).carried()
    }

    fn times(self, other: Number) -> Number {
        let mut sums = [0_u128; 5];
        for (i, a) in self.0.iter().enumerate() {
            for (j, b) in other.0.iter().enumerate() {
                // 2^255 is 19 modulo p, so limbs above the fifth wrap around with this factor.
                let wraps = if i + j >= 5 { 19 } else { 1 };
                sums[(i + j) % 5] += u128::from(*a) * u128::from(*b) * wraps;
            }
        }
        let mut limbs = [0; 5];
        let mut carry = 0;
        for (limb, sum) in limbs.iter_mut().zip(sums) {
            let sum = sum + carry;
            *limb = sum as u64 & LIMB_MASK;
            carry = sum >> LIMB_BITS;
        }
        let first = u128::from(limbs[0]) + 19 * carry;
        limbs[0] = first as u64 & LIMB_MASK;
        limbs[1] += (first >> LIMB_BITS) as u64;
        Number(limbs)
    }

    fn squared(self) -> Number {
        self.times(self)
    }

    fn power(self, exponent: &[u8; 32]) -> Number {
        let mut result = Number::ONE;
        for bit in (0..256).rev() {
            result = result.squared();
            if exponent[bit / 8] >> (bit % 8) & 1 == 1 {
                result = result.times(self);
            }
        }
        result
    }

    fn equals(self, other: Number) -> bool {
        self.encode() == other.encode()
    }

    /// Returns the curve's constant d = -121665 / 121666 (RFC 8032 section 5.1).
    fn curve_d() -> Number {
        let inverse = Number::small(121_666).power(&INVERSE_EXPONENT);
        Number::ZERO.minus(Number::small(121_665)).times(inverse)
    }
}

/// A point in extended coordinates (RFC 8032 section 5.1.4). Each point carries the curve's constant d, because
/// computing d is slow and not `const`.
#[derive(Clone, Copy)]
struct Point {
    x: Number,
    y: Number,
    z: Number,
    t: Number,
    d: Number,
}

impl Point {
    /// Decodes a point, refusing non-canonical encodings (RFC 8032 section 5.1.3).
    fn decode(bytes: &[u8; 32]) -> Option<Point> {
        // The highest bit is the sign of x; the other 255 bits are y.
        let sign = bytes[31] >> 7 == 1;
        let y = Number::decode(bytes);
        let mut canonical = y.encode();
        canonical[31] |= bytes[31] & 0x80;
        if canonical != *bytes {
            return None;
        }
        let d = Number::curve_d();
        let (u, v) = (
            y.squared().minus(Number::ONE),
            d.times(y.squared()).plus(Number::ONE),
        );
        // The candidate x = u v^3 (u v^7)^((p - 5) / 8) of RFC 8032 section 5.1.3.
        let v3 = v.squared().times(v);
        let root = u.times(v3.squared()).times(v).power(&SQUARE_ROOT_EXPONENT);
        let mut x = u.times(v3).times(root);
        let vx2 = v.times(x.squared());
        if vx2.equals(Number::ZERO.minus(u)) {
            // 2^((p - 1) / 4) is a square root of -1.
            x = x.times(Number::small(2).power(&MINUS_ONE_ROOT_EXPONENT));
        } else if !vx2.equals(u) {
            return None;
        }
        let is_odd = x.encode()[0] & 1 == 1;
        // Zero has no negative, so its sign bit must be clear (RFC 8032 section 5.1.3, step 4).
        if x.equals(Number::ZERO) && sign {
            return None;
        }
        if is_odd != sign {
            x = Number::ZERO.minus(x);
        }
        let (z, t) = (Number::ONE, x.times(y));
        Some(Point { x, y, z, t, d })
    }

    fn neutral(self) -> Point {
        Point {
            x: Number::ZERO,
            y: Number::ONE,
            z: Number::ONE,
            t: Number::ZERO,
            d: self.d,
        }
    }

    fn is_neutral(&self) -> bool {
        self.x.equals(Number::ZERO) && self.y.equals(self.z)
    }

    /// Adds two points by the complete formula (RFC 8032 section 5.1.4), which also doubles.
    fn plus(self, other: Point) -> Point {
        let a = self.y.minus(self.x).times(other.y.minus(other.x));
        let b = self.y.plus(self.x).times(other.y.plus(other.x));
        let c = self.t.times(other.t).times(self.d.plus(self.d));
        let d = self.z.times(other.z);
        let (d, e) = (d.plus(d), b.minus(a));
        let (f, g, h) = (d.minus(c), d.plus(c), b.plus(a));
        Point {
            x: e.times(f),
            y: g.times(h),
            z: f.times(g),
            t: e.times(h),
            d: self.d,
        }
    }

    fn times(self, factor: &[u8; 32]) -> Point {
        let mut result = self.neutral();
        for bit in (0..256).rev() {
            result = result.plus(result);
            if factor[bit / 8] >> (bit % 8) & 1 == 1 {
                result = result.plus(self);
            }
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use braid_wire::Rng;

    use super::*;
    use crate::keys::PrivateKey;

    fn bytes(hex: &str) -> [u8; 32] {
        core::array::from_fn(|at| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).unwrap())
    }

    /// The public keys are those of RFC 8032 section 7.1, tests 1 to 3.
    #[test]
    fn public_keys_are_points_of_their_group() {
        for key in [
            "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
            "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
            "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
        ] {
            assert!(is_public(&bytes(key)), "{key}");
        }
        for n in 0..40 {
            let key = PrivateKey::from_seed([n; 32]);
            assert!(is_public(key.public().as_bytes()), "of the seed {n}");
        }
    }

    /// The strings are: p itself, a y without a square root for x, and points of order 2 and 8, which are not in
    /// the prime-order subgroup.
    #[test]
    fn other_bytes_are_no_public_key() {
        for other in [
            "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
            "0200000000000000000000000000000000000000000000000000000000000000",
            "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
            "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
        ] {
            assert!(!is_public(&bytes(other)), "{other}");
        }
    }

    /// Half of all strings decode to a point, and one point in eight is in the subgroup, so 320 strings contain 20
    /// public keys on average. The standard deviation is 4.3 (the root of 320 * 15 / 256); the bounds are 2.8 of
    /// them below and 3.7 above.
    #[test]
    fn one_in_sixteen_random_strings_is_a_public_key() {
        let mut rng = Rng::from_seed([7; 32]);
        let mut drawn = [0; 32];
        let mut is_one = |_: &u32| {
            rng.fill(&mut drawn);
            is_public(&drawn)
        };
        let found = (0..320).filter(|n| is_one(n)).count();
        assert!((8..=36).contains(&found), "{found} of 320");
    }
}
