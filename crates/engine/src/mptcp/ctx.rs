//! The context of a call into a connection.

use braid_wire::Instant;

use super::shared::Shared;

/// The time of a call, and the state that the connection borrows from its stack until the call returns.
pub(crate) struct Ctx<'a> {
    pub now: Instant,
    pub shared: &'a mut Shared,
}

impl Shared {
    pub fn ctx(&mut self, now: Instant) -> Ctx<'_> {
        Ctx { now, shared: self }
    }
}
