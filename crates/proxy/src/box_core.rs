//! The aggregation box: takes users' connections in and carries them to a server over all links.

use core::net::{Ipv4Addr, Ipv6Addr};
use core::time::Duration;

use braid_engine::{Event, PathId, Stack};
use braid_wire::{Instant, Rng};

use crate::config::BoxConfig;
use crate::{Core, LocalEvent, LocalStreams, PolicyFactory};

/// What the driver is to do outside of streams and packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Notice {
    /// Everything that is not TCP goes over this link from now on; `None` where no link is known
    /// to work (leave the last choice in place).
    BestPath(Option<PathId>),
    /// Whether new connections of users are to be taken in. `false` when no server is reachable:
    /// then they are forwarded unjoined, while those taken in before keep being served.
    Intake(bool),
}

/// The addresses of one link on the TUN device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkAddresses {
    /// IPv4, where the link has IPv4.
    pub v4: Option<Ipv4Addr>,
    /// IPv6, where the link has IPv6.
    pub v6: Option<Ipv6Addr>,
    /// Largest IP packet of the link, bytes.
    pub mtu: u16,
}

/// The box as a sans-IO core.
///
/// # How to drive it
///
/// 1. [`set_wall_clock`](Self::set_wall_clock) once at the start, then whenever the system's clock
///    was set, at least once a minute.
/// 2. [`add_link`](Self::add_link) for each link of the configuration, and
///    [`set_link_up`](Self::set_link_up) whenever one comes or goes (never
///    [`Stack::set_path_up`] itself: the core keeps metered links down until they are needed).
/// 3. Events as [`Core`] describes; then [`poll_notice`](Self::poll_notice) until `None`.
#[derive(Debug)]
pub struct BoxCore {}

impl BoxCore {
    /// A core without links. `policy` gives each connection its scheduler and reinjector; `rng`
    /// must be a stream of its own.
    pub fn new(config: &BoxConfig, rng: Rng, policy: PolicyFactory) -> Self {
        let _ = (config, rng, policy);
        BoxCore {}
    }

    /// Says that at `now` the wall clock shows `since_epoch` (since 1970-01-01 UTC).
    pub fn set_wall_clock(&mut self, now: Instant, since_epoch: Duration) {
        let _ = (now, since_epoch);
    }

    /// Adds link number `link` of the configuration to the stack; it starts down.
    pub fn add_link(
        &mut self,
        now: Instant,
        link: usize,
        addresses: LinkAddresses,
        stack: &mut Stack,
    ) -> PathId {
        let _ = (now, link, addresses, stack);
        todo!()
    }

    /// Says whether the link of `path` has carrier, address and gateway.
    pub fn set_link_up(&mut self, now: Instant, path: PathId, up: bool, stack: &mut Stack) {
        let _ = (now, path, up, stack);
    }

    /// The link for everything that is not TCP, if one is known to work.
    pub fn best_path(&self) -> Option<PathId> {
        None
    }

    /// Whether new connections are to be taken in ([`Notice::Intake`]); `false` until a server
    /// answered for the first time.
    pub fn intake_wanted(&self) -> bool {
        false
    }

    /// The next notice; repeats nothing that did not change.
    pub fn poll_notice(&mut self) -> Option<Notice> {
        None
    }
}

impl Core for BoxCore {
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
