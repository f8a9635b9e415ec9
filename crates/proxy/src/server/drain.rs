//! The graceful stop of a server.

use core::time::Duration;

use crate::app::Ctx;

use super::ServerCore;
use super::session::Stage;
use crate::admin::drain::Drain;

impl Drain for ServerCore {
    /// Refuses boxes from now on, so that they send new users elsewhere, and closes idle connections, so that no
    /// user is given one of them.
    fn drain(&mut self, ctx: &mut Ctx<'_>) {
        self.ending = true;
        ctx.stack.stop_listening();
        for id in self.sessions.ids() {
            let session = self.sessions.get(id);
            let waits = session.is_some_and(|s| matches!(s.stage, Stage::Handshake(_)));
            // An orderly close, because the box may still have to pass on bytes that came before.
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
