//! Sequence numbers as types, so that wrapping arithmetic on them is in this file only.

use core::cmp::Ordering;

/// A TCP sequence number (RFC 9293 section 3.4): 32 bits, with arithmetic modulo 2^32.
///
/// ```
/// use braid_wire::Seq32;
///
/// let last = Seq32(u32::MAX);
/// assert_eq!(last.add(3), Seq32(2));
/// assert!(last.before(Seq32(2)));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Seq32(pub u32);

impl Seq32 {
    /// Returns `self + n`, modulo 2^32.
    pub const fn add(self, n: u32) -> Seq32 {
        Seq32(self.0.wrapping_add(n))
    }

    /// Returns the signed distance from `other` to `self`. The distance is positive if `self` is later.
    pub const fn diff(self, other: Seq32) -> i32 {
        self.0.wrapping_sub(other.0) as i32
    }

    /// Returns whether `self` is before `other`.
    pub const fn before(self, other: Seq32) -> bool {
        self.diff(other) < 0
    }

    /// Returns the 64-bit offset from `base` that has this sequence number and is nearest to `near`. Returns
    /// `None` if the offset would be negative or exceed 64 bits.
    ///
    /// The engine keeps subflow sequence numbers as 64-bit offsets from the initial sequence number. Only this
    /// conversion has to handle wrap-around.
    pub const fn offset_near(self, base: Seq32, near: u64) -> Option<u64> {
        let expected = base.add(near as u32);
        near.checked_add_signed(self.diff(expected) as i64)
    }
}

/// Orders as [`before`](Seq32::before) does. There is no `Ord`, because the order is not transitive across more
/// than half the number space.
impl PartialOrd for Seq32 {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.diff(*other).cmp(&0))
    }
}

/// An MPTCP data sequence number (RFC 8684 section 3.3): 64 bits, with arithmetic modulo 2^64.
///
/// ```
/// use braid_wire::Dsn64;
///
/// // An option may carry the low 32 bits only.
/// let near = Dsn64(0x1_ffff_fff0);
/// assert_eq!(near.expand(0x10), Dsn64(0x2_0000_0010));
/// ```
// Conforms: 8684-3.3.1-12
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Dsn64(pub u64);

impl Dsn64 {
    /// Returns `self + n`, modulo 2^64.
    pub const fn add(self, n: u64) -> Dsn64 {
        Dsn64(self.0.wrapping_add(n))
    }

    /// Returns the signed distance from `other` to `self`. The distance is positive if `self` is later.
    pub const fn diff(self, other: Dsn64) -> i64 {
        self.0.wrapping_sub(other.0) as i64
    }

    /// Returns the full number that has the low 32 bits `low` and is nearest to `self` (RFC 8684 section 3.3.1).
    // Conforms: 8684-3.3.1-5
    pub const fn expand(self, low: u32) -> Dsn64 {
        let delta = low.wrapping_sub(self.0 as u32) as i32;
        Dsn64(self.0.wrapping_add(delta as i64 as u64))
    }

    /// Returns the low 32 bits.
    pub const fn low(self) -> u32 {
        self.0 as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_holds_across_the_wrap() {
        let (last, first) = (Seq32(u32::MAX), Seq32(0));
        assert!(last.before(first));
        assert!(last < first);
        assert!(first > last);
        assert_eq!(first.diff(last), 1);
        assert_eq!(last.diff(first), -1);
        assert_eq!(last.add(3), Seq32(2));
        assert!(!first.before(first));
        // The order has a meaning only within half the number space (RFC 9293 section 3.4).
        assert!(Seq32(0).before(Seq32(0x7fff_ffff)));
        assert!(Seq32(0x8000_0001).before(Seq32(0)));
    }

    #[test]
    fn offset_near_finds_the_right_wrap() {
        let base = Seq32(0xffff_fff0);
        assert_eq!(base.offset_near(base, 0), Some(0));
        assert_eq!(Seq32(0x10).offset_near(base, 0), Some(0x20));
        // Data before the initial sequence number has no offset.
        assert_eq!(Seq32(0xffff_ffef).offset_near(base, 0), None);
        assert_eq!(Seq32(0xffff_ffef).offset_near(base, 1), None);
        let far = 5 * (1 << 32) + 100;
        for offset in [far - 0x8000_0000, far - 1, far, far + 1, far + 0x7fff_ffff] {
            let seq = base.add(offset as u32);
            assert_eq!(seq.offset_near(base, far), Some(offset));
        }
        assert_eq!(
            Seq32(5).offset_near(Seq32(0), u64::MAX),
            None,
            "past the last offset"
        );
    }

    // Conforms: 8684-3.3.1-5, 8684-3.3.1-12
    #[test]
    fn dsn_is_modular_and_expands_to_the_nearest() {
        assert_eq!(Dsn64(u64::MAX).add(2), Dsn64(1));
        assert_eq!(Dsn64(1).diff(Dsn64(u64::MAX)), 2);
        assert_eq!(Dsn64(u64::MAX).diff(Dsn64(1)), -2);
        assert_eq!(Dsn64(0x1_2345_6789).low(), 0x2345_6789);
        let near = Dsn64(0x9_0000_0004);
        for delta in [-0x8000_0000i64, -5, -4, 0, 7, 0x7fff_ffff] {
            let full = Dsn64(near.0.wrapping_add_signed(delta));
            assert_eq!(near.expand(full.low()), full, "{delta}");
        }
        assert_eq!(
            Dsn64(3).expand(u32::MAX),
            Dsn64(u64::MAX),
            "back across zero"
        );
        assert_eq!(Dsn64(u64::MAX).expand(1), Dsn64(1), "forward across zero");
    }
}
