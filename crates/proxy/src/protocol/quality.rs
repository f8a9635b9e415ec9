//! The quality of a path. A server reports its path to destinations, and a box measures its paths to servers.

use serde::{Deserialize, Serialize};

/// Free bandwidth and round-trip time of a path.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Quality {
    /// Free bandwidth, bit/s; `None` where it is unknown. Infinite where measurements only show a lower bound, or
    /// where the link lets bursts pass: JSON has no infinite number and says `null`, as for unknown.
    #[serde(default)]
    pub bandwidth: Option<f64>,
    /// Round-trip time, ms; `None` where it is unknown.
    #[serde(default)]
    pub delay_ms: Option<f64>,
}
