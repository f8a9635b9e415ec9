//! Strategies by name: those of this crate and those that other crates add.

use std::fmt;
use std::sync::{Arc, OnceLock};

use braid_engine::StrategyFactory;
use braid_engine::strategy::Strategy;

use crate::settings::{Settings, StrategyError};
use crate::{DEFAULT, TABLE};

/// Strategies by name: those of this crate, and those that a program adds.
///
/// A program that looks names up itself can keep its own registry. Box, server, simulator and laboratory look
/// names up in the registry that the process has [installed](Self::install).
///
/// ```
/// use braid_engine::strategy::{Decision, SendView, Strategy};
/// use braid_strategy::Registry;
/// use braid_wire::Rng;
///
/// /// Sends on the first subflow that has room.
/// #[derive(Debug)]
/// struct First;
///
/// impl Strategy for First {
///     fn name(&self) -> &'static str {
///         "first"
///     }
///     fn next(&mut self, view: &SendView<'_>, _: &mut Rng) -> Decision {
///         let ready = view.subflows.iter().find(|s| s.ready && view.may_send_new);
///         ready.map_or(Decision::WAIT, |s| Decision::new_on(s.id))
///     }
/// }
///
/// let strategies = Registry::default().with("first", || Box::new(First));
/// assert_eq!(strategies.by_name("first").unwrap().name(), "first");
/// assert!(strategies.names().any(|name| name == "adaptive"));
/// ```
#[derive(Clone)]
pub struct Registry(Vec<Row>);

/// A strategy's name, and the reader of its settings.
#[derive(Clone)]
struct Row {
    name: &'static str,
    read: Arc<Read>,
}

/// Reads a strategy's settings and returns its factory.
type Read = dyn Fn(&mut Settings<'_>) -> Result<StrategyFactory, StrategyError> + Send + Sync;

/// The registry of this process. The registry cannot be replaced, so that a name in a configuration stays valid
/// once it is checked.
static INSTALLED: OnceLock<Registry> = OnceLock::new();

impl Registry {
    /// Adds the strategy `name`, which has no settings, and replaces a strategy of the same name. `make` is called
    /// for each connection, and for each further flow on it.
    ///
    /// # Panics
    /// Panics if `name` is empty or has characters other than `a-z`, `0-9`, `-` and `_`. Commas and colons in a
    /// name could not be distinguished from the separators of lists and settings.
    pub fn with(
        self,
        name: &'static str,
        make: impl Fn() -> Box<dyn Strategy> + Send + Sync + 'static,
    ) -> Self {
        let make = Arc::new(make);
        self.with_settings(name, move |_| {
            let make = Arc::clone(&make);
            Ok(Box::new(move || make()))
        })
    }

    /// Adds the strategy `name`, and replaces a strategy of the same name. `read` takes the settings and returns
    /// the factory.
    ///
    /// ```
    /// # use braid_engine::strategy::{Decision, SendView, Strategy};
    /// # use braid_strategy::Registry;
    /// # use braid_wire::Rng;
    /// # #[derive(Debug, Clone)]
    /// # struct Mine { share: f64 }
    /// # impl Strategy for Mine {
    /// #     fn name(&self) -> &'static str { "mine" }
    /// #     fn next(&mut self, _: &SendView<'_>, _: &mut Rng) -> Decision { Decision::WAIT }
    /// # }
    /// let strategies = Registry::default().with_settings("mine", |settings| {
    ///     let share = settings.share("share", 0.5)?;
    ///     Ok(Box::new(move || Box::new(Mine { share })))
    /// });
    /// assert!(strategies.by_name("mine:share=0.25").is_ok());
    /// assert!(strategies.by_name("mine:share=2").is_err());
    /// assert!(strategies.by_name("mine:speed=2").is_err());
    /// ```
    ///
    /// # Panics
    /// Panics as [`with`](Self::with) does.
    pub fn with_settings(
        mut self,
        name: &'static str,
        read: impl Fn(&mut Settings<'_>) -> Result<StrategyFactory, StrategyError>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        let is_plain = |c: char| matches!(c, 'a'..='z' | '0'..='9' | '-' | '_');
        let valid = !name.is_empty() && name.chars().all(is_plain);
        assert!(
            valid,
            "the name of a strategy may contain a-z, 0-9, - and _ only: {name:?} is not such a name"
        );
        self.0.retain(|row| row.name != name);
        let read = Arc::new(read);
        self.0.push(Row { name, read });
        self
    }

    /// Makes this the registry of the process. Box, server, simulator and laboratory look names up in this
    /// registry, as do [`by_name`] and the other functions of this module. A program has to install its registry
    /// before anything looks a name up.
    ///
    /// # Errors
    /// Returns this registry if the process already has one: it was installed, or created by the first look-up.
    pub fn install(self) -> Result<(), Registry> {
        INSTALLED.set(self)
    }

    /// Returns the names of all strategies, without settings.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.0.iter().map(|row| row.name)
    }

    /// Creates a strategy by its name and settings, such as `maps:single`.
    ///
    /// # Errors
    /// Fails if no strategy has this name, or the strategy refuses the settings.
    pub fn by_name(&self, name: &str) -> Result<Box<dyn Strategy>, StrategyError> {
        Ok(self.factory(name)?())
    }

    /// Returns the factory of a strategy.
    ///
    /// `name` consists of the strategy's name and, after a colon, its settings, separated by commas:
    /// `maps:plr=measured,eps=0.25`.
    ///
    /// # Errors
    /// Fails if no strategy has this name, or the strategy refuses the settings.
    pub fn factory(&self, name: &str) -> Result<StrategyFactory, StrategyError> {
        let bare = bare(name);
        let Some(row) = self.0.iter().find(|row| row.name == bare) else {
            return Err(StrategyError {
                problem: format!("there is no strategy {bare:?}"),
                expected: format!("one of {}", self.names().collect::<Vec<_>>().join(", ")),
            });
        };
        let mut settings = Settings::new(name);
        let factory = (row.read)(&mut settings)?;
        settings.finish()?;
        Ok(factory)
    }

    /// Splits a comma-separated list of strategies, some of which may have settings.
    ///
    /// Settings are separated by commas too. A part after a setting therefore counts as a further setting, unless
    /// it is the name of a strategy.
    pub fn split_list(&self, list: &str) -> Vec<String> {
        let mut strategies: Vec<String> = Vec::new();
        for part in list.split(',') {
            match strategies.last_mut() {
                Some(last) if last.contains(':') && !self.names().any(|n| n == bare(part)) => {
                    last.push(',');
                    last.push_str(part);
                }
                _ => strategies.push(part.to_owned()),
            }
        }
        strategies
    }
}

/// The strategies of this crate.
impl Default for Registry {
    fn default() -> Self {
        let row = |(name, read): &(&'static str, crate::Read)| Row {
            name,
            read: Arc::new(*read),
        };
        Registry(TABLE.iter().map(row).collect())
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.names()).finish()
    }
}

