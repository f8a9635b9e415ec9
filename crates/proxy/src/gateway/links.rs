//! Links of a box: their addresses and states, as the driver sees them.

use braid_engine::{ApiError, PathId, Stack};
use braid_wire::Instant;

use super::BoxCore;
use crate::uplink::LinkAddresses;

impl BoxCore {
    /// Adds link number `link` of the configuration to the stack. The link is down until
    /// [`set_link_up`](Self::set_link_up).
    ///
    /// # Errors
    /// The errors of [`Stack::add_path`].
    pub fn add_link(
        &mut self,
        now: Instant,
        link: usize,
        addresses: LinkAddresses,
        stack: &mut Stack,
    ) -> Result<PathId, ApiError> {
        self.upstream.add_link(now, link, addresses, None, stack)
    }

    /// Adds a link, and reuses the path of a removed link ([`remove_path`](Self::remove_path)) if the stack still
    /// has it: the number of paths of a stack is limited.
    ///
    /// # Errors
    /// The errors of [`Stack::add_path`].
    pub fn replace_link(
        &mut self,
        now: Instant,
        path: PathId,
        (link, addresses): (usize, LinkAddresses),
        stack: &mut Stack,
    ) -> Result<PathId, ApiError> {
        self.upstream
            .add_link(now, link, addresses, Some(path), stack)
    }

    /// Sets the addresses of a link. A link may lose an address family and regain it later. The MTU stays as it
    /// was when the link was added.
    pub fn set_link_addresses(
        &mut self,
        now: Instant,
        path: PathId,
        addresses: LinkAddresses,
        stack: &mut Stack,
    ) {
        self.upstream
            .set_link_addresses(now, path, addresses, stack);
    }

    /// Sets whether the link of `path` is up: it has a carrier, an address and a gateway.
    pub fn set_link_up(&mut self, now: Instant, path: PathId, up: bool, stack: &mut Stack) {
        self.upstream.set_link_up(now, path, up, stack);
    }

    /// Handles a change of the link's public address or network. The state of the link is validated at once,
    /// because NATs on the way do not know the existing connections.
    pub fn on_link_readdressed(&mut self, now: Instant, path: PathId, stack: &mut Stack) {
        stack.revalidate_path(now, path);
        stack.forget_middleboxes(path);
        self.tunnel.end.validate(now, path);
        self.upstream.on_link_readdressed(now, path);
    }

    /// Handles a link over which packets leave and none come back: probes the servers over the link of `path` at
    /// once.
    pub fn revalidate_link(&mut self, now: Instant, path: PathId) {
        self.upstream.revalidate_link(now, path);
    }

    /// Handles the end of a long standstill of this machine, such as suspend. The machine's clock stood still,
    /// while timeouts of peers and NATs ran on. Validates every link and every connection, and closes idle
    /// connections.
    pub fn on_resumed(&mut self, now: Instant, stack: &mut Stack) {
        self.tunnel.end.validate_all(now);
        self.upstream.on_resumed(now, stack);
    }
}
