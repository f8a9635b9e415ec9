//! Strategies: where a connection opens and joins, which subflow carries what, what is sent twice.
//!
//! Nothing here keeps protocol state or does I/O; a decision is a function of the view the engine
//! hands in (see [`braid_engine::strategy`]) and can be tested with literals. A strategy is one
//! file and one row in the table; what several have in common is in [`parts`].
#![forbid(unsafe_code)]

mod minrtt;
pub mod parts;
pub mod predict;
mod redundant;
mod roundrobin;

use std::fmt;

use braid_engine::strategy::Strategy;

pub use minrtt::MinRtt;
pub use redundant::Redundant;
pub use roundrobin::RoundRobin;

/// The strategy of a connection whose user did not choose.
pub const DEFAULT: &str = "minrtt";

/// Makes one strategy.
type Make = fn() -> Box<dyn Strategy>;

/// Every strategy by its name.
const TABLE: &[(&str, Make)] = &[
    ("minrtt", || Box::new(MinRtt)),
    ("roundrobin", || Box::<RoundRobin>::default()),
    ("redundant", || Box::new(Redundant)),
];

/// The names of all strategies.
pub fn names() -> impl Iterator<Item = &'static str> {
    TABLE.iter().map(|(name, _)| *name)
}

/// A strategy by its name.
///
/// # Errors
///
/// There is none of that name.
pub fn by_name(name: &str) -> Result<Box<dyn Strategy>, UnknownStrategy> {
    Ok(factory(name)?())
}

/// Makes as many of the strategy called `name` as wanted.
///
/// # Errors
///
/// There is none of that name.
pub fn factory(name: &str) -> Result<fn() -> Box<dyn Strategy>, UnknownStrategy> {
    let row = TABLE.iter().find(|(known, _)| *known == name);
    row.map(|(_, make)| *make)
        .ok_or_else(|| UnknownStrategy(name.to_owned()))
}

/// A name that no strategy has. Its message lists the names there are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownStrategy(pub String);

impl fmt::Display for UnknownStrategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known: Vec<_> = names().collect();
        let known = known.join(", ");
        write!(f, "unknown strategy {:?}; known are: {known}", self.0)
    }
}

impl std::error::Error for UnknownStrategy {}
