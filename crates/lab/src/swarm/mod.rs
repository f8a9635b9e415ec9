//! The swarm: many random worlds. In each, streams must arrive completely and connections must end in an
//! expected way, whatever links, middleboxes and users do.
//!
//! A seed defines a scenario: topology, faults, sizes and settings. The scenario runs with all oracles, and
//! the expected ends of its connections follow from it. The result depends on the seed alone, not on the
//! machine or on the number of threads. With an attacker ([`Worlds::Attacked`]) it also depends on the
//! randomness of TLS.

mod adversary;
mod draw;
mod expect;
mod figures;
mod gateways;
mod hosts;

use std::cell::RefCell;
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, Once, PoisonError};
use std::thread;

use serde::Serialize;

use self::draw::Draw;
use self::hosts::ScenarioRun;

pub use self::figures::Figures;

/// One seed in this many runs twice, to check that both runs are equal. A guess: 10 % more time.
const REPEAT_EVERY_SEEDS: u64 = 10;

/// The kind of worlds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Worlds {
    /// Hosts with middleboxes between them, and users behind a box.
    All,
    /// Users behind a box, with an attacker on one of its links. The attacker reads all packets of the link
    /// and injects forged ones.
    Attacked,
}

/// A seed that violates a rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Violation {
    /// The seed.
    pub seed: u64,
    /// Description of the violation.
    pub what: String,
    /// The command that runs the seed again.
    pub replay: String,
}

/// The result of a range of seeds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    /// The kind of worlds.
    pub worlds: Worlds,
    /// The first seed.
    pub first_seed: u64,
    /// Number of seeds.
    pub seeds: u64,
    /// Violations, in order of seeds.
    pub violations: Vec<Violation>,
    /// Sums over the seeds without a violation.
    pub figures: Figures,
}

/// Returns the scenario of `seed` as text.
pub fn describe(worlds: Worlds, seed: u64) -> String {
    format!("{:#?}", Scenario::draw(worlds, seed))
}

/// The scenario of a seed.
#[derive(Debug)]
enum Scenario {
    /// Two hosts, with middleboxes and other hosts on their paths.
    Hosts(Box<draw::HostScenario>),
    /// Users behind a box, and content behind servers.
    Gateways(gateways::GatewayScenario),
}

impl Scenario {
    fn draw(worlds: Worlds, seed: u64) -> Self {
        let mut draw = Draw::new(seed);
        let attacked = worlds == Worlds::Attacked;
        // A world with a box takes longer than one with two hosts, so it is rarer.
        match attacked || draw.chance(0.25) {
            true => Scenario::Gateways(gateways::GatewayScenario::draw(&mut draw, attacked)),
            false => Scenario::Hosts(Box::new(draw::scenario(&mut draw))),
        }
    }

    /// Runs the scenario and checks how its connections end.
    fn simulate(&self, seed: u64) -> Result<Figures, String> {
        let scenario = match self {
            Scenario::Hosts(scenario) => scenario,
            Scenario::Gateways(scenario) => return scenario.simulate(seed),
        };
        let mut run = ScenarioRun::new(seed, scenario)?;
        run.run()?;
        let mut figures = expect::check(scenario, &run)?;
        run.record(&mut figures);
        Ok(figures)
    }
}

/// Runs `seeds` seeds from `first` on, on `threads` threads (at least 1). Seeds that would exceed `u64::MAX`
/// are left out. Calls `progress` with each finished seed.
pub fn run(
    worlds: Worlds,
    first: u64,
    seeds: u64,
    threads: usize,
    progress: &(dyn Fn(u64) + Sync),
) -> Report {
    let next = AtomicU64::new(0);
    let found = Mutex::new((Vec::new(), Figures::default()));
    let work = || {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(seed) = first.checked_add(index).filter(|_| index < seeds) else {
                break;
            };
            let result = catch_panic(|| check_seed(worlds, seed));
            let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
            match result {
                Ok(figures) => found.1 += figures,
                Err(what) => found.0.push(violation(worlds, seed, what)),
            }
            drop(found);
            progress(seed);
        }
    };
    thread::scope(|scope| {
        for _ in 1..threads {
            scope.spawn(work);
        }
        work();
    });
    let (mut violations, figures) = found.into_inner().unwrap_or_else(PoisonError::into_inner);
    violations.sort_by_key(|v| v.seed);
    Report {
        worlds,
        first_seed: first,
        seeds,
        violations,
        figures,
    }
}

