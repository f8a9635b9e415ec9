//! Reload of a box's configuration while users' connections continue, and the box's graceful stop.

use core::time::Duration;

use braid_engine::{PathId, Stack};
use braid_wire::Instant;

use super::BoxCore;
use super::session::Stage;
use crate::admin::drain::Drain;
use crate::app::Ctx;
use crate::config::BoxConfig;
use crate::relay::table::SessionId;

impl BoxCore {
    /// Applies `config`, which is the running configuration with the new settings that [`BoxConfig::reload`] has
    /// adopted. Returns the paths of removed links. The caller should [remove](Self::remove_path) these paths
    /// after their last packets were sent, and then [add](Self::add_link) new links.
    ///
    /// Users' connections continue on their servers, even on a removed server. A connection that is still being
    /// opened to a removed server is opened to another server instead.
    pub fn reload(&mut self, ctx: &mut Ctx<'_>, config: &BoxConfig) -> Vec<PathId> {
        self.about.name.clone_from(&config.name);
        self.about.congestion = config.congestion.name();
        self.timeouts = config.timeouts.clone();
        self.limits = config.limits.clone();
        self.classifier.set_rules(config.rules.clone());
        ctx.stack.adopt(&config.engine());
        if self.about.strategy != config.strategy {
            self.change_strategy(ctx.stack, &config.strategy);
        }
        let (moved, left) = self.upstream.reload(ctx.now, config, ctx.stack);
        self.reload_tunnel(ctx, config, &moved);
        for id in self.sessions.ids() {
            self.move_session(ctx, id, &moved);
        }
        left
    }

    /// Removes the path of a removed link. Regular TCP connections on the path end, because they have no other
    /// path.
    pub fn remove_path(&mut self, now: Instant, path: PathId, stack: &mut Stack) {
        stack.remove_path(now, path);
    }

    /// Changes the strategy of new connections. The configuration was checked, so a strategy with this name
    /// exists.
    fn change_strategy(&mut self, stack: &mut Stack, name: &str) {
        // Two factories, because a factory has one owner: one is for connections that this box opens, and one for
        // the stack, which uses it for further flows.
        let factories =
            braid_strategy::factory(name).and_then(|f| Ok((f, braid_strategy::factory(name)?)));
        if let Ok((own, for_stack)) = factories {
            name.clone_into(&mut self.about.strategy);
            self.upstream.set_strategies(own);
            stack.set_strategies(for_stack);
        }
    }

    /// Applies the new indices of servers to a session: `moved` maps old indices to new ones, `None` for a removed
    /// server.
    fn move_session(&mut self, ctx: &mut Ctx<'_>, id: SessionId, moved: &[Option<usize>]) {
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        let new_index = |server: usize| moved.get(server).copied().flatten();
        let tried = session.failed_attempts.iter();
        session.failed_attempts = tried
            .filter_map(|(s, path)| Some((new_index(*s)?, *path)))
            .collect();
        // No server has this index, so look-ups of a removed server find nothing.
        session.server = new_index(session.server).unwrap_or(usize::MAX);
        if session.server == usize::MAX && matches!(session.stage, Stage::Connecting(_)) {
            self.retry(ctx, id);
        }
    }
}

impl BoxCore {
    /// Returns whether the box is being [stopped](Drain::drain). The driver should not open links or sockets anew
    /// then.
    pub fn is_stopping(&self) -> bool {
        self.is_ending
    }
}

impl Drain for BoxCore {
    fn drain(&mut self, ctx: &mut Ctx<'_>) {
        self.is_ending = true;
        self.tunnel.end.stop_asking();
        self.upstream.drain(ctx.now, ctx.stack);
    }

    fn is_drained(&self) -> bool {
        self.sessions.len() == 0
    }

    fn drain_time(&self) -> Duration {
        self.timeouts.drain
    }
}
