//! Strategies: where a connection opens and joins, which subflow carries what, what is sent twice.
//!
//! A strategy of this crate is one file and one row of its table ([`Waiting`] and [`Pinned`] have no row: the
//! box uses them itself); [`parts`] has what several strategies share. A [`Registry`] adds strategies of other
//! crates to the table.
#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod adaptive;
mod blest;
mod ecf;
mod fsa;
mod linux;
mod maps;
mod minrtt;
pub mod parts;
mod pinned;
mod po;
pub mod predict;
mod redundant;
mod registry;
mod roundrobin;
mod settings;
mod waiting;

use braid_engine::StrategyFactory;
use braid_engine::strategy::Strategy;

pub use adaptive::Adaptive;
pub use blest::Blest;
pub use ecf::Ecf;
pub use fsa::Fsa;
pub use linux::Linux;
pub use maps::Maps;
pub use minrtt::MinRtt;
pub use pinned::Pinned;
pub use po::Po;
pub use redundant::Redundant;
pub use registry::{
    Registry, by_name, default_factory, default_strategy, factory, names, split_list,
};
pub use roundrobin::RoundRobin;
pub use settings::{Settings, StrategyError};
pub use waiting::Waiting;

/// The strategy of a connection whose user did not choose.
pub const DEFAULT: &str = "adaptive";

/// Reads a strategy's settings and returns its factory.
type Read = fn(&mut Settings<'_>) -> Result<StrategyFactory, StrategyError>;

/// Every strategy by its name.
const TABLE: &[(&str, Read)] = &[
    ("minrtt", |_| Ok(copies_of(MinRtt))),
    ("roundrobin", |_| Ok(copies_of(RoundRobin::default()))),
    ("redundant", |_| Ok(copies_of(Redundant))),
    ("blest", |_| Ok(copies_of(Blest::default()))),
    ("ecf", |_| Ok(copies_of(Ecf::default()))),
    ("linux", |_| Ok(copies_of(Linux::default()))),
    ("fsa", |_| Ok(copies_of(Fsa::default()))),
    ("po", |settings| {
        let bases = BASELINES.map(|name| (name, name));
        let base = settings.one_of("base", "minrtt", &bases)?;
        Ok(Po::factory(Registry::default().factory(base)?))
    }),
    ("maps", |settings| Ok(copies_of(Maps::read(settings)?))),
    ("adaptive", |_| Ok(copies_of(Adaptive::default()))),
];

/// The strategies that `po` may build on.
const BASELINES: [&str; 6] = ["minrtt", "roundrobin", "redundant", "blest", "ecf", "linux"];

/// Returns a factory that clones `strategy`, which has not decided anything yet.
fn copies_of(strategy: impl Strategy + Clone + 'static) -> StrategyFactory {
    Box::new(move || Box::new(strategy.clone()))
}
