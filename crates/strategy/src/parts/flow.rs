//! Classes of flows by size, and the share of copies that suits a flow of a given size (Xing et al., "MPTCP Meets
//! Big Data", IEEE Network 34(4), 2020).

use braid_engine::strategy::FlowSize;

/// The class of a flow by its size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlowClass {
    /// The flow fits one initial window and is over within one round trip, so one subflow suffices.
    Mosquito,
    /// The flow is so short that a single loss delays its end noticeably.
    Mouse,
    /// The flow is so long that only its throughput counts.
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

/// The limits of the paper, 4 kB (one initial window of three segments) and 1 MB, as powers of two.
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

    /// Returns the redundancy degree alpha of a flow of `size` bytes: the share of copies among the packets on all
    /// subflows but the best. Alpha falls linearly from 1 for the largest mosquito to 0 for the smallest elephant.
    pub fn redundancy(&self, size: u64) -> f64 {
        let span = self.elephant.saturating_sub(self.mosquito).max(1);
        let excess = size.saturating_sub(self.mosquito);
        (1.0 - excess as f64 / span as f64).max(0.0)
    }
}

/// Returns the size by which to classify a flow: the larger of its `announced` size and the bytes `seen` so far.
///
/// A flow of unknown size therefore starts small and grows, as does a flow that exceeds its announced size.
pub fn size(announced: FlowSize, seen: u64) -> u64 {
    announced.bytes().unwrap_or(0).max(seen)
}
