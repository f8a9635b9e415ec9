//! A configuration that was read again while connections go on, and the end of a box.

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
    /// Goes on with `config`, which is what ran before but for what [`BoxConfig::reload`] takes over.
    /// Returns the paths of links that are no more: they are left, and are to be
    /// [removed](Self::remove_path) once what was said last there has gone out. New links are to be
    /// [added](Self::add_link) then.
    ///
    /// Users' connections go on, those to a server that is no more too: they end where they are. Such as are
    /// still being opened to it are opened to another one.
    pub fn reload(&mut self, ctx: &mut Ctx<'_>, config: &BoxConfig) -> Vec<PathId> {
        self.about.name.clone_from(&config.name);
        self.about.congestion = config.congestion.name();
        self.timeouts = config.timeouts.clone();
        self.limits = config.limits.clone();
        self.intake.set_rules(config.rules.clone());
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

    /// Forgets a path that was left, whose link is about to be gone. What is regular TCP there ends.
    pub fn remove_path(&mut self, now: Instant, path: PathId, stack: &mut Stack) {
        stack.remove_path(now, path);
    }

    /// Names are checked where they are read, so there is a strategy of this one.
    fn change_strategy(&mut self, stack: &mut Stack, name: &str) {
        let made =
            braid_strategy::factory(name).and_then(|f| Ok((f, braid_strategy::factory(name)?)));
        if let Ok((own, engines)) = made {
            name.clone_into(&mut self.about.strategy);
            self.upstream.set_strategies(own);
            stack.set_strategies(engines);
        }
    }

    /// The server of a session is in another place, or no more.
    fn move_session(&mut self, ctx: &mut Ctx<'_>, id: SessionId, moved: &[Option<usize>]) {
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        let place = |server: usize| moved.get(server).copied().flatten();
        let tried = session.tried.iter();
        session.tried = tried
            .filter_map(|(s, path)| Some((place(*s)?, *path)))
            .collect();
        session.server = place(session.server).unwrap_or(usize::MAX);
        if session.server == usize::MAX && matches!(session.stage, Stage::Connecting(_)) {
            self.retry(ctx, id);
        }
    }
}

impl BoxCore {
    /// Returns whether it is being [stopped](Drain::drain), so that nothing is to be opened again.
    pub fn is_stopping(&self) -> bool {
        self.ending
    }
}

impl Drain for BoxCore {
    fn drain(&mut self, ctx: &mut Ctx<'_>) {
        self.ending = true;
        self.upstream.drain(ctx.now, ctx.stack);
    }

    fn is_drained(&self) -> bool {
        self.sessions.len() == 0
    }

    fn drain_time(&self) -> Duration {
        self.timeouts.drain
    }
}