fn violation(worlds: Worlds, seed: u64, what: String) -> Violation {
    let attacked = match worlds {
        Worlds::All => "",
        Worlds::Attacked => "--attacked ",
    };
    Violation {
        seed,
        what,
        replay: format!("braid-lab swarm {attacked}--seeds 1 --first-seed {seed} -v"),
    }
}

thread_local! {
    /// The text of a panic while this thread runs a seed: the panic hook stores it here instead of printing
    /// it. `None` while the thread runs no seed.
    static PANIC_TEXT: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Runs a seed, and turns a panic into a violation.
fn catch_panic(seed: impl FnOnce() -> Result<Figures, String>) -> Result<Figures, String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let previous_hook = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            let is_stored = PANIC_TEXT.with_borrow_mut(|text| match text {
                Some(text) => {
                    *text = info.to_string();
                    true
                }
                None => false,
            });
            if !is_stored {
                previous_hook(info);
            }
        }));
    });
    PANIC_TEXT.set(Some(String::new()));
    let result = panic::catch_unwind(AssertUnwindSafe(seed));
    let text = PANIC_TEXT.take().unwrap_or_default();
    result.unwrap_or(Err(text))
}

fn check_seed(worlds: Worlds, seed: u64) -> Result<Figures, String> {
    let scenario = Scenario::draw(worlds, seed);
    let figures = scenario.simulate(seed)?;
    // With an attacker two runs differ: TLS takes its randomness from the system, so that an attack on the
    // handshake hits other bytes.
    if seed.is_multiple_of(REPEAT_EVERY_SEEDS) && worlds != Worlds::Attacked {
        let again = scenario.simulate(seed)?;
        if again != figures {
            return Err(format!("two runs differ: {figures:?} and {again:?}"));
        }
    }
    Ok(figures)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_found_depends_on_the_seed_alone() {
        let run = |first, threads| run(Worlds::All, first, 8, threads, &|_| ());
        assert_eq!(run(1, 1), run(1, 2));
        assert_ne!(run(1, 2).figures, run(9, 2).figures);
    }

    /// The seeds that CI runs; `braid-lab swarm` runs more.
    #[test]
    fn all_holds_in_300_worlds() {
        let threads = thread::available_parallelism().map_or(1, |n| n.get());
        let Report {
            violations,
            figures,
            ..
        } = run(Worlds::All, 0, 300, threads, &|_| ());
        assert!(violations.is_empty(), "{violations:#?}");
        // The worlds must cover every kind of connection. The counts are far below those of these seeds.
        assert!(figures.connections > 500 && figures.fallbacks > 10 && figures.aborted > 5);
        assert!(figures.marked > 20, "{figures:?}");
        assert!(figures.fast_opened > 10, "{figures:?}");
        // At most 4 % of the connections may end in a way that only bad luck excuses.
        let excused = figures.broken + figures.cut_off + figures.late;
        assert!(excused * 25 <= figures.connections, "{figures:?}");
    }

    /// An attacker on one link may break connections, and does, but never changes the bytes that
    /// arrive.
    #[test]
    fn nobody_on_a_link_reads_or_forges() {
        let threads = thread::available_parallelism().map_or(1, |n| n.get());
        let report = run(Worlds::Attacked, 0, 100, threads, &|_| ());
        assert!(report.violations.is_empty(), "{:#?}", report.violations);
        let figures = report.figures;
        // The attacks must break some connections, or they test nothing. They may break only a minority,
        // because most forged segments miss the window or fail the authentication.
        assert!(
            figures.connections > 200 && figures.broken > 10,
            "{figures:?}"
        );
        assert!(figures.broken * 2 < figures.connections, "{figures:?}");
    }

    #[test]
    fn the_last_seeds_are_no_exception() {
        assert_eq!(run(Worlds::All, u64::MAX - 1, 5, 1, &|_| ()).violations, []);
    }

    #[test]
    fn a_panic_is_noted_with_its_place_and_the_way_to_repeat_it() {
        let text = catch_panic(|| panic!("not as it should be")).unwrap_err();
        assert!(
            text.contains("not as it should be") && text.contains("swarm/mod.rs:"),
            "{text}"
        );
        for (worlds, replay) in [
            (Worlds::All, "braid-lab swarm --seeds 1 --first-seed 7 -v"),
            (
                Worlds::Attacked,
                "braid-lab swarm --attacked --seeds 1 --first-seed 7 -v",
            ),
        ] {
            assert_eq!(violation(worlds, 7, "x".to_owned()).replay, replay);
        }
    }
}
