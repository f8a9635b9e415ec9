//! Strategies decide on which path a connection opens and which paths join, which subflow carries which data, and
//! which data is sent twice.
//!
//! A strategy of this crate is one module and one row of `TABLE`. [`Waiting`] and [`Pinned`] have no row, because
//! users cannot choose them: the box uses them for its own connections. [`parts`] has the rules that several
//! strategies share. A [`Registry`] adds strategies of other crates to the table.
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

/// The name of the strategy for connections whose configuration names none.
pub const DEFAULT: &str = "adaptive";

/// Reads a strategy's settings and returns its factory.
type Read = fn(&mut Settings<'_>) -> Result<StrategyFactory, StrategyError>;

/// The names of all strategies, with the readers of their settings. Error texts list them in this order.
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

/// The strategies that `po` may build on: the baselines. If `po` built on another published strategy, a measurement
/// would show the effects of two ideas at once.
const BASELINES: [&str; 6] = ["minrtt", "roundrobin", "redundant", "blest", "ecf", "linux"];

/// Returns a factory that clones `strategy`, a strategy in its initial state.
fn copies_of(strategy: impl Strategy + Clone + 'static) -> StrategyFactory {
    Box::new(move || Box::new(strategy.clone()))
}
