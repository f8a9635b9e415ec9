//! Changes of a stack that has connections: its end, its paths and its settings.

use braid_wire::Instant;

use super::{Stack, StrategyFactory};
use crate::path::Path;
use crate::stats::PathTotals;
use crate::{CloseReason, Config, PathConfig, PathId};

impl Stack {
    /// Accepts no connection any more: SYNs are answered by RST, so that peers go elsewhere at once.
    /// Connections that exist go on, and further subflows may join them.
    pub fn stop_listening(&mut self) {
        self.listeners.clear();
    }

    /// Aborts all connections, and takes and opens none from now on. Peers are told as by
    /// [`abort`](Self::abort); [`connections`](Self::connections) is 0 once all of them have answered
    /// or 2 s have passed.
    pub fn close(&mut self, now: Instant) {
        self.closing = true;
        self.stop_listening();
        for id in self.table.ids() {
            self.abort(now, id);
        }
    }

    /// Ends what is left on a path that was [left](Self::leave_path), and whose link is about to be gone:
    /// subflows are forgotten, and connections that have no other (regular TCP among them) end as
    /// unreachable. What was remembered of the path is forgotten too.
    pub fn remove_path(&mut self, now: Instant, path: PathId) {
        self.leave_path(now, path);
        self.with_all(now, |conn, ctx| {
            if conn.forget_path(path) {
                conn.fail(ctx, CloseReason::Unreachable);
            }
        });
        self.shared.records.forget_path(path);
        self.forget_middleboxes(path);
    }

    /// Gives a path that was [removed](Self::remove_path) to another link: it starts up, and its
    /// counters start anew. Returns whether there is such a path.
    pub fn reuse_path(&mut self, path: PathId, config: PathConfig) -> bool {
        let at = usize::from(path.0);
        let totals = self.path_totals();
        let Some((known, total)) = self.shared.paths.get_mut(at).zip(totals.get(at)) else {
            return false;
        };
        *known = Path::new(config);
        self.renewed.resize(totals.len(), PathTotals::default());
        self.renewed[at].add_moved(total);
        true
    }

    /// Takes over from `config` what holds for connections and subflows that begin from now on:
    /// congestion control, checksums, congestion marks, and how many connections there may be.
    pub fn adopt(&mut self, config: &Config) {
        let own = &mut self.shared.config;
        own.congestion = config.congestion;
        own.background = config.background;
        own.checksum = config.checksum;
        own.ecn = config.ecn;
        own.max_connections = config.max_connections.max(self.table.len());
    }

    /// Has `strategy` give accepted connections, and flows that [begin](Self::begin_flow) from now on,
    /// theirs.
    pub fn set_strategies(&mut self, strategy: StrategyFactory) {
        self.strategy = strategy;
    }
}
