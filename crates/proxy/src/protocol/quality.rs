//! The quality of a path. A server reports its path to destinations, and a box measures its paths to servers.

use serde::{Deserialize, Serialize};

/// Available bandwidth and round-trip time of a path.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Quality {
    /// Available bandwidth, bit/s. `None` if it is unknown. The bandwidth is infinite if the bursts that measure it
    /// arrive too fast to show a rate: on a fast path, or behind a token bucket that lets bursts pass. JSON has no
    /// infinite number, so both an unknown and an infinite bandwidth are `null` there.
    #[serde(default)]
    pub bandwidth: Option<f64>,
    /// Round-trip time, ms. `None` if it is unknown.
    #[serde(default)]
    pub delay_ms: Option<f64>,
}

impl Quality {
    /// Returns this quality, with each unknown value replaced by the value of `other`.
    pub(crate) fn or(self, other: Quality) -> Quality {
        Quality {
            bandwidth: self.bandwidth.or(other.bandwidth),
            delay_ms: self.delay_ms.or(other.delay_ms),
        }
    }
}
