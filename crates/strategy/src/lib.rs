//! Strategies: where a connection opens and joins, which subflow carries what, what is sent twice.
//!
//! Nothing here keeps protocol state or does I/O; a decision is a function of the view that the engine
//! hands in (see [`braid_engine::strategy`]) and can be tested with literals. A strategy is one file and
//! one row in the table ([`Waiting`] and [`Pinned`] have no row: the box uses them itself); [`parts`] has
//! what several strategies share.
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
pub use roundrobin::RoundRobin;
pub use settings::StrategyError;
pub use waiting::Waiting;

use settings::Settings;

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
        Ok(Po::factory(factory(base)?))
    }),
    ("maps", |settings| Ok(copies_of(Maps::read(settings)?))),
    ("adaptive", |_| Ok(copies_of(Adaptive::default()))),
];

/// The strategies that `po` may build on.
const BASELINES: [&str; 6] = ["minrtt", "roundrobin", "redundant", "blest", "ecf", "linux"];

/// Returns the names of all strategies, without settings.
pub fn names() -> impl Iterator<Item = &'static str> {
    TABLE.iter().map(|(name, _)| *name)
}

/// Makes a strategy by its name and settings, such as `maps:single`.
///
/// # Errors
///
/// Fails if no strategy has this name, or the strategy has no such settings.
pub fn by_name(name: &str) -> Result<Box<dyn Strategy>, StrategyError> {
    Ok(factory(name)?())
}

/// Returns the factory of the strategy that `name` stands for.
///
/// `name` is a strategy's name and, after a colon, its settings with commas between them, such as
/// `maps:plr=measured,eps=0.25`.
///
/// # Errors
///
/// Fails if no strategy has this name, or the strategy has no such settings.
pub fn factory(name: &str) -> Result<StrategyFactory, StrategyError> {
    let bare = name.split_once(':').map_or(name, |(bare, _)| bare);
    let Some((_, read)) = TABLE.iter().find(|(known, _)| *known == bare) else {
        return Err(StrategyError {
            problem: format!("there is no strategy {bare:?}"),
            expected: format!("one of {}", names().collect::<Vec<_>>().join(", ")),
        });
    };
    let mut settings = Settings::new(name);
    let factory = read(&mut settings)?;
    settings.finish()?;
    Ok(factory)
}

/// Divides a list of names with commas between them, some of which may have settings.
///
/// A part that follows a setting and is no strategy's name is one more setting.
pub fn split_list(list: &str) -> Vec<String> {
    let mut divided: Vec<String> = Vec::new();
    for part in list.split(',') {
        let bare = part.split_once(':').map_or(part, |(bare, _)| bare);
        match divided.last_mut() {
            Some(last) if last.contains(':') && !names().any(|known| known == bare) => {
                last.push(',');
                last.push_str(part);
            }
            _ => divided.push(part.to_owned()),
        }
    }
    divided
}

/// Returns a factory that clones `strategy`, which has not decided anything yet.
fn copies_of(strategy: impl Strategy + Clone + 'static) -> StrategyFactory {
    Box::new(move || Box::new(strategy.clone()))
}
