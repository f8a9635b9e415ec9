//! How large a flow is, and how much of it is worth sending twice. Xing et al., "MPTCP Meets Big
//! Data" (IEEE Network 34(4), 2020).

use braid_engine::strategy::FlowSize;

/// What a flow is by its size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlowClass {
    /// It is over within one round trip: one subflow does.
    Mosquito,
    /// Short enough for a single loss to matter.
    Mouse,
    /// Throughput is what counts.
    Elephant,
}

/// Where one class ends and the next begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The largest mosquito, bytes.
    pub mosquito: u64,
    /// The smallest elephant, bytes; more than the largest mosquito.
    pub elephant: u64,
}

/// As published: 4 kB, one initial window of three segments, and 1 MB, both binary.
impl Default for Limits {
    fn default() -> Self {
        Limits {
            mosquito: 4 << 10,
            elephant: 1 << 20,
        }
    }
}

impl Limits {
    /// The class of a flow of `size` bytes.
    pub fn class(&self, size: u64) -> FlowClass {
        match size {
            _ if size <= self.mosquito => FlowClass::Mosquito,
            _ if size < self.elephant => FlowClass::Mouse,
            _ => FlowClass::Elephant,
        }
    }

    /// The redundancy degree alpha of a flow of `size` bytes: of the packets on the slower subflows
    /// the share that are copies. It falls from 1 for a mosquito to 0 for an elephant.
    pub fn redundancy(&self, size: u64) -> f64 {
        let span = self.elephant.saturating_sub(self.mosquito).max(1);
        let over = size.saturating_sub(self.mosquito);
        (1.0 - over as f64 / span as f64).max(0.0)
    }
}

/// The size to go by where `known` is what was said of it and `seen` of its bytes there are so far.
/// A flow nobody knows of starts small and grows, and so does one that is larger than was said.
pub fn size(known: FlowSize, seen: u64) -> u64 {
    known.bytes().unwrap_or(0).max(seen)
}
