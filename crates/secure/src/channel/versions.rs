//! Versions and features of the protocol that box and server speak under TLS.
//!
//! Each end announces the oldest and the newest version that it speaks, and its features. Both ends use the newest
//! version that both speak, with the features that both have, so that adjacent releases interoperate. A peer that
//! announces nothing speaks version 1 alone, because version 2 introduced the announcement.

use core::fmt;

/// The versions that an end speaks (all from `oldest` to `newest`), and its optional features.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Versions {
    oldest: u16,
    newest: u16,
    /// One bit for each feature; `docs/protocol.md` numbers the features.
    features: u32,
}

/// The version and features that both ends of a connection use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Agreed {
    /// The version, from 1.
    pub version: u16,
    /// One bit for each feature.
    pub features: u32,
}

impl Agreed {
    /// Returns whether both ends have the feature `feature`, one bit.
    pub fn has(self, feature: u32) -> bool {
        self.features & feature != 0
    }
}

impl Versions {
    /// The feature of an end that has a tunnel for IP packets (`docs/protocol.md`, "The tunnel").
    pub const TUNNEL: u32 = 1 << 0;

    /// The versions of this release. Version 2 adds the announcement of versions to version 1.
    pub const OURS: Versions = Versions {
        oldest: 1,
        newest: 2,
        features: Versions::TUNNEL,
    };

    /// The versions of a peer that announces none: version 1 alone.
    pub(super) const UNANNOUNCED: Versions = Versions {
        oldest: 1,
        newest: 1,
        features: 0,
    };

    /// Bytes of an announcement, without the header (number and length) of its parameter.
    const LEN: usize = 8;

    /// Returns the versions from `oldest` to `newest` with these features. Returns `None` if `oldest` is 0 or
    /// above `newest`: a peer's announcement may have such values.
    pub fn new(oldest: u16, newest: u16, features: u32) -> Option<Self> {
        let versions = Versions {
            oldest,
            newest,
            features,
        };
        (0 < oldest && oldest <= newest).then_some(versions)
    }

    /// Returns these versions without the features `features`, one bit for each.
    #[must_use]
    pub fn without(self, features: u32) -> Self {
        Versions {
            features: self.features & !features,
            ..self
        }
    }

    /// Returns the newest version of this end.
    pub fn newest(self) -> u16 {
        self.newest
    }

    /// Returns the version and features that both ends use, or `None` if they have no version in common. Both ends
    /// compute the same result.
    pub fn agree(self, other: Versions) -> Option<Agreed> {
        let version = self.newest.min(other.newest);
        let agreed = Agreed {
            version,
            features: self.features & other.features,
        };
        (version >= self.oldest.max(other.oldest)).then_some(agreed)
    }

    /// Returns whether this end runs an older release than `other`. The result has a meaning only if the two have
    /// no version in common.
    pub fn is_older(self, other: Versions) -> bool {
        self.newest < other.newest
    }

    pub(super) fn encode(self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..2].copy_from_slice(&self.newest.to_be_bytes());
        bytes[2..4].copy_from_slice(&self.oldest.to_be_bytes());
        bytes[4..].copy_from_slice(&self.features.to_be_bytes());
        bytes
    }

    /// Decodes an announcement. Ignores the bytes after it, because a later release may add fields. Returns `None`
    /// if the announcement is malformed.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let [n0, n1, o0, o1, features @ ..] = bytes.first_chunk::<{ Self::LEN }>()?;
        let (newest, oldest) = ([*n0, *n1], [*o0, *o1]);
        Versions::new(
            u16::from_be_bytes(oldest),
            u16::from_be_bytes(newest),
            u32::from_be_bytes(*features),
        )
    }
}

impl fmt::Display for Versions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.oldest == self.newest {
            write!(f, "version {}", self.newest)
        } else {
            write!(f, "versions {} to {}", self.oldest, self.newest)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_speak_the_newest_version_that_both_know() {
        let speaks = |oldest, newest, features| Versions::new(oldest, newest, features).unwrap();
        let agreed = |version, features| Some(Agreed { version, features });
        let cases = [
            (speaks(1, 1, 0), speaks(1, 1, 0), agreed(1, 0)),
            (speaks(1, 2, 0b011), speaks(1, 1, 0), agreed(1, 0)),
            // The newest common version is 4; only feature 1 is common.
            (speaks(1, 4, 0b011), speaks(3, 6, 0b110), agreed(4, 0b010)),
            (speaks(2, 3, 1), speaks(1, 2, 1), agreed(2, 1)),
            (speaks(1, 2, 1), speaks(3, 4, 1), None),
        ];
        for (one, other, expected) in cases {
            assert_eq!(one.agree(other), expected, "{one} and {other}");
            assert_eq!(other.agree(one), expected, "{other} and {one}");
        }
        assert_eq!(Versions::OURS.agree(Versions::UNANNOUNCED), agreed(1, 0));
    }
}
