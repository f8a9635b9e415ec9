//! The aggregation server: SOCKS5 behind MPTCP, regular TCP to the destination.

use core::net::IpAddr;
use core::time::Duration;

use braid_engine::{Event, Stack};
use braid_wire::Instant;

use crate::config::ServerConfig;
use crate::{Core, LocalEvent, LocalStreams};

/// The server as a sans-IO core. The driver adds paths to the stack and listens on them; every
/// accepted connection is served.
///
/// # How to drive it
///
/// 1. [`set_wall_clock`](Self::set_wall_clock) once at the start (passwords made before that
///    moment are refused, for a server that was restarted cannot know whether they were used),
///    then whenever the system's clock was set, at least once a minute.
/// 2. [`set_own_addresses`](Self::set_own_addresses) at the start and when they change.
/// 3. Events as [`Core`] describes.
#[derive(Debug)]
pub struct ServerCore {}

impl ServerCore {
    /// A core without connections.
    pub fn new(config: &ServerConfig) -> Self {
        let _ = config;
        ServerCore {}
    }

    /// Says that at `now` the wall clock shows `since_epoch` (since 1970-01-01 UTC).
    pub fn set_wall_clock(&mut self, now: Instant, since_epoch: Duration) {
        let _ = (now, since_epoch);
    }

    /// The addresses of this machine, which are refused as destinations unless allowed by the
    /// configuration. Those listened on are among them without being named.
    pub fn set_own_addresses(&mut self, addresses: Vec<IpAddr>) {
        let _ = addresses;
    }
}

impl Core for ServerCore {
    fn on_engine_event(
        &mut self,
        now: Instant,
        event: Event,
        stack: &mut Stack,
        local: &mut dyn LocalStreams,
    ) {
        let _ = (now, event, stack, local);
    }

    fn on_local_event(
        &mut self,
        now: Instant,
        event: LocalEvent,
        stack: &mut Stack,
        local: &mut dyn LocalStreams,
    ) {
        let _ = (now, event, stack, local);
    }

    fn next_timeout(&self) -> Option<Instant> {
        None
    }

    fn handle_timeout(&mut self, now: Instant, stack: &mut Stack, local: &mut dyn LocalStreams) {
        let _ = (now, stack, local);
    }
}
