//! The subflows of a connection, and the totals of closed ones.

use core::ops::{Deref, DerefMut};

use super::subflow::Subflow;
use crate::path::Loads;
use crate::stats::PathStats;

/// The subflows of a connection, in the order of their ids: the slice that this type derefs to.
#[derive(Debug, Default)]
pub(crate) struct Subflows {
    list: Vec<Subflow>,
    /// The payload moved by closed subflows, by path and remote address.
    pub gone: Vec<PathStats>,
    /// The id of the next subflow.
    pub next: u32,
}

impl Deref for Subflows {
    type Target = [Subflow];

    fn deref(&self) -> &[Subflow] {
        &self.list
    }
}

impl DerefMut for Subflows {
    fn deref_mut(&mut self) -> &mut [Subflow] {
        &mut self.list
    }
}

impl Subflows {
    pub fn push(&mut self, subflow: Subflow) {
        self.list.push(subflow);
    }

    /// Updates the parts of the subflows in the loads of their paths.
    pub fn count_loads(&mut self, loads: &mut Loads) {
        for subflow in &mut self.list {
            subflow.count_load(loads);
        }
    }

    pub fn remove(&mut self, i: usize) -> Subflow {
        self.list.remove(i)
    }
}
