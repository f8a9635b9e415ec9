//! The address families in which a server reaches destinations.

use core::fmt;
use core::net::IpAddr;

use serde::{Deserialize, Serialize};

/// Address families.
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

    /// Neither.
    pub const NONE: Families = Families {
        v4: false,
        v6: false,
    };

    /// Returns whether the family of `ip` is one of them; an IPv4-mapped address is IPv4.
    pub fn has(self, ip: IpAddr) -> bool {
        match ip.to_canonical() {
            IpAddr::V4(_) => self.v4,
            IpAddr::V6(_) => self.v6,
        }
    }

    /// Adds IPv6 (`v6`) or IPv4, or takes it out.
    pub fn set(&mut self, v6: bool, there: bool) {
        match v6 {
            false => self.v4 = there,
            true => self.v6 = there,
        }
    }

    /// The families that are here or there.
    pub fn or(self, other: Families) -> Families {
        Families {
            v4: self.v4 || other.v4,
            v6: self.v6 || other.v6,
        }
    }

    /// One bit each, IPv4 the lowest.
    pub fn to_bits(self) -> u8 {
        u8::from(self.v4) | u8::from(self.v6) << 1
    }

    /// Reads what [`to_bits`](Self::to_bits) made; further bits mean nothing yet.
    pub fn from_bits(bits: u8) -> Families {
        Families {
            v4: bits & 1 != 0,
            v6: bits & 2 != 0,
        }
    }
}

/// All servers reach both until they say otherwise.
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
