//! How good a way is, as a server tells it of the way to destinations and a box measures it of the way to servers.

use serde::{Deserialize, Serialize};

/// What is free, and how long it takes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Quality {
    /// Bandwidth that nobody uses, bit/s; `None` where it is not known. Infinite where measurements only
    /// show that it is more than they can tell, or that the link lets bursts pass: JSON has no infinite
    /// number and says `null`, as where nothing is known.
    #[serde(default)]
    pub bandwidth: Option<f64>,
    /// Round-trip time, ms; `None` where it is not known.
    #[serde(default)]
    pub delay_ms: Option<f64>,
}
