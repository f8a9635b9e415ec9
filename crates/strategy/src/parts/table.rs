//! The memory of a strategy about each subflow.

use arrayvec::ArrayVec;
use braid_engine::SubflowId;
use braid_engine::strategy::StrategyEvent;

/// Most subflows that are remembered: no fewer than a connection can have.
const MAX_SUBFLOWS: usize = 32;

/// A value for each subflow. Beyond 32 subflows the oldest is forgotten.
#[derive(Debug, Clone, Default)]
pub struct PerSubflow<T>(ArrayVec<(SubflowId, T), MAX_SUBFLOWS>);

impl<T: Default> PerSubflow<T> {
    /// Returns the value of a subflow, which is the default at first.
    pub fn of(&mut self, id: SubflowId) -> &mut T {
        let known = self.0.iter().position(|(known, _)| *known == id);
        let at = known.unwrap_or_else(|| {
            if self.0.is_full() {
                self.0.remove(0);
            }
            self.0.push((id, T::default()));
            self.0.len() - 1
        });
        &mut self.0[at].1
    }

    /// Returns the value of a subflow, if it has one.
    pub fn get(&self, id: SubflowId) -> Option<&T> {
        let mut known = self.0.iter();
        known.find(|(known, _)| *known == id).map(|(_, of)| of)
    }

    /// Forgets a subflow that is gone.
    pub fn on_event(&mut self, event: &StrategyEvent) {
        if let StrategyEvent::SubflowDown { subflow } = event {
            self.0.retain(|(id, _)| id != subflow);
        }
    }
}
