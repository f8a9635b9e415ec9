//! The end of a running stack, and changes of its settings.

use braid_wire::Instant;

use super::{Stack, StrategyFactory};
use crate::Config;

impl Stack {
    /// Stops accepting connections. SYNs are answered by RST, so that peers try another server at once. Existing
    /// connections continue, and peers can still add subflows to them.
    pub fn stop_listening(&mut self) {
        self.listeners.clear();
    }

    /// Aborts all connections, and neither accepts nor opens any from now on. The peers are told as by
    /// [`abort`](Self::abort), which is repeated if necessary. [`connections`](Self::connections) is 0 once
    /// all peers have answered, or after about 2 s.
    pub fn close(&mut self, now: Instant) {
        self.closing = true;
        self.stop_listening();
        for id in self.table.ids() {
            self.abort(now, id);
        }
    }

    /// Adopts the settings of `config` that can change while the stack runs, for future connections and
    /// subflows: congestion control, checksums, ECN, and the maximum number of connections. Existing
    /// connections are kept even if there are more than the new maximum.
    pub fn adopt(&mut self, config: &Config) {
        let own = &mut self.shared.config;
        own.congestion = config.congestion;
        own.background = config.background;
        own.checksum = config.checksum;
        own.ecn = config.ecn;
        own.max_connections = config.max_connections.max(self.table.len());
    }

    /// Replaces the factory of strategies for connections accepted and flows [begun](Self::begin_flow) from now
    /// on.
    pub fn set_strategies(&mut self, strategy: StrategyFactory) {
        self.strategy = strategy;
    }
}
