//! The tunnel of a box: its requests, and the links that it uses.

use braid_secure::keys::PublicKey;
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
    /// The key of the box, by which the server knows the session's user.
    key: PublicKey,
    /// True if a server was reached at the last look.
    was_reached: bool,
    /// The reason why the driver passes no packets to the tunnel, if it cannot.
    pub(super) fault: Option<String>,
}

impl Tunnel {
    pub(super) fn new(config: &BoxConfig, rng: Rng) -> Self {
        Tunnel {
            end: BoxTunnel::new(&config.name, config.tun.ranges().to_vec(), rng),
            is_wanted: config.datagrams == Datagrams::Tunnel,
            links_version: 0,
            key: config.key.public(),
            was_reached: false,
            fault: None,
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

    /// Sets the reason why the driver has no packet device for the tunnel or passes no packets to it; `None` once it does.
    /// The status shows the reason.
    pub fn set_tunnel_fault(&mut self, fault: Option<String>) {
        self.tunnel.fault = fault;
    }

    /// Applies new indices of servers: `moved` maps old indices to new ones. With another key this box is another user,
    /// who has no session.
    pub(super) fn reload_tunnel(
        &mut self,
        ctx: &mut Ctx<'_>,
        config: &BoxConfig,
        moved: &[Option<usize>],
    ) {
        let key = config.key.public();
        let is_same = core::mem::replace(&mut self.tunnel.key, key) == key;
        let moved = if is_same { moved } else { &[] };
        self.tunnel.end.move_server(ctx.now, moved);
        self.follow_tunnel(ctx);
    }

    /// Returns the time at which the tunnel has something to do.
    pub(super) fn tunnel_timeout(&self) -> Option<Instant> {
        let tunnel = &self.tunnel;
        let (version, was_reached) = (tunnel.links_version, tunnel.was_reached);
        let has_news = || self.upstream.has_tunnel_news(version, was_reached);
        if tunnel.end.is_enabled() && has_news() {
            return Some(Instant::ZERO);
        }
        tunnel.end.next_timeout()
    }

    /// Runs the timers of the tunnel.
    pub(super) fn serve_tunnel(&mut self, ctx: &mut Ctx<'_>) {
        if self.tunnel_timeout().is_some_and(|at| at <= ctx.now) {
            self.tunnel.end.handle_timeout(ctx.now);
            self.follow_tunnel(ctx);
            self.tunnel.end.exchange(ctx.now, ctx.stack);
        }
    }

    /// Passes results of requests, changes of links and due requests between the tunnel and the uplink.
    pub(super) fn follow_tunnel(&mut self, ctx: &mut Ctx<'_>) {
        let now = ctx.now;
        let cx = &mut uplink::Context::new(ctx, &mut self.counters);
        let tunnel = &mut self.tunnel;
        let mut requests = self.upstream.tunnel_requests();
        let news = requests.news();
        let is_new = news.result.is_some() || news.version != tunnel.links_version;
        if let Some(result) = news.result {
            tunnel.end.on_attempt(now, result);
        }
        if is_new && let Some(server) = tunnel.end.server() {
            tunnel.end.set_links(now, &requests.links(server));
        }
        let was_reached = core::mem::replace(&mut tunnel.was_reached, news.is_reached);
        let known = core::mem::replace(&mut tunnel.links_version, news.version);
        if news.is_reached && !was_reached || known != news.version {
            tunnel.end.retry(now);
        }
        if let Some((request, server)) = tunnel.end.poll_request(now) {
            requests.begin(cx, request, server);
            // A request that could not begin has its result already.
            if let Some(result) = requests.news().result {
                tunnel.end.on_attempt(now, result);
            }
        }
    }
}
