//! The subflows of a connection, and what those moved that are gone.

use core::ops::{Deref, DerefMut};

use super::subflow::Subflow;
use crate::stats::PathStats;

/// The subflows of a connection, in the order of their ids.
#[derive(Debug, Default)]
pub(crate) struct Subflows {
    list: Vec<Subflow>,
    /// What subflows that are gone moved, by path.
    pub gone: Vec<PathStats>,
    /// The id of the next one.
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

    pub fn remove(&mut self, i: usize) -> Subflow {
        self.list.remove(i)
    }
}
