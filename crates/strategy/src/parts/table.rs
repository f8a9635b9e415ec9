//! A table of values by subflow, for strategies that keep state for each subflow.

use arrayvec::ArrayVec;
use braid_engine::SubflowId;
use braid_engine::strategy::StrategyEvent;

/// Maximum number of subflows in a table: the engine's maximum for a connection.
const MAX_SUBFLOWS: usize = 32;

/// A value for each subflow. A full table drops the value that it has had longest.
#[derive(Debug, Clone, Default)]
pub struct PerSubflow<T>(ArrayVec<(SubflowId, T), MAX_SUBFLOWS>);

impl<T: Default> PerSubflow<T> {
    /// Returns the value of a subflow. Inserts the default if the subflow has no value yet.
    pub fn of(&mut self, id: SubflowId) -> &mut T {
        let position = self.0.iter().position(|(entry, _)| *entry == id);
        let index = position.unwrap_or_else(|| {
            if self.0.is_full() {
                self.0.remove(0);
            }
            self.0.push((id, T::default()));
            self.0.len() - 1
        });
        &mut self.0[index].1
    }

    /// Returns the value of a subflow, if it has one.
    pub fn get(&self, id: SubflowId) -> Option<&T> {
        let mut entries = self.0.iter();
        entries
            .find(|(entry, _)| *entry == id)
            .map(|(_, value)| value)
    }

    /// Removes the value of a subflow that has ended.
    pub fn on_event(&mut self, event: &StrategyEvent) {
        if let StrategyEvent::SubflowDown { subflow } = event {
            self.0.retain(|(id, _)| id != subflow);
        }
    }
}
