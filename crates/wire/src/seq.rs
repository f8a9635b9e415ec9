//! Sequence numbers as types: no raw wrapping arithmetic anywhere else.

use core::cmp::Ordering;

/// A TCP sequence number (RFC 9293 section 3.4): 32 bits, modulo arithmetic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Seq32(pub u32);

impl Seq32 {
    /// `self + n`, modulo 2^32.
    pub const fn add(self, n: u32) -> Seq32 {
        Seq32(self.0.wrapping_add(n))
    }

    /// Signed distance from `other` to `self`; positive if `self` is later.
    pub const fn diff(self, other: Seq32) -> i32 {
        self.0.wrapping_sub(other.0) as i32
    }

    /// Whether `self` is before `other`.
    pub const fn before(self, other: Seq32) -> bool {
        self.diff(other) < 0
    }

    /// The 64-bit offset relative to `base` whose low 32 bits are `self`, nearest to `near`;
    /// `None` if that would lie before offset 0.
    ///
    /// The engine keeps subflow sequence numbers as 64-bit offsets from the initial one and meets
    /// wrap-around only here.
    pub const fn offset_near(self, base: Seq32, near: u64) -> Option<u64> {
        let expected = base.add(near as u32);
        near.checked_add_signed(self.diff(expected) as i64)
    }
}

impl PartialOrd for Seq32 {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.diff(*other).cmp(&0))
    }
}

/// An MPTCP data sequence number (RFC 8684 section 3.3): 64 bits, modulo arithmetic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Dsn64(pub u64);

impl Dsn64 {
    /// `self + n`, modulo 2^64.
    pub const fn add(self, n: u64) -> Dsn64 {
        Dsn64(self.0.wrapping_add(n))
    }

    /// Signed distance from `other` to `self`; positive if `self` is later.
    pub const fn diff(self, other: Dsn64) -> i64 {
        self.0.wrapping_sub(other.0) as i64
    }

    /// The full number whose low 32 bits are `low`, nearest to `self` (RFC 8684 section 3.3.1).
    pub const fn expand(self, low: u32) -> Dsn64 {
        let delta = low.wrapping_sub(self.0 as u32) as i32;
        Dsn64(self.0.wrapping_add(delta as i64 as u64))
    }

    /// The low 32 bits.
    pub const fn low(self) -> u32 {
        self.0 as u32
    }
}
