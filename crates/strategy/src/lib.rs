//! Strategies as pure decisions: which subflow carries what, and what is sent twice.
//!
//! Nothing here keeps protocol state or does I/O; a decision is a function of the view the engine
//! hands in (see [`braid_engine::sched`]) and can be tested with literals. A strategy is one file
//! and one row in the table of its kind.
#![forbid(unsafe_code)]

pub mod reinjector;
pub mod scheduler;
mod usable;

use std::fmt;

use braid_engine::sched::Policy;

/// The scheduler of a connection whose user did not choose.
pub const DEFAULT_SCHEDULER: &str = "minrtt";

/// The reinjector of a connection whose user did not choose.
pub const DEFAULT_REINJECTOR: &str = "opportunistic";

/// The policy of the scheduler called `name` with [`DEFAULT_REINJECTOR`].
///
/// # Errors
///
/// There is no scheduler of that name.
pub fn by_name(name: &str) -> Result<Policy, UnknownStrategy> {
    policy(name, DEFAULT_REINJECTOR)
}

/// The policy of the scheduler and the reinjector of these names; any two go together.
///
/// # Errors
///
/// One of the names is unknown.
pub fn policy(scheduler: &str, reinjector: &str) -> Result<Policy, UnknownStrategy> {
    Ok(Policy {
        scheduler: scheduler::by_name(scheduler)?,
        reinjector: reinjector::by_name(reinjector)?,
    })
}

/// Makes as many policies as wanted of the scheduler called `name` with [`DEFAULT_REINJECTOR`].
///
/// # Errors
///
/// There is no scheduler of that name.
pub fn factory(name: &str) -> Result<impl Fn() -> Policy + Clone + Send + use<>, UnknownStrategy> {
    let scheduler = find("scheduler", scheduler::TABLE, name)?;
    let reinjector = find("reinjector", reinjector::TABLE, DEFAULT_REINJECTOR)?;
    Ok(move || Policy {
        scheduler: scheduler(),
        reinjector: reinjector(),
    })
}

/// A name that no strategy has. Its message lists the names there are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownStrategy {
    /// What was looked for: `scheduler` or `reinjector`.
    pub kind: &'static str,
    /// The unknown name.
    pub name: String,
    /// The names of this kind.
    pub known: Vec<&'static str>,
}

impl fmt::Display for UnknownStrategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let UnknownStrategy { kind, name, known } = self;
        write!(
            f,
            "unknown {kind} {name:?}; known are: {}",
            known.join(", ")
        )
    }
}

impl std::error::Error for UnknownStrategy {}

/// A row of a table of strategies.
type Entry<T> = (&'static str, fn() -> Box<T>);

/// What makes the strategy called `name`.
fn find<T: ?Sized>(
    kind: &'static str,
    table: &[Entry<T>],
    name: &str,
) -> Result<fn() -> Box<T>, UnknownStrategy> {
    match table.iter().find(|(known, _)| *known == name) {
        Some((_, make)) => Ok(*make),
        None => Err(UnknownStrategy {
            kind,
            name: name.to_owned(),
            known: table.iter().map(|(known, _)| *known).collect(),
        }),
    }
}
