//! The link emulator.

use serde::{Deserialize, Serialize};

/// A direction of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// From the link's `from` end to its `to` end.
    Forward,
    /// From its `to` end to its `from` end.
    Reverse,
}

/// Runs links between network namespaces in wall-clock time.
pub struct Emulator {}