/// Returns a strategy's name without its settings.
fn bare(name: &str) -> &str {
    name.split_once(':').map_or(name, |(bare, _)| bare)
}

/// Returns the registry of this process. The first look-up installs the default registry, so that later look-ups
/// see the same one.
fn installed() -> &'static Registry {
    INSTALLED.get_or_init(Registry::default)
}

/// Returns the names of all strategies of this process, without settings.
pub fn names() -> impl Iterator<Item = &'static str> {
    installed().names()
}

/// Calls [`Registry::by_name`] of this process's registry.
///
/// # Errors
/// Fails if no strategy has this name, or the strategy refuses the settings.
pub fn by_name(name: &str) -> Result<Box<dyn Strategy>, StrategyError> {
    installed().by_name(name)
}

/// Calls [`Registry::factory`] of this process's registry.
///
/// # Errors
/// Fails if no strategy has this name, or the strategy refuses the settings.
pub fn factory(name: &str) -> Result<StrategyFactory, StrategyError> {
    installed().factory(name)
}

/// Calls [`Registry::split_list`] of this process's registry.
pub fn split_list(list: &str) -> Vec<String> {
    installed().split_list(list)
}

/// Creates the strategy of a connection whose configuration names none: the one with the name [`DEFAULT`] in this
/// process's registry. This strategy is [`Adaptive`](crate::Adaptive), unless the registry replaces it.
///
/// # Panics
/// Panics if the replacement requires settings.
pub fn default_strategy() -> Box<dyn Strategy> {
    default_factory()()
}

/// Returns the factory of [`default_strategy`].
///
/// # Panics
/// Panics as [`default_strategy`] does.
pub fn default_factory() -> StrategyFactory {
    factory(DEFAULT).expect("the default strategy needs no settings")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Pinned, Redundant};

    #[test]
    fn added_strategies_are_found_by_name() {
        let mine = Registry::default().with("mine", || Box::new(Redundant));
        assert_eq!(mine.by_name("mine").unwrap().name(), "redundant");
        assert_eq!(mine.names().last(), Some("mine"));
        let error = mine.by_name("mine:fast").unwrap_err().to_string();
        assert!(error.contains("no settings here"), "{error}");
        let error = mine.by_name("yours").unwrap_err().to_string();
        assert!(error.ends_with("adaptive, mine"), "{error}");
        assert_eq!(mine.split_list("maps:single,mine"), ["maps:single", "mine"]);
    }

    #[test]
    fn a_name_stands_for_the_strategy_that_was_added_last() {
        let pinned = Registry::default().with("ecf", || Box::new(Pinned::default()));
        assert_eq!(pinned.by_name("ecf").unwrap().name(), "pinned");
        assert_eq!(pinned.names().count(), Registry::default().names().count());
    }

    #[test]
    #[should_panic(expected = "is not")]
    fn a_name_has_no_separators() {
        let _ = Registry::default().with("mine:fast", || Box::new(Redundant));
    }

    /// Programs install the registry at their start, so that all lookups see the same strategies.
    #[test]
    fn a_registry_cannot_be_installed_after_a_lookup() {
        assert_eq!(default_strategy().name(), DEFAULT);
        let late = Registry::default().with("late", || Box::new(Redundant));
        assert!(late.install().is_err());
        assert!(by_name("late").is_err());
    }
}
