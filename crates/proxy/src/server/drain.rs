//! The graceful stop of a server.

use core::time::Duration;

use crate::app::Ctx;

use super::ServerCore;
use super::session::Stage;
use crate::admin::drain::Drain;

impl Drain for ServerCore {
    /// Refuses new connections from now on, so that boxes use another server for new users. Closes idle
    /// connections, so that no box gives one of them to a new user.
    fn drain(&mut self, ctx: &mut Ctx<'_>) {
        self.ending = true;
        ctx.stack.stop_listening();
        for id in self.sessions.ids() {
            let session = self.sessions.get(id);
            let awaits_request = session.is_some_and(|s| matches!(s.stage, Stage::Handshake(_)));
            // A reset would discard an earlier user's bytes that the box still has to deliver. So the connection
            // is closed in order if it has had a user.
            if awaits_request && !self.end_in_order(ctx, id) {
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
