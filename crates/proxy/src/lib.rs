//! Aggregation box and aggregation server as sans-IO cores.
//!
//! One side of a core is the engine's [`Stack`], the other a small
//! [`LocalStreams`] trait: kernel sockets on Linux, the engine's plain TCP in the simulator.

pub mod auth;
mod box_core;
pub mod config;
pub mod local;
pub mod policy;
mod relay;
pub mod report;
mod server_core;
pub mod socks;
mod table;
mod upstream;

use braid_engine::{Event, Stack};
use braid_wire::Instant;

pub use box_core::{BoxCore, LinkAddresses, Notice};
pub use config::{BoxConfig, ConfigError, ServerConfig};
pub use local::{ConnectFailure, LocalError, LocalEvent, LocalId, LocalStreams};
pub use server_core::ServerCore;

/// A proxy core as its driver sees it. After any call the driver drains the stack
/// (`poll_event` into [`Core::on_engine_event`], then `poll_transmit`).
///
/// A program that uses the engine alone is one too: it leaves out the local side and the timers.
pub trait Core {
    /// An event of the engine.
    fn on_engine_event(
        &mut self,
        now: Instant,
        event: Event,
        stack: &mut Stack,
        local: &mut dyn LocalStreams,
    );
    /// An event of the local side.
    fn on_local_event(
        &mut self,
        now: Instant,
        event: LocalEvent,
        stack: &mut Stack,
        local: &mut dyn LocalStreams,
    ) {
        let _ = (now, event, stack, local);
    }
    /// When [`Core::handle_timeout`] is due, if ever.
    fn next_timeout(&self) -> Option<Instant> {
        None
    }
    /// Serves expired timers.
    fn handle_timeout(&mut self, now: Instant, stack: &mut Stack, local: &mut dyn LocalStreams) {
        let _ = (now, stack, local);
    }
}
