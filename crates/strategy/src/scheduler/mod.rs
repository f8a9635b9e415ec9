//! Schedulers: which subflow carries the next bytes.

mod minrtt;

use braid_engine::sched::Scheduler;

use crate::{Entry, UnknownStrategy};

pub use minrtt::MinRtt;

pub(crate) const TABLE: &[Entry<dyn Scheduler>] = &[("minrtt", || Box::new(MinRtt))];

/// The names of all schedulers.
pub fn names() -> impl Iterator<Item = &'static str> {
    TABLE.iter().map(|(name, _)| *name)
}

/// A scheduler by its name.
///
/// # Errors
///
/// There is none of that name.
pub fn by_name(name: &str) -> Result<Box<dyn Scheduler>, UnknownStrategy> {
    Ok(crate::find("scheduler", TABLE, name)?())
}
