//! Graceful stop of box and server: transfers that are nearly finished are not cut off.

use core::time::Duration;

use crate::app::{Core, Ctx};

/// A core that can be stopped.
///
/// # Use
///
/// 1. Call [`drain`](Self::drain), and drive the core until [`is_drained`](Self::is_drained), for
///    [`drain_time`](Self::drain_time) at most.
/// 2. Call [`Stack::close`](braid_engine::Stack::close), which ends the rest, and drive the core until the stack
///    has no connection, so that the peers learn of it.
pub trait Drain: Core {
    /// Accepts nothing new, and ends connections that no user waits for.
    fn drain(&mut self, ctx: &mut Ctx<'_>);

    /// Returns whether the end would cut off no user.
    fn is_drained(&self) -> bool;

    /// Returns the longest time to wait for that.
    fn drain_time(&self) -> Duration;
}
