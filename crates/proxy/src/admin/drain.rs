//! How box and server end: what is nearly over is not cut off.

use core::time::Duration;

use crate::app::{Core, Ctx};

/// A core that can be stopped.
///
/// # How to stop it
///
/// 1. [`drain`](Self::drain), and drive it on until [`is_drained`](Self::is_drained), for
///    [`drain_time`](Self::drain_time) at most.
/// 2. [`Stack::close`](braid_engine::Stack::close), which ends the rest, and drive it on until the stack
///    has no connection, so that the far ends learn of it.
pub trait Drain: Core {
    /// Takes in nothing new, and ends what no user waits for.
    fn drain(&mut self, ctx: &mut Ctx<'_>);

    /// Returns whether no user would be cut off by the end.
    fn is_drained(&self) -> bool;

    /// Returns how long that may be waited for.
    fn drain_time(&self) -> Duration;
}
