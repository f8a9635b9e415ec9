//! Changes of a running stack: its end and its settings.

use braid_wire::Instant;

use super::{Stack, StrategyFactory};
use crate::Config;

impl Stack {
    /// Stops accepting connections: SYNs are answered by RST, so that peers go elsewhere at once. Existing
    /// connections go on, and further subflows may join them.
    pub fn stop_listening(&mut self) {
        self.listeners.clear();
    }

    /// Aborts all connections, and accepts and opens none from now on. Peers are told as by
    /// [`abort`](Self::abort); [`connections`](Self::connections) is 0 once all of them have answered or 2
    /// s have passed.
    pub fn close(&mut self, now: Instant) {
        self.closing = true;
        self.stop_listening();
        for id in self.table.ids() {
            self.abort(now, id);
        }
    }

    /// Adopts the settings of `config` that apply to future connections and subflows: congestion control,
    /// checksums, ECN, and the most connections.
    pub fn adopt(&mut self, config: &Config) {
        let own = &mut self.shared.config;
        own.congestion = config.congestion;
        own.background = config.background;
        own.checksum = config.checksum;
        own.ecn = config.ecn;
        own.max_connections = config.max_connections.max(self.table.len());
    }

    /// Sets the factory of strategies for accepted connections, and for flows that
    /// [begin](Self::begin_flow) from now on.
    pub fn set_strategies(&mut self, strategy: StrategyFactory) {
        self.strategy = strategy;
    }
}
