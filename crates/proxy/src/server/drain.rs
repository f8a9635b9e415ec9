//! A server that is about to end.

use core::time::Duration;

use crate::app::Ctx;

use super::ServerCore;
use super::session::Stage;
use crate::admin::drain::Drain;

impl Drain for ServerCore {
    /// Boxes are refused from now on, so that they send new users elsewhere, and connections that wait for
    /// a user are closed, so that no user is given one of them.
    fn drain(&mut self, ctx: &mut Ctx<'_>) {
        self.ending = true;
        ctx.stack.stop_listening();
        for id in self.sessions.ids() {
            let session = self.sessions.get(id);
            let waits = session.is_some_and(|s| matches!(s.stage, Stage::Handshake(_)));
            // The box may still have to hand on what came before.
            if waits && !self.end_in_order(ctx, id) {
                self.drop_session(ctx, id);
            }
        }
    }

    fn is_drained(&self) -> bool {
        self.sessions.len() == 0
    }

    fn drain_time(&self) -> Duration {
        self.timeouts.drain
    }
}
