//! Classes of flows by size, and the share of a flow that is worth sending twice (Xing et al., "MPTCP
//! Meets Big Data", IEEE Network 34(4), 2020).

use braid_engine::strategy::FlowSize;

/// The class of a flow by its size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlowClass {
    /// The flow is over within one round trip, so one subflow suffices.
    Mosquito,
    /// The flow is short enough for a single loss to matter.
    Mouse,
    /// The flow is long: throughput counts.
    Elephant,
}

/// The sizes at which one class ends and the next begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The largest mosquito, bytes.
    pub mosquito: u64,
    /// The smallest elephant, bytes; more than the largest mosquito.
    pub elephant: u64,
}

/// The published limits: 4 kB, which is one initial window of three segments, and 1 MB, both binary.
impl Default for Limits {
    fn default() -> Self {
        Limits {
            mosquito: 4 << 10,
            elephant: 1 << 20,
        }
    }
}

impl Limits {
    /// Returns the class of a flow of `size` bytes.
    pub fn class(&self, size: u64) -> FlowClass {
        match size {
            _ if size <= self.mosquito => FlowClass::Mosquito,
            _ if size < self.elephant => FlowClass::Mouse,
            _ => FlowClass::Elephant,
        }
    }

    /// Returns the redundancy degree alpha of a flow of `size` bytes: the share of copies among the
    /// packets on the slower subflows. Alpha falls from 1 for a mosquito to 0 for an elephant.
    pub fn redundancy(&self, size: u64) -> f64 {
        let span = self.elephant.saturating_sub(self.mosquito).max(1);
        let over = size.saturating_sub(self.mosquito);
        (1.0 - over as f64 / span as f64).max(0.0)
    }
}

/// Returns the size to go by, where `known` was said of the flow and `seen` of its bytes exist so far.
///
/// A flow of unknown size starts small and grows, and so does one that is larger than was said.
pub fn size(known: FlowSize, seen: u64) -> u64 {
    known.bytes().unwrap_or(0).max(seen)
}
