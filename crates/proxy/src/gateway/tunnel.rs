//! The tunnel of a box: its requests, and the links that it uses.

use braid_wire::{Instant, Rng};

use super::BoxCore;
use crate::app::Ctx;
use crate::config::{BoxConfig, Datagrams};
use crate::tunnel::of_box::BoxTunnel;
use crate::uplink;

/// The box's end of the tunnel, with what it knows of links and servers.
#[derive(Debug)]
pub(super) struct Tunnel {
    pub(super) end: BoxTunnel,
    /// True if the configuration wants a tunnel.
    is_wanted: bool,
    /// The version of the links that the tunnel knows.
    links_version: u64,
    /// True if a server was reached at the last look.
    was_reached: bool,
}

impl Tunnel {
    pub(super) fn new(config: &BoxConfig, rng: Rng) -> Self {
        Tunnel {
            end: BoxTunnel::new(&config.name, rng),
            is_wanted: config.datagrams == Datagrams::Tunnel,
            links_version: 0,
            was_reached: false,
        }
    }
}

impl BoxCore {
    /// Starts to ask servers for a tunnel, if the configuration wants one. The driver calls this once its sockets and its
    /// packet device for the tunnel are open. Without the call, everything that is not TCP has to be forwarded.
    pub fn enable_tunnel(&mut self) {
        if self.tunnel.is_wanted {
            self.tunnel.end.enable();
        }
    }

    /// Returns the time at which the tunnel has something to do.
    pub(super) fn tunnel_timeout(&self) -> Option<Instant> {
        if self.is_ending {
            return None;
        }
        let at = self.tunnel.end.next_timeout()?;
        // At once if the links have changed.
        let is_stale = self.tunnel.links_version != self.upstream.links_version();
        Some(if is_stale { Instant::ZERO } else { at })
    }

    /// Runs the timers of the tunnel.
    pub(super) fn serve_tunnel(&mut self, ctx: &mut Ctx<'_>) {
        if self.tunnel_timeout().is_some_and(|at| at <= ctx.now) {
            self.tunnel.end.handle_timeout(ctx.now);
            self.follow_tunnel(ctx);
        }
    }

    /// Passes results of requests, changes of links and due requests between the tunnel and the uplink.
    pub(super) fn follow_tunnel(&mut self, ctx: &mut Ctx<'_>) {
        let now = ctx.now;
        let cx = &mut uplink::Context::new(ctx, &mut self.counters);
        let (tunnel, upstream) = (&mut self.tunnel, &mut self.upstream);
        let result = upstream.take_tunnel_result();
        let has_result = result.is_some();
        if let Some(result) = result {
            tunnel.end.on_attempt(now, result);
        }
        let version = upstream.links_version();
        let has_changed = core::mem::replace(&mut tunnel.links_version, version) != version;
        let is_reached = upstream.wants_interception();
        let was_reached = core::mem::replace(&mut tunnel.was_reached, is_reached);
        let returns = is_reached && !was_reached;
        if let Some(server) = tunnel.end.server()
            && (has_changed || has_result)
        {
            tunnel.end.set_links(now, &upstream.tunnel_links(server));
        }
        if has_changed || returns {
            tunnel.end.retry(now);
        }
        if self.is_ending {
            return;
        }
        if let Some((request, server)) = tunnel.end.poll_request(now, upstream.least_mtu()) {
            upstream.request_tunnel(cx, request, server);
            // A request that could not begin has its result already.
            if let Some(result) = upstream.take_tunnel_result() {
                tunnel.end.on_attempt(now, result);
            }
        }
    }
}
