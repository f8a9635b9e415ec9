//! Reload of a box's configuration while connections continue, and the box's graceful stop.

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
    /// Applies `config`: the running configuration with the settings that [`BoxConfig::reload`] has taken over.
    /// Returns the paths of removed links, which the caller [removes](Self::remove_path) once their last packets
    /// have left. After that the caller [adds](Self::add_link) new links.
    ///
    /// Users' connections continue where they are, also those to a removed server. Connections still being opened
    /// to a removed server are opened to another one.
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
        for id in self.sessions.ids() {
            self.move_session(ctx, id, &moved);
        }
        left
    }

    /// Removes a path of a removed link. Regular TCP connections on it end.
    pub fn remove_path(&mut self, now: Instant, path: PathId, stack: &mut Stack) {
        stack.remove_path(now, path);
    }

    /// Changes the strategy. The configuration has checked the name, so it exists.
    fn change_strategy(&mut self, stack: &mut Stack, name: &str) {
        let made =
            braid_strategy::factory(name).and_then(|f| Ok((f, braid_strategy::factory(name)?)));
        if let Ok((own, engines)) = made {
            name.clone_into(&mut self.about.strategy);
            self.upstream.set_strategies(own);
            stack.set_strategies(engines);
        }
    }

    /// Applies the servers' new indices to a session; its server may have been removed.
    fn move_session(&mut self, ctx: &mut Ctx<'_>, id: SessionId, moved: &[Option<usize>]) {
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        let place = |server: usize| moved.get(server).copied().flatten();
        let tried = session.failed_attempts.iter();
        session.failed_attempts = tried
            .filter_map(|(s, path)| Some((place(*s)?, *path)))
            .collect();
        session.server = place(session.server).unwrap_or(usize::MAX);
        if session.server == usize::MAX && matches!(session.stage, Stage::Connecting(_)) {
            self.retry(ctx, id);
        }
    }
}

impl BoxCore {
    /// Returns whether the box is being [stopped](Drain::drain), so that nothing is to be opened again.
    pub fn is_stopping(&self) -> bool {
        self.is_ending
    }
}

impl Drain for BoxCore {
    fn drain(&mut self, ctx: &mut Ctx<'_>) {
        self.is_ending = true;
        self.upstream.drain(ctx.now, ctx.stack);
    }

    fn is_drained(&self) -> bool {
        self.sessions.len() == 0
    }

    fn drain_time(&self) -> Duration {
        self.timeouts.drain
    }
}
