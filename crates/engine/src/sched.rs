//! The seam to the strategies: two traits and the read-only views they decide on. No named
//! strategy lives in this crate.

use core::fmt;
use core::time::Duration;

use braid_wire::{Instant, Rng};

use crate::{PathId, SubflowId};

/// What a scheduler sees of one subflow. Only established subflows are shown.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SubflowView {
    /// The subflow.
    pub id: SubflowId,
    /// Its local path.
    pub path: PathId,
    /// Smoothed round-trip time.
    pub srtt: Duration,
    /// Mean deviation of the round-trip time.
    pub rttvar: Duration,
    /// Lowest round-trip time seen.
    pub min_rtt: Duration,
    /// Congestion window, bytes.
    pub cwnd: u64,
    /// Slow-start threshold, bytes.
    pub ssthresh: u64,
    /// Bytes in flight.
    pub in_flight: u64,
    /// Payload bytes of one packet with the options of a data segment.
    pub mss: u32,
    /// Pacing rate, bytes/s.
    pub pacing_rate: u64,
    /// Share of sent segments that were lost, over the connection's life: `0.0..=1.0`.
    pub loss: f32,
    /// The subflow is a backup (its own or the peer's wish).
    pub backup: bool,
    /// A retransmission timeout is being recovered from, or nothing has been heard for longer
    /// than its timeout: potentially failed.
    pub stale: bool,
    /// Window, pacer and peer leave room for at least one segment now.
    pub ready: bool,
}

impl SubflowView {
    /// Bytes of congestion window not in flight.
    pub fn window_room(&self) -> u64 {
        self.cwnd.saturating_sub(self.in_flight)
    }
}

/// How large a flow is, and how that is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FlowSize {
    /// Nobody knows.
    #[default]
    Unknown,
    /// The application said so: bytes.
    Declared(u64),
}

impl FlowSize {
    /// The size in bytes, where it is known.
    pub fn bytes(self) -> Option<u64> {
        match self {
            FlowSize::Unknown => None,
            FlowSize::Declared(bytes) => Some(bytes),
        }
    }
}

/// What a scheduler sees of a connection.
#[derive(Debug, Clone, Copy)]
pub struct SendView<'a> {
    /// Now.
    pub now: Instant,
    /// Established subflows in order of creation.
    pub subflows: &'a [SubflowView],
    /// Bytes written and never sent.
    pub unsent: u64,
    /// Bytes of the peer's window not used yet.
    pub peer_window: u64,
    /// Bytes sent and not acknowledged at the data level.
    pub outstanding: u64,
    /// How large the flow is.
    pub flow_size: FlowSize,
}

/// What to send on the chosen subflow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Payload {
    /// The next bytes that were never sent.
    New,
    /// A copy of the oldest bytes in flight elsewhere and never sent on this subflow.
    Copy,
}

/// A scheduler's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// Send up to `max_bytes` on `subflow`, which was shown as ready.
    Send {
        /// Where.
        subflow: SubflowId,
        /// What.
        data: Payload,
        /// At most this much (the engine also bounds bursts).
        max_bytes: u32,
    },
    /// Send nothing until something changes.
    Wait,
}

/// Decides which subflow carries the next bytes.
pub trait Scheduler: fmt::Debug + Send {
    /// The name a user picks it by.
    fn name(&self) -> &'static str;
    /// The next decision. Called only while `view.unsent > 0` and at least one subflow is ready.
    fn next(&mut self, view: &SendView<'_>, rng: &mut Rng) -> Decision;
}

/// A range of data that a reinjector may copy: what one subflow holds unacknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reinject {
    /// Send the copy here; shown as ready.
    pub subflow: SubflowId,
    /// Whether the subflow that holds the data is to be penalised (its window halved, at most
    /// once per round trip).
    pub penalise_holder: bool,
}

/// Decides when data in flight is copied to another subflow, apart from what new data does. Data
/// of a subflow that timed out or died is always reinjected by the engine itself.
pub trait Reinjector: fmt::Debug + Send {
    /// The name a user picks it by.
    fn name(&self) -> &'static str;
    /// Whether to copy the oldest unacknowledged data, held by `holder`. Called only where the
    /// send queue is empty or the peer's window is used up, and the data was not copied before.
    fn next(&mut self, view: &SendView<'_>, holder: SubflowId) -> Option<Reinject>;
}

/// The two decisions of a connection.
#[derive(Debug)]
pub struct Policy {
    /// Where new data goes.
    pub scheduler: Box<dyn Scheduler>,
    /// When data in flight is copied.
    pub reinjector: Box<dyn Reinjector>,
}
