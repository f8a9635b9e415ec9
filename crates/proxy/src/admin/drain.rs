//! Graceful stop of box and server. Transfers that are nearly finished get time to end.

use core::time::Duration;

use crate::app::{Core, Ctx};

/// A core that can be stopped gracefully.
///
/// # Use
///
/// 1. Call [`drain`](Self::drain), and drive the core until [`is_drained`](Self::is_drained) returns true, but no
///    longer than [`drain_time`](Self::drain_time).
/// 2. Call [`Stack::close`](braid_engine::Stack::close), which ends the remaining connections. Drive the core
///    until the stack has no connection, so that the peers learn of the end.
pub trait Drain: Core {
    /// Refuses new connections from now on, and ends idle connections, which have no user.
    fn drain(&mut self, ctx: &mut Ctx<'_>);

    /// Returns whether no user's connection is left that the end would cut off.
    fn is_drained(&self) -> bool;

    /// Returns the maximum time to wait until [`is_drained`](Self::is_drained) returns true.
    fn drain_time(&self) -> Duration;
}
