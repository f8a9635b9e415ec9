//! Reinjectors: when data in flight is copied to another subflow.

mod none;
mod opportunistic;

use braid_engine::sched::Reinjector;

use crate::{Entry, UnknownStrategy};

pub use none::NoReinjection;
pub use opportunistic::Opportunistic;

pub(crate) const TABLE: &[Entry<dyn Reinjector>] = &[
    ("opportunistic", || Box::new(Opportunistic)),
    ("none", || Box::new(NoReinjection)),
];

/// The names of all reinjectors.
pub fn names() -> impl Iterator<Item = &'static str> {
    TABLE.iter().map(|(name, _)| *name)
}

/// A reinjector by its name.
///
/// # Errors
///
/// There is none of that name.
pub fn by_name(name: &str) -> Result<Box<dyn Reinjector>, UnknownStrategy> {
    Ok(crate::find("reinjector", TABLE, name)?())
}
