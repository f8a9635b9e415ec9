//! Box and server in virtual time: the proxy cores as nodes of the world.

mod box_node;
mod downstream_tcp;
mod machine;
mod masquerade;
mod server_node;

use core::time::Duration;

use braid_wire::Instant;

pub use box_node::{BoxNode, BoxNodeConfig};
pub use downstream_tcp::{DownstreamConfig, DownstreamCounters, DownstreamTcp};
pub use server_node::{ServerNode, ServerNodeConfig};

/// The Unix time of every wall clock at time 0 of a world: an arbitrary moment in January 2027, the same in every
/// run. Nobody adjusts these clocks, so a core gets the time once, at its start.
const WALL_CLOCK_AT_START: Duration = Duration::from_secs(1_800_000_000);

/// Returns the Unix time of a wall clock at `now`.
fn wall_clock(now: Instant) -> Duration {
    WALL_CLOCK_AT_START + now.saturating_since(Instant::ZERO)
}

/// Returns source and destination port of a TCP segment or UDP datagram.
fn ports(payload: &[u8]) -> Option<(u16, u16)> {
    let &[a, b, c, d] = payload.first_chunk::<4>()?;
    Some((u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])))
}
