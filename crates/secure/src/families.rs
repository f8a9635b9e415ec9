//! The address families in which a server reaches destinations.

use core::fmt;
use core::net::IpAddr;

use serde::{Deserialize, Serialize};

/// A set of address families.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Families {
    /// IPv4.
    pub v4: bool,
    /// IPv6.
    pub v6: bool,
}

impl Families {
    /// IPv4 and IPv6.
    pub const BOTH: Families = Families { v4: true, v6: true };

    /// Neither IPv4 nor IPv6.
    pub const NONE: Families = Families {
        v4: false,
        v6: false,
    };

    /// Returns whether the set contains the family of `ip`; an IPv4-mapped IPv6 address counts as IPv4.
    pub fn has(self, ip: IpAddr) -> bool {
        match ip.to_canonical() {
            IpAddr::V4(_) => self.v4,
            IpAddr::V6(_) => self.v6,
        }
    }

    /// Adds a family to the set if `contained` is true, and removes it otherwise. The family is IPv6 if `v6` is
    /// true, and IPv4 otherwise.
    pub fn set(&mut self, v6: bool, contained: bool) {
        match v6 {
            false => self.v4 = contained,
            true => self.v6 = contained,
        }
    }

    /// Returns the union of both sets.
    pub fn or(self, other: Families) -> Families {
        Families {
            v4: self.v4 || other.v4,
            v6: self.v6 || other.v6,
        }
    }

    /// Returns one bit for each family: IPv4 is bit 0, IPv6 is bit 1.
    pub fn to_bits(self) -> u8 {
        u8::from(self.v4) | u8::from(self.v6) << 1
    }

    /// Decodes the form of [`to_bits`](Self::to_bits). Other bits are ignored, as later releases may define them.
    pub fn from_bits(bits: u8) -> Families {
        Families {
            v4: bits & 1 != 0,
            v6: bits & 2 != 0,
        }
    }
}

/// The default set has both families, because a server that reports no families is assumed to reach both.
impl Default for Families {
    fn default() -> Self {
        Families::BOTH
    }
}

impl fmt::Display for Families {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match (self.v4, self.v6) {
            (true, true) => "IPv4 and IPv6",
            (true, false) => "IPv4",
            (false, true) => "IPv6",
            (false, false) => "none",
        })
    }
}
