//! Box and server in virtual time: the proxy cores as nodes of the world.

mod box_node;
mod local_tcp;
mod machine;
mod server_node;

use core::time::Duration;

use braid_engine::strategy::Strategy;
use braid_wire::{Instant, Rng};

pub use box_node::{BoxNode, BoxNodeConfig};
pub use local_tcp::{LocalConfig, LocalCounters, LocalTcp};
pub use server_node::{ServerNode, ServerNodeConfig};

/// What every wall clock shows at time 0 of a world, from 1970 on. They are never set, so cores
/// need to be told only once.
const EPOCH: Duration = Duration::from_secs(1_800_000_000);

fn wall_clock(now: Instant) -> Duration {
    EPOCH + now.saturating_since(Instant::ZERO)
}

/// The strategy of connections for which nothing else was chosen.
pub fn default_strategy() -> Box<dyn Strategy> {
    strategy_of(braid_strategy::DEFAULT)()
}

/// Makes strategies called `name`, which a configuration has checked.
fn strategy_of(name: &str) -> fn() -> Box<dyn Strategy> {
    braid_strategy::factory(name).expect("the configuration knows its strategy")
}

/// A random stream that depends on how many were drawn from `rng` before.
fn child(rng: &mut Rng) -> Rng {
    let mut seed = [0; 32];
    rng.fill(&mut seed);
    Rng::from_seed(seed)
}

/// Source and destination port of a TCP segment or UDP datagram.
fn ports(payload: &[u8]) -> Option<(u16, u16)> {
    let &[a, b, c, d] = payload.first_chunk::<4>()?;
    Some((u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])))
}
